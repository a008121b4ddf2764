"""Which example comes when: the same whatever the number of processes and the size of a micro-batch."""

from functools import partial
from itertools import islice

import numpy as np
import pytest
from examples import examples
from hypothesis import given
from hypothesis import strategies as st

from lacuna.training.order import _PERIOD, MicroBatchSampler, _alternation, dropout_seed, row_of


def step_of(step: int, *, num_examples: int, batch_size: int, num_processes: int, micro: int, seed: int = 0):
    """The (row, index) pairs of one step, process by process, from samplers that start at that step."""
    share, pairs = batch_size // num_processes, []
    for rank in range(num_processes):
        sampler = MicroBatchSampler(
            row=partial(row_of, num_examples=num_examples, seed=seed),
            first_sample=step * batch_size,
            batch_size=batch_size,
            micro_batch_size=micro,
            rank=rank,
            num_processes=num_processes,
        )
        for batch in islice(sampler, share // micro):
            assert len(batch) == micro
            pairs += batch
    return pairs


@examples(50)
@given(num_examples=st.integers(1, 200), seed=st.integers(0, 2**63), epoch=st.integers(0, 5))
def test_each_epoch_shows_every_row_once(num_examples, seed, epoch) -> None:
    rows = [
        row_of(epoch * num_examples + position, seed=seed, num_examples=num_examples)
        for position in range(num_examples)
    ]
    assert sorted(rows) == list(range(num_examples))


def test_epochs_and_seeds_have_orders_of_their_own() -> None:
    orders = {tuple(row_of(e * 50 + i, seed=s, num_examples=50) for i in range(50)) for s in (0, 1) for e in (0, 1, 2)}
    assert len(orders) == 6


@examples(40)
@given(step=st.integers(0, 40), num_examples=st.integers(1, 100))
def test_a_step_has_the_same_samples_however_it_is_divided(step, num_examples) -> None:
    expected = [
        (row_of(index, seed=0, num_examples=num_examples), index) for index in range(16 * step, 16 * step + 16)
    ]
    for num_processes, micro in ((1, 16), (1, 4), (2, 8), (2, 2), (4, 4), (4, 1)):
        found = step_of(step, num_examples=num_examples, batch_size=16, num_processes=num_processes, micro=micro)
        assert found == expected


def test_starting_late_is_starting_early_and_waiting() -> None:
    options = {
        "row": partial(row_of, num_examples=10, seed=3),
        "batch_size": 6,
        "micro_batch_size": 3,
        "rank": 0,
        "num_processes": 1,
    }
    early = list(islice(MicroBatchSampler(first_sample=0, **options), 40))
    late = list(islice(MicroBatchSampler(first_sample=42, **options), 26))
    assert late == early[14:]


def test_golden_values() -> None:
    """What changes these changes everybody's runs: a run could no longer be resumed or repeated."""
    assert [row_of(index, seed=0, num_examples=10) for index in range(10)] == [1, 4, 6, 2, 9, 3, 0, 7, 5, 8]
    late = [row_of(10**9 + index, seed=12345, num_examples=1000) for index in range(5)]
    assert late == [807, 331, 995, 896, 634]
    assert dropout_seed(seed=0, step=0, micro_step=0, rank=0) == 7896617691693857887


def test_dropout_seeds_differ_and_fit_torch() -> None:
    seeds = [
        dropout_seed(seed=seed, step=step, micro_step=micro, rank=rank)
        for seed in range(3) for step in range(20) for micro in range(3) for rank in range(3)
    ]  # fmt: skip
    assert len(set(seeds)) == len(seeds) and max(seeds) < 2**63 and min(seeds) >= 0


@pytest.mark.parametrize("num_examples", [7, 64])
def test_rows_are_spread_evenly_over_places(num_examples) -> None:
    """Over many epochs each row comes first about equally often."""
    first = [row_of(epoch * num_examples, seed=1, num_examples=num_examples) for epoch in range(100 * num_examples)]
    counts = np.bincount(first, minlength=num_examples)
    assert abs(counts - 100).max() < 45


MIXTURE = [(10, 0.7), (40, 0.2), (5, 0.1)]


def source_of(row: int) -> int:
    return int(row >= 10) + int(row >= 50)


def test_a_mixture_keeps_its_shares_at_every_moment() -> None:
    rows = [row_of(index, seed=0, num_examples=55, mixture=MIXTURE) for index in range(3000)]
    counts = np.cumsum([[source_of(row) == source for source in range(3)] for row in rows], axis=0)
    expected = np.outer(np.arange(1, 3001), [0.7, 0.2, 0.1])
    assert np.abs(counts - expected).max() < 2
    # Every source goes through all of its rows before any of them comes again.
    for source, (size, first) in enumerate(((10, 0), (40, 10), (5, 50))):
        own = [row - first for row in rows if source_of(row) == source]
        for epoch in range(len(own) // size):
            assert sorted(own[epoch * size : (epoch + 1) * size]) == list(range(size))


@examples(30)
@given(weights=st.lists(st.floats(1e-6, 1.0), min_size=1, max_size=6), start=st.integers(0, 2**40))
def test_any_weights_are_kept_within_a_period(weights, start) -> None:
    mixture = [(3, weight) for weight in weights]
    size = 3 * len(weights)
    rows = np.array([row_of(start + index, seed=1, num_examples=size, mixture=mixture) for index in range(500)])
    shares = np.bincount(rows // 3, minlength=len(weights)) / 500
    assert np.abs(shares - np.array(weights) / sum(weights)).max() <= 0.01


def test_a_mixture_starts_late_as_it_would_have_gone_on() -> None:
    row = partial(row_of, num_examples=55, seed=3, mixture=MIXTURE)
    options = {"row": row, "batch_size": 8, "micro_batch_size": 4, "rank": 1, "num_processes": 2}
    early = list(islice(MicroBatchSampler(first_sample=0, **options), 40))
    assert list(islice(MicroBatchSampler(first_sample=72, **options), 31)) == early[9:]


def test_golden_values_of_a_mixture() -> None:
    assert [row_of(index, seed=0, num_examples=55, mixture=MIXTURE) for index in range(12)] == [
        6, 3, 24, 9, 51, 1, 5, 31, 7, 8, 2, 4
    ]  # fmt: skip


@pytest.mark.parametrize("weights", [(1, 1, 1), (2, 3, 2, 4), (0.5, 0.2, 0.3), (1, 6)])
def test_a_period_is_full_and_every_source_has_its_share(weights) -> None:
    counts = _alternation(tuple(map(float, weights)))[2]
    exact = np.array(weights) / sum(weights) * _PERIOD
    assert counts.sum() == _PERIOD and np.abs(counts - exact).max() < 1
