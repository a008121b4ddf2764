"""The token store: a corpus as one flat file of token ids, memory-mapped, with the edges of sentences and documents.

    tokens.bin             token ids, the smallest unsigned integers that hold the vocabulary, no special tokens
    sentence_offsets.npy   int64 [num_sentences + 1], in tokens
    document_offsets.npy   int64 [num_documents + 1], in sentences
    manifest.json          format, counts, SHA-256 of every file, fingerprints of the data and of the tokenizer

A store is built in a hidden folder beside its place and renamed when it is whole: what has its name is complete.
"""

import errno
import hashlib
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from filelock import FileLock, Timeout
from tokenizers import Tokenizer
from tqdm import tqdm

from .builtin import builtin_fingerprint
from .errors import CorpusError, StorageError
from .sentences import split_sentences
from .sources import find_files

FORMAT_VERSION = 1
MANIFEST = "manifest.json"
FILES = ("tokens.bin", "sentence_offsets.npy", "document_offsets.npy")

# Text handed to the tokenizer at once. Encodings take some 50 bytes of memory a character (17 MB of novels peak at
# 402 MB with batches of 4 MiB and 171 MB with 256 KiB), and larger batches are no faster on two cores (3.6, 4.0 MB/s);
# many cores need more than 16 KiB (3.1 MB/s on two) to share.
BATCH_CHARACTERS = 1 << 18
SILENT_WAIT_SECONDS = 5  # for another builder, before saying so


class TokenStore:
    """A corpus of tokens, read by index from disk. Open one with `open_store`.

    Attributes:
        tokens: uint16 or uint32 [num_tokens], memory-mapped.
        sentence_offsets: int64 [num_sentences + 1], in tokens.
        document_offsets: int64 [num_documents + 1], in sentences.
        vocab_size: ids are below it. num_bytes: UTF-8 bytes of the text behind the tokens.
        fingerprint, tokenizer_fingerprint: what the store was made from.
    """

    def __init__(self, *, path: Path, manifest: dict[str, Any]) -> None:
        self.path = path
        self.manifest = manifest
        self.vocab_size: int = manifest["vocab_size"]
        self.num_bytes: int = manifest["num_bytes"]
        self.fingerprint: str = manifest["fingerprint"]
        self.tokenizer_fingerprint: str = manifest["tokenizer_fingerprint"]
        self.tokens = np.memmap(path / "tokens.bin", dtype=manifest["dtype"], mode="r")
        self.sentence_offsets = np.load(path / "sentence_offsets.npy", mmap_mode="r", allow_pickle=False)
        self.document_offsets = np.load(path / "document_offsets.npy", mmap_mode="r", allow_pickle=False)

    @property
    def num_documents(self) -> int:
        return len(self.document_offsets) - 1

    @property
    def num_sentences(self) -> int:
        return len(self.sentence_offsets) - 1

    @property
    def num_tokens(self) -> int:
        return len(self.tokens)

    @cached_property
    def document_lengths(self) -> np.ndarray:
        """Tokens in each document: int64 [num_documents]."""
        return np.diff(self.sentence_offsets[self.document_offsets])

    def document_tokens(self, document: int) -> np.ndarray:
        """Token ids of one document: [document_lengths[document]], a view of the file."""
        first, last = self.document_offsets[document], self.document_offsets[document + 1]
        return self.tokens[self.sentence_offsets[first] : self.sentence_offsets[last]]

    def sentence_tokens(self, sentence: int) -> np.ndarray:
        """Token ids of one sentence, counted over the whole store: a view of the file."""
        return self.tokens[self.sentence_offsets[sentence] : self.sentence_offsets[sentence + 1]]

    def summary(self) -> str:
        """One line for people."""
        return (
            f"{self.num_documents:,} documents, {self.num_sentences:,} sentences, {self.num_tokens:,} tokens, "
            f"{self.num_bytes / 1e6:.2f} MB of text, {self.num_bytes / self.num_tokens:.2f} bytes per token"
        )

    def __reduce__(self) -> tuple[Any, ...]:
        # A worker process that does not fork gets the path, not a copy of the corpus.
        return open_store, (self.path,)


def corpus_fingerprint(*, paths: Sequence[str], text_column: str, tokenizer_fingerprint: str) -> str:
    """SHA-256 (hexadecimal) of all that decides a store: the content of the files in order, the column, the tokenizer.

    Names and dates of files do not count. No path means the built-in corpus, which the interpreter's version and the
    sizes of its modules stand for.
    """
    digest = hashlib.sha256(f"{FORMAT_VERSION} {tokenizer_fingerprint} ".encode())
    if not paths:
        digest.update(builtin_fingerprint().encode())
        return digest.hexdigest()
    for path in find_files(paths=paths):
        column = "" if path.suffix.lower() == ".txt" else text_column
        digest.update(f"{path.suffix.lower()} {column} {_sha256(path)} ".encode())
    return digest.hexdigest()


def open_store(path: str | Path, *, verify: bool = False) -> TokenStore:
    """Open a complete store. Sizes are checked; with `verify` every byte is (SHA-256, about 1 GB/s).

    Raises:
        CorpusError: there is no store, it is damaged, or a newer version wrote it; the message says which file.
    """
    path = Path(path)
    remedy = "Build it again: python recipes/prepare_corpus.py"
    if not (path / MANIFEST).is_file():
        what = f"there is no {MANIFEST} in it" if path.is_dir() else "there is no such folder"
        raise CorpusError(f"{path} is not a token store: {what}. {remedy} --output_dir {path}")
    try:
        manifest = json.loads((path / MANIFEST).read_text(encoding="utf-8"))
        version = manifest["format_version"]
        if version != FORMAT_VERSION:
            raise CorpusError(f"{path} has format {version}; this version of Lacuna reads {FORMAT_VERSION}. {remedy}")
        for name in FILES:
            expected, file = manifest["files"][name], path / name
            size = file.stat().st_size if file.exists() else None
            if size != expected["bytes"]:
                found = "is missing" if size is None else f"has {size} bytes"
                raise CorpusError(f"{file} {found}, its manifest says {expected['bytes']}. {remedy}")
            if verify and _sha256(file) != expected["sha256"]:
                raise CorpusError(f"{file} has changed since it was written (its SHA-256 differs). {remedy}")
        return TokenStore(path=path, manifest=manifest)
    except CorpusError:
        raise
    except (ValueError, KeyError, TypeError, OSError) as error:
        raise CorpusError(f"{path} cannot be read ({type(error).__name__}: {str(error)[:120]}). {remedy}") from error


def build_store(
    *,
    documents: Iterable[str],
    tokenizer: Any,
    output_dir: Path,
    fingerprint: str,
    tokenizer_fingerprint: str,
    total_bytes: int | None = None,
) -> TokenStore:
    """Tokenize documents into a store at `output_dir`, or open the one that is there with the same fingerprint.

    Text is read once and encoded in batches by all cores; memory does not grow with the corpus. A store of something
    else is replaced; a folder that is no store is not touched.

    Args:
        documents: read only when there is something to build.
        tokenizer: a fast tokenizer; its special tokens are treated as text where they occur in documents.
        fingerprint: from `corpus_fingerprint`.
        tokenizer_fingerprint: from `tokenization`, kept so that a model can be matched with its corpus.
        total_bytes: size of the text if known, for the progress bar (shown on a terminal only).

    Raises:
        CorpusError: there is no text, or `output_dir` holds something else.
        StorageError: the disk is full or read-only. Nothing half-built stays in either case.
    """
    output_dir = Path(output_dir)
    existing = _reusable(output_dir, fingerprint)
    if existing is not None:
        return existing
    with _storage_errors(output_dir):
        output_dir.parent.mkdir(parents=True, exist_ok=True)
        with _locked(output_dir):
            existing = _reusable(output_dir, fingerprint)  # another builder may have been first
            if existing is not None:
                return existing
            for stale in output_dir.parent.glob(f".{output_dir.name}.building-*"):  # of a builder that was killed
                shutil.rmtree(stale, ignore_errors=True)
            folder = Path(tempfile.mkdtemp(prefix=f".{output_dir.name}.building-", dir=output_dir.parent))
            try:
                counts = _write_tokens(
                    documents=documents, tokenizer=tokenizer, folder=folder, total_bytes=total_bytes
                )
                manifest = {
                    "format_version": FORMAT_VERSION,
                    **counts,
                    "fingerprint": fingerprint,
                    "tokenizer_fingerprint": tokenizer_fingerprint,
                    "files": {
                        name: {"bytes": (folder / name).stat().st_size, "sha256": _sha256(folder / name)}
                        for name in FILES
                    },
                }
                _write_manifest(folder, manifest)
                os.chmod(folder, 0o755)  # mkdtemp makes a folder for its owner alone
                if output_dir.exists():
                    shutil.rmtree(output_dir)
                os.rename(folder, output_dir)
                _sync_folder(output_dir.parent)
            finally:
                shutil.rmtree(folder, ignore_errors=True)
    return open_store(output_dir)


def _reusable(output_dir: Path, fingerprint: str) -> TokenStore | None:
    """The store at `output_dir` if it is the one wanted; None when it may be written."""
    if not output_dir.exists() or (output_dir.is_dir() and not any(output_dir.iterdir())):
        return None
    if not (output_dir / MANIFEST).is_file():
        raise CorpusError(f"{output_dir} is there and is not a token store; choose another --output_dir.")
    try:
        store = open_store(output_dir)
    except CorpusError:
        return None  # damaged, or of an older version: it is built again
    return store if store.fingerprint == fingerprint else None


def _write_tokens(
    *, documents: Iterable[str], tokenizer: Any, folder: Path, total_bytes: int | None
) -> dict[str, Any]:
    """Write the three data files and return what the manifest says about them."""
    vocab_size = len(tokenizer)
    dtype = np.dtype(np.uint16 if vocab_size <= 1 << 16 else np.uint32)
    backend = Tokenizer.from_str(tokenizer.backend_tokenizer.to_str())
    backend.no_padding()
    backend.no_truncation()
    backend.encode_special_tokens = True  # "[MASK]" in somebody's text is text
    num_bytes = 0
    bar = tqdm(total=total_bytes, unit="B", unit_scale=True, desc="tokenizing", disable=not sys.stderr.isatty())
    with (
        bar,
        (folder / "tokens.bin").open("wb") as tokens,
        _OffsetFile(folder / "sentence_offsets.npy") as sentences,
        _OffsetFile(folder / "document_offsets.npy") as offsets,
    ):
        open_document, open_count = -1, 0  # the last document of a batch may go on in the next one
        for texts, owners in _sentence_batches(documents):
            ids = [encoding.ids for encoding in backend.encode_batch_fast(texts, add_special_tokens=False)]
            lengths = np.fromiter(map(len, ids), dtype=np.int64, count=len(ids))
            tokens.write(np.fromiter(chain.from_iterable(ids), dtype=dtype, count=lengths.sum()).tobytes())
            sentences.add(lengths[lengths > 0])  # a tokenizer that is not byte-level may make nothing of a sentence
            numbers, counts = np.unique(np.array(owners)[lengths > 0], return_counts=True)
            if len(numbers) and numbers[0] == open_document:
                counts[0] += open_count
            elif open_count:
                offsets.add(np.array([open_count]))
            if len(numbers):
                offsets.add(counts[:-1])
                open_document, open_count = int(numbers[-1]), int(counts[-1])
            size = sum(len(text.encode()) for text in texts)
            num_bytes += size
            bar.update(size)
        offsets.add(np.array([open_count]))
        if not sentences.last:
            raise CorpusError("there is no text to tokenize: every document is empty. Check --data.")
        tokens.flush()
        os.fsync(tokens.fileno())
        return {
            "dtype": dtype.name,
            "vocab_size": vocab_size,
            "num_documents": offsets.count,
            "num_sentences": sentences.count,
            "num_tokens": sentences.last,
            "num_bytes": num_bytes,
        }


def _sentence_batches(documents: Iterable[str]) -> Iterator[tuple[list[str], list[int]]]:
    """Batches of sentences, each with the number of its document."""
    texts: list[str] = []
    owners: list[int] = []
    size = 0
    for number, document in enumerate(documents):
        if document.isspace():
            continue
        for sentence in split_sentences(document):
            texts.append(sentence)
            owners.append(number)
            size += len(sentence)
            if size >= BATCH_CHARACTERS:
                yield texts, owners
                texts, owners, size = [], [], 0
    if texts:
        yield texts, owners


class _OffsetFile:
    """A .npy file of running sums, int64, that grows on disk; its header is written last, in the space kept for it."""

    HEADER_BYTES = 128

    def __init__(self, path: Path) -> None:
        self.path = path
        self.count = 0
        self.last = 0

    def __enter__(self) -> "_OffsetFile":
        self.file: BinaryIO = self.path.open("wb")
        self.file.write(b"\0" * self.HEADER_BYTES + np.zeros(1, dtype="<i8").tobytes())
        return self

    def add(self, lengths: np.ndarray) -> None:
        if not len(lengths):
            return
        sums = self.last + np.cumsum(lengths, dtype=np.int64)
        self.last = int(sums[-1])
        self.count += len(lengths)
        self.file.write(sums.astype("<i8").tobytes())

    def __exit__(self, *exception: object) -> None:
        with self.file as file:
            # Version 1.0 of the format: magic, length of what follows as uint16, a Python literal, spaces, a line end.
            literal = f"{{'descr': '<i8', 'fortran_order': False, 'shape': ({self.count + 1},), }}".encode()
            header = b"\x93NUMPY\x01\x00" + (self.HEADER_BYTES - 10).to_bytes(2, "little")
            file.seek(0)
            file.write(header + literal.ljust(self.HEADER_BYTES - 11) + b"\n")
            file.flush()
            os.fsync(file.fileno())


def _write_manifest(folder: Path, manifest: dict[str, Any]) -> None:
    with (folder / MANIFEST).open("w", encoding="utf-8") as file:
        file.write(json.dumps(manifest, indent=2) + "\n")
        file.flush()
        os.fsync(file.fileno())
    _sync_folder(folder)


def _sync_folder(folder: Path) -> None:
    """Make the names in a folder survive a loss of power (systems without this call need nothing)."""
    if hasattr(os, "O_DIRECTORY"):
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@contextmanager
def _locked(output_dir: Path) -> Iterator[None]:
    """One builder at a time; the lock file goes with its last holder."""
    lock = FileLock(output_dir.with_name(f".{output_dir.name}.lock"))
    try:
        lock.acquire(timeout=SILENT_WAIT_SECONDS)
    except Timeout:
        print(f"another process is building {output_dir}; waiting for it", file=sys.stderr)
        lock.acquire()
    try:
        yield
    finally:
        # filelock sees that a waiter holds the lock of a removed file, and takes a new one.
        Path(lock.lock_file).unlink(missing_ok=True)
        lock.release()


@contextmanager
def _storage_errors(output_dir: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        reasons = {errno.ENOSPC: "the disk is full", errno.EDQUOT: "your quota is used up", errno.EROFS: "read-only"}
        if isinstance(error, PermissionError) or error.errno in reasons:
            reason = reasons.get(error.errno or 0, "no permission")
            raise StorageError(
                f"cannot write {output_dir}: {reason} ({error}). Choose another --output_dir."
            ) from error
        raise
