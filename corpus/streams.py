"""Files as streams of bytes and lines: decompressed on the way, bounded in memory; errors tell file and offset."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, NamedTuple

from lacuna.common.errors import BadRecord, InputError

MAX_DOCUMENT_BYTES = 32 << 20  # of UTF-8; a longer one would make memory a matter of the data
MAX_MEASURED_BYTES = 1 << 30  # a line too long is measured up to here, about a second
CHUNK_BYTES = 1 << 18
COMPRESSIONS = {".gz": "gzip", ".zst": "zstd"}


class Line(NamedTuple):
    """A line with its end, and where it begins: number from 1, offset in bytes of the uncompressed file."""

    data: bytes | bytearray
    number: int
    offset: int


@dataclass
class Progress:
    """How far on disk a reader is, in bytes: the files that are done, and the one that is open."""

    finished: int = 0
    current: int = 0


@dataclass
class Stream:
    """An open file: `read` gives its uncompressed bytes and notes how far on disk that is."""

    path: Path
    raw: BinaryIO
    source: BinaryIO
    compression: str | None
    progress: Progress
    position: int = 0  # in the uncompressed bytes
    returned: bytes = b""  # read, and given back

    @property
    def size_on_disk(self) -> int:
        return os.fstat(self.raw.fileno()).st_size

    def unread(self, data: bytes) -> None:
        """Give back what was read last; the next `read` returns it, whatever the size asked for."""
        self.returned = data
        self.position -= len(data)

    def read(self, size: int) -> bytes:
        """Up to `size` bytes; empty at the end.

        Raises:
            InputError: the disk or the archive fails.
        """
        try:
            data, self.returned = self.returned or self.source.read(size), b""
        except OSError as error:
            if self.compression is None:
                raise unreadable(self.path, error) from error
            if self.compression == "zstd" and "memory" in str(error):
                raise InputError(
                    f"{shown(self.path)} was compressed with too large a window ({error}). Compress it again: "
                    f"zstd -d --long=31 -c {shown(self.path.name)} | zstd -o NEW{''.join(self.path.suffixes[-2:])}"
                ) from error
            raise InputError(
                f"{shown(self.path)} is a broken {self.compression} archive: {error}, near byte {self.raw.tell():,} "
                f"of {self.size_on_disk:,} on disk, after {self.position:,} bytes of text. "
                "Copy or compress it again."
            ) from error
        self.position += len(data)
        self.progress.current = self.raw.tell()
        return data


@contextmanager
def open_stream(path: Path, *, progress: Progress | None = None) -> Iterator[Stream]:
    """Open a file, decompressing .gz and .zst (also several members or frames one after the other).

    Raises:
        InputError: it cannot be opened.
    """
    compression = COMPRESSIONS.get(path.suffix.lower())
    progress = progress or Progress()
    try:
        file = path.open("rb")
    except OSError as error:
        raise unreadable(path, error) from error
    with file:
        if compression is None:
            yield Stream(path, file, file, None, progress)
        else:
            # Arrow reads both kinds with one call, takes members and frames that follow each other, tells a truncated
            # archive from a whole one (zstandard's stream_reader does not) and gives no more than was asked for.
            import pyarrow

            with pyarrow.CompressedInputStream(pyarrow.PythonFile(file, mode="r"), compression) as source:
                yield Stream(path, file, source, compression, progress)


def read_lines(stream: Stream, *, limit: int = MAX_DOCUMENT_BYTES) -> Iterator[Line | BadRecord]:
    """Lines with their ends ("\\n", "\\r\\n" or "\\r"); in the place of one of more than `limit` bytes, what to say.

    Memory: the longest line up to `limit`, and a little.
    """
    number, offset = 0, 0
    held: list[bytes] = []  # a line that is not over, or ends with "\r" and "\n" may follow
    while chunk := stream.read(CHUNK_BYTES):
        pieces = chunk.splitlines(keepends=True)
        if held and (pieces[0] == b"\n" or not held[-1].endswith(b"\r")):
            held.append(pieces.pop(0))
        if held and (pieces or held[-1].endswith(b"\n")):
            pieces.insert(0, b"".join(held))
            held = []
        if pieces and not pieces[-1].endswith(b"\n"):
            held = [pieces.pop()]
        pieces.reverse()
        while pieces:
            line = Line(pieces.pop(), number + 1, offset)
            number, offset = number + 1, offset + len(line.data)
            yield line if len(line.data) <= limit else _long_line(stream, line)
        size = sum(map(len, held))
        if size > limit and not held[-1].endswith(b"\r"):
            number += 1
            head = held[0]
            held = []
            size, rest, ended = _pass_over(stream, size, most=MAX_MEASURED_BYTES)
            yield too_long(stream.path, number=number, offset=offset, size=size, head=head)
            if not ended:
                size, rest, _ = _pass_over(stream, size, most=None)
            offset += size
            stream.unread(rest)
    if held:
        line = Line(b"".join(held), number + 1, offset)
        yield line if len(line.data) <= limit else _long_line(stream, line)


def _long_line(stream: Stream, line: Line) -> BadRecord:
    return too_long(stream.path, number=line.number, offset=line.offset, size=len(line.data), head=line.data)


def _pass_over(stream: Stream, size: int, *, most: int | None) -> tuple[int, bytes, bool]:
    """Read on to the end of a line of which `size` bytes are known: its size, what was read of the next ones, True.

    With `most`, stop when so many bytes are known: False.
    """
    returned = False  # the chunk before ended with "\r", and "\n" may follow
    while chunk := stream.read(CHUNK_BYTES):
        if returned:
            end = 1 if chunk.startswith(b"\n") else 0
            return size + end, chunk[end:], True
        first = chunk.splitlines(keepends=True)[0]
        size += len(first)
        if first.endswith(b"\r") and len(first) == len(chunk):
            returned = True
        elif first.endswith((b"\n", b"\r")):
            return size, chunk[len(first) :], True
        elif most is not None and size > most:
            return size, b"", False
    return size, b"", True


def too_long(
    path: Path, *, number: int, offset: int, size: int, head: bytes | bytearray, what: str = "line"
) -> BadRecord:
    """What to say of a document or line above the limit, of which the first bytes are `head`."""
    more = "more than " if size > MAX_MEASURED_BYTES else ""
    return bad_record(
        path,
        number=number,
        offset=offset,
        what=f"a {what} of {more}{size:,} bytes, and a document may have {MAX_DOCUMENT_BYTES >> 20} MiB",
        head=head,
        remedy="Split it, or let --document_boundary line or blank_line do so." if what == "document" else "Split it.",
    )


def bad_record(
    path: Path,
    *,
    number: int,
    what: str,
    offset: int | None = None,
    head: bytes | bytearray | str = "",
    remedy: str = "",
) -> BadRecord:
    """The message for a broken record: file, line (or row) number, what is wrong, byte offset, first 80 characters."""
    unit = "uncompressed byte" if path.suffix.lower() in COMPRESSIONS else "byte"
    where = "" if offset is None else f", at {unit} {offset}"
    # Four bytes a character at most, and white space in front of the first.
    text = head[:400].decode("utf-8", errors="backslashreplace") if isinstance(head, bytes | bytearray) else head[:400]
    start = f": {visible(text.strip()[:80])[:80]}" if text else "."
    return BadRecord(f"{shown(path)}:{number}: {what}{where}{start}" + (f"\n{remedy}" if remedy else ""))


def decode(line: Line, path: Path) -> str:
    """The text of a line, with its end and without a byte order mark.

    Raises:
        BadRecord: it is not UTF-8.
    """
    data = line.data
    try:
        text = str(data, "utf-8")
    except UnicodeDecodeError as error:
        number = line.number + data.count(b"\n", 0, error.start)
        begin = data.rfind(b"\n", 0, error.start) + 1
        utf16 = line.offset == 0 and data[:2] in (b"\xff\xfe", b"\xfe\xff")
        remedy = "It looks like UTF-16." if utf16 else "It may be in an older encoding such as Latin-1."
        encoding = "UTF-16" if utf16 else "LATIN1"
        raise bad_record(
            path,
            number=number,
            what=f"not valid UTF-8 (0x{data[error.start]:02x})",
            offset=line.offset + error.start,
            head=data[begin : begin + 400].split(b"\n")[0],
            remedy=f"{remedy} Convert it: iconv -f {encoding} -t UTF-8 {shown(path.name)}",
        ) from error
    return text.removeprefix("\ufeff") if line.offset == 0 else text


def visible(text: str) -> str:
    """Text for a message: what does not print (NUL, half a surrogate pair, a line end) becomes its escape."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape", "surrogatepass").decode() for c in text)


def shown(path: Path | str) -> str:
    """A path for a message; what does not print in it is escaped."""
    return visible(str(path))


def unreadable(path: Path, error: OSError) -> InputError:
    """The message for a file that the system does not let us read."""
    reasons: dict[type, str] = {
        FileNotFoundError: "is no longer there",
        PermissionError: "may not be read by you (permission denied); change its permissions",
        IsADirectoryError: "is a folder now",
    }
    reason = reasons.get(type(error), f"cannot be read: {error.strerror or error}")
    return InputError(f"{shown(path)} {reason}.")
