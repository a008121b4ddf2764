"""What a person sees of a run, and what stays of it: one live line, metrics.jsonl, results.json, run.json."""

import json
import platform
import sys
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from tqdm import tqdm

from .arguments import TrainingArguments
from .checkpoints import write_atomically
from .curves import draw_curves
from .environment import Processes

_LIBRARIES = ["torch", "transformers", "tokenizers", "datasets", "accelerate", "numpy", "safetensors"]


def short(value: float) -> str:
    """A number as people read it: 12,345 or 0.1234 or 1.2e-05."""
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.4g}"


def _whole_lines(text: str) -> list[dict[str, Any]]:
    """Records up to the first line that is none: a process that is killed may leave half a line behind."""
    records: list[dict[str, Any]] = []
    for line in text.splitlines():
        try:
            records.append(json.loads(line))
        except ValueError:
            break
    return records


class RunLog:
    """Writes a run's records; on processes other than the main one it does nothing."""

    def __init__(self, *, output_dir: Path, enabled: bool, first_step: int, done: float) -> None:
        self.path = output_dir / "metrics.jsonl"
        self.output_dir = output_dir
        self.enabled = enabled
        self.records: list[dict[str, Any]] = []
        if not enabled:
            return
        output_dir.mkdir(parents=True, exist_ok=True)
        if first_step and self.path.is_file():
            # What was logged after the checkpoint will be logged again.
            lines = _whole_lines(self.path.read_text(encoding="utf-8", errors="replace"))
            self.records = [line for line in lines if line["step"] <= first_step]
        write_atomically(self.path, "".join(json.dumps(record) + "\n" for record in self.records))
        self.bar = tqdm(
            total=1.0,
            initial=done,
            file=sys.stderr,
            disable=None,  # quiet when the output is not a terminal
            dynamic_ncols=True,
            bar_format="{percentage:3.0f}%|{bar:12}| {elapsed}<{remaining} {desc}{postfix}",
        )
        self.on_terminal = not self.bar.disable

    def say(self, text: str) -> None:
        """Print a line above the progress bar."""
        if self.enabled:
            tqdm.write(text, file=sys.stderr)

    def advance(self, done: float) -> None:
        """Move the bar to a share of the run."""
        if self.enabled:
            self.bar.update(max(0.0, min(done, 1.0) - self.bar.n))

    def record(self, values: dict[str, Any]) -> None:
        """Append a line to metrics.jsonl and show its numbers on the live line."""
        if not self.enabled:
            return
        self.records.append(values)
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(values) + "\n")
        if "loss" in values:
            self.bar.set_postfix_str(
                f"step {values['step']:,} loss {values['loss']:.3f} lr {short(values['learning_rate'])} "
                f"{short(values['tokens_per_second'])} tokens/s"
            )

    def mark(self, event: str, step: int, **facts: Any) -> None:
        """Record an event."""
        if self.enabled:
            self.record({"step": step, "event": event, **facts})

    def evaluation(self, values: dict[str, Any]) -> None:
        """Record an evaluation, print it and redraw the curves."""
        self.record(values)
        shown = "  ".join(
            f"{name.removeprefix('eval_')} {short(value)}"
            for name, value in values.items()
            if name.startswith("eval_")
        )
        self.say(f"step {values['step']:>6,}  {shown}")
        if self.enabled:
            draw_curves(records=self.records, path=self.output_dir / "curves.png")

    def finish(self, results: dict[str, float]) -> None:
        """Write results.json and close the live line."""
        if not self.enabled:
            return
        self.bar.close()
        if self.records and "loss" in self.records[-1]:  # no evaluation came last, which would have drawn them
            draw_curves(records=self.records, path=self.output_dir / "curves.png")
        write_atomically(self.output_dir / "results.json", json.dumps(results, indent=2) + "\n")

    def close(self) -> None:
        """Leave the terminal clean when a run ends early."""
        if self.enabled:
            self.bar.close()


def describe_run(
    *,
    arguments: TrainingArguments,
    launched: Processes,
    device: torch.device,
    precision: str,
    run_info: dict[str, Any],
) -> dict[str, Any]:
    """What run.json says: options as they were resolved, versions, the machine, fingerprints of the data."""
    return {
        "arguments": asdict(arguments),
        **run_info,
        "environment": {
            "python": platform.python_version(),
            **{name: version(name) for name in _LIBRARIES},
            "processes": launched.count,
            "device": torch.cuda.get_device_name(device) if device.type == "cuda" else device.type,
            "threads": torch.get_num_threads(),
            "mixed_precision": precision,
        },
    }
