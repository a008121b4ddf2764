"""Texts that belong together, alike as their vectors are to be: options, columns and kinds of rows."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from lacuna.common.errors import InputError
from lacuna.common.options import check_range, option
from lacuna.tasks.base.arguments import TaskArguments
from lacuna.tasks.base.columns import TEXT, Column, Layout, only_ones
from lacuna.tasks.base.rows import Row, as_number, columns_of


@dataclass
class EmbeddingArguments(TaskArguments):
    """Which texts that belong together to learn from, and how; training is that of sentence-transformers."""

    train_file: str | None = option(
        None,
        "Rows to learn from (.jsonl, .csv, .tsv, .parquet, a folder saved by `datasets`, OWNER/NAME:CONFIG:SPLIT of "
        "the Hub): two texts with a score, two that belong together, three, or premise, hypothesis and label.",
    )
    eval_file: str | None = option(None, "Rows to evaluate on. Default: a part of the training rows.")
    kind: Literal["auto", "scored", "pairs", "triples", "nli"] = option(
        "auto", "What the rows are: pairs with a score, pairs, triples, or nli. auto: told by the columns, and said."
    )
    text_column: str | None = option(None, "Column of the first text. Default: guessed, and said.")
    text_pair_column: str | None = option(None, "Column of the one that belongs to it. Default: guessed, and said.")
    negative_column: str | None = option(None, "Column of one that does not. Default: guessed, and said.")
    label_column: str | None = option(None, "Column of the score or label. Default: guessed, and said.")
    max_length: int | None = option(None, "Tokens to cut a text to. Default: 128, or what the model takes if less.")
    eval_fraction: float = option(0.1, "Share of the training rows to hold out when there is no --eval_file.")
    output_dir: str = option("runs/embeddings", "Folder for the model, predictions and metrics.")
    batch_size: int = option(
        64, "Rows in one step, over all processes; texts of other rows are what a text is told apart from."
    )
    max_steps: int | None = option(None, "Stop after this many steps.")
    max_epochs: float = option(3.0, "Stop after this many passes over the data.")
    learning_rate: float | None = option(None, "Peak learning rate. Default: in proportion to the weights.")
    warmup_steps: float = option(0.06, "Steps of warm-up; below 1 a share of the run.")
    eval_steps: float = option(0.2, "Steps between evaluations; below 1 a share of the run; 0 only at the end.")
    mixed_precision: Literal["auto", "no", "bf16"] = option("auto", "bf16, no, or auto: bf16 where it is fast.")
    seed: int = option(0, "Decides the held-out part, sample order and dropout.")
    dry_run: bool = option(False, "Show what would be learned; nothing is trained or written.")

    def __post_init__(self) -> None:
        super().__post_init__()
        check_range(self, "batch_size", "max_steps", above=0)
        check_range(self, "max_epochs", "learning_rate", above=0)
        check_range(self, "warmup_steps", "eval_steps", "seed", at_least=0)


EMBEDDINGS = Layout(
    {
        "first": Column("a text", "--text_column", "", TEXT),
        "second": Column("one that belongs to it", "--text_pair_column", "", TEXT),
        "negative": Column("one that does not", "--negative_column", "negative neg hard_negative", optional=True),
        "label": Column(
            "the label",
            "--label_column",
            "score similarity similarity_score relatedness_score gold_label label labels is_duplicate",
            optional=True,
        ),
    },
    pairs={
        "anchor": "positive",
        "query": "positive document passage answer response pos",
        "premise": "hypothesis",
        "sentence1": "sentence2",
        "sentence_A": "sentence_B",
        "text1": "text2",
        "question1": "question2",
        "question": "positive answer context passage",
        "title": "body abstract text",
        "text": "text_pair positive",
    },
    by_content=only_ones,
)

SCORED, PAIRS, TRIPLES, NLI = "scored", "pairs", "triples", "nli"

KINDS = (SCORED, PAIRS, TRIPLES, NLI)

_RELATIONS = ("entailment", "neutral", "contradiction")

_NUMBERS = ("0", "1", "2")

_UNKNOWN = {"-1", "-", ""}


class Columns(NamedTuple):
    """Where the texts and the label are; `negative` and `label` may be None."""

    first: str
    second: str
    negative: str | None
    label: str | None


@dataclass(frozen=True, slots=True)
class Together:
    """Two texts that belong together as much as `score` says (None: they do), and one that does not."""

    first: str
    second: str
    negative: str | None
    score: float | None
    where: str

    @property
    def texts(self) -> tuple[str, ...]:
        """The two or three texts."""
        return (self.first, self.second) if self.negative is None else (self.first, self.second, self.negative)


def kind_of(rows: Sequence[Row], columns: Columns) -> str:
    """Which of `KINDS` the rows are, told by their columns and by the values of the label."""
    if columns.negative is not None:
        return TRIPLES
    if columns.label is None:
        return PAIRS
    given = [row.fields.get(columns.label) for row in rows]
    values = {str(value).strip().lower() for value in given if value is not None} - _UNKNOWN
    if values <= set(_RELATIONS) or (columns.first == "premise" and values <= set(_NUMBERS)):
        return NLI
    return SCORED


def _score(row: Row, column: str) -> float:
    value = row.value(column, option="--label_column")
    number = as_number(value)
    if number is None:
        raise InputError(
            f"{row.where}: column '{column}' holds {value!r}, not a number that says how alike the texts are: mend "
            "the row, or name another column with --label_column"
        )
    return number


def _relation(row: Row, column: str) -> str | None:
    """Entailment, neutral or contradiction; None where nobody could agree on it."""
    value = row.value(column, option="--label_column")
    name = "" if value is None else str(value).strip().lower()
    if name in _UNKNOWN:
        return None
    if name not in (*_RELATIONS, *_NUMBERS):
        raise InputError(
            f"{row.where}: label {value!r} in column '{column}' is none of {', '.join(_RELATIONS)} (or 0, 1, 2): mend "
            "the row, or name another column with --label_column"
        )
    return _RELATIONS[int(name)] if name in _NUMBERS else name


def read_together(rows: Sequence[Row], columns: Columns, *, kind: str) -> tuple[list[Together], list[str]]:
    """What the rows hold, and notes on what was made of them and left out.

    Of premises with hypotheses, those that follow are made triples with those that contradict the same premise; where
    no premise has both, they are pairs.
    """
    if kind == TRIPLES and columns.negative is None:
        raise InputError(f"{rows[0].where}: triples need a third text: name its column with --negative_column")
    if kind in (SCORED, NLI) and columns.label is None:
        raise InputError(
            f"{rows[0].where}: which of {rows[0].shown(columns_of(rows))} is the label? Name it with --label_column"
        )
    found: list[Together] = []
    for row in rows:
        first = row.text(columns.first, option="--text_column").strip()
        second = row.text(columns.second, option="--text_pair_column").strip()
        negative = row.text(str(columns.negative), option="--negative_column").strip() if kind == TRIPLES else None
        score = _score(row, str(columns.label)) if kind == SCORED else None
        found.append(Together(first, second, negative, score, row.where))
    if kind != NLI:
        return found, []
    return _from_premises(found, [_relation(row, str(columns.label)) for row in rows])


def _from_premises(rows: Sequence[Together], relations: Sequence[str | None]) -> tuple[list[Together], list[str]]:
    by_premise: dict[str, dict[str | None, list[Together]]] = {}
    for row, relation in zip(rows, relations, strict=True):
        by_premise.setdefault(row.first, {}).setdefault(relation, []).append(row)
    pairs = [row for groups in by_premise.values() for row in groups.get("entailment", [])]
    triples = [
        Together(row.first, row.second, other.second, None, row.where)
        for groups in by_premise.values()
        for row, other in zip(groups.get("entailment", []), groups.get("contradiction", []), strict=False)
    ]
    if not pairs:
        where = rows[0].where if rows else "the training rows"
        raise InputError(f"{where}: no row is labelled {_RELATIONS[0]}, so no two texts are known to belong together")
    kept, used, what = pairs, len(pairs), "pairs"
    if triples:
        kept, used, what = triples, 2 * len(triples), "triples of a premise, what follows and what contradicts it"
    note = f"of {len(rows):,} premises with a hypothesis {used:,} make {len(kept):,} {what}; the others are left out"
    return kept, [note]
