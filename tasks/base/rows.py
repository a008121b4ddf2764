"""Labelled rows that know their file and line: values, splits into training and held-out parts, and writing rows."""

import csv
import json
import math
import re
from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from lacuna.common.errors import InputError
from lacuna.common.files import replacing

# A table with a row in its first line has its names from --column_names.
_NAMED_BY_FIRST_LINE = re.compile(r"\.[ct]sv(\.gz|\.zst)?:(?!1$)\d+$", flags=re.IGNORECASE)
_LONGEST_NAME, _MOST_WORDS = 40, 5
_HALVES = re.compile("[\ud800-\udfff]")
_BREAKS = re.compile(r"[\t\r\n]")
MOST_NAMED = 30  # labels that a line for people names
ENDINGS = (".jsonl", ".csv", ".tsv")  # of files that `write_rows` writes


@dataclass(frozen=True, slots=True)
class Row:
    """One labelled row and the place it came from, in words."""

    fields: Mapping[str, Any]
    where: str

    def value(self, column: str, *, option: str | None) -> Any:
        """The value of a column, which `option` names, if one does; InputError where there is no such column."""
        self.require([column], remedy="mend the row" if option is None else f"name one with {option}")
        return self.fields[column]

    def require(self, columns: Sequence[str], *, remedy: str) -> None:
        """Raise InputError where columns are missing; it names all of them, and the remedy."""
        if missing := [f"'{name}'" for name in columns if name not in self.fields]:
            there = self.shown(sorted(self.fields))
            raise InputError(
                f"{self.where}: no column {all_of(missing, 'or')}; the columns there are {there}: {remedy}"
            )

    def shown(self, columns: Iterable[str]) -> str:
        """Columns, for a message; with a hint for .csv and .tsv, of which the first line may hold no names."""
        names = [name if len(name) <= _LONGEST_NAME else f"{name[: _LONGEST_NAME - 1]}…" for name in columns]
        asked = "does the first line hold names? If not, name the columns with --column_names"
        hint = self.unnamed() or (asked if self.below_names else "")
        return f"{names} ({hint})" if hint else f"{names}"

    @property
    def below_names(self) -> bool:
        """Whether it is of a .csv or .tsv whose first line was taken for the names of columns."""
        return bool(_NAMED_BY_FIRST_LINE.search(self.where))

    def unnamed(self, columns: Iterable[str] | None = None) -> str:
        """A hint where the first line of a table looks like data and not like names of columns; else empty."""
        for name in (columns or self.fields) if self.below_names else ():
            if len(name) > _LONGEST_NAME or len(name.split()) > _MOST_WORDS or as_number(name) is not None:
                return "the first line looks like data and not like names: name the columns with --column_names"
        return ""

    def text(self, column: str, *, option: str | None) -> str:
        """The text of a column, which `option` names, if one does; InputError where it is no text, or an empty one."""
        value = self.value(column, option=option)
        remedy = "mend the row" if option is None else f"name the text column with {option}"
        if isinstance(value, bytes):
            remedy = "decode its bytes first"
        if value is not None and not isinstance(value, str):
            raise InputError(f"{self.where}: column '{column}' holds {repr(value)[:80]}, not text: {remedy}")
        if value is None or not value.strip():
            raise InputError(f"{self.where}: column '{column}' is empty: remove the row or fill in its text")
        if half := _HALVES.search(value):
            raise InputError(
                f"{self.where}: column '{column}' holds {half[0]!r}, which is half a character: mend the row"
            )
        return value


def listed(row: Row, column: str, *, option: str) -> list[Any]:
    """A value that is a list, or text that holds one: JSON, or with blanks between its parts."""
    value = row.value(column, option=option)
    if value is None or isinstance(value, list | tuple):
        return list(value or ())
    if not isinstance(value, str):
        raise InputError(f"{row.where}: column '{column}' holds {value!r}, not a list: name another with {option}")
    if not value.lstrip().startswith("["):
        return value.split()
    try:
        return list(json.loads(value))
    except ValueError as error:
        raise InputError(
            f"{row.where}: column '{column}' holds {value[:60]!r}, which begins like a list and is not "
            f'JSON ({error}): write lists as ["a", "b"], or their parts with blanks between'
        ) from error


def as_rows(records: Iterable[Any], *, part: str) -> list[Row]:
    """Rows of records with `fields`, `path` and `line`, as `corpus.read_labelled` gives them, or of mappings, which
    messages call rows of that `part` of the data ("training", "evaluation")."""
    return [
        Row(each, f"{part} row {number}")
        if isinstance(each, Mapping)
        else Row(each.fields, f"{each.path}:{each.line}")
        for number, each in enumerate(records, start=1)
    ]


def all_of(parts: Sequence[str], word: str = "and") -> str:
    """Parts of a sentence: "a", "a and b", "a, b and c"."""
    return f" {word} ".join(part for part in (", ".join(parts[:-1]), parts[-1]) if part)


def some_of(parts: Sequence[str]) -> str:
    """Parts of a line for people, of which the first are enough."""
    more = f" and {len(parts) - MOST_NAMED} more" if len(parts) > MOST_NAMED else ""
    return ", ".join(parts[:MOST_NAMED]) + more


def unwritable(row: Mapping[str, Any], *, columns: Sequence[str], ending: str) -> str | None:
    """Why a row cannot be written to a file of that ending whose first row has `columns`; None: it can."""
    if ending == ".jsonl":
        return None
    if strange := [name for name in row if name not in columns]:
        return f"has a column '{strange[0]}', which the first row has not: let --output end with .jsonl"
    texts = [text for text in (*row, *row.values()) if isinstance(text, str)]  # JSON writes a tab in letters
    if ending == ".tsv" and (broken := [text for text in texts if _BREAKS.search(text)]):
        return (
            f"has a tab or end of a line in {broken[0][:80]!r}, which .tsv cannot hold: let --output end with .jsonl"
        )
    return None


def write_rows(*, rows: Iterable[Mapping[str, Any]], path: Path) -> int:
    """Write a file of one of `ENDINGS`, whole or not at all, and return how many rows it has.

    In .csv and .tsv lists and mappings become JSON in a cell, None an empty one. InputError where a row does not fit
    (see `unwritable`), StorageError where the file cannot be written.
    """
    ending, count = path.suffix.lower(), 0
    columns: list[str] = []
    # Half of a surrogate pair, which "\ud800" in somebody's .jsonl is, becomes such an escape again.
    options: dict[str, Any] = {"encoding": "utf-8", "errors": "backslashreplace", "newline": ""}
    as_json = partial(json.dumps, ensure_ascii=False, default=str)  # dates and decimals of .parquet are texts
    with replacing(path) as temporary, temporary.open("w", **options) as file:
        # .tsv is without quotes, as such files are read.
        plain: dict[str, Any] = {"delimiter": "\t", "quoting": csv.QUOTE_NONE, "quotechar": None}
        table = csv.writer(file, lineterminator="\n", **(plain if ending == ".tsv" else {}))
        for count, row in enumerate(rows, start=1):
            if ending == ".jsonl":  # which has no infinity
                odd = {name: None for name, x in row.items() if isinstance(x, float) and not math.isfinite(x)}
                file.write(as_json({**row, **odd}) + "\n")
                continue
            columns = columns or list(row)
            if reason := unwritable(row, columns=columns, ending=ending):
                raise InputError(f"row {count} {reason}")
            if count == 1:
                table.writerow(columns)
            cells = (row.get(name) for name in columns)  # None becomes an empty one
            table.writerow(x if x is None or isinstance(x, str) else as_json(x).strip('"') for x in cells)
    return count


def gathered(rows: Iterable[Sequence[str]]) -> list[str]:
    """A document for each different first text of rows: on its first line it, then what follows it in any of them.

    A line begins with a space, as fine-tuning reads it (`tasks.base.models.read_first_words`); the first one gets it
    from `read_task_texts`.
    """
    documents: dict[str, list[str]] = {}
    for first, *rest in rows:
        documents.setdefault(first, []).extend(rest)
    return ["\n ".join([first, *rest]) for first, rest in documents.items()]


def as_number(value: Any) -> float | None:
    """The finite number that a cell holds or spells; None where it holds something else."""
    if isinstance(value, bool) or not isinstance(value, int | float | str | Decimal):
        return None
    try:
        number = float(value)
    except (ValueError, OverflowError):
        return None
    return number if math.isfinite(number) and "_" not in str(value) else None


def note_alike(names: Iterable[str]) -> list[str]:
    """A warning of labels that are the same but for case and blanks, which people seldom mean; none where all are."""
    groups: dict[str, list[str]] = {}
    for name in sorted(set(names)):
        groups.setdefault("".join(name.casefold().split()), []).append(name)
    alike = [" and ".join(map(repr, group)) for group in groups.values() if len(group) > 1]
    return [f"warning: labels that differ only in case or blanks are learned apart: {some_of(alike)}"] if alike else []


def counted(names: Sequence[str], labels: Sequence[int]) -> dict[str, int]:
    """How often each label comes, under its name, in the order of the names."""
    counts = Counter(labels)
    return {name: counts[number] for number, name in enumerate(names)}


FEW = 5  # with fewer held-out examples of a label, its own scores say little


def split_groups(*, groups: Sequence[Hashable], fraction: float, seed: int) -> tuple[list[int], list[int]]:
    """Row numbers, in order, of a training and a held-out part, neither of them empty given two rows.

    Whole groups, of rows that share a context or the like, are held out, so that nothing is learnt of what is asked;
    where there is one group, single rows.
    """
    numbers: Sequence[Hashable] = groups if len(set(groups)) > 1 else range(len(groups))
    kinds = list(dict.fromkeys(numbers))
    count = min(max(1, round(fraction * len(kinds))), len(kinds) - 1)
    chosen = {kinds[place] for place in np.random.default_rng(seed).permutation(len(kinds))[:count].tolist()}
    held_out = [row for row, group in enumerate(numbers) if group in chosen]
    return [row for row, group in enumerate(numbers) if group not in chosen], held_out


def scarce_labels(*, train: Mapping[str, int], held_out: Mapping[str, int], what: str = "rows") -> list[str]:
    """A line on the labels that are learnt and that few held-out examples have, or none."""
    learnt = [name for name, count in train.items() if count]
    few = sorted((name for name in learnt if held_out.get(name, 0) < FEW), key=lambda name: held_out.get(name, 0))
    if not few or not any(held_out.values()):
        return []
    parts = [f"{name} {held_out.get(name, 0)} ({train[name]:,} in training)" for name in few]
    whose = f"{len(few)} of {len(learnt)} labels, whose own scores say little"
    return [f"fewer than {FEW} {what} are held out of {whose}: {some_of(parts)}"]


def stratified_split(*, labels: Sequence[int], fraction: float, seed: int) -> tuple[list[int], list[int]]:
    """Row numbers, in order, of a training and a held-out part with the same share of every label.

    Every label with two rows or more is in both parts; a label with one row stays in training.
    """
    generator = np.random.default_rng(seed)
    held_out: set[int] = set()
    for label in sorted(set(labels)):
        members = np.flatnonzero(np.asarray(labels) == label)
        count = min(max(1, round(fraction * len(members))), len(members) - 1)
        held_out.update(generator.permutation(members)[:count].tolist())
    return [number for number in range(len(labels)) if number not in held_out], sorted(held_out)
