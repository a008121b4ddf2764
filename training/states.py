"""Weights and optimizer of a run as tensors by name, and back."""

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_optimizer_state_dict,
    set_optimizer_state_dict,
)

from .checkpoints import STATE, copied
from .errors import CorruptCheckpointError

_FLAT = StateDictOptions(full_state_dict=True, cpu_offload=True, flatten_optimizer_state_dict=True)


def model_state(model: nn.Module) -> dict[str, Tensor]:
    """Copies of all weights and buffers that are saved, on the CPU."""
    return copied(model.state_dict())


def optimizer_state(model: nn.Module, optimizers: list[torch.optim.Optimizer]) -> dict[str, Any]:
    """Copies of what the optimizers hold, by the names of the parameters: tensors and numbers."""
    return copied(get_optimizer_state_dict(model, optimizers, options=_FLAT))


def load_model(*, model: nn.Module, folder: Path) -> None:
    """Read the weights of a verified checkpoint.

    Raises:
        CorruptCheckpointError: they are not those of this model.
    """
    state: dict[str, Tensor] = {}
    for path in sorted(folder.glob("model*.safetensors")):  # never by the names in an index
        state |= load_file(path)
    found = {name: tensor.data_ptr() for name, tensor in model.state_dict(keep_vars=True).items()}
    present = {found[name] for name in state if name in found}
    missing = sorted(name for name, place in found.items() if name not in state and place not in present)
    if missing or set(state) - set(found):
        different = (missing or sorted(set(state) - set(found)))[0]
        raise CorruptCheckpointError(f"checkpoint {folder}: {different} is not a weight of both file and model")
    try:
        model.load_state_dict(state, strict=False)  # a tied weight is there under one of its names
    except RuntimeError as error:
        raise CorruptCheckpointError(f"checkpoint {folder}: {error}") from error


def load_optimizer(*, model: nn.Module, optimizers: list[torch.optim.Optimizer], folder: Path) -> None:
    """Read back what `optimizer_state` gave, from a verified checkpoint."""
    numbers = json.loads((folder / STATE / "optimizer.json").read_text(encoding="utf-8"))
    flat = {name: tuple(value) if isinstance(value, list) else value for name, value in numbers.items()}
    flat.update(load_file(folder / STATE / "optimizer.safetensors"))
    # Without `full_state_dict`, which torch 2.13 cannot combine with a flat state here (KeyError 'param_groups.0...').
    set_optimizer_state_dict(model, optimizers, flat, options=StateDictOptions(flatten_optimizer_state_dict=True))


def load_average(folder: Path) -> dict[str, Tensor]:
    """The averaged weights of a checkpoint; empty where there are none."""
    path = folder / STATE / "average.safetensors"
    return load_file(path) if path.is_file() else {}
