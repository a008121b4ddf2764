"""Corners that fresh eyes found: each was wrong once."""

from typing import Any

import pytest
import torch
from torch import Tensor

from lacuna import modeling
from lacuna.modeling import (
    ConfigurationError,
    LacunaConfig,
    LacunaForCausalLM,
    LacunaForConditionalGeneration,
    LacunaModel,
)

SMALL = {
    "vocab_size": 67, "hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4, "head_dim": 8,
    "intermediate_size": 48, "max_position_embeddings": 64, "initializer_range": 0.2,
}  # fmt: skip


def make(family: str, head: str, **fields: Any) -> Any:
    torch.manual_seed(0)
    return getattr(modeling, head)(LacunaConfig.from_family(family, **{**SMALL, **fields})).eval()


def random_ids(*shape: int) -> Tensor:
    return torch.randint(5, 67, shape, generator=torch.Generator().manual_seed(3))


@pytest.mark.parametrize("family", ["bart", "vaswani"])
@pytest.mark.parametrize("pooling", ["last", "mean"])
@pytest.mark.parametrize("head", ["LacunaForSequenceClassification", "LacunaForQuestionAnswering"])
def test_left_padding_changes_nothing_where_the_decoder_reads_the_same_text(
    family: str, pooling: str, head: str
) -> None:
    model = make(family, head, classifier_pooling=pooling)
    ids = random_ids(1, 7)
    alone = model(ids)
    for padded in (torch.nn.functional.pad(ids, (4, 0)), torch.nn.functional.pad(ids, (0, 4))):
        mask = (padded != 0).long()
        positions = (mask.cumsum(-1) - 1).clamp(min=0)
        outputs = model(padded, attention_mask=mask, position_ids=positions)
        for name in ("logits", "start_logits", "end_logits"):
            if name in alone:
                found = outputs[name] if name == "logits" else outputs[name][mask.bool()][None]
                torch.testing.assert_close(found, alone[name], atol=1e-5, rtol=1e-5)


def test_a_classifier_pools_the_text_that_its_decoder_reads() -> None:
    model = make("bart", "LacunaForSequenceClassification")
    ids, other = random_ids(2, 9), random_ids(2, 4)
    mask = torch.ones_like(ids)
    expected = model(ids, decoder_input_ids=other).logits
    assert torch.equal(model(ids, attention_mask=mask, decoder_input_ids=other).logits, expected)


def test_fields_that_were_set_later_are_checked_when_a_model_is_built(tmp_path) -> None:
    config = LacunaConfig.from_family("bert", **SMALL)
    config.update({"num_hidden_layers": 5})
    with pytest.raises(ConfigurationError, match="names 3 layers and num_hidden_layers is 5"):
        LacunaModel(config)
    make("bart", "LacunaForConditionalGeneration").save_pretrained(tmp_path)
    with pytest.raises(ConfigurationError, match="names 3 layers and num_hidden_layers is 1"):
        LacunaForConditionalGeneration.from_pretrained(tmp_path, num_hidden_layers=1)


@pytest.mark.parametrize("family", ["gpt2", "llama", "qwen3"])
def test_early_exit_writes_what_the_whole_model_writes(family: str) -> None:
    model, ids = make(family, "LacunaForCausalLM"), random_ids(1, 6)
    arguments = {"max_new_tokens": 8, "do_sample": False}
    expected = model.generate(ids, **arguments)
    assert torch.equal(model.generate(ids, assistant_early_exit=1, **arguments), expected)
    assert model.config.num_hidden_layers == 3
    several = model.generate(ids, num_return_sequences=3, do_sample=True, max_new_tokens=4)
    assert several.shape == (3, 10)


def test_one_row_of_positions_serves_all_packed_rows_of_both_sides() -> None:
    model = make("bart", "LacunaForConditionalGeneration")
    ids, written = random_ids(2, 8), random_ids(2, 6)
    positions = torch.tensor([[0, 1, 2, 3, 4, 0, 1, 2]]), torch.tensor([[0, 1, 2, 0, 1, 2]])
    one, all_rows = (
        model(
            ids,
            decoder_input_ids=written,
            position_ids=positions[0].expand(rows, -1),
            decoder_position_ids=positions[1].expand(rows, -1),
        ).logits
        for rows in (1, 2)
    )
    assert torch.equal(one, all_rows)


def test_masks_by_layer_type_are_taken_or_refused_by_name() -> None:
    model = make("modernbert", "LacunaForSequenceClassification", classifier_pooling="mean", sliding_window=2)
    ids = random_ids(2, 6)
    whole = torch.ones(2, 1, 6, 6, dtype=torch.bool)
    assert model(ids, attention_mask={"full_attention": whole, "sliding_attention": whole}).logits.shape == (2, 2)
    with pytest.raises(ValueError, match=r"masks for \['full_attention'\] and none for \['sliding_attention'\]"):
        model(ids, attention_mask={"full_attention": whole})
    assert make("bert", "LacunaModel")(ids, attention_mask={"full_attention": whole}).pooler_output is not None
    with pytest.raises(ValueError, match="attention_mask is a dict"):
        make("bart", "LacunaModel")(ids, attention_mask={"full_attention": whole})


def test_the_loss_of_the_kept_positions_is_the_same_without_logits() -> None:
    model, ids = make("gpt2", "LacunaForCausalLM"), random_ids(2, 9)
    assert isinstance(model, LacunaForCausalLM)
    for keep in (3, torch.tensor([2, 5])):
        dense = model(ids, labels=ids, logits_to_keep=keep).loss
        torch.testing.assert_close(model(ids, labels=ids, logits_to_keep=keep, skip_logits=True).loss, dense)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"classifier_dropout": 1.5}, r"classifier_dropout=1.5 must be in \[0, 1\)"),
        ({"problem_type": "foo"}, "problem_type='foo' is none of"),
        ({"norm_eps": float("nan")}, "norm_eps=nan must be a positive number"),
        ({"norm_eps": -1.0}, "norm_eps=-1.0 must be a positive number"),
        ({"initializer_range": -1.0}, "initializer_range=-1.0 must be a positive number"),
        ({"shape": "encoder-decoder", "decoder_start_token_id": 9999}, "decoder_start_token_id=9999 is outside"),
        ({"rope_parameters": {"rope_type": "foo"}}, "rope_type='foo' is not known"),
        ({"rope_parameters": {"rope_theta": -5.0}}, "rope_theta=-5.0 must be positive"),
        ({"shape": "decoder", "pooler": True}, "pooler=False"),
    ],
)
def test_more_impossible_values_are_refused(fields: dict, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        LacunaConfig(**fields)


def test_more_inputs_are_refused_by_name() -> None:
    model, ids = make("bart", "LacunaModel"), random_ids(2, 6)
    with pytest.raises(ValueError, match="position_ids contains -1, and max_position_embeddings=64 allows 0 to 63"):
        model(ids, position_ids=torch.tensor([[-1, 0, 1, 2, 3, 4]]))
    with pytest.raises(ValueError, match=r"position_ids has the dtype torch.float32"):
        model(ids, position_ids=torch.zeros(1, 6))
    with pytest.raises(ValueError, match=r"input_ids has the shape \(0, 6\)"):
        model(ids[:0])
