"""FSDP2: weights, gradients and optimizer states sharded over processes (https://arxiv.org/abs/2304.11277).

The wish is read from accelerate's own configuration (`recipes/accelerate/fsdp2.yaml`); torch's `fully_shard` carries
it out, on GPUs and CPUs alike. accelerate 1.15 would do so on GPUs only, and train with DDP on a CPU without a word.

What is saved is whole: tensors by parameter name, whatever the number of processes was.
"""

import os
import warnings
from collections import Counter
from collections.abc import Collection, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor

from lacuna.common.errors import InputError

_ASKED, _WHOLE_BETWEEN = "ACCELERATE_USE_FSDP", "FSDP_RESHARD_AFTER_FORWARD"
_UNSUPPORTED = {
    "ACCELERATE_USE_DEEPSPEED": "DeepSpeed",
    "ACCELERATE_USE_MEGATRON_LM": "Megatron-LM",
    "ACCELERATE_USE_PARALLELISM_CONFIG": "parallelism_config",
    "FSDP_OFFLOAD_PARAMS": "fsdp_offload_params",
    "FSDP_ACTIVATION_CHECKPOINTING": "fsdp_activation_checkpointing",
}
"""Settings of accelerate by variable, each with its name in the configuration file."""


def _is_on(variable: str, default: str = "false") -> bool:
    return os.environ.get(variable, default).lower() == "true"


def asked_for() -> bool:
    """Whether the launcher asks for FSDP (docs/distributed.md). InputError: for FSDP1, or what is not supported."""
    for variable, name in _UNSUPPORTED.items():
        if _is_on(variable) and (_is_on(_ASKED) or not variable.startswith("FSDP")):
            raise InputError(
                f"{name} is not supported: set it to false in the file that --config_file names, or start with "
                "`accelerate launch --config_file recipes/accelerate/fsdp2.yaml`"
            )
    if _is_on(_ASKED) and (version := os.environ.get("FSDP_VERSION", "1")) != "2":
        raise InputError(f"FSDP_VERSION is {version}: set fsdp_version: 2 in the file that --config_file names")
    return _is_on(_ASKED)


@contextmanager
def hidden_from_accelerate() -> Iterator[None]:
    """Let accelerate join the processes without FSDP of its own, which it has on some devices only."""
    before = {_ASKED: os.environ.pop(_ASKED)} if _ASKED in os.environ else {}
    try:
        yield
    finally:
        os.environ.update(before)


def _blocks(module: nn.Module) -> Iterator[nn.Module]:
    for child in module.children():
        yield from child if isinstance(child, nn.ModuleList) else _blocks(child)


def _uses(module: nn.Module) -> Counter[int]:
    """How often each parameter is registered: a tied one is more than once."""
    return Counter(id(each) for part in module.modules() for each in part._parameters.values() if each is not None)


def shard(model: nn.Module, *, device: torch.device, dtype: torch.dtype | None = None) -> None:
    """Shard the weights of a model among all processes, in place: each block of its layers, and the rest together.

    Called before the optimizers are made, which then hold shards. All processes begin with the weights of rank 0.
    `dtype`: in which the weights of the blocks are gathered on a GPU, under autocast in it. Shards, gradients and
    reductions stay float32, as do embeddings and heads, and everything on a CPU, whose autocast wants norms in
    float32. Raises InputError: there is one process only, or some weight is not sharded.
    """
    if not dist.is_initialized() or dist.get_world_size() == 1:
        raise InputError(
            "sharding was requested, but there is only one process; set num_processes to 2 or more in the file that "
            "--config_file names, or start with `torchrun --nproc_per_node 2`"
        )
    for tensor in [*model.parameters(), *model.buffers()]:
        same = tensor.detach().to(device).contiguous()
        dist.broadcast(same, src=0)
        tensor.data.copy_(same)
    mesh = init_device_mesh(device.type, (dist.get_world_size(),))
    dtype = None if device.type == "cpu" else dtype
    policy = MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=torch.float32, cast_forward_inputs=False)
    everywhere = _uses(model)
    for block in list(_blocks(model)):
        uses = _uses(block)
        # A weight that is tied to one elsewhere stays with the rest: it would be gathered for one of its places only.
        if uses and all(everywhere[weight] == count for weight, count in uses.items()):
            fully_shard(block, mesh=mesh, mp_policy=policy, reshard_after_forward=_is_on(_WHOLE_BETWEEN, "true"))
    # Logits may be a view, which only an operation in place would spoil; losses are computed out of place.
    warnings.filterwarnings("ignore", message="FSDP2-wrapped module .* returned a view tensor")
    original = type(model)
    fully_shard(model, mesh=mesh, reshard_after_forward=False)
    for name in ("__module__", "__name__", "__qualname__"):  # which a saved folder, its code and its card are made of
        setattr(type(model), name, getattr(original, name))
    if not all(isinstance(weight, DTensor) for weight in model.parameters()):
        raise InputError(f"sharding was requested, but weights of {original.__name__} were not sharded")


def is_sharded(model: nn.Module) -> bool:
    """Whether `shard` was applied to this model."""
    return isinstance(model, FSDPModule)


@contextmanager
def _without_reduction(model: Any) -> Iterator[None]:
    model.set_requires_gradient_sync(False)
    try:
        yield
    finally:
        model.set_requires_gradient_sync(True)


def no_sync(model: nn.Module) -> AbstractContextManager[None]:
    """Backward passes in here leave the exchange of gradients to the first one that follows.

    A sharded model has no room for whole gradients and exchanges them, unless fsdp_reshard_after_forward is false.
    """
    if is_sharded(model):
        return nullcontext() if _is_on(_WHOLE_BETWEEN, "true") else _without_reduction(model)
    return model.no_sync() if hasattr(model, "no_sync") else nullcontext()


@contextmanager
def whole(model: nn.Module) -> Iterator[None]:
    """All weights of a sharded model, on every process, for evaluation: forward passes in here exchange nothing.

    Nothing may be trained or saved meanwhile. Does nothing to a model that is not sharded.
    """
    parts = [part for part in model.modules() if isinstance(part, FSDPModule)]
    for part in parts:
        part.set_reshard_after_forward(False, recurse=False)
        part.unshard()
    try:
        yield
    finally:
        for part in parts:
            part.reshard()
            part.set_reshard_after_forward(part is not model and _is_on(_WHOLE_BETWEEN, "true"), recurse=False)


def full_tensors(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """CPU copies of tensors that may be shards, on rank 0 only. All processes must call it. Tied weights stay tied."""
    is_first = not dist.is_initialized() or dist.get_rank() == 0
    copies: dict[int, Tensor] = {}
    for tensor in tensors.values():
        if id(tensor) not in copies:
            full = tensor.detach().full_tensor() if isinstance(tensor, DTensor) else tensor.detach()
            copies[id(tensor)] = full.to("cpu", copy=True) if is_first else torch.empty(0)
    return {name: copies[id(tensor)] for name, tensor in tensors.items()} if is_first else {}


def like(reference: Tensor, full: Tensor) -> Tensor:
    """A whole tensor in the form of another: on its device, and this process's shard where that one is a shard."""
    if not isinstance(reference, DTensor) or reference.shape != full.shape:
        return full.to(reference.device)
    mesh = reference.device_mesh
    # Every process has the whole tensor and takes its part; nothing is sent.
    return distribute_tensor(full.to(reference.device), mesh, reference.placements, src_data_rank=None)


def full_model_state(model: nn.Module) -> dict[str, Tensor]:
    """CPU copies of all weights and buffers of a bare model, on rank 0 only. All processes must call it."""
    # Not `torch.distributed.checkpoint.state_dict` (2.13): whole tensors of tied weights come apart there and would be
    # saved twice, those of a CPU are no copies, and to ask for the state of an optimizer takes a step of it.
    return full_tensors(model.state_dict(keep_vars=True))


@torch.no_grad()
def load_model_state(model: nn.Module, state: dict[str, Tensor], *, names: Collection[str] | None = None) -> None:
    """Load weights (by default all), whole on every process; names that tying makes superfluous may be missing.

    Raises KeyError: a weight is missing; ValueError: a weight has another shape.
    """
    given: set[int] = set()
    tensors = model.state_dict(keep_vars=True)
    tensors = tensors if names is None else {name: tensors[name] for name in names}
    for name, tensor in tensors.items():
        if name in state:
            if state[name].shape != tensor.shape:
                raise ValueError(f"{name} has shape {tuple(state[name].shape)}, not {tuple(tensor.shape)}")
            tensor.copy_(like(tensor, state[name]))
            given.add(id(tensor))
    if missing := [name for name, tensor in tensors.items() if id(tensor) not in given]:
        raise KeyError(f"no weight {missing[0]}")


def _trained(model: nn.Module, optimizer: torch.optim.Optimizer) -> list[tuple[str, Tensor]]:
    """The parameters of an optimizer in its own order, with their names in the model."""
    names = {id(weight): name for name, weight in model.named_parameters()}
    return [(names[id(weight)], weight) for group in optimizer.param_groups for weight in group["params"]]


def full_optimizer_state(model: nn.Module, optimizers: list[Any]) -> dict[str, Tensor]:
    """The state of each parameter, without learning rates and the like: CPU copies named `PARAMETER.KEY`, on rank 0
    only. All processes must call it.

    A number is a tensor without dimensions, None an empty one, and `#` ends the names of both.
    """
    state: dict[str, Tensor] = {}
    for optimizer in optimizers:
        for name, weight in _trained(model, optimizer):
            for key, value in optimizer.state.get(weight, {}).items():
                if isinstance(value, Tensor):
                    state[f"{name}.{key}"] = value
                else:
                    state[f"{name}.{key}#"] = torch.tensor([] if value is None else value)
    return full_tensors(state)


def load_optimizer_state(model: nn.Module, optimizers: list[Any], state: dict[str, Tensor]) -> None:
    """Load what `full_optimizer_state` gave, after the weights. ValueError: a state is of what is not trained."""
    of_parameter: dict[str, dict[str, Tensor]] = {}
    for name, tensor in state.items():
        parameter, _, key = name.rpartition(".")
        of_parameter.setdefault(parameter, {})[key] = tensor
    trained = {name for optimizer in optimizers for name, _ in _trained(model, optimizer)}
    if unknown := sorted(of_parameter.keys() - trained):
        raise ValueError(f"a state of {unknown[0]}, which is not trained")
    for optimizer in optimizers:
        packed: dict[int, dict[str, Any]] = {}
        for number, (name, weight) in enumerate(_trained(model, optimizer)):
            for key, full in of_parameter.get(name, {}).items():
                value = (full.item() if full.numel() else None) if key.endswith("#") else like(weight, full)
                packed.setdefault(number, {})[key.removesuffix("#")] = value
        # torch's own method knows which states have the type and device of their parameter, and which have not.
        optimizer.load_state_dict({"state": packed, "param_groups": optimizer.state_dict()["param_groups"]})
