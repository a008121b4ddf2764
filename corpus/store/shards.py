"""The last step of a build: pieces -> shards, without the documents that come again.

Of each group of equal documents the first in the corpus stays. Documents with equal hashes are equal. In memory are
about 50 bytes for each document.
"""

import contextlib
import json
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from lacuna.common.errors import InputError, StorageError
from lacuna.common.files import sync, write_text
from lacuna.common.private import shown

from ..read.streams import progress_bar
from ..read.text import sha256
from .encoding import token_dtype
from .pieces import KEPT, BuildOptions, Piece
from .token_store import FILES, FORMAT_VERSION, MANIFEST

EMPTY_SHARD_BYTES = 2 * (128 + 8)  # two .npy headers, and the first offsets
MAX_SHARDS = 256  # readers keep three files of each open, and many systems allow 1024 per process
COUNTS = ("num_documents", "num_sentences", "num_tokens", "num_bytes")


def assemble(
    pieces: list[Piece], options: BuildOptions, sources: list[dict[str, Any]], *, store: Path, limit: int
) -> dict[str, Any]:
    """Write the shards of a store, and return its manifest without what readers left out and without fingerprints.

    A shard ends before the document that would make its files larger than `limit` bytes.

    Raises InputError: no document is left, or none of a source that has a weight; StorageError: a piece was damaged on
    the disk, or there would be more than MAX_SHARDS shards.
    """
    shutil.rmtree(store, ignore_errors=True)
    store.mkdir()
    again = find_equal(piece.load("hashes")[0] for piece in pieces)
    dropped = {"duplicates": int(again.sum())} if again.any() else {}
    dtype = token_dtype(options.vocab_size)
    total = sum(piece.num_tokens for piece in pieces) * dtype.itemsize
    counts = np.zeros((len(sources), len(COUNTS)), dtype=np.int64)
    writer = _ShardWriter(store, dtype=dtype, limit=limit)
    first = 0
    with progress_bar(total=total, doing="joining") as bar, writer.files:
        for piece in pieces:
            kept = ~again[first : first + piece.num_documents]
            first += piece.num_documents
            tokens, lengths, sentences, sizes = _load(piece, kept, dropped)
            writer.add(tokens, lengths, sentences, sizes)
            counts[piece.source] += len(sentences), len(lengths), len(tokens), sizes.sum(dtype=np.int64)
            bar.update(piece.num_tokens * dtype.itemsize)
        writer.finish()
    described = [source | _named(count) for source, count in zip(sources, counts, strict=True)]
    check_weighted(described)
    if not writer.shards:
        raise InputError("there is no text to tokenize: every document is empty. Check --data.")
    return {
        "format_version": FORMAT_VERSION,
        "dtype": dtype.name,
        "vocab_size": options.vocab_size,
        **_named(counts.sum(axis=0)),
        "language": options.language,
        "max_shard_bytes": limit,
        "dropped": dropped,
        "bad_records": [],
        "sources": described,
        "shards": writer.shards,
    }


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
    text = json.dumps(manifest, indent=2, ensure_ascii=False) + "\n"
    # A file name that is not UTF-8 has halves of surrogate pairs, whose escapes here are those of JSON.
    write_text(folder / MANIFEST, text.encode(errors="backslashreplace").decode(), hint=KEPT)
    sync(folder)


def _named(counts: Iterable[int]) -> dict[str, int]:
    return dict(zip(COUNTS, map(int, counts), strict=True))


def _load(piece: Piece, kept: np.ndarray, dropped: dict[str, int]) -> list[np.ndarray]:
    """Tokens, sentence lengths, sentence counts and bytes of the documents of a piece that stay."""
    tokens, lengths, sentences, sizes = piece.load("tokens", "sentence_lengths", "sentence_counts", "document_bytes")
    if empty := int((kept & (sentences == 0)).sum()):
        dropped["without tokens"] = dropped.get("without tokens", 0) + empty
    kept = kept & (sentences > 0)
    if kept.all():
        return [tokens, lengths, sentences, sizes]
    of_sentences = np.repeat(kept, sentences)
    return [tokens[np.repeat(of_sentences, lengths)], lengths[of_sentences], sentences[kept], sizes[kept]]


class _ShardWriter:
    """Writes documents into shards; a new one begins where the next document would make the last too large."""

    def __init__(self, folder: Path, *, dtype: np.dtype, limit: int) -> None:
        self.folder = folder
        self.dtype = dtype
        self.limit = limit
        self.shards: list[dict[str, Any]] = []
        self.files = contextlib.ExitStack()
        self.counts = np.zeros(len(COUNTS), dtype=np.int64)  # of the shard that is open

    def add(self, tokens: np.ndarray, lengths: np.ndarray, sentences: np.ndarray, sizes: np.ndarray) -> None:
        """Append documents: their ids, the tokens of each sentence, the sentences and the bytes of each document."""
        sentence_edges = _sums(sentences)
        token_edges = _sums(lengths)[sentence_edges]
        costs = token_edges * self.dtype.itemsize + 8 * (sentence_edges + np.arange(len(sentence_edges)))
        start = 0
        while start < len(sentences):
            if not self.counts.any():
                self._open()
            end = int(np.searchsorted(costs, costs[start] + self.limit - self.size, side="right")) - 1
            if end <= start and self.counts.any():
                self.finish()
                continue
            end = max(end, start + 1)  # a document that is larger than a shard has one of its own
            self.size += int(costs[end] - costs[start])
            of_sentences = slice(sentence_edges[start], sentence_edges[end])
            of_tokens = slice(token_edges[start], token_edges[end])
            self.tokens.write(tokens[of_tokens].tobytes())
            self.sentences.write((self.counts[2] + _sums(lengths[of_sentences])[1:]).tobytes())
            self.documents.write((self.counts[1] + _sums(sentences[start:end])[1:]).tobytes())
            num_bytes = sizes[start:end].sum(dtype=np.int64)
            self.counts += end - start, len(lengths[of_sentences]), len(tokens[of_tokens]), num_bytes
            start = end

    def _open(self) -> None:
        if len(self.shards) == MAX_SHARDS:
            raise StorageError(
                f"--max_shard_bytes {self.limit} makes more than {MAX_SHARDS} shards, and those who read a store keep "
                "all files open. Run it again with a larger --max_shard_bytes. What is ready is kept."
            )
        path = self.folder / f"{len(self.shards):05}"
        path.mkdir()
        self.size = EMPTY_SHARD_BYTES
        self.tokens, self.sentences, self.documents = (
            self.files.enter_context((path / name).open("wb")) for name in FILES
        )
        for file in (self.sentences, self.documents):
            _write_header(file, 0)
            file.write(bytes(8))

    def finish(self) -> None:
        """Force the open shard to the disk, and describe it."""
        if not self.counts.any():
            return
        _write_header(self.sentences, int(self.counts[1]) + 1)
        _write_header(self.documents, int(self.counts[0]) + 1)
        self.files.close()
        path = self.folder / f"{len(self.shards):05}"
        files = [path / name for name in FILES]
        for file in (*files, path):
            sync(file)
        described = {file.name: {"bytes": file.stat().st_size, "sha256": sha256(file)} for file in files}
        self.shards.append({"name": path.name, **_named(self.counts), "files": described})
        self.counts[:] = 0


def _sums(lengths: np.ndarray) -> np.ndarray:
    """Running sums from 0: int64 [len(lengths) + 1]."""
    return np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])


def _write_header(file: Any, count: int) -> None:
    """Write the header of a .npy file of so many numbers; that of a larger one has the same size."""
    file.seek(0)
    np.lib.format.write_array_header_1_0(file, {"descr": "<i8", "fortran_order": False, "shape": (count,)})


def find_equal(hashes: Iterable[np.ndarray]) -> np.ndarray:
    """Documents whose hash (16 bytes, dtype V16, in parts) an earlier one has: bool [documents]."""
    halves = np.concatenate([np.zeros((0, 2), dtype="<u8"), *(part.view("<u8").reshape(-1, 2) for part in hashes)])
    order = np.lexsort(halves.T)  # stable: the first of the corpus is the first of its group
    found = np.zeros(len(halves), dtype=bool)
    found[order[1:]] = (halves[order[1:]] == halves[order[:-1]]).all(axis=1)
    return found
