"""Who takes part in benchmarks/gpu_speed.py: models of one shape, how each is given the work, and what the work is.

Rows are filled with documents to the last token, so that every token counts and nobody pays for padding. Models of
Lacuna keep the documents of a row apart; the others read across them, which is less work to prepare and no less to
learn from: where they differ in that, the comparison is in their favour. Dropout is off everywhere.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import inspect
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import torch
from plain_gpt import PlainGPT, PlainShape
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from transformers import BertConfig, BertForMaskedLM, GPT2Config, GPT2LMHeadModel, set_seed
from transformers.pytorch_utils import Conv1D

from lacuna import modeling
from lacuna.modeling import kernels_lacuna
from lacuna.objectives.hints import add_hints
from lacuna.training.compiling import compile_model

IGNORED, MASK_TOKEN, FIRST_TOKEN = -100, 4, 5
MASKED = 0.3  # of the tokens, as ModernBERT and Ettin were trained
MEDIAN_DOCUMENT, SPREAD = 350, 1.0  # tokens, and standard deviation of their logarithm: web text as it comes
NO_DROPOUT = {"embedding_dropout": 0.0, "hidden_dropout": 0.0, "attention_dropout": 0.0, "activation_dropout": 0.0}


@dataclasses.dataclass(frozen=True)
class Shape:
    """What all contenders of a part have in common."""

    kind: str
    """encoder or decoder."""
    layers: int
    width: int
    heads: int
    vocab_size: int
    length: int
    rows: int
    """In a batch."""
    inner: int = 0
    """Width of the gated feed-forward layers of an encoder."""


@dataclasses.dataclass(frozen=True)
class Contender:
    """A model and the way it is run."""

    name: str
    build: Callable[[Shape], nn.Module]
    form: str = "rows"
    """packed: documents apart, their bounds known; unbounded: apart, by positions alone; rows: read as one text."""
    compiled: str = "no"
    """no, blocks, whole, or graphs: blocks replayed as CUDA graphs."""
    precision: str = "bf16"
    within: Callable[[], Any] = contextlib.nullcontext
    """Opened around each step."""

    @property
    def is_ours(self) -> bool:
        """Whether it is a model of Lacuna."""
        return self.name.startswith("lacuna")


# -------------------------------------------------------------------------------------------------------------- models


def build_lacuna(shape: Shape) -> nn.Module:
    """ModernBERT's parts as an encoder, GPT-2's as a decoder."""
    sizes = {
        "vocab_size": shape.vocab_size,
        "hidden_size": shape.width,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "max_position_embeddings": shape.length,
        **NO_DROPOUT,
    }
    if shape.kind == "decoder":
        return modeling.LacunaForCausalLM(modeling.LacunaConfig.from_family("gpt2", "base", **sizes))
    config = modeling.LacunaConfig.from_family("modernbert", "base", intermediate_size=shape.inner, **sizes)
    return modeling.LacunaForMaskedLM(config)


def build_modernbert(shape: Shape) -> nn.Module:
    """transformers' own with our weights, logits at the masked positions only."""
    native = modeling.to_native(build_lacuna(shape), family="modernbert")
    native.sparse_prediction = True
    return native


def build_bert(shape: Shape) -> nn.Module:
    """BertForMaskedLM with as many weights: three matrices of `inner` make two of half as much again."""
    return BertForMaskedLM(
        BertConfig(
            vocab_size=shape.vocab_size,
            hidden_size=shape.width,
            num_hidden_layers=shape.layers,
            num_attention_heads=shape.heads,
            intermediate_size=3 * shape.inner // 2,
            max_position_embeddings=shape.length,
            hidden_dropout_prob=0.0,
            attention_probs_dropout_prob=0.0,
        )
    )


def build_gpt2(shape: Shape) -> nn.Module:
    """GPT2LMHeadModel."""
    return GPT2LMHeadModel(
        GPT2Config(
            vocab_size=shape.vocab_size,
            n_positions=shape.length,
            n_embd=shape.width,
            n_layer=shape.layers,
            n_head=shape.heads,
            resid_pdrop=0.0,
            embd_pdrop=0.0,
            attn_pdrop=0.0,
            use_cache=False,
            bos_token_id=0,
            eos_token_id=0,
        )
    )


def build_plain(shape: Shape) -> nn.Module:
    """benchmarks/plain_gpt.py."""
    return PlainGPT(PlainShape(shape.vocab_size, shape.length, shape.layers, shape.heads, shape.width))


@contextlib.contextmanager
def by_masks() -> Iterator[None]:
    """Packed rows as on a CPU: with masks of [B, 1, T, T]."""
    with mock.patch.object(kernels_lacuna, "PACKED_DEVICES", set()):
        yield


def by_cudnn() -> Any:
    """torch's attention by cuDNN's kernel alone."""
    return sdpa_kernel(SDPBackend.CUDNN_ATTENTION)


ENCODERS = [
    Contender("lacuna", build_lacuna, "packed", "blocks"),
    Contender("modernbert", build_modernbert),
    Contender("bert", build_bert),
    Contender("lacuna, not compiled", build_lacuna, "packed"),
    Contender("lacuna, masks", build_lacuna, "unbounded", "no", within=by_masks),
    Contender("lacuna, flex", build_lacuna, "unbounded", "blocks"),
]
SMALL_ENCODERS = [
    Contender("lacuna", build_lacuna, "packed", "blocks"),
    Contender("lacuna, CUDA graphs", build_lacuna, "packed", "graphs"),
    Contender("modernbert", build_modernbert),
    Contender("bert", build_bert),
    Contender("lacuna, not compiled", build_lacuna, "packed"),
    Contender("lacuna, flex", build_lacuna, "unbounded", "blocks"),
]
DECODERS = [
    Contender("lacuna", build_lacuna, "packed", "blocks"),
    Contender("plain", build_plain, "rows", "whole"),
    Contender("gpt2", build_gpt2, "rows", "whole"),
    Contender("lacuna, not compiled", build_lacuna, "packed"),
    Contender("lacuna, one text", build_lacuna, "rows", "blocks"),
    Contender("lacuna, one text, cuDNN", build_lacuna, "rows", "blocks", within=by_cudnn),
    Contender("lacuna, flex", build_lacuna, "unbounded", "blocks"),
]


# ---------------------------------------------------------------------------------------------------------------- work


def make_batch(shape: Shape, *, rows: int, seed: int) -> tuple[dict[str, Tensor], list[int]]:
    """Ids, labels and positions [rows, length] of random documents, and how long these are.

    A document that does not fit into its row goes on in the next, as one of its own.
    """
    generator = torch.Generator().manual_seed(seed)
    lengths: list[int] = []
    for _ in range(rows):
        left = shape.length
        while left:
            drawn = float(torch.randn((), generator=generator) * SPREAD)
            size = min(left, max(8, round(MEDIAN_DOCUMENT * shape.length / 1024 * 2.718**drawn)))
            lengths.append(size)
            left -= size
    positions = torch.cat([torch.arange(size) for size in lengths]).view(rows, shape.length)
    ids = torch.randint(FIRST_TOKEN, shape.vocab_size, (rows, shape.length), generator=generator)
    if shape.kind == "decoder":
        return {
            "input_ids": ids,
            "labels": ids.masked_fill(positions == 0, IGNORED),
            "position_ids": positions,
        }, lengths
    is_masked = torch.rand(ids.shape, generator=generator) < MASKED
    return {
        "input_ids": ids.masked_fill(is_masked, MASK_TOKEN),
        "labels": ids.masked_fill(~is_masked, IGNORED),
        "position_ids": positions,
    }, lengths


def as_given(batch: dict[str, Tensor], contender: Contender, *, kind: str) -> dict[str, Tensor]:
    """The batch in the form that the contender takes, with hints if it is ours."""
    batch = dict(batch)
    if contender.form == "rows":
        del batch["position_ids"]
        batch["labels"] = batch["input_ids"] if kind == "decoder" else batch["labels"]
    if not contender.is_ours:
        return batch
    targets = batch["labels"]
    if kind == "decoder":
        targets = nn.functional.pad(targets[:, 1:], (0, 1), value=IGNORED)
    batch = add_hints(batch, targets=targets)
    if contender.form == "unbounded":
        del batch["document_bounds"]
    return batch


def operations(model: nn.Module, contender: Contender, shape: Shape, *, lengths: list[int]) -> float:
    """Floating-point operations that a batch needs: products with weights, and attention where documents allow it.

    Scores that a kernel computes again, or for nothing behind a mask, are not counted.
    """
    rows = sum(lengths) // shape.length
    lengths = [shape.length] * rows if contender.form == "rows" else lengths
    predicts_targets_only = "sparse_prediction" in inspect.signature(model.forward).parameters
    share = MASKED if shape.kind == "encoder" and predicts_targets_only else 1.0
    head = getattr(model, "get_output_embeddings", lambda: None)()
    weights = 0.0
    for name, module in model.named_modules():
        if isinstance(module, nn.Linear | Conv1D):
            weights += module.weight.numel() * (share if module is head or name.startswith("transform.") else 1.0)
    config: Any = getattr(model, "config", None)
    kinds = getattr(config, "layer_types", None) or ["full_attention"] * shape.layers
    reaches = [config.sliding_window if kind == "sliding_attention" else shape.length for kind in kinds]
    pairs = sum(_pairs(shape.kind, reach, size) for reach in reaches for size in lengths)
    return 6.0 * weights * shape.length * rows + 12.0 * shape.width * pairs


@functools.cache
def _pairs(kind: str, reach: int, length: int) -> int:
    """Pairs of tokens of which the first sees the second, as far as `reach` tokens away."""
    after = 0 if kind == "decoder" else reach
    return sum(min(length, place + after + 1) - max(0, place - reach) for place in range(length))


# ------------------------------------------------------------------------------------------------------------- running


class Runner:
    """A contender on its device, with an optimizer."""

    def __init__(self, contender: Contender, shape: Shape, device: torch.device, *, may_compile: bool) -> None:
        set_seed(0)
        self.contender, self.device = contender, device
        self.model: Any = contender.build(shape).to(device).train()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4, fused=True)
        self.options: dict[str, Any] = {"skip_logits": True} if contender.is_ours else {}
        if shape.kind == "decoder" and contender.build is not build_plain:
            self.options["use_cache"] = False
        self.run: Callable[..., Any] = self.model
        if not may_compile or contender.compiled == "no":
            return
        if contender.compiled == "whole":
            self.run = torch.compile(self.model)
            return
        if contender.compiled == "graphs":
            for layer in self.model.model.encoder.layers:
                layer.compile(dynamic=False, mode="reduce-overhead")
            self.model.score_targets = torch.compile(self.model.score_targets, dynamic=True)
            return
        compile_model(self.model)

    def loss(self, batch: dict[str, Tensor]) -> Tensor:
        """The loss of a batch on the device, in the contender's precision."""
        bf16 = self.contender.precision == "bf16"
        if self.contender.compiled == "graphs":
            torch.compiler.cudagraph_mark_step_begin()
        with torch.autocast(self.device.type, torch.bfloat16, enabled=bf16):
            output = self.run(**batch, **self.options)
        return output if isinstance(output, Tensor) else output.loss

    def step(self, batch: dict[str, Tensor]) -> Tensor:
        """Forward, backward and AdamW; the loss, not waited for."""
        with self.contender.within():
            loss = self.loss(batch)
            loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        return loss.detach()
