"""Who sees whom, over random configurations: the future, padding, and documents packed into one row."""

import copy
from typing import Any

import pytest
import torch
from examples import examples
from hypothesis import given
from hypothesis import strategies as st
from random_models import (
    assert_agree,
    assert_same_gradients,
    configurations,
    make_model,
    other_ids,
    random_ids,
    segments_for,
    weigh,
)
from torch import Tensor
from transformers import DynamicCache, EncoderDecoderCache

from lacuna.modeling import LacunaConfig, LacunaModel
from lacuna.modeling.configuration_lacuna import SHAPES

IMPLEMENTATIONS = st.sampled_from(["sdpa", "eager"])
SEEDS = st.integers(0, 2**20)
WRITERS = ("decoder", "encoder-decoder")
DOCUMENTS = st.lists(st.integers(1, 6), min_size=1, max_size=4)  # lengths of the documents of one row


def run_alone(model: Any, ids: Tensor, source: Tensor | None, **arguments: Any) -> Any:
    """One document [T] by itself; `source` [S] is what the encoder of an encoder-decoder reads."""
    config = model.config
    if source is None:
        return model(ids[None], token_type_ids=segments_for(ids[None], config), **arguments)
    return model(
        source[None],
        token_type_ids=segments_for(source[None], config),
        decoder_input_ids=ids[None],
        **arguments,
    )


# ------------------------------------------------------------------------------------------------------------- future


@examples(25)
@given(config=configurations(WRITERS), implementation=IMPLEMENTATIONS, seed=SEEDS, cut=st.integers(1, 10))
def test_later_tokens_change_nothing_before_them(
    config: LacunaConfig, implementation: str, seed: int, cut: int
) -> None:
    model = make_model(config, seed=seed, implementation=implementation)
    ids, source = random_ids(11, seed=seed), random_ids(7, seed=seed + 1)
    changed = torch.cat((ids[:cut], other_ids(ids[cut:])))
    read = source if config.is_encoder_decoder else None
    with torch.no_grad():
        before, after = (run_alone(model, tokens, read).logits[0] for tokens in (ids, changed))
        assert_agree(after[:cut], before[:cut], tolerance=1e-6)
        assert not torch.allclose(after[cut:], before[cut:], atol=1e-3)
        if read is not None:  # Every token of the decoder sees every token of the encoder.
            source[-1] = other_ids(source[-1])
            moved = (run_alone(model, ids, source).logits[0] - before).abs().amax(-1)
            assert (moved > 0).all()


@examples(25)
@given(
    config=configurations(
        ("encoder", "encoder-decoder"), position_type="none", allowed_layer_types=["full_attention"]
    ),
    implementation=IMPLEMENTATIONS,
    seed=SEEDS,
)
def test_without_positions_the_order_of_the_text_that_is_read_does_not_matter(
    config: LacunaConfig, implementation: str, seed: int
) -> None:
    model = make_model(config, "LacunaModel", seed=seed, implementation=implementation)
    ids = random_ids(9, seed=seed)
    order = torch.randperm(9, generator=torch.Generator().manual_seed(seed))
    with torch.no_grad():
        if config.is_encoder_decoder:
            written = random_ids(4, seed=seed + 1)
            plain, permuted = (run_alone(model, written, source) for source in (ids, ids[order]))
            assert_agree(permuted.last_hidden_state, plain.last_hidden_state)
            states, moved = plain.encoder_last_hidden_state, permuted.encoder_last_hidden_state
        else:
            states, moved = (run_alone(model, tokens, None).last_hidden_state for tokens in (ids, ids[order]))
    assert_agree(moved, states[:, order])


# ------------------------------------------------------------------------------------------------------------ padding


def pad(rows: list[Tensor], *, left: bool, garbage: int) -> tuple[Tensor, Tensor, Tensor]:
    """Rows side by side: ids with `garbage` where nothing is, mask, and positions that count the real tokens."""
    width = max(len(row) for row in rows) + 1
    ids = torch.full((len(rows), width), garbage)
    mask = torch.zeros_like(ids)
    for index, row in enumerate(rows):
        place = slice(width - len(row), width) if left else slice(0, len(row))
        ids[index, place] = row
        mask[index, place] = 1
    return ids, mask, (mask.cumsum(-1) - 1).clamp(min=0)


@examples(40)
@given(
    config=configurations(),
    implementation=IMPLEMENTATIONS,
    seed=SEEDS,
    lengths=st.lists(st.tuples(st.integers(1, 9), st.integers(1, 9)), min_size=1, max_size=3),
    left=st.booleans(),
    garbage=st.sampled_from([0, 11]),
)
def test_padding_changes_nothing(
    config: LacunaConfig,
    implementation: str,
    seed: int,
    lengths: list[tuple[int, int]],
    left: bool,
    garbage: int,
) -> None:
    model = make_model(config, seed=seed, implementation=implementation)
    rows = [random_ids(length, seed=seed + index) for index, (length, _) in enumerate(lengths)]
    sources = [random_ids(length, seed=seed + 9 + index) for index, (_, length) in enumerate(lengths)]
    ids, mask, positions = pad(rows, left=left, garbage=garbage)
    read, read_mask, read_positions = pad(sources, left=left, garbage=garbage)
    with torch.no_grad():
        if config.is_encoder_decoder:
            logits = model(
                read,
                attention_mask=read_mask,
                token_type_ids=segments_for(read, config),
                position_ids=read_positions if left else None,
                decoder_input_ids=ids,
                decoder_attention_mask=mask,
                decoder_position_ids=positions if left else None,
            ).logits
        else:
            segments = segments_for(ids, config)
            logits = model(
                ids, attention_mask=mask, token_type_ids=segments, position_ids=positions if left else None
            ).logits
        assert torch.isfinite(logits).all()  # Also where a row of a sliding layer sees nothing but padding.
        for index, row in enumerate(rows):
            source = sources[index] if config.is_encoder_decoder else None
            assert_agree(logits[index, mask[index].bool()], run_alone(model, row, source).logits[0])


@pytest.mark.parametrize("shape", SHAPES)
def test_a_row_of_nothing_but_padding_harms_no_other(shape: str) -> None:
    """The last batch of a distributed run is filled up with such rows."""
    config = LacunaConfig(shape=shape, vocab_size=41, hidden_size=16, num_hidden_layers=1, num_attention_heads=2)
    for implementation in ("sdpa", "eager"):
        model = make_model(config, implementation=implementation).train()
        ids = random_ids(2, 6, seed=1)
        mask = torch.tensor([[1] * 6, [0] * 6])
        outputs = model(ids, attention_mask=mask)
        torch.testing.assert_close(outputs.logits[:1], model(ids[:1]).logits, atol=1e-5, rtol=0)
        weigh(outputs.logits[:1]).backward()
        assert all(torch.isfinite(p.grad).all() for p in model.parameters() if p.grad is not None)


# ------------------------------------------------------------------------------------------------------------ packing


def pack(rows: list[list[Tensor]], *, fill: bool, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """Documents one after another: ids, positions that restart, and mask. `fill`: a last document instead of padding.

    A row that is filled up has one more document than `rows` says.
    """
    width = max(sum(map(len, documents)) for documents in rows) + 2
    ids, positions, mask = (torch.zeros(len(rows), width, dtype=torch.long) for _ in range(3))
    for index, documents in enumerate(rows):
        used = sum(map(len, documents))
        rest = [random_ids(width - used, seed=seed + index)] if fill else []
        line = torch.cat((*documents, *rest))
        ids[index, : len(line)] = line
        mask[index, : len(line)] = 1
        positions[index, : len(line)] = torch.cat([torch.arange(len(part)) for part in (*documents, *rest)])
    return ids, positions, mask


def make_documents(lengths: list[list[int]], *, seed: int) -> list[list[Tensor]]:
    return [
        [random_ids(length, seed=seed + 10 * row + place) for place, length in enumerate(row_lengths)]
        for row, row_lengths in enumerate(lengths)
    ]


def new_cache(kind: str, config: LacunaConfig) -> Any:
    own = DynamicCache(config=config.get_text_config(decoder=True)) if kind == "configured" else DynamicCache()
    return EncoderDecoderCache(own, DynamicCache()) if config.is_encoder_decoder else own


CACHES = {
    "no": lambda config: {"use_cache": False},
    "asked": lambda config: {"use_cache": True},
    "default": lambda config: {},
    "given": lambda config: {"use_cache": True, "past_key_values": new_cache("plain", config)},
    "configured": lambda config: {"use_cache": True, "past_key_values": new_cache("configured", config)},
}


@examples(60)
@given(
    config=configurations(),
    implementation=IMPLEMENTATIONS,
    seed=SEEDS,
    lengths=st.lists(st.lists(st.tuples(st.integers(1, 6), st.integers(1, 6)), min_size=1, max_size=3), max_size=3),
    masked=st.sampled_from(["no mask", "all ones", "padding"]),
    cache=st.sampled_from(sorted(CACHES)),
)
def test_packed_rows_equal_documents_alone(
    config: LacunaConfig,
    implementation: str,
    seed: int,
    lengths: list[list[tuple[int, int]]],
    masked: str,
    cache: str,
) -> None:
    """Outputs and gradients; in an encoder-decoder the n-th document written sees the n-th document read."""
    packed_model = make_model(config, seed=seed, implementation=implementation)
    model = copy.deepcopy(packed_model)
    lengths = [[(2, 3), (4, 1)], *lengths]  # At least one row is packed: a decoder alone may not be.
    documents = make_documents([[first for first, _ in row] for row in lengths], seed=seed)
    sources = make_documents([[second for _, second in row] for row in lengths], seed=seed + 500)
    fill = masked != "padding"
    ids, positions, mask = pack(documents, fill=fill, seed=seed)
    given_mask = None if masked == "no mask" else mask
    arguments = CACHES[cache](config) if config.shape != "encoder" else {}
    if config.is_encoder_decoder:
        read, read_positions, read_mask = pack(sources, fill=fill, seed=seed + 1)
        arguments |= {
            "token_type_ids": segments_for(read, config),
            "attention_mask": None if masked == "no mask" else read_mask,
            "position_ids": read_positions,
            "decoder_input_ids": ids,
            "decoder_attention_mask": given_mask,
            "decoder_position_ids": positions,
        }
        logits = packed_model(read, **arguments).logits
    else:
        arguments |= {"attention_mask": given_mask, "token_type_ids": segments_for(ids, config)}
        logits = packed_model(ids, position_ids=positions, **arguments).logits

    packed_loss, loss = torch.zeros(()), torch.zeros(())
    for row, texts in enumerate(documents):
        start = 0
        for place, text in enumerate(texts):
            source = sources[row][place] if config.is_encoder_decoder else None
            expected = run_alone(model, text, source).logits[0]
            actual = logits[row, start : start + len(text)]
            assert_agree(actual, expected)
            packed_loss, loss = packed_loss + weigh(actual), loss + weigh(expected)
            start += len(text)
    packed_loss.backward()
    loss.backward()
    assert_same_gradients(packed_model, model)


@examples(15)
@given(config=configurations(("encoder-decoder",)), side=st.sampled_from(["encoder", "decoder"]))
def test_one_side_packed_and_the_other_not_is_refused(config: LacunaConfig, side: str) -> None:
    model = make_model(config, "LacunaModel")
    ids = random_ids(1, 6, seed=0)
    packed, single = torch.tensor([[0, 1, 2, 0, 1, 2]]), torch.arange(6)[None]
    read, written = (packed, single) if side == "encoder" else (single, packed)
    for cache in (True, False):
        with pytest.raises(ValueError, match=f"rows of the {side} hold several documents"):
            model(ids, position_ids=read, decoder_input_ids=ids, decoder_position_ids=written, use_cache=cache)


def test_the_properties_would_notice_a_leak() -> None:
    """Without the restarting positions the same rows do differ, by far more than the tolerance."""
    config = LacunaConfig(
        shape="decoder",
        vocab_size=41,
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        position_type="none",
    )
    model = make_model(config, "LacunaModel")
    assert isinstance(model, LacunaModel)
    first, second = random_ids(1, 3, seed=1), random_ids(1, 3, seed=2)
    both = torch.cat((first, second), dim=1)
    with torch.no_grad():
        leaking = model(both).last_hidden_state[:, 3:]
        alone = model(second).last_hidden_state
        apart = model(both, position_ids=torch.tensor([[0, 1, 2, 0, 1, 2]])).last_hidden_state[:, 3:]
    assert float((leaking - alone).abs().max()) > 0.1
    assert_agree(apart, alone)
