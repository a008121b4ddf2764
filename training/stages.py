"""Stages of a run, where its rows or batch size change; limits, batches and micro-batches of each."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from lacuna.common.errors import InputError
from lacuna.common.work import Work

from .arguments import TrainingArguments
from .environment import processes
from .order import Grouping

_SAMPLED_ROWS = 512
LEAST_PASSES, MOST_PASSES = 3.0, 30.0  # of a run without a limit; in between, what makes `Work.least_examples`
_TOKENS_A_MINUTE = 300_000  # a tiny encoder, without bf16
Works = Sequence[tuple[float, Work]]  # each with the share of the run from which on it is learned, the first 0
MOST_EPOCHS = 100  # passes over the data in one step; more is a slip of the keyboard


@dataclass(frozen=True)
class Stage:
    """What holds from the share `at` of a run on."""

    at: float
    work: Work
    batch_size: int  # examples in one optimizer step, over all processes
    micro_batch_size: int  # examples that one process sends through the model at once
    grouping: Grouping | None = None  # how examples of similar length come together, where they do


def resolve(
    arguments: TrainingArguments, works: Works, *, num_processes: int
) -> tuple[TrainingArguments, list[Stage]]:
    """The options with `max_steps` and `max_epochs` filled in from limits and data, and the stages of the run."""
    stages = make_stages(arguments=arguments, works=works, num_processes=num_processes)
    epochs = arguments.max_epochs
    if not (epochs or arguments.max_steps or arguments.max_minutes or arguments.max_tokens):
        work = works[-1][1]
        epochs = min(max(LEAST_PASSES, work.least_examples / work.num_examples), MOST_PASSES)
    # Rounded first: one part in 10^9 too many, from rounding in between, would be a whole step.
    limits = [] if epochs is None else [math.ceil(round(epochs / epochs_per_step(stages), 6))]
    if arguments.max_tokens is not None:
        limits.append(math.ceil(round(arguments.max_tokens / tokens_per_step(stages), 6)))
    limits += [] if arguments.max_steps is None else [arguments.max_steps]
    return replace(arguments, max_epochs=epochs, max_steps=min(limits) if limits else None), stages


def expected_tokens(arguments: TrainingArguments, works: Works) -> float:
    """Tokens that a run will train on, as far as its limits tell; by the clock those of two cores."""
    resolved, stages = resolve(arguments, works, num_processes=processes())
    by_clock = _TOKENS_A_MINUTE * resolved.max_minutes if resolved.max_minutes else math.inf
    return min(by_clock, resolved.max_steps * tokens_per_step(stages) if resolved.max_steps else math.inf)


def make_stages(*, arguments: TrainingArguments, works: Works, num_processes: int) -> list[Stage]:
    """A stage from each share of the run on where work or batch size change. InputError: a batch cannot be divided."""
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
        if (few := work.num_examples < work.group) or micro % work.group:
            read = f"a process reads {micro} at once: --batch_size and --micro_batch_size must give it multiples"
            way = f"there are {work.num_examples}: bring more text" if few else read
            raise InputError(f"rows are compared in groups of {work.group}, and {way}")
        if id(work) not in groupings:  # one for each work: a change of its order would show rows twice in an epoch
            lengths = work.lengths if arguments.group_by_length and not work.mixture else None
            groupings[id(work)] = None if lengths is None else Grouping(lengths, batch_size=int(size[-1]))
        stages.append(Stage(at, work, int(size[-1]), micro, groupings[id(work)]))
    return stages


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
            f"--micro_batch_size {micro} does not divide the {share} examples of a process "
            f"(--batch_size {batch_size}, processes: {num_processes})"
        )
    return micro


def skipped(stages: Sequence[Stage], max_steps: int | None) -> list[str]:
    """A warning for each stage that a run of so many steps is too short for."""
    if max_steps is None:
        return []
    firsts = [math.ceil(stage.at * max_steps - 1e-9) for stage in stages] + [max_steps]
    return [
        f"warning: of {max_steps} steps none is in the stage that begins at {stage.at} of the run"
        for stage, first, end in zip(stages, firsts, firsts[1:], strict=False)
        if first >= end
    ]


def mean_over_run(values: Sequence[float], stages: Sequence[Stage]) -> float:
    """Of a value that each stage has."""
    ends = [stage.at for stage in stages[1:]] + [1.0]
    return sum((end - stage.at) * value for value, stage, end in zip(values, stages, ends, strict=True))


def epochs_per_step(stages: Sequence[Stage]) -> float:
    """Passes over the data in one step, a mean over the run."""
    return mean_over_run([stage.batch_size / stage.work.num_examples for stage in stages], stages)


def tokens_per_step(stages: Sequence[Stage]) -> float:
    """Tokens in one step without padding, a mean over the run, from some of the rows; --max_tokens uses it."""

    def mean_length(work: Work) -> float:
        rows = range(0, work.num_examples, max(1, work.num_examples // _SAMPLED_ROWS))
        return sum(work.count_tokens(work.collate([work.example(row, row)])) for row in rows) / len(rows)

    return mean_over_run([stage.batch_size * mean_length(stage.work) for stage in stages], stages)
