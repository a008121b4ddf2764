"""Hybrid decoders: one set of weights that hides the future or sees the whole text."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import (
    AttentionInterface,
    AttentionMaskInterface,
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForMaskedLM,
    AutoModelForSequenceClassification,
)

from lacuna.modeling import (
    ConfigurationError,
    ConversionError,
    LacunaConfig,
    LacunaForCausalLM,
    LacunaForMaskedLM,
    to_native,
)

SMALL = {
    "vocab_size": 64,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "max_position_embeddings": 32,
}
FAMILIES = ["qwen3", "gpt2", "llama"]


def make(family: str, *, hybrid: bool = True, implementation: str = "sdpa") -> LacunaForCausalLM:
    sizes = {**SMALL, "num_key_value_heads": 2, "head_dim": 16, "intermediate_size": 48}
    config = LacunaConfig.from_family(family, hybrid=hybrid, initializer_range=0.2, **sizes)
    torch.manual_seed(0)
    model = LacunaForCausalLM(config).eval()
    model.set_attn_implementation(implementation)
    return model


def ids(rows: int = 2, length: int = 12) -> Tensor:
    return torch.randint(5, 64, (rows, length), generator=torch.Generator().manual_seed(1))


@torch.no_grad()
@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
@pytest.mark.parametrize("family", FAMILIES)
def test_the_future_is_hidden_only_when_asked(family: str, implementation: str) -> None:
    model, plain = make(family, implementation=implementation), make(family, hybrid=False)
    before, after = ids(), ids()
    after[:, -1] = (after[:, -1] + 1) % 64
    torch.testing.assert_close(model(before).logits, plain(before).logits, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(model(before).logits[:, :-1], model(after).logits[:, :-1], atol=1e-6, rtol=0)
    seen = (model(before, is_causal=False).logits - model(after, is_causal=False).logits).abs().amax(dim=-1)
    assert (seen > 1e-3).all(), "every position sees the last token"


@torch.no_grad()
@pytest.mark.parametrize("family", FAMILIES)
def test_a_document_of_a_packed_row_reads_as_alone(family: str) -> None:
    model = make(family)
    first, second = ids(1, 7), ids(1, 9).flip(1)
    row = torch.cat((first, second), dim=1)
    positions = torch.cat((torch.arange(7), torch.arange(9)))[None]
    packed = model(row, position_ids=positions, is_causal=False).logits
    alone = torch.cat([model(part, is_causal=False).logits for part in (first, second)], dim=1)
    torch.testing.assert_close(packed, alone, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("family", FAMILIES)
def test_one_checkpoint_serves_as_decoder_and_as_encoder(family: str, tmp_path: Path) -> None:
    decoder = make(family)
    decoder.save_pretrained(tmp_path)
    encoder = AutoModelForMaskedLM.from_pretrained(tmp_path).eval()
    assert isinstance(encoder, LacunaForMaskedLM)
    assert encoder.lm_head.weight.data_ptr() == encoder.get_input_embeddings().weight.data_ptr() or not (
        decoder.config.tie_word_embeddings
    )
    masked = ids()
    labels = torch.full_like(masked, -100)
    labels[:, 3], labels[:, 8] = masked[:, 3], masked[:, 8]
    with torch.no_grad():
        shifted = decoder(masked, is_causal=False, labels=labels)
        dense = encoder(masked, labels=labels, sparse_prediction=False)
        sparse = encoder(masked, labels=labels, sparse_prediction=True)
    torch.testing.assert_close(dense.logits[:, 1:], shifted.logits[:, :-1])
    torch.testing.assert_close(dense.loss, shifted.loss)
    torch.testing.assert_close(sparse.loss, shifted.loss)
    torch.testing.assert_close(sparse.logits, dense.logits[labels != -100])

    writer = AutoModelForCausalLM.from_pretrained(tmp_path).eval()
    greedy = {"max_new_tokens": 4, "do_sample": False, "eos_token_id": None}
    assert torch.equal(writer.generate(masked, **greedy), make(family, hybrid=False).generate(masked, **greedy))
    with torch.no_grad():
        states = AutoModel.from_pretrained(tmp_path)(masked).last_hidden_state
        expected = decoder.model(masked, is_causal=False).last_hidden_state
        torch.testing.assert_close(states, expected)
        classifier = AutoModelForSequenceClassification.from_pretrained(tmp_path).eval()
        torch.testing.assert_close(classifier.model(masked).last_hidden_state, expected)


@torch.no_grad()
def test_attention_functions_are_told() -> None:
    """Flash kernels get no mask: they hide the future unless they are told not to."""
    told = []

    def attend(module: Any, query: Tensor, *rest: Any, is_causal: bool | None = None, **kwargs: Any) -> Any:
        told.append(module.is_causal if is_causal is None else is_causal)
        return query.transpose(1, 2), None

    AttentionInterface.register("telling", attend)
    AttentionMaskInterface.register("telling", lambda *args, **kwargs: None)
    model = make("qwen3", implementation="telling")
    model(ids()), model(ids(), is_causal=False)
    assert told == [True, True, False, False]


def test_what_cannot_be_is_refused() -> None:
    model, plain = make("qwen3"), make("qwen3", hybrid=False)
    with pytest.raises(ValueError, match="hybrid is False"):
        plain(ids(), is_causal=False)
    cache = model(ids(), use_cache=True).past_key_values
    with pytest.raises(ValueError, match="past_key_values is for generation"):
        model(ids(), is_causal=False, past_key_values=cache)
    assert model(ids(), is_causal=False, use_cache=True).past_key_values is None
    with pytest.raises(ConfigurationError, match="LacunaForMaskedLM needs shape='encoder'"):
        LacunaForMaskedLM(plain.config)
    for wrong in (
        {"shape": "encoder"},
        {"shape": "decoder", "layer_types": ["sliding_attention"] * 2, "sliding_window": 4},
    ):
        with pytest.raises(ConfigurationError, match="hybrid=True needs shape='decoder' with full attention"):
            LacunaConfig(hybrid=True, **SMALL, **wrong)


def test_it_leaves_for_a_native_model_as_the_decoder_that_it_also_is(tmp_path: Path) -> None:
    model = make("qwen3")
    with pytest.raises(ConversionError, match="hybrid"):
        to_native(model)
    model.save_pretrained(tmp_path)
    decoder = LacunaForCausalLM.from_pretrained(tmp_path, hybrid=False).eval()
    with torch.no_grad():
        torch.testing.assert_close(to_native(decoder).eval()(ids()).logits, model(ids()).logits, atol=1e-5, rtol=1e-5)
