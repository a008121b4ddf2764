"""Optimizers by name, and which weights they treat how. To add one, write a function and enter it in `OPTIMIZERS`.

A function returns a list, because some methods use another optimizer for what is no matrix. What an optimizer keeps
must be tensors and numbers, so that a checkpoint needs no pickle.
"""

import math
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, Shard

from ..environment import bf16_is_fast

if TYPE_CHECKING:  # which imports the registry below
    from ..arguments import TrainingArguments

SMALLEST_MATRIX = 32
"""Rows and columns below which a matrix is the classifier of a few labels, which Muon leaves to AdamW."""
_BANK_NUMBERS = 2**26
"""Numbers that one bank of `BankedMuon` holds at most: 128 MiB in bfloat16, of which about four exist at a time."""


def split_parameters(model: nn.Module) -> tuple[list[Tensor], list[Tensor]]:
    """Trainable weights, tied ones once: matrices, which decay, and embeddings, norms and biases, which do not."""
    embeddings = {id(module.weight) for module in model.modules() if isinstance(module, nn.Embedding)}
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    matrices = [parameter for parameter in trained if parameter.ndim >= 2 and id(parameter) not in embeddings]
    chosen = {id(parameter) for parameter in matrices}
    return matrices, [parameter for parameter in trained if id(parameter) not in chosen]


def backbone_of(model: nn.Module) -> tuple[str, nn.Module | None]:
    """`base_model_prefix` with a dot, and the module of that name; "" and None for a model that has none or is one."""
    name = str(getattr(model, "base_model_prefix", ""))
    backbone = getattr(model, name, None) if name else None
    return (f"{name}.", backbone) if isinstance(backbone, nn.Module) else ("", None)


def is_pooler(name: str) -> bool:
    """Whether a weight or a module is in the pooler, which stands in the backbone and is trained with the head."""
    return "pooler" in name.split(".")


def head_weights(model: nn.Module) -> dict[str, Tensor]:
    """The weights that are not of the backbone nor tied to it, and the pooler; all, where there is no backbone."""
    prefix, backbone = backbone_of(model)
    inside = {id(weight) for weight in backbone.parameters()} if backbone is not None else set()
    return {
        name: weight
        for name, weight in model.named_parameters()
        if id(weight) not in inside or (name.startswith(prefix) and is_pooler(name))
    }


def output_layer(model: nn.Module) -> nn.Module | None:
    """The layer over the vocabulary, where there is one."""
    return getattr(model, "get_output_embeddings", lambda: None)()


def _stacks(model: nn.Module) -> Iterator[tuple[str, int]]:
    """Name with a dot, and length, of each outermost list of blocks."""
    prefix, backbone = backbone_of(model)
    found: list[str] = []
    for name, module in (backbone if backbone is not None else model).named_modules():
        if isinstance(module, nn.ModuleList) and len(module) and not name.startswith(tuple(found)):
            found.append(f"{name}.")
            yield f"{prefix}{name}.", len(module)


def rate_scales(model: nn.Module, decay: float, of_embeddings: float) -> dict[int, float]:
    """The share of the learning rate that each weight has, by its id: layerwise decay, times that of embeddings.

    The uppermost layer of a stack of n has `decay`, the lowest `decay^n`, the embeddings `decay^(n + 1)` of the
    deepest stack; final norm, pooler and head have 1. Encoder and decoder are counted each for itself. Howard and
    Ruder, 2018, https://arxiv.org/abs/1801.06146; Clark et al., 2020 (ELECTRA), https://arxiv.org/abs/2003.10555;
    counted as by Bao et al., 2021 (BEiT), https://arxiv.org/abs/2106.08254.
    """
    stacks = list(_stacks(model))
    lowest = decay ** (1 + max((length for _, length in stacks), default=0))
    tables = {id(module.weight) for module in model.modules() if isinstance(module, nn.Embedding)}
    head = head_weights(model) if backbone_of(model)[1] is not None else {}

    def scale(name: str, weight: Tensor) -> float:
        if name in head:
            return 1.0
        for stack, length in stacks:
            if name.startswith(stack):
                return decay ** (length - int(name.removeprefix(stack).split(".")[0]))
        is_embedding = id(weight) in tables or any("embed" in part for part in name.split("."))
        return lowest if is_embedding else 1.0

    return {
        id(weight): scale(name, weight) * (of_embeddings if id(weight) in tables else 1.0)
        for name, weight in model.named_parameters()
    }


def _groups(
    model: nn.Module, matrices: list[Tensor], rest: list[Tensor], arguments: "TrainingArguments"
) -> list[dict[str, Any]]:
    """Parameter groups: matrices, which decay, and the rest, by `rate_scale`, which the loop multiplies `lr` by."""
    scales = rate_scales(model, arguments.layerwise_decay, arguments.embedding_rate)
    groups: dict[tuple[bool, float], dict[str, Any]] = {}
    for decays, weights in ((True, matrices), (False, rest)):
        for weight in weights:
            group = {"params": [], "weight_decay": arguments.weight_decay * decays, "rate_scale": scales[id(weight)]}
            groups.setdefault((decays, scales[id(weight)]), group)["params"].append(weight)
    return list(groups.values())


def _adamw(
    model: nn.Module, matrices: list[Tensor], rest: list[Tensor], arguments: "TrainingArguments"
) -> torch.optim.Optimizer:
    groups, betas = _groups(model, matrices, rest, arguments), (0.9, arguments.adam_beta2)
    return torch.optim.AdamW(groups, lr=arguments.learning_rate, betas=betas, fused=True)


def adamw(model: nn.Module, arguments: "TrainingArguments") -> list[torch.optim.Optimizer]:
    """AdamW (Loshchilov and Hutter, 2019, https://arxiv.org/abs/1711.05101) in torch's fused form."""
    return [_adamw(model, *split_parameters(model), arguments)]


class BankedMuon(torch.optim.Muon):
    """`torch.optim.Muon` with updates of AdamW's size, which treats matrices of one shape together.

    Stacked into a bank, they take 15 products for each bank in place of 15 for each matrix, in each step. Updates
    differ from torch's by the rounding of bfloat16. The state is torch's own. Of matrices that are sharded among
    processes each process treats its share of the bank.
    """

    def __init__(self, params: Any, **options: Any) -> None:
        super().__init__(params, adjust_lr_fn="match_rms_adamw", nesterov=True, **options)

    @torch.no_grad()
    def step(self, closure: None = None) -> None:
        """One step; a weight without a gradient stays as it is."""
        for group in self.param_groups:
            banks: dict[Any, list[Tensor]] = defaultdict(list)
            for matrix in group["params"]:
                if matrix.grad is not None:
                    banks[matrix.shape, matrix.dtype, matrix.device].append(matrix)
            for bank in banks.values():
                size = max(1, _BANK_NUMBERS // bank[0].numel())
                for start in range(0, len(bank), size):
                    self._step_bank(bank[start : start + size], group)

    def _step_bank(self, matrices: list[Tensor], group: dict[str, Any]) -> None:
        gradients = [matrix.grad for matrix in matrices]
        for matrix in matrices:
            if "momentum_buffer" not in self.state[matrix]:
                self.state[matrix]["momentum_buffer"] = torch.zeros_like(matrix)
        averages = [self.state[matrix]["momentum_buffer"] for matrix in matrices]
        torch._foreach_lerp_(averages, gradients, 1 - group["momentum"])
        # Nesterov's momentum, in place: torch 2.11 cannot make new shards of it.
        torch._foreach_lerp_(gradients, averages, group["momentum"])
        options = {"coefficients": group["ns_coefficients"], "steps": group["ns_steps"], "eps": group["eps"]}
        updates = on_whole_matrices(partial(orthogonalized, **options), gradients)
        rate = group["lr"] * 0.2 * math.sqrt(max(matrices[0].shape))
        torch._foreach_mul_(matrices, 1 - group["lr"] * group["weight_decay"])
        torch._foreach_add_(matrices, updates, alpha=-rate)


def orthogonalized(
    bank: Tensor, *, coefficients: tuple[float, float, float], steps: int = 5, eps: float = 1e-7
) -> Tensor:
    """Matrices [N, A, B] with singular values near 1, by Newton-Schulz iterations; of the dtype of `bank`.

    In bfloat16, and in float32 where that is the faster, on a CPU that only emulates the former ten times and more.
    `coefficients`: a, b, c of the odd polynomial ax + bx^3 + cx^5 that is applied to the singular values
    (https://kellerjordan.github.io/posts/muon/).
    """
    a, b, c = coefficients
    is_tall = bank.shape[1] > bank.shape[2]
    found = bank.bfloat16() if bf16_is_fast() else bank.float()
    found = found.mT if is_tall else found
    found = found / torch.linalg.matrix_norm(found, keepdim=True).clamp(min=eps)  # the largest is then at most 1
    for _ in range(steps):
        squares = torch.bmm(found, found.mT)
        found = torch.baddbmm(found, torch.baddbmm(squares, squares, squares, beta=b, alpha=c), found, beta=a)
    return (found.mT if is_tall else found).to(bank.dtype)


def on_whole_matrices(function: Callable[[Tensor], Tensor], matrices: list[Tensor]) -> list[Tensor]:
    """Apply a function of stacked whole matrices, [N, A, B] to [N, A, B], to matrices [A, B] that may be shards.

    Of sharded ones each process is sent its share of the N matrices, whole, and sends the results back: as much work
    for each as N / processes matrices are, and what one process alone would compute.
    """
    stacked = torch.stack(matrices)
    if not isinstance(stacked, DTensor):
        return list(function(stacked).unbind())
    share = stacked.redistribute(placements=[Shard(0)])
    mine = share.to_local()
    done = function(mine) if len(mine) else mine
    done = DTensor.from_local(
        done, share.device_mesh, [Shard(0)], run_check=False, shape=share.shape, stride=share.stride()
    )
    return list(done.redistribute(placements=[Shard(1)]).unbind())


def muon(model: nn.Module, arguments: "TrainingArguments") -> list[torch.optim.Optimizer]:
    """Muon for the matrices between embedding and output (Jordan, 2024, https://kellerjordan.github.io/posts/muon/).

    Its updates are scaled to the size of AdamW's (Liu et al., 2025, https://arxiv.org/abs/2502.16982), so that one
    learning rate serves both; AdamW trains the embeddings, the output layer, norms and biases.
    """
    matrices, rest = split_parameters(model)
    last = getattr(output_layer(model), "weight", None)
    hidden = [each for each in matrices if each.ndim == 2 and min(each.shape) >= SMALLEST_MATRIX and each is not last]
    chosen = {id(matrix) for matrix in hidden}
    others = [matrix for matrix in matrices if id(matrix) not in chosen]
    optimizers = [_adamw(model, others, rest, arguments)] if others or rest else []
    if hidden:
        optimizers.append(BankedMuon(_groups(model, hidden, [], arguments), lr=arguments.learning_rate))
    return optimizers


@dataclass(frozen=True)
class Optimizer:
    """How an optimizer is made, and in what else it differs from the others."""

    make: Callable[[nn.Module, "TrainingArguments"], list[torch.optim.Optimizer]]
    summary: str = "no summary"  # what the help says of it
    learning_rate: float = 1e-3  # peak rate of a new micro model; larger ones get less (schedules.py)


OPTIMIZERS = {
    "adamw": Optimizer(adamw, "AdamW"),
    "muon": Optimizer(muon, "Muon for matrices, AdamW for the rest", learning_rate=6e-3),
}
