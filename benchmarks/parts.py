"""Long benchmarks in pieces: each result is a file of its own, found again by the settings that it was made with."""

import json
import math
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psutil
import torch
from held_out import short_hash
from reports import QUIET_CORES, describe_commit

from lacuna.training import use_all_cores

LOOKED_SECONDS = 0.5  # before a part begins


@dataclass(frozen=True)
class Budget:
    """How long a run trains: by the clock, or a number of steps."""

    minutes: float | None = None
    steps: int | None = None

    def done(self, *, step: int, seconds: float) -> float:
        """The share that is done. The clock ends a run with the step that ends nearest to it."""
        if self.steps:
            return step / self.steps
        limit, a_step = 60 * (self.minutes or 0), seconds / max(step, 1)
        return 1.0 if limit - seconds < a_step / 2 else seconds / limit

    def scaled(self, share: float) -> "Budget":
        """A share of it, a step at least."""
        if self.steps:
            return Budget(steps=max(1, round(share * self.steps)))
        return Budget(minutes=share * (self.minutes or 0))

    @property
    def size(self) -> float:
        """Its number, of minutes or steps."""
        return self.steps or self.minutes or 0.0

    def __str__(self) -> str:
        return f"{self.steps}steps" if self.steps else f"{self.minutes:g}min"


def run_part(
    *,
    folder: Path,
    name: str,
    settings: dict[str, Any],
    work: Callable[[], dict[str, Any]],
    again: bool = False,
) -> dict[str, Any]:
    """The part with these settings: read, or made now and written as soon as it is there.

    Args:
        folder: of all parts.
        name: for people; the beginning of the file's name.
        settings: all that decides the result; their hash ends the file's name.
        work: makes the result.
        again: make it though it is there.

    Returns:
        name, settings, result, and when, at which commit and beside what other load it was made.
    """
    path = folder / f"{name}-{short_hash(json.dumps(settings, sort_keys=True))}.json"
    if path.is_file() and not again:
        return json.loads(path.read_text(encoding="utf-8"))
    before = _busy_before()
    watch = Watch()
    result = work()
    during = watch.busy_cores()
    part = {
        "name": name,
        "settings": settings,
        "result": result,
        "made": f"{datetime.now(UTC):%Y-%m-%d %H:%M:%S} UTC",
        "commit": describe_commit(),
        "threads": torch.get_num_threads(),
        "busy_cores_before": before,
        "busy_cores_during": during,
        "quiet": max(before, during) <= QUIET_CORES,
    }
    folder.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{os.getpid()}-{path.name}")
    temporary.write_text(json.dumps(part, indent=2) + "\n", encoding="utf-8")
    temporary.replace(path)
    return part


def read_parts(folder: Path) -> Iterator[dict[str, Any]]:
    """All parts of a folder, in the order of their names."""
    for path in sorted(folder.glob("*.json")):
        yield json.loads(path.read_text(encoding="utf-8"))


def finite(loss: float | None) -> float:
    """A loss that can be compared: infinite where the run diverged."""
    return loss if loss is not None and math.isfinite(loss) else math.inf


class Watch:
    """How many cores other programs keep busy while this one works."""

    def __init__(self) -> None:
        self.began, self.all, self.own = time.monotonic(), _all_seconds(), _own_seconds()

    def busy_cores(self) -> float:
        """Mean since the beginning, of programs other than this one and those it waited for."""
        others = (_all_seconds() - self.all) - (_own_seconds() - self.own)
        return round(max(0.0, others) / max(time.monotonic() - self.began, 1e-9), 2)


def _all_seconds() -> float:
    times = psutil.cpu_times()._asdict()
    return sum(times.get(name, 0.0) for name in ("user", "nice", "system", "irq", "softirq", "steal"))


def _own_seconds() -> float:
    return sum(os.times()[:4])


def _busy_before() -> float:
    watch = Watch()
    time.sleep(LOOKED_SECONDS)
    return watch.busy_cores()


def use_cores(threads: int | None) -> None:
    """Compute on all cores that this process may use, or stay on the `threads` of them that are least busy.

    The processes that it starts stay there too, so that two benchmarks can run beside each other.
    """
    if threads and hasattr(os, "sched_setaffinity"):
        loads = psutil.cpu_percent(interval=LOOKED_SECONDS, percpu=True)
        allowed = sorted(os.sched_getaffinity(0), key=lambda core: loads[core] if core < len(loads) else 0.0)
        os.sched_setaffinity(0, set(allowed[:threads]))
    use_all_cores()
    if threads:
        torch.set_num_threads(threads)
