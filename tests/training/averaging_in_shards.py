"""Averages of a sharded model, by two processes: prints how far they are from those of a whole one.

torchrun --nproc_per_node 2 tests/training/averaging_in_shards.py
"""

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from lacuna.training.optimizers.averages import Best, make_average
from lacuna.training.optimizers.optimizers import BankedMuon


def made() -> nn.Module:
    """The same small model every time."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(48, 33), nn.Linear(33, 48), nn.Linear(48, 33))


def state_of(average: Any) -> dict[str, torch.Tensor]:
    """What rank 0 would write, on both, as if read from the file."""
    states = [average.state()]
    dist.broadcast_object_list(states)
    return states[0]


def trained(model: nn.Module, *, stop_at: int | None = None) -> Any:
    """Six steps of Muon and SGD with an average; with `stop_at` the average is written and read after that step."""
    arguments = cast(Any, SimpleNamespace(average="ema", ema_decay=0.8))
    matrices = [weight for weight in model.parameters() if weight.ndim == 2]
    rest = [weight for weight in model.parameters() if weight.ndim == 1]
    optimizers = [BankedMuon(matrices, lr=0.01, weight_decay=0.1), torch.optim.SGD(rest, lr=0.1)]
    average = make_average(arguments, model)
    assert average is not None
    for step in range(6):
        inputs = torch.randn(256, 48, generator=torch.Generator().manual_seed(step))
        model(inputs).square().mean().backward()
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
        average.update(model)
        if step + 1 == stop_at:
            state = state_of(average)
            average = make_average(arguments, model)
            assert average is not None
            average.load(state)
    return average


def keeps(whole: nn.Module, sharded: nn.Module) -> bool:
    """Whether the weights that are kept of shards are those that were there, through later steps and a file."""
    whole.load_state_dict({name: weight.full_tensor() for name, weight in sharded.named_parameters()})
    best = [Best(model) for model in (whole, sharded, sharded)]
    for one in best[:2]:
        one.keep(whole if one is best[0] else sharded)
    with torch.no_grad():
        for weight in sharded.parameters():
            weight.add_(1.0)
    best[2].load(state_of(best[1]))
    states = [state_of(one) for one in best]
    with best[2].applied(sharded):
        seen = {name: weight.full_tensor() for name, weight in sharded.named_parameters()}
    return all(torch.equal(states[0][name], value) for name, value in seen.items()) and all(
        torch.equal(states[0][name], state[name]) for state in states[1:] for name in states[0]
    )


def main() -> None:
    """Compare."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    whole, sharded, resumed = made(), made(), made()
    mesh = init_device_mesh("cpu", (2,))
    for model in (sharded, resumed):
        for layer in cast(nn.Sequential, model):
            fully_shard(layer, mesh=mesh)
        fully_shard(model, mesh=mesh)
    averages = trained(whole), trained(sharded), trained(resumed, stop_at=3)
    states = [state_of(average) for average in averages]
    error = max(float((states[0][name] - states[1][name]).abs().max()) for name in states[0])
    exact = all(torch.equal(states[1][name], states[2][name]) for name in states[1])
    with averages[1].applied(sharded):
        seen = {name: weight.full_tensor() for name, weight in sharded.named_parameters()}
    swapped = all(torch.equal(seen[name], states[1][name]) for name in seen)
    kept = keeps(whole, sharded)
    if dist.get_rank() == 0:
        print(f"error={error:.1e} exact={exact} swapped={swapped} kept={kept}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
