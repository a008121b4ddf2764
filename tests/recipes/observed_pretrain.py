"""Runs recipes/pretrain.py as it is and writes down what its objective is asked to learn.

    python observed_pretrain.py FOLDER [options of the recipe] [--then [options of another run] ...]

For each row that the model sees in training, a line of FOLDER/<run>-<rank>.txt: a hash of its ids, masks, segments,
positions and labels, without padding.
"""

import hashlib
import os
import runpy
import sys
from pathlib import Path
from typing import Any

import torch

import lacuna.training.run
from lacuna.common.command_line import exit_cleanly
from lacuna.objectives import OBJECTIVES

RECIPE = Path(__file__).resolve().parents[2] / "recipes" / "pretrain.py"


def row_hashes(batch: dict[str, Any]) -> list[str]:
    lines = []
    for row in range(len(batch["input_ids"])):
        length = int(batch["attention_mask"][row].sum()) if "attention_mask" in batch else None
        digest = hashlib.sha256()
        for name in sorted(set(batch) - {"attention_mask"}):
            value = batch[name][row]
            digest.update(name.encode() + (value[:length] if value.ndim else value).numpy().tobytes())
        lines.append(digest.hexdigest())
    return lines


def observe(path: Path) -> None:
    """Make every objective write down the batches whose loss is asked for."""
    for objective in OBJECTIVES.values():
        inner = vars(objective).get("_unobserved_loss", objective.loss)

        def loss(self: Any, model: Any, batch: Any, num_targets: Any, inner: Any = inner) -> Any:
            with path.open("a") as file:
                file.writelines(f"{line}\n" for line in row_hashes(batch))
            return inner(self, model, batch, num_targets)

        objective._unobserved_loss, objective.loss = inner, loss  # type: ignore[attr-defined, method-assign]


def main() -> None:
    folder, runs = Path(sys.argv[1]), [[]]
    for word in sys.argv[2:]:
        runs.append([]) if word == "--then" else runs[-1].append(word)
    # Rows of 32 tokens gain nothing from more threads, and lose much on a busy machine.
    lacuna.training.run.use_all_cores = lambda threads: torch.set_num_threads(1)  # type: ignore[assignment]
    recipe = runpy.run_path(str(RECIPE), run_name="pretrain")
    for number, options in enumerate(runs):
        observe(folder / f"{number}-{os.environ.get('RANK', '0')}.txt")
        sys.argv = [str(RECIPE), *options]
        recipe["main"]()


if __name__ == "__main__":
    exit_cleanly(main)
