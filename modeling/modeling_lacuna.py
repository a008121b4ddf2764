"""The Lacuna model and its heads.

Every head has the same steps: backbone, pool or select, head, loss if there are labels, typed output. The losses are
in losses_lacuna.py; `num_items_in_batch` of every head is the number of targets in the whole batch, over all parts of
it. Letters in shapes: B rows, T tokens of a row, S tokens of the encoder's text, C hidden_size, V vocab_size.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import initialization as init
from transformers.activations import ACT2FN
from transformers.cache_utils import Cache, DynamicCache, EncoderDecoderCache
from transformers.generation import GenerationMixin
from transformers.masking_utils import create_masks_for_generate
from transformers.modeling_outputs import (
    BaseModelOutput,
    BaseModelOutputWithPastAndCrossAttentions,
    BaseModelOutputWithPoolingAndCrossAttentions,
    CausalLMOutputWithPast,
    MaskedLMOutput,
    MultipleChoiceModelOutput,
    QuestionAnsweringModelOutput,
    Seq2SeqLMOutput,
    Seq2SeqModelOutput,
    Seq2SeqQuestionAnsweringModelOutput,
    Seq2SeqSequenceClassifierOutput,
    SequenceClassifierOutput,
    TokenClassifierOutput,
)
from transformers.modeling_utils import PreTrainedModel
from transformers.utils.generic import ModelOutput, can_return_tuple
from transformers.utils.output_capturing import OutputRecorder, capture_outputs

from .attention_lacuna import LacunaRotaryEmbedding, compute_dtype
from .checks_lacuna import as_classes, check_inputs, check_mask, refuse_other_shape
from .configuration_lacuna import HEADS, ConfigurationError, LacunaConfig
from .layers_lacuna import (
    LacunaAttention,
    LacunaClassifier,
    LacunaEmbeddings,
    LacunaHeadProjection,
    LacunaLayer,
    LacunaOutputProjection,
    build_norm,
    is_plain_linear,
)
from .losses_lacuna import (
    IGNORED,
    chunked_cross_entropy,
    classification_loss,
    cross_entropy,
    find_targets,
    linear_cross_entropy,
    relation_loss,
    score_targets,
    shifted,
    span_loss,
)
from .masks_lacuna import build_attention_masks, build_cross_attention_mask, find_documents

# The projections that start smaller the deeper the model is, by initialisation.
DEPTH_SCALED: dict[str, tuple[type[nn.Linear], ...]] = {
    "depth_scaled": (LacunaOutputProjection,),
    "truncated_normal": (LacunaOutputProjection, LacunaHeadProjection),
}


# ------------------------------------------------------------------------------------------------------------ pooling


def pool(hidden_states: Tensor, attention_mask: Any, pooling: str) -> Tensor:
    """The first or the last real token of each row, or the mean over its real tokens: [B, T, C] -> [B, C].

    `attention_mask`: [B, T], 1 for real tokens. Anything else counts as all real.
    """
    if not isinstance(attention_mask, Tensor) or attention_mask.dim() != 2:
        return hidden_states.mean(1) if pooling == "mean" else hidden_states[:, 0 if pooling == "first" else -1]
    if pooling == "mean":
        weights = attention_mask.unsqueeze(-1).to(hidden_states.dtype)
        return (hidden_states * weights).sum(1) / weights.sum(1).clamp(min=1)
    rows, length = attention_mask.shape
    device = hidden_states.device
    places = attention_mask.int() if pooling == "first" else torch.arange(length, device=device) * attention_mask.int()
    return hidden_states[torch.arange(rows, device=device), places.argmax(-1)]


class LacunaPooler(nn.Module):
    """tanh of a dense layer over the state of one token (https://arxiv.org/abs/1810.04805)."""

    def __init__(self, config: LacunaConfig) -> None:
        super().__init__()
        self.dense = nn.Linear(config.hidden_size, config.hidden_size)

    def forward(self, pooled: Tensor) -> Tensor:
        return torch.tanh(self.dense(pooled))


class LacunaPredictionHead(nn.Module):
    """Dense, activation, norm: what stands between the hidden states and the last projection of a head.

    Heads call it `transform`: accelerate takes a module `head` for a part of `lm_head` when it shares out devices.
    """

    def __init__(self, config: LacunaConfig) -> None:
        super().__init__()
        self.dense = LacunaHeadProjection(config.hidden_size, config.hidden_size, bias=config.prediction_bias)
        self.activation = ACT2FN[config.prediction_act]
        self.norm = build_norm(config)

    def forward(self, hidden_states: Tensor) -> Tensor:
        return self.norm(self.activation(self.dense(hidden_states)))


class LacunaSpanHead(nn.Module):
    """Each token as start and as end of the answer to questions: it is compared with the state of each question.

    Question-aware span selection of Splinter (Ram et al., 2021, section 3, https://arxiv.org/abs/2101.00438).
    """

    def __init__(self, config: LacunaConfig) -> None:
        super().__init__()
        self.ask = nn.ModuleList(LacunaPredictionHead(config) for _ in range(2))
        self.find = nn.ModuleList(LacunaPredictionHead(config) for _ in range(2))
        self.compare = nn.Parameter(torch.empty(2, config.hidden_size, config.hidden_size))

    def start_weights(self) -> None:
        """Normal, so that logits have a size near 1."""
        init.normal_(self.compare, std=1 / self.compare.shape[-1])

    def forward(self, states: Tensor, places: Tensor) -> tuple[Tensor, Tensor]:
        """Start and end logits [B, Q, T] of states [B, T, C], for questions at `places` [B, Q]."""
        asked = states.gather(1, places.clamp(min=0).unsqueeze(-1).expand(-1, -1, states.shape[-1]))
        start, end = (
            ask(asked) @ compare @ find(states).transpose(1, 2)
            for ask, find, compare in zip(self.ask, self.find, self.compare, strict=True)
        )
        return start, end


class LacunaSentenceHead(nn.Module):
    """Does the second segment continue the first? Two logits for each row.

    With a pooler this is BERT's: one projection of the pooled first token. Without one, the mean states u and v of the
    two segments are compared as (u, v, |u - v|, u * v), the features of InferSent (Conneau et al., 2017,
    https://arxiv.org/abs/1705.02364) and Sentence-BERT (https://arxiv.org/abs/1908.10084). What the segments share
    is in these features from the first step; a first token must learn to gather it, and a tiny model that read the
    answer from there was still at chance after 380 steps.
    """

    def __init__(self, config: LacunaConfig) -> None:
        super().__init__()
        if config.pooler:
            self.dense = None
        else:
            self.dense = nn.Linear(4 * config.hidden_size, config.hidden_size)
            self.activation = ACT2FN[config.prediction_act]
        self.classifier = nn.Linear(config.hidden_size, 2)

    def forward(self, outputs: ModelOutput, attention_mask: Tensor | None, segments: Tensor | None) -> Tensor:
        if self.dense is None:
            return self.classifier(outputs.pooler_output)
        states = outputs.last_hidden_state
        if segments is None:
            segments = states.new_zeros(states.shape[:2], dtype=torch.long)
        real = segments.new_ones(segments.shape) if attention_mask is None else attention_mask
        first, second = (pool(states, (segments == number) * real, "mean") for number in (0, 1))
        features = torch.cat([first, second, (first - second).abs(), first * second], dim=-1)
        return self.classifier(self.activation(self.dense(features)))


def find_segments(input_ids: Tensor | None, segments: Tensor | None, *, sep_token_id: int | None) -> Tensor | None:
    """Segment numbers 0 and 1, [B, T]: those given, or else split at the first separator."""
    if segments is not None or input_ids is None or sep_token_id is None:
        return segments
    is_separator = (input_ids == sep_token_id).long()
    return (is_separator.cumsum(-1) - is_separator).clamp(max=1)


# ----------------------------------------------------------------------------------------------------------- backbone


class LacunaPreTrainedModel(PreTrainedModel):
    """Initialisation, loading and saving for every Lacuna model."""

    config: LacunaConfig
    config_class = LacunaConfig
    base_model_prefix = "model"
    supports_gradient_checkpointing = True
    _no_split_modules = ["LacunaEmbeddings", "LacunaLayer"]
    _skip_keys_device_placement = ["past_key_values"]
    _supports_sdpa = True
    _supports_flash_attn = True
    _supports_flex_attn = True
    _supports_attention_backend = True
    _can_compile_fullgraph = True
    # A pretrained model may hold parts that a head does not use; dropping them is intended.
    _keys_to_ignore_on_load_unexpected = [
        r"^lm_head\.",
        r"^transform\.",
        r"^(sentence_head|spans)\.",
        r"^(model\.)?pooler\.",
    ]

    def __init__(self, config: LacunaConfig, *inputs: Any, **kwargs: Any) -> None:
        name = type(self).__name__
        shapes = [shape for shape, heads in HEADS.items() if name in heads.values()]
        if shapes and name not in config.heads.values():
            raise ConfigurationError(
                f"{name} needs shape={' or '.join(map(repr, shapes))} and the configuration has "
                f"shape={config.shape!r}; heads for it: {', '.join(config.heads.values())}"
            )
        config.validate_architecture()  # again: fields may have been set one by one since it was made
        super().__init__(config, *inputs, **kwargs)

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        """Start `module` as `config.initialization` says; biases start at zero and norms at one."""
        super()._init_weights(module)
        config, std = self.config, self.config.initializer_range
        # By the class of each projection: the library passes over modules of remote code that hold no tensor directly.
        if isinstance(module, DEPTH_SCALED.get(config.initialization, ())):
            self._draw(module.weight, std * self.residual_branches() ** -0.5)
        elif isinstance(module, LacunaClassifier) and config.initialization == "truncated_normal":
            self._draw(module.weight, config.hidden_size**-0.5)
        elif isinstance(module, nn.Linear):
            self._draw(module.weight, std)
        elif isinstance(module, nn.Embedding):
            if config.initialization == "xavier_uniform":
                init.normal_(module.weight, std=config.hidden_size**-0.5)
            else:
                self._draw(module.weight, std)
            if module.padding_idx is not None and not getattr(module.weight, "_is_hf_initialized", False):
                init.zeros_(module.weight[module.padding_idx])
        elif hasattr(module, "start_weights"):  # scores and rotary positions know how they start
            module.start_weights()

    def residual_branches(self) -> int:
        """How many sub-layers add to the residual stream."""
        return 2 * self.config.num_hidden_layers

    def _draw(self, weight: Tensor, std: float) -> None:
        """Fill `weight` from the distribution of `config.initialization`; that of Glorot knows its own width."""
        if self.config.initialization == "truncated_normal":
            init.trunc_normal_(weight, mean=0.0, std=std, a=-3 * std, b=3 * std)
        elif self.config.initialization == "xavier_uniform":
            init.xavier_uniform_(weight)
        else:
            init.normal_(weight, mean=0.0, std=std)

    def _resize_token_embeddings(self, new_num_tokens: int, *args: Any, **kwargs: Any) -> nn.Module:
        """Resize the second table too, where encoder and decoder have one each."""
        if self.config.is_encoder_decoder and not self.config.tie_word_embeddings:
            embeddings = self.base_model.decoder.embeddings
            mean_resizing = args[1] if len(args) > 1 else kwargs.get("mean_resizing", True)
            pad_to_multiple_of = args[0] if args else kwargs.get("pad_to_multiple_of")
            embeddings.embed_tokens = self._get_resized_embeddings(
                embeddings.embed_tokens, new_num_tokens, pad_to_multiple_of, mean_resizing
            )
        return super()._resize_token_embeddings(new_num_tokens, *args, **kwargs)

    @classmethod
    def from_pretrained(cls, pretrained_model_name_or_path: Any, *args: Any, **kwargs: Any) -> Any:
        """Load a checkpoint; arguments as in `transformers.PreTrainedModel.from_pretrained`.

        Raises ConfigurationError: when FSDP2 is asked for and tied embeddings have no multiple of 64 rows.
        """
        loaded = super().from_pretrained(pretrained_model_name_or_path, *args, **kwargs)
        model = loaded[0] if isinstance(loaded, tuple) else loaded
        config = model.config
        if (getattr(model, "fsdp_size", None) or 1) > 1 and config.tie_word_embeddings and config.vocab_size % 64:
            raise ConfigurationError(
                f"vocab_size={config.vocab_size} is not a multiple of 64, and FSDP2 trains tied embeddings of such a "
                "size silently wrong: resize_token_embeddings(n, pad_to_multiple_of=64) before saving, or "
                "tie_word_embeddings=False"
            )
        return loaded


class LacunaStack(LacunaPreTrainedModel):
    """Embeddings and blocks of one side; see `LacunaEncoder` and `LacunaDecoder`."""

    stack: str

    def __init__(self, config: LacunaConfig) -> None:
        super().__init__(config)
        is_second = self.stack != config.stacks[0]
        self.prefix = "decoder_" if is_second else ""  # of the names of its arguments
        self.embeddings = LacunaEmbeddings(config, is_second=is_second)
        self.rotary_emb = LacunaRotaryEmbedding(config) if config.position_type == "rotary" else None
        depth = len(config.layer_types_of(self.stack))
        self.layers = nn.ModuleList([LacunaLayer(config, index, stack=self.stack) for index in range(depth)])
        self.norm = build_norm(config) if config.norm_placement == "pre" else None
        self.gradient_checkpointing = False
        self.post_init()

    @property
    def _can_record_outputs(self) -> dict[str, OutputRecorder]:
        states, is_second = OutputRecorder(LacunaLayer), self.stack != self.config.stacks[0]
        if is_second and hasattr(states, "num_hidden_layers_key"):  # not in transformers 5.17
            states = OutputRecorder(LacunaLayer, num_hidden_layers_key="num_decoder_layers")
        attentions = {"attentions": "attention"} | ({"cross_attentions": "cross_attention"} if is_second else {})
        return {"hidden_states": states} | {
            key: OutputRecorder(LacunaAttention, index=1, layer_name=name) for key, name in attentions.items()
        }

    def init_parallel_plans(self) -> None:
        """None of its own: the plans of the configuration are written for the whole model."""
        for plan in ("_tp_plan", "_ep_plan", "_pp_plan", "_fsdp_plan"):
            setattr(self, plan, {})

    def residual_branches(self) -> int:
        """Attention and feed-forward of each layer; cross-attention too where there is an encoder to look at."""
        has_cross_attention = self.stack == "decoder" and self.config.is_encoder_decoder
        return len(self.layers) * (3 if has_cross_attention else 2)

    def embed(self, past_key_values: Cache | None, **inputs: Any) -> tuple[Tensor, Tensor]:
        """Embeddings [B, T, C], and positions [B or 1, T]: those given, or counted on from the cache.

        Args:
            **inputs: input_ids, inputs_embeds, token_type_ids and position_ids of `LacunaModel.forward`.

        Raises ValueError: on what `check_inputs` refuses, and when a row is longer than the table of learned
        positions.
        """
        given = check_inputs(**inputs, hidden_size=self.config.hidden_size, prefix=self.prefix)
        if inputs["position_ids"] is None:
            length = given.shape[1]
            seen = past_key_values.get_seq_length() if past_key_values is not None else 0
            longest = self.config.max_position_embeddings
            if self.config.position_type == "learned" and isinstance(seen, int) and seen + length > longest:
                raise ValueError(
                    f"a row of {seen + length} tokens is longer than max_position_embeddings={longest}, and the "
                    "learned positions end there"
                )
            inputs["position_ids"] = (torch.arange(length, device=given.device) + seen).unsqueeze(0)
        return self.embeddings(**inputs), inputs["position_ids"]

    def prepare(
        self,
        attention_mask: Any,
        *,
        is_causal: bool = False,
        past_key_values: Cache | None = None,
        document_bounds: Tensor | None = None,
        **inputs: Any,
    ) -> tuple[Tensor, dict[str, dict[str, Any]], Tensor | None]:
        """Everything that the layers need; `inputs` as in `embed`.

        Returns: Embeddings [B, T, C]; by layer type, the mask, the angles and the packing that layers of this type
        take; and the documents of packed rows [B, T], or None.
        """
        hidden_states, positions = self.embed(past_key_values, **inputs)
        masks, packing, documents = build_attention_masks(
            config=self.config,
            stack=self.stack,
            hidden_states=hidden_states,
            attention_mask=attention_mask,
            position_ids=inputs["position_ids"],
            past_key_values=past_key_values,
            is_causal=is_causal,
            document_bounds=document_bounds,
            name=f"{self.prefix}attention_mask",
        )
        arguments = {
            layer_type: {"attention_mask": masks[layer_type], "position_embeddings": angles, "packing": packing}
            for layer_type, angles in self.rotate(hidden_states, positions).items()
        }
        return hidden_states, arguments, documents

    def rotate(self, hidden_states: Tensor, position_ids: Tensor) -> dict[str, Any]:
        """Cosines and sines by layer type; None without rotary positions."""
        layer_types = set(self.config.layer_types_of(self.stack))
        if self.rotary_emb is None:
            return dict.fromkeys(layer_types)
        if self.rotary_emb.layer_types == [None]:
            return dict.fromkeys(layer_types, self.rotary_emb(hidden_states, position_ids))
        return {name: self.rotary_emb(hidden_states, position_ids, name) for name in layer_types}


class LacunaEncoder(LacunaStack):
    """Blocks in which every token sees every token."""

    stack = "encoder"

    @capture_outputs
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Any = None,
        token_type_ids: Tensor | None = None,
        position_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        document_bounds: Tensor | None = None,
        **kwargs: Any,
    ) -> BaseModelOutput:
        """Hidden states [B, T, C] of the tokens, [N, C] with `kept`; arguments as in `LacunaModel.forward`."""
        inputs: dict[str, Any] = {"token_type_ids": token_type_ids, "position_ids": position_ids}
        inputs |= {"input_ids": input_ids, "inputs_embeds": inputs_embeds}
        hidden_states, arguments, _ = self.prepare(attention_mask, document_bounds=document_bounds, **inputs)
        for layer_type, layer in zip(self.config.layer_types_of(self.stack), self.layers, strict=True):
            hidden_states = layer(hidden_states, **arguments[layer_type], **kwargs)
        return BaseModelOutput(last_hidden_state=hidden_states if self.norm is None else self.norm(hidden_states))


class LacunaDecoder(LacunaStack):
    """Blocks in which a token sees itself and what is before it, and in an encoder-decoder the encoder's states."""

    stack = "decoder"

    @capture_outputs
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Any = None,
        token_type_ids: Tensor | None = None,
        position_ids: Tensor | None = None,
        past_key_values: Cache | None = None,
        inputs_embeds: Tensor | None = None,
        encoder_hidden_states: Tensor | None = None,
        encoder_attention_mask: Tensor | None = None,
        encoder_documents: Tensor | None = None,
        use_cache: bool | None = None,
        is_causal: bool | None = None,
        document_bounds: Tensor | None = None,
        **kwargs: Any,
    ) -> BaseModelOutputWithPastAndCrossAttentions:
        """Hidden states [B, T, C] of the tokens; arguments as in `LacunaModel.forward`.

        Args:
            is_causal: whether the future is hidden; None: it is, unless the model is hybrid.
            encoder_hidden_states, encoder_attention_mask: [B, S, C] and [B, S], what cross-attention sees.
            encoder_documents: numbers of the documents in packed rows of the encoder [B, S].
        """
        layer_types = self.config.layer_types_of(self.stack)  # not of the layers, which may be on other devices
        if kwargs.get("cache") is not None:  # continuous batching: requests end to end, with a mask of its own
            is_causal, masks = None, attention_mask
            attention_mask = masks if isinstance(masks, dict) else dict.fromkeys(layer_types, masks)
        is_causal = not self.config.hybrid if is_causal is None else is_causal
        if not is_causal:
            kwargs["is_causal"] = False  # attention functions take it from the module, unless they are told
        inputs: dict[str, Any] = {"past_key_values": past_key_values, "document_bounds": document_bounds}
        inputs |= {"token_type_ids": token_type_ids, "position_ids": position_ids, "inputs_embeds": inputs_embeds}
        inputs |= {"input_ids": input_ids, "is_causal": is_causal}
        hidden_states, arguments, documents = self.prepare(attention_mask, **inputs)
        cross_mask, cross_packing = build_cross_attention_mask(
            config=self.config,
            hidden_states=hidden_states,
            documents=documents,
            encoder_hidden_states=encoder_hidden_states,
            encoder_attention_mask=encoder_attention_mask,
            encoder_documents=encoder_documents,
        )
        past_key_values, use_cache = self._open_cache(past_key_values, use_cache, is_causal=is_causal)

        # The number is read here, since early exit (`assistant_early_exit`) lowers it for some of the calls.
        depth = self.config.num_decoder_layers if self.prefix else self.config.num_hidden_layers
        for layer_type, layer in zip(layer_types, self.layers[:depth], strict=False):
            hidden_states = layer(
                hidden_states,
                encoder_hidden_states,
                past_key_values=past_key_values,
                encoder_attention_mask=cross_mask,
                cross_packing=cross_packing,
                **arguments[layer_type],
                **kwargs,
            )
        return BaseModelOutputWithPastAndCrossAttentions(
            last_hidden_state=hidden_states if self.norm is None else self.norm(hidden_states),
            past_key_values=past_key_values if use_cache else None,
        )

    def _open_cache(
        self, past_key_values: Cache | None, use_cache: bool | None, *, is_causal: bool
    ) -> tuple[Cache | None, bool]:
        """The cache to fill, and whether to return it. Keys of tokens that see the future change with it: no cache."""
        if not is_causal and not self.config.hybrid:
            raise ValueError("is_causal=False is for a model trained to see the whole text: hybrid is False here")
        if not is_causal and past_key_values is not None:
            raise ValueError("past_key_values is for generation, where the future is hidden: is_causal=True")
        if use_cache is None:
            use_cache = self.config.use_cache and not self.training
        use_cache = use_cache and is_causal
        return self.new_cache() if use_cache and past_key_values is None else past_key_values, use_cache

    def new_cache(self) -> Cache:
        """An empty cache that grows; layers with a window keep what the window needs."""
        own = DynamicCache(config=self.config.get_text_config(decoder=True))
        return EncoderDecoderCache(own, DynamicCache()) if self.config.is_encoder_decoder else own


def shift_right(ids: Tensor, *, config: LacunaConfig, attention_mask: Any = None) -> Tensor:
    """What the decoder reads to predict `ids` [B, T]: the start token, then all but the last; ignored labels padded.

    In rows that are padded on the left the start token stands before the first real one, as `attention_mask` says.

    Raises ValueError: when the configuration has no `decoder_start_token_id`, or the ids are no rows of tokens.
    """
    if ids.dim() != 2:
        raise ValueError(f"labels has the shape {tuple(ids.shape)}, and (rows, tokens) is needed")
    if config.decoder_start_token_id is None:
        raise ValueError("decoder_start_token_id is None, and the decoder must read something first: set it")
    shifted = nn.functional.pad(ids[:, :-1], (1, 0), value=config.decoder_start_token_id)
    if isinstance(attention_mask, Tensor) and attention_mask.shape == ids.shape:
        is_first = attention_mask.bool() & (attention_mask.cumsum(-1) == 1)
        shifted = shifted.masked_fill(is_first, config.decoder_start_token_id)
    return shifted.masked_fill(shifted == IGNORED, config.pad_token_id or 0)


class LacunaModel(LacunaPreTrainedModel):
    """An encoder, a decoder or both; hidden states out, no head.

    `add_pooling_layer`: whether to build the pooler that the configuration has. Heads that do not read it leave it
    out: a parameter without a gradient stops distributed training.
    """

    encoder: Any  # LacunaEncoder, or None in a decoder
    decoder: Any  # LacunaDecoder, or None in an encoder

    def __init__(self, config: LacunaConfig, add_pooling_layer: bool = True) -> None:
        super().__init__(config)
        self.encoder = LacunaEncoder(config) if "encoder" in config.stacks else None
        self.decoder = LacunaDecoder(config) if "decoder" in config.stacks else None
        self.pooler = LacunaPooler(config) if config.pooler and add_pooling_layer else None
        if config.is_encoder_decoder:
            tokens = "embeddings.embed_tokens.weight"
            self._tied_weights_keys = {f"decoder.{tokens}": f"encoder.{tokens}"}
        self.post_init()

    def get_input_embeddings(self) -> nn.Module:
        return (self.encoder or self.decoder).get_input_embeddings()

    def set_input_embeddings(self, value: nn.Module) -> None:
        (self.encoder or self.decoder).set_input_embeddings(value)
        if self.config.is_encoder_decoder and self.config.tie_word_embeddings:
            self.decoder.set_input_embeddings(value)

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Any = None,
        token_type_ids: Tensor | None = None,
        position_ids: Tensor | None = None,
        past_key_values: Cache | None = None,
        inputs_embeds: Tensor | None = None,
        use_cache: bool | None = None,
        decoder_input_ids: Tensor | None = None,
        decoder_attention_mask: Any = None,
        decoder_position_ids: Tensor | None = None,
        decoder_inputs_embeds: Tensor | None = None,
        encoder_outputs: Any = None,
        document_bounds: Tensor | None = None,
        **kwargs: Any,
    ) -> BaseModelOutputWithPoolingAndCrossAttentions | BaseModelOutputWithPastAndCrossAttentions | Seq2SeqModelOutput:
        """Run the blocks.

        Args:
            input_ids: token ids [B, T]; or `inputs_embeds` [B, T, C] in their place.
            attention_mask: [B, T] (with a cache [B, past + T]), 1 for real tokens; None when all are real. Also a mask
                [B, 1, T, S] as the attention function takes it, or one such mask per layer type in a dict.
            token_type_ids: segments [B, T]; ignored by a model without segments.
            position_ids: [B, T]. Where they restart at 0 inside a row, a new document starts: attention stays in it.
            past_key_values, use_cache: keys and values of the tokens before, and whether to return them (decoders).
                None: as `config.use_cache` says, but not while training.
            decoder_...: the same for the decoder of an encoder-decoder. Without ids it reads `input_ids` shifted by
                one. In packed rows the n-th document of the decoder sees the n-th of the encoder.
            encoder_outputs: what the encoder returned, in place of its input.
            document_bounds: what `position_ids`, given too, say, in the form that the fastest kernel of a GPU takes:
                see `packed_attention_forward`. Elsewhere, and in an encoder-decoder, nobody reads it.
            kept: of an encoder, where in the flattened rows the tokens are whose states [N, C] are wanted, int64 [N].
            output_attentions, output_hidden_states: also return these of every layer. Attention weights need
                `attn_implementation="eager"`.

        Raises ValueError: when ids are outside the vocabulary, rows longer than the learned positions, masks of a
        wrong shape, or not exactly one of `input_ids` and `inputs_embeds` is given.
        """
        inputs = {"input_ids": input_ids, "attention_mask": attention_mask, "token_type_ids": token_type_ids}
        inputs |= {"position_ids": position_ids, "inputs_embeds": inputs_embeds}
        cache = {"past_key_values": past_key_values, "use_cache": use_cache}
        if self.config.is_encoder_decoder:
            written = {"input_ids": decoder_input_ids, "attention_mask": decoder_attention_mask, **cache}
            written |= {"position_ids": decoder_position_ids, "inputs_embeds": decoder_inputs_embeds}
            return self._read_and_write(encoder_outputs, inputs, written, **kwargs)
        inputs["document_bounds"] = document_bounds
        if self.decoder is not None:
            return self.decoder(**inputs, **cache, **kwargs)
        outputs = self.encoder(**inputs, **kwargs)
        pooled = None
        if self.pooler is not None:
            pooled = self.pooler(pool(outputs.last_hidden_state, attention_mask, "first"))
        return BaseModelOutputWithPoolingAndCrossAttentions(pooler_output=pooled, **outputs)

    def _read_and_write(
        self, encoder_outputs: Any, inputs: dict[str, Any], decoder_inputs: dict[str, Any], **kwargs: Any
    ) -> Seq2SeqModelOutput:
        """Run the encoder, unless its outputs were given, and the decoder on what it returned."""
        if encoder_outputs is None:
            encoder_outputs = self.encoder(**inputs, **kwargs)
        elif not isinstance(encoder_outputs, ModelOutput):  # a tuple
            names = ("last_hidden_state", "hidden_states", "attentions")
            encoder_outputs = BaseModelOutput(**dict(zip(names, encoder_outputs, strict=False)))
        rows, length = encoder_outputs.last_hidden_state.shape[:2]
        if isinstance(inputs["attention_mask"], dict):
            raise ValueError("attention_mask is a dict, and an encoder-decoder needs a mask (rows, tokens)")
        if inputs["attention_mask"] is not None:  # The encoder has seen it, but not where its outputs were given.
            check_mask(inputs["attention_mask"], batch_size=rows, length=length)
        if decoder_inputs["input_ids"] is None and decoder_inputs["inputs_embeds"] is None:
            if inputs["input_ids"] is None:
                raise ValueError("give decoder_input_ids or decoder_inputs_embeds: there are no input_ids to shift")
            mask, positions = inputs["attention_mask"], inputs["position_ids"]
            decoder_inputs["input_ids"] = shift_right(inputs["input_ids"], config=self.config, attention_mask=mask)
            if decoder_inputs["attention_mask"] is None and isinstance(mask, Tensor) and mask.dim() == 2:
                decoder_inputs["attention_mask"] = mask
            if decoder_inputs["position_ids"] is None:
                decoder_inputs["position_ids"] = positions
        for name in ("input_ids", "inputs_embeds"):
            given = decoder_inputs[name]
            if given is not None and given.shape[0] != rows:
                raise ValueError(
                    f"decoder_{name} has the shape {tuple(given.shape)}, and the encoder has read {rows} rows"
                )
        documents = find_documents(inputs["position_ids"], inputs["attention_mask"])
        outputs = self.decoder(
            **decoder_inputs,
            encoder_hidden_states=encoder_outputs.last_hidden_state,
            encoder_attention_mask=inputs["attention_mask"],
            encoder_documents=None if documents is None else documents.expand(rows, -1),
            **kwargs,
        )
        return Seq2SeqModelOutput(
            last_hidden_state=outputs.last_hidden_state,
            past_key_values=outputs.past_key_values,
            decoder_hidden_states=outputs.hidden_states,
            decoder_attentions=outputs.attentions,
            cross_attentions=outputs.cross_attentions,
            encoder_last_hidden_state=encoder_outputs.last_hidden_state,
            encoder_hidden_states=encoder_outputs.hidden_states,
            encoder_attentions=encoder_outputs.attentions,
        )


def carry(outputs: ModelOutput) -> dict[str, Any]:
    """What a head passes on from the backbone: caches, hidden states and attentions, those that are there."""
    return {name: value for name, value in outputs.items() if name not in ("last_hidden_state", "pooler_output")}


class LacunaLanguageModel(LacunaPreTrainedModel):
    """What the heads over the vocabulary share: backbone, projection and loss."""

    _tp_plan = {"lm_head": "colwise_gather_output"}
    _fsdp_plan = {"lm_head": "keep_full_weight"}
    can_skip_logits = True
    can_take_hints = True  # document_bounds, which an encoder-decoder passes over, and target_positions
    score_targets = staticmethod(score_targets)  # an instance may have one that was compiled

    def __init__(self, config: LacunaConfig, *, fills_masks: bool = False, add_pooling_layer: bool = False) -> None:
        super().__init__(config)
        self.model = LacunaModel(config, add_pooling_layer=add_pooling_layer)
        self.transform = LacunaPredictionHead(config) if fills_masks and not config.hybrid else nn.Identity()
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=config.lm_head_bias)
        self._tied_weights_keys = {"lm_head.weight": f"model.{config.stacks[0]}.embeddings.embed_tokens.weight"}

    def predict(
        self,
        hidden_states: Tensor,
        labels: Tensor | None,
        *,
        skip_logits: bool = False,
        num_items: int | Tensor | None = None,
        target_positions: Tensor | None = None,
        is_checked: bool = False,
    ) -> tuple[Tensor | None, Tensor | None]:
        """Logits and loss of hidden states [..., C] with labels [...]; either may be None.

        Args:
            skip_logits: make the loss alone; no more than a chunk of logits then exists.
            num_items, is_checked: see `cross_entropy`.
            target_positions: see `find_targets`; only with `skip_logits`.
        """
        if labels is None or not skip_logits:
            logits = self.lm_head(hidden_states)
            if labels is None:
                return logits, None
            return logits, cross_entropy(logits, labels, num_items=num_items, is_checked=is_checked)
        options: dict[str, Any] = {"num_items": num_items, "target_positions": target_positions}
        head = self.lm_head
        # Gradients that are made in the forward pass know nothing of a loss scale, without which fp16 overflows.
        is_fp16 = compute_dtype(hidden_states) == torch.float16
        if is_plain_linear(head) and not is_fp16 and not torch.compiler.is_compiling():
            options |= {"weight": head.weight, "bias": head.bias}
            return None, linear_cross_entropy(hidden_states, labels, score=self.score_targets, **options)
        options |= {"project": head, "vocab_size": self.config.vocab_size}
        return None, chunked_cross_entropy(hidden_states, labels, **options)

    def predict_next(
        self, hidden_states: Tensor, labels: Tensor | None, *, keep: int | Tensor, **options: Any
    ) -> tuple[Tensor | None, Tensor | None]:
        """`predict` for the last `keep` positions of [B, T, C] and [B, T] (0: all), or for these positions.

        The labels of the other positions do not count.
        """
        kept = slice(-keep, None) if isinstance(keep, int) else keep
        if not (isinstance(keep, int) and keep == 0):
            options["target_positions"] = None
        return self.predict(hidden_states[:, kept], None if labels is None else labels[:, kept], **options)

    def masked_targets(
        self, labels: Tensor | None, shape: tuple[int, ...], *, is_sparse: bool, positions: Tensor | None
    ) -> tuple[Tensor | None, Tensor | None]:
        """Where in the flattened rows tokens are predicted, None for everywhere, and the labels there.

        `is_sparse`: at the positions with a label only; `positions` are these, or without labels those asked for.
        """
        if labels is None or not is_sparse:
            return positions if labels is None else None, labels
        return find_targets(labels, shape, vocab_size=self.config.vocab_size, positions=positions)


# -------------------------------------------------------------------------------------------------------------- heads


@dataclass
class LacunaForPreTrainingOutput(ModelOutput):
    """What `LacunaForPreTraining` returns."""

    loss: Tensor | None = None  # sum of the two losses below, those that have labels
    mlm_loss: Tensor | None = None  # cross-entropy of the masked tokens
    nsp_loss: Tensor | None = None  # cross-entropy of the sentence relation
    prediction_logits: Tensor | None = None  # [B, T, V], or [number of targets, V] with sparse prediction
    seq_relationship_logits: Tensor | None = None  # [B, 2]
    hidden_states: tuple[Tensor, ...] | None = None
    attentions: tuple[Tensor, ...] | None = None


class LacunaForPreTraining(LacunaLanguageModel):
    """Masked language modelling and sentence relation together (https://arxiv.org/abs/1810.04805)."""

    def __init__(self, config: LacunaConfig) -> None:
        super().__init__(config, fills_masks=True, add_pooling_layer=True)
        self.sentence_head = LacunaSentenceHead(config)
        self.post_init()

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        position_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        next_sentence_label: Tensor | None = None,
        sparse_prediction: bool | None = None,
        num_items_in_batch: int | Tensor | None = None,
        num_pairs_in_batch: int | Tensor | None = None,
        target_positions: Tensor | None = None,
        **kwargs: Any,
    ) -> LacunaForPreTrainingOutput:
        """Predict masked tokens and the sentence relation.

        Args:
            labels: [B, T], -100 where nothing is to be predicted.
            next_sentence_label: [B], 0 when the second segment continues the first, 1 when it does not.
            sparse_prediction: see `is_sparse`.
            num_pairs_in_batch: number of sentence pairs in the whole batch. Without it (`Trainer` knows tokens only)
                the mean over the pairs here counts by the share of masked tokens that is here: shares add up to one.
            target_positions: see `find_targets`; without labels, what logits [N, V] are wanted of.
        """
        kwargs["inputs_embeds"] = inputs_embeds
        outputs = self.model(input_ids, attention_mask, token_type_ids, position_ids, **kwargs)
        states, sparse = outputs.last_hidden_state, is_sparse(self, sparse_prediction)
        places, targets = self.masked_targets(labels, states.shape[:-1], is_sparse=sparse, positions=target_positions)
        states = states if places is None else states.flatten(0, 1)[places]
        options: dict[str, Any] = {"num_items": num_items_in_batch, "is_checked": places is not None}
        logits, mlm_loss = self.predict(self.transform(states), targets, **options)
        segments = find_segments(input_ids, token_type_ids, sep_token_id=self.config.sep_token_id)
        relation_logits = self.sentence_head(outputs, attention_mask, segments)

        nsp_loss = None
        if next_sentence_label is not None:
            nsp_loss = relation_loss(relation_logits, next_sentence_label, num_items=num_pairs_in_batch)
            if labels is not None and num_items_in_batch is not None and num_pairs_in_batch is None:
                nsp_loss = nsp_loss * (labels != IGNORED).sum() / num_items_in_batch
        losses = [loss for loss in (mlm_loss, nsp_loss) if loss is not None]

        return LacunaForPreTrainingOutput(
            loss=sum(losses[1:], losses[0]) if losses else None,
            mlm_loss=mlm_loss,
            nsp_loss=nsp_loss,
            prediction_logits=logits,
            seq_relationship_logits=relation_logits,
            **carry(outputs),
        )


def is_sparse(model: nn.Module, sparse_prediction: bool | None) -> bool:
    """Whether logits are computed at the targets only: [number of targets, V] in row-major order, not [B, T, V].

    None means while training, which saves most of the work of this head, unless a graph is being compiled: the number
    of targets is data, and a graph has fixed shapes.
    """
    if sparse_prediction is None:
        return model.training and not torch.compiler.is_compiling()
    return sparse_prediction


class LacunaForMaskedLM(LacunaLanguageModel):
    """Masked language modelling, of an encoder or of a hybrid decoder."""

    def __init__(self, config: LacunaConfig) -> None:
        super().__init__(config, fills_masks=True)
        self.post_init()

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        position_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        sparse_prediction: bool | None = None,
        skip_logits: bool = False,
        num_items_in_batch: int | Tensor | None = None,
        target_positions: Tensor | None = None,
        **kwargs: Any,
    ) -> MaskedLMOutput:
        """Predict masked tokens.

        Args:
            labels, sparse_prediction, target_positions: as in `LacunaForPreTraining`.
            skip_logits: return the loss alone and never hold all the logits, see `linear_cross_entropy`.
        """
        sparse = (skip_logits or is_sparse(self, sparse_prediction)) and not torch.compiler.is_compiling()
        given = input_ids if inputs_embeds is None else inputs_embeds
        shape = () if given is None else given.shape[:2]  # none: the trunk says so
        places, labels = self.masked_targets(labels, shape, is_sparse=sparse, positions=target_positions)
        if not (self.config.hybrid or kwargs.get("output_hidden_states", self.config.output_hidden_states)):
            kwargs["kept"] = places  # the last layer computes what the head reads, and no more
            if places is not None and not torch.compiler.is_compiling():
                torch._dynamo.maybe_mark_dynamic(places, 0)  # a compiled block takes any number of them
        kwargs["inputs_embeds"] = inputs_embeds
        outputs = self.model(input_ids, attention_mask, token_type_ids, position_ids, **kwargs)
        states = outputs.last_hidden_state
        if self.config.hybrid:  # The state before a token predicts it; before the first one there is none.
            states = torch.cat((states[:, :1], states[:, :-1]), dim=1)
        if places is not None and states.dim() == 3:
            states = states.flatten(0, 1)[places]
        options: dict[str, Any] = {"num_items": num_items_in_batch, "is_checked": places is not None}
        logits, loss = self.predict(self.transform(states), labels, skip_logits=skip_logits, **options)
        return MaskedLMOutput(loss=loss, logits=logits, **carry(outputs))


class LacunaForCausalLM(LacunaLanguageModel, GenerationMixin):
    """Predict the next token; generates."""

    def __init__(self, config: LacunaConfig) -> None:
        super().__init__(config)
        self.post_init()

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Any = None,
        token_type_ids: Tensor | None = None,
        position_ids: Tensor | None = None,
        past_key_values: Cache | None = None,
        inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        use_cache: bool | None = None,
        logits_to_keep: int | Tensor = 0,
        skip_logits: bool = False,
        num_items_in_batch: int | Tensor | None = None,
        is_causal: bool = True,
        target_positions: Tensor | None = None,
        **kwargs: Any,
    ) -> CausalLMOutputWithPast:
        """Predict the next token at every position.

        Args:
            labels: [B, T], the token ids themselves with -100 where nothing is to be predicted; they are shifted
                here. In packed rows the first token of a document should be -100: nothing before it predicts it.
            logits_to_keep: compute logits for that many last positions (0: all), or for these positions.
            skip_logits: return the loss alone and never hold the logits, see `linear_cross_entropy`.
            shift_labels (a further argument): [B, T], labels that were shifted already, in place of `labels`: rows
                that are cut into pieces for several processes cannot be shifted here.
            is_causal: False lets every token see the whole text, in a hybrid model. With labels at masked tokens only
                the state before a masked token predicts it (https://arxiv.org/abs/2410.24159).
            target_positions: with `skip_logits`, the positions that predict something, one before their labels.
        """
        # No argument by name: `Trainer` takes every argument with "label" in its name for one that a batch must have,
        # and would report no loss in evaluation.
        targets = kwargs.pop("shift_labels", None)
        kwargs |= {"inputs_embeds": inputs_embeds, "use_cache": use_cache, "is_causal": is_causal}
        outputs = self.model(input_ids, attention_mask, token_type_ids, position_ids, past_key_values, **kwargs)
        hidden_states = outputs.last_hidden_state
        if labels is not None and targets is None:
            refuse_other_shape(labels, tuple(hidden_states.shape[:2]))
            targets = shifted(labels)
        options: dict[str, Any] = {"keep": logits_to_keep, "skip_logits": skip_logits, "num_items": num_items_in_batch}
        logits, loss = self.predict_next(hidden_states, targets, target_positions=target_positions, **options)
        return CausalLMOutputWithPast(loss=loss, logits=logits, **carry(outputs))


class LacunaForConditionalGeneration(LacunaLanguageModel, GenerationMixin):
    """Read one text, write another; generates."""

    def __init__(self, config: LacunaConfig) -> None:
        super().__init__(config)
        self.post_init()

    @staticmethod
    def create_masks_for_generate(*, config: LacunaConfig, **arguments: Any) -> Any:
        """Masks by layer type for a cache of fixed length; the library would take those of the encoder."""
        return create_masks_for_generate(config=config.get_text_config(decoder=True), **arguments)

    def prepare_decoder_input_ids_from_labels(self, labels: Tensor) -> Tensor:
        """Decoder inputs to predict `labels` [B, T]; transformers' collators call it."""
        return shift_right(labels, config=self.config)

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        position_ids: Tensor | None = None,
        past_key_values: Cache | None = None,
        inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        use_cache: bool | None = None,
        decoder_input_ids: Tensor | None = None,
        decoder_attention_mask: Any = None,
        decoder_position_ids: Tensor | None = None,
        decoder_inputs_embeds: Tensor | None = None,
        encoder_outputs: Any = None,
        logits_to_keep: int | Tensor = 0,
        skip_logits: bool = False,
        num_items_in_batch: int | Tensor | None = None,
        target_positions: Tensor | None = None,
        **kwargs: Any,
    ) -> Seq2SeqLMOutput:
        """Predict the decoder's text.

        Args:
            labels: [B, T], what the decoder is to say, -100 where nothing is to be predicted. They are not shifted:
                without `decoder_input_ids` the decoder reads them shifted by one.
            logits_to_keep, skip_logits: as in `LacunaForCausalLM`.
            target_positions: see `find_targets`; with `skip_logits`.
        """
        if labels is not None:
            use_cache, labels = False, as_classes(labels)
            if decoder_input_ids is None and decoder_inputs_embeds is None:
                decoder_input_ids = shift_right(labels, config=self.config)
        kwargs |= {"inputs_embeds": inputs_embeds, "use_cache": use_cache, "encoder_outputs": encoder_outputs}
        kwargs |= {"decoder_input_ids": decoder_input_ids, "decoder_attention_mask": decoder_attention_mask}
        kwargs |= {"decoder_position_ids": decoder_position_ids, "decoder_inputs_embeds": decoder_inputs_embeds}
        outputs = self.model(input_ids, attention_mask, token_type_ids, position_ids, past_key_values, **kwargs)
        hidden_states = outputs.last_hidden_state
        if labels is not None:
            refuse_other_shape(labels, tuple(hidden_states.shape[:2]))
        options: dict[str, Any] = {"keep": logits_to_keep, "skip_logits": skip_logits, "num_items": num_items_in_batch}
        logits, loss = self.predict_next(hidden_states, labels, target_positions=target_positions, **options)
        return Seq2SeqLMOutput(loss=loss, logits=logits, **carry(outputs))


class LacunaTaskModel(LacunaPreTrainedModel):
    """What the task heads share: the backbone, the layers between it and their last projection, and the forward pass.

    A head says how it makes logits and loss of what the backbone returned, and what it returns.
    """

    output_class: type[ModelOutput]

    def build(self, config: LacunaConfig, *, per_token: bool = False) -> None:
        """Make all but the last projection, for heads that read rows (pooled) or tokens."""
        self.uses_pooler = config.pooler and config.classifier_pooling == "first" and not per_token
        self.model = LacunaModel(config, add_pooling_layer=self.uses_pooler)
        transforms = {"norm": LacunaPredictionHead} | ({} if per_token else {"tanh": LacunaPooler})
        transform = None if self.uses_pooler else transforms.get(config.classifier_transform)
        self.transform = None if transform is None else transform(config)
        dropout = config.hidden_dropout if config.classifier_dropout is None else config.classifier_dropout
        self.dropout = nn.Dropout(dropout)

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        position_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        num_items_in_batch: int | Tensor | None = None,
        **kwargs: Any,
    ) -> (
        SequenceClassifierOutput | TokenClassifierOutput | MultipleChoiceModelOutput | Seq2SeqSequenceClassifierOutput
    ):
        """Logits, and with labels a loss; the class says what the labels are."""
        kwargs = {"use_cache": False, **kwargs}  # nothing is generated here
        inputs = {"input_ids": input_ids, "attention_mask": attention_mask, "token_type_ids": token_type_ids}
        inputs |= {"position_ids": position_ids, "inputs_embeds": inputs_embeds}
        outputs = self.model(**self.as_rows(inputs), **kwargs)
        logits = self.make_logits(outputs, **inputs, **kwargs)
        loss = None
        if labels is not None:
            loss = self.make_loss(logits, labels, num_items_in_batch)
        return self.output_class(loss=loss, logits=logits, **carry(outputs))

    def as_rows(self, inputs: dict[str, Any]) -> dict[str, Any]:
        """What the backbone reads of the inputs."""
        return inputs

    def make_logits(self, outputs: ModelOutput, **inputs: Any) -> Tensor:
        """Logits of what the backbone returned for the inputs."""
        raise NotImplementedError

    def make_loss(self, logits: Tensor, labels: Tensor, num_items: int | Tensor | None) -> Tensor:
        """The loss of logits and labels."""
        raise NotImplementedError

    def pooled(self, outputs: ModelOutput, input_ids: Tensor | None, attention_mask: Any) -> Tensor:
        """The state [B, C] of each row, as `classifier_pooling` says.

        Without a mask, `last` is the last token that is not `pad_token_id`.
        """
        if self.uses_pooler:
            return outputs.pooler_output
        pooling, pad_token_id = self.config.classifier_pooling, self.config.pad_token_id
        if pooling == "last" and attention_mask is None and input_ids is not None and pad_token_id is not None:
            attention_mask = input_ids != pad_token_id
        return pool(outputs.last_hidden_state, attention_mask, pooling)

    def prepare(self, states: Tensor) -> Tensor:
        """What the last projection reads, of states [..., C]."""
        return self.dropout(states if self.transform is None else self.transform(states))


class LacunaForSequenceClassification(LacunaTaskModel):
    """One class, several labels or numbers for each row; for labels see `classification_loss`.

    Rows are read by the state that `config.classifier_pooling` picks. An encoder-decoder reads a row with both of its
    sides, and the state is the decoder's.
    """

    def __init__(self, config: LacunaConfig) -> None:
        super().__init__(config)
        self.build(config)
        self.classifier = LacunaClassifier(config.hidden_size, config.num_labels, bias=config.classifier_bias)
        self.output_class = Seq2SeqSequenceClassifierOutput if config.is_encoder_decoder else SequenceClassifierOutput
        self.post_init()

    def make_logits(self, outputs: ModelOutput, **inputs: Any) -> Tensor:
        side = "" if inputs.get("decoder_input_ids") is None else "decoder_"  # whose states they are
        pooled = self.pooled(outputs, inputs[f"{side}input_ids"], inputs.get(f"{side}attention_mask"))
        return self.classifier(self.prepare(pooled))

    def make_loss(self, logits: Tensor, labels: Tensor, num_items: int | Tensor | None) -> Tensor:
        return classification_loss(logits, labels, config=self.config, num_items=num_items)


class LacunaForTokenClassification(LacunaTaskModel):
    """A class for each token: labels [B, T] with -100 for tokens that do not count."""

    output_class = TokenClassifierOutput

    def __init__(self, config: LacunaConfig) -> None:
        super().__init__(config)
        self.build(config, per_token=True)
        self.classifier = LacunaClassifier(config.hidden_size, config.num_labels)
        self.post_init()

    def make_logits(self, outputs: ModelOutput, **inputs: Any) -> Tensor:
        return self.classifier(self.prepare(outputs.last_hidden_state))

    def make_loss(self, logits: Tensor, labels: Tensor, num_items: int | Tensor | None) -> Tensor:
        return cross_entropy(logits, labels, num_items=num_items, field="num_labels")


class LacunaForQuestionAnswering(LacunaTaskModel):
    """Start and end of the answer to a question, as a span of the text that follows it."""

    can_take_hints = True  # document_bounds

    def __init__(self, config: LacunaConfig) -> None:
        super().__init__(config)
        self.build(config, per_token=True)
        if config.question_aware:
            self.transform, self.spans = None, LacunaSpanHead(config)
        else:
            self.qa_outputs = LacunaClassifier(config.hidden_size, 2)
        if self.transform is None:
            self.dropout.p = 0.0
        self.post_init()

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        position_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        start_positions: Tensor | None = None,
        end_positions: Tensor | None = None,
        num_items_in_batch: int | Tensor | None = None,
        question_positions: Tensor | None = None,
        **kwargs: Any,
    ) -> QuestionAnsweringModelOutput | Seq2SeqQuestionAnsweringModelOutput:
        """Score every token as start and as end of the answer.

        Args:
            start_positions, end_positions: [B], token numbers; those outside the row are ignored.
            question_positions: [B, Q], with `question_aware`: tokens whose states ask; logits are then [B, Q, T].
                None: the first separator of each row, with which a question ends.
        """
        kwargs = {"use_cache": False, "inputs_embeds": inputs_embeds, **kwargs}
        outputs = self.model(input_ids, attention_mask, token_type_ids, position_ids, **kwargs)
        states = outputs.last_hidden_state
        if not self.config.question_aware:
            start_logits, end_logits = self.qa_outputs(self.prepare(states)).unbind(-1)
        elif question_positions is not None:
            start_logits, end_logits = self.spans(states, question_positions)
        elif input_ids is None:
            raise ValueError("with question_aware give input_ids or question_positions: where do questions end?")
        else:
            places = (input_ids == self.config.sep_token_id).int().argmax(dim=1, keepdim=True)
            start_logits, end_logits = (logits.squeeze(1) for logits in self.spans(states, places))
        loss = None
        if (start_positions is None) != (end_positions is None):
            raise ValueError("give both start_positions and end_positions, or neither")
        if start_positions is not None and end_positions is not None:
            loss = span_loss(start_logits, end_logits, start_positions, end_positions, num_items=num_items_in_batch)
        both = self.config.is_encoder_decoder
        kind = Seq2SeqQuestionAnsweringModelOutput if both else QuestionAnsweringModelOutput
        return kind(loss=loss, start_logits=start_logits, end_logits=end_logits, **carry(outputs))


class LacunaForMultipleChoice(LacunaTaskModel):
    """Which of several texts goes with the question? Each is scored in a row of its own.

    All inputs have one more dimension than elsewhere: [B, choices, T]. Logits are [B, choices], and labels [B] are the
    numbers of the right choices.
    """

    output_class = MultipleChoiceModelOutput

    def __init__(self, config: LacunaConfig) -> None:
        super().__init__(config)
        self.build(config)
        self.score = LacunaClassifier(config.hidden_size, 1)
        self.post_init()

    def as_rows(self, inputs: dict[str, Any]) -> dict[str, Any]:
        name, dimensions = ("input_ids", 3) if inputs["inputs_embeds"] is None else ("inputs_embeds", 4)
        given = inputs[name]
        if given is None or given.dim() != dimensions:
            shape = None if given is None else tuple(given.shape)
            raise ValueError(f"the input has the shape {shape}, and (questions, choices, tokens) is needed")
        return {name: value if value is None else value.flatten(0, 1) for name, value in inputs.items()}

    def make_logits(self, outputs: ModelOutput, **inputs: Any) -> Tensor:
        given = inputs["input_ids"] if inputs["inputs_embeds"] is None else inputs["inputs_embeds"]
        rows = self.as_rows({name: inputs[name] for name in ("input_ids", "attention_mask", "inputs_embeds")})
        pooled = self.pooled(outputs, rows["input_ids"], rows["attention_mask"])
        return self.score(self.prepare(pooled)).view(given.shape[:2])

    def make_loss(self, logits: Tensor, labels: Tensor, num_items: int | Tensor | None) -> Tensor:
        return cross_entropy(logits, labels, num_items=num_items, field="number of choices")
