"""How well several processes share the work: measured on this machine's cores, estimated for GPUs.

    python benchmarks/scaling.py                # some three minutes: one process beside two, in turn, and the estimate
    python benchmarks/scaling.py --rounds 0     # the estimate for 8 and 64 GPUs alone

Measured is weak scaling on a CPU: recipes/pretrain.py in one process with all cores, and by `torchrun` in one process
for each core (gloo), each with as many rows in a step. Efficiency is tokens per second of all over those of the one.

Estimated is what exchanging gradients costs where every GPU has the whole model (DDP), as docs/scaling.md says; the
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

from harness import Report, compare, make_parser, run_recipe, table, take_turns

PEAK = 989.4e12  # operations a second of one H100 or H200 in bf16 (NVIDIA data sheets, 2024)
PLACES = {
    "8 GPUs, 1 node, NVLink": (8, 450e9),
    "64 GPUs, 8 nodes, InfiniBand, 8 x 400 Gbit/s a node": (64, 8 * 50e9),
    "64 GPUs, 8 nodes, Ethernet, 100 Gbit/s a node": (64, 12.5e9),
}
"""GPUs, and bytes a second in one direction of the slowest link: of a GPU, or of all network cards of a node."""
ACHIEVED = 0.8  # share of a link's speed that a collective is taken to reach
LATENCY = 15e-6  # seconds for each level of a tree over all GPUs, up and down, in which a bucket is taken to be begun
BUCKET = 25 * 2**20  # bytes that DDP exchanges at once


@dataclass(frozen=True)
class Case:
    """A model in training on many GPUs; `tokens` are those of one GPU in one step."""

    name: str
    parameters: float
    tokens: int

    def computing_seconds(self, mfu: float) -> float:
        """Of one step, without exchange."""
        return 6 * self.parameters * self.tokens / (mfu * PEAK)


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
    computing = case.computing_seconds(mfu)
    exchange = exchange_seconds(case, gpus=gpus, bytes_per_second=bytes_per_second)
    last = exchange * min(1.0, BUCKET / (4 * case.parameters))
    return computing / (computing + max(last, exchange - computing * 2 / 3))


def estimate(mfu: float) -> list[dict[str, Any]]:
    """Efficiency of each case in each place."""
    return [
        {
            "model": case.name,
            "place": place,
            "tokens_a_gpu_and_step": case.tokens,
            "exchange_ms": round(1e3 * exchange_seconds(case, gpus=gpus, bytes_per_second=speed), 1),
            "computing_ms": round(1e3 * case.computing_seconds(mfu), 1),
            "efficiency": round(efficiency(case, gpus=gpus, bytes_per_second=speed, mfu=mfu), 3),
        }
        for place, (gpus, speed) in PLACES.items()
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


def main() -> None:
    """Parse, measure, estimate, report."""
    parser = make_parser(
        __doc__,
        ("size", "tiny", "of the model: tiny, mini, small, base, large"),
        ("steps", 30, "optimizer steps of a run"),
        ("batch_size", 32, "rows of each process in a step"),
        ("processes", 2, "how many share the cores"),
        ("mfu", 0.4, "share of its peak that one GPU reaches"),
    )
    parser.add_argument("--rounds", type=int, default=3, help="runs of each number of processes, 0 for none (3)")
    options = parser.parse_args()
    if not 0 < options.mfu <= 1:
        parser.error(f"--mfu {options.mfu} is a share of the peak: above 0 and at most 1")
    report = Report(options)
    runs = {str(count): partial(train, count, options) for count in (1, options.processes)}
    measured = take_turns(runs, rounds=options.rounds) if options.rounds > 0 else {}
    report.body |= {"tokens_per_second": measured, "estimated": estimate(options.mfu)}
    one, middle = measured.get("1"), statistics.median
    rows = [{"processes": it, "tokens/s": middle(of), **compare(of, one, "efficiency")} for it, of in measured.items()]
    lines = [
        f"Size {options.size}, {options.batch_size} rows of 128 tokens of each process in a step.",
        "",
        *(table(rows) if rows else ["Not measured.", ""]),
        f"Estimated, with one GPU at {options.mfu:.0%} of {PEAK / 1e12:.0f} TFLOP/s and gradients in float32:",
        "",
        *table(report.body["estimated"]),
    ]
    report.write("Scaling", lines)


if __name__ == "__main__":
    main()
