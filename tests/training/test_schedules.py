"""Learning rates against values worked out by hand."""

import math

import pytest

from training.schedules import learning_rate


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


def test_warm_up_by_the_clock(options) -> None:
    arguments = options(max_steps=None, max_minutes=1, learning_rate=2.0, warmup_steps=0.1, schedule="wsd")
    found = [learning_rate(arguments, step=7, progress=progress) for progress in (0.0, 0.05, 0.1, 0.5, 1.0, 1.2)]
    assert found[0] > 0
    assert found[1:] == pytest.approx([1.0, 2.0, 2.0, 0.0, 0.0], abs=1e-12)


@pytest.mark.parametrize("share", [0.0, 1.0])
def test_wsd_at_its_edges(options, share) -> None:
    found = rates(options, 10, schedule="wsd", warmup_steps=0, decay_share=share)
    expected = [1.0] * 10 if share == 0 else [1 - math.sqrt(step / 10) for step in range(10)]
    assert found == pytest.approx(expected)
