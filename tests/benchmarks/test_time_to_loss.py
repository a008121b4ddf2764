"""The benchmark of time to a loss, with tiny settings; and its summary against a case made by hand."""

import json
import os
from pathlib import Path
from typing import Any

import pytest
from processes import run
from time_to_loss import summarize


@pytest.mark.slow
def test_it_trains_reports_and_finds_its_parts_again(tmp_path: Path, two_texts: Path) -> None:
    options = {"steps": 3, "tuning_steps": 2, "our_steps": 2, "learning_rates": "1e-3,3e-3", "batch_size": 2}
    options |= {"length": 16, "vocab_size": 400, "points": 3, "point_rows": 4, "threads": 1, "data": two_texts}
    words = [word for name, value in options.items() for word in (f"--{name}", value)]
    words += ["--contenders", "bert", "lacuna-mlm", "--output_dir", tmp_path, "--work_dir", tmp_path / "work"]
    environment = {**os.environ, "LACUNA_CACHE": str(tmp_path / "cache")}
    done = run("benchmarks/time_to_loss.py", *words, env=environment)
    assert done.returncode == 0, done.stderr
    (path,) = tmp_path.glob("*-time_to_loss.json")
    summary = json.loads(path.read_text())["summary"]
    peer, (ours,) = summary["peers"]["bert"], summary["ours"]["lacuna-mlm"]
    assert peer["budget"] == "3steps" and len(peer["curve"]) == 3 and len(peer["tried"]) == 3
    tuned = {each["learning_rate"]: each["loss"] for each in peer["tried"] if each["budget"] == "2steps"}
    assert peer["learning_rate"] == min(tuned, key=lambda rate: tuned[rate])
    assert ours["steps"] == 2 and ours["loss"] > 0 and ours["across_lines"]["loss"] != ours["loss"]
    assert path.with_suffix(".png").stat().st_size > 10_000
    made = {file.name: file.read_text() for file in (tmp_path / "parts").iterdir()}
    assert len(made) == 4

    again = run("benchmarks/time_to_loss.py", *words, env=environment)
    assert again.returncode == 0, again.stderr
    assert {file.name: file.read_text() for file in (tmp_path / "parts").iterdir()} == made
    assert json.loads(path.read_text())["summary"] == summary


def part(minutes: float, loss: float | None, rate: float = 1e-3) -> dict[str, Any]:
    result = {"loss": loss, "bits_per_byte": 1.0, "steps": 10, "seconds": 60 * minutes, "curve": []}
    facts = {"quiet": True, "busy_cores": 0, "commit": "c", "made": "today"}
    budget = {"minutes": minutes, "steps": None}
    return {"name": "n", "settings": {"budget": budget, "learning_rate": rate}, "result": result, **facts}


def test_the_shortest_run_that_is_good_enough_counts() -> None:
    found = {
        "bert": [part(5, 3.0, 1e-2), part(20, 4.0), part(20, None, 1e-1), part(5, 4.5)],
        "gpt2": [part(20, 2.0)],
        "lacuna-mlm": [part(2, 3.9), part(1, 4.01), part(4, 3.5)],
        "lacuna-clm": [part(6, 2.1)],
    }
    summary = summarize(found)
    assert summary["peers"]["bert"]["loss"] == 4.0 and len(summary["peers"]["bert"]["tried"]) == 4
    assert summary["compared"]["bert"]["reached_by"]["minutes"] == 2 and summary["compared"]["bert"]["ratio"] == 10
    assert summary["compared"]["bert"]["met"] is False  # 15 times was the goal
    assert summary["compared"]["gpt2"]["reached_by"] is None and summary["compared"]["gpt2"]["our_best_loss"] == 2.1
