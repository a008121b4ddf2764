"""What a card says of a fine-tuned model, and what it keeps to itself."""

from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

from training.model_card import model_card
from training.shown import shown_command, without_places


def card(new_model: Any, **info: Any) -> str:
    facts = {"objective": "fine-tuning for classification", "model": "runs/base", "task": {"train_file": "train.csv"}}
    return model_card(
        model=new_model(),
        run_info={**facts, **info},
        step=120,
        tokens=3456,
        metrics={"eval_loss": 0.5, "eval_accuracy": 0.875},
        baseline={"baseline_accuracy": 0.5},
    )


def test_a_fine_tuned_model_says_data_baseline_command_and_versions(new_model, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs" / "base").mkdir(parents=True)
    task = {"train_file": "/home/me/train.csv", "eval_file": None, "label_names": ["a|b", "c"], "max_length": 128}
    text = card(
        new_model, task=task, examples=1234, held_out=56, command="python recipes/finetune_classification.py --seeds 3"
    )
    assert "fine-tuning for classification, from `runs/base`" in text and "base_model" not in text
    assert "| accuracy | 0.8750 | 0.5000 |" in text and "| loss | 0.5000 |  |" in text
    assert "| train_file | `train.csv` |" in text and "eval_file" not in text and "/home" not in text
    assert r"| label_names | `a\|b, c` |" in text and "| max_length | `128` |" in text
    assert "| examples | 1,234 to learn from, 56 held out |" in text
    assert "\npython recipes/finetune_classification.py --seeds 3\n" in text
    assert f"torch {version('torch')}" in text and f"transformers {version('transformers')}" in text


def test_a_base_of_the_hub_is_named_for_the_hub(new_model, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert "base_model: google/bert_uncased\ntags:" in card(new_model, model="google/bert_uncased")
    (tmp_path / "google" / "bert_uncased").mkdir(parents=True)
    assert "base_model" not in card(new_model, model="google/bert_uncased")


def test_a_pretrained_model_has_no_table_of_data(new_model) -> None:
    text = model_card(
        model=new_model(), run_info={"objective": "mlm", "model": None, "command": "x"}, step=1, tokens=1, metrics={}
    )
    assert "| data |" not in text and "Made by" not in text


@pytest.mark.parametrize(
    ("word", "shown"),
    [
        ("/home/me/data/train.csv", "train.csv"),
        ("--train_file=/data/x.csv", "--train_file=x.csv"),
        ("~/data/x.csv", "x.csv"),
        (r"C:\Users\me\x.csv", "x.csv"),
        ("/a/b:0.5", "b:0.5"),
        ("/a/b,/c/d", "b,d"),
        ("https://user@host.example:8080/org/name", "org/name"),
        ("data/train.csv", "data/train.csv"),
        ("../train.csv", "../train.csv"),
        ("nyu-mll/glue:sst2", "nyu-mll/glue:sst2"),
        ("--learning_rate", "--learning_rate"),
        ("|", "|"),
        ("0,0.5", "0,0.5"),
    ],
)
def test_places_are_left_out(word, shown) -> None:
    assert without_places(word) == shown


def test_the_command_is_as_somebody_else_would_type_it(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "with a blank"
    folder.mkdir()
    words = ["/opt/lacuna/recipes/finetune_classification.py", "--train_file", str(folder), "--label_separator", "|"]
    expected = "python recipes/finetune_classification.py --train_file 'with a blank' --label_separator '|'"
    assert shown_command(words) == expected
    monkeypatch.setattr("sys.argv", ["recipes/pretrain.py", "--seed", "1"])
    assert shown_command() == "python recipes/pretrain.py --seed 1"
