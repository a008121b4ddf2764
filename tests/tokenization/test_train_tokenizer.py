"""The recipe train_tokenizer, as a person starts it."""

import json
import random
import subprocess
from pathlib import Path

import processes
import pytest

from lacuna.tokenization import load_tokenizer

WORDS = ["river", "stone", "cloud", "garden", "window", "evening", "music", "letter", "harbour", "winter"]


def run(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return processes.run("recipes/train_tokenizer.py", *arguments, cwd=cwd)


def make_texts(folder: Path, *, count: int = 40, seed: int = 0) -> None:
    folder.mkdir()
    draw = random.Random(seed)
    for number in range(count):
        sentences = [" ".join(draw.choices(WORDS, k=8)) for _ in range(20)]
        (folder / f"{number}.txt").write_text(f"Text {number}. " + ". ".join(sentences))


def test_it_trains_on_a_folder_and_reports(tmp_path: Path) -> None:
    make_texts(tmp_path / "texts")
    result = run("--data", "texts", "--vocab_size", "300", "--output_dir", "out", cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    for said in ("read                  40 documents", "(all of it)", "bytes per token", "held out"):
        assert said in result.stdout
    assert result.stderr == ""
    report = json.loads((tmp_path / "out" / "tokenizer_report.json").read_text())
    assert report["sample"]["seen_documents"] == report["sample"]["documents"] == 40
    assert report["vocab_size"] == len(load_tokenizer(tmp_path / "out")) == 320  # 300 rounded up
    assert report["held_out"]["texts"] >= 1
    assert report["held_out"]["texts"] + report["texts"] == 40
    assert report["options"]["seed"] == report["sample"]["seed"] == 0
    assert report["data"] == ["texts"] and report["warnings"] == []
    assert {"reading", "training", "measuring"} == set(report["seconds"])
    assert report["peak_memory_bytes"] is None or report["peak_memory_bytes"] > 20_000_000
    assert "longest_tokens" in report and "longest_tokens" not in report["held_out"]
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [
        "tokenizer.json", "tokenizer_config.json", "tokenizer_report.json"
    ]  # fmt: skip


def test_a_small_text_of_another_script_is_sampled_and_warned_of(tmp_path: Path) -> None:
    lines = [f"{number} " + "".join(chr(0x4E00 + number * 61 % 997 + i) for i in range(9)) for number in range(900)]
    (tmp_path / "lines.txt").write_text("\n".join(lines))
    options = ["--document_boundary", "line", "--max_bytes", "9000", "--seed", "5", "--vocab_size", "400"]
    result = run("--data", "lines.txt", *options, "--output_dir", "out", cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    assert "a sample for --max_bytes 9000, seed 5" in result.stdout
    assert "text falls to bytes" in result.stderr
    report = json.loads((tmp_path / "out" / "tokenizer_report.json").read_text())
    assert not report["sample"]["whole"] and 8000 < report["sample"]["bytes"] <= 9000
    assert report["torn_share"] > 0.01 and len(report["warnings"]) == 1


def test_it_extends_a_tokenizer(tmp_path: Path) -> None:
    make_texts(tmp_path / "texts")
    assert run("--data", "texts", "--vocab_size", "320", "--output_dir", "old", cwd=tmp_path).returncode == 0
    (tmp_path / "new.txt").write_text("Der Fluss und der Stein, die Wolke und der Garten. " * 30)
    options = ["--extend", "old", "--vocab_size", "340", "--pad_to_multiple_of", "1", "--output_dir", "new"]
    result = run("--data", "new.txt", *options, cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    report = json.loads((tmp_path / "new" / "tokenizer_report.json").read_text())
    assert report["before_extending"] is None and report["held_out"] is None  # one small document
    old, new = (load_tokenizer(tmp_path / name).get_vocab() for name in ("old", "new"))
    assert len(new) == 340 and {token: new[token] for token in old} == old
    result = run("--data", "new.txt", *options, "--pattern", "code", cwd=tmp_path)
    assert result.returncode == 2 and "--pattern cannot be chosen with --extend" in result.stderr


@pytest.mark.parametrize(
    ("content", "arguments", "said"),
    [
        ('{"text": "fine"}\n{"text": "cut off\n', [], ["rows.jsonl:2: not valid JSON", '{"text": "cut off']),
        ('{"text": "the same"}\n' * 1000, [], ["all 1,000 documents are copies of one", "the same"]),
        ('{"text": "ab cd"}\n{"text": "ef gh"}\n', [], ["nothing to learn", "--min_frequency"]),
        ('{"text": "fine"}\n', ["--vocab_size", "100"], ["--vocab_size 100", "261"]),
        ('{"text": "fine"}\n', ["--normalizer", "nfd"], ["--normalizer", "invalid choice: 'nfd'"]),
        ('{"text": "fine"}\n', ["--tokenizer", "x"], ["--extend"]),
        ('{"text": "fine"}\n', ["--extend", "x"], ["no such folder"]),
        ('{"text": "fine"}\n', ["--max_bytes", "0"], ["--max_bytes 0"]),
        ('{"text": "fine"}\n', ["--output_dir", "."], ["--output_dir . holds rows.jsonl", "name another folder"]),
        ('{"text": ""}\n', [], ["rows.jsonl"]),
        # What is wrong with the options is said before a text is read that may take hours.
        ("broken", ["--vocab_size", "100"], ["--vocab_size 100 is too small"]),
        ("broken", ["--min_frequency", "0"], ["--min_frequency must be at least 1, got 0"]),
        ("broken", ["--extra_special_tokens", "river"], ["'river' could be a word"]),
        ("broken", ["--extend", "x"], ["cannot load a tokenizer from x: there is no such folder"]),
        ("broken", ["--extend", "."], ["there is no tokenizer.json in it"]),
    ],
)
def test_bad_input_is_one_message_exit_code_2_and_nothing_left(
    tmp_path: Path, content: str, arguments: list[str], said: list[str]
) -> None:
    (tmp_path / "rows.jsonl").write_text(content)
    result = run("--data", "rows.jsonl", "--output_dir", "out", *arguments, cwd=tmp_path)
    assert result.returncode == 2, result.stdout
    for words in said:
        assert words in result.stderr
    assert "Traceback" not in result.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["rows.jsonl"]
