"""The configuration of a Lacuna model: which parts it is built from.

A Lacuna model is described by its parts (norms, positions, feed-forward, masks) and never by the name of a family.
`LacunaConfig.from_family` fills the parts in so that the result equals a known architecture weight for weight.
"""

# No `from __future__ import annotations` here: `@strict` checks nothing when annotations are strings.
import difflib
from functools import wraps
from typing import TYPE_CHECKING, Any, Literal, Self

from huggingface_hub.dataclasses import strict
from huggingface_hub.errors import StrictDataclassError
from transformers import GenerationConfig, PreTrainedConfig
from transformers.activations import ACT2FN

from .families_lacuna import FAMILIES, SIZES

# None in a call means "derive it from the rest". After construction the value is there wherever the model reads it,
# and that is what type checkers are told; `@strict` sees the whole truth.
if TYPE_CHECKING:
    DerivedInt = int
    DerivedNames = list[str]
    DerivedPooling = str
    DerivedParameters = dict[str, Any]
else:
    DerivedInt = int | None
    DerivedNames = list[str] | None
    DerivedPooling = Literal["first", "mean", "last"] | None
    DerivedParameters = dict | None

SHAPES = ("encoder", "decoder")
LAYER_TYPES = ("full_attention", "sliding_attention")

# Every head by the shape that can use it. A checkpoint offers these classes and no others: an encoder offered as a
# causal model would load without a complaint and see the tokens it is asked to predict.
HEADS: dict[str, dict[str, str]] = {
    "encoder": {
        "AutoModel": "LacunaModel",
        "AutoModelForPreTraining": "LacunaForPreTraining",
        "AutoModelForMaskedLM": "LacunaForMaskedLM",
        "AutoModelForSequenceClassification": "LacunaForSequenceClassification",
        "AutoModelForQuestionAnswering": "LacunaForQuestionAnswering",
    },
    "decoder": {
        "AutoModel": "LacunaModel",
        "AutoModelForCausalLM": "LacunaForCausalLM",
        "AutoModelForSequenceClassification": "LacunaForSequenceClassification",
        "AutoModelForQuestionAnswering": "LacunaForQuestionAnswering",
    },
}

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
        shape: `"encoder"` (every token sees every token) or `"decoder"` (a token sees itself and what is before it).
        vocab_size: number of token ids.
        hidden_size: width of the residual stream.
        num_hidden_layers: number of blocks.
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
        position_type: `"learned"`, `"rotary"` (https://arxiv.org/abs/2104.09864) or `"none"`.
        max_position_embeddings: number of learned positions; for rotary positions the length of pretraining.
        rope_parameters: `{"rope_type": ..., "rope_theta": ...}` for all layers, or one such dict per layer type.
            None: theta 10000. Only with rotary positions.
        layer_types: `"full_attention"` or `"sliding_attention"` for each layer. None: all full.
        sliding_window: in an encoder, how many tokens a sliding layer sees on each side; in a decoder, how many it
            sees in all, itself included. (These are the two meanings that masking_utils of transformers gives it.)
        type_vocab_size: number of segments (sentence A, sentence B). 0: none; `token_type_ids` are then ignored.
        attention_bias: whether the query, key, value and output projections have biases.
        mlp_bias: whether the feed-forward projections have biases.
        prediction_bias: whether the dense layer of the prediction head has a bias.
        lm_head_bias: whether the projection onto the vocabulary has a bias.
        classifier_bias: whether the last projection of a classification head has a bias.
        pooler: whether the encoder has BERT's pooler, a dense layer with tanh on the first token.
        classifier_pooling: `"first"`, `"mean"` or `"last"` real token. None: first in an encoder, last in a decoder.
        classifier_transform: whether task heads put dense, activation and norm before their last projection.
        embedding_dropout: after the embeddings.
        hidden_dropout: on the output of attention and feed-forward, before it is added to the residual stream.
        attention_dropout: on the attention weights.
        activation_dropout: inside the feed-forward part, after the activation.
        classifier_dropout: before the last projection of a task head. None: `hidden_dropout`.
        tie_word_embeddings: whether the projection onto the vocabulary shares the weights of the token embeddings.
        initializer_range: standard deviation of the normal distribution that weights start from.
        use_cache: whether a decoder returns keys and values for generation.
        pad_token_id, bos_token_id, eos_token_id, cls_token_id, sep_token_id: special tokens. The defaults are those
            of tokenizers trained here, where cls = bos and sep = eos.

    Raises:
        ConfigurationError: on an unknown key (the nearest known one is named), on a value of the wrong type and on an
            impossible combination.
    """

    model_type = "lacuna"
    keys_to_ignore_at_inference = ["past_key_values", "mlm_loss", "nsp_loss"]

    base_model_tp_plan = {
        "layers.*.attention.q_proj": "colwise",
        "layers.*.attention.k_proj": "colwise",
        "layers.*.attention.v_proj": "colwise",
        "layers.*.attention.q_norm": "replicated_with_grad_allreduce",
        "layers.*.attention.k_norm": "replicated_with_grad_allreduce",
        "layers.*.attention.o_proj": "rowwise",
        "layers.*.mlp.gate_proj": "colwise",
        "layers.*.mlp.up_proj": "colwise",
        "layers.*.mlp.down_proj": "rowwise",
    }
    base_model_fsdp_plan = {
        "embeddings": "free_full_weight",
        "layers.*": "free_full_weight",
        "norm": "keep_full_weight",
    }

    shape: str = "encoder"
    vocab_size: int = 8192
    hidden_size: int = 256
    num_hidden_layers: int = 6
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
    position_type: Literal["learned", "rotary", "none"] = "rotary"
    max_position_embeddings: int = 8192
    rope_parameters: DerivedParameters = None  # type: ignore[assignment]
    layer_types: DerivedNames = None  # type: ignore[assignment]
    sliding_window: DerivedInt = None  # type: ignore[assignment]
    type_vocab_size: int = 0
    attention_bias: bool = False
    mlp_bias: bool = False
    prediction_bias: bool = False
    lm_head_bias: bool = True
    classifier_bias: bool = True
    pooler: bool = False
    classifier_pooling: DerivedPooling = None  # type: ignore[assignment]
    classifier_transform: bool = True
    embedding_dropout: float | int = 0.0
    hidden_dropout: float | int = 0.0
    attention_dropout: float | int = 0.0
    activation_dropout: float | int = 0.0
    classifier_dropout: float | int | None = None
    tie_word_embeddings: bool = True
    initializer_range: float | int = 0.02
    use_cache: bool = True
    pad_token_id: int | None = 0
    bos_token_id: int | None = 2
    eos_token_id: int | list[int] | None = 3
    cls_token_id: int | None = 2
    sep_token_id: int | None = 3

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
        if self.classifier_pooling is None:
            self.classifier_pooling = "last" if self.shape == "decoder" else "first"
        super().__post_init__(**kwargs)
        self._refuse_impossible_combinations()
        # Recomputed and never read from a file: it follows from the shape, and saving one head would otherwise
        # register that head only.
        self.auto_map = {"AutoConfig": "configuration_lacuna.LacunaConfig"} | {
            auto_class: f"modeling_lacuna.{head}" for auto_class, head in HEADS[self.shape].items()
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
    def is_decoder(self) -> bool:
        """Whether tokens see only what is before them; some tools of the library ask under this name."""
        return self.shape == "decoder"

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
            missing = sorted(set(self.layer_types) - set(parameters))
            self._require(not missing, f"rope_parameters has no entry for {missing}, which layer_types contains")
            parameters = {key: dict(parameters[key]) for key in LAYER_TYPES if key in set(self.layer_types)}
        for entry in parameters.values() if nested else [parameters]:
            entry.setdefault("rope_type", "default")
            entry.setdefault("rope_theta", 10_000.0 if theta is None else theta)
        self.rope_parameters = parameters
        self.standardize_rope_params()
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
        if self.shape == "encoder-decoder":
            raise ConfigurationError(
                "shape='encoder-decoder' cannot be built yet; 'encoder' and 'decoder' can. Cross-attention is missing."
            )
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
        self._require(
            self.hidden_act in ACT2FN,
            f"hidden_act={self.hidden_act!r} is not known{name_nearest(value=self.hidden_act, known=ACT2FN)}",
        )
        self._require(
            not (self.norm_bias and self.norm_type == "rms_norm"), "norm_type='rms_norm' has no bias: norm_bias=False"
        )
        self._require(
            self.position_type != "rotary" or self.head_dim % 2 == 0,
            f"head_dim={self.head_dim} is odd, and rotary positions turn pairs of dimensions",
        )
        if self.shape == "decoder":
            self._require(not self.pooler, "pooler=True reads the first token, which sees nothing else in a decoder")
            self._require(
                self.classifier_pooling != "first",
                "classifier_pooling='first' reads the first token, which sees nothing else in a decoder: use 'last'",
            )
        self._require(not self.is_encoder_decoder, f"is_encoder_decoder=True contradicts shape={self.shape!r}")
        self._refuse_impossible_layers()

    def _refuse_impossible_sizes(self) -> None:
        positive = ("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads")
        for name in (*positive, "head_dim", "intermediate_size", "max_position_embeddings"):
            self._require(getattr(self, name) > 0, f"{name}={getattr(self, name)} must be positive")
        self._require(self.type_vocab_size >= 0, f"type_vocab_size={self.type_vocab_size} must not be negative")
        for name in ("embedding_dropout", "hidden_dropout", "attention_dropout", "activation_dropout"):
            self._require(0 <= getattr(self, name) < 1, f"{name}={getattr(self, name)} must be in [0, 1)")
        if self.pad_token_id is not None:
            self._require(
                0 <= self.pad_token_id < self.vocab_size,
                f"pad_token_id={self.pad_token_id} is outside the vocabulary of {self.vocab_size}",
            )

    def _refuse_impossible_layers(self) -> None:
        layer_types = self.layer_types
        self._require(
            len(layer_types) == self.num_hidden_layers,
            f"layer_types names {len(layer_types)} layers and num_hidden_layers is {self.num_hidden_layers}",
        )
        for layer_type in layer_types:
            self._require(
                layer_type in LAYER_TYPES,
                f"layer_types contains {layer_type!r}{name_nearest(value=layer_type, known=LAYER_TYPES)}",
            )
        if "sliding_attention" in layer_types:
            self._require(
                self.sliding_window is not None and self.sliding_window > 0,
                f"layer_types has 'sliding_attention' and sliding_window is {self.sliding_window}",
            )


__all__ = ["HEADS", "ConfigurationError", "LacunaConfig", "name_nearest"]
