"""Classification: one text, or a pair of texts, gets a label out of several, any number of them, or a number."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from lacuna.common.errors import InputError
from lacuna.tasks.columns import CLASSIFICATION
from lacuna.tasks.features import model_inputs, pad_inputs, tokenizer_inputs
from lacuna.tasks.heads import Head, Number, SeveralLabels, SingleLabel
from lacuna.tasks.labels import MULTI, NUMBER, SINGLE, problem_type_of
from lacuna.tasks.rows import Row, as_rows, some_of
from lacuna.tasks.tables import Matrix, Points, Table
from lacuna.tasks.task import Inputs, Task

HEADS: dict[str, Callable[..., Head]] = {SINGLE: SingleLabel, MULTI: SeveralLabels, NUMBER: Number}
_SPOKEN = {SINGLE: "one label a row", MULTI: "several labels a row", NUMBER: "a number a row"}
_TOKENIZE_AT_ONCE = 1000


def stratified_split(*, labels: Sequence[int], fraction: float, seed: int) -> tuple[list[int], list[int]]:
    """Split rows into a training and a held-out part with the same share of every label.

    Every label with two rows or more is in both parts; a label with one row stays in training. The order of rows is
    kept. The split depends on `labels`, `fraction` and `seed` only; with one label for all rows it is a plain one.

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


def tokenize(
    *,
    rows: Sequence[Row],
    tokenizer: Any,
    max_length: int,
    text_column: str,
    text_pair_column: str | None = None,
) -> list[Inputs]:
    """Token ids of the text, or the pair of texts, of each row, cut to `max_length`; the longer text is cut first.

    Raises:
        InputError: a row has no such text, or an empty one.
    """
    inputs: list[Inputs] = []
    for start in range(0, len(rows), _TOKENIZE_AT_ONCE):
        part = rows[start : start + _TOKENIZE_AT_ONCE]
        texts = [row.text(text_column, option="--text_column") for row in part]
        pairs = None
        if text_pair_column is not None:
            pairs = [row.text(text_pair_column, option="--text_pair_column") for row in part]
        encoding = tokenizer(texts, pairs, truncation=True, max_length=max_length, return_attention_mask=False)
        inputs += [tokenizer_inputs(encoding, number) for number in range(len(part))]
    return inputs


class Classification(Task):
    """Learning to label texts.

    Args:
        train_rows: mappings, or records with `fields`, `path` and `line`.
        eval_rows: the same, held out; empty: a seeded part of `train_rows` is held out, with the same share of every
            label where there are labels.
        tokenizer: a fast tokenizer with a padding token.
        text_column, text_pair_column, label_column: column names; None: guessed, and the guess is in `notes`.
        problem_type: what the label column holds: "single_label_classification", "multi_label_classification" or
            "regression"; "auto": told by the values of the training rows.
        label_separator: what stands between several labels in a text.
        label_names: the labels in the order of the model's outputs; None: those of the training rows, sorted. Names
            for labels that are the numbers 0, 1, ... are matched to them in order.
        class_weights: "balanced": in training a label weighs the more the rarer it is. Scores are never weighted.
        max_length: tokens that a text (or pair) is cut to, special tokens included.
        seed: decides the held-out part.
        eval_fraction: share of `train_rows` to hold out.

    Raises:
        InputError: a column, text or label that is missing or cannot be used; the message has its file and line.
    """

    name = "classification"

    def __init__(
        self,
        *,
        train_rows: Sequence[Any],
        eval_rows: Sequence[Any] = (),
        tokenizer: Any,
        text_column: str | None = None,
        text_pair_column: str | None = None,
        label_column: str | None = None,
        problem_type: str = "auto",
        label_separator: str | None = None,
        label_names: Sequence[str] | None = None,
        class_weights: str = "none",
        max_length: int = 256,
        seed: int = 0,
        eval_fraction: float = 0.1,
    ) -> None:
        super().__init__(tokenizer=tokenizer, max_length=max_length)
        train, held_out = as_rows(train_rows, part="training"), as_rows(eval_rows, part="evaluation")
        if not train:
            raise InputError("there are no training rows: name a file that has some with --train_file")
        self.text_column, self.text_pair_column, self.label_column = CLASSIFICATION.find(
            train, text=text_column, pair=text_pair_column, label=label_column
        )
        self._note_columns(guessed=text_column is None or label_column is None)
        self.note_names(train, texts=[self.text_column, self.text_pair_column], label=self.label_column)
        if self.text_pair_column is not None:
            self.note_pairs()
        self.head = self._head(
            train, problem_type, separator=label_separator, given=label_names, balanced=class_weights == "balanced"
        )
        self.metric, self.mistakes_heading = self.head.metric, self.head.mistakes_heading
        self.probability_note = self.head.probability_note
        self.problem_type, self.label_names = self.head.problem_type, self.head.names
        train_targets = [self.head.target(row) for row in train]
        if held_out:
            targets = [self.head.target(row) for row in held_out]
        else:
            strata = [self.head.stratum(target) for target in train_targets]
            kept, out = stratified_split(labels=strata, fraction=eval_fraction, seed=seed)
            how = "" if self.problem_type == NUMBER else ", of each label the same share"
            self.note_held_out(of=train, count=len(out), more=how)
            held_out, targets = [train[i] for i in out], [train_targets[i] for i in out]
            train, train_targets = [train[i] for i in kept], [train_targets[i] for i in kept]
        self._train_targets, self._eval_targets, self._eval_rows = train_targets, targets, held_out
        self.set_examples(train=self._examples(train, train_targets), held_out=self._examples(held_out, targets))
        self.note_overlap(train=list(map(self._texts, train)), held_out=list(map(self._texts, held_out)))
        self.note_scarce(train=self.balance(), held_out=self.head.balance(targets))
        self.note_cut(self.lengths)

    # Columns, labels and features

    def _note_columns(self, *, guessed: bool) -> None:
        second = "" if self.text_pair_column is None else f", second text from '{self.text_pair_column}'"
        line = f"text from column '{self.text_column}'{second}, label from column '{self.label_column}'"
        how = " (guessed; --text_column, --text_pair_column and --label_column override it)" if guessed else ""
        self.notes.append(line + how)

    def _head(self, rows: Sequence[Row], asked: str, *, separator: str | None, **options: Any) -> Head:
        """What the label column holds, as was asked or as its values tell, with a note on it."""
        if separator is not None and asked not in ("auto", MULTI):
            raise InputError(
                f"--label_separator {separator!r} is for several labels a row, and --problem_type is {asked}"
            )
        kind = asked
        if asked == "auto":
            kind = problem_type_of(rows=rows, column=self.label_column, separator=separator)
        if kind == MULTI:
            options["separator"] = separator
        head = HEADS[kind](rows=rows, column=self.label_column, **options)
        how = " (told by its values; --problem_type overrides it)" if asked == "auto" else ""
        names = "" if kind == NUMBER else f", {len(head.names)} in all: {some_of(head.names)}"
        self.notes += [f"column '{self.label_column}' holds {_SPOKEN[kind]}, {kind}{how}{names}", *head.notes]
        return head

    def _texts(self, row: Row) -> tuple[Any, ...]:
        pair = self.text_pair_column
        return (row.fields[self.text_column],) if pair is None else (row.fields[self.text_column], row.fields[pair])

    def _examples(self, rows: Sequence[Row], targets: Sequence[Any]) -> list[Inputs]:
        inputs = tokenize(
            rows=rows,
            tokenizer=self.tokenizer,
            max_length=self.max_length,
            text_column=self.text_column,
            text_pair_column=self.text_pair_column,
        )
        return [{**example, "labels": target} for example, target in zip(inputs, targets, strict=True)]

    # What the loop asks for

    def collate(self, examples: list[Inputs]) -> dict[str, Tensor]:
        """Inputs padded to the longest [batch, length], `labels` [batch] or [batch, labels], and `row` [batch]."""
        batch = pad_inputs(examples=examples, tokenizer=self.tokenizer)
        if "labels" in examples[0]:
            batch["labels"] = self.head.tensor([example["labels"] for example in examples])
        if "row" in examples[0]:
            batch["row"] = torch.tensor([example["row"] for example in examples], dtype=torch.long)
        return batch

    def loss(
        self, model: nn.Module, batch: dict[str, Tensor], num_targets: dict[str, Tensor]
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Cross-entropy or squared distance, summed over the batch and divided by the examples of the step."""
        logits = model(**model_inputs(batch)).logits.float()
        loss = self.head.losses(logits, batch["labels"], weighted=True).sum() / num_targets["examples"]
        shown = self.head.right(logits.detach(), batch["labels"])
        return loss, {name: values.sum() / num_targets["examples"] for name, values in shown.items()}

    def evaluate(self, model: nn.Module, batch: dict[str, Tensor]) -> list[dict[str, Any]]:
        """One record an example: row, label, the loss without weights, and the prediction with its probability."""
        logits = model(**model_inputs(batch)).logits.float()
        losses = self.head.losses(logits, batch["labels"]).tolist()
        rows = batch["row"].tolist()
        return [
            {"row": row, "label": self._eval_targets[row], **record, "loss": loss}
            for row, record, loss in zip(rows, self.head.records(logits), losses, strict=True)
        ]

    def scores(self) -> dict[str, float]:
        """One label: accuracy, F1, Matthews; several: F1 and subset accuracy; numbers: Pearson, Spearman, distance."""
        return self.head.scores(self.records)

    def baseline(self) -> dict[str, float]:
        """The best guess that knows the training labels and no text."""
        return self.head.baseline(self._train_targets, self._eval_targets) if self._eval_targets else {}

    # For people

    def predictions(self) -> list[dict[str, Any]]:
        """What was last summarized, readable: text, gold, prediction, its probability or error, right or wrong."""
        readable = []
        for record in self.records:
            fields = self._eval_rows[record["row"]].fields
            pair = {} if self.text_pair_column is None else {"text_pair": fields[self.text_pair_column]}
            readable.append({"text": fields[self.text_column], **pair, **self.head.readable(record)})
        return readable

    def mistakes(self, predictions: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
        """Wrong ones, the surest first; of numbers the largest errors."""
        if self.problem_type == NUMBER:
            return sorted(predictions, key=lambda prediction: -abs(prediction["error"]))
        return super().mistakes(predictions)

    def tables(self) -> dict[str, Matrix | Table | Points]:
        """A confusion matrix; scores by label; or numbers over numbers."""
        return self.head.tables(self.records)

    def settings(self) -> dict[str, Any]:
        """Columns, labels and length."""
        return {
            **super().settings(),
            "problem_type": self.problem_type,
            "text_column": self.text_column,
            "text_pair_column": self.text_pair_column,
            "label_column": self.label_column,
            **self.head.settings(),
        }

    def balance(self) -> dict[str, int]:
        """Training rows of each label; empty for numbers."""
        return self.head.balance(self._train_targets)

    def balanced(self) -> tuple[str, int]:
        """Rows, also where one has several labels: shares are then more than one together, or less."""
        counted, total = super().balanced()
        return f"{counted}, each with any number of labels" if self.problem_type == MULTI else counted, total

    def show(self, example: Inputs) -> list[str]:
        """Tokens and label of an example."""
        target = example["labels"]
        shown = {SINGLE: lambda: self.label_names[target], NUMBER: lambda: f"{target:g}"}.get(
            self.problem_type, lambda: ", ".join(self.label_names[number] for number in target) or "none"
        )
        return [f"{self.label_column}: {shown()}", *(f"    {line}" for line in super().show(example))]
