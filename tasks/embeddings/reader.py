"""Reading texts that belong together (pairs, triples, scored pairs, NLI): options, columns and kinds of rows."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from lacuna.common.errors import InputError
from lacuna.common.options import check_range
from lacuna.tasks.base.arguments import (
    ROWS,
    TaskArguments,
    column_option,
    data_option,
    essential_option,
    max_length_option,
    optimizer_option,
    rest_option,
)
from lacuna.tasks.base.columns import TEXT, Column, Layout, only_ones
from lacuna.tasks.base.rows import Row, as_number, columns_of


@dataclass
class EmbeddingArguments(TaskArguments):
    """Which texts that belong together to learn from, and how; training is that of sentence-transformers."""

    train_file: str | None = essential_option(
        None,
        f"Rows to train on: scored pairs, pairs, triples, or premise, hypothesis and label; {ROWS}.",
    )
    kind: Literal["auto", "scored", "pairs", "triples", "nli"] = data_option(
        "auto", "What the rows are: scored (pairs), pairs, triples, nli or auto (inferred from columns and printed)."
    )
    text_column: str | None = column_option("Column of the first text.")
    text_pair_column: str | None = column_option("Column of the matching text.")
    negative_column: str | None = column_option("Column of a text that does not match.")
    label_column: str | None = column_option("Column of the score or label.")
    max_length: int | None = max_length_option("Truncate texts to this many tokens.", 128)
    output_dir: str = essential_option("runs/embeddings", "Where the model, predictions and metrics are written.")
    push_to_hub: str | None = rest_option(
        None, "Private repository on the Hugging Face Hub to push the model to at the end.", metavar="OWNER/NAME"
    )
    batch_size: int = optimizer_option(
        64, "Rows per step, over all processes; the texts of other rows serve as in-batch negatives."
    )
    max_steps: int | None = optimizer_option(None, "Stop after this many steps.")
    max_epochs: float = essential_option(3.0, "Stop after this many passes over the data.")
    learning_rate: float | None = essential_option(
        None, "Peak learning rate. Default: automatic, scaled to the RMS of the weights."
    )
    warmup_steps: float = optimizer_option(0.06, "Warmup steps; below 1, a fraction of the run.")
    eval_steps: float = rest_option(
        0.2, "Steps between evaluations; below 1, a fraction of the run; 0 evaluates only at the end."
    )
    mixed_precision: Literal["auto", "no", "bf16"] = rest_option("auto", "bf16, no, or auto: bf16 where it is fast.")
    seed: int = rest_option(0, "Seed of the held-out part, sample order and dropout.")
    dry_run: bool = rest_option(False, "Show what would be trained, then exit without training.")

    def __post_init__(self) -> None:
        super().__post_init__()
        check_range(self, "batch_size", "max_steps", above=0)
        check_range(self, "max_epochs", "learning_rate", above=0)
        check_range(self, "warmup_steps", "eval_steps", "seed", at_least=0)


EMBEDDINGS = Layout(
    {
        "text_column": Column("a text", "", TEXT),
        "text_pair_column": Column("one that belongs to it", "", TEXT),
        "negative_column": Column("one that does not", "negative neg hard_negative", optional=True),
        "label_column": Column(
            "the label",
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
class RelatedTexts:
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


def read_related(rows: Sequence[Row], columns: Columns, *, kind: str) -> tuple[list[RelatedTexts], list[str]]:
    """What the rows hold, and notes on what was made of them and left out.

    Hypotheses that follow from a premise make triples with those that contradict it, or pairs where no premise has
    both.
    """
    if kind == TRIPLES and columns.negative is None:
        raise InputError(f"{rows[0].where}: triples need a third text: name its column with --negative_column")
    if kind in (SCORED, NLI) and columns.label is None:
        raise InputError(
            f"{rows[0].where}: which of {rows[0].shown(columns_of(rows))} is the label? Name it with --label_column"
        )
    found: list[RelatedTexts] = []
    for row in rows:
        first = row.text(columns.first, option="--text_column").strip()
        second = row.text(columns.second, option="--text_pair_column").strip()
        negative = row.text(str(columns.negative), option="--negative_column").strip() if kind == TRIPLES else None
        score = _score(row, str(columns.label)) if kind == SCORED else None
        found.append(RelatedTexts(first, second, negative, score, row.where))
    if kind != NLI:
        return found, []
    return _from_premises(found, [_relation(row, str(columns.label)) for row in rows])


def _from_premises(
    rows: Sequence[RelatedTexts], relations: Sequence[str | None]
) -> tuple[list[RelatedTexts], list[str]]:
    by_premise: dict[str, dict[str | None, list[RelatedTexts]]] = {}
    for row, relation in zip(rows, relations, strict=True):
        by_premise.setdefault(row.first, {}).setdefault(relation, []).append(row)
    pairs = [row for groups in by_premise.values() for row in groups.get("entailment", [])]
    triples = [
        RelatedTexts(row.first, row.second, other.second, None, row.where)
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
