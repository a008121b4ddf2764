"""Documents in rows of a fixed length: end to end, where they fit best, or each in rows of its own.

Each document is framed, `[start] text [end]`, and laid down in pieces of at most one row. A piece is a stretch of a
framed document: all of it, or where it is longer than its row, a part. Attention stays inside a piece. Nothing is
dropped whatever the packing.
"""

from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from .data import SpecialTokens, Store


@dataclass(frozen=True, slots=True)
class Row:
    """Pieces of documents one after another, without padding."""

    ids: np.ndarray
    """int64 [num_tokens], special tokens included."""
    bounds: np.ndarray
    """int64 [num_pieces + 1]: where each piece begins, and where the last one ends."""

    @property
    def positions(self) -> np.ndarray:
        """int64 [num_tokens], beginning at 0 with each piece."""
        return np.arange(len(self.ids)) - np.repeat(self.bounds[:-1], np.diff(self.bounds))


class PackedRows:
    """Rows of `length` tokens over the pieces of documents. Subclasses say which piece lies in which row."""

    num_tokens: int
    """Tokens in all rows, special ones and those that stand in two rows included, padding not."""
    pads = True
    """Whether a row that is not full is filled up to `length`, rather than to the longest of its batch."""

    def __init__(
        self, *, store: Store, documents: np.ndarray, tokens: SpecialTokens, length: int, overlap: int = 0
    ) -> None:
        """
        Args:
            store: the tokens.
            documents: int64 [num_documents, 2], first and one past the last sentence of each.
            tokens: for the frame.
            length: tokens in a row, at most.
            overlap: tokens of a document with which its next piece begins again. 1 for causal models, to which the
                first token of a piece is given and not a target.
        """
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
        """For each piece of a row: document, and the first and one past the last of its framed tokens."""
        raise NotImplementedError

    def __getitem__(self, row: int) -> Row:
        """The tokens of a row."""
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
        return Row(ids=ids, bounds=bounds)

    @property
    def padding(self) -> float:
        """The share of padding if every row is filled up to `length`."""
        return 1 - self.num_tokens / max(len(self) * self.length, 1)


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


def _count_pieces(lengths: np.ndarray, *, length: int, overlap: int) -> np.ndarray:
    """Pieces of at most `length` tokens that each document is cut into."""
    return np.maximum(1, -(-(lengths - overlap) // (length - overlap)))


class BestFitRows(PackedRows):
    """Documents as whole as possible: only what is longer than a row is cut, into full rows and a rest.

    Rests and shorter documents go where they leave the least room, longest first (best-fit decreasing: Johnson et al.,
    1974, https://doi.org/10.1137/0203025; for language models Ding et al., 2024, https://arxiv.org/abs/2404.10830).
    """

    def _lay_out(self, lengths: np.ndarray) -> None:
        stride = self.length - self.overlap
        full = _count_pieces(lengths, length=self.length, overlap=self.overlap) - 1
        rests = lengths - full * stride
        self._full = np.concatenate([[0], np.cumsum(full)])
        rows, num_rows = best_fit_decreasing(rests, capacity=self.length)
        self._order = np.argsort(rows, kind="stable").astype(np.int32 if len(rows) < 2**31 else np.int64)
        self._edges = np.concatenate([[0], np.cumsum(np.bincount(rows, minlength=num_rows))])
        self.num_tokens = int(full.sum()) * self.length + int(rests.sum())

    def __len__(self) -> int:
        return int(self._full[-1]) + len(self._edges) - 1

    def pieces(self, row: int) -> list[tuple[int, int, int]]:
        stride, num_full = self.length - self.overlap, int(self._full[-1])
        if row < num_full:
            document = int(np.searchsorted(self._full, row, side="right")) - 1
            begin = (row - int(self._full[document])) * stride
            return [(document, begin, begin + self.length)]
        bounds = self._edges[row - num_full : row - num_full + 2].tolist()
        documents = self._order[slice(*bounds)]
        begins = (self._full[documents + 1] - self._full[documents]) * stride
        stops = self._starts[documents + 1] - self._starts[documents]
        return list(zip(documents.tolist(), begins.tolist(), stops.tolist(), strict=True))


class SingleRows(PackedRows):
    """One document in a row; what is longer goes on in further rows. Padding depends on the batch."""

    pads = False

    def _lay_out(self, lengths: np.ndarray) -> None:
        counts = _count_pieces(lengths, length=self.length, overlap=self.overlap)
        self._pieces = np.concatenate([[0], np.cumsum(counts)])
        self.num_tokens = int(lengths.sum()) + self.overlap * int((counts - 1).sum())

    def __len__(self) -> int:
        return int(self._pieces[-1])

    def pieces(self, row: int) -> list[tuple[int, int, int]]:
        document = int(np.searchsorted(self._pieces, row, side="right")) - 1
        begin = (row - int(self._pieces[document])) * (self.length - self.overlap)
        stop = min(begin + self.length, int(self._starts[document + 1] - self._starts[document]))
        return [(document, begin, stop)]


PACKINGS: dict[str, type[PackedRows]] = {
    "concatenate": ConcatenatedRows,
    "best_fit": BestFitRows,
    "none": SingleRows,
}


def best_fit_decreasing(lengths: np.ndarray, *, capacity: int) -> tuple[np.ndarray, int]:
    """Put items into bins, longest first, each into the bin that it leaves the least room in.

    Items of a length are put down together, and bins with equal room are one: 10 million documents take seconds. Which
    of several bins with equal room takes an item does not change the number of bins, nor the room in any.

    Args:
        lengths: int64 [num_items], from 1 to `capacity`.

    Returns:
        The bin of each item, int64 [num_items], and the number of bins.
    """
    by_length = np.argsort(lengths.astype(np.uint16 if capacity < 2**16 else np.int64), kind="stable")
    counts = np.bincount(lengths, minlength=capacity + 1)
    ends = np.cumsum(counts)
    bins = np.empty(len(lengths), dtype=np.int64)
    with_room: list[list[np.ndarray]] = [[] for _ in range(capacity + 1)]
    rooms = 0  # bit r is set where bins with room r are
    num_bins = 0
    for length in np.flatnonzero(counts)[::-1].tolist():
        items = by_length[ends[length] - counts[length] : ends[length]]
        while len(items):
            fitting = rooms >> length
            room = length + (fitting & -fitting).bit_length() - 1 if fitting else capacity
            each = room // length  # a bin that took one item is still the best fit for the next
            wanted = -(-len(items) // each)
            if fitting:
                chosen = _take(with_room[room], wanted)
                if not with_room[room]:
                    rooms ^= 1 << room
            else:
                chosen = np.arange(num_bins, num_bins + wanted)
                num_bins += wanted
            placed = min(len(items), each * len(chosen))
            bins[items[:placed]] = np.repeat(chosen, each)[:placed]
            in_last = placed - each * (len(chosen) - 1)
            for group, left in ((chosen[:-1], room - each * length), (chosen[-1:], room - in_last * length)):
                if len(group) and left:
                    with_room[left].append(group)
                    rooms |= 1 << left
            items = items[placed:]
    return bins, num_bins


def _take(groups: list[np.ndarray], wanted: int) -> np.ndarray:
    """At most `wanted` numbers from the end of a list of arrays, which loses them."""
    taken: list[np.ndarray] = []
    while wanted and groups:
        group = groups.pop()
        if len(group) > wanted:
            groups.append(group[wanted:])
            group = group[:wanted]
        taken.append(group)
        wanted -= len(group)
    return np.concatenate(taken)


class SourceRows:
    """The rows of several sources, one source after another; no row holds text of two."""

    def __init__(self, parts: list[PackedRows]) -> None:
        self.parts = parts
        self._begins = np.cumsum([0, *map(len, parts)])

    @property
    def sizes(self) -> list[int]:
        """Rows of each source."""
        return np.diff(self._begins).tolist()

    @property
    def padding(self) -> float:
        """The share of padding if every row is filled up."""
        return 1 - sum(part.num_tokens for part in self.parts) / max(len(self) * self.parts[0].length, 1)

    def __len__(self) -> int:
        return int(self._begins[-1])

    def __getitem__(self, row: int) -> Row:
        source = int(np.searchsorted(self._begins, row, side="right")) - 1
        return self.parts[source][row - int(self._begins[source])]
