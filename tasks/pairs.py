"""Texts that belong together, out of rows: one to be written from the other, or alike as their vectors are to be."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from lacuna.common.errors import InputError
from lacuna.tasks.columns import EMBEDDINGS
from lacuna.tasks.labels import as_number
from lacuna.tasks.rows import Row, columns_of

SCORED, PAIRS, TRIPLES, NLI = "scored", "pairs", "triples", "nli"
KINDS = (SCORED, PAIRS, TRIPLES, NLI)
_RELATIONS = ("entailment", "neutral", "contradiction")
_NUMBERS = ("0", "1", "2")
_UNKNOWN = {"-1", "-", ""}


@dataclass(frozen=True, slots=True)
class TextPair:
    """A source and the text to be written from it."""

    source: str
    target: str
    where: str


def unfold(rows: Sequence[Row]) -> list[Row]:
    """Rows whose column "translation" holds {"en": ..., "de": ...}, as on the Hub, get the columns en and de."""
    unfolded = []
    for row in rows:
        inner = row.fields.get("translation")
        whole = {name: value for name, value in row.fields.items() if name != "translation"}
        unfolded.append(Row({**inner, **whole}, row.where) if isinstance(inner, Mapping) else row)
    return unfolded


def read_pairs(rows: Sequence[Row], *, source: str, target: str) -> list[TextPair]:
    """The pairs of rows, without blanks around them."""
    pairs = []
    for row in rows:
        given = row.text(source, option="--source_column").strip()
        pairs.append(TextPair(given, row.text(target, option="--target_column").strip(), row.where))
    return pairs


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


def guess_columns(rows: Sequence[Row], **given: Any) -> Columns:
    """The columns, as `Layout.find` finds them."""
    return Columns(*EMBEDDINGS.find(rows, **given))


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
