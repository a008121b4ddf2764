"""Which weights decay, which optimizer moves which, and what each does, beside the formulas of its paper."""

import json
import math
import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from safetensors.torch import load, save
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_optimizer_state_dict,
    set_optimizer_state_dict,
)
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    GPT2Config,
    GPT2LMHeadModel,
    T5Config,
    T5ForConditionalGeneration,
)

from lacuna.common.errors import InputError
from lacuna.modeling import (
    LacunaConfig,
    LacunaForCausalLM,
    LacunaForConditionalGeneration,
    LacunaForPreTraining,
    LacunaForSequenceClassification,
)
from lacuna.training import train
from lacuna.training.optimizers.optimizers import OPTIMIZERS, BankedMuon, orthogonalized, split_parameters

FLAT = StateDictOptions(full_state_dict=True, cpu_offload=True, flatten_optimizer_state_dict=True)
COEFFICIENTS = (3.4445, -4.7750, 2.0315)


@pytest.fixture(params=list(OPTIMIZERS))
def optimizer_name(request: pytest.FixtureRequest) -> str:
    return request.param


def names_of(model: nn.Module, parameters) -> set[str]:
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    return {names[id(parameter)] for parameter in parameters}


def test_rates_when_none_is_asked_for() -> None:
    assert {name: each.learning_rate for name, each in OPTIMIZERS.items()} == {"adamw": 1e-3, "muon": 6e-3}


def test_matrices_decay_and_embeddings_norms_and_biases_do_not(new_model) -> None:
    model = new_model()
    matrices, rest = split_parameters(model)
    expected = {
        name for name, parameter in model.named_parameters() if parameter.ndim == 2 and "embeddings" not in name
    }
    assert names_of(model, matrices) == expected  # the output layer is tied to an embedding and is none of them
    assert len(matrices) + len(rest) == len(list(model.parameters()))
    assert not names_of(model, matrices) & names_of(model, rest)


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize(
    "family, head",
    [
        ("bert", LacunaForPreTraining),
        ("modernbert", LacunaForPreTraining),
        ("gpt2", LacunaForCausalLM),
        ("llama", LacunaForCausalLM),
        ("qwen3", LacunaForCausalLM),
        ("bart", LacunaForConditionalGeneration),
        ("vaswani", LacunaForConditionalGeneration),
    ],
)
def test_of_lacuna_only_the_weights_of_linear_layers_decay(family, head, tied, options) -> None:
    """And Muon takes those between embeddings and output, even where the output is no embedding."""
    model = head(LacunaConfig.from_family(family, **SMALL, num_hidden_layers=1, tie_word_embeddings=tied))
    tables = {id(module.weight) for module in model.modules() if isinstance(module, nn.Embedding)}
    linear = {id(module.weight) for module in model.modules() if isinstance(module, nn.Linear)} - tables
    matrices, rest = split_parameters(model)
    assert {id(weight) for weight in matrices} == linear
    assert (id(model.get_output_embeddings().weight) in linear) is not tied
    kinds = {name for name in names_of(model, rest) if not name.endswith("bias")}
    assert kinds and all("embed" in name or "norm" in name for name in kinds), kinds
    _, muon = OPTIMIZERS["muon"].make(model, options())
    hidden = names_of(model, (weight for group in muon.param_groups for weight in group["params"]))
    output = {"lm_head.weight", "sentence_head.classifier.weight"}  # of which the second has two rows
    assert hidden == names_of(model, matrices) - output and len(hidden) >= 4


def test_frozen_weights_are_left_out(new_model) -> None:
    model = new_model()
    for parameter in model.bert.embeddings.parameters():
        parameter.requires_grad_(False)
    matrices, rest = split_parameters(model)
    assert not [name for name in names_of(model, [*matrices, *rest]) if "embeddings" in name]


def test_adamw_groups(new_model, options) -> None:
    (optimizer,) = OPTIMIZERS["adamw"].make(new_model(), options(weight_decay=0.3, adam_beta2=0.9))
    assert [group["weight_decay"] for group in optimizer.param_groups] == [0.3, 0.0]
    assert all(group["betas"] == (0.9, 0.9) and group["lr"] == 1e-2 for group in optimizer.param_groups)
    (single,) = OPTIMIZERS["adamw"].make(nn.LayerNorm(4), options())
    assert len(single.param_groups) == 1


def test_embeddings_learn_at_a_rate_of_their_own(new_model, options, optimizer_name) -> None:
    model = new_model(hidden_size=32, intermediate_size=64)
    names = {id(weight): name for name, weight in model.named_parameters()}
    optimizers = OPTIMIZERS[optimizer_name].make(model, options(embedding_rate=0.3, layerwise_decay=0.5))
    scales = {
        names[id(weight)]: group["rate_scale"]
        for one in optimizers
        for group in one.param_groups
        for weight in group["params"]
    }
    tables = {f"{name}.weight" for name, module in model.named_modules() if isinstance(module, nn.Embedding)}
    lowest = scales["bert.embeddings.LayerNorm.weight"]
    assert tables and {scales[name] for name in tables} == {0.3 * lowest} and 0 < lowest < 1
    assert all(scale in (0.5, 0.25, 0.125, 1.0) for name, scale in scales.items() if name not in tables)


def test_every_optimizer_moves_every_weight_once(new_model, options, optimizer_name) -> None:
    model = new_model(hidden_size=32, intermediate_size=64)
    optimizers = OPTIMIZERS[optimizer_name].make(model, options())
    held = [id(weight) for one in optimizers for group in one.param_groups for weight in group["params"]]
    assert sorted(held) == sorted(id(weight) for weight in model.parameters())
    before = {key: value.clone() for key, value in model.named_parameters()}
    model(input_ids=torch.arange(8)[None], labels=torch.arange(8)[None]).loss.backward()
    for optimizer in optimizers:
        optimizer.step()
    still = [key for key, value in model.named_parameters() if value.grad is None or torch.equal(value, before[key])]
    assert not [key for key in still if "key.bias" not in key]  # a bias of keys changes no attention


def test_weight_decay_shrinks_matrices_and_nothing_else(new_model, options, optimizer_name) -> None:
    """Without a gradient only decay moves a weight: each step takes rate x decay of it away."""
    model = new_model(hidden_size=32, intermediate_size=64)
    before = {name: weight.detach().clone() for name, weight in model.named_parameters()}
    for optimizer in OPTIMIZERS[optimizer_name].make(model, options(weight_decay=0.5, learning_rate=0.1)):
        for weight in model.parameters():
            weight.grad = torch.zeros_like(weight)
        optimizer.step()
    decayed = names_of(model, split_parameters(model)[0])
    for name, weight in model.named_parameters():
        torch.testing.assert_close(weight.detach(), before[name] * (0.95 if name in decayed else 1.0))


# ------------------------------------------------------------------------------------------------------ rates by layer


def scales_of(model: nn.Module, optimizers: list[Any]) -> dict[str, float]:
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    return {
        names[id(weight)]: group["rate_scale"]
        for optimizer in optimizers
        for group in optimizer.param_groups
        for weight in group["params"]
    }


SMALL = {"hidden_size": 32, "num_attention_heads": 2, "intermediate_size": 64, "vocab_size": 40}


@pytest.mark.parametrize("name", ["adamw", "muon"])
def test_rates_fall_from_the_head_to_the_embeddings(options, name) -> None:
    """Three layers by hand: the head and the pooler 1, layers 0.5, 0.25, 0.125 from above, embeddings 0.0625."""
    model = BertForSequenceClassification(BertConfig(**SMALL, num_hidden_layers=3))
    scales = scales_of(model, OPTIMIZERS[name].make(model, options(layerwise_decay=0.5)))
    assert scales.keys() == dict(model.named_parameters()).keys()
    for parameter, scale in scales.items():
        if parameter.startswith("bert.encoder.layer."):
            assert scale == 0.5 ** (3 - int(parameter.split(".")[3])), parameter
        else:
            assert scale == (0.0625 if ".embeddings." in parameter else 1.0), parameter
    off = OPTIMIZERS[name].make(model, options())
    assert set(scales_of(model, off).values()) == {1.0}
    assert len(off[0].param_groups) == 2 and all(len(one.param_groups) == 1 for one in off[1:])


@pytest.mark.parametrize(
    ("family", "head"),
    [
        ("lacuna", LacunaForSequenceClassification),
        ("bert", LacunaForSequenceClassification),
        ("qwen3", LacunaForCausalLM),
        ("bart", LacunaForConditionalGeneration),
        ("vaswani", LacunaForConditionalGeneration),
    ],
)
@pytest.mark.parametrize("tied", [True, False])
def test_rates_of_lacunas_own_models(options, family, head, tied) -> None:
    """Each stack for itself; all below it is slower than its lowest layer, all behind it as fast as the head."""
    model = head(LacunaConfig.from_family(family, **SMALL, num_hidden_layers=2, tie_word_embeddings=tied))
    scales = scales_of(model, OPTIMIZERS["adamw"].make(model, options(layerwise_decay=0.9)))
    layered = {name: int(match[1]) for name in scales if (match := re.search(r"layers\.(\d+)\.", name))}
    assert {layered[name] for name in layered} == {0, 1}
    for name, scale in scales.items():
        if name in layered:
            assert scale == pytest.approx(0.9 ** (2 - layered[name])), name
        else:
            assert scale == (pytest.approx(0.9**3) if "embed" in name else 1.0), name
    assert any("embed" in name for name in scales)


@pytest.mark.parametrize("kind", ["gpt2", "t5"])
def test_rates_of_models_with_other_names(options, kind) -> None:
    if kind == "gpt2":
        model = GPT2LMHeadModel(GPT2Config(n_embd=32, n_layer=2, n_head=2, vocab_size=40, tie_word_embeddings=False))
        expected = {"transformer.wte.weight": 0.125, "transformer.h.0.attn.c_attn.weight": 0.25}
        expected |= {"transformer.h.1.mlp.c_fc.bias": 0.5, "transformer.ln_f.weight": 1.0, "lm_head.weight": 1.0}
    else:
        config = T5Config(d_model=32, d_ff=64, d_kv=16, num_layers=2, num_decoder_layers=3, num_heads=2, vocab_size=40)
        model = T5ForConditionalGeneration(config)
        expected = {"shared.weight": 0.0625, "encoder.block.0.layer.0.SelfAttention.q.weight": 0.25}
        expected |= {"encoder.block.1.layer.0.SelfAttention.q.weight": 0.5}  # block.1.layer is a list of its own
        expected |= {"decoder.block.0.layer.0.SelfAttention.q.weight": 0.125, "decoder.final_layer_norm.weight": 1.0}
    scales = scales_of(model, OPTIMIZERS["adamw"].make(model, options(layerwise_decay=0.5)))
    assert {name: scales[name] for name in expected} == expected


def test_the_loop_multiplies_the_rate(new_model, new_work, plain_tokenizer, options) -> None:
    """The first step of AdamW moves each weight by its rate, whatever the gradient is."""
    model, start = new_model(), new_model()
    arguments = options(max_steps=1, learning_rate=0.01, schedule="constant", warmup_steps=0, weight_decay=0.0)
    arguments = replace(arguments, layerwise_decay=0.5, optimizer="adamw", max_grad_norm=0)
    train(model=model, work=new_work(), tokenizer=plain_tokenizer, arguments=arguments)
    moved = {
        name: float((weight - first).abs().max().detach())
        for (name, weight), first in zip(model.named_parameters(), start.parameters(), strict=True)
    }
    assert moved["cls.predictions.transform.dense.weight"] == pytest.approx(0.01, rel=1e-3)
    assert moved["bert.encoder.layer.1.output.dense.weight"] == pytest.approx(0.005, rel=1e-3)
    assert moved["bert.encoder.layer.0.output.dense.weight"] == pytest.approx(0.0025, rel=1e-3)
    assert moved["bert.embeddings.word_embeddings.weight"] == pytest.approx(0.00125, rel=1e-3)


@pytest.mark.parametrize("value", [0, -0.1, 1.1, math.nan])
def test_a_decay_that_is_no_share_is_refused(options, value) -> None:
    with pytest.raises(InputError, match="--layerwise_decay must be above 0 and at most 1"):
        options(layerwise_decay=value)


def gradients_of(step: int, shape: tuple[int, ...]) -> Tensor:
    generator = torch.Generator().manual_seed(step)
    return torch.randn(shape, generator=generator, dtype=torch.float64) * 10.0 ** (step % 3 - 1)


# --------------------------------------------------------------------------------------------------------------- Muon


@pytest.mark.parametrize("shape", [(48, 48), (48, 96), (96, 48)])
def test_orthogonalized_has_singular_values_near_one_and_keeps_their_vectors(shape) -> None:
    torch.manual_seed(0)
    bank = torch.randn(3, *shape)
    bank[1] *= 1e-4  # each matrix is scaled for itself
    found = orthogonalized(bank, coefficients=COEFFICIENTS)
    assert found.dtype == bank.dtype and found.shape == bank.shape
    for matrix, result in zip(bank, found, strict=True):
        left, values, right = torch.linalg.svd(matrix, full_matrices=False)
        within = torch.diagonal(left.T @ result @ right.T)
        large = values > 0.05 * values.max()  # below, five iterations do not reach 1
        assert within[large].min() > 0.6 and within.max() < 1.3
        torch.testing.assert_close(left @ torch.diag(within) @ right, result, rtol=0, atol=0.02)


@pytest.mark.parametrize(("fast", "most"), [(True, 0.05), (False, 1e-5)])
def test_orthogonalized_is_exact_where_bf16_is_only_emulated(monkeypatch, fast: bool, most: float) -> None:
    monkeypatch.setattr("lacuna.training.optimizers.optimizers.bf16_is_fast", lambda: fast)
    bank = gradients_of(0, (3, 48, 96))
    found, exact = orthogonalized(bank.float(), coefficients=COEFFICIENTS), bank / bank.norm(dim=(1, 2), keepdim=True)
    a, b, c = COEFFICIENTS
    for _ in range(5):
        squares = exact @ exact.mT
        exact = a * exact + (b * squares + c * squares @ squares) @ exact
    error = float((found - exact).abs().max())
    assert found.dtype == torch.float32 and error < most and (error > 1e-4) == fast


def test_muon_in_banks_is_torchs_muon() -> None:
    """Ten steps on matrices of three shapes, one of which lacks a gradient at times."""
    torch.manual_seed(0)
    shapes = [(32, 64), (64, 32), (32, 64), (64, 64), (64, 32), (32, 64)]
    start = [torch.randn(shape) * 0.1 for shape in shapes]
    ours, theirs = ([nn.Parameter(matrix.clone()) for matrix in start] for _ in range(2))
    options = {"lr": 0.01, "weight_decay": 0.1}
    banked, torchs = BankedMuon(ours, **options), torch.optim.Muon(theirs, adjust_lr_fn="match_rms_adamw", **options)
    for step in range(10):
        for number, (one, other) in enumerate(zip(ours, theirs, strict=True)):
            has_none = number == 2 and step % 3 == 1
            one.grad = None if has_none else gradients_of(step * 10 + number, tuple(one.shape)).float()
            other.grad = None if has_none else one.grad.clone()
        banked.step()
        torchs.step()
    for one, other, first in zip(ours, theirs, start, strict=True):
        moved = (other - first).norm()
        assert (one - other).norm() < 0.01 * moved
        torch.testing.assert_close(
            banked.state[one]["momentum_buffer"], torchs.state[other]["momentum_buffer"], rtol=1e-6, atol=1e-7
        )


def test_banks_are_as_large_as_memory_allows(monkeypatch) -> None:
    torch.manual_seed(0)
    weights = [nn.Parameter(torch.randn(32, 32)) for _ in range(5)]
    for weight in weights:
        weight.grad = torch.randn(32, 32)
    seen: list[tuple[int, ...]] = []

    def note(bank: Tensor, **_: Any) -> Tensor:
        seen.append(tuple(bank.shape))
        return bank

    monkeypatch.setattr("lacuna.training.optimizers.optimizers.orthogonalized", note)
    monkeypatch.setattr("lacuna.training.optimizers.optimizers._BANK_NUMBERS", 2 * 32 * 32)
    BankedMuon(weights, lr=0.1).step()
    assert seen == [(2, 32, 32), (2, 32, 32), (1, 32, 32)]


# ------------------------------------------------------------------------------------------------------------- resume


def train_steps(model: nn.Module, optimizers: list[torch.optim.Optimizer], steps: range) -> None:
    for step in steps:
        ids = torch.randint(5, 40, (4, 12), generator=torch.Generator().manual_seed(step))
        for group in (group for optimizer in optimizers for group in optimizer.param_groups):
            group["lr"] = 1e-2 / (step + 1) * group["rate_scale"]
        model(input_ids=ids, labels=ids).loss.backward()
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()


def flat_state(model: nn.Module, optimizers: list[Any], fresh_model: nn.Module, fresh: list[Any]) -> None:
    """By name, through safetensors and JSON, as a checkpoint is written and read."""
    state = get_optimizer_state_dict(model, optimizers, options=FLAT)
    tensors = {name: value.contiguous() for name, value in state.items() if isinstance(value, Tensor)}
    numbers = json.dumps({name: value for name, value in state.items() if name not in tensors})
    back = {name: tuple(value) if isinstance(value, list) else value for name, value in json.loads(numbers).items()}
    back |= load(save(tensors))
    set_optimizer_state_dict(fresh_model, fresh, back, options=StateDictOptions(flatten_optimizer_state_dict=True))


def tensors_alone(model: nn.Module, optimizers: list[Any], fresh_model: nn.Module, fresh: list[Any]) -> None:
    """Only what the state of weights holds; options come from the new run."""
    for one, other in zip(optimizers, fresh, strict=True):
        state = one.state_dict()["state"]
        assert all(isinstance(value, Tensor) for of_weight in state.values() for value in of_weight.values())
        kept = {number: {key: value.clone() for key, value in of.items()} for number, of in state.items()}
        other.load_state_dict({"state": kept, "param_groups": other.state_dict()["param_groups"]})


@pytest.mark.parametrize("decay", [1.0, 0.8])
@pytest.mark.parametrize("carry", [flat_state, tensors_alone])
def test_a_stopped_run_goes_on_to_the_bit(
    new_model, options, optimizer_name, carry: Callable[..., None], decay
) -> None:
    sizes = {"hidden_size": 32, "intermediate_size": 64}
    arguments = options(max_steps=8, layerwise_decay=decay)
    whole = new_model(**sizes)
    train_steps(whole, OPTIMIZERS[optimizer_name].make(whole, arguments), range(8))

    stopped = new_model(**sizes)
    optimizers = OPTIMIZERS[optimizer_name].make(stopped, arguments)
    train_steps(stopped, optimizers, range(3))
    resumed = new_model(**sizes, seed=1)
    fresh = OPTIMIZERS[optimizer_name].make(resumed, arguments)
    resumed.load_state_dict(stopped.state_dict())
    carry(stopped, optimizers, resumed, fresh)
    train_steps(resumed, fresh, range(3, 8))
    for (name, weight), (_, expected) in zip(resumed.named_parameters(), whole.named_parameters(), strict=True):
        assert torch.equal(weight, expected), name
