"""Examples of like length in one step: every row once an epoch, the same however a step is divided, less padding."""

from functools import partial
from itertools import chain, islice
from typing import Any

import numpy as np
import pytest
from examples import examples
from hypothesis import given
from hypothesis import strategies as st
from toys import ToyWork, make_model

from lacuna.training import TrainingArguments, train
from lacuna.training.order import Grouping, MicroBatchSampler, row_of
from lacuna.training.planning.memory import StepNeeds
from lacuna.training.stages import make_stages


def lengths_of(count: int, *, seed: int = 0) -> list[int]:
    """As texts have them: most are short, some long."""
    return np.clip(np.random.default_rng(seed).lognormal(4.0, 0.7, count), 4, 512).astype(int).tolist()


def batches(lengths: list[int], *, steps: range, batch_size: int, micro: int, processes: int = 1, group: bool = True):
    """The rows of each micro-batch [steps][micro-batches][rows], process by process."""
    share = batch_size // processes
    found: list[list[list[int]]] = [[] for _ in steps]
    for rank in range(processes):
        grouping = Grouping(lengths, batch_size=batch_size) if group else None
        sampler = MicroBatchSampler(
            row=partial(row_of, num_examples=len(lengths), seed=3, grouping=grouping),
            first_sample=steps.start * batch_size,
            batch_size=batch_size,
            micro_batch_size=micro,
            rank=rank,
            num_processes=processes,
        )
        per_step = share // micro
        rows = [[row for row, _ in batch] for batch in islice(sampler, len(steps) * per_step)]
        for number in range(len(steps)):
            found[number] += rows[number * per_step : (number + 1) * per_step]
    return found


def padded(lengths: list[int], micro_batches: list[list[list[int]]]) -> float:
    """Padding as a share of all positions of micro-batches that are padded to their longest."""
    every = [[lengths[row] for row in batch] for step in micro_batches for batch in step]
    return 1 - sum(map(sum, every)) / sum(len(batch) * max(batch) for batch in every)


@examples(60)
@given(
    count=st.integers(1, 300), batch_size=st.integers(1, 40), seed=st.integers(0, 2**63), epoch=st.integers(0, 2**20)
)
def test_each_epoch_has_every_row_once(count, batch_size, seed, epoch) -> None:
    order = Grouping(lengths_of(count), batch_size=batch_size).order(seed=seed, epoch=epoch)
    assert sorted(order.tolist()) == list(range(count))


@pytest.mark.parametrize(("processes", "micro"), [(1, 4), (2, 8), (2, 2), (4, 4), (4, 1)])
def test_a_step_has_the_same_rows_however_it_is_divided(processes, micro) -> None:
    """Across the edges of five epochs, none of which is a whole number of steps."""
    lengths, steps = lengths_of(103), range(0, 33)
    whole = batches(lengths, steps=steps, batch_size=16, micro=16)
    parts = batches(lengths, steps=steps, batch_size=16, micro=micro, processes=processes)
    assert [[*chain(*step)] for step in parts] == [step[0] for step in whole]
    late = batches(lengths, steps=range(20, 33), batch_size=16, micro=micro, processes=processes)
    assert late == parts[20:], "beginning late is beginning early and waiting"


def test_two_epochs_at_a_time_are_one_after_the_other() -> None:
    """The orders that are kept are those that are made anew, whatever was asked before."""
    kept = Grouping(lengths_of(50), batch_size=8)
    for epoch in (0, 1, 0, 5, 1, 2):
        fresh = Grouping(lengths_of(50), batch_size=8)
        assert kept.order(seed=1, epoch=epoch).tolist() == fresh.order(seed=1, epoch=epoch).tolist()
    assert len(kept._orders) <= 2


@pytest.mark.parametrize("count", [700, 6400, 6411])
def test_rows_of_a_step_are_alike_and_steps_follow_by_chance(count) -> None:
    lengths, size = lengths_of(count), 32
    # The second epoch too, whose steps begin elsewhere.
    steps = [step[0] for step in batches(lengths, steps=range(2 * count // size), batch_size=size, micro=size)]
    spread = np.array([np.std([lengths[row] for row in step]) for step in steps])
    assert np.median(spread) < 0.35 * np.std(lengths)
    means = np.array([np.mean([lengths[row] for row in step]) for step in steps])
    assert abs(np.corrcoef(means[:-1], means[1:])[0, 1]) < 0.3, "a step does not tell the length of the next"
    per_epoch = count // size
    first, second = ({frozenset(step) for step in part} for part in (steps[:per_epoch], steps[per_epoch:]))
    assert len(first & second) <= 1, "another epoch has other steps"


@pytest.mark.parametrize(
    ("count", "micro", "without", "with_it"),
    [(1000, 32, 0.711, 0.306), (10_000, 32, 0.712, 0.091), (10_000, 8, 0.567, 0.021)],
)
def test_padding_that_is_saved(count, micro, without, with_it) -> None:
    """As a share of all positions. Of few rows less is saved, so that there are different steps in each epoch."""
    lengths, steps = lengths_of(count), range(count // 32)
    for expected, group in ((without, False), (with_it, True)):
        found = padded(lengths, batches(lengths, steps=steps, batch_size=32, micro=micro, group=group))
        assert found == pytest.approx(expected, abs=5e-4)


def test_golden_values_of_a_grouped_epoch() -> None:
    """What changes these changes everybody's fine-tuning."""
    grouping = Grouping([5, 3, 9, 1, 7, 8, 2, 4, 6, 10], batch_size=2)
    found = [row_of(index, seed=0, num_examples=10, grouping=grouping) for index in range(12)]
    assert found == [6, 1, 4, 2, 3, 9, 7, 0, 8, 5, 2, 9]


class Measured(ToyWork):
    """The toy work, which knows how long its rows are."""

    def example(self, row: int, index: int) -> dict[str, Any]:
        self.order = [*getattr(self, "order", []), row]
        return super().example(row, index)

    @property
    def lengths(self) -> list[int]:
        return [len(self._row(row, "train", 0)["input_ids"]) for row in range(self.num_examples)]


def test_the_loop_groups_what_has_lengths_and_resumes(new_model, plain_tokenizer, tuning_options, tmp_path) -> None:
    def run(name: str, **options: Any) -> tuple[Any, dict[str, float]]:
        work = Measured(num_examples=44, num_eval_examples=0, stop_at=options.pop("stop_at", None))
        arguments = tuning_options(output_dir=str(tmp_path / name), max_steps=14, save_steps=3, **options)
        return work, train(model=new_model(), work=work, tokenizer=plain_tokenizer, arguments=arguments)

    (grouped, results), (plain, others) = run("grouped"), run("plain", group_by_length=False)
    for start in (0, 44):
        assert sorted(grouped.order[start : start + 44]) == sorted(plain.order[start : start + 44]) == [*range(44)]
    assert grouped.order != plain.order and others["steps"] == results["steps"]
    with pytest.raises(InterruptedError):
        run("broken", stop_at=8 * 8)
    again, _ = run("broken", resume=True)
    assert again.rows == grouped.rows[6 * 8 :]
    with pytest.raises(Exception, match=r"group_by_length is None and was True"):
        run("broken", resume=True, group_by_length=False)


def test_works_without_lengths_or_of_several_sources_stay_as_they_are(tuning_options) -> None:
    def groupings(work: Any, **options: Any) -> list[Any]:
        arguments = tuning_options(**options)
        return [stage.grouping for stage in make_stages(arguments=arguments, works=[(0.0, work)], num_processes=1)]

    assert groupings(ToyWork()) == [None]
    assert groupings(Measured(), group_by_length=False) == [None]
    mixture = property(lambda self: [(12, 0.5), (12, 0.5)])
    assert groupings(type("Mixed", (Measured,), {"mixture": mixture})()) == [None]
    one, other = groupings(Measured(), batch_size="4,8", batch_size_at="0,0.5")
    assert one is other and one.batch_size == 4, "an epoch has one order, though the size of a step changes in it"


def test_memory_is_planned_for_the_longest_rows() -> None:
    work = Measured(num_examples=200)
    assert StepNeeds(make_model(), work, TrainingArguments(), 8).length == max(work.lengths)
