"""The ablations, with tiny settings: that they run, are found again, and that every variant can be built."""

import json
from pathlib import Path
from typing import Any

import pytest
from ablations import BASE, BASES, NOT_IN, VARIANTS, differ, split
from processes import run

from lacuna.modeling import LacunaConfig
from lacuna.objectives import ObjectiveArguments
from lacuna.training import TrainingArguments


@pytest.mark.parametrize("study", list(BASES))
def test_every_variant_changes_something_that_exists(study: str) -> None:
    base, seen = BASES[study], {}
    for name in VARIANTS.keys() - NOT_IN[study]:
        options = split(study, name)
        config = LacunaConfig.from_family(base.family, "tiny", **options["config"])
        plan = TrainingArguments(max_steps=10, **options["training"])
        goal = ObjectiveArguments(objective=study, **options["objective"])
        goal.check_used()
        built = json.dumps([config.to_dict(), vars(plan), vars(goal), options["across"]], default=str)
        assert built not in seen, f"{name} is the same as {seen.get(built)}"
        seen[built] = name


@pytest.mark.slow
def test_it_trains_times_and_reports(tmp_path: Path, two_texts: Path) -> None:
    options = {"steps": 2, "length": 16, "vocab_size": 400, "threads": 1, "time_steps": 3, "rounds": 1}
    options |= {"data": two_texts, "output_dir": tmp_path, "work_dir": tmp_path / "work", "objectives": "mlm"}
    options |= {"parts_dir": tmp_path / "parts", "variants": "batch_32"}
    words = [word for name, value in options.items() for word in (f"--{name}", value)]
    timed = run("benchmarks/ablations.py", *words, "--time")
    assert timed.returncode == 0, timed.stderr
    assert len(list((tmp_path / "parts").iterdir())) == 1
    done = run("benchmarks/ablations.py", *words)
    assert done.returncode == 0, done.stderr
    (path,) = tmp_path.glob("*-ablations.json")
    base, variant = json.loads(path.read_text())["rows"]
    assert base["variant"] == BASE and base["equal_steps"]["differences"] == [0.0]
    assert (
        variant["timed"]["result"]["ratio"] > 0 and variant["steps_in_time"] >= 1 and variant["equal_time"]["loss"] > 0
    )
    assert variant["equal_steps"]["loss"] == pytest.approx(
        base["equal_steps"]["loss"] + variant["equal_steps"]["differences"][0]
    )
    made = {file.name: file.read_text() for file in (tmp_path / "parts").iterdir()}
    again = run("benchmarks/ablations.py", *words)
    assert again.returncode == 0, again.stderr
    assert {file.name: file.read_text() for file in (tmp_path / "parts").iterdir()} == made
    assert "| batch_32 | batch_size 32 |" in path.with_suffix(".md").read_text()


def part(seed: int, loss: float) -> dict[str, Any]:
    return {"settings": {"seed": seed}, "result": {"loss": loss}}


def test_differences_are_taken_seed_by_seed() -> None:
    other = differ([part(1, 4.1), part(2, 3.0)], [part(0, 4.0), part(1, 4.2)])
    assert other is not None
    assert other["differences"] == pytest.approx([-0.1])  # of seed 1; the base has no seed 2
    assert other["loss"] == pytest.approx(3.55) and differ([], [part(0, 4.0)]) is None
