"""Milliseconds of one step of every optimizer, and how many tokens are trained on in that time.

    python benchmarks/optimizer_speed.py --sizes tiny --rounds 2 --tokens 256   # a laptop, half a minute
    python benchmarks/optimizer_speed.py                                        # tiny and small, some minutes

The weights are those of new models, the gradients random numbers that stay the same. Forward and backward passes are
timed beside them, on one batch of random tokens in the precision that training takes. "muon (torch)" is
`torch.optim.Muon`, matrix by matrix, in place of Lacuna's banks; "ema" is what `--average ema` adds to any of them.
"""

import contextlib
import statistics
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

import torch
from contenders import IGNORED
from harness import Report, make_parser, table, take_turns, timed
from torch import nn

from lacuna.common.errors import InputError
from lacuna.modeling import LacunaConfig, LacunaForCausalLM, LacunaForMaskedLM
from lacuna.training import TrainingArguments, use_all_cores
from lacuna.training.environment import bf16_is_fast
from lacuna.training.optimizers.averages import make_average
from lacuna.training.optimizers.optimizers import OPTIMIZERS

MODELS = {"modernbert": LacunaForMaskedLM, "qwen3": LacunaForCausalLM}
LENGTH = 128  # tokens in a row
PASSES = "forward and backward"
TORCH, AVERAGE = "muon (torch)", "ema"


def make_steps(model: nn.Module) -> dict[str, Callable[[], None]]:
    """One step of each optimizer that is installed, and of an average."""
    arguments = TrainingArguments(learning_rate=1e-6, max_steps=1000)
    made: dict[str, list[Any]] = {}
    for name, build in OPTIMIZERS.items():
        with contextlib.suppress(InputError):
            made[name] = build(model, arguments)
    rest, banked = made["muon"]
    made[TORCH] = [rest, torch.optim.Muon(banked.param_groups[0]["params"], lr=1e-6, adjust_lr_fn="match_rms_adamw")]

    def step(optimizers: list[Any]) -> None:
        for optimizer in optimizers:
            optimizer.step()

    settings: Any = SimpleNamespace(average="ema", ema_decay=0.999)
    average: Any = make_average(settings, model)
    steps = {name: partial(step, optimizers) for name, optimizers in made.items()}
    return {**steps, AVERAGE: partial(average.update, model, done=0.5)}


def make_passes(model: nn.Module, *, tokens: int, vocab_size: int) -> Callable[[], None]:
    """Forward and backward over rows of random tokens, all of them targets of a decoder, 30 % of an encoder."""
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(10, vocab_size, (tokens // LENGTH, LENGTH), generator=generator)
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
        for name, taken in take_turns(turns, rounds=rounds, warm_up=1, title=f"{family} {size},").items()
    }
    return {
        "parameters": sum(weight.numel() for weight in model.parameters()),
        "milliseconds": {name: statistics.median(values) for name, values in found.items()},
        "milliseconds_by_round": found,
    }


def main() -> None:
    """Parse, measure, report."""
    options = make_parser(
        __doc__,
        ("families", tuple(MODELS), "families"),
        ("sizes", ["tiny", "small"], "sizes of the models, with commas between"),
        ("rounds", 9, "turns of each"),
        ("tokens", 2048, f"tokens of the passes, at least {LENGTH}"),
    ).parse_args()
    use_all_cores()
    report = Report(options)
    tokens = max(1, options.tokens // LENGTH) * LENGTH
    report.body["models"] = models = {
        f"{family} {size}": measure(family, size, rounds=options.rounds, tokens=tokens)
        for size in options.sizes
        for family in options.families
    }
    report.body["precision"] = precision = "bfloat16" if bf16_is_fast() else "float32"
    lines = [
        f"Medians of {options.rounds} rounds, {precision} in the passes; tokens are those that pass in a step's time."
    ]
    for name, facts in models.items():
        middles, rounds = facts["milliseconds"], facts["milliseconds_by_round"]
        passes = middles[PASSES]
        rows = [
            {"optimizer": it, "step, ms": ms, "smallest..largest": rounds[it], "tokens": tokens * ms / passes}
            for it, ms in middles.items()
        ]
        lines += ["", f"{name}, {facts['parameters']:,} parameters; {PASSES} of {tokens:,} tokens: {passes:,.0f} ms; "]
        lines[-1] += f"{TORCH} takes {middles[TORCH] / middles['muon']:.2f} times as long as muon."
        lines += ["", *table(rows)]
    report.write("Speed of optimizers", lines)


if __name__ == "__main__":
    main()
