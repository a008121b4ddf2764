"""Learning rates: schedules, and the peak where none is asked for.

A schedule is the share of the peak rate at a point of the run, `progress` from 0 to 1. It follows progress, not steps,
so that a run limited by the clock completes its schedule too. The rate rises in a line over the warm-up to the peak.
"""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from torch import nn

from .optimizers import OPTIMIZERS, SMALLEST_MATRIX, output_layer, split_parameters

if TYPE_CHECKING:  # which imports the registry below
    from ..arguments import TrainingArguments

_STEP = 0.001
"""Share of a run taken for a step where no number of steps says what it is, so that no step is made at rate zero."""

LONG = 420  # steps after which the rate of `rsqrt` begins to fall


def rsqrt(progress: float, *, step: int, warmup_share: float, decay_share: float) -> float:
    """As `wsd`, and beyond `LONG` steps also with the root of their number: long runs want lower rates.

    Zhai et al., 2022, https://arxiv.org/abs/2106.04560. It depends on the steps so far, not on those to come.
    """
    stable = wsd(progress, step=step, warmup_share=warmup_share, decay_share=decay_share)
    return stable * math.sqrt(LONG / max(step + 1, LONG))


def wsd(progress: float, *, step: int, warmup_share: float, decay_share: float) -> float:
    """Stable, then down to zero by 1 - sqrt over the last `decay_share` of the run.

    Hägele et al., 2024, https://arxiv.org/abs/2405.18392, where this form of decay did best.
    """
    into_decay = progress - (1.0 - decay_share)
    return 1.0 if into_decay <= 0 else 1.0 - math.sqrt(min(into_decay / decay_share, 1.0))


def linear(progress: float, *, step: int, warmup_share: float, decay_share: float) -> float:
    """Straight down to zero from the end of the warm-up on."""
    return 1.0 - _after_warmup(progress, warmup_share)


def cosine(progress: float, *, step: int, warmup_share: float, decay_share: float) -> float:
    """Half a cosine wave down to zero from the end of the warm-up on (Loshchilov and Hutter, 2017,
    https://arxiv.org/abs/1608.03983)."""
    return 0.5 * (1.0 + math.cos(math.pi * _after_warmup(progress, warmup_share)))


def constant(progress: float, *, step: int, warmup_share: float, decay_share: float) -> float:
    """The peak rate throughout."""
    return 1.0


SCHEDULES: dict[str, Callable[..., float]] = {each.__name__: each for each in (rsqrt, wsd, linear, cosine, constant)}


def _after_warmup(progress: float, warmup_share: float) -> float:
    """Share that is done of what follows the warm-up."""
    return max(0.0, progress - warmup_share) / (1.0 - warmup_share) if warmup_share < 1 else 0.0


def learning_rate(arguments: "TrainingArguments", *, step: int, progress: float) -> float:
    """The learning rate of optimizer step `step` (from 0), at which `progress` (0 to 1) of the run is done.

    A warm-up of a number of steps counts steps, this one included; one that is a share of the run follows progress.
    """
    progress = min(max(progress, 0.0), 1.0)
    asked, steps = arguments.warmup_steps, arguments.max_steps
    if asked >= 1:
        warmed, share = (step + 1) / asked, asked / steps if steps else 0.0
    else:
        warmed, share = (progress + (1.0 / steps if steps else _STEP)) / asked if asked else 1.0, asked
    how = {"step": step, "warmup_share": share, "decay_share": arguments.decay_share}
    return arguments.learning_rate * min(warmed, 1.0) * SCHEDULES[arguments.schedule](progress, **how)


_SHARE, _OF_WRITERS, _OF_NEW, _LOWEST = 0.015, 0.03, 0.02, 1e-5
_OF_ADDITIONS, _OF_TRAINED_HEAD, _STEPS = 3e-3, 0.4, 300
_WIDTH, _LAYERS = 256, 3  # of the models that the numbers above, and the rates of `OPTIMIZERS`, were found on


def with_rate(arguments: "TrainingArguments", model: nn.Module) -> "TrainingArguments":
    """The same options with a learning rate: the given one, or one that fits the model."""
    if arguments.learning_rate is not None:
        return arguments
    rate = (_of_fine_tuning if arguments.fine_tunes else _of_pretraining)(arguments, model)
    return replace(arguments, learning_rate=float(f"{rate:.1e}"))


def _of_pretraining(arguments: "TrainingArguments", model: nn.Module) -> float:
    """The optimizer's rate up to three layers of 256, then falling with the root of layers times width.

    So fall the best rates of Muon with micro, tiny and mini encoders (docs/tried.md), and, from 125 M weights to
    13 B, about so those of GPT-3, which learned by Adam (Brown et al., 2020, https://arxiv.org/abs/2005.14165).
    """
    config = getattr(model, "config", None)
    size = (getattr(config, "hidden_size", None) or 0) * (getattr(config, "num_hidden_layers", None) or 0)
    return OPTIMIZERS[arguments.optimizer].learning_rate * math.sqrt(min(1.0, _WIDTH * _LAYERS / (size or 1)))


def _of_fine_tuning(arguments: "TrainingArguments", model: nn.Module) -> float:
    """A rate scaled to the RMS of the weights.

    A step of AdamW is as large as the rate, whatever the gradient is, and what it does to a matrix depends on the size
    of its entries: 0.02 in a new model, twice that in BERT, 0.18 after pretraining with Muon. So the rate is 0.015 of
    their root mean square up to a width of 256 (tried on SST-2 with a tiny encoder), and falls with the square of a
    larger one, which gives BERT-base its customary rates. Many steps want less (tried on all of SST-2): beyond 300 it
    falls with their root, down to the rate of a new model. Models that write want 0.03, however many steps (tried on
    Multi30k); wider ones, which were not tried, fall with the cube. With LoRA it is 0.003, falling with the width. A
    head that pretraining made, of `question_aware` models, wants two fifths, down to the rate of a new model.
    """
    width = getattr(getattr(model, "config", None), "hidden_size", None) or _WIDTH
    narrow = min(1.0, _WIDTH / width)
    if arguments.lora_rank:
        return _OF_ADDITIONS * narrow
    writes = output_layer(model) is not None
    share, steps = (_OF_WRITERS * narrow**3, None) if writes else (_SHARE * narrow**2, arguments.max_steps)
    full, of_new = (share * size for size in (_size(model), _OF_NEW))
    falling = full * min(1.0, math.sqrt(_STEPS / (steps or _STEPS)))
    falling *= _OF_TRAINED_HEAD if getattr(getattr(model, "config", None), "question_aware", False) else 1
    return max(_LOWEST, falling, min(full, of_new))


def _size(model: nn.Module) -> float:
    """Root mean square of the entries of all matrices that learn, embeddings and small heads not counted."""
    matrices = [matrix for matrix in split_parameters(model)[0] if min(matrix.shape) >= SMALLEST_MATRIX]
    count = sum(matrix.numel() for matrix in matrices)
    squares = sum(float(matrix.detach().float().square().sum()) for matrix in matrices)
    return math.sqrt(squares / count) if count else _OF_NEW
