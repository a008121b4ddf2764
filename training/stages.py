"""Stages of a run: from which share of it on which work is learned, in batches of which size."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.utils import gather_object
from torch import nn

from lacuna.common.errors import InputError
from lacuna.common.work import Work

from .arguments import TrainingArguments
from .distributed import fsdp, zero
from .environment import processes
from .order import Grouping, MicroBatchSampler
from .planning.memory import StepPlan, choose_micro_batch

_SAMPLED_ROWS = 512
MOST_EPOCHS = 100
"""Passes over the data in one step; more is a slip of the keyboard."""


@dataclass(frozen=True)
class Stage:
    """What holds from the share `at` of a run on."""

    at: float
    work: Work
    batch_size: int
    """Examples in one optimizer step, over all processes."""
    micro_batch_size: int
    """Examples that one process sends through the model at once."""
    grouping: Grouping | None = None
    """How examples of like length come together, where they do."""

    def sampler(self, **options: Any) -> MicroBatchSampler:
        """The rows of its micro-batches; `options` are the others of `MicroBatchSampler`."""
        return MicroBatchSampler(
            num_examples=self.work.num_examples,
            batch_size=self.batch_size,
            micro_batch_size=self.micro_batch_size,
            mixture=self.work.mixture,
            grouping=self.grouping,
            **options,
        )


def resolve(
    arguments: TrainingArguments, works: Sequence[tuple[float, Work]], *, num_processes: int
) -> tuple[TrainingArguments, list[Stage]]:
    """The options with every default that depends on the data filled in, and the stages of the run.

    Args:
        works: as `plan_stages` takes them.

    Raises:
        InputError: a batch cannot be divided among the processes and micro-batches.
    """
    stages = plan_stages(arguments=arguments, works=works, num_processes=num_processes)
    tokens = tokens_per_step(stages) if arguments.max_tokens else 1.0
    return arguments.resolved(epochs_per_step=epochs_per_step(stages), tokens_per_step=tokens), stages


def plan_stages(
    *, arguments: TrainingArguments, works: Sequence[tuple[float, Work]], num_processes: int
) -> list[Stage]:
    """One stage from each share of the run on at which the work or the batch size changes.

    Args:
        works: pairs of the share of the run from which a work is learned, the first of them 0, and that work.

    Raises:
        InputError: a batch cannot be divided among the processes and micro-batches.
    """
    stages: list[Stage] = []
    groupings: dict[int, Grouping | None] = {}
    for at in sorted({*(start for start, _ in works), *arguments.batch_size_at}):
        work = [work for start, work in works if start <= at][-1]
        size = [size for start, size in zip(arguments.batch_size_at, arguments.batch_size, strict=True) if start <= at]
        if size[-1] > MOST_EPOCHS * work.num_examples:
            raise InputError(
                f"--batch_size {size[-1]:,}: a single step would see each of the {work.num_examples:,} examples "
                f"{size[-1] // work.num_examples:,} times"
            )
        micro = _micro_batch_size(int(size[-1]), arguments.micro_batch_size, num_processes)
        if id(work) not in groupings:  # one for each work: a change of its order would show rows twice in an epoch
            groupings[id(work)] = _grouping(work, int(size[-1])) if arguments.group_by_length else None
        stages.append(Stage(at, work, int(size[-1]), micro, groupings[id(work)]))
    return stages


def _grouping(work: Work, batch_size: int) -> Grouping | None:
    """None for a work that does not say how long its examples are, and for one of several sources."""
    lengths = work.lengths
    return None if lengths is None or work.mixture else Grouping(lengths, batch_size=batch_size)


def _micro_batch_size(batch_size: int, asked: int | None, num_processes: int) -> int:
    if batch_size % num_processes:
        raise InputError(
            f"--batch_size {batch_size} cannot be shared evenly by {num_processes} processes; "
            f"use a multiple of {num_processes}"
        )
    share = batch_size // num_processes
    micro = min(asked or share, share)
    if share % micro:
        raise InputError(
            f"--micro_batch_size {micro} does not divide the {share} examples of one process "
            f"(--batch_size {batch_size} over {num_processes} processes)"
        )
    return micro


def skipped(stages: Sequence[Stage], max_steps: int) -> list[Stage]:
    """Stages that a run of so many steps is too short for."""
    firsts = [math.ceil(stage.at * max_steps - 1e-9) for stage in stages] + [max_steps]
    return [stage for stage, first, end in zip(stages, firsts, firsts[1:], strict=False) if first >= end]


def _mean(of_stage: Callable[[Stage], float], stages: Sequence[Stage]) -> float:
    """Over the run."""
    ends = [stage.at for stage in stages[1:]] + [1.0]
    return sum((end - stage.at) * of_stage(stage) for stage, end in zip(stages, ends, strict=True))


def epochs_per_step(stages: Sequence[Stage]) -> float:
    """Passes over the data in one step, a mean over the run."""
    return _mean(lambda stage: stage.batch_size / stage.work.num_examples, stages)


def tokens_per_step(stages: Sequence[Stage]) -> float:
    """Tokens in one step without padding, a mean over the run, from some of the rows.

    A limit of tokens becomes one of steps by this: how far a run is at a step then follows from the step alone.
    """
    return _mean(lambda stage: stage.batch_size * _mean_length(stage.work), stages)


def _mean_length(work: Work) -> float:
    rows = range(0, work.num_examples, max(1, work.num_examples // _SAMPLED_ROWS))
    return sum(len(work.example(row, row)["input_ids"]) for row in rows) / len(rows)


def fit_micro_batches(
    stages: Sequence[Stage],
    accelerator: Accelerator,
    model: nn.Module,
    optimizers: Sequence[torch.optim.Optimizer],
    *,
    arguments: TrainingArguments,
    known: Sequence[int] = (),
) -> list[Stage]:
    """The same stages with the largest micro-batches that every process has memory for. All processes must call it.

    Args:
        known: these sizes, where they are known of each stage.

    Raises:
        InputError: weights or states are sharded; or on all processes, though one row fits on all but one.
    """
    if fsdp.is_sharded(model) or zero.asked_for():
        raise InputError("--micro_batch_size auto knows nothing of sharded weights and states; give it a number")
    if len(known) == len(stages):
        return [replace(stage, micro_batch_size=size) for stage, size in zip(stages, known, strict=True)]
    sizes: list[int] = []
    trouble = ""
    try:
        for stage in stages:
            plan = StepPlan(
                model,
                stage.work,
                arguments,
                share=stage.batch_size // accelerator.num_processes,
                precision=str(accelerator.mixed_precision),
                device_type=accelerator.device.type,
                num_processes=accelerator.num_processes,
            )
            local_count = processes().local_count
            size = choose_micro_batch(plan, accelerator.device, local_count=local_count, optimizers=optimizers)
            sizes.append(size)
    except InputError as error:
        trouble = str(error)
    answers = gather_object([(trouble, sizes)])
    for rank, (refusal, _) in enumerate(answers):
        if refusal:
            raise InputError(refusal if len(answers) == 1 else f"process {rank}: {refusal}")
    smallest = [min(each) for each in zip(*(found for _, found in answers), strict=True)]
    return [replace(stage, micro_batch_size=size) for stage, size in zip(stages, smallest, strict=True)]
