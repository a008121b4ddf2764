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
    return SimpleNamespace(**{"average": average, "ema_decay": 0.9, **overrides})


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
    dtype=st.sampled_from([torch.float32, torch.bfloat16]),
)
def test_the_average_is_that_of_a_loop_over_all_weights(steps, decay, dtype) -> None:
    """decay^(t - i) to the weights of step i."""
    moving = Moving(dtype=dtype)
    average = make_average(asked("ema", ema_decay=decay), moving.model)
    assert average is not None and average.state()["num_updates"] == 0
    history = []
    for step in range(1, steps + 1):
        history.append(moving.step(step))
        average.update(moving.model)
    expected = mean_by_hand(history, [decay ** (steps - step) for step in range(1, steps + 1)])
    state = average.state()
    assert set(state) == {*expected, "num_updates"} and int(state["num_updates"]) == steps
    for name, value in expected.items():
        assert state[name].dtype == torch.float32
        torch.testing.assert_close(state[name].double(), value, rtol=1e-5, atol=2e-5)


def test_by_hand() -> None:
    """Weights 1, 2, 4 with decay 0.5: (0.25 + 1 + 4) / 1.75 = 3."""
    model = nn.Linear(1, 1, bias=False)
    average = make_average(asked("ema", ema_decay=0.5), model)
    assert average is not None
    for value in (1.0, 2.0, 4.0):
        nn.init.constant_(model.weight, value)
        average.update(model)
    assert float(average.state()["weight"]) == pytest.approx(3.0) and int(average.state()["num_updates"]) == 3


@pytest.mark.parametrize("stop_at", [1, 5, 9])
def test_a_stopped_run_goes_on_to_the_bit(stop_at) -> None:
    """Through a file of safetensors."""

    def average_of(stop: int | None) -> dict[str, Tensor]:
        moving = Moving()
        average = make_average(asked("ema"), moving.model)
        for step in range(1, 13):
            moving.step(step)
            average.update(moving.model)
            if step == stop:
                written = save(average.state())
                average = make_average(asked("ema"), moving.model)
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
        average.update(moving.model)
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
    average.update(moving.model)
    state = average.state()
    kept = {name: value.clone() for name, value in state.items()}
    moving.step(2)
    average.update(moving.model)
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
