"""Pieces of a store that is being built: a few megabytes of text as tokens, each in a file that is whole or not there.

    token ids           of all documents of the piece, one after the other
    sentence_lengths    uint32 [sentences], in tokens
    sentence_counts     uint32 [documents]
    document_bytes      uint32 [documents], of UTF-8
    hashes              16 bytes for each document: BLAKE2b of its text
    signatures          uint32 [documents, NUM_PERMUTATIONS], only with --near_duplicates
    footer              JSON: sizes, checksums, which text this was made from; then its length and MAGIC

A piece is written under a temporary name, forced to the disk and renamed, so a builder that was killed leaves whole
pieces and nothing else that has their name.
"""

import hashlib
import json
import os
import zlib
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np

from lacuna.common.errors import StorageError

from .duplicates import NUM_PERMUTATIONS, make_signature
from .encoding import SentenceEncoder, token_dtype
from .sentences import is_space, split_sentences

MAGIC = b"LACUNA2\n"
PIECE_BYTES = 2 << 20  # of text: a second of work for one process
SUFFIX = ".piece"

# Text handed to the tokenizer at once. Encodings take some 50 bytes of memory a character.
BATCH_CHARACTERS = 1 << 18
SECTION_BYTES = 1 << 20  # of a document are decoded and cut into sentences at once
MAX_SENTENCE = 1 << 16  # characters; a "sentence" without a space in a megabyte is no sentence

_ARRAYS = {"sentence_lengths": "<u4", "sentence_counts": "<u4", "document_bytes": "<u4", "hashes": "V16"}


@dataclass(frozen=True)
class Plan:
    """What all who build one store agree on: a piece is a function of it and of the text of the piece."""

    text: str  # fingerprint
    tokenizer: str  # fingerprint
    vocab_size: int
    language: str
    near_duplicates: float
    num_shards: int

    def save(self, path: Path) -> None:
        write_whole(path, json.dumps(asdict(self), indent=2).encode())

    @classmethod
    def load(cls, path: Path) -> "Plan":
        return cls(**json.loads(path.read_bytes()))


@dataclass(frozen=True)
class TextPiece:
    """Documents that follow each other, of one source: what a worker makes a piece of."""

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
    num_bytes: int
    text_checksum: int  # of the text that it was made from
    checksum: int  # CRC-32 of all before the footer
    dtype: str
    signatures: bool

    @property
    def tokens_bytes(self) -> int:
        return self.num_tokens * np.dtype(self.dtype).itemsize

    def load(self, *names: str) -> list[np.ndarray]:
        """Some of its arrays (not the tokens)."""
        counts = {"sentence_lengths": self.num_sentences}
        found: dict[str, np.ndarray] = {}
        with self.path.open("rb") as file:
            file.seek(self.tokens_bytes)
            for name, dtype in _ARRAYS.items():
                count = counts.get(name, self.num_documents)
                found[name] = _read_array(file, np.dtype(dtype), count, wanted=name in names)
            if "signatures" in names:
                count = self.num_documents * NUM_PERMUTATIONS
                found["signatures"] = _read_array(file, np.dtype("<u4"), count).reshape(-1, NUM_PERMUTATIONS)
        return [found[name] for name in names]

    def verify(self) -> None:
        """Read all of it.

        Raises:
            StorageError: the disk gives back other bytes than were written; the piece is removed.
        """
        value, left = 0, self._data_bytes
        with self.path.open("rb") as file:
            while left and (chunk := file.read(min(left, 1 << 20))):
                value = zlib.crc32(chunk, value)
                left -= len(chunk)
        if value != self.checksum or left:
            self.path.unlink()
            raise StorageError(
                f"{self.path} was damaged on the disk after it was written. It is removed; run the same command again "
                "to make it anew, and look after the disk."
            )

    @property
    def _data_bytes(self) -> int:
        signatures = 4 * NUM_PERMUTATIONS * self.num_documents if self.signatures else 0
        return self.tokens_bytes + 4 * self.num_sentences + 24 * self.num_documents + signatures

    @classmethod
    def open(cls, path: Path) -> "Piece | None":
        """The piece at `path`; None if nothing whole is there."""
        try:
            with path.open("rb") as file:
                size = file.seek(0, os.SEEK_END)
                file.seek(max(0, size - 12))
                end = file.read(12)
                if len(end) < 12 or end[4:] != MAGIC:
                    return None
                footer_bytes = int.from_bytes(end[:4], "little")
                file.seek(size - 12 - footer_bytes)
                piece = cls(path=path, **json.loads(file.read(footer_bytes)))
        except (FileNotFoundError, ValueError, TypeError):
            return None
        return piece if size == piece._data_bytes + footer_bytes + 12 else None


def make_piece(*, text: TextPiece, encoder: SentenceEncoder, plan: Plan, path: Path) -> None:
    """Cut, hash and encode documents, and write them as one piece at `path`.

    Raises:
        OSError: the disk is full or does not let us write; nothing stays.
    """
    lengths: list[np.ndarray] = []
    counts = np.zeros(len(text.texts), dtype="<u4")
    temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("wb") as file:
            out = _Checked(file)
            for owners, sentences in _batches(text.texts, plan.language):
                tokens, sizes = encoder.encode(sentences)
                out.write(tokens)
                kept = sizes > 0  # a tokenizer that is not byte-level may make nothing of a sentence
                lengths.append(sizes[kept].astype("<u4"))
                counts += np.bincount(np.array(owners)[kept], minlength=len(counts)).astype("<u4")
            tokens_bytes = out.size
            all_lengths = np.concatenate(lengths) if lengths else np.empty(0, dtype="<u4")
            out.write(all_lengths)
            out.write(counts)
            out.write(np.array([len(data) for data in text.texts], dtype="<u4"))
            out.write(np.frombuffer(b"".join(map(_hash, text.texts)), dtype="V16"))
            if plan.near_duplicates:
                for data in text.texts:
                    out.write(make_signature(data.decode()).astype("<u4"))
            footer = {
                "source": text.source,
                "num_documents": len(text.texts),
                "num_sentences": len(all_lengths),
                "num_tokens": tokens_bytes // encoder.dtype.itemsize,
                "num_bytes": sum(map(len, text.texts)),
                "text_checksum": text.checksum,
                "checksum": out.checksum,
                "dtype": encoder.dtype.name,
                "signatures": bool(plan.near_duplicates),
            }
            data = json.dumps(footer).encode()
            file.write(data + len(data).to_bytes(4, "little") + MAGIC)
            file.flush()
            os.fsync(file.fileno())
        os.rename(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def encoder_of(*, tokenizer_json: str, plan: Plan) -> SentenceEncoder:
    """The encoder that all pieces of a plan are made with."""
    return SentenceEncoder(tokenizer_json=tokenizer_json, dtype=token_dtype(plan.vocab_size))


def cut_sections(data: bytes) -> Iterator[str]:
    """A document in parts of about SECTION_BYTES, cut where a sentence ends anyway: before a blank line.

    Where there is none within another SECTION_BYTES the cut is before a line end, a space or any character. It is
    never inside white space, which is one word for the tokenizer.
    """
    start = 0
    while len(data) - start > 2 * SECTION_BYTES:
        first, last = start + SECTION_BYTES, start + 2 * SECTION_BYTES
        places = (data.find(sign, first, last) for sign in (b"\n\n", b"\n", b" "))
        end = next((place for place in places if place >= 0), last)
        while data[end] & 0xC0 == 0x80:  # inside a character
            end -= 1
        text = data[start:end].decode()
        last = len(text)
        while last and is_space(text[last - 1]):
            last -= 1
        text = text[:last] or text  # a megabyte of white space is cut all the same
        yield text
        start += len(text.encode())
    yield data[start:].decode()


def _batches(texts: list[bytes], language: str) -> Iterator[tuple[list[int], list[str]]]:
    """Sentences in batches, each with the number of its document in the piece."""
    owners: list[int] = []
    sentences: list[str] = []
    size = 0
    for number, data in enumerate(texts):
        for section in cut_sections(data):
            for sentence in split_sentences(section, language=language):
                for part in _short(sentence):
                    owners.append(number)
                    sentences.append(part)
                    size += len(part)
                    if size >= BATCH_CHARACTERS:
                        yield owners, sentences
                        owners, sentences, size = [], [], 0
    if sentences:
        yield owners, sentences


def _short(sentence: str) -> list[str]:
    if len(sentence) <= MAX_SENTENCE:
        return [sentence]
    return [sentence[start : start + MAX_SENTENCE] for start in range(0, len(sentence), MAX_SENTENCE)]


def _hash(data: bytes) -> bytes:
    return hashlib.blake2b(data, digest_size=16).digest()


class _Checked:
    """Writes arrays to a file and keeps their CRC-32 and size."""

    def __init__(self, file: BinaryIO) -> None:
        self.file = file
        self.checksum = 0
        self.size = 0

    def write(self, array: np.ndarray) -> None:
        data = array.tobytes()
        self.checksum = zlib.crc32(data, self.checksum)
        self.size += len(data)
        self.file.write(data)


def _read_array(file: BinaryIO, dtype: np.dtype, count: int, *, wanted: bool = True) -> np.ndarray:
    if wanted:
        return np.frombuffer(file.read(count * dtype.itemsize), dtype=dtype)
    file.seek(count * dtype.itemsize, os.SEEK_CUR)
    return np.empty(0, dtype=dtype)


def write_whole(path: Path, data: bytes) -> None:
    """Write a small file so that it is there whole or as it was before."""
    temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    with temporary.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    os.rename(temporary, path)
