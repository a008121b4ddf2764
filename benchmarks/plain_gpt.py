"""GPT-2 in one file, as one writes it who wants speed and nothing else: a peer for benchmarks/gpu_speed.py.

In the manner of nanoGPT (https://github.com/karpathy/nanoGPT): fused projections, torch's causal attention, one
embedding table for input and output, no dropout, all of it handed to torch.compile. Letters in shapes: B rows, T
tokens, C width, V vocabulary.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional


@dataclass(frozen=True)
class PlainShape:
    """How large a `PlainGPT` is."""

    vocab_size: int = 50_304
    length: int = 1024
    layers: int = 12
    heads: int = 12
    width: int = 768


class PlainAttention(nn.Module):
    """Causal self-attention with one projection for queries, keys and values."""

    is_causal = True

    def __init__(self, shape: PlainShape) -> None:
        super().__init__()
        self.num_heads, self.head_dim = shape.heads, shape.width // shape.heads
        self.qkv = nn.Linear(shape.width, 3 * shape.width, bias=False)
        self.out = nn.Linear(shape.width, shape.width, bias=False)

    def forward(self, states: Tensor) -> Tensor:
        """[B, T, C] -> [B, T, C]."""
        rows, length, width = states.shape
        query, key, value = (
            part.view(rows, length, self.num_heads, self.head_dim).transpose(1, 2)
            for part in self.qkv(states).split(width, dim=2)
        )
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        return self.out(mixed.transpose(1, 2).reshape(rows, length, width))


class PlainBlock(nn.Module):
    """Attention and feed-forward, each after a norm and added to the stream."""

    def __init__(self, shape: PlainShape) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(shape.width, bias=False)
        self.attention = PlainAttention(shape)
        self.feed_norm = nn.LayerNorm(shape.width, bias=False)
        self.up = nn.Linear(shape.width, 4 * shape.width, bias=False)
        self.down = nn.Linear(4 * shape.width, shape.width, bias=False)

    def forward(self, states: Tensor) -> Tensor:
        """[B, T, C] -> [B, T, C]."""
        states = states + self.attention(self.attention_norm(states))
        return states + self.down(functional.gelu(self.up(self.feed_norm(states)), approximate="tanh"))


class PlainGPT(nn.Module):
    """Token ids in, mean cross-entropy of the next ones out."""

    def __init__(self, shape: PlainShape) -> None:
        super().__init__()
        self.tokens = nn.Embedding(shape.vocab_size, shape.width)
        self.positions = nn.Embedding(shape.length, shape.width)
        self.blocks = nn.ModuleList([PlainBlock(shape) for _ in range(shape.layers)])
        self.norm = nn.LayerNorm(shape.width, bias=False)
        self.head = nn.Linear(shape.width, shape.vocab_size, bias=False)
        self.head.weight = self.tokens.weight
        self.apply(self._start)

    @staticmethod
    def _start(module: nn.Module) -> None:
        if isinstance(module, nn.Linear | nn.Embedding):
            nn.init.normal_(module.weight, std=0.02)

    def forward(self, input_ids: Tensor, labels: Tensor) -> Tensor:
        """Ids and labels [B, T], of which the label at t + 1 is what t predicts -> the loss."""
        positions = torch.arange(input_ids.shape[1], device=input_ids.device)
        states = self.tokens(input_ids) + self.positions(positions)
        for block in self.blocks:
            states = block(states)
        logits = self.head(self.norm(states[:, :-1]))
        return functional.cross_entropy(logits.flatten(0, 1).float(), labels[:, 1:].flatten())
