"""What all benchmarks say alike: on which machine, at which commit, beside what other load; and where they write."""

import json
import os
import platform
import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import psutil

REPOSITORY = Path(__file__).resolve().parents[1]
RESULTS = REPOSITORY / "benchmarks" / "results"
QUIET_CORES = 0.25  # of other programs, beside which figures are still worth publishing
WATCHED_SECONDS = 2.0


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


def _without_place(value: Any) -> Any:
    return Path(value).name if isinstance(value, str) and Path(value).is_absolute() else value


def write_report(
    *,
    name: str,
    output_dir: str,
    body: dict[str, Any],
    to_markdown: Callable[[dict[str, Any]], list[str]],
    pattern: str = "{date}-{name}",
) -> None:
    """Write DATE-NAME.json and .md, and print the latter. Of places on this machine only the last name is kept.

    Args:
        name: of the benchmark's file, without .py.
        body: what was found, with "machine".
        to_markdown: the lines for people; machine, command and a warning are added to them.
        pattern: of the files' names.
    """
    now = datetime.now(UTC)
    report = {
        "date": f"{now:%Y-%m-%d}",
        "time": f"{now:%H:%M:%S} UTC",
        "command": " ".join(["python", f"benchmarks/{name}.py", *map(_without_place, sys.argv[1:])]),
        **body,
    }
    if isinstance(settings := report.get("settings"), dict):
        report["settings"] = {key: _without_place(value) for key, value in settings.items()}
    machine = report["machine"]
    facts = ", ".join(f"{key.replace('_', ' ')} {value}" for key, value in machine.items())
    lines = [*to_markdown(report), "", f"Machine: {facts}.", "", f"Command: `{report['command']}`"]
    if machine["busy_cores_before"] > QUIET_CORES:
        lines += ["", "Other programs kept the machine busy: do not publish these figures, measure again."]
    path = Path(output_dir, pattern.format(date=report["date"], name=name))
    path.parent.mkdir(parents=True, exist_ok=True)
    path.with_suffix(".json").write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    path.with_suffix(".md").write_text("\n".join(lines) + "\n", encoding="utf-8")
    print("\n".join(lines) + "\n")
    print(f"written to {path}.json and .md")


def positive(text: str) -> int:
    """A whole number above 0, as a type of argparse."""
    if (value := int(text)) < 1:
        raise ValueError(text)
    return value
