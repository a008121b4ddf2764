"""Rows with their answers, in a file: .jsonl, .csv or .tsv, whole or not at all."""

import csv
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, TextIO

from tasks.errors import TaskError
from tasks.rows import write_predictions

Written = Mapping[str, Any]


def write_answers(*, rows: Iterable[Written], path: Path) -> int:
    """Write a file by its ending, and return how many rows it has; it appears under its name when it is complete.

    In .csv and .tsv the first row says which columns there are; lists and mappings become JSON in a cell, None an
    empty one.

    Raises:
        TaskError: a row has a column that the first one has not, or a cell of .tsv a tab or the end of a line.
    """
    return WRITERS[path.suffix.lower()](rows=rows, path=path)


def _write_jsonl(*, rows: Iterable[Written], path: Path) -> int:
    return write_predictions(predictions=rows, path=path)


def _write_csv(*, rows: Iterable[Written], path: Path) -> int:
    def put(file: TextIO, table: Iterator[list[str]]) -> None:
        csv.writer(file, lineterminator="\n").writerows(table)

    return _write_table(rows=rows, path=path, put=put)


def _write_tsv(*, rows: Iterable[Written], path: Path) -> int:
    """Without quotes, as such files are read."""

    def put(file: TextIO, table: Iterator[list[str]]) -> None:
        for number, cells in enumerate(table):
            for cell in cells:
                if any(letter in cell for letter in "\t\r\n"):
                    raise TaskError(
                        f"row {number} has a tab or the end of a line in {cell[:80]!r}, which .tsv has no way to "
                        "write: let --output end with .jsonl or .csv"
                    )
            file.write("\t".join(cells) + "\n")

    return _write_table(rows=rows, path=path, put=put)


def _write_table(*, rows: Iterable[Written], path: Path, put: Callable[[TextIO, Iterator[list[str]]], None]) -> int:
    count = 0

    def table() -> Iterator[list[str]]:
        nonlocal count
        columns: list[str] = []
        for row in rows:
            if not count:
                columns = list(row)
                yield columns
            count += 1
            if strange := [name for name in row if name not in columns]:
                raise TaskError(
                    f"row {count} has a column '{strange[0]}', which the first row has not: let --output end with "
                    ".jsonl, where rows may differ"
                )
            yield [_cell(row.get(name)) for name in columns]

    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with temporary.open("w", encoding="utf-8", newline="", errors="backslashreplace") as file:
            put(file, table())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
    return count


def _cell(value: Any) -> str:
    if value is None:
        return ""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


WRITERS: dict[str, Callable[..., int]] = {".jsonl": _write_jsonl, ".csv": _write_csv, ".tsv": _write_tsv}
