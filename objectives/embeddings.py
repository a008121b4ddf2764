"""Warm start: first embeddings from counts of what stands beside what, made from the text in seconds.

Tokens that keep the same company begin with similar vectors, which training finds only after thousands of steps. The
vectors factorise positive pointwise mutual information, which is what skip-gram does in effect (Levy and Goldberg,
NIPS 2014, https://papers.nips.cc/paper/5477-neural-word-embedding-as-implicit-matrix-factorization).
"""

import math
import time
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .base import TokenPrediction

WINDOW = 5  # neighbours that count on each side; one at distance d counts 1 / d
CONTEXTS, COUNTS = 8192, 2**28
"""The most frequent tokens, by whose company tokens are described, and the most counts in all: 1 GiB."""
COUNTED = 16_000_000  # tokens of the text that are counted, evenly spread over it: half a minute on one core
PER_CONTEXT = 250  # tokens that are counted for each context, at least: with fewer it is described by chance
_SMOOTHING = 0.75  # power of the frequency of contexts, as in word2vec
_SPARE = 16  # columns that make the factorisation exact enough
_STD = 0.05  # of the vectors' entries; first weights have 0.02


def cooccurrence_embeddings(objective: TokenPrediction, *, size: int, std: float, counted: int = COUNTED) -> Tensor:
    """Vectors of all tokens, float32 [vocab_size, size], from the training part of a text and the seed alone.

    Their entries have the standard deviation `std`; tokens that are not in the text, or stand beside none, have zeros.
    `counted`: tokens of the text that are counted, at most.
    """
    number = objective.tokens.vocab_size
    counts = np.zeros(number, dtype=np.int64)
    for text in objective.training_text(counted):
        counts += np.bincount(text, minlength=number)
    most = min(CONTEXTS, COUNTS // number, max(size, int(counts.sum()) // PER_CONTEXT))
    contexts = np.argsort(-counts, kind="stable")[:most]
    column = np.full(number, -1, dtype=np.int64)
    column[contexts] = np.arange(len(contexts))
    table = np.zeros(number * len(contexts), dtype=np.float32)
    for text in objective.training_text(counted):
        rows, columns = text.astype(np.int64) * len(contexts), column[text]
        for distance in range(1, WINDOW + 1):
            for here, there in ((rows[:-distance], columns[distance:]), (rows[distance:], columns[:-distance])):
                np.add.at(table, (here + there)[there >= 0], np.float32(1 / distance))
    seen = torch.from_numpy(table).view(number, len(contexts))
    of_tokens, of_contexts = seen.sum(1, keepdim=True), seen.sum(0).clamp(min=1e-9) ** _SMOOTHING
    # The logarithm of how much likelier a context is beside the token than anywhere; 0 where it is not likelier.
    seen.div_(of_tokens.clamp(min=1e-9)).div_((of_contexts / of_contexts.sum()).clamp(min=1e-12)).log_().clamp_(min=0)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(objective.seed)
        columns_kept = min(size + _SPARE, *seen.shape)
        vectors, scales, _ = torch.svd_lowrank(seen, q=columns_kept, niter=3)
    found = torch.zeros(number, size)
    found[:, :columns_kept] = (vectors * scales.sqrt())[:, :size]
    known = found[of_tokens[:, 0] > 0]
    return found * (of_tokens > 0) * (std / known.std().clamp(min=1e-9) if len(known) else 0)


def warm_start(model: Any, objective: TokenPrediction, *, trained: float = math.inf) -> float:
    """Give the tokens that are in the text embeddings of `cooccurrence_embeddings`; all else stays as it is.

    `trained`: tokens that the run will train on, as far as known; three times as many are counted at most, so that
    counting takes a small part of the run. Returns the seconds that it took.
    """
    began = time.perf_counter()
    weight, counted = model.get_input_embeddings().weight, int(min(COUNTED, 3 * trained))
    found = cooccurrence_embeddings(objective, size=weight.shape[1], std=_STD, counted=counted)
    with torch.no_grad():
        known = found.any(1).nonzero()[:, 0]
        weight[known] = found[known].to(weight)
    return round(time.perf_counter() - began, 2)
