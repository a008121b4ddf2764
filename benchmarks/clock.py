"""One clock for all benchmarks: contenders take turns, A B C A B C, and ratios are taken within rounds.

A slower minute of the machine slows all of them alike. Where memory, caches or the environment matter, each has a
process of its own, which waits on a pipe while another one works.
"""

import contextlib
import os
import resource
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any, TypeVar
from unittest import mock

import psutil
from tqdm import tqdm

Result = TypeVar("Result")
STATUS, RESET = Path("/proc/self/status"), Path("/proc/self/clear_refs")


def take_turns(
    contenders: Mapping[str, Callable[[], Result]], *, rounds: int, warm_up: int = 0, title: str = ""
) -> dict[str, list[Result]]:
    """What each contender returned in each round; the first `warm_up` rounds come before these and are left out."""
    found: dict[str, list[Result]] = {name: [] for name in contenders}
    with tqdm(total=(warm_up + rounds) * len(contenders), unit="turn", leave=False) as bar:
        for number in range(1 - warm_up, rounds + 1):
            for name, work in contenders.items():
                bar.set_description(f"{title}{name}, {f'round {number}' if number > 0 else 'warm-up'}")
                result = work()
                if number > 0:
                    found[name].append(result)
                bar.update()
    return found


def compare(ours: list[float], theirs: list[float]) -> dict[str, float]:
    """By how much ours is faster, of the speeds in each round: the median of the ratios and their range."""
    ratios = [mine / other for mine, other in zip(ours, theirs, strict=True)]
    return {"ratio": statistics.median(ratios), "ratio_min": min(ratios), "ratio_max": max(ratios)}


def summarize(found: Mapping[str, list[dict[str, Any]]], *, ours: str, speed: str) -> dict[str, dict[str, float]]:
    """For each contender medians over its rounds (of memory the peak), and by how much `ours` is faster."""
    summary = {}
    for name, turns in found.items():
        facts = {fact: statistics.median(turn[fact] for turn in turns) for fact in turns[0]}
        facts["peak_memory"] = max(turn["peak_memory"] for turn in turns)
        if name != ours:
            facts |= compare(*([turn[speed] for turn in who] for who in (found[ours], turns)))
        summary[name] = facts
    return summary


def times(facts: Mapping[str, Any]) -> str:
    """What `compare` found, for people; nothing where it was not asked."""
    return f"{facts['ratio']:.2f} x ({facts['ratio_min']:.2f}..{facts['ratio_max']:.2f})" if "ratio" in facts else ""


@contextlib.contextmanager
def apart(**environment: str) -> Iterator[Callable[..., Any]]:
    """A fresh process with these variables besides: calls a function there and returns (or raises) what it does."""
    executor = ProcessPoolExecutor(1, mp_context=get_context("spawn"))
    try:
        with mock.patch.dict(os.environ, environment):
            executor.submit(int)  # it begins, and imports the script
        yield lambda function, *args, **options: executor.submit(function, *args, **options).result()
    finally:
        executor.shutdown(cancel_futures=True)


def timed(work: Callable[..., Any], *args: Any) -> dict[str, Any]:
    """Run it in this process: its result, seconds, the cores that it and its children kept busy, and peak memory."""
    busy, start = _own_seconds(), time.perf_counter()
    result = work(*args)
    seconds = time.perf_counter() - start
    busy = (_own_seconds() - busy) / seconds
    return {"seconds": seconds, "busy_cores": busy, "peak_memory": peak_memory(), "result": result}


def peak_memory(*, reset: bool = False) -> int:
    """The most bytes that this process held; with `reset`, from now on.

    `ru_maxrss` of a process that was started by a larger one begins with the size of that one, so Linux is asked for
    the mark of this process alone.
    """
    if STATUS.exists() and "VmHWM:" in STATUS.read_text():
        if reset and RESET.exists():
            RESET.write_text("5")
        return int(STATUS.read_text().partition("VmHWM:")[2].split()[0]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


class Watch:
    """How many cores other programs keep busy while this one works."""

    def __init__(self) -> None:
        self.began, self.others = time.monotonic(), _all_seconds() - _own_seconds()

    def busy_cores(self) -> float:
        """Mean since the beginning, of programs other than this one and those it waited for."""
        spent = _all_seconds() - _own_seconds() - self.others
        return round(max(0.0, spent) / max(time.monotonic() - self.began, 1e-9), 2)


def _all_seconds() -> float:
    spent = psutil.cpu_times()._asdict()
    return sum(spent.get(name, 0.0) for name in ("user", "nice", "system", "irq", "softirq", "steal"))


def _own_seconds() -> float:
    usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)
