"""The recipe prepare_corpus, as a person starts it."""

import signal
import subprocess
import time
from pathlib import Path

import processes
import pytest

from lacuna.corpus import open_store
from lacuna.tokenization import save_tokenizer, tokenizer_fingerprint, train_bpe

TEXT = ["The cat sat. The dog ran. " * 20]
SMALL = ("tests/corpus/small_pieces.py", 400)


def run(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return processes.run("recipes/prepare_corpus.py", *arguments, cwd=cwd)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    tokenizer = train_bpe(documents=TEXT, vocab_size=270)
    save_tokenizer(tokenizer=tokenizer, output_dir=tmp_path / "tokenizer")
    rows = [
        '{"body": "The cat sat. The dog ran."}',
        '{"body": "A  new\\none."}',
        '{"body": "The cat sat. The dog ran."}',
    ]
    (tmp_path / "rows.jsonl").write_text("\n".join(rows))
    (tmp_path / "text").mkdir()
    for number in range(40):
        lines = [f"Line {line} of {number}. {'The cat sat. ' * (line % 5)}It ran." for line in range(100)]
        (tmp_path / "text" / f"{number:02}.txt").write_text("\n".join(lines))
    return tmp_path


def test_it_builds_a_store_says_what_is_in_it_and_keeps_it(folder: Path) -> None:
    arguments = ("--data", "rows.jsonl", "--text_column", "body", "--tokenizer", "tokenizer", "--output_dir", "store")
    result = run(*arguments, cwd=folder)
    assert result.returncode == 0, result.stderr
    assert not result.stderr
    first, *report = result.stdout.splitlines()
    assert first.startswith("store: 2 documents, 3 sentences, ") and " bytes per token, " in first and " MB/s" in first
    assert report == [
        "dropped: duplicates 1",
        "2 random documents, each from a random sentence on (⏎ is a line end):",
        "  0, sentence 1: The dog ran.",
        "  1: A new ⏎ one.",
    ]
    store = open_store(folder / "store", verify=True)
    assert store.tokenizer_fingerprint == tokenizer_fingerprint(train_bpe(documents=TEXT, vocab_size=270))
    inode = (folder / "store" / "00000").stat().st_ino
    again = run(*arguments, cwd=folder)
    assert again.returncode == 0 and again.stdout.splitlines()[1:] == report
    assert (folder / "store" / "00000").stat().st_ino == inode


def test_bad_input_is_one_message_exit_code_2_and_nothing_left(folder: Path) -> None:
    before = sorted(path.name for path in folder.iterdir())
    result = run("--data", "rows.jsonl", "--tokenizer", "tokenizer", "--output_dir", "store", cwd=folder)
    assert result.returncode == 2
    assert "rows.jsonl:1: there is no column 'text'; there are: 'body'" in result.stderr
    assert "Traceback" not in result.stderr
    assert sorted(path.name for path in folder.iterdir()) == before


def test_ctrl_c_ends_promptly_and_what_is_ready_is_kept(folder: Path) -> None:
    arguments = ("--data", "text", "--document_boundary", "line", "--tokenizer", "tokenizer", "--output_dir", "store")
    running = processes.start(*SMALL, *arguments, "--num_workers", 2, cwd=folder)
    while not list(folder.glob(".store.building-*/*/*.piece")) and running.alive():
        time.sleep(0.005)
    running.kill(signal.SIGINT)  # as a terminal does: to all processes at once
    began = time.monotonic()
    done = running.wait(timeout=20)
    assert done.returncode == 130 and done.stderr.strip().endswith("interrupted") and "Traceback" not in done.stderr
    assert time.monotonic() - began < 5
    ready = len(list(folder.glob(".store.building-*/*/*.piece")))
    assert ready and not (folder / "store").exists()
    done = processes.run(*SMALL, *arguments, "--num_workers", 0, cwd=folder)
    assert done.returncode == 0 and "4,000 documents" in done.stdout
    assert f"{ready} of " in done.stderr and "pieces were ready and are kept" in done.stderr
