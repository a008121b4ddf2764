"""How much a model computes for a token, and how much a device could.

Counted are the floating-point operations of matrix products, as `torch.utils.flop_counter` counts them: two for each
multiplication with its addition. Norms, activations, softmax, dropout, look-ups in tables and the optimizer are not;
they are few operations, if not always little time.

- A linear layer of m x n weights: 2 m n for each token forward, as much again for the gradient of its input, and as
  much for that of its weights where these are trained.
- Attention: 4 x width for each pair of query and key that the kernel computes (2 for the score, 2 for the weighing of
  the values), where width is heads x head size. Backward this is twice as much, and 2.5 times in fused kernels, which
  compute the scores again (Dao, 2023, https://arxiv.org/abs/2307.08691, section 3).
- Pairs that the kernel computes: all of them, where the scores are a matrix (eager) and where the mask is a matrix
  (sdpa with rows that are packed, padded or under a window); half of them for a causal kernel without such a mask;
  those within the window for kernels that know about windows (flash, flex). Kernels skip blocks, not pairs: that
  remainder is not counted, nor is what flash and flex save between the documents of a packed row.
- The output layer, and in models of Lacuna what stands before it, at the positions that have a target.
- With gradient checkpointing the layers once more: their forward pass is computed twice (torch leaves out what stands
  behind the last tensor that it needs, up to one product of a layer).
"""

import functools
import inspect
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from transformers.modeling_layers import GradientCheckpointingLayer

from .devices import find_gpu

_ONCE_A_ROW = {"pooler", "sentence_head", "seq_relationship"}
"""Parts that see one vector of a row."""
_QUERIES = ("q_proj", "query", "q", "q_attn", "q_lin")
_FUSED = ("Wqkv", "c_attn", "qkv_proj", "qkv", "query_key_value")
_KEYS_AND_VALUES = {"k_proj", "v_proj", "key", "value", "k", "v", "k_lin", "v_lin", "c_attn"}
_KNOWS_WINDOWS = ("flash", "flex", "varlen")


@dataclass(frozen=True)
class Attention:
    """What is to be known of an attention layer."""

    width: int
    """Heads times head size."""
    is_causal: bool
    is_cross: bool
    window: int | None
    """Tokens seen on a side, the own one among them, or None for all."""
    implementation: str
    dropout: float

    def is_fused(self, device_type: str) -> bool:
        """Whether the scores are never held; torch's fused kernel for CPUs knows no dropout."""
        if self.implementation.startswith(_KNOWS_WINDOWS):
            return True
        return self.implementation == "sdpa" and (device_type != "cpu" or self.dropout == 0.0)

    def pairs(self, *, queries: int, keys: int, masked: bool, device_type: str) -> float:
        """Pairs of query and key that the kernel computes in one row; see the top of this file."""
        if not self.implementation.startswith(_KNOWS_WINDOWS):
            skips = self.is_fused(device_type) and self.is_causal and not masked and not self.window
            return queries * (keys + 1) / 2 if skips else float(queries * keys)
        before = keys if self.window is None else self.window - 1
        after = 0 if self.is_causal else before
        return float(sum(min(keys, place + after + 1) - max(0, place - before) for place in range(queries)))


@dataclass(frozen=True)
class _Rows:
    """How many tokens a row has where, for counting."""

    encoded: int
    decoded: int
    predicted: float
    masked: bool
    device_type: str


def flops_per_token(
    model: nn.Module,
    *,
    length: int,
    target_length: int | None = None,
    predicted_share: float = 1.0,
    masked: bool = True,
    device_type: str | None = None,
) -> float:
    """Floating-point operations of forward and backward pass, for each token of a row.

    Args:
        model: any model of the library or of Lacuna, on any device, meta included.
        length: tokens in a row; in the encoder's, for an encoder-decoder.
        target_length: tokens in the decoder's row of an encoder-decoder, by default as many. Its work is counted with
            the tokens of the encoder: the result times rows times `length` is the work of a batch.
        predicted_share: share of the positions that have a target. It counts for models that compute no logits
            elsewhere, see `predicts_targets_only`; others compute them everywhere.
        masked: whether a batch comes with a mask: its rows are packed with documents, or padded.
        device_type: where it is trained, "cpu" or "cuda"; by default where the model is, and "cpu" for meta.
    """
    decoded = length if target_length is None else target_length
    share = predicted_share if predicts_targets_only(model) else 1.0
    is_both = _is_encoder_decoder(model)
    rows = _Rows(
        encoded=length,
        decoded=decoded if is_both else length,
        predicted=share * (decoded if is_both else length),
        masked=masked,
        device_type=device_type or _device_type(model),
    )
    repeated = tuple(f"{name}." for name, module in model.named_modules() if _is_computed_twice(module))
    total = 0.0
    for name, forward, backward in [*_linear_layers(model, rows), *_attention_layers(model, rows)]:
        total += forward * (1.0 + backward + name.startswith(repeated))
    return total / length


def predicts_targets_only(model: nn.Module) -> bool:
    """Whether the model computes logits at the positions with a target alone, while it is trained."""
    return "sparse_prediction" in inspect.signature(model.forward).parameters


def attentions(model: nn.Module) -> dict[str, Attention]:
    """The attention layers of a model, by name: modules that own a projection of queries."""
    general = getattr(model, "config", None)
    found = {}
    for name, module in model.named_modules():
        own = {child: _weight_of(_plain(part)) is not None for child, part in module.named_children()}
        query = next((each for each in _QUERIES if own.get(each)), None)
        if query is None and not any(own.get(each) for each in _FUSED):
            continue
        config = getattr(module, "config", general)
        is_cross = bool(
            getattr(module, "is_cross", False)
            or getattr(module, "is_cross_attention", False)
            or re.search(r"[cC]ross|encoder_attn|EncDec", f"{name.rpartition('.')[2]} {type(module).__name__}")
        )
        is_causal = bool(getattr(module, "is_causal", getattr(module, "is_decoder", False))) and not is_cross
        found[name] = Attention(
            width=_fused_width(module, config) if query is None else _shape(_plain(getattr(module, query)))[1],
            is_causal=is_causal,
            is_cross=is_cross,
            window=None if is_cross else getattr(module, "sliding_window", None),
            implementation=str(getattr(config, "_attn_implementation", None) or "eager"),
            dropout=_attention_dropout(module),
        )
    return found


def _linear_layers(model: nn.Module, rows: _Rows) -> Iterator[tuple[str, float, float]]:
    """Name, forward operations in one row and how much backward costs in terms of these, of each linear layer."""
    output = getattr(model, "get_output_embeddings", lambda: None)()
    crossing = {name for name, attention in attentions(model).items() if attention.is_cross}
    for name, module in model.named_modules():
        weight = _weight_of(module)
        if weight is None:
            continue
        above, _, own = name.removesuffix(".base_layer").rpartition(".")
        tokens: float = rows.decoded if _is_in_decoder(model, name) else rows.encoded
        if _ONCE_A_ROW & set(name.split(".")):
            tokens = 1.0
        elif module is output or name.startswith("transform."):
            tokens = rows.predicted
        elif above in crossing and own in _KEYS_AND_VALUES:
            tokens = rows.encoded
        yield name, 2.0 * weight.numel() * tokens, 2.0 if weight.requires_grad else 1.0


def _attention_layers(model: nn.Module, rows: _Rows) -> Iterator[tuple[str, float, float]]:
    """The same of the products of queries with keys, and of weights with values."""
    for name, attention in attentions(model).items():
        queries = rows.decoded if _is_in_decoder(model, name) else rows.encoded
        keys = rows.encoded if attention.is_cross else queries
        pairs = attention.pairs(queries=queries, keys=keys, masked=rows.masked, device_type=rows.device_type)
        yield name, 4.0 * attention.width * pairs, 2.5 if attention.is_fused(rows.device_type) else 2.0


def _is_encoder_decoder(model: nn.Module) -> bool:
    return bool(getattr(getattr(model, "config", None), "is_encoder_decoder", False))


def _is_in_decoder(model: nn.Module, name: str) -> bool:
    """Whether a module belongs to the decoder of an encoder-decoder; what stands behind both does."""
    return _is_encoder_decoder(model) and "encoder" not in name.split(".")


def _is_computed_twice(module: nn.Module) -> bool:
    return isinstance(module, GradientCheckpointingLayer) and module.gradient_checkpointing


def _plain(module: nn.Module) -> nn.Module:
    """The layer itself, where low-rank additions stand around it."""
    layer = getattr(module, "base_layer", module)
    return layer if isinstance(layer, nn.Module) else module


def _weight_of(module: nn.Module) -> torch.Tensor | None:
    """The matrix of a linear layer: torch's, or the one of GPT-2, which is stored the other way round."""
    if isinstance(module, nn.Linear) or type(module).__name__ == "Conv1D":
        return module.weight
    return None


def _shape(module: nn.Module) -> tuple[int, int]:
    """Inputs and outputs of a linear layer."""
    rows, columns = module.weight.shape
    return (columns, rows) if isinstance(module, nn.Linear) else (rows, columns)


def _fused_width(module: nn.Module, config: Any) -> int:
    """Heads times head size, where queries, keys and values have one projection together."""
    heads = getattr(module, "num_heads", None) or getattr(config, "num_attention_heads", 1)
    size = getattr(module, "head_dim", None) or config.hidden_size // heads
    return int(heads * size)


def _attention_dropout(module: nn.Module) -> float:
    for name in ("attention_dropout", "attn_dropout", "dropout"):
        value = getattr(module, name, None)
        value = getattr(value, "p", value)
        if isinstance(value, int | float):
            return float(value)
    return 0.0


def _device_type(model: nn.Module) -> str:
    device = next((parameter.device.type for parameter in model.parameters()), "cpu")
    return "cpu" if device == "meta" else device


# --------------------------------------------------------------------------------------------------- what a device can


def peak_flops(device: str | torch.device, precision: str) -> float | None:
    """Floating-point operations a second that a device could do at best in dense matrix products.

    Args:
        device: a torch device; or the name of a GPU, of which training/devices.py has a table.
        precision: bf16, fp16, or no for float32 (without TF32).

    Returns:
        For a GPU the data sheet's number, None where the table lacks it. For a CPU what a product of good size
        reaches here on the threads that torch has, measured once in a process (half a second at most).
    """
    kind = {"bf16": "bf16", "fp16": "fp16"}.get(precision, "fp32")
    name = str(device)
    if name.startswith("cpu"):
        return _measured_on_cpu(kind, torch.get_num_threads())
    if name.startswith("cuda") and torch.cuda.is_available():
        name = torch.cuda.get_device_name(torch.device(name))
    gpu = find_gpu(name)
    teraflops = None if gpu is None else getattr(gpu, kind)
    return None if teraflops is None else teraflops * 1e12


@functools.cache
def _measured_on_cpu(kind: str, threads: int) -> float:
    """The fastest of several products; the largest size of which one takes a twentieth of a second at most."""
    dtype = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(kind, torch.float32)
    best, started, size = 0.0, time.perf_counter(), 256
    # Numbers that are all alike would be as good: a matrix product takes as long whatever is multiplied.
    matrix = torch.ones(size, size, dtype=dtype)
    with torch.inference_mode():
        while time.perf_counter() - started < 0.3:
            before = time.perf_counter()
            torch.mm(matrix, matrix)
            seconds = max(time.perf_counter() - before, 1e-9)
            best = max(best, 2.0 * size**3 / seconds)
            if size < 4096 and 8 * seconds < 0.05:
                size *= 2
                matrix = torch.ones(size, size, dtype=dtype)
    return best
