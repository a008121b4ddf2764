"""A sample of a corpus of any size to learn a tokenizer from: seedable, without copies, bounded in memory.

Every passage (a document, or a piece of about 16,384 characters of a longer one) gets a priority, a hash of its text
and the seed. The sample is the passages of the lowest priorities that fit into a budget of bytes. So it is a function
of the seed and the set of passages, not of their order, and equal passages count once.

One pass suffices, because a limit on the priorities only ever falls (bottom-k sampling, Cohen and Kaplan 2007,
https://doi.org/10.1145/1281100.1281133). What is below it is held in memory.
"""

import hashlib
from array import array
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from lacuna.common.errors import InputError

from .patterns import split_pieces

SLACK = 1.25  # the budget may be passed by this factor before the limit falls, so that it falls seldom
HELD_OUT = 0.01  # of the bytes, but no less than LEAST_ and no more than MOST_HELD_OUT_BYTES
LARGEST_HELD_OUT = 0.04  # of the bytes, all together and for one document: a larger one is not held out
LEAST_HELD_OUT_BYTES = 100_000
MOST_HELD_OUT_BYTES = 10_000_000
NO_LIMIT = 1 << 64


class Sample:
    """Passages to train on, passages held out, and how they were chosen. Made by `sample_documents`.

    Attributes:
        duplicates: passages that were copies of an earlier one in the sample.
        whole: all of the text is in it, copies aside; else the budget kept some out.
        num_bytes, num_held_out_bytes: in the sample, and in its passages held out.
        held_out: "documents"; "passages" where no document is small enough to spare; "nothing" where no passage is.
    """

    def __init__(self, *, max_bytes: int, seed: int) -> None:
        self.max_bytes = max_bytes
        self.seed = seed
        self.seen_documents = self.seen_bytes = self.duplicates = self.num_bytes = self.num_held_out_bytes = 0
        self.held_out = "nothing"
        self.whole = True
        self._limit = NO_LIMIT
        self._texts: list[bytes] = []
        self._priorities, self._documents = array("Q"), array("Q")
        self._spared = np.zeros(0, dtype=bool)

    def training(self, *, every: int = 1) -> "Passages":
        """The passages to learn from in the order of the corpus, or every so-many-th of them."""
        return Passages([self._texts[number] for number in np.flatnonzero(~self._spared)[::every]])

    def spared(self) -> "Passages":
        """The passages held out."""
        return Passages([self._texts[number] for number in np.flatnonzero(self._spared)])

    def __str__(self) -> str:
        chosen = "all of it" if self.whole else f"a sample for --max_bytes {self.max_bytes}, seed {self.seed}"
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
        kept = ("seen_documents", "seen_bytes", *names, "held_out", "max_bytes", "whole", "seed")
        return {name: getattr(self, names.get(name, name)) for name in kept}

    @property
    def num_documents(self) -> int:
        """Documents of which at least a passage is in the sample."""
        return len(np.unique(np.asarray(self._documents)))

    def _add(self, text: bytes) -> None:
        digest = hashlib.blake2b(text, digest_size=8, salt=self.seed.to_bytes(16, "little")).digest()
        priority = int.from_bytes(digest, "little")
        if priority < self._limit:
            self._texts.append(text)
            self._priorities.append(priority)
            self._documents.append(self.seen_documents)
            self.num_bytes += len(text)
            if self.num_bytes > SLACK * self.max_bytes:
                self._fit()

    def _fit(self) -> None:
        """Forget copies, and what the budget does not allow. One passage always stays."""
        priorities, documents = np.array(self._priorities), np.array(self._documents)
        _, order = np.unique(priorities, return_index=True)  # of copies the first
        self.duplicates += len(priorities) - len(order)
        sums = np.cumsum([len(self._texts[number]) for number in order])
        count = max(1, int(np.searchsorted(sums, self.max_bytes, side="right")))
        if count < len(order):
            self._limit, self.whole = int(priorities[order[count]]), False
        kept = np.sort(order[:count])
        self._texts = [self._texts[number] for number in kept]
        self._priorities, self._documents = (array("Q", part[kept].tobytes()) for part in (priorities, documents))
        self.num_bytes = int(sums[count - 1])

    def _finish(self) -> None:
        self._fit()
        sizes = np.array([len(text) for text in self._texts], dtype=np.int64)
        # Another order than that of the priorities, or the lowest would be held out and the sample would lean.
        luck = np.asarray(self._priorities, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        documents, first, which = np.unique(np.asarray(self._documents), return_index=True, return_inverse=True)
        of_documents = np.bincount(which, weights=sizes, minlength=len(documents)).astype(np.int64)
        chosen = _hold_out(sizes=of_documents, luck=luck[first])
        self._spared = chosen[which]
        self.held_out = "documents"
        if not self._spared.any():
            self._spared = _hold_out(sizes=sizes, luck=luck)
            self.held_out = "passages" if self._spared.any() else "nothing"
        self.num_held_out_bytes = int(sizes[self._spared].sum())


class Passages:
    """Some passages of a sample: iterate as often as you like."""

    def __init__(self, texts: list[bytes]) -> None:
        self._texts = texts

    def __len__(self) -> int:
        return len(self._texts)

    def __iter__(self) -> Iterator[str]:
        return map(bytes.decode, self._texts)


def sample_documents(*, documents: Iterable[str], max_bytes: int, seed: int = 0) -> Sample:
    """Choose what a tokenizer is learned from, in one pass; see the head of this file.

    The budget is of UTF-8; a quarter more is held while the text is read. The seed also chooses what is held out.
    Raises InputError: `max_bytes` is not positive, there is no text, or all documents are copies of one.
    """
    if max_bytes < 1:
        raise InputError(f"--max_bytes {max_bytes} leaves nothing to learn from; 100000000 is plenty for most.")
    if not 0 <= seed < 1 << 128:
        raise InputError(f"--seed {seed} must be a whole number from 0 on.")
    sample = Sample(max_bytes=max_bytes, seed=seed)
    first, differ = "", False
    for document in documents:
        sample.seen_documents += 1
        first = first or document
        differ = differ or bool(document and document != first)
        for passage in split_pieces(document):
            text = passage.encode()
            sample.seen_bytes += len(text)
            if text and not passage.isspace():
                sample._add(text)
    if not sample.num_bytes:
        raise InputError("there is no text to train a tokenizer on: every document is empty. Check --data.")
    sample._finish()
    if sample.seen_documents > 1 and sample.duplicates and not differ:
        raise InputError(f"all {sample.seen_documents:,} documents are copies of one: {first[:80]!r}. Check --data.")
    return sample


def _hold_out(*, sizes: np.ndarray, luck: np.ndarray) -> np.ndarray:
    """Which of these to hold out, by luck; at least one where one is small enough."""
    chosen = np.zeros(len(sizes), dtype=bool)
    total = int(sizes.sum())
    largest = LARGEST_HELD_OUT * total
    goal = min(max(HELD_OUT * total, LEAST_HELD_OUT_BYTES), MOST_HELD_OUT_BYTES, largest)
    order = np.argsort(luck, kind="stable")
    order = order[sizes[order] <= largest]
    chosen[order[: np.searchsorted(np.cumsum(sizes[order]), goal) + 1]] = True
    return chosen
