"""Checks of a model's inputs: a `ValueError` names the argument and both values.

Shapes and dtypes are compared in every call, which costs microseconds and no waiting. Numbers are looked at where
that is free: see `check_range`. Letters in shapes: B rows of a batch, T tokens of a row, C hidden_size.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

_CHECKED: set[tuple[Any, ...]] = set()


class ConfigurationError(ValueError):
    """A configuration that cannot be built, or a head that does not fit the configuration."""

    exit_code = 2


def name_nearest(*, value: str, known: Any) -> str:
    """Return `"; did you mean 'x'?"` for the nearest of `known`, or all of them when none is near."""
    names = sorted(str(name) for name in known)
    nearest = difflib.get_close_matches(value, names, n=1, cutoff=0.5)
    return f"; did you mean {nearest[0]!r}?" if nearest else f"; choose from {', '.join(names)}"


def check_range(numbers: Tensor, *, name: str, limit: int, field: str, ignored: int | None = None) -> None:
    """Refuse numbers outside 0 to `limit - 1` on a GPU, once for each shape that is seen.

    Looking at the numbers makes the GPU wait, and a number outside a table stops it in a device-side assert that
    names nothing. A wrong tokenizer or a wrong label shows in the first batch, so one look at each shape is the best
    of both. On a CPU the look-up itself notices, at no cost, and then `refuse_outside` says what was wrong.

    Raises ValueError: with the number, the argument and the field of the configuration that limits it.
    """
    if numbers.device.type in ("cpu", "meta") or torch.compiler.is_compiling():
        return
    seen = (name, limit, numbers.shape, numbers.device)
    if seen not in _CHECKED:
        refuse_outside(numbers, name=name, limit=limit, field=field, ignored=ignored)
        _CHECKED.add(seen)


def refuse_outside(numbers: Tensor, *, name: str, limit: int, field: str, ignored: int | None = None) -> None:
    """Raise a `ValueError` that names the first of `numbers` outside 0 to `limit - 1`, if there is one."""
    is_outside = (numbers < 0) | (numbers >= limit)
    if ignored is not None:
        is_outside &= numbers != ignored
    outside = numbers[is_outside]
    if outside.numel():
        raise ValueError(f"{name} contains {int(outside[0])}, and {field}={limit} allows 0 to {limit - 1}")


def refuse_other_shape(tensor: Tensor, expected: tuple[int, ...], *, name: str = "labels") -> None:
    """Raise a `ValueError` with both shapes when `tensor` does not have the shape `expected`."""
    # Number by number: comparing tuples would tie a graph that is being traced to these very sizes.
    if tensor.dim() != len(expected) or any(have != need for have, need in zip(tensor.shape, expected, strict=True)):
        raise ValueError(f"{name} has the shape {tuple(tensor.shape)}, and the model needs {tuple(expected)}")


def as_classes(labels: Tensor, *, name: str = "labels") -> Tensor:
    """Class numbers as int64; what is no integer is a `ValueError`."""
    if labels.dtype.is_floating_point or labels.dtype in (torch.bool, torch.complex64, torch.complex128):
        raise ValueError(f"{name} has the dtype {labels.dtype}, and class numbers are integers: torch.int64")
    return labels.long()


def check_inputs(
    input_ids: Tensor | None,
    *,
    inputs_embeds: Tensor | None,
    token_type_ids: Tensor | None,
    position_ids: Tensor | None,
    hidden_size: int,
    prefix: str = "",
) -> Tensor:
    """The one of `input_ids` and `inputs_embeds` that is given, after refusing what no model could read.

    `prefix`: what stands before the names of the arguments, for the decoder of an encoder-decoder.

    Raises ValueError: when not exactly one of `input_ids` and `inputs_embeds` is given, when they are no rows of token
    ids or of vectors of hidden_size, when a row is empty, and when positions or segments have another shape.
    """
    given = input_ids if inputs_embeds is None else inputs_embeds
    if given is None or (input_ids is not None and inputs_embeds is not None):
        raise ValueError(f"give exactly one of {prefix}input_ids and {prefix}inputs_embeds")
    if inputs_embeds is not None:
        name, wanted = "inputs_embeds", f"(rows, tokens, hidden_size={hidden_size})"
        fits = given.dim() == 3 and given.shape[2] == hidden_size
    else:
        name, wanted, fits = "input_ids", "(rows, tokens)", given.dim() == 2
        _refuse_other_numbers(given, name=f"{prefix}input_ids")
    if not fits or given.shape[0] == 0 or given.shape[1] == 0:
        raise ValueError(
            f"{prefix}{name} has the shape {tuple(given.shape)}, and {wanted} with at least one token is needed"
        )
    rows, length = given.shape[:2]
    for name, numbers in (("position_ids", position_ids), ("token_type_ids", token_type_ids)):
        if numbers is not None:
            _refuse_other_numbers(numbers, name=f"{prefix}{name}")
            is_shared = name == "position_ids" and numbers.dim() == 2 and numbers.shape[0] == 1  # by all rows
            refuse_other_shape(numbers, (1 if is_shared else rows, length), name=f"{prefix}{name}")
    return given


def _refuse_other_numbers(numbers: Tensor, *, name: str) -> None:
    if numbers.dtype not in (torch.int64, torch.int32):
        raise ValueError(f"{name} has the dtype {numbers.dtype}, and torch.int64 or torch.int32 is needed")


def check_mask(
    attention_mask: Tensor,
    *,
    batch_size: int,
    length: int,
    seen: int = 0,
    is_fixed: bool = False,
    name: str = "attention_mask",
) -> None:
    """Refuse a mask that does not cover the tokens, with a ValueError that has both shapes.

    Args:
        attention_mask: [B, seen + T], or [B or 1, heads or 1, T or 1, seen + T].
        batch_size, length: B and T.
        seen: number of tokens in the cache.
        is_fixed: whether the cache has a fixed length; a mask may then be as long as that.
    """
    columns = attention_mask.shape[-1] if attention_mask.dim() else 0
    covers = columns == seen + length or (is_fixed and columns > seen + length)
    if attention_mask.dim() == 4:
        fits = attention_mask.shape[0] in (1, batch_size) and attention_mask.shape[2] in (1, length)
    else:
        fits = attention_mask.dim() == 2 and attention_mask.shape[0] == batch_size
    if fits and covers:
        return
    # Written only now: numbers in a text tie a graph that is being traced to these very sizes.
    past = f" after {seen} in the cache" if seen else ""
    needed = f"{seen + length})" if attention_mask.dim() != 4 else f"1, {length}, {seen + length})"
    raise ValueError(
        f"{name} has the shape {tuple(attention_mask.shape)}, and {batch_size} rows of {length} tokens{past} "
        f"need ({batch_size}, {needed}"
    )


def check_bounds(bounds: Tensor | None, *, position_ids: Tensor | None) -> None:
    """Raise a `ValueError` for bounds that are not int32 [N + 1], or stand alone: not every kernel goes by them."""
    if bounds is None:
        return
    if bounds.dtype != torch.int32 or bounds.dim() != 1 or bounds.shape[0] < 2:
        raise ValueError(
            f"document_bounds has the shape {tuple(bounds.shape)} and the dtype {bounds.dtype}; a row of two or more "
            "torch.int32 is needed"
        )
    if position_ids is None:
        raise ValueError("document_bounds is given without position_ids, which must restart where documents begin")


def wrong_positions(config: Any) -> Iterator[str]:
    """What is wrong with the positions of a configuration."""
    size = config.head_dim
    if config.position_type == "rotary" and size % 2:
        yield f"head_dim={size} is odd, and rotary positions turn pairs of dimensions"
    if config.position_type != "learned" and config.position_offset:
        yield f"position_offset={config.position_offset} is for position_type='learned', not {config.position_type!r}"
    parameters = config.rope_parameters or {}
    for entry in [parameters] if "rope_type" in parameters else parameters.values():
        rope_type, known = entry["rope_type"], ("default", *ROPE_INIT_FUNCTIONS)
        if rope_type not in known:
            yield f"rope_type={rope_type!r} is not known{name_nearest(value=rope_type, known=known)}"
        if entry["rope_theta"] <= 0:
            yield f"rope_theta={entry['rope_theta']} must be positive"
        factor = entry.get("partial_rotary_factor", 1.0)
        turned = int(size * factor)
        if not 0 < factor <= 1 or turned % 2 or turned <= 0:
            yield (
                f"partial_rotary_factor={factor} turns {turned} of head_dim={size} dimensions, and rotary "
                "positions turn pairs"
            )
