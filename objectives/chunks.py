"""Consecutive sentences of a document that fill a row, from which sentence pairs are made."""

from collections.abc import Callable
from functools import partial

import numpy as np

from .data import Store

_WINDOW = 2**22
"""Sentences whose offsets are held at once: 32 MiB."""


class Chunks:
    """The chunks of a list of documents: for each only its first sentence is kept, 8 bytes."""

    def __init__(
        self, *, store: Store, documents: np.ndarray, length: int, short_probability: float = 0.0, seed: int = 0
    ) -> None:
        """Group consecutive sentences of each document until they reach `length` tokens or the document ends.

        As in BERT a chunk goes beyond `length` by what its last sentence has too much; the pair is cut to size
        afterwards.

        Args:
            documents: int64 [num_documents, 2], first and one past the last sentence, in ascending order.
            short_probability: share of chunks with another goal than `length`, drawn from 2 to `length` as BERT draws
                it. BERT draws one for a document, from (seed, first sentence) it is drawn here for each chunk.
        """
        self._begins, self._ends = np.ascontiguousarray(documents[:, 0]), np.ascontiguousarray(documents[:, 1])
        found = [np.zeros(0, dtype=np.int64)]
        document = 0
        cursors = self._begins.copy()
        while document < len(documents):
            first = int(cursors[document])
            offsets = np.asarray(store.sentence_offsets[first : min(first + _WINDOW, int(self._ends[-1])) + 1])
            beyond = int(np.searchsorted(self._begins, first + len(offsets) - 1, side="left"))
            starts, cursor = _cut(
                offsets.astype(np.int64, copy=False),
                cursors[document:beyond] - first,
                self._ends[document:beyond] - first,
                targets=partial(_targets, base=first, length=length, short_probability=short_probability, seed=seed),
            )
            found.append(starts + first)
            document = beyond
            if cursor is not None:  # the last document goes on behind the window
                document = beyond - 1
                cursors[document] = cursor + first
        self.starts = np.sort(np.concatenate(found))

    def __len__(self) -> int:
        return len(self.starts)

    def __getitem__(self, chunk: int) -> tuple[int, int, int]:
        """Document (its row in the list), first and one past the last sentence."""
        first = int(self.starts[chunk])
        document = int(np.searchsorted(self._begins, first, side="right")) - 1
        last = int(self._ends[document])
        if chunk + 1 < len(self.starts):
            last = min(last, int(self.starts[chunk + 1]))
        return document, first, last


def _cut(
    offsets: np.ndarray, cursors: np.ndarray, ends: np.ndarray, *, targets: Callable[[np.ndarray], np.ndarray]
) -> tuple[np.ndarray, int | None]:
    """Cut all documents at once: in each round one chunk of each that is not at its end.

    Args:
        offsets: int64 [num_sentences + 1], in tokens, of a window of sentences; places in it are counted from 0.
        cursors, ends: where each document begins and ends; that of the last may lie behind the window.
        targets: first sentences -> how many tokens their chunks shall reach.

    Returns:
        First sentences of the chunks, and where the last document goes on if the window does not show its next chunk.
    """
    found, left = [np.zeros(0, dtype=np.int64)], None
    while len(cursors):
        reached = np.searchsorted(offsets, offsets[cursors] + targets(cursors), side="left")
        if reached[-1] == len(offsets) and ends[-1] >= len(offsets):
            left = int(cursors[-1])
            reached, cursors, ends = reached[:-1], cursors[:-1], ends[:-1]
        found.append(cursors)
        reached = np.clip(reached, cursors + 1, ends)
        goes_on = reached < ends
        cursors, ends = reached[goes_on], ends[goes_on]
    return np.concatenate(found), left


def _targets(places: np.ndarray, *, base: int, length: int, short_probability: float, seed: int) -> np.ndarray:
    """How many tokens the chunks that begin at `places`, counted from sentence `base`, shall reach: int64 alike."""
    sentences = places + base
    goals = np.full(len(sentences), length, dtype=np.int64)
    if short_probability:
        is_short = hashed(sentences, seed=seed, stream="short") < short_probability
        drawn = 2 + (hashed(sentences, seed=seed, stream="goal") * (length - 1)).astype(np.int64)
        goals[is_short] = drawn[is_short]
    return goals


def hashed(numbers: np.ndarray, *, seed: int, stream: str) -> np.ndarray:
    """A random number from 0 to 1 for each of many numbers at once: float64, like `numbers`.

    The output function of SplitMix64 (Steele, Lea and Flood, 2014, https://doi.org/10.1145/2714064.2660195), of the
    number, and of seed and stream mixed the same way.
    """

    def mix(state: np.ndarray) -> np.ndarray:
        state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return state ^ (state >> np.uint64(31))

    key = np.array([seed % 2**64, int.from_bytes(stream.encode()[:8], "little")], dtype=np.uint64)
    states = mix(mix(key[:1]) + key[1:]) + np.asarray(numbers).astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    return (mix(mix(states)) >> np.uint64(11)).astype(np.float64) * 2.0**-53
