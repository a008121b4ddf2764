"""Named presets: heads by shape, sizes, and families as fields of LacunaConfig.

A new family is one entry here, and a table in native_families.py if its native models are to be reached.
"""

from typing import Any


def _heads(*tasks: str) -> dict[str, str]:
    return {"AutoModel": "LacunaModel"} | {f"AutoModelFor{task}": f"LacunaFor{task}" for task in tasks}


# Every head by the shape that can use it. A checkpoint offers these classes and no others: an encoder offered as a
# causal model would load silently and see the tokens it is asked to predict.
_TASKS = ("SequenceClassification", "TokenClassification", "QuestionAnswering", "MultipleChoice")
HEADS: dict[str, dict[str, str]] = {
    "encoder": _heads("PreTraining", "MaskedLM", *_TASKS),
    "decoder": _heads("CausalLM", *_TASKS),
    "encoder-decoder": {
        "AutoModelForSeq2SeqLM": "LacunaForConditionalGeneration",
        **_heads("SequenceClassification", "QuestionAnswering"),
    },
}
# A decoder that was also trained to see the whole text (`hybrid`) fills masks as well.
HYBRID_HEADS = {"AutoModelForMaskedLM": "LacunaForMaskedLM"}

SIZES: dict[str, dict[str, int]] = {
    "micro": {"hidden_size": 256, "num_hidden_layers": 3, "num_attention_heads": 4},
    "tiny": {"hidden_size": 256, "num_hidden_layers": 6, "num_attention_heads": 4},
    "mini": {"hidden_size": 384, "num_hidden_layers": 8, "num_attention_heads": 6},
    "small": {"hidden_size": 512, "num_hidden_layers": 12, "num_attention_heads": 8},
    "base": {"hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12},
    "large": {"hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16},
}

# Blocks that families share.
_PLAIN: dict[str, Any] = {
    "gated_mlp": False,
    "norm_bias": True,
    "mlp_bias": True,
    "embedding_dropout": 0.1,
    "hidden_dropout": 0.1,
}
_POST_NORM: dict[str, Any] = {**_PLAIN, "norm_placement": "post"}
_DECODER: dict[str, Any] = {
    "shape": "decoder",
    "embedding_norm": False,
    "lm_head_bias": False,
    "classifier_transform": "none",
    "classifier_bias": False,
}
_LLAMA: dict[str, Any] = {
    **_DECODER,
    "hidden_act": "silu",
    "norm_type": "rms_norm",
    "norm_eps": 1e-6,
    "initialization": "normal",
}
_QWEN3 = {"num_hidden_layers": 28, "num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 128}


def _by_size(field: str, *numbers: int) -> dict[str, dict[str, int]]:
    """A field at each size, from micro on."""
    return {size: {field: number} for size, number in zip(SIZES, numbers, strict=False)}


_SHARED_KEYS = _by_size("num_key_value_heads", 2, 2, 2, 4)

# `parts` are fields of LacunaConfig that differ from its defaults, which are ModernBERT's. `feed_forward` is
# intermediate_size / hidden_size, unless a size names the number itself. `layer_pattern` repeats over the layers
# (default: full attention), and `sizes` takes precedence over SIZES.
FAMILIES: dict[str, dict[str, Any]] = {
    "bert": {  # Devlin et al. 2018, https://arxiv.org/abs/1810.04805
        "parts": {
            **_POST_NORM,
            "norm_eps": 1e-12,
            "position_type": "learned",
            "max_position_embeddings": 512,
            "type_vocab_size": 2,
            "attention_bias": True,
            "prediction_bias": True,
            "pooler": True,
            "classifier_transform": "none",
            "attention_dropout": 0.1,
            "initialization": "normal",
        },
        "feed_forward": 4.0,
    },
    "modernbert": {  # Warner et al. 2024, https://arxiv.org/abs/2412.13663
        "parts": {
            "rope_parameters": {
                "full_attention": {"rope_type": "default", "rope_theta": 160_000.0},
                "sliding_attention": {"rope_type": "default", "rope_theta": 10_000.0},
            },
            "sliding_window": 64,
            "initialization": "truncated_normal",
        },
        "feed_forward": 2.0,
        "layer_pattern": ["full_attention", "sliding_attention", "sliding_attention"],
        "sizes": {
            "base": {"num_hidden_layers": 22, "intermediate_size": 1152},
            "large": {"num_hidden_layers": 28, "intermediate_size": 2624},
        },
    },
    "gpt2": {  # Radford et al. 2019, "Language Models are Unsupervised Multitask Learners"
        "parts": {
            **_PLAIN,
            **_DECODER,
            "freeze_padding": False,
            "hidden_act": "gelu_new",
            "position_type": "learned",
            "max_position_embeddings": 1024,
            "attention_bias": True,
            "attention_dropout": 0.1,
            "initialization": "depth_scaled",
        },
        "feed_forward": 4.0,
    },
    "llama": {  # Touvron et al. 2023, https://arxiv.org/abs/2302.13971; `large` is the shape of Llama 3.2 1B
        "parts": {**_LLAMA, "rope_parameters": {"rope_type": "default", "rope_theta": 500_000.0}},
        "feed_forward": 2.5,
        "sizes": {
            **_SHARED_KEYS,
            "base": {"num_key_value_heads": 4},
            "large": {
                "hidden_size": 2048,
                "num_hidden_layers": 16,
                "num_attention_heads": 32,
                "num_key_value_heads": 8,
                "intermediate_size": 8192,
            },
        },
    },
    "qwen3": {  # Yang et al. 2025, https://arxiv.org/abs/2505.09388; `base` is the published 0.6B
        "parts": {
            **_LLAMA,
            "qk_norm": True,
            "max_position_embeddings": 32_768,
            "rope_parameters": {"rope_type": "default", "rope_theta": 1_000_000.0},
        },
        "feed_forward": 2.5,
        "sizes": {
            **_SHARED_KEYS,
            "base": {**_QWEN3, "hidden_size": 1024, "intermediate_size": 3072},
            "large": {**_QWEN3, "hidden_size": 2048, "intermediate_size": 6144},
        },
    },
    "bart": {  # Lewis et al. 2019, https://arxiv.org/abs/1910.13461; `base` is the published one
        "parts": {
            **_POST_NORM,
            "shape": "encoder-decoder",
            "position_type": "learned",
            "max_position_embeddings": 1024,
            "position_offset": 2,
            "attention_bias": True,
            "classifier_transform": "tanh",
            "classifier_dropout": 0.0,
            "initialization": "normal",
        },
        "feed_forward": 4.0,
        "sizes": _by_size("num_hidden_layers", 1, 2, 3, 5, 6, 12),
    },
    "vaswani": {  # Vaswani et al. 2017, https://arxiv.org/abs/1706.03762; `small` is their base, `large` their big
        "parts": {
            **_POST_NORM,
            "shape": "encoder-decoder",
            "hidden_act": "relu",
            "norm_eps": 1e-6,
            "embedding_norm": False,
            "position_type": "sinusoidal",
            "max_position_embeddings": 1024,
            "scale_embedding": True,
            "lm_head_bias": False,
            "classifier_transform": "none",
            "initialization": "xavier_uniform",
        },
        "feed_forward": 4.0,
        "sizes": _by_size("num_hidden_layers", 1, 2, 3, 6, 6, 6),
    },
}

# ModernBERT with norms on queries and keys (Henry et al. 2020, https://arxiv.org/abs/2010.04245): it trains faster by
# measurement (docs/speed.md), and is no native class.
FAMILIES["lacuna"] = {**FAMILIES["modernbert"], "parts": {**FAMILIES["modernbert"]["parts"], "qk_norm": True}}
