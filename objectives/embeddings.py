"""First embeddings from the text itself: what occurs beside what, factorised, before a step is trained.

Tokens that stand in the same company get similar vectors at once, which masked or next-token training finds only after
thousands of steps. Positive pointwise mutual information of tokens and their neighbours, shifted and factorised, is
what skip-gram learns (Levy and Goldberg, 2014, "Neural word embedding as implicit matrix factorization").
"""

import numpy as np
import torch
from torch import Tensor

from .base import TokenPrediction

WINDOW = 5
"""Neighbours on each side; one at distance d counts 1 / d."""
MOST_CONTEXTS = 8192
"""The most frequent tokens, which others are described by; their number bounds the memory."""
SMOOTHING = 0.75
"""Power of the frequencies of contexts, as in skip-gram."""


def cooccurrence_embeddings(objective: TokenPrediction, *, size: int, std: float, window: int = WINDOW) -> Tensor:
    """Vectors [vocab_size, size] of the tokens in the training part of a text, in float32, of a standard deviation.

    A function of the token store, its held-out part and the seed. Tokens that the text does not have get zeros.
    """
    vocabulary = objective.tokens.vocab_size
    counts = np.zeros(vocabulary, dtype=np.int64)
    for text in objective._training_text():
        counts += np.bincount(text, minlength=vocabulary)
    contexts = np.argsort(-counts, kind="stable")[: min(MOST_CONTEXTS, vocabulary)]
    place = np.full(vocabulary, -1)
    place[contexts] = np.arange(len(contexts))
    pairs = np.zeros(vocabulary * len(contexts), dtype=np.float32)
    for text in objective._training_text():
        columns = place[text]
        rows = text.astype(np.int64) * len(contexts)
        for distance in range(1, window + 1):
            for here, there in ((rows[:-distance], columns[distance:]), (rows[distance:], columns[:-distance])):
                known = there >= 0
                np.add.at(pairs, here[known] + there[known], np.float32(1 / distance))
    table = torch.from_numpy(pairs.reshape(vocabulary, len(contexts)))
    total = table.sum()
    of_tokens, of_contexts = table.sum(1, keepdim=True), table.sum(0) ** SMOOTHING
    of_contexts /= of_contexts.sum()
    table.div_(of_tokens.clamp(min=1e-9)).div_(of_contexts.clamp(min=1e-12)).log_().clamp_(min=0)
    torch.manual_seed(objective.seed)
    left, values, _ = torch.svd_lowrank(table, q=size + 16, niter=3)
    vectors = (left * values.sqrt())[:, :size]
    return vectors * (std / vectors[of_tokens[:, 0] > 0].std())
