"""Fine-tunes the toy model as a recipe would, as a program.

python tuned_run.py [options of fine-tuning]

Its work judges by a number that a larger loss makes smaller. `finish` writes the records of the held-out rows.
"""

import json
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from toys import PlainTokenizer, ToyWork, make_model

import lacuna.training.reports.log
import lacuna.training.run
from lacuna.common.command_line import exit_cleanly, parse_arguments
from lacuna.training import FineTuningArguments, fine_tune


class Judged(ToyWork):
    """The toy work with a metric of which more is better, a baseline for it, and lengths."""

    metric, greater_is_better = "score", True

    @property
    def lengths(self) -> list[int]:
        return [len(self._row(row, "train", 0)["input_ids"]) for row in range(self.num_examples)]

    def summarize(self, records: list[dict[str, Any]]) -> dict[str, float]:
        self.records = sorted(records, key=lambda record: record["nats"])
        loss = super().summarize(records)["loss"]
        return {"loss": loss, "score": 1 / (1 + loss)}

    def baseline(self) -> dict[str, float]:
        return {"score": 0.125}

    @cached_property
    def bag_of_words(self) -> dict[str, float]:
        return {"score": 0.25}

    def settings(self) -> dict[str, Any]:
        return {"kind": "toys", "max_length": 20}

    def write(self, results: dict[str, float], folder: Path) -> None:
        (folder / "report.md").write_text("# Toys\n\n- a note\n\n## Result\n\nas it is\n")
        content = {"records": self.records, "score": results["eval_score"]}
        (folder / "records.json").write_text(json.dumps(content))

    def describe(self, examples: int) -> list[str]:
        return [f"{self.num_examples} rows", *(f"example {row}" for row in range(examples))]


def tune(arguments: FineTuningArguments, **overrides: Any) -> dict[str, float]:
    """What the recipe does once it has parsed its options."""
    work = overrides.pop("work", None) or Judged(num_examples=24)
    parts: dict[str, Any] = {
        "make_model": lambda seed: make_model(seed=seed, hidden_size=32),
        "run_info": {
            "objective": "fine-tuning for toys",
            "model": "/home/somebody/base",
            "task": {"train_file": "/home/somebody/train.csv", "eval_file": None, "kind": "auto", "pooling": "auto"},
        },
        "identity": {"task": "toys"},
        "finish": work.write,
        "describe": work.describe,
    }
    return fine_tune(work=work, tokenizer=PlainTokenizer(), arguments=arguments, **{**parts, **overrides})


if __name__ == "__main__":

    def main() -> None:
        (arguments,) = parse_arguments((FineTuningArguments,))
        lacuna.training.run.use_all_cores = lambda threads: torch.set_num_threads(1)  # type: ignore[assignment]
        lacuna.training.reports.log.draw_curves = lambda **_: None
        tune(arguments)

    exit_cleanly(main)
