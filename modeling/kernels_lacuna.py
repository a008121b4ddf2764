"""Fast attention kernels by device; all equal `eager_attention_forward` up to rounding.

Short rows on a CPU keep their weights (`DenseAttention`). Packed rows never compute scores between two documents: on a
CPU documents of like length are put side by side, and a GPU has kernels that know where documents begin and end.
Letters in shapes: B rows of a batch, T tokens of a row, S tokens that are seen, C hidden_size, H heads, D head_dim;
N documents of a group with L slots each, P slots of all groups.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.attention.flex_attention import BlockMask
from torch.utils._triton import has_triton
from transformers.integrations.flex_attention import flex_attention_forward
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from .attention_lacuna import compute_dtype, eager_attention_forward, share_heads
from .configuration_lacuna import LacunaConfig

try:
    from torch.nn.attention.varlen import varlen_attn
except ImportError:  # before torch 2.10
    varlen_attn = None

_DENSE_SCORES, _DENSE_WITHOUT_GRADIENT, _DENSE_ROWS = 512 * 512, 24 * 24, 32
"""Scores of a row and head up to which `DenseAttention` trains faster than torch's kernel, in bf16 on a CPU; up to
which it is faster without gradients; and for how many rows at least."""


class DenseAttention(torch.autograd.Function):
    """softmax(Q K^T / sqrt(D)) V with all weights kept for the backward pass, in the dtype of its inputs.

    torch's fused kernel keeps none, and its backward pass on a CPU multiplies bf16 numbers without the processor's
    matrix units: short rows train several times as fast this way, rows of 512 tokens a little faster.
    """

    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None, scaling: float) -> Tensor:
        """Queries [B, H, T, D], keys and values [B, H, S, D] -> [B, H, T, D].

        `bias`: added to the scores; [T, S] or [B or 1, 1, T, S].
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


def _is_dense(states: Tensor, *, length: int, seen: int, dropout: float) -> bool:
    """Whether attention over states of this dtype and place [B, ...] is computed by `DenseAttention`."""
    most = _DENSE_SCORES if torch.is_grad_enabled() else _DENSE_WITHOUT_GRADIENT * (states.shape[0] >= _DENSE_ROWS)
    is_bf16 = states.device.type == "cpu" and compute_dtype(states) == torch.bfloat16
    return is_bf16 and dropout == 0.0 and length * seen <= most


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
        and _is_dense(hidden_states, length=length, seen=mask.shape[-1], dropout=config.attention_dropout)
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

    The mask may also be groups or blocks of documents, and `document_bounds` takes its place: see
    `packed_attention_forward`.
    """
    if isinstance(attention_mask, DocumentGroups):

        def attend(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> Tensor:
            return fused_attention_forward(module, query, key, value, mask, scaling, dropout, is_causal=False)[0]

        return attend_in_groups(attend, query, key, value, attention_mask), None
    is_causal = kwargs.get("is_causal", module.is_causal)
    packing = kwargs.pop("document_bounds", None)
    packing = attention_mask if isinstance(attention_mask, BlockMask) else packing
    options: dict[str, Any] = {"dropout": dropout, "scaling": scaling}
    if packing is not None:
        return packed_attention_forward(module, query, key, value, packing, is_causal=is_causal, **options)
    length, seen = query.shape[2], key.shape[2]
    if "cache" in kwargs or not _is_dense(query, length=length, seen=seen, dropout=dropout):
        return sdpa_attention_forward(module, query, key, value, attention_mask, **options, **kwargs)
    bias = attention_mask
    if bias is None and length > 1 and is_causal:
        bias = torch.ones(length, seen, dtype=torch.bool, device=query.device).tril()
    if bias is not None and bias.dtype == torch.bool:
        bias = as_bias(bias, query.dtype)
    key, value = (share_heads(states, module.num_key_value_groups) for states in (key, value))
    return DenseAttention.apply(query, key, value, bias, scaling).transpose(1, 2), None


def attention_function(implementation: str) -> Callable[..., tuple[Tensor, Tensor | None]]:
    """The function that a model with this `_attn_implementation` calls."""
    if implementation == "sdpa":
        return fused_attention_forward
    return ALL_ATTENTION_FUNCTIONS.get_interface(implementation, eager_attention_forward)


# -------------------------------------------------------------------------------------------- packed rows on a GPU

PACKED_DEVICES = {"cuda"}
"""Devices on which a kernel that knows the documents takes the place of a mask [B, 1, T, T]."""

VARLEN_DTYPES = {torch.bfloat16, torch.float16}
"""What the kernel for rows of any length computes in."""

SHORT = 128
"""Tokens of a row up to which a mask is made after all: it is no larger than the smallest block of `BlockMask`."""

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
        bounds, longest: int32 [N + 1], where stretches begin and end, some of them empty; most tokens of one.
        window: tokens seen on the left and on the right, -1 for all.
    """
    is_causal = window == (-1, 0)
    if dropout > 0:  # varlen_attn has none; it stands on this function, which does
        sides = {"window_size_left": window[0], "window_size_right": window[1]}
        return torch.ops.aten._flash_attention_forward(
            query, key, value, bounds, bounds, longest, longest, dropout, is_causal, False, scale=scaling, **sides
        )[0]
    options: dict[str, Any] = {"window_size": window, "scale": scaling}
    if "window_size" not in _VARLEN_ARGUMENTS:  # torch 2.10 has neither, and divides by sqrt(D)
        query, options = query * (scaling * query.shape[-1] ** 0.5), {"is_causal": is_causal}
    return varlen_attn(query, key, value, bounds, bounds, longest, longest, **options)


def flex_blocks(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, blocks: BlockMask, *, scaling: float
) -> Tensor:
    """Attention where `blocks` and the rule in it allow: queries [B, H, T, D] -> [B, T, H, D]."""
    return flex_attention_forward(module, query, key, value, blocks, scaling=scaling)[0]


PACKED_KERNELS: dict[str, Callable[..., Tensor]] = {"varlen": flash_varlen, "flex": flex_blocks}


def packed_kernel(hidden_states: Tensor, *, config: LacunaConfig, is_bounded: bool) -> str | None:
    """Which of `PACKED_KERNELS` attends over packed rows [B, T, C] here; None: neither, and a mask is needed.

    `is_bounded`: whether it is known where the documents begin and end, see `packed_attention_forward`.
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
        query, key, value, scaling: as in `eager_attention_forward`.
        packing: int32 [N + 1], where documents begin and end in the flattened batch [B * T], with 0 first and B * T
            once or more often at the end (documents of no token); or the blocks of scores to compute.
        is_causal: whether the future is hidden; blocks know it themselves.
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


# ------------------------------------------------------------------------------------------ packed rows on a CPU

UNGROUPED = 512
"""Tokens of a row up to which all scores of packed rows are computed: to move states would take as long."""

GROUP_SIZES = (32, 64, 96, 128, 192, 256, 384, 512, 768)
"""Slots of a document in the groups; longer ones have a multiple of the last."""

GROUP_WORTH = 0.5
"""Share of the scores of whole rows up to which groups are made: they move all states twice."""


class Group(NamedTuple):
    """Documents of like length."""

    documents: int  # N
    length: int  # L
    visible: Tensor | None  # bool [N, 1, L, L], True for what is seen; None: all of it


class DocumentGroups(NamedTuple):
    """Where the tokens of packed rows [B, T] stand in groups, and what they see there; takes the place of a mask."""

    taken: Tensor  # int64 [P], the token of each slot, counted through the batch; of an empty one the document's first
    slots: Tensor  # int64 [B * T], the slot of each token
    empty: Tensor  # int64, the slots that hold no token of their own
    groups: list[Group]  # in the order of their slots


def can_group(hidden_states: Tensor, *, config: LacunaConfig) -> bool:
    """Whether attention over packed rows [B, T, C] may be computed in groups of documents."""
    return (
        config._attn_implementation == "sdpa"
        and hidden_states.device.type == "cpu"
        and hidden_states.shape[1] > UNGROUPED
        and type(hidden_states) in (Tensor, nn.Parameter)  # numbers that can be looked at
        and not torch.compiler.is_compiling()
    )


def group_documents(documents: Tensor, *, is_causal: bool = False, reach: int | None = None) -> DocumentGroups | None:
    """Groups for attention inside documents; None where they would save too little.

    Args:
        documents: numbers of the documents [B, T]; the tokens of a row with one number see one another.
        is_causal: whether the future is hidden.
        reach: how far away a token may be that is seen; None: any distance.
    """
    rows, width = documents.shape
    lowest = int(documents.min())
    most = int(documents.max()) - lowest + 1
    apart = (documents - lowest + most * torch.arange(rows)[:, None]).flatten()
    order = apart.argsort(stable=True)
    lengths = torch.unique_consecutive(apart[order], return_counts=True)[1]
    steps = torch.tensor(GROUP_SIZES)
    sizes = steps[torch.searchsorted(steps, lengths).clamp(max=len(GROUP_SIZES) - 1)]
    sizes = torch.where(lengths > GROUP_SIZES[-1], -(-lengths // GROUP_SIZES[-1]) * GROUP_SIZES[-1], sizes)
    if int((sizes * sizes).sum()) > GROUP_WORTH * rows * width * width:
        return None
    first = lengths.cumsum(0) - lengths  # of each document, in `order`
    taken, groups = [], []
    for size in sizes.unique().tolist():
        chosen = (sizes == size).nonzero().flatten()
        place = torch.arange(size)
        is_real = place < lengths[chosen, None]
        tokens = order[first[chosen, None] + torch.where(is_real, place, 0)]
        taken.append((tokens, is_real))
        groups.append(Group(len(chosen), size, _visible(tokens % width, is_real, is_causal=is_causal, reach=reach)))
    tokens, is_real = (torch.cat([part[side].flatten() for part in taken]) for side in (0, 1))
    slots = torch.empty(rows * width, dtype=torch.int64)
    slots[tokens[is_real]] = is_real.nonzero().flatten()
    return DocumentGroups(tokens, slots, (~is_real).nonzero().flatten(), groups)


def _visible(places: Tensor, is_real: Tensor, *, is_causal: bool, reach: int | None) -> Tensor | None:
    """What the slots of a group see: places in the row and whether there is a token [N, L] -> bool [N, 1, L, L]."""
    if not is_causal and reach is None and bool(is_real.all()):
        return None
    visible = is_real[:, None, None, :]
    if is_causal or reach is not None:
        behind = places[:, None, :, None] - places[:, None, None, :]
        visible = visible & (behind >= 0) if is_causal else visible
        visible = visible & (behind.abs() <= reach) if reach is not None else visible
    return visible.expand(-1, -1, places.shape[1], -1)


class _Into(torch.autograd.Function):
    """States of tokens [B, T, H, D] -> of slots [P, H, D]. Empty slots get no gradient that they could give away."""

    @staticmethod
    def forward(ctx: Any, states: Tensor, taken: Tensor, slots: Tensor) -> Tensor:
        ctx.save_for_backward(slots)
        ctx.shape = states.shape
        return states.flatten(0, 1).index_select(0, taken)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        return gradients[0].index_select(0, ctx.saved_tensors[0]).view(ctx.shape), None, None


class _OutOf(torch.autograd.Function):
    """States of slots [P, H, D] -> of tokens [B * T, H, D]."""

    @staticmethod
    def forward(ctx: Any, states: Tensor, taken: Tensor, slots: Tensor, empty: Tensor) -> Tensor:
        ctx.save_for_backward(taken, empty)
        return states.index_select(0, slots)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        taken, empty = ctx.saved_tensors
        return gradients[0].index_select(0, taken).index_fill_(0, empty, 0), None, None, None


@torch.compiler.disable
def attend_in_groups(
    attend: Callable[[Tensor, Tensor, Tensor, Tensor | None], Tensor],
    query: Tensor,
    key: Tensor,
    value: Tensor,
    documents: DocumentGroups,
) -> Tensor:
    """Attention inside documents: queries, keys and values [B, H, T, D] -> [B, T, H, D].

    An empty slot is seen by none and its output goes nowhere, so that all its gradients are zero and `_Into` may pass
    over them. A compiler would recompile for each batch's groups.

    `attend`: queries, keys, values [N, H, L, D] and what is visible, bool [N, 1, L, L] or None -> [N, L, H, D].
    """
    rows, _, width, _ = query.shape
    sizes = [group.documents * group.length for group in documents.groups]
    parts = [
        _Into.apply(states.transpose(1, 2), documents.taken, documents.slots).split(sizes)
        for states in (query, key, value)
    ]
    outputs = []
    for group, *states in zip(documents.groups, *parts, strict=True):
        queries, keys, values = (part.unflatten(0, group[:2]).transpose(1, 2) for part in states)
        outputs.append(attend(queries, keys, values, group.visible).flatten(0, 1))
    output = _OutOf.apply(torch.cat(outputs), documents.taken, documents.slots, documents.empty)
    return output.unflatten(0, (rows, width))
