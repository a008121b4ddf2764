"""The two ends of every benchmark: its options, and a dated report with the machine, the versions and the commit."""

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import psutil

REPOSITORY = Path(__file__).resolve().parents[1]
RESULTS = REPOSITORY / "benchmarks" / "results"
DATA = Path(os.environ.get("LACUNA_DATA", REPOSITORY.parent / "shared" / "data"))
QUIET_CORES = 0.25  # of other programs, beside which figures are still worth publishing
WATCHED_SECONDS = 2.0


def positive(text: str) -> int:
    """A whole number above 0, as a type of argparse."""
    if (value := int(text)) < 1:
        raise ValueError(text)
    return value


def numbers(kind: Callable[[str], Any]) -> Callable[[str], list[Any]]:
    """A type of argparse: numbers with commas between them."""

    def parse_numbers(text: str) -> list[Any]:
        return [kind(part) for part in text.split(",")]

    return parse_numbers


def make_parser(description: str | None, *options: tuple[str, Any, str]) -> argparse.ArgumentParser:
    """A parser with `--output_dir` and these options of (name, default, help).

    The default says what an option takes: False makes a flag, a tuple the choices of which all are taken, a list one
    or more values, a type (`int`, `str`) one value or none, and `...` that it has to be given. Whole numbers are
    above 0.
    """
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default, text in (*options, ("output_dir", str(RESULTS), "folder of the report")):
        more: dict[str, Any] = {"default": None if isinstance(default, type) else default, "help": text}
        if default is False:
            more["action"] = "store_true"
        elif default is ...:
            more = {"required": True, "help": text}
        elif isinstance(default, tuple):
            more |= {"nargs": "+", "choices": default, "metavar": "NAME", "help": f"{text}: {', '.join(default)}"}
        else:
            sample = default[0] if isinstance(default, list) else default
            kind = sample if isinstance(sample, type) else type(sample)
            more["type"] = positive if kind is int else kind
            if isinstance(default, list):
                more |= {"nargs": "+", "default": [] if isinstance(sample, type) else default}
            if not isinstance(sample, type):
                more["help"] = f"{text} ({' '.join(map(str, default)) if isinstance(default, list) else default})"
        parser.add_argument(f"--{name}", **more)
    return parser


def find_texts(folder: str, most: int | None) -> list[str]:
    """The .txt files of a folder, the first `most` of them."""
    files = [str(path) for path in sorted(Path(folder).rglob("*.txt"))][:most]
    if not files:
        raise SystemExit(f"there is no .txt file in {folder}")
    return files


def describe_machine(*packages: str, **more: Any) -> dict[str, Any]:
    """Hardware, versions of `packages`, commit, `more`; and how many cores other programs kept busy just now."""
    processor = platform.processor() or platform.machine()
    if Path("/proc/cpuinfo").exists():
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        fields = {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in lines)}
        flags = sorted(set(fields.get("flags", "").split()) & {"amx_bf16", "avx512_bf16", "avx512f", "avx2"})
        processor = f"{fields.get('model name', processor)} ({', '.join(flags)})"
    cores = os.cpu_count() or 1
    return {
        "processor": processor,
        "cores": cores,
        "busy_cores_before": round(psutil.cpu_percent(interval=WATCHED_SECONDS) / 100 * cores, 2),
        **more,
        "python": platform.python_version(),
        **{name: version(name) for name in packages},
        "commit": describe_commit(),
    }


def describe_commit() -> str:
    """The commit, with a mark when files differ from it; "unknown" outside a git checkout."""
    command = ["git", "-C", str(REPOSITORY), "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def shown(value: Any) -> str:
    """A cell of a table: numbers with their first digits, of several the smallest and the largest."""
    if value is None or isinstance(value, str):
        return (value or "").replace("|", "/")
    if isinstance(value, list | tuple):
        return f"{shown(min(value))}..{shown(max(value))}" if value else ""
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
    return f"{value:,}"


def table(rows: Iterable[Mapping[str, Any]]) -> list[str]:
    """Lines of Markdown; the names of the facts are the head, with spaces for underscores."""
    rows = list(rows)
    names = list(dict.fromkeys(name for row in rows for name in row))
    head = [[name.replace("_", " ") for name in names], ["---"] * len(names)]
    cells = [[shown(row.get(name)) for name in names] for row in rows]
    return ["| " + " | ".join(row) + " |" for row in head + cells] + [""]


def difference(values: list[float]) -> str:
    """The mean of some differences, and their range where there are several."""
    several = f" ({min(values):+.4g}..{max(values):+.4g})" if len(values) > 1 else ""
    return f"{statistics.fmean(values):+.4g}{several}" if values else ""


class Report:
    """What a benchmark finds. Made before it begins: the machine is looked at when it should be idle."""

    def __init__(self, script: str, options: argparse.Namespace, *packages: str, **more: Any) -> None:
        self.name, self.output_dir = Path(script).stem, Path(options.output_dir)
        settings = {key: _without_place(value) for key, value in vars(options).items() if not key.endswith("_dir")}
        now = datetime.now(UTC)
        self.body: dict[str, Any] = {
            "date": f"{now:%Y-%m-%d}",
            "time": f"{now:%H:%M:%S} UTC",
            "command": " ".join(["python", f"benchmarks/{self.name}.py", *map(_without_place, sys.argv[1:])]),
            "settings": settings,
            "machine": describe_machine(*packages, **more),
        }

    def path(self, suffix: str) -> Path:
        """Where a file of this report goes: DATE-NAME with this ending."""
        self.output_dir.mkdir(parents=True, exist_ok=True)
        return self.output_dir / f"{self.body['date']}-{self.name}{suffix}"

    def facts(self) -> str:
        """The machine, in one line."""
        return ", ".join(f"{key.replace('_', ' ')} {value}" for key, value in self.body["machine"].items())

    def write(self, title: str, lines: Iterable[str], *, mark: str = "") -> None:
        """Write DATE-NAME.json, which has the whole body, and DATE-NAME.md with these lines; and print the latter."""
        page = [f"# {title}, {self.body['date']}", "", *lines]
        page += [*([""] if page[-1] else []), f"Machine: {self.facts()}.", "", f"Command: `{self.body['command']}`"]
        if self.body["machine"]["busy_cores_before"] > QUIET_CORES:
            page += ["", "Other programs kept the machine busy: do not publish these figures, measure again."]
        text = "\n".join(page) + "\n"
        self.path(f"{mark}.json").write_text(json.dumps(self.body, indent=2) + "\n", encoding="utf-8")
        self.path(f"{mark}.md").write_text(text, encoding="utf-8")
        print(f"{text}\nwritten to {self.path(mark)}.json and .md")


def _without_place(value: Any) -> Any:
    """Of a place on this machine only the last name is for others to read."""
    return Path(value).name if isinstance(value, str) and Path(value).is_absolute() else value
