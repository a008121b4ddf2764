"""The recipe prepare_corpus killed at any moment: what is there afterwards is nothing or whole, and the same bytes."""

import contextlib
import hashlib
import os
import shutil
import signal
import time
from pathlib import Path

import numpy as np
import processes
import psutil
import pytest

from lacuna.common.errors import InputError
from lacuna.corpus import open_store
from lacuna.tokenization import save_tokenizer, train_bpe

# Small pieces, so that as much is half-done here as in a corpus of gigabytes.
RECIPE = ("tests/corpus/small_pieces.py", 30_000)


def start(folder: Path, output_dir: str, num_workers: int) -> processes.Running:
    """The recipe with the text and the tokenizer of `folder`, alone in its group."""
    options = {"data": "text", "document_boundary": "line", "tokenizer": "tokenizer", "output_dir": output_dir}
    words = [word for name, value in options.items() for word in (f"--{name}", value)]
    return processes.start(*RECIPE, *words, "--num_workers", num_workers, cwd=folder)


def contents(folder: Path) -> dict[str, str]:
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A text of 3,208 documents in eight files, and its tokenizer."""
    random = np.random.default_rng(3)
    words = [" ".join("".join(map(chr, random.integers(97, 123, size=6))) for _ in range(4)) for _ in range(2000)]
    (tmp_path / "text").mkdir()
    for number in range(8):
        lines = [". ".join(words[place] for place in random.integers(0, 2000, size=8)) for _ in range(400)]
        (tmp_path / "text" / f"{number}.txt").write_text("\n".join([*lines, "All files have this line."]))
    save_tokenizer(tokenizer=train_bpe(documents=words, vocab_size=400), output_dir=tmp_path / "tokenizer")
    return tmp_path


def check_kills(folder: Path, *, count: int, seed: int) -> None:
    """Kill the whole group and the first process alone, two times each in turn, with no worker and with two."""
    assert start(folder, "expected", 0).wait().returncode == 0  # the server of processes has begun
    shutil.rmtree(folder / "expected")
    began = time.monotonic()
    assert start(folder, "expected", 0).wait().returncode == 0
    seconds = time.monotonic() - began
    expected = contents(folder / "expected")
    random = np.random.default_rng(seed)
    killed = 0
    for number in range(count):
        running = start(folder, "store", num_workers=(0, 2)[number % 2])
        (pid,) = running.pids
        time.sleep(random.uniform(0, 0.5 * seconds))
        workers: list[psutil.Process] = []
        with contextlib.suppress(psutil.NoSuchProcess, ProcessLookupError):  # it was done before
            workers = psutil.Process(pid).children()
            kill = (os.killpg, os.kill)[number // 2 % 2]
            kill(pid, signal.SIGKILL)
        killed += running.wait().returncode == -signal.SIGKILL
        assert not psutil.wait_procs(workers, timeout=10)[1]  # none of them stays
        for half in [folder / "store", *folder.glob(".store.building-*/store")]:
            try:
                open_store(half, verify=True)
            except InputError:
                continue
            assert contents(half) == expected
        if (folder / "store").exists():
            assert contents(folder / "store") == expected
            shutil.rmtree(folder / "store")
    assert killed >= 0.7 * count
    assert start(folder, "store", 0).wait().returncode == 0
    assert contents(folder / "store") == expected
    assert not list(folder.glob(".store*"))


def test_kills_leave_the_bytes_of_an_undisturbed_run(folder: Path) -> None:
    check_kills(folder, count=4, seed=1)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [2, 3, 4])
def test_thirty_more(folder: Path, seed: int) -> None:
    check_kills(folder, count=10, seed=seed)
