"""All of `--data`, opened: its documents in a stable order, and what decides them."""

import hashlib
import json
import re
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import astuple, dataclass, field, replace
from functools import cached_property
from pathlib import Path

from lacuna.common.errors import BadRecord, InputError, StorageError, progress_bar
from lacuna.common.files import cache_folder, sha256, write_text
from lacuna.common.private import shown

from ..arguments import TextArguments
from ..builtin import builtin_documents, builtin_fingerprint
from .formats import Record, iter_records, kind_of, read_texts, text_of
from .sources import TEXT_KINDS, HubDataset, find_files, is_hub_name, open_dataset, parse_sources
from .streams import MARKUP, Piece, Reading, read_markup, read_text_file, unreadable
from .unwrap import unwrapped

VERSION = 1  # rises when other documents are made of the same files
BUILTIN = "built-in corpus"
BAD_RECORD = "bad record"  # in `dropped`
MAX_BAD_SHARE = 0.001  # of the records, with --on_bad_record skip
CHECKED_EVERY = 1000  # records
SHOWN_BAD_RECORDS = 20
LARGE_BYTES = 16 << 20  # smaller files are hashed as fast as they are looked up
SETTLED_SECONDS = 2  # a file written later than this could change again with the same time of change


@dataclass(frozen=True, slots=True)
class Document:
    """One document of a corpus."""

    text: str  # "\n" line ends, no byte order mark, no NUL, not blank
    source: int  # which source of --data, from 0
    place: str  # "file:line" (or row) where it begins, for messages


@dataclass(frozen=True, slots=True)
class _File:
    """A file of --data as it was when it was opened."""

    path: Path
    source: int
    size: int
    modified_ns: int

    @classmethod
    def of(cls, path: Path, source: int) -> "_File":
        try:
            stat = path.stat()
        except OSError as error:
            raise unreadable(path, error) from error
        return cls(path, source, stat.st_size, stat.st_mtime_ns)

    def check(self) -> None:
        """Raises InputError if the file is not what it was."""
        now = _File.of(self.path, self.source)
        if now != self:
            sizes = f": it had {self.size:,} bytes and has {now.size:,} now" if now.size != self.size else ""
            raise InputError(
                f"{shown(self.path)} changed while it was read{sizes}. Start again when nothing writes to it any more."
            )


@dataclass(frozen=True, slots=True)
class _HubFile:
    """A data file of a dataset of the Hub. A commit does not change; how large the file is nobody says."""

    dataset: HubDataset
    part: int
    source: int

    def check(self) -> None:
        """Nothing to compare."""


@dataclass(eq=False, repr=False)
class Text:
    """All of --data, opened: knows its files, reads documents in a stable order, says what decides them.

    Nothing stays open between iterations, so it may be copied to other processes. `bytes_read`, `dropped` and
    `bad_records` tell about the iteration of `documents` that began last.
    """

    names: list[str]
    weights: list[float] | None
    files: list[_File | _HubFile]
    arguments: TextArguments
    more: list[str] = field(default_factory=list)  # texts of the first source, where they are not in a file
    dropped: dict[str, int] = field(default_factory=dict, init=False)
    bad_records: list[str] = field(default_factory=list, init=False)

    def __post_init__(self) -> None:
        self.language = self.arguments.language
        sizes = [file.size for file in self.files if isinstance(file, _File)]
        self.total_bytes = sum(sizes) if sizes and len(sizes) == len(self.files) else None
        self._how = Reading(column=self.arguments.text_column, **self.arguments.reading())

    @property
    def bytes_read(self) -> int:
        """How far on disk the present iteration of `documents` is."""
        return self._how.finished + self._how.current

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 (hexadecimal) of all that decides the documents: content of the files in order, options, version.
        Names, dates and weights do not count."""
        options = self.arguments
        digest = hashlib.sha256(f"{VERSION} {options.on_bad_record} {options.unwrap and 2} {len(self.names)}".encode())
        if reading := options.reading():
            digest.update(json.dumps(reading).encode())
        if not self.files:
            digest.update(builtin_fingerprint().encode())
        if self.more:
            digest.update(json.dumps(self.more).encode())
        hashes = iter(hash_files([file.path for file in self.files if isinstance(file, _File)]))
        for file in self.files:
            file.check()
            if isinstance(file, _HubFile):
                about = [*astuple(file.dataset), file.part, options.text_column]
            else:
                kind = kind_of(file.path)
                is_text = kind in (".txt", *MARKUP)
                about = [kind, options.document_boundary if is_text else options.text_column, next(hashes)]
            digest.update(json.dumps([file.source, about]).encode())
        return digest.hexdigest()

    def after(self, more: Sequence[str], *, name: str, share: float) -> "Text":
        """This text after more documents, a source of their own with the weight `share`.

        Without weights all of --data is one source then, so that each of its texts goes on to count by its size.
        Raises InputError for a document that is no text, or where there is none.
        """
        records = (Record({"text": each}, name, number) for number, each in enumerate(more, start=1))
        texts = [each for record in records if (each := text_of(record, column="text")).strip()]
        if not texts:
            raise InputError(f"{shown(name)}: there are none")
        names, weights = (self.names, self.weights) if self.weights else ([" ".join(self.names)], [1.0])
        weights = [share, *((1 - share) * weight for weight in weights)]
        files = [replace(file, source=1 + (file.source if self.weights else 0)) for file in self.files]
        return replace(self, names=[name, *names], weights=weights, files=files, more=texts)

    def texts(self) -> Iterator[str]:
        return (document.text for document in self.documents())

    def documents(self) -> Iterator[Document]:
        """All documents, in a stable order.

        Raises InputError: a file or record is broken or holds no text, or has changed; the message says where.
        """
        self._how.finished = self._how.current = 0
        self.dropped, self.bad_records = {}, []
        self._records = self._bad = 0  # the former include the latter
        document = None
        for document in self._read():
            yield document
        self._stop_if_many_are_bad()
        if document is None:
            first = f" The first bad record: {self.bad_records[0]}" if self.bad_records else ""
            raise InputError(f"--data {' '.join(map(shown, self.names))}: there is no text in it.{first}")

    def _read(self) -> Iterator[Document]:
        for number, text in enumerate(self.more, start=1):
            yield Document(text, 0, f"{self.names[0]}:{number}")
        if not self.files:
            for number, text in enumerate(builtin_documents(), start=1):
                yield Document(text, len(self.names) - 1, f"{BUILTIN}:{number}")
        for file in self.files:
            yield from self._file_documents(file)
            if isinstance(file, _File):
                self._how.finished += file.size
            self._how.current = 0

    def _file_documents(self, file: _File | _HubFile) -> Iterator[Document]:
        file.check()
        place = shown(file.path) if isinstance(file, _File) else shown(file.dataset.place(file.part))
        anything, bad_before = False, self._bad
        if isinstance(file, _HubFile) or file.size:
            for piece in self._pieces(file):
                self._records += 1
                if isinstance(piece, BadRecord):
                    self._pass_over(piece)
                elif not piece.text or piece.text.isspace():
                    self.dropped["empty"] = self.dropped.get("empty", 0) + 1
                else:
                    anything = True
                    yield Document(piece.text, file.source, f"{place}:{piece.line}")
                if self._records % CHECKED_EVERY == 0:
                    self._stop_if_many_are_bad()
        if not anything and isinstance(file, _File) and self._bad == bad_before:
            self._records += 1
            is_text = kind_of(file.path) in (".txt", *MARKUP)
            held = "it holds no text" if is_text else f"no row has text in the column {self.arguments.text_column!r}"
            self._pass_over(BadRecord(f"{shown(file.path)} is empty: {held}. Remove it from --data, or fill it."))
        file.check()

    def _pieces(self, file: _File | _HubFile) -> Iterator[Piece | BadRecord]:
        boundary, column, how = self.arguments.document_boundary, self.arguments.text_column, self._how
        kind, together = "" if isinstance(file, _HubFile) else kind_of(file.path), False
        if isinstance(file, _HubFile):
            pieces = read_texts(file.dataset.records(part=file.part, column=column), column=column)
        elif kind in MARKUP:
            pieces = read_markup(file.path, how, kind=kind)
        elif kind == ".txt":
            pieces = read_text_file(file.path, how, boundary=boundary)
            together = boundary == "blank_line"
        else:
            pieces = read_texts(iter_records(file.path, how), column=column)
        return unwrapped(pieces, together=together) if self.arguments.unwrap else pieces

    def _pass_over(self, error: BadRecord) -> None:
        """Count a bad record, or stop at it."""
        if self.arguments.on_bad_record != "skip":
            raise error
        self._bad += 1
        self.dropped[BAD_RECORD] = self._bad
        if len(self.bad_records) < SHOWN_BAD_RECORDS:
            self.bad_records.append(str(error).partition("\n")[0])

    def _stop_if_many_are_bad(self) -> None:
        """With --on_bad_record skip, one record may be bad, and then one in a thousand."""
        if self._bad > max(1, MAX_BAD_SHARE * self._records):
            first = "\n".join(self.bad_records[:5])
            raise InputError(
                f"{self._bad:,} of {self._records:,} records are bad so far, and --on_bad_record skip passes over one "
                f"in a thousand. The first ones:\n{first}"
            )


def open_text(arguments: TextArguments) -> Text:
    """Find all of --data; without it, the built-in corpus. Raises InputError: a source does not exist, holds nothing
    that can be read, or has a weight that is none."""
    if not re.fullmatch(r"[A-Za-z]{2,3}([-_][A-Za-z]+)*", arguments.language):
        raise InputError(f"--language must be an ISO code such as en, de or zh, got {shown(arguments.language)!r}")
    if not arguments.data:
        return Text(names=[BUILTIN], weights=None, files=[], arguments=arguments)
    names, weights = parse_sources(arguments.data)
    files: list[_File | _HubFile] = []
    seen: set[Path] = set()
    for source, name in enumerate(names):
        if is_hub_name(name):
            dataset = open_dataset(name=name, config=arguments.dataset_config, split=arguments.dataset_split)
            files += [_HubFile(dataset, part, source) for part in range(dataset.num_parts)]
            continue
        found = find_files(paths=[name], split=arguments.dataset_split, kinds=TEXT_KINDS)
        new = [path for path in found if path.resolve() not in seen]
        if not new and weights is not None:
            raise InputError(f"--data: every file of {shown(name)} belongs to an earlier source, and it has a weight.")
        seen.update(path.resolve() for path in new)
        files += [_File.of(path, source) for path in new]
    return Text(names=names, weights=weights, files=files, arguments=arguments)


def hash_files(paths: Sequence[Path]) -> list[str]:
    """SHA-256 (hexadecimal) of each file, with a progress bar when that takes long."""
    digests = []
    try:
        total = sum(path.stat().st_size for path in paths)
        with progress_bar(total=total, doing="hashing", unit="B") as bar:
            for path in paths:
                digests.append(_known_hash(path))
                bar.update(path.stat().st_size)
    except OSError as error:
        raise unreadable(Path(error.filename or path), error) from error
    return digests


def _known_hash(path: Path) -> str:
    """The hash of a file; that of a large one is kept in the cache for as long as the file does not change."""
    stat = path.stat()
    if stat.st_size < LARGE_BYTES or time.time() - stat.st_ctime < SETTLED_SECONDS:
        return sha256(path)
    state = f"{path.absolute()} {stat.st_size} {stat.st_ino} {stat.st_mtime_ns} {stat.st_ctime_ns}"
    name = hashlib.sha256(state.encode(errors="surrogateescape")).hexdigest()
    kept = cache_folder() / "hashes" / name
    if kept.is_file():
        return kept.read_text()
    digest = sha256(path)
    with suppress(StorageError):  # a cache that cannot be written is none
        write_text(kept, digest)
    return digest
