"""The tasks of `finetune.py`: their files, their options, and what judges them."""

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

FEW = 2000
"""Sentences of a small task, the first ones."""
SQUAD_HELD_OUT = 8
"""Articles, the last ones."""


def sst2(data: Path, folder: Path) -> dict[str, Path]:
    """Sentences of film reviews, good or bad."""
    return {"train_file": data / "sst2" / "train.tsv", "eval_file": data / "sst2" / "dev.tsv"}


def few(data: Path, folder: Path) -> dict[str, Path]:
    """The first of these sentences alone."""
    files = sst2(data, folder)
    lines = files["train_file"].read_text(encoding="utf-8").splitlines(keepends=True)[: FEW + 1]
    files["train_file"] = folder / f"sst2-{FEW}.tsv"
    files["train_file"].write_text("".join(lines), encoding="utf-8")
    return files


def squad(data: Path, folder: Path) -> dict[str, Path]:
    """Questions about Wikipedia; whole articles are held out."""
    content = json.loads((data / "squad" / "dev-v1.1.json").read_text(encoding="utf-8"))
    articles = content["data"]
    kept = max(1, len(articles) - SQUAD_HELD_OUT)
    files = {}
    for name, part in (("train_file", articles[:kept]), ("eval_file", articles[kept:])):
        files[name] = folder / f"squad-{name}.json"
        files[name].write_text(json.dumps({**content, "data": part}), encoding="utf-8")
    return files


def wnut17(data: Path, folder: Path) -> dict[str, Path]:
    """Names in messages of Twitter, new ones in the part to evaluate on.

    That is the development part: many words of the test part have the tags of several people.
    """
    return {
        "train_file": data / "wnut17" / "wnut17train.conll",
        "eval_file": data / "wnut17" / "emerging.dev.conll",
    }


def multi30k(data: Path, folder: Path) -> dict[str, Path]:
    """Captions of pictures, from English to German."""
    names = {"train_file": "train.en", "train_target_file": "train.de"}
    names |= {"eval_file": "test_2016_flickr.en", "eval_target_file": "test_2016_flickr.de"}
    return {option: data / "multi30k" / name for option, name in names.items()}


def built_in(data: Path, folder: Path) -> dict[str, Path]:
    """What every Python interpreter brings along."""
    return {}


@dataclass(frozen=True)
class Task:
    """A task of the benchmark."""

    what: str
    recipe: str
    metrics: tuple[str, ...]
    """The first one judges."""
    baseline: str
    minutes: float
    """Of training steps."""
    files: Callable[[Path, Path], dict[str, Path]]
    """(data, folder for what has to be written) -> options that name the files."""
    shape: str = "encoder"
    options: dict[str, Any] = field(default_factory=dict)


TASKS = {
    "sst2": Task(
        "SST-2: is a sentence of a review good or bad",
        "classification",
        ("accuracy",),
        "the more frequent label",
        3,
        sst2,
    ),
    "few": Task(
        f"SST-2, {FEW:,} sentences to learn from",
        "classification",
        ("accuracy",),
        "the more frequent label",
        0.3,
        few,
    ),
    "squad": Task(
        "SQuAD 1.1, 40 articles to learn from and 8 held out",
        "question_answering",
        ("f1", "exact_match"),
        "the better of two fixed guesses",
        5,
        squad,
    ),
    "wnut17": Task(
        "WNUT-17: names in messages",
        "token_classification",
        ("f1",),
        "the tag that each word mostly had",
        1,
        wnut17,
    ),
    "multi30k": Task(
        "Multi30k, English to German",
        "seq2seq",
        ("chrf", "bleu"),
        "the source itself",
        5,
        multi30k,
        "encoder-decoder",
        {"max_length": 64, "max_target_length": 64},
    ),
    "classification": Task(
        "built-in: which family of modules a docstring is from",
        "classification",
        ("accuracy", "f1_macro"),
        "the most frequent label",
        1,
        built_in,
    ),
    "questions": Task(
        "built-in: what the default of a parameter is",
        "question_answering",
        ("f1", "exact_match"),
        "the better of two fixed guesses",
        2,
        built_in,
    ),
}
