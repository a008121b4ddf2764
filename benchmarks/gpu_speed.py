"""Training on one GPU: tokens per second, share of its peak (MFU) and memory, beside peers.

    python benchmarks/gpu_speed.py                  # one NVIDIA GPU, about eight minutes
    python benchmarks/gpu_speed.py --parts decoder-124m --minutes 3
    python benchmarks/gpu_speed.py --smoke          # tiny models, also on a CPU: does it run?

Encoders of 150 and 32 million weights and a decoder of 124 million. In each part all contenders (`GPU` in
contenders.py) are built and compiled, then they take turns, one at least, until the part's share of the time is over.

Rows of 1024 tokens are filled with documents, so that nobody pays for padding. Models of Lacuna keep the documents of
a row apart; the others read across them, which is less work to prepare.
"""

import gc
import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

import torch
from contenders import GPU, IGNORED, Contender, Shape, Trainee, operations
from harness import Report, find_device, make_parser, table, take_turns
from torch import Tensor, nn
from tqdm import tqdm

from lacuna.objectives.data import add_hints
from lacuna.training.planning.flops import peak_flops

MASK_TOKEN, FIRST_TOKEN = 4, 5
MASKED = 0.3  # of the tokens, as ModernBERT and Ettin were trained
MEDIAN_DOCUMENT, SPREAD = 350, 1.0  # tokens, and standard deviation of their logarithm: web text as it comes
WARMUP_STEPS, NUM_BATCHES = 4, 4
TURN_SECONDS, MOST_ROUNDS = 1.5, 8


@dataclass(frozen=True)
class Part:
    """A shape, the rows of a batch, and the goal: what is measured and its value."""

    shape: Shape
    rows: int
    goal: tuple[str, float]


PARTS = {
    "encoder-150m": Part(Shape(768, 22, 12, 50_368, 1024, inner=1152), 32, ("tokens_per_second", 400_000)),
    "decoder-124m": Part(Shape(768, 12, 12, 50_304, 1024), 32, ("mfu", 0.5)),
    "encoder-32m": Part(Shape(384, 10, 6, 50_368, 1024, inner=576), 64, ("tokens_per_second", 900_000)),
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
    return batch, lengths


def make_ready(contender: Contender, part: Part, *, may_compile: bool) -> tuple[Trainee, dict[str, Any]]:
    """Build, compile and warm up."""
    start = time.perf_counter()
    trainee = Trainee(contender, part.shape, compiles=may_compile)
    made = [make_batch(part.shape, contender, rows=part.rows, seed=seed) for seed in range(NUM_BATCHES)]
    trainee.use([batch for batch, _ in made])
    trainee.run(WARMUP_STEPS - 1)  # these compile, or look at their numbers
    turn = trainee.run(1)
    counted = operations(trainee.model, contender, part.shape, lengths=made[0][1], masked=MASKED)
    facts = {**trainee.describe(), "tokens_per_second": turn["tokens_per_second"]}
    facts |= {"operations_per_token": counted / turn["tokens"], "peak_gb": turn["peak_memory"] / 1e9}
    return trainee, facts | {"ready_seconds": time.perf_counter() - start}


def measure(name: str, part: Part, *, deadline: float, may_compile: bool) -> dict[str, dict[str, Any]]:
    """Make all contenders ready, let them take turns until the deadline, and describe them."""
    rows: dict[str, dict[str, Any]] = {}
    turns: dict[str, Callable[[], dict[str, Any]]] = {}
    for title, contender in tqdm(GPU[name].items(), desc=f"{name} is made ready"):
        try:
            trainee, rows[title] = make_ready(contender, part, may_compile=may_compile)
        except Exception as error:  # its row says so, and the others go on
            rows[title] = {"error": f"{error!r:.300}"}
            continue
        a_step = part.rows * part.shape.positions / rows[title]["tokens_per_second"]
        turns[title] = partial(trainee.run, max(2, round(TURN_SECONDS / a_step)) if may_compile else 2)
    left = (deadline - time.monotonic()) / (TURN_SECONDS * len(turns) or 1)
    found = take_turns(turns, rounds=max(1, min(MOST_ROUNDS, int(left))) if may_compile else 2, title=f"{name},")
    peak = peak_flops(find_device(), "bf16")
    for title, facts in ((title, rows[title]) for title in turns):
        facts["by_round"] = [turn["tokens_per_second"] for turn in found[title]]
        facts["tokens_per_second"] = statistics.median(facts["by_round"])
        facts["mfu"] = facts["tokens_per_second"] * facts["operations_per_token"] / peak if peak else None
    return rows


def to_markdown(body: dict[str, Any]) -> list[str]:
    lines = ["bf16, fused AdamW. MFU: operations that the batch needs (see `operations`) over the data sheet's peak."]
    for name, part in body["parts"].items():
        shape, (what, goal), ours = part["shape"], part["goal"], part["contenders"]["lacuna"]
        reached = ("reached" if ours[what] >= goal else "missed") if ours.get(what) else "not measured"
        names = ("tokens_per_second", "by_round", "mfu", "parameters", "peak_gb", "ready_seconds", "error")
        lines += ["", f"## {name}: goal {what} {goal:g}, {reached}", ""]
        lines += [f"{part['rows']} rows, {', '.join(f'{field} {size}' for field, size in shape.items())}.", ""]
        lines += table(
            {"contender": title, **{fact: facts.get(fact) for fact in names}}
            for title, facts in part["contenders"].items()
        )
    return lines


def main() -> None:
    """Measure one part after another, and write what is known after each."""
    options = make_parser(
        __doc__,
        ("minutes", 8.0, "for all parts"),
        ("parts", tuple(PARTS), "some of them"),
        ("smoke", False, "tiny models, nothing compiled"),
    ).parse_args()
    if find_device().type == "cpu" and not options.smoke:
        raise SystemExit("there is no GPU here; --smoke tries everything that runs on a CPU")
    torch._dynamo.config.recompile_limit = 128  # contenders share the code of their blocks, and its limit of versions
    if options.smoke:
        torch.set_num_threads(1)
    end = time.monotonic() + 60 * options.minutes
    report = Report(options)
    report.body["parts"] = {}
    for number, name in enumerate(options.parts):
        now, part = time.monotonic(), PARTS[name]
        deadline = now + (end - now) / (len(options.parts) - number)
        if options.smoke:
            inner = 24 if part.shape.inner else 0
            part = replace(part, rows=2, shape=replace(part.shape, **TINY, inner=inner))
        contenders = measure(name, part, deadline=deadline, may_compile=not options.smoke)
        report.body["parts"][name] = {**asdict(part), "contenders": contenders}
        torch._dynamo.reset()  # compiled code holds its models
        gc.collect()
        torch.cuda.empty_cache()
        report.write("Training on one GPU", to_markdown(report.body))


if __name__ == "__main__":
    main()
