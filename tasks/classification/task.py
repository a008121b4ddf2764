"""Classification: one text, or a pair of texts, gets a label out of several, any number of them, or a number."""

import hashlib
import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Self

import numpy as np
from torch import Tensor, nn

from lacuna.common.errors import InputError, called, progress_bar
from lacuna.common.loading import file_of
from lacuna.tasks.base.bag_of_words import MOST_TEXTS, WORDS, Words
from lacuna.tasks.base.columns import only_ones
from lacuna.tasks.base.features import model_inputs, pad_inputs, records, stacked, tokenize
from lacuna.tasks.base.report import Shown
from lacuna.tasks.base.rows import Row, as_rows, gathered, scarce_labels, some_of
from lacuna.tasks.base.task import Batch, Inputs, Reader, Task
from lacuna.tasks.classification.heads import Head, Number, SeveralLabels, SingleLabel, Texts
from lacuna.tasks.classification.reader import (
    CLASSIFICATION,
    FEW_ROWS,
    MULTI,
    NUMBER,
    SINGLE,
    ClassificationArguments,
    problem_type_of,
)
from lacuna.tasks.predict.predictor import PipelinePredictor, PredictionArguments, predict

MOST_SCORES = 5_000_000  # of held-out rows that are remembered, a label each
HEADS: dict[str, Callable[..., Head]] = {SINGLE: SingleLabel, MULTI: SeveralLabels, NUMBER: Number}

_SPOKEN = {SINGLE: "one label a row", MULTI: "several labels a row", NUMBER: "a number a row"}


class Classification(Task):
    """Learning to label texts: one label each, several, or a number."""

    options: ClassificationArguments
    name, objective = "classification", "fine-tuning for classification"
    auto_class = "AutoModelForSequenceClassification"
    blended_rows = 10_000
    label_names: list[str]
    _words: Words | None = None
    _keeps_words = False

    def __init__(self, options: ClassificationArguments, *, unlabelled_rows: Sequence[Any] = (), **data: Any) -> None:
        """As in `Task`; `unlabelled_rows` are rows of --unlabelled_file."""
        self._unlabelled = as_rows(unlabelled_rows, part="unlabelled")
        self._more: dict[tuple[str, ...], int] = {}  # unlabelled texts, and the pseudo-label of each
        super().__init__(options, **data)

    @classmethod
    def from_arguments(cls, options: Any, *, read: Reader, **parts: Any) -> Self:
        """As in `Task`, with the rows of --unlabelled_file too."""
        if options.unlabelled_file is not None:
            parts["unlabelled_rows"] = read(options.unlabelled_file, unlabelled=True, **options.reading())
            if not parts["unlabelled_rows"]:
                raise InputError(f"--unlabelled_file {options.unlabelled_file} has no text: name a file that has some")
        return super().from_arguments(options, read=read, **parts)

    def read(self, train: list[Row], held_out: list[Row]) -> None:
        self.columns = self.find_columns(CLASSIFICATION, train)
        self.text_column, self.text_pair_column, self.label_column = self.columns.values()
        self.head = head = self._head(train)
        self.problem_type, self.label_names = head.problem_type, head.names
        self.metric, self.probability_note = head.metric, head.probability_note
        if self.problem_type == NUMBER:
            self.mistakes_heading, self.error = "The {count} largest errors", "error"
        elif self.problem_type == MULTI:
            self.balance_of = "training examples, each with any number of labels"
        train, held_out = self.divide(
            train,
            held_out,
            same=self._texts,
            strata=lambda rows: [head.stratum(head.target(row)) for row in rows],
            how="" if self.problem_type == NUMBER else ", of each label the same share",
        )
        self._train_targets: list[Any] = [head.target(row) for row in train]
        self._eval_targets: list[Any] = [head.target(row) for row in held_out]
        self._train_texts, self._eval_texts = (list(map(self._texts, rows)) for rows in (train, held_out))

    def training_texts(self) -> list[str]:
        return gathered(self._train_texts)

    def encode(self) -> None:
        if self.text_pair_column is not None:
            self.note_pairs()
        if self._unlabelled:
            self._ask_teacher()
        self._targets: list[Any] = [*self._train_targets, *self._more.values()]
        examples, cut = self._examples([*self._train_texts, *self._more], self._targets)
        self.set_examples(train=examples, held_out=self._examples(self._eval_texts, self._eval_targets)[0])
        self.notes += scarce_labels(train=self.balance(), held_out=self.head.balance(self._eval_targets))
        self.note_cut(cut, of=len(examples))
        self.token_dropout = self._token_dropout(len(examples))
        if len(self._train_texts) > MOST_TEXTS:
            self.notes.append(f"no bag of words beside it: more than {MOST_TEXTS:,} training rows")

    def _ask_teacher(self) -> None:
        """Take the texts of --unlabelled_file, with the labels of --teacher, but for those that have labels here."""
        if self.problem_type != SINGLE:
            raise InputError(f"--unlabelled_file: a teacher gives one label a text, and this is {self.problem_type}")
        seen, first = {*self._train_texts, *self._eval_texts}, self._unlabelled[0]
        columns = [self.text_column, *filter(None, [self.text_pair_column])]
        if len(columns) == 1 and self.text_column not in first.fields:  # as of lines, whose column is "text"
            with called({"Name it with --text_column": f"Call it {self.text_column!r}, as in --train_file"}):
                columns = [*CLASSIFICATION.only("text_column", by_content=only_ones, pairs="").find([first]).values()]
            self.notes.append(f"--unlabelled_file: the text is in the column '{columns[0]}'")
        texts = dict.fromkeys(tuple(row.text(name, option=None) for name in columns) for row in self._unlabelled)
        if not (more := [text for text in texts if text not in seen]):
            raise InputError("--unlabelled_file has no text that is not among the labelled rows: name another file")
        labels, how = label_texts(more, teacher=str(self.options.teacher), label_names=self.label_names)
        self._more = dict(zip(more, labels, strict=True))
        digest = hashlib.sha256(json.dumps([*self._more.items()]).encode()).hexdigest()
        self.pseudo_labels = f"{len(more):,} texts, sha256 {digest[:16]}"
        left = len(self._unlabelled) - len(more)
        why = f"; {left:,} left out: they come twice, or are among the labelled rows" if left else ""
        self.notes.append(f"{len(more):,} texts of --unlabelled_file, labelled by {how}{why}")

    def head_options(self) -> dict[str, Any]:
        return {**super().head_options(), "problem_type": self.problem_type, "pooling": self.options.pooling}

    # Columns, labels and features

    def _head(self, rows: Sequence[Row]) -> Head:
        """What the label column holds, as was asked or as its values tell, with a note on it."""
        asked, separator = self.options.problem_type, self.options.label_separator
        if separator is not None and asked not in ("auto", MULTI):
            raise InputError(f"--label_separator {separator!r} is for several labels a row; --problem_type is {asked}")
        kind: str = asked
        if asked == "auto":
            kind = problem_type_of(rows=rows, column=self.label_column, separator=separator)
        head = HEADS[kind](rows, self.label_column, self.options)
        how = " (inferred; --problem_type overrides it)" if asked == "auto" else ""
        names = "" if kind == NUMBER else f", {len(head.names)} in all: {some_of(head.names)}"
        self.notes += [f"column '{self.label_column}' holds {_SPOKEN[kind]}, {kind}{how}{names}", *head.notes]
        return head

    def _texts(self, row: Row) -> tuple[str, ...]:
        """The text of a row, or its two texts. InputError: one of them is missing or empty."""
        named = [(name, self.columns[name]) for name in ("text_column", "text_pair_column")]
        return tuple(row.text(column, option=f"--{name}") for name, column in named if column is not None)

    def _examples(self, texts: Sequence[tuple[str, ...]], targets: Sequence[Any]) -> tuple[list[Inputs], int]:
        """The examples, and how many were cut."""
        first, second, *_ = *zip(*texts, strict=True), None
        inputs, cut = tokenize(tokenizer=self.tokenizer, texts=first, pairs=second, max_length=self.max_length)
        return [{**example, "labels": target} for example, target in zip(inputs, targets, strict=True)], cut

    # What the loop asks for

    def example(self, row: int, index: int) -> Inputs:
        """Training example `row`, some of its tokens behind [MASK] (`--token_dropout`): which, `index` decides."""
        example, mask = self._train[row], self.tokenizer.mask_token_id
        if mask is None or not self.token_dropout:
            return example
        ids = example["input_ids"]
        hidden = np.random.default_rng([self.seed, index]).random(len(ids)) < self.token_dropout
        return {**example, "input_ids": np.where(hidden & ~np.isin(ids, self.tokenizer.all_special_ids), mask, ids)}

    def _token_dropout(self, rows: int) -> float:
        """The share of hidden tokens: as asked, else 0.2 of few rows for a model that was trained with [MASK]."""
        if self.options.token_dropout is not None:
            return float(self.options.token_dropout)
        heads = getattr(self.config, "architectures", None) or ()
        if rows > FEW_ROWS or not any("MaskedLM" in head or "PreTraining" in head for head in heads):
            return 0.0
        self.notes.append(f"up to {FEW_ROWS:,} training rows: a fifth of their tokens is hidden (--token_dropout)")
        return 0.2

    def collate(self, examples: list[Inputs]) -> Batch:
        """Inputs padded to the longest [batch, length], `labels` [batch] or [batch, labels], and `row` [batch]."""
        batch = pad_inputs(examples=examples, tokenizer=self.tokenizer)
        batch["labels"] = self.head.tensor([example["labels"] for example in examples])
        return batch | stacked(examples, "row")

    def loss(self, model: nn.Module, batch: Batch, num_targets: Batch) -> tuple[Tensor, Batch]:
        """Cross-entropy or squared distance, summed over the batch and divided by the examples of the step."""
        logits = model(**model_inputs(batch)).logits.float()
        loss = self.head.losses(logits, batch["labels"], weighted=True).sum() / num_targets["examples"]
        shown = self.head.right(logits.detach(), batch["labels"])
        return loss, {name: values.sum() / num_targets["examples"] for name, values in shown.items()}

    def evaluate(self, model: nn.Module, batch: Batch) -> list[dict[str, Any]]:
        """One record an example: row, label, the loss without weights, and the prediction with its probability."""
        logits = model(**model_inputs(batch)).logits.float()
        losses = self.head.losses(logits, batch["labels"])
        labels = [self._eval_targets[row] for row in batch["row"].tolist()]
        few = self.problem_type == SINGLE and self.num_eval_examples * len(self.label_names) <= MOST_SCORES
        scores = {"log_probabilities": logits.log_softmax(-1)} if few else {}
        return records(row=batch["row"], loss=losses, label=labels, **self.head.predictions(logits), **scores)

    def scores(self) -> dict[str, float]:
        """One label: accuracy, F1, Matthews; several: F1 and subset accuracy; numbers: Pearson, Spearman, distance."""
        predictions, gold = ([record[name] for record in self.records] for name in ("prediction", "label"))
        return self.head.metrics(predictions, gold)

    def baseline(self) -> dict[str, float]:
        """The best guess that knows the training labels and no text."""
        return self.head.baseline(self._train_targets, self._eval_targets)

    @cached_property
    def bag_of_words(self) -> dict[str, float]:
        """TF-IDF of words, their pairs and their parts, and a linear model."""
        targets = self._train_targets
        if len(set(map(str, targets))) < 2 or len(targets) > MOST_TEXTS:
            return {}
        if (words := Words.fit(self.problem_type, self._train_texts, self.head.tensor(targets).numpy())) is None:
            return {}
        self._words = words if self.problem_type == SINGLE else None
        guesses: Any = self.head.said(words, self._eval_texts)
        return self.head.metrics(guesses, self._eval_targets)

    def with_words(self) -> dict[str, float]:
        """By both probabilities with a weight each; the model and the words are wrong in different places.

        Each half of the held-out rows, drawn, is judged by the weights that suit the other; those of all are kept.
        """
        if not self.bag_of_words or self._words is None or "log_probabilities" not in self.records[0]:
            return {}
        model = np.stack([record["log_probabilities"] for record in self.records])
        words = self._words.log_probabilities(self._eval_texts, num_labels=len(self.label_names))
        labels, guesses = np.array(self._eval_targets), np.zeros(len(model), int)
        first = np.random.default_rng(0).permutation(len(model)) % 2 == 0
        for half in (first, ~first):
            self._words.weigh(model[~half], words[~half], labels[~half])
            guesses[half] = self._words.together(model[half], words[half]).argmax(axis=1)
        self._words.weigh(model, words, labels)
        return self.head.metrics(guesses.tolist(), self._eval_targets)

    def keep(self, results: Mapping[str, float], folder: Path) -> list[str]:
        """The bag of words, where the model is better with it on the held-out rows than alone."""
        alone, both = (results.get(f"{part}_{self.metric}", math.nan) for part in ("eval", "hybrid"))
        self._keeps_words = (both > alone if self.greater_is_better else both < alone) and self._words is not None
        if self._keeps_words and self._words is not None:
            self._words.save(folder / WORDS)
        return [WORDS] * self._keeps_words

    # For people

    def predictions(self) -> list[dict[str, Any]]:
        """What was last summarized, readable: text, gold, prediction, its probability or error, right or wrong."""
        texts = [dict(zip(("text", "text_pair"), both, strict=False)) for both in self._eval_texts]
        return [{**texts[record["row"]], **self.head.readable(record)} for record in self.records]

    def tables(self) -> dict[str, Shown]:
        """A confusion matrix; scores by label; or numbers over numbers."""
        return self.head.tables(self.records)

    def settings(self) -> dict[str, Any]:
        own = {"problem_type": self.problem_type, "token_dropout": self.token_dropout, "words": self._keeps_words}
        return {**super().settings(), **own, **self.columns, **self.head.settings()}

    def balance(self) -> dict[str, int]:
        return self.head.balance(self._targets)

    def show(self, example: Inputs) -> list[str]:
        target = example["labels"]
        names = [name for name, count in self.head.balance([target]).items() if count]
        shown = f"{target:g}" if self.problem_type == NUMBER else ", ".join(names) or "none"
        return [f"{self.label_column}: {shown}", *(f"    {line}" for line in super().show(example))]


def label_texts(texts: Texts, *, teacher: str, label_names: Sequence[str]) -> tuple[list[int], str]:
    """The label of each text, or pair of texts, as a number, as `recipes/predict.py` answers; and by what, in words.

    The teacher and the words that it may have kept are wrong in different places (Blum and Mitchell, 1998,
    https://doi.org/10.1145/279943.279962). Raises InputError: the teacher is no classifier with these labels.
    """
    from lacuna.tasks.predict.inference import open_predictor  # which imports this module

    ours = {", or leave --task out": "", ", or name another task with --task": "", ", or add --without_words": ""}
    with called({"--model": "--teacher", "name the task with --task": "name a classifier; heads are", **ours}):
        predictor = open_predictor(PredictionArguments(model=teacher, input="-", output="-"))
        if not isinstance(predictor, ClassificationPredictor) or predictor.problem != SINGLE:
            raise InputError(f"--teacher {teacher} does not give one label a text: name a classifier that does")
        theirs = sorted(map(str, predictor.model.config.id2label.values()))
        if theirs != sorted(label_names):
            raise InputError(
                f"--teacher {teacher} has the labels {', '.join(theirs)}, and the training rows have "
                f"{', '.join(label_names)}: name a classifier that was fine-tuned on these rows"
            )
        columns = ("text", "text_pair")[: len(texts[0])]
        predictor.text_column, predictor.pair_column = columns[0], columns[1] if len(columns) > 1 else None
        found = predict(predictor, (dict(zip(columns, text, strict=True)) for text in texts))
        answers = progress_bar(found, doing="labels of --teacher", unit="text", total=len(texts))
        labels = [label_names.index(answer["prediction"]) for answer in answers]
    return labels, "--teacher" if predictor.words is None else "--teacher and the bag of words beside it"


class ClassificationPredictor(PipelinePredictor):
    """The label of a text or a pair; where several can hold, these and the probabilities of all; or a number."""

    task, auto_class, takes_pairs = "text-classification", "AutoModelForSequenceClassification", True

    def options(self) -> dict[str, Any]:
        return {**self.cut, "top_k": None}

    def prepare(self) -> None:
        config = self.model.config
        guess = NUMBER if config.num_labels == 1 else SINGLE
        # By this the pipeline chooses between softmax, sigmoid and neither.
        self.problem = config.problem_type = self.settings.get("problem_type") or config.problem_type or guess
        more = {SINGLE: ("probability",), MULTI: ("probability", "probabilities")}
        self.columns = ("prediction", *more.get(self.problem, ()))
        wanted = self.settings.get("words") and not self.arguments.without_words
        path = file_of(self.arguments.model, WORDS, revision=self.arguments.revision) if wanted else None
        self.words = None if path is None else Words.load(path)
        if self.words is not None:
            self.notes.append("the model answers with the bag of words beside it (--without_words: alone)")
        super().prepare()

    def answer(self, given: Sequence[Any]) -> Iterator[dict[str, Any]]:
        if self.words is not None:
            texts = [(each,) if isinstance(each, str) else tuple(each.values()) for each in given]
            if len(texts[0]) != (count := 1 + bool(self.settings.get("text_pair_column"))):
                what = f"learned from {count} of a row's texts, and are given {len(texts[0])}"
                raise InputError(f"the words beside --model {what}: see --text_pair_column, or add --without_words")
            self._of_words = iter(self.words.log_probabilities(texts, num_labels=self.model.config.num_labels))
        return super().answer(given)

    def readable(self, given: Any, found: Any) -> dict[str, Any]:
        scores = {each["label"]: each["score"] for each in found}
        if self.words is not None:
            names = [name for _, name in sorted(self.model.config.id2label.items())]
            alone = np.log([max(scores[name], 1e-30) for name in names])
            scores = dict(zip(names, np.exp(self.words.together(alone, next(self._of_words))).tolist(), strict=True))
        if self.problem == NUMBER:
            numbers = {name: round(score, 6) for name, score in scores.items()}
            return {"prediction": next(iter(numbers.values())) if len(numbers) == 1 else numbers}
        if self.problem == SINGLE:
            best = max(scores, key=scores.__getitem__)
            return {"prediction": best, "probability": round(scores[best], 6)}
        chances = {name: scores[name] for _, name in sorted(self.model.config.id2label.items())}
        chosen = [name for name, chance in chances.items() if chance > self.settings.get("threshold", 0.5)]
        whole = math.prod(chance if name in chosen else 1 - chance for name, chance in chances.items())
        rounded = {name: round(chance, 6) for name, chance in chances.items()}
        return {"prediction": chosen, "probability": round(whole, 6), "probabilities": rounded}
