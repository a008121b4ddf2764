"""Packed rows on a CPU: documents of like length side by side, so that no score between two documents is computed.

Rows of 1,024 tokens that hold ten documents have a tenth of their scores inside documents. Letters in shapes: B rows
of a batch, T tokens of a row, H heads, D head_dim; N documents of a group with L slots each, P slots of all groups.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

SIZES = (32, 64, 96, 128, 192, 256, 384, 512, 768)
"""Slots of a document in the groups; longer ones have a multiple of the last."""

WORTH = 0.5
"""Share of the scores of whole rows up to which groups are made: they move all states twice."""


class Group(NamedTuple):
    """Documents of like length.

    Attributes:
        documents, length: N and L.
        visible: bool [N, 1, L, L], True for what is seen; None: all of it.
    """

    documents: int
    length: int
    visible: Tensor | None


class DocumentGroups(NamedTuple):
    """Where the tokens of packed rows [B, T] stand in groups, and what they see there; takes the place of a mask.

    Attributes:
        taken: the token of each slot, counted through the batch; of an empty one, the document's first. int64 [P].
        slots: the slot of each token, int64 [B * T].
        empty: the slots that hold no token of their own, int64.
        groups: in the order of their slots.
    """

    taken: Tensor
    slots: Tensor
    empty: Tensor
    groups: list[Group]


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
    steps = torch.tensor(SIZES)
    sizes = steps[torch.searchsorted(steps, lengths).clamp(max=len(SIZES) - 1)]
    sizes = torch.where(lengths > SIZES[-1], -(-lengths // SIZES[-1]) * SIZES[-1], sizes)
    if int((sizes * sizes).sum()) > WORTH * rows * width * width:
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

    An empty slot is seen by none, so that its key and value get a gradient of zero, and its output goes nowhere, so
    that its query does: `_Into` may pass over them. A compiler would begin anew with each batch's groups.

    Args:
        attend: queries, keys, values [N, H, L, D] and what is visible, bool [N, 1, L, L] or None -> [N, L, H, D].
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


__all__ = ["DocumentGroups", "attend_in_groups", "group_documents"]
