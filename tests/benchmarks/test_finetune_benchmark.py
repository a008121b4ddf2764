"""The benchmark of fine-tuning: its data, its tables by hand, and all of it for two steps on stand-ins."""

import json
from pathlib import Path
from typing import Any

import finetune
import kept
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
    files = finetune.squad(stand_ins, tmp_path)
    train, held_out = (
        [article["title"] for article in json.loads(files[name].read_text())["data"]]
        for name in ("train_file", "eval_file")
    )
    assert (train, held_out) == (["0", "1"], [str(number) for number in range(2, 10)])


def test_few_sentences_are_the_first_ones(stand_ins: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(finetune, "FEW", 5)
    files = finetune.few(stand_ins, tmp_path)
    every = (stand_ins / "sst2" / "train.tsv").read_text().splitlines()
    assert files["train_file"].read_text().splitlines() == every[:6]
    assert files["eval_file"] == stand_ins / "sst2" / "dev.tsv"


def test_files_that_are_not_there_are_named(stand_ins: Path, tmp_path: Path) -> None:
    words = ["--data", str(stand_ins), "--work_dir", str(tmp_path / "work")]
    with pytest.raises(SystemExit, match=r"train\.en.*--only"):
        finetune.Benchmark(finetune.parse([*words, "--only", "multi30k"]))
    with pytest.raises(SystemExit, match="no novels"):
        finetune.Benchmark(finetune.parse([*words[2:], "--data", str(tmp_path), "--only", "sst2"]))


def test_a_run_that_is_long_is_ended_and_one_that_fails_is_shown(tmp_path: Path, monkeypatch) -> None:
    (tmp_path / "recipes").mkdir()
    (tmp_path / "recipes" / "slow.py").write_text("import time\ntime.sleep(60)")
    (tmp_path / "recipes" / "wrong.py").write_text("import sys\nsys.exit('error: ' + ' '.join(sys.argv[1:]))")
    monkeypatch.setattr(kept, "REPOSITORY", tmp_path)
    place = {"output_dir": tmp_path / "run"}
    assert kept.run_recipe("slow", place, minutes=0.01) is None
    with pytest.raises(RuntimeError, match="error: --steps 2"):
        kept.run_recipe("wrong", {"steps": 2, **place})


def part(kind: str, seed: int, value: float, guess: float = 0.5) -> dict[str, Any]:
    facts = {"wall_seconds": 60.0 * (seed + 1), "parameters": 2_000_000, "steps": 10, "train_tokens": 5e5}
    result = {"scores": {"accuracy": value}, "baseline": {"accuracy": guess}, **facts}
    return {
        "settings": {"kind": kind, "options": {"seed": seed, "learning_rate": 2e-3, "max_minutes": 1.5}},
        "result": result,
        "commit": "c",
        "quiet": True,
    }


def test_what_pretraining_adds_is_taken_seed_by_seed() -> None:
    parts = {
        "native": [{**part("native", 0, 0.0), "result": {"too_long": True}}],
        "new": [part("new", 0, 0.7), part("new", 1, 0.6)],
        "pretrained": [part("pretrained", 0, 0.8), part("pretrained", 1, 0.9)],
    }
    scores = finetune.scores_of(parts, "accuracy")
    assert scores["differences"] == pytest.approx([0.1, 0.3])
    rows = [
        {"task": "sst2", "what": "SST-2", "baseline_is": "a guess", "scores": {"accuracy": scores}, "parts": parts}
    ]
    settings = {"steps": None, "minutes": 8, "seeds": [0, 1], "limit_minutes": 15}
    text = "\n".join(finetune.to_markdown({"settings": settings, "pretraining": {"encoder": []}, "rows": rows}))
    assert "| SST-2 | no model | accuracy 0.5 |" in text
    ours = "accuracy 0.85 | accuracy +0.2 (+0.1..+0.3) | 2.0 | 0, 1 | 2,000,000 | 0.002 | 1.5 | 10 | 500,000 |"
    assert f"| SST-2 | Lacuna, pretrained | {ours}" in text
    assert "| SST-2 | native, first weights |  |  | ended after 15 |" in text


@pytest.mark.slow
def test_it_pretrains_fine_tunes_and_reports(stand_ins: Path, tmp_path: Path) -> None:
    options = {"data": stand_ins, "work_dir": tmp_path / "work", "parts_dir": tmp_path / "parts", "steps": 2}
    options |= {"vocab_size": 400, "output_dir": tmp_path, "threads": 1}
    words = [word for name, value in options.items() for word in (f"--{name}", value)]
    done = run("benchmarks/finetune.py", *words, "--only", "sst2", timeout=280)
    assert done.returncode == 0, done.stderr
    (path,) = tmp_path.glob("*-finetune.json")
    report = json.loads(path.read_text())
    (row,) = report["rows"]
    found = row["scores"]["accuracy"]
    assert all(0 <= found[kind] <= 1 for kind in ("baseline", "native", "new", "pretrained"))
    assert report["pretraining"]["encoder"][-1]["result"]["steps"] == 2
    sizes = {kind: parts[0]["result"]["parameters"] for kind, parts in row["parts"].items()}
    assert sizes["new"] == sizes["pretrained"] and 0.5 < sizes["native"] / sizes["new"] < 2
    made = {file.name: file.read_text() for file in (tmp_path / "parts").iterdir()}
    assert len(made) == 4
    again = run("benchmarks/finetune.py", *words, "--only", "sst2", timeout=100)
    assert again.returncode == 0, again.stderr
    assert {file.name: file.read_text() for file in (tmp_path / "parts").iterdir()} == made
