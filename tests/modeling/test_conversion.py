"""Lacuna models against the native models of transformers that they claim to equal, with random weights."""

import copy

import pytest
import torch
import transformers
from transformers import BertConfig, ModernBertConfig, Qwen3Config

from modeling import (
    ConversionError,
    LacunaConfig,
    LacunaForCausalLM,
    LacunaForMaskedLM,
    LacunaForPreTraining,
    from_native,
    to_native,
)

SMALL = {"vocab_size": 97, "num_hidden_layers": 3, "initializer_range": 0.2}  # wide weights show what small ones hide
TOKENS = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
BERT = {**SMALL, **TOKENS, "hidden_size": 36, "num_attention_heads": 3, "intermediate_size": 52}
MODERN = {**SMALL, **TOKENS, "hidden_size": 40, "num_attention_heads": 2, "intermediate_size": 28}
MODERN |= {"cls_token_id": 1, "sep_token_id": 2}
QWEN = {**SMALL, **TOKENS, "hidden_size": 36, "num_attention_heads": 6, "intermediate_size": 44, "head_dim": 10}
CONFIGURATIONS = {
    "bert": BertConfig(**BERT),
    "bert-relu-untied": BertConfig(**BERT, hidden_act="relu", tie_word_embeddings=False, max_position_embeddings=61),
    "modernbert": ModernBertConfig(**MODERN, local_attention=8),
    "modernbert-all-global": ModernBertConfig(**MODERN, layer_types=["full_attention"] * 3),
    "modernbert-all-local": ModernBertConfig(**MODERN, layer_types=["sliding_attention"] * 3, local_attention=6),
    "modernbert-biases": ModernBertConfig(
        **MODERN,
        local_attention=10,
        layer_types=["sliding_attention", "full_attention", "sliding_attention"],
        attention_bias=True,
        mlp_bias=True,
        norm_bias=True,
        classifier_bias=True,
        decoder_bias=False,
        tie_word_embeddings=False,
        hidden_activation="silu",
        classifier_activation="silu",
    ),
    "qwen3": Qwen3Config(**QWEN, num_key_value_heads=2, tie_word_embeddings=True),
    "qwen3-one-key-head": Qwen3Config(**QWEN, num_key_value_heads=1, attention_bias=True),
    "qwen3-sliding": Qwen3Config(
        **QWEN, num_key_value_heads=6, use_sliding_window=True, sliding_window=5, max_window_layers=1
    ),
    "qwen3-yarn": Qwen3Config(
        **QWEN,
        num_key_value_heads=3,
        max_position_embeddings=128,
        rope_parameters={
            "rope_type": "yarn",
            "rope_theta": 5000.0,
            "factor": 4.0,
            "original_max_position_embeddings": 32,
        },
    ),
}
LANGUAGE_MODELS = {"bert": "BertForMaskedLM", "modernbert": "ModernBertForMaskedLM", "qwen3": "Qwen3ForCausalLM"}
HEADS = [
    ("bert", "BertModel"),
    ("bert", "BertForPreTraining"),
    ("bert", "BertForSequenceClassification"),
    ("bert", "BertForQuestionAnswering"),
    ("modernbert", "ModernBertModel"),
    ("modernbert", "ModernBertForSequenceClassification"),
    ("modernbert", "ModernBertForQuestionAnswering"),
    ("qwen3", "Qwen3Model"),
    ("qwen3", "Qwen3ForSequenceClassification"),
    ("qwen3", "Qwen3ForQuestionAnswering"),
]
CASES = [(name, LANGUAGE_MODELS[config.model_type]) for name, config in CONFIGURATIONS.items()] + HEADS


def build_native(name: str, class_name: str) -> transformers.PreTrainedModel:
    torch.manual_seed(7)
    native = getattr(transformers, class_name)(copy.deepcopy(CONFIGURATIONS[name])).eval()
    with torch.no_grad():  # biases and norms start at 0 and 1, where a swapped pair would not be noticed
        for parameter in native.parameters():
            if parameter.dim() == 1:
                parameter.add_(torch.randn_like(parameter) * 0.2)
    return native


def make_inputs(native: transformers.PreTrainedModel) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(3)
    inputs = {"input_ids": torch.randint(5, 97, (3, 29), generator=generator)}
    mask = torch.ones(3, 29, dtype=torch.long)
    mask[1, 17:] = 0
    inputs["attention_mask"] = mask
    inputs["input_ids"] = inputs["input_ids"] * mask  # pad_token_id is 0
    if native.config.model_type == "bert":
        inputs["token_type_ids"] = (torch.arange(29).expand(3, -1) > 11).long()
    return inputs


def make_labels(native: transformers.PreTrainedModel, inputs: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    name = type(native).__name__
    if "LM" in name or "PreTraining" in name:
        labels = {"labels": inputs["input_ids"].masked_fill(inputs["attention_mask"] == 0, -100)}
        return labels | ({"next_sentence_label": torch.tensor([0, 1, 1])} if "PreTraining" in name else {})
    if "Sequence" in name:
        return {"labels": torch.tensor([0, 1, 1])}
    if "Question" in name:
        return {"start_positions": torch.tensor([1, 4, 2]), "end_positions": torch.tensor([3, 9, 2])}
    return {}


@pytest.mark.parametrize(("name", "class_name"), CASES)
def test_equals_native(name: str, class_name: str) -> None:
    native = build_native(name, class_name)
    model = from_native(native)
    inputs = make_inputs(native)
    labels = make_labels(native, inputs)
    real = inputs["attention_mask"].bool()

    expected = native(**inputs, **labels, output_hidden_states=True)
    outputs = model(**inputs, **labels, output_hidden_states=True)

    names = [key for key in expected if "logits" in key or key in ("last_hidden_state", "pooler_output")]
    assert names
    for key in names:
        is_per_token = expected[key].shape[:2] == real.shape
        mine, theirs = (outputs[key][real], expected[key][real]) if is_per_token else (outputs[key], expected[key])
        torch.testing.assert_close(mine, theirs, atol=1e-5, rtol=1e-5)
    assert len(outputs.hidden_states) == len(expected.hidden_states) == 4
    for mine, theirs in zip(outputs.hidden_states, expected.hidden_states, strict=True):
        torch.testing.assert_close(mine[real], theirs[real], atol=1e-5, rtol=1e-5)

    if labels:
        torch.testing.assert_close(outputs.loss, expected.loss, atol=1e-5, rtol=1e-5)
        expected.loss.backward()
        outputs.loss.backward()
        with torch.no_grad():
            for parameter in native.parameters():
                parameter.copy_(torch.zeros_like(parameter) if parameter.grad is None else parameter.grad)
        gradients = dict(from_native(native).named_parameters())
        for key, parameter in model.named_parameters():
            mine = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
            torch.testing.assert_close(
                mine, gradients[key], atol=1e-4, rtol=1e-4, msg=lambda text, key=key: key + text
            )


@pytest.mark.parametrize(("name", "class_name"), CASES)
def test_round_trip_is_bitwise(name: str, class_name: str) -> None:
    native = build_native(name, class_name)
    back = to_native(from_native(native))
    assert type(back) is type(native)
    theirs, mine = native.state_dict(), back.state_dict()
    assert list(theirs) == list(mine)
    if not native.config.tie_word_embeddings:
        theirs.pop("cls.predictions.bias", None)  # nothing reads it in an untied BertForMaskedLM
    assert all(torch.equal(theirs[key], mine[key]) for key in theirs)
    ignored = {"_name_or_path", "transformers_version", "architectures", "dtype"}
    settings = {key: value for key, value in native.config.to_dict().items() if key not in ignored}
    same = {key: value for key, value in back.config.to_dict().items() if key not in ignored}
    unused = {"local_attention", "max_window_layers", "rope_parameters", "cls_token_id", "sep_token_id"}
    assert {k: v for k, v in settings.items() if k not in unused} == {k: v for k, v in same.items() if k not in unused}


@pytest.mark.parametrize("name", [name for name in CONFIGURATIONS if name.startswith("qwen3")])
def test_greedy_generation_equals_native(name: str) -> None:
    native = build_native(name, "Qwen3ForCausalLM")
    model = from_native(native)
    prompts = torch.randint(5, 97, (2, 7), generator=torch.Generator().manual_seed(5))
    arguments = {"max_new_tokens": 32, "min_new_tokens": 32, "do_sample": False}
    assert torch.equal(model.generate(prompts, **arguments), native.generate(prompts, **arguments))


@pytest.mark.parametrize("name", ["bert", "modernbert", "qwen3"])
@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
def test_attention_weights_equal_native(name: str, implementation: str) -> None:
    native = build_native(name, LANGUAGE_MODELS[name])
    model = from_native(native)
    for each in (native, model):
        each.set_attn_implementation(implementation)
    inputs = make_inputs(native)
    expected = native(**inputs, output_attentions=implementation == "eager")
    outputs = model(**inputs, output_attentions=implementation == "eager")
    real = inputs["attention_mask"].bool()
    torch.testing.assert_close(outputs.logits[real], expected.logits[real], atol=1e-5, rtol=1e-5)
    if implementation == "eager":
        assert len(outputs.attentions) == 3
        for mine, theirs in zip(outputs.attentions, expected.attentions, strict=True):
            torch.testing.assert_close(mine[0], theirs[0], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("family", ["bert", "modernbert", "qwen3"])
def test_presets_leave_as_their_family(family: str) -> None:
    config = LacunaConfig.from_family(family, vocab_size=64, num_hidden_layers=3)
    model = (LacunaForCausalLM if config.is_decoder else LacunaForMaskedLM)(config).eval()
    native = to_native(model)
    assert native.config.model_type == family
    ids = torch.randint(5, 64, (2, 140))  # longer than the window of modernbert
    torch.testing.assert_close(native(ids).logits, model(ids).logits, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(
    ("family", "overrides", "message"),
    [
        ("bert", {"qk_norm": True}, "bert cannot express qk_norm=True"),
        ("modernbert", {"type_vocab_size": 2}, "modernbert cannot express type_vocab_size=2"),
        ("qwen3", {"mlp_bias": True}, "qwen3 cannot express mlp_bias=True"),
    ],
)
def test_what_a_family_lacks_is_refused_by_name(family: str, overrides: dict, message: str) -> None:
    config = LacunaConfig.from_family(family, vocab_size=64, num_hidden_layers=1, **overrides)
    model = (LacunaForCausalLM if config.is_decoder else LacunaForMaskedLM)(config)
    with pytest.raises(ConversionError, match=message) as caught:
        to_native(model, family)
    assert caught.value.exit_code == 2
    with pytest.raises(ConversionError, match="no native family"):
        to_native(model)


def test_heads_and_models_without_a_counterpart_are_refused() -> None:
    model = LacunaForPreTraining(LacunaConfig.from_family("modernbert", vocab_size=64, num_hidden_layers=1))
    with pytest.raises(ConversionError, match="modernbert has no head like LacunaForPreTraining"):
        to_native(model)
    with pytest.raises(ConversionError, match="model_type='gpt2'"):
        from_native(transformers.GPT2Model(transformers.GPT2Config(n_layer=1, n_embd=12, n_head=2, vocab_size=9)))
    decoder = transformers.BertModel(BertConfig(**BERT, is_decoder=True))
    with pytest.raises(ConversionError, match="is_decoder=True"):
        from_native(decoder)
