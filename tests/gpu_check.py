"""Is everything right on this GPU, and how fast is it? One table; the exit code is 1 if anything is wrong.

    make gpu-check                              # ten minutes on one NVIDIA GPU
    python tests/gpu_check.py --minutes 0       # checks alone, two minutes
    python tests/gpu_check.py --device cpu      # what of the checks a CPU has, for who changes them

Kernels for packed rows and torch's fused attention stand beside eager attention; compiled blocks, FSDP2 and fp16
beside what is plain; a run that was stopped and resumed beside one that was not. At the end comes gpu_speed.py.
"""

import argparse
import contextlib
import json
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch
from torch import Tensor, nn
from toys import PlainTokenizer, ToyWork, make_model

from lacuna.modeling import LacunaConfig, LacunaForCausalLM, LacunaForMaskedLM, kernels_lacuna
from lacuna.objectives.data import IGNORED, add_hints
from lacuna.training import TrainingArguments, train
from lacuna.training import run as run_module
from lacuna.training.compiling import compile_model, compiler_of
from lacuna.training.distributed import fsdp
from lacuna.training.optimizers.optimizers import OPTIMIZERS
from lacuna.training.progress import Progress
from lacuna.training.step import update

REPOSITORY = Path(__file__).resolve().parents[1]
DOCUMENTS = [[100, 300, 112], [512], [1, 255, 256]]
"""Tokens of the documents of three rows."""
TOLERANCES = {torch.float32: 1e-3, torch.bfloat16: 4e-2, torch.float16: 1e-2}
"""Of gradients, as a share of their norm: float32 may be TF32, and eager attention rounds too."""
SLOWEST = 0.5  # of the speed of the fastest peer; below, something does not work as it should


class Skipped(Exception):
    """This device cannot do it."""


def model_of(shape: str, device: torch.device, *, attention: str = "sdpa") -> Any:
    """Two layers of both types, 64 numbers a head."""
    config = LacunaConfig(
        shape=shape,
        vocab_size=512,
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        layer_types=["full_attention", "sliding_attention"],
        sliding_window=20,
        max_position_embeddings=1024,
    )
    torch.manual_seed(0)
    model: Any = (LacunaForMaskedLM if shape == "encoder" else LacunaForCausalLM)(config)
    model.set_attn_implementation(attention)
    return model.to(device).train()


def batch_of(shape: str, device: torch.device, *, packed: bool = True, hints: bool = True) -> dict[str, Tensor]:
    """Rows of 512 tokens; every fifth is a target, or every one."""
    ids = torch.randint(5, 512, (3, 512), generator=torch.Generator().manual_seed(0))
    positions = torch.stack([torch.cat([torch.arange(size) for size in row]) for row in DOCUMENTS])
    labels = ids.masked_fill(ids % 5 > 0 if shape == "encoder" else positions == 0, IGNORED)
    batch = {"input_ids": ids, "labels": labels, **({"position_ids": positions} if packed else {})}
    shifted = nn.functional.pad(labels[:, 1:], (0, 1), value=IGNORED)
    batch = add_hints(batch, targets=labels if shape == "encoder" else shifted) if hints else batch
    return {name: value.to(device) for name, value in batch.items()}


def learn(model: Any, batch: dict[str, Tensor], dtype: torch.dtype, *, scale: float = 1.0) -> dict[str, Tensor]:
    """The loss of a batch, and the gradients of all weights, in float32."""
    device = batch["input_ids"].device.type
    with torch.autocast(device, dtype, enabled=dtype != torch.float32):
        loss = model(**batch, skip_logits=True).loss
    (loss * scale).backward()
    gradients = {name: weight.grad.float() / scale for name, weight in model.named_parameters()}
    return {"loss": loss.detach().float(), **gradients}


def largest_difference(found: dict[str, Tensor], wanted: dict[str, Tensor]) -> float:
    """Of the norms of differences, as shares of the norms of what is wanted."""
    assert found.keys() == wanted.keys()
    return max(float((found[name] - it).norm() / it.norm().clamp(min=1e-6)) for name, it in wanted.items())


def within(found: dict[str, Tensor], wanted: dict[str, Tensor], tolerance: float) -> str:
    """A line for people; AssertionError: they differ by more."""
    difference = largest_difference(found, wanted)
    assert difference <= tolerance, f"gradients differ by {difference:.2g} of their norm, {tolerance:g} is allowed"
    return f"gradients within {difference:.1g}"


@contextlib.contextmanager
def noted_kernels() -> Iterator[set[str]]:
    """Names of the kernels for packed rows that run."""
    used: set[str] = set()

    def noted(name: str, *given: Any, **options: Any) -> Tensor:
        used.add(name)
        return kernels[name](*given, **options)

    kernels = dict(kernels_lacuna.PACKED_KERNELS)
    with mock.patch.object(kernels_lacuna, "PACKED_KERNELS", {name: partial(noted, name) for name in kernels}):
        yield used


def check_kernel(device: torch.device, *, shape: str, kernel: str, dtype: torch.dtype) -> str:
    """Packed rows through a kernel, or whole ones through torch's own (sdpa), beside eager attention."""
    if device.type == "cuda":
        if dtype == torch.bfloat16 and not torch.cuda.is_bf16_supported(including_emulation=False):
            raise Skipped("no bf16 here")
        if kernel == "varlen" and torch.cuda.get_device_capability(device) < (8, 0):
            raise Skipped("FlashAttention needs a newer GPU")
    options = {"packed": kernel != "sdpa", "hints": kernel != "flex"}
    scale = 2.0**12 if dtype == torch.float16 else 1.0
    batch = batch_of(shape, device, **options)
    wanted = learn(model_of(shape, device, attention="eager"), batch, dtype, scale=scale)
    with noted_kernels() as used:
        found = learn(model_of(shape, device), batch, dtype, scale=scale)
    if device.type == "cuda":
        assert used == ({kernel} if kernel != "sdpa" else set()), f"{kernel} was to run, and {used or 'none'} did"
    return within(found, wanted, TOLERANCES[dtype])


def check_compile(device: torch.device) -> str:
    """Compiled blocks and target scores."""
    if compiler_of(device) is None:
        raise Skipped("no compiler here")
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    batch, model = batch_of("encoder", device), model_of("encoder", device)
    wanted = learn(model_of("encoder", device), batch, dtype)
    assert compile_model(model) == 2
    return within(learn(model, batch, dtype), wanted, TOLERANCES[dtype])


def check_fsdp(device: torch.device) -> str:
    """Three steps of each optimizer on shards, which are whole with one process."""
    with tempfile.TemporaryDirectory() as folder:
        backend = "nccl" if device.type == "cuda" else "gloo"
        torch.distributed.init_process_group(backend, init_method=f"file://{folder}/store", rank=0, world_size=1)
        try:
            return "; ".join(f"{name} {_sharded(device, name)}" for name in OPTIMIZERS)
        finally:
            torch.distributed.destroy_process_group()


def _sharded(device: torch.device, optimizer: str) -> str:
    counts, weights = iter([2, 1]), []  # a single process is refused, as it gains nothing
    alone = {"is_initialized": lambda: True, "get_world_size": lambda: next(counts)}
    alone["broadcast"] = lambda *_, **__: None
    for is_sharded in (False, True):
        model = model_of("decoder", device)
        if is_sharded:
            with mock.patch.object(fsdp, "dist", SimpleNamespace(**alone)):
                fsdp.shard(model, device=device)
        optimizers = OPTIMIZERS[optimizer].make(
            model, TrainingArguments(optimizer=optimizer, learning_rate=1e-3, max_steps=4)
        )
        for _ in range(3):
            (loss := model(**batch_of("decoder", device), skip_logits=True).loss).backward()
            update(model, optimizers, loss=loss.detach(), max_norm=1.0, loss_scale=1.0)
        weights.append(fsdp.full_model_state(model))
    return within(weights[1], weights[0], TOLERANCES[torch.float32]).replace("gradients", "weights")


def check_waiting(device: torch.device) -> str:
    """Forward and backward passes without a moment in which the host waits."""
    if device.type != "cuda":
        raise Skipped("only a GPU is waited for; tests/objectives/test_no_waiting.py stands for it")
    for shape in ("encoder", "decoder"):
        model, batch = model_of(shape, device), batch_of(shape, device)
        learn(model, batch, torch.float16)  # compiles, and looks at each shape once
        torch.cuda.set_sync_debug_mode("error")
        try:
            with torch.autocast("cuda", torch.float16):
                model(**batch, skip_logits=True).loss.backward()
        finally:
            torch.cuda.set_sync_debug_mode("default")
    return "never"


def run(folder: Path, *, work: ToyWork | None = None, **options: Any) -> list[dict[str, Any]]:
    """A short run of the loop; returns what it has logged."""
    usual = {"batch_size": 8, "max_steps": 12, "logging_steps": 1, "eval_steps": 0, "learning_rate": 1e-2}
    arguments = TrainingArguments(output_dir=str(folder), **{**usual, "deterministic": True, **options})
    try:
        train(model=make_model(dropout=0.1), work=work or ToyWork(), tokenizer=PlainTokenizer(), arguments=arguments)
    finally:
        torch.use_deterministic_algorithms(False)
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]


def check_fp16(device: torch.device) -> str:
    """Losses beside those in float32; and a scale that is too high, which falls."""
    with tempfile.TemporaryDirectory() as folder:
        found, wanted = (run(Path(folder, it), mixed_precision=it, save_steps=0) for it in ("fp16", "no"))
        first = partial(Progress, loss_scale=2.0**24)
        with mock.patch.object(run_module, "Progress", first):
            high = run(Path(folder, "high"), mixed_precision="fp16", save_steps=0)
    pairs = zip(found, wanted, strict=True)
    difference = max(abs(one["loss"] / other["loss"] - 1) for one, other in pairs if "loss" in one)
    assert difference < 0.02, f"losses differ by {difference:.2g}"
    events = [line["reason"] for line in high if line.get("event") == "skipped"]
    assert events and all("at loss scale" in reason for reason in events), events
    assert len(events) < 12, "no step was applied"
    return f"losses within {difference:.1g}; {len(events)} steps until the scale fits"


def check_resume(device: torch.device, *, precision: str) -> str:
    """Stopped in step 6 and resumed: the same weights to the bit."""
    with tempfile.TemporaryDirectory() as folder:
        options = {"mixed_precision": precision, "save_steps": 4}
        run(Path(folder, "straight"), **options)
        with contextlib.suppress(InterruptedError):
            run(Path(folder, "broken"), work=ToyWork(stop_at=5 * 8), num_workers=0, **options)
        run(Path(folder, "broken"), resume=True, **options)
        one, other = (Path(folder, name, "model.safetensors").read_bytes() for name in ("straight", "broken"))
    assert one == other, "the weights differ"
    return "equal to the bit"


KINDS = [(shape, kernel) for shape in ("encoder", "decoder") for kernel in ("sdpa", "varlen", "flex")]
CHECKS: dict[str, Callable[[torch.device], str]] = {
    **{
        f"{kernel}, {shape}, {str(dtype).removeprefix('torch.')}": partial(
            check_kernel, shape=shape, kernel=kernel, dtype=dtype
        )
        for shape, kernel in KINDS
        for dtype in (torch.bfloat16, torch.float16)
    },
    "waits for the GPU": check_waiting,
    "compile": check_compile,
    "FSDP2, one device": check_fsdp,
    "fp16": check_fp16,
    **{f"resume, {precision}": partial(check_resume, precision=precision) for precision in ("auto", "fp16")},
}


def run_checks(device: torch.device, names: list[str] | None = None) -> list[tuple[str, str, str]]:
    """Name, ok or WRONG or -, and details of each check."""
    rows = []
    for name in names or CHECKS:
        start = time.perf_counter()
        try:
            row = (name, "ok", CHECKS[name](device))
        except Skipped as reason:
            row = (name, "-", str(reason))
        except Exception as error:  # its row says so, and the others go on
            traceback.print_exc()
            row = (name, "WRONG", f"{type(error).__name__}: {error}".splitlines()[0][:200])
        rows.append((*row[:2], f"{row[2]} ({time.perf_counter() - start:.0f} s)"))
        print(": ".join(rows[-1]), file=sys.stderr, flush=True)
    return rows


def speed_rows(parts: dict[str, Any]) -> list[tuple[str, str, str]]:
    """The same of what benchmarks/gpu_speed.py has measured: our row of each part, beside its fastest peer."""
    rows = []
    for name, part in parts.items():
        speeds = {title: it.get("tokens_per_second") for title, it in part["contenders"].items()}
        ours, peers = speeds.pop("lacuna"), [(speed, title) for title, speed in speeds.items() if speed]
        if not ours:
            rows.append((name, "WRONG", str(part["contenders"]["lacuna"].get("error"))))
            continue
        mfu = part["contenders"]["lacuna"].get("mfu")
        best, title = max(peers, default=(None, ""))
        text = f"{ours:,.0f} tokens/s" + (f", MFU {mfu:.1%}" if mfu else "")
        text += f"; {ours / best:.2f} times {title}" if best else ""
        rows.append((name, "WRONG" if best and ours < SLOWEST * best else "ok", text))
    return rows


def measure(minutes: float) -> list[tuple[str, str, str]]:
    """Run benchmarks/gpu_speed.py, and read what it has written."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "benchmarks/gpu_speed.py", "--minutes", str(minutes), "--output_dir", folder]
        done = subprocess.run(command, cwd=REPOSITORY, stdout=subprocess.DEVNULL)
        found = list(Path(folder).glob("*-gpu_speed.json"))
        if done.returncode or not found:
            return [("speed", "WRONG", f"benchmarks/gpu_speed.py ended with exit code {done.returncode}")]
        return speed_rows(json.loads(found[0].read_text(encoding="utf-8"))["parts"])


def main() -> None:
    """All checks, the speed, and the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument("--minutes", type=float, default=7.0, help="for the speed; 0 leaves it out (7)")
    options = parser.parse_args()
    if options.device == "cuda" and not torch.cuda.is_available():
        print("there is no NVIDIA GPU here, or torch cannot use it; --device cpu runs what a CPU has", file=sys.stderr)
        sys.exit(2)
    device = torch.device(options.device)
    rows = run_checks(device)
    rows += measure(options.minutes) if options.minutes and device.type == "cuda" else []
    name = torch.cuda.get_device_name() if device.type == "cuda" else "a CPU"
    print(f"torch {torch.__version__} on {name}\n")
    width = max(len(row[0]) for row in rows)
    print("\n".join(f"{title:<{width}}  {verdict:<5}  {text}" for title, verdict, text in rows))
    wrong = sum(verdict == "WRONG" for _, verdict, _ in rows)
    print(f"\n{wrong} of {len(rows)} are WRONG" if wrong else "\nall is well")
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
