"""What a process runs on."""

import platform
from pathlib import Path

import processes as processes_of_tests
import pytest

from lacuna.common.errors import InputError
from lacuna.training import is_main_process, processes, run, running_on
from lacuna.training.arguments import TrainingArguments


def test_the_variables_of_a_launcher(monkeypatch) -> None:
    assert running_on() == "running on 1 process" and is_main_process()
    for name, value in {"WORLD_SIZE": "4", "RANK": "3", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"}.items():
        monkeypatch.setenv(name, value)
    assert processes() == 4 and running_on() == "running on 4 processes"
    assert not is_main_process()


STEP = """
import sys, torch
from lacuna.training.environment import keep_memory

def held():
    lines = open("/proc/self/status").read().splitlines()
    return int(next(line for line in lines if line.startswith("VmRSS")).split()[1]) / 1024

kept = sys.argv[1] == "kept" and keep_memory()
torch.manual_seed(0)
x = torch.randn(512, 512, requires_grad=True)
[(x @ x).relu().mean().backward() for _ in range(3)]
before = held()
torch.ones(2**25)
print(x.grad.double().sum().item().hex(), kept, held() - before)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another C library gives memory back or not as it likes")
def test_memory_that_is_kept_changes_no_number(tmp_path: Path) -> None:
    """A step in a process of its own, with and without: 128 MiB that were freed stay there, or go back."""
    (tmp_path / "step.py").write_text(STEP)
    found = [processes_of_tests.run(tmp_path / "step.py", way) for way in ("kept", "plain")]
    assert not found[0].stderr and not found[1].stderr
    (kept, was_kept, more), (plain, _, less) = (run.stdout.split() for run in found)
    assert kept == plain and was_kept == "True"
    assert float(more) > 120 and float(less) < 4


def test_a_run_keeps_freed_memory_before_anything_else(monkeypatch: pytest.MonkeyPatch) -> None:
    """Later, torch would have taken its first memory from a glibc that gives it back."""
    asked = []
    monkeypatch.setattr(run, "keep_memory", lambda: asked.append("memory"))
    monkeypatch.setattr(run, "Accelerator", lambda **_: asked.append("accelerator"))
    run._join(TrainingArguments(mixed_precision="no"))
    assert asked == ["memory", "accelerator"]


BOUNDED = """
import resource, types, psutil, torch
from lacuna.training.environment import bounded_memory

torch.ones(8) @ torch.ones(8)
psutil.virtual_memory = lambda: types.SimpleNamespace(available=2**28)
before = resource.getrlimit(resource.RLIMIT_DATA)
with bounded_memory():
    torch.ones(2**24)
    try:
        torch.empty(2**28)
    except RuntimeError as error:
        print(str(error).partition("you tried")[2].split(".")[0])
assert resource.getrlimit(resource.RLIMIT_DATA) == before
torch.empty(2**28)
"""


@pytest.mark.skipif(platform.system() != "Linux", reason="other systems have no limit that can be set")
def test_memory_that_is_not_there_is_refused_while_training_alone(tmp_path: Path) -> None:
    """64 MiB of 256 are granted, and a GiB is not; before and after, it is but an address."""
    (tmp_path / "bounded.py").write_text(BOUNDED)
    done = processes_of_tests.run(tmp_path / "bounded.py")
    assert (done.returncode, done.stdout) == (0, " to allocate 1073741824 bytes\n"), done.stderr


def test_more_threads_than_cores_are_a_mistake() -> None:
    with pytest.raises(InputError, match=r"--threads must be at least 1 and at most \d+, got 3000"):
        TrainingArguments(threads=3000)
