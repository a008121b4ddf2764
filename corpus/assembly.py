"""The last step of a build: pieces -> shards, without the documents that come again."""

import contextlib
import hashlib
import json
import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO

import numpy as np

from lacuna.common.errors import InputError, StorageError

from .duplicates import DocumentSet, find_equal, find_near
from .encoding import token_dtype
from .pieces import Piece, Plan
from .progress import progress_bar
from .store import FILES, FORMAT_VERSION, MANIFEST, sha256
from .streams import shown

BLOCK_BYTES = 1 << 22
NPY_HEADER_BYTES = 128
EMPTY_SHARD_BYTES = 2 * (NPY_HEADER_BYTES + 8)
MAX_SHARDS = 256  # whoever reads a store keeps three files of each open, and many systems allow a process 1024


@dataclass
class Counts:
    """What a shard, a source or a store holds."""

    documents: int = 0
    sentences: int = 0
    tokens: int = 0
    bytes: int = 0

    def add(self, other: "Counts") -> None:
        self.documents += other.documents
        self.sentences += other.sentences
        self.tokens += other.tokens
        self.bytes += other.bytes

    def as_manifest(self) -> dict[str, int]:
        return {f"num_{name}": value for name, value in vars(self).items()}


@dataclass
class Reading:
    """What was left out while text was read, from all parts of a build."""

    dropped: dict[str, int] = field(default_factory=dict)
    bad_records: list[str] = field(default_factory=list)


def assemble(
    *, pieces: list[Piece], plan: Plan, reading: Reading, sources: list[dict[str, Any]], folder: Path, shard_bytes: int
) -> tuple[Path, dict[str, Any]]:
    """Write a store in `folder` / "store", without its manifest's fingerprints.

    Args:
        pieces: of all parts, in the order of the corpus; those of a source follow each other.
        sources: name and weight of each.
        folder: of the build; work files of some 24 bytes a document are made and removed there.
        shard_bytes: a shard ends before the document that would make its files larger than this.

    Returns:
        The folder of the store, and its manifest.

    Raises:
        InputError: no document is left, or none of a source that has a weight.
        StorageError: a piece was damaged on the disk, or there would be more than MAX_SHARDS shards.
    """
    work = folder / "work"
    store = folder / "store"
    for path in (work, store):
        shutil.rmtree(path, ignore_errors=True)
        path.mkdir()
    dropped, counts = _find_duplicates(pieces, plan, work)
    total = sum(piece.tokens_bytes for piece in pieces)
    by_source = [Counts() for _ in sources]
    empty = 0
    bar = progress_bar(total=total, doing="joining")
    # Two shards that follow each other have more than the limit together, beside the headers of their files.
    size = total + sum(8 * (piece.num_sentences + piece.num_documents) for piece in pieces)
    enough = size // (MAX_SHARDS // 2) + 1 + EMPTY_SHARD_BYTES
    dtype = token_dtype(plan.vocab_size)
    with bar, _ShardWriter(store, dtype=dtype, limit=shard_bytes, enough=enough) as writer:
        first = 0
        for piece in pieces:
            piece.verify()
            keep = ~dropped.mask(first, first + piece.num_documents)
            first += piece.num_documents
            written, without_tokens = writer.add(piece, keep)
            by_source[piece.source].add(written)
            empty += without_tokens
            bar.update(piece.tokens_bytes)
    shards = writer.shards
    whole = Counts()
    for count in by_source:
        whole.add(count)
    described = [source | count.as_manifest() for source, count in zip(sources, by_source, strict=True)]
    check_weighted(described)
    if not whole.documents:
        raise InputError("there is no text to tokenize: every document is empty. Check --data.")
    shutil.rmtree(work)
    reasons = dict(sorted(reading.dropped.items())) | counts | ({"without tokens": empty} if empty else {})
    return store, {
        "format_version": FORMAT_VERSION,
        "dtype": token_dtype(plan.vocab_size).name,
        "vocab_size": plan.vocab_size,
        **whole.as_manifest(),
        "language": plan.language,
        "near_duplicates": plan.near_duplicates,
        "max_shard_bytes": shard_bytes,
        "dropped": reasons,
        "bad_records": reading.bad_records,
        "sources": described,
        "shards": shards,
    }


def too_many_shards(limit: int, enough: int) -> str:
    """What to say of a --max_shard_bytes that is too small, and which is not."""
    return (
        f"--max_shard_bytes {limit} makes more than {MAX_SHARDS} shards, and those who read a store keep all their "
        f"files open. Run it again with --max_shard_bytes {enough} or more."
    )


def check_weighted(sources: list[dict[str, Any]]) -> None:
    """Raises InputError if a source of a manifest has a weight and no document."""
    for source in sources:
        if source["weight"] and not source["num_documents"]:
            raise InputError(
                f"--data: no document of {shown(source['name'])} is left: all of them stand in earlier sources too. "
                "Leave it out, or leave out the weights."
            )


def write_manifest(folder: Path, manifest: dict[str, Any]) -> None:
    """Write manifest.json so that it is there whole, or as it was before."""
    temporary = folder / f".{MANIFEST}.{os.getpid()}"
    # A file name that is not UTF-8 has halves of surrogate pairs, whose escapes here are those of JSON.
    with temporary.open("w", encoding="utf-8", errors="backslashreplace") as file:
        file.write(json.dumps(manifest, indent=2, ensure_ascii=False) + "\n")
        file.flush()
        os.fsync(file.fileno())
    os.rename(temporary, folder / MANIFEST)
    sync_folder(folder)


def sync_folder(folder: Path) -> None:
    """Make the names in a folder survive a loss of power (systems without this call need nothing)."""
    if hasattr(os, "O_DIRECTORY"):
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _find_duplicates(pieces: list[Piece], plan: Plan, folder: Path) -> tuple[DocumentSet, dict[str, int]]:
    """The documents to drop, and how many for which reason."""
    num_documents = sum(piece.num_documents for piece in pieces)
    equal, count = find_equal(
        hashes=(piece.load("hashes")[0] for piece in pieces), num_documents=num_documents, folder=folder
    )
    counts = {"duplicates": count} if count else {}
    if plan.near_duplicates:
        near, count = find_near(
            signatures=(piece.load("signatures")[0] for piece in pieces),
            skipped=equal,
            num_documents=num_documents,
            threshold=plan.near_duplicates,
            folder=folder,
        )
        equal.bits |= near.bits
        counts |= {"near-duplicates": count} if count else {}
    return equal, counts


class _ShardWriter:
    """Writes documents into shards; a new one begins where the next document would make the last too large."""

    def __init__(self, folder: Path, *, dtype: np.dtype, limit: int, enough: int) -> None:
        self.folder = folder
        self.dtype = dtype
        self.limit = limit
        self.enough = enough  # a limit under which there are not too many shards
        self.shards: list[dict[str, Any]] = []
        self.open: _Shard | None = None

    def __enter__(self) -> "_ShardWriter":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self._close()
        elif self.open is not None:
            self.open.close_files()

    def add(self, piece: Piece, keep: np.ndarray) -> tuple[Counts, int]:
        """Copy the documents of a piece that are to stay; what was written, and how many had no token."""
        lengths, sentences, sizes = piece.load("sentence_lengths", "sentence_counts", "document_bytes")
        sentence_edges = np.concatenate([[0], np.cumsum(sentences, dtype=np.int64)])
        token_edges = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])[sentence_edges]
        without_tokens = int((keep & (sentences == 0)).sum())
        chosen = np.flatnonzero(keep & (sentences > 0))
        written = Counts()
        with piece.path.open("rb") as file:
            for run in self._runs(chosen, np.diff(token_edges), sentences):
                first, last = int(run[0]), int(run[-1]) + 1
                assert self.open is not None
                count = Counts(
                    documents=len(run),
                    sentences=int(sentences[first:last].sum()),
                    tokens=int(token_edges[last] - token_edges[first]),
                    bytes=int(sizes[first:last].sum(dtype=np.int64)),
                )
                self.open.add(
                    count,
                    tokens=_blocks(file, int(token_edges[first]), count.tokens, self.dtype),
                    sentence_lengths=lengths[sentence_edges[first] : sentence_edges[last]],
                    sentence_counts=sentences[first:last],
                )
                written.add(count)
        return written, without_tokens

    def _runs(self, chosen: np.ndarray, tokens: np.ndarray, sentences: np.ndarray) -> Iterator[np.ndarray]:
        """Documents that follow each other and go into the same shard; it is open when they are given."""
        if not len(chosen):
            return
        cost = tokens[chosen] * self.dtype.itemsize + 8 * sentences[chosen].astype(np.int64) + 8
        start = 0
        while start < len(chosen):
            if self.open is None:
                if len(self.shards) == MAX_SHARDS:
                    raise StorageError(too_many_shards(self.limit, self.enough) + " What is ready is kept.")
                self.open = _Shard(self.folder / f"{len(self.shards):05}", self.dtype)
            sums = np.cumsum(cost[start:])
            fit = int(np.searchsorted(sums, self.limit - self.open.size, side="right"))
            if not fit and self.open.counts.documents:
                self._close()
                continue
            fit = max(1, fit)  # a document that is larger than a shard has one of its own
            group = chosen[start : start + fit]
            self.open.size += int(sums[fit - 1])
            yield from np.split(group, np.flatnonzero(np.diff(group) > 1) + 1)
            start += fit

    def _close(self) -> None:
        if self.open is not None:
            self.shards.append(self.open.finish())
            self.open = None


class _Shard:
    """The three files of a shard that is being written."""

    def __init__(self, folder: Path, dtype: np.dtype) -> None:
        folder.mkdir()
        self.folder = folder
        self.counts = Counts()
        self.size = EMPTY_SHARD_BYTES  # of its files
        self.digest = hashlib.sha256()
        self.stack = contextlib.ExitStack()
        self.tokens = self.stack.enter_context((folder / FILES[0]).open("wb"))
        self.sentences = _OffsetFile(self.stack.enter_context((folder / FILES[1]).open("wb")))
        self.documents = _OffsetFile(self.stack.enter_context((folder / FILES[2]).open("wb")))

    def add(
        self, count: Counts, *, tokens: Iterator[bytes], sentence_lengths: np.ndarray, sentence_counts: np.ndarray
    ) -> None:
        for block in tokens:
            self.tokens.write(block)
            self.digest.update(block)
        self.sentences.add(sentence_lengths)
        self.documents.add(sentence_counts)
        self.counts.add(count)

    def finish(self) -> dict[str, Any]:
        """Force all to the disk; what the manifest says of the shard."""
        self.tokens.flush()
        os.fsync(self.tokens.fileno())
        self.sentences.finish()
        self.documents.finish()
        self.close_files()
        sync_folder(self.folder)
        digests = [self.digest.hexdigest(), *(sha256(self.folder / name) for name in FILES[1:])]
        files = {
            name: {"bytes": (self.folder / name).stat().st_size, "sha256": digest}
            for name, digest in zip(FILES, digests, strict=True)
        }
        return {"name": self.folder.name, **self.counts.as_manifest(), "files": files}

    def close_files(self) -> None:
        with contextlib.suppress(OSError):  # of a full disk, which was raised already
            self.stack.close()


class _OffsetFile:
    """A .npy file of running sums, int64, that grows on disk; its header is written last, in the space kept for it."""

    def __init__(self, file: BinaryIO) -> None:
        self.file = file
        self.count = 0
        self.last = 0
        file.write(b"\0" * NPY_HEADER_BYTES + np.zeros(1, dtype="<i8").tobytes())

    def add(self, lengths: np.ndarray) -> None:
        if len(lengths):
            sums = self.last + np.cumsum(lengths, dtype=np.int64)
            self.last = int(sums[-1])
            self.count += len(lengths)
            self.file.write(sums.astype("<i8").tobytes())

    def finish(self) -> None:
        # Version 1.0 of the format: magic, length of what follows as uint16, a Python literal, spaces, a line end.
        literal = f"{{'descr': '<i8', 'fortran_order': False, 'shape': ({self.count + 1},), }}".encode()
        header = b"\x93NUMPY\x01\x00" + (NPY_HEADER_BYTES - 10).to_bytes(2, "little")
        self.file.seek(0)
        self.file.write(header + literal.ljust(NPY_HEADER_BYTES - 11) + b"\n")
        self.file.flush()
        os.fsync(self.file.fileno())


def _blocks(file: BinaryIO, first: int, count: int, dtype: np.dtype) -> Iterator[bytes]:
    """Bytes of `count` tokens of a piece from token `first` on."""
    file.seek(first * dtype.itemsize)
    left = count * dtype.itemsize
    while left:
        block = file.read(min(left, BLOCK_BYTES))
        if not block:
            raise OSError(f"{file.name} became shorter while it was read")
        left -= len(block)
        yield block
