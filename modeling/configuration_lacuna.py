"""The configuration of a Lacuna model: which parts it is built from.

A model is described by its parts (norms, positions, feed-forward, masks) and never by the name of a family;
`LacunaConfig.from_family` fills the parts in so that the result equals a known architecture weight for weight.
"""

# No `from __future__ import annotations` here: `@strict` checks nothing when annotations are strings.
import copy
from collections.abc import Iterable, Iterator
from functools import wraps
from itertools import chain
from typing import TYPE_CHECKING, Annotated, Any, Literal, Optional, Self, TypeVar

from huggingface_hub.dataclasses import strict
from huggingface_hub.errors import StrictDataclassError
from transformers import GenerationConfig, PreTrainedConfig
from transformers.activations import ACT2FN
from transformers.utils import logging

from .checks_lacuna import ConfigurationError, name_nearest, wrong_positions
from .families_lacuna import FAMILIES, HEADS, HYBRID_HEADS, SIZES

logger = logging.get_logger(__name__)

# None in a call means "derive it from the rest". After construction the value is there wherever the model reads it,
# and that is what type checkers are told; `@strict` sees the whole truth.
if TYPE_CHECKING:
    T = TypeVar("T")
    Derived = Annotated[T, "or None"]
else:
    Derived = Optional

SHAPES = ("encoder", "decoder", "encoder-decoder")
LAYER_TYPES = ("full_attention", "sliding_attention")

# Keys that are not fields and yet occur in a call or a config.json: what PreTrainedConfig itself understands, and what
# tools write beside the architecture. Anything else is an error.
_OTHER_KEYS = (
    {"num_labels", "torch_dtype", "name_or_path", "output_attentions", "attn_implementation", "experts_implementation"}
    | {"rope_theta", "rope_scaling", "model_type", "quantization_config", "compression_config", "adapters"}
    | {"base_model_name_or_path", "sentence_transformers", "custom_pipelines", "task_specific_params"}
    | {"finetuning_task", "tokenizer_class", "tie_last_hidden_states", "transformers_weights", "neftune_noise_alpha"}
)


def _raise_configuration_errors(config_class: Any) -> Any:
    """Let the type errors that `@strict` finds at construction leave as `ConfigurationError`, like all the others."""
    init = config_class.__init__

    @wraps(init)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        try:
            init(self, *args, **kwargs)
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
        hybrid: a decoder that was trained to see the whole text as well as what is before a token
            (https://arxiv.org/abs/2410.24159). Only `LacunaForCausalLM` then hides the future; `LacunaForMaskedLM`
            predicts a token from the position before it.
        vocab_size, hidden_size: number of token ids; width of the residual stream.
        num_hidden_layers: number of blocks; in an encoder-decoder, of the encoder.
        num_decoder_layers: number of decoder blocks in an encoder-decoder. None: as many as the encoder has.
        num_attention_heads: number of query heads.
        num_key_value_heads: number of key and value heads, shared evenly. None: one per query head.
        head_dim: width of a head. None: `hidden_size // num_attention_heads`.
        intermediate_size: inner width of the feed-forward part.
        hidden_act: activation of the feed-forward part, a name in `transformers.ACT2FN`.
        gated_mlp: `down(act(gate(x)) * up(x))` (https://arxiv.org/abs/2002.05202) instead of `down(act(up(x)))`.
        norm_type: `"layer_norm"` or `"rms_norm"` (https://arxiv.org/abs/1910.07467).
        norm_placement: `"pre"` normalises the input of each sub-layer and the last hidden states; `"post"` the sum
            after each sub-layer, as in 2017.
        norm_bias, norm_eps: a bias in layer norms (RMS norms have none); what is added to the variance.
        embedding_norm: normalise the embeddings. With pre-norm the first attention then has no norm of its own.
        qk_norm: normalise queries and keys per head, before positions are applied.
        attention_score: `"scaled_dot_product"` (https://arxiv.org/abs/1706.03762), or `"dot_product"` as it is.
        position_type: `"learned"`, `"sinusoidal"` (https://arxiv.org/abs/1706.03762, section 3.5), `"rotary"`
            (https://arxiv.org/abs/2104.09864) or `"none"`.
        max_position_embeddings: number of learned positions; for others the length of pretraining.
        position_offset: rows of the table of learned positions before position 0, which no token uses; BART has two.
        freeze_padding: the embedding of `pad_token_id` starts at zero and learns nothing from being read.
        scale_embedding: multiply token embeddings by the square root of hidden_size, as in 2017.
        rope_parameters: `{"rope_type": ..., "rope_theta": ...}` for all layers, or one such dict per layer type.
            None: theta 10000. Only with rotary positions.
        layer_types, decoder_layer_types: `"full_attention"` or `"sliding_attention"` for each layer. None: all full.
        sliding_window: how many tokens a sliding layer sees: on each side in an encoder; in all, itself included, in a
            decoder. (These are the two meanings in masking_utils of transformers.)
        type_vocab_size: number of segments (sentence A, sentence B) of an encoder. 0: `token_type_ids` are ignored.
        attention_bias, mlp_bias: biases in the projections of attention and of the feed-forward part.
        prediction_bias, lm_head_bias, classifier_bias: a bias in the dense layer of the prediction head, in the
            projection onto the vocabulary, in the last projection of the sequence classification head.
        prediction_act: activation of the prediction head. None: `hidden_act`.
        pooler: BERT's pooler, a dense layer with tanh on the first token of an encoder.
        classifier_pooling: `"first"`, `"mean"` or `"last"` real token. None: first in an encoder, last elsewhere.
        classifier_transform: what task heads put before their last projection: `"none"`; `"tanh"`, a dense layer and
            tanh on the pooled state (BART); `"norm"`, dense layer, activation and norm (ModernBERT). A pooler takes
            its place.
        question_aware: answers are found by comparing each token with the state of the question
            (https://arxiv.org/abs/2101.00438), not by two outputs of each token.
        embedding_dropout, attention_dropout: after the embeddings; on the attention weights.
        hidden_dropout: on the output of attention and feed-forward, before it is added to the residual stream.
        activation_dropout: inside the feed-forward part, after the activation.
        classifier_dropout: before the last projection of a task head. None: `hidden_dropout`.
        tie_word_embeddings: share the weights of token embeddings and projection onto the vocabulary.
        initialization: how weights start. `"normal"`: normal, `initializer_range`. `"depth_scaled"`: the output
            projections of attention and feed-forward also divided by the square root of the number of residual
            branches (Radford et al. 2019, section 2.3). `"truncated_normal"`: depth-scaled, cut at three standard
            deviations, and the last projection of task heads with hidden_size^-0.5 (ModernBERT). `"xavier_uniform"`:
            Glorot and Bengio 2010, equation 16, and token embeddings with hidden_size^-0.5 (the 2017 model).
        initializer_range: standard deviation of the normal distributions above.
        use_cache: whether a decoder returns keys and values for generation.
        pad_token_id, bos_token_id, eos_token_id, cls_token_id, sep_token_id: by default, of tokenizers trained here.
        decoder_start_token_id: what the decoder of an encoder-decoder reads first.

    Raises ConfigurationError: on an unknown key (naming the nearest), a wrong type or an impossible combination.
    """

    model_type = "lacuna"
    keys_to_ignore_at_inference = ["past_key_values", "mlm_loss", "nsp_loss"]

    shape: str = "encoder"
    hybrid: bool = False
    vocab_size: int = 8192
    hidden_size: int = 256
    num_hidden_layers: int = 6
    num_decoder_layers: Derived[int] = None  # type: ignore[assignment]
    num_attention_heads: int = 4
    num_key_value_heads: Derived[int] = None  # type: ignore[assignment]
    head_dim: Derived[int] = None  # type: ignore[assignment]
    intermediate_size: int = 512
    hidden_act: str = "gelu"
    gated_mlp: bool = True
    norm_type: Literal["layer_norm", "rms_norm"] = "layer_norm"
    norm_placement: Literal["pre", "post"] = "pre"
    norm_bias: bool = False
    norm_eps: float | int = 1e-5
    embedding_norm: bool = True
    qk_norm: bool = False
    attention_score: Literal["scaled_dot_product", "dot_product"] = "scaled_dot_product"
    position_type: Literal["learned", "sinusoidal", "rotary", "none"] = "rotary"
    max_position_embeddings: int = 8192
    position_offset: int = 0
    freeze_padding: bool = True
    scale_embedding: bool = False
    rope_parameters: Derived[dict] = None  # type: ignore[assignment]
    layer_types: Derived[list[str]] = None  # type: ignore[assignment]
    decoder_layer_types: Derived[list[str]] = None  # type: ignore[assignment]
    sliding_window: Derived[int] = None  # type: ignore[assignment]
    type_vocab_size: int = 0
    attention_bias: bool = False
    mlp_bias: bool = False
    prediction_bias: bool = False
    prediction_act: Derived[str] = None  # type: ignore[assignment]
    lm_head_bias: bool = True
    classifier_bias: bool = True
    pooler: bool = False
    classifier_pooling: Derived[Literal["first", "mean", "last"]] = None  # type: ignore[assignment]
    classifier_transform: Literal["none", "tanh", "norm"] = "norm"
    question_aware: bool = False
    embedding_dropout: float | int = 0.0
    hidden_dropout: float | int = 0.0
    attention_dropout: float | int = 0.0
    activation_dropout: float | int = 0.0
    classifier_dropout: float | int | None = None
    tie_word_embeddings: bool = True
    initialization: Literal["normal", "depth_scaled", "truncated_normal", "xavier_uniform"] = "depth_scaled"
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
        self._require(
            self.shape in SHAPES, f"shape={self.shape!r} is not known{name_nearest(value=self.shape, known=SHAPES)}"
        )
        size, heads = self.hidden_size, self.num_attention_heads
        if self.num_key_value_heads is None:
            self.num_key_value_heads = heads
        if self.head_dim is None:
            reason = f"hidden_size={size} is not a multiple of num_attention_heads={heads}: change it or give head_dim"
            self._require(heads > 0 and size % heads == 0, reason)
            self.head_dim = size // heads
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
        self.validate_architecture()
        # Never read from a file: it follows from the shape, and saving one head would register that head only.
        self.auto_map = {"AutoConfig": "configuration_lacuna.LacunaConfig"} | {
            auto_class: f"modeling_lacuna.{head}" for auto_class, head in self.heads.items()
        }

    @classmethod
    def from_dict(cls, config_dict: dict[str, Any], **kwargs: Any) -> Any:
        """As in the library; what another tool wrote is kept where it hides no method, and a warning names it."""
        foreign = {key: value for key, value in config_dict.items() if key not in cls._known_keys(config_dict)}
        if foreign:
            logger.warning(f"LacunaConfig knows nothing of {', '.join(sorted(foreign))}, and keeps what the file says")
        ours = {key: value for key, value in config_dict.items() if key not in foreign}
        loaded = super().from_dict(ours, **kwargs)
        config = loaded[0] if isinstance(loaded, tuple) else loaded
        for key in foreign.keys() - set(dir(cls)):
            setattr(config, key, foreign[key])
        return loaded

    @classmethod
    def from_family(cls, family: str, size: str = "tiny", **overrides: Any) -> Self:
        """Build the configuration of a known family at a named size.

        Args:
            family: a key of `FAMILIES`.
            size: a key of `SIZES`; `tiny` has about 4 million parameters without the embeddings.
            **overrides: any field of `LacunaConfig`, taking precedence over the family and the size.

        Raises ConfigurationError: on an unknown family, size or field.
        """
        for name, value, known in (("family", family, FAMILIES), ("size", size, SIZES)):
            if value not in known:
                raise ConfigurationError(f"{name}={value!r} is not known{name_nearest(value=value, known=known)}")
        entry = FAMILIES[family]
        fields = {**entry["parts"], **SIZES[size], **entry.get("sizes", {}).get(size, {}), **overrides}
        fields.setdefault("intermediate_size", int(fields["hidden_size"] * entry["feed_forward"]))
        if fields.get("layer_types") is None:
            pattern = entry.get("layer_pattern", ["full_attention"])
            fields["layer_types"] = [pattern[layer % len(pattern)] for layer in range(fields["num_hidden_layers"])]
        if fields.get("position_type", "rotary") != "rotary" and "rope_parameters" not in overrides:
            fields.pop("rope_parameters", None)
        return cls(**copy.deepcopy(fields))

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
        """Accept what the shape says; tools that compose models set this on every decoder they are given."""
        allowed = self.is_encoder_decoder or value == self.is_decoder
        self._require(allowed, f"is_decoder={value} contradicts shape={self.shape!r}")

    @property
    def stacks(self) -> tuple[str, ...]:
        """The stacks that a model of this shape has: `"encoder"`, `"decoder"` or both."""
        return ("encoder", "decoder") if self.shape == "encoder-decoder" else (self.shape,)

    def layer_types_of(self, stack: str) -> list[str]:
        """Type of each layer of the `"encoder"` or the `"decoder"`."""
        both = self.shape == "encoder-decoder"
        return self.decoder_layer_types if both and stack == "decoder" else self.layer_types

    def get_text_config(self, decoder: bool | None = None, encoder: bool | None = None) -> "LacunaConfig":
        """The configuration; that of a decoder beside an encoder has its layers under the general names."""
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
            for attention in (f"{stack}.layers.*.{name}" for name in attentions):
                plan |= {f"{attention}.{name}_proj": "colwise" for name in "qkv"}
                if self.qk_norm:
                    plan |= {f"{attention}.{name}_norm": "replicated_with_grad_allreduce" for name in "qk"}
                plan[f"{attention}.o_proj"] = "rowwise"
            plan |= {f"{stack}.layers.*.mlp.gate_proj": "colwise"} if self.gated_mlp else {}
            plan |= {f"{stack}.layers.*.mlp.up_proj": "colwise", f"{stack}.layers.*.mlp.down_proj": "rowwise"}
        return plan

    def make_fsdp_plan(self) -> dict[str, str]:
        """Which modules FSDP2 gathers, and whether it frees them again after use."""
        plan: dict[str, str] = {}
        for stack in self.stacks:
            # Of the embeddings the table alone: where it is tied, the library gathers it once for both of its uses.
            plan |= {f"{stack}.embeddings.embed_tokens": "free_full_weight", f"{stack}.layers.*": "free_full_weight"}
            plan |= {f"{stack}.norm": "keep_full_weight"} if self.norm_placement == "pre" else {}
        return plan

    def convert_rope_params_to_dict(self, **kwargs: Any) -> dict[str, Any]:
        """Bring `rope_parameters` into standard form; called by `PreTrainedConfig.__post_init__`."""
        theta, scaling = kwargs.pop("rope_theta", None), kwargs.pop("rope_scaling", None)
        if self.position_type != "rotary":
            given = self.rope_parameters or theta or scaling
            self._require(not given, f"rope_parameters need position_type='rotary', which is {self.position_type!r}")
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
        """Raise `ConfigurationError` where two fields contradict each other; `@strict` runs this before saving too."""
        wrong = chain(self._wrong_sizes(), self._wrong_parts(), wrong_positions(self), self._wrong_layers())
        if reason := next(wrong, None):
            raise ConfigurationError(f"LacunaConfig: {reason}")

    @classmethod
    def _known_keys(cls, given: Iterable[str]) -> set[str]:
        """Fields, and what else is not a mistake: private keys among the given ones are dropped without a word."""
        known = _OTHER_KEYS | set(GenerationConfig._get_default_generation_params()) | set(cls.__dataclass_fields__)
        return known | {"auto_map"} | {key for key in given if key.startswith("_")}

    def _refuse_unknown_keys(self, extra: dict[str, Any]) -> dict[str, Any]:
        """Return the keys that are not fields and are known, or raise naming the nearest field.

        Keys with an underscore are private to the process that wrote them (`_attn_implementation_internal`, ...):
        they are dropped here, so that a file never chooses which code runs.
        """
        known = self._known_keys(extra)
        extra = {key: value for key, value in extra.items() if not key.startswith("_") and key != "auto_map"}
        for key, value in extra.items():
            if key not in known:
                nearest = name_nearest(value=key, known=self.__dataclass_fields__)
                raise ConfigurationError(f"LacunaConfig has no field {key!r} (value {value!r}){nearest}")
        extra.pop("model_type", None)
        return extra

    def _require(self, condition: bool, reason: str) -> None:
        if not condition:
            raise ConfigurationError(f"LacunaConfig: {reason}")

    def _wrong_sizes(self) -> Iterator[str]:
        positive = ("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads")
        for name in (*positive, "head_dim", "intermediate_size", "max_position_embeddings"):
            if getattr(self, name) <= 0:
                yield f"{name}={getattr(self, name)} must be positive"
        for name in ("type_vocab_size", "position_offset"):
            if getattr(self, name) < 0:
                yield f"{name}={getattr(self, name)} must not be negative"
        for name in ("embedding", "hidden", "attention", "activation", "classifier"):
            value = getattr(self, f"{name}_dropout")
            if value is not None and not 0 <= value < 1:
                yield f"{name}_dropout={value} must be in [0, 1)"
        for name in ("norm_eps", "initializer_range"):
            if not 0 < getattr(self, name) < float("inf"):
                yield f"{name}={getattr(self, name)} must be a positive number"
        for name in ("pad_token_id", *(["decoder_start_token_id"] if self.is_encoder_decoder else [])):
            value = getattr(self, name)
            if value is not None and not 0 <= value < self.vocab_size:
                yield f"{name}={value} is outside the vocabulary of {self.vocab_size}"

    def _wrong_parts(self) -> Iterator[str]:
        problems = (None, "regression", "single_label_classification", "multi_label_classification")
        if self.problem_type not in problems:
            yield f"problem_type={self.problem_type!r} is none of {problems}"
        heads, key_value_heads = self.num_attention_heads, self.num_key_value_heads
        if heads % key_value_heads:
            yield f"num_attention_heads={heads} is not a multiple of num_key_value_heads={key_value_heads}"
        for name in ("hidden_act", "prediction_act"):
            value = getattr(self, name)
            if value not in ACT2FN:
                yield f"{name}={value!r} is not known{name_nearest(value=value, known=ACT2FN)}"
        if self.norm_bias and self.norm_type == "rms_norm":
            yield "norm_type='rms_norm' has no bias: norm_bias=False"
        if self.hybrid and (self.shape != "decoder" or set(self.layer_types) != {"full_attention"}):
            yield (
                f"hybrid=True needs shape='decoder' with full attention in every layer; shape={self.shape!r}, "
                f"layer_types has {sorted(set(self.layer_types))}"
            )
        if self.shape != "encoder":
            blind = "reads the first token, which sees nothing else in a decoder"
            if self.pooler:
                yield f"pooler=True {blind}: pooler=False"
            if self.question_aware:
                yield f"question_aware=True needs shape='encoder', not {self.shape!r}"
            if self.classifier_pooling == "first":
                yield f"classifier_pooling='first' {blind}: use 'last'"
        if self.shape != "encoder-decoder":
            if self.is_encoder_decoder:
                yield f"is_encoder_decoder=True contradicts shape={self.shape!r}"
            for name in ("num_decoder_layers", "decoder_layer_types"):
                if getattr(self, name) is not None:
                    yield f"{name}={getattr(self, name)!r} is for shape='encoder-decoder', not {self.shape!r}"

    def _wrong_layers(self) -> Iterator[str]:
        for field, count in (("layer_types", "num_hidden_layers"), ("decoder_layer_types", "num_decoder_layers")):
            layer_types = getattr(self, field) or []
            if getattr(self, field) is not None and len(layer_types) != getattr(self, count):
                yield f"{field} names {len(layer_types)} layers and {count} is {getattr(self, count)}"
            for layer_type in layer_types:
                if layer_type not in LAYER_TYPES:
                    yield f"{field} contains {layer_type!r}{name_nearest(value=layer_type, known=LAYER_TYPES)}"
            # A decoder with a window of one token sees itself alone, and caches of the library cannot keep no token.
            least = 2 if self.is_decoder or field == "decoder_layer_types" else 1
            if "sliding_attention" in layer_types and (self.sliding_window or 0) < least:
                yield f"{field} has 'sliding_attention' and sliding_window is {self.sliding_window}: at least {least}"
