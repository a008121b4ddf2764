"""A sample of a corpus of any size to learn a tokenizer from: seedable, without copies, bounded in memory.

Every passage (a document, or a piece of about 16,384 characters of a longer one) gets a priority, a hash of its text
and the seed. The sample is the passages of the lowest priorities that fit into three budgets: bytes of text, bytes of
different words, and number of passages. So it is a function of the seed and the set of passages, not of their order,
and equal passages count once.

One pass suffices, because a limit on the priorities only ever falls (bottom-k sampling, Cohen and Kaplan 2007,
https://doi.org/10.1145/1281100.1281133). What is below it goes to a temporary file.
"""

import hashlib
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
        self.max_passages = max_passages
        self.seed = seed
        self.seen_documents = self.seen_bytes = self.duplicates = self.num_bytes = self.num_held_out_bytes = 0
        self.held_out = "nothing"
        self.limited_by: str | None = None
        self._limit = NO_LIMIT
        self._known: set[int] = set()
        self._priorities, self._documents, self._offsets, self._sizes = (array("Q") for _ in range(4))
        self._words = _WordBytes(max_word_bytes)
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
        return {
            "seen_documents": self.seen_documents,
            "seen_bytes": self.seen_bytes,
            "duplicate_passages": self.duplicates,
            "documents": self.num_documents,
            "bytes": self.num_bytes,
            "held_out": self.held_out,
            "held_out_bytes": self.num_held_out_bytes,
            "max_bytes": self.max_bytes,
            "limited_by": self.limited_by,
            "seed": self.seed,
        }

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
        self._words.add(text, priority)
        full = self.num_bytes > SLACK * self.max_bytes or len(self._priorities) > SLACK * self.max_passages
        if full or self._words.may_exceed():
            self._fit()

    def _fit(self) -> None:
        """Lower the limit until all budgets hold, and forget what is not below it. One passage always stays."""
        priorities, sizes = np.asarray(self._priorities), np.asarray(self._sizes)
        order = np.argsort(priorities)
        if self._words.must_see_all(self._limit):
            self._words.see_all()
            for priority, passage in zip(self._priorities, self._read(np.arange(len(priorities))), strict=True):
                self._words.add(passage.encode(), priority)
            self._file.seek(self._written)
        limit, reason = self._words.limit(self._limit), "words"
        too_large = order[np.cumsum(sizes[order]) > self.max_bytes]
        for beyond, why in ((too_large, "max_bytes"), (order[self.max_passages :], "passages")):
            if len(beyond) and int(priorities[beyond[0]]) < limit:
                limit, reason = int(priorities[beyond[0]]), why
        limit = max(limit, int(priorities[order[0]]) + 1)
        if limit >= self._limit:
            return
        self._limit, self.limited_by = limit, reason
        keep = priorities < np.uint64(limit)
        for name in ("_priorities", "_documents", "_offsets", "_sizes"):
            setattr(self, name, array("Q", np.asarray(getattr(self, name))[keep].tobytes()))
        self._known.clear()  # before another is made
        self._known = set(self._priorities)
        self.num_bytes = sum(self._sizes)

    def _finish(self) -> None:
        self._words.flush()
        if self._priorities:
            self._fit()
        self._known, self._words = set(), _WordBytes(0)  # they would only lie in memory while training needs it
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
        max_bytes, max_word_bytes, max_passages: the budgets. Bytes of different words are a close estimate.
        seed: chooses among the samples there could be, and what is held out.
        folder: where a temporary file may lie; it needs `max_bytes` times 1 plus the natural logarithm of how many
            times larger the corpus is. Default: that of the system.

    Raises:
        InputError: `max_bytes` is not positive, or there is no text; StorageError: the disk is full.
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


class _WordBytes:
    """How many bytes of different words the passages below a priority have, by a table of hashes.

    A word is a run of letters and digits, or of punctuation: close to what the patterns cut. The table holds for each
    hash the lowest priority of a passage that has the word, upside down: 0 is none, and memory that was never written
    takes no room. Words that share a hash count once: the estimate is low by a fifth at the default budget for words
    of four bytes, and by less for longer ones.

    Most text has far fewer words than the budget allows. So one passage in SHARE is looked at, by the lower bits of
    its priority, until SHARE times the bytes of their words are half the budget.
    """

    BITS = 24
    BATCH_BYTES = 1 << 18  # short passages are looked at together
    CHECKED_EVERY = 1 << 24  # bytes of text
    SHARE = 8

    def __init__(self, budget: int) -> None:
        self.budget = budget
        self.every = self.SHARE
        self._clear()

    def _clear(self) -> None:
        slots = 1 << self.BITS if self.budget else 0
        self._urgency = np.zeros(slots, dtype=np.uint32)  # 2^32 - 1 - upper half of the priority
        self._lengths = np.zeros(slots, dtype=np.uint32)
        self._waiting: list[tuple[int, bytes]] = []
        self._waiting_bytes = self._since_check = self._bytes = 0

    def add(self, text: bytes, priority: int) -> None:
        """Count the words of a passage."""
        self._bytes += len(text)
        self._since_check += len(text)
        if priority % self.every:
            return
        self._waiting.append((0xFFFFFFFF - (priority >> 32), text))
        self._waiting_bytes += len(text)
        if self._waiting_bytes >= self.BATCH_BYTES:
            self.flush()

    def flush(self) -> None:
        """Look at the passages that wait."""
        if not self._waiting:
            return
        # The lowest priority last: of several values for one slot the last one stays.
        self._waiting.sort(key=lambda item: item[0])
        data = np.frombuffer(b" ".join(text for _, text in self._waiting) + b" ", dtype=np.uint8)
        ends = np.cumsum([len(text) + 1 for _, text in self._waiting])
        starts, lengths, hashes = _find_words(data)
        passage = np.searchsorted(ends, starts, side="right")
        urgency = np.array([value for value, _ in self._waiting], dtype=np.uint32)[passage]
        slots = hashes >> np.uint64(64 - self.BITS)
        more = urgency > self._urgency[slots]
        self._urgency[slots[more]] = urgency[more]
        self._lengths[slots[more]] = lengths[more]
        self._waiting, self._waiting_bytes = [], 0

    def may_exceed(self) -> bool:
        """Whether it is time to look again."""
        due = self._since_check >= self.CHECKED_EVERY
        self._since_check = 0 if due else self._since_check
        return due

    def must_see_all(self, highest: int) -> bool:
        """Whether the words of one passage in SHARE, of those below a priority, are too many to stop at that."""
        if self.every == 1 or self._bytes <= self.budget:
            return False
        self.flush()
        present = self._present(highest)
        return 2 * self.SHARE * int(self._lengths[present].sum(dtype=np.int64)) > self.budget

    def see_all(self) -> None:
        """Begin again, and look at every passage."""
        self.every = 1
        self._clear()

    def _present(self, highest: int) -> np.ndarray:
        return np.flatnonzero(self._urgency > max(0xFFFFFFFF - (highest >> 32), 0))

    def limit(self, highest: int) -> int:
        """The priority below which the passages' words fit into the budget, at most `highest`."""
        if self._bytes <= self.budget or self.every > 1:
            return highest
        self.flush()
        present = self._present(highest)
        if int(self._lengths[present].sum(dtype=np.int64)) <= self.budget:
            return highest
        order = present[np.argsort(self._urgency[present], kind="stable")[::-1]]
        beyond = np.flatnonzero(np.cumsum(self._lengths[order], dtype=np.int64) > self.budget)
        return 0xFFFFFFFF - int(self._urgency[order[beyond[0]]]) << 32


# 0 for white space and control characters, 1 for letters and digits and all that is not ASCII, 2 for punctuation.
_KINDS = np.array([0 if i <= 0x20 else 1 if i >= 0x80 or chr(i).isalnum() else 2 for i in range(256)], dtype=np.uint8)
_FACTOR = 0x9E3779B97F4A7C15  # odd, so that it has an inverse modulo 2^64
_POWERS: list[np.ndarray] = []


def _find_words(data: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Start, length and 64-bit hash of each word in uint8 [N]."""
    kinds = _KINDS[data]
    # Punctuation of typography and of Chinese and Japanese: U+2000 to U+203F, U+3000 to U+303F, U+FF00 to U+FF3F.
    for begin, second in ((0xE2, 0x80), (0xE3, 0x80), (0xEF, 0xBC)):
        at = np.flatnonzero(data[:-2] == begin)
        at = at[data[at + 1] == second]
        for place in range(3):
            kinds[at + place] = 2
    edges = np.flatnonzero(kinds[1:] != kinds[:-1]) + 1
    starts = np.concatenate([[0], edges])
    ends = np.concatenate([edges, [len(data)]])
    words = kinds[starts] != 0
    starts, ends = starts[words], ends[words]
    # A polynomial over the bytes, from sums of all bytes before each place: the words need no loop.
    powers, inverses = _powers(len(data) + 1)
    sums = np.zeros(len(data) + 1, dtype=np.uint64)
    np.cumsum((data.astype(np.uint64) + np.uint64(1)) * powers[: len(data)], out=sums[1:])
    hashes = (sums[ends] - sums[starts]) * inverses[starts]
    hashes ^= hashes >> np.uint64(32)
    hashes *= np.uint64(0xD6E8FEB86659FD93)
    return starts, ends - starts, hashes


def _powers(count: int) -> list[np.ndarray]:
    """_FACTOR to the powers 0, 1, 2 ... modulo 2^64, and their inverses."""
    if not _POWERS or len(_POWERS[0]) < count:
        size = 2 * count
        _POWERS[:] = [
            np.cumprod(np.array([1] + [base] * size, dtype=np.uint64), dtype=np.uint64)
            for base in (_FACTOR, pow(_FACTOR, -1, 1 << 64))
        ]
    return _POWERS
