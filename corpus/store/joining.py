"""The last step of a build: pieces -> the files of a store, without the documents that come again.

Of each group of equal documents the first in the corpus stays. Documents with equal hashes are equal. In memory are
about 50 bytes for each document.
"""

import json
import shutil
from collections.abc import Iterable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np

from lacuna.common.errors import InputError
from lacuna.common.files import sync, write_text
from lacuna.common.private import shown

from ..read.streams import progress_bar
from ..read.text import sha256
from .encoding import token_dtype
from .pieces import KEPT, BuildOptions, Piece
from .token_store import FILES, FOLDER, FORMAT_VERSION, MANIFEST

COUNTS = ("num_documents", "num_sentences", "num_tokens", "num_bytes")


def assemble(
    pieces: list[Piece], options: BuildOptions, sources: list[dict[str, Any]], *, store: Path
) -> dict[str, Any]:
    """Write the files of a store, and return its manifest without what readers left out and without fingerprints.

    Raises InputError: no document is left, or none of a source that has a weight; StorageError: a piece was damaged on
    the disk.
    """
    shutil.rmtree(store, ignore_errors=True)
    folder = store / FOLDER
    folder.mkdir(parents=True)
    again = find_equal(piece.load("hashes")[0] for piece in pieces)
    dropped = {"duplicates": int(again.sum())} if again.any() else {}
    dtype = token_dtype(options.vocab_size)
    total = sum(piece.num_tokens for piece in pieces) * dtype.itemsize
    counts = np.zeros((len(sources), len(COUNTS)), dtype=np.int64)
    first = 0
    with progress_bar(total=total, doing="joining") as bar, ExitStack() as stack:
        tokens_file, *offset_files = [stack.enter_context((folder / name).open("wb")) for name in FILES]
        for file in offset_files:
            _write_header(file, 0)
            file.write(bytes(8))
        for piece in pieces:
            kept = ~again[first : first + piece.num_documents]
            first += piece.num_documents
            tokens, lengths, sentences, sizes = _load(piece, kept, dropped)
            tokens_file.write(tokens.tobytes())
            _, num_sentences, num_tokens, _ = counts.sum(axis=0)
            for file, before, parts in zip(
                offset_files, (num_tokens, num_sentences), (lengths, sentences), strict=True
            ):
                file.write((before + np.cumsum(parts, dtype=np.int64)).tobytes())
            counts[piece.source] += len(sentences), len(lengths), len(tokens), sizes.sum(dtype=np.int64)
            bar.update(piece.num_tokens * dtype.itemsize)
        num_documents, num_sentences, *_ = counts.sum(axis=0).tolist()
        for file, count in zip(offset_files, (num_sentences, num_documents), strict=True):
            _write_header(file, count + 1)
    described = [source | _named(count) for source, count in zip(sources, counts, strict=True)]
    check_weighted(described)
    if not num_documents:
        raise InputError("there is no text to tokenize: every document is empty. Check --data.")
    files = [folder / name for name in FILES]
    for path in (*files, folder):
        sync(path)
    about_files = {path.name: {"bytes": path.stat().st_size, "sha256": sha256(path)} for path in files}
    in_all = _named(counts.sum(axis=0))
    return {
        "format_version": FORMAT_VERSION,
        "dtype": dtype.name,
        "vocab_size": options.vocab_size,
        **in_all,
        "language": options.language,
        "dropped": dropped,
        "bad_records": [],
        "sources": described,
        "shards": [{"name": FOLDER, **in_all, "files": about_files}],
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
