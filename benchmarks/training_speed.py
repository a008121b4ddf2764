"""Training tokens per second of LacunaForMaskedLM beside transformers' own models on the same work.

    python benchmarks/training_speed.py --rounds 2 --steps 2                         # a laptop, half a minute
    python benchmarks/training_speed.py                                              # what `make bench` runs
    python benchmarks/training_speed.py --batch_size 256 --length 512                # more of a GPU's size

Three models of one shape (256 wide, 6 layers, 4 heads) take optimizer steps on the same batches, in turn, in one
process:

- `lacuna`: LacunaForMaskedLM, family modernbert, in bf16 where the processor is fast at it;
- `bert`: transformers' BertForMaskedLM as it comes: float32, dropout, logits at every position;
- `modernbert`: transformers' ModernBertForMaskedLM with the very weights of `lacuna`, logits at the masked positions
  only, in the precision of `lacuna`.

A step is forward, backward and fused AdamW; making batches is not timed. Speed is the median over rounds; ratios are
taken within rounds, so that a slower minute of the machine slows all three.
"""

import argparse
import statistics
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from reports import RESULTS, describe_machine, positive, write_report
from torch import Tensor
from tqdm import tqdm
from transformers import BertConfig, BertForMaskedLM, set_seed

import modeling
from training.environment import bf16_is_fast, use_all_cores

MASK_PROBABILITY = 0.15
OURS = "lacuna"
SPECIAL_TOKENS, MASK_TOKEN = 5, 4  # ids 0 to 4 in our tokenizers
NUM_BATCHES = 4


@dataclass
class Contender:
    """A model with its optimizer and precision."""

    name: str
    model: torch.nn.Module
    precision: str
    device: torch.device

    def __post_init__(self) -> None:
        self.model.to(self.device).train()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4, fused=True)

    def step(self, batch: dict[str, Tensor]) -> Tensor:
        """One optimizer step; the loss, not waited for."""
        bf16 = self.precision == "bf16"
        with torch.autocast(self.device.type, torch.bfloat16) if bf16 else nullcontext():
            loss = self.model(**batch).loss
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        return loss.detach()

    def describe(self) -> dict[str, Any]:
        """What it is, for the report."""
        return {
            "model": type(self.model).__name__,
            "precision": self.precision,
            "parameters": sum(parameter.numel() for parameter in self.model.parameters()),
        }


def build_contenders(*, vocab_size: int, length: int, precision: str, device: torch.device) -> list[Contender]:
    """The three models, in the order in which they take turns."""
    set_seed(0)
    positions = max(length, 512)
    config = modeling.LacunaConfig.from_family(
        "modernbert", "tiny", vocab_size=vocab_size, max_position_embeddings=positions
    )
    ours = modeling.LacunaForMaskedLM(config)
    native = modeling.to_native(ours, family="modernbert")
    native.sparse_prediction = True
    bert = BertForMaskedLM(
        BertConfig(
            vocab_size=vocab_size,
            hidden_size=config.hidden_size,
            num_hidden_layers=config.num_hidden_layers,
            num_attention_heads=config.num_attention_heads,
            intermediate_size=4 * config.hidden_size,
            max_position_embeddings=positions,
        )
    )
    return [
        Contender(OURS, ours, precision, device),
        Contender("bert", bert, "float32", device),
        Contender("modernbert", native, precision, device),
    ]


def make_batches(*, batch_size: int, length: int, vocab_size: int, device: torch.device) -> list[dict[str, Tensor]]:
    """Random rows without padding, `round(0.15 * length)` positions of each masked: input_ids, labels, mask [B, T]."""
    generator = torch.Generator().manual_seed(0)
    batches = []
    for _ in range(NUM_BATCHES):
        ids = torch.randint(SPECIAL_TOKENS, vocab_size, (batch_size, length), generator=generator)
        order = torch.rand(batch_size, length, generator=generator).argsort(dim=1)
        chosen = order < max(1, round(MASK_PROBABILITY * length))
        batch = {
            "input_ids": ids.masked_fill(chosen, MASK_TOKEN),
            "attention_mask": torch.ones_like(ids),
            "labels": ids.masked_fill(~chosen, -100),
        }
        batches.append({name: value.to(device) for name, value in batch.items()})
    return batches


def check_same_work(contenders: list[Contender], batch: dict[str, Tensor]) -> None:
    """The first losses must be those of untrained models, and equal where the weights are."""
    losses = {}
    for contender in contenders:
        with torch.no_grad():
            losses[contender.name] = float(contender.model(**batch).loss)
    if abs(losses[OURS] - losses["modernbert"]) > 1e-3 * losses[OURS]:
        raise RuntimeError(f"with equal weights the losses must be equal, and they are {losses}: nothing was measured")


def measure(
    *, contenders: list[Contender], batches: list[dict[str, Tensor]], rounds: int, steps: int, warmup: int
) -> dict[str, list[float]]:
    """Tokens per second of each contender in each round: A B C A B C ..."""
    tokens = batches[0]["input_ids"].numel()
    wait: Callable[[], None] = torch.cuda.synchronize if contenders[0].device.type == "cuda" else lambda: None
    speeds: dict[str, list[float]] = {contender.name: [] for contender in contenders}
    with tqdm(total=len(contenders) * (warmup + rounds * steps), unit="step", leave=False) as bar:
        for number in range(rounds + 1):  # round 0 warms up
            for contender in contenders:
                bar.set_description(f"{contender.name}, round {number}" if number else f"{contender.name}, warm-up")
                count = steps if number else warmup
                wait()
                start = time.perf_counter()
                for step in range(count):
                    loss = contender.step(batches[step % len(batches)])
                wait()
                seconds = time.perf_counter() - start
                if count and not torch.isfinite(loss):
                    raise RuntimeError(f"the loss of {contender.name} is {float(loss)}: its speed says nothing")
                if number:
                    speeds[contender.name].append(count * tokens / seconds)
                bar.update(count)
    return speeds


def summarize(speeds: dict[str, list[float]]) -> dict[str, float]:
    """Median tokens per second, and our ratio to each other one: median, smallest and largest over the rounds."""
    summary = {f"tokens_per_second_{name}": statistics.median(values) for name, values in speeds.items()}
    for name, values in speeds.items():
        if name != OURS:
            ratios = [ours / theirs for ours, theirs in zip(speeds[OURS], values, strict=True)]
            summary |= {
                f"ratio_to_{name}": statistics.median(ratios),
                f"ratio_to_{name}_min": min(ratios),
                f"ratio_to_{name}_max": max(ratios),
            }
    return summary


def to_markdown(report: dict[str, Any]) -> list[str]:
    """The report for people."""
    settings, summary = report["settings"], report["summary"]
    lines = [
        f"# Training speed, {report['date']}",
        "",
        f"{settings['batch_size']} rows of {settings['length']} tokens, vocabulary {settings['vocab_size']:,}, "
        f"{MASK_PROBABILITY:.0%} masked, fused AdamW; {settings['rounds']} rounds of {settings['steps']} steps, "
        f"in turn, after {settings['warmup']} steps of warm-up.",
        "",
        "| model | precision | parameters | tokens/s (median) | Lacuna is faster by (min..max over rounds) |",
        "|---|---|---|---|---|",
    ]
    for name, facts in report["contenders"].items():
        ratio = ""
        if name != OURS:
            low, middle, high = (summary[f"ratio_to_{name}{end}"] for end in ("_min", "", "_max"))
            ratio = f"{middle:.2f} x ({low:.2f}..{high:.2f})"
        speed = summary[f"tokens_per_second_{name}"]
        lines.append(
            f"| {facts['model']} | {facts['precision']} | {facts['parameters'] / 1e6:.2f} M | {speed:,.0f} | {ratio} |"
        )
    return lines


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    """The options; every one has a default."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default, text in (
        ("rounds", 8, "times that each model takes its turn"),
        ("steps", 6, "optimizer steps in a turn"),
        ("warmup", 4, "steps of each model before the first round, not counted"),
        ("batch_size", 32, "rows in a batch"),
        ("length", 128, "tokens in a row"),
        ("vocab_size", 8192, "tokens in the vocabulary"),
    ):
        parser.add_argument(f"--{name}", type=positive, default=default, help=f"{text} ({default})")
    parser.add_argument(
        "--precision", choices=["auto", "bf16", "float32"], default="auto", help="of lacuna, modernbert"
    )
    parser.add_argument("--threads", type=positive, help="CPU threads (default: all cores)")
    parser.add_argument("--output_dir", default=str(RESULTS), help="folder of the report")
    return parser.parse_args(arguments)


def main() -> None:
    """Parse, build, measure, report."""
    options = parse()
    if options.threads:
        torch.set_num_threads(options.threads)
    else:
        use_all_cores()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    precision = options.precision
    if precision == "auto":
        precision = "bf16" if bf16_is_fast() else "float32"
    sizes = {"vocab_size": options.vocab_size, "length": options.length, "device": device}
    machine = describe_machine(
        "torch",
        "transformers",
        device=torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu",
        threads=torch.get_num_threads(),
    )
    contenders = build_contenders(precision=precision, **sizes)
    batches = make_batches(batch_size=options.batch_size, **sizes)
    check_same_work(contenders, batches[0])
    speeds = measure(
        contenders=contenders,
        batches=batches,
        rounds=options.rounds,
        steps=options.steps,
        warmup=options.warmup,
    )
    body = {
        "settings": {name: value for name, value in vars(options).items() if name != "output_dir"},
        "machine": machine,
        "contenders": {contender.name: contender.describe() for contender in contenders},
        "summary": summarize(speeds),
        "tokens_per_second_by_round": speeds,
    }
    write_report(name="training_speed", output_dir=options.output_dir, body=body, to_markdown=to_markdown)


if __name__ == "__main__":
    main()
