"""The recipe prepare_corpus killed at any moment: what is there afterwards is nothing or whole, and the same bytes."""

import contextlib
import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import psutil
import pytest

from corpus import CorpusError, open_store
from tokenization import save_tokenizer, train_bpe

ROOT = Path(__file__).resolve().parents[2]
RECIPE = ROOT / "recipes" / "prepare_corpus.py"
# Starts the recipe in processes that have all imports behind them, so that a kill hits the build and not Python's
# start: for each line of arguments, the process's number when it begins and its exit status when it ends. Pieces are
# small, so that as much is half-done here as in a corpus of gigabytes.
STARTER = f"""
import json, os, runpy, sys
sys.path.insert(0, {str(ROOT)!r})
import corpus.build, datasets, sentencex, tokenization, training, training.command_line
corpus.build.PIECE_BYTES = 30_000
for line in sys.stdin:
    pid = os.fork()
    if not pid:
        os.setsid()
        print(os.getpid(), flush=True)
        sys.argv = [{str(RECIPE)!r}, *json.loads(line)]
        runpy.run_path(sys.argv[0], run_name="__main__")
    print(os.waitpid(pid, 0)[1], flush=True)
"""


class Recipe:
    """The recipe with a text and a tokenizer of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.process = subprocess.Popen(
            [sys.executable, "-c", STARTER],
            cwd=folder,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )

    def start(self, output_dir: str, num_workers: int) -> int:
        """The number of the process, which is alone in its group."""
        assert self.process.stdin is not None
        options = {"data": "text", "document_boundary": "line", "tokenizer": "tokenizer", "output_dir": output_dir}
        arguments = [word for name, value in options.items() for word in (f"--{name}", value)]
        self.process.stdin.write(json.dumps([*arguments, "--num_workers", str(num_workers)]) + "\n")
        self.process.stdin.flush()
        return int(self._answer())

    def end(self) -> int:
        """Wait for it: its exit code, negative for a signal."""
        while (line := self._answer()) and not line.lstrip("-").isdigit():
            pass  # what the recipe prints
        return os.waitstatus_to_exitcode(int(line))

    def _answer(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()


def contents(folder: Path) -> dict[str, str]:
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


@pytest.fixture
def recipe(tmp_path: Path) -> Iterator[Recipe]:
    random = np.random.default_rng(3)
    words = [" ".join("".join(map(chr, random.integers(97, 123, size=6))) for _ in range(4)) for _ in range(2000)]
    (tmp_path / "text").mkdir()
    for number in range(8):
        lines = [". ".join(words[place] for place in random.integers(0, 2000, size=8)) for _ in range(400)]
        (tmp_path / "text" / f"{number}.txt").write_text("\n".join([*lines, "All files have this line."]))
    save_tokenizer(tokenizer=train_bpe(documents=words, vocab_size=400), output_dir=tmp_path / "tokenizer")
    recipe = Recipe(tmp_path)
    yield recipe
    recipe.process.kill()
    recipe.process.communicate()


def check_kills(recipe: Recipe, *, count: int, seed: int) -> None:
    """Kill the whole group and the first process alone, two times each in turn, with no worker and with two."""
    folder = recipe.folder
    began = time.monotonic()
    recipe.start("expected", 0)
    assert recipe.end() == 0
    seconds = time.monotonic() - began
    expected = contents(folder / "expected")
    random = np.random.default_rng(seed)
    killed = 0
    for number in range(count):
        pid = recipe.start("store", num_workers=(0, 2)[number % 2])
        time.sleep(random.uniform(0, 0.5 * seconds))
        workers: list[psutil.Process] = []
        with contextlib.suppress(psutil.NoSuchProcess, ProcessLookupError):  # it was done before
            workers = psutil.Process(pid).children()
            kill = (os.killpg, os.kill)[number // 2 % 2]
            kill(pid, signal.SIGKILL)
        killed += recipe.end() == -signal.SIGKILL
        assert not psutil.wait_procs(workers, timeout=10)[1]  # none of them stays
        for half in [folder / "store", *folder.glob(".store.building-*/store")]:
            try:
                open_store(half, verify=True)
            except CorpusError:
                continue
            assert contents(half) == expected
        if (folder / "store").exists():
            assert contents(folder / "store") == expected
            shutil.rmtree(folder / "store")
    assert killed >= 0.7 * count
    recipe.start("store", 2)
    assert recipe.end() == 0
    assert contents(folder / "store") == expected
    assert not list(folder.glob(".store*"))


def test_ten_kills_leave_the_bytes_of_an_undisturbed_run(recipe: Recipe) -> None:
    check_kills(recipe, count=10, seed=1)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [2, 3, 4])
def test_thirty_more(recipe: Recipe, seed: int) -> None:
    check_kills(recipe, count=10, seed=seed)
