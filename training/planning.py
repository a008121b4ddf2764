"""What a run will need, before it runs: parameters, memory, disk, operations, time, energy."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import psutil
import torch
from torch import nn

from lacuna.common.errors import InputError
from lacuna.common.options import Arguments, check_range, option
from lacuna.common.work import Work

from .arguments import TrainingArguments
from .environment import bf16_is_fast
from .flops import GPUS, find_gpu, peak_flops
from .memory import Memory, StepPlan
from .stages import Stage, epochs_per_step, plan_stages, tokens_per_step

_PROCESS = 0.5e9
"""Bytes that Python with its libraries, or a CUDA context, takes before there is a model."""
_WORDS = {
    "activations": "what layers keep for backward",
    "logits": "output layer and loss",
    "working": "what backward, or the optimizer, holds besides",
    "allocator": "freed, and not given back: an estimate",
    "checkpoint_copy": "written while training goes on, by the first process",
}

Lines = list[tuple[str, str]]
"""Names and values."""


@dataclass
class PlanArguments(Arguments):
    """What the run is planned for."""

    device: str | None = option(
        None, "cpu, or a GPU by name (H100, A100, 'RTX 4090', ...). Default: what this machine has."
    )
    num_devices: int = option(1, "Devices that train together, a process on each.")
    memory_gb: float | None = option(
        None, "Memory of each device in GB (10^9 bytes). Default: the GPU's, or all of this machine's."
    )
    mfu: float = option(
        0.3, "Share of the device's peak that training reaches: an assumption. Small models reach 0.05 to 0.5."
    )
    watts: float | None = option(None, "Power of each device. Default: the most that the GPU's board draws.")

    def __post_init__(self) -> None:
        check_range(self, "num_devices", "memory_gb", "watts", above=0)
        check_range(self, "mfu", above=0, at_most=1)


@dataclass(frozen=True)
class _Device:
    """One of `count` that train together."""

    name: str
    kind: str
    count: int
    memory: float
    watts: float | None
    precision: str
    flops: float | None
    """At their peak, all together."""

    def __str__(self) -> str:
        return f"{self.name} in {'bf16' if self.precision == 'bf16' else 'float32'}"


def _device_of(wanted: PlanArguments, asked_precision: str) -> _Device:
    """The device that is meant.

    Raises:
        InputError: it is not known.
    """
    name = wanted.device or (torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu")
    gpu = None if name.lower() == "cpu" else find_gpu(name)
    if gpu is None and name.lower() != "cpu":
        raise InputError(f"--device {name} is not known; known are cpu and {', '.join(gpu.name for gpu in GPUS)}")
    name = "cpu" if gpu is None else gpu.name
    precision = asked_precision
    if precision == "auto":
        precision = "bf16" if (bf16_is_fast() if gpu is None else gpu.bf16) else "no"
    memory = psutil.virtual_memory().total if gpu is None else gpu.memory_gb * 1e9
    peak = peak_flops(name, precision)
    return _Device(
        name=name,
        kind="cpu" if gpu is None else "cuda",
        count=wanted.num_devices,
        memory=memory if wanted.memory_gb is None else wanted.memory_gb * 1e9,
        watts=wanted.watts or (gpu.watts if gpu else None),
        precision=precision,
        flops=None if peak is None else peak * wanted.num_devices,
    )


def plan_run(
    *, model: nn.Module, works: Sequence[tuple[float, Work]], arguments: TrainingArguments, wanted: PlanArguments
) -> str:
    """Everything that can be known of a run before it runs, as a table for people.

    Args:
        model: on any device, meta included.
        works: what is learned, from which share of the run on.
        arguments: the options of the run.
        wanted: for which devices.

    Raises:
        InputError: the options do not fit each other, the device is not known, or the model cannot be estimated.
    """
    device = _device_of(wanted, arguments.mixed_precision)
    is_auto = arguments.micro_batch_size == 0
    arguments = replace(arguments, micro_batch_size=None) if is_auto else arguments
    stages = plan_stages(arguments=arguments, works=works, num_processes=device.count)
    tokens = tokens_per_step(stages) if arguments.max_tokens else 1.0
    arguments = arguments.resolved(epochs_per_step=epochs_per_step(stages), tokens_per_step=tokens)
    plans = [
        StepPlan(
            model, stage.work, arguments, stage.batch_size // device.count, device.precision, device.kind, device.count
        )
        for stage in stages
    ]
    parts = parameters_by_part(model)
    total = sum(parts.values())
    counts = [(name, f"{count:>13,}  {count / total:6.1%}") for name, count in parts.items() if count]
    sections = {
        "parameters": [*counts, ("total", f"{total:>13,}")],
        **_memory(stages, plans, arguments, device, is_auto=is_auto),
        **_work(stages, plans, arguments, device, wanted.mfu),
    }
    width = max(len(name) for lines in sections.values() for name, _ in lines)
    blocks = [[title, *(f"  {name:<{width}}  {value}" for name, value in lines)] for title, lines in sections.items()]
    return "\n\n".join("\n".join(block) for block in blocks)


def parameters_by_part(model: nn.Module) -> dict[str, int]:
    """Numbers of weights in embeddings, attention, MLP, norms and head; tied ones count where they come first."""
    parts = dict.fromkeys(("embeddings", "attention", "MLP", "norms", "head"), 0)
    for name, parameter in model.named_parameters():
        path = name.split(".")[:-1]
        owner = model.get_submodule(".".join(path))
        if isinstance(owner, nn.Embedding):
            part = "embeddings"
        elif "norm" in f"{type(owner).__name__} {path[-1:]}".lower() or path[-1:] in (["ln_1"], ["ln_2"], ["ln_f"]):
            part = "norms"
        elif not any(word.isdigit() for word in path):
            part = "head"
        else:
            part = "attention" if any("att" in word.lower() for word in path) else "MLP"
        parts[part] += parameter.numel()
    return parts


def _memory(
    stages: list[Stage], plans: list[StepPlan], arguments: TrainingArguments, device: _Device, *, is_auto: bool
) -> dict[str, Lines]:
    """Memory by part in the stage that needs most, what fits, and what is written."""
    largest = [plan.largest_micro_batch(device.memory - _PROCESS) for plan in plans]
    rows = [(fits or 1) if is_auto else stage.micro_batch_size for stage, fits in zip(stages, largest, strict=True)]
    number = max(range(len(stages)), key=lambda number: plans[number].memory(rows[number]).total)
    plan, memory = plans[number], plans[number].memory(rows[number])
    second = f", and a second copy of all for {device.count} processes" if device.count > 1 else ""
    is_whole = memory.gradients >= plan.trained * (2 if second else 1)
    which = "all of them" if is_whole else f"those there at the fullest moment, of {plan.trained / 1e6:,.1f} MB"
    words = {**_WORDS, "gradients": which + second}
    needed = memory.total + _PROCESS
    verdict = "fits" if needed <= device.memory else "does NOT fit"
    lines = [
        (name.replace("_", " "), _megabytes(size, words.get(name)))
        for name, size in vars(memory).items()
        if size >= 5e4 or name == "gradients"
    ]
    lines.append(("process", _megabytes(_PROCESS, "Python and libraries, or the CUDA context")))
    lines.append(("total", _megabytes(needed, f"{verdict} into {device.memory / 1e9:,.1f} GB of {device.name}")))
    for stage, plan, fits in zip(stages, plans, largest, strict=True):
        least = f"none: one row needs {(plan.memory(1).total + _PROCESS) / 1e9:.2f} GB"
        share = f"{fits or 0:>13,}  of the {plan.share:,} that a process has in each step"
        where = f" from {stage.at:g} of the run" if len(stages) > 1 else ""
        lines.append((f"largest micro-batch{where}", share if fits else least))
    if arguments.writes_checkpoints and device.kind != "cpu":
        beside = "in the host's memory, beside what the GPU holds"
        lines.append(("checkpoint copy", _megabytes(memory.checkpoint, beside)))
    title = f"memory of a process, {rows[number]:,} rows of {plans[number].length:,} tokens at once, in "
    return {
        title + str(device).rpartition(" ")[2]: lines,
        "disk": _disk(memory, arguments, is_evaluated=bool(stages[-1].work.num_eval_examples)),
    }


def _disk(memory: Memory, arguments: TrainingArguments, *, is_evaluated: bool) -> Lines:
    """A checkpoint, all that can be there at once, and the model."""
    content = "weights, optimizer and average" if memory.averages else "weights and optimizer"
    final = ("the final model", _megabytes(memory.weights))
    if not arguments.writes_checkpoints:
        content += "; written only if the run is told to stop"
        return [("a checkpoint", _megabytes(memory.checkpoint, content)), final]
    has_best = bool(is_evaluated and arguments.eval_steps)
    most = arguments.keep_checkpoints + has_best + 1
    which = f"{most} at most: the newest {arguments.keep_checkpoints},{' the best,' * has_best} one being written"
    return [
        ("a checkpoint", _megabytes(memory.checkpoint, content)),
        ("checkpoints", _megabytes(most * memory.checkpoint, which)),
        final,
    ]


def _work(
    stages: list[Stage], plans: list[StepPlan], arguments: TrainingArguments, device: _Device, mfu: float
) -> dict[str, Lines]:
    """Rows, steps and operations; time and energy."""
    ends = [*(stage.at for stage in stages[1:]), 1.0]
    rows = [(end - stage.at) * stage.batch_size for end, stage in zip(ends, stages, strict=True)]  # of a mean step
    per_step = sum(plan.flops() * count for plan, count in zip(plans, rows, strict=True))
    tokens = sum(plan.length * count for plan, count in zip(plans, rows, strict=True))
    texts = " ".join(f"{count:>13,}" for count in sorted({stage.work.num_examples for stage in stages}))
    lines = [
        ("rows of training text", texts),
        ("operations of a token", f"{per_step / tokens:>13.3e}  forward and backward, as docs/planning.md says"),
        ("operations of a step", f"{per_step:>13.3e}  {tokens:,.0f} tokens"),
    ]
    unknown = f"unknown: no peak of {device} is known"
    steps = arguments.max_steps
    if arguments.max_minutes and device.flops:
        by_clock = max(1, int(arguments.max_minutes * 60 * device.flops * mfu / per_step))
        steps = min(by_clock, steps) if steps else by_clock
    if steps is None:
        return {"work": [*lines, ("steps", f"{unknown}, and --max_minutes is the limit")]}
    lines += [
        ("steps", f"{steps:>13,}  {steps * epochs_per_step(stages):.2f} epochs, {steps * tokens:,.0f} tokens"),
        ("operations of the run", f"{per_step * steps:>13.3e}"),
    ]
    if device.flops is None:
        return {"work": lines, "time": [("the run", unknown)]}
    seconds = steps * per_step / (device.flops * mfu)
    measured = ", measured" if device.kind == "cpu" else ""
    energy = "pass --watts to estimate energy"
    if device.watts is not None:
        energy = f"{seconds / 3.6e6 * device.watts * device.count:>13.3f} kWh  at {device.watts:g} W for each device"
    return {
        "work": lines,
        f"time on {device.count} x {device.name}, if training reaches {mfu:.0%} of the peak": [
            ("a step", f"{seconds / steps:>13.3f} s"),
            ("the run", f"{_duration(seconds):>13}  training alone, without evaluations and saves"),
            ("peak", f"{device.flops / device.count / 1e12:>13.2f} TFLOP/s of {device}{measured}"),
            ("energy", energy),
        ],
    }


def _megabytes(size: float, words: str | None = None) -> str:
    return f"{size / 1e6:>13,.1f} MB" + (f"  {words}" if words else "")


def _duration(seconds: float) -> str:
    for unit, length in (("days", 86400), ("hours", 3600), ("minutes", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:.1f} {unit}"
    return f"{seconds:.1f} seconds"
