"""The recipe train_tokenizer, as a person starts it."""

import json
import subprocess
import sys
from pathlib import Path

from tokenization import load_tokenizer

RECIPE = Path(__file__).resolve().parents[2] / "recipes" / "train_tokenizer.py"


def run(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, str(RECIPE), *arguments], cwd=cwd, capture_output=True, text=True)


def test_it_trains_on_a_folder_and_reports(tmp_path: Path) -> None:
    texts = tmp_path / "texts"
    texts.mkdir()
    for number in range(3):
        (texts / f"{number}.txt").write_text("The quick brown fox jumps over the lazy dog. " * 20)
    result = run("--data", "texts", "--vocab_size", "300", "--output_dir", "out", cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    assert "vocabulary size   29" in result.stdout  # 294 or so: the text cannot fill 300
    assert "bytes per token" in result.stdout
    assert "warning: the vocabulary has 29" in result.stderr
    report = json.loads((tmp_path / "out" / "tokenizer_report.json").read_text())
    assert report["documents"] == 3
    assert report["vocab_size"] == len(load_tokenizer(tmp_path / "out"))


def test_bad_input_is_one_message_exit_code_2_and_nothing_left(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text('{"text": "fine"}\n{"text": "cut off\n')
    result = run("--data", "rows.jsonl", "--output_dir", "out", cwd=tmp_path)
    assert result.returncode == 2
    assert "rows.jsonl:2: not valid JSON" in result.stderr
    assert '{"text": "cut off' in result.stderr
    assert "Traceback" not in result.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["rows.jsonl"]
