"""Optimizers by name. To add one, write a function here and put it into `OPTIMIZERS` and the option's choices.

A function returns a list, because some methods treat matrices and the rest of the weights with two optimizers.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from .arguments import TrainingArguments

_SMALLEST_MATRIX = 32
"""Rows and columns below which a matrix (a classifier of few labels) is left to AdamW by Muon."""


def split_parameters(model: nn.Module) -> tuple[list[Tensor], list[Tensor]]:
    """Trainable weights in two lists: matrices, which decay, and embeddings, norms and biases, which do not.

    Tied weights appear once.
    """
    embeddings = {id(module.weight) for module in model.modules() if isinstance(module, nn.Embedding)}
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    matrices = [parameter for parameter in trained if parameter.ndim >= 2 and id(parameter) not in embeddings]
    chosen = {id(parameter) for parameter in matrices}
    return matrices, [parameter for parameter in trained if id(parameter) not in chosen]


def _adamw(matrices: list[Tensor], rest: list[Tensor], arguments: TrainingArguments) -> torch.optim.Optimizer:
    groups: list[dict[str, Any]] = [
        {"params": matrices, "weight_decay": arguments.weight_decay},
        {"params": rest, "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(
        [group for group in groups if group["params"]],
        lr=arguments.learning_rate,
        betas=(0.9, arguments.adam_beta2),
        fused=True,
    )


def adamw(model: nn.Module, arguments: TrainingArguments) -> list[torch.optim.Optimizer]:
    """AdamW (Loshchilov and Hutter, 2019, https://arxiv.org/abs/1711.05101) in torch's fused form."""
    return [_adamw(*split_parameters(model), arguments)]


def muon(model: nn.Module, arguments: TrainingArguments) -> list[torch.optim.Optimizer]:
    """Muon for the matrices between embedding and output (Jordan, 2024, https://kellerjordan.github.io/posts/muon/).

    Its updates are scaled to the size of AdamW's (Liu et al., 2025, https://arxiv.org/abs/2502.16982), so that one
    learning rate serves both; AdamW trains the embeddings, the output layer, norms and biases.
    """
    matrices, rest = split_parameters(model)
    output = getattr(model, "get_output_embeddings", lambda: None)()
    last = id(output.weight) if output is not None else 0
    hidden = [
        matrix
        for matrix in matrices
        if matrix.ndim == 2 and min(matrix.shape) >= _SMALLEST_MATRIX and id(matrix) != last
    ]
    chosen = {id(matrix) for matrix in hidden}
    others = [matrix for matrix in matrices if id(matrix) not in chosen]
    optimizers = [_adamw(others, rest, arguments)] if others or rest else []
    if hidden:
        optimizers.append(
            torch.optim.Muon(
                hidden,
                lr=arguments.learning_rate,
                weight_decay=arguments.weight_decay,
                adjust_lr_fn="match_rms_adamw",
            )
        )
    return optimizers


OPTIMIZERS: dict[str, Callable[[nn.Module, TrainingArguments], list[torch.optim.Optimizer]]] = {
    "adamw": adamw,
    "muon": muon,
}
