"""DeepSpeed ZeRO 1 and 2: optimizer states and gradients sharded over processes (https://arxiv.org/abs/1910.02054).

The wish is read from accelerate's own configuration (`recipes/accelerate/deepspeed.yaml`), and DeepSpeed's engine
carries it out, on CPUs too, where accelerate 1.15 would silently use DDP. The engine exchanges gradients, clips them
and takes the optimizer's step, unless a gradient is not finite in some process. Weights stay whole; what is saved of
the optimizer is whole too, by parameter name.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from accelerate.utils import DeepSpeedPlugin, is_deepspeed_available
from torch import Tensor, nn

from lacuna.common.errors import InputError

ASKED = "ACCELERATE_USE_DEEPSPEED"
_FILE = "in the file that --config_file names"
_KNOWN = {"zero_optimization", "gradient_clipping", "train_batch_size", "train_micro_batch_size_per_gpu"}
_KNOWN |= {"gradient_accumulation_steps", "steps_per_print", "zero_allow_untested_optimizer"}
"""What accelerate always writes into DeepSpeed's configuration."""


def asked_for() -> bool:
    """Whether the configuration of the launcher asks for DeepSpeed."""
    return os.environ.get(ASKED, "false").lower() == "true"


def check(*, optimizer: str, max_grad_norm: float) -> dict[str, Any]:
    """DeepSpeed's configuration for a run, from accelerate's. InputError: DeepSpeed is not installed, there is one
    process only, or something is asked for that is not supported.
    """
    if not dist.is_initialized() or dist.get_world_size() == 1:
        raise InputError(
            f"DeepSpeed was requested, but there is only one process; set num_processes to 2 or more {_FILE}, or "
            "start with `torchrun --nproc_per_node 2`"
        )
    if optimizer != "adamw":
        raise InputError(
            f"--optimizer {optimizer} does not work with DeepSpeed, which divides weights in the middle of matrices; "
            "use adamw, or recipes/accelerate/fsdp2.yaml"
        )
    if not is_deepspeed_available():
        raise InputError('DeepSpeed was requested but is not installed: pip install -e ".[deepspeed]"')
    given = DeepSpeedPlugin().deepspeed_config
    zero = {name: value for name, value in given.get("zero_optimization", {}).items() if value != "auto"}
    if (stage := int(zero.get("stage", 0))) not in (1, 2):
        raise InputError(
            f"zero_stage is {stage}: set it to 1 or 2 {_FILE}. For ZeRO-3 start with "
            "`accelerate launch --config_file recipes/accelerate/fsdp2.yaml`, which saves the same"
        )
    for name in ("offload_optimizer", "offload_param"):
        if (device := zero.pop(name, {}).get("device", "none")) != "none":
            raise InputError(f"{name}_device is {device}: set it to none {_FILE}, the only one that is supported")
    zero.pop("stage3_gather_16bit_weights_on_model_save", None)
    clip = given.get("gradient_clipping", "auto")
    if clip != "auto" and float(clip) != max_grad_norm:
        raise InputError(f"gradient_clipping is {clip} {_FILE}, and --max_grad_norm {max_grad_norm}: make them agree")
    for name, value in given.items():
        if name not in _KNOWN and not (isinstance(value, dict) and value.get("enabled") is False):
            raise InputError(f"{name} is not supported with DeepSpeed: leave it out of DeepSpeed's configuration")
    return {
        "train_micro_batch_size_per_gpu": 1,
        "gradient_accumulation_steps": 1,  # `accumulating` tells the engine when a step is whole
        "steps_per_print": 2**31,
        "zero_optimization": zero,
        "zero_allow_untested_optimizer": True,
        "gradient_clipping": max_grad_norm,
    }


def divide(
    model: nn.Module, optimizer: torch.optim.Optimizer, config: dict[str, Any], *, device: torch.device
) -> tuple[nn.Module, "ZeroOptimizer"]:
    """Give a model and its optimizer to DeepSpeed, configured by `check`; returns what stands for them from now on."""
    os.environ.setdefault("DS_ACCELERATOR", device.type)
    import deepspeed

    names = {id(weight): name for name, weight in model.named_parameters()}
    trained = [{names[id(weight)]: weight for weight in group["params"]} for group in optimizer.param_groups]
    engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=config)
    return engine, ZeroOptimizer(engine, optimizer, trained)


def is_engine(model: nn.Module) -> bool:
    """Whether this is what `divide` returned for a model."""
    return hasattr(model, "set_gradient_accumulation_boundary")


@contextmanager
def accumulating(engine: Any) -> Iterator[None]:
    """Backward passes in here are not the last of a step."""
    engine.set_gradient_accumulation_boundary(False)
    try:
        yield
    finally:
        engine.set_gradient_accumulation_boundary(True)


class ZeroOptimizer:
    """An optimizer whose states DeepSpeed keeps in flat parts, one of each of its groups in each process."""

    def __init__(self, engine: Any, optimizer: torch.optim.Optimizer, trained: list[dict[str, Tensor]]) -> None:
        """The optimizer's groups hold a flat part each; `trained` has the parameters of each group, by name."""
        self._engine, self._optimizer, self._trained = engine, optimizer, trained
        engine.set_gradient_accumulation_boundary(True)

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        """Learning rates are set here."""
        return self._optimizer.param_groups

    def update(self) -> float:
        """See `training.step.update`."""
        self._engine.step()
        return float(self._engine.get_global_grad_norm())

    def take_weights(self) -> None:
        """Renew the engine's copy of the weights from the model."""
        self._engine.optimizer.refresh_fp32_params()

    def _flat(self) -> Iterator[tuple[dict[str, Tensor], Tensor]]:
        """Of each group its weights by name, and this process's flat part of them all."""
        return zip(self._trained, (group["params"][0] for group in self.param_groups), strict=True)

    def _link(self) -> None:
        """Tell each weight where in the flat states its own are; deepspeed 0.19.8 does so for the first group only."""
        from deepspeed.utils.mixed_precision_linkage import lazy_init_hp_params_optimizer_state as link

        for weights, flat in self._flat():
            link(list(weights.values()), flat, self._optimizer.state)

    def full_state(self) -> dict[str, Tensor]:
        """As `fsdp.full_optimizer_state`."""
        from deepspeed.utils import safe_get_full_optimizer_state

        self._link()
        state: dict[str, Tensor] = {}
        for weights, flat in self._flat():
            for key, value in self._optimizer.state.get(flat, {}).items():
                for name, weight in weights.items():
                    full = value if key == "step" else safe_get_full_optimizer_state(weight, key)
                    if dist.get_rank() == 0:
                        state[f"{name}.{key}"] = full.detach().to("cpu", copy=True)
        return state

    def load_state(self, state: dict[str, Tensor]) -> None:
        """As `fsdp.load_optimizer_state`."""
        from deepspeed.utils import safe_set_full_optimizer_state

        trained = {name for weights in self._trained for name in weights}
        if strangers := [name for name in state if name.rpartition(".")[0] not in trained]:
            raise ValueError(f"the state {strangers[0]} is of no parameter that is trained")
        for weights, flat in self._flat():
            first = next(iter(weights))
            for key in [name.rpartition(".")[2] for name in state if name.rpartition(".")[0] == first]:
                is_step = key == "step"
                value = state[f"{first}.{key}"].to(flat.device, copy=True) if is_step else torch.zeros_like(flat)
                self._optimizer.state[flat][key] = value
        self._link()
        for weights, flat in self._flat():
            for key in [key for key in self._optimizer.state.get(flat, {}) if key != "step"]:
                for name, weight in weights.items():
                    safe_set_full_optimizer_state(weight, state[f"{name}.{key}"].to(flat.device), key)
