"""The benchmark of time to a loss, with tiny settings; and its summary against a case made by hand."""

import json
import os
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from contenders import SIDE_BY_SIDE, Shape
from processes import REPOSITORY, run
from time_to_loss import PEERS, SEARCHED, TUNED, TUNING_ROWS, Bench, Budget, make_optimizers, rate_share, summarize


@pytest.mark.slow
def test_it_trains_reports_and_finds_its_parts_again(tmp_path: Path, two_texts: Path) -> None:
    options = {"steps": 3, "tuning_share": 0.67, "our_steps": 2}
    options |= {"length": 16, "vocab_size": 400, "threads": 1, "data": two_texts}
    words = [word for name, value in options.items() for word in (f"--{name}", value)]
    words += ["--search", "learning_rate", "--contenders", "bert", "lacuna-mlm"]
    words += ["--output_dir", tmp_path, "--work_dir", tmp_path / "work"]
    # Compiling takes most of a minute, and nothing here depends on it.
    environment = {**os.environ, "LACUNA_CACHE": str(tmp_path / "cache"), "TORCHDYNAMO_DISABLE": "1"}
    done = run("benchmarks/time_to_loss.py", *words, env=environment)
    assert done.returncode == 0, done.stderr
    (path,) = tmp_path.glob("*-time_to_loss.json")
    summary = json.loads(path.read_text())["summary"]
    (compared,), (ours,), (*tried, last) = summary["compared"], summary["runs"]["lacuna-mlm"], summary["runs"]["bert"]
    tuned = {run["learning_rate"]: run["loss"] for run in tried if run["budget"] == "2steps"}
    assert set(tuned) == set(TUNED["learning_rate"]) and len(tried) == 3
    assert last["learning_rate"] == min(tuned, key=lambda rate: tuned[rate])
    assert last["budget"] == "3steps" and last["loss"] == compared["its loss"] and last["dropout"] == 0.0
    assert ours["steps"] == 2 and ours["loss"] > 0
    made = {file.name: file.read_text() for file in (tmp_path / "work" / "parts").iterdir()}
    assert len(made) == 3 + 1 + 1

    again = run("benchmarks/time_to_loss.py", *words, env=environment)
    assert again.returncode == 0, again.stderr
    assert {file.name: file.read_text() for file in (tmp_path / "work" / "parts").iterdir()} == made
    assert json.loads(path.read_text())["summary"] == summary


def test_the_best_of_what_was_tried_gets_the_whole_budget() -> None:
    best = {"learning_rate": 3e-3, "batch_size": 64, "dropout": 0.1, "weight_decay": 0.1, "mask_probability": 0.3}
    runs = []

    def part(name: str, budget: Budget, chosen: dict[str, Any], rows: int | None = None) -> int:
        runs.append((budget.steps, chosen, rows))
        return sum(chosen[key] != value for key, value in best.items())

    options = SimpleNamespace(search=SEARCHED, tuning_share=0.2)
    Bench.run(SimpleNamespace(options=options, budget=Budget(steps=10), part=part), "bert")
    *tried, last = runs
    assert len(tried) == 3 + 4 * 2 and {(steps, rows) for steps, _, rows in tried} == {(2, TUNING_ROWS)}
    assert last == (10, {**PEERS["bert"][1], **best}, None)


def part(minutes: float, loss: float | None, rate: float = 1e-3) -> dict[str, Any]:
    result = {"loss": loss, "bits_per_byte": 1.0, "steps": 10, "seconds": 60 * minutes}
    facts = {"quiet": True, "commit": "c", "made": "today"}
    budget = {"minutes": minutes, "steps": None}
    return {"name": "n", "settings": {"budget": budget, "peer": {"learning_rate": rate}}, "result": result, **facts}


def test_the_shortest_run_that_is_good_enough_counts() -> None:
    found = {
        "bert": [part(5, 3.0, 1e-2), part(20, 4.0), part(20, None, 1e-1), part(5, 4.5)],
        "modernbert": [part(20, 3.6)],
        "gpt2": [part(20, 2.0)],
        "lacuna-mlm": [part(2, 3.9), part(1, 4.01), part(5, 3.5)],
        "lacuna-clm": [part(6, 2.1)],
    }
    summary = summarize(found)
    best, bert, gpt2 = summary["compared"]
    assert [best["peer"], bert["peer"], gpt2["peer"]] == ["modernbert", "bert", "gpt2"]  # the best of a kind first
    assert bert["its loss"] == 4.0 and len(summary["runs"]["bert"]) == 4
    assert bert["our shortest run at or below it, minutes"] == 2 and bert["faster by"] == 10
    assert bert["goal"] is None and best["faster by"] == 4 and best["met"] == "no"  # 5 times is the goal
    assert gpt2["faster by"] is None and gpt2["our best loss"] == 2.1 and gpt2["met"] == "no"


def test_rates_rise_and_fall() -> None:
    shares = [rate_share(done, warmup=0.1, decay=0.5) for done in (0.0, 0.05, 0.1, 0.5, 0.75, 1.0)]
    assert shares == pytest.approx([0.01, 0.505, 1, 1, 0.5, 0], abs=0.01)
    assert rate_share(0.0, warmup=0.0, decay=1.0) == 1 and rate_share(0.25, warmup=0.0, decay=1.0) == 0.75


@pytest.mark.parametrize("name", list(PEERS))
def test_every_weight_is_trained_once_and_matrices_decay(name: str) -> None:
    contender, settings = PEERS[name]
    model = contender.build(Shape(32, 2, 2, 96, 16), 0.0)
    optimizers = make_optimizers(model, {**settings, "learning_rate": 1e-3, "weight_decay": 0.1})
    assert [type(each).__name__ for each in optimizers] == ["Muon", "AdamW"][settings["optimizer"] == "adamw" :]
    groups = [group for optimizer in optimizers for group in optimizer.param_groups]
    trained = [id(weight) for group in groups for weight in group["params"]]
    assert sorted(trained) == sorted(map(id, model.parameters()))
    tables = {id(part.weight) for part in model.modules() if isinstance(part, torch.nn.Embedding)}
    decayed = {id(weight) for group in groups for weight in group["params"] if group["weight_decay"]}
    assert decayed == {id(weight) for weight in model.parameters() if weight.dim() == 2} - tables


def test_peers_may_have_what_ours_has() -> None:
    """Warm-up, no dropout, decay, several rates, bf16 and compiled code."""
    for contender, settings in PEERS.values():
        assert contender.bf16 and contender.compiles == "whole"
        assert settings["warmup"] > 0 and settings["decay"] > 0
        assert len(settings["learning_rate"]) > 1 and 0.0 in settings["dropout"]


def test_the_page_names_peers_that_there_are() -> None:
    page = (REPOSITORY / "docs" / "speed.md").read_text(encoding="utf-8")
    named = set(re.findall(r"`(\w+_(?:compiled|muon|script))`", page))
    assert {"modernbert_compiled", "modernbert_muon", "qwen3_muon"} <= named <= {*PEERS, *SIDE_BY_SIDE}
