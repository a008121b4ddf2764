"""Rows of .jsonl, .json, .csv, .tsv and .parquet files and of folders saved by `datasets`, one at a time."""

import csv
import difflib
import json
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import Any, BinaryIO

from lacuna.common.errors import BadRecord, InputError, StorageError
from lacuna.common.private import counted, shown

from . import streams
from .streams import Line, Piece, Reading, bad_line, bad_record, decode, open_stream, read_lines

BATCH_BYTES = 8 << 20  # of a parquet file, in memory at once
MAX_JSON_BYTES = 256 << 20  # a .json file is read whole
KINDS = {bool: "a truth value", int: "a number", float: "a number", list: "a list", dict: "an object"}
BAD_JSON = (json.JSONDecodeError, RecursionError, ValueError)  # ValueError: a number of more than 4,300 digits


@dataclass(frozen=True, slots=True)
class Record:
    """One row of a file: its fields, and where it begins (line, from 1, or row where lines say nothing; byte)."""

    fields: dict[str, Any]
    path: str
    line: int
    offset: int | None = None


def kind_of(path: Path) -> str:
    """The ending that says what is in a file: ".jsonl" for "a.jsonl.gz"."""
    plain = path.with_suffix("") if path.suffix.lower() in streams.COMPRESSIONS else path
    return plain.suffix.lower()


def iter_records(path: Path, how: Reading | None = None) -> Iterator[Record | BadRecord]:
    """Rows of a file whose kind is in `READERS`; in the place of a broken one, what to say about it.

    Raises InputError: the file cannot be read any further.
    """
    return READERS[kind_of(path)](path, how or Reading())


def check_named(path: Path, how: Reading | None) -> None:
    """Refuse names of columns for what is no table, with an InputError."""
    if how and how.column_names and kind_of(path) not in TABLES:
        raise InputError(
            f"--column_names is for {' and '.join(TABLES)} files, and {shown(path)} is none: leave it out"
        )


def _read_jsonl(path: Path, how: Reading) -> Iterator[Record | BadRecord]:
    with open_stream(path, how) as stream:
        for line in read_lines(stream):
            if isinstance(line, BadRecord):
                yield line
            elif not line.data.isspace():
                yield _json_record(line, path)


def _json_record(line: Line, path: Path) -> Record | BadRecord:
    try:
        text = decode(line, path)
        value = json.loads(text)
    except BadRecord as error:
        return error
    except BAD_JSON as error:
        what = f"not valid JSON ({_json_reason(error)}); JSON over several lines is called .json"
        return bad_line(path, line, what, head=text)
    if not isinstance(value, dict):
        what = f'a line must be a JSON object such as {{"text": "..."}}, not {type(value).__name__}'
        return bad_line(path, line, what, head=text)
    return Record(value, str(path), line.number, line.offset)


def _json_reason(error: Exception) -> str:
    if isinstance(error, json.JSONDecodeError):
        return f"{error.msg.removesuffix(' at')} at character {error.pos}"
    return "nested too deeply" if isinstance(error, RecursionError) else str(error)[:80]


def _read_json(path: Path, how: Reading) -> Iterator[Record | BadRecord]:
    """The whole file at once, a list of objects, or an object whose "data" is such a list."""
    data = bytearray()
    with open_stream(path, how) as stream:
        while chunk := stream.read(streams.CHUNK_BYTES):
            data += chunk
            if len(data) > MAX_JSON_BYTES:
                raise InputError(
                    f"{shown(path)} has more than {MAX_JSON_BYTES >> 20} MiB, and a .json file is read whole. "
                    f"Make it .jsonl, one object a line: jq -c '.[]' {shown(path.name)}"
                )
    text = decode(Line(bytes(data), 1, 0), path)
    try:
        value = json.loads(text)
    except BAD_JSON as error:
        what = f"not valid JSON ({_json_reason(error)})"
        raise bad_record(path, number=getattr(error, "lineno", 1), what=what) from error
    rows = value.get("data") if isinstance(value, dict) else value
    if not isinstance(rows, list):
        raise InputError(f'{shown(path)} must hold a list of objects, or an object whose "data" is one.')
    for number, row in enumerate(rows, start=1):
        if isinstance(row, dict):
            yield Record(row, str(path), number)
        else:
            yield bad_record(path, number=number, what=f"row {number} is not an object", head=str(row))


@dataclass
class _CsvLines:
    """Decoded lines for `csv.reader`, which continues after a line that raises."""

    lines: Iterator[Line | BadRecord]
    path: Path
    first: Line | None = None  # of the present row
    in_row: bool = False  # a further line of a row was requested

    def __iter__(self) -> "_CsvLines":
        return self

    def __next__(self) -> str:
        self.in_row = self.first is not None
        line = next(self.lines)
        if isinstance(line, BadRecord):
            raise line
        self.first = first = self.first or line
        if line.offset + len(line.data) - first.offset > streams.MAX_DOCUMENT_BYTES:
            what = f"a row of more than {streams.MAX_DOCUMENT_BYTES >> 20} MiB; a quotation mark may never be closed"
            raise bad_line(self.path, first, what)
        return decode(line, self.path)


def _read_csv(path: Path, how: Reading) -> Iterator[Record | BadRecord]:
    """Rows of .csv and .tsv; quotation marks mean nothing in the latter, as in the files of GLUE."""
    # The default, 128 KiB a field, is less than a chapter. The limit belongs to the process; it is never lowered here.
    csv.field_size_limit(max(csv.field_size_limit(), streams.MAX_DOCUMENT_BYTES))
    with open_stream(path, how) as stream:
        whole = read_lines(stream)
        head = [*islice(whole, 1)]
        options: dict[str, Any] = {"delimiter": "\t", "quoting": csv.QUOTE_NONE}
        if kind_of(path) != ".tsv":
            options = {"delimiter": _separator(head, path), "strict": True}
        lines = _CsvLines(chain(head, whole), path)
        rows = csv.reader(lines, **options)
        columns = [*how.column_names] or None
        while True:
            lines.first = None
            try:
                row = next(rows, None)
            except BadRecord as error:
                bad = error
            except csv.Error as error:
                first = lines.first or Line(b"", rows.line_num, stream.position)
                bad = bad_line(path, first, f"not valid CSV ({error})")
            else:
                if row is None:
                    return
                if row and columns is None:
                    columns = _header(row, path=path, column=how.column)
                elif row and columns is not None and lines.first is not None and not lines.first.data.isspace():
                    yield _row(columns, row, path=path, first=lines.first, named=bool(how.column_names))
                continue
            # Without the names of the columns nothing can be read. Nor after a row of several lines that is broken:
            # it is unknown whether what follows is inside quotation marks.
            if columns is None or lines.in_row:
                raise bad
            yield bad


def _separator(head: Sequence[Line | BadRecord], path: Path) -> str:
    """A comma, unless the first line has none and has another sign, which is said."""
    first = head[0].data if head and isinstance(head[0], Line) else b","
    sign = max(",;\t|", key=lambda each: (each == "," and b"," in first, first.count(each.encode())))
    if sign != ",":
        streams.say_once(f"{shown(path.name)}: columns are separated by {sign!r}")
    return sign


def _header(cells: list[str], *, path: Path, column: str | None) -> list[str]:
    """The names of the columns; BadRecord where they are no names, or one that is wanted is there twice."""
    bad = partial(bad_record, path, number=1, offset=0, head=" | ".join(cells))
    if any("\0" in cell for cell in cells):
        raise bad(what="NUL characters where the names of columns should be (a broken copy or a binary file?)")
    for place, name in enumerate(cells):
        if name.strip() and name in cells[:place] and column in (None, name):
            raise bad(what=f"two columns have the name {shown(name[:80])!r}", remedy="Rename or remove one.")
    return cells


def _row(columns: list[str], cells: list[str], *, path: Path, first: Line, named: bool) -> Record | BadRecord:
    if len(cells) != len(columns):
        names = f"{'--column_names' if named else 'the first line'} names {counted(len(columns), 'column')}"
        what = f"{counted(len(cells), 'value')} where {names} ({', '.join(columns)[:80]})"
        if kind_of(path) == ".tsv":
            what += "; .tsv has no quoting, so tabs and line ends always end a value"
        return bad_line(path, first, what, head=" | ".join(cells))
    return Record(dict(zip(columns, cells, strict=True)), str(path), first.number, first.offset)


@contextmanager
def _arrow_errors(path: Path, kind: str) -> Iterator[None]:
    import pyarrow

    try:
        yield
    except (FileNotFoundError, PermissionError) as error:
        raise streams.unreadable(path, error) from error
    except (pyarrow.ArrowException, OSError) as error:
        raise InputError(f"{shown(path)} cannot be read as {kind}: {shown(str(error)[:200])}") from error


def _read_parquet(path: Path, how: Reading) -> Iterator[Record | BadRecord]:
    import pyarrow.parquet

    # Files are opened here and not by Arrow, which takes no name that is not UTF-8.
    with _arrow_errors(path, "parquet"), _on_disk(path) as whole:
        size = path.stat().st_size
        # Buffered and not fetched ahead: otherwise a whole row group, often a gigabyte, is in memory.
        with pyarrow.parquet.ParquetFile(whole, pre_buffer=False, buffer_size=1 << 20) as file:
            columns = [how.column] if how.column in file.schema_arrow.names else None
            number = 0
            for group in range(file.num_row_groups):
                about = file.metadata.row_group(group)
                rows = max(1, min(1024, BATCH_BYTES * about.num_rows // max(1, about.total_byte_size)))
                for batch in file.iter_batches(batch_size=rows, row_groups=[group], columns=columns):
                    yield from _batch_records(batch, path=path, number=number)
                    number += batch.num_rows
                    how.current = size * number // file.metadata.num_rows


def _read_arrow(path: Path, how: Reading) -> Iterator[Record | BadRecord]:
    """One data file of a folder that `datasets` saved: Arrow's stream format."""
    import pyarrow

    with _arrow_errors(path, "a dataset saved by `datasets`"), path.open("rb") as file:
        number = 0
        for batch in pyarrow.ipc.open_stream(file):
            if how.column in batch.schema.names:
                batch = batch.select([how.column])
            step = max(1, BATCH_BYTES * batch.num_rows // max(1, batch.nbytes))
            for start in range(0, batch.num_rows, step):
                part = batch.slice(start, step)
                yield from _batch_records(part, path=path, number=number)
                number += part.num_rows
            how.current = file.tell()


def _batch_records(batch: Any, *, path: Path, number: int) -> Iterator[Record | BadRecord]:
    """Rows of a record batch; `number` rows came before it."""
    try:
        rows = batch.to_pylist()
    except UnicodeDecodeError:  # Arrow does not look at the bytes of its strings
        rows = None
    for index in range(batch.num_rows):
        number += 1
        try:
            yield Record(batch.slice(index, 1).to_pylist()[0] if rows is None else rows[index], str(path), number)
        except UnicodeDecodeError as error:
            what = f"row {number} is not valid UTF-8 (0x{error.object[error.start]:02x} at its byte {error.start})"
            yield bad_record(path, number=number, what=what, head=error.object)


@contextmanager
def _on_disk(path: Path) -> Iterator[BinaryIO]:
    """A file that can be read from any place in it: a compressed one is unpacked beside other temporary files."""
    if path.suffix.lower() not in streams.COMPRESSIONS:
        with path.open("rb") as file:
            yield file
        return
    with tempfile.TemporaryFile() as copy, open_stream(path) as stream:
        try:
            shutil.copyfileobj(stream, copy)
        except OSError as error:
            raise StorageError(
                f"{shown(path)} cannot be unpacked in {tempfile.gettempdir()}: {error.strerror}; set TMPDIR to a "
                "folder with more room"
            ) from error
        copy.seek(0)
        yield copy


# To add a kind of file: a function from its path and how it is read to its rows, and its line here.
READERS: dict[str, Callable[[Path, Reading], Iterator[Record | BadRecord]]] = {
    ".jsonl": _read_jsonl,
    ".json": _read_json,
    ".csv": _read_csv,
    ".tsv": _read_csv,
    ".parquet": _read_parquet,
    ".arrow": _read_arrow,
}
TABLES = (".csv", ".tsv")  # whose columns the first line names, or --column_names
RECORD_KINDS = tuple(kind for kind in READERS if kind != ".arrow")


def read_texts(rows: Iterable[Record | BadRecord], *, column: str) -> Iterator[Piece | BadRecord]:
    for row in rows:
        try:
            yield row if isinstance(row, BadRecord) else Piece(text_of(row, column=column), row.line, row.offset)
        except BadRecord as error:
            yield error


def text_of(record: Record, *, column: str) -> str:
    """The text of a row, with "\\n" as line ends; BadRecord where the column is missing or holds none."""
    bad = partial(bad_record, Path(record.path), number=record.line, offset=record.offset)
    if not isinstance(text := record.fields.get(column), str):
        head = json.dumps(record.fields, ensure_ascii=False, default=repr)
        if column in record.fields:
            kind = "null" if text is None else KINDS.get(type(text), type(text).__name__)
            raise bad(what=f"the column {column!r} must hold text, not {kind}", head=head)
        near = difflib.get_close_matches(column, record.fields, n=1)
        hint = f" Did you mean {near[0]!r}?" if near else ""
        names = ", ".join(map(repr, record.fields))
        if kind_of(Path(record.path)) in TABLES and record.line > 1:
            hint += " If the first line holds no names, name the columns with --column_names."
        remedy = f"Name the one that holds the text with --text_column.{hint}"
        raise bad(what=f"there is no column {column!r}; there are: {names[:400]}", head=head, remedy=remedy)
    try:
        size = len(text) if text.isascii() else len(text.encode())
    except UnicodeEncodeError as error:  # JSON can write half of a surrogate pair, which is no character
        half = f"\\u{ord(text[error.start]):04x}"
        what = f"the column {column!r} holds half a surrogate pair ({half}) at character {error.start}"
        raise bad(what=what, head=text) from error
    if size > streams.MAX_DOCUMENT_BYTES:
        what = f"a document of more than {streams.MAX_DOCUMENT_BYTES >> 20} MiB, which is the most that it may have"
        raise bad(what=what, head=text, remedy="Split it.")
    if "\0" in text:
        raise bad(what=streams.NUL, head=text[max(0, text.find("\0") - 40) :])
    return streams.normalize_lines(text.removeprefix("\ufeff"))
