"""Steps that went wrong, stand out, or are left out: noted with their samples, so that they can be looked at again."""

import math
from statistics import fmean, pstdev
from typing import Any

from lacuna.common.errors import NumericsError

from .run import Run
from .stages import Stage

SPIKE = 6.0
"""Standard deviations above the mean of the last losses that make a loss a spike."""
REMEMBERED, ENOUGH = 128, 32
"""Losses that the mean is taken of, at most and at least."""


def watch(run: Run, stage: Stage, loss: float, grad_norm: float) -> None:
    """Note steps that were not applied and losses that stand out, with their samples.

    Raises:
        NumericsError: too many steps in a row were not applied.
    """
    progress = run.progress
    if not math.isfinite(grad_norm):
        progress.bad_steps += 1
        what = "loss" if not math.isfinite(loss) else "gradient"
        samples = _mark_samples(run, "skipped", stage, reason=f"{what} not finite")
        message = f"step {progress.step + 1:,}: the {what} is not finite (samples {samples}); the step was not applied"
        if progress.bad_steps < run.plan.max_bad_steps:
            run.log.say(f"warning: {message}")
            return
        raise NumericsError(
            f"{message}, nor were the {progress.bad_steps - 1} before it. Try a lower --learning_rate or "
            "--mixed_precision no, and --resume"
        )
    progress.bad_steps = 0
    if len(progress.losses) >= ENOUGH:
        mean, deviation = fmean(progress.losses), pstdev(progress.losses)
        if loss > mean + SPIKE * max(deviation, 1e-3 * abs(mean)):
            samples = _mark_samples(run, "spike", stage, loss=loss)
            run.log.say(f"step {progress.step + 1:,}: loss {loss:.3f} after {mean:.3f} (samples {samples})")
    progress.losses = [*progress.losses[1 - REMEMBERED :], loss]


def leave_out(run: Run, stage: Stage, skip: list[range]) -> None:
    """Pass over the steps of `--skip_steps` that come next, at once; to the end of the stage at most."""
    progress, last = run.progress, max(steps.stop - 1 for steps in skip if run.progress.step + 1 in steps)
    if run.plan.max_steps:
        ends = min((other.at for other in run.stages if other.at > stage.at), default=1.0)
        last = min(last, math.ceil(ends * run.plan.max_steps - 1e-9))
    number = max(1, last - progress.step)
    _mark_samples(run, "skipped", stage, steps=number, reason="--skip_steps")
    progress.step += number
    progress.samples += number * stage.batch_size


def _mark_samples(run: Run, event: str, stage: Stage, *, steps: int = 1, **facts: Any) -> str:
    """Keep the numbers of the samples of the next steps in the log, and return them."""
    first, last = run.progress.samples, run.progress.samples + steps * stage.batch_size - 1
    facts |= {} if steps == 1 else {"last_step": run.progress.step + steps}
    run.log.mark(event, run.progress.step + 1, samples=[first, last], stage=run.progress.stage, **facts)
    return f"{first} to {last}"
