"""Where a run stands, and what follows from that alone: how much is done, what is due, whether it ends."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from .arguments import TrainingArguments
from .stages import Stage


@dataclass
class Progress:
    """Where a run stands; with (configuration, data, seed) it determines everything that follows."""

    step: int = 0
    seconds: float = 0.0
    """Seconds spent in training steps, over all sessions of the run."""
    tokens: int = 0
    stage: int = 0
    """Number of the stage the last step belonged to."""
    samples: int = 0
    """Examples seen of the work of that stage; the next step begins with this global sample number."""
    epochs: float = 0.0
    """Passes over the works of earlier stages."""
    bad_steps: int = 0
    """Steps in a row, up to this one, that were not applied because something was not finite."""
    losses: list[float] = field(default_factory=list)
    """Those of the last steps, from which a spike stands out."""
    metric: float | None = None
    """What evaluation at this very step said of the model; None where there was none."""
    judged_step: int = -1
    """The step of the last evaluation."""
    best_metric: float | None = None
    """The best that an evaluation has said so far."""
    best_step: int = -1
    """The step of that evaluation."""
    best_loss: float | None = None
    """The held-out loss there, by which equals are told apart."""
    without_better: int = 0
    """Evaluations since the last that was better than all before."""
    evaluation_due: bool = False
    """Whether evaluation at this step was given up for a request to stop."""
    micro_batch_sizes: list[int] = field(default_factory=list)
    """Of each stage, in the session that wrote this."""
    num_processes: int = 0
    """In that session."""
    identity: dict[str, Any] = field(default_factory=dict)
    """What must not change when the run is resumed: model, data, tokenizer, seed, batch size."""
    options: dict[str, Any] = field(default_factory=dict)
    """Options that may change when it is resumed, as they were."""

    def judge(self, metric: float | None, *, loss: float | None = None, greater_is_better: bool) -> bool:
        """Take note of an evaluation at this step, and say whether it is better than all before.

        Of equal metrics the one with the lower loss is better: a score that counts right answers may stay where it is,
        at nothing or at all of them, while the model still learns. A step that is judged a second time, when a run is
        taken up, counts once.

        Args:
            metric: of the model; None or not finite where it could not be told, which is never better.
            loss: on the held-out examples, if it is known; where it is not, the earlier of equals stays the best.
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
        is_better = gain > 0 or (gain == 0 and loss is not None and loss < _or_worst(self.best_loss))
        self.without_better = 0 if is_better else self.without_better + 1
        if is_better:
            self.best_metric, self.best_step, self.best_loss = metric, self.step, loss
        return is_better


def _or_worst(loss: float | None) -> float:
    return math.inf if loss is None or math.isnan(loss) else loss


@dataclass
class Window:
    """What is logged together: sums over steps, and where the run stood when it was opened."""

    opened: Progress
    sums: dict[str, Tensor] = field(default_factory=dict)
    steps: int = 0
    last: dict[str, float] = field(default_factory=dict)
    """Learning rate and norm of the gradient of the last step that was applied."""

    def add(self, parts: dict[str, Tensor], **last: float) -> None:
        """One more step."""
        self.last = last
        for name, value in parts.items():
            self.sums[name] = self.sums[name] + value if name in self.sums else value
        self.steps += 1


def share_done(plan: TrainingArguments, progress: Progress) -> float:
    """By steps or by the clock, whichever is further. The clock ends a run with the step that ends nearest to it."""
    by_steps = progress.step / plan.max_steps if plan.max_steps else 0.0
    if not plan.max_minutes:
        return by_steps
    limit, a_step = 60.0 * plan.max_minutes, progress.seconds / max(progress.step, 1)
    by_clock = 1.0 if limit - progress.seconds < a_step / 2 else progress.seconds / limit
    return max(by_steps, by_clock)


def stops_early(plan: TrainingArguments, progress: Progress) -> bool:
    """Whether as many evaluations as `--early_stopping_patience` says have passed without a better one."""
    return 0 < plan.early_stopping_patience <= progress.without_better


def ended_early(plan: TrainingArguments, progress: Progress) -> bool:
    """Whether a run that has ended was cut short by that; not where it was over with the same step anyway."""
    return stops_early(plan, progress) and share_done(plan, progress) < 1.0


def is_due(interval: float, *, step: int, before: float, after: float) -> bool:
    """Whether something that happens every `interval` steps (below 1: share of the run) happens now.

    Args:
        before, after: share of the run that was done before this step, and is done with it.
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
