"""Classification: one text, or a pair of texts, gets one label out of several."""

import math
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tasks.errors import TaskError
from tasks.features import by_length, model_inputs, pad_inputs, tokenizer_inputs
from tasks.metrics import classification_metrics
from tasks.rows import Row, as_rows, columns_of, write_predictions

# Names that public data sets give their columns, best guess first; a second text only counts beside its first.
LABEL_COLUMNS = ("label", "labels", "target", "class", "category", "sentiment", "gold_label", "y")
PAIR_COLUMNS = {
    "sentence1": "sentence2",
    "text1": "text2",
    "text_a": "text_b",
    "premise": "hypothesis",
    "question1": "question2",
    "question": "sentence",
    "text": "text_pair",
}
TEXT_COLUMNS = (
    "text", "sentence", "sentence1", "premise", "question1", "text1", "text_a", "content", "review", "document",
    "body", "comment", "tweet", "message", "question", "title",
)  # fmt: skip
_TOKENIZE_AT_ONCE = 1000


def guess_columns(
    rows: Sequence[Row], *, text: str | None = None, pair: str | None = None, label: str | None = None
) -> tuple[str, str | None, str]:
    """The columns of the text, its second text (or None) and the label; those not given are guessed.

    A guess goes by name, then by content: the longest text is the text, the one column left is the label. A second
    text is guessed only where the first is.

    Raises:
        TaskError: a given column is not there, or nothing looks like a text or a label.
    """
    columns, sample = columns_of(rows), rows[:200]
    for option, given in (("--text_column", text), ("--text_pair_column", pair), ("--label_column", label)):
        if given is not None:
            rows[0].value(given, option=option)
    if label is None:
        label = next((name for name in LABEL_COLUMNS if name in columns and name not in (text, pair)), None)
    if text is None:
        texts = [
            column
            for column in columns
            if column not in (pair, label) and all(isinstance(row.fields.get(column), str) for row in sample)
        ]
        if not texts:
            raise TaskError(f"{rows[0].where}: no column of {columns} holds text: name one with --text_column")
        named = [name for name in PAIR_COLUMNS if name in texts and PAIR_COLUMNS[name] in texts]
        named += [name for name in TEXT_COLUMNS if name in texts]
        longest = max(texts, key=lambda column: sum(len(row.fields[column]) for row in sample))
        text = named[0] if named else longest
        if pair is None and PAIR_COLUMNS.get(text) in texts:
            pair = PAIR_COLUMNS[text]
    if label is None:
        others = [column for column in columns if column not in (text, pair)]
        if len(others) != 1:
            raise TaskError(f"{rows[0].where}: which column of {columns} is the label? Name it with --label_column")
        label = others[0]
    return text, pair, label


def label_name(row: Row, column: str) -> str:
    """The label of a row as a name: numbers as they are written, blanks around it removed.

    Raises:
        TaskError: the label is missing, is a list, or is a fraction (a regression target).
    """
    value = row.value(column, option="--label_column")
    if isinstance(value, float) and math.isfinite(value) and value.is_integer():
        value = int(value)
    if value is None or (isinstance(value, float) and math.isnan(value)) or not str(value).strip():
        raise TaskError(f"{row.where}: column '{column}' has no label: remove the row or label it")
    if not isinstance(value, str | int):
        raise TaskError(
            f"{row.where}: column '{column}' holds {value!r}, not one label: "
            "lists of labels and fractions are not supported; name another column with --label_column"
        )
    return str(value).strip()


def _is_number(name: str) -> bool:
    return name.removeprefix("-").isdecimal()


def sorted_names(names: set[str]) -> list[str]:
    """Label names in order: as numbers when all are numbers, else as text."""
    if all(_is_number(name) for name in names):
        return sorted(names, key=int)
    return sorted(names)


def stratified_split(*, labels: Sequence[int], fraction: float, seed: int) -> tuple[list[int], list[int]]:
    """Split rows into a training and a held-out part with the same share of every label.

    Every label with two rows or more is in both parts; a label with one row stays in training. The order of rows is
    kept. The split depends on `labels`, `fraction` and `seed` only.

    Returns:
        Row numbers of the training part and of the held-out part.
    """
    generator = np.random.default_rng(seed)
    held_out: set[int] = set()
    for label in sorted(set(labels)):
        members = np.flatnonzero(np.asarray(labels) == label)
        count = min(max(1, round(fraction * len(members))), len(members) - 1)
        held_out.update(generator.permutation(members)[:count].tolist())
    return [number for number in range(len(labels)) if number not in held_out], sorted(held_out)


class Classification:
    """Learning to label texts; implements the loop's `Work`.

    Args:
        train_rows: mappings, or records with `fields`, `path` and `line`.
        eval_rows: the same, held out; empty: a stratified, seeded part of `train_rows` is held out.
        tokenizer: a fast tokenizer with a padding token.
        text_column, text_pair_column, label_column: column names; None: guessed, and the guess is in `notes`.
        label_names: the labels in the order of the model's outputs; None: those of the training rows, sorted. Names
            for labels that are the numbers 0, 1, ... are matched to them in order.
        max_length: tokens that a text (or pair) is cut to, special tokens included.
        seed: decides the held-out part.
        eval_fraction: share of `train_rows` to hold out.

    Raises:
        TaskError: a column, text or label that is missing or cannot be used; the message has its file and line.
    """

    metric = "accuracy"
    greater_is_better = True
    mixture: list[tuple[int, float]] = []

    def __init__(
        self,
        *,
        train_rows: Sequence[Any],
        eval_rows: Sequence[Any] = (),
        tokenizer: Any,
        text_column: str | None = None,
        text_pair_column: str | None = None,
        label_column: str | None = None,
        label_names: Sequence[str] | None = None,
        max_length: int = 256,
        seed: int = 0,
        eval_fraction: float = 0.1,
    ) -> None:
        self.notes: list[str] = []
        self.tokenizer = tokenizer
        self.max_length = max_length
        train, held_out = as_rows(train_rows, part="training"), as_rows(eval_rows, part="evaluation")
        if not train:
            raise TaskError("there are no training rows: name a file that has some with --train_file")
        self.text_column, self.text_pair_column, self.label_column = guess_columns(
            train, text=text_column, pair=text_pair_column, label=label_column
        )
        self._note_columns(guessed=text_column is None or label_column is None)
        numbers = self._choose_labels(train, label_names)
        if held_out:
            eval_numbers = [self._label_number(row) for row in held_out]
        else:
            kept, out = stratified_split(labels=numbers, fraction=eval_fraction, seed=seed)
            held_out, eval_numbers = [train[i] for i in out], [numbers[i] for i in out]
            train, numbers = [train[i] for i in kept], [numbers[i] for i in kept]
            self.notes.append(f"held out {len(out)} of {len(out) + len(kept)} training rows for evaluation")
        self._train_labels, self._eval_labels = numbers, eval_numbers
        self._eval_rows = held_out
        self._train, self._eval = self._tokenize(train), self._tokenize(held_out)
        self._eval_order = by_length(self._eval)
        self.num_examples, self.num_eval_examples = len(train), len(held_out)
        self._note_truncation()
        self._records: list[dict[str, Any]] = []

    # Columns, labels and features

    def _note_columns(self, *, guessed: bool) -> None:
        second = "" if self.text_pair_column is None else f", second text from '{self.text_pair_column}'"
        line = f"text from column '{self.text_column}'{second}, label from column '{self.label_column}'"
        how = " (guessed; --text_column, --text_pair_column and --label_column override it)" if guessed else ""
        self.notes.append(line + how)

    def _choose_labels(self, rows: list[Row], given: Sequence[str] | None) -> list[int]:
        """Set `label_names`, and return the label number of each training row."""
        names = [label_name(row, self.label_column) for row in rows]
        found = sorted_names(set(names))
        if len(found) > max(20, len(rows) // 2):
            raise TaskError(
                f"{rows[0].where}: column '{self.label_column}' has {len(found)} different values in {len(rows)} "
                "rows, too many to be labels: name another column with --label_column"
            )
        if len(found) == 1:
            raise TaskError(
                f"{rows[0].where}: every training row has the label '{found[0]}' in column '{self.label_column}': "
                "at least two labels are needed to learn from; name another column with --label_column"
            )
        self._number_of = {name: number for number, name in enumerate(given or found)}
        self.label_names = list(self._number_of)
        if given is not None:
            if len(self.label_names) != len(given):
                raise TaskError(f"--label_names {' '.join(given)} names a label twice")
            numbered = [str(number) for number in range(len(given))]
            if set(found) <= set(numbered) and not set(found) & set(given):
                self._number_of = {number: position for position, number in enumerate(numbered)}
                pairs = ", ".join(f"{number} is {name}" for number, name in zip(numbered, given, strict=True))
                self.notes.append(f"labels are numbers in the data: {pairs}")
        counts = Counter(names)
        self.notes.append(
            f"{len(self.label_names)} labels: "
            + ", ".join(f"{name} ({counts[key]})" for key, name in zip(self._number_of, self.label_names, strict=True))
        )
        return [self._label_number(row) for row in rows]

    def _label_number(self, row: Row) -> int:
        name = label_name(row, self.label_column)
        if name not in self._number_of:
            raise TaskError(
                f"{row.where}: label '{name}' in column '{self.label_column}' is not one of the labels "
                f"{list(self._number_of)}: correct it, or list every label with --label_names"
            )
        return self._number_of[name]

    def _tokenize(self, rows: list[Row]) -> list[dict[str, np.ndarray]]:
        """Token ids of each row, cut to `max_length`; of a pair the longer text is cut first."""
        inputs: list[dict[str, np.ndarray]] = []
        for start in range(0, len(rows), _TOKENIZE_AT_ONCE):
            part = rows[start : start + _TOKENIZE_AT_ONCE]
            texts = [row.text(self.text_column, option="--text_column") for row in part]
            pairs = None
            if self.text_pair_column is not None:
                pairs = [row.text(self.text_pair_column, option="--text_pair_column") for row in part]
            encoding = self.tokenizer(
                texts, pairs, truncation=True, max_length=self.max_length, return_attention_mask=False
            )
            inputs += [tokenizer_inputs(encoding, number) for number in range(len(part))]
        return inputs

    def _note_truncation(self) -> None:
        full = sum(len(example["input_ids"]) >= self.max_length for example in self._train)
        if full:
            share = full / len(self._train)
            self.notes.append(
                f"{share:.1%} of the training texts reach --max_length {self.max_length} and are cut there"
            )

    # What the loop asks for

    def example(self, row: int, index: int, progress: float = 0.0) -> dict[str, Any]:
        """Training example `row`; nothing in it is random, so `index` does not matter."""
        return {**self._train[row], "labels": self._train_labels[row]}

    def eval_example(self, row: int) -> dict[str, Any]:
        """Held-out example `row`, counted from the shortest; its "row" is its number in the data."""
        number = self._eval_order[row]
        return {**self._eval[number], "labels": self._eval_labels[number], "row": number}

    def collate(self, examples: list[dict[str, Any]]) -> dict[str, Tensor]:
        """Inputs padded to the longest [batch, length], `labels` [batch], and `row` [batch] for held-out examples."""
        batch = pad_inputs(examples=examples, tokenizer=self.tokenizer)
        for name in ("labels", "row"):
            if name in examples[0]:
                batch[name] = torch.tensor([example[name] for example in examples], dtype=torch.long)
        return batch

    def count_targets(self, batch: dict[str, Tensor]) -> dict[str, int]:
        """One target an example."""
        return {"examples": len(batch["labels"])}

    def loss(
        self, model: nn.Module, batch: dict[str, Tensor], num_targets: dict[str, Tensor]
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Cross-entropy and accuracy, summed over the batch and divided by the examples of the step."""
        logits = model(**model_inputs(batch)).logits.float()
        loss = F.cross_entropy(logits, batch["labels"], reduction="sum") / num_targets["examples"]
        correct = (logits.detach().argmax(dim=-1) == batch["labels"]).sum()
        return loss, {"accuracy": correct / num_targets["examples"]}

    def evaluate(self, model: nn.Module, batch: dict[str, Tensor]) -> list[dict[str, Any]]:
        """One record an example: row, label, prediction, the prediction's probability, and the loss in nats."""
        logits = model(**model_inputs(batch)).logits.float()
        losses = F.cross_entropy(logits, batch["labels"], reduction="none")
        probabilities, predictions = logits.softmax(dim=-1).max(dim=-1)
        columns = (batch["row"], batch["labels"], predictions, probabilities, losses)
        names = ("row", "label", "prediction", "probability", "loss")
        return [
            dict(zip(names, values, strict=True))
            for values in zip(*(column.tolist() for column in columns), strict=True)
        ]

    def summarize(self, records: list[dict[str, Any]]) -> dict[str, float]:
        """Loss, accuracy, F1 (macro, micro) and Matthews correlation over all records, in any order."""
        self._records = sorted(records, key=lambda record: record["row"])
        return {
            "loss": math.fsum(record["loss"] for record in self._records) / len(self._records),
            **classification_metrics(
                predictions=[record["prediction"] for record in self._records],
                references=[record["label"] for record in self._records],
            ),
        }

    def baseline(self) -> dict[str, float]:
        """Always the most frequent training label; its loss: always the training part's label frequencies (plus 1)."""
        if not self._eval_labels:
            return {}
        counts = np.bincount(self._train_labels, minlength=len(self.label_names))
        log_frequency = np.log((counts + 1) / (counts + 1).sum())
        majority = int(counts.argmax())
        return {
            "loss": float(-log_frequency[self._eval_labels].mean()),
            **classification_metrics(predictions=[majority] * len(self._eval_labels), references=self._eval_labels),
        }

    # For people

    def predictions(self) -> list[dict[str, Any]]:
        """What was last summarized, readable: text, label, prediction, its probability, and whether it is right."""
        readable = []
        for record in self._records:
            fields = self._eval_rows[record["row"]].fields
            pair = {} if self.text_pair_column is None else {"text_pair": fields[self.text_pair_column]}
            readable.append(
                {
                    "text": fields[self.text_column],
                    **pair,
                    "label": self.label_names[record["label"]],
                    "prediction": self.label_names[record["prediction"]],
                    "probability": round(record["probability"], 6),
                    "correct": record["label"] == record["prediction"],
                }
            )
        return readable

    def write_predictions(self, path: Path) -> int:
        """Write the last evaluation's predictions, one JSON object a line; returns how many."""
        return write_predictions(predictions=self.predictions(), path=path)
