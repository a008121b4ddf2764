"""Pieces of contexts, by the logits of their ends: the best ones of a window, and how probable one is among all.

The score of a span is the sum of the logits of its ends, minus that sum at the first token of the window: by how much,
in nats, the model believes more in this span than in "not in this window". With "no answer" at a score of 0 and each
span at its own, a softmax over all spans of all windows of a question says how probable an answer is.
"""

import math
from collections.abc import Iterable

import torch
from torch import Tensor
from torch.nn import functional as F


def best_spans(
    *, start: Tensor, end: Tensor, allowed: Tensor, null: Tensor, max_answer_length: int, num_best: int
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The best spans of every window, exactly: all spans up to the longest are scored, not only pairs of good ends.

    Args:
        start: start logits [batch, length].
        end: end logits [batch, length].
        allowed: bool [batch, length], tokens at which a span may start and end.
        null: int64 [batch], the position that stands for "not in this window".
        max_answer_length: most tokens of a span.
        num_best: how many spans to return.

    Returns:
        Scores, first tokens and last tokens, each [batch, at most num_best], best first; a score is -inf where a
        window has fewer spans. And the rest [batch]: the logarithm of the sum of the exponentials of the scores of all
        spans that are not returned; -inf where there are none.
    """
    length = start.shape[1]
    width = min(max_answer_length, length)
    nothing = start.gather(1, null[:, None]) + end.gather(1, null[:, None])
    start, end = start.masked_fill(~allowed, -math.inf), end.masked_fill(~allowed, -math.inf)
    ends = F.pad(end, (0, width - 1), value=-math.inf).unfold(1, width, 1)  # [batch, length, width]
    scores = (start[:, :, None] + ends).flatten(1)
    best, places = scores.topk(min(num_best, scores.shape[1]), dim=1)
    rest = torch.logsumexp(scores.scatter(1, places, -math.inf), dim=1) - nothing[:, 0]
    first = places // width
    return best - nothing, first, first + places % width, rest


def log_sum(values: Iterable[float]) -> float:
    """The logarithm of the sum of exponentials; `values` are finite or -inf, and one of them is finite."""
    terms = list(values)
    highest = max(terms)
    return highest + math.log(math.fsum(math.exp(term - highest) for term in terms))


def trimmed(context: str, start: int, end: int) -> tuple[int, int]:
    """The characters [start, end) without blanks at either end."""
    text = context[start:end]
    start += len(text) - len(text.lstrip())
    return start, start + len(text.strip())
