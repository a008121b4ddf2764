"""How scores are made and values weighed: plainly, by the textbook's other scores, and by each device's fast ways.

Every fast way computes what the plain one does, to the rounding of its dtype. Letters in shapes: B rows of a batch,
T tokens of a row, S tokens that are seen, C hidden_size, H heads, D head_dim.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention.flex_attention import BlockMask
from torch.utils._triton import has_triton
from transformers.integrations.flex_attention import flex_attention_forward
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import AttentionMaskInterface, eager_mask
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS, AttentionInterface

from .configuration_lacuna import LacunaConfig
from .grouping_lacuna import DocumentGroups, attend_in_groups

try:
    from torch.nn.attention.varlen import varlen_attn
except ImportError:  # before torch 2.10
    varlen_attn = None

_DENSE_SCORES = 512 * 512
"""Scores of a row and head up to which `DenseAttention` trains faster than torch's kernel, in bf16 on a CPU."""

UNGROUPED = 512
"""Tokens of a row up to which all scores of packed rows are computed on a CPU: to move states would take as long."""


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
    """softmax(Q K^T / sqrt(D)) V (https://arxiv.org/abs/1706.03762, equation 1), returning the weights as well.

    Args:
        query: [B, H, T, D].
        key, value: [B, H / groups, S, D].
        attention_mask: added to the scores, or boolean with True for what is seen; [B, 1, T, S].

    Returns:
        Output [B, T, H, D] and weights [B, H, T, S].
    """
    groups = module.num_key_value_groups
    scores = torch.matmul(query, share_heads(key, groups).transpose(2, 3)) * scaling
    return weigh_values(module, scores, share_heads(value, groups), attention_mask, dropout)


class DotProductScore(nn.Module):
    """q . k, not scaled (https://arxiv.org/abs/1508.04025, equation 8, `dot`)."""

    def __init__(self, config: LacunaConfig) -> None:
        super().__init__()

    def forward(self, query: Tensor, key: Tensor) -> Tensor:
        """Queries [B, H, T, D] and keys [B, H, S, D] -> scores [B, H, T, S]."""
        return torch.matmul(query, key.transpose(2, 3))


class MultiplicativeScore(nn.Module):
    """q . W k with a matrix per head (https://arxiv.org/abs/1508.04025, equation 8, `general`)."""

    def __init__(self, config: LacunaConfig) -> None:
        super().__init__()
        heads, size = config.num_attention_heads, config.head_dim
        self.weight = nn.Parameter(torch.empty(heads, size, size))

    def forward(self, query: Tensor, key: Tensor) -> Tensor:
        """Queries [B, H, T, D] and keys [B, H, S, D] -> scores [B, H, T, S]."""
        return torch.matmul(torch.matmul(query, self.weight), key.transpose(2, 3))


class AdditiveScore(nn.Module):
    """v . tanh(q + k) with a vector per head (https://arxiv.org/abs/1409.0473, appendix A.1.2).

    The matrices W and U of the paper are the projections that made q and k.
    """

    def __init__(self, config: LacunaConfig) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(config.num_attention_heads, config.head_dim))

    def forward(self, query: Tensor, key: Tensor) -> Tensor:
        """Queries [B, H, T, D] and keys [B, H, S, D] -> scores [B, H, T, S]; holds [B, H, T, S, D] in between."""
        compared = torch.tanh(query.unsqueeze(3) + key.unsqueeze(2))
        return torch.einsum("bhtsd,hd->bhts", compared, self.weight.to(compared.dtype))


SCORES: dict[str, Callable[[LacunaConfig], nn.Module]] = {
    "dot_product": DotProductScore,
    "multiplicative": MultiplicativeScore,
    "additive": AdditiveScore,
}


def scored_attention_forward(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float,
    dropout: float = 0.0,
    **kwargs: Any,
) -> tuple[Tensor, Tensor]:
    """softmax(score(Q, K)) V with the score that the module owns; arguments as in `eager_attention_forward`."""
    groups = module.num_key_value_groups
    scores = module.score(query, share_heads(key, groups))
    return weigh_values(module, scores, share_heads(value, groups), attention_mask, dropout)


for _name in SCORES:  # Both registers: an attention function without a mask function of its name would get no mask.
    AttentionInterface.register(_name, scored_attention_forward)
    AttentionMaskInterface.register(_name, eager_mask)


# ------------------------------------------------------------------------------------------------------- the fast ways


class DenseAttention(torch.autograd.Function):
    """softmax(Q K^T / sqrt(D)) V with all weights kept for the backward pass, in the dtype of its inputs.

    torch's fused kernel keeps no weights, and its backward pass on a CPU multiplies bf16 numbers without the matrix
    units of the processor: rows of 128 tokens train 4 times as fast this way, rows of 512 1.3 times
    (docs/speed.md). Longer rows are its own again.
    """

    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None, scaling: float) -> Tensor:
        """Queries [B, H, T, D], keys and values [B, H, S, D] -> [B, H, T, D].

        Args:
            bias: added to the scores; [T, S] or [B or 1, 1, T, S].
        """
        rows, heads, length, size = query.shape
        query, key, value = (states.reshape(rows * heads, -1, size) for states in (query * scaling, key, value))
        scores = torch.bmm(query, key.mT)
        if bias is not None:
            scores = scores.add_(bias.expand(rows, heads, length, -1).reshape(scores.shape))
        weights = torch.softmax(scores, dim=-1)
        ctx.save_for_backward(query, key, value, weights)
        ctx.scaling, ctx.heads = scaling, heads
        return torch.bmm(weights, value).view(rows, heads, length, size)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        """Gradients of query, key and value."""
        query, key, value, weights = ctx.saved_tensors
        gradient = gradients[0].reshape(query.shape)
        of_weights = torch.bmm(gradient, value.mT)
        of_scores = torch._softmax_backward_data(of_weights, weights, -1, weights.dtype)
        of_query = torch.bmm(of_scores, key) * ctx.scaling
        of_key = torch.bmm(of_scores.mT, query)
        of_value = torch.bmm(weights.mT, gradient)
        return *(states.unflatten(0, (-1, ctx.heads)) for states in (of_query, of_key, of_value)), None, None


def _trains_densely(states: Tensor, *, length: int, seen: int, dropout: float) -> bool:
    """Whether attention over states of this dtype and place is computed by `DenseAttention`."""
    return (
        states.device.type == "cpu"
        and compute_dtype(states) == torch.bfloat16
        and torch.is_grad_enabled()
        and dropout == 0.0
        and length * seen <= _DENSE_SCORES
    )


def as_bias(mask: Tensor, dtype: torch.dtype) -> Tensor:
    """What is added to scores in place of a boolean mask: 0 where it is True, the least number elsewhere."""
    return torch.zeros_like(mask, dtype=dtype).masked_fill_(~mask, torch.finfo(dtype).min)


def ready_mask(mask: Any, hidden_states: Tensor, *, config: LacunaConfig) -> Any:
    """The mask [B, 1, T, S] in the form that the kernel adds [B, H, T, S], made once and not in each layer."""
    length = hidden_states.shape[1]
    is_boolean = isinstance(mask, Tensor) and mask.dtype == torch.bool and mask.dim() == 4
    if (
        config._attn_implementation == "sdpa"
        and is_boolean
        and _trains_densely(hidden_states, length=length, seen=mask.shape[-1], dropout=config.attention_dropout)
    ):
        # One for each head: broadcast, it keeps a compiler from computing the softmax in one pass over the scores.
        rows = (hidden_states.shape[0], config.num_attention_heads, *mask.shape[2:])
        return as_bias(mask, compute_dtype(hidden_states)).expand(rows).contiguous()
    return mask


def fused_attention_forward(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float,
    dropout: float = 0.0,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """`sdpa`, by whichever kernel is fastest here; arguments as in `eager_attention_forward`, no weights.

    Args:
        document_bounds (a further argument): see `packed_attention_forward`, as are masks of blocks.
    """
    if isinstance(attention_mask, DocumentGroups):

        def attend(query: Tensor, key: Tensor, value: Tensor, visible: Tensor | None) -> Tensor:
            options: dict[str, Any] = {"dropout": dropout, "is_causal": False}
            return fused_attention_forward(module, query, key, value, visible, scaling, **options)[0]

        return attend_in_groups(attend, query, key, value, attention_mask), None
    packing = kwargs.pop("document_bounds", None)
    packing = attention_mask if isinstance(attention_mask, BlockMask) else packing
    if packing is not None:
        is_causal = kwargs.get("is_causal", module.is_causal)
        return packed_attention_forward(
            module, query, key, value, packing, scaling, dropout=dropout, is_causal=is_causal
        )
    length, seen = query.shape[2], key.shape[2]
    if not _trains_densely(query, length=length, seen=seen, dropout=dropout):
        return sdpa_attention_forward(
            module, query, key, value, attention_mask, dropout=dropout, scaling=scaling, **kwargs
        )
    bias = attention_mask
    if bias is None and length > 1 and kwargs.get("is_causal", module.is_causal):
        bias = torch.ones(length, seen, dtype=torch.bool, device=query.device).tril()
    if bias is not None and bias.dtype == torch.bool:
        bias = as_bias(bias, query.dtype)
    key, value = (share_heads(states, module.num_key_value_groups) for states in (key, value))
    return DenseAttention.apply(query, key, value, bias, scaling).transpose(1, 2), None


# -------------------------------------------------------------------------------------------- packed rows on a GPU

PACKED_DEVICES = {"cuda"}
"""Devices on which a kernel that knows the documents takes the place of a mask [B, 1, T, T]."""

VARLEN_DTYPES = {torch.bfloat16, torch.float16}
"""What the kernel for rows of any length computes in."""

SHORT = 128
"""Tokens of a row up to which a mask is made after all: it is no larger than the smallest block of `BlockMask`."""

_BLOCK = 128  # Tokens on a side of a block, torch's own choice.
_VARLEN_ARGUMENTS = set() if varlen_attn is None else set(inspect.signature(varlen_attn).parameters)


def flash_varlen(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    bounds: Tensor,
    *,
    longest: int,
    window: tuple[int, int],
    scaling: float,
    dropout: float,
) -> Tensor:
    """Attention inside each stretch of a row of tokens, by the FlashAttention that torch brings: all [total, H, D].

    Args:
        bounds: int32 [N + 1], where stretches begin and end; equal neighbours bound an empty one.
        longest: no stretch has more tokens.
        window: tokens seen on the left and on the right, -1 for all.
    """
    is_causal = window == (-1, 0)
    if dropout > 0:  # varlen_attn has none; it stands on this function, which does
        sides = {"window_size_left": window[0], "window_size_right": window[1]}
        return torch.ops.aten._flash_attention_forward(
            query, key, value, bounds, bounds, longest, longest, dropout, is_causal, False, scale=scaling, **sides
        )[0]
    # torch 2.10 has neither window nor scale; its scale is 1 / sqrt(D), as ours.
    options: dict[str, Any] = {"is_causal": is_causal}
    if "window_size" in _VARLEN_ARGUMENTS:
        options = {"window_size": window, "scale": scaling}
    return varlen_attn(query, key, value, bounds, bounds, longest, longest, **options)


def flex_blocks(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, blocks: BlockMask, *, scaling: float
) -> Tensor:
    """Attention where `blocks` and the rule in it allow: queries [B, H, T, D] -> [B, T, H, D]."""
    return flex_attention_forward(module, query, key, value, blocks, scaling=scaling)[0]


PACKED_KERNELS: dict[str, Callable[..., Tensor]] = {"varlen": flash_varlen, "flex": flex_blocks}


def packed_kernel(hidden_states: Tensor, *, config: LacunaConfig, is_bounded: bool) -> str | None:
    """Which of `PACKED_KERNELS` attends over packed rows [B, T, C] here; None: neither, and a mask is needed.

    Args:
        is_bounded: whether it is known where the documents begin and end, see `packed_attention_forward`.
    """
    device = hidden_states.device
    if config._attn_implementation != "sdpa" or device.type not in PACKED_DEVICES:
        return None
    is_cuda = device.type == "cuda"
    if (
        is_bounded
        and compute_dtype(hidden_states) in VARLEN_DTYPES
        and config.head_dim % 8 == 0
        and config.head_dim <= 256
        and _VARLEN_ARGUMENTS
        and ("window_size" in _VARLEN_ARGUMENTS or "sliding_attention" not in config.layer_types)
        and not (is_cuda and (torch.version.hip or torch.cuda.get_device_capability(device) < (8, 0)))
    ):
        return "varlen"
    # In a graph that is being traced, position_ids may stand for rows that are not packed: see `find_documents`.
    has_no_flex = config.attention_dropout > 0 or torch.compiler.is_compiling() or (is_cuda and not has_triton())
    return None if has_no_flex or hidden_states.shape[1] <= SHORT else "flex"


def packed_attention_forward(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    packing: Tensor | BlockMask,
    scaling: float,
    *,
    dropout: float = 0.0,
    is_causal: bool = False,
) -> tuple[Tensor, None]:
    """softmax(Q K^T / sqrt(D)) V inside the documents of packed rows; nothing of the size [T, T] exists.

    Args:
        query: [B, H, T, D].
        key, value: [B, H / groups, S, D].
        packing: int32 [N + 1], where documents begin and end in the flattened batch [B * T], with 0 first and B * T
            once or more often at the end (documents of no token); or the blocks of scores to compute.
        is_causal: whether the future is hidden; blocks know it themselves.

    Returns:
        Output [B, T, H, D], and no weights.
    """
    dtype = compute_dtype(query)  # norms of queries and keys may have left it
    query, key, value = (states.to(dtype) for states in (query, key, value))
    if isinstance(packing, BlockMask):
        return PACKED_KERNELS["flex"](module, query, key, value, packing, scaling=scaling), None
    rows, length = query.shape[0], query.shape[2]
    reach = -1
    if module.sliding_window is not None:
        reach = module.config.sliding_window - int(is_causal)
    key, value = (share_heads(states, module.num_key_value_groups) for states in (key, value))
    output = PACKED_KERNELS["varlen"](
        *(states.transpose(1, 2).flatten(0, 1) for states in (query, key, value)),
        packing,
        longest=length,
        window=(reach, 0 if is_causal else reach),
        scaling=scaling,
        dropout=dropout,
    )
    return output.unflatten(0, (rows, length)), None


def _ranges(documents: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """For each block of 128 tokens: its first and last document, whether it holds padding, and whether only tokens."""
    documents = nn.functional.pad(documents, (0, -documents.shape[1] % _BLOCK), value=-2).unflatten(1, (-1, _BLOCK))
    is_real = documents >= 0
    first = documents.masked_fill(~is_real, torch.iinfo(documents.dtype).max).amin(-1)
    return first, documents.clamp(min=-1).amax(-1), (documents == -1).any(-1), is_real.all(-1)


def can_group(hidden_states: Tensor, *, config: LacunaConfig) -> bool:
    """Whether attention over packed rows [B, T, C] may be computed in groups of documents."""
    return (
        config._attn_implementation == "sdpa"
        and hidden_states.device.type == "cpu"
        and hidden_states.shape[1] > UNGROUPED
        and type(hidden_states) in (Tensor, nn.Parameter)  # numbers that can be looked at
        and not torch.compiler.is_compiling()
    )


def document_blocks(
    documents: Tensor, seen_documents: Tensor | None = None, *, is_causal: bool = False, reach: int | None = None
) -> BlockMask:
    """Which blocks of scores attention inside documents needs, found without making a mask and without waiting.

    Documents follow one another, so that two blocks share one where the ranges of their numbers meet.

    Args:
        documents: numbers of the documents [B, T], rising along a row; -1 for padding.
        seen_documents: the same of keys and values [B, S]; None: those of the queries.
        is_causal: whether the future is hidden.
        reach: how far away a token may be that is seen; None: any distance.
    """
    seen = documents if seen_documents is None else seen_documents
    first, last, has_padding, is_whole = (part[:, None, :, None] for part in _ranges(documents))
    seen_first, seen_last, seen_padding, seen_whole = (part[:, None, None, :] for part in _ranges(seen))
    some = (first <= seen_last) & (seen_first <= last) | (has_padding & seen_padding)
    every = (first == last) & (seen_first == seen_last) & (first == seen_first) & is_whole & seen_whole
    numbers = torch.arange(max(some.shape[2:]), device=documents.device)
    apart = numbers[: some.shape[2], None] - numbers[None, : some.shape[3]]
    if is_causal:
        some, every = some & (apart >= 0), every & (apart > 0)
    if reach is not None:
        some = some & ((apart.abs() - 1) * _BLOCK + 1 <= reach)
        every = every & (apart.abs() * _BLOCK + _BLOCK - 1 <= reach)

    def is_seen(row: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        visible = documents[row, query] == seen[row, key]
        if is_causal:
            visible = visible & (query >= key)
        if reach is not None:
            visible = visible & ((query - key).abs() <= reach)
        return visible

    lists = []
    for blocks in (some & ~every, every):
        lists.append(blocks.sum(-1, dtype=torch.int32))
        lists.append(blocks.to(torch.int8).argsort(dim=-1, descending=True, stable=True).to(torch.int32))
    lengths = (documents.shape[1], seen.shape[1])
    return BlockMask.from_kv_blocks(*lists, BLOCK_SIZE=_BLOCK, mask_mod=is_seen, seq_lengths=lengths)


def attention_function(implementation: str) -> Callable[..., tuple[Tensor, Tensor | None]]:
    """The function that a model with this `_attn_implementation` calls."""
    if implementation == "sdpa":
        return fused_attention_forward
    return ALL_ATTENTION_FUNCTIONS.get_interface(implementation, eager_attention_forward)


__all__ = [
    "SCORES",
    "AdditiveScore",
    "DenseAttention",
    "DotProductScore",
    "MultiplicativeScore",
    "as_bias",
    "attention_function",
    "can_group",
    "compute_dtype",
    "document_blocks",
    "eager_attention_forward",
    "fused_attention_forward",
    "packed_attention_forward",
    "packed_kernel",
    "ready_mask",
]
