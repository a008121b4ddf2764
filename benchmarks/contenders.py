"""Who trains in the benchmarks: the builders of all models, the tables of who meets whom, and how one of them trains.

Ours run as our training loop runs them, the others as their users get them. Letters in shapes: B rows, T tokens, C
width, V vocabulary.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any
from unittest import mock

import torch
from clock import peak_memory
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel
from transformers import BertConfig, BertForMaskedLM, GPT2Config, GPT2LMHeadModel, set_seed

from lacuna import modeling
from lacuna.modeling import kernels_lacuna
from lacuna.training.compiling import compile_model, compiler_of
from lacuna.training.environment import bf16_is_fast, keep_memory, use_all_cores

IGNORED = -100
DROPOUT: dict[str, float | None] = {"side_by_side": None, "time_to_loss": None, "finetune": None, "gpu_speed": 0.0}
"""Of every model in the table of a benchmark; None: each has what it comes with."""


@dataclass(frozen=True)
class Shape:
    """The size that all models of a table have."""

    hidden_size: int
    layers: int
    heads: int
    vocab_size: int
    positions: int
    inner: int = 0
    """Width of gated feed-forward layers; 0: each family's own."""

    def fields(self) -> dict[str, Any]:
        """The names that configurations of all models have for it."""
        return {
            "vocab_size": self.vocab_size,
            "hidden_size": self.hidden_size,
            "num_hidden_layers": self.layers,
            "num_attention_heads": self.heads,
            "max_position_embeddings": self.positions,
        }


def with_dropout(config: Any, dropout: float | None) -> Any:
    """A configuration with this much dropout wherever its family has one, layers that are dropped whole aside."""
    if dropout is not None:
        for name, value in vars(config).items():
            if "drop" in name and "layerdrop" not in name and isinstance(value, float):
                setattr(config, name, dropout)
    return config


def lacuna(shape: Shape, dropout: float | None, *, family: str = "modernbert", size: str = "tiny") -> Any:
    """LacunaForMaskedLM or LacunaForCausalLM, of family modernbert unless another one is named."""
    inner = {"intermediate_size": shape.inner} if shape.inner else {}
    config = modeling.LacunaConfig.from_family(family, size, **shape.fields(), **inner, use_cache=False)
    head = modeling.LacunaForCausalLM if config.shape == "decoder" else modeling.LacunaForMaskedLM
    return head(with_dropout(config, dropout))


def modernbert(shape: Shape, dropout: float | None) -> Any:
    """ModernBertForMaskedLM with the weights of `lacuna`, which makes logits at the masked positions only."""
    native = modeling.to_native(lacuna(shape, dropout), family="modernbert")
    native.config.sparse_prediction = native.sparse_prediction = True
    return native


def bert(shape: Shape, dropout: float | None, *, head: Any = BertForMaskedLM, **fields: Any) -> Any:
    """BertForMaskedLM with inner layers of four widths; or of as many weights as gated ones of `shape.inner` have."""
    inner = 3 * shape.inner // 2 if shape.inner else 4 * shape.hidden_size
    return head(with_dropout(BertConfig(**shape.fields(), intermediate_size=inner, **fields), dropout))


def lacuna_bert(shape: Shape, dropout: float | None) -> Any:
    """LacunaForMaskedLM with the shape and weights of `bert`, without its dropout unless a table has one for all."""
    return modeling.from_native(bert(shape, dropout or 0.0))


def gpt2(shape: Shape, dropout: float | None) -> Any:
    """GPT2LMHeadModel, without the cache of keys and values, which training does not read."""
    last = shape.vocab_size - 1
    config = GPT2Config(**shape.fields(), bos_token_id=last, eos_token_id=last, use_cache=False)
    return GPT2LMHeadModel(with_dropout(config, dropout))


class PlainGPT(nn.Module):
    """GPT-2 as one writes it who wants speed and nothing else: token ids in, mean cross-entropy of the next ones out.

    In the manner of nanoGPT (https://github.com/karpathy/nanoGPT): fused projections, torch's causal attention, one
    embedding table for input and output, no biases, no dropout.
    """

    def __init__(self, shape: Shape, dropout: float | None = None) -> None:
        super().__init__()
        width = shape.hidden_size
        self.tokens, self.positions = nn.Embedding(shape.vocab_size, width), nn.Embedding(shape.positions, width)
        self.blocks = nn.Sequential(*(PlainBlock(width, shape.heads) for _ in range(shape.layers)))
        self.norm, self.head = nn.LayerNorm(width, bias=False), nn.Linear(width, shape.vocab_size, bias=False)
        self.head.weight = self.tokens.weight
        for parameter in self.parameters():
            if parameter.dim() > 1:
                nn.init.normal_(parameter, std=0.02)

    def forward(self, input_ids: Tensor, labels: Tensor) -> Tensor:
        """Ids and labels [B, T], of which the label at t + 1 is what t predicts -> the loss."""
        states = self.tokens(input_ids) + self.positions(torch.arange(input_ids.shape[1], device=input_ids.device))
        logits = self.head(self.norm(self.blocks(states)[:, :-1]))
        return functional.cross_entropy(logits.flatten(0, 1).float(), labels[:, 1:].flatten())


class PlainAttention(nn.Module):
    """Causal self-attention with one projection for queries, keys and values: [B, T, C] -> [B, T, C]."""

    is_causal = True

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.num_heads, self.head_dim = heads, width // heads
        self.qkv, self.out = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width, bias=False)

    def forward(self, states: Tensor) -> Tensor:
        parts = self.qkv(states).unflatten(-1, (3, self.num_heads, self.head_dim)).permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(*parts.unbind(), is_causal=True)
        return self.out(mixed.transpose(1, 2).flatten(2))


class PlainBlock(nn.Module):
    """Attention and feed-forward, each after a norm and added to the stream: [B, T, C] -> [B, T, C]."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.attention_norm, self.feed_norm = nn.LayerNorm(width, bias=False), nn.LayerNorm(width, bias=False)
        self.attention = PlainAttention(width, heads)
        self.up, self.down = nn.Linear(width, 4 * width, bias=False), nn.Linear(4 * width, width, bias=False)

    def forward(self, states: Tensor) -> Tensor:
        states = states + self.attention(self.attention_norm(states))
        return states + self.down(functional.gelu(self.up(self.feed_norm(states)), approximate="tanh"))


@dataclass(frozen=True)
class Contender:
    """A model and how it trains."""

    build: Callable[..., nn.Module]
    compiles: str = ""
    """blocks: as our loop does; whole: torch.compile(model); graphs: blocks replayed as CUDA graphs; or nothing."""
    bf16: bool = True
    """Whether it trains under bf16 autocast where bf16 is fast; otherwise in float32."""
    weights: str = ""
    """Those of one table with the same word here start with equal weights, and must have equal losses."""
    is_decoder: bool = False
    rows: str = "whole"
    """packed: documents apart, their bounds known; unbounded: apart, by positions alone; whole: read as one text."""
    within: Callable[[], Any] = contextlib.nullcontext
    """Opened around each step."""

    @property
    def is_ours(self) -> bool:
        """Whether it is a model of Lacuna."""
        return getattr(self.build, "func", self.build) in (lacuna, lacuna_bert)


@contextlib.contextmanager
def by_masks() -> Iterator[None]:
    """Packed rows as on a CPU: with masks of [B, 1, T, T]."""
    with mock.patch.object(kernels_lacuna, "PACKED_DEVICES", set()):
        yield


def by_cudnn() -> Any:
    """torch's attention by cuDNN's kernel alone."""
    return sdpa_kernel(SDPBackend.CUDNN_ATTENTION)


_OUR_DECODER = partial(lacuna, family="qwen3")
SIDE_BY_SIDE = {
    "lacuna": Contender(lacuna, "blocks", weights="modernbert"),
    "lacuna_eager": Contender(lacuna, weights="modernbert"),
    "lacuna_bert": Contender(lacuna_bert, "blocks", weights="bert"),
    "bert": Contender(bert, bf16=False, weights="bert"),
    "bert_bf16_compiled": Contender(bert, "whole", weights="bert"),
    "modernbert": Contender(modernbert, weights="modernbert"),
    "lacuna_clm": Contender(_OUR_DECODER, "blocks", weights="qwen3", is_decoder=True),
    "gpt2": Contender(gpt2, bf16=False, weights="gpt2", is_decoder=True),
    "gpt2_bf16_compiled": Contender(gpt2, "whole", weights="gpt2", is_decoder=True),
}
PEERS = {name: SIDE_BY_SIDE[name] for name in ("bert", "modernbert", "gpt2")}
"""Who is trained by the examples of transformers in time_to_loss.py."""

_PACKED = Contender(partial(lacuna, size="base"), "blocks", rows="packed")
_ENCODERS = {
    "lacuna": _PACKED,
    "modernbert": Contender(modernbert),
    "bert": Contender(bert),
    "lacuna, not compiled": replace(_PACKED, compiles=""),
    "lacuna, masks": replace(_PACKED, compiles="", rows="unbounded", within=by_masks),
    "lacuna, flex": replace(_PACKED, rows="unbounded"),
}
_DECODER = replace(_PACKED, build=partial(lacuna, family="gpt2", size="base"), is_decoder=True)
GPU = {
    "encoder-150m": _ENCODERS,
    "decoder-124m": {
        "lacuna": _DECODER,
        "plain": Contender(PlainGPT, "whole", is_decoder=True),
        "gpt2": Contender(gpt2, "whole", is_decoder=True),
        "lacuna, not compiled": replace(_DECODER, compiles=""),
        "lacuna, one text": replace(_DECODER, rows="whole"),
        "lacuna, one text, cuDNN": replace(_DECODER, rows="whole", within=by_cudnn),
        "lacuna, flex": replace(_DECODER, rows="unbounded"),
    },
    "encoder-32m": {
        "lacuna": _PACKED,
        "lacuna, CUDA graphs": replace(_PACKED, compiles="graphs"),
        **{name: _ENCODERS[name] for name in ("modernbert", "bert", "lacuna, not compiled", "lacuna, flex")},
    },
    "memory": {"lacuna": replace(_PACKED, compiles="", rows="whole"), "bert": Contender(bert, bf16=False)},
}


def find_device() -> torch.device:
    """Where models are trained and scored: on a GPU if there is one."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


class Trainee:
    """A contender with its optimizer and precision, in this process."""

    def __init__(
        self,
        contender: Contender,
        shape: Shape,
        *,
        dropout: float | None = None,
        compiles: bool = True,
        seed: int = 0,
        own_weights: bool = False,
        **of_optimizer: Any,
    ) -> None:
        """`own_weights`: as its class draws them, where `build` took those of ours."""
        set_seed(seed)
        self.contender, self.device = contender, find_device()
        model: Any = contender.build(shape, dropout)
        if own_weights:
            set_seed(seed)
            model = type(model)(model.config)
        self.model = model.to(self.device).train()
        settings = {"lr": 1e-4, "fused": True, **of_optimizer}
        self.optimizer = torch.optim.AdamW(self.model.parameters(), **settings)
        self.bf16 = contender.bf16 and bf16_is_fast()
        self.compiles = contender.compiles if compiles and compiler_of(self.device) else ""
        self.forward: Callable[..., Any] = self.model
        if self.compiles == "blocks":
            compile_model(self.model)
        elif self.compiles == "whole":
            self.forward = torch.compile(self.model)
        elif self.compiles == "graphs":
            for layer in self.model.model.encoder.layers:
                layer.compile(dynamic=False, mode="reduce-overhead")
            self.model.score_targets = torch.compile(self.model.score_targets, dynamic=True)
        self.options = {"skip_logits": True} if contender.is_ours else {}
        self.batches: list[dict[str, Tensor]] = []

    def describe(self) -> dict[str, Any]:
        """What it is, for the report."""
        config = getattr(self.model, "config", None)
        return {
            "model": type(self.model).__name__,
            "precision": "bf16" if self.bf16 else "float32",
            "compile": self.compiles or "no",
            "parameters": sum(parameter.numel() for parameter in self.model.parameters()),
            "attention": getattr(config, "_attn_implementation", "sdpa"),
            "threads": torch.get_num_threads(),
            "device": torch.cuda.get_device_name(self.device) if self.device.type == "cuda" else "cpu",
        }

    def use(self, batches: list[dict[str, Tensor]]) -> None:
        """Train on these from now on."""
        self.batches = [{name: value.to(self.device) for name, value in batch.items()} for batch in batches]

    def first_loss(self) -> float:
        """Of the first batch before any step, in float32, without dropout and not compiled."""
        self.model.eval()
        with torch.no_grad(), torch.compiler.set_stance("force_eager"):
            loss = float(self.model(**self.batches[0], **self.options).loss)
        self.model.train()
        return loss

    def step(self, batch: dict[str, Tensor], *, max_norm: float | None = None) -> Tensor:
        """Forward, backward and AdamW on a batch that is on the device; the loss, not waited for."""
        if self.compiles == "graphs":
            torch.compiler.cudagraph_mark_step_begin()
        with self.contender.within():
            with torch.autocast(self.device.type, torch.bfloat16, enabled=self.bf16):
                output = self.forward(**batch, **self.options)
            loss: Tensor = output if isinstance(output, Tensor) else output.loss
            loss.backward()
        if max_norm is not None:
            nn.utils.clip_grad_norm_(self.model.parameters(), max_norm)
        self.optimizer.step()
        self.optimizer.zero_grad()
        return loss.detach()

    def wait(self) -> None:
        """Until the device has done all it was given."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def run(self, steps: int) -> dict[str, Any]:
        """Some steps, the batches in turn: when they began and ended on the machine's clock, and the last loss.

        Raises:
            RuntimeError: the loss is not a number.
        """
        chosen = [self.batches[number % len(self.batches)] for number in range(steps)]
        self.wait()
        began = time.monotonic()
        for batch in chosen:
            loss = self.step(batch)
        self.wait()
        ended = time.monotonic()
        if not torch.isfinite(loss):
            raise RuntimeError(f"the loss is {float(loss)}: its speed says nothing")
        tokens = sum(batch["input_ids"].numel() for batch in chosen)
        return {
            **{"began": began, "ended": ended, "seconds": ended - began, "steps": steps, "tokens": tokens},
            "tokens_per_second": tokens / (ended - began),
            "loss": float(loss),
        }

    def peak_memory(self, *, rows: int, length: int, vocab_size: int) -> int:
        """Bytes that two steps take beyond what the built model holds, in a process that has not stepped yet.

        The optimizer makes its states in the first step, so that the second one holds all there is.
        """
        generator = torch.Generator().manual_seed(0)
        ids = torch.randint(5, vocab_size, (rows, length), generator=generator)
        chosen = torch.rand(rows, length, generator=generator) < 0.15
        labels = ids.masked_fill(~chosen, IGNORED)
        self.use([{"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": labels}])
        before = device_peak(self.device, reset=True)
        for _ in range(2):
            self.step(self.batches[0])
        self.wait()
        return device_peak(self.device) - before


def device_peak(device: torch.device, *, reset: bool = False) -> int:
    """The most bytes of a GPU that were held, or on a CPU by this process; with `reset`, from now on."""
    if device.type != "cuda":
        return peak_memory(reset=reset)
    if reset:
        torch.cuda.reset_peak_memory_stats(device)
    return int(torch.cuda.max_memory_allocated(device))


_HERE: list[Trainee] = []


def build_here(name: str, *, threads: int | None, batches: list[dict[str, Tensor]], **options: Any) -> dict[str, Any]:
    """In the process of a contender of side_by_side.py: build it, and say what it is."""
    contender = SIDE_BY_SIDE[name]
    if contender.is_ours:
        keep_memory()  # before anything big is there
    use_all_cores() if threads is None else torch.set_num_threads(threads)
    _HERE[:] = [Trainee(contender, **options)]
    facts = _HERE[0].describe()
    if batches:
        _HERE[0].use(batches)
        facts["first_loss"] = _HERE[0].first_loss()
    return facts


def ask_here(what: str | Callable[..., Any], **options: Any) -> Any:
    """In the same process: a method of the trainee by its name, or a function of it."""
    return getattr(_HERE[0], what)(**options) if isinstance(what, str) else what(_HERE[0], **options)
