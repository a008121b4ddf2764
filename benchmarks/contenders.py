"""Who trains in benchmarks/side_by_side.py, and the process in which one of them does.

Ours run as our training loop runs them, the others as their users get them. Started as a program this file is a
worker: it builds the one contender that it is asked for.
"""

import math
import resource
import statistics
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

IGNORED = -100
STATUS, RESET = Path("/proc/self/status"), Path("/proc/self/clear_refs")


@dataclass(frozen=True)
class Sizes:
    """The shape that all models have."""

    hidden_size: int
    layers: int
    heads: int
    vocab_size: int
    positions: int

    def as_fields(self) -> dict[str, int]:
        """The names that configurations of most models have for it."""
        return {
            "vocab_size": self.vocab_size,
            "hidden_size": self.hidden_size,
            "num_hidden_layers": self.layers,
            "num_attention_heads": self.heads,
            "max_position_embeddings": self.positions,
        }


def build_ours(sizes: Sizes) -> "nn.Module":
    """LacunaForMaskedLM of family modernbert."""
    from lacuna import modeling

    return modeling.LacunaForMaskedLM(modeling.LacunaConfig.from_family("modernbert", "tiny", **sizes.as_fields()))


def build_modernbert(sizes: Sizes) -> "nn.Module":
    """The native model with the weights of `build_ours`, which makes logits at the masked positions only."""
    from lacuna import modeling

    native = modeling.to_native(build_ours(sizes), family="modernbert")
    native.sparse_prediction = True
    return native


def build_bert(sizes: Sizes, **options: Any) -> "nn.Module":
    """BertForMaskedLM as it comes."""
    from transformers import BertConfig, BertForMaskedLM

    config = BertConfig(**sizes.as_fields(), intermediate_size=4 * sizes.hidden_size, **options)
    return BertForMaskedLM(config)


def build_our_bert(sizes: Sizes) -> "nn.Module":
    """LacunaForMaskedLM with the shape and weights of `build_bert`, without its dropout."""
    from lacuna import modeling

    return modeling.from_native(build_bert(sizes, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0))


def build_our_decoder(sizes: Sizes) -> "nn.Module":
    """LacunaForCausalLM of family qwen3."""
    from lacuna import modeling

    config = modeling.LacunaConfig.from_family("qwen3", "tiny", **sizes.as_fields(), use_cache=False)
    return modeling.LacunaForCausalLM(config)


def build_gpt2(sizes: Sizes) -> "nn.Module":
    """GPT2LMHeadModel as it comes, but for the cache of keys and values, which training does not read."""
    from transformers import GPT2Config, GPT2LMHeadModel

    last = sizes.vocab_size - 1
    return GPT2LMHeadModel(
        GPT2Config(
            vocab_size=sizes.vocab_size,
            n_embd=sizes.hidden_size,
            n_layer=sizes.layers,
            n_head=sizes.heads,
            n_positions=sizes.positions,
            bos_token_id=last,
            eos_token_id=last,
            use_cache=False,
        )
    )


@dataclass(frozen=True)
class Contender:
    """A model and how it trains."""

    build: Callable[[Sizes], "nn.Module"]
    reference: str
    """The one of ours whose speed is divided by this one's."""
    weights: str
    """Those with the same word here start with equal weights, and must have equal losses."""
    compiles: str = ""
    """`"blocks"`: training.compiling.compile_model; `"whole"`: torch.compile(model); empty: not compiled."""
    is_ours: bool = False
    takes_bf16: bool = True
    """Whether it trains under bf16 autocast where bf16 is fast; otherwise in float32."""
    is_decoder: bool = False


CONTENDERS: dict[str, Contender] = {
    "lacuna": Contender(build_ours, "lacuna", "modernbert", "blocks", is_ours=True),
    "lacuna_eager": Contender(build_ours, "lacuna", "modernbert", is_ours=True),
    "lacuna_bert": Contender(build_our_bert, "lacuna", "bert", "blocks", is_ours=True),
    "bert": Contender(build_bert, "lacuna", "bert", takes_bf16=False),
    "bert_bf16_compiled": Contender(build_bert, "lacuna", "bert", "whole"),
    "modernbert": Contender(build_modernbert, "lacuna", "modernbert"),
    "lacuna_clm": Contender(build_our_decoder, "lacuna_clm", "qwen3", "blocks", is_ours=True, is_decoder=True),
    "gpt2": Contender(build_gpt2, "lacuna_clm", "gpt2", takes_bf16=False, is_decoder=True),
    "gpt2_bf16_compiled": Contender(build_gpt2, "lacuna_clm", "gpt2", "whole", is_decoder=True),
}


def load_batches(path: str, *, is_decoder: bool) -> list[dict[str, "Tensor"]]:
    """What the parent wrote, as arguments of a model: a decoder learns every token, an encoder those that are masked.

    Args:
        path: .npz with `input_ids`, `masked_ids` and `labels` [number, B, T].
    """
    import numpy as np
    import torch

    with np.load(path) as arrays:
        names = ("input_ids", "input_ids") if is_decoder else ("masked_ids", "labels")
        ids, labels = (torch.from_numpy(arrays[name].astype(np.int64)) for name in names)
    return [
        {"input_ids": row_ids, "attention_mask": torch.ones_like(row_ids), "labels": row_labels}
        for row_ids, row_labels in zip(ids, labels, strict=True)
    ]


class Trainee:
    """A contender with its optimizer and precision, in this process."""

    def __init__(self, *, name: str, sizes: Sizes, is_compiled: bool, threads: int | None) -> None:
        import torch
        from transformers import set_seed

        from lacuna.training.compiling import compile_model, compiler_of
        from lacuna.training.environment import bf16_is_fast, use_all_cores

        if threads:
            torch.set_num_threads(threads)
        else:
            use_all_cores()
        self.name, self.contender = name, CONTENDERS[name]
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        set_seed(0)
        self.model: nn.Module = self.contender.build(sizes).to(self.device).train()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4, fused=True)
        self.precision = "bf16" if self.contender.takes_bf16 and bf16_is_fast() else "float32"
        self.compiles = self.contender.compiles if is_compiled and compiler_of(self.device) else ""
        self.forward: Callable[..., Any] = self.model
        if self.compiles == "blocks":
            compile_model(self.model)
        elif self.compiles == "whole":
            self.forward = torch.compile(self.model)
        self.options = {"skip_logits": True} if self.contender.is_ours else {}
        self.batches: list[dict[str, Tensor]] = []
        self.idle_since = time.process_time()

    def describe(self) -> dict[str, Any]:
        """What it is, for the report."""
        import torch

        return {
            "model": type(self.model).__name__,
            "precision": self.precision,
            "compile": self.compiles or "no",
            "parameters": sum(parameter.numel() for parameter in self.model.parameters()),
            "attention": self.model.config._attn_implementation,
            "threads": torch.get_num_threads(),
            "device": torch.cuda.get_device_name(self.device) if self.device.type == "cuda" else "cpu",
        }

    def use(self, batches: list[dict[str, "Tensor"]]) -> None:
        """Train on these from now on."""
        self.batches = [{name: value.to(self.device) for name, value in batch.items()} for batch in batches]

    def first_loss(self) -> float:
        """Of the first batch before any step, in float32, without dropout and not compiled."""
        import torch

        self.model.eval()
        with torch.no_grad(), torch.compiler.set_stance("force_eager"):
            loss = float(self.model(**self.batches[0], **self.options).loss)
        self.model.train()
        return loss

    def autocast(self) -> AbstractContextManager[Any]:
        """bf16 where it trains in that."""
        import torch

        return torch.autocast(self.device.type, torch.bfloat16) if self.precision == "bf16" else nullcontext()

    def step(self, number: int) -> "Tensor":
        """One optimizer step on batch `number`, counted round; the loss, not waited for."""
        with self.autocast():
            loss = self.forward(**self.batches[number % len(self.batches)], **self.options).loss
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        detached: Tensor = loss.detach()
        return detached

    def wait(self) -> None:
        """Until the device has done all it was given."""
        import torch

        if self.device.type == "cuda":
            torch.cuda.synchronize()

    def run(self, steps: int) -> dict[str, Any]:
        """Some steps: when they began and ended on the machine's clock, and what this process used while it waited.

        Raises:
            RuntimeError: the loss is not a number.
        """
        import torch

        waited = time.process_time() - self.idle_since
        graphs = _compiled_graphs()
        self.wait()
        began = time.monotonic()
        seconds = []
        for number in range(steps):
            start = time.perf_counter()
            loss = self.step(number)
            self.wait()
            seconds.append(time.perf_counter() - start)
        ended = time.monotonic()
        if not torch.isfinite(loss):
            raise RuntimeError(f"the loss of {self.name} is {float(loss)}: its speed says nothing")
        self.idle_since = time.process_time()
        return {
            "began": began,
            "ended": ended,
            "seconds": ended - began,
            "step_seconds": seconds,
            "tokens": sum(self.batches[number % len(self.batches)]["input_ids"].numel() for number in range(steps)),
            "loss": float(loss),
            "cpu_seconds_waiting": waited,
            "graphs_compiled": _compiled_graphs() - graphs,
        }

    def peak_memory(self, *, rows: int, length: int, vocab_size: int) -> dict[str, int]:
        """Bytes that two steps take beyond what the built model holds, in a process that has not stepped yet.

        The optimizer makes its states in the first step, so that the second one holds all there is.
        """
        import torch

        generator = torch.Generator().manual_seed(0)
        ids = torch.randint(5, vocab_size, (rows, length), generator=generator)
        chosen = torch.rand(rows, length, generator=generator) < 0.15
        labels = ids.masked_fill(~chosen, IGNORED)
        self.use([{"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": labels}])
        before = _peak_bytes(self.device, reset=True)
        for number in range(2):
            self.step(number)
        self.wait()
        return {"rows": rows, "bytes": _peak_bytes(self.device, reset=False) - before}


def _compiled_graphs() -> int:
    """How many graphs the compiler has seen so far in this process."""
    from torch._dynamo.utils import counters

    return int(counters["stats"]["unique_graphs"])


def _peak_bytes(device: "torch.device", *, reset: bool) -> int:
    """The most memory that was held; with `reset`, from now on, and what is held now is the answer.

    `ru_maxrss` of a process that was started by a larger one begins with the size of that one, so Linux is asked for
    the mark of this process alone.
    """
    import torch

    if device.type == "cuda":
        if reset:
            torch.cuda.reset_peak_memory_stats(device)
        return int(torch.cuda.max_memory_allocated(device))
    if STATUS.exists() and "VmHWM:" in STATUS.read_text():
        if reset and RESET.exists():
            RESET.write_text("5")
        return int(STATUS.read_text().partition("VmHWM:")[2].split()[0]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def warm_up_seconds(warm_up: dict[str, Any], runs: list[dict[str, Any]]) -> float:
    """What the steps of the warm-up took beyond as many later ones: compiling, and getting warm."""
    usual = statistics.median(seconds for run in runs for seconds in run["step_seconds"])
    return max(0.0, math.fsum(warm_up["step_seconds"]) - usual * len(warm_up["step_seconds"]))


def main() -> None:
    """Serve one contender to the parent."""
    from turns import serve

    trainee: Trainee | None = None

    def handle(request: str, arguments: dict[str, Any]) -> dict[str, Any]:
        nonlocal trainee
        if request == "build":
            from lacuna.training.environment import keep_memory

            path = arguments.pop("batches")
            if CONTENDERS[arguments["name"]].is_ours:
                keep_memory()  # before anything big is there
            trainee = Trainee(sizes=Sizes(**arguments.pop("sizes")), **arguments)
            facts = trainee.describe()
            if path is not None:
                trainee.use(load_batches(path, is_decoder=trainee.contender.is_decoder))
                facts["first_loss"] = trainee.first_loss()
            trainee.idle_since = time.process_time()
            return facts
        assert trainee is not None, "build comes first"
        if request == "share":
            from products import measure_share

            return measure_share(trainee, **arguments)
        return {"run": trainee.run, "peak_memory": trainee.peak_memory}[request](**arguments)  # type: ignore[operator]

    serve(handle)


if __name__ == "__main__":
    main()
