"""The ablations, with tiny settings: that they run, are found again, and that every variant can be built."""

import json
from pathlib import Path

import pytest
from ablations import BASE, BASES, OF_ENCODERS, VARIANTS, split
from processes import run

from lacuna.common.command_line import parse_arguments
from lacuna.modeling import LacunaConfig
from lacuna.objectives import ObjectiveArguments
from lacuna.training import TrainingArguments


@pytest.mark.parametrize("study", list(BASES))
def test_every_variant_changes_something_that_exists(study: str) -> None:
    base, seen = BASES[study], {}
    for name in VARIANTS.keys() - (OF_ENCODERS if study == "clm" else set()):
        changes, options = split(study, name)
        config = LacunaConfig.from_family(base.family, "tiny", **changes)
        words = [f"--{option}={value}" for option, value in {**options, "objective": study, "max_steps": 10}.items()]
        plan, goal = parse_arguments((TrainingArguments, ObjectiveArguments), words)
        goal.check_used()
        built = json.dumps([config.to_dict(), vars(plan), vars(goal)], default=str)
        assert built not in seen, f"{name} is the same as {seen.get(built)}"
        seen[built] = name


@pytest.mark.slow
def test_it_trains_and_reports(tmp_path: Path, two_texts: Path) -> None:
    options = {"steps": 2, "length": 16, "vocab_size": 400, "threads": 1, "data": two_texts, "output_dir": tmp_path}
    options |= {"work_dir": tmp_path / "work", "objectives": "mlm", "variants": "rate_half", "seeds": "0,1"}
    words = [word for name, value in options.items() for word in (f"--{name}", value)]
    done = run("benchmarks/ablations.py", *words)
    assert done.returncode == 0, done.stderr
    (path,) = tmp_path.glob("*-ablations.json")
    base, variant = json.loads(path.read_text())["rows"]
    assert base["variant"] == BASE and base["differences"] == [0.0, 0.0]
    assert variant["loss"] == pytest.approx(base["loss"] + sum(variant["differences"]) / 2) and variant["seconds"] > 0
    parts = tmp_path / "work" / "parts"
    made = {file.name: file.read_text() for file in parts.iterdir()}
    # Differences are taken seed by seed.
    losses = {name: json.loads(text)["result"]["loss"] for name, text in made.items()}
    by_seed = [
        sum(loss for name, loss in losses.items() if f"seed{seed}" in name and "half" in name) for seed in (0, 1)
    ]
    by_seed = [
        other - sum(loss for name, loss in losses.items() if f"seed{seed}" in name and "base" in name)
        for seed, other in enumerate(by_seed)
    ]
    assert len(made) == 4 and variant["differences"] == pytest.approx(by_seed)
    again = run("benchmarks/ablations.py", *words)
    assert again.returncode == 0, again.stderr
    assert {file.name: file.read_text() for file in parts.iterdir()} == made
    assert "| rate_half | learning_rate 0.003 |" in path.with_suffix(".md").read_text()
    timed = run("benchmarks/ablations.py", *words, "--minutes", "0.001")
    assert timed.returncode == 0 and len(list(parts.iterdir())) == 8, timed.stderr
