"""Training on one GPU: tokens per second, share of its peak, memory; ours beside peers in one schedule.

    python benchmarks/gpu_speed.py                  # one NVIDIA GPU, eight minutes at most
    python benchmarks/gpu_speed.py --parts decoder --minutes 3
    python benchmarks/gpu_speed.py --smoke          # tiny models, also on a CPU: whether it runs, not how fast

Three parts measure speed (encoders of 150 and 32 million weights, a decoder of 124 million), a fourth the largest
batch that fits. In each part all contenders are made ready one after another, which includes compiling; then they take
turns, A B C A B C, for as long as the part's share of the time lasts. `GPU` in benchmarks/contenders.py says who they
are. What fails stands in its row with the error, and the rest goes on. The report is written anew after each part.

Rows of 1024 tokens are filled with documents to the last token, so that every token counts and nobody pays for
padding. Models of Lacuna keep the documents of a row apart; the others read across them, which is less work to prepare
and no less to learn from: where they differ in that, the comparison is in their favour.
"""

import argparse
import contextlib
import functools
import gc
import inspect
import signal
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from types import FrameType
from typing import Any

import torch
from contenders import DROPOUT, GPU, IGNORED, Contender, Shape, Trainee, device_peak, find_device
from report import Report, make_parser, shown, table
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from lacuna.objectives.data import add_hints
from lacuna.training.planning.flops import peak_flops

MASK_TOKEN, FIRST_TOKEN = 4, 5
MASKED = 0.3  # of the tokens, as ModernBERT and Ettin were trained
MEDIAN_DOCUMENT, SPREAD = 350, 1.0  # tokens, and standard deviation of their logarithm: web text as it comes
WARMUP_STEPS, NUM_BATCHES = 4, 4
TURN_SECONDS, MOST_ROUNDS = 1.5, 8
LAST_SECONDS = 15.0  # kept for the report
MOST_ROWS = 8192


@dataclass(frozen=True)
class Part:
    """A shape, the rows of a batch, its share of the time, and the goal: what is measured and its value."""

    shape: Shape
    rows: int
    share: float
    goal: tuple[str, float]


PARTS = {
    "encoder-150m": Part(Shape(768, 22, 12, 50_368, 1024, inner=1152), 32, 0.28, ("tokens_per_second", 400_000)),
    "decoder-124m": Part(Shape(768, 12, 12, 50_304, 1024), 32, 0.38, ("mfu", 0.5)),
    "encoder-32m": Part(Shape(384, 10, 6, 50_368, 1024, inner=576), 64, 0.22, ("tokens_per_second", 900_000)),
    "memory": Part(Shape(768, 12, 12, 50_368, 512, inner=2048), 16, 0.12, ("rows_ratio", 3.0)),
}
TINY = {"layers": 4, "hidden_size": 16, "heads": 2, "vocab_size": 96, "positions": 32}


def make_batch(shape: Shape, contender: Contender, *, rows: int, seed: int) -> tuple[dict[str, Tensor], list[int]]:
    """Random documents as the contender takes them, [rows, shape.positions], and how long the documents are.

    A document that does not fit into its row goes on in the next, as one of its own.
    """
    generator = torch.Generator().manual_seed(seed)
    lengths: list[int] = []
    for _ in range(rows):
        left = shape.positions
        while left:
            drawn = float(torch.randn((), generator=generator) * SPREAD)
            lengths.append(min(left, max(8, round(MEDIAN_DOCUMENT * shape.positions / 1024 * 2.718**drawn))))
            left -= lengths[-1]
    positions = torch.cat([torch.arange(size) for size in lengths]).view(rows, shape.positions)
    ids = torch.randint(FIRST_TOKEN, shape.vocab_size, (rows, shape.positions), generator=generator)
    if contender.is_decoder:
        labels = ids if contender.rows == "whole" else ids.masked_fill(positions == 0, IGNORED)
        targets = nn.functional.pad(labels[:, 1:], (0, 1), value=IGNORED)
    else:
        is_masked = torch.rand(ids.shape, generator=generator) < MASKED
        targets = labels = ids.masked_fill(~is_masked, IGNORED)
        ids = ids.masked_fill(is_masked, MASK_TOKEN)
    batch = {"input_ids": ids, "labels": labels}
    if contender.rows != "whole":
        batch["position_ids"] = positions
    if contender.is_ours:
        batch = add_hints(batch, targets=targets)
    if contender.rows == "unbounded":
        del batch["document_bounds"]
    return batch, lengths


def operations(model: nn.Module, contender: Contender, shape: Shape, *, lengths: list[int]) -> float:
    """Floating-point operations that a batch needs: products with weights, and attention where documents allow it.

    Scores that a kernel computes again, or for nothing behind a mask, are not counted.
    """
    tokens = sum(lengths)
    lengths = [shape.positions] * (tokens // shape.positions) if contender.rows == "whole" else lengths
    share = (
        MASKED
        if not contender.is_decoder and "sparse_prediction" in inspect.signature(model.forward).parameters
        else 1.0
    )
    head = getattr(model, "get_output_embeddings", lambda: None)()
    weights = 0.0
    for name, module in model.named_modules():
        if isinstance(module, nn.Linear | Conv1D):
            weights += module.weight.numel() * (share if module is head or name.startswith("transform.") else 1.0)
    config: Any = getattr(model, "config", None)
    kinds = getattr(config, "layer_types", None) or ["full_attention"] * shape.layers
    reaches = [config.sliding_window if kind == "sliding_attention" else shape.positions for kind in kinds]
    pairs = sum(_pairs(size, reach, contender.is_decoder) for reach in reaches for size in lengths)
    return 6.0 * weights * tokens + 12.0 * shape.hidden_size * pairs


@functools.cache
def _pairs(length: int, reach: int, is_causal: bool) -> int:
    """Pairs of tokens of which the first sees the second, `reach` tokens away at most."""
    after = 0 if is_causal else reach
    return sum(min(length, place + after + 1) - max(0, place - reach) for place in range(length))


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


def attempt(work: Callable[[], Any], *, seconds: float) -> tuple[Any, str]:
    """The result, or None and what went wrong: one of many contenders, whose row says so."""
    try:
        with at_most(seconds):
            return work(), ""
    except Exception as error:
        return None, f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"


def release() -> None:
    """Give back what nobody holds any more, compiled code included."""
    torch._dynamo.reset()
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def make_ready(contender: Contender, part: Part, *, rows: int, may_compile: bool) -> tuple[Trainee, dict[str, Any]]:
    """Build, compile and warm up; where memory does not suffice, with half the rows, and half of these."""
    device, start = find_device(), time.perf_counter()
    before = torch.cuda.memory_allocated(device) if device.type == "cuda" else 0
    try:
        trainee = Trainee(contender, part.shape, dropout=DROPOUT["gpu_speed"], compiles=may_compile)
        made = [make_batch(part.shape, contender, rows=rows, seed=seed) for seed in range(NUM_BATCHES)]
        trainee.use([batch for batch, _ in made])
        trainee.run(WARMUP_STEPS - 1)  # these compile, or look at their numbers
        device_peak(device, reset=True)
        speed = trainee.run(1)["tokens_per_second"]
    except torch.OutOfMemoryError:
        if rows <= max(1, part.rows // 8):
            raise
    else:
        counted = operations(trainee.model, contender, part.shape, lengths=made[0][1])
        facts = {
            **trainee.describe(),
            "rows": rows,
            "tokens_per_second": speed,
            "operations_per_token": counted / (rows * part.shape.positions),
            "peak_gb": (device_peak(device) - before) / 1e9 if device.type == "cuda" else None,
            "ready_seconds": time.perf_counter() - start,
            "by_round": [],
        }
        return trainee, facts
    trainee = made = None
    gc.collect()  # outside of the handler, which holds what did not fit
    torch.cuda.empty_cache()
    return make_ready(contender, part, rows=rows // 2, may_compile=may_compile)


def take_turn(trainee: Trainee, facts: dict[str, Any], *, seconds: float) -> None:
    """Train for about that long, and note the speed."""
    speeds = facts["by_round"]
    steps = seconds * (speeds or [facts["tokens_per_second"]])[-1] / trainee.batches[0]["input_ids"].numel()
    speeds.append(trainee.run(max(2, round(steps)))["tokens_per_second"])


def measure_speed(name: str, part: Part, *, deadline: float, may_compile: bool) -> dict[str, Any]:
    """Make all contenders ready, let them take turns until the deadline, and describe them."""
    ready: dict[str, tuple[Trainee, dict[str, Any]]] = {}
    rows: dict[str, dict[str, Any]] = {}
    for title, contender in GPU[name].items():
        # What those who are ready need for three rounds is theirs.
        left = deadline - time.monotonic() - 3 * TURN_SECONDS * (len(ready) + 1)
        made, error = None, "left out: no time"
        if left >= 5 or not ready:
            print(f"{name}: {title} is made ready ...", flush=True)
            work = functools.partial(make_ready, contender, part, rows=part.rows, may_compile=may_compile)
            made, error = attempt(work, seconds=left)
        rows[title] = made[1] if made else {"error": error}
        if made:
            ready[title] = made
    for _ in range(MOST_ROUNDS if may_compile else 2):
        if time.monotonic() + TURN_SECONDS * len(ready) > deadline:
            break
        for title, entry in list(ready.items()):
            turn = functools.partial(take_turn, *entry, seconds=TURN_SECONDS if may_compile else 0.0)
            _, error = attempt(turn, seconds=20 * TURN_SECONDS)
            if error:
                rows[title] = {"error": error}
                del ready[title]
    peak = peak_flops(find_device(), "bf16")
    for _, facts in ready.values():
        facts["tokens_per_second"] = statistics.median(facts["by_round"] or [facts["tokens_per_second"]])
        facts["mfu"] = facts["tokens_per_second"] * facts["operations_per_token"] / peak if peak else None
    return {"contenders": rows}


def largest_batch(contender: Contender, part: Part, *, deadline: float, most: int) -> dict[str, Any]:
    """Rows that a step takes, doubled until one does not fit; and the bytes that each further row needs."""
    trainee = Trainee(contender, part.shape, dropout=DROPOUT["gpu_speed"], compiles=False)
    peaks: dict[int, int] = {}
    rows, ended = part.rows, "did not fit"
    while True:
        if rows > most or time.monotonic() > deadline:
            ended = f"not tried: {'the limit' if rows > most else 'no time'}"
            break
        try:
            trainee.use([make_batch(part.shape, contender, rows=rows, seed=0)[0]])
            device_peak(trainee.device, reset=True)
            trainee.run(1)
        except torch.OutOfMemoryError:
            break
        peaks[rows] = device_peak(trainee.device)
        rows *= 2
    last = sorted(peaks)[-2:]
    per_row = (peaks[last[1]] - peaks[last[0]]) / (last[1] - last[0]) if len(last) > 1 else None
    return {"rows": last[-1] if last else 0, "next": f"{rows} rows: {ended}", "bytes_per_row": per_row}


def measure_memory(part: Part, *, deadline: float, most: int) -> dict[str, Any]:
    """`largest_batch` of ours and of BertForMaskedLM in float32, neither compiled."""
    found: dict[str, Any] = {}
    for title, contender in GPU["memory"].items():
        print(f"memory: {title} ...", flush=True)
        work = functools.partial(largest_batch, contender, part, deadline=deadline, most=most)
        result, error = attempt(work, seconds=deadline - time.monotonic() + 10)
        found[title] = result or {"error": error}
        release()
    ours, theirs = found["lacuna"], found["bert"]
    rows = ours["rows"] / theirs["rows"] if ours.get("rows") and theirs.get("rows") else None
    size = (
        theirs["bytes_per_row"] / ours["bytes_per_row"]
        if ours.get("bytes_per_row") and theirs.get("bytes_per_row")
        else None
    )
    return {"found": found, "rows_ratio": rows, "bytes_per_row_ratio": size}


def speed_lines(name: str, part: dict[str, Any]) -> list[str]:
    """The contenders of a part, for people."""
    shape, (what, goal) = part["shape"], part["goal"]
    reached = part["contenders"]["lacuna"].get(what)
    aim = f"{goal:,.0f} tokens/s" if what == "tokens_per_second" else f"{goal:.0%} of the peak"
    speed = part["contenders"]["lacuna"].get("tokens_per_second")
    names = ("tokens_per_second", "by_round", "mfu", "parameters", "rows", "peak_gb", "ready_seconds", "error")
    rows = [
        {
            "contender": title,
            **{name: facts.get(name) for name in names},
            "times ours": facts["tokens_per_second"] / speed if speed and "error" not in facts else None,
        }
        for title, facts in part["contenders"].items()
    ]
    return [
        f"## {name}: goal {aim}, {'not measured' if reached is None else 'reached' if reached >= goal else 'missed'}",
        "",
        f"{shape['layers']} layers of {shape['hidden_size']}, vocabulary {shape['vocab_size']:,}, rows of "
        f"{shape['positions']} tokens, all of them text; bf16, fused AdamW.",
        "",
        *table(rows),
    ]


def to_markdown(body: dict[str, Any]) -> list[str]:
    """The report for people."""
    lines = [line for name, part in body["parts"].items() for line in speed_lines(name, part)]
    if memory := body["memory"]:
        lines += [
            f"## Memory: goal {memory['goal'][1]:.0f} times the rows of BertForMaskedLM in float32",
            "",
            f"Rows of {memory['shape']['positions']} tokens in a step, doubled until they do not fit; not compiled. "
            f"Rows: {shown(memory['rows_ratio'])} times theirs; bytes of a row: theirs are "
            f"{shown(memory['bytes_per_row_ratio'])} times ours.",
            "",
            *(f"- {name}: {facts}" for name, facts in memory["found"].items()),
            "",
        ]
    return [
        *lines,
        "MFU: operations that the batch needs (products with weights; attention inside documents and windows, the "
        "whole row where documents are not kept apart) over the data sheet's peak. Peers read across documents.",
    ]


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    """The options."""
    parser = make_parser(
        __doc__,
        ("minutes", 8.0, "in which everything ends"),
        ("parts", ["all"], f"some of: {', '.join(PARTS)}; or their beginnings"),
        ("smoke", False, "tiny models, nothing compiled"),
    )
    options = parser.parse_args(arguments)
    wanted = tuple("" if part == "all" else part for part in options.parts)
    chosen = [name for name in PARTS if name.startswith(wanted)]
    if not chosen:
        parser.error(f"--parts {' '.join(options.parts)}: there are {', '.join(PARTS)}")
    options.parts = chosen
    return options


def main() -> None:
    """Measure one part after another, and write what is known after each."""
    began = time.monotonic()
    options = parse()
    device = find_device()
    if device.type == "cpu" and not options.smoke:
        raise SystemExit("there is no GPU here; --smoke tries everything that runs on a CPU")
    torch._dynamo.config.recompile_limit = 128  # contenders share the code of their blocks, and its limit of versions
    if options.smoke:
        torch.set_num_threads(1)
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"
    report = Report(__file__, options, "torch", "transformers", device=name, cuda=torch.version.cuda or "none")
    body = report.body
    body |= {"parts": {}, "memory": None}
    end = began + 60 * options.minutes - LAST_SECONDS
    for number, name in enumerate(options.parts):
        now, part = time.monotonic(), PARTS[name]
        left = sum(PARTS[other].share for other in options.parts[number:])
        deadline = now + (end - now) * part.share / left
        if options.smoke:
            inner = 24 if part.shape.inner else 0
            part = replace(part, rows=2, shape=replace(part.shape, **TINY, inner=inner))
        facts = {"shape": asdict(part.shape), "goal": part.goal}
        if name == "memory":
            most = 8 if options.smoke else MOST_ROWS
            body["memory"] = {**facts, **measure_memory(part, deadline=deadline, most=most)}
        else:
            found = measure_speed(name, part, deadline=deadline, may_compile=not options.smoke)
            body["parts"][name] = {**facts, **found}
        release()
        report.write("Training on one GPU", to_markdown(body))


if __name__ == "__main__":
    main()
