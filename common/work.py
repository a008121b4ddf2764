"""`Work`, the base class of objectives and tasks: what the training loop learns from, and how it is scored."""

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

Tensors = dict[str, Tensor]  # by name, as models take them
BESIDE = {"start": "before training", "baseline": "without a model", "words": "bag of words", "hybrid": "with words"}
"""What scores are compared with, by the first part of their names in results.json."""


class Work:
    """Examples, loss and metrics of an objective or a task; members with a default here are optional."""

    num_examples: int  # training examples in one epoch
    num_eval_examples: int = 0  # held-out examples; 0 means there is nothing to evaluate
    metric: str = "loss"  # name, among those of `summarize`, of the metric that judges a model
    greater_is_better: bool = False
    group: int = 1  # how many samples that follow one another have their loss in common, and share a micro-batch
    least_examples: int = 3_000  # that fine-tuning without a limit sees of few rows, in more passes then
    blended_rows: int = 0  # training rows up to which the mean of three runs is kept by default

    @property
    def mixture(self) -> list[tuple[int, float]]:
        """Rows and weight of each source, whose rows follow one another; empty: every row is seen once in an epoch."""
        return []

    def fixed_length(self, rows: int) -> bool:
        """Whether all training batches of so many rows have one shape, so that compiling pays."""
        return False

    @property
    def lengths(self) -> Sequence[int] | None:
        """Tokens of each training example, by which examples of like length share a micro-batch; None: not known."""
        return None

    def settings(self) -> dict[str, Any]:
        """Chosen options by name, for the model card."""
        return {}

    def held_out_texts(self, tokenizer: Any) -> list[str]:
        """Some held-out texts, which are kept beside the model to try it with."""
        return []

    def example(self, row: int, index: int) -> dict[str, Any]:
        """Training example `row` (0 <= row < num_examples), as it is seen at global sample number `index`.

        A pure function: whatever is random in it (masks, pairs, spans) is drawn from (seed, index).
        """
        raise NotImplementedError

    def eval_example(self, row: int) -> dict[str, Any]:
        """Held-out example `row`; the same at every evaluation, masks included."""
        raise NotImplementedError

    def collate(self, examples: list[dict[str, Any]]) -> Tensors:
        """Stack examples into a batch, padded to the longest."""
        raise NotImplementedError

    def with_hints(self, batch: Tensors) -> Tensors:
        """The batch plus tensors that spare a GPU from waiting for the host in the middle of a step."""
        return batch

    def count_tokens(self, batch: Tensors) -> int:
        """Tokens of the batch, without padding where it has a mask."""
        mask = batch.get("attention_mask")
        return batch["input_ids"].numel() if mask is None else int(mask.sum())

    def count_targets(self, batch: Tensors) -> dict[str, int]:
        """How many targets of each kind the batch holds; the loop adds them over micro-batches and processes."""
        raise NotImplementedError

    def loss(self, model: nn.Module, batch: Tensors, num_targets: Tensors) -> tuple[Tensor, Tensors]:
        """The batch's share of the step's loss, and further metrics in the same form.

        Both are sums over the batch divided by the step's global counts (`num_targets`), so that adding them over
        micro-batches and processes gives the means over the step. A metric of what a step may lack is a tensor of two
        numbers instead, sum and count, and its mean is taken over all steps that are logged together.
        """
        raise NotImplementedError

    def evaluate(self, model: nn.Module, batch: Tensors) -> list[dict[str, Any]]:
        """Small records, one for each example; never logits."""
        raise NotImplementedError

    def summarize(self, records: list[dict[str, Any]]) -> dict[str, float]:
        """Metrics over the records of all held-out examples, in any order."""
        raise NotImplementedError

    def baseline(self) -> dict[str, float]:
        """Metrics reached without a model, by the names of `summarize`."""
        return {}

    @cached_property
    def bag_of_words(self) -> dict[str, float]:
        """Metrics reached from words alone, without a language model, by the names of `summarize`; found once."""
        return {}

    def with_words(self) -> dict[str, float]:
        """The same, of the model that was last summarized and of the words together."""
        return {}


def training_batch(examples: list[dict[str, Any]], *, work: Work, device: torch.device) -> Tensors:
    """A batch to train on, with hints where it goes to a GPU."""
    batch = work.collate(examples)
    return batch if device.type == "cpu" else work.with_hints(batch)


def to_device(batch: Tensors, device: torch.device) -> Tensors:
    return {name: value.to(device, non_blocking=True) for name, value in batch.items()}
