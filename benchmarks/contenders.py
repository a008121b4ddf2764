"""The models that the benchmarks compare: how each is built, the tables of who meets whom, and a training step.

All of one table have the same dropout and train in bf16, but for `bert` and `gpt2` of `SIDE_BY_SIDE`, which also has
them in bf16.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any

import torch
from harness import find_device, peak_memory
from torch import Tensor, nn
from transformers import BertConfig, BertForMaskedLM, GPT2Config, GPT2LMHeadModel, set_seed
from transformers.pytorch_utils import Conv1D

from lacuna import modeling
from lacuna.training.compiling import compile_model, compiler_of
from lacuna.training.environment import bf16_is_fast, keep_memory, use_all_cores
from lacuna.training.planning.flops import peak_flops

IGNORED = -100


@dataclass(frozen=True)
class Shape:
    """The size that all models of a table have."""

    hidden_size: int
    layers: int
    heads: int
    vocab_size: int
    positions: int
    inner: int = 0  # width of gated feed-forward layers; 0: each family's own

    def fields(self) -> dict[str, Any]:
        """The names that configurations of all models have for it."""
        sizes = {"vocab_size": self.vocab_size, "hidden_size": self.hidden_size, "num_hidden_layers": self.layers}
        return {**sizes, "num_attention_heads": self.heads, "max_position_embeddings": self.positions}


def with_dropout(config: Any, dropout: float) -> Any:
    """A configuration with this much dropout wherever its family has one, layers that are dropped whole aside."""
    for name, value in vars(config).items():
        if "drop" in name and "layerdrop" not in name and isinstance(value, float):
            setattr(config, name, dropout)
    return config


def lacuna(shape: Shape, dropout: float, *, family: str = "modernbert", size: str = "tiny") -> Any:
    """LacunaForMaskedLM or LacunaForCausalLM, of family modernbert unless another one is named."""
    inner = {"intermediate_size": shape.inner} if shape.inner else {}
    config = modeling.LacunaConfig.from_family(family, size, **shape.fields(), **inner, use_cache=False)
    head = modeling.LacunaForCausalLM if config.shape == "decoder" else modeling.LacunaForMaskedLM
    return head(with_dropout(config, dropout))


def native(shape: Shape, dropout: float, *, family: str) -> Any:
    """The class of transformers with the weights of `lacuna`; ModernBERT makes logits at the masked positions only."""
    model = modeling.to_native(lacuna(shape, dropout, family=family), family=family)
    if family == "modernbert":
        model.config.sparse_prediction = model.sparse_prediction = True
    return model


def bert(shape: Shape, dropout: float) -> Any:
    """BertForMaskedLM with inner layers of four widths; or of as many weights as gated ones of `shape.inner` have."""
    inner = 3 * shape.inner // 2 if shape.inner else 4 * shape.hidden_size
    return BertForMaskedLM(with_dropout(BertConfig(**shape.fields(), intermediate_size=inner), dropout))


def lacuna_bert(shape: Shape, dropout: float) -> Any:
    """LacunaForMaskedLM with the shape and weights of `bert`."""
    return modeling.from_native(bert(shape, dropout))


def gpt2(shape: Shape, dropout: float) -> Any:
    """GPT2LMHeadModel, without the cache of keys and values, which training does not read."""
    last = shape.vocab_size - 1
    config = GPT2Config(**shape.fields(), bos_token_id=last, eos_token_id=last, use_cache=False)
    return GPT2LMHeadModel(with_dropout(config, dropout))


@dataclass(frozen=True)
class Contender:
    """A model and how it trains."""

    build: Callable[..., nn.Module]
    compiles: str = ""  # blocks: as our loop does; whole: torch.compile(model); or nothing
    bf16: bool = True  # whether it trains under bf16 autocast where bf16 is fast; otherwise in float32
    weights: str = ""  # those of one table with the same word here start with equal ones, and must have equal losses
    is_decoder: bool = False
    rows: str = "whole"  # packed: documents apart; whole: read as one text

    @property
    def is_ours(self) -> bool:
        return getattr(self.build, "func", self.build) in (lacuna, lacuna_bert)


_OUR_DECODER = partial(lacuna, family="qwen3")
_MODERNBERT, _QWEN3 = partial(native, family="modernbert"), partial(native, family="qwen3")
SIDE_BY_SIDE = {
    "lacuna": Contender(lacuna, "blocks", weights="modernbert"),
    "lacuna_bert": Contender(lacuna_bert, "blocks", weights="bert"),
    "bert": Contender(bert, bf16=False, weights="bert"),
    "bert_compiled": Contender(bert, "whole", weights="bert"),
    "modernbert": Contender(_MODERNBERT, weights="modernbert"),
    "modernbert_compiled": Contender(_MODERNBERT, "whole", weights="modernbert"),
    "lacuna_clm": Contender(_OUR_DECODER, "blocks", weights="qwen3", is_decoder=True),
    "gpt2": Contender(gpt2, bf16=False, weights="gpt2", is_decoder=True),
    "gpt2_compiled": Contender(gpt2, "whole", weights="gpt2", is_decoder=True),
    "qwen3_compiled": Contender(_QWEN3, "whole", weights="qwen3", is_decoder=True),
}

_PACKED = Contender(partial(lacuna, size="base"), "blocks", rows="packed")
_ENCODERS = {
    "lacuna": _PACKED,
    "modernbert": Contender(_MODERNBERT, "whole"),
    "bert": Contender(bert, "whole"),
    "lacuna, one text": replace(_PACKED, rows="whole"),
}
_DECODER = replace(_PACKED, build=partial(lacuna, family="gpt2", size="base"), is_decoder=True)
GPU = {
    "encoder-150m": _ENCODERS,
    "decoder-124m": {
        "lacuna": _DECODER,
        "gpt2": Contender(gpt2, "whole", is_decoder=True),
        "lacuna, one text": replace(_DECODER, rows="whole"),
    },
    "encoder-32m": _ENCODERS,
}


class Trainee:
    """A contender with its optimizer (AdamW, unless `optimizers` makes others) and precision, in this process.

    With `own_weights` they are drawn as its class does, where `build` takes those of ours.
    """

    def __init__(
        self,
        contender: Contender,
        shape: Shape,
        *,
        dropout: float = 0.0,
        compiles: bool = True,
        seed: int = 0,
        own_weights: bool = False,
        optimizers: Callable[[nn.Module], list[torch.optim.Optimizer]] | None = None,
    ) -> None:
        set_seed(seed)
        self.contender, self.device, self.bytes_before = contender, find_device(), peak_memory(reset=True)
        model: Any = contender.build(shape, dropout)
        if own_weights:
            set_seed(seed)
            model = type(model)(model.config)
        self.model = model.to(self.device).train()
        usual = partial(torch.optim.AdamW, lr=1e-4, fused=True)
        self.optimizers = optimizers(self.model) if optimizers else [usual(self.model.parameters())]
        self.bf16 = contender.bf16 and bf16_is_fast()
        self.compiles = contender.compiles if compiles and compiler_of(self.device) else ""
        self.forward: Callable[..., Any] = self.model
        if self.compiles == "blocks":
            compile_model(self.model)
        elif self.compiles == "whole":
            self.forward = torch.compile(self.model)
        self.options = {"skip_logits": True} if contender.is_ours else {}
        self.batches: list[dict[str, Tensor]] = []

    def describe(self) -> dict[str, Any]:
        """What it is, for the report."""
        size = sum(parameter.numel() for parameter in self.model.parameters())
        facts = {"model": type(self.model).__name__, "parameters": size, "compile": self.compiles or "no"}
        return {**facts, "precision": "bf16" if self.bf16 else "float32"}

    def use(self, batches: list[dict[str, Tensor]]) -> None:
        """Train on these from now on."""
        self.batches = [{name: value.to(self.device) for name, value in batch.items()} for batch in batches]

    def first_loss(self) -> float:
        """The loss of the first batch before any step, in float32, without dropout, not compiled."""
        self.model.eval()
        with torch.no_grad(), torch.compiler.set_stance("force_eager"):
            loss = float(self.model(**self.batches[0], **self.options).loss)
        self.model.train()
        return loss

    def backward(self, batch: dict[str, Tensor]) -> Tensor:
        """Forward and backward on a batch that is on the device; the loss, not waited for."""
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.bf16):
            output = self.forward(**batch, **self.options)
        output.loss.backward()
        return output.loss.detach()

    def step(self, batch: dict[str, Tensor], *, max_norm: float | None = None) -> Tensor:
        """`backward`, and a step of the optimizers."""
        loss = self.backward(batch)
        if max_norm is not None:
            nn.utils.clip_grad_norm_(self.model.parameters(), max_norm)
        for optimizer in self.optimizers:
            optimizer.step()
        self.model.zero_grad()
        return loss

    def run(self, steps: int) -> dict[str, Any]:
        """Some steps, batches in turn: time, speed, last loss (RuntimeError if not finite), and the peak of memory."""
        chosen = [self.batches[number % len(self.batches)] for number in range(steps)]
        wait = torch.cuda.synchronize if self.device.type == "cuda" else lambda: None
        peak_memory(reset=True)
        wait()
        began = time.monotonic()
        for batch in chosen:
            loss = self.step(batch)
        wait()
        ended = time.monotonic()
        if not torch.isfinite(loss):
            raise RuntimeError(f"the loss is {float(loss)}: its speed says nothing")
        tokens = sum(batch["input_ids"].numel() for batch in chosen)
        found = {"began": began, "ended": ended, "seconds": ended - began, "steps": steps, "tokens": tokens}
        found |= {"tokens_per_second": tokens / (ended - began), "loss": float(loss)}
        return {**found, "peak_memory": peak_memory() - self.bytes_before}


def operations(model: nn.Module, contender: Contender, shape: Shape, *, lengths: list[int], masked: float) -> float:
    """Floating-point operations that a batch needs: products with weights, and attention inside documents and windows.

    Unlike `torch.utils.flop_counter` it leaves out scores that a kernel computes again, or for nothing behind a mask.
    """
    tokens = sum(lengths)
    lengths = [shape.positions] * (tokens // shape.positions) if contender.rows == "whole" else lengths
    is_sparse = contender.is_ours or getattr(model, "sparse_prediction", False)
    head = getattr(model, "get_output_embeddings", lambda: None)()
    weights, last = 0.0, f"model.encoder.layers.{shape.layers - 1}.mlp."  # of ours
    for name, module in model.named_modules():
        if isinstance(module, nn.Linear | Conv1D):
            at_targets_only = is_sparse and (module is head or name.startswith(("transform.", "head.", last)))
            weights += module.weight.numel() * (masked if at_targets_only and not contender.is_decoder else 1.0)
    config: Any = getattr(model, "config", None)
    kinds = getattr(config, "layer_types", None) or ["full_attention"] * shape.layers
    reaches = [config.sliding_window if kind == "sliding_attention" else shape.positions for kind in kinds]
    pairs = sum(_pairs(size, reach, contender.is_decoder) for reach in reaches for size in lengths)
    return 6.0 * weights * tokens + 12.0 * shape.hidden_size * pairs


@cache
def _pairs(length: int, reach: int, is_causal: bool) -> int:
    """Pairs of tokens of which the first sees the second, `reach` tokens away at most."""
    after = 0 if is_causal else reach
    return sum(min(length, place + after + 1) - max(0, place - reach) for place in range(length))


_HERE: list[Trainee] = []


def build_here(name: str, batches: list[dict[str, Tensor]], threads: int | None, **options: Any) -> dict[str, Any]:
    """In the process of a contender of side_by_side.py: build it, and say what it is."""
    if SIDE_BY_SIDE[name].is_ours:
        keep_memory()  # before anything big is there
    use_all_cores() if threads is None else torch.set_num_threads(threads)
    _HERE[:] = [trainee := Trainee(SIDE_BY_SIDE[name], **options)]
    trainee.use(batches)
    facts = {**trainee.describe(), "threads": torch.get_num_threads(), "first_loss": trainee.first_loss()}
    row, masked = [options["shape"].positions], float((batches[0]["labels"] != IGNORED).float().mean())
    counted = operations(trainee.model, trainee.contender, options["shape"], lengths=row, masked=masked)
    peak = peak_flops("cpu", "bf16" if trainee.bf16 else "no") or 0
    return {**facts, "products_alone": peak * row[0] / counted}  # tokens per second


def run_here(steps: int) -> dict[str, Any]:
    """In the same process: some steps."""
    return _HERE[0].run(steps)
