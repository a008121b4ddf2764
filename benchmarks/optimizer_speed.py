"""Milliseconds of one step of every optimizer, and how many tokens are trained on in that time.

    python benchmarks/optimizer_speed.py --sizes tiny --rounds 2 --tokens 256   # a laptop, half a minute
    python benchmarks/optimizer_speed.py                                        # tiny and small, some minutes

The weights are those of new models, the gradients random numbers that stay the same. Forward and backward passes are
timed beside them, on one batch of random tokens in the precision that training takes: an optimizer that takes as long
as 4,000 tokens costs half of the time at a batch of 4,000 tokens, and a tenth at one of 36,000. "muon (torch)" is
`torch.optim.Muon`, matrix by matrix, in place of Lacuna's banks; "ema" is what `--average ema` adds to any of them.
Times are medians over rounds, in which all take turns: other programs then disturb all alike.
"""

import argparse
import contextlib
import statistics
import sys
import time
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any, cast

import torch
from reports import RESULTS, describe_machine, positive, write_report
from torch import nn

from lacuna.common.errors import InputError
from lacuna.modeling import LacunaConfig, LacunaForCausalLM, LacunaForMaskedLM
from lacuna.training import TrainingArguments
from lacuna.training.averaging import make_average
from lacuna.training.environment import bf16_is_fast, use_all_cores
from lacuna.training.optimizers import OPTIMIZERS, BankedMuon

MODELS = {"modernbert": LacunaForMaskedLM, "qwen3": LacunaForCausalLM}
LENGTH = 128  # tokens in a row
PASSES = "forward and backward"
TORCH, AVERAGE = "muon (torch)", "ema"


def make_steps(model: nn.Module) -> dict[str, Callable[[], None]]:
    """One step of each optimizer that is installed, and of an average."""
    arguments = TrainingArguments(learning_rate=1e-6, max_steps=1000)
    made: dict[str, list[torch.optim.Optimizer]] = {}
    for name, build in OPTIMIZERS.items():
        with contextlib.suppress(InputError):
            made[name] = build(model, arguments)
    rest, banked = made["muon"]
    assert isinstance(banked, BankedMuon)
    made[TORCH] = [rest, torch.optim.Muon(banked.param_groups[0]["params"], lr=1e-6, adjust_lr_fn="match_rms_adamw")]

    def stepper(optimizers: list[torch.optim.Optimizer]) -> Callable[[], None]:
        def step() -> None:
            for optimizer in optimizers:
                optimizer.step()

        return step

    average = make_average(cast(Any, SimpleNamespace(average="ema", ema_decay=0.999)), model)
    assert average is not None
    steps = {name: stepper(optimizers) for name, optimizers in made.items()}
    return {**steps, AVERAGE: partial(average.update, model, done=0.5)}


def make_passes(model: nn.Module, *, tokens: int, vocab_size: int) -> Callable[[], None]:
    """Forward and backward over rows of random tokens, all of them targets of a decoder, 30 % of an encoder."""
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(10, vocab_size, (max(1, tokens // LENGTH), LENGTH), generator=generator)
    is_target = torch.rand(ids.shape, generator=generator) < (0.3 if isinstance(model, LacunaForMaskedLM) else 1.0)
    labels = ids.masked_fill(~is_target, -100)
    kept = [weight.grad for weight in model.parameters()]

    def passes() -> None:
        for weight in model.parameters():
            weight.grad = None
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=bf16_is_fast()):
            loss = model(input_ids=ids, labels=labels).loss
        loss.backward()
        for weight, gradient in zip(model.parameters(), kept, strict=True):
            weight.grad = gradient

    return passes


def measure(family: str, size: str, *, rounds: int, tokens: int) -> dict[str, Any]:
    """Milliseconds of each step and of the passes, by round."""
    torch.manual_seed(0)
    config = LacunaConfig.from_family(family, size=size)
    model = MODELS[family](config).train()
    for weight in model.parameters():
        weight.grad = torch.randn_like(weight) * 1e-3
    work = {PASSES: make_passes(model, tokens=tokens, vocab_size=config.vocab_size), **make_steps(model)}
    found: dict[str, list[float]] = {name: [] for name in work}
    for number in range(rounds + 1):  # round 0 warms up
        for name, run in work.items():
            start = time.perf_counter()
            run()
            if number:
                found[name].append(1000 * (time.perf_counter() - start))
        print(f"{family} {size}: round {number} of {rounds}", file=sys.stderr, flush=True)
    return {
        "parameters": sum(weight.numel() for weight in model.parameters()),
        "tokens": max(1, tokens // LENGTH) * LENGTH,
        "milliseconds": {name: statistics.median(values) for name, values in found.items()},
        "milliseconds_by_round": found,
    }


def to_markdown(report: dict[str, Any]) -> list[str]:
    """The report for people."""
    settings = report["settings"]
    lines = [
        f"# Speed of optimizers, {report['date']}",
        "",
        f"One step, median of {settings['rounds']} rounds in turn, {report['precision']} in the passes. "
        '"Tokens" are those whose forward and backward pass takes as long as the step.',
    ]
    if missing := report["not_installed"]:
        lines += ["", f"Not installed, and not measured: {', '.join(missing)}."]
    for name, facts in report["models"].items():
        times = facts["milliseconds"]
        lines += [
            "",
            f"{name}, {facts['parameters'] / 1e6:.1f} M parameters; {PASSES} of {facts['tokens']:,} tokens: "
            f"{times[PASSES]:,.0f} ms",
            "",
            "| optimizer | step | smallest..largest | tokens |",
            "|---|---|---|---|",
        ]
        for optimizer, middle in times.items():
            if optimizer != PASSES:
                every = facts["milliseconds_by_round"][optimizer]
                lines.append(
                    f"| {optimizer} | {middle:,.1f} ms | {min(every):,.1f}..{max(every):,.1f} | "
                    f"{facts['tokens'] * middle / times[PASSES]:,.0f} |"
                )
        lines += ["", f"{TORCH} takes {times[TORCH] / times['muon']:.2f} times as long as muon."]
    return lines


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    """The options; every one has a default."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--families", nargs="+", default=list(MODELS), choices=list(MODELS), help="families")
    parser.add_argument("--sizes", nargs="+", default=["tiny", "small"], help="sizes of the models (tiny small)")
    parser.add_argument("--rounds", type=positive, default=9, help="times that each takes its turn (9)")
    parser.add_argument("--tokens", type=positive, default=2048, help="tokens of the passes (2,048)")
    parser.add_argument("--output_dir", default=str(RESULTS), help="folder of the report")
    return parser.parse_args(arguments)


def main() -> None:
    """Parse, measure, report."""
    options = parse()
    use_all_cores()
    machine = describe_machine("torch", threads=torch.get_num_threads())
    models = {
        f"{family} {size}": measure(family, size, rounds=options.rounds, tokens=options.tokens)
        for size in options.sizes
        for family in options.families
    }
    measured = next(iter(models.values()))["milliseconds"]
    body = {
        "settings": {name: value for name, value in vars(options).items() if name != "output_dir"},
        "machine": machine,
        "precision": "bfloat16" if bf16_is_fast() else "float32",
        "not_installed": [name for name in OPTIMIZERS if name not in measured],
        "models": models,
    }
    write_report(name="optimizer_speed", output_dir=options.output_dir, body=body, to_markdown=to_markdown)


if __name__ == "__main__":
    main()
