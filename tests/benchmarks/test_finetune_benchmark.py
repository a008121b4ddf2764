"""The benchmark of fine-tuning: its data, its tables by hand, and all of it for two steps on stand-ins."""

import json
from pathlib import Path
from typing import Any

import finetune
import harness
import pytest
from processes import run

from lacuna.corpus import builtin_questions


@pytest.fixture
def stand_ins(tmp_path: Path, two_texts: Path) -> Path:
    """A folder like that of the real data, with a little of what every interpreter has."""
    data = tmp_path / "data"
    for name in ("novels", "sst2", "squad"):
        (data / name).mkdir(parents=True)
    (data / "novels" / "One.txt").write_text((two_texts / "train.txt").read_text()[:20_000])
    lines = [f"it is {'good' if number % 2 else 'bad'} , for {number} reasons \t{number % 2}" for number in range(64)]
    for name, part in (("train", lines[:48]), ("dev", lines[48:])):
        (data / "sst2" / f"{name}.tsv").write_text("\n".join(["sentence\tlabel", *part]) + "\n")
    articles = []
    for number, row in zip(range(10), builtin_questions(), strict=False):
        starts = zip(row["answers"]["text"], row["answers"]["answer_start"], strict=True)
        answers = [{"text": text, "answer_start": start} for text, start in starts]
        qas = [{"id": str(number), "question": row["question"], "answers": answers}]
        articles.append({"title": str(number), "paragraphs": [{"context": row["context"], "qas": qas}]})
    (data / "squad" / "dev-v1.1.json").write_text(json.dumps({"version": "1.1", "data": articles}))
    return data


def test_articles_are_held_out_whole(stand_ins: Path, tmp_path: Path) -> None:
    finetune.write_parts(stand_ins, tmp_path, only=["squad"])
    train, held_out = (
        [article["title"] for article in json.loads((tmp_path / f"squad-{name}.json").read_text())["data"]]
        for name in ("train", "eval")
    )
    assert (train, held_out) == (["0", "1"], [str(number) for number in range(2, 10)])


def test_few_sentences_are_the_first_ones(stand_ins: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(finetune, "FEW", 5)
    finetune.write_parts(stand_ins, tmp_path, only=["few"])
    every = (stand_ins / "sst2" / "train.tsv").read_text().splitlines()
    assert (tmp_path / "sst2-few.tsv").read_text().splitlines() == every[:6]


def test_files_that_are_not_there_are_named(stand_ins: Path, tmp_path: Path) -> None:
    words = ["--data", str(stand_ins), "--work_dir", str(tmp_path / "work")]
    with pytest.raises(SystemExit, match=r"train\.en.*--only"):
        finetune.Benchmark(finetune.parse([*words, "--only", "multi30k"]))
    with pytest.raises(SystemExit, match="no novels"):
        finetune.Benchmark(finetune.parse([*words[2:], "--data", str(tmp_path), "--only", "sst2"]))


def test_a_run_that_fails_is_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "recipes").mkdir()
    (tmp_path / "recipes" / "wrong.py").write_text("import sys\nsys.exit('error: ' + ' '.join(sys.argv[1:]))")
    monkeypatch.setattr(harness, "REPOSITORY", tmp_path)
    with pytest.raises(RuntimeError, match="error: --steps 2"):
        harness.run_recipe("wrong", {"steps": 2, "output_dir": tmp_path / "run"})


def part(seed: int, value: float) -> dict[str, Any]:
    facts = {"wall_seconds": 60.0 * (seed + 1), "parameters": 2_000_000, "steps": 10, "train_tokens": 5e5}
    result = {"scores": {"accuracy": value}, "baseline": {"accuracy": 0.5}, **facts}
    settings = {"options": {"learning_rate": 2e-3, "max_minutes": 1.5}}
    return {"settings": settings, "result": result, "quiet": True}


def test_what_pretraining_adds_is_taken_seed_by_seed() -> None:
    found = {
        "native": {},
        "new": {0: part(0, 0.7), 1: part(1, 0.6), 2: part(2, 0.1)},
        "pretrained": {0: part(0, 0.8), 1: part(1, 0.9)},
    }
    guess, new, pretrained = finetune.rows_of(finetune.TASKS["sst2"], found)
    assert guess["model"] == "none: the most frequent label" and guess["scores"] == "accuracy 0.5"
    assert new["model"] == "Lacuna, first weights" and "pretraining adds" not in new
    assert pretrained["scores"] == "accuracy 0.85"
    assert pretrained["pretraining adds"] == "accuracy +0.2 (+0.1..+0.3)"
    facts = {"seeds": "0, 1", "parameters": 2_000_000, "learning_rate": 2e-3, "max_minutes": 1.5, "steps": 10}
    assert facts.items() <= pretrained.items() and pretrained["minutes in all, at most"] == 2


@pytest.mark.slow
def test_it_pretrains_fine_tunes_and_reports(stand_ins: Path, tmp_path: Path) -> None:
    options = {"data": stand_ins, "work_dir": tmp_path / "work", "steps": 2, "vocab_size": 400}
    options |= {"output_dir": tmp_path, "threads": 1}
    words = [word for name, value in options.items() for word in (f"--{name}", value)]
    done = run("benchmarks/finetune.py", *words, "--only", "sst2", timeout=280)
    assert done.returncode == 0, done.stderr
    (path,) = tmp_path.glob("*-finetune.json")
    report = json.loads(path.read_text())
    assert [row["steps"] for row in report["pretraining"]] == [2]
    rows = {row["model"]: row for row in report["rows"]}
    assert list(rows) == ["none: the most frequent label", *finetune.TITLES.values()]
    assert all(0 <= float(row["scores"].removeprefix("accuracy ")) <= 1 for row in rows.values())
    native, new, pretrained = (rows[title]["parameters"] for title in finetune.TITLES.values())
    assert new == pretrained and 0.5 < native / new < 2
    parts = tmp_path / "work" / "parts"
    made = {file.name: file.read_text() for file in parts.iterdir()}
    assert len(made) == 4
    again = run("benchmarks/finetune.py", *words, "--only", "sst2", timeout=100)
    assert again.returncode == 0, again.stderr
    assert {file.name: file.read_text() for file in parts.iterdir()} == made
