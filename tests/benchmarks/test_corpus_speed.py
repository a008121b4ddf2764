"""The benchmark of preparing a corpus, with tiny settings: not how fast, only that its figures hang together."""

import json
import os
import statistics
from pathlib import Path

import pytest
from processes import run

from lacuna.tokenization import save_tokenizer, train_bpe

REPOSITORY = Path(__file__).resolve().parents[2]


@pytest.mark.slow
def test_it_measures_and_reports(tmp_path: Path) -> None:
    (tmp_path / "text").mkdir()
    for number in range(3):
        lines = [f"Line {line} of file {number} says that the cat sat." for line in range(400)]
        (tmp_path / "text" / f"{number}.txt").write_text("\n".join(lines))
    tokenizer = train_bpe(documents=["Line 12 of file 3 says that the cat sat.\n" * 20], vocab_size=280)
    save_tokenizer(tokenizer=tokenizer, output_dir=tmp_path / "tokenizer")
    options = {"data": "text", "tokenizer": "tokenizer", "output_dir": "results", "work_dir": ""}
    places = [word for name, value in options.items() for word in (f"--{name}", str(tmp_path / value))]
    done = run("benchmarks/corpus_speed.py", *places, "--rounds", "1", "--length", "32", "--max_files", "2")
    assert done.returncode == 0, done.stderr
    (path,) = (tmp_path / "results").glob("*-corpus_speed.json")
    report = json.loads(path.read_text())
    assert report["settings"] | {"files": 2, "length": 32, "rounds": 1} == report["settings"]
    summary = report["summary"]
    for name, rounds in report["rounds"].items():
        assert summary[name]["seconds"] == statistics.median(each["seconds"] for each in rounds) > 0
        assert rounds[0]["bytes"] > 2 * rounds[0]["tokens"]
        assert f"| {name} | " in done.stdout
    for name in ("datasets_1", "datasets_2"):
        assert summary[name]["lacuna_faster_by"] == pytest.approx(
            summary[name]["seconds"] / summary["lacuna"]["seconds"]
        )
        assert summary["lacuna"]["bytes"] / summary[name]["bytes"] < 0.25
    assert path.with_suffix(".md").read_text() in done.stdout
    assert sorted(os.listdir(tmp_path)) == ["results", "text", "tokenizer"]  # no cache is left


def test_mistakes_are_named(tmp_path: Path) -> None:
    done = run("benchmarks/corpus_speed.py", "--data", str(tmp_path), "--tokenizer", "t")
    assert done.returncode and f"there is no .txt file in {tmp_path}" in done.stderr
    done = run("benchmarks/corpus_speed.py", "--data", str(tmp_path), "--tokenizer", "t", "--rounds", "0")
    assert done.returncode == 2 and "--rounds" in done.stderr
