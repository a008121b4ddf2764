"""Random configurations, models and rows of tokens for the property tests of this folder.

How many are drawn, tests/examples.py says.
"""

from __future__ import annotations

from typing import Any

import torch
from hypothesis import strategies as st
from torch import Tensor, nn

from lacuna import modeling
from lacuna.modeling import HEADS, LacunaConfig
from lacuna.modeling.configuration_lacuna import LAYER_TYPES, SHAPES

VOCAB = 41
FIRST_ID = 5  # Ids below are special tokens, which stand for something to some of the code.
LONGEST = 40
LANGUAGE_HEADS = {
    "encoder": "LacunaForMaskedLM",
    "decoder": "LacunaForCausalLM",
    "encoder-decoder": "LacunaForConditionalGeneration",
}


# ------------------------------------------------------------------------------------------------------ configurations


def rope_parameters(layer_types: set[str]) -> st.SearchStrategy[dict[str, Any] | None]:
    """Rotary positions of several types, for all layers or by layer type."""
    theta = st.sampled_from([50.0, 10_000.0])
    entries = st.one_of(
        st.builds(lambda t: {"rope_theta": t}, theta),
        st.builds(lambda t: {"rope_type": "linear", "factor": 2.0, "rope_theta": t}, theta),
        st.builds(
            lambda t: {
                "rope_type": "yarn",
                "factor": 4.0,
                "rope_theta": t,
                "original_max_position_embeddings": LONGEST // 4,
            },
            theta,
        ),
        st.builds(
            lambda t: {
                "rope_type": "llama3",
                "factor": 4.0,
                "rope_theta": t,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": LONGEST // 4,
            },
            theta,
        ),
    )
    by_type = st.fixed_dictionaries({name: entries for name in sorted(layer_types)})
    return st.one_of(st.none(), entries, by_type)


def draw_layer_types(draw: Any, *, count: int, allowed: Any) -> list[str]:
    return draw(st.lists(st.sampled_from(list(allowed)), min_size=count, max_size=count))


@st.composite
def configurations(draw: Any, shapes: tuple[str, ...] = SHAPES, **fixed: Any) -> LacunaConfig:
    """A small configuration in which every part is drawn; `fixed` fields are not, and decide what depends on them."""

    def pick(name: str, *values: Any) -> Any:
        return fixed[name] if name in fixed else draw(st.sampled_from(values))

    shape = draw(st.sampled_from(shapes))
    position_type = pick("position_type", "rotary", "learned", "sinusoidal", "none")
    norm_type = pick("norm_type", "layer_norm", "rms_norm")
    key_value_heads, groups = pick("num_key_value_heads", 1, 2), draw(st.integers(1, 3))
    # A norm over one or two numbers is so steep that rounding shows in the third digit of its gradient.
    qk_norm, small = pick("qk_norm", False, True), [2 if position_type == "rotary" else 1]
    head_dims = [6 if position_type == "rotary" else 5, 8] + ([] if qk_norm else small)
    allowed_types = fixed.get("allowed_layer_types", LAYER_TYPES)
    layer_types = draw_layer_types(draw, count=draw(st.integers(1, 2)), allowed=allowed_types)
    fields: dict[str, Any] = {
        "shape": shape,
        "vocab_size": VOCAB,
        "hidden_size": pick("hidden_size", 16, 17, 24, 31),
        "num_hidden_layers": len(layer_types),
        "layer_types": layer_types,
        "num_attention_heads": key_value_heads * groups,
        "num_key_value_heads": key_value_heads,
        "head_dim": pick("head_dim", *head_dims),
        "intermediate_size": pick("intermediate_size", 9, 24, 37),
        "gated_mlp": pick("gated_mlp", True, False),
        "hidden_act": pick("hidden_act", "gelu", "silu", "relu", "gelu_new", "tanh"),
        "prediction_act": pick("prediction_act", None, "gelu", "tanh"),
        "norm_type": norm_type,
        "norm_placement": pick("norm_placement", "pre", "post"),
        "norm_bias": norm_type == "layer_norm" and pick("norm_bias", True, False),
        "norm_eps": pick("norm_eps", 1e-5, 1e-12),
        "embedding_norm": pick("embedding_norm", True, False),
        "qk_norm": qk_norm,
        "attention_score": pick("attention_score", "scaled_dot_product", "dot_product"),
        "position_type": position_type,
        "position_offset": pick("position_offset", 0, 2) if position_type == "learned" else 0,
        "max_position_embeddings": LONGEST,
        "scale_embedding": pick("scale_embedding", False, True),
        # A window of one token is refused in a decoder: it is no attention, and caches of the library keep all of it.
        "sliding_window": pick("sliding_window", *([1] if shape == "encoder" else []), 2, 3, 5),
        "type_vocab_size": pick("type_vocab_size", 0, 1, 3),
        "classifier_pooling": pick("classifier_pooling", None, "mean", "last"),
        "classifier_transform": pick("classifier_transform", "norm", "tanh", "none"),
        "pooler": shape == "encoder" and pick("pooler", False, True),
        "tie_word_embeddings": pick("tie_word_embeddings", True, False),
        "pad_token_id": pick("pad_token_id", 0, None),
        "num_labels": pick("num_labels", 3, 2),
    }
    for name in ("attention", "mlp", "prediction", "lm_head", "classifier"):
        fields[f"{name}_bias"] = pick(f"{name}_bias", False, True)
    used = set(layer_types)
    if shape == "encoder-decoder":
        decoder_types = draw_layer_types(draw, count=draw(st.integers(1, 2)), allowed=allowed_types)
        fields |= {"num_decoder_layers": len(decoder_types), "decoder_layer_types": decoder_types}
        used |= set(decoder_types)
    if position_type == "rotary":
        fields["rope_parameters"] = draw(rope_parameters(used))
    return LacunaConfig(**fields)


# -------------------------------------------------------------------------------------------------------------- models


def make_model(config: LacunaConfig, head: str | None = None, *, seed: int = 0, implementation: str = "sdpa") -> Any:
    """A model in which every parameter matters: a bias of zero or a norm of one would hide that it is not used.

    Args:
        head: name of the class; None: the head over the vocabulary.
        implementation: of its attention.
    """
    torch.manual_seed(seed)
    model = getattr(modeling, head or LANGUAGE_HEADS[config.shape])(config)
    tables = {id(module.weight) for module in model.modules() if isinstance(module, nn.Embedding)}
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter.add_(torch.randn_like(parameter) * 0.2)
            else:
                is_wide = id(parameter) in tables and not config.scale_embedding
                parameter.normal_(std=1.0 if is_wide else parameter.shape[-1] ** -0.5)
    model.set_attn_implementation(implementation)
    return model.eval()


def heads_of(config: LacunaConfig) -> list[str]:
    return sorted(set(HEADS[config.shape].values()))


# --------------------------------------------------------------------------------------------------------------- rows


def random_ids(*shape: int, seed: int) -> Tensor:
    return torch.randint(FIRST_ID, VOCAB, shape, generator=torch.Generator().manual_seed(seed))


def segments_for(ids: Tensor, config: LacunaConfig) -> Tensor:
    """A segment for each token that depends on nothing but the token, so that it moves with it."""
    return ids % max(config.type_vocab_size, 1)


def other_ids(ids: Tensor) -> Tensor:
    """Another id for every token."""
    return FIRST_ID + (ids - FIRST_ID + 7) % (VOCAB - FIRST_ID)


# --------------------------------------------------------------------------------------------------------- comparisons


def assert_agree(actual: Tensor, expected: Tensor, *, tolerance: float = 1e-5) -> None:
    """Assert equality within `tolerance`, times the largest number where that is above one."""
    expected = expected.detach()
    largest = max(1.0, float(expected.abs().max())) if expected.numel() else 1.0
    torch.testing.assert_close(actual.detach(), expected, atol=tolerance * largest, rtol=0.0)


def gradients(model: nn.Module) -> dict[str, Tensor]:
    """Gradients by name, zeros where there is none."""
    return {
        name: torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
        for name, parameter in model.named_parameters()
    }


def assert_same_gradients(first: nn.Module, second: nn.Module, *, tolerance: float = 1e-5) -> None:
    expected = gradients(second)
    largest = max(1.0, max(float(gradient.abs().max()) for gradient in expected.values()))
    for name, gradient in gradients(first).items():
        difference = float((gradient - expected[name]).abs().max())
        assert difference <= tolerance * largest, f"{name}: gradients differ by {difference}, the largest is {largest}"


def weigh(states: Tensor, *, seed: int = 3) -> Tensor:
    """A number that depends on every one of `states`; a plain sum would be blind to what a norm takes away."""
    weights = torch.randn(states.shape, generator=torch.Generator().manual_seed(seed))
    return (states.float() * weights).sum() / 10
