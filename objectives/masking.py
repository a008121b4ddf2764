"""Masked-token prediction: choosing positions, hiding them, and scoring what was predicted there."""

from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from .data import IGNORED, SpecialTokens

EVAL_MASK_PROBABILITY = 0.15
"""Held-out text is masked at BERT's rate whatever the training rate, so that losses can be compared."""


def mask_tokens(
    ids: np.ndarray, *, tokens: SpecialTokens, probability: float, generator: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """Hide a share of the tokens as BERT does (Devlin et al., 2019, https://arxiv.org/abs/1810.04805, section 3.1).

    Of the chosen positions 80 % become [MASK], 10 % a random token, 10 % stay. Special tokens are never chosen.
    Exactly `round(probability * candidates)` positions are chosen, at least one.

    Args:
        ids: int64 [length].

    Returns:
        Masked ids and labels (the original id at chosen positions, IGNORED elsewhere), int64 [length] each.
    """
    labels = np.full_like(ids, IGNORED)
    masked = ids.copy()
    candidates = np.flatnonzero(~tokens.is_special[ids])
    if len(candidates) == 0:
        return masked, labels
    count = max(1, round(probability * len(candidates)))
    chosen = generator.permutation(candidates)[:count]
    labels[chosen] = ids[chosen]
    fate = generator.random(count)
    # Ordinary tokens only: a random [SEP] would tell the model that it was put there.
    random = tokens.ordinary[generator.integers(len(tokens.ordinary), size=count)]
    masked[chosen] = np.where(fate < 0.8, tokens.required_mask(), np.where(fate < 0.9, random, ids[chosen]))
    return masked, labels


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
