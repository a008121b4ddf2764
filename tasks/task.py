"""What all tasks have in common: examples of a data set, what was last summarized, and what people are shown of it."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from lacuna.common.errors import InputError
from lacuna.common.work import Work
from lacuna.tasks.features import by_length
from lacuna.tasks.rows import Row, doubtful_names, some_of
from lacuna.tasks.splits import scarce_labels
from lacuna.tasks.tables import Matrix, Points, Table

Inputs = dict[str, Any]
"""One example: `input_ids` [length], `token_type_ids` [length] where the tokenizer makes them, and its targets."""


class Task(Work):
    """Labelled data as a `Work` of the loop; a task says how its batches, its loss and its metrics are made.

    A subclass reads its rows in `__init__`, calls `set_examples`, and has `collate`, `loss`, `evaluate`, `scores`,
    `baseline`, `predictions`, `tables` and `settings`.
    """

    name: str
    """As in `task.json`, by which `recipes/predict.py` knows what a model does."""
    metric: str
    """The one of `scores` that judges a model."""
    greater_is_better = True
    mistakes_heading = "The {count} most confident mistakes"
    """What the report calls the first of `mistakes`."""
    probability_note = ""
    """What the `probability` of `predictions` is that of, a sentence for the report."""

    def __init__(self, *, tokenizer: Any, max_length: int) -> None:
        """
        Args:
            tokenizer: a fast tokenizer with a padding token.
            max_length: tokens that an example is cut to, special tokens included.
        """
        self.tokenizer, self.max_length = tokenizer, max_length
        self.notes: list[str] = []
        """What was guessed, left out or cut, a line each, for people."""
        self.records: list[dict[str, Any]] = []
        """What `evaluate` returned of every held-out example, in the order of the data."""
        self.set_examples(train=[], held_out=[])

    def set_examples(self, *, train: Sequence[Inputs], held_out: Sequence[Inputs]) -> None:
        """Take the examples; those held out are evaluated from the shortest to the longest, with little padding."""
        self._train, self._eval = train, held_out
        self._eval_order = by_length(held_out)
        self.num_examples, self.num_eval_examples = len(train), len(held_out)

    @property
    def lengths(self) -> list[int]:
        """Tokens of each training example, by which the loop puts examples of like length into one micro-batch."""
        return [len(example["input_ids"]) for example in self._train]

    # What the loop asks for

    def example(self, row: int, index: int, progress: float = 0.0) -> Inputs:
        """Training example `row`; nothing in it is random, so `index` does not matter."""
        return self._train[row]

    def eval_example(self, row: int) -> Inputs:
        """Held-out example `row`, counted from the shortest; its "row" is its number in the data."""
        number = self._eval_order[row]
        return {**self._eval[number], "row": number}

    def collate(self, examples: list[Inputs]) -> dict[str, Tensor]:
        """Inputs padded to the longest, with their targets; `row` [batch] for held-out examples."""
        raise NotImplementedError

    def count_targets(self, batch: dict[str, Tensor]) -> dict[str, int]:
        """One target an example."""
        return {"examples": len(batch["input_ids"])}

    def summarize(self, records: list[dict[str, Any]]) -> dict[str, float]:
        """The mean loss in nats and `scores` over all records, in any order; they stay in `records`."""
        self.records = sorted(records, key=lambda record: record["row"])
        loss = math.fsum(record["loss"] for record in self.records) / max(len(self.records), 1)
        return {"loss": loss, **self.scores()}

    def scores(self) -> dict[str, float]:
        """Metrics of `records`."""
        raise NotImplementedError

    def baseline(self) -> dict[str, float]:
        """What is reached without a model, under the names of `scores`; empty where nothing is held out."""
        raise NotImplementedError

    # For people

    @property
    def num_judged(self) -> int:
        """How many things `scores` are about; other than `num_eval_examples` where examples are parts of them."""
        return self.num_eval_examples

    def predictions(self) -> list[dict[str, Any]]:
        """`records`, readable: what was given, `gold`, `prediction`, `correct`, and `probability` or `score`."""
        raise NotImplementedError

    def mistakes(self, predictions: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
        """Those of `predictions` that are wrong, the surest first, by their `probability` or else their `score`."""

        def sureness(prediction: Mapping[str, Any]) -> float:
            value = prediction.get("probability", prediction.get("score"))
            return -math.inf if value is None else float(value)

        return sorted((item for item in predictions if not item["correct"]), key=sureness, reverse=True)

    def tables(self) -> dict[str, Matrix | Table | Points]:
        """What the report shows of `records`, by heading, in text and as a picture (see `tasks.tables`)."""
        return {}

    def settings(self) -> dict[str, Any]:
        """What must be known to use the model on new rows: columns, lengths, thresholds. JSON, without `name`."""
        return {"max_length": self.max_length}

    def balance(self) -> Mapping[str, int]:
        """How many training examples there are of each label; empty where there are no labels."""
        return {}

    def balanced(self) -> tuple[str, int]:
        """What `balance` counts, and of how many shares are taken."""
        return "examples to learn from", self.num_examples

    def describe(self, examples: int = 0) -> list[str]:
        """`notes`, how many rows there are, and the first training examples as the model will see them."""
        lines = [*self.notes, f"{self.num_examples:,} examples to learn from, {self.num_eval_examples:,} held out"]
        if balance := self.balance():
            counted, total = self.balanced()
            parts = [f"{name} {count:,} ({count / max(total, 1):.1%})" for name, count in balance.items()]
            lines.append(f"label balance of the {counted}: {some_of(parts)}")
        for row in range(min(examples, self.num_examples)):
            lines += [f"example {row + 1}:", *(f"    {line}" for line in self.show(self._train[row]))]
        return lines

    def show(self, example: Inputs) -> list[str]:
        """One example in lines of text: its tokens, special ones included, and its targets."""
        return [self.tokenizer.decode(example["input_ids"])]

    def note_names(self, rows: Sequence[Row], *, texts: Sequence[str | None], label: str | None = None) -> None:
        """Warn where what names the columns of a table seems to be its first row; `texts` and `label` are columns."""
        if line := doubtful_names(rows, texts=[name for name in texts if name is not None], label=label):
            self.notes.append(line)

    def note_held_out(self, *, of: Sequence[Any], count: int, what: str = "rows", more: str = "") -> None:
        """Say how many of the training examples `of`, which have a `where`, are held out.

        Args:
            what: they are.
            more: by what they were chosen.

        Raises:
            InputError: none is, so that nobody could say what a model has learnt.
        """
        if not count:
            why = f"no label has two of the {len(of):,} training {what}"
            if len(of) == 1:
                why = f"this is the only training {what.removesuffix('s')}{self.doubt_of_one(of[0])}"
            raise InputError(
                f"{of[0].where}: {why}, so nothing can be held out to evaluate on: add {what}, or name a file of "
                "others with --eval_file"
            )
        self.notes.append(f"held out {count:,} of {len(of):,} training {what} for evaluation{more}")

    def doubt_of_one(self, example: Any) -> str:
        """What may be wrong with a file that has but one example, " (...)" in a message."""
        return ""

    def note_overlap(self, *, train: Sequence[Any], held_out: Sequence[Any]) -> None:
        """Warn of held-out rows that are training rows too.

        Args:
            train, held_out: of each row what makes it the same as another; hashable.
        """
        known = set(train)
        count = sum(row in known for row in held_out)
        if count:
            whole = " (are they the same file?)" if count == len(held_out) else ""
            self.notes.append(
                f"warning: {count:,} of {len(held_out):,} held-out rows are also in the training rows{whole}; the "
                "scores are too good by them"
            )

    def note_cut(self, lengths: Sequence[int], *, what: str = "training texts") -> None:
        """Say which share is cut; `lengths` are those after cutting."""
        cut = sum(length >= self.max_length for length in lengths)
        share = f"{cut / len(lengths):.1%} of the {what} reach" if cut else f"none of the {what} reaches"
        self.notes.append(f"{share} --max_length {self.max_length}{': cut there' if cut else ''}")

    def note_windows(self, owners: Sequence[int], *, what: str) -> None:
        """Say which share is too long for one window; `owners` has for each window the number of its text."""
        counts = Counter(owners)
        long = sum(count > 1 for count in counts.values())
        share = f"{long / len(counts):.1%} of the {what} are" if long else f"none of the {what} is"
        seen = " and are seen in several windows" if long else ""
        self.notes.append(f"{share} longer than --max_length {self.max_length}{seen}")

    def note_scarce(self, *, train: Mapping[str, int], held_out: Mapping[str, int], what: str = "rows") -> None:
        """Say which labels few of the held-out examples have, or none."""
        if line := scarce_labels(train=train, held_out=held_out, what=what):
            self.notes.append(line)

    def note_pairs(self) -> None:
        """Warn where the tokenizer puts nothing between two texts, so that a model cannot tell where one ends."""
        if not self.tokenizer.num_special_tokens_to_add(pair=True):
            self.notes.append(
                "warning: the tokenizer puts no token between two texts, which the model will see as one: add a "
                "template for pairs to its tokenizer.json"
            )
