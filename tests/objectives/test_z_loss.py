"""The z-loss against sums written out, for every objective, with Lacuna's models and with those of transformers."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from transformers import (
    BartConfig,
    BartForConditionalGeneration,
    BertConfig,
    BertForMaskedLM,
    BertForPreTraining,
    GPT2Config,
    GPT2LMHeadModel,
)

from lacuna.common.errors import InputError
from lacuna.modeling import (
    LacunaConfig,
    LacunaForCausalLM,
    LacunaForConditionalGeneration,
    LacunaForMaskedLM,
    LacunaForPreTraining,
)
from lacuna.objectives import IGNORED, OBJECTIVES, ObjectiveArguments
from lacuna.objectives.base import summed_z_loss

SMALL = {"vocab_size": 64, "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
SMALL |= {"intermediate_size": 32, "initializer_range": 0.5}
WEIGHT = 0.01
LACUNA = {
    "mlm": ("modernbert", LacunaForMaskedLM),
    "mlm_nsp": ("bert", LacunaForPreTraining),
    "mlm_sop": ("modernbert", LacunaForPreTraining),
    "clm": ("qwen3", LacunaForCausalLM),
    "hybrid": ("qwen3", LacunaForCausalLM),
    "denoising": ("bart", LacunaForConditionalGeneration),
}
CASES = [*((name, "lacuna") for name in LACUNA), *((name, "native") for name in LACUNA if name != "hybrid")]


def model_for(name: str, origin: str) -> Any:
    torch.manual_seed(0)
    if origin == "lacuna":
        family, head = LACUNA[name]
        options = {f"{place}_dropout": 0.0 for place in ("embedding", "hidden", "attention", "activation")}
        return head(LacunaConfig.from_family(family, **SMALL, **options, hybrid=name == "hybrid"))
    none = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    if name == "clm":
        config = GPT2Config(vocab_size=64, n_embd=16, n_layer=1, n_head=2, resid_pdrop=0, embd_pdrop=0, attn_pdrop=0)
        return GPT2LMHeadModel(config)
    if name == "denoising":
        sizes = {f"{side}_{what}": 2 for side in ("encoder", "decoder") for what in ("layers", "attention_heads")}
        sizes |= {"encoder_ffn_dim": 32, "decoder_ffn_dim": 32, "d_model": 16, "vocab_size": 64, "dropout": 0.0}
        return BartForConditionalGeneration(BartConfig(**sizes, max_position_embeddings=64, init_std=0.5))
    return (BertForMaskedLM if name == "mlm" else BertForPreTraining)(BertConfig(**SMALL, **none))


@pytest.fixture(scope="module")
def make(store_of, parts):
    generator = np.random.default_rng(3)
    lengths = [generator.integers(1, 15, size=generator.integers(1, 12)) for _ in range(30)]
    store = store_of([[generator.integers(5, 60, size=size).tolist() for size in document] for document in lengths])

    def make(name: str, origin: str, **overrides: Any):
        packing = "none" if origin == "native" else "concatenate"
        return OBJECTIVES[name](**parts(store, objective=name, packing=packing, **overrides))

    return make


def targets_of(work: Any, batch: dict[str, Tensor]) -> dict[str, Tensor]:
    return {key: torch.tensor(count) for key, count in work.count_targets(batch).items()}


def slow_mean(model: Any, batch: dict[str, Tensor], *, shift: int) -> float:
    """Mean over targets of log(sum of exp)^2, row by row, with the logits of every position."""
    squares = []
    for row in range(len(batch["labels"])):
        part = {name: value[row : row + 1] for name, value in batch.items()}
        labels = part.pop("labels")[0].tolist()
        part.pop("next_sentence_label", None)
        if "is_causal" in part:
            part["is_causal"] = bool(part["is_causal"][0])
        with torch.no_grad():
            output = model(**part)
        logits = output.get("prediction_logits", output.get("logits"))[0].double().tolist()
        for place in range(shift, len(labels)):
            if labels[place] != IGNORED:
                squares.append(math.log(sum(map(math.exp, logits[place - shift]))) ** 2)
    return sum(squares) / len(squares)


def test_by_hand() -> None:
    """Logits (0, 0) have log Z = log 2, and (log 1, log 3) log 4; the third position is no target."""
    logits = torch.tensor([[[0.0, 0.0], [0.0, math.log(3)], [9.0, 9.0]]])
    labels = torch.tensor([[1, 0, IGNORED]])
    expected = math.log(2) ** 2 + math.log(4) ** 2
    assert float(summed_z_loss(logits, labels)) == pytest.approx(expected)
    assert float(summed_z_loss(logits[0, :2], labels)) == pytest.approx(expected)  # of targets only
    assert summed_z_loss(logits[0, :2].bfloat16(), labels).dtype == torch.float32


@pytest.mark.parametrize("name, origin", CASES)
def test_it_is_the_mean_over_targets_and_the_other_metrics_stay(make, name, origin) -> None:
    model = model_for(name, origin)
    plain, work = make(name, origin), make(name, origin, z_loss=WEIGHT)
    batch = work.collate([work.example(row, row) for row in range(8)])
    targets = targets_of(work, batch)
    without, parts = plain.loss(model, dict(batch), targets)
    loss, with_it = work.loss(model, dict(batch), targets)
    expected = WEIGHT * slow_mean(model.eval(), batch, shift=int(name in ("clm", "hybrid")))
    assert float(with_it.pop("z_loss")) == pytest.approx(expected, rel=1e-5)
    assert loss.item() == pytest.approx(without.item() + expected, rel=1e-5)
    assert set(with_it) == set(parts)
    for key, value in parts.items():  # without a z-loss the losses are made without logits
        torch.testing.assert_close(with_it[key], value, rtol=1e-5, atol=0)


@pytest.mark.parametrize("name, origin", CASES)
def test_micro_batches_change_neither_it_nor_the_gradient(make, name, origin) -> None:
    model, work = model_for(name, origin), make(name, origin, z_loss=WEIGHT)
    examples = [work.example(row, row) for row in range(8)]
    targets = targets_of(work, work.collate(examples))
    found = []
    for cuts in ([slice(0, 8)], [slice(0, 3), slice(3, 4), slice(4, 8)]):
        model.zero_grad()
        pieces = [work.loss(model, work.collate(examples[cut]), targets) for cut in cuts]
        for loss, _ in pieces:
            loss.backward()
        gradients = {key: weight.grad for key, weight in model.named_parameters() if weight.grad is not None}
        found.append((sum(float(part["z_loss"]) for _, part in pieces), gradients))
    (whole, gradients), (summed, in_parts) = found
    assert summed == pytest.approx(whole, rel=1e-5)
    for key, gradient in gradients.items():
        torch.testing.assert_close(in_parts[key], gradient, rtol=1e-4, atol=1e-5)


def test_its_gradient_lowers_log_z(make) -> None:
    """d/dx of w log(Z)^2 is 2 w log(Z) softmax(x), here of a bias that all positions share."""
    model, work = model_for("clm", "lacuna"), make("clm", "lacuna", z_loss=1.0)
    shift = torch.zeros(64, requires_grad=True)
    model.lm_head.register_forward_hook(lambda module, inputs, output: output + shift)
    batch = work.collate([work.example(row, row) for row in range(4)])
    targets = targets_of(work, batch)
    plain = make("clm", "lacuna").loss(model, dict(batch), targets)[0]
    (difference,) = torch.autograd.grad(work.loss(model, dict(batch), targets)[0] - plain, shift)
    with torch.no_grad():
        inputs = {name: value for name, value in batch.items() if name != "labels"}
        logits = model(**inputs).logits[:, :-1][batch["labels"][:, 1:] != IGNORED]
    expected = (2 * logits.logsumexp(-1, keepdim=True) * logits.softmax(-1)).mean(0)
    torch.testing.assert_close(difference, expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("name", list(LACUNA))
def test_without_a_weight_nothing_is_computed(make, name, monkeypatch) -> None:
    monkeypatch.setattr("lacuna.objectives.base.summed_z_loss", None)
    work = make(name, "lacuna")
    batch = work.collate([work.example(row, row) for row in range(4)])
    _, parts = work.loss(model_for(name, "lacuna"), batch, targets_of(work, batch))
    assert "z_loss" not in parts


@pytest.mark.parametrize("weight", [-1e-4, math.inf, math.nan])
def test_a_weight_that_means_nothing_is_refused(weight) -> None:
    with pytest.raises(InputError, match="--z_loss must not be negative"):
        ObjectiveArguments(z_loss=weight)
