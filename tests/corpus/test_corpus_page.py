"""docs/corpus.md: its options exist, its command and its Python do what it shows."""

import re
from dataclasses import fields
from pathlib import Path

import processes
import pytest

from lacuna.corpus import StoreArguments, TextArguments, open_text
from lacuna.tokenization import save_tokenizer, train_bpe

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "corpus.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```(\w*)\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
PRETRAIN = {"corpus"}


def test_its_options_exist() -> None:
    named = set(re.findall(r"--([a-z][a-z_-]+)", PAGE))
    assert named - PRETRAIN == named & {field.name for field in fields(StoreArguments)}
    assert len(named) >= 12


def test_its_command_and_what_reads_its_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    tokenizer = train_bpe(documents=["The cat sat. The dog ran. " * 20], vocab_size=270)
    save_tokenizer(tokenizer=tokenizer, output_dir=tmp_path / "runs" / "tokenizer")
    (tmp_path / "texts").mkdir()
    for number in range(7):
        (tmp_path / "texts" / f"{number}.txt").write_text(f"The cat sat {number} times. The dog ran.")
    (words,) = re.findall(r"^python (recipes/prepare_corpus\.py .*)$", PAGE, re.MULTILINE)
    done = processes.run(*words.split(), cwd=tmp_path)
    assert done.stdout.startswith("runs/corpus: 7 documents, 14 sentences, "), done.stderr
    (reader,) = [text for kind, text in BLOCKS if kind == "python"]
    monkeypatch.chdir(tmp_path)
    exec(compile(reader, "docs/corpus.md", "exec"), {})
    assert capsys.readouterr().out.splitlines()[1:] == [
        "The cat sat 0 times. The dog ran.",
        "['The cat sat 0 times.', ' The dog ran.']",
    ]


def test_its_message_is_the_one_that_comes(tmp_path: Path) -> None:
    (shown,) = re.findall(r"^error: rows\.jsonl(.*)$", PAGE, re.MULTILINE)
    file = tmp_path / "rows.jsonl"
    file.write_text('{"text": "The cat sat. The dog ran."}\n{"text": null, "id": 1}\n')
    with pytest.raises(ValueError, match=re.escape(shown)):
        list(open_text(TextArguments(data=[str(file)])).texts())
