"""Masked-token prediction: choosing what to hide, hiding it, and scoring what was predicted there."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from .data import IGNORED, SpecialTokens, rounded

OPTIONS = ("mask_probability", "masking", "mask_replace_prob", "random_replace_prob")
"""The options of objectives that mask."""

LEGEND = "⟦cat→[MASK]⟧ masked   ⟦cat≠tree⟧ replaced by a random token   ⟦cat=⟧ left as it is, but predicted"

EVAL_MASK_PROBABILITY = 0.15
"""Held-out text is masked at BERT's rate whatever the training rate, so that losses can be compared."""

SPAN_LENGTHS = np.arange(1, 11)
"""Words in a span, as in SpanBERT: geometric with p = 0.2, at most 10; the mean is 3.8."""
_SPAN_SHARES = 0.2 * 0.8 ** (SPAN_LENGTHS - 1)
_SPAN_CUMULATED = np.cumsum(_SPAN_SHARES / _SPAN_SHARES.sum())

_NONE, _SPACE, _BLANK, _LETTER, _DIGIT, _OTHER, _, _PARTIAL = range(8)  # classes of `tokenization.token_edges`


def _joined() -> np.ndarray:
    """bool [8, 8]: whether a token goes on with the word of the one before, by its last class and the own first one.

    A letter after a letter, a digit after a digit, a sign after a sign; anything after a space that stands alone; the
    rest of a character after its beginning. Scripts without spaces have words of one token.
    """
    table = np.zeros((8, 8), dtype=bool)
    for kind in (_LETTER, _DIGIT, _OTHER):
        table[kind, kind] = True
    table[_SPACE, :] = True
    table[_SPACE, [_NONE, _SPACE, _BLANK]] = False
    table[:, _PARTIAL] = True
    return table


_JOINED = _joined()


def find_words(ids: np.ndarray, *, edges: np.ndarray, candidates: np.ndarray) -> np.ndarray:
    """Number the words of a row: int64 [length], from 0, and -1 where there is no candidate.

    Args:
        ids: int64 [length].
        edges: uint8 [vocab_size, 2], classes of the first and the last character of each token.
        candidates: bool [length]. What is none, such as a special token, ends a word.
    """
    first, last = edges[ids].T
    begins = candidates.copy()
    begins[1:] &= ~(_JOINED[last[:-1], first[1:]] & candidates[:-1])
    return np.where(candidates, np.cumsum(begins) - 1, -1)


def take_words(sizes: np.ndarray, groups: np.ndarray, *, budget: int) -> np.ndarray:
    """Take words in the order given as long as they fit, as BERT does with whole words: what is too large is left out.

    Where nothing fits, the smallest word is taken.

    Args:
        sizes: int64 [num_words], tokens of each word, in the order in which they are taken.
        groups: int64 [num_words]; the rest of a group is left out when one of its words is. A group lies together.
        budget: tokens to take at most.

    Returns:
        Places in that order, int64.
    """
    sums = np.cumsum(sizes)
    fitting = int(np.searchsorted(sums, budget, side="right"))
    taken = list(range(fitting))
    left, refused = budget - int(sums[fitting - 1] if fitting else 0), -1
    rest = zip(sizes[fitting:].tolist(), groups[fitting:].tolist(), strict=True)
    for place, (size, group) in enumerate(rest if left else (), start=fitting):
        if group == refused:
            continue
        if size > left:
            refused = group
            continue
        taken.append(place)
        left -= size
        if not left:
            break
    return np.array(taken or [int(np.argmin(sizes))], dtype=np.int64)


def draw_spans(
    breaks: np.ndarray, *, num_words: int, generator: np.random.Generator
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Draw spans of words, at least `num_words` words in all, that do not overlap.

    Lengths are those of SpanBERT (Joshi et al., 2020, https://arxiv.org/abs/1907.10529, section 3.1). SpanBERT draws
    places until there is one that is free; here all spans and the words between them are laid down in random order, on
    a ring that is opened at a random word, so that every word is as likely as any other.

    Args:
        breaks: bool [words of the row], whether a word stands first, begins a document, or stands after something that
            is no word: a span that meets one ends there, and the rest is a span of its own.

    Returns:
        Words in the order in which their spans were drawn, the span that each belongs to, and the lengths drawn.
    """
    total = len(breaks)
    drawn = SPAN_LENGTHS[np.searchsorted(_SPAN_CUMULATED, generator.random(min(num_words, total)), side="right")]
    sums = np.cumsum(drawn)
    lengths = drawn[: int(np.searchsorted(sums, min(num_words, total))) + 1].copy()
    lengths[-1] -= max(0, int(sums[len(lengths) - 1]) - total)
    covered = int(lengths.sum())
    order = generator.permutation(len(lengths) + total - covered)
    blocks = np.concatenate([lengths, np.ones(total - covered, dtype=np.int64)])[order]
    starts = np.empty(len(blocks), dtype=np.int64)
    starts[order] = np.cumsum(blocks) - blocks
    offsets = np.cumsum(lengths) - lengths
    words = np.repeat(starts[: len(lengths)] - offsets, lengths) + np.arange(covered)
    words = (words + generator.integers(total)) % total
    begins = breaks[words]
    begins[offsets] = True
    return words, np.cumsum(begins) - 1, lengths


@dataclass(frozen=True, eq=False)
class Masking:
    """Hides a share of the tokens of a row.

    `token` is BERT's (Devlin et al., 2019, https://arxiv.org/abs/1810.04805, section 3.1). `whole_word` hides all
    tokens of a word (whole-word masking in the BERT repository, 2019): words are drawn, and each token of one is still
    replaced, or not, for itself, as there. `span` hides spans of words and decides once for a span (SpanBERT).
    """

    tokens: SpecialTokens
    edges: np.ndarray
    """uint8 [vocab_size, 2], see `find_words`."""
    how: str = "token"
    mask_share: float = 0.8
    """Of the chosen tokens, those that [MASK] replaces."""
    random_share: float = 0.1
    """Of the chosen tokens, those that a random token replaces; the others stay."""

    def __call__(
        self,
        ids: np.ndarray,
        *,
        probability: float,
        generator: np.random.Generator,
        candidates: np.ndarray | None = None,
    ) -> tuple[np.ndarray, np.ndarray]:
        """Hide `probability * candidates` tokens, rounded up or down at random, at least one; of words as many as fit.

        Args:
            ids: int64 [length].
            candidates: bool [length], where text may be hidden; special tokens never are.

        Returns:
            Masked ids and labels (the original id at chosen positions, IGNORED elsewhere), int64 [length] each.
        """
        labels = np.full_like(ids, IGNORED)
        masked = ids.copy()
        allowed = ~self.tokens.is_special[ids]
        if candidates is not None:
            allowed &= candidates
        places = np.flatnonzero(allowed)
        if len(places) == 0:
            return masked, labels
        count = max(1, rounded(probability * len(places), generator))
        if self.how == "token":
            chosen = generator.permutation(places)[:count]
            fate = generator.random(len(chosen))
        else:
            words = find_words(ids, edges=self.edges, candidates=allowed)
            chosen, units = self._choose_words(words, places, count=count, generator=generator)
            fate = generator.random(int(units.max()) + 1)[units]
        labels[chosen] = ids[chosen]
        # Ordinary tokens only: a random [SEP] would tell the model that it was put there.
        random = self.tokens.ordinary[generator.integers(len(self.tokens.ordinary), size=len(chosen))]
        is_random = fate < self.mask_share + self.random_share
        masked[chosen] = np.where(
            fate < self.mask_share, self.tokens.required_mask(), np.where(is_random, random, ids[chosen])
        )
        return masked, labels

    def _choose_words(
        self, words: np.ndarray, places: np.ndarray, *, count: int, generator: np.random.Generator
    ) -> tuple[np.ndarray, np.ndarray]:
        """Chosen places in ascending order, and for each the number, from 0, of what is replaced together."""
        word_of = words[places]
        sizes = np.bincount(word_of)
        if self.how == "whole_word":
            order = generator.permutation(len(sizes))
            groups = np.arange(len(sizes))
        else:
            firsts = np.cumsum(sizes) - sizes
            breaks = np.ones(len(sizes), dtype=bool)
            breaks[1:] = places[firsts[1:]] != places[firsts[1:] - 1] + 1
            # More than needed, so that where a word does not fit into what is left others do.
            order, groups, _ = draw_spans(breaks, num_words=2 * count, generator=generator)
        taken = take_words(sizes[order], groups, budget=count)
        group_of = np.full(len(sizes), -1)
        group_of[order[taken]] = groups[taken]
        group_of_token = group_of[word_of]
        is_chosen = group_of_token >= 0
        if self.how == "whole_word":
            return places[is_chosen], np.arange(int(is_chosen.sum()))
        _, units = np.unique(group_of_token[is_chosen], return_inverse=True)
        return places[is_chosen], units


def score_masked(logits: Tensor, labels: Tensor, byte_lengths: Tensor) -> list[dict[str, Any]]:
    """One record an example: loss in nats, bytes, targets and hits at the masked positions.

    Args:
        logits: [num_targets, vocab_size], in row-major order of the targets; or [batch, length, vocab_size], from a
            model that computes them everywhere.
        labels: [batch, length].
        byte_lengths: [vocab_size], bytes of text each token stands for.
    """
    row = (labels != IGNORED).nonzero()[:, 0]
    targets = labels[labels != IGNORED]
    if logits.ndim == 3:
        logits = logits[labels != IGNORED]
    losses = functional.cross_entropy(logits.float(), targets, reduction="none").double()
    hits = (logits.argmax(dim=-1) == targets).double()
    sums = torch.zeros(4, len(labels), dtype=torch.float64, device=logits.device)
    for total, values in zip(sums, (losses, byte_lengths[targets].double(), torch.ones_like(hits), hits), strict=True):
        total.index_add_(0, row, values)
    names = ("nats", "bytes", "targets", "hits")
    return [dict(zip(names, values, strict=True)) for values in sums.T.tolist()]


def masked_loss(logits: Tensor, labels: Tensor, num_targets: Tensor) -> Tensor:
    """Cross-entropy in nats, summed over the targets of a batch and divided by those of the step.

    For models of transformers' own, most of which take a mean over their batch whatever `num_items_in_batch` says.

    Args:
        logits: [batch, length, vocab_size].
        labels: [batch, length].
    """
    is_target = labels != IGNORED
    return functional.cross_entropy(logits[is_target].float(), labels[is_target], reduction="sum") / num_targets
