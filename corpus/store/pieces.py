"""Pieces of a store that is being built: some megabytes of text as tokens, made by a pool of processes.

A piece is what a crash costs: a file that is whole or not there. It is an .npz file, whose arrays have checksums:

    about               int64: source, documents, sentences, tokens, CRC-32 of the text that it was made from
    tokens              token ids of all documents, one after the other
    sentence_lengths    uint32 [sentences], in tokens
    sentence_counts     uint32 [documents]
    document_bytes      uint32 [documents], of UTF-8
    hashes              16 bytes for each document: BLAKE2b of its text
"""

import json
import multiprocessing
import os
import signal
import sys
import threading
import zipfile
import zlib
from collections.abc import Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from hashlib import blake2b
from itertools import chain, islice
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest.mock import patch

import numpy as np

from lacuna.common.errors import LacunaError, StorageError, WorkerError
from lacuna.common.files import replacing

from .encoding import SentenceEncoder

BUILD = "build.json"
TOKENIZER = "tokenizer.json"
SUFFIX = ".piece"
KEPT = ". Make room or choose another --output_dir. What is ready is kept: the same command resumes from there."


@dataclass(frozen=True)
class BuildOptions:
    """What all pieces of a store have in common: a piece is a function of it and of the text of the piece."""

    text: str  # fingerprint
    tokenizer: str  # fingerprint
    vocab_size: int
    language: str

    @property
    def dtype(self) -> np.dtype:
        """Of token ids: the smallest unsigned integer that holds them."""
        return np.min_scalar_type(self.vocab_size - 1)


@dataclass(frozen=True)
class TextPiece:
    """Documents of one source that follow each other: what a piece is made of."""

    number: int
    source: int
    place: str  # of the first document
    texts: list[bytes]

    @property
    def checksum(self) -> int:
        """CRC-32 of the texts and their edges."""
        value = 0
        for text in self.texts:
            value = zlib.crc32(text, zlib.crc32(len(text).to_bytes(8, "little"), value))
        return value


@dataclass(frozen=True)
class Piece:
    """A whole piece on disk."""

    path: Path
    source: int
    num_documents: int
    num_sentences: int
    num_tokens: int
    text_checksum: int

    @classmethod
    def open(cls, path: Path) -> "Piece | None":
        """The piece at `path`; None if nothing whole is there."""
        try:
            with np.load(path) as arrays:
                return cls(path, *arrays["about"].tolist())
        except (FileNotFoundError, EOFError, KeyError, TypeError, ValueError, zipfile.BadZipFile):
            return None

    def load(self, *names: str) -> list[np.ndarray]:
        """Some of its arrays; where they are damaged on the disk, StorageError, and the piece is removed."""
        try:
            with np.load(self.path) as arrays:
                return [arrays[name] for name in names]
        except (EOFError, KeyError, ValueError, zipfile.BadZipFile) as error:
            self.path.unlink()
            raise StorageError(
                f"{self.path} was damaged on the disk after it was written. It is removed; run the same command again "
                "to make it again, and check the disk."
            ) from error


def make_piece(*, text: TextPiece, path: Path, folder: Path) -> None:
    """Cut documents into sentences, encode and hash them, and write them as one piece at `path`; the folder is that of
    the build. Raises StorageError: the disk is full or does not let us write; nothing stays."""
    options, encoder = _load_build(folder)
    tokens, lengths = [np.empty(0, dtype=encoder.dtype)], [np.empty(0, dtype="<u4")]
    counts = np.zeros(len(text.texts), dtype="<u4")
    for owners, ids, sizes in encoder.documents(text.texts, options.language):
        kept = sizes > 0  # a tokenizer that is not byte-level may make nothing of a sentence
        tokens.append(ids)
        lengths.append(sizes[kept].astype("<u4"))
        counts += np.bincount(np.array(owners)[kept], minlength=len(counts)).astype("<u4")
    arrays: dict[str, Any] = {
        "tokens": np.concatenate(tokens),
        "sentence_lengths": np.concatenate(lengths),
        "sentence_counts": counts,
        "document_bytes": np.array([len(data) for data in text.texts], dtype="<u4"),
        "hashes": np.frombuffer(b"".join(blake2b(data, digest_size=16).digest() for data in text.texts), dtype="V16"),
    }
    counted = [len(arrays[name]) for name in ("sentence_counts", "sentence_lengths", "tokens")]
    arrays["about"] = np.array([text.source, *counted, text.checksum], dtype="<i8")
    with replacing(path, hint=KEPT) as temporary, temporary.open("wb") as file:
        np.savez(file, **arrays)


def make_pieces(tasks: Iterable[tuple[TextPiece, Path]], *, folder: Path, num_workers: int) -> None:
    """Make pieces at their paths in several processes; the tasks are read as fast as pieces are made.

    With fewer than two workers, or a single piece, the work is done here on the threads of the tokenizer.

    Raises StorageError: a piece could not be written; WorkerError: a worker failed or was killed.
    """
    tasks = iter(tasks)
    first = list(islice(tasks, 2))
    tasks = chain(first, tasks)
    if num_workers < 2 or len(first) < 2:
        for text, path in tasks:
            make_piece(text=text, path=path, folder=folder)
        return
    places: dict[Future[None], str] = {}  # of what is being made

    def collect(*, at_most: int) -> None:
        """Wait until so few are being made; raise what a worker raised."""
        while len(places) > at_most:
            for future in wait(places, return_when=FIRST_COMPLETED).done:
                error = future.exception()
                if isinstance(error, LacunaError | OSError | BrokenProcessPool):
                    raise error
                if error is not None:
                    what = f"making tokens of the text from {places[future]} on failed"
                    raise WorkerError(f"{what}:\n{error.__cause__ or error}") from error
                del places[future]

    others = set(multiprocessing.active_children())
    with (
        _bare_workers(),
        ProcessPoolExecutor(num_workers, multiprocessing.get_context("spawn"), initializer=_begin_worker) as pool,
    ):
        try:
            for text, path in tasks:
                with _uninterrupted():
                    future = pool.submit(make_piece, text=text, path=path.absolute(), folder=folder.absolute())
                places[future] = text.place
                collect(at_most=num_workers + 1)
            collect(at_most=0)
        except BrokenProcessPool as error:
            raise WorkerError(
                f"a worker process was killed while it tokenized the text from {next(iter(places.values()))} on, "
                "perhaps because memory ran out. What is ready is kept: run the same command again, with fewer "
                "--num_workers if memory is short."
            ) from error
        except BaseException:
            for worker in set(multiprocessing.active_children()) - others:  # nobody waits for what they have begun
                worker.kill()
            raise


@contextmanager
def _bare_workers() -> Iterator[None]:
    """Processes that begin here import neither the program that started them, which takes seconds and memory, nor
    modules of the present folder, which may be somebody's text."""
    main = sys.modules["__main__"]
    sys.modules["__main__"] = ModuleType("__main__")
    try:
        with patch.dict(os.environ, PYTHONSAFEPATH="1"):
            yield
    finally:
        sys.modules["__main__"] = main


@contextmanager
def _uninterrupted() -> Iterator[None]:
    """Processes that begin here inherit the mask: Ctrl-C is for the one that began them. Windows has no masks."""
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT}) if hasattr(signal, "pthread_sigmask") else None
    try:
        yield
    finally:
        if mask is not None:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def _begin_worker() -> None:
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    """A pool does not notice that the process which began it was killed."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


@lru_cache(maxsize=1)
def _load_build(folder: Path) -> tuple[BuildOptions, SentenceEncoder]:
    """The options of a build, and the encoder that all its pieces are made with."""
    options = BuildOptions(**json.loads((folder / BUILD).read_bytes()))
    tokenizer_json = (folder / TOKENIZER).read_text(encoding="utf-8")
    return options, SentenceEncoder(tokenizer_json=tokenizer_json, dtype=options.dtype)
