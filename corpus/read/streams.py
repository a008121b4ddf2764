"""Files as streams of bytes, lines and documents: decompressed on the way, bounded in memory."""

import codecs
import os
import re
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from itertools import groupby
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from lacuna.common.errors import BadRecord, InputError
from lacuna.common.private import shown

MAX_DOCUMENT_BYTES = 32 << 20  # of UTF-8; a longer one would make memory a matter of the data
CHUNK_BYTES = 1 << 18
Head = bytes | bytearray | str  # what a record begins with
COMPRESSIONS = {".gz": "gzip", ".zst": "zstd"}
# No text holds the character NUL: a file of a machine that crashed does, and so do UTF-16 and binary files.
NUL = "NUL characters, which no text holds (a broken copy, UTF-16 or a binary file?)"


class Line(NamedTuple):
    """A line with its end, and where it begins: number from 1, offset in bytes of the uncompressed file."""

    data: bytes | bytearray
    number: int
    offset: int


@dataclass(slots=True)
class Reading:
    """How files are read, and how far their reader is. InputError: Python knows no such encoding of text."""

    column: str | None = None  # the only one that is wanted, in files that hold columns apart
    column_names: Sequence[str] = ()  # of tables whose first line does not hold them
    encoding: str = "utf-8"
    finished: int = 0  # bytes on disk of the files that are done
    current: int = 0  # and of the one that is open, as far as it is read

    def __post_init__(self) -> None:
        try:
            "".encode(self.encoding)
            self.encoding = codecs.lookup(self.encoding).name
        except (LookupError, ValueError) as error:
            what = f"--encoding {shown(self.encoding)} is no encoding of text that Python knows"
            raise InputError(f"{what}, such as utf-8, latin-1, cp1252 or utf-16.") from error


@dataclass
class Stream:
    """An open file: `read` gives its uncompressed bytes, in UTF-8, and notes how far on disk that is."""

    path: Path
    raw: BinaryIO
    source: BinaryIO
    how: Reading
    position: int = 0  # in the uncompressed bytes

    def __post_init__(self) -> None:
        encoding = self.how.encoding
        self._decoder = None if encoding == "utf-8" else codecs.getincrementaldecoder(encoding)()

    def read(self, size: int = CHUNK_BYTES, /) -> bytes:
        """About `size` bytes, empty at the end; InputError where the disk, the archive or another encoding fails."""
        data = self._read(size)
        while self._decoder is not None:
            try:
                text = self._decoder.decode(data, final=not data).encode()
            except UnicodeError as error:
                what = f"{shown(self.path)} is not valid {self.how.encoding}"
                if isinstance(error, UnicodeDecodeError):  # what the decoder held back is in its object, too
                    offset = self.position - len(error.object) + error.start
                    what += f" (0x{error.object[error.start]:02x}), at byte {offset}"
                raise InputError(f"{what}: name another encoding with --encoding.") from error
            if text or not data:
                return text
            data = self._read(size)
        return data

    def _read(self, size: int) -> bytes:
        try:
            data = self.source.read(size)
        except OSError as error:
            if self.source is self.raw:
                raise unreadable(self.path, error) from error
            archive, size = COMPRESSIONS[self.path.suffix.lower()], os.fstat(self.raw.fileno()).st_size
            raise InputError(
                f"{shown(self.path)} is a broken {archive} archive: {error}, near byte {self.raw.tell():,} "
                f"of {size:,} on disk, after {self.position:,} bytes of text. Copy or compress it again."
            ) from error
        self.position += len(data)
        self.how.current = self.raw.tell()
        return data


@contextmanager
def open_stream(path: Path, how: Reading | None = None) -> Iterator[Stream]:
    """Open a file, decompressing .gz and .zst; InputError if it cannot be opened."""
    compression = COMPRESSIONS.get(path.suffix.lower())
    how = how or Reading()
    try:
        file = path.open("rb")
    except OSError as error:
        raise unreadable(path, error) from error
    with file:
        if compression is None:
            yield Stream(path, file, file, how)
        else:
            # Arrow reads both kinds with one call, takes members and frames that follow each other, tells a truncated
            # archive from a whole one (zstandard's stream_reader does not) and returns no more than requested.
            import pyarrow

            with pyarrow.CompressedInputStream(pyarrow.PythonFile(file, mode="r"), compression) as source:
                yield Stream(path, file, source, how)


def read_lines(stream: Stream) -> Iterator[Line | BadRecord]:
    """Lines with their ends ("\\n", "\\r\\n", "\\r"); in the place of one that is too long, what to say."""
    number = offset = 0
    passing = False  # the line is too long: it was reported, and the rest of it is passed over
    held: list[bytes] = []  # a line that is not over, or ends with "\r" and "\n" may follow
    while (chunk := stream.read(CHUNK_BYTES)) or held:
        pieces = chunk.splitlines(keepends=True)
        if pieces and held and (pieces[0] == b"\n" or not held[-1].endswith(b"\r")):
            held.append(pieces.pop(0))
        if held and (pieces or held[-1].endswith(b"\n") or not chunk):
            pieces.insert(0, b"".join(held))
            held = []
        if chunk and pieces and not pieces[-1].endswith(b"\n"):
            held = [pieces.pop()]
        for piece in pieces:
            if not passing:
                number += 1
                line = Line(piece, number, offset)
                yield line if len(piece) <= MAX_DOCUMENT_BYTES else too_long(stream.path, line)
            offset += len(piece)
            passing = False
        size = sum(map(len, held))
        if size > MAX_DOCUMENT_BYTES and not held[-1].endswith(b"\r"):
            if not passing:
                number += 1
                yield too_long(stream.path, Line(held[0], number, offset))
            passing, offset, held = True, offset + size, [b""]


def too_long(path: Path, line: Line, what: str = "line") -> BadRecord:
    """What to say of a document or line above the limit that begins so."""
    most = f"a {what} of more than {MAX_DOCUMENT_BYTES >> 20} MiB, which is the most that it may have"
    remedy = "Split it, or let --document_boundary line or blank_line do so." if what == "document" else "Split it."
    return bad_line(path, line, most, remedy=remedy)


def bad_line(path: Path, line: Line, what: str, *, head: Head | None = None, remedy: str = "") -> BadRecord:
    """The message for a broken record that begins with a line, as `bad_record` gives it."""
    head = line.data if head is None else head
    return bad_record(path, number=line.number, offset=line.offset, what=what, head=head, remedy=remedy)


def bad_record(
    path: Path, *, number: int, what: str, offset: int | None = None, head: Head = "", remedy: str = ""
) -> BadRecord:
    """The message for a broken record: file, line (or row) number, what is wrong, byte offset, first 80 characters."""
    unit = "uncompressed byte" if path.suffix.lower() in COMPRESSIONS else "byte"
    where = "" if offset is None else f", at {unit} {offset}"
    # Four bytes a character at most, and white space in front of the first.
    text = head[:400].decode("utf-8", errors="backslashreplace") if isinstance(head, bytes | bytearray) else head[:400]
    start = f": {shown(text.strip()[:80])[:80]}" if text else "."
    return BadRecord(f"{shown(path)}:{number}: {what}{where}{start}" + (f"\n{remedy}" if remedy else ""))


def decode(line: Line, path: Path) -> str:
    """The text of a line, with its end and without a byte order mark; BadRecord where it is not UTF-8."""
    data = line.data
    try:
        text = str(data, "utf-8")
    except UnicodeDecodeError as error:
        begin = data.rfind(b"\n", 0, error.start) + 1
        utf16 = line.offset == 0 and data[:2] in (b"\xff\xfe", b"\xfe\xff")
        remedy = "It looks like UTF-16." if utf16 else "It may be in an older encoding such as Latin-1."
        name = "utf-16" if utf16 else "latin1"  # as Python and iconv know it
        remedy += f" Say --encoding {name}, or convert it: iconv -f {name} -t UTF-8 {shown(path.name)}"
        if b"\0" in data and not utf16:
            remedy = "It has bytes that are 0, which no text has: leave the file out"
        raise bad_record(
            path,
            number=line.number + data.count(b"\n", 0, error.start),
            what=f"not valid UTF-8 (0x{data[error.start]:02x})",
            offset=line.offset + error.start,
            head=data[begin : begin + 400].split(b"\n")[0],
            remedy=remedy,
        ) from error
    return text.removeprefix("\ufeff") if line.offset == 0 else text


def unreadable(path: Path, error: OSError) -> InputError:
    """The message for a file that the system does not let us read."""
    reason = f"cannot be read: {error.strerror or error}"
    if isinstance(error, FileNotFoundError):
        reason = "is no longer there"
    elif isinstance(error, PermissionError):
        reason = "may not be read by you (permission denied); change its permissions"
    return InputError(f"{shown(path)} {reason}.")


@cache
def say_once(text: str) -> None:
    """A line on standard error, by the first process alone, and only the first time."""
    if os.environ.get("RANK", "0") == "0":
        print(text, file=sys.stderr, flush=True)


@dataclass(frozen=True, slots=True)
class Piece:
    """The text of one document and where it begins: line or row, and byte if that is known. May be blank."""

    text: str
    line: int
    offset: int | None = None


def read_text_file(path: Path, how: Reading, *, boundary: str) -> Iterator[Piece | BadRecord]:
    """Documents of a text file: all of it, its lines, or what stands between its blank lines (`boundary`)."""
    with open_stream(path, how) as stream:
        yield from BOUNDARIES[boundary](stream)


def _whole_file(stream: Stream) -> Iterator[Piece | BadRecord]:
    data = bytearray()
    while chunk := stream.read(CHUNK_BYTES):
        data += chunk
        if len(data) > MAX_DOCUMENT_BYTES:
            yield too_long(stream.path, Line(data, 1, 0), "document")
            return
    yield _piece(Line(data, 1, 0), stream.path)


def _each_line(stream: Stream) -> Iterator[Piece | BadRecord]:
    for line in read_lines(stream):
        if isinstance(line, BadRecord):
            yield line
        elif not line.data.isspace():
            yield _piece(line, stream.path, keep_end=False)


def _between_blank_lines(stream: Stream) -> Iterator[Piece | BadRecord]:
    for is_edge, lines in groupby(read_lines(stream), lambda line: isinstance(line, Line) and line.data.isspace()):
        if not is_edge:
            yield _joined(lines, stream.path)


def _joined(lines: Iterator[Line | BadRecord], path: Path) -> Piece | BadRecord:
    """The document that lines make; where one of them, or all together, cannot be used, the others are passed over."""
    first: Line | None = None
    data = bytearray()
    for line in lines:
        if isinstance(line, BadRecord):
            return line
        first = first or line
        data += line.data
        if len(data) > MAX_DOCUMENT_BYTES:
            return too_long(path, first, "document")
    assert first is not None
    return _piece(Line(data, first.number, first.offset), path, keep_end=False)


_SILENT = frozenset({"script", "style", "nav", "template", "noscript"})
_BLOCKS = """address article aside blockquote body caption details div dl fieldset figcaption figure footer form h1 h2
    h3 h4 h5 h6 header hr legend main ol p pre section summary table title ul"""
# The ends of blocks and of lines, and blanks, tabs and line ends that are kept, while white space is collapsed.
_BLOCK, _LINE, _KEEP, _BACK = "\0", "\1", str.maketrans(" \t\n", "\2\3\4"), str.maketrans("\1\2\3\4", "\n \t\n")
_ENDS = {
    **dict.fromkeys(_BLOCKS.split(), _BLOCK),
    **dict.fromkeys(["br", "dd", "dt", "li", "tr"], _LINE),
    "td": " ",
    "th": " ",
}


def _html_text(markup: str) -> str:
    """What a page says, a paragraph for each of its blocks, with blank lines between; <pre> keeps its white space."""
    import bs4

    with warnings.catch_warnings(action="ignore"):  # that a text is XML, or looks like the name of a file
        soup = bs4.BeautifulSoup(markup, "html.parser")
    parts: list[str] = []
    pending: list[tuple[Any, bool]] = [(soup, False)]
    while pending:  # bs4's own ways to change a tree take longer than its depth allows
        node, kept = pending.pop()
        if isinstance(node, bs4.Tag):
            end, kept = _ENDS.get(node.name, ""), kept or node.name == "pre"
            inside = [] if node.name in _SILENT else node.contents[::-1]
            pending += [(each, kept) for each in (end, *inside, end)]
        elif type(node) in (str, bs4.NavigableString, bs4.CData):  # and no comment
            parts.append(node.translate(_KEEP) if kept else node)
    text = "".join(parts).encode(errors="replace").decode()  # &#xD800; is no character
    blocks = (re.sub(" ?\1[ \1]*", _LINE, " ".join(block.split())) for block in text.split(_BLOCK))
    return "\n\n".join(filter(str.strip, (block.translate(_BACK).strip("\n") for block in blocks)))


def _markdown_text(markup: str) -> str:
    """What a page says, without front matter, as `_html_text` gives it."""
    from markdown_it import MarkdownIt

    body = re.sub(r"\A---\n(.*?\n)?(---|\.\.\.)(\n|\Z)", "", markup, count=1, flags=re.DOTALL)
    return _html_text(MarkdownIt("commonmark").enable(["table", "strikethrough"]).render(body))


MARKUP: dict[str, Callable[[str], str]] = {".md": _markdown_text, ".html": _html_text, ".htm": _html_text}


def read_markup(path: Path, how: Reading, *, kind: str) -> Iterator[Piece | BadRecord]:
    """The text of a file whose kind is in `MARKUP`, one document; InputError where what reads it is not installed."""
    try:
        import bs4
    except ImportError as error:
        what = f"{shown(path)}: {', '.join(MARKUP)} files are read with the package beautifulsoup4"
        raise InputError(f'{what} ({error}): pip install -e ".[web]"') from error
    for piece in read_text_file(path, how, boundary="file"):
        try:
            yield piece if isinstance(piece, BadRecord) else replace(piece, text=MARKUP[kind](piece.text))
        except bs4.ParserRejectedMarkup as error:
            yield bad_record(path, number=1, what=f"not valid HTML ({str(error).splitlines()[-1].strip()[:80]})")


BOUNDARIES: dict[str, Callable[[Stream], Iterator[Piece | BadRecord]]] = {
    "file": _whole_file,
    "line": _each_line,
    "blank_line": _between_blank_lines,
}


def _piece(line: Line, path: Path, *, keep_end: bool = True) -> Piece | BadRecord:
    try:
        text = decode(line, path)
    except BadRecord as error:
        return error
    text = text if keep_end else text.rstrip("\r\n")
    position = text.find("\0")
    if position < 0:
        return Piece(normalize_lines(text), line.number, line.offset)
    number, offset = line.number + text.count("\n", 0, position), line.offset + len(text[:position].encode())
    begin = max(text.rfind("\n", 0, position) + 1, position - 40)
    return bad_record(path, number=number, what=NUL, offset=offset, head=text[begin : begin + 80])


def normalize_lines(text: str) -> str:
    """Line ends as "\\n"."""
    return text.replace("\r\n", "\n").replace("\r", "\n") if "\r" in text else text
