"""The benchmark of tokenizers, with tiny settings: not how fast, only that its figures hang together."""

import json
import os
import random
import statistics
from pathlib import Path

import pytest
from processes import run

pytest.importorskip("sentencepiece")

REPOSITORY = Path(__file__).resolve().parents[2]


@pytest.mark.slow
def test_it_measures_and_reports(tmp_path: Path) -> None:
    (tmp_path / "texts").mkdir()
    draw = random.Random(0)
    words = ["".join(draw.choices("abcdefghij", k=draw.randrange(2, 9))) for _ in range(300)]
    for number in range(3):
        lines = [" ".join(draw.choices(words, k=10)) + "." for _ in range(200)]
        (tmp_path / "texts" / f"{number}.txt").write_text("\n".join(lines))
    done = run("benchmarks/tokenizer_speed.py",
        "--data", str(tmp_path / "texts"), "--rounds", "1", "--vocab_size", "400",
        "--output_dir", str(tmp_path / "out"),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    (path,) = (tmp_path / "out").glob("*-tokenizer_speed.json")
    report = json.loads(path.read_text())
    names = ["lacuna", "lacuna_recipe", "tokenizers_files", "tokenizers_iterator", "sentencepiece"]
    assert list(report["summary"]["training"]) == names
    names = ["lacuna", "tokenizers_loop", "tokenizers_batch"]
    assert list(report["summary"]["encoding"]) == names
    size = sum(file.stat().st_size for file in (tmp_path / "texts").iterdir())
    assert report["settings"]["bytes"] == size and report["settings"]["vocab_size"] == 400
    for kind, contenders in report["rounds"].items():
        for name, rounds in contenders.items():
            facts = report["summary"][kind][name]
            assert facts["seconds"] == statistics.median(each["seconds"] for each in rounds) > 0
            assert facts["megabytes_per_second"] == pytest.approx(size / 1e6 / facts["seconds"])
            assert 0 < facts["busy_cores"] <= 1.1 * (os.cpu_count() or 1)
            assert f"| {name} | {facts['seconds']:.4g} |" in done.stdout
    assert path.with_suffix(".md").read_text() in done.stdout


def test_mistakes_are_named(tmp_path: Path) -> None:
    for words, message in (
        (["--data", str(tmp_path)], "no .txt file"),
        (["--data", "x", "--rounds", "0"], "--rounds"),
    ):
        done = run("benchmarks/tokenizer_speed.py", *words)
        assert done.returncode and message in done.stderr
