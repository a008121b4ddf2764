"""Single parts against hand-computed cases and the functions of torch."""

import math
import shutil

import pytest
import torch
from torch import nn

from lacuna.modeling import LacunaConfig, LacunaForMaskedLM, LacunaModel
from lacuna.modeling.attention_lacuna import LacunaRotaryEmbedding, apply_rotary
from lacuna.modeling.layers_lacuna import LacunaMLP, LacunaRMSNorm
from lacuna.modeling.masks_lacuna import _build_packed_cross_mask, build_attention_masks, find_documents

SMALL = {"vocab_size": 50, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}


def test_rms_norm_is_the_formula() -> None:
    norm = LacunaRMSNorm(3, eps=0.5)
    norm.weight.data = torch.tensor([1.0, 2.0, 3.0])
    states = torch.tensor([[3.0, 0.0, -4.0]])
    root = math.sqrt(25 / 3 + 0.5)
    torch.testing.assert_close(norm(states), torch.tensor([[3 / root, 0.0, -12 / root]]))
    assert norm(states.bfloat16()).dtype == torch.bfloat16


def test_rotary_turns_pairs_by_position_times_frequency() -> None:
    config = LacunaConfig(**SMALL, head_dim=4, rope_parameters={"rope_theta": 100.0})
    cosines, sines = LacunaRotaryEmbedding(config)(torch.zeros(1), torch.tensor([[0, 3]]))
    turned = apply_rotary(torch.tensor([1.0, 2.0, 3.0, 4.0]).expand(1, 1, 2, 4), cosines, sines)[0, 0]
    assert turned[0].tolist() == [1.0, 2.0, 3.0, 4.0]
    expected = torch.zeros(4)
    for pair, frequency in ((0, 1.0), (1, 0.1)):  # theta^(-2i/D) = 100^0 and 100^(-1/2)
        a, b, angle = pair + 1.0, pair + 3.0, 3 * frequency
        expected[pair] = a * math.cos(angle) - b * math.sin(angle)
        expected[pair + 2] = b * math.cos(angle) + a * math.sin(angle)
    torch.testing.assert_close(turned[1], expected)


def test_rotary_leaves_the_rest_of_a_partly_turned_head_alone() -> None:
    states = torch.randn(1, 2, 5, 8)
    angles = torch.randn(1, 5, 2)
    signed = torch.cat((-angles, angles), dim=-1)
    turned = apply_rotary(states, signed.cos(), signed.sin())
    assert torch.equal(turned[..., 4:], states[..., 4:])
    torch.testing.assert_close(turned.norm(dim=-1), states.norm(dim=-1))


def test_rotary_scores_depend_on_distance_only() -> None:
    rotary = LacunaRotaryEmbedding(LacunaConfig(**SMALL))
    query, key = torch.randn(1, 1, 1, 8), torch.randn(1, 1, 1, 8)
    scores = []
    for shift in (0, 11, 400):
        first = apply_rotary(query, *rotary(query, torch.tensor([[5 + shift]])))
        second = apply_rotary(key, *rotary(key, torch.tensor([[2 + shift]])))
        scores.append((first * second).sum())
    torch.testing.assert_close(torch.stack(scores), scores[0].expand(3), atol=1e-4, rtol=1e-4)


def test_frequencies_stay_float32_when_the_model_is_cast() -> None:
    config = LacunaConfig.from_family("modernbert", **SMALL)
    expected = {name: buffer.clone() for name, buffer in LacunaModel(config).named_buffers()}
    model = LacunaModel(config).to(torch.bfloat16).half().double()
    assert expected and all(torch.equal(buffer, expected[name]) for name, buffer in model.named_buffers())


def test_gated_feed_forward_is_the_formula() -> None:
    mlp = LacunaMLP(LacunaConfig(**SMALL, hidden_act="silu", intermediate_size=12))
    states = torch.randn(2, 3, 16)
    gate = states @ mlp.gate_proj.weight.T
    expected = (gate * torch.sigmoid(gate) * (states @ mlp.up_proj.weight.T)) @ mlp.down_proj.weight.T
    torch.testing.assert_close(mlp(states), expected, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize(
    ("positions", "mask", "expected"),
    [
        ([[0, 1, 2, 3]], None, None),
        ([[0, 1, 0, 1]], None, [[1, 1, 2, 2]]),
        ([[0, 1, 2, 3], [0, 0, 0, 1]], None, [[1, 1, 1, 1], [1, 2, 3, 3]]),
        ([[0, 1, 0, 0]], [[1, 1, 0, 0]], None),  # one document and padding
        ([[0, 0, 0, 1]], [[0, 0, 1, 1]], None),  # padding on the left, numbered as `generate` does
        ([[1, 1, 0, 1]], [[0, 0, 1, 1]], None),
        ([[0, 1, 0, 0]], [[1, 1, 1, 0]], [[1, 1, 2, -1]]),
        ([[0, 1, 0, 0]], [[1, 1, 0, 1]], [[1, 1, -1, 2]]),  # padding between documents
        ([[5, 6, 7, 8]], None, None),  # the middle of a document
        ([[5, 6, 0, 1]], None, [[0, 0, 1, 1]]),  # the end of one and the start of another
        ([[0]], None, None),
    ],
)
def test_find_documents(positions: list, mask: list | None, expected: list | None) -> None:
    found = find_documents(torch.tensor(positions), None if mask is None else torch.tensor(mask))
    assert (None if found is None else found.tolist()) == expected


@pytest.mark.parametrize("family", ["modernbert", "qwen3"])
def test_no_mask_is_built_when_none_is_needed(family: str) -> None:
    config = LacunaModel(LacunaConfig.from_family(family, **SMALL)).config
    states = torch.zeros(2, 20, 16)
    for mask in (None, torch.ones(2, 20, dtype=torch.long)):
        arguments = {"config": config, "hidden_states": states, "attention_mask": mask, "past_key_values": None}
        for positions in (None, torch.arange(20).expand(2, -1)):
            masks, packing, documents = build_attention_masks(
                **arguments, stack=config.shape, position_ids=positions, is_causal=config.is_decoder
            )
            assert documents is None
            assert set(masks) == set(config.layer_types)
            assert all(value is None for value in masks.values())
            assert packing == {}


def test_packed_mask_by_hand() -> None:
    config = LacunaConfig(
        **{**SMALL, "shape": "decoder"}, layer_types=["full_attention", "sliding_attention"], sliding_window=2
    )
    config._attn_implementation = "sdpa"
    masks, _, documents = build_attention_masks(
        config=config,
        stack="decoder",
        is_causal=True,
        hidden_states=torch.zeros(1, 5, 16),
        attention_mask=None,
        position_ids=torch.tensor([[0, 1, 2, 0, 1]]),
        past_key_values=None,
    )
    assert documents is not None and documents.tolist() == [[1, 1, 1, 2, 2]]
    full = [[1, 0, 0, 0, 0], [1, 1, 0, 0, 0], [1, 1, 1, 0, 0], [0, 0, 0, 1, 0], [0, 0, 0, 1, 1]]
    sliding = [[1, 0, 0, 0, 0], [1, 1, 0, 0, 0], [0, 1, 1, 0, 0], [0, 0, 0, 1, 0], [0, 0, 0, 1, 1]]
    assert masks["full_attention"][0, 0].int().tolist() == full
    assert masks["sliding_attention"][0, 0].int().tolist() == sliding


def test_flash_kernels_get_the_bounds_of_documents() -> None:
    config = LacunaConfig(**SMALL)
    config._attn_implementation = "flash_attention_2"  # the kernels are not needed to say where documents end
    masks, packing, _ = build_attention_masks(
        config=config,
        stack="encoder",
        is_causal=False,
        hidden_states=torch.zeros(2, 5, 16),
        attention_mask=torch.tensor([[1, 1, 1, 1, 0], [1, 1, 1, 1, 1]]),
        position_ids=torch.tensor([[0, 1, 0, 1, 0], [0, 1, 2, 3, 4]]),
        past_key_values=None,
    )
    assert masks == {"full_attention": None}
    assert packing["cu_seq_lens_q"].tolist() == packing["cu_seq_lens_k"].tolist() == [0, 2, 4, 5, 10]
    assert packing["max_length_q"] == packing["max_length_k"] == 5


def test_flash_kernels_in_cross_attention_need_as_many_documents_on_both_sides() -> None:
    config = LacunaConfig(**SMALL)
    config._attn_implementation = "flash_attention_2"
    target, source = torch.tensor([[1, 1, 2]]), torch.tensor([[1, 2, 2, 2]])
    mask, packing = _build_packed_cross_mask({"config": config}, target, source)
    assert mask is None
    assert (packing["cu_seq_lens_q"].tolist(), packing["cu_seq_lens_k"].tolist()) == ([0, 2, 3], [0, 1, 4])
    with pytest.raises(ValueError, match="different numbers of documents"):
        _build_packed_cross_mask({"config": config}, target, torch.ones_like(source))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"input_ids": torch.tensor([[7, 50]])}, "input_ids contains 50, and vocab_size=50 allows 0 to 49"),
        ({"input_ids": torch.tensor([[-1, 4]])}, "input_ids contains -1"),
        (
            {"input_ids": torch.ones(1, 9, dtype=torch.long)},
            "a row of 9 tokens is longer than max_position_embeddings=8",
        ),
        (
            {"input_ids": torch.tensor([[7, 8]]), "position_ids": torch.tensor([[0, 8]])},
            "position_ids contains 8, and max_position_embeddings=8 allows 0 to 7",
        ),
        (
            {"input_ids": torch.tensor([[7, 8]]), "token_type_ids": torch.tensor([[0, 2]])},
            "token_type_ids contains 2, and type_vocab_size=2",
        ),
        ({"input_ids": torch.tensor([[7, 8]]), "labels": torch.tensor([[7]])}, r"labels has the shape \(1, 1\)"),
    ],
)
def test_numbers_outside_the_tables_are_refused(arguments: dict, message: str) -> None:
    model = LacunaForMaskedLM(LacunaConfig.from_family("bert", **SMALL, max_position_embeddings=8))
    for mode in (True, False):
        with pytest.raises(ValueError, match=message):
            model.train(mode)(**arguments)


class Wrapped(nn.Module):
    """An embedding inside an adapter: its weight is there, its other attributes are not."""

    def __init__(self, table: nn.Embedding) -> None:
        super().__init__()
        self.base_layer = table

    @property
    def weight(self) -> torch.Tensor:
        return self.base_layer.weight

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.base_layer(ids)


def test_embeddings_may_be_wrapped() -> None:
    config = LacunaConfig(**SMALL, position_type="learned", type_vocab_size=2, max_position_embeddings=9)
    model, ids = LacunaModel(config).eval(), torch.tensor([[5, 6, 7]])
    plain, parts = model(ids).last_hidden_state, model.encoder.embeddings
    for name in ("embed_tokens", "embed_positions", "embed_segments"):
        setattr(parts, name, Wrapped(getattr(parts, name)))
    assert torch.equal(model(ids).last_hidden_state, plain)
    with pytest.raises(ValueError, match="input_ids contains 50"):
        model(ids + 45)


@pytest.mark.slow  # test_graphs.py has the fast ones
def test_compiles_in_one_graph_and_exports() -> None:
    model = LacunaForMaskedLM(LacunaConfig.from_family("modernbert", **SMALL)).eval()
    compiled = torch.compile(model, fullgraph=True, backend="eager")
    ids = torch.randint(5, 50, (2, 12))
    packed = torch.cat((torch.arange(5), torch.arange(7))).expand(2, -1)
    for arguments in ({}, {"attention_mask": torch.ones_like(ids)}, {"position_ids": packed}):
        torch.testing.assert_close(compiled(ids, **arguments).logits, model(ids, **arguments).logits)
    exported = torch.export.export(model, (ids,), strict=False)
    torch.testing.assert_close(exported.module()(ids).logits, model(ids).logits)


@pytest.mark.slow  # 25 s: torch compiles the kernel
@pytest.mark.skipif(shutil.which("g++") is None, reason="flex attention on a CPU needs a compiler")
def test_flex_attention_agrees() -> None:
    model = LacunaForMaskedLM(LacunaConfig.from_family("modernbert", **{**SMALL, "sliding_window": 3})).eval()
    assert isinstance(model.model.encoder.layers[0].attention_norm, nn.Identity)
    ids = torch.randint(5, 50, (2, 12))
    packed = torch.cat((torch.arange(5), torch.arange(7))).expand(2, -1)
    with torch.no_grad():
        expected = model(ids, position_ids=packed).logits
        model.set_attn_implementation("flex_attention")
        torch.testing.assert_close(model(ids, position_ids=packed).logits, expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(
    "positions", [[0, 1, 2, 0, 1, 0, 1, 2], [5, 6, 7, 8, 9, 10, 11, 12], [0, 1, -1, 0, 1, 2, 3, 0]]
)
def test_rows_of_repeating_positions_are_turned_to_the_same_bits(positions: list[int]) -> None:
    rotary = LacunaRotaryEmbedding(LacunaConfig.from_family("qwen3", vocab_size=64))
    states = torch.zeros(1, dtype=torch.bfloat16)
    one_by_one = rotary(states, torch.tensor([positions]))
    of_many = rotary(states, torch.tensor([positions] * 16))
    for row, rows in zip(one_by_one, of_many, strict=True):
        assert torch.equal(row.expand_as(rows), rows)
