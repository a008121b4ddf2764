"""Documents laid end to end and cut into rows of equal length; attention stays inside a document."""

from dataclasses import dataclass

import numpy as np

from .data import IGNORED, SpecialTokens, Store


@dataclass
class PackedRows:
    """Rows of a fixed length over the stream `[start] document [end] [start] document [end] ...`.

    Nothing is dropped: a document that does not fit goes on in the next row, and the last row is filled up with
    padding. Positions restart at 0 with every document and at the start of a row; models read from them where a
    document ends.

    Args:
        store: the tokens.
        documents: int64 [num_documents, 2], first and one past the last sentence of each.
        overlap: tokens that a row shares with the next one. 1 for causal models, which predict all but the first.
    """

    store: Store
    documents: np.ndarray
    tokens: SpecialTokens
    length: int
    overlap: int = 0

    def __post_init__(self) -> None:
        self._first_token = self.store.sentence_offsets[self.documents[:, 0]].astype(np.int64)
        lengths = self.store.sentence_offsets[self.documents[:, 1]].astype(np.int64) - self._first_token
        self._starts = np.concatenate([[0], np.cumsum(lengths + 2)])

    def __len__(self) -> int:
        """How many rows the documents fill."""
        stride = self.length - self.overlap
        return max(0, -(-(int(self._starts[-1]) - self.overlap) // stride))

    def __getitem__(self, row: int) -> dict[str, np.ndarray]:
        """`input_ids`, `position_ids` and `labels` (the ids, IGNORED at document starts and padding), [length]."""
        begin = row * (self.length - self.overlap)
        stop = min(begin + self.length, int(self._starts[-1]))
        ids = np.full(self.length, self.tokens.pad, dtype=np.int64)
        positions = np.zeros(self.length, dtype=np.int64)
        labels = np.full(self.length, IGNORED, dtype=np.int64)
        document = int(np.searchsorted(self._starts, begin, side="right")) - 1
        at = begin
        while at < stop:
            start, end = int(self._starts[document]), int(self._starts[document + 1])
            upto = min(end, stop)
            piece = self._framed(document, at - start, upto - start)
            here = slice(at - begin, upto - begin)
            ids[here] = labels[here] = piece
            positions[here] = np.arange(len(piece))
            if at == start:
                labels[at - begin] = IGNORED
            at, document = upto, document + 1
        # Padding is a document of its own, so that no attention mask is needed.
        positions[stop - begin :] = np.arange(self.length - (stop - begin))
        return {"input_ids": ids, "position_ids": positions, "labels": labels}

    def _framed(self, document: int, begin: int, stop: int) -> np.ndarray:
        """Tokens [begin, stop) of `[start] document [end]`."""
        length = int(self._starts[document + 1] - self._starts[document]) - 2
        first = int(self._first_token[document])
        text = self.store.tokens[first + max(begin - 1, 0) : first + min(stop - 1, length)].astype(np.int64)
        before = [self.tokens.start] if begin == 0 else []
        after = [self.tokens.end] if stop == length + 2 else []
        return np.concatenate([np.array(before, dtype=np.int64), text, np.array(after, dtype=np.int64)])
