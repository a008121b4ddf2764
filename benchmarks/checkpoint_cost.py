"""What checkpoints cost a run: seconds that training waits for them, and how much slower it is while they are written.

    python benchmarks/checkpoint_cost.py --size tiny --steps 12 --save_steps 4 --rounds 1   # a laptop, a minute
    python benchmarks/checkpoint_cost.py                                                    # small, ten minutes

`recipes/pretrain.py` trains on the built-in text, in turn without a checkpoint and with one every so many steps.
"""

import argparse
import statistics
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

from harness import Report, make_parser, run_recipe, table, take_turns


def run_once(options: argparse.Namespace, *, save_steps: int) -> dict[str, Any]:
    """One run of the recipe in a process of its own; its results.json, with the bytes of its newest checkpoint."""
    words = {name: getattr(options, name) for name in ("size", "batch_size", "optimizer")}
    words |= {"max_steps": options.steps, "save_steps": save_steps, "eval_steps": 0, "max_eval_examples": 16}
    with tempfile.TemporaryDirectory(prefix="checkpoint_cost-") as folder:
        results = run_recipe("pretrain", {**words, "keep_checkpoints": 1, "output_dir": f"{folder}/run"})
        files = [path for path in Path(folder, "run", "checkpoints").glob("step-*/**/*") if path.is_file()]
        return {**results, "checkpoint_bytes": sum(path.stat().st_size for path in files)}


def main() -> None:
    """Measure and write the report."""
    options = make_parser(
        __doc__,
        ("size", "small", "of the model: tiny, mini, small, base"),
        ("optimizer", "adamw", "of the runs"),
        ("steps", 40, "of a run"),
        ("save_steps", 10, "between two checkpoints"),
        ("batch_size", 32, "rows of 128 tokens in a step"),
        ("rounds", 2, "runs of each"),
    ).parse_args()
    report = Report(options)
    saves = {"without": 0, "with_saves": options.save_steps}
    runs = {name: partial(run_once, options, save_steps=steps) for name, steps in saves.items()}
    found = take_turns(runs, rounds=options.rounds)
    plain, trained = (statistics.median(run["train_seconds"] for run in found[name]) for name in saves)
    waited = statistics.median(run["checkpoint_seconds"] for run in found["with_saves"])
    times = options.steps // options.save_steps
    summary = {
        "seconds_between_saves": plain / times,
        "waited_for_each": waited / times,
        "waited_share": waited / (trained + waited),
        "slower_steps_share": trained / plain - 1,
        "checkpoint_megabytes": found["with_saves"][0]["checkpoint_bytes"] / 1e6,
    }
    report.body |= {**found, "summary": summary}
    line = f"Size {options.size}, {options.optimizer}, {options.steps} steps of {options.batch_size} rows."
    report.write("Cost of checkpoints", [line, "", *table([summary])])


if __name__ == "__main__":
    main()
