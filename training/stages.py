"""Stages of a run: from which share of it on which work is learned, in batches of which size."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from lacuna.common.errors import InputError
from lacuna.common.work import Work

from .arguments import TrainingArguments
from .order import Grouping

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


def epochs_per_step(stages: Sequence[Stage]) -> float:
    """Passes over the data in one step, a mean over the run."""
    ends = [stage.at for stage in stages[1:]] + [1.0]
    return sum(
        (end - stage.at) * stage.batch_size / stage.work.num_examples for stage, end in zip(stages, ends, strict=True)
    )


def tokens_per_step(stages: Sequence[Stage]) -> float:
    """Tokens in one step without padding, a mean over the run, from some of the rows.

    A limit of tokens becomes one of steps by this: how far a run is at a step then follows from the step alone.
    """
    ends = [stage.at for stage in stages[1:]] + [1.0]
    return sum(
        (end - stage.at) * stage.batch_size * _mean_length(stage.work) for stage, end in zip(stages, ends, strict=True)
    )


def _mean_length(work: Work) -> float:
    rows = range(0, work.num_examples, max(1, work.num_examples // _SAMPLED_ROWS))
    return sum(len(work.example(row, row)["input_ids"]) for row in rows) / len(rows)
