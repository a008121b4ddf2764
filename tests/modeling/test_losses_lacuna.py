"""The loss whose gradients are made with it, beside the plain one."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from lacuna.modeling import LacunaConfig, LacunaForCausalLM, LacunaForMaskedLM, losses_lacuna
from lacuna.modeling.losses_lacuna import IGNORED, chunked_cross_entropy, cross_entropy, linear_cross_entropy

VOCAB, SIZE = 37, 12


def make(*, with_bias: bool, targets: int = 20, dtype: torch.dtype = torch.float64) -> dict[str, Any]:
    """States, labels (some of them ignored), weight and bias."""
    torch.manual_seed(targets)
    labels = torch.randint(0, VOCAB, (targets,))
    labels[::3] = IGNORED
    drawn = [torch.randn(targets, SIZE), torch.randn(VOCAB, SIZE), torch.randn(VOCAB)]
    states, weight, bias = (tensor.to(dtype).requires_grad_() for tensor in drawn)
    return {"states": states, "labels": labels, "weight": weight, "bias": bias if with_bias else None}


def project(given: dict[str, Any], states: Tensor | None = None) -> Tensor:
    """Logits by the book."""
    return nn.functional.linear(given["states"] if states is None else states, given["weight"], given["bias"])


def found(loss: Tensor, given: dict[str, Any]) -> list[Tensor]:
    """Loss and gradients."""
    inputs = [given[name] for name in ("states", "weight", "bias") if given[name] is not None]
    return [loss.detach(), *torch.autograd.grad(loss, inputs)]


@pytest.mark.parametrize("with_bias", [False, True])
@pytest.mark.parametrize("chunk", [1, 7, 1000])
def test_loss_and_gradients_are_those_of_the_plain_way(
    with_bias: bool, chunk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(losses_lacuna, "_CHUNK_LOGITS", chunk * VOCAB)
    given = make(with_bias=with_bias)
    ours = linear_cross_entropy(
        given["states"], given["labels"], weight=given["weight"], bias=given["bias"], num_items=5
    )
    plain = cross_entropy(project(given), given["labels"], num_items=5)
    general = chunked_cross_entropy(
        given["states"], given["labels"], project=lambda states: project(given, states), vocab_size=VOCAB,
        num_items=5,
    )  # fmt: skip
    expected = found(plain, given)
    for loss in (ours, general):
        for mine, theirs in zip(found(loss, given), expected, strict=True):
            torch.testing.assert_close(mine.double(), theirs.double(), rtol=2e-6, atol=2e-6)


def test_a_gpu_makes_more_logits_at_a_time() -> None:
    """With as few as a CPU, adding up their gradients takes a GPU longer than making them."""
    rows = [losses_lacuna._rows_of_chunk(torch.empty(1, device=device), 2**15) for device in ("cpu", "meta")]
    assert rows == [2**9, 2**13]


def test_without_a_target_nothing_is_learned() -> None:
    given = make(with_bias=True)
    labels = torch.full_like(given["labels"], IGNORED)
    loss = linear_cross_entropy(given["states"], labels, weight=given["weight"], bias=given["bias"])
    assert [float(tensor.abs().sum()) for tensor in found(loss, given)] == [0.0] * 4


def test_what_goes_back_is_scaled_by_what_comes_back() -> None:
    given = make(with_bias=True, dtype=torch.float32)

    def loss(factor: float) -> list[Tensor]:
        made = linear_cross_entropy(given["states"], given["labels"], weight=given["weight"], bias=given["bias"])
        return found(factor * made, given)

    for once, thrice in zip(loss(1.0), loss(3.0), strict=True):
        torch.testing.assert_close(3 * once, thrice)


def test_in_bf16_gradients_of_many_chunks_are_added_in_float32(monkeypatch: pytest.MonkeyPatch) -> None:
    given = make(with_bias=False, targets=3000, dtype=torch.float32)
    exact = found(cross_entropy(project(given, None), given["labels"]), given)
    monkeypatch.setattr(losses_lacuna, "_CHUNK_LOGITS", 10 * VOCAB)
    with torch.autocast("cpu", torch.bfloat16):
        loss = linear_cross_entropy(given["states"], given["labels"], weight=given["weight"], bias=None)
    ours = found(loss, given)
    assert ours[2].dtype == torch.float32
    for mine, theirs in zip(ours, exact, strict=True):
        assert (mine - theirs).norm() < 0.01 * theirs.norm()


def test_a_label_outside_the_vocabulary_is_named() -> None:
    given = make(with_bias=False)
    given["labels"][1] = VOCAB
    with pytest.raises(ValueError, match=f"labels contains {VOCAB}, and vocab_size={VOCAB} allows"):
        linear_cross_entropy(given["states"], given["labels"], weight=given["weight"], bias=None)


class Projection(nn.Linear):
    """A head that is more than a matrix, as adapters make it."""


@pytest.mark.parametrize("head", [LacunaForMaskedLM, LacunaForCausalLM])
@pytest.mark.parametrize("is_plain", [True, False])
def test_models_make_the_same_loss_without_logits(head: Any, is_plain: bool) -> None:
    torch.manual_seed(0)
    family = "modernbert" if head is LacunaForMaskedLM else "qwen3"
    config = LacunaConfig.from_family(
        family, vocab_size=64, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=2,
        head_dim=8, intermediate_size=24,
    )  # fmt: skip
    model = head(config).train()
    if not is_plain:
        model.lm_head.__class__ = Projection
    ids = torch.randint(5, 64, (2, 10))
    labels = ids.masked_fill(torch.rand(2, 10) < 0.5, IGNORED)
    losses, kept = [], []
    for skip_logits in (False, True):
        model.zero_grad()
        output = model(input_ids=ids, labels=labels, skip_logits=skip_logits, num_items_in_batch=7)
        assert (output.logits is None) == skip_logits
        output.loss.backward()
        losses.append(output.loss.item())
        kept.append(torch.cat([weight.grad.flatten() for weight in model.parameters()]))
    assert losses[0] == pytest.approx(losses[1], rel=1e-6)
    torch.testing.assert_close(kept[0], kept[1], rtol=1e-4, atol=1e-6)
