"""Classification: columns and labels, batches, records that can be split, learning, and messages for bad input."""

import copy
import dataclasses
import json
import math
from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional as F
from transformers import BertConfig, GPT2Config

from lacuna.common.errors import InputError
from lacuna.tasks.base.rows import as_rows, stratified_split
from lacuna.tasks.classification.reader import CLASSIFICATION, ClassificationArguments
from lacuna.tasks.classification.task import Classification


@dataclasses.dataclass
class Record:
    """What `corpus.read_records` gives."""

    fields: dict[str, Any]
    path: str
    line: int


ROWS = [
    {"text": f"{word} number {i}", "label": label}
    for i in range(8)
    for label, word in (("fox", "quick"), ("dog", "lazy"))
]


def records(rows: list[dict[str, Any]], path: str = "rows.tsv") -> list[Record]:
    return [Record(fields=row, path=path, line=line) for line, row in enumerate(rows, start=2)]


def task(tokenizer, rows=ROWS, eval_rows=(), seed=0, **options) -> Classification:
    asked = ClassificationArguments(**options)
    return Classification(asked, train_rows=rows, eval_rows=eval_rows, tokenizer=tokenizer, seed=seed)


# Columns


@pytest.mark.parametrize(
    ("columns", "expected"),
    [
        ({"sentence": "x y", "label": 1}, ("sentence", None, "label")),
        ({"idx": 3, "sentence1": "x", "sentence2": "y", "label": "a"}, ("sentence1", "sentence2", "label")),
        ({"sentence_B": "y", "sentence_A": "x", "label": "a"}, ("sentence_A", "sentence_B", "label")),
        ({"premise": "x", "hypothesis": "y", "gold_label": "a"}, ("premise", "hypothesis", "gold_label")),
        ({"name": "x", "utterance": "a much longer text", "class": "b"}, ("utterance", None, "class")),
        ({"phrase": "some words", "mood": "+"}, ("phrase", None, "mood")),
    ],
)
def test_columns_are_inferred(columns, expected):
    assert (*CLASSIFICATION.find(as_rows([columns], part="training")).values(),) == expected


def test_given_columns_win(tokenizer):
    rows = [{"text": "one", "body": f"two {i}", "label": "a", "mood": "pq"[i % 2]} for i in range(10)]
    work = task(tokenizer, rows, text_column="body", label_column="mood")
    assert (work.text_column, work.text_pair_column, work.label_column) == ("body", None, "mood")
    assert work.label_names == ["p", "q"]
    assert "inferred" not in work.notes[0]
    assert "inferred" in task(tokenizer).notes[0]


def test_columns_that_cannot_be_told_apart():
    with pytest.raises(InputError, match=r"which column of \['text', 'a', 'b'\] holds the label.*--label_column"):
        CLASSIFICATION.find(as_rows([{"text": "x", "a": 1, "b": 2}], part="training"))
    with pytest.raises(
        InputError, match=r"hold the text and the label\? Name them with --text_column and --label_column"
    ):
        CLASSIFICATION.find(as_rows([{"a": 1, "b": 2}], part="training"))


# Labels


def test_labels_are_sorted_names(tokenizer):
    assert task(tokenizer).label_names == ["dog", "fox"]
    rows = [{"text": "x", "label": label} for label in (10, 9, 2, 10.0, "9 ", "2")]
    assert task(tokenizer, rows).label_names == ["2", "9", "10"]


def test_given_label_names_decide_the_order(tokenizer):
    work = task(tokenizer, label_names=["fox", "wolf", "dog"])
    assert work.label_names == ["fox", "wolf", "dog"]
    assert {work.example(row, 0)["labels"] for row in range(work.num_examples)} == {0, 2}


def test_names_for_numbered_labels(tokenizer):
    rows = [{"text": f"x {i}", "label": str(i % 2)} for i in range(10)]
    work = task(tokenizer, rows, label_names=["negative", "positive"])
    assert work.label_names == ["negative", "positive"]
    assert sorted(work.example(row, 0)["labels"] for row in range(work.num_examples)) == [0] * 4 + [1] * 4
    assert any("0 is negative" in note for note in work.notes)


# Held-out part


def test_split_is_stratified_and_seeded():
    labels = [0] * 100 + [1] * 20 + [2] * 2 + [3]
    train, held_out = stratified_split(labels=labels, fraction=0.1, seed=1)
    assert sorted(train + held_out) == list(range(len(labels)))
    assert Counter(labels[i] for i in held_out) == {0: 10, 1: 2, 2: 1}
    assert stratified_split(labels=labels, fraction=0.1, seed=1) == (train, held_out)
    assert stratified_split(labels=labels, fraction=0.1, seed=2)[1] != held_out
    assert train == sorted(train)


def test_no_row_is_on_both_sides(tokenizer):
    work = task(tokenizer, eval_fraction=0.25, seed=3)
    assert (work.num_examples, work.num_eval_examples) == (12, 4)
    seen = {tuple(work.example(row, 0)["input_ids"]) for row in range(12)}
    assert not seen & {tuple(work.eval_example(row)["input_ids"]) for row in range(4)}


# Batches


def test_batch_equals_the_tokenizers_own_padding(tokenizer):
    rows = [{"sentence1": "the fox " * (3 * i + 1), "sentence2": "a dog", "label": i % 2} for i in range(6)]
    work = task(tokenizer, rows, eval_rows=rows, max_length=32, token_dropout=0)
    batch = work.collate([work.example(row, 7) for row in range(6)])
    texts, pairs = [row["sentence1"] for row in rows], [row["sentence2"] for row in rows]
    expected = tokenizer(
        texts, pairs, truncation=True, max_length=32, pad_to_multiple_of=16, padding=True, return_tensors="pt"
    )
    assert set(batch) == {*expected, "labels"}
    for name, value in expected.items():
        assert torch.equal(batch[name], value), name
    assert batch["labels"].tolist() == [0, 1, 0, 1, 0, 1]
    assert any("are cut to --max_length 32" in note for note in work.notes)


def test_padding_side_of_the_tokenizer_is_kept(tokenizer):
    left = copy.deepcopy(tokenizer)
    left.padding_side = "left"
    rows = [{"text": text, "label": label} for text in ("a", "the quick fox") for label in ("x", "y")]
    work = task(left, rows, eval_rows=rows, token_dropout=0)
    batch = work.collate([work.example(i, 0) for i in (0, 2)])
    expected = left(["a", "the quick fox"], padding=True, pad_to_multiple_of=4, return_tensors="pt")
    for name, value in expected.items():
        assert torch.equal(batch[name], value), name


# Loss and records


def test_loss_adds_up_over_micro_batches(tokenizer, small_model):
    work, model = task(tokenizer, eval_rows=ROWS[:2]), small_model(num_labels=2).eval()
    whole = work.collate([work.example(row, row) for row in range(16)])
    halves = [work.collate([work.example(row, row) for row in part]) for part in (range(5), range(5, 16))]
    targets = {"examples": torch.tensor(sum(work.count_targets(half)["examples"] for half in halves))}
    assert targets["examples"] == work.count_targets(whole)["examples"] == 16
    loss, extra = work.loss(model, whole, targets)
    parts = [work.loss(model, half, targets) for half in halves]
    assert loss.item() == pytest.approx(sum(part[0].item() for part in parts), rel=1e-5)
    assert float(extra["accuracy"]) == pytest.approx(sum(float(part[1]["accuracy"]) for part in parts))
    inputs = {name: whole[name] for name in ("input_ids", "attention_mask", "token_type_ids")}
    assert loss.item() == pytest.approx(model(**inputs, labels=whole["labels"]).loss.item(), rel=1e-5)


def test_tokens_are_hidden_in_training_alone_by_the_number_of_the_sample(tokenizer):
    """A fifth of them, none special, others each time; none held out, at 0, of many rows, or without a mask token."""

    def seen(work, epoch=0):
        return np.stack([work.example(row, 200 * epoch + row)["input_ids"] for row in range(200)])

    rows = [{"text": "the quick brown fox jumps over the lazy dog", "label": str(row % 2)} for row in range(200)]
    without = copy.deepcopy(tokenizer)
    without.mask_token = None
    masked, causal = BertConfig(architectures=["BertForMaskedLM"]), GPT2Config(architectures=["GPT2LMHeadModel"])

    def made(kind=tokenizer, config=masked, rows=rows, **options) -> Classification:
        asked = ClassificationArguments(**options)
        return Classification(asked, train_rows=rows, eval_rows=rows[:2], tokenizer=kind, config=config, seed=0)

    work, plain, unmasked = made(), made(token_dropout=0.0), made(without)
    assert (work.settings()["token_dropout"], plain.settings()["token_dropout"]) == (0.2, 0)
    assert any("--token_dropout" in note for note in work.notes) and made(token_dropout=0.1).token_dropout == 0.1
    first, whole = seen(work), seen(plain)
    assert np.array_equal(first, seen(work)) and not np.array_equal(first, seen(work, epoch=1))
    changed, special = first != whole, np.isin(whole, tokenizer.all_special_ids)
    assert set(first[changed].tolist()) == {tokenizer.mask_token_id} and first.dtype == whole.dtype
    assert not changed[special].any() and changed[~special].mean() == pytest.approx(0.2, abs=0.03)
    assert np.array_equal(work.eval_example(0)["input_ids"], whole[0]) and np.array_equal(seen(unmasked), whole)
    assert made(config=causal).token_dropout == 0  # has not learned what the mask stands for
    assert made(rows=rows * 15).token_dropout == 0.2
    assert made(rows=[*rows * 15, rows[0]]).token_dropout == 0  # enough not to be learned by heart


def test_records_of_two_halves_give_the_same_summary(tokenizer, small_model, evaluate):
    work, model = task(tokenizer, eval_rows=ROWS[:11]), small_model(num_labels=2)
    whole = work.summarize(evaluate(model=model, work=work))
    readable = work.predictions()
    odd = evaluate(model=model, work=work, rows=range(1, 11, 2), batch_size=2)
    even = evaluate(model=model, work=work, rows=range(0, 11, 2), batch_size=3)
    assert work.summarize(odd + even) == pytest.approx(whole, rel=1e-5)
    assert [row["text"] for row in work.predictions()] == [row["text"] for row in readable]
    assert all(len(json.dumps(record)) < 200 for record in odd)
    lengths = [len(work.eval_example(row)["input_ids"]) for row in range(11)]
    assert lengths == sorted(lengths)  # neighbours share a batch, so padding is small; the data's order comes back
    assert [row["text"] for row in readable] == [row["text"] for row in ROWS[:11]]


def test_summary_equals_a_direct_computation(tokenizer, small_model, evaluate):
    work, model = task(tokenizer, eval_rows=ROWS[:7]), small_model(num_labels=2)
    summary = work.summarize(evaluate(model=model, work=work))
    batch = tokenizer([row["text"] for row in ROWS[:7]], padding=True, return_tensors="pt")
    labels = torch.tensor([work.label_names.index(row["label"]) for row in ROWS[:7]])
    with torch.no_grad():
        logits = model(**batch).logits
    assert summary["loss"] == pytest.approx(float(F.cross_entropy(logits, labels)), rel=1e-5)
    assert summary["accuracy"] == pytest.approx(float((logits.argmax(-1) == labels).float().mean()))
    assert work.records[0].keys() == {"row", "label", "prediction", "probability", "loss", "log_probabilities"}
    assert set(summary) == {"loss", "accuracy", "f1_macro", "f1_micro", "matthews_correlation"}
    assert work.metric in summary


def test_baseline_is_the_majority_of_the_training_part(tokenizer):
    train = [{"text": "x", "label": label} for label in "aaab"]
    held_out = [{"text": "x", "label": label} for label in "abbbb"]
    found = task(tokenizer, train, eval_rows=held_out).baseline()
    assert found["accuracy"] == 0.2
    assert found["matthews_correlation"] == 0.0
    # (3 + 1) / 6 for a, (1 + 1) / 6 for b
    assert found["loss"] == pytest.approx(-(math.log(4 / 6) + 4 * math.log(2 / 6)) / 5)


def test_a_small_model_learns_32_rows_by_heart(tokenizer, small_model, fit, evaluate):
    generator = torch.Generator().manual_seed(0)
    letters = torch.randint(97, 123, (32, 12), generator=generator)
    rows = [{"text": "".join(map(chr, row.tolist())), "label": "abcd"[i % 4]} for i, row in enumerate(letters)]
    work, model = task(tokenizer, rows, eval_rows=rows, token_dropout=0), small_model(num_labels=4, hidden=64)
    assert fit(model=model, work=work, steps=80) < 0.1
    summary = work.summarize(evaluate(model=model, work=work))
    assert summary["accuracy"] == 1.0 and summary["f1_macro"] == 1.0 and summary["matthews_correlation"] == 1.0
    assert summary["loss"] < 0.1 < work.baseline()["loss"]

    lines = work.predictions()
    assert [line["text"] for line in lines] == [row["text"] for row in rows]
    assert [line["gold"] for line in lines] == [line["prediction"] for line in lines] == [r["label"] for r in rows]
    assert all(line["correct"] and 0.5 < line["probability"] <= 1 for line in lines)
    assert work.mistakes(lines) == []


# Several labels a row

TOPICS = [
    {
        "text": f"text {i} " + " ".join("ABC"[k] * 3 for k in range(3) if i >> k & 1),
        "labels": [f"t{k}" for k in range(3) if i >> k & 1],
    }
    for i in [*range(8)] * 4
]


def test_several_labels_are_learnt(tokenizer, small_model, fit, evaluate):
    work, model = task(tokenizer, TOPICS, eval_rows=TOPICS), small_model(num_labels=3, hidden=64)
    assert (work.problem_type, work.metric, work.label_names) == (
        "multi_label_classification", "f1_micro", ["t0", "t1", "t2"]
    )  # fmt: skip
    assert any("4 of 32 training rows have no label at all" in note for note in work.notes)
    batch = work.collate([work.example(row, 0) for row in (0, 5, 7)])
    assert batch["labels"].tolist() == [[0, 0, 0], [1, 0, 1], [1, 1, 1]] and batch["labels"].dtype == torch.float32
    targets = {"examples": torch.tensor(3)}
    model.config.problem_type = work.problem_type
    inputs = {name: batch[name] for name in ("input_ids", "attention_mask", "token_type_ids", "labels")}
    assert work.loss(model.eval(), batch, targets)[0].item() == pytest.approx(model(**inputs).loss.item(), rel=1e-5)

    assert fit(model=model, work=work, steps=60) < 0.1
    summary = work.summarize(evaluate(model=model, work=work))
    assert summary["subset_accuracy"] == summary["f1_macro"] == summary["f1_samples"] == 1.0
    baseline = work.baseline()
    assert set(baseline) == set(summary) and summary["loss"] < baseline["loss"] == pytest.approx(math.log(2), rel=0.01)
    # always all three: precision 1/2, recall 1; the empty set is the most frequent one with the others
    assert baseline["f1_micro"] == pytest.approx(2 / 3) and baseline["subset_accuracy"] == 1 / 8
    first, last = work.predictions()[0], work.predictions()[7]
    assert first["gold"] == first["prediction"] == [] and first["correct"]
    assert list(first["probabilities"]) == list(last["probabilities"]) == last["gold"] == ["t0", "t1", "t2"]
    for row in work.predictions():  # each label is as probable as it is, the set as the product
        chances = [p if name in row["prediction"] else 1 - p for name, p in row["probabilities"].items()]
        assert row["probability"] == pytest.approx(math.prod(chances), abs=1e-5) and min(chances) > 0.5
    assert "product" in work.probability_note
    assert [row[0] for row in work.tables()["By label"].rows] == ["t0", "t1", "t2"]
    assert work.settings()["threshold"] == 0.5
    json.dumps([work.settings(), work.records, work.predictions()])


def test_hold_out_of_several_labels_keeps_the_rare_ones_apart(tokenizer):
    rows = [{"text": f"x {i}", "labels": ["often"] + ["rare"] * (i < 10)} for i in range(100)]
    work = task(tokenizer, rows, eval_fraction=0.2)
    held_out = [work.eval_example(row)["labels"] for row in range(work.num_eval_examples)]
    assert len(held_out) == 20 and sum(len(labels) == 2 for labels in held_out) == 2
    assert work.balance() == {"often": 80, "rare": 8}
    said = "\n".join(work.describe())
    assert "training examples, each with any number of labels: often 80 (100.0%), rare 8 (10.0%)" in said
    assert (
        "fewer than 5 rows are held out of 1 of 2 labels, whose own scores say little: rare 2 (8 in training" in said
    )


# Numbers


def test_numbers_are_learnt_on_their_scale(tokenizer, small_model, fit, evaluate):
    rows = [{"sentence1": "word " * (i % 5), "sentence2": "other", "score": str(i % 5 / 2)} for i in range(20)]
    rows = [{**row, "sentence1": row["sentence1"] or "none"} for row in rows]
    work, model = task(tokenizer, rows, eval_rows=rows), small_model(num_labels=1, hidden=64)
    assert (work.text_pair_column, work.label_column, work.problem_type) == ("sentence2", "score", "regression")
    assert "numbers from 0 to 2, mean 1" in work.notes and work.label_names == ["score"]
    assert fit(model=model, work=work, steps=60) < 0.05
    summary = work.summarize(evaluate(model=model, work=work))
    assert summary["pearson"] > 0.95 and summary["spearman"] > 0.9 and summary["mean_absolute_error"] < 0.2
    baseline = work.baseline()
    assert (baseline["pearson"], baseline["loss"]) == (0.0, pytest.approx(0.5))  # variance of 0, .5, 1, 1.5, 2
    assert baseline["mean_absolute_error"] == pytest.approx(0.6)
    predictions = work.predictions()
    assert all(row["error"] == pytest.approx(row["prediction"] - row["gold"], abs=1e-5) for row in predictions)
    errors = [abs(row["error"]) for row in work.mistakes(predictions)]
    assert errors == sorted(errors, reverse=True) and len(errors) == 20
    assert work.settings()["mean"] == 1.0 and work.balance() == {}
    assert work.tables()["Predictions by the right number"].gold[:2] == [0.0, 0.5]


def test_numbers_far_from_a_heads_scale_are_told(tokenizer):
    rows = [{"text": "x", "label": 250000.5 + 1000 * i} for i in range(10)]
    assert any(
        "warning: an output begins near 0" in note and "'label' by 3e+05" in note
        for note in task(tokenizer, rows).notes
    )
    work = task(tokenizer, [{"text": f"x {i}", "label": i} for i in range(10)], problem_type="regression")
    assert work.num_eval_examples == 1 and work.num_examples == 9 and not any("warning" in note for note in work.notes)


# Weights of the labels


def test_balanced_weights_make_every_label_weigh_the_same(tokenizer, small_model):
    rows = [{"text": f"x {i}", "label": "a" if i < 9 else "b"} for i in range(12)]
    work = task(tokenizer, rows, eval_rows=rows[:1], class_weights="balanced")
    plain = task(tokenizer, rows, eval_rows=rows[:1])
    logits = torch.randn(12, 2, generator=torch.Generator().manual_seed(0))

    class Fixed(torch.nn.Module):
        def forward(self, **_):
            return type("Output", (), {"logits": logits})

    batch = work.collate([work.example(row, 0) for row in range(12)])
    targets = {"examples": torch.tensor(12)}
    losses = F.cross_entropy(logits, batch["labels"], reduction="none")
    expected = (losses[:9].mean() + losses[9:].mean()) / 2
    assert work.loss(Fixed(), batch, targets)[0].item() == pytest.approx(expected.item(), rel=1e-5)
    assert plain.loss(Fixed(), batch, targets)[0].item() == pytest.approx(losses.mean().item(), rel=1e-5)
    assert any("weights of the labels in training: a 0.667, b 2" in note for note in work.notes)
    several = task(tokenizer, TOPICS[:7], eval_rows=TOPICS[:1], class_weights="balanced")
    assert any("t0 1.33, t1 1.33, t2 1.33" in note for note in several.notes)


# What people are shown


def test_what_is_shown_before_training(tokenizer):
    work = task(tokenizer, eval_rows=ROWS[:3])
    said = "\n".join(work.describe(2))
    assert "text from column 'text', label from column 'label' (inferred" in said
    assert "column 'label' holds one label a row, single_label_classification (inferred; --problem_type" in said
    assert "label balance of the training examples: dog 8 (50.0%), fox 8 (50.0%)" in said
    assert "example 1:\n    label: fox\n        [CLS]quick number 0[SEP]" in said and "example 3" not in said
    assert "warning: 3 of 3 held-out rows are also in the training rows (are they the same file?)" in said
    plain = task(tokenizer).describe()
    assert not any("warning" in line for line in plain)
    assert "none of the training texts is cut to --max_length 256" in plain


def test_nothing_is_trained_that_cannot_be_evaluated(tokenizer):
    rows = [{"text": f"x {n}", "label": label} for n, label in enumerate("abc")]
    message = "training row 1: no label has two of the 3 training rows, so nothing can be held out.*--eval_file"
    with pytest.raises(InputError, match=message) as caught:
        task(tokenizer, rows)
    assert caught.value.exit_code == 2
    assert task(tokenizer, rows, eval_rows=rows[:1]).num_eval_examples == 1


def test_labels_that_differ_in_case_are_named(tokenizer):
    rows = [{"text": f"x {n}", "label": ("good", "GOOD", "bad")[n % 3]} for n in range(30)]
    (note,) = [note for note in task(tokenizer, rows).notes if "differ only in case or blanks" in note]
    assert note.startswith("warning") and note.endswith("'GOOD' and 'good'")
    several = [{"text": row["text"], "label": [row["label"]]} for row in rows]
    assert any("'GOOD' and 'good'" in note for note in task(tokenizer, several).notes)


def test_labels_that_are_hardly_held_out_are_named(tokenizer):
    rows = [{"text": f"x {i}", "label": "odd" if i == 7 else "ab"[i % 2]} for i in range(99)]
    (note,) = [note for note in task(tokenizer, rows).notes if note.startswith("fewer than 5 rows are held out")]
    assert "of 1 of 3 labels" in note and note.endswith("say little: odd 0 (1 in training)")
    held_out = [{"text": f"y {i}", "label": "a"} for i in range(9)]
    (note,) = [note for note in task(tokenizer, rows, eval_rows=held_out).notes if note.startswith("fewer than 5")]
    assert note.endswith("say little: b 0 (48 in training), odd 0 (1 in training)")
    assert not any("fewer than 5" in note for note in task(tokenizer, rows[:7] + rows[8:]).notes)


def test_a_tokenizer_that_does_not_part_two_texts_is_told(tokenizer):
    bare = copy.deepcopy(tokenizer)
    bare.backend_tokenizer.post_processor = None
    rows = [{"text1": f"x {i}", "text2": "y", "label": "ab"[i % 2]} for i in range(8)]
    assert any("puts no token between two texts" in note for note in task(bare, rows).notes)
    assert not any("puts no token" in note for note in [*task(tokenizer, rows).notes, *task(bare).notes])


# Bad input


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ({"text": "x"}, r"rows.tsv:18: no column 'label'; the columns there are \['text'\].*--label_column"),
        ({"label": "fox"}, r"rows.tsv:18: no column 'text'.*--text_column"),
        ({"text": "x", "label": None}, "rows.tsv:18: column 'label' has no label"),
        ({"text": "x", "label": " "}, "rows.tsv:18: column 'label' has no label"),
        ({"text": "x", "label": float("nan")}, "rows.tsv:18: column 'label' has no label"),
        ({"text": "x", "label": 0.5}, r"rows.tsv:18: column 'label' holds 0.5, not one label.*--problem_type"),
        ({"text": "x", "label": ["fox"]}, r"rows.tsv:2: column 'label' holds 'fox', and other rows hold lists"),
        ({"text": "  ", "label": "fox"}, "rows.tsv:18: column 'text' is empty"),
        ({"text": 3, "label": "fox"}, "rows.tsv:18: column 'text' holds 3, not text"),
    ],
)
def test_a_bad_row_is_named(tokenizer, bad, message):
    with pytest.raises(InputError, match=message) as caught:
        task(tokenizer, records([*ROWS, bad]), text_column="text", label_column="label")
    assert caught.value.exit_code == 2


def test_a_label_unknown_to_training_is_named(tokenizer):
    held_out = records([ROWS[0], {"text": "x", "label": "wolf"}], path="dev.tsv")
    with pytest.raises(InputError, match=r"dev.tsv:3: label 'wolf' .* \['dog', 'fox'\].*--label_names"):
        task(tokenizer, records(ROWS), eval_rows=held_out)


@pytest.mark.parametrize("label", [[[1], [0]], [0, {}], [1, 2], [1, 0, 0], [1, None], ["1", "0"], 1])
def test_a_row_without_zeros_and_ones_is_named(tokenizer, label):
    rows = records([{"text": f"fox {i}", "label": [i % 2, 1 - i % 2]} for i in range(6)])
    held_out = records([{"text": "fox", "label": label}], path="dev.jsonl")
    with pytest.raises(InputError, match=r"dev.jsonl:2: .*'label' holds .*, not 2 zeros and ones as the training"):
        task(tokenizer, rows, eval_rows=held_out)


@pytest.mark.parametrize(
    ("rows", "options", "message"),
    [
        ([], {}, "no training rows.*--train_file"),
        ([{"text": "x", "label": "a"}] * 3, {}, "every training row has the label 'a'"),
        ([{"text": "x", "label": i} for i in range(30)], {}, "30 different values in 30 rows.*--label_column"),
        (ROWS, {"text_column": "txt"}, r"no column 'txt'; the columns there are \['label', 'text'\].*--text_column"),
        (ROWS, {"label_names": ["fox", "fox", "dog"]}, "names a label twice"),
        (ROWS, {"label_names": ["fox", "cat"]}, r"label 'dog' .* not one of the labels \['fox', 'cat'\]"),
        ([{"text": "x", "label": "1.5"}] * 3, {}, "every training row has the number 1.5.*--label_column"),
        ([{"text": "x", "label": i / 2} for i in range(9)], {"label_names": ["a"]}, "which --label_names has no mean"),
        (
            [{"text": "x", "label": i / 2} for i in range(9)],
            {"class_weights": "balanced"},
            "which --class_weights bal",
        ),
        (ROWS, {"label_separator": "|", "problem_type": "regression"}, "--problem_type is regression"),
        (ROWS, {"problem_type": "regression"}, "row 1: column 'label' holds 'fox', not a finite number"),
        (ROWS, {"problem_type": "multi_label_classification"}, "'fox', not a list of labels.*--label_separator"),
    ],
)
def test_bad_rows_as_a_whole(tokenizer, rows, options, message):
    with pytest.raises(InputError, match=message):
        task(tokenizer, rows, **options)


# Real data


def test_sst2(tokenizer, shared_data, small_model, evaluate):
    parts = {}
    for part, count in (("train", 300), ("dev", 100)):
        lines = (shared_data / "sst2" / f"{part}.tsv").read_text(encoding="utf-8").splitlines()[: count + 1]
        header = lines[0].split("\t")
        parts[part] = records([dict(zip(header, line.split("\t"), strict=True)) for line in lines[1:]])
    work = task(tokenizer, parts["train"], eval_rows=parts["dev"], max_length=64)
    assert (work.text_column, work.label_column, work.label_names) == ("sentence", "label", ["0", "1"])
    majority = Counter(record.fields["label"] for record in parts["train"]).most_common(1)[0][0]
    share = sum(record.fields["label"] == majority for record in parts["dev"]) / 100
    assert work.baseline()["accuracy"] == pytest.approx(share)
    summary = work.summarize(evaluate(model=small_model(num_labels=2), work=work, batch_size=50))
    assert 0 <= summary["accuracy"] <= 1 and len(work.predictions()) == 100
