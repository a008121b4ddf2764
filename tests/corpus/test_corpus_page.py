"""docs/corpus.md: its options exist, its Python runs, its four processes do what it shows."""

import ast
import re
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import pytest

from lacuna.corpus import StoreArguments, TextArguments, open_text
from lacuna.tokenization import save_tokenizer, train_bpe

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "corpus.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```(\w*)\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
SLURM = {"array", "cpus-per-task", "mem", "time"}
PRETRAIN = {"corpus"}


def test_its_options_exist() -> None:
    named = set(re.findall(r"--([a-z][a-z_-]+)", PAGE))
    assert named - SLURM - PRETRAIN == named & {field.name for field in fields(StoreArguments)}
    assert len(named) > 12


def test_its_python_can_be_read() -> None:
    python = [text for kind, text in BLOCKS if kind == "python"]
    assert len(python) == 3
    for text in python:
        ast.parse(text)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    tokenizer = train_bpe(documents=["The cat sat. The dog ran. " * 20], vocab_size=270)
    save_tokenizer(tokenizer=tokenizer, output_dir=tmp_path / "runs" / "tokenizer")
    (tmp_path / "texts").mkdir()
    for number in range(7):
        (tmp_path / "texts" / f"{number}.txt").write_text(f"The cat sat {number} times. The dog ran.")
    return tmp_path


@pytest.mark.slow
def test_its_four_processes_and_what_reads_their_store(folder: Path) -> None:
    (script,) = [text for kind, text in BLOCKS if kind == "bash" and "for shard" in text]
    script = script.replace("python recipes", f"{sys.executable} {ROOT}/recipes")
    done = subprocess.run(["bash", "-c", script], cwd=folder, capture_output=True, text=True, check=True)
    assert done.stdout.startswith("runs/corpus: 7 documents, 14 sentences, ")
    missing = done.stderr.splitlines()
    assert 1 <= len(missing) <= 3 and all(  # two that end at once both find all parts
        re.fullmatch(r"shard \d of 4 is done; [\d, ]+ (is|are) missing", line) for line in missing
    )
    (reader,) = [text for kind, text in BLOCKS if kind == "python" and "open_store" in text]
    command = [sys.executable, "-c", f"import sys; sys.path.insert(0, {str(ROOT)!r})\n{reader}"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[1:] == [
        "The cat sat 0 times. The dog ran.",
        "['The cat sat 0 times.', ' The dog ran.']",
    ]


def test_its_message_is_the_one_that_comes(tmp_path: Path) -> None:
    (shown,) = re.findall(r"^error: rows\.jsonl(.*)$", PAGE, re.MULTILINE)
    file = tmp_path / "rows.jsonl"
    file.write_text('{"text": "The cat sat. The dog ran."}\n{"text": null, "id": 1}\n')
    with pytest.raises(ValueError, match=re.escape(shown)):
        list(open_text(TextArguments(data=[str(file)])).texts())
