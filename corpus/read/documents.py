"""Where a document begins and ends in a file, and what may stand in it."""

import difflib
import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from pathlib import Path

from lacuna.common.errors import BadRecord

from .formats import Record
from .streams import (
    CHUNK_BYTES,
    MAX_DOCUMENT_BYTES,
    Line,
    Progress,
    Stream,
    bad_record,
    decode,
    open_stream,
    read_lines,
    shown,
    too_long,
)
from .unwrap import SECTION_LINES, find_margin, unwrap

# No text holds the character NUL: a file of a machine that crashed does, and so do UTF-16 and binary files.
NUL = "NUL characters, which no text holds (a broken copy, UTF-16 or a binary file?)"
KINDS = {
    type(None): "null",
    bool: "a truth value",
    int: "a number",
    float: "a number",
    list: "a list",
    dict: "an object",
}


@dataclass(frozen=True, slots=True)
class Piece:
    """The text of one document and where it begins: line or row, and byte if that is known. May be blank."""

    text: str
    line: int
    offset: int | None = None


def read_text_file(path: Path, *, boundary: str, progress: Progress) -> Iterator[Piece | BadRecord]:
    """Documents of a .txt file: all of it, its lines, or what stands between its blank lines.

    Args:
        boundary: "file", "line" or "blank_line".

    Raises:
        InputError: the file cannot be read.
    """
    with open_stream(path, progress=progress) as stream:
        yield from BOUNDARIES[boundary](stream)


def _whole_file(stream: Stream) -> Iterator[Piece | BadRecord]:
    data = bytearray()
    while chunk := stream.read(CHUNK_BYTES):
        data += chunk
        if len(data) > MAX_DOCUMENT_BYTES:
            yield too_long(stream.path, Line(data, 1, 0), "document")
            return
    yield from _piece(Line(data, 1, 0), stream.path)


def _each_line(stream: Stream) -> Iterator[Piece | BadRecord]:
    for line in read_lines(stream):
        if isinstance(line, BadRecord):
            yield line
        elif not line.data.isspace():
            yield from _piece(line, stream.path, keep_end=False)


def _between_blank_lines(stream: Stream) -> Iterator[Piece | BadRecord]:
    data = bytearray()  # of the present document
    first: Line | None = None
    broken = False  # it has been reported, the rest of it is passed over
    for line in chain(read_lines(stream), [None]):
        if isinstance(line, BadRecord):
            if not broken:
                yield line
            data, first, broken = bytearray(), None, True
        elif line is None or line.data.isspace():
            if first is not None:
                yield from _piece(Line(data, first.number, first.offset), stream.path, keep_end=False)
            data, first, broken = bytearray(), None, False
        elif not broken:
            first = first or line
            data += line.data
            if len(data) > MAX_DOCUMENT_BYTES:
                yield too_long(stream.path, first, "document")
                data, first, broken = bytearray(), None, True


BOUNDARIES: dict[str, Callable[[Stream], Iterator[Piece | BadRecord]]] = {
    "file": _whole_file,
    "line": _each_line,
    "blank_line": _between_blank_lines,
}


def _piece(line: Line, path: Path, *, keep_end: bool = True) -> Iterator[Piece | BadRecord]:
    try:
        text = decode(line, path)
    except BadRecord as error:
        yield error
        return
    text = text if keep_end else text.rstrip("\r\n")
    position = text.find("\0")
    if position < 0:
        yield Piece(normalize_lines(text), line.number, line.offset)
    else:
        number, offset = line.number + text.count("\n", 0, position), line.offset + len(text[:position].encode())
        begin = max(text.rfind("\n", 0, position) + 1, position - 40)
        yield bad_record(path, number=number, what=NUL, offset=offset, head=text[begin : begin + 80])


def unwrapped(pieces: Iterable[Piece | BadRecord], *, together: bool) -> Iterator[Piece | BadRecord]:
    """The same pieces with lines joined that were broken to a width.

    Args:
        together: some hundred lines of pieces that follow each other have one margin, for they are paragraphs of one
            file; otherwise each piece has its own.
    """
    if not together:
        for piece in pieces:
            yield piece if isinstance(piece, BadRecord) else replace(piece, text=unwrap(piece.text))
        return
    remaining = iter(pieces)
    while group := list(_some_lines(remaining)):
        lines = [line for piece in group if isinstance(piece, Piece) for line in (*piece.text.split("\n"), "")]
        margin = find_margin(lines)
        for piece in group:
            if margin is None or isinstance(piece, BadRecord):
                yield piece
            else:
                yield replace(piece, text=unwrap(piece.text, margin=margin))


def _some_lines(pieces: Iterator[Piece | BadRecord]) -> Iterator[Piece | BadRecord]:
    count = 0
    for piece in pieces:
        yield piece
        count += piece.text.count("\n") + 1 if isinstance(piece, Piece) else 1
        if count >= SECTION_LINES:
            return


def read_texts(rows: Iterable[Record | BadRecord], *, column: str) -> Iterator[Piece | BadRecord]:
    """The texts of rows."""
    for row in rows:
        try:
            yield row if isinstance(row, BadRecord) else Piece(text_of(row, column=column), row.line, row.offset)
        except BadRecord as error:
            yield error


def text_of(record: Record, *, column: str) -> str:
    """The text of a row, with "\\n" as line ends and no byte order mark.

    Raises:
        BadRecord: the column is missing or holds no text.
    """
    bad = partial(bad_record, Path(record.path), number=record.line, offset=record.offset)
    if not isinstance(text := record.fields.get(column), str):
        head = json.dumps(record.fields, ensure_ascii=False, default=repr)
        if column in record.fields:
            kind = KINDS.get(type(text), type(text).__name__)
            raise bad(what=f"the column {column!r} must hold text, not {kind}", head=head)
        near = difflib.get_close_matches(column, record.fields, n=1)
        hint = f" Did you mean {near[0]!r}?" if near else ""
        names = ", ".join(map(repr, record.fields))
        remedy = f"Name the one that holds the text with --text_column.{hint}"
        raise bad(what=f"there is no column {column!r}; there are: {names[:400]}", head=head, remedy=remedy)
    try:
        size = len(text) if text.isascii() else len(text.encode())
    except UnicodeEncodeError as error:  # JSON can write half of a surrogate pair, which is no character
        half = f"\\u{ord(text[error.start]):04x}"
        what = f"the column {column!r} holds half a surrogate pair ({half}) at character {error.start}"
        raise bad(what=what, head=text) from error
    if size > MAX_DOCUMENT_BYTES:
        what = f"a document of more than {MAX_DOCUMENT_BYTES >> 20} MiB, which is the most that it may have"
        raise bad(what=what, head=text, remedy="Split it.")
    if "\0" in text:
        raise bad(what=NUL, head=text[max(0, text.find("\0") - 40) :])
    return normalize_lines(text.removeprefix("\ufeff"))


def normalize_lines(text: str) -> str:
    """Line ends as "\\n"."""
    return text.replace("\r\n", "\n").replace("\r", "\n") if "\r" in text else text


def no_text(path: Path, *, column: str | None) -> BadRecord:
    """What to say of a file in which there is no text at all."""
    held = "it holds no text" if column is None else f"no row has text in the column {column!r}"
    return BadRecord(f"{shown(path)} is empty: {held}. Remove it from --data, or fill it.")
