"""Texts without labels, labelled by a classifier and the bag of words, from which another classifier learns."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy.sparse import hstack
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from transformers import (
    AutoModelForSequenceClassification,
    AutoTokenizer,
    BertConfig,
    BertForMaskedLM,
    BertForSequenceClassification,
)

from lacuna.common.errors import InputError
from lacuna.recipes import finetune_classification
from lacuna.tasks.base.bag_of_words import WORDS, Words
from lacuna.tasks.base.models import load_base
from lacuna.tasks.classification.reader import SINGLE, ClassificationArguments
from lacuna.tasks.classification.task import Classification, label_texts

SMALL = {"vocab_size": 320, "max_position_embeddings": 128, "hidden_size": 32, "num_hidden_layers": 1}
SMALL |= {"num_attention_heads": 2, "intermediate_size": 32}
FEW = [{"text": f"row {i} is {'good' if i % 3 else 'bad'}", "label": "+" if i % 3 else "-"} for i in range(24)]
MORE = [
    {"text": " ".join(["line", *"abcde"[: i % 5], f"{i} seems {('fine', 'good', 'bad')[i % 3]}"])} for i in range(30)
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory, tokenizer) -> Path:
    """A pretrained encoder, a teacher of the same tokenizer whose answers are far from even, and rows."""
    home = tmp_path_factory.mktemp("taught")
    torch.manual_seed(0)
    BertForMaskedLM(BertConfig(**SMALL)).save_pretrained(home / "model")
    teacher = BertForSequenceClassification(BertConfig(**SMALL, id2label={0: "+", 1: "-"}, label2id={"+": 0, "-": 1}))
    optimizer = torch.optim.AdamW(teacher.parameters(), lr=3e-3)
    batch = tokenizer([row["text"] for row in MORE], padding=True, return_tensors="pt")
    for _ in range(60):  # it tells long lines from short ones
        optimizer.zero_grad()
        teacher(**batch, labels=torch.arange(30) % 4 // 2).loss.backward()
        optimizer.step()
    teacher.save_pretrained(home / "teacher")
    for name in ("model", "teacher"):
        tokenizer.save_pretrained(home / name)
    words: Any = Words.fit(SINGLE, [(row["text"],) for row in FEW[:18]], [row["label"] == "-" for row in FEW[:18]])
    words.weights = np.array([1.0, 3.0])
    words.save(home / "teacher" / WORDS)
    (home / "teacher" / "task.json").write_text(json.dumps({"name": "classification", "words": True}))
    for name, rows in {"few": FEW[:18], "held": FEW[18:], "more": MORE}.items():
        (home / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return home


def by_hand(folder: Path, tokenizer) -> list[int]:
    """Labels of MORE as numbers: the higher product of both probabilities, that of the words counted as three."""
    model = AutoModelForSequenceClassification.from_pretrained(folder / "teacher").eval()
    few = [row["text"] for row in FEW[:18]]
    first = TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True).fit(few)
    second = TfidfVectorizer(analyzer="char_wb", ngram_range=(3, 5), sublinear_tf=True).fit(few)

    def described(texts: list[str]) -> Any:
        return hstack([first.transform(texts), second.transform(texts)], format="csr")

    features = described(few)
    how = {"C": 10, "max_iter": 1000, "solver": "saga", "tol": 1e-3, "random_state": 0}
    words = LogisticRegression(**how).fit(features, [row["label"] for row in FEW[:18]])
    labels, alone = [], []
    for row in MORE:
        with torch.no_grad():
            logits = model(**tokenizer(row["text"], return_tensors="pt")).logits
        both = logits.softmax(-1).numpy() * words.predict_proba(described([row["text"]])) ** 3
        labels.append(int(both.argmax()))
        alone.append(int(logits.argmax()))
    assert 5 < sum(labels) < 25 and 5 < sum(alone) < 25 and labels != alone, "each of the two decides some"
    return labels


def test_a_label_is_that_of_the_highest_product_of_both_probabilities(folder, tokenizer, tmp_path):
    _, reading = load_base(model=str(folder / "teacher"))  # as texts are read for tasks
    texts = [(row["text"],) for row in MORE]
    found, how = label_texts(texts, teacher=str(folder / "teacher"), label_names=["+", "-"])
    assert found == by_hand(folder, reading) and how == "--teacher and the bag of words beside it"
    # The order of the labels is that of the rows, not of the teacher.
    other, _ = label_texts(texts, teacher=str(folder / "teacher"), label_names=["-", "+"])
    assert other == [1 - label for label in found]
    shutil.copytree(folder / "teacher", tmp_path / "alone")
    (tmp_path / "alone" / "task.json").unlink()  # a classifier of others
    alone, how = label_texts(texts, teacher=str(tmp_path / "alone"), label_names=["+", "-"])
    assert alone != found and how == "--teacher"
    with pytest.raises(
        InputError, match="beside --teacher learned from 1 of a row's texts, and are given 2: see --text_p"
    ):
        label_texts([("a", "b")], teacher=str(folder / "teacher"), label_names=["+", "-"])
    config = json.loads((tmp_path / "alone" / "config.json").read_text())
    del config["architectures"]
    (tmp_path / "alone" / "config.json").write_text(json.dumps(config))
    with pytest.raises(InputError, match=r"^--teacher .*: name a classifier; heads are \(classification"):
        label_texts(texts, teacher=str(tmp_path / "alone"), label_names=["+", "-"])


def test_a_text_is_learned_with_its_own_label(folder, tokenizer):
    _, reading = load_base(model=str(folder / "model"))
    options = ClassificationArguments(
        train_file="few.jsonl", unlabelled_file="more.jsonl", teacher=str(folder / "teacher"), token_dropout=0.0
    )
    work = Classification(options, train_rows=FEW[:18], eval_rows=FEW[18:], unlabelled_rows=MORE, tokenizer=reading)
    learned = [work.example(number, number) for number in range(work.num_examples)]
    texts = [reading.decode(example["input_ids"], skip_special_tokens=True).strip() for example in learned]
    assert texts == [row["text"] for row in [*FEW[:18], *MORE]]
    labels = [example["labels"] for example in learned]
    assert labels == [int(row["label"] == "-") for row in FEW[:18]] + by_hand(folder, reading)


def options_of(folder: Path, output: Path, *more: object) -> list[str]:
    given = ["--model", folder / "model", "--train_file", folder / "few.jsonl", "--eval_file", folder / "held.jsonl"]
    given += ["--max_steps", 2, "--batch_size", 8, "--mixed_precision", "no", "--output_dir", output, *more]
    return [*map(str, given)]


def test_the_student_learns_from_both_and_is_judged_as_without(folder, tokenizer, tmp_path, capsys):
    extra = [{"text": FEW[0]["text"]}, {"text": FEW[20]["text"]}, MORE[0]]  # labelled, held out, twice
    more = tmp_path / "more.txt"
    more.write_text("".join(row["text"] + "\n" for row in [*MORE, *extra]))
    taught = ["--unlabelled_file", more, "--teacher", folder / "teacher"]
    finetune_classification.main(options_of(folder, tmp_path / "with", *taught, "--save_steps", 1))
    said = capsys.readouterr().out
    assert "30 texts of --unlabelled_file" in said and "3 left out" in said
    recorded = json.loads((tmp_path / "with" / "run.json").read_text())["task"]["pseudo_labels"]
    assert recorded.startswith("30 texts, ") and recorded in (tmp_path / "with" / "README.md").read_text()
    assert "48 examples to train on, 6 held out" in said
    ones = sum(by_hand(folder, load_base(model=str(folder / "teacher"))[1])) + 6
    assert f"+ {48 - ones} ({(48 - ones) / 48:.1%}), - {ones} " in said
    finetune_classification.main(options_of(folder, tmp_path / "without"))
    results = [json.loads((tmp_path / name / "results.json").read_text()) for name in ("with", "without")]
    beside = [
        {name: value for name, value in each.items() if name.startswith(("baseline_", "words_"))} for each in results
    ]
    assert beside[0] == beside[1] and beside[0], "baselines know the labelled rows alone"
    assert results[0]["eval_loss"] != results[1]["eval_loss"]


def test_a_run_is_resumed_with_the_same_labels_only(folder, tmp_path):
    taught = ["--unlabelled_file", folder / "more.jsonl", "--teacher", folder / "teacher", "--save_steps", 1]
    options = options_of(folder, tmp_path / "run", *taught)
    finetune_classification.main(options)
    model = BertForSequenceClassification.from_pretrained(folder / "teacher")
    before = model.classifier.weight.data.clone()
    try:
        model.classifier.weight.data.neg_()
        model.save_pretrained(folder / "teacher")
        options[options.index("--max_steps") + 1] = "3"
        with pytest.raises(InputError, match=r"--resume: .*pseudo_labels is .* and was "):
            finetune_classification.main([*options, "--resume"])
    finally:
        model.classifier.weight.data.copy_(before)
        model.save_pretrained(folder / "teacher")
    finetune_classification.main([*options, "--resume"])
    few = ["--max_length", "20", "--resume"]
    with pytest.raises(InputError, match=r": task.max_length is 20 and was None. Resume"):
        finetune_classification.main([*options, *few])


def test_the_text_of_a_table_without_labels_is_found_and_said(folder, tmp_path, capsys):
    more = tmp_path / "more.csv"
    taught = ["--unlabelled_file", more, "--teacher", folder / "teacher", "--dry_run"]
    asked = options_of(folder, tmp_path / "out", *taught)
    more.write_text("number,review\n" + "".join(f"{number},{row['text']}\n" for number, row in enumerate(MORE)))
    finetune_classification.main(asked)
    assert "--unlabelled_file: the text is in the column 'review'" in capsys.readouterr().out
    more.write_text("one,other\n" + "".join(f"a title,{row['text']}\n" for row in MORE))
    with pytest.raises(InputError, match=r"which column .* Call it 'text', as in --train_file"):
        finetune_classification.main(asked)


def test_a_folder_that_is_taken_is_refused_before_the_teacher_is_asked(folder, tmp_path):
    (tmp_path / "run.json").write_text("{}")
    asked = ["--unlabelled_file", folder / "more.jsonl", "--teacher", "/nowhere"]
    with pytest.raises(InputError, match="already holds a run"):
        finetune_classification.main(options_of(folder, tmp_path, *asked))


def test_a_teacher_that_gives_several_labels_and_half_a_character_are_refused(folder, tmp_path):
    several = BertForSequenceClassification.from_pretrained(
        folder / "teacher", problem_type="multi_label_classification"
    )
    several.save_pretrained(tmp_path / "several")
    AutoTokenizer.from_pretrained(folder / "teacher").save_pretrained(tmp_path / "several")
    options = options_of(folder, tmp_path / "out", "--unlabelled_file", folder / "more.jsonl", "--teacher")
    with pytest.raises(InputError, match="several does not give one label a text"):
        finetune_classification.main([*options, str(tmp_path / "several")])
    several.config.problem_type, several.config.id2label = None, {0: "yes", 1: "no"}
    several.save_pretrained(tmp_path / "several")
    with pytest.raises(InputError, match=r"several has the labels no, yes, and the training rows have \+, -: name"):
        finetune_classification.main([*options, str(tmp_path / "several")])
    (tmp_path / "half.jsonl").write_text('{"text": "\\ud800 alone"}\n')
    options[options.index("--unlabelled_file") + 1] = str(tmp_path / "half.jsonl")
    with pytest.raises(InputError, match=r"half.jsonl:1: column 'text' holds '\\ud800', which is half a character"):
        finetune_classification.main([*options, str(folder / "teacher")])


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["--teacher", "{teacher}"], "--unlabelled_file and --teacher belong together"),
        (["--unlabelled_file", "{more}"], "--unlabelled_file and --teacher belong together"),
        (["--unlabelled_file", "{more}", "--teacher", "{model}"], "does not give one label a text: name a class"),
        (["--unlabelled_file", "{held}", "--teacher", "{teacher}"], "no text that is not among the labelled rows"),
        (
            ["--unlabelled_file", "{more}", "--teacher", "{teacher}", "--problem_type", "multi_label_classification"]
            + ["--label_separator", "|"],
            "one label a text, and this is multi_label",
        ),
        (["--unlabelled_file", "{more}", "--teacher", "/nowhere"], "--teacher: there is no folder"),
        (["--unlabelled_file", "{empty}", "--teacher", "{teacher}"], "empty.txt has no text: name a file"),
    ],
)
def test_what_cannot_be_is_refused(folder, tmp_path, given, said):
    names = {"teacher": folder / "teacher", "model": folder / "model"}
    names |= {"more": folder / "more.jsonl", "held": folder / "held.jsonl", "empty": folder / "empty.txt"}
    names["empty"].touch()
    with pytest.raises(InputError) as caught:
        finetune_classification.main(options_of(folder, tmp_path / "out", *[word.format(**names) for word in given]))
    assert said in str(caught.value)
