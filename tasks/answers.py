"""Rows with their answers, in a file: .jsonl, .csv or .tsv, whole or not at all."""

import csv
import json
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from lacuna.common.errors import InputError
from lacuna.tasks.rows import write_predictions

Written = Mapping[str, Any]
_BREAKS = re.compile(r"[\t\r\n]")


def write_answers(*, rows: Iterable[Written], path: Path) -> int:
    """Write a file by its ending, and return how many rows it has; it appears under its name when it is complete.

    In .csv and .tsv the first row says which columns there are; lists and mappings become JSON in a cell, None an
    empty one.

    Raises:
        InputError: a row has a column that the first one has not, or a cell of .tsv a tab or the end of a line.
    """
    return WRITERS[path.suffix.lower()](rows=rows, path=path)


def unwritable(row: Written, *, columns: Sequence[str], ending: str) -> str | None:
    """Why a row cannot be written in a file whose first row has these columns, as the end of a message; None: it can.

    Args:
        ending: of the file, in small letters.
    """
    if ending == ".jsonl":
        return None
    if strange := [name for name in row if name not in columns]:
        return (
            f"has a column '{strange[0]}', which the first row has not: let --output end with .jsonl, where rows may "
            "differ"
        )
    texts = [text for text in (*row, *row.values()) if isinstance(text, str)]  # JSON writes a tab in letters
    if ending == ".tsv" and (broken := [text for text in texts if _BREAKS.search(text)]):
        return (
            f"has a tab or the end of a line in {broken[0][:80]!r}, which .tsv has no way to write: let --output end "
            "with .jsonl or .csv"
        )
    return None


def _write_jsonl(*, rows: Iterable[Written], path: Path) -> int:
    return write_predictions(predictions=rows, path=path)


def _write_table(*, rows: Iterable[Written], path: Path) -> int:
    ending, count = path.suffix.lower(), 0

    def table() -> Iterator[list[str]]:
        nonlocal count
        columns: list[str] = []
        for row in rows:
            if not count:
                columns = list(row)
                yield columns
            count += 1
            if reason := unwritable(row, columns=columns, ending=ending):
                raise InputError(f"row {count} {reason}")
            yield [_cell(row.get(name)) for name in columns]

    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with temporary.open("w", encoding="utf-8", newline="", errors="backslashreplace") as file:
            if ending == ".csv":
                csv.writer(file, lineterminator="\n").writerows(table())
            else:  # without quotes, as such files are read
                file.writelines("\t".join(cells) + "\n" for cells in table())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
    return count


def _cell(value: Any) -> str:
    if value is None:
        return ""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


WRITERS: dict[str, Callable[..., int]] = {".jsonl": _write_jsonl, ".csv": _write_table, ".tsv": _write_table}
