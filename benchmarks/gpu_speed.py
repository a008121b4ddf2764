"""Training on one GPU: tokens per second, share of its peak, memory; ours beside peers in one schedule.

    python benchmarks/gpu_speed.py                  # one NVIDIA GPU, eight minutes at most
    python benchmarks/gpu_speed.py --parts decoder --minutes 3
    python benchmarks/gpu_speed.py --smoke          # tiny models, also on a CPU: whether it runs, not how fast

Three parts measure speed (encoders of 150 and 32 million weights, a decoder of 124 million, rows of 1024 tokens filled
with documents), a fourth the largest batch that fits. In each part all contenders are made ready one after another,
which includes compiling; then they take turns, A B C A B C, for as long as the part's share of the time lasts.
benchmarks/gpu_contenders.py says who they are and what each of them gets. What fails stands in its row with the error,
and the rest goes on. The report is written anew after each part.
"""

import argparse
import contextlib
import dataclasses
import gc
import signal
import statistics
import time
from collections.abc import Iterator
from types import FrameType
from typing import Any

import torch
from gpu_contenders import (
    DECODERS,
    ENCODERS,
    SMALL_ENCODERS,
    Contender,
    Runner,
    Shape,
    as_given,
    build_bert,
    build_lacuna,
    make_batch,
    operations,
)
from reports import RESULTS, describe_machine, write_report
from torch import Tensor

from lacuna.training.flops import peak_flops

WARMUP_STEPS = 4
TURN_SECONDS, MOST_ROUNDS = 1.5, 8
NUM_BATCHES = 4
LAST_SECONDS = 15.0  # kept for the report
MEMORY_LENGTH, MOST_ROWS = 512, 8192


@dataclasses.dataclass(frozen=True)
class Part:
    """A shape, those who train it, and what we want of it."""

    name: str
    shape: Shape
    contenders: list[Contender]
    share: float
    """Of the time."""
    goal: tuple[str, float]
    """What is measured, and how much of it ours should reach."""


PARTS = [
    Part(
        "encoder-150m",
        Shape("encoder", 22, 768, 12, 50_368, 1024, rows=32, inner=1152),
        ENCODERS,
        share=0.28,
        goal=("tokens_per_second", 400_000),
    ),
    Part(
        "decoder-124m",
        Shape("decoder", 12, 768, 12, 50_304, 1024, rows=32),
        DECODERS,
        share=0.38,
        goal=("mfu", 0.5),
    ),
    Part(
        "encoder-32m",
        Shape("encoder", 10, 384, 6, 50_368, 1024, rows=64, inner=576),
        SMALL_ENCODERS,
        share=0.22,
        goal=("tokens_per_second", 900_000),
    ),
]
MEMORY_GOAL = 3.0
MEMORY_SHAPE = Shape("encoder", 12, 768, 12, 50_368, MEMORY_LENGTH, rows=16, inner=2048)
MEMORY = [
    Contender("lacuna", build_lacuna),
    Contender("bert", build_bert, precision="float32"),
]


def tiny(shape: Shape) -> Shape:
    """The same with next to nothing in it."""
    return dataclasses.replace(shape, layers=4, width=16, heads=2, vocab_size=96, length=32, rows=2, inner=24)


# ---------------------------------------------------------------------------------------------------------------- time


@contextlib.contextmanager
def at_most(seconds: float) -> Iterator[None]:
    """Interrupt what takes longer, with a `TimeoutError`; where there are no alarms, wait for it."""
    if not hasattr(signal, "setitimer"):
        yield
        return

    def ring(number: int, frame: FrameType | None) -> None:
        raise TimeoutError(f"not ready after {seconds:.0f} s")

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, max(seconds, 0.1))
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def wait_for(device: torch.device) -> None:
    """Until the device has done what it was given."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def release(device: torch.device) -> None:
    """Give back what nobody holds any more, compiled code included."""
    torch._dynamo.reset()
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()


# --------------------------------------------------------------------------------------------------------------- speed


@dataclasses.dataclass
class Entry:
    """A contender that is ready, and what was measured of it."""

    runner: Runner
    batches: list[dict[str, Tensor]]
    rows: int
    tokens: int
    operations: float
    step_seconds: float
    ready_seconds: float
    peak_gb: float | None
    speeds: list[float] = dataclasses.field(default_factory=list)

    def take_turn(self, seconds: float) -> None:
        """Train for about that long, and note the tokens per second."""
        steps = max(2, round(seconds / self.step_seconds))
        wait_for(self.runner.device)
        start = time.perf_counter()
        for number in range(steps):
            loss = self.runner.step(self.batches[number % len(self.batches)])
        wait_for(self.runner.device)
        self.step_seconds = (time.perf_counter() - start) / steps
        if not bool(torch.isfinite(loss)):
            raise RuntimeError(f"the loss is {float(loss)}: its speed says nothing")
        self.speeds.append(self.tokens / self.step_seconds)

    def describe(self, *, peak: float | None) -> dict[str, Any]:
        """For the report."""
        middle = statistics.median(self.speeds) if self.speeds else self.tokens / self.step_seconds
        return {
            "model": type(self.runner.model).__name__,
            "parameters": sum(parameter.numel() for parameter in self.runner.model.parameters()),
            "rows": self.rows,
            "tokens_per_second": middle,
            "by_round": self.speeds,
            "mfu": None if not peak else middle * self.operations / self.tokens / peak,
            "operations_per_token": self.operations / self.tokens,
            "peak_gb": self.peak_gb,
            "ready_seconds": self.ready_seconds,
        }


def make_ready(contender: Contender, shape: Shape, device: torch.device, *, may_compile: bool) -> Entry:
    """Build, compile and warm up; where memory does not suffice, with half the rows, and half of these."""
    rows = shape.rows
    while True:
        try:
            return _make_ready(contender, shape, device, rows=rows, may_compile=may_compile)
        except torch.OutOfMemoryError:
            if rows <= max(1, shape.rows // 8):
                raise
            rows //= 2
        gc.collect()
        torch.cuda.empty_cache()


def _make_ready(contender: Contender, shape: Shape, device: torch.device, *, rows: int, may_compile: bool) -> Entry:
    is_cuda = device.type == "cuda"
    start = time.perf_counter()
    before = torch.cuda.memory_allocated(device) if is_cuda else 0
    runner = Runner(contender, shape, device, may_compile=may_compile)
    batches, first_lengths = [], None
    for seed in range(NUM_BATCHES):
        batch, lengths = make_batch(shape, rows=rows, seed=seed)
        first_lengths = first_lengths or lengths
        given = as_given(batch, contender, kind=shape.kind)
        batches.append({name: value.to(device) for name, value in given.items()})
    for number in range(WARMUP_STEPS):
        if number == WARMUP_STEPS - 1:  # the first ones compiled, or looked at their numbers
            wait_for(device)
            last = time.perf_counter()
            if is_cuda:
                torch.cuda.reset_peak_memory_stats(device)
        runner.step(batches[number % NUM_BATCHES])
    wait_for(device)
    now = time.perf_counter()
    return Entry(
        runner=runner,
        batches=batches,
        rows=rows,
        tokens=rows * shape.length,
        operations=operations(runner.model, contender, shape, lengths=first_lengths or []),
        step_seconds=now - last,
        ready_seconds=now - start,
        peak_gb=(torch.cuda.max_memory_allocated(device) - before) / 1e9 if is_cuda else None,
    )


def run_part(part: Part, device: torch.device, *, deadline: float, may_compile: bool) -> dict[str, Any]:
    """Make all contenders ready, let them take turns until the deadline, and describe them."""
    entries: dict[str, Entry] = {}
    failures: dict[str, str] = {}
    for contender in part.contenders:
        # What those who are ready need for three rounds is theirs.
        left = deadline - time.monotonic() - 3 * TURN_SECONDS * (len(entries) + 1)
        if left < 5 and entries:
            failures[contender.name] = "left out: no time"
            continue
        print(f"{part.name}: {contender.name} is made ready ...", flush=True)
        try:
            with at_most(left):
                entries[contender.name] = make_ready(contender, part.shape, device, may_compile=may_compile)
        except Exception as error:  # one of many; its row says so
            failures[contender.name] = brief(error)
    for _ in range(MOST_ROUNDS if may_compile else 2):
        if time.monotonic() + TURN_SECONDS * len(entries) > deadline:
            break
        for name, entry in list(entries.items()):
            try:
                with at_most(20 * TURN_SECONDS):
                    entry.take_turn(TURN_SECONDS if may_compile else 0.0)
            except Exception as error:
                failures[name] = brief(error)
                del entries[name]
    peak = peak_flops(device, "bf16")
    rows = {name: entry.describe(peak=peak) for name, entry in entries.items()}
    rows |= {name: {"error": text} for name, text in failures.items()}
    ordered = {contender.name: rows[contender.name] for contender in part.contenders}
    entries.clear()
    release(device)
    return {"shape": dataclasses.asdict(part.shape), "goal": part.goal, "contenders": ordered}


def brief(error: BaseException) -> str:
    """Kind and first words of an error, on one line."""
    return f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"


# -------------------------------------------------------------------------------------------------------------- memory


def largest_batch(
    contender: Contender, shape: Shape, device: torch.device, *, deadline: float, most: int
) -> dict[str, Any]:
    """Rows that a step takes, doubled until one does not fit; and the bytes that each further row needs."""
    runner = Runner(contender, shape, device, may_compile=False)
    peaks: dict[int, int] = {}
    rows, ended = shape.rows, "did not fit"
    while True:
        if rows > most or time.monotonic() > deadline:
            ended = f"not tried: {'the limit' if rows > most else 'no time'}"
            break
        try:
            batch, _ = make_batch(shape, rows=rows, seed=0)
            given = as_given(batch, contender, kind=shape.kind)
            if device.type == "cuda":
                torch.cuda.reset_peak_memory_stats(device)
            loss = runner.step({name: value.to(device) for name, value in given.items()})
            wait_for(device)
            peaks[rows] = torch.cuda.max_memory_allocated(device) if device.type == "cuda" else 0
            del loss
        except torch.OutOfMemoryError:
            break
        rows *= 2
    sizes = sorted(peaks)
    per_row = None
    if len(sizes) > 1 and peaks[sizes[-1]]:
        per_row = (peaks[sizes[-1]] - peaks[sizes[-2]]) / (sizes[-1] - sizes[-2])
    return {"rows": sizes[-1] if sizes else 0, "next": f"{rows} rows: {ended}", "bytes_per_row": per_row}


def measure_memory(shape: Shape, device: torch.device, *, deadline: float, most: int) -> dict[str, Any]:
    """`largest_batch` of ours and of BertForMaskedLM in float32, neither compiled."""
    found: dict[str, Any] = {}
    for contender in MEMORY:
        print(f"memory: {contender.name} ...", flush=True)
        try:
            with at_most(deadline - time.monotonic() + 10):
                found[contender.name] = largest_batch(contender, shape, device, deadline=deadline, most=most)
        except Exception as error:
            found[contender.name] = {"error": brief(error)}
        release(device)
    ours, theirs = (found[contender.name] for contender in MEMORY)
    ratios = {
        "rows_ratio": ours["rows"] / theirs["rows"] if ours.get("rows") and theirs.get("rows") else None,
        "bytes_per_row_ratio": theirs["bytes_per_row"] / ours["bytes_per_row"]
        if ours.get("bytes_per_row") and theirs.get("bytes_per_row")
        else None,
    }
    return {"shape": dataclasses.asdict(shape), "goal": ("rows_ratio", MEMORY_GOAL), "found": found, **ratios}


# -------------------------------------------------------------------------------------------------------------- report


def shown(value: float | None, pattern: str) -> str:
    """A number, or nothing where there is none."""
    return "" if value is None else format(value, pattern)


def table_of(name: str, part: dict[str, Any]) -> list[str]:
    """The contenders of a part, for people."""
    shape, (what, goal) = part["shape"], part["goal"]
    reached = part["contenders"]["lacuna"].get(what)
    aim = f"{goal:,.0f} tokens/s" if what == "tokens_per_second" else f"{goal:.0%} of the peak"
    verdict = "not measured" if reached is None else "reached" if reached >= goal else "missed"
    lines = [
        f"## {name}: goal {aim}, {verdict}",
        "",
        f"{shape['layers']} layers of {shape['width']}, vocabulary {shape['vocab_size']:,}, rows of {shape['length']} "
        "tokens, all of them text; bf16, fused AdamW.",
        "",
        "| contender | tokens/s (min..max) | times ours | MFU | parameters | rows | peak GB | ready after |",
        "|---|---|---|---|---|---|---|---|",
    ]
    ours = part["contenders"]["lacuna"].get("tokens_per_second")
    for contender, facts in part["contenders"].items():
        if "error" in facts:
            lines.append(f"| {contender} | {facts['error'].replace('|', '/')} | | | | | | |")
            continue
        rounds = facts["by_round"] or [facts["tokens_per_second"]]
        lines.append(
            f"| {contender} | {facts['tokens_per_second']:,.0f} ({min(rounds):,.0f}..{max(rounds):,.0f}) "
            f"| {shown(facts['tokens_per_second'] / ours if ours else None, '.2f')} | {shown(facts['mfu'], '.1%')} "
            f"| {facts['parameters'] / 1e6:.1f} M | {facts['rows']} | {shown(facts['peak_gb'], '.1f')} "
            f"| {facts['ready_seconds']:.0f} s |"
        )
    return [*lines, ""]


def to_markdown(report: dict[str, Any]) -> list[str]:
    """The report for people."""
    lines = [f"# Training on one GPU, {report['date']}", ""]
    for name, part in report["parts"].items():
        lines += table_of(name, part)
    memory = report["memory"]
    if memory:
        lines += [
            f"## Memory: goal {MEMORY_GOAL:.0f} times the rows of BertForMaskedLM in float32",
            "",
            f"Rows of {memory['shape']['length']} tokens in a step, doubled until they do not fit; not compiled. "
            f"Rows: {shown(memory['rows_ratio'], '.1f')} times theirs; bytes of a row: theirs are "
            f"{shown(memory['bytes_per_row_ratio'], '.1f')} times ours.",
            "",
        ]
        lines += [f"- {name}: {facts}" for name, facts in memory["found"].items()]
        lines.append("")
    return [
        *lines,
        "MFU: operations that the batch needs (products with weights; attention inside documents and windows, the "
        "whole row where documents are not kept apart) over the data sheet's peak. Peers read across documents.",
    ]


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    """The options."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = [*(part.name for part in PARTS), "memory"]
    parser.add_argument("--minutes", type=float, default=8.0, help="in which everything ends (8)")
    parser.add_argument(
        "--parts", nargs="+", default=["all"], help=f"some of: {', '.join(names)}; or their beginnings"
    )
    parser.add_argument("--smoke", action="store_true", help="tiny models, nothing compiled")
    parser.add_argument("--output_dir", default=str(RESULTS), help="folder of the report")
    options = parser.parse_args(arguments)
    wanted = tuple(options.parts)
    options.parts = names if wanted == ("all",) else [name for name in names if name.startswith(wanted)]
    if not options.parts:
        parser.error(f"--parts {' '.join(wanted)}: there are {', '.join(names)}")
    return options


def main() -> None:
    """Measure one part after another, and write what is known after each."""
    began = time.monotonic()
    options = parse()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if device.type == "cpu" and not options.smoke:
        raise SystemExit("there is no GPU here; --smoke tries everything that runs on a CPU")
    torch._dynamo.config.recompile_limit = 128  # contenders share the code of their blocks, and its limit of versions
    if options.smoke:
        torch.set_num_threads(1)
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"
    body: dict[str, Any] = {
        "settings": {"minutes": options.minutes, "smoke": options.smoke, "parts": options.parts},
        "machine": describe_machine("torch", "transformers", device=name, cuda=torch.version.cuda or "none"),
        "parts": {},
        "memory": None,
    }
    end = began + 60 * options.minutes - LAST_SECONDS
    parts = [part for part in PARTS if part.name in options.parts]
    shares = [part.share for part in parts] + [0.12] * ("memory" in options.parts)
    for number, part in enumerate(parts):
        now = time.monotonic()
        deadline = now + (end - now) * shares[number] / sum(shares[number:])
        chosen = dataclasses.replace(part, shape=tiny(part.shape)) if options.smoke else part
        body["parts"][part.name] = run_part(chosen, device, deadline=deadline, may_compile=not options.smoke)
        write_report(name="gpu_speed", output_dir=options.output_dir, body=body, to_markdown=to_markdown)
    if "memory" in options.parts:
        shape, most = (tiny(MEMORY_SHAPE), 8) if options.smoke else (MEMORY_SHAPE, MOST_ROWS)
        body["memory"] = measure_memory(shape, device, deadline=end, most=most)
        write_report(name="gpu_speed", output_dir=options.output_dir, body=body, to_markdown=to_markdown)


if __name__ == "__main__":
    main()
