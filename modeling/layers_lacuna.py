"""The parts of a Lacuna model: norms, embeddings, attention, feed-forward, block.

Letters in shapes: B rows of a batch, T tokens of a row, S tokens that are seen, C hidden_size, H heads, D head_dim.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn
from transformers.activations import ACT2FN
from transformers.cache_utils import Cache, DynamicLayer, EncoderDecoderCache
from transformers.modeling_layers import GradientCheckpointingLayer

from .attention_lacuna import apply_rotary, compute_dtype, sinusoidal_positions
from .checks_lacuna import check_range, refuse_outside
from .configuration_lacuna import LacunaConfig
from .kernels_lacuna import attention_function


class LacunaRMSNorm(nn.RMSNorm):
    """Root-mean-square norm (https://arxiv.org/abs/1910.07467, equation 4), computed in float32."""

    def forward(self, hidden_states: Tensor) -> Tensor:
        # The fused function takes two thirds of the time of its three written-out steps on a CPU, with equal results.
        normed = nn.functional.rms_norm(hidden_states.float(), self.weight.shape, self.weight.float(), self.eps)
        return normed.to(hidden_states.dtype)


def build_norm(config: LacunaConfig, *, size: int | None = None) -> nn.Module:
    """The norm that the configuration names, over the last dimension of `size` (default: hidden_size)."""
    size = config.hidden_size if size is None else size
    if config.norm_type == "rms_norm":
        return LacunaRMSNorm(size, eps=config.norm_eps)
    return nn.LayerNorm(size, eps=config.norm_eps, bias=config.norm_bias)


def is_plain_linear(module: nn.Module) -> bool:
    """Whether a module is `states @ weight.T + bias` and nothing more: no adapter, hook, shard or quantised weight."""
    return (
        type(module) is nn.Linear
        and type(module.weight) is nn.Parameter
        and "forward" not in vars(module)
        and not (module._forward_hooks or module._forward_pre_hooks)
        and not (module._backward_hooks or module._backward_pre_hooks)
    )


class LacunaOutputProjection(nn.Linear):
    """A projection whose result is added to the residual stream; it starts smaller the deeper the model is."""


class LacunaHeadProjection(nn.Linear):
    """The dense layer of the prediction head."""


class LacunaClassifier(nn.Linear):
    """The last projection of a task head."""


def look_up(table: nn.Embedding, ids: Tensor, *, name: str, field: str, offset: int = 0) -> Tensor:
    """Rows of `table` for `ids` [...], counted from row `offset`; ids outside it are refused by `name` and `field`."""
    limit = table.weight.shape[0] - offset  # adapters wrap the module and pass its weight on
    check_range(ids, name=name, limit=limit, field=field)
    try:
        # Rows before position 0 would answer for negative positions, so the table is cut there.
        return nn.functional.embedding(ids, table.weight[offset:]) if offset else table(ids)
    except IndexError:
        refuse_outside(ids, name=name, limit=limit, field=field)
        raise


class LacunaTokenEmbedding(nn.Embedding):
    """A table of token embeddings whose rows leave it multiplied by `scale`."""

    def __init__(self, config: LacunaConfig) -> None:
        padding_idx = config.pad_token_id if config.freeze_padding else None
        super().__init__(config.vocab_size, config.hidden_size, padding_idx=padding_idx)
        self.scale = config.hidden_size**0.5 if config.scale_embedding else 1.0

    def forward(self, input: Tensor) -> Tensor:
        embeddings = super().forward(input)
        return embeddings if self.scale == 1.0 else embeddings * self.scale


class LacunaEmbeddings(nn.Module):
    """Tokens, plus learned or sinusoidal positions and segments as configured, normalised if it says so.

    `is_second`: whether these belong to the decoder of an encoder-decoder, which has no segments.
    """

    def __init__(self, config: LacunaConfig, *, is_second: bool = False) -> None:
        super().__init__()
        self.prefix = "decoder_" if is_second else ""  # of the names of its arguments
        self.embed_tokens = LacunaTokenEmbedding(config)
        self.position_type = config.position_type
        self.position_offset = config.position_offset
        positions = config.max_position_embeddings + config.position_offset if config.position_type == "learned" else 0
        segments = 0 if is_second else config.type_vocab_size
        self.embed_positions = nn.Embedding(positions, config.hidden_size) if positions else None
        self.embed_segments = nn.Embedding(segments, config.hidden_size) if segments else None
        self.norm = build_norm(config) if config.embedding_norm else None
        self.dropout = nn.Dropout(config.embedding_dropout)

    def forward(
        self,
        input_ids: Tensor | None,
        *,
        position_ids: Tensor,
        token_type_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
    ) -> Tensor:
        """Hidden states [B, T, C] of `input_ids` [B, T] or of `inputs_embeds` [B, T, C].

        `position_ids`: [B or 1, T]; `token_type_ids`: [B, T], None: segment 0. Raises ValueError: when a number is
        outside its table (on a GPU: in the first batch of each shape).
        """
        hidden_states = inputs_embeds
        if hidden_states is None:
            hidden_states = look_up(self.embed_tokens, input_ids, name=f"{self.prefix}input_ids", field="vocab_size")
        if self.embed_segments is not None:
            if token_type_ids is None:  # Segment 0, so that the table takes part (and gets a gradient) in every step.
                token_type_ids = position_ids.new_zeros(hidden_states.shape[:2])
            hidden_states = hidden_states + look_up(
                self.embed_segments, token_type_ids, name="token_type_ids", field="type_vocab_size"
            )
        if self.embed_positions is not None:
            names = {"name": f"{self.prefix}position_ids", "field": "max_position_embeddings"}
            positions = look_up(self.embed_positions, position_ids, offset=self.position_offset, **names)
            hidden_states = hidden_states + positions
        elif self.position_type == "sinusoidal":
            positions = sinusoidal_positions(position_ids, size=hidden_states.shape[-1])
            hidden_states = hidden_states + positions.to(hidden_states.dtype)
        if self.norm is not None:
            hidden_states = self.norm(hidden_states)
        return self.dropout(hidden_states)


class LacunaAttention(nn.Module):
    """Attention with grouped key-value heads (https://arxiv.org/abs/2305.13245) and optional norms on both.

    `stack`: `"encoder"` or `"decoder"`, where it stands; `is_cross`: keys and values come from the encoder's states.
    """

    def __init__(self, config: LacunaConfig, layer_idx: int, *, stack: str, is_cross: bool = False) -> None:
        super().__init__()
        self.config = config
        self.layer_idx = layer_idx
        self.head_dim = config.head_dim
        self.num_key_value_groups = config.num_attention_heads // config.num_key_value_heads
        self.scaling = config.head_dim**-0.5 if config.attention_score == "scaled_dot_product" else 1.0
        self.attention_dropout = config.attention_dropout
        self.is_causal = stack == "decoder" and not is_cross
        self.is_cross = is_cross
        self.sliding_window: int | None = None
        if config.layer_types_of(stack)[layer_idx] == "sliding_attention" and not is_cross:
            # Flash kernels see `sliding_window - 1` tokens on a side: right for a decoder, one short for an encoder.
            self.sliding_window = config.sliding_window + (0 if self.is_causal else 1)

        query_size = config.num_attention_heads * config.head_dim
        key_value_size = config.num_key_value_heads * config.head_dim
        self.q_proj = nn.Linear(config.hidden_size, query_size, bias=config.attention_bias)
        self.k_proj = nn.Linear(config.hidden_size, key_value_size, bias=config.attention_bias)
        self.v_proj = nn.Linear(config.hidden_size, key_value_size, bias=config.attention_bias)
        self.q_norm = build_norm(config, size=config.head_dim) if config.qk_norm else None
        self.k_norm = build_norm(config, size=config.head_dim) if config.qk_norm else None
        self.o_proj = LacunaOutputProjection(query_size, config.hidden_size, bias=config.attention_bias)

    def forward(
        self,
        hidden_states: Tensor,
        attention_mask: Any = None,
        position_embeddings: tuple[Tensor, Tensor] | None = None,
        past_key_values: Cache | None = None,
        encoder_hidden_states: Tensor | None = None,
        **kwargs: Any,
    ) -> tuple[Tensor, Tensor | None]:
        """Hidden states [B, T, C] -> output [B, T, C] and, from plain implementations, weights [B, H, T, S].

        Args:
            attention_mask: as the attention function takes it.
            position_embeddings: cosines and sines, see `apply_rotary`.
            encoder_hidden_states: [B, S, C], what cross-attention sees.
        """
        batch_size, length = hidden_states.shape[:-1]
        hidden_states = hidden_states.to(compute_dtype(hidden_states))  # once; autocast would do it three times
        query = self._split(self.q_proj(hidden_states), self.q_norm)
        if self.is_cross:
            key, value = self._look_at_encoder(encoder_hidden_states, past_key_values)
        else:
            key, value = self._project_keys_and_values(hidden_states)
            if position_embeddings is not None:
                query, key = apply_rotary(query, *position_embeddings), apply_rotary(key, *position_embeddings)
            if past_key_values is not None:
                own = getattr(past_key_values, "self_attention_cache", past_key_values)
                key, value = own.update(key, value, self.layer_idx)

        output, weights = attention_function(self.config._attn_implementation)(
            self,
            query,
            key,
            value,
            attention_mask,
            dropout=self.attention_dropout if self.training else 0.0,
            scaling=self.scaling,
            sliding_window=self.sliding_window,
            **kwargs,
        )
        return self.o_proj(output.reshape(batch_size, length, -1)), weights

    def _split(self, states: Tensor, norm: nn.Module | None) -> Tensor:
        """[B, T, C] -> normed heads [B, H, T, D]."""
        states = states.unflatten(-1, (-1, self.head_dim))
        return (states if norm is None else norm(states)).transpose(1, 2)

    def _project_keys_and_values(self, states: Tensor) -> tuple[Tensor, Tensor]:
        """[B, S, C] -> keys and values [B, H / groups, S, D]."""
        return self._split(self.k_proj(states), self.k_norm), self._split(self.v_proj(states), None)

    def _look_at_encoder(self, states: Any, cache: Cache | None) -> tuple[Tensor, Tensor]:
        """Keys and values of the encoder's states: computed for the first token, kept in the cache from then on."""
        if not isinstance(cache, EncoderDecoderCache):
            return self._project_keys_and_values(states.to(compute_dtype(states)))
        if not cache.is_updated.get(self.layer_idx):
            key, value = self._project_keys_and_values(states.to(compute_dtype(states)))
            layers = cache.cross_attention_cache.layers
            # `generate` gives cross-attention the windows of the decoder, which would forget the start of the text.
            if self.layer_idx < len(layers) and layers[self.layer_idx].is_sliding:
                layers[self.layer_idx] = DynamicLayer()
            cache.is_updated[self.layer_idx] = True
            return cache.cross_attention_cache.update(key, value, self.layer_idx)
        layer = cache.cross_attention_cache.layers[self.layer_idx]
        return layer.keys, layer.values


class LacunaMLP(nn.Module):
    """`down(act(up(x)))`, or with a gate `down(act(gate(x)) * up(x))` (https://arxiv.org/abs/2002.05202)."""

    def __init__(self, config: LacunaConfig) -> None:
        super().__init__()
        sizes = (config.hidden_size, config.intermediate_size)
        self.gate_proj = nn.Linear(*sizes, bias=config.mlp_bias) if config.gated_mlp else None
        self.up_proj = nn.Linear(*sizes, bias=config.mlp_bias)
        self.activation = ACT2FN[config.hidden_act]
        self.dropout = nn.Dropout(config.activation_dropout)
        self.down_proj = LacunaOutputProjection(config.intermediate_size, config.hidden_size, bias=config.mlp_bias)

    def forward(self, hidden_states: Tensor) -> Tensor:
        hidden_states = hidden_states.to(compute_dtype(hidden_states))  # once; autocast would do it per projection
        if self.gate_proj is None:
            inner = self.activation(self.up_proj(hidden_states))
        else:
            inner = self.activation(self.gate_proj(hidden_states)) * self.up_proj(hidden_states)
        return self.down_proj(self.dropout(inner))


class LacunaLayer(GradientCheckpointingLayer):
    """Attention, in a decoder of an encoder-decoder cross-attention, then feed-forward, each added to the stream."""

    def __init__(self, config: LacunaConfig, layer_idx: int, *, stack: str) -> None:
        super().__init__()
        self.is_last = layer_idx == len(config.layer_types_of(stack)) - 1
        self.norm_first = config.norm_placement == "pre"
        normalised_input = self.norm_first and config.embedding_norm and layer_idx == 0
        self.attention_norm = nn.Identity() if normalised_input else build_norm(config)
        self.attention = LacunaAttention(config, layer_idx, stack=stack)
        has_cross = config.is_encoder_decoder and stack == "decoder"
        self.cross_attention_norm = build_norm(config) if has_cross else None
        self.cross_attention = LacunaAttention(config, layer_idx, stack=stack, is_cross=True) if has_cross else None
        self.mlp_norm = build_norm(config)
        self.mlp = LacunaMLP(config)
        self.dropout = nn.Dropout(config.hidden_dropout)

    def forward(
        self,
        hidden_states: Tensor,
        encoder_hidden_states: Tensor | None = None,
        attention_mask: Any = None,
        position_embeddings: tuple[Tensor, Tensor] | None = None,
        encoder_attention_mask: Any = None,
        packing: dict[str, Any] | None = None,
        cross_packing: dict[str, Any] | None = None,
        kept: Tensor | None = None,
        **kwargs: Any,
    ) -> Tensor:
        """Hidden states [B, T, C] -> [B, T, C].

        Args:
            hidden_states, encoder_hidden_states: to be given by position, for re-entrant checkpointing detaches those.
            encoder_attention_mask: the mask of cross-attention; the other arguments are those of `LacunaAttention`.
            packing, cross_packing: bounds of documents in packed rows, for attention functions that take them.
            kept: [N], where in the flattened rows the tokens are that the last layer goes on with behind attention:
                it returns [N, C].
        """

        def attend(states: Tensor) -> Tensor:
            options = {**kwargs, **(packing or {}), "position_embeddings": position_embeddings}
            return self.attention(states, attention_mask=attention_mask, **options)[0]

        def attend_across(states: Tensor) -> Tensor:
            assert self.cross_attention is not None
            options = {**kwargs, **(cross_packing or {}), "encoder_hidden_states": encoder_hidden_states}
            return self.cross_attention(states, attention_mask=encoder_attention_mask, **options)[0]

        hidden_states = self._add(hidden_states, attend, self.attention_norm)
        if self.cross_attention is not None:
            hidden_states = self._add(hidden_states, attend_across, self.cross_attention_norm)
        if kept is not None and self.is_last:
            hidden_states = hidden_states.flatten(0, 1)[kept]
        return self._add(hidden_states, self.mlp, self.mlp_norm)

    def _add(self, hidden_states: Tensor, sub_layer: Callable[[Tensor], Tensor], norm: Any) -> Tensor:
        """The residual stream plus what the sub-layer makes of it, normalised before or after."""
        if self.norm_first:
            return hidden_states + self.dropout(sub_layer(norm(hidden_states)))
        return norm(hidden_states + self.dropout(sub_layer(hidden_states)))
