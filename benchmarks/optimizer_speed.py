"""Milliseconds of one step of every optimizer, and how many tokens are trained on in that time.

    python benchmarks/optimizer_speed.py --sizes tiny --rounds 2 --tokens 256   # a laptop, half a minute
    python benchmarks/optimizer_speed.py                                        # tiny and small, some minutes

The weights are those of new models, the gradients random numbers that stay the same. Forward and backward passes are
timed beside them, on one batch of random tokens in the precision that training takes: an optimizer that takes as long
as 4,000 tokens costs half of the time at a batch of 4,000 tokens, and a tenth at one of 36,000. "muon (torch)" is
`torch.optim.Muon`, matrix by matrix, in place of Lacuna's banks; "ema" is what `--average ema` adds to any of them.
Times are medians over rounds, in which all take turns: other programs then disturb all alike.
"""

import contextlib
import statistics
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any, cast

import torch
from clock import take_turns, timed
from contenders import IGNORED
from report import Report, make_parser, table
from torch import nn

from lacuna.common.errors import InputError
from lacuna.modeling import LacunaConfig, LacunaForCausalLM, LacunaForMaskedLM
from lacuna.training import TrainingArguments
from lacuna.training.environment import bf16_is_fast, use_all_cores
from lacuna.training.optimizers.averages import make_average
from lacuna.training.optimizers.optimizers import OPTIMIZERS, BankedMuon

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

    def step(optimizers: list[torch.optim.Optimizer]) -> None:
        for optimizer in optimizers:
            optimizer.step()

    average = make_average(cast(Any, SimpleNamespace(average="ema", ema_decay=0.999)), model)
    assert average is not None
    steps = {name: partial(step, optimizers) for name, optimizers in made.items()}
    return {**steps, AVERAGE: partial(average.update, model, done=0.5)}


def make_passes(model: nn.Module, *, tokens: int, vocab_size: int) -> Callable[[], None]:
    """Forward and backward over rows of random tokens, all of them targets of a decoder, 30 % of an encoder."""
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(10, vocab_size, (max(1, tokens // LENGTH), LENGTH), generator=generator)
    is_target = torch.rand(ids.shape, generator=generator) < (0.3 if isinstance(model, LacunaForMaskedLM) else 1.0)
    labels = ids.masked_fill(~is_target, IGNORED)
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
    turns = {name: partial(timed, step) for name, step in work.items()}
    found = {
        name: [1000 * turn["seconds"] for turn in taken]
        for name, taken in take_turns(turns, rounds=rounds, warm_up=1, title=f"{family} {size}, ").items()
    }
    return {
        "parameters": sum(weight.numel() for weight in model.parameters()),
        "tokens": max(1, tokens // LENGTH) * LENGTH,
        "milliseconds": {name: statistics.median(values) for name, values in found.items()},
        "milliseconds_by_round": found,
    }


def to_markdown(body: dict[str, Any]) -> list[str]:
    """The report for people."""
    lines = [
        f"One step, median of {body['settings']['rounds']} rounds in turn, {body['precision']} in the passes. "
        '"Tokens" are those whose forward and backward pass takes as long as the step.',
        "",
    ]
    if missing := body["not_installed"]:
        lines += [f"Not installed, and not measured: {', '.join(missing)}.", ""]
    for name, facts in body["models"].items():
        middles, rounds = facts["milliseconds"], facts["milliseconds_by_round"]
        rows = [
            {
                "optimizer": optimizer,
                "step, ms": middle,
                "smallest..largest": rounds[optimizer],
                "tokens": facts["tokens"] * middle / middles[PASSES],
            }
            for optimizer, middle in middles.items()
            if optimizer != PASSES
        ]
        lines += [
            f"{name}, {facts['parameters'] / 1e6:.1f} M parameters; {PASSES} of {facts['tokens']:,} tokens: "
            f"{middles[PASSES]:,.0f} ms",
            "",
            *table(rows),
            f"{TORCH} takes {middles[TORCH] / middles['muon']:.2f} times as long as muon.",
            "",
        ]
    return lines


def main() -> None:
    """Parse, measure, report."""
    options = make_parser(
        __doc__,
        ("families", tuple(MODELS), "families"),
        ("sizes", ["tiny", "small"], "sizes of the models"),
        ("rounds", 9, "times that each takes its turn"),
        ("tokens", 2048, "tokens of the passes"),
    ).parse_args()
    use_all_cores()
    report = Report(__file__, options, "torch", threads=torch.get_num_threads())
    models = {
        f"{family} {size}": measure(family, size, rounds=options.rounds, tokens=options.tokens)
        for size in options.sizes
        for family in options.families
    }
    measured = next(iter(models.values()))["milliseconds"]
    report.body |= {
        "precision": "bfloat16" if bf16_is_fast() else "float32",
        "not_installed": [name for name in OPTIMIZERS if name not in measured],
        "models": models,
    }
    report.write("Speed of optimizers", to_markdown(report.body))


if __name__ == "__main__":
    main()
