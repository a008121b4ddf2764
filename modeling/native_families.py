"""What the native families of transformers call our fields and tensors; conversion.py goes by it in both directions.

A family is one entry of `CONVERSIONS`: what each field of `LacunaConfig` is there, and the names of modules on both
sides. Adding one needs an entry in `FAMILIES` of families_lacuna.py too.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from .configuration_lacuna import LacunaConfig


class ConversionError(ValueError):
    """A model that the other side cannot express; the message names the field or the tensors."""

    exit_code, differences = 2, 99  # in how many fields, where that is known


@dataclass(frozen=True)
class Field:
    """What a field of `LacunaConfig` is in a family."""

    to_native: Callable[[LacunaConfig], dict[str, Any]]  # the native fields that say the same
    from_native: Callable[[Any], Any]  # our value by a native configuration; None lets `LacunaConfig` derive it
    meaning: Callable[[LacunaConfig], Any] | None = None  # what must return unchanged, if not the value itself
    unread: str | None = None  # why no output of the native model depends on it: it is then not compared


@dataclass(frozen=True)
class WeightPair:
    """Our modules and the native one that hold the same weights; "{i}" stands for the layer number."""

    ours: tuple[str, ...]  # our modules, or one tensor; several are stacked along their outputs in the native one
    theirs: str  # the native module or tensor; a tensor may also have further dimensions of size 1
    transposed: bool = False  # whether the native weight is [inputs, outputs]
    dead: bool = False  # nothing reads it where embeddings are not tied; where they are, it is one of the others


@dataclass(frozen=True)
class Head:
    """A head that exists on both sides."""

    native: str  # name of the native class in transformers
    weights: list[WeightPair]  # modules of the head
    fields: dict[str, Any] = dataclasses.field(default_factory=dict)  # what starts or trains in one way only there
    num_labels: int | None = None  # the only number of labels with which the native class works


@dataclass(frozen=True)
class Conversion:
    """How a family is written natively."""

    fields: dict[str, Field]  # every field of `LacunaConfig` but `SHARED` and `WRITTEN` of conversion.py
    weights: list[WeightPair]  # modules of the backbone
    heads: dict[str, Head]  # by the name of our class
    lost: dict[str, str] = dataclasses.field(default_factory=dict)  # what may return changed, and why that is harmless
    generation: tuple[str, ...] = ()  # native fields that repeat what the generation configuration says


def renamed(**names: str) -> dict[str, Field]:
    """Fields of ours that the family has under the name given, or under several names."""

    def pair(ours: str, theirs: list[str]) -> Field:
        return Field(
            lambda config: dict.fromkeys(theirs, getattr(config, ours)), lambda native: getattr(native, theirs[0])
        )

    return {ours: pair(ours, theirs.split()) for ours, theirs in names.items()}


def same(*names: str) -> dict[str, Field]:
    """Fields that have the same name on both sides."""
    return renamed(**{name: name for name in names})


def only(reason: str | None = None, /, **values: Any) -> dict[str, Field]:
    """Fields that have one value in the family; None: what follows from the rest. `reason`: see `Field.unread`."""

    def constant(value: Any) -> Field:
        return Field(lambda config: {}, lambda native: value, unread=reason)

    return {name: constant(value) for name, value in values.items()}


def weights(table: str) -> list[WeightPair]:
    """One pair per line `ours = theirs`, optionally followed by `transposed` or `dead`.

    `a + b = c` stacks modules of ours, and `{qkv}` stands for q, k and v stacked.
    """
    found = []
    for line in table.strip().splitlines():
        ours, _, theirs, *kinds = line.replace(" + ", "+").split()
        names = [ours.replace("{qkv}", letter) for letter in "qkv"] if "{qkv}" in ours else ours.split("+")
        found.append(WeightPair(tuple(names), theirs, **dict.fromkeys(kinds, True)))
    return found


def heads(prefix: str, **by_name: list[WeightPair]) -> dict[str, Head]:
    """Heads that are called on both sides as the keyword says, after the prefix of the family."""
    return {f"Lacuna{name}": Head(f"{prefix}{name}", head_weights) for name, head_weights in by_name.items()}


# --------------------------------------------------------------------------------------------- fields that need a rule

_TRAINS, _STARTS = "it only trains", "it only starts a model"


def _rope_by_layer_type(config: LacunaConfig) -> dict[str, Any]:
    """Rotary parameters of each layer type that a layer has; none where positions are not rotary."""
    parameters = config.rope_parameters or {}
    if "rope_type" in parameters:
        parameters = dict.fromkeys(config.layer_types, parameters)
    return {layer_type: dict(parameters[layer_type]) for layer_type in sorted(parameters)}


def _rope_for_all(config: LacunaConfig) -> dict[str, Any]:
    """The first of the rotary parameters, for families that have one set; others then return changed."""
    entries = list(_rope_by_layer_type(config).values())
    return {"rope_parameters": entries[0]} if entries else {}


def _dropout_before_classifier(config: LacunaConfig) -> float:
    return config.hidden_dropout if config.classifier_dropout is None else config.classifier_dropout


def _token_dropout(config: LacunaConfig) -> dict[str, Any]:
    """A dropout that GPT-2, Llama and Qwen3 read for token classification alone: no field, and 0.1 where it is not."""
    dropout = _dropout_before_classifier(config)
    return {} if dropout in (0.0, 0.1) else {"classifier_dropout": dropout}


_TOKEN_DROPOUT = Field(
    _token_dropout,
    lambda native: 0.1 if (value := getattr(native, "classifier_dropout", None)) is None else value,
    unread=_TRAINS,
)
_CLASSIFIER_DROPOUT = Field(
    lambda config: {"classifier_dropout": _dropout_before_classifier(config)},
    lambda native: native.classifier_dropout,
    unread=_TRAINS,
)

# ---------------------------------------------------------------------------------------- what families have in common

_EVERY = {
    **same("vocab_size", "tie_word_embeddings", "pad_token_id", "bos_token_id", "eos_token_id"),
    **only(hybrid=False, question_aware=False),  # natively every head of a decoder hides the future
    **only(num_key_value_heads=None, head_dim=None, qk_norm=False, attention_score="scaled_dot_product"),
    **only(position_offset=0, scale_embedding=False, rope_parameters=None),
    **only(layer_types=None, num_decoder_layers=None, decoder_layer_types=None),
    **only("no layer slides", sliding_window=None),
    **only(_TRAINS, freeze_padding=True, embedding_dropout=0.0, hidden_dropout=0.0, activation_dropout=0.0),
    **only(_STARTS, initialization="normal"),
    **only("only an encoder-decoder starts with it", decoder_start_token_id=None),
    **only("it is for tokenizers", cls_token_id=None, sep_token_id=None),
    **only("there is no prediction head", prediction_bias=False, prediction_act=None),
}
_ENCODER = only(shape="encoder", norm_type="layer_norm", embedding_norm=True, classifier_bias=True)
_DECODER = {
    **same("use_cache"),
    "classifier_dropout": _TOKEN_DROPOUT,
    **only(shape="decoder", norm_placement="pre", embedding_norm=False, type_vocab_size=0, lm_head_bias=False),
    **only(pooler=False, classifier_bias=False, classifier_transform="none", classifier_pooling="last"),
}
_POST_NORM = {
    **only(gated_mlp=False, norm_type="layer_norm", norm_placement="post", norm_bias=True, embedding_norm=True),
    **only(position_type="learned", attention_bias=True, mlp_bias=True, lm_head_bias=True),
}
_LLAMA = {
    **_EVERY,
    **_DECODER,
    **same("hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "head_dim"),
    **same("intermediate_size", "hidden_act", "max_position_embeddings", "initializer_range"),
    **same("attention_bias", "attention_dropout"),
    **renamed(norm_eps="rms_norm_eps"),
    **only(gated_mlp=True, norm_type="rms_norm", norm_bias=False, position_type="rotary"),
    "rope_parameters": Field(_rope_for_all, lambda native: dict(native.rope_parameters), meaning=_rope_by_layer_type),
}
_LLAMA_WEIGHTS = weights("""
    decoder.embeddings.embed_tokens = embed_tokens
    decoder.layers.{i}.attention_norm = layers.{i}.input_layernorm
    decoder.layers.{i}.attention.q_proj = layers.{i}.self_attn.q_proj
    decoder.layers.{i}.attention.k_proj = layers.{i}.self_attn.k_proj
    decoder.layers.{i}.attention.v_proj = layers.{i}.self_attn.v_proj
    decoder.layers.{i}.attention.o_proj = layers.{i}.self_attn.o_proj
    decoder.layers.{i}.mlp_norm = layers.{i}.post_attention_layernorm
    decoder.layers.{i}.mlp.gate_proj = layers.{i}.mlp.gate_proj
    decoder.layers.{i}.mlp.up_proj = layers.{i}.mlp.up_proj
    decoder.layers.{i}.mlp.down_proj = layers.{i}.mlp.down_proj
    decoder.norm = norm
""")

_CLASSIFIER = weights("classifier = classifier")
_SCORE = weights("classifier = score")
_ANSWER = weights("qa_outputs = qa_outputs")
_CHOICE = weights("score = classifier")
_LM_HEAD = weights("lm_head = lm_head")
_SUMMARY = ("type", "use_proj", "activation", "proj_to_labels", "first_dropout")
_NO_DROPOUT = {"classifier_dropout": 0.0}


def _llama_heads(prefix: str) -> dict[str, Head]:
    return {
        **heads(prefix, Model=[], ForCausalLM=_LM_HEAD, ForTokenClassification=_SCORE, ForQuestionAnswering=_ANSWER),
        "LacunaForSequenceClassification": Head(f"{prefix}ForSequenceClassification", _SCORE, fields=_NO_DROPOUT),
    }


_BERT_PREDICTIONS = weights("""
    transform.dense = cls.predictions.transform.dense
    transform.norm = cls.predictions.transform.LayerNorm
    lm_head = cls.predictions.decoder
    lm_head.bias = cls.predictions.bias dead
""")
_BERT_RELATION = weights("sentence_head.classifier = cls.seq_relationship")
_MODERNBERT_HEAD = weights("transform.dense = head.dense\ntransform.norm = head.norm")
_BART_LOGITS = weights("lm_head.weight = lm_head.weight\nlm_head.bias = final_logits_bias")
_BART_CLASSIFIER = weights("transform.dense = classification_head.dense\nclassifier = classification_head.out_proj")


def _bart_weights(stack: str, **attentions: str) -> list[WeightPair]:
    layer = stack + ".layers.{i}"
    lines = [f"{stack}.embeddings.{name} = {stack}.{name}" for name in ("embed_tokens", "embed_positions")]
    lines += [f"{stack}.embeddings.norm = {stack}.layernorm_embedding"]
    for ours, theirs in attentions.items():
        lines += [f"{layer}.{ours}.{name}_proj = {layer}.{theirs}.{name}_proj" for name in "qkv"]
        lines += [f"{layer}.{ours}.o_proj = {layer}.{theirs}.out_proj"]
        lines += [f"{layer}.{ours}_norm = {layer}.{theirs}_layer_norm"]
    lines += [f"{layer}.mlp.up_proj = {layer}.fc1", f"{layer}.mlp.down_proj = {layer}.fc2"]
    return weights("\n".join([*lines, f"{layer}.mlp_norm = {layer}.final_layer_norm"]))


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
            "embedding_dropout": Field(lambda config: {}, lambda native: native.hidden_dropout_prob, unread=_TRAINS),
        },
        weights=weights("""
            encoder.embeddings.embed_tokens = embeddings.word_embeddings
            encoder.embeddings.embed_positions = embeddings.position_embeddings
            encoder.embeddings.embed_segments = embeddings.token_type_embeddings
            encoder.embeddings.norm = embeddings.LayerNorm
            encoder.layers.{i}.attention.q_proj = encoder.layer.{i}.attention.self.query
            encoder.layers.{i}.attention.k_proj = encoder.layer.{i}.attention.self.key
            encoder.layers.{i}.attention.v_proj = encoder.layer.{i}.attention.self.value
            encoder.layers.{i}.attention.o_proj = encoder.layer.{i}.attention.output.dense
            encoder.layers.{i}.attention_norm = encoder.layer.{i}.attention.output.LayerNorm
            encoder.layers.{i}.mlp.up_proj = encoder.layer.{i}.intermediate.dense
            encoder.layers.{i}.mlp.down_proj = encoder.layer.{i}.output.dense
            encoder.layers.{i}.mlp_norm = encoder.layer.{i}.output.LayerNorm
            pooler.dense = pooler.dense
        """),
        heads={
            **heads("Bert", Model=[], ForPreTraining=[*_BERT_PREDICTIONS, *_BERT_RELATION]),
            **heads("Bert", ForMaskedLM=_BERT_PREDICTIONS),
            **heads("Bert", ForSequenceClassification=_CLASSIFIER, ForTokenClassification=_CLASSIFIER),
            **heads("Bert", ForMultipleChoice=_CHOICE),
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
            **renamed(hidden_act="hidden_activation", activation_dropout="mlp_dropout", lm_head_bias="decoder_bias"),
            **renamed(prediction_bias="classifier_bias", prediction_act="classifier_activation"),
            **only(gated_mlp=True, norm_placement="pre", position_type="rotary", type_vocab_size=0),
            **only(pooler=False, classifier_transform="norm"),
            "classifier_pooling": Field(
                lambda config: {"classifier_pooling": "mean" if config.classifier_pooling == "mean" else "cls"},
                lambda native: "mean" if native.classifier_pooling == "mean" else "first",
            ),
            "sliding_window": Field(
                lambda config: {"local_attention": 2 * (config.sliding_window or 64)},
                lambda native: native.local_attention // 2,
                meaning=lambda config: config.sliding_window if "sliding_attention" in config.layer_types else None,
            ),
            "rope_parameters": Field(
                lambda config: {"rope_parameters": _rope_by_layer_type(config)},
                lambda native: {name: dict(entry) for name, entry in native.rope_parameters.items()},
                meaning=_rope_by_layer_type,
            ),
            "classifier_dropout": _CLASSIFIER_DROPOUT,
            **only(_STARTS, initialization="truncated_normal"),
            **only("an encoder has no cache", use_cache=True),
        },
        weights=weights("""
            encoder.embeddings.embed_tokens = embeddings.tok_embeddings
            encoder.embeddings.norm = embeddings.norm
            encoder.layers.{i}.attention_norm = layers.{i}.attn_norm
            encoder.layers.{i}.attention.{qkv}_proj = layers.{i}.attn.Wqkv
            encoder.layers.{i}.attention.o_proj = layers.{i}.attn.Wo
            encoder.layers.{i}.mlp_norm = layers.{i}.mlp_norm
            encoder.layers.{i}.mlp.gate_proj + encoder.layers.{i}.mlp.up_proj = layers.{i}.mlp.Wi
            encoder.layers.{i}.mlp.down_proj = layers.{i}.mlp.Wo
            encoder.norm = final_norm
        """),
        heads={
            **heads("ModernBert", Model=[], ForMaskedLM=_MODERNBERT_HEAD + weights("lm_head = decoder")),
            **heads("ModernBert", ForSequenceClassification=_MODERNBERT_HEAD + _CLASSIFIER),
            **heads("ModernBert", ForTokenClassification=_MODERNBERT_HEAD + _CLASSIFIER),
            **heads("ModernBert", ForMultipleChoice=_MODERNBERT_HEAD + _CHOICE),
            "LacunaForQuestionAnswering": Head(
                "ModernBertForQuestionAnswering", _MODERNBERT_HEAD + weights("qa_outputs = classifier"), num_labels=2
            ),
        },
        lost={
            "local_attention": "the window on each side is half of it, rounded down; none where no layer slides",
            "rope_parameters": "entries of layer types that no layer has",
            "initializer_cutoff_factor": _STARTS,
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
            **only(_TRAINS, freeze_padding=False),
            **only(_STARTS, initialization="depth_scaled"),
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
        },
        weights=weights("""
            decoder.embeddings.embed_tokens = wte
            decoder.embeddings.embed_positions = wpe
            decoder.layers.{i}.attention_norm = h.{i}.ln_1
            decoder.layers.{i}.attention.{qkv}_proj = h.{i}.attn.c_attn transposed
            decoder.layers.{i}.attention.o_proj = h.{i}.attn.c_proj transposed
            decoder.layers.{i}.mlp_norm = h.{i}.ln_2
            decoder.layers.{i}.mlp.up_proj = h.{i}.mlp.c_fc transposed
            decoder.layers.{i}.mlp.down_proj = h.{i}.mlp.c_proj transposed
            decoder.norm = ln_f
        """),
        heads={
            **heads("GPT2", Model=[], ForTokenClassification=_CLASSIFIER, ForQuestionAnswering=_ANSWER),
            "LacunaForCausalLM": Head("GPT2LMHeadModel", _LM_HEAD),
            "LacunaForSequenceClassification": Head("GPT2ForSequenceClassification", _SCORE, fields=_NO_DROPOUT),
        },
        lost={
            "n_inner": "None is 4 * n_embd",
            **{f"summary_{name}": "it is for GPT2DoubleHeadsModel" for name in _SUMMARY},
        },
    ),
    "llama": Conversion(
        fields={**_LLAMA, **same("mlp_bias")},
        weights=_LLAMA_WEIGHTS,
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
        weights=_LLAMA_WEIGHTS
        + weights("""
            decoder.layers.{i}.attention.q_norm = layers.{i}.self_attn.q_norm
            decoder.layers.{i}.attention.k_norm = layers.{i}.self_attn.k_norm
        """),
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
            **renamed(num_attention_heads="encoder_attention_heads decoder_attention_heads"),
            **renamed(intermediate_size="encoder_ffn_dim decoder_ffn_dim"),
            **only(shape="encoder-decoder", norm_eps=1e-5, position_offset=2, type_vocab_size=0, pooler=False),
            **only(classifier_bias=True, classifier_transform="tanh", classifier_pooling="last"),
            "embedding_dropout": Field(lambda config: {}, lambda native: native.dropout, unread=_TRAINS),
            "classifier_dropout": _CLASSIFIER_DROPOUT,
        },
        weights=[
            *_bart_weights("encoder", attention="self_attn"),
            *_bart_weights("decoder", attention="self_attn", cross_attention="encoder_attn"),
            *weights("encoder.embeddings.embed_tokens = shared dead"),
        ],
        heads={
            **heads("Bart", Model=[], ForQuestionAnswering=_ANSWER),
            **heads("Bart", ForConditionalGeneration=_BART_LOGITS, ForSequenceClassification=_BART_CLASSIFIER),
        },
        lost={"forced_eos_token_id": "generation_config says it"},
        generation=("forced_eos_token_id",),
    ),
}
