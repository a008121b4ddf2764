"""Which weights decay, and which optimizer moves which."""

import torch
from torch import nn

from training.optimizers import OPTIMIZERS, split_parameters


def names_of(model: nn.Module, parameters) -> set[str]:
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    return {names[id(parameter)] for parameter in parameters}


def test_matrices_decay_and_embeddings_norms_and_biases_do_not(new_model) -> None:
    model = new_model()
    matrices, rest = split_parameters(model)
    expected = {
        name for name, parameter in model.named_parameters() if parameter.ndim == 2 and "embeddings" not in name
    }
    assert names_of(model, matrices) == expected  # the output layer is tied to an embedding and is none of them
    assert len(matrices) + len(rest) == len(list(model.parameters()))
    assert not names_of(model, matrices) & names_of(model, rest)


def test_frozen_weights_are_left_out(new_model) -> None:
    model = new_model()
    for parameter in model.bert.embeddings.parameters():
        parameter.requires_grad_(False)
    matrices, rest = split_parameters(model)
    assert not [name for name in names_of(model, [*matrices, *rest]) if "embeddings" in name]


def test_adamw_groups(new_model, options) -> None:
    (optimizer,) = OPTIMIZERS["adamw"](new_model(), options(weight_decay=0.3, adam_beta2=0.9))
    assert [group["weight_decay"] for group in optimizer.param_groups] == [0.3, 0.0]
    assert all(group["betas"] == (0.9, 0.9) and group["lr"] == 1e-2 for group in optimizer.param_groups)
    (single,) = OPTIMIZERS["adamw"](nn.LayerNorm(4), options())
    assert len(single.param_groups) == 1


def test_every_optimizer_moves_every_weight_once(new_model, options) -> None:
    for name, build in OPTIMIZERS.items():
        model = new_model(hidden_size=32, intermediate_size=64)
        optimizers = build(model, options())
        held = [id(weight) for one in optimizers for group in one.param_groups for weight in group["params"]]
        assert sorted(held) == sorted(id(weight) for weight in model.parameters()), name
        before = {key: value.clone() for key, value in model.named_parameters()}
        model(input_ids=torch.arange(8)[None], labels=torch.arange(8)[None]).loss.backward()
        for optimizer in optimizers:
            optimizer.step()
        still = [
            key for key, value in model.named_parameters() if value.grad is None or torch.equal(value, before[key])
        ]
        assert not [key for key in still if "key.bias" not in key], name  # a bias of keys changes no attention
