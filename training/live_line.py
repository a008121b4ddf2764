"""What the live line says, and what of it fits the terminal."""

import math
import time
from collections import deque
from typing import Any, NamedTuple

import psutil
import torch

_OTHER = {"step", "epoch", "loss", "learning_rate", "grad_norm", "tokens_per_second", "mfu", "memory", "seconds"}
_OTHER |= {"event", "samples", "tokens", "batch_size", "sequence_length", "processes"}
"""What a line of metrics.jsonl holds beside the objective's own metrics."""


def short(value: float) -> str:
    """A number as people read it: 12,345 or 0.1234 or 1.2e-05."""
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.4g}"


def _scaled(value: float) -> str:
    """Three digits and a unit: 950, 12.3k, 1.21M."""
    for size, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= 0.9995 * size:
            return f"{value / size:.3g}{unit}"
    return f"{value:.3g}"


def memory_in_use() -> int:
    """Bytes: the most that tensors took on the GPU so far; without one, what this process holds of the main memory."""
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        return torch.cuda.max_memory_allocated()
    return psutil.Process().memory_info().rss


class Item(NamedTuple):
    """A part of the live line."""

    text: str
    rank: int
    """Its importance: where room is scarce, the highest go first."""


def fit(items: list[Item], width: int) -> str:
    """The items in their order, joined by two spaces, without the least important ones that do not fit.

    Args:
        width: columns, at least 1; the most important item is cut where it alone is wider.
    """
    kept = list(items)
    while len(kept) > 1 and sum(len(item.text) + 2 for item in kept) - 2 > width:
        # Of several that are as important as each other, the last goes first.
        kept.pop(max(range(len(kept)), key=lambda place: (kept[place].rank, place)))
    return "  ".join(item.text for item in kept)[:width]


def line_items(
    *, step: int | None, done: float, values: dict[str, Any], seconds_left: float | None, memory: int
) -> list[Item]:
    """What the live line says, from left to right.

    Args:
        step: optimizer steps so far.
        done: share of the run.
        values: the newest line of metrics.jsonl with a loss, or nothing.
        seconds_left: an estimate, if there is one yet.
        memory: bytes.
    """
    items = [Item(f"{done:.0%}", 4)]
    items.append(Item("starting" if step is None else f"step {step:,}", 0))
    if "loss" in values:
        items.append(Item(f"loss {values['loss']:.3f}", 1))
    for name, value in values.items():
        if name not in _OTHER and isinstance(value, int | float):
            items.append(Item(f"{name} {value:.3f}" if abs(value) < 1000 else f"{name} {short(value)}", 7))
    if "learning_rate" in values:
        items.append(Item(f"lr {values['learning_rate']:.3g}", 5))
    if "grad_norm" in values:
        items.append(Item(f"norm {values['grad_norm']:.3g}", 6))
    if "tokens_per_second" in values:
        items.append(Item(f"{_scaled(values['tokens_per_second'])} tokens/s", 3))
    if values.get("mfu") is not None:
        items.append(Item(f"MFU {values['mfu']:.1%}", 8))
    items.append(Item(f"{memory / 2**30:.1f} GiB", 9))
    if seconds_left is not None and math.isfinite(seconds_left):
        items.append(Item(f"{duration(seconds_left)} left", 2))
    return items


def duration(seconds: float) -> str:
    """12:34, 1:23:45 or 3 d 04:05."""
    minutes, second = divmod(round(seconds), 60)
    hour, minute = divmod(minutes, 60)
    if hour >= 24:
        return f"{hour // 24} d {hour % 24:02}:{minute:02}"
    return f"{hour}:{minute:02}:{second:02}" if hour else f"{minute}:{second:02}"


class Remaining:
    """How long a run will take still, from how fast it was in the newer half of its time.

    Evaluations and checkpoints are in it; the first step, which compiles and warms up, soon is not.
    """

    def __init__(self, done: float) -> None:
        self.opened = time.monotonic()
        self.points: deque[tuple[float, float]] = deque([(self.opened, done)])

    def seconds(self, done: float) -> float | None:
        """Seconds until `done` is 1; None while nothing is done."""
        now = time.monotonic()
        while len(self.points) > 2 and self.points[1][0] < (self.opened + now) / 2:
            self.points.popleft()
        then, before = self.points[0]
        if now - self.points[-1][0] > (now - self.opened) / 200:
            self.points.append((now, done))
        return (now - then) * (1.0 - done) / (done - before) if done > before else None
