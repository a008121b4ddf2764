"""The known families and sizes, in the terms of LacunaConfig.

A new family is one entry here, and one in the table of conversion.py if its native models are to be reached.
"""

from typing import Any

# What each family is made of, in the terms of LacunaConfig. `layer_pattern` repeats over the layers; `feed_forward`
# is intermediate_size / hidden_size unless a size names the number itself.
FAMILIES: dict[str, dict[str, Any]] = {
    "bert": {  # Devlin et al. 2018, https://arxiv.org/abs/1810.04805
        "parts": {
            "shape": "encoder",
            "hidden_act": "gelu",
            "gated_mlp": False,
            "norm_type": "layer_norm",
            "norm_placement": "post",
            "norm_bias": True,
            "norm_eps": 1e-12,
            "embedding_norm": True,
            "position_type": "learned",
            "max_position_embeddings": 512,
            "type_vocab_size": 2,
            "attention_bias": True,
            "mlp_bias": True,
            "prediction_bias": True,
            "pooler": True,
            "classifier_transform": False,
            "embedding_dropout": 0.1,
            "hidden_dropout": 0.1,
            "attention_dropout": 0.1,
        },
        "feed_forward": 4.0,
        "layer_pattern": ["full_attention"],
        "sizes": {},
    },
    "modernbert": {  # Warner et al. 2024, https://arxiv.org/abs/2412.13663
        "parts": {
            "shape": "encoder",
            "hidden_act": "gelu",
            "gated_mlp": True,
            "norm_type": "layer_norm",
            "norm_placement": "pre",
            "norm_bias": False,
            "norm_eps": 1e-5,
            "embedding_norm": True,
            "position_type": "rotary",
            "max_position_embeddings": 8192,
            "rope_parameters": {
                "full_attention": {"rope_type": "default", "rope_theta": 160_000.0},
                "sliding_attention": {"rope_type": "default", "rope_theta": 10_000.0},
            },
            "sliding_window": 64,
            "classifier_transform": True,
        },
        "feed_forward": 2.0,
        "layer_pattern": ["full_attention", "sliding_attention", "sliding_attention"],
        "sizes": {
            "base": {"num_hidden_layers": 22, "intermediate_size": 1152},
            "large": {"num_hidden_layers": 28, "intermediate_size": 2624},
        },
    },
    "qwen3": {  # Yang et al. 2025, https://arxiv.org/abs/2505.09388; `base` is the published 0.6B
        "parts": {
            "shape": "decoder",
            "hidden_act": "silu",
            "gated_mlp": True,
            "norm_type": "rms_norm",
            "norm_placement": "pre",
            "norm_eps": 1e-6,
            "embedding_norm": False,
            "qk_norm": True,
            "position_type": "rotary",
            "max_position_embeddings": 32_768,
            "rope_parameters": {"rope_type": "default", "rope_theta": 1_000_000.0},
            "lm_head_bias": False,
            "classifier_transform": False,
            "classifier_bias": False,
        },
        "feed_forward": 2.5,
        "layer_pattern": ["full_attention"],
        "sizes": {
            "tiny": {"num_key_value_heads": 2},
            "mini": {"num_key_value_heads": 2},
            "small": {"num_key_value_heads": 4},
            "base": {
                "hidden_size": 1024,
                "num_hidden_layers": 28,
                "num_attention_heads": 16,
                "num_key_value_heads": 8,
                "head_dim": 128,
                "intermediate_size": 3072,
            },
            "large": {
                "hidden_size": 2048,
                "num_hidden_layers": 28,
                "num_attention_heads": 16,
                "num_key_value_heads": 8,
                "head_dim": 128,
                "intermediate_size": 6144,
            },
        },
    },
}

SIZES: dict[str, dict[str, int]] = {
    "tiny": {"hidden_size": 256, "num_hidden_layers": 6, "num_attention_heads": 4},
    "mini": {"hidden_size": 384, "num_hidden_layers": 8, "num_attention_heads": 6},
    "small": {"hidden_size": 512, "num_hidden_layers": 12, "num_attention_heads": 8},
    "base": {"hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12},
    "large": {"hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16},
}

__all__ = ["FAMILIES", "SIZES"]
