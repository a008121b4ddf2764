"""Weights and configurations to and from native transformers models, for the families that a Lacuna model can equal.

    native = to_native(model)              # a BertForMaskedLM, ModernBertModel, Qwen3ForCausalLM, ...
    model = from_native(native)            # the Lacuna model with the same weights

A family is one entry of `CONVERSIONS`: names of modules on both sides, names of configuration fields on both sides,
and what the family takes for granted. Several of our modules for one of theirs means that theirs holds ours stacked
along the first dimension. This file stays at home: nothing that travels in checkpoints imports it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
import transformers
from torch import Tensor
from transformers import PreTrainedConfig, PreTrainedModel

from . import modeling_lacuna
from .configuration_lacuna import LacunaConfig
from .modeling_lacuna import LacunaPreTrainedModel

Names = list[tuple[tuple[str, ...], str]]  # (our modules, their module), "{i}" standing for the number of a layer

SAME_FIELDS = (
    *("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size"),
    *("max_position_embeddings", "initializer_range", "tie_word_embeddings"),
    *("pad_token_id", "bos_token_id", "eos_token_id"),
)
TASK_FIELDS = ("id2label", "label2id", "problem_type")


class ConversionError(ValueError):
    """A model that the other side cannot express; the message names the field or the tensors."""

    exit_code = 2


@dataclass(frozen=True)
class Head:
    """A head that exists on both sides.

    Attributes:
        native: name of the native class in transformers.
        prefix: where the native class keeps its backbone.
        names: modules of the head on both sides.
    """

    native: str
    prefix: str
    names: Names


@dataclass(frozen=True)
class Conversion:
    """How a family is written natively.

    Attributes:
        backbone: modules of the backbone on both sides.
        heads: by the name of our class.
        renamed: our field -> their field, beside `SAME_FIELDS`.
        required: our field -> the only value that the family has, or how that value follows from the configuration.
        native_required: their field -> the only value that we can express.
        to_native: further native fields from our configuration.
        from_native: further fields of ours from the native configuration.
    """

    backbone: Names
    heads: dict[str, Head]
    renamed: dict[str, str]
    required: dict[str, Any]
    native_required: dict[str, Any] = field(default_factory=dict)
    to_native: Callable[[LacunaConfig], dict[str, Any]] = lambda config: {}
    from_native: Callable[[Any], dict[str, Any]] = lambda native: {}


def _one(ours: str, theirs: str) -> tuple[tuple[str, ...], str]:
    return (ours,), theirs


def _all_full(config: LacunaConfig) -> list[str]:
    return ["full_attention"] * config.num_hidden_layers


def _even_heads(config: LacunaConfig) -> int:
    return config.hidden_size // config.num_attention_heads


_BERT_PREDICTIONS: Names = [
    _one("head.dense", "cls.predictions.transform.dense"),
    _one("head.norm", "cls.predictions.transform.LayerNorm"),
    # The bias has two names there. Untied they are two tensors, and only the decoder's is used: the last row counts.
    _one("lm_head", "cls.predictions"),
    _one("lm_head", "cls.predictions.decoder"),
]
_MODERNBERT_HEAD: Names = [_one("head.dense", "head.dense"), _one("head.norm", "head.norm")]

CONVERSIONS: dict[str, Conversion] = {
    "bert": Conversion(
        backbone=[
            _one("embeddings.embed_tokens", "embeddings.word_embeddings"),
            _one("embeddings.embed_positions", "embeddings.position_embeddings"),
            _one("embeddings.embed_segments", "embeddings.token_type_embeddings"),
            _one("embeddings.norm", "embeddings.LayerNorm"),
            _one("layers.{i}.attention.q_proj", "encoder.layer.{i}.attention.self.query"),
            _one("layers.{i}.attention.k_proj", "encoder.layer.{i}.attention.self.key"),
            _one("layers.{i}.attention.v_proj", "encoder.layer.{i}.attention.self.value"),
            _one("layers.{i}.attention.o_proj", "encoder.layer.{i}.attention.output.dense"),
            _one("layers.{i}.attention_norm", "encoder.layer.{i}.attention.output.LayerNorm"),
            _one("layers.{i}.mlp.up_proj", "encoder.layer.{i}.intermediate.dense"),
            _one("layers.{i}.mlp.down_proj", "encoder.layer.{i}.output.dense"),
            _one("layers.{i}.mlp_norm", "encoder.layer.{i}.output.LayerNorm"),
            _one("pooler.dense", "pooler.dense"),
        ],
        heads={
            "LacunaModel": Head("BertModel", "", []),
            "LacunaForPreTraining": Head(
                "BertForPreTraining",
                "bert.",
                [*_BERT_PREDICTIONS, _one("sentence_head.classifier", "cls.seq_relationship")],
            ),
            "LacunaForMaskedLM": Head("BertForMaskedLM", "bert.", _BERT_PREDICTIONS),
            "LacunaForSequenceClassification": Head(
                "BertForSequenceClassification", "bert.", [_one("classifier", "classifier")]
            ),
            "LacunaForQuestionAnswering": Head(
                "BertForQuestionAnswering", "bert.", [_one("qa_outputs", "qa_outputs")]
            ),
        },
        renamed={
            "hidden_act": "hidden_act",
            "norm_eps": "layer_norm_eps",
            "type_vocab_size": "type_vocab_size",
            "hidden_dropout": "hidden_dropout_prob",
            "attention_dropout": "attention_probs_dropout_prob",
            "classifier_dropout": "classifier_dropout",
        },
        required={
            "shape": "encoder",
            "gated_mlp": False,
            "norm_type": "layer_norm",
            "norm_placement": "post",
            "norm_bias": True,
            "embedding_norm": True,
            "qk_norm": False,
            "position_type": "learned",
            "num_key_value_heads": lambda config: config.num_attention_heads,
            "head_dim": _even_heads,
            "layer_types": _all_full,
            "attention_bias": True,
            "mlp_bias": True,
            "prediction_bias": True,
            "lm_head_bias": True,
            "classifier_bias": True,
            "classifier_transform": False,
            "classifier_pooling": "first",
            "pooler": True,
            "embedding_dropout": lambda config: config.hidden_dropout,
            "activation_dropout": 0.0,
        },
        native_required={"is_decoder": False, "add_cross_attention": False},
    ),
    "modernbert": Conversion(
        backbone=[
            _one("embeddings.embed_tokens", "embeddings.tok_embeddings"),
            _one("embeddings.norm", "embeddings.norm"),
            _one("layers.{i}.attention_norm", "layers.{i}.attn_norm"),
            (tuple(f"layers.{{i}}.attention.{name}_proj" for name in "qkv"), "layers.{i}.attn.Wqkv"),
            _one("layers.{i}.attention.o_proj", "layers.{i}.attn.Wo"),
            _one("layers.{i}.mlp_norm", "layers.{i}.mlp_norm"),
            (("layers.{i}.mlp.gate_proj", "layers.{i}.mlp.up_proj"), "layers.{i}.mlp.Wi"),
            _one("layers.{i}.mlp.down_proj", "layers.{i}.mlp.Wo"),
            _one("norm", "final_norm"),
        ],
        heads={
            "LacunaModel": Head("ModernBertModel", "", []),
            "LacunaForMaskedLM": Head(
                "ModernBertForMaskedLM", "model.", [*_MODERNBERT_HEAD, _one("lm_head", "decoder")]
            ),
            "LacunaForSequenceClassification": Head(
                "ModernBertForSequenceClassification",
                "model.",
                [*_MODERNBERT_HEAD, _one("classifier", "classifier")],
            ),
            "LacunaForQuestionAnswering": Head(
                "ModernBertForQuestionAnswering", "model.", [*_MODERNBERT_HEAD, _one("qa_outputs", "classifier")]
            ),
        },
        renamed={
            "hidden_act": "hidden_activation",
            "norm_eps": "norm_eps",
            "norm_bias": "norm_bias",
            "attention_bias": "attention_bias",
            "mlp_bias": "mlp_bias",
            "prediction_bias": "classifier_bias",
            "lm_head_bias": "decoder_bias",
            "layer_types": "layer_types",
            "embedding_dropout": "embedding_dropout",
            "attention_dropout": "attention_dropout",
            "activation_dropout": "mlp_dropout",
            "cls_token_id": "cls_token_id",
            "sep_token_id": "sep_token_id",
        },
        required={
            "shape": "encoder",
            "gated_mlp": True,
            "norm_type": "layer_norm",
            "norm_placement": "pre",
            "embedding_norm": True,
            "qk_norm": False,
            "position_type": "rotary",
            "num_key_value_heads": lambda config: config.num_attention_heads,
            "head_dim": _even_heads,
            "type_vocab_size": 0,
            "classifier_bias": True,
            "classifier_transform": True,
            "pooler": False,
            "hidden_dropout": 0.0,
        },
        native_required={"classifier_activation": lambda native: native.hidden_activation},
        to_native=lambda config: {
            "classifier_activation": config.hidden_act,
            "classifier_dropout": config.classifier_dropout or 0.0,
            "classifier_pooling": {"first": "cls"}.get(config.classifier_pooling, config.classifier_pooling),
            "local_attention": 2 * (config.sliding_window or 64),
            "rope_parameters": _rope_by_layer_type(config),
        },
        from_native=lambda native: {
            "classifier_dropout": native.classifier_dropout,
            "classifier_pooling": {"cls": "first"}.get(native.classifier_pooling, native.classifier_pooling),
            "sliding_window": native.sliding_window,
            "rope_parameters": {name: dict(value) for name, value in native.rope_parameters.items()},
        },
    ),
    "qwen3": Conversion(
        backbone=[
            _one("embeddings.embed_tokens", "embed_tokens"),
            _one("layers.{i}.attention_norm", "layers.{i}.input_layernorm"),
            *[
                _one(f"layers.{{i}}.attention.{name}", f"layers.{{i}}.self_attn.{name}")
                for name in ("q_proj", "k_proj", "v_proj", "q_norm", "k_norm", "o_proj")
            ],
            _one("layers.{i}.mlp_norm", "layers.{i}.post_attention_layernorm"),
            *[
                _one(f"layers.{{i}}.mlp.{name}", f"layers.{{i}}.mlp.{name}")
                for name in ("gate_proj", "up_proj", "down_proj")
            ],
            _one("norm", "norm"),
        ],
        heads={
            "LacunaModel": Head("Qwen3Model", "", []),
            "LacunaForCausalLM": Head("Qwen3ForCausalLM", "model.", [_one("lm_head", "lm_head")]),
            "LacunaForSequenceClassification": Head(
                "Qwen3ForSequenceClassification", "model.", [_one("classifier", "score")]
            ),
            "LacunaForQuestionAnswering": Head(
                "Qwen3ForQuestionAnswering", "transformer.", [_one("qa_outputs", "qa_outputs")]
            ),
        },
        renamed={
            "hidden_act": "hidden_act",
            "norm_eps": "rms_norm_eps",
            "num_key_value_heads": "num_key_value_heads",
            "head_dim": "head_dim",
            "attention_bias": "attention_bias",
            "attention_dropout": "attention_dropout",
            "layer_types": "layer_types",
            "sliding_window": "sliding_window",
            "use_cache": "use_cache",
        },
        required={
            "shape": "decoder",
            "gated_mlp": True,
            "norm_type": "rms_norm",
            "norm_placement": "pre",
            "embedding_norm": False,
            "qk_norm": True,
            "position_type": "rotary",
            "type_vocab_size": 0,
            "mlp_bias": False,
            "lm_head_bias": False,
            "classifier_bias": False,
            "classifier_transform": False,
            "classifier_pooling": "last",
            "embedding_dropout": 0.0,
            "hidden_dropout": 0.0,
            "activation_dropout": 0.0,
        },
        to_native=lambda config: {
            "use_sliding_window": "sliding_attention" in config.layer_types,
            "rope_parameters": _rope_for_all_layers(config),
        },
        from_native=lambda native: {"rope_parameters": dict(native.rope_parameters)},
    ),
}


def _rope_by_layer_type(config: LacunaConfig) -> dict[str, Any]:
    parameters = config.rope_parameters
    if "rope_type" in parameters:
        return {layer_type: dict(parameters) for layer_type in ("full_attention", "sliding_attention")}
    return {layer_type: dict(entry) for layer_type, entry in parameters.items()}


def _rope_for_all_layers(config: LacunaConfig) -> dict[str, Any]:
    parameters = config.rope_parameters
    if "rope_type" in parameters:
        return dict(parameters)
    entries = list(parameters.values())
    if any(entry != entries[0] for entry in entries):
        raise ConversionError("qwen3 cannot express rope_parameters that differ between layer types")
    return dict(entries[0])


def to_native(model: LacunaPreTrainedModel, family: str | None = None) -> PreTrainedModel:
    """Return the native model with the weights of `model`.

    Args:
        model: a Lacuna model with a head that the family has.
        family: a key of `CONVERSIONS`; None: the one that can express the configuration.

    Raises:
        ConversionError: when no family, or not this one, can express the model; the field that stands in the way and
            its value are named.
    """
    family = _find_family(model.config) if family is None else family
    conversion = CONVERSIONS[family]
    for name, expected, value in _differences(model.config, conversion.required):
        raise ConversionError(f"{family} cannot express {name}={value!r}, only {expected!r}")
    head = conversion.heads.get(type(model).__name__)
    if head is None:
        raise ConversionError(f"{family} has no head like {type(model).__name__}: {', '.join(conversion.heads)}")

    fields = {name: getattr(model.config, name) for name in SAME_FIELDS + TASK_FIELDS}
    fields |= {theirs: getattr(model.config, ours) for ours, theirs in conversion.renamed.items()}
    fields |= conversion.to_native(model.config)
    native_class = getattr(transformers, head.native)
    native = native_class(native_class.config_class(**fields))

    ours, theirs, wanted = model.state_dict(), {}, set(native.state_dict())
    for our_keys, native_key in _keys(conversion, head, model):
        if native_key in wanted and all(key in ours for key in our_keys):
            theirs[native_key] = torch.cat([ours[key] for key in our_keys])
    used = {key for keys, _ in _keys(conversion, head, model) for key in keys}
    return _load(native, theirs, unused=set(ours) - used, like=model)


def from_native(native: PreTrainedModel) -> LacunaPreTrainedModel:
    """Return the Lacuna model with the weights of a native model of one of the families.

    Raises:
        ConversionError: when the model type or the head is not known, or a field has a value that we cannot express.
    """
    family = native.config.model_type
    if family not in CONVERSIONS:
        raise ConversionError(f"model_type={family!r} cannot be converted; these can: {', '.join(CONVERSIONS)}")
    conversion = CONVERSIONS[family]
    for name, expected, value in _differences(native.config, conversion.native_required):
        raise ConversionError(f"a Lacuna model cannot express {name}={value!r} of {family}, only {expected!r}")
    found = [(ours, head) for ours, head in conversion.heads.items() if head.native == type(native).__name__]
    if not found:
        known = ", ".join(head.native for head in conversion.heads.values())
        raise ConversionError(f"{type(native).__name__} has no counterpart here; these have: {known}")
    our_class, head = found[0]

    fields = {name: getattr(native.config, name) for name in SAME_FIELDS + TASK_FIELDS}
    fields |= {ours: getattr(native.config, theirs) for ours, theirs in conversion.renamed.items()}
    fields |= conversion.from_native(native.config)
    fixed = {name: value for name, value in conversion.required.items() if not callable(value)}
    if "embedding_dropout" in conversion.required and "embedding_dropout" not in fixed:
        fixed["embedding_dropout"] = fields["hidden_dropout"]
    model = getattr(modeling_lacuna, our_class)(LacunaConfig(**{**fixed, **fields}))

    theirs = native.state_dict()
    ours: dict[str, Tensor] = {}
    sizes = {key: tensor.shape[0] for key, tensor in model.state_dict().items()}
    for our_keys, native_key in _keys(conversion, head, model):
        if native_key in theirs and all(key in sizes for key in our_keys):
            parts = theirs[native_key].split([sizes[key] for key in our_keys])
            ours |= dict(zip(our_keys, parts, strict=True))
    used = {native_key for _, native_key in _keys(conversion, head, model)}
    return _load(model, ours, unused=set(theirs) - used, like=native)


def _find_family(config: LacunaConfig) -> str:
    reasons = []
    for family, conversion in CONVERSIONS.items():
        differences = list(_differences(config, conversion.required))
        if not differences:
            return family
        name, expected, value = differences[0]
        reasons.append(f"{family} needs {name}={expected!r} and not {value!r}")
    raise ConversionError(f"no native family can express this configuration: {'; '.join(reasons)}")


def _differences(config: PreTrainedConfig, required: Mapping[str, Any]) -> Iterator[tuple[str, Any, Any]]:
    for name, expected in required.items():
        expected = expected(config) if callable(expected) else expected
        if getattr(config, name) != expected:
            yield name, expected, getattr(config, name)


def _keys(conversion: Conversion, head: Head, model: LacunaPreTrainedModel) -> Iterator[tuple[tuple[str, ...], str]]:
    """Names of tensors on both sides, for every layer; also of such as this model does not have."""
    prefix = "" if type(model).__name__ == "LacunaModel" else "model."
    rows = [
        (tuple(f"{prefix}{name}" for name in ours), f"{head.prefix}{theirs}") for ours, theirs in conversion.backbone
    ] + head.names
    for ours, theirs in rows:
        for layer in range(model.config.num_hidden_layers if "{i}" in theirs else 1):
            for kind in ("weight", "bias"):
                our_keys = tuple(f"{name}.{kind}".replace("{i}", str(layer)) for name in ours)
                yield our_keys, f"{theirs}.{kind}".replace("{i}", str(layer))


def _load(model: Any, state: dict[str, Tensor], *, unused: set[str], like: PreTrainedModel) -> Any:
    """Fill `model` with exactly the tensors of `state`, on the device, in the dtype and mode of `like`."""
    model = model.to(device=like.device, dtype=like.dtype).train(like.training)
    missing = set(model.state_dict()) - set(state)
    if missing or unused:
        raise ConversionError(
            f"tensors without a counterpart: {', '.join(sorted(missing | unused))} "
            f"({type(like).__name__} to {type(model).__name__})"
        )
    model.load_state_dict(state, strict=True)
    return model


__all__ = ["CONVERSIONS", "ConversionError", "from_native", "to_native"]
