"""Multiple choice: columns, labels of every kind, batches of different counts, loss, learning, bad input."""

import copy
import dataclasses
import json
from typing import Any

import pytest
import torch
from torch.nn import functional as F
from transformers import BertConfig, BertForMultipleChoice

from lacuna.common.errors import InputError
from lacuna.modeling import LacunaConfig, LacunaForMultipleChoice
from lacuna.tasks.base.rows import as_rows
from lacuna.tasks.multiple_choice.task import (
    MULTIPLE_CHOICE,
    MultipleChoice,
    MultipleChoiceArguments,
    find_reading,
    numbered_columns,
    read_labels,
    read_problem,
)


@dataclasses.dataclass
class Record:
    """What `corpus.read_labelled` gives."""

    fields: dict[str, Any]
    path: str
    line: int


def records(rows: list[dict[str, Any]], path: str = "train.jsonl") -> list[Record]:
    return [Record(fields=row, path=path, line=line) for line, row in enumerate(rows, start=1)]


SWAG = {
    "video-id": "a1", "fold-ind": "3", "startphrase": "The dog runs. It", "sent1": "The dog runs.", "sent2": "It",
    "gold-source": "gold", "ending0": "barks.", "ending1": "reads.", "ending2": "flies away.", "ending3": "sings.",
    "label": "2",
}  # fmt: skip
ROWS = [
    {"question": f"what is {i}?", "choices": ["a fox", "a dog", "the river"][: 2 + i % 2], "label": i % 2}
    for i in range(8)
]


@pytest.fixture
def chooser():
    def make(*, hidden: int = 32) -> BertForMultipleChoice:
        torch.manual_seed(0)
        config = BertConfig(
            vocab_size=320,
            hidden_size=hidden,
            num_hidden_layers=2,
            num_attention_heads=2,
            intermediate_size=2 * hidden,
            hidden_dropout_prob=0.0,
            attention_probs_dropout_prob=0.0,
            initializer_range=0.2,
        )
        return BertForMultipleChoice(config)

    return make


def task(tokenizer, rows=ROWS, eval_rows=(), **options) -> MultipleChoice:
    asked = MultipleChoiceArguments(train_file="rows.jsonl", **options)
    return MultipleChoice(asked, train_rows=rows, eval_rows=eval_rows, tokenizer=tokenizer)


# Columns


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        (SWAG, ("sent1", "sent2", ["ending0", "ending1", "ending2", "ending3"], "label")),
        (
            {"startphrase": "x", "ending0": "a", "ending1": "b", "label": 0},
            ("startphrase", None, ["ending0", "ending1"], "label"),
        ),
        ({"id": 1, "question": "x", "choices": ["a"], "answer": 1}, (None, "question", ["choices"], "answer")),
        (
            {"article": "x", "question": "y", "options": ["a"], "answer": "A"},
            ("article", "question", ["options"], "answer"),
        ),
        ({"goal": "x", "sol1": "a", "sol2": "b", "label": 0}, (None, "goal", ["sol1", "sol2"], "label")),
        ({"ctx": "x", "endings": ["a"], "label": "1"}, ("ctx", None, ["endings"], "label")),
        (
            {"context": "x", "question": "y", "answerA": "a", "answerB": "b", "label": "1"},
            ("context", "question", ["answerA", "answerB"], "label"),
        ),
    ],
)
def test_columns_are_inferred(fields, expected):
    assert (*MULTIPLE_CHOICE.find(as_rows([fields], part="training")).values(),) == expected


def test_columns_that_are_named_win(tokenizer):
    rows = [{"question": "no", "story": f"yes {i}", "x": "a", "y": "b", "label": 1, "gold": 0} for i in range(4)]
    work = task(tokenizer, rows, context_column="story", choices_columns=["x", "y"], label_column="gold")
    assert list(work.columns.values()) == ["story", None, ["x", "y"], "gold"] and "inferred" not in work.notes[0]
    assert "inferred" in task(tokenizer).notes[0]
    assert numbered_columns(["choice10", "choice9", "choice1", "option1"]) == ["choice1", "choice9", "choice10"]
    assert numbered_columns(["choice1", "label"]) == []


def test_what_a_model_sees_of_swag(tokenizer):
    work = task(tokenizer, [SWAG, {**SWAG, "sent1": "The fox jumps."}], eval_rows=[SWAG])
    seen = [tokenizer.decode(row["input_ids"]) for row in work.example(0, 0)["choices"]]
    assert seen[2] == "[CLS]The dog runs.[SEP]It flies away.[SEP]"
    assert work.example(0, 0)["labels"] == 2
    assert work.show(work.example(0, 0))[2].startswith("* [CLS]The dog")


def test_columns_of_a_table_for_each_choice_are_names_and_no_row(tokenizer):
    swag = [Record(fields=row, path="swag.csv", line=line) for line, row in enumerate([SWAG, {**SWAG, "label": 1}], 2)]
    work = task(tokenizer, swag, eval_rows=swag[:1])
    assert work.columns["choices_columns"] == ["ending0", "ending1", "ending2", "ending3"]


# Labels


def problems(answers: list[Any], choices: Any = ("2", "3", "x"), **fields: Any) -> list[Any]:
    rows = [{"question": "q", "choices": choices, "label": answer, **fields} for answer in answers]
    rows = as_rows(records(rows), part="training")
    columns = MULTIPLE_CHOICE.find(rows)
    return [read_problem(row, columns) for row in rows]


@pytest.mark.parametrize(
    ("answers", "choices", "reading", "labels"),
    [
        ([0, 1, 2], ["a", "b", "c"], "a number from 0", [0, 1, 2]),
        (["1", "3"], ["a", "b", "c"], "a number from 1", [0, 2]),
        ([1.0, 0.0], ["a", "b", "c"], "a number from 0", [1, 0]),
        (["A", "c"], ["x", "y", "z"], "a letter", [0, 2]),
        (["y", "x"], ["x", "y", "z"], "the text of a choice", [1, 0]),
        (["2", "3", "x"], ["2", "3", "x"], "the text of a choice", [0, 1, 2]),
        (["B", "A"], {"text": ["x", "y"], "label": ["A", "B"]}, "the name of a choice", [1, 0]),
        (["1", "2"], {"text": ["x", "y"], "label": ["1", "2"]}, "the name of a choice", [0, 1]),
        (["B"], [{"text": "x", "label": "A"}, {"text": "y", "label": "B"}], "the name of a choice", [1]),
    ],
)
def test_labels_are_numbers_letters_names_or_texts(answers, choices, reading, labels):
    found = problems(answers, choices)
    assert find_reading(found) == reading
    assert read_labels(found, reading=reading) == labels


def test_a_label_that_is_none_is_named():
    found = problems([0, 1, 7], ["a", "b"])
    with pytest.raises(InputError, match=r"train.jsonl:3: label '7' is none of the 2 choices.*a number from 0"):
        read_labels(found, reading=find_reading(found))


# Batches and loss


def test_a_batch_is_padded_as_the_tokenizer_pads(tokenizer):
    work = task(tokenizer, eval_rows=ROWS)
    batch = work.collate([work.example(row, 0) for row in range(4)])
    pairs = [(row["question"], choice) for row in ROWS[:4] for choice in row["choices"]]
    expected = tokenizer(
        *map(list, zip(*pairs, strict=True)), padding=True, pad_to_multiple_of=16, return_tensors="pt"
    )
    for name, value in expected.items():
        assert torch.equal(batch[name], value), name
    assert batch["choices"].tolist() == [2, 3, 2, 3] and batch["labels"].tolist() == [0, 1, 0, 1]
    assert work.count_targets(batch) == {"examples": 4}
    assert work.lengths == [sum(len(tokenizer(r["question"], c)["input_ids"]) for c in r["choices"]) for r in ROWS]


@pytest.mark.parametrize("kind", ["bert", "encoder", "decoder"])
def test_loss_is_that_of_the_model(tokenizer, chooser, kind):
    """Of questions with as many choices; others are asked one by one."""
    model: Any = chooser().eval()
    if kind != "bert":
        family = {"encoder": "modernbert", "decoder": "qwen3"}[kind]
        torch.manual_seed(0)
        sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
        config = LacunaConfig.from_family(family, vocab_size=320, head_dim=16, initializer_range=0.2, **sizes)
        model = LacunaForMultipleChoice(config).eval()
    work = task(tokenizer, eval_rows=ROWS)
    for rows in ((0, 2, 4), (1, 3, 5)):
        batch = work.collate([work.example(row, 0) for row in rows])
        inputs = {name: value.view(3, -1, value.shape[-1]) for name, value in batch.items() if value.ndim == 2}
        if kind == "decoder":
            inputs.pop("token_type_ids")
            batch.pop("token_type_ids")
        expected = model(**inputs, labels=batch["labels"]).loss
        found = work.loss(model, batch, {"examples": torch.tensor(3)})[0]
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
    mixed = work.collate([work.example(row, 0) for row in range(4)])
    mixed.pop("token_type_ids")
    whole = work.loss(model, mixed, {"examples": torch.tensor(4)})[0]
    single = 0.0
    for row in range(4):
        example = work.example(row, 0)
        example |= {"choices": [{"input_ids": choice["input_ids"]} for choice in example["choices"]]}
        single += work.loss(model, work.collate([example]), {"examples": torch.tensor(4)})[0].item()
    assert whole.item() == pytest.approx(single, rel=1e-4)
    whole.backward()
    assert all(torch.isfinite(weight.grad).all() for weight in model.parameters() if weight.grad is not None)


def test_scores_of_fewer_choices_are_no_scores(tokenizer, chooser):
    work = task(tokenizer, eval_rows=ROWS)
    logits = work.logits(chooser().eval(), work.collate([work.example(row, 0) for row in range(2)]))
    assert logits.shape == (2, 3) and torch.isinf(logits).tolist() == [[False, False, True], [False] * 3]


def test_records_of_two_halves_give_the_same_summary(tokenizer, chooser, evaluate):
    work, model = task(tokenizer, eval_rows=ROWS[:7]), chooser()
    whole = work.summarize(evaluate(model=model, work=work))
    readable = work.predictions()
    odd, even = (evaluate(model=model, work=work, rows=range(start, 7, 2), batch_size=2) for start in (1, 0))
    assert work.summarize(odd + even) == pytest.approx(whole, rel=1e-4)
    assert [row["question"] for row in work.predictions()] == [row["question"] for row in ROWS[:7]]
    assert all(len(json.dumps(record)) < 300 for record in odd)
    for row in readable:
        assert sum(row["probabilities"]) == pytest.approx(1.0, abs=1e-4)
        assert row["probability"] == max(row["probabilities"]) and row["prediction"] in row["choices"]
    assert whole["accuracy"] == sum(row["correct"] for row in readable) / 7
    with torch.no_grad():
        nats = []
        for row in range(7):
            batch = work.collate([work.eval_example(row)])
            nats.append(F.cross_entropy(work.logits(model, batch), batch["labels"]).item())
    assert whole["loss"] == pytest.approx(sum(nats) / 7, rel=1e-4)


def test_a_small_model_learns_its_questions(tokenizer, chooser, fit, evaluate):
    rows = [
        {
            "context": f"{a} is",
            "choices": [f"{a} {a}", "q", "w z"][i % 3 :] + [f"{a} {a}", "q", "w z"][: i % 3],
            "label": -i % 3,
        }
        for i, a in enumerate("abcdefgh")
    ]
    work, model = task(tokenizer, rows, eval_rows=rows), chooser(hidden=64)
    assert any("8 of 8 held-out rows are also in the training rows" in note for note in work.notes)
    assert fit(model=model, work=work, steps=60, learning_rate=1e-3) < 0.1
    assert work.summarize(evaluate(model=model, work=work))["accuracy"] == 1.0
    table = work.tables()["By the place of the right choice"]
    assert [row[1:] for row in table.rows] == [[3, 3, 1.0], [2, 2, 1.0], [3, 3, 1.0]]


def test_baseline_is_the_better_of_two_guesses(tokenizer):
    rows = [{"question": f"{i}", "choices": ["a", "bb", "a"], "label": 0} for i in range(4)]
    held_out = [{"question": "x", "choices": ["a", "bb"], "label": label} for label in (0, 1, 1)]
    found = task(tokenizer, rows, eval_rows=held_out).baseline()
    assert found["accuracy"] == pytest.approx(2 / 3) and found["loss"] == pytest.approx(0.693147, rel=1e-5)


# Held-out part and what people are told


def test_what_people_are_told(tokenizer):
    work = task(
        tokenizer, [*ROWS, {"question": "fox " * 40, "choices": ["a", "b"], "label": 1}], eval_rows=ROWS, max_length=16
    )
    said = "\n".join(work.describe(1))
    assert "labels are read as a number from 0" in said and "5 questions with 2 choices, 4 questions with 3" in said
    assert "are cut to --max_length 16" in said
    assert json.dumps(work.settings()) and work.settings()["choices_columns"] == ["choices"]
    assert work.balance() == {"choice 0": 4, "choice 1": 5}
    assert "label balance of the training examples: choice 0 4 (44.4%), choice 1 5 (55.6%)" in said
    assert sum(line.startswith("example ") for line in work.describe(5)) == 5
    left = copy.deepcopy(tokenizer)
    left.padding_side = "left"
    assert task(left, eval_rows=ROWS).collate([work.example(0, 0)])["attention_mask"][0, -1] == 1


# Bad input


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ({"question": "x", "choices": ["a"], "label": 0}, "train.jsonl:9: 1 choice in"),
        ({"question": "x", "choices": ["a", ""], "label": 0}, "train.jsonl:9: choice 2 of 2 is ''"),
        ({"question": "x", "choices": ["a", None], "label": 0}, "train.jsonl:9: choice 2 of 2 is None"),
        ({"question": "x", "choices": 3, "label": 0}, "train.jsonl:9: column 'choices' holds 3, not a list"),
        ({"question": " ", "choices": ["a", "b"], "label": 0}, "train.jsonl:9: column 'question' is empty"),
        ({"question": "x", "choices": ["a", "b"]}, r"train.jsonl:9: no column 'label'.*--label_column"),
        ({"question": "x", "choices": ["a", "b"], "label": None}, "train.jsonl:9: column 'label' has no label"),
        ({"question": "x", "choices": ["a", "b"], "label": 2}, "train.jsonl:9: label '2' is none of the 2 choices"),
    ],
)
def test_a_bad_row_is_named(tokenizer, bad, message):
    with pytest.raises(InputError, match=message) as caught:
        task(tokenizer, records([*ROWS, bad]))
    assert caught.value.exit_code == 2


@pytest.mark.parametrize(
    ("rows", "options", "message"),
    [
        ([], {}, "no training rows.*--train_file"),
        (
            [{"question": "x", "label": 1}],
            {},
            r"which column of \['question', 'label'\] holds the choices.*--choices_columns",
        ),
        (
            [{"a": "x", "choices": ["a", "b"], "label": 1}],
            {},
            "which column of .* holds the question.*--question_column",
        ),
        ([{"question": "x", "choices": ["a", "b"]}], {}, "which column of .* holds the label.*--label_column"),
        (ROWS, {"context_column": "ctx"}, r"no column 'ctx'; the columns there are .*--context_column"),
    ],
)
def test_bad_rows_as_a_whole(tokenizer, rows, options, message):
    with pytest.raises(InputError, match=message):
        task(tokenizer, rows, **options)


def test_one_question_is_too_few(tokenizer):
    message = "training row 1: this is the only training question, so nothing can be held out"
    with pytest.raises(InputError, match=message):
        task(tokenizer, [{"question": "q", "option1": "a", "option2": "b", "label": 1}])


def test_a_table_may_leave_choices_out(tokenizer):
    rows = [
        {"question": f"{i}", "option1": "a", "option2": "b", "option3": "c" if i % 2 else "", "answer": "1"}
        for i in range(4)
    ]
    work = task(tokenizer, rows, eval_rows=rows)
    assert [len(work.example(row, 0)["choices"]) for row in range(4)] == [2, 3, 2, 3]
