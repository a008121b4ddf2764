"""Numbers against formulas written out by hand: attention scores, positions, activations, caps, initial weights."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from random_models import LANGUAGE_HEADS, assert_agree, make_model, random_ids, segments_for, weigh
from torch import Tensor, nn

from lacuna import modeling
from lacuna.modeling import LacunaConfig, LacunaModel
from lacuna.modeling.attention_lacuna import apply_rotary, sinusoidal_positions, weigh_values
from lacuna.modeling.configuration_lacuna import SHAPES
from lacuna.modeling.kernels_lacuna import group_documents
from lacuna.modeling.layers_lacuna import LacunaAttention, LacunaLayer, LacunaRMSNorm, build_norm

VOCAB = 41
SMALL = {
    "vocab_size": VOCAB, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 5, "intermediate_size": 24, "max_position_embeddings": 32,
    "position_type": "none",
}  # fmt: skip
BY_SHAPE = list(LANGUAGE_HEADS.items())
SCORES = ("scaled_dot_product", "dot_product")


def small(shape: str = "encoder", **fields: Any) -> LacunaConfig:
    return LacunaConfig(**{**SMALL, "shape": shape, **fields})


def table_of(model: Any) -> nn.Embedding:
    return model.get_input_embeddings()


# --------------------------------------------------------------------------------------------------- attention scores


def score_by_hand(attention: Any, query: Tensor, key: Tensor) -> Tensor:
    """One score of one query [D] and one key [D], a sum over the dimensions of a head."""
    product = torch.stack([query[i] * key[i] for i in range(len(query))]).sum()
    return product if attention.config.attention_score == "dot_product" else product / math.sqrt(len(query))


def attend_by_hand(attention: Any, states: Tensor, seen: Tensor, visible: Tensor) -> tuple[Tensor, Tensor]:
    """One query after the other: states [B, T, C] look at `seen` [B, S, C] where `visible` [B, T, S] says so."""
    config = attention.config
    group = config.num_attention_heads // config.num_key_value_heads
    rows, weights = [], torch.zeros(states.shape[0], config.num_attention_heads, states.shape[1], seen.shape[1])
    for row in range(states.shape[0]):
        for token in range(states.shape[1]):
            parts = []
            for head in range(config.num_attention_heads):
                of_query = slice(head * config.head_dim, (head + 1) * config.head_dim)
                of_key = slice((head // group) * config.head_dim, (head // group + 1) * config.head_dim)
                query = attention.q_proj(states[row, token])[of_query]
                others = [other for other in range(seen.shape[1]) if visible[row, token, other]]
                scores = [
                    score_by_hand(attention, query, attention.k_proj(seen[row, other])[of_key]) for other in others
                ]
                exponentials = [score.exp() for score in scores]
                shares = [exponential / sum(exponentials) for exponential in exponentials]
                values = [attention.v_proj(seen[row, other])[of_key] for other in others]
                parts.append(sum(share * value for share, value in zip(shares, values, strict=True)))
                for other, share in zip(others, shares, strict=True):
                    weights[row, head, token, other] = share.detach()
            rows.append(attention.o_proj(torch.cat(parts)))
    return torch.stack(rows).view(states.shape), weights


def listen(model: nn.Module) -> list[tuple[LacunaAttention, Tensor, Tensor, Tensor, Tensor]]:
    """Fill the list with what each attention of `model` reads, sees, returns and weighs in the next pass."""
    heard: list[tuple[LacunaAttention, Tensor, Tensor, Tensor, Tensor]] = []

    def note(module: Any, given: tuple[Tensor], named: dict[str, Any], returned: tuple[Tensor, Tensor]) -> None:
        heard.append((module, given[0], named["encoder_hidden_states"] if module.is_cross else given[0], *returned))

    for module in model.modules():
        if isinstance(module, LacunaAttention):
            module.register_forward_hook(note, with_kwargs=True)
    return heard


@pytest.mark.parametrize("key_value_heads", [4, 2, 1])
@pytest.mark.parametrize("score", SCORES)
def test_textbook_attention_is_the_formula_in_every_place_of_a_model(score: str, key_value_heads: int) -> None:
    """In the encoder, the decoder and between them, with padding on either side."""
    fields = {"num_key_value_heads": key_value_heads, "num_hidden_layers": 1, "head_dim": 3, "attention_bias": True}
    config = small("encoder-decoder", attention_score=score, **fields)
    model = make_model(config, "LacunaModel", seed=3, implementation="eager")
    read_mask = torch.tensor([[0, 1, 1, 1], [1, 1, 1, 1]])
    written_mask = torch.tensor([[1, 1, 1], [1, 1, 0]])
    heard = listen(model)
    with torch.no_grad():
        model(
            random_ids(2, 4, seed=0),
            attention_mask=read_mask,
            decoder_input_ids=random_ids(2, 3, seed=1),
            decoder_attention_mask=written_mask,
        )
        assert len(heard) == 3
        for attention, states, seen, output, weights in heard:
            mask = written_mask if attention.is_causal else read_mask
            visible = mask.bool()[:, None, :].expand(-1, states.shape[1], -1)
            visible = visible.tril() if attention.is_causal else visible
            expected, expected_weights = attend_by_hand(attention, states, seen, visible)
            assert_agree(output, expected)
            assert_agree(weights, expected_weights)
            assert not weights.masked_select(~visible[:, None]).any()


@pytest.mark.parametrize("is_cross", [False, True])
@pytest.mark.parametrize("score", SCORES)
def test_gradients_of_attention_are_those_of_the_formula(score: str, is_cross: bool) -> None:
    model = make_model(small("encoder-decoder", attention_score=score, head_dim=3), "LacunaModel", seed=1)
    layer = model.decoder.layers[1]
    attention = layer.cross_attention if is_cross else layer.attention
    generator = torch.Generator().manual_seed(0)
    states, seen = torch.randn(2, 3, 16, generator=generator), torch.randn(2, 4, 16, generator=generator)
    if not is_cross:
        seen = states
    visible = torch.ones(2, 3, seen.shape[1], dtype=torch.bool)
    visible[0, :, -1] = False
    arguments = {"encoder_hidden_states": seen} if is_cross else {}
    output, _ = attention(states, attention_mask=visible[:, None], **arguments)
    expected, _ = attend_by_hand(attention, states, seen, visible)
    parameters = dict(attention.named_parameters())
    actual = torch.autograd.grad(weigh(output), list(parameters.values()))
    by_hand = torch.autograd.grad(weigh(expected), list(parameters.values()))
    for name, gradient, wanted in zip(parameters, actual, by_hand, strict=True):
        assert wanted.any(), name
        assert_agree(gradient, wanted)


# ----------------------------------------------------------------------------------------- positions and embeddings


@pytest.mark.parametrize("size", [16, 17, 1])
def test_sinusoidal_positions_are_the_formula_of_2017(size: int) -> None:
    positions = [0, 1, 2, 31, 500, 8000]
    actual = sinusoidal_positions(torch.tensor([positions]), size=size)
    assert actual.dtype == torch.float32 and actual.shape == (1, len(positions), size)
    for place, position in enumerate(positions):
        for dimension in range(size):
            angle = position / 10_000 ** (2 * (dimension // 2) / size)
            expected = math.cos(angle) if dimension % 2 else math.sin(angle)
            # What rounding an angle to float32, after a power and a quotient, can change.
            assert abs(float(actual[0, place, dimension]) - expected) <= 1e-6 + position * 2**-21


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("scaled", [False, True])
def test_embeddings_are_scaled_before_positions_are_added(shape: str, scaled: bool) -> None:
    config = small(shape, position_type="sinusoidal", scale_embedding=scaled, embedding_norm=False)
    model = make_model(config)
    assert model.lm_head.weight is table_of(model).weight
    ids = random_ids(2, 6, seed=0)
    vectors = table_of(model).weight[ids] * (4.0 if scaled else 1.0)
    expected = vectors + sinusoidal_positions(torch.arange(6)[None], size=16)
    for stack in (model.model.encoder, model.model.decoder):
        if stack is not None:
            assert_agree(stack.embeddings(ids, position_ids=torch.arange(6)[None]), expected, tolerance=1e-6)
    assert torch.equal(table_of(model)(ids), vectors)  # so that they may be given in place of the ids
    assert_agree(model.lm_head(torch.eye(16)) - model.lm_head(torch.zeros(16)), table_of(model).weight.T)


@pytest.mark.parametrize("by_type", [False, True])
def test_a_part_of_a_head_is_turned(by_type: bool) -> None:
    """The first half, by the angles of a head of that size (theta 100); the rest stays."""
    entry: dict[str, Any] = {"rope_type": "default", "rope_theta": 100.0, "partial_rotary_factor": 0.5}
    parameters = {"full_attention": entry} if by_type else entry
    model = make_model(small(head_dim=8, position_type="rotary", rope_parameters=parameters), "LacunaModel")
    assert isinstance(model, LacunaModel)
    positions = torch.tensor([[0, 1, 7]])
    angles = model.encoder.rotate(torch.zeros(1, 3, 16), positions)["full_attention"]
    states = torch.randn(1, 2, 3, 8, generator=torch.Generator().manual_seed(0))
    expected = states.clone()
    for place, position in enumerate(positions[0].tolist()):
        for pair in range(2):
            cosine, sine = (turn(position * 100.0 ** (-pair / 2)) for turn in (math.cos, math.sin))
            first, second = states[0, :, place, pair], states[0, :, place, pair + 2]
            expected[0, :, place, pair] = first * cosine - second * sine
            expected[0, :, place, pair + 2] = second * cosine + first * sine
    assert_agree(apply_rotary(states, *angles), expected)


@pytest.mark.parametrize("shape", SHAPES)
def test_positions_are_counted_from_the_offset(shape: str) -> None:
    config = small(shape, position_type="learned", position_offset=3, max_position_embeddings=6, embedding_norm=False)
    model = make_model(config, "LacunaModel")
    ids = random_ids(2, 6, seed=0)
    for stack in (model.encoder, model.decoder):
        if stack is None:
            continue
        table = stack.embeddings.embed_positions
        assert table.weight.shape == (9, 16)
        actual = stack.embeddings(ids, position_ids=torch.tensor([[0, 1, 2, 5, 5, 0]]))
        assert_agree(actual, table_of(model).weight[ids] + table.weight[[3, 4, 5, 8, 8, 3]], tolerance=1e-6)
        weigh(stack(ids, encoder_hidden_states=torch.ones(2, 2, 16)).last_hidden_state).backward()
        assert not table.weight.grad[:3].any()
        assert table.weight.grad[3:].any(dim=-1).all()


def test_segments_are_added_and_absent_ones_are_the_first() -> None:
    config = small("encoder-decoder", type_vocab_size=3, embedding_norm=False)
    model = make_model(config, "LacunaModel")
    ids, positions = random_ids(2, 6, seed=0), torch.arange(6)[None]
    segments = segments_for(ids, config)
    embeddings = model.encoder.embeddings
    assert model.decoder.embeddings.embed_segments is None
    table = embeddings.embed_segments.weight
    expected = table_of(model).weight[ids]
    told = embeddings(ids, position_ids=positions, token_type_ids=segments)
    assert_agree(told, expected + table[segments], tolerance=1e-6)
    assert_agree(embeddings(ids, position_ids=positions), expected + table[0], tolerance=1e-6)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("frozen", [True, False])
def test_padding_learns_from_being_read_only_when_it_may(shape: str, frozen: bool) -> None:
    config = small(shape, freeze_padding=frozen, pad_token_id=7)
    torch.manual_seed(0)
    model = LacunaModel(config)
    assert table_of(model).weight[7].any() != frozen
    ids = random_ids(3, 9, seed=0)
    ids[:, 2] = 7
    weigh(model(ids).last_hidden_state).backward()
    read = table_of(model).weight.grad.any(dim=-1)
    assert bool(read[7]) != frozen
    assert read[ids[ids != 7].unique()].all()


# ------------------------------------------------------------------------------------- feed-forward and large numbers

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": lambda x: torch.where(x > 0, x, 0.0),
    "relu2": lambda x: torch.where(x > 0, x * x, 0.0),
    "gelu": lambda x: x * (1 + torch.erf(x / math.sqrt(2))) / 2,
    "gelu_new": lambda x: x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))) / 2,
    "silu": lambda x: x / (1 + torch.exp(-x)),
    "tanh": lambda x: (torch.exp(2 * x) - 1) / (torch.exp(2 * x) + 1),
}


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize("name", sorted(ACTIVATIONS))
def test_feed_forward_is_the_formula(name: str, gated: bool, bias: bool) -> None:
    model = make_model(small(hidden_act=name, gated_mlp=gated, mlp_bias=bias), "LacunaModel")
    mlp = model.encoder.layers[0].mlp
    states = torch.randn(2, 3, 16, generator=torch.Generator().manual_seed(0)) * 2

    def affine(projection: nn.Linear, x: Tensor) -> Tensor:
        product = torch.einsum("oi,bti->bto", projection.weight.double(), x)
        return product if projection.bias is None else product + projection.bias.double()

    assert [projection.bias is not None for projection in (mlp.up_proj, mlp.down_proj)] == [bias, bias]
    up = affine(mlp.up_proj, states.double())
    inner = ACTIVATIONS[name](affine(mlp.gate_proj, states.double())) * up if gated else ACTIVATIONS[name](up)
    assert_agree(mlp(states).double(), affine(mlp.down_proj, inner))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("norm_type", ["rms_norm", "layer_norm"])
def test_norms_of_large_numbers_are_right(norm_type: str, dtype: torch.dtype) -> None:
    """The squares of these are beyond float16."""
    norm = build_norm(small(norm_type=norm_type)).to(dtype)
    states = (torch.linspace(-6e4, 5e4, 48).view(3, 16)).to(dtype)
    exact = states.double()
    if norm_type == "rms_norm":
        assert isinstance(norm, LacunaRMSNorm)
        expected = exact / (exact.square().mean(-1, keepdim=True) + 1e-5).sqrt()
    else:
        centred = exact - exact.mean(-1, keepdim=True)
        expected = centred / (centred.square().mean(-1, keepdim=True) + 1e-5).sqrt()
    actual = norm(states)
    assert actual.dtype == dtype
    assert_agree(actual.double(), expected, tolerance=float(torch.finfo(dtype).eps))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("kind", ["no mask", "boolean", "added"])
def test_softmax_of_large_scores_is_finite(kind: str, dtype: torch.dtype) -> None:
    module = nn.Module().eval()
    scores = torch.tensor([[6e4, 5e4, -6e4], [-6e4, -6e4, -6e4], [-40.0, -41.0, -42.0]]).to(dtype)[None, None]
    visible = torch.tensor([[True, True, False], [True, False, False], [False, False, False]])[None, None]
    added = torch.zeros(1, 1, 3, 3, dtype=dtype).masked_fill(~visible, torch.finfo(dtype).min)
    mask = {"no mask": None, "boolean": visible, "added": added}[kind]
    value = torch.eye(3, dtype=dtype)[None, None]
    output, weights = weigh_values(module, scores, value, mask, 0.0)
    assert torch.isfinite(output).all()  # of a row that sees nothing as well: a NaN would spread through later layers
    assert_agree(weights.float().sum(-1), torch.ones(1, 1, 3), tolerance=0.01)
    if mask is not None:
        assert not weights[..., :2, :].masked_select(~visible[..., :2, :]).any()
    assert weights[0, 0, 0].tolist() == [1, 0, 0]


# ------------------------------------------------------------------------------------------------------------- dropout


def constant(module: nn.Module, **biases: float) -> nn.Module:
    """The module in training, with weights of zero and those biases: what it returns does not depend on its input."""
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            parameter.fill_(biases.get(name, 0.0))
    torch.manual_seed(0)
    return module.train()


def assert_dropped(states: Tensor, *, kept: float, rate: float = 0.25) -> None:
    """Some of the numbers are zero and all others `kept`; 20,000 of them are four standard errors or more."""
    assert states.numel() >= 20_000
    assert abs(float((states == 0).float().mean()) - rate) < 4 * math.sqrt(rate * (1 - rate) / 20_000)
    assert_agree(states[states != 0], torch.full_like(states[states != 0], kept))


@pytest.mark.parametrize("kind", ["eager", "sdpa", "groups"])
def test_attention_weights_are_dropped_at_their_rate(kind: str) -> None:
    """Equal weights of 64 tokens; with values that are unit vectors, the output is the weights themselves."""
    size, seen = 64, 32 if kind == "groups" else 64
    one_head = {"hidden_size": size, "head_dim": size, "num_attention_heads": 1, "num_key_value_heads": 1}
    config = small(**one_head, attention_dropout=0.25)
    config._attn_implementation = "sdpa" if kind == "groups" else kind
    attention = constant(LacunaAttention(config, 0, stack="encoder"))
    for projection in (attention.v_proj, attention.o_proj):
        nn.init.eye_(projection.weight)
    states = torch.eye(size).expand(10, -1, -1)
    documents = torch.arange(size).expand(10, -1) // seen
    mask = group_documents(documents) if kind == "groups" else None
    visible = documents[:, :, None] == documents[:, None, :]
    found = attention(states, attention_mask=mask)[0]
    assert_dropped(found[visible], kept=1 / (0.75 * seen))
    assert not found[~visible].any()
    assert_agree(attention.eval()(states, attention_mask=mask)[0], visible / seen)


@pytest.mark.parametrize("placement", ["pre", "post"])
def test_what_each_part_of_a_block_adds_is_dropped_at_its_rate(placement: str) -> None:
    """Attention adds 1, cross-attention 10, the feed-forward part 100."""
    biases = {"attention.o_proj.bias": 1.0, "cross_attention.o_proj.bias": 10.0, "mlp.down_proj.bias": 100.0}
    fields = {"attention_bias": True, "mlp_bias": True, "norm_placement": placement, "hidden_dropout": 0.25}
    blocks = [
        layer for layer in LacunaModel(small("encoder-decoder", **fields)).modules() if type(layer) is LacunaLayer
    ]
    assert len(blocks) == 4
    for block in blocks:
        constant(block, **biases)
        for name in ("attention_norm", "cross_attention_norm", "mlp_norm"):
            setattr(block, name, nn.Identity())
        states = torch.zeros(20, 64, 16)
        added = (0.75 * block(states, states)).round()
        for digit in (1, 10, 100):
            if digit != 10 or block.cross_attention is not None:
                assert_dropped(added // digit % 10, kept=1)
        assert_agree(
            block.eval()(states, states), torch.full_like(states, 101 if block.cross_attention is None else 111)
        )


def test_embeddings_and_activations_are_dropped_at_their_rate() -> None:
    fields = {"hidden_act": "relu", "gated_mlp": False, "mlp_bias": True, "intermediate_size": 16}
    rates = {"embedding_dropout": 0.25, "activation_dropout": 0.25}
    model = LacunaModel(small(embedding_norm=False, **fields, **rates))
    embeddings = constant(model.encoder.embeddings, **{"embed_tokens.weight": 1.0})
    assert_dropped(embeddings(random_ids(20, 64, seed=0), position_ids=torch.arange(64)[None]), kept=1 / 0.75)
    mlp = constant(model.encoder.layers[0].mlp, **{"up_proj.bias": 1.0})
    nn.init.eye_(mlp.down_proj.weight)
    assert_dropped(mlp(torch.zeros(20, 64, 16)), kept=1 / 0.75)


@pytest.mark.parametrize("rates", [{"classifier_dropout": 0.25}, {"hidden_dropout": 0.25}])
def test_what_the_last_projection_of_a_task_head_reads_is_dropped_at_its_rate(rates: dict[str, float]) -> None:
    for head in (modeling.LacunaForSequenceClassification, modeling.LacunaForTokenClassification):
        assert_dropped(
            head(small(classifier_transform="none", **rates)).train().prepare(torch.ones(20, 64, 16)), kept=1 / 0.75
        )


# ----------------------------------------------------------------------------------------------------- initial weights

WIDE = {
    **SMALL, "hidden_size": 64, "intermediate_size": 96, "vocab_size": 300, "head_dim": 16, "attention_bias": True,
    "mlp_bias": True, "prediction_bias": True, "norm_bias": True, "position_type": "learned", "type_vocab_size": 50,
    "tie_word_embeddings": False, "num_labels": 60,
}  # fmt: skip
TASKS = [
    ("encoder", "LacunaForSequenceClassification"),
    ("decoder", "LacunaForQuestionAnswering"),
    ("encoder", "LacunaForMultipleChoice"),
]
INITIALIZATIONS = ["normal", "depth_scaled", "truncated_normal", "xavier_uniform"]
# What cutting a normal distribution at three standard deviations leaves of its own.
CUT = math.sqrt(1 - 6 * math.exp(-4.5) / math.sqrt(2 * math.pi) / math.erf(3 / math.sqrt(2)))


def fresh(head: str, shape: str, **fields: Any) -> Any:
    torch.manual_seed(0)
    return getattr(modeling, head)(LacunaConfig(**{**WIDE, "shape": shape, **fields}))


def expected_std(name: str, weight: Tensor, config: LacunaConfig) -> float:
    """Standard deviation of a matrix as it starts, by its name, written out for each distribution."""
    std, kind = config.initializer_range, config.initialization
    is_last = name in ("classifier.weight", "qa_outputs.weight", "score.weight")
    if kind == "xavier_uniform":
        return config.hidden_size**-0.5 if ".embed_" in name else math.sqrt(2 / sum(weight.shape))
    if kind == "truncated_normal" and is_last:
        return CUT * config.hidden_size**-0.5
    if kind == "truncated_normal" and name == "transform.dense.weight":
        return CUT * std / math.sqrt(2 * config.num_hidden_layers)
    if kind != "normal" and name.endswith(("o_proj.weight", "down_proj.weight")):
        paired = config.is_encoder_decoder and ".decoder." in name
        std /= math.sqrt(3 * config.num_decoder_layers if paired else 2 * config.num_hidden_layers)
    return CUT * std if kind == "truncated_normal" else std


@pytest.mark.parametrize("kind", INITIALIZATIONS)
@pytest.mark.parametrize(("shape", "head"), [*BY_SHAPE, *TASKS])
def test_weights_start_as_the_formula_says(shape: str, head: str, kind: str) -> None:
    paired = {"num_decoder_layers": 3} if shape == "encoder-decoder" else {}
    # 64^-0.5 = 0.125: a distribution is chosen by what a matrix is for, not by its standard deviation.
    for std in (0.03, 0.125):
        model = fresh(head, shape, initialization=kind, initializer_range=std, **paired)
        for name, weight in model.named_parameters():
            weight = weight.detach()
            if weight.dim() == 1:
                assert (weight == (1 if "norm" in name and name.endswith("weight") else 0)).all(), name
                continue
            if name.endswith("embed_tokens.weight"):
                assert not weight[0].any()
                weight = weight[1:]
            wanted = expected_std(name, weight, model.config)
            # Five standard errors of a standard deviation.
            assert abs(float(weight.std()) / wanted - 1) < 5 / math.sqrt(2 * weight.numel()), (name, std)
            assert abs(float(weight.mean())) < 5 * wanted / math.sqrt(weight.numel()), (name, std)
            if kind == "truncated_normal":
                assert weight.abs().max() <= 3 * wanted / CUT * (1 + 1e-6), name
            if kind == "xavier_uniform" and ".embed_" not in name:
                assert weight.abs().max() <= math.sqrt(3) * wanted * (1 + 1e-6), name
