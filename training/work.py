"""What the loop is given to learn. Objectives (pretraining) and tasks (fine-tuning) both look like this."""

from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

import torch
from torch import Tensor, nn


class Work(Protocol):
    """Examples, their loss and their metrics; everything that is particular to an objective or a task."""

    num_examples: int
    """Training examples in one epoch."""
    num_eval_examples: int
    """Held-out examples; 0 means there is nothing to evaluate."""
    metric: str
    """Name, among those of `summarize`, of the metric that judges a model."""
    greater_is_better: bool
    mixture: list[tuple[int, float]]
    """Rows and weight of each source, whose rows follow one another; empty: every row is seen once in an epoch."""

    # A work may also have `fixed_length`, true where all training batches of so many rows have one shape, and
    # `lengths`, the tokens of each training example, by which examples of like length come into one micro-batch; and
    # `settings`, what it has decided of its options by name, which the model card shows.

    def example(self, row: int, index: int, progress: float = 0.0) -> dict[str, Any]:
        """Training example `row` (0 <= row < num_examples), as it is seen at global sample number `index`.

        A pure function: whatever is random in it (masks, pairs, spans) is drawn from (seed, index). `progress` is the
        share of the run that is done before the step, from 0 to 1, for what changes in the course of a run.
        """
        ...

    def eval_example(self, row: int) -> dict[str, Any]:
        """Held-out example `row`; the same at every evaluation, masks included."""
        ...

    def collate(self, examples: list[dict[str, Any]]) -> dict[str, Tensor]:
        """Stack examples into a batch, padded to the longest."""
        ...

    def count_targets(self, batch: dict[str, Tensor]) -> dict[str, int]:
        """How many targets of each kind the batch holds; the loop adds them over micro-batches and processes."""
        ...

    def loss(
        self, model: nn.Module, batch: dict[str, Tensor], num_targets: dict[str, Tensor]
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """The batch's share of the step's loss, and further metrics in the same form.

        Both are sums over the batch divided by the step's global counts (`num_targets`), so that adding them over
        micro-batches and processes gives the means over the step. A metric of what a step may lack is a tensor of two
        numbers instead, sum and count, and its mean is taken over all steps that are logged together.
        """
        ...

    def evaluate(self, model: nn.Module, batch: dict[str, Tensor]) -> list[dict[str, Any]]:
        """Small records, one for each example; never logits."""
        ...

    def summarize(self, records: list[dict[str, Any]]) -> dict[str, float]:
        """Metrics over the records of all held-out examples, in any order."""
        ...

    def baseline(self) -> dict[str, float]:
        """What is reached without a model, under the names of `summarize`."""
        ...


def collator(work: Work, device: torch.device) -> Callable[[list[dict[str, Any]]], dict[str, Tensor]]:
    """What makes batches to train on there; for a GPU `with_hints` of the work, if it has one, is part of it."""
    if device.type == "cuda" and hasattr(work, "with_hints"):
        return partial(_collate_with_hints, work)
    return work.collate


def _collate_with_hints(work: Any, examples: list[dict[str, Any]]) -> dict[str, Tensor]:
    return work.with_hints(work.collate(examples))


def to_device(batch: dict[str, Tensor], device: torch.device) -> dict[str, Tensor]:
    """Move a batch to a device."""
    return {name: value.to(device, non_blocking=True) for name, value in batch.items()}
