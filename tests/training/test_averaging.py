"""Averages of weights beside plain loops over every weight that there was."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from examples import examples
from hypothesis import given
from hypothesis import strategies as st
from processes import run
from safetensors.torch import load, save
from torch import Tensor, nn

from lacuna.common.errors import CorruptCheckpointError
from lacuna.training.optimizers.averages import make_average

Options = Callable[..., Any]


def asked(average: str, **overrides: float) -> Any:
    return SimpleNamespace(**{"average": average, "ema_decay": 0.9, "tail_share": 0.25, **overrides})


class Moving:
    """A model whose weights take another value in each step."""

    def __init__(self, *, dtype: torch.dtype = torch.float32, seed: int = 0) -> None:
        torch.manual_seed(seed)
        self.model = nn.Sequential(nn.Embedding(7, 4), nn.Linear(4, 7, bias=False), nn.Linear(7, 3), nn.LayerNorm(3))
        self.model[1].weight = self.model[0].weight  # tied
        self.model[2].bias.requires_grad_(False)
        self.model.to(dtype)

    def step(self, number: int) -> dict[str, Tensor]:
        generator = torch.Generator().manual_seed(number)
        with torch.no_grad():
            for weight in self.model.parameters():
                weight.add_(torch.randn(weight.shape, generator=generator).to(weight.dtype))
        return {name: weight.detach().clone() for name, weight in self.model.named_parameters()}


def mean_by_hand(history: list[dict[str, Tensor]], shares: list[float]) -> dict[str, Tensor]:
    """Weighted mean over a history, in float64."""
    total = sum(shares)
    return {
        name: sum(share / total * weights[name].double() for share, weights in zip(shares, history, strict=True))
        for name in history[0]
        if name != "2.bias"  # frozen
    }


@examples(30)
@given(
    steps=st.integers(1, 40),
    decay=st.sampled_from([0.0, 0.5, 0.9, 0.999]),
    share=st.sampled_from([0.05, 0.2, 0.5, 1.0]),
    dtype=st.sampled_from([torch.float32, torch.bfloat16]),
)
def test_averages_are_those_of_a_loop_over_all_weights(steps, decay, share, dtype) -> None:
    """EMA: decay^(t - i) to the weights of step i. Tail: the same to all steps that end behind 1 - tail_share."""
    for kind in ("ema", "tail"):
        moving = Moving(dtype=dtype)
        average = make_average(asked(kind, ema_decay=decay, tail_share=share), moving.model)
        assert average is not None and not average
        history = []
        for step in range(1, steps + 1):
            history.append(moving.step(step))
            average.update(moving.model, done=step / steps)
        shares = [decay ** (steps - step) for step in range(1, steps + 1)]
        if kind == "tail":
            shares = [float(step > steps - round(steps * share, 6)) for step in range(1, steps + 1)]
        expected = mean_by_hand(history, shares)
        state = average.state()
        assert set(state) == {*expected, "num_updates"}
        assert int(state["num_updates"]) == (steps if kind == "ema" else sum(shares))
        for name, value in expected.items():
            assert state[name].dtype == torch.float32
            torch.testing.assert_close(state[name].double(), value, rtol=1e-5, atol=2e-5)


def test_by_hand() -> None:
    """Weights 1, 2, 4 with decay 0.5: (0.25 + 1 + 4) / 1.75 = 3; of the last two thirds: 3."""
    model = nn.Linear(1, 1, bias=False)
    averages = [make_average(asked(kind, ema_decay=0.5, tail_share=2 / 3), model) for kind in ("ema", "tail")]
    for step, value in enumerate((1.0, 2.0, 4.0), start=1):
        nn.init.constant_(model.weight, value)
        for average in averages:
            average.update(model, done=step / 3)
    assert [float(average.state()["weight"]) for average in averages] == pytest.approx([3.0, 3.0])
    assert [int(average.state()["num_updates"]) for average in averages] == [3, 2]


def test_the_tail_of_ten_steps_begins_after_the_eighth() -> None:
    moving = Moving()
    average = make_average(asked("tail", tail_share=0.2), moving.model)
    begun = []
    for step in range(1, 11):
        moving.step(step)
        average.update(moving.model, done=step / 10)
        begun.append(bool(average))
    assert begun == [False] * 8 + [True] * 2
    average.update(moving.model, done=1.02)  # the clock is not stopped in the middle of a step
    assert int(average.state()["num_updates"]) == 3


@pytest.mark.parametrize("kind", ["ema", "tail"])
@pytest.mark.parametrize("stop_at", [1, 5, 9])
def test_a_stopped_run_goes_on_to_the_bit(kind, stop_at) -> None:
    """Through a file of safetensors, before and after the tail begins."""

    def average_of(stop: int | None) -> dict[str, Tensor]:
        moving = Moving()
        average = make_average(asked(kind, tail_share=0.4), moving.model)
        for step in range(1, 13):
            moving.step(step)
            average.update(moving.model, done=step / 12)
            if step == stop:
                written = save(average.state())
                average = make_average(asked(kind, tail_share=0.4), moving.model)
                average.load(load(written))
        return average.state()

    whole, resumed = average_of(None), average_of(stop_at)
    assert set(whole) == set(resumed)
    assert all(torch.equal(whole[name], resumed[name]) for name in whole)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_applied_swaps_the_average_in_and_the_weights_back(dtype) -> None:
    moving = Moving(dtype=dtype)
    average = make_average(asked("ema"), moving.model)
    before = moving.step(0)
    with average.applied(moving.model):  # nothing is averaged yet
        assert all(torch.equal(weight, before[name]) for name, weight in moving.model.named_parameters())
    for step in range(1, 4):
        before = moving.step(step)
        average.update(moving.model, done=step / 4)
    places = [weight.data_ptr() for weight in moving.model.parameters()]
    state = average.state()
    with pytest.raises(KeyError), average.applied(moving.model):  # also where evaluation fails
        assert moving.model[1].weight is moving.model[0].weight
        for name, weight in moving.model.named_parameters():
            torch.testing.assert_close(weight.detach(), state.get(name, before[name]).to(dtype), rtol=0, atol=0)
        raise KeyError
    assert all(torch.equal(weight, before[name]) for name, weight in moving.model.named_parameters())
    assert [weight.data_ptr() for weight in moving.model.parameters()] == places  # an optimizer knows them


def test_a_state_does_not_change_with_the_average() -> None:
    moving = Moving()
    average = make_average(asked("ema"), moving.model)
    moving.step(1)
    average.update(moving.model, done=0.5)
    state = average.state()
    kept = {name: value.clone() for name, value in state.items()}
    moving.step(2)
    average.update(moving.model, done=1.0)
    assert all(torch.equal(state[name], kept[name]) for name in kept)


def test_none_is_no_average_and_a_state_of_another_model_is_refused() -> None:
    assert make_average(asked("none"), nn.Linear(2, 2)) is None
    average = make_average(asked("ema"), nn.Linear(2, 2))
    for state in (
        {},
        {"num_updates": torch.tensor(3)},
        {"num_updates": torch.tensor(3), "weight": torch.ones(2, 2)},
        {"num_updates": torch.tensor(3), "weight": torch.ones(2, 3), "bias": torch.ones(2)},
    ):
        with pytest.raises(CorruptCheckpointError, match="not those of this model"):
            average.load(state)


def test_of_a_sharded_model_the_average_is_the_same() -> None:
    done = run("tests/training/averaging_in_shards.py", num_processes=2, timeout=120)
    assert done.returncode == 0, done.stderr
    error, *flags = done.stdout.split()
    assert flags == ["exact=True", "swapped=True", "kept=True"]
    assert float(error.removeprefix("error=")) < 1e-3, done.stdout
