"""How far a run is (steps, samples, best evaluation), and what follows: what is due, which stage, whether it ends."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from statistics import fmean, pstdev
from typing import Any

from torch import Tensor

from lacuna.common.errors import InputError

from .arguments import TrainingArguments
from .stages import Stage

SPIKE = 6.0  # standard deviations above the mean of the last losses that make a loss a spike
REMEMBERED, ENOUGH = 128, 32  # losses that the mean is taken of, at most and at least
PATIENCE_TO_DOUBLE = 2000  # steps that are applied in a row before the scale of an fp16 loss is doubled


@dataclass
class Progress:
    """Where a run stands; with (configuration, data, seed) it determines everything that follows."""

    step: int = 0
    seconds: float = 0.0  # seconds spent in training steps, over all sessions of the run
    compile_seconds: float = 0.0  # seconds spent compiling before them, which count against --max_minutes
    tokens: int = 0
    stage: int = 0  # number of the stage the last step belonged to
    samples: int = 0  # examples seen of the work of that stage; the next step begins with this global sample number
    epochs: float = 0.0  # passes over the works of earlier stages
    bad_steps: int = 0  # steps in a row, up to this one, that were not applied because loss or gradient was not finite
    loss_scale: float = 2.0**16  # of fp16: losses are multiplied by it, so that small gradients do not become zero
    steps_at_scale: int = 0  # steps in a row, up to this one, that were applied with this scale
    losses: list[float] = field(default_factory=list)  # those of the last steps, from which a spike stands out
    metric: float | None = None  # what evaluation at this very step said of the model; None where there was none
    judged_step: int = -1  # the step of the last evaluation
    best_metric: float | None = None  # the best that an evaluation has said so far
    best_step: int = -1  # the step of that evaluation
    best_loss: float | None = None  # the held-out loss there, by which equals are told apart
    without_better: int = 0  # evaluations since the last that was better than all before
    evaluation_due: bool = False  # whether evaluation at this step was given up for a request to stop
    identity: dict[str, Any] = field(default_factory=dict)
    """What must not change when the run is resumed: model, data, tokenizer, seed, batch size."""
    options: dict[str, Any] = field(default_factory=dict)  # options that may change when it is resumed, as they were

    def judge(self, metric: float | None, *, loss: float | None = None, greater_is_better: bool) -> bool:
        """Record an evaluation at this step, and say whether it is better than all before.

        Of equal metrics the one with the lower loss is better: accuracy may stay at 0 or 1 while the model still
        learns. A metric that is None or not finite is never better. A step that is evaluated again, when a run is
        resumed, counts once.
        """
        self.metric = metric
        if self.judged_step == self.step:
            return False
        self.judged_step = self.step
        if metric is None or not math.isfinite(metric):
            self.without_better += 1
            return False
        sign = 1.0 if greater_is_better else -1.0
        gain = math.inf if self.best_metric is None else sign * (metric - self.best_metric)
        best_loss = math.inf if self.best_loss is None or math.isnan(self.best_loss) else self.best_loss
        is_better = gain > 0 or (gain == 0 and loss is not None and loss < best_loss)
        self.without_better = 0 if is_better else self.without_better + 1
        if is_better:
            self.best_metric, self.best_step, self.best_loss = metric, self.step, loss
        return is_better

    def adapt_scale(self, *, is_applied: bool, overflows: bool) -> None:
        """Halve the scale of the loss after a step that overflows; double it after many in a row that were applied."""
        self.steps_at_scale = self.steps_at_scale + 1 if is_applied else 0
        if overflows:
            self.loss_scale /= 2
        elif self.steps_at_scale == PATIENCE_TO_DOUBLE:
            self.loss_scale, self.steps_at_scale = 2 * self.loss_scale, 0

    def note_loss(self, loss: float) -> float | None:
        """Remember the loss of a step; where it is a spike, return the mean of those before it."""
        before, self.losses = self.losses, [*self.losses[1 - REMEMBERED :], loss]
        if len(before) < ENOUGH:
            return None
        mean, deviation = fmean(before), pstdev(before)
        return mean if loss > mean + SPIKE * max(deviation, 1e-3 * abs(mean)) else None


@dataclass
class Window:
    """What is logged together: sums over steps, and where the run stood when it was opened."""

    opened: Progress
    sums: dict[str, Tensor] = field(default_factory=dict)
    steps: int = 0
    last: dict[str, float] = field(default_factory=dict)
    """Learning rate and norm of the gradient of the last step that was applied."""

    def add(self, parts: dict[str, Tensor], **last: float) -> None:
        self.last = last
        for name, value in parts.items():
            self.sums[name] = self.sums[name] + value if name in self.sums else value
        self.steps += 1

    def means(self, sum_over_processes: Callable[[Tensor], Tensor]) -> dict[str, float]:
        """Over the steps; of a metric with a count of its own, over what it counts, where there is any."""
        sums = {name: sum_over_processes(value).tolist() for name, value in self.sums.items()}
        means = {name: value / self.steps for name, value in sums.items() if not isinstance(value, list)}
        pairs = {name: value for name, value in sums.items() if isinstance(value, list)}
        return means | {name: value / count for name, (value, count) in pairs.items() if count}


def share_done(arguments: TrainingArguments, progress: Progress) -> float:
    """By steps or by the clock, whichever is further. The clock ends a run with the step that ends nearest to it."""
    by_steps = progress.step / arguments.max_steps if arguments.max_steps else 0.0
    if not arguments.max_minutes:
        return by_steps
    limit = max(60.0 * arguments.max_minutes - progress.compile_seconds, 1.0)
    a_step = progress.seconds / max(progress.step, 1)
    by_clock = 1.0 if limit - progress.seconds < a_step / 2 else progress.seconds / limit
    return max(by_steps, by_clock)


def stops_early(arguments: TrainingArguments, progress: Progress) -> bool:
    """Whether as many evaluations as `--early_stopping_patience` says have passed without a better one."""
    return 0 < arguments.early_stopping_patience <= progress.without_better


def ended_early(arguments: TrainingArguments, progress: Progress) -> bool:
    """Whether a run that has ended was cut short by that; not where it was over with the same step anyway."""
    return stops_early(arguments, progress) and share_done(arguments, progress) < 1.0


def is_due(interval: float, *, step: int, before: float, after: float) -> bool:
    """Whether what happens every `interval` steps (below 1: share of the run) happens at this one.

    `before` and `after` are the shares of the run that are done around it.
    """
    if interval == 0:
        return False
    if interval >= 1:
        return step % int(interval) == 0
    return math.floor(after / interval + 1e-9) > math.floor(before / interval + 1e-9)


def enter_stage(progress: Progress, stages: Sequence[Stage], *, done: float) -> Stage:
    """The stage that a run is in. Another work counts its samples from 0; none is left for an earlier one."""
    reached = max(number for number, stage in enumerate(stages) if stage.at <= done)
    while progress.stage < reached:
        before, after = stages[progress.stage : progress.stage + 2]
        if after.work is not before.work:
            progress.epochs += progress.samples / before.work.num_examples
            progress.samples = 0
        progress.stage += 1
    return stages[progress.stage]


def skipped_steps(text: str) -> list[range]:
    """The steps, from 1, of `--skip_steps`: "120-125,300" is six steps and one more. InputError: a part is none."""
    ranges = []
    for part in filter(None, text.replace(" ", "").split(",")):
        first, dash, last = part.partition("-")
        try:
            start, end = int(first), int(last if dash else first)
        except ValueError:
            start, end = 1, 0
        if not 1 <= start <= end:
            raise InputError(f"--skip_steps {text}: '{part}' is no step or range of steps, as in 120-125,300")
        ranges.append(range(start, end + 1))
    return ranges


def check_skipped(text: str, *, done: int, max_steps: int | None) -> list[str]:
    """Messages about `--skip_steps` of a run that goes on after `done` steps. InputError: no step would be left."""
    ranges, ahead = skipped_steps(text), range(done + 1, (max_steps or 0) + 1)
    if ahead and all(any(step in steps for steps in ranges) for step in ahead):
        raise InputError(f"--skip_steps {text} leaves out all the {len(ahead):,} steps that are to be made")
    behind = any(steps.start <= done for steps in ranges)
    return [f"--skip_steps {text}: {done:,} steps are made already, and stay as they were"] if behind else []
