"""What the launcher was asked for and what it started."""

import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from lacuna.training import is_main_process, processes
from lacuna.training.environment import _processes_asked_of_accelerate

REPOSITORY = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize(
    "command, expected",
    [
        ("python /venv/bin/accelerate launch --num_processes 2 recipes/pretrain.py", 2),
        ("python /venv/bin/accelerate launch --cpu --num_processes=4 recipes/pretrain.py", 4),
        ("python -m accelerate.commands.launch --num-processes 2 recipes/pretrain.py", 2),
        ("python /venv/bin/accelerate-launch --num_processes 2 recipes/pretrain.py", 2),
        ("python /venv/bin/accelerate launch recipes/pretrain.py", None),
        ("python /venv/bin/accelerate launch --config_file nowhere.yaml recipes/pretrain.py", None),
        ("python recipes/pretrain.py --num_processes 2", None),
        ("bash", None),
        ("", None),
    ],
)
def test_what_accelerate_was_asked_for(command, expected) -> None:
    assert _processes_asked_of_accelerate(command.split()) == expected


def test_what_its_configuration_file_asks_for(tmp_path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text("num_processes: 3\n")
    command = ["accelerate", "launch", "--config_file", str(file)]
    assert _processes_asked_of_accelerate([*command, "recipe.py"]) == 3
    assert _processes_asked_of_accelerate([*command, "--num_processes", "2", "recipe.py"]) == 2


def test_the_variables_of_a_launcher(monkeypatch) -> None:
    for name, value in {"WORLD_SIZE": "4", "RANK": "3", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"}.items():
        monkeypatch.setenv(name, value)
    found = processes()
    assert (found.rank, found.local_rank, found.count, found.local_count) == (3, 1, 4, 2)
    assert found.describe() == "running on 4 processes"
    assert not is_main_process()


def test_one_process_where_two_were_asked_for(monkeypatch) -> None:
    for name in ("WORLD_SIZE", "RANK", "LOCAL_RANK", "LOCAL_WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)

    class Parent:
        def cmdline(self):
            return ["python", "/venv/bin/accelerate", "launch", "--cpu", "--num_processes", "2", "recipe.py"]

    monkeypatch.setattr(psutil.Process, "parent", lambda self: Parent())
    line = processes().describe()
    assert line.startswith("running on 1 process, though the launcher was asked for 2")
    assert "torchrun --nproc_per_node 2" in line
    assert is_main_process()


def test_accelerate_launch_really_starts_one_and_is_caught(tmp_path) -> None:
    script = tmp_path / "script.py"
    script.write_text("from lacuna.training import processes\nprint(processes().describe())\n")
    command = [sys.executable, "-m", "accelerate.commands.launch", "--cpu", "--num_processes", "2", str(script)]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert "running on 1 process, though the launcher was asked for 2" in done.stdout


def test_memory_that_is_kept_changes_no_number() -> None:
    """A step in a process of its own, with and without; there memory comes from the kernel anew, or does not."""
    code = (
        "import sys, torch; from lacuna.training.environment import keep_memory; torch.manual_seed(0); "
        "kept = keep_memory() if sys.argv[1] == 'kept' else None; x = torch.randn(512, 512, requires_grad=True); "
        "[(x @ x).relu().mean().backward() for _ in range(3)]; print(x.grad.double().sum().item().hex(), kept)"
    )
    found = [
        subprocess.run([sys.executable, "-c", code, way], cwd=REPOSITORY, capture_output=True, text=True, check=True)
        for way in ("kept", "plain")
    ]
    (kept, was_kept), (plain, _) = (run.stdout.split() for run in found)
    assert kept == plain and was_kept in ("True", "False")
