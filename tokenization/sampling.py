"""A sample of a corpus of any size to learn a tokenizer from: seedable, without copies, bounded in memory.

Every passage (a document, or a piece of about 16,384 characters of a longer one) gets a priority, a hash of its text
and the seed. The sample is the passages of the lowest priorities that fit into three budgets: bytes of text, number of
passages, and bytes of different words. So it is a function of the seed and the set of passages, not of their order,
and equal passages count once.

One pass suffices, because a limit on the priorities only ever falls (bottom-k sampling, Cohen and Kaplan 2007,
https://doi.org/10.1145/1281100.1281133). What is below it goes to a temporary file.
"""

import hashlib
import re
import tempfile
from array import array
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO, Any

import numpy as np

from lacuna.common.errors import InputError, StorageError

from .patterns import split_pieces

# Training holds up to 150 bytes for each byte of a new word, measured on random words and on Chinese without spaces:
# 28 million took 4.0 GiB at worst.
MAX_WORD_BYTES = 20_000_000
MAX_PASSAGES = 8_000_000  # about 150 bytes are kept for each: without this, a gigabyte of single words took 8 GB
SHARE = 8  # most text has far fewer words than the budget allows: one passage in so many tells
WORD = re.compile(r"\w+|[^\w\s]+")  # close to what the patterns cut
IN_MEMORY = 1 << 26  # bytes of a sample that needs no file
SLACK = 1.25  # a budget may be passed by this factor before the limit falls, so that it falls seldom
HELD_OUT = 0.01  # of the bytes, but no less than LEAST_ and no more than MOST_HELD_OUT_BYTES
LARGEST_HELD_OUT = 0.04  # of the bytes, all together and for one document: a larger one is not held out
LEAST_HELD_OUT_BYTES = 100_000
MOST_HELD_OUT_BYTES = 10_000_000
NO_LIMIT = 1 << 64


class Sample:
    """Passages to train on, passages held out, and how they were chosen. Made by `sample_documents`.

    Attributes:
        seen_documents, seen_bytes: what was read.
        duplicates: passages that were copies of an earlier one in the sample.
        num_bytes, num_held_out_bytes: in the sample, and in its passages held out.
        held_out: "documents"; "passages" where no document is small enough to spare; "nothing" where no passage is.
        limited_by: "max_bytes", "words" or "passages", the budget that kept text out; None where all text is in.
    """

    def __init__(
        self, *, max_bytes: int, seed: int, max_word_bytes: int, max_passages: int, folder: Path | None
    ) -> None:
        self.max_bytes = max_bytes
        self.max_word_bytes = max_word_bytes
        self.max_passages = max_passages
        self.seed = seed
        self.seen_documents = self.seen_bytes = self.duplicates = self.num_bytes = self.num_held_out_bytes = 0
        self.held_out = "nothing"
        self.limited_by: str | None = None
        self._limit = NO_LIMIT
        self._known: set[int] = set()
        self._priorities, self._documents, self._offsets, self._sizes = (array("Q") for _ in range(4))
        self._file: IO[bytes] = tempfile.SpooledTemporaryFile(max_size=IN_MEMORY, dir=str(folder) if folder else None)  # noqa: SIM115
        self._written = 0
        self._spared = np.zeros(0, dtype=bool)

    def training(self, *, every: int = 1) -> "Passages":
        """The passages to learn from in the order of the corpus, or every so-many-th of them."""
        return Passages(self, np.flatnonzero(~self._spared)[::every])

    def spared(self) -> "Passages":
        """The passages held out."""
        return Passages(self, np.flatnonzero(self._spared))

    def __str__(self) -> str:
        of = {
            "max_bytes": f"a sample for --max_bytes {self.max_bytes}",
            "words": "a sample of as many different words as memory allows",
            "passages": "a sample of as many documents as memory allows",
        }
        chosen = f"{of[self.limited_by]}, seed {self.seed}" if self.limited_by else "all of it"
        chosen += f"; {self.duplicates:,} copies left out" if self.duplicates else ""
        held_out = "nothing: the text is too small or in too few pieces"
        if self.held_out != "nothing":
            where = "whole documents" if self.held_out == "documents" else "passages of the documents"
            held_out = f"{self.num_held_out_bytes / 1e6:.2f} MB in {where}, seed {self.seed}"
        return (
            f"read                  {self.seen_documents:,} documents, {self.seen_bytes / 1e6:.2f} MB\n"
            f"sample                {self.num_documents:,} documents, {self.num_bytes / 1e6:.2f} MB ({chosen})\n"
            f"held out of it        {held_out}"
        )

    def describe(self) -> dict[str, Any]:
        """What it is, for the report."""
        names = {"duplicate_passages": "duplicates", "documents": "num_documents", "bytes": "num_bytes"}
        names |= {"held_out_bytes": "num_held_out_bytes"}
        kept = ("seen_documents", "seen_bytes", *names, "held_out", "max_bytes", "limited_by", "seed")
        return {name: getattr(self, names.get(name, name)) for name in kept}

    @property
    def num_documents(self) -> int:
        """Documents of which at least a passage is in the sample."""
        return len(np.unique(np.asarray(self._documents)))

    def _read(self, numbers: np.ndarray) -> Iterator[str]:
        position = -1
        for number in numbers.tolist():
            if position != self._offsets[number]:
                self._file.seek(self._offsets[number])
            yield self._file.read(self._sizes[number]).decode()
            position = self._offsets[number] + self._sizes[number]

    def _add(self, passage: str) -> None:
        text = passage.encode()
        digest = hashlib.blake2b(text, digest_size=8, salt=self.seed.to_bytes(16, "little")).digest()
        priority = int.from_bytes(digest, "little")
        if priority >= self._limit:
            return
        if priority in self._known:
            self.duplicates += 1
            return
        self._known.add(priority)
        self._priorities.append(priority)
        self._documents.append(self.seen_documents)
        self._offsets.append(self._written)
        self._sizes.append(len(text))
        self._file.write(text)
        self._written += len(text)
        self.num_bytes += len(text)
        if self.num_bytes > SLACK * self.max_bytes or len(self._priorities) > SLACK * self.max_passages:
            self._fit()

    def _fit(self) -> None:
        """Keep what the budgets of bytes and of passages allow."""
        priorities, sizes = np.asarray(self._priorities), np.asarray(self._sizes)
        order = np.argsort(priorities)
        too_large = order[np.cumsum(sizes[order]) > self.max_bytes]
        limits = [
            (int(priorities[at[0]]), why)
            for at, why in ((too_large, "max_bytes"), (order[self.max_passages :], "passages"))
            if len(at)
        ]
        if limits:
            self._lower(*min(limits, key=lambda limit: limit[0]))

    def _fit_words(self) -> None:
        """Keep what the budget of words allows; where one passage in SHARE has few, the rest is not looked at."""
        order = np.argsort(np.asarray(self._priorities))
        if self.num_bytes <= self.max_word_bytes:
            return
        if self._first_beyond(self.max_word_bytes // (2 * SHARE), order[::SHARE]) is None:
            return
        beyond = self._first_beyond(self.max_word_bytes, order)
        if beyond is not None:
            self._lower(self._priorities[beyond], "words")

    def _first_beyond(self, budget: int, numbers: np.ndarray) -> int | None:
        """The first of these passages with which their different words have more bytes than the budget."""
        known: set[str] = set()
        size = 0
        for number, passage in zip(numbers.tolist(), self._read(numbers), strict=True):
            new = {*WORD.findall(passage)} - known
            known |= new
            size += sum(len(word.encode()) for word in new)
            if size > budget:
                return int(number)
        return None

    def _lower(self, limit: int, reason: str) -> None:
        """Forget what is not below a limit. One passage always stays."""
        limit = max(limit, min(self._priorities) + 1)
        if limit >= self._limit:
            return
        self._limit, self.limited_by = limit, reason
        keep = np.asarray(self._priorities) < np.uint64(limit)
        for name in ("_priorities", "_documents", "_offsets", "_sizes"):
            setattr(self, name, array("Q", np.asarray(getattr(self, name))[keep].tobytes()))
        self._known.clear()  # before another is made
        self._known = set(self._priorities)
        self.num_bytes = sum(self._sizes)

    def _finish(self) -> None:
        if self._priorities:
            self._fit()
            self._known = set()  # it would only lie in memory while training needs it
            self._fit_words()
            self._known = set()
        sizes = np.asarray(self._sizes, dtype=np.int64)
        # Another order than that of the priorities, or the lowest would be held out and the sample would lean.
        luck = np.asarray(self._priorities, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        documents, first, which = np.unique(np.asarray(self._documents), return_index=True, return_inverse=True)
        of_documents = np.bincount(which, weights=sizes, minlength=len(documents)).astype(np.int64)
        chosen = _hold_out(sizes=of_documents, luck=luck[first])
        self._spared = chosen[which] if len(chosen) else np.zeros(0, dtype=bool)
        self.held_out = "documents"
        if not self._spared.any():
            self._spared = _hold_out(sizes=sizes, luck=luck)
            self.held_out = "passages" if self._spared.any() else "nothing"
        self.num_held_out_bytes = int(sizes[self._spared].sum())


class Passages:
    """Some passages of a sample: iterate as often as you like, one iteration at a time."""

    def __init__(self, sample: Sample, numbers: np.ndarray) -> None:
        self._sample = sample
        self._numbers = numbers

    def __len__(self) -> int:
        return len(self._numbers)

    def __iter__(self) -> Iterator[str]:
        return self._sample._read(self._numbers)


def sample_documents(
    *,
    documents: Iterable[str],
    max_bytes: int,
    seed: int = 0,
    max_word_bytes: int = MAX_WORD_BYTES,
    max_passages: int = MAX_PASSAGES,
    folder: Path | None = None,
) -> Sample:
    """Choose what a tokenizer is learned from, in one pass; see the head of this file.

    Args:
        documents: the texts of the corpus, read once.
        max_bytes, max_word_bytes, max_passages: the budgets.
        seed: chooses among the samples there could be, and what is held out.
        folder: where a temporary file may lie; it needs `max_bytes` times 1 plus the natural logarithm of how many
            times larger the corpus is. Default: that of the system.

    Raises InputError: `max_bytes` is not positive, or there is no text; StorageError: the disk is full.
    """
    if max_bytes < 1:
        raise InputError(f"--max_bytes {max_bytes} leaves nothing to learn from; 100000000 is plenty for most.")
    if not 0 <= seed < 1 << 128:
        raise InputError(f"--seed {seed} must be a whole number from 0 on.")
    sample = Sample(
        max_bytes=max_bytes, seed=seed, max_word_bytes=max_word_bytes, max_passages=max_passages, folder=folder
    )
    first, differ = "", False
    try:
        for document in documents:
            sample.seen_documents += 1
            first = first or document
            differ = differ or bool(document and document != first)
            for passage in split_pieces(document):
                sample.seen_bytes += len(passage.encode())
                if passage and not passage.isspace():
                    sample._add(passage)
        sample._finish()
    except OSError as error:
        if getattr(error, "exit_code", None) is not None or error.filename is not None:
            raise  # of the documents, not of the temporary file
        raise StorageError(
            f"cannot write the sample of the text into {folder or tempfile.gettempdir()}: {error}. "
            "Ask for less with --max_bytes, or choose an --output_dir on another disk."
        ) from error
    if not sample.num_bytes:
        raise InputError("there is no text to train a tokenizer on: every document is empty. Check --data.")
    if sample.seen_documents > 1 and sample.duplicates and not differ:
        raise InputError(f"all {sample.seen_documents:,} documents are copies of one: {first[:80]!r}. Check --data.")
    return sample


def _hold_out(*, sizes: np.ndarray, luck: np.ndarray) -> np.ndarray:
    """Which of these to hold out, by luck; at least one where one is small enough."""
    chosen = np.zeros(len(sizes), dtype=bool)
    total = int(sizes.sum())
    largest = LARGEST_HELD_OUT * total
    goal, got = min(max(HELD_OUT * total, LEAST_HELD_OUT_BYTES), MOST_HELD_OUT_BYTES, largest), 0
    for index in np.argsort(luck, kind="stable").tolist():
        if got >= goal:
            break
        if sizes[index] <= largest:
            chosen[index] = True
            got += int(sizes[index])
    return chosen
