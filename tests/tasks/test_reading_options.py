"""Tables without names, other encodings and labels before texts, through the recipes; and what a resumed run knows."""

import csv
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from lacuna import modeling
from lacuna.corpus import CorpusArguments, read_labelled
from lacuna.modeling import LacunaConfig
from lacuna.tasks.base import fine_tuning
from lacuna.tasks.base.arguments import used
from lacuna.tasks.classification.reader import ClassificationArguments
from lacuna.tasks.texts import read_task_texts
from lacuna.tokenization import adapt_tokenizer

SMALL = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "head_dim": 16, "intermediate_size": 64}
SHORT = ["--max_steps", 2, "--batch_size", 4, "--compile", "off", "--save_steps", 0, "--max_length", 16]
COLA = "".join(f"gj0{i % 3}\t{i % 2}\t{'*' if i % 2 else ''}\tThe café number {i}\n" for i in range(24))
NAMES = ["--column_names", "source,label,mark,sentence"]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory, tokenizer: Any) -> Path:
    folder = tmp_path_factory.mktemp("pretrained")
    torch.manual_seed(0)
    config = LacunaConfig.from_family("modernbert", vocab_size=len(tokenizer), max_position_embeddings=64, **SMALL)
    modeling.LacunaForMaskedLM(config).save_pretrained(folder)
    adapt_tokenizer(tokenizer=tokenizer, shape="encoder", segments=False, max_length=64).save_pretrained(folder)
    return folder


def test_a_table_without_names_in_latin_1(model: Path, tmp_path: Path, run_recipe: Any) -> None:
    train, output = tmp_path / "cola.tsv", tmp_path / "out"
    train.write_bytes(COLA.encode("latin-1"))
    words = ["--model", model, "--train_file", train, *SHORT, "--output_dir", output]
    code, said = run_recipe("finetune_classification", *words)
    assert code == 2 and "cola.tsv:1: not valid UTF-8 (0xe9)" in said and "--encoding latin1" in said
    code, said = run_recipe("finetune_classification", *words, "--encoding", "latin-1")
    assert code == 2 and "the first line looks like data" in said and "--column_names" in said
    code, said = run_recipe("finetune_classification", *words, *NAMES, "--encoding", "latin_1")
    assert code == 0, said
    card = (output / "README.md").read_text(encoding="utf-8")
    assert "| column_names | `source, label, mark, sentence` |" in card and "| encoding | `latin_1` |" in card
    answers = tmp_path / "answers.csv"
    words = ["--model", output, "--input", train, "--output", answers, *NAMES, "--encoding", "latin-1"]
    code, said = run_recipe("predict", *words)
    assert code == 0, said
    with answers.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 24 and rows[1]["sentence"] == "The café number 1" and {rows[0]["prediction"]} <= {"0", "1"}
    lines = tmp_path / "new.txt"
    lines.write_bytes("Le café\n".encode("utf-16"))
    words[3], words[5] = lines, tmp_path / "lines.jsonl"
    code, said = run_recipe("predict", *words)
    assert code == 2 and "--column_names is for .csv and .tsv files" in said
    code, said = run_recipe("predict", *words[:6], "--encoding", "utf-16")
    assert code == 0 and "Le café" in (tmp_path / "lines.jsonl").read_text(encoding="utf-8"), said
    code, said = run_recipe("predict", *words[:4], "--output", tmp_path / "x.jsonl", "--encoding", "utf-99")
    assert code == 2 and "--encoding utf-99 is no encoding of text" in said


def test_labels_before_texts_are_learned(model: Path, tmp_path: Path, run_recipe: Any) -> None:
    train = tmp_path / "train.txt"
    train.write_text("".join(f"{'DESC' if i % 2 else 'NUM'}:x How many words {i} ?\n" for i in range(24)))
    words = ["--model", model, "--train_file", train, "--dry_run", "--output_dir", tmp_path / "out"]
    code, said = run_recipe("finetune_classification", *words)
    assert code == 0 and f"{train}: each line is a label, then a text (2 labels)\n" in said
    code, said = run_recipe("finetune_multiple_choice", *words)
    assert code == 2 and "has the ending '.txt'; rows are read from" in said
    train.write_text("One text.\nAnother\n")
    code, said = run_recipe("finetune_classification", *words)
    assert code == 2 and "train.txt:2: no text after the label" in said


def test_a_first_line_that_is_a_row_is_not_lost(model: Path, tmp_path: Path, run_recipe: Any) -> None:
    train = tmp_path / "rows.csv"
    train.write_text(
        "".join(f"{'good' if i % 2 else 'bad'} river {i},{'yes' if i % 2 else 'no'}\n" for i in range(24))
    )
    words = ["--model", model, "--train_file", train, "--dry_run", "--output_dir", tmp_path / "out"]
    code, said = run_recipe("finetune_classification", *words)
    assert code == 2 and "rows.csv:2: the first line looks like data and not like names: ['bad river 0', 'no']" in said
    assert "--column_names; or, if these are their names, say --text_column 'bad river 0' --label_column 'no'" in said
    code, said = run_recipe("finetune_classification", *words, "--column_names", "text,label")
    assert code == 0, said
    code, said = run_recipe("finetune_classification", *words, "--text_column", "bad river 0", "--label_column", "no")
    assert code == 0, said
    train.write_text("remark,mood\n" + train.read_text())  # names that nobody knows are names
    code, said = run_recipe("finetune_classification", *words)
    assert code == 0, said


def test_texts_of_such_files_are_pretrained_on(tmp_path: Path) -> None:
    train, cola = tmp_path / "train.txt", tmp_path / "cola.tsv"
    train.write_bytes("".join(f"{'A' if i % 2 else 'B'} caf\u00e9 {i}\n" for i in range(8)).encode("latin-1"))
    cola.write_text(COLA, encoding="utf-8")
    for data, count in (
        (CorpusArguments(for_file=[str(train)], for_task="classification", encoding="latin-1"), 6),
        (CorpusArguments(for_file=[str(cola)], for_task="classification", column_names=NAMES[1:]), 22),
    ):
        read = partial(read_labelled, **data.reading_for())
        texts, _ = read_task_texts(data.for_file, task=data.for_task, read=read, builtin={})
        assert len(texts) == count and all("café" in text for text in texts)


def test_a_resumed_run_knows_how_rows_were_read(
    model: Path, tmp_path: Path, tokenizer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    identities: list[dict[str, Any]] = []
    rows = [{"text": f"text {i}", "label": f"l{i % 2}"} for i in range(8)]
    asked: list[dict[str, Any]] = []

    def read(file: str, **how: Any) -> list[dict[str, Any]]:
        asked.append(how)
        return rows

    def fine_tune(**parts: Any) -> None:
        identities.append(parts["identity"]["task"])

    from lacuna.tasks.classification.task import Classification

    for options in (
        {},
        {"encoding": "latin-1"},
        {"column_names": ["text,label"]},
        {"column_names": ["text", "label"]},
    ):
        start = SimpleNamespace(model=str(model), revision=None, trust_remote_code=False)
        arguments = SimpleNamespace(seed=0, lora_rank=0, output_dir=tmp_path, threads=1)
        data = ClassificationArguments(train_file="a.tsv", **options)  # type: ignore[arg-type]
        training = SimpleNamespace(fine_tune=fine_tune, is_main_process=lambda: False, use_all_cores=int)
        parts: dict[str, Any] = {"training": training, "as_ours": None, "read": read}
        fine_tuning.fine_tune_task(Classification, start, data, arguments, **parts)
    assert asked == [{}, {"encoding": "latin-1"}, *[{"column_names": ["text", "label"]}] * 2]
    plain, latin, *named = identities
    assert not {"column_names", "encoding"} & plain.keys()  # as before there were such options
    assert latin == {**plain, "encoding": "latin-1"}
    assert named == [{**plain, "column_names": ["text", "label"]}] * 2


def test_the_card_has_what_was_given() -> None:
    assert not {"column_names", "encoding"} & used(ClassificationArguments(train_file="a.csv")).keys()
    assert used(ClassificationArguments(train_file="a.csv", encoding="cp1252"))["encoding"] == "cp1252"
