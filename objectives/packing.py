"""How documents fill rows: packed end to end, or one per row; or in chunks, for sentence pairs.

For packed rows each document is framed, `[start] text [end]`, and laid out in pieces. A piece is the whole framed
document, or part of one that is longer than its row. Attention stays inside a piece. No packing drops anything.
"""

from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from .data import SpecialTokens, Store


@dataclass(frozen=True, slots=True)
class PackedRow:
    """Pieces of documents one after another, without padding."""

    ids: np.ndarray  # int64 [num_tokens], special tokens included
    bounds: np.ndarray  # int64 [num_pieces + 1]: where each piece begins, and where the last one ends

    @property
    def positions(self) -> np.ndarray:
        """int64 [num_tokens], beginning at 0 with each piece."""
        return np.arange(len(self.ids)) - np.repeat(self.bounds[:-1], np.diff(self.bounds))


class PackedRows:
    """Rows of `length` tokens over the pieces of documents. Subclasses say which piece lies in which row."""

    num_tokens: int  # tokens in all rows: with special tokens and those that stand in two rows, without padding

    def __init__(
        self, *, store: Store, documents: np.ndarray, tokens: SpecialTokens, length: int, overlap: int = 0
    ) -> None:
        """The documents, int64 [num_documents, 2], have the first and one past the last sentence of each; a row has at
        most `length` tokens, of which a piece repeats `overlap` from the one before: 1 for causal models, to which the
        first token of a piece is given and not a target."""
        self.store, self.tokens, self.length, self.overlap = store, tokens, length, overlap
        self._first_token = np.asarray(store.sentence_offsets[documents[:, 0]], dtype=np.int64)
        lengths = np.asarray(store.sentence_offsets[documents[:, 1]], dtype=np.int64) - self._first_token
        self._starts = np.concatenate([[0], np.cumsum(lengths + 2)])
        """Where each framed document begins when all lie end to end, and the end of the last."""
        self._lay_out(lengths + 2)

    def _lay_out(self, lengths: np.ndarray) -> None:
        """Decide, from the lengths of the framed documents, where their pieces go; set `num_tokens`."""
        raise NotImplementedError

    def __len__(self) -> int:
        raise NotImplementedError

    def pieces(self, row: int) -> list[tuple[int, int, int]]:
        """For each piece of a row: document, first and one past the last of its framed tokens."""
        raise NotImplementedError

    def __getitem__(self, row: int) -> PackedRow:
        pieces = self.pieces(row)
        bounds = np.zeros(len(pieces) + 1, dtype=np.int64)
        np.cumsum([stop - begin for _, begin, stop in pieces], out=bounds[1:])
        ids = np.empty(bounds[-1], dtype=np.int64)
        for (document, begin, stop), (left, right) in zip(pieces, pairwise(bounds.tolist()), strict=True):
            end = int(self._starts[document + 1] - self._starts[document]) - 1
            if begin == 0:
                ids[left] = self.tokens.start
                left, begin = left + 1, 1
            if stop > end:
                ids[right - 1] = self.tokens.end
                right, stop = right - 1, end
            first = int(self._first_token[document]) - 1
            ids[left:right] = self.store.tokens[first + begin : first + stop]
        return PackedRow(ids=ids, bounds=bounds)


class ConcatenatedRows(PackedRows):
    """The stream `[start] document [end] [start] document [end] ...`, cut every `length` tokens."""

    def _lay_out(self, lengths: np.ndarray) -> None:
        self.num_tokens = int(self._starts[-1]) + self.overlap * max(len(self) - 1, 0)

    def __len__(self) -> int:
        stride = self.length - self.overlap
        return max(0, -(-(int(self._starts[-1]) - self.overlap) // stride))

    def pieces(self, row: int) -> list[tuple[int, int, int]]:
        begin = row * (self.length - self.overlap)
        stop = min(begin + self.length, int(self._starts[-1]))
        first, last = (int(np.searchsorted(self._starts, place, side="right")) for place in (begin, stop - 1))
        edges = [begin, *self._starts[first:last].tolist(), stop]
        offset = begin - int(self._starts[first - 1])  # into the document with which the row begins
        first_piece = (first - 1, offset, offset + edges[1] - begin)
        rest = enumerate(pairwise(edges[1:]), start=first)
        return [first_piece, *((document, 0, right - left) for document, (left, right) in rest)]


class SingleRows(PackedRows):
    """One document per row; longer ones continue in further rows. Padding depends on the batch."""

    def _lay_out(self, lengths: np.ndarray) -> None:
        counts = np.maximum(1, -(-(lengths - self.overlap) // (self.length - self.overlap)))
        self._pieces = np.concatenate([[0], np.cumsum(counts)])
        self.num_tokens = int(lengths.sum()) + self.overlap * int((counts - 1).sum())

    def __len__(self) -> int:
        return int(self._pieces[-1])

    def pieces(self, row: int) -> list[tuple[int, int, int]]:
        document = int(np.searchsorted(self._pieces, row, side="right")) - 1
        begin = (row - int(self._pieces[document])) * (self.length - self.overlap)
        stop = min(begin + self.length, int(self._starts[document + 1] - self._starts[document]))
        return [(document, begin, stop)]


PACKINGS: dict[str, type[PackedRows]] = {"concatenate": ConcatenatedRows, "none": SingleRows}


class SourceRows:
    """The rows or chunks of several sources, one source after another; none holds text of two."""

    def __init__(self, parts: list[Any]) -> None:
        self.parts = parts
        self._begins = np.cumsum([0, *map(len, parts)])

    @property
    def sizes(self) -> list[int]:
        """Rows of each source."""
        return np.diff(self._begins).tolist()

    @property
    def padding(self) -> float:
        """The share of padding in packed rows if every row is filled up."""
        return 1 - sum(part.num_tokens for part in self.parts) / max(len(self) * self.parts[0].length, 1)

    def __len__(self) -> int:
        return int(self._begins[-1])

    def __getitem__(self, row: int) -> Any:
        source = int(np.searchsorted(self._begins, row, side="right")) - 1
        return self.parts[source][row - int(self._begins[source])]


class Chunk(NamedTuple):
    """Consecutive sentences of a document."""

    source: int
    document: int  # its row among the documents of the source
    first: int
    last: int  # one past the last sentence


class Chunks:
    """Chunks of documents, from which sentence pairs are made. Of each only the first sentence is kept, 8 bytes."""

    def __init__(self, *, store: Store, documents: np.ndarray, length: int, source: int) -> None:
        """Group consecutive sentences of each document until they reach `length` tokens or the document ends.

        As in BERT, the last sentence of a chunk may exceed `length`; the pair is cut to size afterwards. `documents`:
        int64 [num_documents, 2], first and one past the last sentence, in ascending order.
        """
        self._source = source
        self._begins, self._ends = np.ascontiguousarray(documents[:, 0]), np.ascontiguousarray(documents[:, 1])
        offsets = np.asarray(store.sentence_offsets[:], dtype=np.int64)
        found, cursors, ends = [np.zeros(0, dtype=np.int64)], self._begins, self._ends
        while len(cursors):  # one chunk of every document that is not at its end
            found.append(cursors)
            reached = np.searchsorted(offsets, offsets[cursors] + length, side="left")
            goes_on = reached < ends
            cursors, ends = reached[goes_on], ends[goes_on]
        self.starts = np.sort(np.concatenate(found))

    def __len__(self) -> int:
        return len(self.starts)

    def __getitem__(self, chunk: int) -> Chunk:
        first = int(self.starts[chunk])
        document = int(np.searchsorted(self._begins, first, side="right")) - 1
        last = int(self._ends[document])
        if chunk + 1 < len(self.starts):
            last = min(last, int(self.starts[chunk + 1]))
        return Chunk(self._source, document, first, last)
