"""The learning rate of fine-tuning, where none is asked for."""

from dataclasses import replace
from math import sqrt

from torch import nn

from .arguments import TrainingArguments
from .optimizers import SMALLEST_MATRIX, split_parameters

_SHARE, _OF_NEW, _LOWEST = 0.015, 0.02, 1e-5
_OF_ADDITIONS = 3e-3
_WIDTH = 256
"""Of the models that the numbers above were found on."""
_OF_OPTIMIZERS = {"lion": 0.3}
"""Whose steps are larger than AdamW's, at one rate."""


def with_rate(plan: TrainingArguments, model: nn.Module) -> TrainingArguments:
    """The same options with a learning rate: the one that was asked for, or one in proportion to the weights.

    A step of AdamW, or of an optimizer that is scaled to it, is as large as the rate, whatever the gradient is. What
    it does to a matrix depends on the size of its entries: 0.02 in a new model, about twice that in BERT, 0.18 after
    pretraining with Muon. So the rate is a share of their root mean square, 0.015 up to a width of 256 (measured:
    docs/optimizers.md), and falls with the square of a larger one, which gives BERT-base the rates that are customary
    for it. Low-rank additions start at a size of their own: their rate is 0.003, falling with the width.

    Args:
        plan: with `learning_rate` None where a rate is wanted.
        model: what `plan` leaves to be trained is marked as such.
    """
    if plan.learning_rate is not None:
        return plan
    width = getattr(getattr(model, "config", None), "hidden_size", None) or _WIDTH
    narrow = min(1.0, _WIDTH / width)
    rate = _OF_ADDITIONS * narrow if plan.lora_rank else max(_LOWEST, _SHARE * _size(model) * narrow**2)
    return replace(plan, learning_rate=float(f"{rate * _OF_OPTIMIZERS.get(plan.optimizer, 1.0):.1e}"))


def _size(model: nn.Module) -> float:
    """Root mean square of the entries of all matrices that learn, embeddings and small heads not counted."""
    matrices = [matrix for matrix in split_parameters(model)[0] if min(matrix.shape) >= SMALLEST_MATRIX]
    count = sum(matrix.numel() for matrix in matrices)
    squares = sum(float(matrix.detach().float().square().sum()) for matrix in matrices)
    return sqrt(squares / count) if count else _OF_NEW
