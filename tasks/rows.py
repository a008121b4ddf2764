"""Rows in, predictions out: labelled rows that know where they came from, and a readable file of what became of them.

A task takes any sequence of mappings, or of records with `fields`, `path` and `line` (what `corpus.read_records`
gives); the latter make its errors name file and line.
"""

import json
import math
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lacuna.common.errors import InputError

_NAMED_BY_FIRST_LINE = re.compile(r"\.[ct]sv(\.gz|\.zst)?:\d+$", flags=re.IGNORECASE)
_LONGEST_NAME, _LONGEST_NAME_IN_WORDS = 40, 5
MOST_NAMED = 30
"""Labels that a line for people names."""


@dataclass(frozen=True, slots=True)
class Row:
    """One labelled row and the place it came from, in words."""

    fields: Mapping[str, Any]
    where: str

    def value(self, column: str, *, option: str) -> Any:
        """The value of a column.

        Raises:
            InputError: the row has no such column; `option` is the command-line option that names it.
        """
        if column not in self.fields:
            raise InputError(
                f"{self.where}: no column '{column}'; the columns there are {self.shown(sorted(self.fields))}: "
                f"name one with {option}"
            )
        return self.fields[column]

    def require(self, columns: Sequence[str], *, remedy: str) -> None:
        """See that columns are there which no option names.

        Raises:
            InputError: some are not; all of these are named. `remedy` is what to do.
        """
        missing = [f"'{name}'" for name in columns if name not in self.fields]
        if missing:
            named = " or ".join(part for part in (", ".join(missing[:-1]), missing[-1]) if part)
            raise InputError(
                f"{self.where}: no column {named}; the columns there are {self.shown(sorted(self.fields))}: {remedy}"
            )

    def shown(self, columns: Iterable[str]) -> str:
        """Columns, for a message; with a question for .csv and .tsv, of which the first line may hold no names."""
        names = [_cut(name) for name in columns]
        return f"{names}{' (does the first line hold names?)' if _NAMED_BY_FIRST_LINE.search(self.where) else ''}"

    def text(self, column: str, *, option: str | None) -> str:
        """The value of a column that holds text.

        Args:
            option: the command-line option that names it; None where there is none, and `require` was asked.

        Raises:
            InputError: the column is absent, its value is not a string or has nothing but blanks.
        """
        value = self.fields[column] if option is None else self.value(column, option=option)
        if not isinstance(value, str):
            remedy = "mend the row" if option is None else f"name the text column with {option}"
            raise InputError(f"{self.where}: column '{column}' holds {value!r}, not text: {remedy}")
        if not value.strip():
            raise InputError(f"{self.where}: column '{column}' is empty: remove the row or fill in its text")
        return value


def _cut(name: str) -> str:
    return name if len(name) <= _LONGEST_NAME else f"{name[: _LONGEST_NAME - 1]}…"


def as_rows(records: Iterable[Any], *, part: str) -> list[Row]:
    """Give every record its place in words.

    Args:
        records: mappings, or objects with `fields`, `path` and `line`.
        part: name of the part of the data ("train", "evaluation"), for records without a file.

    Raises:
        InputError: a record is neither.
    """
    rows = []
    for number, record in enumerate(records, start=1):
        if isinstance(record, Row):
            rows.append(record)
        elif isinstance(record, Mapping):
            rows.append(Row(fields=record, where=f"{part} row {number}"))
        elif isinstance(getattr(record, "fields", None), Mapping):
            rows.append(Row(fields=record.fields, where=f"{record.path}:{record.line}"))
        else:
            raise InputError(f"{part} row {number} is a {type(record).__name__}, not a mapping of columns to values")
    return rows


def columns_of(rows: Sequence[Row]) -> list[str]:
    """The columns of the first row, in its order."""
    return list(rows[0].fields) if rows else []


def doubtful_names(rows: Sequence[Row], *, texts: Sequence[str], label: str | None = None) -> str | None:
    """A warning where the columns of a .csv or .tsv are named by what seems to be its first row, which is lost then.

    Args:
        texts, label: names of the columns that are read.
    """
    if not rows or not _NAMED_BY_FIRST_LINE.search(rows[0].where):
        return None
    why = None
    if any(len(name.split()) > 1 for name in texts):  # a single word seems to be a name
        sentence = next((name for name in texts if len(name.split()) > _LONGEST_NAME_IN_WORDS), None)
        if label is not None and any(str(row.fields.get(label)).strip() == label.strip() for row in rows):
            why = f"the column of labels is called {_cut(label)!r}, as one of its labels is"
        elif label is None and sentence is not None:
            why = f"a column is called {_cut(sentence)!r}, which reads like a text"
    if why is None:
        return None
    return f"warning: {why}: does the first line of the file hold names? If not, put some above it"


def some_of(parts: Sequence[str]) -> str:
    """Parts of a line for people, of which the first are enough."""
    more = f" and {len(parts) - MOST_NAMED} more" if len(parts) > MOST_NAMED else ""
    return ", ".join(parts[:MOST_NAMED]) + more


def json_line(record: Mapping[str, Any]) -> str:
    """A record as a line of JSON; numbers that JSON has not (infinity) become null."""
    finite = {k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in record.items()}
    line = json.dumps(finite, ensure_ascii=False)
    try:
        line.encode()
    except UnicodeEncodeError:  # half of a surrogate pair, which "\ud800" in somebody's .jsonl is
        line = json.dumps(finite)
    return line + "\n"


def write_predictions(*, predictions: Iterable[Mapping[str, Any]], path: Path) -> int:
    """Write one JSON object a line, in full or not at all, and return how many.

    The file appears under its name only when it is complete.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    count = 0
    try:
        with temporary.open("w", encoding="utf-8") as file:
            for prediction in predictions:
                file.write(json_line(prediction))
                count += 1
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
    return count
