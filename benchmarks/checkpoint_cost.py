"""What checkpoints cost a run: seconds that training waits for them, and how much slower it is while they are written.

    python benchmarks/checkpoint_cost.py --size tiny --steps 12 --save_steps 4 --rounds 1   # a laptop, a minute
    python benchmarks/checkpoint_cost.py                                                    # small, ten minutes

`recipes/pretrain.py` trains on the built-in text, in turn without a checkpoint and with one every so many steps.
Training waits while the run is copied in memory, and for a checkpoint before that is not whole yet; what is written in
the background takes processors and disk from the steps beside it. Both are given as shares of the time between saves.
"""

import argparse
import statistics
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

from clock import take_turns
from kept import run_recipe
from report import Report, make_parser, table


def run_once(options: argparse.Namespace, *, save_steps: int) -> dict[str, Any]:
    """One run of the recipe in a process of its own; its results.json, with the bytes of its newest checkpoint."""
    words = {name: getattr(options, name) for name in ("size", "batch_size", "optimizer")}
    words |= {"max_steps": options.steps, "save_steps": save_steps, "eval_steps": 0, "max_eval_examples": 16}
    with tempfile.TemporaryDirectory(prefix="checkpoint_cost-") as folder:
        results = run_recipe("pretrain", {**words, "keep_checkpoints": 1, "output_dir": f"{folder}/run"})
        assert results is not None
        newest = sorted(Path(folder, "run", "checkpoints").glob("step-*"))[-1:]
        files = [path for checkpoint in newest for path in checkpoint.rglob("*") if path.is_file()]
        return {**results, "checkpoint_bytes": sum(path.stat().st_size for path in files)}


def summarize(with_saves: list[dict[str, Any]], without: list[dict[str, Any]], *, saves: int) -> dict[str, float]:
    """Medians over rounds, and what follows from them."""
    plain = statistics.median(run["train_seconds"] for run in without)
    trained = statistics.median(run["train_seconds"] for run in with_saves)
    waited = statistics.median(run["checkpoint_seconds"] for run in with_saves)
    return {
        "seconds_between_saves": plain / saves,
        "waited_for_each": waited / saves,
        "waited_share": waited / (trained + waited),
        "slower_steps_share": trained / plain - 1,
        "checkpoint_bytes": with_saves[0]["checkpoint_bytes"],
    }


def main() -> None:
    """Measure and write the report."""
    options = make_parser(
        __doc__,
        ("size", "small", "of the model: tiny, mini, small, base"),
        ("optimizer", "adamw", "of the runs"),
        ("steps", 40, "of a run"),
        ("save_steps", 10, "between two checkpoints"),
        ("batch_size", 32, "rows of 128 tokens in a step"),
        ("rounds", 2, "times that each takes its turn"),
    ).parse_args()
    report = Report(__file__, options, "torch")
    runs = {
        name: partial(run_once, options, save_steps=steps)
        for name, steps in (("without", 0), ("with_saves", options.save_steps))
    }
    found = take_turns(runs, rounds=options.rounds)
    summary = summarize(**found, saves=options.steps // options.save_steps)
    report.body |= {**found, "summary": summary}
    rows = [
        {
            "round": number,
            "steps without checkpoints, s": plain["train_seconds"],
            "steps with them, s": saved["train_seconds"],
            "waited for them, s": saved["checkpoint_seconds"],
        }
        for number, (plain, saved) in enumerate(zip(found["without"], found["with_saves"], strict=True), 1)
    ]
    lines = [
        f"Size {options.size}, {options.optimizer}, {options.steps} steps of {options.batch_size} rows, a "
        f"checkpoint of {summary['checkpoint_bytes'] / 1e6:,.0f} MB every {options.save_steps} steps.",
        "",
        *table(rows),
        f"Every {summary['seconds_between_saves']:.1f} s one is written; training waits "
        f"{summary['waited_for_each']:.2f} s for it, {summary['waited_share']:.1%} of the time. "
        f"Steps took {summary['slower_steps_share']:+.1%} beside it.",
    ]
    report.write("Cost of checkpoints", lines)


if __name__ == "__main__":
    main()
