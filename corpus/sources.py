"""Read text and labelled rows from files; every error names the file and the place in it."""

import csv
import difflib
import glob
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .errors import CorpusError

GLOB_SIGNS = "*?["
BATCH_ROWS = 1024  # rows of a parquet file held in memory at once


@dataclass(frozen=True, slots=True)
class Record:
    """One row of a file: its fields, and where it stands (line, from 1, or row where lines say nothing)."""

    fields: dict[str, Any]
    path: str
    line: int


def find_files(*, paths: Sequence[str]) -> list[Path]:
    """The files behind paths, folders (to the bottom) and globs: each once, those of a folder or glob sorted.

    Hidden files and .json are read only where they are named.

    Raises:
        CorpusError: nothing is there, or nothing there can be read.
    """
    found: dict[Path, Path] = {}
    for name in paths:
        path = Path(name).expanduser()
        if path.is_dir():
            inside = [file for file in sorted(path.rglob("*")) if file.is_file() and not _is_hidden(file, path)]
            files = [file for file in inside if file.suffix.lower() in FOLDER_SUFFIXES]
            if not files:
                others = sorted({file.suffix or file.name for file in inside})
                holds = f"only {', '.join(others)}" if others else "nothing"
                raise CorpusError(f"the folder {path} holds {holds}; {_readable()}.")
        elif path.exists():
            if path.suffix.lower() not in SUFFIXES:
                raise CorpusError(f"{path} has the ending {path.suffix!r}; {_readable()}.")
            files = [path]
        elif any(sign in name for sign in GLOB_SIGNS):
            matches = sorted(Path(match) for match in glob.glob(str(path), recursive=True))
            files = [match for match in matches if match.suffix.lower() in SUFFIXES and match.is_file()]
            if not files:
                raise CorpusError(f"no file matches {name!r} ({len(matches)} other matches); {_readable()}.")
        else:
            raise CorpusError(f"there is no file or folder {path}.{_near_names(path)}")
        for file in files:
            found.setdefault(file.resolve(), file)
    return list(found.values())


def _is_hidden(file: Path, folder: Path) -> bool:
    """Whether a name below `folder` begins with a dot: caches and copies of editors, not somebody's text."""
    return any(part.startswith(".") for part in file.relative_to(folder).parts)


def read_documents(*, paths: Sequence[str], text_column: str = "text") -> Iterator[str]:
    """Documents in a stable order: a .txt file is one document, and so is each row of a file with columns.

    A byte order mark is dropped and line ends become "\\n". Rows with empty text are left out.

    Raises:
        CorpusError: a path or column is missing, a file is empty, or its content is broken; the message says where.
    """
    for path in find_files(paths=paths):
        if path.suffix.lower() == ".txt":
            text = _read_text(path)
            if not text or text.isspace():
                raise CorpusError(f"{path} is empty: it holds no text. Remove it from --data, or fill it.")
            yield text
            continue
        anything = False
        for record in read_records(path):
            text = _normalize_lines(_text_of(record, text_column))
            if text and not text.isspace():
                anything = True
                yield text
        if not anything:
            raise CorpusError(f"{path} is empty: no row has text in the column {text_column!r}.")


def read_records(path: Path | str) -> Iterator[Record]:
    """Rows of a .jsonl, .json, .csv, .tsv or .parquet file.

    A .json file is a list of objects, or an object whose "data" is such a list. The first line of .csv and .tsv names
    the columns and their values stay strings; quotes mean nothing in .tsv, as in the files of GLUE.

    Raises:
        CorpusError: the file is missing, empty or broken, or of another kind; the message says where.
    """
    path = Path(path).expanduser()
    if not path.exists():
        raise CorpusError(f"there is no file {path}.{_near_names(path)}")
    if path.is_dir():
        raise CorpusError(f"{path} is a folder; name one file: {', '.join(RECORD_READERS)}.")
    reader = RECORD_READERS.get(path.suffix.lower())
    if reader is None:
        raise CorpusError(f"{path} has the ending {path.suffix!r}; rows are read from {', '.join(RECORD_READERS)}.")
    if path.stat().st_size == 0:
        raise CorpusError(f"{path} is empty (0 bytes).")
    count = 0
    for count, record in enumerate(reader(path), start=1):  # noqa: B007
        yield record
    if not count:
        raise CorpusError(f"{path} is empty: it has no row.")


def _read_jsonl(path: Path) -> Iterator[Record]:
    offset = 0
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            text = _decode(line, path=path, line=number, offset=offset)
            offset += len(line)
            if not text.strip():
                continue
            value = _parse_json(text, path=path, line=number)
            if not isinstance(value, dict):
                raise CorpusError(
                    f'{path}:{number}: a line must be a JSON object such as {{"text": "..."}}, '
                    f"not {type(value).__name__}: {text.strip()[:80]}"
                )
            yield Record(fields=value, path=str(path), line=number)


def _read_json(path: Path) -> Iterator[Record]:
    value = _parse_json(_decode(path.read_bytes(), path=path), path=path, line=None)
    rows = value.get("data") if isinstance(value, dict) else value
    if not isinstance(rows, list):
        raise CorpusError(f'{path} must hold a list of objects, or an object whose "data" is one.')
    for number, row in enumerate(rows, start=1):
        if not isinstance(row, dict):
            raise CorpusError(f"{path}: row {number} is not an object: {str(row)[:80]}")
        yield Record(fields=row, path=str(path), line=number)


def _read_csv(path: Path) -> Iterator[Record]:
    limit = csv.field_size_limit(2**31 - 1)  # the default, 128 KiB a field, is less than a chapter
    try:
        lines = csv.reader(_lines(path), strict=True)
        columns = next(lines, [])
        for row in lines:
            if row:
                yield _row(columns, row, path=path, line=lines.line_num)
    except csv.Error as error:
        raise CorpusError(f"{path}:{lines.line_num}: not valid CSV: {error}.") from error
    finally:
        csv.field_size_limit(limit)


def _read_tsv(path: Path) -> Iterator[Record]:
    columns: list[str] = []
    for number, line in enumerate(_lines(path), start=1):
        cells = line.rstrip("\r\n").split("\t")
        if not columns:
            columns = cells
        elif line.strip():
            yield _row(columns, cells, path=path, line=number)


def _row(columns: list[str], cells: list[str], *, path: Path, line: int) -> Record:
    if len(cells) != len(columns):
        raise CorpusError(
            f"{path}:{line}: {len(cells)} values where the first line names {len(columns)} columns "
            f"({', '.join(columns)[:80]}): {' | '.join(cells)[:80]}"
        )
    return Record(fields=dict(zip(columns, cells, strict=True)), path=str(path), line=line)


def _read_parquet(path: Path) -> Iterator[Record]:
    import pyarrow
    import pyarrow.parquet

    try:
        number = 0
        with pyarrow.parquet.ParquetFile(path) as file:
            for batch in file.iter_batches(batch_size=BATCH_ROWS):
                for row in batch.to_pylist():
                    number += 1
                    yield Record(fields=row, path=str(path), line=number)
    except (pyarrow.ArrowException, OSError) as error:
        raise CorpusError(f"{path} cannot be read as parquet: {str(error)[:200]}") from error


# To add a kind of file: a function from a path to its records, and its line here.
RECORD_READERS: dict[str, Callable[[Path], Iterator[Record]]] = {
    ".jsonl": _read_jsonl,
    ".json": _read_json,
    ".csv": _read_csv,
    ".tsv": _read_tsv,
    ".parquet": _read_parquet,
}
SUFFIXES = frozenset({".txt", *RECORD_READERS})
FOLDER_SUFFIXES = SUFFIXES - {".json"}  # in a folder of text it is a description of it, not text; name it to read it


def _text_of(record: Record, column: str) -> str:
    where = f"{record.path}:{record.line}"
    if column not in record.fields:
        near = difflib.get_close_matches(column, record.fields, n=1)
        hint = f" Did you mean {near[0]!r}?" if near else ""
        raise CorpusError(
            f"{where}: there is no column {column!r}; there are: {', '.join(map(repr, record.fields))}.{hint} "
            "Name the one that holds the text with --text_column."
        )
    text = record.fields[column]
    if not isinstance(text, str):
        raise CorpusError(
            f"{where}: the column {column!r} must hold text, not {type(text).__name__}: {str(record.fields)[:80]}"
        )
    try:
        text.encode()
    except UnicodeEncodeError as error:  # JSON can write half of a surrogate pair, which is no character
        raise CorpusError(
            f"{where}: the column {column!r} holds half a surrogate pair (\\u{ord(text[error.start]):04x}) at "
            f"character {error.start}, which is not text: {text[:80]!a}"
        ) from error
    return text


def _read_text(path: Path) -> str:
    return _normalize_lines(_decode(path.read_bytes(), path=path))


def _normalize_lines(text: str) -> str:
    return text.replace("\r\n", "\n").replace("\r", "\n") if "\r" in text else text


def _lines(path: Path) -> Iterator[str]:
    """Lines with their ends, each checked to be UTF-8."""
    offset = 0
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            yield _decode(line, path=path, line=number, offset=offset)
            offset += len(line)


def _decode(data: bytes, *, path: Path, line: int = 1, offset: int = 0) -> str:
    """UTF-8 without a byte order mark; `line` and `offset` say where in the file `data` begins."""
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        line += data.count(b"\n", 0, error.start)
        begin = data.rfind(b"\n", 0, error.start) + 1
        shown = data[begin : begin + 80].decode("utf-8", errors="backslashreplace").rstrip()
        utf16 = offset == 0 and data[:2] in (b"\xff\xfe", b"\xfe\xff")
        remedy = "It looks like UTF-16." if utf16 else "It may be in an older encoding such as Latin-1."
        raise CorpusError(
            f"{path}:{line}: not valid UTF-8 at byte {offset + error.start} (0x{data[error.start]:02x}): "
            f"{shown[:80]}\n{remedy} Convert it: iconv -f {'UTF-16' if utf16 else 'LATIN1'} -t UTF-8 {path.name}"
        ) from error
    return text.removeprefix("\ufeff") if offset == 0 else text


def _parse_json(text: str, *, path: Path, line: int | None) -> Any:
    try:
        return json.loads(text)
    except (json.JSONDecodeError, RecursionError) as error:
        position = error.pos if isinstance(error, json.JSONDecodeError) else 0
        reason = error.msg if isinstance(error, json.JSONDecodeError) else "nested too deeply"
        if line is None:
            line = text.count("\n", 0, position) + 1
            text = text[text.rfind("\n", 0, position) + 1 :]
            position = 0
        column = f" at character {position}" if position else ""
        raise CorpusError(f"{path}:{line}: not valid JSON ({reason}{column}): {text.strip()[:80]}") from error


def _near_names(path: Path) -> str:
    """A sentence on what stands near a path that does not exist."""
    parent = path.parent
    if not parent.is_dir():
        return f" Its folder {parent} does not exist either."
    names = sorted(entry.name for entry in parent.iterdir())
    near = difflib.get_close_matches(path.name, names, n=3, cutoff=0.5)
    return f" Did you mean {' or '.join(str(parent / name) for name in near)}?" if near else ""


def _readable() -> str:
    return f"text is read from {', '.join(sorted(SUFFIXES))}"
