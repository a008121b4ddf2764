"""What a run will need, before it runs: parameters, memory, disk, operations, time, energy."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

import psutil
import torch
from torch import nn

from lacuna.common.errors import InputError
from lacuna.common.options import Arguments, check_range, option
from lacuna.common.work import Work

from ..arguments import TrainingArguments
from ..environment import bf16_is_fast
from ..stages import Stage, epochs_per_step, resolve
from .flops import GPUS, find_gpu, peak_flops
from .memory import Memory, StepPlan

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


_device = partial(option, group="device")


@dataclass
class PlanArguments(Arguments):
    """What the run is planned for."""

    device: str | None = _device(
        None, "cpu, or a GPU by name (H100, A100, 'RTX 4090', ...). Default: this machine's.", metavar="NAME"
    )
    num_devices: int = _device(1, "Devices that train together, one process each.")
    memory_gb: float | None = _device(
        None, "Memory of each device in GB (10^9 bytes). Default: the GPU's, or all of this machine's."
    )
    mfu: float = _device(0.3, "Assumed model FLOPs utilization (MFU) of the device; small models reach 0.05 to 0.5.")
    watts: float | None = _device(
        None, "Power of each device in watts. Default: the GPU's board limit.", advanced=True
    )

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

    @property
    def peak(self) -> float | None:
        """Operations a second at best."""
        return peak_flops(self.name, self.precision)

    @property
    def numbers(self) -> str:
        """What it computes with."""
        return "bf16" if self.precision == "bf16" else "float32"


def _device_of(wanted: PlanArguments, precision: str) -> _Device:
    """The device that is meant.

    Raises:
        InputError: it is not known.
    """
    name = wanted.device or (torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu")
    if name.lower() == "cpu":
        name, kind, memory, watts, has_bf16 = "cpu", "cpu", psutil.virtual_memory().total, None, bf16_is_fast()
    elif gpu := find_gpu(name):
        name, kind, memory, watts, has_bf16 = gpu.name, "cuda", gpu.memory_gb * 1e9, gpu.watts, bool(gpu.bf16)
    else:
        raise InputError(f"--device {name} is not known; known are cpu and {', '.join(gpu.name for gpu in GPUS)}")
    memory = memory if wanted.memory_gb is None else wanted.memory_gb * 1e9
    precision = ("bf16" if has_bf16 else "no") if precision == "auto" else precision
    return _Device(name, kind, wanted.num_devices, memory, wanted.watts or watts, precision)


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
    arguments, stages = resolve(arguments, works, num_processes=device.count)
    where = (device.precision, device.kind, device.count)
    plans = [StepPlan(model, stage.work, arguments, stage.batch_size // device.count, *where) for stage in stages]
    largest = [plan.largest_micro_batch(device.memory - _PROCESS) for plan in plans]
    rows = [(fits or 1) if is_auto else stage.micro_batch_size for stage, fits in zip(stages, largest, strict=True)]
    fullest = max(range(len(stages)), key=lambda number: plans[number].memory(rows[number]).total)
    plan, memory = plans[fullest], plans[fullest].memory(rows[fullest])
    title = f"memory of a process, {rows[fullest]:,} rows of {plan.length:,} tokens at once, in {device.numbers}"
    fitting = _fitting(stages, plans, largest)
    if arguments.writes_checkpoints and device.kind != "cpu":
        fitting.append(("checkpoint copy", _megabytes(memory.checkpoint, "in the host's memory, beside the GPU's")))
    sections = {
        "parameters": _parameters(model),
        title: [*_parts(memory, plan.trained, device), *fitting],
        "disk": _disk(memory, arguments, is_evaluated=bool(stages[-1].work.num_eval_examples)),
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


def _parameters(model: nn.Module) -> Lines:
    parts = parameters_by_part(model)
    total = sum(parts.values())
    lines = [(name, f"{count:>13,}  {count / total:6.1%}") for name, count in parts.items() if count]
    return [*lines, ("total", f"{total:>13,}")]


def _parts(memory: Memory, trained: int, device: _Device) -> Lines:
    """Memory of a process by part; `trained` bytes have all gradients together."""
    present = memory.gradients - (trained if device.count > 1 else 0)
    which = "all of them" if present >= trained else f"those there at the fullest moment, of {trained / 1e6:,.1f} MB"
    which += f", and a second copy of all for {device.count} processes" if device.count > 1 else ""
    words = {**_WORDS, "gradients": which}
    needed = memory.total + _PROCESS
    verdict = "fits" if needed <= device.memory else "does NOT fit"
    sizes = {name: size for name, size in vars(memory).items() if size >= 5e4 or name == "gradients"}
    return [
        *((name.replace("_", " "), _megabytes(size, words.get(name))) for name, size in sizes.items()),
        ("process", _megabytes(_PROCESS, "Python and libraries, or the CUDA context")),
        ("total", _megabytes(needed, f"{verdict} into {device.memory / 1e9:,.1f} GB of {device.name}")),
    ]


def _fitting(stages: list[Stage], plans: list[StepPlan], largest: list[int | None]) -> Lines:
    """The largest micro-batch of each stage."""
    lines = []
    for stage, plan, fits in zip(stages, plans, largest, strict=True):
        words = f"{fits:>13,}  of the {plan.share:,} that a process has in each step" if fits else ""
        least = f"none: one row needs {(plan.memory(1).total + _PROCESS) / 1e9:.2f} GB"
        where = f" from {stage.at:g} of the run" if len(stages) > 1 else ""
        lines.append((f"largest micro-batch{where}", words or least))
    return lines


def _disk(memory: Memory, arguments: TrainingArguments, *, is_evaluated: bool) -> Lines:
    """A checkpoint, all that can be there at once, and the model."""
    content = "weights, optimizer and average" if memory.averages else "weights and optimizer"
    has_best = bool(is_evaluated and arguments.eval_steps)
    most = arguments.keep_checkpoints + has_best + 1
    which = f"{most} at most: the newest {arguments.keep_checkpoints},{' the best,' * has_best} one being written"
    all_of_them = [("checkpoints", _megabytes(most * memory.checkpoint, which))]
    if not arguments.writes_checkpoints:
        content, all_of_them = f"{content}; written only if the run is told to stop", []
    final = ("the final model", _megabytes(memory.weights))
    return [("a checkpoint", _megabytes(memory.checkpoint, content)), *all_of_them, final]


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
    unknown = f"unknown: no peak of {device.name} in {device.numbers} is known"
    steps, rate = arguments.max_steps, (device.peak or 0.0) * mfu * device.count
    if arguments.max_minutes and rate:
        by_clock = max(1, int(arguments.max_minutes * 60 * rate / per_step))
        steps = min(by_clock, steps or by_clock)
    if steps is None:
        return {"work": [*lines, ("steps", f"{unknown}, and --max_minutes is the limit")]}
    lines += [
        ("steps", f"{steps:>13,}  {steps * epochs_per_step(stages):.2f} epochs, {steps * tokens:,.0f} tokens"),
        ("operations of the run", f"{per_step * steps:>13.3e}"),
    ]
    if not rate:
        return {"work": lines, "time": [("the run", unknown)]}
    title = f"time on {device.count} x {device.name}, if training reaches {mfu:.0%} of the peak"
    return {"work": lines, title: _time(per_step / rate, steps, device)}


def _time(seconds: float, steps: int, device: _Device) -> Lines:
    """Time of steps of so many seconds, and energy."""
    measured = ", measured" if device.kind == "cpu" else ""
    energy = "pass --watts to estimate energy"
    if device.watts:
        kilowatt_hours = seconds * steps * device.watts * device.count / 3.6e6
        energy = f"{kilowatt_hours:>13.3f} kWh  at {device.watts:g} W for each device, nothing around it"
    return [
        ("a step", f"{seconds:>13.3f} s"),
        ("the run", f"{_duration(seconds * steps):>13}  training alone, without evaluations and saves"),
        ("peak", f"{(device.peak or 0) / 1e12:>13.2f} TFLOP/s of {device.name} in {device.numbers}{measured}"),
        ("energy", energy),
    ]


def _megabytes(size: float, words: str | None = None) -> str:
    return f"{size / 1e6:>13,.1f} MB" + (f"  {words}" if words else "")


def _duration(seconds: float) -> str:
    for unit, length in (("days", 86400), ("hours", 3600), ("minutes", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:.1f} {unit}"
    return f"{seconds:.1f} seconds"
