"""Long benchmarks in pieces: each result is a file of its own, found again by the settings that it was made with."""

import hashlib
import json
import math
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psutil
import torch
import transformers
from clock import Watch
from report import QUIET_CORES, REPOSITORY, Report, describe_commit

from lacuna.training import use_all_cores

LOOKED_SECONDS = 0.5  # before a part begins


class Kept:
    """The results of a benchmark in a folder."""

    def __init__(self, folder: str | Path, *, again: Iterable[str] = ()) -> None:
        """`again`: names of contenders whose results are made though they are there."""
        self.folder, self.again = Path(folder), set(again)

    def get(
        self, name: str, settings: dict[str, Any], work: Callable[[], dict[str, Any]], *, of: str = ""
    ) -> dict[str, Any]:
        """The part with these settings, which are all that decides its result: read, or made now and written.

        It says too when, at which commit and beside what other load it was made. `of` is the contender in `again`.
        """
        path = self.folder / f"{name}-{short_hash(json.dumps(settings, sort_keys=True))}.json"
        if path.is_file() and of not in self.again:
            return json.loads(path.read_text(encoding="utf-8"))
        watch = Watch()
        time.sleep(LOOKED_SECONDS)
        before, watch = watch.busy_cores(), Watch()
        result = work()
        during = watch.busy_cores()
        part = {
            "name": name,
            "settings": settings,
            "result": result,
            "made": f"{datetime.now(UTC):%Y-%m-%d %H:%M:%S} UTC",
            "commit": describe_commit(),
            "threads": torch.get_num_threads(),
            "busy_cores": max(before, during),
            "quiet": max(before, during) <= QUIET_CORES,
        }
        self.folder.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(f".{os.getpid()}-{path.name}")
        temporary.write_text(json.dumps(part, indent=2) + "\n", encoding="utf-8")
        temporary.replace(path)
        return part

    def find(self, settings: dict[str, Any]) -> list[dict[str, Any]]:
        """All parts whose settings include these, from the oldest to the newest."""
        settings = json.loads(json.dumps(settings))  # as they are after reading
        parts = [json.loads(path.read_text(encoding="utf-8")) for path in sorted(self.folder.glob("*.json"))]
        found = [part for part in parts if settings.items() <= part["settings"].items()]
        return sorted(found, key=lambda part: part["made"])


def finite(loss: float | None) -> float:
    """A loss that can be compared: infinite where the run diverged."""
    return loss if loss is not None and math.isfinite(loss) else math.inf


def short_hash(*parts: Any) -> str:
    """Sixteen hexadecimal digits that stand for texts, bytes and numbers."""
    digest = hashlib.sha256()
    for part in parts:
        data = part if isinstance(part, bytes) else str(part).encode()
        digest.update(f"{len(data)} ".encode() + data)
    return digest.hexdigest()[:16]


def commits(parts: Iterable[dict[str, Any]]) -> str:
    """Where the parts of a report were made, for its last line."""
    return f"Runs were made at: {', '.join(sorted({part['commit'] for part in parts})) or 'no commit yet'}."


def run_recipe(
    name: str, options: dict[str, Any], *, processes: int = 0, minutes: float | None = None, **environment: str
) -> dict[str, Any] | None:
    """Run a recipe as people do; what it says goes to a file beside its --output_dir.

    Args:
        processes: under torchrun; 0: without.
        minutes: after which it is ended.

    Returns:
        Its results.json and `wall_seconds`; None where it was ended.

    Raises:
        RuntimeError: it failed; with the end of what it said.
    """
    launcher = ["-m", "torch.distributed.run", "--nproc_per_node", str(processes)] if processes else []
    words = [str(word) for name, value in options.items() for word in (f"--{name}", value)]
    command = [sys.executable, *launcher, f"recipes/{name}.py", *words]
    log = Path(f"{options['output_dir']}.txt")
    log.parent.mkdir(parents=True, exist_ok=True)
    began = time.perf_counter()
    with log.open("w", encoding="utf-8") as file:
        try:
            environment = {**os.environ, **environment}
            limit = None if minutes is None else 60 * minutes
            done = subprocess.run(command, cwd=REPOSITORY, env=environment, stdout=file, stderr=file, timeout=limit)
        except subprocess.TimeoutExpired:
            return None
    if done.returncode:
        said = log.read_text(encoding="utf-8", errors="replace")[-3000:]
        raise RuntimeError(f"{' '.join(command)} ended with exit code {done.returncode}:\n{said}")
    results = json.loads(Path(options["output_dir"], "results.json").read_text(encoding="utf-8"))
    return {**results, "wall_seconds": time.perf_counter() - began}


LONG = (
    ("threads", int, "stay on so many cores, the least busy ones (all)"),
    ("again", [str], "contenders to run though their parts are there"),
    ("report_only", False, "run nothing"),
)
"""Options of all long benchmarks."""


def begin(script: str, options: Any) -> Report:
    """What all long benchmarks do first."""
    use_cores(options.threads)
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    Path(options.work_dir).mkdir(parents=True, exist_ok=True)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    return Report(script, options, "torch", "transformers", device=device, threads=torch.get_num_threads())


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
