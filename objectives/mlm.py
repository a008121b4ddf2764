"""`mlm`: masked language modelling over packed rows; and the masking that other objectives share.

Devlin et al., 2019 (https://arxiv.org/abs/1810.04805), without its sentence task and with new masks in each
epoch, as in Liu et al., 2019 (https://arxiv.org/abs/1907.11692). A falling share of masks is that of Ankner et al.,
2023 (https://arxiv.org/abs/2305.15096).
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import Tensor, nn

from lacuna.common.errors import InputError

from .base import PackedPrediction, TokenPrediction, score_targets, token_loss
from .data import IGNORED, SpecialTokens, Tensors, for_model, random_stream, rounded
from .packing import PackedRow

SPAN_LENGTHS = np.arange(1, 11)  # words in a span, as in SpanBERT: geometric with p = 0.2, at most 10; the mean is 3.8
_SPAN_SHARES = 0.2 * 0.8 ** (SPAN_LENGTHS - 1)
_SPAN_CUMULATED = np.cumsum(_SPAN_SHARES / _SPAN_SHARES.sum())

_NONE, _SPACE, _BLANK, _LETTER, _DIGIT, _OTHER, _, _PARTIAL = range(8)  # classes of `tokenization.token_edges`

# bool [8, 8]: whether a token continues the word of the one before, by that one's last class and its own first. A
# letter after a letter, a digit after a digit, a sign after a sign; anything after a space that is a token of its own;
# the rest of a character after its beginning. In scripts without spaces every token is a word.
_JOINED = np.zeros((8, 8), dtype=bool)
_JOINED[[_LETTER, _DIGIT, _OTHER], [_LETTER, _DIGIT, _OTHER]] = True
_JOINED[_SPACE] = ~np.isin(range(8), [_NONE, _SPACE, _BLANK])
_JOINED[:, _PARTIAL] = True


def find_words(ids: np.ndarray, *, edges: np.ndarray, candidates: np.ndarray) -> np.ndarray:
    """Number the words of a row: int64 [length], from 0, and -1 where there is no candidate.

    `edges`: uint8 [vocab_size, 2], classes of the first and the last character of each token. What is no candidate,
    bool [length], such as a special token, ends a word.
    """
    first, last = edges[ids].T
    begins = candidates.copy()
    begins[1:] &= ~(_JOINED[last[:-1], first[1:]] & candidates[:-1])
    return np.where(candidates, np.cumsum(begins) - 1, -1)


def take_words(sizes: np.ndarray, groups: np.ndarray, *, budget: int) -> np.ndarray:
    """Take words in order, as BERT does with whole words: those too large for what is left are skipped.

    If nothing fits, the smallest word is taken. Returns the places of the words taken, int64.

    Args:
        sizes: int64 [num_words], tokens of each word.
        groups: int64 [num_words]; once a word is skipped, so is the rest of its group. Groups are contiguous.
        budget: tokens to take at most.
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
    """Draw spans of words that do not overlap, at least `num_words` words in all.

    Lengths are those of SpanBERT (Joshi et al., 2020, https://arxiv.org/abs/1907.10529, section 3.1). SpanBERT draws
    places until one is free; here all spans and the words between them are laid out in random order on a ring, which
    is opened at a random word, so that every word is equally likely.

    `breaks`: bool [words of the row], whether a word does not directly follow another one of its document: a span ends
    there, and its rest is a span of its own. Returns words in the order in which their spans were drawn, the span of
    each, and the lengths drawn.
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
    tokens of a word (whole-word masking in the BERT repository, 2019) and, as there, still decides for each token how
    it is replaced. `span` hides spans of words and decides once per span (SpanBERT).
    """

    tokens: SpecialTokens
    edges: np.ndarray  # uint8 [vocab_size, 2], see `find_words`
    how: str = "token"
    mask_share: float = 0.8  # of the chosen tokens, those that [MASK] replaces
    random_share: float = 0.1  # of the chosen tokens, those that a random token replaces; the others stay

    def __call__(
        self,
        ids: np.ndarray,
        *,
        probability: float,
        generator: np.random.Generator,
        candidates: np.ndarray | None = None,
    ) -> tuple[np.ndarray, np.ndarray]:
        """Hide `probability * candidates` tokens, rounded up or down at random, at least one; as many words as fit.

        `ids`: int64 [length]; `candidates`: bool [length], what may be hidden; special tokens never are. Returns
        masked ids and labels (the original id at chosen positions, IGNORED elsewhere), int64 [length] each.
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
        # Ordinary tokens only: a random [SEP] would give itself away.
        random = self.tokens.ordinary[generator.integers(len(self.tokens.ordinary), size=len(chosen))]
        others = np.where(fate < self.mask_share + self.random_share, random, ids[chosen])
        masked[chosen] = np.where(fate < self.mask_share, self.tokens.required_mask(), others)
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
            # More than needed: some words do not fit into what is left.
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


class MaskedPrediction(TokenPrediction):
    """An objective that masks tokens."""

    options: tuple[str, ...] = ("mask_probability", "masking", "mask_replace_prob", "random_replace_prob")
    legend: tuple[str, ...] = (
        "⟦cat→[MASK]⟧ masked   ⟦cat≠tree⟧ replaced by a random token   ⟦cat=⟧ left as it is, but predicted",
    )

    def __init__(self, **parts: Any) -> None:
        super().__init__(**parts)
        self.tokens.required_mask()
        self.masking = Masking(
            tokens=self.tokens,
            edges=self.token_edges,
            how=self.arguments.masking,
            mask_share=self.arguments.mask_replace_prob,
            random_share=self.arguments.random_replace_prob,
        )
        # The same whatever the options of training, so that held-out losses can be compared.
        self.eval_masking = Masking(tokens=self.tokens, edges=self.token_edges)

    def _generator(self, stream: str, index: int, *, held_out: bool) -> np.random.Generator:
        return random_stream(seed=self.seed, stream=f"eval{stream}" if held_out else stream, index=index)

    def _describe_targets(self) -> str:
        arguments = self.arguments
        what = {"token": "tokens", "whole_word": "tokens, by whole words,", "span": "tokens, by spans of words,"}
        stay = 1 - arguments.mask_replace_prob - arguments.random_replace_prob
        return (
            f"{arguments.mask_probability:.0%} of the {what[arguments.masking]} are to be found: "
            f"{arguments.mask_replace_prob:.0%} of these are hidden behind [MASK], "
            f"{arguments.random_replace_prob:.0%} replaced at random, {max(stay, 0):.0%} left as they are"
        )


class MaskedLanguageModelling(MaskedPrediction, PackedPrediction):
    """Documents packed into rows; a share of the tokens is hidden and predicted from both sides."""

    name = "mlm"
    summary = "masked tokens"
    options = (*MaskedPrediction.options, "packing")
    head, shape, learns_means = "AutoModelForMaskedLM", "encoder", True

    def _example(self, row: PackedRow, index: int, *, rate: float, held_out: bool) -> dict[str, Any]:
        masking = self.eval_masking if held_out else self.masking
        generator = self._generator("mask", index, held_out=held_out)
        return self._finished(row, *masking(row.ids, probability=rate, generator=generator))

    def check_model(self, model: nn.Module) -> None:
        """Refuse a hybrid decoder, which predicts a hidden token one position before it."""
        if getattr(model.config, "hybrid", False):
            raise InputError("--objective mlm cannot continue --model: it is a hybrid; use --objective hybrid")
        super().check_model(model)

    def loss(self, model: nn.Module, batch: Tensors, num_targets: Tensors) -> tuple[Tensor, Tensors]:
        """Cross-entropy at the masked positions."""
        return self._read(model, batch, num_targets)[0], {}

    def _read(self, model: nn.Module, batch: Tensors, num_targets: Tensors, **options: Any) -> tuple[Tensor, Any]:
        """That loss, and all that the model returned."""
        options |= self._loss_alone(model)
        output = model(**for_model(model, batch), num_items_in_batch=num_targets["tokens"], **options)
        if output.logits is not None and output.logits.ndim == 3:
            # A native model; Lacuna's only compute logits at the targets.
            return token_loss(output.logits, batch["labels"], num_targets["tokens"]), output
        return output.loss, output

    def evaluate(self, model: nn.Module, batch: Tensors) -> list[dict[str, Any]]:
        """Sums over the masked positions of each row."""
        logits, labels = model(**batch, sparse_prediction=True).logits, batch["labels"]
        return score_targets(logits, labels, self.byte_lengths)
