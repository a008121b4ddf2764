"""Packed rows on a CPU in groups of documents, beside the mask [B, 1, T, T] that they spare."""

import contextlib
import copy
from collections.abc import Iterator
from typing import Any
from unittest import mock

import pytest
import torch
from examples import examples
from hypothesis import given
from hypothesis import strategies as st
from random_models import assert_agree, assert_same_gradients, configurations, make_model, weigh
from random_models import random_ids as random_tokens
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from lacuna.modeling import LacunaConfig, kernels_lacuna
from lacuna.modeling.kernels_lacuna import DocumentGroups, group_documents
from lacuna.modeling.masks_lacuna import build_attention_masks, find_documents

LENGTHS = st.lists(st.lists(st.integers(1, 9), min_size=1, max_size=4), min_size=1, max_size=3)


@contextlib.contextmanager
def grouped(*, sizes: tuple[int, ...] = (2, 3, 6)) -> Iterator[list[int]]:
    """Groups for rows of any length and whatever they cost; yields the number of groups of each attention."""
    used: list[int] = []
    plain = kernels_lacuna.attend_in_groups

    def noted(attend: Any, query: Tensor, key: Tensor, value: Tensor, documents: DocumentGroups) -> Tensor:
        used.append(len(documents.groups))
        return plain(attend, query, key, value, documents)

    changes = {"GROUP_SIZES": sizes, "GROUP_WORTH": 1e9, "UNGROUPED": 0, "attend_in_groups": noted}
    with mock.patch.multiple(kernels_lacuna, **changes):
        yield used


def packed(lengths: list[list[int]], *, hole: int | None = None) -> tuple[Tensor, Tensor]:
    """Positions that restart, and a mask with 0 for the padding at the end and at one place before it: [B, T]."""
    width = max(map(sum, lengths)) + (hole is not None)
    positions, mask = torch.zeros(len(lengths), width, dtype=torch.long), torch.zeros(len(lengths), width)
    for row, parts in enumerate(lengths):
        positions[row, : sum(parts)] = torch.cat([torch.arange(part) for part in parts])
        mask[row, : sum(parts)] = 1
    if hole is not None:
        mask[:, min(hole, width - 1)] = 0
        mask[:, 0] = 1
    return positions, mask.long()


@examples(60)
@given(
    config=configurations(head_dim=8),
    seed=st.integers(0, 2**20),
    lengths=LENGTHS,
    hole=st.none() | st.integers(0, 9),
)
def test_groups_equal_the_mask(config: LacunaConfig, seed: int, lengths: list[list[int]], hole: int | None) -> None:
    """Outputs and gradients, over random documents, windows, heads that are shared, padding and holes."""
    positions, mask = packed([[2, 3], *lengths], hole=hole)
    ids = random_tokens(*positions.shape, seed=seed)
    inputs = {"position_ids": positions, "attention_mask": mask}
    if config.is_encoder_decoder:
        inputs |= {f"decoder_{name}": value for name, value in inputs.items()} | {"decoder_input_ids": ids}
    options = {"use_cache": False} if config.shape != "encoder" else {}
    model = make_model(config, seed=seed)
    other = copy.deepcopy(model)
    is_real = mask.bool()
    expected = model(ids, **inputs, **options).logits[is_real]
    with grouped() as used:
        actual = other(ids, **inputs, **options).logits[is_real]
    # A hole where a document begins joins it to the one before; then there may be nothing to group.
    assert bool(used) == (find_documents(positions, mask) is not None) and 0 not in used
    assert_agree(actual, expected)
    weigh(expected).backward()
    weigh(actual).backward()
    assert_same_gradients(other, model)


@examples(60)
@given(
    lengths=LENGTHS, hole=st.none() | st.integers(0, 9), is_causal=st.booleans(), reach=st.sampled_from([None, 1, 4])
)
def test_groups_show_what_the_mask_shows(
    lengths: list[list[int]], hole: int | None, is_causal: bool, reach: int | None
) -> None:
    positions, mask = packed(lengths, hole=hole)
    documents = (positions == 0).cumsum(-1).masked_fill(mask == 0, -1)
    apart = torch.arange(documents.shape[1])[:, None] - torch.arange(documents.shape[1])
    expected = documents[:, :, None] == documents[:, None, :]
    expected &= (apart >= 0) if is_causal else True
    expected &= True if reach is None else apart.abs() <= reach
    with grouped():
        taken, slots, empty, groups = group_documents(documents, is_causal=is_causal, reach=reach)
    assert torch.equal(taken[slots], torch.arange(documents.numel()))
    assert sorted([*slots.tolist(), *empty.tolist()]) == list(range(len(taken)))
    shown = torch.zeros(documents.numel(), documents.numel(), dtype=torch.bool)
    own = torch.ones(len(taken), dtype=torch.bool).index_fill(0, empty, False)
    first = 0
    for count, length, visible in groups:
        for number in range(count):
            here = slice(first, first + length)
            seen = torch.ones(length, length, dtype=torch.bool) if visible is None else visible[number, 0]
            assert seen.any(-1).all(), "a slot that sees nothing has no softmax"
            assert not seen[:, ~own[here]].any(), "an empty slot is seen"
            tokens = taken[here]
            shown[tokens[own[here], None], tokens[own[here]]] |= seen[own[here]][:, own[here]]
            first += length
    assert torch.equal(shown, torch.block_diag(*expected).bool())


def test_little_is_computed_beside_the_scores_of_documents() -> None:
    documents = torch.arange(64).repeat_interleave(128).view(8, 1024)
    _, _, empty, groups = group_documents(documents)
    assert [(group.documents, group.length, group.visible) for group in groups] == [(64, 128, None)]
    assert len(empty) == 0
    assert group_documents(torch.zeros(2, 1024, dtype=torch.long)) is None
    assert group_documents(torch.tensor([[0] * 900 + [1] * 124])) is None


def masks_of(hidden_states: Tensor, *, implementation: str = "sdpa") -> Any:
    """What layers get for rows of eight documents."""
    config = LacunaConfig(shape="encoder", vocab_size=41, hidden_size=16, num_hidden_layers=1, num_attention_heads=2)
    config._attn_implementation = implementation
    positions = torch.arange(hidden_states.shape[1] // 8).repeat(hidden_states.shape[0], 8)
    masks, packing, _ = build_attention_masks(
        config=config,
        stack="encoder",
        hidden_states=hidden_states,
        attention_mask=None,
        position_ids=positions,
        past_key_values=None,
        is_causal=False,
    )
    assert packing == {}
    return masks["full_attention"]


def test_who_gets_groups() -> None:
    assert isinstance(masks_of(torch.zeros(2, 1024, 16)), DocumentGroups)
    for mask in (masks_of(torch.zeros(2, 512, 16)), masks_of(torch.zeros(2, 1024, 16), implementation="eager")):
        assert mask.shape == (2, 1, *[mask.shape[-1]] * 2)


@pytest.mark.parametrize("dropout", [0.0, 0.1])
def test_nothing_of_the_size_of_a_row_squared_is_made(dropout: float) -> None:
    class Largest(TorchDispatchMode):
        elements = 0

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            result = func(*args, **(kwargs or {}))
            for tensor in torch.utils._pytree.tree_leaves(result):
                self.elements = max(self.elements, tensor.numel() if isinstance(tensor, Tensor) else 0)
            return result

    config = LacunaConfig(
        shape="decoder",
        vocab_size=41,
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        attention_dropout=dropout,
    )
    model = make_model(config)
    model.train()
    positions = torch.arange(32).repeat(2, 32)
    with Largest() as seen, torch.autocast("cpu", torch.bfloat16):
        model(random_tokens(2, 1024, seed=0), position_ids=positions, use_cache=False).logits.sum().backward()
    assert seen.elements <= 2 * 1024 * 64
