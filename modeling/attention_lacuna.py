"""Attention in plain PyTorch: scores, weighted values, positions. The fast kernels are in kernels_lacuna.py.

Letters in shapes: B rows of a batch, T tokens of a row, S tokens that are seen, H heads, D head_dim.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from transformers import initialization as init
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS, dynamic_rope_update

from .configuration_lacuna import LacunaConfig


def compute_dtype(x: Tensor) -> torch.dtype:
    """The dtype in which a matrix product of `x` is computed here: that of autocast where it is on."""
    device = x.device.type
    return torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else x.dtype


def weigh_values(
    module: nn.Module, scores: Tensor, value: Tensor, attention_mask: Tensor | None, dropout: float
) -> tuple[Tensor, Tensor]:
    """softmax(scores + mask) V, the softmax in float32: scores [B, H, T, S] -> output [B, T, H, D] and weights."""
    if attention_mask is not None and attention_mask.dtype == torch.bool:
        scores = scores.masked_fill(~attention_mask, torch.finfo(scores.dtype).min)
    elif attention_mask is not None:
        scores = scores.float() + attention_mask  # in float16 a score below zero and its least number give -inf
    weights = nn.functional.softmax(scores, dim=-1, dtype=torch.float32).to(value.dtype)
    weights = nn.functional.dropout(weights, p=dropout, training=module.training)
    return torch.matmul(weights, value).transpose(1, 2).contiguous(), weights


def share_heads(states: Tensor, groups: int) -> Tensor:
    """Key or value heads, each repeated for the query heads that share it: [B, H / groups, S, D] -> [B, H, S, D]."""
    return states.repeat_interleave(groups, dim=1) if groups > 1 else states


def eager_attention_forward(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float,
    dropout: float = 0.0,
    **kwargs: Any,
) -> tuple[Tensor, Tensor]:
    """softmax(scaling * Q K^T) V (https://arxiv.org/abs/1706.03762, equation 1).

    Args:
        query, key, value: [B, H, T, D], and twice [B, H / groups, S, D].
        attention_mask: added to the scores, or boolean with True for what is seen; [B, 1, T, S].

    Returns: Output [B, T, H, D] and weights [B, H, T, S].
    """
    groups = module.num_key_value_groups
    scores = torch.matmul(query, share_heads(key, groups).transpose(2, 3)) * scaling
    return weigh_values(module, scores, share_heads(value, groups), attention_mask, dropout)


# ----------------------------------------------------------------------------------------------------------- positions


def sinusoidal_positions(position_ids: Tensor, *, size: int) -> Tensor:
    """Sines and cosines in turn: [B, T] -> float32 [B, T, size] (https://arxiv.org/abs/1706.03762, section 3.5)."""
    exponents = torch.arange(0, size, 2, dtype=torch.float32, device=position_ids.device) / size
    angles = position_ids[..., None].float() / 10_000.0**exponents
    return torch.stack((angles.sin(), angles.cos()), dim=-1).flatten(-2)[..., :size]


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
            frequencies, scaling = self.compute_frequencies(layer_type)
            self.register_buffer(self.named(layer_type, "inv_freq"), frequencies, persistent=False)
            self.register_buffer(self.named(layer_type, "original_inv_freq"), frequencies.clone(), persistent=False)
            setattr(self, self.named(layer_type, "attention_scaling"), scaling)

    def start_weights(self) -> None:
        """Recompute the buffers, which no checkpoint holds."""
        for layer_type in self.layer_types:
            frequencies, _ = self.compute_frequencies(layer_type)
            init.copy_(getattr(self, self.named(layer_type, "inv_freq")), frequencies)
            init.copy_(getattr(self, self.named(layer_type, "original_inv_freq")), frequencies)

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
        the same model saved and loaded, whose frequencies are recomputed.
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

        The angles are float32: one of 500 radians rounded to bfloat16 is off by a whole turn. Cosines and sines have
        the dtype in which the states are computed. The sines of the first half are negative: see `apply_rotary`.
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
    is_known = position_ids.device.type == "cpu" and type(position_ids) is Tensor and not torch.compiler.is_compiling()
    if position_ids.shape[0] == 1 or not is_known:
        return None
    first, last = (int(bound) for bound in torch.aminmax(position_ids))
    return torch.arange(last + 1) if first >= 0 and 4 * (last + 1) <= position_ids.numel() else None


def apply_rotary(states: Tensor, cosines: Tensor, sines: Tensor) -> Tensor:
    """Turn each pair (i, i + R/2) of the first R dimensions of `states` [B, H, T, D] by its angle, [B or 1, T, R].

    A pair (a, b) becomes (a cos - b sin, b cos + a sin). With the sign of the first half inside `sines` this is the
    state times cosines plus the state rolled by R/2 times sines: two thirds of the time of the usual negate and
    concatenate on a CPU, forward and backward.
    """
    size = cosines.shape[-1]
    cosines, sines = (table.to(states.dtype).unsqueeze(1) for table in (cosines, sines))
    turned = states[..., :size]
    swapped = turned.unflatten(-1, (2, size // 2)).flip(-2).flatten(-2)
    turned = torch.addcmul(turned * cosines, swapped, sines)
    return turned if size == states.shape[-1] else torch.cat((turned, states[..., size:]), dim=-1)
