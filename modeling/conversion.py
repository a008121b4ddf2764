"""Weights and configurations to and from native transformers models, for the families that a Lacuna model can equal.

    native = to_native(model)              # a BertForMaskedLM, GPT2LMHeadModel, BartForConditionalGeneration, ...
    model = from_native(native)            # the Lacuna model with the same weights

A family is one entry of `CONVERSIONS`: what each field of `LacunaConfig` is there, and the names of modules on both
sides. What a side cannot express is found by going there and back: a field that returns changed is refused by its
name, so that one which the table forgets is refused too and never lost. This file stays at home: nothing that travels
in checkpoints imports it.

Both sides compute the same, with these exceptions:

- BERT pools the token at position 0, and so does ModernBERT for `"cls"`; we pool the first token that is not masked.
  GPT-2, Llama and Qwen3 pool the last token that is not `pad_token_id`, BART the last `eos_token_id` of its decoder;
  we pool the last token that is not masked. All agree on rows padded on the right, for BART on such as end in its eos.
- GPT-2 adds the embeddings of `token_type_ids` to those of the tokens; we ignore them.
- BART's `final_logits_bias` is a constant, and our `lm_head.bias` is learned.
- While training, ModernBERT also drops from the output of attention, and BART from the input of its classifier.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
import transformers
from huggingface_hub.errors import StrictDataclassError
from torch import Tensor
from transformers import PreTrainedConfig, PreTrainedModel

from . import modeling_lacuna
from .configuration_lacuna import ConfigurationError, LacunaConfig, name_nearest
from .modeling_lacuna import LacunaPreTrainedModel

# What every configuration of transformers has: the first are copied, the others follow from class, family or weights.
SHARED = ("id2label", "label2id", "problem_type", "output_hidden_states", "return_dict", "chunk_size_feed_forward")
WRITTEN = ("transformers_version", "architectures", "dtype", "is_encoder_decoder")

# Where `from_native` keeps tensors that nothing reads, so that `to_native` can give them back.
_UNREAD = "unread_native_tensors"


class ConversionError(ValueError):
    """A model that the other side cannot express; the message names the field or the tensors."""

    exit_code = 2


# -------------------------------------------------------------------------------------------- what an entry is made of


@dataclass(frozen=True)
class Field:
    """What a field of `LacunaConfig` is in a family.

    Attributes:
        to_native: the native fields that say the same.
        from_native: the value of ours that a native configuration has; None lets `LacunaConfig` derive it.
        meaning: what must return unchanged from there and back, if not the value itself.
        unread: why no output of the native model depends on the field, which is then not compared; None: some does.
    """

    to_native: Callable[[LacunaConfig], dict[str, Any]]
    from_native: Callable[[Any], Any]
    meaning: Callable[[LacunaConfig], Any] | None = None
    unread: str | None = None


Fields = dict[str, Field]


def renamed(**names: str) -> Fields:
    """Fields of ours that the family has under the names given."""

    def pair(ours: str, theirs: str) -> Field:
        return Field(lambda config: {theirs: getattr(config, ours)}, lambda native: getattr(native, theirs))

    return {ours: pair(ours, theirs) for ours, theirs in names.items()}


def same(*names: str) -> Fields:
    """Fields that have the same name on both sides."""
    return renamed(**{name: name for name in names})


def only(**values: Any) -> Fields:
    """Fields that have one value in the family; None: the one that follows from the rest."""

    def constant(value: Any) -> Field:
        return Field(lambda config: {}, lambda native: value)

    return {name: constant(value) for name, value in values.items()}


def unread(reason: str, **values: Any) -> Fields:
    """Fields on which no output of the native model depends, with the values that it gives them."""
    fields = only(**values)
    return {name: dataclasses.replace(field, unread=reason) for name, field in fields.items()}


@dataclass(frozen=True)
class Row:
    """Modules that hold the same numbers, "{i}" standing for the number of a layer.

    Attributes:
        ours: names of our modules, or of one tensor. Several are stacked along their outputs in the native one.
        theirs: name of the native module or tensor. A tensor may also have further dimensions of size 1.
        transposed: whether the native weight is [inputs, outputs].
        dead: nothing reads the native tensor where embeddings are not tied; where they are, it is one of the others.
            It goes into no parameter of ours. `from_native` keeps it beside the model, and `to_native` gives it back
            to the bit; a Lacuna model that was saved and loaded has lost it, and our own tensor then takes its place.
    """

    ours: tuple[str, ...]
    theirs: str
    transposed: bool = False
    dead: bool = False


@dataclass(frozen=True)
class Head:
    """A head that exists on both sides.

    Attributes:
        native: name of the native class in transformers.
        rows: modules of the head.
        fields: our fields for which this native class has one value, which starts or trains only.
        num_labels: the only number of labels with which the native class works.
    """

    native: str
    rows: list[Row] = dataclasses.field(default_factory=list)
    fields: dict[str, Any] = dataclasses.field(default_factory=dict)
    num_labels: int | None = None


@dataclass(frozen=True)
class Conversion:
    """How a family is written natively.

    Attributes:
        fields: every field of `LacunaConfig` but `SHARED` and `WRITTEN`.
        rows: modules of the backbone.
        heads: by the name of our class.
        lost: native fields that may return changed, and why that changes no output.
        generation: native fields that repeat what the generation configuration says.
    """

    fields: Fields
    rows: list[Row]
    heads: dict[str, Head]
    lost: dict[str, str] = dataclasses.field(default_factory=dict)
    generation: tuple[str, ...] = ()


def _row(ours: str, theirs: str, *, transposed: bool = False, dead: bool = False) -> Row:
    return Row((ours,), theirs, transposed=transposed, dead=dead)


# --------------------------------------------------------------------------------------------- fields that need a rule


def _rope_by_layer_type(config: LacunaConfig) -> dict[str, Any]:
    """Rotary parameters of each layer type that a layer has; none where positions are not rotary."""
    parameters = config.rope_parameters or {}
    if "rope_type" in parameters:
        return {layer_type: dict(parameters) for layer_type in sorted(set(config.layer_types))}
    return {layer_type: dict(parameters[layer_type]) for layer_type in sorted(parameters)}


def _rope_for_all(config: LacunaConfig) -> dict[str, Any]:
    """The first of the rotary parameters, for families that have one set; others then return changed."""
    entries = list(_rope_by_layer_type(config).values())
    return {"rope_parameters": entries[0]} if entries else {}


def _whole_heads(config: LacunaConfig) -> dict[str, Any]:
    """The number of heads; Llama wants it to divide hidden_size, whatever head_dim is."""
    heads, size = config.num_attention_heads, config.hidden_size
    if size % heads:
        raise ConversionError(
            f"llama cannot express num_attention_heads={heads}, only a divisor of hidden_size={size}"
        )
    return {"num_attention_heads": heads}


def _used_window(config: LacunaConfig) -> int | None:
    return config.sliding_window if "sliding_attention" in config.layer_types else None


def _dropout_before_classifier(config: LacunaConfig) -> float:
    return config.hidden_dropout if config.classifier_dropout is None else config.classifier_dropout


def _token_dropout(config: LacunaConfig) -> dict[str, Any]:
    """A dropout that GPT-2, Llama and Qwen3 read for token classification alone: no field, and 0.1 where it is not."""
    dropout = _dropout_before_classifier(config)
    return {} if dropout in (0.0, 0.1) else {"classifier_dropout": dropout}


_TOKEN_DROPOUT: Fields = {
    "classifier_dropout": Field(
        _token_dropout,
        lambda native: 0.1 if (value := getattr(native, "classifier_dropout", None)) is None else value,
        unread="it only trains",
    )
}
_CLASSIFIER_DROPOUT: Fields = {
    "classifier_dropout": Field(
        lambda config: {"classifier_dropout": _dropout_before_classifier(config)},
        lambda native: native.classifier_dropout,
        unread="it only trains",
    )
}

# ---------------------------------------------------------------------------------------- what families have in common

_EVERY: Fields = {
    **same("vocab_size", "tie_word_embeddings", "pad_token_id", "bos_token_id", "eos_token_id"),
    **only(
        hybrid=False,  # natively every head of a decoder hides the future
        num_key_value_heads=None,
        head_dim=None,
        qk_norm=False,
        attention_score="scaled_dot_product",
        final_logit_softcapping=None,
        position_offset=0,
        scale_embedding=False,
        rope_parameters=None,
        layer_types=None,
        num_decoder_layers=None,
        decoder_layer_types=None,
    ),
    **unread("no layer slides", sliding_window=None),
    **unread("it only trains", freeze_padding=True),
    **unread("it only starts a model", zero_init_residual=False),
    **unread("only an encoder-decoder starts with it", decoder_start_token_id=None),
    **unread("it is for tokenizers", cls_token_id=None, sep_token_id=None),
}
_ENCODER = only(shape="encoder", norm_type="layer_norm", embedding_norm=True, classifier_bias=True)
_DECODER: Fields = {
    **same("use_cache"),
    **_TOKEN_DROPOUT,
    **only(
        shape="decoder",
        norm_placement="pre",
        embedding_norm=False,
        type_vocab_size=0,
        lm_head_bias=False,
        classifier_bias=False,
        classifier_transform="none",
        classifier_pooling="last",
        pooler=False,
    ),
    **unread("there is no prediction head", prediction_bias=False, prediction_act=None),
}
_POST_NORM = only(
    gated_mlp=False,
    norm_type="layer_norm",
    norm_placement="post",
    norm_bias=True,
    embedding_norm=True,
    position_type="learned",
    attention_bias=True,
    mlp_bias=True,
    lm_head_bias=True,
)
_LLAMA: Fields = {
    **_EVERY,
    **_DECODER,
    **same("hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "head_dim"),
    **same("intermediate_size", "hidden_act", "max_position_embeddings", "initializer_range"),
    **same("attention_bias", "attention_dropout"),
    **renamed(norm_eps="rms_norm_eps"),
    **only(gated_mlp=True, norm_type="rms_norm", norm_bias=False, position_type="rotary"),
    "rope_parameters": Field(_rope_for_all, lambda native: dict(native.rope_parameters), meaning=_rope_by_layer_type),
    **unread("it only trains", embedding_dropout=0.0, hidden_dropout=0.0, activation_dropout=0.0),
    **unread("it only starts a model", initialization="normal"),
}
_LLAMA_ROWS = [
    _row("decoder.embeddings.embed_tokens", "embed_tokens"),
    _row("decoder.layers.{i}.attention_norm", "layers.{i}.input_layernorm"),
    *[_row(f"decoder.layers.{{i}}.attention.{n}_proj", f"layers.{{i}}.self_attn.{n}_proj") for n in "qkvo"],
    _row("decoder.layers.{i}.mlp_norm", "layers.{i}.post_attention_layernorm"),
    *[_row(f"decoder.layers.{{i}}.mlp.{n}_proj", f"layers.{{i}}.mlp.{n}_proj") for n in ("gate", "up", "down")],
    _row("decoder.norm", "norm"),
]


def _heads(prefix: str, **rows: list[Row]) -> dict[str, Head]:
    """Heads that are called on both sides as the keyword says, after the prefix of the family."""
    return {f"Lacuna{name}": Head(f"{prefix}{name}", head_rows) for name, head_rows in rows.items()}


_CLASSIFIER = [_row("classifier", "classifier")]
_SCORE = [_row("classifier", "score")]
_ANSWER = [_row("qa_outputs", "qa_outputs")]
_NO_DROPOUT = {"classifier_dropout": 0.0}


def _llama_heads(prefix: str) -> dict[str, Head]:
    return {
        **_heads(prefix, Model=[], ForCausalLM=[_row("lm_head", "lm_head")]),
        **_heads(prefix, ForTokenClassification=_SCORE, ForQuestionAnswering=_ANSWER),
        "LacunaForSequenceClassification": Head(f"{prefix}ForSequenceClassification", _SCORE, fields=_NO_DROPOUT),
    }


_BERT_PREDICTIONS = [
    _row("transform.dense", "cls.predictions.transform.dense"),
    _row("transform.norm", "cls.predictions.transform.LayerNorm"),
    _row("lm_head", "cls.predictions.decoder"),
    _row("lm_head.bias", "cls.predictions.bias", dead=True),
]
_BERT_RELATION = _row("sentence_head.classifier", "cls.seq_relationship")

_MODERNBERT_HEAD = [_row("transform.dense", "head.dense"), _row("transform.norm", "head.norm")]


_BART_LOGITS = [_row("lm_head.weight", "lm_head.weight"), _row("lm_head.bias", "final_logits_bias")]
_BART_CLASSIFIER = [
    _row("transform.dense", "classification_head.dense"),
    _row("classifier", "classification_head.out_proj"),
]


def _bart_rows(stack: str) -> list[Row]:
    attentions = {"attention": "self_attn"} | ({"cross_attention": "encoder_attn"} if stack == "decoder" else {})
    layer = f"{stack}.layers.{{i}}"
    return [
        _row(f"{stack}.embeddings.embed_tokens", f"{stack}.embed_tokens"),
        _row(f"{stack}.embeddings.embed_positions", f"{stack}.embed_positions"),
        _row(f"{stack}.embeddings.norm", f"{stack}.layernorm_embedding"),
        *[
            _row(f"{layer}.{ours}.{name}_proj", f"{layer}.{theirs}.{'out' if name == 'o' else name}_proj")
            for ours, theirs in attentions.items()
            for name in "qkvo"
        ],
        *[_row(f"{layer}.{ours}_norm", f"{layer}.{theirs}_layer_norm") for ours, theirs in attentions.items()],
        _row(f"{layer}.mlp.up_proj", f"{layer}.fc1"),
        _row(f"{layer}.mlp.down_proj", f"{layer}.fc2"),
        _row(f"{layer}.mlp_norm", f"{layer}.final_layer_norm"),
    ]


# ----------------------------------------------------------------------------------------------------------- the table

CONVERSIONS: dict[str, Conversion] = {
    "bert": Conversion(
        fields={
            **_EVERY,
            **_ENCODER,
            **_POST_NORM,
            **same("hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size", "hidden_act"),
            **same("max_position_embeddings", "initializer_range", "classifier_dropout", "use_cache"),
            **renamed(norm_eps="layer_norm_eps", hidden_dropout="hidden_dropout_prob"),
            **renamed(attention_dropout="attention_probs_dropout_prob"),
            **only(prediction_bias=True, prediction_act=None, pooler=True),
            **only(classifier_transform="none", classifier_pooling="first"),
            "type_vocab_size": Field(  # without segments the native embeddings would have nothing to look up
                lambda config: {"type_vocab_size": max(config.type_vocab_size, 1)},
                lambda native: native.type_vocab_size,
            ),
            "embedding_dropout": Field(
                lambda config: {}, lambda native: native.hidden_dropout_prob, unread="it only trains"
            ),
            **unread("it only trains", activation_dropout=0.0),
            **unread("it only starts a model", initialization="normal"),
        },
        rows=[
            _row("encoder.embeddings.embed_tokens", "embeddings.word_embeddings"),
            _row("encoder.embeddings.embed_positions", "embeddings.position_embeddings"),
            _row("encoder.embeddings.embed_segments", "embeddings.token_type_embeddings"),
            _row("encoder.embeddings.norm", "embeddings.LayerNorm"),
            _row("encoder.layers.{i}.attention.q_proj", "encoder.layer.{i}.attention.self.query"),
            _row("encoder.layers.{i}.attention.k_proj", "encoder.layer.{i}.attention.self.key"),
            _row("encoder.layers.{i}.attention.v_proj", "encoder.layer.{i}.attention.self.value"),
            _row("encoder.layers.{i}.attention.o_proj", "encoder.layer.{i}.attention.output.dense"),
            _row("encoder.layers.{i}.attention_norm", "encoder.layer.{i}.attention.output.LayerNorm"),
            _row("encoder.layers.{i}.mlp.up_proj", "encoder.layer.{i}.intermediate.dense"),
            _row("encoder.layers.{i}.mlp.down_proj", "encoder.layer.{i}.output.dense"),
            _row("encoder.layers.{i}.mlp_norm", "encoder.layer.{i}.output.LayerNorm"),
            _row("pooler.dense", "pooler.dense"),
        ],
        heads={
            **_heads("Bert", Model=[], ForPreTraining=[*_BERT_PREDICTIONS, _BERT_RELATION]),
            **_heads("Bert", ForMaskedLM=_BERT_PREDICTIONS, ForNextSentencePrediction=[_BERT_RELATION]),
            **_heads("Bert", ForSequenceClassification=_CLASSIFIER, ForTokenClassification=_CLASSIFIER),
            **_heads("Bert", ForMultipleChoice=[_row("score", "classifier")]),
            "LacunaForQuestionAnswering": Head("BertForQuestionAnswering", _ANSWER, num_labels=2),
        },
    ),
    "modernbert": Conversion(
        fields={
            **_EVERY,
            **_ENCODER,
            **same("hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size", "layer_types"),
            **same("max_position_embeddings", "initializer_range", "cls_token_id", "sep_token_id"),
            **same("norm_eps", "norm_bias", "attention_bias", "mlp_bias", "embedding_dropout", "attention_dropout"),
            **renamed(hidden_act="hidden_activation", activation_dropout="mlp_dropout"),
            **renamed(prediction_bias="classifier_bias", prediction_act="classifier_activation"),
            **renamed(lm_head_bias="decoder_bias"),
            **only(gated_mlp=True, norm_placement="pre", position_type="rotary", type_vocab_size=0),
            **only(pooler=False, classifier_transform="norm"),
            "classifier_pooling": Field(
                lambda config: {"classifier_pooling": "mean" if config.classifier_pooling == "mean" else "cls"},
                lambda native: "mean" if native.classifier_pooling == "mean" else "first",
            ),
            "sliding_window": Field(
                lambda config: {"local_attention": 2 * (config.sliding_window or 64)},
                lambda native: native.local_attention // 2,
                meaning=_used_window,
            ),
            "rope_parameters": Field(
                lambda config: {"rope_parameters": _rope_by_layer_type(config)},
                lambda native: {name: dict(entry) for name, entry in native.rope_parameters.items()},
                meaning=_rope_by_layer_type,
            ),
            **_CLASSIFIER_DROPOUT,
            **unread("it only trains", hidden_dropout=0.0),
            **unread("it only starts a model", initialization="truncated_normal"),
            **unread("an encoder has no cache", use_cache=True),
        },
        rows=[
            _row("encoder.embeddings.embed_tokens", "embeddings.tok_embeddings"),
            _row("encoder.embeddings.norm", "embeddings.norm"),
            _row("encoder.layers.{i}.attention_norm", "layers.{i}.attn_norm"),
            Row(tuple(f"encoder.layers.{{i}}.attention.{name}_proj" for name in "qkv"), "layers.{i}.attn.Wqkv"),
            _row("encoder.layers.{i}.attention.o_proj", "layers.{i}.attn.Wo"),
            _row("encoder.layers.{i}.mlp_norm", "layers.{i}.mlp_norm"),
            Row(("encoder.layers.{i}.mlp.gate_proj", "encoder.layers.{i}.mlp.up_proj"), "layers.{i}.mlp.Wi"),
            _row("encoder.layers.{i}.mlp.down_proj", "layers.{i}.mlp.Wo"),
            _row("encoder.norm", "final_norm"),
        ],
        heads={
            **_heads("ModernBert", Model=[], ForMaskedLM=[*_MODERNBERT_HEAD, _row("lm_head", "decoder")]),
            **_heads("ModernBert", ForSequenceClassification=[*_MODERNBERT_HEAD, *_CLASSIFIER]),
            **_heads("ModernBert", ForTokenClassification=[*_MODERNBERT_HEAD, *_CLASSIFIER]),
            **_heads("ModernBert", ForMultipleChoice=[*_MODERNBERT_HEAD, _row("score", "classifier")]),
            "LacunaForQuestionAnswering": Head(
                "ModernBertForQuestionAnswering", [*_MODERNBERT_HEAD, _row("qa_outputs", "classifier")], num_labels=2
            ),
        },
        lost={
            "local_attention": "the window on each side is half of it, rounded down; none where no layer slides",
            "rope_parameters": "entries of layer types that no layer has",
            "initializer_cutoff_factor": "it only starts a model",
            "deterministic_flash_attn": "how a kernel adds up",
            "sparse_pred_ignore_index": "it is for sparse_prediction, which is a choice of each call here",
        },
    ),
    "gpt2": Conversion(
        fields={
            **_EVERY,
            **_DECODER,
            **same("initializer_range"),
            **renamed(hidden_size="n_embd", num_hidden_layers="n_layer", num_attention_heads="n_head"),
            **renamed(max_position_embeddings="n_positions", hidden_act="activation_function"),
            **renamed(norm_eps="layer_norm_epsilon", embedding_dropout="embd_pdrop", hidden_dropout="resid_pdrop"),
            **renamed(attention_dropout="attn_pdrop"),
            **only(gated_mlp=False, norm_type="layer_norm", norm_bias=True, position_type="learned"),
            **only(attention_bias=True, mlp_bias=True),
            **unread("it only trains", freeze_padding=False),
            "intermediate_size": Field(
                lambda config: {
                    "n_inner": None if config.intermediate_size == 4 * config.hidden_size else config.intermediate_size
                },
                lambda native: 4 * native.n_embd if native.n_inner is None else native.n_inner,
            ),
            "attention_score": Field(
                lambda config: {"scale_attn_weights": config.attention_score != "dot_product"},
                lambda native: "scaled_dot_product" if native.scale_attn_weights else "dot_product",
            ),
            **unread("it only trains", activation_dropout=0.0),
            **unread("it only starts a model", initialization="depth_scaled"),
        },
        rows=[
            _row("decoder.embeddings.embed_tokens", "wte"),
            _row("decoder.embeddings.embed_positions", "wpe"),
            _row("decoder.layers.{i}.attention_norm", "h.{i}.ln_1"),
            Row(
                tuple(f"decoder.layers.{{i}}.attention.{name}_proj" for name in "qkv"),
                "h.{i}.attn.c_attn",
                transposed=True,
            ),
            _row("decoder.layers.{i}.attention.o_proj", "h.{i}.attn.c_proj", transposed=True),
            _row("decoder.layers.{i}.mlp_norm", "h.{i}.ln_2"),
            _row("decoder.layers.{i}.mlp.up_proj", "h.{i}.mlp.c_fc", transposed=True),
            _row("decoder.layers.{i}.mlp.down_proj", "h.{i}.mlp.c_proj", transposed=True),
            _row("decoder.norm", "ln_f"),
        ],
        heads={
            **_heads("GPT2", Model=[], ForTokenClassification=_CLASSIFIER, ForQuestionAnswering=_ANSWER),
            "LacunaForCausalLM": Head("GPT2LMHeadModel", [_row("lm_head", "lm_head")]),
            "LacunaForSequenceClassification": Head("GPT2ForSequenceClassification", _SCORE, fields=_NO_DROPOUT),
        },
        lost={
            "n_inner": "None is 4 * n_embd",
            **{
                f"summary_{name}": "it is for GPT2DoubleHeadsModel"
                for name in ("type", "use_proj", "activation", "proj_to_labels", "first_dropout")
            },
        },
    ),
    "llama": Conversion(
        fields={
            **_LLAMA,
            **same("mlp_bias"),
            "num_attention_heads": Field(_whole_heads, lambda native: native.num_attention_heads),
        },
        rows=_LLAMA_ROWS,
        heads=_llama_heads("Llama"),
        lost={"pretraining_tp": "nothing reads it"},
    ),
    "qwen3": Conversion(
        fields={
            **_LLAMA,
            **same("layer_types"),
            **only(qk_norm=True, mlp_bias=False),
            "sliding_window": Field(
                lambda config: {
                    "sliding_window": config.sliding_window,
                    "use_sliding_window": config.sliding_window is not None,
                },
                lambda native: native.sliding_window,
            ),
        },
        rows=[
            *_LLAMA_ROWS,
            *[_row(f"decoder.layers.{{i}}.attention.{n}_norm", f"layers.{{i}}.self_attn.{n}_norm") for n in "qk"],
        ],
        heads=_llama_heads("Qwen3"),
        lost={"max_window_layers": "layer_types says which layers slide"},
    ),
    "bart": Conversion(
        fields={
            **_EVERY,
            **_POST_NORM,
            **same("max_position_embeddings", "scale_embedding", "attention_dropout", "activation_dropout"),
            **same("use_cache", "decoder_start_token_id"),
            **renamed(hidden_size="d_model", num_hidden_layers="encoder_layers", num_decoder_layers="decoder_layers"),
            **renamed(hidden_act="activation_function", hidden_dropout="dropout", initializer_range="init_std"),
            "num_attention_heads": Field(
                lambda config: {
                    f"{stack}_attention_heads": config.num_attention_heads for stack in ("encoder", "decoder")
                },
                lambda native: native.encoder_attention_heads,
            ),
            "intermediate_size": Field(
                lambda config: {f"{stack}_ffn_dim": config.intermediate_size for stack in ("encoder", "decoder")},
                lambda native: native.encoder_ffn_dim,
            ),
            **only(shape="encoder-decoder", norm_eps=1e-5, position_offset=2, type_vocab_size=0, pooler=False),
            **only(classifier_bias=True, classifier_transform="tanh", classifier_pooling="last"),
            "embedding_dropout": Field(lambda config: {}, lambda native: native.dropout, unread="it only trains"),
            **_CLASSIFIER_DROPOUT,
            **unread("it only starts a model", initialization="normal"),
            **unread("there is no prediction head", prediction_bias=False, prediction_act=None),
        },
        rows=[
            *_bart_rows("encoder"),
            *_bart_rows("decoder"),
            _row("encoder.embeddings.embed_tokens", "shared", dead=True),
        ],
        heads={
            **_heads("Bart", Model=[], ForQuestionAnswering=_ANSWER),
            **_heads("Bart", ForConditionalGeneration=_BART_LOGITS, ForSequenceClassification=_BART_CLASSIFIER),
        },
        lost={"forced_eos_token_id": "generation_config says it"},
        generation=("forced_eos_token_id",),
    ),
}


# ------------------------------------------------------------------------------------------------------ there and back


def to_native(model: LacunaPreTrainedModel, family: str | None = None) -> PreTrainedModel:
    """Return the native model with the weights of `model`, on its device and in its dtypes.

    Args:
        model: a Lacuna model with a head that the family has.
        family: a key of `CONVERSIONS`; None: the one that can express the configuration.

    Raises:
        ConversionError: when no family, or not this one, can express the model; the field that stands in the way and
            its value are named. Fields that only start or train a model do not stand in the way.
    """
    family = _find_family(model.config) if family is None else family
    if family not in CONVERSIONS:
        raise ConversionError(f"family={family!r} is not known{name_nearest(value=family, known=CONVERSIONS)}")
    conversion = CONVERSIONS[family]
    fields = _native_fields(model.config, family)
    head = conversion.heads.get(type(model).__name__)
    if head is None:
        raise ConversionError(f"{family} has no head like {type(model).__name__}: {', '.join(conversion.heads)}")
    if head.num_labels not in (None, model.config.num_labels):
        raise ConversionError(
            f"{head.native} cannot express num_labels={model.config.num_labels}, only {head.num_labels}"
        )
    fields |= {name: getattr(_generation_config(model), name, None) for name in conversion.generation}
    native_class = getattr(transformers, head.native)
    native = native_class(native_class.config_class(**fields))

    ours, theirs, wanted = model.state_dict(), {}, native.state_dict()
    kept = {} if model.config.tie_word_embeddings else getattr(model, _UNREAD, {})
    pairs = list(_pairs(conversion, head, model, native))
    for row, our_keys, native_key in pairs:
        if native_key in wanted and all(key in ours for key in our_keys):
            theirs[native_key] = _shaped_like(_join([ours[key] for key in our_keys], row), wanted[native_key])
            if row.dead and native_key in kept and kept[native_key].shape == wanted[native_key].shape:
                theirs[native_key] = kept[native_key]
    return _fill(native, theirs, unused=set(ours) - {key for _, keys, _ in pairs for key in keys}, like=model)


def from_native(native: PreTrainedModel) -> LacunaPreTrainedModel:
    """Return the Lacuna model with the weights of a native model of one of the families, on its device, in its dtypes.

    Raises:
        ConversionError: when the model type or the head is not known, or a field has a value that we cannot express.
    """
    family = native.config.model_type
    if family not in CONVERSIONS:
        raise ConversionError(f"model_type={family!r} cannot be converted; these can: {', '.join(CONVERSIONS)}")
    conversion = CONVERSIONS[family]
    found = [(ours, head) for ours, head in conversion.heads.items() if head.native == type(native).__name__]
    if not found:
        known = ", ".join(head.native for head in conversion.heads.values())
        raise ConversionError(f"{type(native).__name__} has no counterpart here; these have: {known}")
    our_class, head = found[0]
    config = LacunaConfig(**(_our_fields(native.config, family) | head.fields))
    model = getattr(modeling_lacuna, our_class)(config)

    theirs, wanted = native.state_dict(), model.state_dict()
    ours: dict[str, Tensor] = {}
    kept: dict[str, Tensor] = {}
    pairs = list(_pairs(conversion, head, model, native))
    for row, our_keys, native_key in pairs:
        if native_key not in theirs:
            continue
        if row.dead:
            kept[native_key] = theirs[native_key].clone()
        elif all(key in wanted for key in our_keys):
            parts = _split(theirs[native_key], row, [wanted[key] for key in our_keys])
            ours |= dict(zip(our_keys, parts, strict=True))
    if kept and not config.tie_word_embeddings:
        setattr(model, _UNREAD, kept)
    return _fill(model, ours, unused=set(theirs) - {native_key for _, _, native_key in pairs}, like=native)


def _find_family(config: LacunaConfig) -> str:
    reasons = []
    for family in CONVERSIONS:
        try:
            _native_fields(config, family)
        except ConversionError as error:
            reasons.append(str(error))
        else:
            return family
    raise ConversionError(f"no native family can express this configuration: {'; '.join(reasons)}")


# ------------------------------------------------------------------------------------------------------ configurations


def _native_fields(config: LacunaConfig, family: str) -> dict[str, Any]:
    """The native configuration that says what ours says; refuses what returns changed from there."""
    conversion = CONVERSIONS[family]
    fields = {name: getattr(config, name) for name in SHARED}
    for field in conversion.fields.values():
        fields |= field.to_native(config)
    native_class = getattr(transformers, conversion.heads["LacunaModel"].native).config_class
    try:
        there = native_class(**fields)
        back = LacunaConfig(**_read(there, conversion))
    except (ValueError, TypeError, StrictDataclassError) as error:
        raise ConversionError(f"{family} cannot express the configuration: {error}") from error
    for name in _names(LacunaConfig):
        entry = conversion.fields.get(name)
        if name in WRITTEN or (entry and entry.unread):
            continue
        before, after = (
            entry.meaning(each) if entry and entry.meaning else getattr(each, name) for each in (config, back)
        )
        if before != after:
            raise ConversionError(f"{family} cannot express {name}={before!r}, only {after!r}")
    return fields


def _our_fields(native: PreTrainedConfig, family: str) -> dict[str, Any]:
    """Our configuration that says what a native one says; refuses what returns changed from here."""
    conversion = CONVERSIONS[family]
    if native.is_heterogeneous:
        raise ConversionError(f"a Lacuna model cannot express per_layer_config of {family}: all its layers are alike")
    fields = _read(native, conversion)
    try:
        config = LacunaConfig(**fields)
    except ConfigurationError as error:
        raise ConversionError(f"a Lacuna model cannot express this {family}: {error}") from error
    back_fields = {name: getattr(config, name) for name in SHARED}
    for field in conversion.fields.values():
        back_fields |= field.to_native(config)
    back = type(native)(**back_fields)
    for name in _names(type(native)):
        before, after = getattr(native, name), getattr(back, name)
        if before != after and name not in conversion.lost and name not in WRITTEN:
            raise ConversionError(
                f"a Lacuna model cannot express {name}={before!r} of {family}, only {after!r} with the rest"
            )
    return fields


def _read(native: PreTrainedConfig, conversion: Conversion) -> dict[str, Any]:
    """Arguments for `LacunaConfig` from a native configuration."""
    fields = {name: getattr(native, name) for name in SHARED}
    return fields | {name: field.from_native(native) for name, field in conversion.fields.items()}


def _names(config_class: type[PreTrainedConfig]) -> list[str]:
    return [field.name for field in dataclasses.fields(config_class)]


def _generation_config(model: PreTrainedModel) -> Any:
    return getattr(model, "generation_config", None)


# ------------------------------------------------------------------------------------------------------------- tensors


def _pairs(
    conversion: Conversion, head: Head, model: LacunaPreTrainedModel, native: PreTrainedModel
) -> Iterator[tuple[Row, tuple[str, ...], str]]:
    """Names of tensors on both sides, for every layer; also of such as these models do not have."""
    ours_at, theirs_at = (
        f"{each.base_model_prefix}." if hasattr(each, each.base_model_prefix) else "" for each in (model, native)
    )
    rows = [(row, ours_at, theirs_at) for row in conversion.rows] + [(row, "", "") for row in head.rows]
    layers = max(len(model.config.layer_types_of(stack)) for stack in model.config.stacks)
    for row, our_prefix, native_prefix in rows:
        is_tensor = row.ours[0].endswith((".weight", ".bias"))
        for layer in range(layers if "{i}" in row.theirs else 1):
            for kind in ("",) if is_tensor else (".weight", ".bias"):
                our_keys = tuple(f"{our_prefix}{name}{kind}".replace("{i}", str(layer)) for name in row.ours)
                yield row, our_keys, f"{native_prefix}{row.theirs}{kind}".replace("{i}", str(layer))


def _join(parts: list[Tensor], row: Row) -> Tensor:
    joined = torch.cat(parts)
    return joined.T if row.transposed and joined.dim() == 2 else joined


def _split(tensor: Tensor, row: Row, wanted: list[Tensor]) -> list[Tensor]:
    tensor = tensor.T if row.transposed and tensor.dim() == 2 else tensor
    if len(wanted) == 1:
        return [_shaped_like(tensor, wanted[0])]
    return list(tensor.split([part.shape[0] for part in wanted]))


def _shaped_like(tensor: Tensor, wanted: Tensor) -> Tensor:
    """`tensor` with the dimensions of size 1 of `wanted`; any other difference is left to be refused."""
    alike = [size for size in tensor.shape if size != 1] == [size for size in wanted.shape if size != 1]
    return tensor.reshape(wanted.shape) if alike else tensor


def _fill(model: Any, state: dict[str, Tensor], *, unused: set[str], like: PreTrainedModel) -> Any:
    """Fill `model` with copies of exactly the tensors of `state`, and give it the device and mode of `like`."""
    wanted = model.state_dict()
    names = f"{type(like).__name__} to {type(model).__name__}"
    missing = set(wanted) - set(state)
    if missing or unused:
        raise ConversionError(f"tensors without a counterpart: {', '.join(sorted(missing | unused))} ({names})")
    for name, tensor in state.items():
        if tensor.shape != wanted[name].shape:
            raise ConversionError(
                f"{name} has the shape {tuple(tensor.shape)}, and the configuration makes it "
                f"{tuple(wanted[name].shape)} ({names})"
            )
    for target, source in model.all_tied_weights_keys.items():
        if not torch.equal(state[target], state[source]):
            raise ConversionError(
                f"tie_word_embeddings={model.config.tie_word_embeddings} says that {target} is {source}, and they "
                f"differ ({names})"
            )
    copies = {name: tensor.clone(memory_format=torch.contiguous_format) for name, tensor in state.items()}
    model.load_state_dict(copies, strict=True, assign=True)  # assigned, so that each tensor keeps its dtype
    model.tie_weights(recompute_mapping=False)
    if _generation_config(model) is not None and _generation_config(like) is not None:
        model.generation_config = copy.deepcopy(like.generation_config)
    return model.to(like.device).train(like.training)


__all__ = ["CONVERSIONS", "ConversionError", "from_native", "to_native"]
