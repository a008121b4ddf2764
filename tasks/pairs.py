"""Pairs of texts, one to be written from the other, out of two columns or of one that holds both."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from lacuna.common.errors import InputError
from lacuna.tasks.rows import Row, columns_of

# Names that public data sets give a source and what is written from it, best guess first.
TARGETS_OF = {
    "source": ("target",),
    "src": ("tgt", "trg"),
    "input": ("output", "target"),
    "instruction": ("output", "response"),
    "prompt": ("completion", "response"),
    "article": ("highlights", "summary", "abstract"),
    "document": ("summary",),
    "dialogue": ("summary",),
    "text": ("summary", "title", "target"),
    "question": ("answer",),
}


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


def guess_columns(rows: Sequence[Row], *, source: str | None = None, target: str | None = None) -> tuple[str, str]:
    """The columns of the source and of the target; those not given are guessed, by name or as the two of text.

    Raises:
        InputError: a given column is not there, or nothing looks like two texts.
    """
    columns = columns_of(rows)
    for option, given in (("--source_column", source), ("--target_column", target)):
        if given is not None:
            rows[0].value(given, option=option)
    texts = [column for column in columns if isinstance(rows[0].fields[column], str)]
    if source is None and target is None:
        known = [(one, other) for one, others in TARGETS_OF.items() for other in others]
        named = next((pair for pair in known if pair[0] in texts and pair[1] in texts), None)
        if named is None and len(texts) != 2:
            raise InputError(
                f"{rows[0].where}: which of the columns {rows[0].shown(columns)} is the source and which is to be "
                "written from it? Name them with --source_column and --target_column"
            )
        return named or (texts[0], texts[1])
    others = [column for column in texts if column not in (source, target)]
    if source is None:
        source = next((name for name in TARGETS_OF if name in others), None)
    if source is not None and target is None:
        target = next((name for name in TARGETS_OF.get(source, ()) if name in others), None)
    if source is None or target is None:
        if len(others) != 1:
            what = (
                "the source? Name it with --source_column"
                if source is None
                else "the target? Name it with --target_column"
            )
            raise InputError(f"{rows[0].where}: which of the columns {rows[0].shown(others)} is {what}")
        source, target = source or others[0], target or others[0]
    return source, target


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
