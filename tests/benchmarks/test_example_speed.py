"""The benchmark of making examples, with tiny settings: not how fast, only that its figures hang together."""

import json
import statistics
from pathlib import Path

from harness import shown
from processes import run

from lacuna.objectives import OBJECTIVES


def test_it_measures_and_reports(tmp_path: Path) -> None:
    options = {"rounds": 2, "seconds": 0.01, "length": 64, "tokens": 20_000}
    done = run(
        "benchmarks/example_speed.py",
        *(word for name, value in options.items() for word in (f"--{name}", str(value))),
        "--output_dir",
        str(tmp_path),
    )
    assert done.returncode == 0, done.stderr
    (path,) = tmp_path.glob("*-example_speed.json")
    report = json.loads(path.read_text())
    assert {name: report["settings"][name] for name in options} == options
    assert {name.split(",")[0] for name in report["objectives"]} == set(OBJECTIVES)
    for name, facts in report["objectives"].items():
        speeds = facts["by_round"]
        assert len(speeds) == 2 and min(speeds) > 0 and facts["rows"] > 0
        assert facts["tokens_per_second"] == statistics.median(speeds)
        assert f"| {name} | {shown(facts['tokens_per_second'])} |" in done.stdout
    assert path.with_suffix(".md").read_text() in done.stdout


def test_mistakes_are_named() -> None:
    for words, message in ((["--tokens", "9"], "at least 10000"), (["--rounds", "0"], "--rounds")):
        done = run("benchmarks/example_speed.py", *words)
        assert done.returncode == 2 and message in done.stderr
