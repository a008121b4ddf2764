"""The configuration of a Lacuna model: which parts it is built from.

A Lacuna model is described by its parts (norms, positions, feed-forward, masks) and never by the name of a family.
`LacunaConfig.from_family` fills the parts in so that the result equals a known architecture weight for weight.
"""

# No `from __future__ import annotations` here: `@strict` checks nothing when annotations are strings.
import copy
import difflib
from functools import wraps
from typing import TYPE_CHECKING, Any, Literal, Self

from huggingface_hub.dataclasses import strict
from huggingface_hub.errors import StrictDataclassError
from transformers import GenerationConfig, PreTrainedConfig
from transformers.activations import ACT2FN
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from .families_lacuna import FAMILIES, SIZES

# None in a call means "derive it from the rest". After construction the value is there wherever the model reads it,
# and that is what type checkers are told; `@strict` sees the whole truth.
if TYPE_CHECKING:
    DerivedInt = int
    DerivedName = str
    DerivedNames = list[str]
    DerivedPooling = str
    DerivedParameters = dict[str, Any]
else:
    DerivedInt = int | None
    DerivedName = str | None
    DerivedNames = list[str] | None
    DerivedPooling = Literal["first", "mean", "last"] | None
    DerivedParameters = dict | None

SHAPES = ("encoder", "decoder", "encoder-decoder")
LAYER_TYPES = ("full_attention", "sliding_attention")

# Every head by the shape that can use it. A checkpoint offers these classes and no others: an encoder offered as a
# causal model would load without a complaint and see the tokens it is asked to predict.
HEADS: dict[str, dict[str, str]] = {
    "encoder": {
        "AutoModel": "LacunaModel",
        "AutoModelForPreTraining": "LacunaForPreTraining",
        "AutoModelForMaskedLM": "LacunaForMaskedLM",
        "AutoModelForNextSentencePrediction": "LacunaForNextSentencePrediction",
        "AutoModelForSequenceClassification": "LacunaForSequenceClassification",
        "AutoModelForTokenClassification": "LacunaForTokenClassification",
        "AutoModelForQuestionAnswering": "LacunaForQuestionAnswering",
        "AutoModelForMultipleChoice": "LacunaForMultipleChoice",
    },
    "decoder": {
        "AutoModel": "LacunaModel",
        "AutoModelForCausalLM": "LacunaForCausalLM",
        "AutoModelForSequenceClassification": "LacunaForSequenceClassification",
        "AutoModelForTokenClassification": "LacunaForTokenClassification",
        "AutoModelForQuestionAnswering": "LacunaForQuestionAnswering",
        "AutoModelForMultipleChoice": "LacunaForMultipleChoice",
    },
    "encoder-decoder": {
        "AutoModel": "LacunaModel",
        "AutoModelForSeq2SeqLM": "LacunaForConditionalGeneration",
        "AutoModelForSequenceClassification": "LacunaForSequenceClassification",
        "AutoModelForQuestionAnswering": "LacunaForQuestionAnswering",
    },
}


# A decoder that was also trained to see the whole text (`hybrid`) fills masks as well.
HYBRID_HEADS = {"AutoModelForMaskedLM": "LacunaForMaskedLM"}

# How attention compares a query with a key. All but the first are for the textbook: they have one implementation each.
ATTENTION_SCORES = ("scaled_dot_product", "dot_product", "multiplicative", "additive")

# Keys that are not fields and yet occur in a config.json or in a call: what PreTrainedConfig itself understands, and
# what tools write beside the architecture. Anything else is a mistake that somebody should hear about.
_CALL_KEYS = frozenset(
    {"num_labels", "torch_dtype", "name_or_path", "output_attentions", "attn_implementation", "experts_implementation"}
    | {"rope_theta", "rope_scaling", "model_type"}
)
_TOOL_KEYS = frozenset(
    {"quantization_config", "compression_config", "base_model_name_or_path", "sentence_transformers"}
    | {"custom_pipelines", "task_specific_params", "finetuning_task", "tokenizer_class", "tie_last_hidden_states"}
    | {"transformers_weights", "adapters", "neftune_noise_alpha"}
)


class ConfigurationError(ValueError):
    """A configuration that cannot be built, or a head that does not fit the configuration."""

    exit_code = 2


def name_nearest(*, value: str, known: Any) -> str:
    """Return `"; did you mean 'x'?"` for the nearest of `known`, or all of them when none is near."""
    names = sorted(str(name) for name in known)
    nearest = difflib.get_close_matches(value, names, n=1, cutoff=0.5)
    return f"; did you mean {nearest[0]!r}?" if nearest else f"; choose from {', '.join(names)}"


def _raise_configuration_errors(config_class: Any) -> Any:
    """Let the type errors that `@strict` finds at construction leave as `ConfigurationError`, like all the others."""
    strict_init = config_class.__init__

    @wraps(strict_init)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        try:
            strict_init(self, *args, **kwargs)
        except StrictDataclassError as error:
            raise ConfigurationError(f"LacunaConfig: {error}") from error

    config_class.__init__ = __init__
    return config_class


@_raise_configuration_errors
@strict
class LacunaConfig(PreTrainedConfig):
    """What a Lacuna model is built from.

    Args:
        shape: `"encoder"` (every token sees every token), `"decoder"` (a token sees itself and what is before it) or
            `"encoder-decoder"` (a decoder that also sees what an encoder made of another text).
        hybrid: whether a decoder was trained to see the whole text as well as what is before a token
            (https://arxiv.org/abs/2410.24159). Only `LacunaForCausalLM` then hides the future; all other heads read
            in both directions, and `LacunaForMaskedLM` predicts a masked token from the position before it.
        vocab_size: number of token ids.
        hidden_size: width of the residual stream.
        num_hidden_layers: number of blocks; in an encoder-decoder, of the encoder.
        num_decoder_layers: number of blocks of the decoder of an encoder-decoder. None: as many as the encoder has.
        num_attention_heads: number of query heads.
        num_key_value_heads: number of key and value heads; query heads share them evenly. None: one per query head.
        head_dim: width of a head. None: `hidden_size // num_attention_heads`.
        intermediate_size: inner width of the feed-forward part.
        hidden_act: activation of the feed-forward part and of the prediction head, a name in `transformers.ACT2FN`.
        gated_mlp: `down(act(gate(x)) * up(x))` (https://arxiv.org/abs/2002.05202) instead of `down(act(up(x)))`.
        norm_type: `"layer_norm"` or `"rms_norm"` (https://arxiv.org/abs/1910.07467).
        norm_placement: `"pre"` normalises the input of each sub-layer and the last hidden states; `"post"` normalises
            the sum after each sub-layer, as in 2017.
        norm_bias: whether layer norms have a bias; root-mean-square norms have none.
        norm_eps: added to the variance in every norm.
        embedding_norm: whether the embeddings are normalised. With pre-norm the first block then has no norm of its
            own before attention, since its input is normalised already.
        qk_norm: whether queries and keys are normalised per head before positions are applied.
        attention_score: `"scaled_dot_product"` (https://arxiv.org/abs/1706.03762), which every attention kernel
            computes; or, for the textbook and with its own plain implementation only, `"dot_product"` and
            `"multiplicative"` (https://arxiv.org/abs/1508.04025) or `"additive"` (https://arxiv.org/abs/1409.0473).
        final_logit_softcapping: logits over the vocabulary become `c * tanh(logits / c)`, so that none is beyond this
            number `c` (https://arxiv.org/abs/2408.00118). None: left as they are.
        position_type: `"learned"`, `"sinusoidal"` (https://arxiv.org/abs/1706.03762, section 3.5), `"rotary"`
            (https://arxiv.org/abs/2104.09864) or `"none"`.
        max_position_embeddings: number of learned positions; for others the length of pretraining.
        position_offset: rows of the table of learned positions that stand before position 0 and that no token uses;
            BART has two.
        freeze_padding: whether the embedding of `pad_token_id` starts at zero and never learns from being read. Set it
            to False where the padding token is also another one, such as the end of a text.
        scale_embedding: whether token embeddings are multiplied by the square root of hidden_size, as in 2017.
        rope_parameters: `{"rope_type": ..., "rope_theta": ...}` for all layers, or one such dict per layer type.
            None: theta 10000. Only with rotary positions.
        layer_types: `"full_attention"` or `"sliding_attention"` for each layer. None: all full.
        decoder_layer_types: the same for the decoder of an encoder-decoder.
        sliding_window: in an encoder, how many tokens a sliding layer sees on each side; in a decoder, how many it
            sees in all, itself included. (These are the two meanings that masking_utils of transformers gives it.)
        type_vocab_size: number of segments (sentence A, sentence B). 0: none; `token_type_ids` are then ignored. In an
            encoder-decoder only the encoder has segments.
        attention_bias: whether the query, key, value and output projections have biases.
        mlp_bias: whether the feed-forward projections have biases.
        prediction_bias: whether the dense layer of the prediction head has a bias.
        prediction_act: activation of the prediction head. None: `hidden_act`.
        lm_head_bias: whether the projection onto the vocabulary has a bias.
        classifier_bias: whether the last projection of the sequence classification head has a bias.
        pooler: whether the encoder has BERT's pooler, a dense layer with tanh on the first token.
        classifier_pooling: `"first"`, `"mean"` or `"last"` real token. None: first in an encoder, last elsewhere.
        classifier_transform: what task heads put before their last projection: `"none"`; `"tanh"`, a dense layer and
            tanh on the pooled state (BART); `"norm"`, dense layer, activation and norm (ModernBERT). A pooler stands
            in its place where both are there.
        embedding_dropout: after the embeddings.
        hidden_dropout: on the output of attention and feed-forward, before it is added to the residual stream.
        attention_dropout: on the attention weights.
        activation_dropout: inside the feed-forward part, after the activation.
        classifier_dropout: before the last projection of a task head. None: `hidden_dropout`.
        tie_word_embeddings: whether the projection onto the vocabulary shares the weights of the token embeddings.
        initialization: how weights start. `"normal"`: normal, `initializer_range`. `"depth_scaled"`: so, with the
            output projections of attention and feed-forward divided by the square root of the number of residual
            branches (Radford et al. 2019, section 2.3). `"truncated_normal"`: depth-scaled, cut at three standard
            deviations, and the last projection of task heads with hidden_size^-0.5 (ModernBERT). `"xavier_uniform"`:
            Glorot and Bengio 2010, equation 16, and token embeddings with hidden_size^-0.5 (the 2017 model).
        zero_init_residual: whether those output projections start at zero, so that every block starts as the identity
            (https://arxiv.org/abs/1901.09321).
        initializer_range: standard deviation of the normal distributions above.
        use_cache: whether a decoder returns keys and values for generation.
        pad_token_id, bos_token_id, eos_token_id, cls_token_id, sep_token_id: special tokens. The defaults are those
            of tokenizers trained here, where cls = bos and sep = eos.
        decoder_start_token_id: what the decoder of an encoder-decoder reads first.

    Raises:
        ConfigurationError: on an unknown key (the nearest known one is named), on a value of the wrong type and on an
            impossible combination.
    """

    model_type = "lacuna"
    keys_to_ignore_at_inference = ["past_key_values", "mlm_loss", "nsp_loss"]

    shape: str = "encoder"
    hybrid: bool = False
    vocab_size: int = 8192
    hidden_size: int = 256
    num_hidden_layers: int = 6
    num_decoder_layers: DerivedInt = None  # type: ignore[assignment]
    num_attention_heads: int = 4
    num_key_value_heads: DerivedInt = None  # type: ignore[assignment]
    head_dim: DerivedInt = None  # type: ignore[assignment]
    intermediate_size: int = 512
    hidden_act: str = "gelu"
    gated_mlp: bool = True
    norm_type: Literal["layer_norm", "rms_norm"] = "layer_norm"
    norm_placement: Literal["pre", "post"] = "pre"
    norm_bias: bool = False
    norm_eps: float | int = 1e-5
    embedding_norm: bool = True
    qk_norm: bool = False
    attention_score: Literal["scaled_dot_product", "dot_product", "multiplicative", "additive"] = "scaled_dot_product"
    final_logit_softcapping: float | int | None = None
    position_type: Literal["learned", "sinusoidal", "rotary", "none"] = "rotary"
    max_position_embeddings: int = 8192
    position_offset: int = 0
    freeze_padding: bool = True
    scale_embedding: bool = False
    rope_parameters: DerivedParameters = None  # type: ignore[assignment]
    layer_types: DerivedNames = None  # type: ignore[assignment]
    decoder_layer_types: DerivedNames = None  # type: ignore[assignment]
    sliding_window: DerivedInt = None  # type: ignore[assignment]
    type_vocab_size: int = 0
    attention_bias: bool = False
    mlp_bias: bool = False
    prediction_bias: bool = False
    prediction_act: DerivedName = None  # type: ignore[assignment]
    lm_head_bias: bool = True
    classifier_bias: bool = True
    pooler: bool = False
    classifier_pooling: DerivedPooling = None  # type: ignore[assignment]
    classifier_transform: Literal["none", "tanh", "norm"] = "norm"
    embedding_dropout: float | int = 0.0
    hidden_dropout: float | int = 0.0
    attention_dropout: float | int = 0.0
    activation_dropout: float | int = 0.0
    classifier_dropout: float | int | None = None
    tie_word_embeddings: bool = True
    initialization: Literal["normal", "depth_scaled", "truncated_normal", "xavier_uniform"] = "depth_scaled"
    zero_init_residual: bool = False
    initializer_range: float | int = 0.02
    use_cache: bool = True
    pad_token_id: int | None = 0
    bos_token_id: int | None = 2
    eos_token_id: int | list[int] | None = 3
    cls_token_id: int | None = 2
    sep_token_id: int | None = 3
    decoder_start_token_id: int | None = 2

    def __post_init__(self, **kwargs: Any) -> None:
        kwargs = self._refuse_unknown_keys(kwargs)
        self._refuse_unknown_shape()
        if self.num_key_value_heads is None:
            self.num_key_value_heads = self.num_attention_heads
        if self.head_dim is None:
            self._require(
                self.num_attention_heads > 0 and self.hidden_size % self.num_attention_heads == 0,
                f"hidden_size={self.hidden_size} is not a multiple of num_attention_heads={self.num_attention_heads}; "
                "change one of them or give head_dim",
            )
            self.head_dim = self.hidden_size // self.num_attention_heads
        if self.layer_types is None:
            self.layer_types = ["full_attention"] * self.num_hidden_layers
        if self.shape == "encoder-decoder":
            if self.num_decoder_layers is None:
                self.num_decoder_layers = self.num_hidden_layers
            if self.decoder_layer_types is None:
                self.decoder_layer_types = ["full_attention"] * self.num_decoder_layers
            self.is_encoder_decoder = True
        if self.prediction_act is None:
            self.prediction_act = self.hidden_act
        if self.classifier_pooling is None:
            self.classifier_pooling = "first" if self.shape == "encoder" else "last"
        # Attributes of each configuration, since they name only parts that it has; the library looks for them here.
        self.base_model_tp_plan = self.make_tensor_parallel_plan()
        self.base_model_fsdp_plan = self.make_fsdp_plan()
        super().__post_init__(**kwargs)
        self._refuse_impossible_combinations()
        # Recomputed and never read from a file: it follows from the shape, and saving one head would otherwise
        # register that head only.
        self.auto_map = {"AutoConfig": "configuration_lacuna.LacunaConfig"} | {
            auto_class: f"modeling_lacuna.{head}" for auto_class, head in self.heads.items()
        }

    @classmethod
    def from_family(cls, family: str, size: str = "tiny", **overrides: Any) -> Self:
        """Build the configuration of a known family at a named size.

        Args:
            family: a key of `FAMILIES`.
            size: a key of `SIZES`; `tiny` has about 4 million parameters without the embeddings.
            **overrides: any field of `LacunaConfig`, taking precedence over the family and the size.

        Raises:
            ConfigurationError: on an unknown family, size or field.
        """
        if family not in FAMILIES:
            raise ConfigurationError(f"family={family!r} is not known{name_nearest(value=family, known=FAMILIES)}")
        if size not in SIZES:
            raise ConfigurationError(f"size={size!r} is not known{name_nearest(value=size, known=SIZES)}")
        entry = FAMILIES[family]
        fields = {**entry["parts"], **SIZES[size], **entry["sizes"].get(size, {}), **overrides}
        fields.setdefault("intermediate_size", int(fields["hidden_size"] * entry["feed_forward"]))
        if fields.get("layer_types") is None:
            pattern = entry["layer_pattern"]
            fields["layer_types"] = [pattern[layer % len(pattern)] for layer in range(fields["num_hidden_layers"])]
        if fields.get("position_type") != "rotary" and "rope_parameters" not in overrides:
            fields.pop("rope_parameters", None)
        if fields.get("rope_parameters"):
            fields["rope_parameters"] = {
                key: dict(value) if isinstance(value, dict) else value
                for key, value in fields["rope_parameters"].items()
            }
        return cls(**fields)

    @property
    def heads(self) -> dict[str, str]:
        """The heads that this model can have, by Auto class."""
        return HEADS[self.shape] | (HYBRID_HEADS if self.hybrid else {})

    @property
    def is_decoder(self) -> bool:
        """Whether tokens see only what is before them; some tools of the library ask under this name."""
        return self.shape == "decoder"

    @is_decoder.setter
    def is_decoder(self, value: bool) -> None:
        """Accept what the shape says already; tools that compose models set this on every decoder they are given."""
        accepted = (True, False) if self.is_encoder_decoder else (self.is_decoder,)
        self._require(value in accepted, f"is_decoder={value} contradicts shape={self.shape!r}")

    @property
    def stacks(self) -> tuple[str, ...]:
        """The stacks that a model of this shape has: `"encoder"`, `"decoder"` or both."""
        return ("encoder", "decoder") if self.shape == "encoder-decoder" else (self.shape,)

    def layer_types_of(self, stack: str) -> list[str]:
        """Type of each layer of the `"encoder"` or the `"decoder"`."""
        both = self.shape == "encoder-decoder"
        return self.decoder_layer_types if both and stack == "decoder" else self.layer_types

    def get_text_config(self, decoder: bool | None = None, encoder: bool | None = None) -> "LacunaConfig":
        """The configuration as the cache of one half sees it; the library's own version guesses from field names.

        Args:
            decoder: ask for the decoder of an encoder-decoder: its layers then stand under the general names.
            encoder: ask for the encoder.
        """
        if decoder == encoder or not decoder or self.shape != "encoder-decoder":
            return self
        half = copy.copy(self)
        half.num_hidden_layers, half.layer_types = self.num_decoder_layers, self.decoder_layer_types
        return half

    def make_tensor_parallel_plan(self) -> dict[str, str]:
        """How the parts are cut for tensor parallelism: by tokens, by heads, by columns of the feed-forward part."""
        plan: dict[str, str] = {}
        for stack in self.stacks:
            plan[f"{stack}.embeddings.embed_tokens"] = "embedding_rowwise"
            attentions = ["attention"] + ["cross_attention"] * (self.is_encoder_decoder and stack == "decoder")
            for attention in attentions:
                plan |= {f"{stack}.layers.*.{attention}.{name}_proj": "colwise" for name in "qkv"}
                plan |= {
                    f"{stack}.layers.*.{attention}.{name}_norm": "replicated_with_grad_allreduce"
                    for name in ("q", "k")
                    if self.qk_norm
                }
                plan[f"{stack}.layers.*.{attention}.o_proj"] = "rowwise"
            plan |= {f"{stack}.layers.*.mlp.gate_proj": "colwise"} if self.gated_mlp else {}
            plan |= {f"{stack}.layers.*.mlp.up_proj": "colwise", f"{stack}.layers.*.mlp.down_proj": "rowwise"}
        return plan

    def make_fsdp_plan(self) -> dict[str, str]:
        """Which modules FSDP2 gathers, and whether it frees them again after use."""
        plan: dict[str, str] = {}
        for stack in self.stacks:
            # The table alone: where it is tied, the library gathers it once for both of its uses.
            plan[f"{stack}.embeddings.embed_tokens"] = "free_full_weight"
            plan[f"{stack}.layers.*"] = "free_full_weight"
            plan |= {f"{stack}.norm": "keep_full_weight"} if self.norm_placement == "pre" else {}
        return plan

    def convert_rope_params_to_dict(self, **kwargs: Any) -> dict[str, Any]:
        """Bring `rope_parameters` into standard form; called by `PreTrainedConfig.__post_init__`."""
        theta, scaling = kwargs.pop("rope_theta", None), kwargs.pop("rope_scaling", None)
        if self.position_type != "rotary":
            self._require(
                not (self.rope_parameters or theta or scaling),
                f"rope_parameters need position_type='rotary', which is {self.position_type!r}",
            )
            self.rope_parameters = None  # type: ignore[assignment]
            return kwargs
        parameters = dict(self.rope_parameters or {}) | dict(scaling or {})
        nested = any(key in LAYER_TYPES for key in parameters)
        if nested:
            # Entries for layer types that no layer has are dropped; transformers 5.17 would fail on them.
            used = {layer_type for stack in self.stacks for layer_type in self.layer_types_of(stack)}
            missing = sorted(used - set(parameters))
            self._require(not missing, f"rope_parameters has no entry for {missing}, which layer_types contains")
            parameters = {key: dict(parameters[key]) for key in LAYER_TYPES if key in used}
        for entry in parameters.values() if nested else [parameters]:
            entry.setdefault("rope_type", "default")
            entry.setdefault("rope_theta", 10_000.0 if theta is None else theta)
        self.rope_parameters = parameters
        try:
            self.standardize_rope_params()
        except KeyError as error:
            raise ConfigurationError(f"LacunaConfig: rope_parameters={parameters} lacks {error}") from error
        return kwargs

    def validate_architecture(self) -> None:
        """Run by `@strict` after construction and before saving."""
        self._refuse_impossible_combinations()

    def _refuse_unknown_keys(self, extra: dict[str, Any]) -> dict[str, Any]:
        """Return the keys that are not fields and are known, or raise naming the nearest field.

        Keys with an underscore are private to the process that wrote them (`_attn_implementation_internal`, ...):
        they are dropped here, so that a file never chooses which code runs.
        """
        generation = set(GenerationConfig._get_default_generation_params())
        fields = set(self.__dataclass_fields__)
        kept = {}
        for key, value in extra.items():
            if key.startswith("_") or key == "auto_map":
                continue
            if key not in _CALL_KEYS | _TOOL_KEYS | generation:
                nearest = name_nearest(value=key, known=fields)
                raise ConfigurationError(f"LacunaConfig has no field {key!r} (value {value!r}){nearest}")
            if key != "model_type":
                kept[key] = value
        return kept

    def _refuse_unknown_shape(self) -> None:
        if self.shape not in SHAPES:
            raise ConfigurationError(
                f"shape={self.shape!r} is not known{name_nearest(value=self.shape, known=SHAPES)}"
            )

    def _require(self, condition: bool, reason: str) -> None:
        if not condition:
            raise ConfigurationError(f"LacunaConfig: {reason}")

    def _refuse_impossible_combinations(self) -> None:
        """Raise `ConfigurationError` with the reason where two fields contradict each other."""
        self._refuse_impossible_sizes()
        heads, key_value_heads = self.num_attention_heads, self.num_key_value_heads
        self._require(
            heads % key_value_heads == 0,
            f"num_attention_heads={heads} is not a multiple of num_key_value_heads={key_value_heads}",
        )
        for name in ("hidden_act", "prediction_act"):
            value = getattr(self, name)
            self._require(value in ACT2FN, f"{name}={value!r} is not known{name_nearest(value=value, known=ACT2FN)}")
        self._require(
            not (self.norm_bias and self.norm_type == "rms_norm"), "norm_type='rms_norm' has no bias: norm_bias=False"
        )
        self._require(
            self.position_type != "rotary" or self.head_dim % 2 == 0,
            f"head_dim={self.head_dim} is odd, and rotary positions turn pairs of dimensions",
        )
        parameters = self.rope_parameters or {}
        for entry in [parameters] if "rope_type" in parameters else parameters.values():
            rope_type, theta = entry["rope_type"], entry["rope_theta"]
            known = ("default", *ROPE_INIT_FUNCTIONS)
            self._require(
                rope_type in known, f"rope_type={rope_type!r} is not known{name_nearest(value=rope_type, known=known)}"
            )
            self._require(theta > 0, f"rope_theta={theta} must be positive")
            factor = entry.get("partial_rotary_factor", 1.0)
            self._require(
                0 < factor <= 1 and int(self.head_dim * factor) % 2 == 0 and int(self.head_dim * factor) > 0,
                f"partial_rotary_factor={factor} turns {int(self.head_dim * factor)} of head_dim={self.head_dim} "
                "dimensions, and rotary positions turn pairs",
            )
        self._require(
            not self.hybrid or (self.shape == "decoder" and set(self.layer_types) == {"full_attention"}),
            f"hybrid=True needs shape='decoder' with full attention in every layer; shape={self.shape!r}, "
            f"layer_types has {sorted(set(self.layer_types))}",
        )
        if self.shape != "encoder":
            self._require(
                not self.pooler,
                "pooler=True reads the first token, which sees nothing else in a decoder: pooler=False",
            )
            self._require(
                self.classifier_pooling != "first",
                "classifier_pooling='first' reads the first token, which sees nothing else in a decoder: use 'last'",
            )
        if self.shape != "encoder-decoder":
            self._require(not self.is_encoder_decoder, f"is_encoder_decoder=True contradicts shape={self.shape!r}")
            for name in ("num_decoder_layers", "decoder_layer_types"):
                value = getattr(self, name)
                self._require(value is None, f"{name}={value!r} is for shape='encoder-decoder', not {self.shape!r}")
        if self.position_type != "learned":
            self._require(
                not self.position_offset,
                f"position_offset={self.position_offset} is for position_type='learned', not {self.position_type!r}",
            )
        cap = self.final_logit_softcapping
        self._require(cap is None or cap > 0, f"final_logit_softcapping={cap} must be positive, or None")
        self._refuse_impossible_layers()

    def _refuse_impossible_sizes(self) -> None:
        positive = ("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads")
        for name in (*positive, "head_dim", "intermediate_size", "max_position_embeddings"):
            self._require(getattr(self, name) > 0, f"{name}={getattr(self, name)} must be positive")
        for name in ("type_vocab_size", "position_offset"):
            self._require(getattr(self, name) >= 0, f"{name}={getattr(self, name)} must not be negative")
        for part in ("embedding", "hidden", "attention", "activation", "classifier"):
            value = getattr(self, f"{part}_dropout")
            self._require(value is None or 0 <= value < 1, f"{part}_dropout={value} must be in [0, 1)")
        for name in ("norm_eps", "initializer_range"):
            value = getattr(self, name)
            self._require(0 < value < float("inf"), f"{name}={value} must be a positive number")
        problems = (None, "regression", "single_label_classification", "multi_label_classification")
        self._require(self.problem_type in problems, f"problem_type={self.problem_type!r} is none of {problems}")
        start = self.decoder_start_token_id
        self._require(
            not self.is_encoder_decoder or start is None or 0 <= start < self.vocab_size,
            f"decoder_start_token_id={start} is outside the vocabulary of {self.vocab_size}",
        )
        if self.pad_token_id is not None:
            self._require(
                0 <= self.pad_token_id < self.vocab_size,
                f"pad_token_id={self.pad_token_id} is outside the vocabulary of {self.vocab_size}",
            )

    def _refuse_impossible_layers(self) -> None:
        for field, count in (("layer_types", "num_hidden_layers"), ("decoder_layer_types", "num_decoder_layers")):
            layer_types = getattr(self, field)
            if layer_types is None:
                continue
            number = getattr(self, count)
            self._require(
                len(layer_types) == number, f"{field} names {len(layer_types)} layers and {count} is {number}"
            )
            for layer_type in layer_types:
                self._require(
                    layer_type in LAYER_TYPES,
                    f"{field} contains {layer_type!r}{name_nearest(value=layer_type, known=LAYER_TYPES)}",
                )
            # A decoder with a window of one token sees itself alone, and caches of the library cannot keep no token.
            is_decoder = self.is_decoder or field == "decoder_layer_types"
            least = 2 if is_decoder else 1
            self._require(
                "sliding_attention" not in layer_types or (self.sliding_window or 0) >= least,
                f"{field} has 'sliding_attention' and sliding_window is {self.sliding_window}: at least {least}",
            )


__all__ = ["HEADS", "HYBRID_HEADS", "ConfigurationError", "LacunaConfig", "name_nearest"]
