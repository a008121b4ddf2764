"""Averages of weights that a run can end with: `--average ema` or `best`.

`ema`: exponential moving average of the weights after each step, bias-corrected as in Adam (Kingma and Ba, 2015,
https://arxiv.org/abs/1412.6980).

`best`: a copy of the weights that evaluation has judged best by the metric of the work.
"""

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from lacuna.common.errors import CorruptCheckpointError

from ..distributed.fsdp import full_tensors, like

if TYPE_CHECKING:  # which imports the registry below
    from ..arguments import TrainingArguments

_UPDATES = "num_updates"  # where `Average.state` counts, beside the names of weights


class Average:
    """An average of the trained weights, in float32, beside the weights; of a sharded model in the same shards."""

    is_evaluated = True  # whether evaluations in the course of the run are of these weights

    def __init__(self, model: nn.Module, *, decay: float = 0.0) -> None:
        """The model is bare, and sharded already. With each step what was before counts `decay` times as much."""
        self._decay, self._like = decay, _trained(model)
        self._updates = 0
        self._weights: dict[str, Tensor] = {}

    @torch.no_grad()
    def update(self, model: nn.Module) -> None:
        """Take in the weights of a bare model as a step has left them."""
        self._updates += 1
        weights = _trained(model)
        if self._updates == 1:
            self._weights = {name: weight.detach().float().clone() for name, weight in weights.items()}
            return
        present = [weight.detach().float() for weight in weights.values()]
        share = (1.0 - self._decay) / (1.0 - self._decay**self._updates)
        torch._foreach_lerp_([self._weights[name] for name in weights], present, share)

    def state(self) -> dict[str, Tensor]:
        """CPU copies by parameter name, on rank 0 only, and `num_updates`. All processes must call it."""
        return {**full_tensors(self._weights), _UPDATES: torch.tensor(self._updates)}

    def load(self, state: dict[str, Tensor]) -> None:
        """Load what `state` returned, sharded as the weights are; `CorruptCheckpointError` if they are others."""
        updates = int(state[_UPDATES]) if _UPDATES in state else -1
        shapes = {name: weight.shape for name, weight in self._like.items()} if updates else {}
        if updates < 0 or {name: value.shape for name, value in state.items() if name != _UPDATES} != shapes:
            raise CorruptCheckpointError("the averaged weights of the checkpoint are not those of this model")
        self._updates = updates
        self._weights = {name: like(self._like[name], state[name].to(torch.float32, copy=True)) for name in shapes}

    @contextlib.contextmanager
    def applied(self, model: nn.Module) -> Iterator[None]:
        """Within this context the model has the averaged weights, if there are any; afterwards its own, to the bit."""
        live = {name: weight for name, weight in _trained(model).items() if name in self._weights}
        kept = [weight.detach().clone() for weight in live.values()]
        with torch.no_grad():
            for name, weight in live.items():
                weight.copy_(self._weights[name])
        try:
            yield
        finally:
            with torch.no_grad():
                for weight, value in zip(live.values(), kept, strict=True):
                    weight.copy_(value)


class Best(Average):
    """The trained weights as they were at the best evaluation so far; steps leave them as they are."""

    is_evaluated = False

    def update(self, model: nn.Module) -> None:
        """Only `keep` takes weights in."""

    @torch.no_grad()
    def keep(self, model: nn.Module) -> None:
        """Take the present weights in place of those that are there."""
        self._updates += 1
        for name, weight in _trained(model).items():
            self._weights[name] = weight.detach().float().clone()


class Soup:
    """The mean of weights of runs that began alike (Wortsman et al., 2022, https://arxiv.org/abs/2203.05482)."""

    def __init__(self, runs: int) -> None:
        self._runs, self._taken = runs, 0
        self._sums: dict[str, Tensor] = {}

    @torch.no_grad()
    def blend(self, model: nn.Module) -> bool:
        """Take in what one more run ended with; the model of the last gets the mean of all, which is said."""
        self._taken += 1
        for name, weight in _trained(model).items():
            self._sums[name] = weight.float() + self._sums.get(name, 0.0)
            if self._taken == self._runs:
                weight.copy_(self._sums[name] / self._runs)
        return self._taken == self._runs


def _trained(model: nn.Module) -> dict[str, Tensor]:
    """Weights that training moves, by name; tied ones once."""
    return {name: weight for name, weight in model.named_parameters() if weight.requires_grad}


AVERAGES = ("ema", "best")


def make_average(arguments: "TrainingArguments", model: nn.Module) -> Average | None:
    """What `--average` asks for, of a bare model's weights; None for "none"."""
    if arguments.average == "ema":
        return Average(model, decay=arguments.ema_decay)
    return Best(model) if arguments.average == "best" else None
