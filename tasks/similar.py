"""Texts that belong together: pairs with a score, pairs, triples, or premises with hypotheses, out of rows."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from lacuna.common.errors import InputError
from lacuna.tasks.rows import Row, columns_of

SCORED, PAIRS, TRIPLES, NLI = "scored", "pairs", "triples", "nli"
KINDS = (SCORED, PAIRS, TRIPLES, NLI)

# Names that public data sets give their columns, best guess first.
_SECOND_OF = {
    "anchor": ("positive",),
    "query": ("positive", "document", "passage", "answer", "response", "pos"),
    "premise": ("hypothesis",),
    "sentence1": ("sentence2",),
    "sentence_A": ("sentence_B",),
    "text1": ("text2",),
    "question1": ("question2",),
    "question": ("positive", "answer", "context", "passage"),
    "title": ("body", "abstract", "text"),
    "text": ("text_pair", "positive"),
}
_NEGATIVES = ("negative", "neg", "hard_negative")
_LABELS = (
    "score",
    "similarity",
    "similarity_score",
    "relatedness_score",
    "gold_label",
    "label",
    "labels",
    "is_duplicate",
)
_RELATIONS = ("entailment", "neutral", "contradiction")
_UNKNOWN = {"-1", "-", ""}


@dataclass(frozen=True, slots=True)
class Columns:
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


def guess_columns(
    rows: Sequence[Row],
    *,
    first: str | None = None,
    second: str | None = None,
    negative: str | None = None,
    label: str | None = None,
) -> Columns:
    """The columns; those not given are guessed by name, or the only two of text are the texts.

    Raises:
        InputError: a given column is not there, or nothing looks like two texts.
    """
    there = columns_of(rows)
    given = {"text_column": first, "text_pair_column": second, "negative_column": negative, "label_column": label}
    for option, name in given.items():
        if name is not None:
            rows[0].value(name, option=f"--{option}")
    free = [name for name in there if name not in given.values()]
    negative = negative or next((name for name in _NEGATIVES if name in free), None)
    label = label or next((name for name in _LABELS if name in free), None)
    texts = [name for name in free if isinstance(rows[0].fields[name], str) and name not in (negative, label)]
    if first is None and second is None:
        known = [(one, other) for one, others in _SECOND_OF.items() for other in others]
        named = next((pair for pair in known if pair[0] in texts and pair[1] in texts), None)
        if named is None and len(texts) == 2:
            named = texts[0], texts[1]
        first, second = named or (None, None)
    elif first is not None and second is None:
        likely = [name for name in _SECOND_OF.get(first, ()) if name in texts] or texts
        second = likely[0] if len(likely) == 1 or likely is not texts else None
    elif len(texts) == 1:
        first = first or texts[0]
    if first is None or second is None:
        raise InputError(
            f"{rows[0].where}: which of the columns {rows[0].shown(there)} hold the texts that belong together? Name "
            "them with --text_column and --text_pair_column"
        )
    return Columns(first, second, negative, label)


def kind_of(rows: Sequence[Row], columns: Columns) -> str:
    """Which of `KINDS` the rows are, told by their columns and by the values of the label."""
    if columns.negative is not None:
        return TRIPLES
    if columns.label is None:
        return PAIRS
    given = [row.fields.get(columns.label) for row in rows]
    values = {str(value).strip().lower() for value in given if value is not None} - _UNKNOWN
    numbers = {"0", "1", "2"}
    if values <= set(_RELATIONS) or (columns.first == "premise" and values <= numbers):
        return NLI
    return SCORED


def _score(row: Row, column: str) -> float:
    value = row.value(column, option="--label_column")
    try:
        number = math.nan if isinstance(value, bool) or value is None else float(value)
    except (TypeError, ValueError):
        number = math.nan
    if not math.isfinite(number):
        raise InputError(
            f"{row.where}: column '{column}' holds {value!r}, not a number that says how alike the texts are: mend "
            "the row, or name another column with --label_column"
        )
    return number


def _relation(row: Row, column: str) -> str | None:
    """Entailment, neutral or contradiction; None where nobody could agree on it.

    Raises:
        InputError: it is something else.
    """
    value = row.value(column, option="--label_column")
    name = str(value if value is not None else "").strip().lower()
    if name in _UNKNOWN:
        return None
    if name in ("0", "1", "2"):
        return _RELATIONS[int(name)]
    if name not in _RELATIONS:
        raise InputError(
            f"{row.where}: label {value!r} in column '{column}' is none of {', '.join(_RELATIONS)} (or 0, 1, 2): mend "
            "the row, or name another column with --label_column"
        )
    return name


def read_together(rows: Sequence[Row], columns: Columns, *, kind: str) -> tuple[list[Together], list[str]]:
    """What the rows hold, and notes on what was made of them and left out.

    Of premises with hypotheses, those that follow are made triples with those that contradict the same premise; where
    no premise has both, they are pairs.

    Raises:
        InputError: a text or a label is missing or cannot be used.
    """
    options = {"first": "--text_column", "second": "--text_pair_column", "negative": "--negative_column"}
    if kind == TRIPLES and columns.negative is None:
        raise InputError(f"{rows[0].where}: triples need a third text: name its column with --negative_column")
    if kind in (SCORED, NLI) and columns.label is None:
        raise InputError(
            f"{rows[0].where}: which of {rows[0].shown(columns_of(rows))} is the label? Name it with --label_column"
        )
    found: list[Together] = []
    relations: list[str | None] = []
    for row in rows:
        first, second = (
            row.text(getattr(columns, name), option=options[name]).strip() for name in ("first", "second")
        )
        negative, score = None, None
        if kind == TRIPLES and columns.negative is not None:
            negative = row.text(columns.negative, option=options["negative"]).strip()
        if kind == SCORED and columns.label is not None:
            score = _score(row, columns.label)
        if kind == NLI and columns.label is not None:
            relations.append(_relation(row, columns.label))
        found.append(Together(first, second, negative, score, row.where))
    return _from_premises(found, relations) if kind == NLI else (found, [])


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
    kept, what = (
        (triples, "triples of a premise, what follows and what contradicts it") if triples else (pairs, "pairs")
    )
    used = 2 * len(triples) if triples else len(pairs)
    return kept, [
        f"of {len(rows):,} premises with a hypothesis {used:,} make {len(kept):,} {what}; the others are left out"
    ]
