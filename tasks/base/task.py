"""`Task`, the base class of all tasks: made from options, asked by the training loop, shown to people."""

import math
from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from torch import Tensor

from lacuna.common.errors import InputError
from lacuna.common.work import Work
from lacuna.tasks.base.columns import Layout, names_in
from lacuna.tasks.base.models import resolve_max_length
from lacuna.tasks.base.report import Shown
from lacuna.tasks.base.rows import Row, all_of, as_rows, some_of, split_groups, stratified_split

LESS_IS_BETTER = ("loss", "mean_absolute_error")
Inputs = dict[str, Any]
"""One example: `input_ids` [length], `token_type_ids` [length] where the tokenizer makes them, and its targets."""
Batch = dict[str, Tensor]  # tensors by name: a batch, or metrics
Reader = Callable[..., Sequence[Any]]  # what gives rows


class Task(Work):
    """Labelled data as a `Work` of the loop; a task says how its batches, its loss and its metrics are made.

    A subclass has `read`, `training_texts`, `encode`, `collate`, `loss`, `evaluate`, `scores`, `baseline`,
    `predictions`, `tables` and `settings`, perhaps `bag_of_words`.
    """

    name: str  # as in `task.json`, by which `recipes/predict.py` knows what a model does
    objective: str  # what a model is trained by, in words
    auto_class: str  # the Auto class of the head
    metric: str  # the one of `scores` that judges a model
    greater_is_better = True
    default_length = 256  # `--max_length` where it is not given and the model takes as many tokens
    writes = False  # whether the model generates text, so that a decoder wants its padding on the left
    label_names: list[str] | None = None  # the labels in the order of the model's outputs, where it has any
    mistakes_heading = "The {count} most confident mistakes"  # what the report calls the first of `mistakes`
    error: str | None = None  # what of `predictions` says how far off they are, where none is simply right or wrong
    probability_note = ""  # what the `probability` of `predictions` is that of, a sentence for the report
    pseudo_labels = ""
    """How many texts without labels a teacher labelled, and a digest of what it said; empty without one."""
    balance_of = "training examples"  # what `balance` counts

    def __init__(
        self,
        options: Any,
        *,
        train_rows: Sequence[Any],
        eval_rows: Sequence[Any] = (),
        tokenizer: Any,
        config: Any = None,
        seed: int = 0,
    ) -> None:
        """
        Args:
            options: those of the task's data, such as `ClassificationArguments`.
            train_rows: mappings, or records with `fields`, `path` and `line`.
            eval_rows: the same, held out; empty: a part of `train_rows` is, drawn by `seed`.
            tokenizer: a fast tokenizer with a padding token; None: rows are read and divided, and no more.
            config: that of the model, which limits the length of inputs.

        Raises:
            InputError: options or rows that cannot be used; the message has the row's file and line.
        """
        self.options, self.tokenizer, self.config, self.seed = options, tokenizer, config, seed
        self.notes: list[str] = []  # what was guessed, left out or cut, a line each, for people
        self.records: list[dict[str, Any]] = []
        """What `evaluate` returned of every held-out example, in the order of the data."""
        train, held_out = as_rows(train_rows, part="training"), as_rows(eval_rows, part="evaluation")
        if not train:
            raise InputError("there are no training rows: name a file that has some with --train_file")
        self.read(train, held_out)
        if tokenizer is not None:
            self.max_length = self.longest()  # tokens that an example is cut to, special tokens included
            self.encode()

    @classmethod
    def from_arguments(cls, options: Any, *, read: Reader, builtin: Reader | None = None, **parts: Any) -> Self:
        """The task with the rows of the files that the options name, or of `builtin` where they name none.

        `read`: file, perhaps a second one of targets, and what `options.reading` gives -> its rows. `parts`:
        tokenizer, configuration and seed.
        """

        def rows(part: str) -> Sequence[Any]:
            files = (getattr(options, f"{part}_{name}", None) for name in ("file", "target_file"))
            named = [file for file in files if file is not None]
            return read(*named, **options.reading()) if named else []

        train = builtin() if builtin is not None and options.train_file is None else rows("train")
        task = cls(options, train_rows=train, eval_rows=rows("eval"), **parts)
        if options.metric:
            known = {*task.baseline()} | ({"loss"} if hasattr(cls, "auto_class") else set())  # not of embeddings
            if options.metric not in known:
                raise InputError(f"--metric {options.metric} is none of this task's: {', '.join(sorted(known))}")
            task.metric, task.greater_is_better = options.metric, options.metric not in LESS_IS_BETTER
        return task

    def longest(self) -> int:
        """`max_length`: the requested one, or the default, if the model takes as much."""
        return resolve_max_length(
            asked=self.options.max_length, default=self.default_length, config=self.config, tokenizer=self.tokenizer
        )

    def read(self, train: list[Row], held_out: list[Row]) -> None:
        """Read the rows, say what was found, and `divide` them; needs no tokenizer."""
        raise NotImplementedError

    def training_texts(self) -> list[str]:
        """What a model reads of the training rows, without what it is to learn from them; a document each."""
        raise NotImplementedError

    def encode(self) -> None:
        """Tokenize what was read, and call `set_examples`."""
        raise NotImplementedError

    def head_options(self) -> dict[str, Any]:
        """Options of the head for `load_model`."""
        return {} if self.label_names is None else {"label_names": self.label_names}

    def set_examples(self, *, train: Sequence[Inputs], held_out: Sequence[Inputs]) -> None:
        """Take the examples; those held out are evaluated from the shortest to the longest, with little padding."""
        self._train, self._eval = train, held_out
        self._eval_order = sorted(range(len(held_out)), key=lambda number: len(held_out[number]["input_ids"]))
        self.num_examples, self.num_eval_examples = len(train), len(held_out)

    def divide(
        self,
        train: Sequence[Any],
        held_out: Sequence[Any],
        *,
        same: Callable[[Any], Hashable],
        group: Callable[[Any], Hashable] | None = None,
        strata: Callable[[Sequence[Any]], Sequence[int]] = lambda items: [0] * len(items),
        what: str = "rows",
        how: str = "",
        hint: str = "",
    ) -> tuple[list[Any], list[Any]]:
        """Training and held-out items, which have a `where`; without held-out ones a part of the training items.

        Args:
            same: what is equal of two items that are the same, of which one must not be held out.
            group: what items have in common that are held out together; None: single items are.
            strata: a number for each item; of those with the same number the same share is held out.
            what, how, hint: what the items are, how they are chosen, what may be wrong with a single one, in words.
        """
        if not held_out:
            share: dict[str, Any] = {"fraction": self.options.eval_fraction, "seed": self.seed}
            if group is not None:
                kept, out = split_groups(groups=[*map(group, train)], **share)
            else:
                kept, out = stratified_split(labels=strata(train), **share)
            if not out:
                only = f"this is the only training {what.removesuffix('s')}{hint}"
                why = only if len(train) == 1 else f"no label has two of the {len(train):,} training {what}"
                raise InputError(
                    f"{train[0].where}: {why}, so nothing can be held out to evaluate on: add {what}, or name a file "
                    "of others with --eval_file"
                )
            self.notes.append(f"held out {len(out):,} of {len(train):,} training {what} for evaluation{how}")
            train, held_out = [train[number] for number in kept], [train[number] for number in out]
        known = set(map(same, train))
        if count := sum(same(item) in known for item in held_out):
            whole = " (are they the same file?)" if count == len(held_out) else ""
            self.notes.append(
                f"warning: {count:,} of {len(held_out):,} held-out rows are also in the training rows{whole}; the "
                "scores are too good by them"
            )
        return list(train), list(held_out)

    # What the loop asks for

    @property
    def lengths(self) -> list[int]:
        return [len(example["input_ids"]) for example in self._train]

    def example(self, row: int, index: int) -> Inputs:
        """Training example `row`; nothing in it is random, so `index` does not matter."""
        return self._train[row]

    def eval_example(self, row: int) -> Inputs:
        """Held-out example `row`, counted from the shortest; its "row" is its number in the data."""
        number = self._eval_order[row]
        return {**self._eval[number], "row": number}

    def count_targets(self, batch: Batch) -> dict[str, int]:
        return {"examples": len(batch["input_ids"])}

    def summarize(self, records: list[dict[str, Any]]) -> dict[str, float]:
        """The mean loss in nats, and `scores`, over all records, in any order; they stay in `records`.

        A record has the `loss` of its example, or the sum of those of its `tokens`.
        """
        self.records = sorted(records, key=lambda record: record["row"])
        count = sum(record.get("tokens", 1) for record in self.records)
        return {"loss": math.fsum(record["loss"] for record in self.records) / max(count, 1), **self.scores()}

    def scores(self) -> dict[str, float]:
        """Metrics of `records`."""
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
        """Of `predictions` those that are wrong, the surest first, by their `probability` or else their `score`.

        Where there is an `error`, all of them, the largest first.
        """
        if error := self.error:
            return sorted(predictions, key=lambda item: -abs(item[error]))
        wrong = [item for item in predictions if not item["correct"]]
        return sorted(wrong, key=lambda item: item.get("probability", item.get("score", 0.0)), reverse=True)

    def tables(self) -> dict[str, Shown]:
        """What the report shows of `records`, by heading, in text and as a picture."""
        return {}

    def settings(self) -> dict[str, Any]:
        """What must be known to use the model on new rows: columns, lengths, thresholds. JSON, without `name`."""
        return {"max_length": self.max_length}

    def keep(self, results: Mapping[str, float], folder: Path) -> list[str]:
        """Write what the model answers better with into a folder; the names of the files."""
        return []

    def balance(self) -> Mapping[str, int]:
        """How many of the training examples, or of their parts, have each label; empty where there are no labels."""
        return {}

    def describe(self, examples: int = 0) -> list[str]:
        """`notes`, how many rows there are, and the first training examples as the model will see them."""
        lines = [*self.notes, f"{self.num_examples:,} examples to train on, {self.num_eval_examples:,} held out"]
        if balance := self.balance():
            total = self.num_examples if "examples" in self.balance_of else sum(balance.values())
            parts = [f"{name} {count:,} ({count / max(total, 1):.1%})" for name, count in balance.items()]
            lines.append(f"label balance of the {self.balance_of}: {some_of(parts)}")
        for number in range(min(examples, self.num_examples)):
            lines += [f"example {number + 1}:", *(f"    {line}" for line in self.show(self._train[number]))]
        return lines

    def show(self, example: Inputs) -> list[str]:
        """One example in lines of text: its tokens, special ones included, and its targets."""
        return [self.tokenizer.decode(example["input_ids"])]

    # Notes

    def find_columns(self, layout: Layout, rows: Sequence[Row], *, instead: str | None = None) -> dict[str, Any]:
        """The columns of the training rows by the options that name them; and a note on them, or `instead` of it."""
        given = {name: getattr(self.options, name, None) for name in layout.columns}
        found = layout.find(rows, **given)
        parts = []
        for option, value in found.items():
            if columns := names_in(value):
                what, plural = option.rsplit("_", 1)[0].replace("_", " "), "s" * (len(columns) > 1)
                parts.append(f"{what} from column{plural} " + ", ".join(f"'{name}'" for name in columns))
        guessed = any(found[name] and not given[name] for name in found)
        how = f" (inferred; {all_of([f'--{option}' for option in found])} override it)" if guessed else ""
        self.notes.append(instead or ", ".join(parts) + how)
        if hint := rows[0].unnamed():
            self.notes.append(f"warning: {rows[0].where}: {hint}")
        return found

    def note_cut(self, cut: int, *, of: int, what: str = "texts", option: str = "max_length") -> None:
        """Say which share of the training texts is cut."""
        share = f"{cut / of:.1%} of the training {what} are" if cut else f"none of the training {what} is"
        self.notes.append(f"{share} cut to --{option} {getattr(self, option)}")

    def note_windows(self, owners: Sequence[int], *, what: str) -> None:
        """Say which share is too long for one window; `owners` has for each window the number of its text."""
        counts = Counter(owners)
        long = sum(count > 1 for count in counts.values())
        share = f"{long / len(counts):.1%} of the {what} are" if long else f"none of the {what} is"
        seen = " and are seen in several windows" if long else ""
        self.notes.append(f"{share} longer than --max_length {self.max_length}{seen}")

    def note_pairs(self) -> None:
        """Warn where the tokenizer puts nothing between two texts, so that a model cannot tell where one ends."""
        if not self.tokenizer.num_special_tokens_to_add(pair=True):
            self.notes.append(
                "warning: the tokenizer puts no token between two texts, which the model will see as one: add a "
                "template for pairs to its tokenizer.json"
            )
