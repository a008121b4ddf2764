"""How well several processes share the work: measured on this machine's cores, reckoned for GPUs.

    python benchmarks/scaling.py                # some three minutes: one process beside two, in turn, and the model
    python benchmarks/scaling.py --rounds 0     # the model of 8 and 64 GPUs alone

Measured is weak scaling on a CPU: one process with all cores against one process for each core (gloo), which exchange
gradients after every step; each process has as many rows in a step in both cases. Efficiency is tokens per second of
all processes over those of the one. Both are the recipe itself, by `torchrun`, on the project's built-in text.

Reckoned is what exchanging gradients costs where every GPU has the whole model (DDP): rings send 2 (n - 1) / n times
the float32 gradients out of each GPU and, between nodes, out of each node through all its network cards together,
bucket by bucket while the backward pass (two thirds of the work) still runs; only what it does not hide is lost. The
speed of one GPU is an input (`--mfu`, share of the peak).
"""

import argparse
import json
import math
import statistics
import tempfile
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from clock import compare, take_turns, times
from kept import run_recipe
from report import Report, make_parser, table

PEAK = 989.4e12
"""Operations a second of one H100 or H200 in bf16 (NVIDIA data sheets, 2024)."""
NVLINK, INFINIBAND, ETHERNET = 450e9, 8 * 50e9, 12.5e9
"""Bytes a second in one direction: NVLink 4 of a GPU; of a node, 8 cards of 400 Gbit/s, and one of 100 Gbit/s."""
ACHIEVED = 0.8
"""Share of a link's speed that a collective is taken to reach."""
LATENCY = 15e-6
"""Seconds for each level of a tree over all GPUs, up and down, in which a bucket is taken to be begun."""
BUCKET = 25 * 2**20
"""Bytes that DDP exchanges at once."""


@dataclass(frozen=True)
class Case:
    """A model in training on many GPUs."""

    name: str
    parameters: float
    tokens: int
    """In one step of one GPU."""


CASES = [
    Case("encoder 32 M", 32e6, 131_072),
    Case("decoder 124 M", 124e6, 65_536),
    Case("encoder 150 M", 150e6, 65_536),
    Case("decoder 1 B", 1e9, 32_768),
]


def exchange_seconds(case: Case, *, gpus: int, bytes_per_second: float) -> float:
    """A ring's time for the gradients of a step: 2 (n - 1) / n of them through its slowest link, in buckets."""
    if gpus == 1:
        return 0.0
    size = 4 * case.parameters
    waits = 2 * math.ceil(math.log2(gpus)) * max(1.0, size / BUCKET)
    return 2 * (gpus - 1) / gpus * size / (ACHIEVED * bytes_per_second) + waits * LATENCY


def efficiency(case: Case, *, gpus: int, bytes_per_second: float, mfu: float) -> float:
    """Speed of n GPUs over n times that of one: all but its last bucket hides behind the backward pass."""
    computing = 6 * case.parameters * case.tokens / (mfu * PEAK)
    exchange = exchange_seconds(case, gpus=gpus, bytes_per_second=bytes_per_second)
    last = exchange * min(1.0, BUCKET / (4 * case.parameters))
    lost = max(last, exchange - computing * 2 / 3)
    return computing / (computing + lost)


def reckon(mfu: float) -> list[dict[str, Any]]:
    """Efficiency of each case on one node of 8 GPUs, on 8 such nodes, and on 8 nodes with slow Ethernet."""
    places = [
        ("8 GPUs, 1 node, NVLink", 8, NVLINK),
        ("64 GPUs, 8 nodes, InfiniBand, 8 x 400 Gbit/s a node", 64, INFINIBAND),
        ("64 GPUs, 8 nodes, Ethernet, 100 Gbit/s a node", 64, ETHERNET),
    ]
    return [
        {
            "model": case.name,
            "place": place,
            "tokens_a_gpu_and_step": case.tokens,
            "exchange_ms": round(1e3 * exchange_seconds(case, gpus=gpus, bytes_per_second=speed), 1),
            "computing_ms": round(1e3 * 6 * case.parameters * case.tokens / (mfu * PEAK), 1),
            "efficiency": round(efficiency(case, gpus=gpus, bytes_per_second=speed, mfu=mfu), 3),
        }
        for place, gpus, speed in places
        for case in CASES
    ]


def train(count: int, options: argparse.Namespace) -> float:
    """Tokens per second of the recipe on so many processes, with as many rows for each."""
    words = {"objective": "mlm", "size": options.size, "max_steps": options.steps, "compile": "off"}
    words |= {"batch_size": count * options.batch_size, "eval_fraction": 0, "eval_steps": 0, "save_steps": 0}
    with tempfile.TemporaryDirectory() as folder:
        run_recipe("pretrain", {**words, "output_dir": f"{folder}/run"}, processes=count)
        lines = Path(folder, "run", "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    speeds = [record["tokens_per_second"] for record in map(json.loads, lines) if "tokens_per_second" in record]
    return statistics.median(speeds[1:] or speeds)  # the first steps warm up


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    """The options; every one has a default."""
    parser = make_parser(
        __doc__,
        ("steps", 30, "optimizer steps of a run"),
        ("batch_size", 32, "rows of each process in a step"),
        ("processes", 2, "how many share the cores"),
        ("mfu", 0.4, "share of its peak that one GPU reaches"),
    )
    parser.add_argument("--rounds", type=int, default=3, help="runs of each number of processes (3); 0 for none")
    sizes = ("tiny", "mini", "small", "base", "large")
    parser.add_argument("--size", default="tiny", choices=sizes, help="of the model (tiny)")
    options = parser.parse_args(arguments)
    if not 0 < options.mfu <= 1:
        parser.error(f"--mfu {options.mfu} is a share of the peak: above 0 and at most 1")
    if options.rounds < 0:
        parser.error(f"--rounds {options.rounds}: 0 for none, or more")
    return options


def main() -> None:
    """Parse, measure, reckon, report."""
    options = parse()
    report = Report(__file__, options, "torch", "accelerate", "transformers")
    runs = {str(count): partial(train, count, options) for count in (1, options.processes)}
    measured = take_turns(runs, rounds=options.rounds) if options.rounds else {}
    report.body |= {"tokens_per_second": measured, "reckoned": reckon(options.mfu)}
    rows = [
        {
            "processes": count,
            "tokens/s (median)": statistics.median(speeds),
            "efficiency beside one process with all cores": times(compare(speeds, measured["1"])),
        }
        for count, speeds in measured.items()
    ]
    lines = [
        f"Size {options.size}, {options.batch_size} rows of 128 tokens for each process in a step.",
        "",
        *(table(rows) if rows else ["Not measured.", ""]),
        f"Reckoned, with one GPU at {options.mfu:.0%} of {PEAK / 1e12:.0f} TFLOP/s and gradients in float32:",
        "",
        *table(report.body["reckoned"]),
    ]
    report.write("Scaling", lines)


if __name__ == "__main__":
    main()
