"""The fast attention of a CPU beside the plain one, and who gets which."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from lacuna.modeling import LacunaConfig, LacunaForCausalLM, LacunaForMaskedLM
from lacuna.modeling.attention_lacuna import eager_attention_forward
from lacuna.modeling.kernels_lacuna import DenseAttention, as_bias, fused_attention_forward, ready_mask


class Layer(nn.Module):
    """What attention functions ask of the module that calls them."""

    def __init__(self, *, groups: int = 1, is_causal: bool = False) -> None:
        super().__init__()
        self.num_key_value_groups, self.is_causal = groups, is_causal


def states(*shape: int, dtype: torch.dtype) -> Tensor:
    """Random states that want a gradient, laid out as projections leave them: [B, T, H, D] seen as [B, H, T, D]."""
    rows, heads, length, size = shape
    made = torch.randn(rows, length, heads, size, dtype=torch.float64).to(dtype).transpose(1, 2)
    return made.detach().requires_grad_()


def gradients(function: Callable[..., Any], inputs: list[Tensor], weights: Tensor) -> list[Tensor]:
    """Output and gradients, in float64."""
    output = function(*inputs)
    found = torch.autograd.grad((output * weights).sum(), inputs)
    return [tensor.detach().double() for tensor in (output, *found)]


def written_out(query: Tensor, key: Tensor, value: Tensor, seen: Tensor | None, scaling: float) -> Tensor:
    """softmax(Q K^T) V from its definition."""
    scores = query @ key.mT * scaling
    return (scores if seen is None else scores.masked_fill(~seen, -torch.inf)).softmax(-1) @ value


@pytest.mark.parametrize(
    ("rows", "heads", "length", "seen", "size"), [(2, 3, 5, 5, 4), (1, 2, 4, 7, 6), (3, 1, 1, 1, 2)]
)
@pytest.mark.parametrize("masked", [False, True])
def test_dense_attention_and_its_gradients_follow_the_definition(
    rows: int, heads: int, length: int, seen: int, size: int, masked: bool
) -> None:
    torch.manual_seed(0)
    shapes = [(rows, heads, length, size), (rows, heads, seen, size), (rows, heads, seen, size)]
    inputs = [states(*shape, dtype=torch.float64) for shape in shapes]
    visible = (torch.rand(rows, 1, length, seen) < 0.6) | (torch.arange(seen) == 0) if masked else None
    weights = torch.randn(rows, heads, length, size, dtype=torch.float64)
    bias = None if visible is None else as_bias(visible, torch.float64)

    fast = gradients(lambda *given: DenseAttention.apply(*given, bias, 0.3), inputs, weights)
    plain = gradients(lambda *given: written_out(*given, visible, 0.3), inputs, weights)
    for ours, theirs in zip(fast, plain, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-12)


@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("masked", [False, True])
def test_the_fast_way_agrees_with_the_plain_one_in_bf16(groups: int, is_causal: bool, masked: bool) -> None:
    torch.manual_seed(1)
    layer = Layer(groups=groups, is_causal=is_causal)
    inputs = [states(2, heads, 48, 16, dtype=torch.bfloat16) for heads in (4, 4 // groups, 4 // groups)]
    visible = torch.rand(2, 1, 48, 48) < 0.7
    visible |= torch.eye(48, dtype=torch.bool)
    causal = torch.ones(48, 48, dtype=torch.bool).tril()
    mask = (visible & causal if is_causal else visible) if masked else None
    plain_mask = causal.expand(2, 1, 48, 48) if is_causal and not masked else mask
    weights = torch.randn(2, 48, 4, 16).bfloat16()

    fast = gradients(lambda *given: fused_attention_forward(layer, *given, mask, 0.25)[0], inputs, weights)
    exact = [tensor.detach().double().requires_grad_() for tensor in inputs]
    plain = gradients(
        lambda *given: eager_attention_forward(layer, *given, plain_mask, 0.25)[0], exact, weights.double()
    )
    for ours, theirs in zip(fast, plain, strict=True):
        assert (ours - theirs).norm() < 0.02 * theirs.norm()


def test_rows_that_see_nothing_stay_finite() -> None:
    inputs = [states(1, 1, 3, 4, dtype=torch.bfloat16) for _ in range(3)]
    mask = torch.zeros(1, 1, 3, 3, dtype=torch.bool)
    for found in gradients(
        lambda *given: fused_attention_forward(Layer(), *given, mask, 0.5)[0], inputs, torch.ones(1)
    ):
        assert found.isfinite().all()


@pytest.mark.parametrize("reason", ["float32", "long", "dropout", "no gradient"])
def test_torch_does_the_rest(reason: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(DenseAttention, "forward", lambda *_: pytest.fail("this is torch's to compute"))
    length = 520 if reason == "long" else 8
    inputs = [
        states(1, 1, length, 4, dtype=torch.float32 if reason == "float32" else torch.bfloat16) for _ in range(3)
    ]
    with torch.set_grad_enabled(reason != "no gradient"):
        dropout = 0.1 if reason == "dropout" else 0.0
        output, weights = fused_attention_forward(Layer(), *inputs, None, 0.5, dropout=dropout)
    assert output.shape == (1, length, 1, 4) and weights is None


@torch.no_grad()
def test_many_short_rows_are_read_densely(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in pseudo-log-likelihood, for which torch's kernel is slow."""
    query, key, value = (states(40, 2, 12, 4, dtype=torch.bfloat16) for _ in range(3))
    expected = eager_attention_forward(Layer(), query.double(), key.double(), value.double(), None, 0.5)[0]
    monkeypatch.setattr("lacuna.modeling.kernels_lacuna.sdpa_attention_forward", lambda *_, **__: pytest.fail("slow"))
    found, _ = fused_attention_forward(Layer(), query, key, value, None, 0.5)
    torch.testing.assert_close(found.double(), expected, atol=0.02, rtol=0.02)


def test_masks_are_made_ready_for_training_in_bf16_alone() -> None:
    config = LacunaConfig.from_family("modernbert", vocab_size=64)
    config._attn_implementation = "sdpa"
    mask, hidden_states = torch.ones(2, 1, 6, 6, dtype=torch.bool).tril(), torch.zeros(2, 6, 8)
    assert ready_mask(mask, hidden_states, config=config) is mask
    with torch.no_grad():
        assert ready_mask(mask, hidden_states.bfloat16(), config=config) is mask
    ready = ready_mask(mask, hidden_states.bfloat16(), config=config)
    assert ready.shape == (2, config.num_attention_heads, 6, 6) and ready.dtype == torch.bfloat16
    assert torch.equal(ready[:, 0] == 0, mask[:, 0])
    config._attn_implementation = "eager"
    assert ready_mask(mask, hidden_states.bfloat16(), config=config) is mask


@pytest.mark.parametrize("family", ["modernbert", "bert", "qwen3"])
@pytest.mark.parametrize("packed", [False, True])
def test_a_model_trains_alike_by_both_ways(family: str, packed: bool) -> None:
    torch.manual_seed(2)
    config = LacunaConfig.from_family(
        family, vocab_size=96, hidden_size=32, num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2,
        head_dim=8, intermediate_size=48, sliding_window=4, hidden_dropout=0.0, attention_dropout=0.0,
        embedding_dropout=0.0,
    )  # fmt: skip
    model = (LacunaForCausalLM if family == "qwen3" else LacunaForMaskedLM)(config).train()
    ids = torch.randint(5, 96, (3, 24))
    positions = torch.cat([torch.arange(9), torch.arange(15)]).expand(3, -1)
    batch = {"input_ids": ids, "labels": ids, **({"position_ids": positions} if packed else {})}
    found = {}
    for way in ("eager", "sdpa"):
        model.set_attn_implementation(way)
        model.zero_grad()
        with torch.autocast("cpu", torch.bfloat16):
            loss = model(**batch).loss
        loss.backward()
        found[way] = loss.item(), torch.cat([weight.grad.flatten() for weight in model.parameters()])
    assert found["sdpa"][0] == pytest.approx(found["eager"][0], rel=1e-3)
    difference = found["sdpa"][1] - found["eager"][1]
    assert difference.norm() < 0.03 * found["eager"][1].norm()
