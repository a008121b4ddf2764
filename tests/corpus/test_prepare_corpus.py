"""The recipe prepare_corpus, as a person starts it."""

import subprocess
import sys
from pathlib import Path

import pytest

from corpus import open_store
from tokenization import save_tokenizer, tokenizer_fingerprint, train_bpe

RECIPE = Path(__file__).resolve().parents[2] / "recipes" / "prepare_corpus.py"


def run(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, str(RECIPE), *arguments], cwd=cwd, capture_output=True, text=True)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    tokenizer = train_bpe(documents=["The cat sat. The dog ran. " * 20], vocab_size=270)
    save_tokenizer(tokenizer=tokenizer, output_dir=tmp_path / "tokenizer")
    (tmp_path / "rows.jsonl").write_text('{"body": "The cat sat. The dog ran."}\n' * 3)
    return tmp_path


def test_it_builds_a_store_and_then_keeps_it(folder: Path) -> None:
    arguments = ("--data", "rows.jsonl", "--text_column", "body", "--tokenizer", "tokenizer", "--output_dir", "store")
    result = run(*arguments, cwd=folder)
    assert result.returncode == 0, result.stderr
    assert "3 documents, 6 sentences" in result.stdout
    store = open_store(folder / "store", verify=True)
    assert store.tokenizer_fingerprint == tokenizer_fingerprint(
        train_bpe(documents=["The cat sat. The dog ran. " * 20], vocab_size=270)
    )
    inode = (folder / "store").stat().st_ino
    assert run(*arguments, cwd=folder).returncode == 0
    assert (folder / "store").stat().st_ino == inode


def test_bad_input_is_one_message_exit_code_2_and_nothing_left(folder: Path) -> None:
    before = sorted(path.name for path in folder.iterdir())
    result = run("--data", "rows.jsonl", "--tokenizer", "tokenizer", "--output_dir", "store", cwd=folder)
    assert result.returncode == 2
    assert "rows.jsonl:1: there is no column 'text'; there are: 'body'" in result.stderr
    assert "Traceback" not in result.stderr
    assert sorted(path.name for path in folder.iterdir()) == before
