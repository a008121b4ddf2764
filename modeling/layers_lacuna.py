"""The parts of a Lacuna model, in the order in which data flows through them.

Norms, embeddings with positions, rotary positions, attention, feed-forward, block. Letters in shapes: B rows of a
batch, T tokens of a row, S tokens that are seen, C hidden_size, H heads, D head_dim.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from transformers.activations import ACT2FN
from transformers.cache_utils import Cache, DynamicLayer, EncoderDecoderCache
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS, dynamic_rope_update

from .attention_lacuna import SCORES, attention_function, compute_dtype
from .checks_lacuna import check_range, refuse_outside
from .configuration_lacuna import LacunaConfig

# -------------------------------------------------------------------------------------------------------------- norms


class LacunaRMSNorm(nn.Module):
    """Root-mean-square norm (https://arxiv.org/abs/1910.07467, equation 4), computed in float32."""

    def __init__(self, size: int, *, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, hidden_states: Tensor) -> Tensor:
        # The fused function takes two thirds of the time of its three written-out steps on a CPU, with equal results.
        normed = nn.functional.rms_norm(hidden_states.float(), self.weight.shape, self.weight.float(), self.eps)
        return normed.to(hidden_states.dtype)

    def extra_repr(self) -> str:
        return f"{tuple(self.weight.shape)}, eps={self.eps}"


def build_norm(config: LacunaConfig, *, size: int | None = None) -> nn.Module:
    """The norm that the configuration names, over the last dimension of `size` (default: hidden_size)."""
    size = config.hidden_size if size is None else size
    if config.norm_type == "rms_norm":
        return LacunaRMSNorm(size, eps=config.norm_eps)
    return nn.LayerNorm(size, eps=config.norm_eps, bias=config.norm_bias)


# ------------------------------------------------------------------------------------------- projections by their role


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


# --------------------------------------------------------------------------------------------------------- embeddings


def look_up(table: nn.Embedding, ids: Tensor, *, name: str, field: str, offset: int = 0) -> Tensor:
    """Rows of `table` for `ids` [...], counted from row `offset`; numbers outside it are refused by name.

    Raises:
        ValueError: with the number, the name of the argument and the field of the configuration that limits it.
    """
    limit = table.num_embeddings - offset
    check_range(ids, name=name, limit=limit, field=field)
    try:
        # Rows before position 0 would answer for negative positions, so the table is cut there.
        return nn.functional.embedding(ids, table.weight[offset:]) if offset else table(ids)
    except IndexError:
        refuse_outside(ids, name=name, limit=limit, field=field)
        raise


def sinusoidal_positions(position_ids: Tensor, *, size: int) -> Tensor:
    """Sines and cosines in turn: [B, T] -> float32 [B, T, size] (https://arxiv.org/abs/1706.03762, section 3.5)."""
    exponents = torch.arange(0, size, 2, dtype=torch.float32, device=position_ids.device) / size
    angles = position_ids[..., None].float() / 10_000.0**exponents
    return torch.stack((angles.sin(), angles.cos()), dim=-1).flatten(-2)[..., :size]


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

    Args:
        is_second: whether these belong to the decoder of an encoder-decoder, which has no segments.
    """

    def __init__(self, config: LacunaConfig, *, is_second: bool = False) -> None:
        super().__init__()
        self.prefix = "decoder_" if is_second else ""  # of the names of its arguments
        self.embed_tokens = LacunaTokenEmbedding(config)
        self.position_type = config.position_type
        self.position_offset = config.position_offset
        self.embed_positions = (
            nn.Embedding(config.max_position_embeddings + config.position_offset, config.hidden_size)
            if config.position_type == "learned"
            else None
        )
        self.embed_segments = (
            nn.Embedding(config.type_vocab_size, config.hidden_size)
            if config.type_vocab_size and not is_second
            else None
        )
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
        """Give each token its vector.

        Args:
            input_ids: [B, T]; or `inputs_embeds` [B, T, C] in their place.
            position_ids: [B or 1, T].
            token_type_ids: [B, T]; None: segment 0.

        Returns:
            Hidden states [B, T, C].

        Raises:
            ValueError: when a number is outside its table (on a GPU: in the first batch of each shape).
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
            hidden_states = hidden_states + look_up(
                self.embed_positions,
                position_ids,
                name=f"{self.prefix}position_ids",
                field="max_position_embeddings",
                offset=self.position_offset,
            )
        elif self.position_type == "sinusoidal":
            positions = sinusoidal_positions(position_ids, size=hidden_states.shape[-1])
            hidden_states = hidden_states + positions.to(hidden_states.dtype)
        if self.norm is not None:
            hidden_states = self.norm(hidden_states)
        return self.dropout(hidden_states)


# ---------------------------------------------------------------------------------------------------- rotary positions


class LacunaRotaryEmbedding(nn.Module):
    """Angles of rotary positions (https://arxiv.org/abs/2104.09864), one set for all layers or one per layer type.

    The names of buffers and attributes are those that `dynamic_rope_update` of transformers looks for: `inv_freq`, or
    `<layer type>_inv_freq` when `config.rope_parameters` has an entry per layer type.
    """

    def __init__(self, config: LacunaConfig) -> None:
        super().__init__()
        self.config = config
        self.max_seq_len_cached = config.max_position_embeddings
        self.original_max_seq_len = config.max_position_embeddings
        per_layer_type = "rope_type" not in config.rope_parameters
        self.layer_types: list[str | None] = [*sorted(config.rope_parameters)] if per_layer_type else [None]
        types = {layer_type: self.parameters_of(layer_type)["rope_type"] for layer_type in self.layer_types}
        self.rope_type: Any = types.get(None, types)
        for layer_type in self.layer_types:
            inverse_frequencies, scaling = self.compute_frequencies(layer_type)
            self.register_buffer(self.named(layer_type, "inv_freq"), inverse_frequencies, persistent=False)
            self.register_buffer(
                self.named(layer_type, "original_inv_freq"), inverse_frequencies.clone(), persistent=False
            )
            setattr(self, self.named(layer_type, "attention_scaling"), scaling)

    @staticmethod
    def named(layer_type: str | None, name: str) -> str:
        return name if layer_type is None else f"{layer_type}_{name}"

    def parameters_of(self, layer_type: str | None) -> dict[str, Any]:
        parameters = self.config.rope_parameters
        return parameters if layer_type is None else parameters[layer_type]

    @staticmethod
    def compute_default_rope_parameters(
        config: LacunaConfig, device: torch.device | None = None, layer_type: str | None = None, **kwargs: Any
    ) -> tuple[Tensor, float]:
        """Inverse frequencies theta^(-2i/R), float32 [R / 2], and the factor 1 (other rope types scale the angles).

        R is the number of turned dimensions: all D of a head, or a part (`partial_rotary_factor`).
        """
        parameters = config.rope_parameters if layer_type is None else config.rope_parameters[layer_type]
        size = int(config.head_dim * parameters.get("partial_rotary_factor", 1.0))
        exponents = torch.arange(0, size, 2, dtype=torch.float, device=device) / size
        return 1.0 / (parameters["rope_theta"] ** exponents), 1.0

    def compute_frequencies(self, layer_type: str | None) -> tuple[Tensor, float]:
        rope_type = self.parameters_of(layer_type)["rope_type"]
        if rope_type == "default":
            return self.compute_default_rope_parameters(self.config, layer_type=layer_type)
        return ROPE_INIT_FUNCTIONS[rope_type](self.config, None, layer_type=layer_type)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> LacunaRotaryEmbedding:
        """Follow the model to another device, but stay in float32 when the model is cast.

        Rounded to bfloat16 the frequencies are wrong in the third digit, and a model that was cast would differ from
        the same model saved and loaded, whose frequencies are computed anew.
        """
        before = dict(self._buffers)
        super()._apply(fn, recurse)
        for name, buffer in before.items():
            after = self._buffers[name]
            if buffer is not None and after is not None and after.dtype != buffer.dtype:
                self._buffers[name] = buffer.to(after.device)
        return self

    @torch.no_grad()
    @dynamic_rope_update
    def forward(self, x: Tensor, position_ids: Tensor, layer_type: str | None = None) -> tuple[Tensor, Tensor]:
        """`position_ids` [B or 1, T] -> cosines and sines [B or 1, T, R], R the number of turned dimensions of a head.

        The angles are computed in float32, since bfloat16 has 8 bits of mantissa and an angle of 500 radians rounded
        to it is off by a whole turn. Cosines and sines are then rounded to the dtype in which the states are
        computed. The sines of the first half are negative: see `apply_rotary`.
        """
        inverse_frequencies = getattr(self, self.named(layer_type, "inv_freq")).to(x.device)
        scaling = getattr(self, self.named(layer_type, "attention_scaling"))
        distinct = distinct_positions(position_ids)
        angles = (position_ids if distinct is None else distinct)[..., None].float() * inverse_frequencies.float()
        angles = torch.cat((-angles, angles), dim=-1)
        dtype = compute_dtype(x)
        cosines, sines = (angles.cos() * scaling).to(dtype), (angles.sin() * scaling).to(dtype)
        return (cosines, sines) if distinct is None else (cosines[position_ids], sines[position_ids])


def distinct_positions(position_ids: Tensor) -> Tensor | None:
    """0, 1, 2, ... to the last of `position_ids`, if that is far fewer numbers: in packed rows, each has many copies.

    A CPU takes a quarter of the time for their sines and cosines. A GPU would have to be waited for to know the last.
    """
    has_numbers = (
        position_ids.device.type == "cpu" and type(position_ids) is Tensor and not torch.compiler.is_compiling()
    )
    if position_ids.shape[0] == 1 or not has_numbers:
        return None
    first, last = (int(bound) for bound in torch.aminmax(position_ids))
    return torch.arange(last + 1) if first >= 0 and 4 * (last + 1) <= position_ids.numel() else None


def apply_rotary(states: Tensor, cosines: Tensor, sines: Tensor) -> Tensor:
    """Turn each pair (i, i + R/2) of the first R dimensions of `states` [B, H, T, D] by its angle.

    A pair (a, b) becomes (a cos - b sin, b cos + a sin). With the sign of the first half inside `sines` this is the
    state times cosines plus the state rolled by R/2 times sines: two thirds of the time of the usual negate and
    concatenate on a CPU, forward and backward.

    Args:
        cosines, sines: [B or 1, T, R], with R = D, or less where only a part of a head is turned.
    """
    size = cosines.shape[-1]
    cosines, sines = (table.to(states.dtype).unsqueeze(1) for table in (cosines, sines))
    turned = states[..., :size]
    swapped = turned.unflatten(-1, (2, size // 2)).flip(-2).flatten(-2)
    turned = torch.addcmul(turned * cosines, swapped, sines)
    return turned if size == states.shape[-1] else torch.cat((turned, states[..., size:]), dim=-1)


# ---------------------------------------------------------------------------------------------------------- attention


class LacunaAttention(nn.Module):
    """Attention with grouped key-value heads (https://arxiv.org/abs/2305.13245) and optional norms on both.

    Args:
        stack: `"encoder"` or `"decoder"`, where the layer stands.
        is_cross: whether keys and values come from the states of the encoder.
    """

    def __init__(self, config: LacunaConfig, layer_idx: int, *, stack: str, is_cross: bool = False) -> None:
        super().__init__()
        self.config = config
        self.layer_idx = layer_idx
        self.head_dim = config.head_dim
        self.num_key_value_groups = config.num_attention_heads // config.num_key_value_heads
        self.scaling = config.head_dim**-0.5
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
        self.score = SCORES[config.attention_score](config) if config.attention_score in SCORES else None
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
            past_key_values: keys and values of the tokens before.
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


# ------------------------------------------------------------------------------------------------------- feed-forward


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


# -------------------------------------------------------------------------------------------------------------- block


class LacunaLayer(GradientCheckpointingLayer):
    """Attention, in a decoder of an encoder-decoder cross-attention, then feed-forward, each added to the stream."""

    def __init__(self, config: LacunaConfig, layer_idx: int, *, stack: str) -> None:
        super().__init__()
        self.layer_type = config.layer_types_of(stack)[layer_idx]
        self.norm_first = config.norm_placement == "pre"
        normalised_input = self.norm_first and config.embedding_norm and layer_idx == 0
        self.attention_norm = nn.Identity() if normalised_input else build_norm(config)
        self.attention = LacunaAttention(config, layer_idx, stack=stack)
        has_cross_attention = config.is_encoder_decoder and stack == "decoder"
        self.cross_attention_norm = build_norm(config) if has_cross_attention else None
        self.cross_attention = (
            LacunaAttention(config, layer_idx, stack=stack, is_cross=True) if has_cross_attention else None
        )
        self.mlp_norm = build_norm(config)
        self.mlp = LacunaMLP(config)
        self.dropout = nn.Dropout(config.hidden_dropout)

    def forward(
        self,
        hidden_states: Tensor,
        encoder_hidden_states: Tensor | None = None,
        attention_mask: Any = None,
        position_embeddings: tuple[Tensor, Tensor] | None = None,
        past_key_values: Cache | None = None,
        encoder_attention_mask: Any = None,
        packing: dict[str, Any] | None = None,
        cross_packing: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> Tensor:
        """Hidden states [B, T, C] -> [B, T, C].

        Args:
            hidden_states, encoder_hidden_states: to be given by position, for re-entrant checkpointing detaches those.
            encoder_attention_mask: the mask of cross-attention; the other arguments are those of `LacunaAttention`.
            packing, cross_packing: bounds of documents in packed rows, for attention functions that take them.
        """

        def attend(states: Tensor) -> Tensor:
            return self.attention(
                states,
                attention_mask=attention_mask,
                position_embeddings=position_embeddings,
                past_key_values=past_key_values,
                **(packing or {}),
                **kwargs,
            )[0]

        def attend_across(states: Tensor) -> Tensor:
            assert self.cross_attention is not None
            return self.cross_attention(
                states,
                attention_mask=encoder_attention_mask,
                past_key_values=past_key_values,
                encoder_hidden_states=encoder_hidden_states,
                **(cross_packing or {}),
                **kwargs,
            )[0]

        hidden_states = self._add(hidden_states, attend, self.attention_norm)
        if self.cross_attention is not None:
            hidden_states = self._add(hidden_states, attend_across, self.cross_attention_norm)
        return self._add(hidden_states, self.mlp, self.mlp_norm)

    def _add(self, hidden_states: Tensor, sub_layer: Callable[[Tensor], Tensor], norm: Any) -> Tensor:
        """The residual stream plus what the sub-layer makes of it, normalised before or after."""
        if self.norm_first:
            return hidden_states + self.dropout(sub_layer(norm(hidden_states)))
        return norm(hidden_states + self.dropout(sub_layer(hidden_states)))


__all__ = [
    "SCORES",
    "LacunaAttention",
    "LacunaClassifier",
    "LacunaEmbeddings",
    "LacunaHeadProjection",
    "LacunaLayer",
    "LacunaMLP",
    "LacunaOutputProjection",
    "LacunaRMSNorm",
    "LacunaRotaryEmbedding",
    "build_norm",
    "is_plain_linear",
    "look_up",
]
