"""What all benchmarks share: options, turns on one clock, fresh processes, results kept on disk, the report."""

import argparse
import contextlib
import hashlib
import json
import os
import platform
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from datetime import UTC, datetime
from functools import cache
from importlib.metadata import distributions
from multiprocessing import get_context
from pathlib import Path
from typing import Any, TypeVar
from unittest import mock

import psutil
import torch
import transformers
from tqdm import tqdm

from lacuna.common.files import write_text
from lacuna.common.private import shown_command, without_places
from lacuna.tokenization import peak_memory as since_start

REPOSITORY = Path(__file__).resolve().parents[1]
DATA = Path(os.environ.get("LACUNA_DATA", REPOSITORY.parent / "shared" / "data"))
PACKAGES = {"torch", "transformers", "tokenizers", "accelerate", "datasets", "numpy", "scikit-learn"}
QUIET_CORES = 0.25  # with other programs on more, figures are not worth publishing
STATUS, RESET_PEAK = Path("/proc/self/status"), Path("/proc/self/clear_refs")
Result = TypeVar("Result")


def positive(text: str) -> int:
    if (value := int(text)) < 1:
        raise ValueError(text)
    return value


def make_parser(description: str | None, *options: tuple[str, Any, str]) -> argparse.ArgumentParser:
    """A parser with `--output_dir` and these options of (name, default, help).

    The default gives the type: False makes a flag, a tuple names the choices (all by default), a list takes values
    with commas between, and `int`, `float` or `str` has no default. Whole numbers are above 0 unless it is 0.
    """
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default, text in (*options, ("output_dir", str(REPOSITORY / "benchmarks/results"), "for the report")):
        more: dict[str, Any] = {"default": default, "help": f"{text} (%(default)s)"}
        if default is False:
            more = {"action": "store_true", "help": text}
        elif isinstance(default, type):
            more = {"type": default, "help": text}
        elif isinstance(default, tuple):
            more |= {"nargs": "+", "choices": default, "metavar": "NAME", "help": f"{text}: {', '.join(default)}"}
        elif isinstance(default, list):
            kind = type(default[0])
            more["type"] = lambda words, kind=kind: [kind(word) for word in words.split(",")]
        else:
            more["type"] = positive if isinstance(default, int) and default else type(default)
        parser.add_argument(f"--{name}", **more)
    return parser


LONG = (
    ("threads", int, "stay on so many cores (all)"),
    ("report_only", False, "run nothing, report what is there"),
    ("mark", "", "a name for the report, beside others of the same benchmark"),
    ("work_dir", str(REPOSITORY / "runs" / "benchmarks"), "for tokenizers, models and the result of each run"),
)
"""Options of long benchmarks, which `begin` reads."""


def begin(options: argparse.Namespace) -> "Report":
    """Set up the process of a long benchmark."""
    from lacuna.training import use_all_cores  # takes memory, which short benchmarks measure

    if options.threads and hasattr(os, "sched_setaffinity"):  # and so do the recipes that it runs
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: options.threads])
    use_all_cores()
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    Path(options.work_dir).mkdir(parents=True, exist_ok=True)
    return Report(options)


def find_texts(folder: str) -> tuple[list[str], int]:
    """The .txt files of a folder, and their bytes."""
    if not (files := [str(path) for path in sorted(Path(folder).rglob("*.txt"))]):
        raise SystemExit(f"there is no .txt file in {folder}")
    return files, sum(Path(file).stat().st_size for file in files)


def find_device() -> torch.device:
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def take_turns(
    contenders: Mapping[str, Callable[[], Result]], *, rounds: int, title: str = ""
) -> dict[str, list[Result]]:
    """What each contender returned in each round, A B C A B C, so that a slow minute slows all of them alike."""
    found: dict[str, list[Result]] = {name: [] for name in contenders}
    for name in (bar := tqdm([*contenders] * rounds, unit="turn", leave=False)):
        bar.set_description(f"{title} {name}")
        found[name].append(contenders[name]())
    return found


def compare(ours: Iterable[float], theirs: Iterable[float]) -> dict[str, Any]:
    """How many times as fast ours is, from the speeds of each round: the median and all ratios."""
    ratios = [mine / other for mine, other in zip(ours, theirs, strict=True)]
    return {"lacuna_faster_by": statistics.median(ratios), "lacuna_faster_by, range": ratios}


def peak_memory(*, reset: bool = False) -> int:
    """The most bytes that this process held on the GPU, or on a CPU in all (Linux); with `reset`, from now on."""
    if torch.cuda.is_available():
        if reset:
            torch.cuda.reset_peak_memory_stats()
        return int(torch.cuda.max_memory_allocated())
    if reset and RESET_PEAK.exists():
        RESET_PEAK.write_text("5")
    status = STATUS.read_text() if STATUS.exists() else ""
    # `ru_maxrss` of a process begins with the size of the one that started it.
    return int(status.partition("VmHWM:")[2].split()[0]) * 1024 if "VmHWM:" in status else since_start() or 0


def at_once(work: Callable[..., Any], tasks: Sequence[tuple[Any, ...]]) -> Iterator[Any]:
    """What the work gives for each task, in order; up to four run at once, each on its share of the cores."""
    cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_setaffinity") else []
    count = max(1, min(4, len(tasks), len(cores)))
    shares = [cores[place::count] for place in range(count)]
    begin = (lambda: os.sched_setaffinity(0, shares.pop())) if cores else None  # of this thread, and what it starts
    with ThreadPoolExecutor(count, initializer=begin) as pool:
        yield from tqdm(pool.map(lambda task: work(*task), tasks), total=len(tasks), unit="task")


@contextlib.contextmanager
def apart(**environment: str) -> Iterator[Callable[..., Any]]:
    """A fresh process with these environment variables, which calls functions and returns (or raises) what they do."""
    executor = ProcessPoolExecutor(1, mp_context=get_context("spawn"))
    try:
        with mock.patch.dict(os.environ, environment):
            executor.submit(int)  # starts it
        yield lambda function, *args, **options: executor.submit(function, *args, **options).result()
    finally:
        executor.shutdown(cancel_futures=True)


def run_recipe(name: str, options: dict[str, Any]) -> dict[str, Any]:
    """Run a recipe from the command line; the results that it wrote. True makes an option a flag. What it prints goes
    to a file beside --output_dir, or the folder of --output_file; RuntimeError, with its end, where it failed."""
    words = [str(it) for name, value in options.items() for it in (f"--{name}", *[value][: value is not True])]
    command = [sys.executable, f"recipes/{name}.py", *words]
    made = Path(options.get("output_file") or Path(options["output_dir"], "results.json"))
    log = made.parent.with_name(f"{made.parent.name}.txt")
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("w") as file:
        done = subprocess.run(command, cwd=REPOSITORY, stdout=file, stderr=file)
    if done.returncode:
        said = log.read_text(errors="replace")[-3000:]
        raise RuntimeError(f"{' '.join(command)} ended with exit code {done.returncode}:\n{said}")
    return dict(json.loads(made.read_text(encoding="utf-8")))


class Kept:
    """Results of runs in a folder, found again by their settings; to make one anew, delete its file."""

    def __init__(self, work_dir: str | Path) -> None:
        self.folder = Path(work_dir, "parts")

    def get(self, name: str, settings: dict[str, Any], work: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """The run with these settings, which decide its result: read, or made now and written."""
        path = self.folder / f"{name}-{short_hash(json.dumps(settings, sort_keys=True))}.json"
        if path.is_file():
            return json.loads(path.read_text(encoding="utf-8"))
        cpu, began = _cpu_of_others(), time.monotonic()
        part: dict[str, Any] = {"name": name, "settings": settings, "result": work()}
        seconds = time.monotonic() - began
        busy = max(0.0, _cpu_of_others() - cpu) / seconds
        part |= {"made": f"{datetime.now(UTC):%Y-%m-%d %H:%M:%S} UTC", "commit": describe_commit()}
        part |= {"seconds": seconds, "threads": torch.get_num_threads(), "busy_cores": round(busy, 2)}
        part["quiet"] = busy <= QUIET_CORES
        write_text(path, json.dumps(part, indent=2) + "\n")
        return part

    def find(self, settings: dict[str, Any]) -> list[dict[str, Any]]:
        """All runs whose settings include these, oldest first."""
        settings = json.loads(json.dumps(settings))
        parts = [json.loads(path.read_text(encoding="utf-8")) for path in sorted(self.folder.glob("*.json"))]
        found = [part for part in parts if settings.items() <= part["settings"].items()]
        return sorted(found, key=lambda part: part["made"])


def _cpu_of_others() -> float:
    """Seconds of CPU time that other programs took, children of this one aside."""
    spent = psutil.cpu_times()._asdict()
    return sum(spent.get(kind, 0.0) for kind in ("user", "nice", "system", "steal")) - sum(os.times()[:4])


def short_hash(*parts: Any) -> str:
    """Sixteen hexadecimal digits for texts, bytes and numbers."""
    digest = hashlib.sha256()
    for part in parts:
        data = part if isinstance(part, bytes) else str(part).encode()
        digest.update(f"{len(data)} ".encode() + data)
    return digest.hexdigest()[:16]


@cache
def hash_files(*paths: Path) -> str:
    """The same for files, and those in folders."""
    inside = lambda path: sorted(filter(Path.is_file, path.rglob("*"))) if path.is_dir() else [path]  # noqa: E731
    return short_hash(*(file.read_bytes() for path in paths for file in inside(path)))


def describe_machine() -> dict[str, Any]:
    """Hardware, versions and commit, and how many cores other programs keep busy."""
    cpu = Path("/proc/cpuinfo").read_text() if Path("/proc/cpuinfo").exists() else ""
    name = re.search(r"model name\s*: (.*)", cpu)
    flags = [flag for flag in ("amx_bf16", "avx512_bf16", "avx512f", "avx2") if f" {flag}" in cpu]
    cores = os.cpu_count() or 1
    return {
        "processor": f"{name[1] if name else platform.machine()} ({', '.join(flags)})",
        "cores": cores,
        "busy_cores_before": round(psutil.cpu_percent(interval=2) / 100 * cores, 2),
        "device": torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu",
        "threads": torch.get_num_threads(),
        "python": platform.python_version(),
        **{package.name: package.version for package in distributions() if package.name in PACKAGES},
        "commit": describe_commit(),
    }


def describe_commit() -> str:
    """The commit, marked when files differ from it; "unknown" outside a git checkout."""
    command = ["git", "-C", str(REPOSITORY), "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"]
    try:
        return subprocess.check_output(command, text=True, stderr=subprocess.DEVNULL).strip()
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def shown(value: Any) -> str:
    """A cell of a table; of several numbers the smallest and the largest."""
    if value is None or isinstance(value, str):
        return (value or "").replace("|", "/")
    if isinstance(value, list | tuple):
        return f"{shown(min(value))}..{shown(max(value))}" if value else ""
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
    return f"{value:,}"


def table(rows: Iterable[Mapping[str, Any]]) -> list[str]:
    """Lines of Markdown; the keys are the head. None without rows."""
    if not (rows := list(rows)):
        return []
    names = list(dict.fromkeys(name for row in rows for name in row))
    lines = [[name.replace("_", " ") for name in names], ["---"] * len(names)]
    lines += [[shown(row.get(name)) for name in names] for row in rows]
    return ["| " + " | ".join(line) + " |" for line in lines] + [""]


class Report:
    """The findings of a benchmark. Make it first: it looks whether the machine is idle."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.name, self.output_dir = Path(sys.argv[0]).stem, Path(options.output_dir)
        self.mark = f"-{options.mark}" if getattr(options, "mark", "") else ""
        self.output_dir.mkdir(parents=True, exist_ok=True)
        settings = {name: value for name, value in vars(options).items() if not name.endswith("_dir")}
        plain = lambda text: without_places(text.replace(str(DATA), "data"))  # noqa: E731
        now = datetime.now(UTC)
        self.body: dict[str, Any] = {
            "date": f"{now:%Y-%m-%d}",
            "time": f"{now:%H:%M:%S} UTC",
            "command": plain(shown_command()),
            "settings": {name: plain(it) if isinstance(it, str) else it for name, it in settings.items()},
            "machine": describe_machine(),
        }

    def path(self, ending: str) -> Path:
        """DATE-NAME with this ending, in the folder of the report."""
        return self.output_dir / f"{self.body['date']}-{self.name}{self.mark}{ending}"

    def write(self, title: str, lines: Iterable[str]) -> None:
        """Write all findings to DATE-NAME.json and these lines to DATE-NAME.md, and print the latter."""
        machine = ", ".join(f"{key.replace('_', ' ')} {value}" for key, value in self.body["machine"].items())
        page = [f"# {title}, {self.body['date']}", "", *lines, "", f"Machine: {machine}.", ""]
        page += [f"Command: `{self.body['command']}`"]
        if self.body["machine"]["commit"].endswith("-dirty"):
            page += ["", "Made at a commit with uncommitted changes."]
        if self.body["machine"]["busy_cores_before"] > QUIET_CORES:
            page += ["", "Other programs kept the machine busy: do not publish these figures, measure again."]
        text = "\n".join(page).replace("\n\n\n", "\n\n") + "\n"
        self.path(".json").write_text(json.dumps(self.body, indent=2) + "\n", encoding="utf-8")
        self.path(".md").write_text(text, encoding="utf-8")
        print(f"{text}\nwritten to {self.path('.json')} and .md")
