"""`mlm_nsp`: masked language modelling and next sentence prediction, as BERT was trained.

Devlin et al., 2019, section 3.1 and appendix A.2 (https://arxiv.org/abs/1810.04805).
"""

from typing import Any

import numpy as np

from lacuna.common.errors import InputError

from .data import random_stream, spread
from .pairs import PairPrediction

_CANDIDATES = 8
"""Places that are tried for a random B; the one whose sentences come nearest to the wanted length is taken."""

_COUNTED_PAIRS = 2000
"""Pairs from which the share of what a random B stands for is worked out: about a tenth of a second."""

IS_NEXT, IS_RANDOM = 0, 1
"""Labels of the pair, in BERT's order."""


class MaskedLanguageModellingWithPairs(PairPrediction):
    """`[CLS] A [SEP] B [SEP]`: half the time B follows A, half the time it comes from another document.

    An example starts from a chunk of consecutive sentences that fills the row; it is cut at a random sentence into A
    and what follows. For a random pair, B is taken from a random sentence of another document of the same source
    onward, of the length of what would have followed. A chunk of one sentence is cut inside the sentence, and its
    random partner then starts inside one too. Lengths must not give the answer away: with a first version, whose real
    pairs were shorter than its random ones, a tiny model was right for 88 % within 100 steps; with equal lengths the
    same model was near chance there.

    BERT goes on after A when B is random; here a row is a chunk, whatever the label, and what would have followed is
    seen in other epochs, when the same chunk is cut elsewhere or makes a real pair. docs/objectives.md has the shares.
    """

    name = "mlm_nsp"
    summary = "masked tokens and next sentence, as BERT"
    pair_name = "nsp"
    answers = ("IsNext", "Random")

    def __init__(self, **parts: Any) -> None:
        super().__init__(**parts)
        if len(self.documents) < 2:
            raise InputError(
                "--objective mlm_nsp needs pairs from different documents, and the text has "
                f"{len(self.documents)} to train on and {len(self.held_out)} held out; give more documents (separate "
                "files, lines of .jsonl, or --document_boundary line or blank_line), or use --objective mlm"
            )
        self._elsewhere = {
            source: np.concatenate([part for number, part in enumerate(self.by_source) if number != source])
            for source in range(len(self.by_source))
            if len(self.by_source[source]) == 1
        }

    def _partners(self, source: int, document: int, *, held_out: bool) -> tuple[np.ndarray, int]:
        """Documents from which a random B may come, and the place of A's own among them, or -1.

        They are of the same part and source, so that a manner of writing does not give the answer away; where A's is
        the only one, of the training part, and where its source has no other document, of other sources.
        """
        own = self.held_out_by_source[source] if held_out else self.by_source[source]
        if len(own) > 1:
            return own, document
        if held_out and len(self.by_source[source]) > 1:
            return self.by_source[source], -1
        return self._elsewhere[source], -1

    def _random_continuation(
        self, documents: np.ndarray, document: int, *, length: int, inside: bool, generator: np.random.Generator
    ) -> np.ndarray:
        """Text of a document other than `document` that ends with a sentence and has about `length` tokens.

        Of a few places in a few documents it is the one whose length comes nearest.

        Args:
            inside: the end of a sentence, without its first token, rather than whole sentences.
        """
        others = generator.integers(len(documents) - (document >= 0), size=_CANDIDATES)
        others += (document >= 0) & (others >= document)
        places = generator.random(_CANDIDATES)
        best, least = (0, 0), np.inf
        for other, place in zip(others.tolist(), places.tolist(), strict=True):
            first, last = documents[other].tolist()
            offsets = self.store.sentence_offsets[first : last + 1]
            start = int(place * (last - first))
            if inside:
                end = int(offsets[start + 1])
                begin = max(end - length, int(offsets[start]) + 1)
            else:
                # Too near the end of the document: as late as will do.
                start = min(start, max(0, int(np.searchsorted(offsets, offsets[-1] - length, side="right")) - 1))
                begin = int(offsets[start])
                end = int(offsets[min(int(np.searchsorted(offsets, begin + length, side="left")), last - first)])
            if abs(end - begin - length) < least:
                best, least = (begin, end), abs(end - begin - length)
            if least == 0:
                break
        return np.asarray(self.store.tokens[best[0] : best[1]]).astype(np.int64)

    def _pair(
        self, chunk: tuple[int, int, int, int], *, held_out: bool, generator: np.random.Generator
    ) -> tuple[np.ndarray, np.ndarray, int]:
        source, document, first, last = chunk
        text, offsets = self._text(first, last)
        one_sentence = last - first == 1
        if one_sentence:
            cut = int(generator.integers(1, max(len(text), 2)))
        else:
            cut = int(offsets[generator.integers(first + 1, last) - first])
        before, after, label = text[:cut], text[cut:], IS_NEXT
        if generator.random() >= 0.5:
            documents, own = self._partners(source, document, held_out=held_out)
            after, label = (
                self._random_continuation(documents, own, length=len(after), inside=one_sentence, generator=generator),
                IS_RANDOM,
            )
        return *truncate_pair(before, after, room=self.room, generator=generator), label

    def _describe_left_out(self) -> str:
        """What follows A where B is random, of some chunks of the training part."""
        shown, left_out = 0, 0
        for row in spread(self.num_examples, _COUNTED_PAIRS).tolist():
            chunk = self.chunks[row]
            generator = random_stream(seed=self.seed, stream="describe", index=row)
            before, _, label = self._pair(chunk, held_out=False, generator=generator)
            offsets = self.store.sentence_offsets[chunk[2] : chunk[3] + 1]
            size = int(offsets[-1] - offsets[0])
            shown += size
            left_out += (min(size, self.room) - len(before)) * (label == IS_RANDOM)
        return f", and about {left_out / max(shown, 1):.0%} makes room for a random B"


def truncate_pair(
    first: np.ndarray, second: np.ndarray, *, room: int, generator: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """Shorten the longer of the two by a token at a random end until both fit, token for token as BERT does.

    All at once: the longer one loses tokens until both are equal, then they take turns, beginning with the second.

    Args:
        first, second: int64 [length].
        room: tokens of both together.
    """
    excess = max(0, len(first) + len(second) - room)
    at_front = generator.random(excess) < 0.5
    alone = min(excess, abs(len(first) - len(second)))
    from_first = np.arange(alone, excess) % 2 != alone % 2
    from_first = np.concatenate([np.full(alone, len(first) > len(second)), from_first])
    cut = []
    for text, is_cut in ((first, from_first), (second, ~from_first)):
        front, total = int((at_front & is_cut).sum()), int(is_cut.sum())
        cut.append(text[front : len(text) - (total - front)])
    return cut[0], cut[1]
