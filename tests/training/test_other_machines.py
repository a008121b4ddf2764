"""Machines that are not at hand: Windows, whose Python lacks what Linux has, and Macs with a GPU."""

import ctypes
import subprocess
import sys
from pathlib import Path
from typing import Any
from unittest import mock

import processes
import pytest
import torch
from examples import fast

from lacuna.common.errors import InputError
from lacuna.training import TrainingArguments, run
from lacuna.training.compiling import compiler_of, should_compile
from lacuna.training.environment import hardware, keep_memory

REPOSITORY = Path(__file__).resolve().parents[2]
SCRIPT = """
import ctypes, importlib, multiprocessing, os, pathlib, pickle, signal, sys

# Other libraries as they are: they know Windows in their own ways.
import torch.utils.data
from transformers import BertForMaskedLM

if __name__ == "__main__":
    import accelerate, asyncio, datasets, filelock, matplotlib.pyplot, peft, psutil, torch.distributed.checkpoint
    import torch.distributed.fsdp
    from transformers import pipelines

    for name in [name for name in sys.modules if name.partition(".")[0] == "lacuna"]:
        del sys.modules[name]  # what the server of `processes` has of it knows the machine as it is

for name in ("fcntl", "resource", "grp", "pwd", "termios", "syslog"):
    sys.modules[name] = None
for name in ("fork", "forkpty", "sched_getaffinity", "sched_setaffinity", "getuid", "geteuid", "getpgid",
             "getloadavg", "uname", "killpg", "setsid", "mkfifo", "sysconf", "posix_fadvise", "nice"):
    if hasattr(os, name):
        delattr(os, name)
for name in ("SIGKILL", "SIGSTOP", "SIGHUP", "SIGUSR1", "SIGUSR2", "SIGALRM", "SIGXFSZ", "alarm", "setitimer",
             "pthread_sigmask"):
    delattr(signal, name)
library = ctypes.CDLL
ctypes.CDLL = lambda name, *rest, **more: library(name + "", *rest, **more)  # a TypeError for None
multiprocessing.set_start_method("spawn", force=True)

from toys import PlainTokenizer, ToyWork, make_model

class Handed(torch.utils.data.DataLoader):
    def __init__(self, dataset, **options):
        names = ("collate_fn", "worker_init_fn")
        dataset, *functions = pickle.loads(pickle.dumps([dataset, *map(options.get, names)]))
        super().__init__(dataset, **{**options, **dict(zip(names, functions))})

if __name__ == "__main__":
    repository, output_dir = map(pathlib.Path, sys.argv[1:3])
    rooms = "common corpus evaluation exporting modeling objectives tasks tokenization training"
    for path in sorted(path for room in rooms.split() for path in (repository / room).rglob("[a-z]*.py")):
        if path.stem != "gguf":  # an extra
            importlib.import_module(".".join(["lacuna", *path.relative_to(repository).with_suffix("").parts]))
    from lacuna.training import TrainingArguments, environment, loop, train

    loop.DataLoader = Handed
    options = dict(output_dir=str(output_dir), batch_size=8, save_steps=1, mixed_precision="no")
    for steps, workers in ((2, int(sys.argv[3])), (3, 0)):
        arguments = TrainingArguments(**options, max_steps=steps, resume=steps == 3, num_workers=workers)
        results = train(model=make_model(), work=ToyWork(), tokenizer=PlainTokenizer(), arguments=arguments)
    environment.serve_on(0)
    print(multiprocessing.get_start_method(), results["steps"], (output_dir / "model.safetensors").is_file())
"""


@pytest.mark.parametrize("workers", fast([0, 1], 0))
def test_a_run_without_what_windows_lacks(tmp_path: Path, workers: int) -> None:
    """All rooms, two steps, a checkpoint, a third step after resuming; rows come from what a worker would be handed,
    or from one that is spawned."""
    (tmp_path / "windows.py").write_text(SCRIPT, encoding="utf-8")
    done = processes.run(
        tmp_path / "windows.py",
        *(REPOSITORY, tmp_path / "run", workers),
        env={"PYTHONPATH": f"{REPOSITORY / 'tests'}:{REPOSITORY}", "PATH": "", "HF_HUB_OFFLINE": "1"},
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.split()[-3:] == ["spawn", "3", "True"]


def test_a_c_library_that_cannot_be_told_to_keep_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    for error in (TypeError, OSError):
        monkeypatch.setattr(ctypes, "CDLL", mock.Mock(side_effect=error))
        assert keep_memory() is False


@pytest.fixture
def mac(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What accelerate is asked for on a machine whose accelerator is `mps`."""
    asked: dict[str, Any] = {}
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda check_available: torch.device("mps"))
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    monkeypatch.setattr(run, "Accelerator", lambda **options: asked.update(options) or mock.Mock())
    return asked


@pytest.mark.parametrize(("count", "on_cpu"), [("1", False), ("2", True)])
def test_a_mac_trains_on_its_gpu_unless_processes_would_share_it(mac, monkeypatch, count: str, on_cpu: bool) -> None:
    monkeypatch.setenv("WORLD_SIZE", count)
    run._join(TrainingArguments())
    assert mac["cpu"] is on_cpu and mac["mixed_precision"] == "no"


def test_nothing_is_compiled_without_the_headers_of_python(options, monkeypatch, tmp_path) -> None:
    monkeypatch.setattr("lacuna.training.compiling.sysconfig.get_path", lambda name: str(tmp_path))
    monkeypatch.setattr("lacuna.training.compiling.shutil.which", lambda name: name)
    assert compiler_of(torch.device("cpu")) is None
    (tmp_path / "Python.h").touch()
    assert compiler_of(torch.device("cpu")) is not None


def test_nothing_is_compiled_on_a_mac(options) -> None:
    device = torch.device("mps")
    assert compiler_of(device) is None
    given: dict[str, Any] = {"model": torch.nn.Linear(2, 2), "stages": [], "device": device, "is_divided": False}
    assert not should_compile(options(), **given)
    with pytest.raises(InputError, match="--compile on: there is no compiler for mps here"):
        should_compile(options(compile="on"), **given)


def test_the_gpu_of_a_mac_has_a_name() -> None:
    assert hardware(torch.device("mps")) == "1 × mps"


def test_what_torch_lacks_on_a_mac_is_asked_for_before_torch_is_there() -> None:
    code = "import os, sys, lacuna; print(os.environ['PYTORCH_ENABLE_MPS_FALLBACK'], 'torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], cwd=REPOSITORY, capture_output=True, text=True)
    assert done.stdout.split() == ["1", "False"], done.stderr
