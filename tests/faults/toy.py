"""Short runs with faults in them, and one oracle of what must be equal."""

import hashlib
import json
import subprocess
from pathlib import Path
from typing import Any

import processes
import torch
from safetensors.torch import load_file

from lacuna.training.checkpoints.saving import newest_checkpoint

SCRIPT = "tests/faults/toy_run.py"
NO_FAULTS = ("saved@", "slow@", "sgd@", "clock@", "compiled@")
"""What `--inject` takes besides faults."""
injected = 0
"""Faults so far, of this process."""

OPTIONS: dict[str, Any] = {
    "batch_size": 8,
    "max_steps": 12,
    "logging_steps": 1,
    "eval_steps": 6,
    "save_steps": 3,
    "optimizer": "adamw",
    "learning_rate": 1e-2,
    "mixed_precision": "no",
    "deterministic": True,
    "hang_timeout": 60,
}


def count(faults: int = 1) -> None:
    """Note that so many faults were injected; the summary of a test run says how many, and how many were survived."""
    global injected
    injected += faults


class Toy:
    """A folder with runs in it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.output_dir = folder / "run"

    def words(self, *inject: str, resume: bool = False, **options: Any) -> list[object]:
        """The command line of a run."""
        given = {**OPTIONS, "output_dir": self.output_dir, **options}
        words = [word for name, value in given.items() for word in (f"--{name}", value)]
        words += ["--resume"] if resume else []
        count(sum(not fault.startswith(NO_FAULTS) for fault in inject))
        return [*words, "--inject", *inject] if inject else words

    def run(self, *inject: str, num_processes: int = 1, **options: Any) -> subprocess.CompletedProcess[str]:
        """Run to the end, however it comes."""
        return processes.run(SCRIPT, *self.words(*inject, **options), num_processes=num_processes, timeout=120)

    def start(self, *inject: str, num_processes: int = 1, **options: Any) -> processes.Running:
        """Begin a run."""
        return processes.start(SCRIPT, *self.words(*inject, **options), num_processes=num_processes)

    def log(self) -> list[dict[str, Any]]:
        """The lines of metrics.jsonl."""
        return [json.loads(line) for line in (self.output_dir / "metrics.jsonl").read_text().splitlines()]

    def checkpoints(self) -> list[str]:
        """Names of what is in the folder of checkpoints."""
        return sorted(path.name for path in (self.output_dir / "checkpoints").iterdir())

    def oracle(self) -> dict[str, Any]:
        """All that must be equal between a run that was disturbed and one that was not."""
        checkpoint, _ = newest_checkpoint(self.output_dir)
        assert checkpoint is not None
        progress = json.loads((checkpoint / "training_state" / "progress.json").read_text())
        seen: dict[int, str] = {}
        for path in self.folder.glob("seen-*.txt"):
            for line in path.read_text().splitlines():
                index, digest = line.split()
                assert seen.setdefault(int(index), digest) == digest, f"sample {index} was another one"
        losses = {
            line["step"]: [line[name] for name in ("loss", "learning_rate", "grad_norm", "epoch")]
            for line in self.log()
            if "loss" in line
        }
        return {
            "model": tensors(self.output_dir / "model.safetensors"),
            "checkpoint": checkpoint.name,
            "optimizer": tensors(checkpoint / "training_state" / "optimizer.safetensors"),
            "counters": {name: value for name, value in progress.items() if name != "seconds"},
            "losses": losses,
            "evaluations": [(line["step"], line["eval_loss"]) for line in self.log() if "eval_loss" in line],
            "samples": hashlib.sha256(json.dumps(sorted(seen.items())).encode()).hexdigest(),
        }


def tensors(path: Path) -> str:
    """A hash of all tensors of a file, by name."""
    digest = hashlib.sha256()
    for name, value in sorted(load_file(path).items()):
        digest.update(f"{name} {value.dtype} {tuple(value.shape)}".encode())
        digest.update(value.contiguous().flatten().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()
