"""What the outputs of a classifier stand for (one label, several, a number): losses, records, scores and tables."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from sklearn.metrics import mean_absolute_error
from sklearn.preprocessing import MultiLabelBinarizer
from sklearn.utils.class_weight import compute_class_weight
from torch import Tensor
from torch.nn import functional as F

from lacuna.common.errors import InputError
from lacuna.tasks.base.bag_of_words import Words
from lacuna.tasks.base.metrics import classification, correlation, multi_label
from lacuna.tasks.base.report import Points, Shown, by_label, label_tables
from lacuna.tasks.base.rows import Row, counted, note_alike, some_of
from lacuna.tasks.classification import reader as labels

Record = dict[str, Any]
Texts = Sequence[tuple[str, ...]]


class _Head:
    """What the three kinds share; a target is what a row has in place of a label: a number, several, or a float."""

    probability_note = ""
    problem_type: str
    names: list[str]  # of the outputs, in order
    weights: Tensor | None = None  # of the labels in training, where they differ

    def __init__(self, rows: Sequence[Row], column: str, options: labels.ClassificationArguments) -> None:
        self.column, self.options = column, options
        self.notes: list[str] = []
        self.learn(rows)

    def learn(self, rows: Sequence[Row]) -> None:
        """Set `names`, and what else the training rows tell."""
        raise NotImplementedError

    def _name_labels(self, found: set[str], rows: Sequence[Row]) -> None:
        given = self.options.label_names
        self.names, self._number_of, note = labels.name_labels(found=found, given=given, rows=rows, column=self.column)
        self.notes += [*([note] if note else []), *note_alike(found)]

    def _number(self, name: str, row: Row) -> int:
        """The output of a label; InputError where the model has none for it."""
        if name not in self._number_of:
            raise InputError(
                f"{row.where}: label '{name}' in column '{self.column}' is not one of the labels "
                f"[{some_of(list(map(repr, self._number_of)))}] of the training rows or of --label_names: correct it, "
                "or list every label with --label_names"
            )
        return self._number_of[name]

    def _weigh(self, weights: Sequence[float], what: str) -> None:
        self.weights = torch.tensor(weights)
        shown = some_of([f"{name} {weight:.3g}" for name, weight in zip(self.names, weights, strict=True)])
        self.notes.append(f"weights of {what}: {shown}")

    def _weight(self, weighted: bool, device: torch.device) -> Tensor | None:
        return self.weights.to(device) if weighted and self.weights is not None else None

    def stratum(self, target: Any) -> int:
        """Rows of one stratum are held out in the same share."""
        return 0

    def tensor(self, targets: Sequence[Any]) -> Tensor:
        return torch.tensor(targets)

    def balance(self, targets: Sequence[Any]) -> dict[str, int]:
        return {}

    def said(self, words: Words, texts: Texts) -> list[Any]:
        """What a linear model of words predicts."""
        return words.model.predict(words.features(texts)).tolist()

    def settings(self) -> dict[str, Any]:
        """What must be known to read the outputs."""
        return {"label_names": self.names}


class SingleLabel(_Head):
    """One label a row: softmax over the outputs."""

    problem_type, metric, metrics = labels.SINGLE, "accuracy", staticmethod(classification)
    probability_note = "The probability is that of the predicted label."

    def learn(self, rows: Sequence[Row]) -> None:
        self._name_labels({labels.label_name(row, self.column) for row in rows}, rows)
        if self.options.class_weights == "balanced":
            targets, weights = [*map(self.target, rows)], np.ones(len(self.names))
            learnt = np.unique(targets)
            weights[learnt] = compute_class_weight("balanced", classes=learnt, y=targets)
            self._weigh(weights.tolist(), "the labels in training")

    def target(self, row: Row) -> int:
        """The number of a row's label; InputError where it has none that is known."""
        return self._number(labels.label_name(row, self.column), row)

    def stratum(self, target: Any) -> int:
        return target

    def losses(self, logits: Tensor, targets: Tensor, *, weighted: bool = False) -> Tensor:
        """The loss of each example [batch], in nats; `weighted` by --class_weights."""
        return F.cross_entropy(logits, targets, weight=self._weight(weighted, logits.device), reduction="none")

    def right(self, logits: Tensor, targets: Tensor) -> dict[str, Tensor]:
        """What of each example [batch] is shown in the course of training."""
        return {"accuracy": logits.argmax(dim=-1) == targets}

    def predictions(self, logits: Tensor) -> dict[str, Any]:
        """What records say of each example: the likeliest label, and its probability."""
        sure, best = logits.softmax(dim=-1).max(dim=-1)
        return {"prediction": best, "probability": sure}

    def baseline(self, train: Sequence[int], held_out: Sequence[int]) -> dict[str, float]:
        """Always the most frequent training label; its loss: always the training frequencies (plus 1)."""
        counts = np.bincount(train, minlength=len(self.names))
        log_frequency = np.log((counts + 1) / (counts + 1).sum())
        guesses = [int(counts.argmax())] * len(held_out)
        return {"loss": float(-log_frequency[list(held_out)].mean()), **self.metrics(guesses, held_out)}

    def readable(self, record: Record) -> Record:
        return {
            "gold": self.names[record["label"]],
            "prediction": self.names[record["prediction"]],
            "probability": round(record["probability"], 6),
            "correct": record["label"] == record["prediction"],
        }

    def tables(self, records: Sequence[Record]) -> dict[str, Shown]:
        gold, guesses = ([record[name] for record in records] for name in ("label", "prediction"))
        return label_tables(self.names, gold, guesses)

    def balance(self, targets: Sequence[int]) -> dict[str, int]:
        return counted(self.names, targets)


class SeveralLabels(_Head):
    """Any number of labels a row: a sigmoid for each output; predicted is what has a probability above one half."""

    problem_type, metric = labels.MULTI, "f1_micro"
    probability_note = (
        "The probability is that of the whole prediction: the product, over all labels, of the probability of having "
        "the label where it is predicted, and of not having it where it is not, as if labels did not depend on each "
        "other. `probabilities` has that of each label."
    )
    threshold = 0.5

    def learn(self, rows: Sequence[Row]) -> None:
        self._width = width = labels.multi_hot_width(rows=rows, column=self.column)
        given = self.options.label_names
        if width is None:
            self._name_labels({name for row in rows for name in self._labels(row)}, rows)
        else:
            self.notes.append(f"each row has a list of {width} zeros and ones, one for each label")
            if given is not None and len(given) != width:
                raise InputError(
                    f"{rows[0].where}: column '{self.column}' has {width} zeros and ones, and --label_names has "
                    f"{len(given)} names: name as many"
                )
            self.names = list(given or map(str, range(width)))
        targets = [self.target(row) for row in rows]
        self._counts = Counter(number for target in targets for number in target)
        if empty := sum(not target for target in targets):
            self.notes.append(f"{empty:,} of {len(rows):,} training rows have no label at all")
        if self.options.class_weights == "balanced":
            counts = [self._counts[number] for number in range(len(self.names))]
            # Having a label weighs as much as not having it.
            rare = [max(len(rows) - count, 1) / count if count else 1.0 for count in counts]
            self._weigh(rare, "having a label, in training")

    def target(self, row: Row) -> list[int]:
        """Numbers of the row's labels, in order."""
        if self._width is not None:
            value = row.value(self.column, option="--label_column")
            fits = isinstance(value, list | tuple) and len(value) == self._width
            if not fits or any(item not in (0, 1) for item in value):
                raise InputError(
                    f"{row.where}: column '{self.column}' holds {value!r}, not {self._width} zeros and ones as the "
                    "training rows do"
                )
            return [number for number, on in enumerate(value) if on]
        return sorted(self._number(name, row) for name in self._labels(row))

    def _labels(self, row: Row) -> list[str]:
        return labels.label_set(row, self.column, separator=self.options.label_separator)

    def stratum(self, target: Any) -> int:
        """The rarest of the row's labels; -1 where it has none."""
        return min(target, key=lambda number: (self._counts[number], number)) if target else -1

    def tensor(self, targets: Sequence[Any]) -> Tensor:
        """float [batch, labels], 1 for labels that a row has."""
        return torch.from_numpy(self._multi_hot(targets)).float()

    def losses(self, logits: Tensor, targets: Tensor, *, weighted: bool = False) -> Tensor:
        """The mean over the labels, as transformers has it."""
        weight = self._weight(weighted, logits.device)
        return F.binary_cross_entropy_with_logits(logits, targets, pos_weight=weight, reduction="none").mean(dim=-1)

    def right(self, logits: Tensor, targets: Tensor) -> dict[str, Tensor]:
        return {"subset_accuracy": ((logits > 0) == (targets > 0.5)).all(dim=-1)}

    def predictions(self, logits: Tensor) -> dict[str, Any]:
        """The labels, the probability of every label there is, and of the set as a whole (see the note above)."""
        probabilities = logits.sigmoid()
        chosen = probabilities > self.threshold
        return {
            "prediction": [[number for number, on in enumerate(row) if on] for row in chosen.tolist()],
            "probabilities": [[round(probability, 6) for probability in row] for row in probabilities.tolist()],
            "probability": torch.where(chosen, probabilities, 1 - probabilities).prod(dim=-1),
        }

    def _multi_hot(self, targets: Sequence[Sequence[int]]) -> np.ndarray:
        return MultiLabelBinarizer(classes=range(len(self.names))).fit_transform(targets)

    def metrics(self, predictions: Sequence[Sequence[int]], references: Sequence[Sequence[int]]) -> dict[str, float]:
        return multi_label(self._multi_hot(predictions).tolist(), self._multi_hot(references).tolist())

    def baseline(self, train: Sequence[list[int]], held_out: Sequence[list[int]]) -> dict[str, float]:
        """For each metric the best of three sets that are always guessed: the most frequent one, the most frequent
        label alone, all labels. The loss: always the training frequencies."""
        share = (self._multi_hot(train).sum(axis=0) + 1) / (len(train) + 2)
        wanted = self._multi_hot(held_out)
        entropy = -(wanted * np.log(share) + (1 - wanted) * np.log(1 - share)).mean()
        common = list(Counter(map(tuple, train)).most_common(1)[0][0])
        guesses = (common, [int(share.argmax())], list(range(len(self.names))))
        scores = [self.metrics([guess] * len(held_out), held_out) for guess in guesses]
        return {"loss": float(entropy), **{name: max(score[name] for score in scores) for name in scores[0]}}

    def said(self, words: Words, texts: Texts) -> list[list[int]]:
        found = np.array(super().said(words, texts)).reshape(-1, len(self.names))
        return [np.flatnonzero(row).tolist() for row in found]

    def readable(self, record: Record) -> Record:
        return {
            "gold": [self.names[number] for number in record["label"]],
            "prediction": [self.names[number] for number in record["prediction"]],
            "probability": round(record["probability"], 6),
            "probabilities": dict(zip(self.names, record["probabilities"], strict=True)),
            "correct": record["label"] == record["prediction"],
        }

    def tables(self, records: Sequence[Record]) -> dict[str, Shown]:
        sides = (self._multi_hot([record[name] for record in records]) for name in ("label", "prediction"))
        return {"By label": by_label(self.names, *sides)}

    def balance(self, targets: Sequence[list[int]]) -> dict[str, int]:
        return counted(self.names, [number for target in targets for number in target])

    def settings(self) -> dict[str, Any]:
        return {**super().settings(), "label_separator": self.options.label_separator, "threshold": self.threshold}


class Number(_Head):
    """A number a row: one output, learnt by its squared distance, on the scale of the data."""

    problem_type, metric = labels.NUMBER, "pearson"

    def learn(self, rows: Sequence[Row]) -> None:
        if self.options.label_names is not None or self.options.class_weights == "balanced":
            option = "--class_weights balanced" if self.options.label_names is None else "--label_names"
            raise InputError(
                f"{rows[0].where}: column '{self.column}' holds numbers ({labels.NUMBER}), which {option} has no "
                "meaning for: leave it out, or say what the column holds with --problem_type"
            )
        self.names = [self.column]
        numbers = np.array([self.target(row) for row in rows])
        self.mean, self.deviation = float(numbers.mean()), float(numbers.std())
        if self.deviation == 0:
            raise InputError(
                f"{rows[0].where}: every training row has the number {self.mean:g} in column '{self.column}': there "
                "is nothing to learn; name another column with --label_column"
            )
        self.notes.append(f"numbers from {numbers.min():g} to {numbers.max():g}, mean {self.mean:.4g}")
        size = max(abs(self.mean), self.deviation)
        if size > 20 or self.deviation < 0.02:
            self.notes.append(
                "warning: an output begins near 0 and learns numbers of about 1 best: divide those of column "
                f"'{self.column}' by {size:.1g} in the data"
            )

    def target(self, row: Row) -> float:
        return labels.number_of(row, self.column)

    def losses(self, logits: Tensor, targets: Tensor, *, weighted: bool = False) -> Tensor:
        return (logits.squeeze(-1) - targets) ** 2

    def right(self, logits: Tensor, targets: Tensor) -> dict[str, Tensor]:
        return {"mean_absolute_error": (logits.squeeze(-1) - targets).abs()}

    def predictions(self, logits: Tensor) -> dict[str, Any]:
        return {"prediction": logits.squeeze(-1)}

    def metrics(self, predictions: Sequence[float], references: Sequence[float]) -> dict[str, float]:
        off = float(mean_absolute_error(references, predictions))
        return {**correlation(predictions, references), "mean_absolute_error": off}

    def baseline(self, train: Sequence[float], held_out: Sequence[float]) -> dict[str, float]:
        """Always the mean of the training numbers."""
        mean = float(np.mean(train))
        loss = float(np.mean((np.array(held_out) - mean) ** 2))
        return {"loss": loss, **self.metrics([mean] * len(held_out), held_out)}

    def readable(self, record: Record) -> Record:
        off = record["prediction"] - record["label"]
        return {"gold": record["label"], "prediction": round(record["prediction"], 6), "error": round(off, 6)}

    def tables(self, records: Sequence[Record]) -> dict[str, Shown]:
        gold, said = ([record[name] for record in records] for name in ("label", "prediction"))
        return {"Predictions by the right number": Points(gold, said)}

    def settings(self) -> dict[str, Any]:
        return {"mean": self.mean, "standard_deviation": self.deviation}


Head = SingleLabel | SeveralLabels | Number
