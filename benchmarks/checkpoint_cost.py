"""What checkpoints cost a run: seconds that training waits for them, and how much slower it is while they are written.

    python benchmarks/checkpoint_cost.py --size tiny --steps 12 --save_steps 4 --rounds 1   # a laptop, a minute
    python benchmarks/checkpoint_cost.py                                                    # small, ten minutes

`recipes/pretrain.py` trains on the built-in text, in turn without a checkpoint and with one every so many steps.
Training waits while the run is copied in memory, and for a checkpoint before that is not whole yet; what is written in
the background takes processors and disk from the steps beside it. Both are given as shares of the time between saves.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from reports import REPOSITORY, RESULTS, describe_machine, positive, write_report


def run_once(
    *, folder: Path, size: str, steps: int, save_steps: int, batch_size: int, optimizer: str
) -> dict[str, Any]:
    """One run of the recipe in a process of its own; its results.json, with the bytes of its newest checkpoint."""
    options = {
        "size": size,
        "max_steps": steps,
        "save_steps": save_steps,
        "batch_size": batch_size,
        "optimizer": optimizer,
        "eval_steps": 0,
        "max_eval_examples": 16,
        "keep_checkpoints": 1,
        "output_dir": folder,
    }
    command = [sys.executable, str(REPOSITORY / "recipes" / "pretrain.py")]
    command += [text for name, value in options.items() for text in (f"--{name}", str(value))]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"the run ended with {done.returncode}: {done.stderr[-2000:]}")
    results: dict[str, Any] = json.loads((folder / "results.json").read_text(encoding="utf-8"))
    checkpoints = sorted((folder / "checkpoints").glob("step-*"))
    files = checkpoints[-1].rglob("*") if checkpoints else []
    return {**results, "checkpoint_bytes": sum(path.stat().st_size for path in files if path.is_file())}


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


def to_markdown(report: dict[str, Any]) -> list[str]:
    """The report for people."""
    summary = report["summary"]
    rows = "\n".join(
        f"| {number} | {plain['train_seconds']:.1f} s | {saved['train_seconds']:.1f} s "
        f"| {saved['checkpoint_seconds']:.2f} s |"
        for number, (plain, saved) in enumerate(zip(report["without"], report["with_saves"], strict=True), 1)
    )
    return [
        f"# Cost of checkpoints, {report['date']}",
        "",
        f"Size {report['size']}, {report['optimizer']}, {report['steps']} steps of {report['batch_size']} rows, a "
        f"checkpoint of {summary['checkpoint_bytes'] / 1e6:,.0f} MB every {report['save_steps']} steps.",
        "",
        "| round | steps without checkpoints | steps with them | waited for them |",
        "|---|---|---|---|",
        rows,
        "",
        f"Every {summary['seconds_between_saves']:.1f} s one is written; training waits "
        f"{summary['waited_for_each']:.2f} s for it, {summary['waited_share']:.1%} of the time. "
        f"Steps took {summary['slower_steps_share']:+.1%} beside it.",
    ]


def main() -> None:
    """Measure and write the report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", default="small", help="of the model: tiny, mini, small, base")
    parser.add_argument("--optimizer", default="adamw")
    parser.add_argument("--steps", type=positive, default=40)
    parser.add_argument("--save_steps", type=positive, default=10)
    parser.add_argument("--batch_size", type=positive, default=32, help="rows of 128 tokens in a step")
    parser.add_argument("--rounds", type=positive, default=2)
    parser.add_argument("--output_dir", default=str(RESULTS), help="folder for the report")
    arguments = parser.parse_args()
    setting = {name: getattr(arguments, name) for name in ("size", "optimizer", "steps", "batch_size")}
    machine = describe_machine("torch")
    measured: dict[int, list[dict[str, Any]]] = {0: [], arguments.save_steps: []}
    for number in range(arguments.rounds):
        for save_steps, runs in measured.items():
            print(f"round {number + 1} of {arguments.rounds}, save_steps {save_steps}", file=sys.stderr)
            with tempfile.TemporaryDirectory(prefix="checkpoint_cost-") as folder:
                runs.append(run_once(folder=Path(folder, "run"), save_steps=save_steps, **setting))
    without, with_saves = measured[0], measured[arguments.save_steps]
    body = {
        **setting,
        "save_steps": arguments.save_steps,
        "machine": machine,
        "without": without,
        "with_saves": with_saves,
        "summary": summarize(with_saves, without, saves=arguments.steps // arguments.save_steps),
    }
    write_report(name="checkpoint_cost", output_dir=arguments.output_dir, body=body, to_markdown=to_markdown)


if __name__ == "__main__":
    main()
