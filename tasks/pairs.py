"""Pairs of texts, one to be written from the other, out of two columns or of one that holds both."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from lacuna.tasks.columns import SEQUENCE_TO_SEQUENCE
from lacuna.tasks.rows import Row

guess_columns = SEQUENCE_TO_SEQUENCE.find


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
    """The pairs of rows, without blanks around them.

    Raises:
        InputError: a text is missing or empty.
    """
    return [
        TextPair(
            row.text(source, option="--source_column").strip(),
            row.text(target, option="--target_column").strip(),
            row.where,
        )
        for row in rows
    ]
