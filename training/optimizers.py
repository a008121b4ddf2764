"""Optimizers by name. To add one, write a function here and put it into `OPTIMIZERS` and the option's choices."""

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from .arguments import TrainingArguments


def parameter_groups(model: nn.Module, *, weight_decay: float) -> list[dict[str, Any]]:
    """Two groups: matrices, which decay, and embeddings, norms and biases, which do not.

    Tied weights appear once. An empty group is left out.
    """
    embeddings = {id(module.weight) for module in model.modules() if isinstance(module, nn.Embedding)}
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    decays = [parameter for parameter in trained if parameter.ndim >= 2 and id(parameter) not in embeddings]
    decaying = {id(parameter) for parameter in decays}
    rest = [parameter for parameter in trained if id(parameter) not in decaying]
    groups = [{"params": decays, "weight_decay": weight_decay}, {"params": rest, "weight_decay": 0.0}]
    return [group for group in groups if group["params"]]


def adamw(model: nn.Module, arguments: TrainingArguments) -> torch.optim.Optimizer:
    """AdamW (Loshchilov and Hutter, 2019, https://arxiv.org/abs/1711.05101) in torch's fused form."""
    return torch.optim.AdamW(
        parameter_groups(model, weight_decay=arguments.weight_decay),
        lr=arguments.learning_rate,
        betas=(0.9, arguments.adam_beta2),
        fused=True,
    )


OPTIMIZERS: dict[str, Callable[[nn.Module, TrainingArguments], torch.optim.Optimizer]] = {"adamw": adamw}
