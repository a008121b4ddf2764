"""Learning-rate schedules: the share of the peak rate at a point of the run, `progress` from 0 to 1.

They follow progress rather than steps, so that a run limited by the clock ends with its schedule complete too.
"""

import math
from collections.abc import Callable

from .arguments import TrainingArguments


def wsd(progress: float, *, decay_share: float) -> float:
    """Stable, then down to zero by 1 - sqrt over the last `decay_share` of the run.

    Hägele et al., 2024, https://arxiv.org/abs/2405.18392, where this form of decay did best.
    """
    into_decay = progress - (1.0 - decay_share)
    return 1.0 if into_decay <= 0 else 1.0 - math.sqrt(min(into_decay / decay_share, 1.0))


def linear(progress: float, *, decay_share: float) -> float:
    """Straight down to zero."""
    return 1.0 - progress


def cosine(progress: float, *, decay_share: float) -> float:
    """Half a cosine wave down to zero (Loshchilov and Hutter, 2017, https://arxiv.org/abs/1608.03983)."""
    return 0.5 * (1.0 + math.cos(math.pi * progress))


def constant(progress: float, *, decay_share: float) -> float:
    """The peak rate throughout."""
    return 1.0


SCHEDULES: dict[str, Callable[..., float]] = {"wsd": wsd, "linear": linear, "cosine": cosine, "constant": constant}


def learning_rate(arguments: TrainingArguments, *, step: int, progress: float) -> float:
    """The learning rate of optimizer step `step` (from 0), at which `progress` (0 to 1) of the run is done.

    Warm-up is linear and never starts at zero: a step at rate zero would be a step wasted.
    """
    if arguments.warmup_steps >= 1 or arguments.max_steps is not None:
        warmup = arguments.warmup_steps
        if warmup < 1 and arguments.max_steps is not None:
            warmup *= arguments.max_steps
        warmed = (step + 1) / warmup if warmup >= 1 else 1.0
    else:  # only the clock limits the run
        warmed = max(progress, 0.001) / arguments.warmup_steps if arguments.warmup_steps > 0 else 1.0
    scale = SCHEDULES[arguments.schedule](min(progress, 1.0), decay_share=arguments.decay_share)
    return arguments.learning_rate * min(warmed, 1.0) * scale
