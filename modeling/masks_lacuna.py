"""Attention masks: padding, causal, sliding window, cross-attention, and documents packed into one row.

Letters in shapes: B rows of a batch, T tokens of a row, S tokens that are seen, C hidden_size.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention.flex_attention import BlockMask
from transformers.cache_utils import Cache
from transformers.masking_utils import (
    create_bidirectional_mask,
    create_bidirectional_sliding_window_mask,
    create_causal_mask,
    create_sliding_window_causal_mask,
    packed_sequence_mask_function,
)
from transformers.utils.generic import is_flash_attention_requested

from .checks_lacuna import check_bounds, check_mask, refuse_other_shape
from .configuration_lacuna import LacunaConfig
from .kernels_lacuna import can_group, group_documents, packed_kernel, ready_mask

# By whether the future is hidden, and by type of layer.
MASKS: dict[tuple[bool, str], Callable[..., Any]] = {
    (False, "full_attention"): create_bidirectional_mask,
    (False, "sliding_attention"): create_bidirectional_sliding_window_mask,
    (True, "full_attention"): create_causal_mask,
    (True, "sliding_attention"): create_sliding_window_causal_mask,
}


def is_awaited(tensor: Tensor) -> bool:
    """Whether whoever looks at the numbers of a tensor makes training wait: the host is ahead of its GPU."""
    return tensor.device.type != "cpu" and torch.is_grad_enabled()


def find_documents(position_ids: Tensor | None, attention_mask: Tensor | None, *, look: bool = True) -> Tensor | None:
    """Number the documents of packed rows: int64 [B, T], or None when every row holds at most one.

    A document starts where a real token has position 0. Padding gets the number -1, so that it keeps to itself.

    Args:
        position_ids: [B, T], restarting at 0 with each document.
        attention_mask: [B, T], 1 for real tokens, or None. With more dimensions it says itself who sees whom, and
            nothing is found.
        look: whether to look at the numbers, unless `is_awaited`; without, all rows count as packed.
    """
    if (
        position_ids is None
        or position_ids.shape[-1] < 2
        or getattr(attention_mask, "ndim", 2 if attention_mask is None else 0) != 2
    ):
        return None
    starts = position_ids == 0
    has_before = torch.arange(position_ids.shape[-1], device=position_ids.device) > 0
    if attention_mask is not None:
        starts = starts & attention_mask.bool()
        has_before = attention_mask.bool().cumsum(-1) > 1
    # The number of documents is not known while a graph is being traced: a mask that is right for any number is built.
    look = look and not is_awaited(position_ids) and not torch.compiler.is_compiling()
    if look and not bool((starts & has_before).any()):
        return None
    documents = starts.cumsum(-1)
    return documents if attention_mask is None else documents.masked_fill(~attention_mask.bool(), -1)


def build_attention_masks(
    *,
    config: LacunaConfig,
    stack: str,
    hidden_states: Tensor,
    attention_mask: Tensor | dict[str, Any] | None,
    position_ids: Tensor | None,
    past_key_values: Cache | None,
    is_causal: bool,
    document_bounds: Tensor | None = None,
    name: str = "attention_mask",
) -> tuple[dict[str, Any], dict[str, Any], Tensor | None]:
    """Build one mask per layer type that the stack uses.

    Must run before the model makes its own cache: even an empty one hides from masking_utils that rows are packed.

    Args:
        hidden_states: embeddings [B, T, C]; only shape, dtype and device matter.
        attention_mask: None, [B, S] with 1 for real tokens, [B, 1, T, S], or masks by layer type from `generate`.
        position_ids, past_key_values, document_bounds: what the caller gave, see `LacunaModel.forward`.
        is_causal: whether the future is hidden.

    Returns: Masks by layer type (None where the kernel needs none, the fast path), further arguments for the attention
    function, and the documents of packed rows [B, T], where they were looked for.

    Raises ValueError: on a mask of the wrong shape, or none for a type of layer.
    """
    layer_types = sorted(set(config.layer_types_of(stack)))
    if isinstance(attention_mask, dict):
        if missing := sorted(set(layer_types) - set(attention_mask)):
            raise ValueError(f"{name} has masks for {sorted(attention_mask)} and none for {missing}")
        return attention_mask, {}, None
    seen = 0 if past_key_values is None else past_key_values.get_seq_length()
    is_fixed = past_key_values is not None and past_key_values.is_compileable
    batch_size, length = hidden_states.shape[:2]
    if attention_mask is not None and isinstance(seen, int):  # A cache of fixed length counts in a tensor.
        check_mask(attention_mask, batch_size=batch_size, length=length, seen=seen, is_fixed=is_fixed, name=name)
    if attention_mask is not None and attention_mask.dim() == 4:
        return dict.fromkeys(layer_types, attention_mask), {}, None
    documents, kernel = None, None
    check_bounds(document_bounds, position_ids=position_ids)
    if (attention_mask is None or attention_mask.shape[-1] == length) and isinstance(seen, int) and seen == 0:
        if position_ids is not None and past_key_values is None and not config.is_encoder_decoder:
            kernel = packed_kernel(hidden_states, config=config, is_bounded=document_bounds is not None)
        if kernel == "varlen":
            return dict.fromkeys(layer_types), {"document_bounds": document_bounds}, None
        documents = find_documents(position_ids, attention_mask, look=kernel is None)
    if documents is not None and is_fixed:  # While tracing, they may be none: generation, with this cache.
        if not torch.compiler.is_compiling():
            why = "the rows hold several documents (position_ids restart) and past_key_values has a fixed length"
            raise ValueError(f"{why}: leave the cache out, or give one that grows")
    elif documents is not None:
        documents = documents.expand(batch_size, -1)
        masks, packing = _build_packed_masks(config, stack, hidden_states, documents, is_causal)
        return _ready(masks, hidden_states, config), packing, documents
    masks = _padded_masks(config, layer_types, hidden_states, attention_mask, past_key_values, is_causal)
    return _ready(masks, hidden_states, config), {}, None


def _padded_masks(
    config: LacunaConfig,
    layer_types: list[str],
    hidden_states: Tensor,
    attention_mask: Tensor | None,
    past_key_values: Cache | None,
    is_causal: bool,
) -> dict[str, Any]:
    """Masks of rows that hold one document each."""
    is_ours = past_key_values is None and config._attn_implementation in ("sdpa", "eager")
    if attention_mask is not None and is_ours and is_awaited(hidden_states):  # others look whether anything is padded
        reaches = _reaches(config, layer_types, is_causal)
        return _plain_masks(attention_mask.bool()[:, None, None, :], reaches, is_causal)
    arguments = {"config": config, "inputs_embeds": hidden_states, "attention_mask": attention_mask}
    arguments |= {"past_key_values": past_key_values, "position_ids": None} if is_causal else {}
    return {layer_type: MASKS[is_causal, layer_type](**arguments) for layer_type in layer_types}


def _ready(masks: dict[str, Any], hidden_states: Tensor, config: LacunaConfig) -> dict[str, Any]:
    return {name: ready_mask(mask, hidden_states, config=config) for name, mask in masks.items()}


def build_cross_attention_mask(
    *,
    config: LacunaConfig,
    hidden_states: Tensor,
    documents: Tensor | None,
    encoder_hidden_states: Tensor | None,
    encoder_attention_mask: Tensor | None,
    encoder_documents: Tensor | None,
) -> tuple[Any, dict[str, Any]]:
    """Which tokens of the encoder each token of the decoder sees: all real ones, or those of its own document.

    Args:
        hidden_states: embeddings of the decoder [B, T, C].
        documents, encoder_documents: numbers of the documents in packed rows [B, T] and [B, S], or None. The n-th
            document of a row of the decoder belongs to the n-th of the same row of the encoder.
        encoder_hidden_states: [B, S, C]; None where there is no encoder, and nothing to mask.
        encoder_attention_mask: [B, S], 1 for real tokens, or None.

    Returns the mask, and further arguments for the attention function. Raises ValueError: when only one side is
    packed, or the mask has the wrong shape.
    """
    if encoder_hidden_states is None:
        return None, {}
    batch_size, length = encoder_hidden_states.shape[:2]
    if encoder_attention_mask is not None and encoder_attention_mask.dim() == 4:
        # Made for the encoder's attention to itself, where every token may see others; here only columns have a sense.
        refuse_other_shape(encoder_attention_mask, (batch_size, 1, 1, length), name="attention_mask")
    arguments = {"config": config, "inputs_embeds": hidden_states, "attention_mask": encoder_attention_mask}
    arguments["encoder_hidden_states"] = encoder_hidden_states
    if documents is not None and encoder_documents is not None:
        return _build_packed_cross_mask(arguments, documents, encoder_documents)
    # In a graph the numbers stand for rows that may or may not be packed, so that one side alone may have them.
    knows_packing = not (torch.compiler.is_compiling() or is_awaited(hidden_states))
    if documents is not encoder_documents and knows_packing:
        packed, single = ("encoder", "decoder") if documents is None else ("decoder", "encoder")
        raise ValueError(
            f"the rows of the {packed} hold several documents and those of the {single} do not: give position_ids "
            "and decoder_position_ids that restart with each document"
        )
    if encoder_attention_mask is not None and not knows_packing and config._attn_implementation in ("sdpa", "eager"):
        return encoder_attention_mask.bool()[:, None, None, :], {}
    return create_bidirectional_mask(**arguments), {}


def _build_packed_cross_mask(
    arguments: dict[str, Any], documents: Tensor, encoder_documents: Tensor
) -> tuple[Any, dict[str, Any]]:
    """Masks that keep cross-attention inside the documents [B, T] and [B, S] of packed rows.

    `arguments`: of `create_bidirectional_mask`.
    """
    config = arguments["config"]
    if is_flash_attention_requested(config):
        packing = _flash_packing(*_bounds(documents), *_bounds(encoder_documents))
        if packing["cu_seq_lens_q"].numel() != packing["cu_seq_lens_k"].numel():
            raise ValueError("the rows of the encoder and of the decoder hold different numbers of documents")
        return None, packing
    if packed_kernel(arguments["inputs_embeds"], config=config, is_bounded=False) == "flex":
        return document_blocks(documents, encoder_documents), {}
    if config._attn_implementation == "flex_attention":

        def within(batch_idx: Tensor, head_idx: Tensor, q_idx: Tensor, kv_idx: Tensor) -> Tensor:
            return documents[batch_idx, q_idx] == encoder_documents[batch_idx, kv_idx]

        arguments = {**arguments, "attention_mask": None}
        return create_bidirectional_mask(**arguments, and_mask_function=within), {}
    return documents[:, None, :, None] == encoder_documents[:, None, None, :], {}


def _flash_packing(bounds: Tensor, longest: int, seen_bounds: Tensor, seen_longest: int) -> dict[str, Any]:
    """What flash kernels take in place of a mask: the bounds of documents in the flattened batch."""
    names = ("cu_seq_lens_q", "max_length_q", "cu_seq_lens_k", "max_length_k")
    return dict(zip(names, (bounds, longest, seen_bounds, seen_longest), strict=True))


def _bounds(documents: Tensor) -> tuple[Tensor, int]:
    """Where documents [B, T] begin and end in the flattened batch, int32, and the length of the longest."""
    starts = torch.ones_like(documents, dtype=torch.bool)
    starts[:, 1:] = documents[:, 1:] != documents[:, :-1]
    bounds = starts.flatten().nonzero().flatten().to(torch.int32)
    bounds = torch.cat((bounds, bounds.new_tensor([documents.numel()])))
    return bounds, int(bounds.diff().max())


def _build_packed_masks(
    config: LacunaConfig, stack: str, hidden_states: Tensor, documents: Tensor, is_causal: bool
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Masks that keep attention inside the documents [B, T] of packed rows."""
    layer_types = sorted(set(config.layer_types_of(stack)))
    if is_flash_attention_requested(config):
        return dict.fromkeys(layer_types), _flash_packing(*_bounds(documents), *_bounds(documents))
    if config._attn_implementation == "flex_attention":
        arguments = {"config": config, "inputs_embeds": hidden_states, "attention_mask": None}
        arguments |= {"past_key_values": None} if is_causal else {}
        within = packed_sequence_mask_function(documents)
        return {name: MASKS[is_causal, name](**arguments, and_mask_function=within) for name in layer_types}, {}
    reaches = _reaches(config, layer_types, is_causal)
    if packed_kernel(hidden_states, config=config, is_bounded=False) == "flex":
        return {name: document_blocks(documents, is_causal=is_causal, reach=far) for name, far in reaches.items()}, {}
    if can_group(hidden_states, config=config):
        groups = {name: group_documents(documents, is_causal=is_causal, reach=far) for name, far in reaches.items()}
        if None not in groups.values():
            return groups, {}
    # masking_utils would go through vmap here: 5.1 ms a mask at [64, 128] against 0.9 ms for this comparison.
    same_document = documents[:, None, :, None] == documents[:, None, None, :]
    return _plain_masks(same_document, reaches, is_causal), {}


def _reaches(config: LacunaConfig, layer_types: list[str], is_causal: bool) -> dict[str, int | None]:
    """How far away a token may be that is seen, by type of layer; None: any distance."""
    return {name: config.sliding_window - is_causal if "sliding" in name else None for name in layer_types}


def _plain_masks(allowed: Tensor, reaches: dict[str, int | None], is_causal: bool) -> dict[str, Tensor]:
    """Masks [B, 1, T, T] by type of layer: what `allowed` [B, 1, T or 1, T] has, within reach."""
    positions = torch.arange(allowed.shape[-1], device=allowed.device)
    distance = positions[:, None] - positions[None, :]
    masks = {}
    for layer_type, reach in reaches.items():
        visible = distance >= 0 if is_causal else torch.ones_like(distance, dtype=torch.bool)
        masks[layer_type] = allowed & (visible if reach is None else visible & (distance.abs() <= reach))
    return masks


# --------------------------------------------------------------------------------------------------- blocks of scores

_BLOCK = 128  # Tokens on a side of a block, torch's own choice.


def _ranges(documents: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """For each block of 128 tokens: its first and last document, whether it holds padding, and whether only tokens."""
    documents = nn.functional.pad(documents, (0, -documents.shape[1] % _BLOCK), value=-2).unflatten(1, (-1, _BLOCK))
    is_real = documents >= 0
    first = documents.masked_fill(~is_real, torch.iinfo(documents.dtype).max).amin(-1)
    return first, documents.clamp(min=-1).amax(-1), (documents == -1).any(-1), is_real.all(-1)


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
