"""What a process runs on."""

import subprocess
import sys
from pathlib import Path

from lacuna.training import is_main_process, processes

REPOSITORY = Path(__file__).resolve().parents[2]


def test_the_variables_of_a_launcher(monkeypatch) -> None:
    assert processes().describe() == "running on 1 process" and is_main_process()
    for name, value in {"WORLD_SIZE": "4", "RANK": "3", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"}.items():
        monkeypatch.setenv(name, value)
    found = processes()
    assert (found.count, found.local_count) == (4, 2) and found.describe() == "running on 4 processes"
    assert not is_main_process()


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
