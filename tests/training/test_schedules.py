"""Learning rates against values worked out by hand and transformers' schedules, and what holds for all of them."""

import math
from itertools import pairwise

import pytest
import torch
from examples import examples
from hypothesis import given
from hypothesis import strategies as st
from transformers import get_cosine_schedule_with_warmup, get_linear_schedule_with_warmup

from lacuna.training import TrainingArguments
from lacuna.training.optimizers.schedules import LONG, SCHEDULES, learning_rate


def rates(options, steps: int, **overrides) -> list[float]:
    arguments = options(max_steps=steps, learning_rate=1.0, **overrides)
    return [learning_rate(arguments, step=step, progress=step / steps) for step in range(steps)]


def test_wsd_by_hand(options) -> None:
    found = rates(options, 100, schedule="wsd", warmup_steps=10, decay_share=0.2)
    assert found[:11] == pytest.approx([0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.0])
    assert found[10:81] == pytest.approx([1.0] * 71)
    # Decay begins at 80 % of the run: a quarter of the way down it is 1 - sqrt(1/4) = 1/2.
    assert found[85] == pytest.approx(0.5)
    assert found[95] == pytest.approx(1 - math.sqrt(0.75))
    assert 0 < found[99] < 0.03


def test_rsqrt_is_wsd_that_falls_with_the_root_of_the_steps_of_a_long_run(options) -> None:
    falling, stable = (
        rates(options, 10 * LONG, schedule=schedule, warmup_steps=10, decay_share=0.2) for schedule in ("rsqrt", "wsd")
    )
    assert falling[:LONG] == stable[:LONG]
    assert falling[4 * LONG - 1] == pytest.approx(0.5)
    assert falling[-1] == pytest.approx(stable[-1] / math.sqrt(10))


@pytest.mark.parametrize(
    "schedule, expected",
    [("linear", [1.0, 0.75, 0.5, 0.25]), ("constant", [1.0] * 4), ("cosine", [1.0, 0.853553, 0.5, 0.146447])],
)
def test_other_schedules_by_hand(options, schedule, expected) -> None:
    assert rates(options, 4, schedule=schedule, warmup_steps=0) == pytest.approx(expected, abs=1e-6)


def test_warm_up_as_a_share_of_the_run_never_starts_at_zero(options) -> None:
    found = rates(options, 40, schedule="constant", warmup_steps=0.1)
    assert found == pytest.approx([0.25, 0.5, 0.75] + [1.0] * 37)
    assert rates(options, 5, schedule="constant", warmup_steps=0.1) == [1.0] * 5  # half a step is none


@pytest.mark.parametrize(
    "schedule, reference", [("linear", get_linear_schedule_with_warmup), ("cosine", get_cosine_schedule_with_warmup)]
)
@pytest.mark.parametrize("warmup", [0, 5, 0.25])
def test_linear_and_cosine_are_those_of_transformers_but_for_a_first_step_at_zero(
    options, schedule, reference, warmup
) -> None:
    """There the first of n steps of warm-up is made at rate 0 and the peak comes a step later."""
    steps, count = 20, int(warmup if warmup >= 1 else warmup * 20)
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1.0)
    theirs = reference(optimizer, num_warmup_steps=count, num_training_steps=steps)
    expected = []
    for _ in range(steps):
        expected.append(theirs.get_last_lr()[0])
        optimizer.step()
        theirs.step()
    found = rates(options, steps, schedule=schedule, warmup_steps=warmup)
    assert found[count:] == pytest.approx(expected[count:], abs=1e-9)
    assert found[:count] == pytest.approx([(step + 1) / count for step in range(count)])
    assert max(found) == pytest.approx(1.0)


def simulated(arguments: TrainingArguments, sizes: list[float], *, limit: float) -> list[float]:
    """Rates of a run whose steps take `sizes` of seconds, or tokens, until `limit` of them are gone."""
    gone, found = 0.0, []
    for step, size in enumerate(sizes):
        if gone >= limit:
            break
        done = max(gone / limit, step / arguments.max_steps if arguments.max_steps else 0.0)
        found.append(learning_rate(arguments, step=step, progress=done))
        gone += size
    return found


@pytest.mark.parametrize("schedule", list(SCHEDULES))
def test_a_run_limited_by_tokens_or_the_clock_has_the_rates_of_one_limited_by_steps(options, schedule) -> None:
    """Steps of one size: 50 of 2,048 tokens, or of 2.4 seconds. The warm-up lags by less than a step."""
    shape = {"schedule": schedule, "warmup_steps": 0.1, "decay_share": 0.3}
    by_steps = rates(options, 50, **shape)
    open_ended = options(max_steps=None, max_minutes=2, learning_rate=1.0, **shape)
    for size, limit in ((2048, 50 * 2048), (2.4, 120.0)):
        found = simulated(open_ended, [size] * 60, limit=limit)
        assert found[:6] == pytest.approx([0.01, 0.21, 0.41, 0.61, 0.81, 1.0])
        assert found[5:] == pytest.approx(by_steps[5:], abs=1e-6)


def test_warm_up_is_a_share_of_what_the_clock_allows_where_steps_are_left_over(options) -> None:
    """Two minutes of a run that would have a million steps: by steps alone the warm-up would never end."""
    arguments = options(max_steps=10**6, max_minutes=2, learning_rate=1.0, schedule="wsd", warmup_steps=0.1)
    found = simulated(arguments, [1.2] * 200, limit=120.0)
    assert len(found) == 100
    assert found[:12] == pytest.approx([0.1 * step for step in range(10)] + [1.0, 1.0], abs=1e-4)
    assert found[0] > 0


def test_a_warm_up_of_steps_counts_steps_whatever_limits_the_run(options) -> None:
    arguments = options(max_steps=None, max_minutes=1, learning_rate=2.0, schedule="constant", warmup_steps=4)
    found = [learning_rate(arguments, step=step, progress=step * 0.01) for step in range(6)]
    assert found == pytest.approx([0.5, 1.0, 1.5, 2.0, 2.0, 2.0])


def test_a_slow_first_step_takes_no_more_than_its_time_of_the_warm_up(options) -> None:
    """The first step may compile kernels: here it takes 5 of 60 seconds, and each of the others a quarter second."""
    arguments = options(max_steps=None, max_minutes=1, learning_rate=1.0, schedule="constant", warmup_steps=0.2)
    found = simulated(arguments, [5.0] + [0.25] * 300, limit=60.0)
    assert found[:3] == pytest.approx([0.005, 5 / 12 + 0.005, 5.25 / 12 + 0.005])
    assert found[29:] == [1.0] * (len(found) - 29)


shapes = st.fixed_dictionaries(
    {
        "schedule": st.sampled_from(list(SCHEDULES)),
        "warmup_steps": st.one_of(st.just(0.0), st.floats(0.001, 0.5), st.integers(1, 40)),
        "decay_share": st.floats(0.0, 1.0),
        "max_steps": st.one_of(st.none(), st.integers(1, 10**6)),
    }
)


@examples(300)
@given(shape=shapes, step=st.integers(0, 10**6), progress=st.floats(-0.1, 1.5))
def test_no_rate_is_negative_or_above_the_peak(shape, step, progress) -> None:
    arguments = TrainingArguments(learning_rate=0.25, **shape)
    assert 0.0 <= learning_rate(arguments, step=step, progress=progress) <= 0.25


@examples(200)
@given(shape=shapes, sizes=st.lists(st.floats(0.5, 2.0), min_size=100, max_size=200))
def test_every_decay_ends_at_zero_and_every_step_moves(shape, sizes) -> None:
    """Of steps that differ in length by four times: no rate within the run is 0, and at its end it is."""
    shape = {**shape, "max_steps": None, "decay_share": max(shape["decay_share"], 0.01)}
    arguments = TrainingArguments(learning_rate=1.0, max_minutes=1, **shape)
    found = simulated(arguments, sizes, limit=sum(sizes))
    assert min(found) > 0.0
    end = learning_rate(arguments, step=len(sizes), progress=1.0)
    assert end == (1.0 if shape["schedule"] == "constant" else pytest.approx(0.0, abs=1e-12))


@examples(200)
@given(
    schedule=st.sampled_from(list(SCHEDULES)),
    warmup=st.floats(0.01, 0.5),
    decay=st.floats(0.05, 0.4),
    steps=st.integers(200, 2000),
)
def test_rates_rise_to_the_peak_then_fall_without_a_jump(schedule, warmup, decay, steps) -> None:
    arguments = TrainingArguments(schedule=schedule, warmup_steps=warmup, decay_share=decay, learning_rate=1.0)
    arguments.max_steps = steps
    found = [learning_rate(arguments, step=step, progress=step / steps) for step in range(steps)]
    peak = found.index(max(found))
    if schedule != "rsqrt" or warmup * steps < LONG:  # a longer warm-up ends below the peak
        assert max(found) > 1 - 2 / steps / (1 - warmup)
    assert all(after >= before - 1e-9 for before, after in pairwise(found[: peak + 1]))
    assert all(after <= before + 1e-9 for before, after in pairwise(found[peak:]))
    # 1 - sqrt falls fastest where it begins: by the root of one step's share of the decay.
    steepest = max(1 / (warmup * steps), 4 / steps, math.sqrt(1 / (decay * steps)))
    assert max(abs(after - before) for before, after in pairwise(found)) <= steepest + 1e-9


@pytest.mark.parametrize("share", [0.0, 1.0])
def test_wsd_at_its_edges(options, share) -> None:
    found = rates(options, 10, schedule="wsd", warmup_steps=0, decay_share=share)
    expected = [1.0] * 10 if share == 0 else [1 - math.sqrt(step / 10) for step in range(10)]
    assert found == pytest.approx(expected)
