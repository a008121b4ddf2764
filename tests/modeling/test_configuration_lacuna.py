"""What a configuration accepts, refuses, and carries into a checkpoint."""

import json
import logging

import pytest
import torch

from lacuna.modeling import (
    FAMILIES,
    HEADS,
    SIZES,
    ConfigurationError,
    LacunaConfig,
    LacunaForCausalLM,
    LacunaForMaskedLM,
    LacunaModel,
)

ALWAYS = {"AutoConfig", "AutoModel", "AutoModelForSequenceClassification", "AutoModelForQuestionAnswering"}
OWN = {
    "encoder": {
        *("AutoModelForPreTraining", "AutoModelForMaskedLM"),
        *("AutoModelForTokenClassification", "AutoModelForMultipleChoice"),
    },
    "decoder": {"AutoModelForCausalLM", "AutoModelForTokenClassification", "AutoModelForMultipleChoice"},
    "encoder-decoder": {"AutoModelForSeq2SeqLM"},
}


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"hidden_sise": 128}, "no field 'hidden_sise' .*did you mean 'hidden_size'"),
        ({"num_layers": 2}, "no field 'num_layers' .*did you mean 'num_hidden_layers'"),
        ({"hidden_size": "128"}, "hidden_size"),
        ({"hidden_size": 100, "num_attention_heads": 3}, "not a multiple of num_attention_heads=3"),
        ({"num_attention_heads": 4, "num_key_value_heads": 3}, "not a multiple of num_key_value_heads=3"),
        ({"num_decoder_layers": 2}, "num_decoder_layers=2 is for shape='encoder-decoder', not 'encoder'"),
        ({"shape": "encoder-decoder", "pooler": True}, "sees nothing else in a decoder"),
        (
            {"shape": "encoder-decoder", "num_decoder_layers": 2, "decoder_layer_types": ["full_attention"]},
            "decoder_layer_types names 1 layers and num_decoder_layers is 2",
        ),
        ({"position_offset": 2}, "position_offset=2 is for position_type='learned', not 'rotary'"),
        ({"attention_score": "cosine"}, "attention_score"),
        ({"initialization": "kaiming"}, "initialization"),
        ({"prediction_act": "tanhh"}, "prediction_act='tanhh' is not known; did you mean 'tanh'"),
        ({"shape": "decoder-only"}, "did you mean 'decoder'"),
        ({"hidden_act": "gelu_neww"}, "did you mean 'gelu_new'"),
        ({"norm_type": "rms_norm", "norm_bias": True}, "has no bias"),
        ({"norm_type": "batch_norm"}, "norm_type"),
        ({"head_dim": 15}, "head_dim=15 is odd"),
        ({"shape": "decoder", "pooler": True}, "sees nothing else in a decoder"),
        ({"shape": "decoder", "classifier_pooling": "first"}, "use 'last'"),
        ({"layer_types": ["full_attention"]}, "names 1 layers and num_hidden_layers is 6"),
        ({"layer_types": ["sliding_attention"] * 6}, "sliding_window is None"),
        ({"layer_types": ["sliding"] * 6}, "did you mean 'sliding_attention'"),
        ({"position_type": "learned", "rope_parameters": {"rope_theta": 1e4}}, "need position_type='rotary'"),
        ({"hidden_dropout": 1.0}, r"hidden_dropout=1.0 must be in \[0, 1\)"),
        ({"num_hidden_layers": 0}, "num_hidden_layers=0 must be positive"),
        ({"pad_token_id": 8192}, "pad_token_id=8192 is outside the vocabulary of 8192"),
        ({"is_encoder_decoder": True}, "is_encoder_decoder=True contradicts"),
        (
            {
                "layer_types": ["full_attention", "sliding_attention"] * 3,
                "sliding_window": 4,
                "rope_parameters": {"full_attention": {"rope_theta": 1e4}},
            },
            "no entry for .'sliding_attention'.",
        ),
    ],
)
def test_mistakes_are_refused_with_the_reason(fields: dict, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message) as caught:
        LacunaConfig(**fields)
    assert isinstance(caught.value, ValueError)
    assert caught.value.exit_code == 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"family": "modernbrt"}, "family='modernbrt' is not known; did you mean 'modernbert'"),
        ({"family": "bert", "size": "smal"}, "size='smal' is not known; did you mean 'small'"),
        ({"family": "bert", "vocabsize": 10}, "did you mean 'vocab_size'"),
    ],
)
def test_from_family_names_the_nearest(arguments: dict, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        LacunaConfig.from_family(**arguments)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("size", SIZES)
def test_every_family_has_every_size(family: str, size: str) -> None:
    config = LacunaConfig.from_family(family, size, vocab_size=512)
    if size == "tiny":
        with torch.device("meta"):
            model = LacunaModel(config)
        stacks = [getattr(model, stack) for stack in config.stacks]
        body = sum(parameter.numel() for stack in stacks for parameter in stack.layers.parameters())
        assert 3.5e6 < body < 5e6
    if size != "micro":
        smaller = list(SIZES)[list(SIZES).index(size) - 1]
        assert config.num_hidden_layers * config.hidden_size > (
            LacunaConfig.from_family(family, smaller).num_hidden_layers
            * LacunaConfig.from_family(family, smaller).hidden_size
        )


def test_overrides_take_precedence_and_do_not_leak_between_calls() -> None:
    config = LacunaConfig.from_family("modernbert", num_hidden_layers=4, hidden_size=64, num_attention_heads=2)
    assert config.intermediate_size == 128
    assert config.layer_types == ["full_attention", "sliding_attention", "sliding_attention", "full_attention"]
    config.rope_parameters["full_attention"]["rope_theta"] = 1.0
    assert LacunaConfig.from_family("modernbert").rope_parameters["full_attention"]["rope_theta"] == 160_000.0
    assert LacunaConfig.from_family("modernbert", position_type="learned").rope_parameters is None


@pytest.mark.parametrize("family", FAMILIES)
def test_auto_map_lists_the_heads_of_the_shape_and_survives(family: str, tmp_path) -> None:
    config = LacunaConfig.from_family(family, vocab_size=64, num_hidden_layers=3)
    expected = ALWAYS | OWN[config.shape]
    assert set(config.auto_map) == expected == set(HEADS[config.shape]) | {"AutoConfig"}
    for step in ("once", "twice"):
        config.save_pretrained(tmp_path / step)
        config = LacunaConfig.from_pretrained(tmp_path / step)
        assert set(config.auto_map) == expected
        written = json.loads((tmp_path / step / "config.json").read_text())
        assert set(written["auto_map"]) == expected
    assert config.to_dict() == LacunaConfig.from_family(family, vocab_size=64, num_hidden_layers=3).to_dict()


def test_a_forged_auto_map_is_not_believed(tmp_path) -> None:
    LacunaConfig().save_pretrained(tmp_path)
    path = tmp_path / "config.json"
    written = json.loads(path.read_text())
    written["auto_map"]["AutoModelForCausalLM"] = "elsewhere.Model"
    written["_attn_implementation_internal"] = "someone/kernel"
    written["_attn_implementation"] = "someone/kernel"
    written["_experts_implementation_internal"] = "someone/kernel"
    path.write_text(json.dumps(written))
    config = LacunaConfig.from_pretrained(tmp_path)
    assert "AutoModelForCausalLM" not in config.auto_map
    assert config._attn_implementation is None
    assert config._experts_implementation is None


def test_keys_of_other_tools_load(tmp_path) -> None:
    keys = {
        "architectures": ["LacunaForMaskedLM"],
        "transformers_version": "5.17.0",
        "dtype": "bfloat16",
        "problem_type": "single_label_classification",
        "id2label": {"0": "good", "1": "bad", "2": "neither"},
        "label2id": {"good": 0, "bad": 1, "neither": 2},
        "quantization_config": {"quant_method": "bitsandbytes", "load_in_8bit": True},
        "sentence_transformers": {"version": "6.2.0"},
        "_name_or_path": "somewhere",
        "torch_dtype": "float16",
        "max_length": 20,
        "model_type": "lacuna",
    }
    config = LacunaConfig(**keys)
    assert config.num_labels == 3
    assert config.dtype is torch.bfloat16
    assert config.quantization_config["load_in_8bit"]
    config = LacunaConfig(num_labels=5, rope_theta=500.0, attn_implementation="eager")
    assert config.num_labels == 5
    assert config.rope_parameters == {"rope_type": "default", "rope_theta": 500.0}
    assert config._attn_implementation == "eager"


def test_wrong_types_are_refused_on_assignment_and_contradictions_before_saving(tmp_path) -> None:
    config = LacunaConfig()
    with pytest.raises(Exception, match="hidden_size"):
        config.hidden_size = "wide"
    config.num_key_value_heads = 3
    with pytest.raises(Exception, match="not a multiple of num_key_value_heads=3"):
        config.save_pretrained(tmp_path)


def test_heads_refuse_the_other_shape() -> None:
    with pytest.raises(ConfigurationError, match="LacunaForCausalLM needs shape='decoder'"):
        LacunaForCausalLM(LacunaConfig.from_family("modernbert", vocab_size=64, num_hidden_layers=1))
    with pytest.raises(ConfigurationError, match="LacunaForMaskedLM needs shape='encoder'"):
        LacunaForMaskedLM(LacunaConfig.from_family("qwen3", vocab_size=64, num_hidden_layers=1))


def test_what_other_tools_write_into_a_file_is_kept_with_a_warning(tmp_path, caplog) -> None:
    LacunaConfig().save_pretrained(tmp_path)
    file = tmp_path / "config.json"
    notes = {
        "unsloth_version": "2026.1",
        "task": "chat",
        "is_decoder": False,
        "torchscript": False,
        "note": {"by": "me"},
    }
    file.write_text(
        json.dumps({**json.loads(file.read_text()), **notes, "to_dict": "x", "_attn_implementation": "no"})
    )
    logger = logging.getLogger("transformers")
    logger.addHandler(caplog.handler)
    try:
        config = LacunaConfig.from_pretrained(tmp_path)
    finally:
        logger.removeHandler(caplog.handler)
    said = [record.getMessage() for record in caplog.records if "knows nothing of" in record.getMessage()]
    assert len(said) == 1 and "note" in said[0] and "unsloth_version" in said[0] and "_attn" not in said[0]
    assert (config.unsloth_version, config.note) == ("2026.1", {"by": "me"})
    config.save_pretrained(tmp_path / "again")
    again = json.loads((tmp_path / "again" / "config.json").read_text())
    assert (again["unsloth_version"], again["task"], again["note"]) == ("2026.1", "chat", {"by": "me"})
    with pytest.raises(ConfigurationError, match="no field 'unsloth_version'"):
        LacunaConfig(unsloth_version="2026.1")
