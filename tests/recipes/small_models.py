"""Texts and sizes of the models that recipes are tried on."""

from typing import Any

TEXTS = [
    "The quick brown fox jumps over the lazy dog.",
    "A lacuna is a gap.",
    "Whoever reads this, in the garden or in the city, has come upon the longest of these texts, and it goes on.",
    "Müller, naïve and brave.",
    "The dog sleeps.",
    "Every gap in the text can be filled, by whoever reads it.",
    "No.",
]
SMALL: dict[str, Any] = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "head_dim": 16,
    "intermediate_size": 64,
    "max_position_embeddings": 64,
    "initializer_range": 0.2,
}
