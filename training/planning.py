"""What a run will need, before it runs: parameters, memory, operations, time, energy, disk."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any

import torch
from torch import nn

from lacuna.common.options import Arguments, Numbers, check_range, option
from lacuna.common.work import Work

from .arguments import TrainingArguments
from .devices import require_gpu
from .environment import bf16_is_fast
from .flops import flops_per_token, peak_flops
from .memory import Memory, largest_micro_batch, micro_batch_of, parameters_by_part, plan, trained_bytes
from .stages import Stage, epochs_per_step, plan_stages, tokens_per_step

_PROCESS = 0.5e9
"""Bytes that Python with its libraries, or a CUDA context, takes before there is a model."""

Section = tuple[str, list[tuple[str, str]]]
"""A heading, and lines of a name and a value."""


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
    name: str
    kind: str
    memory: float
    watts: float | None
    precision: str
    peak: float | None

    @property
    def numbers(self) -> str:
        """What it computes with, for people."""
        return "bf16" if self.precision == "bf16" else "float32"


def _device_of(wanted: PlanArguments, arguments: TrainingArguments) -> _Device:
    """The device that is meant.

    Raises:
        InputError: it is not known.
    """
    name = wanted.device or (torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu")
    if name.lower() == "cpu":
        import psutil

        memory, watts, kind, has_bf16 = float(psutil.virtual_memory().total), None, "cpu", bf16_is_fast()
    else:
        gpu = require_gpu(name)
        name, memory, watts, kind, has_bf16 = gpu.name, gpu.memory_gb * 1e9, gpu.watts, "cuda", gpu.bf16 is not None
    precision = arguments.mixed_precision
    precision = ("bf16" if has_bf16 else "no") if precision == "auto" else precision
    return _Device(
        name=name,
        kind=kind,
        memory=memory if wanted.memory_gb is None else wanted.memory_gb * 1e9,
        watts=watts if wanted.watts is None else wanted.watts,
        precision=precision,
        peak=peak_flops(name.lower() if kind == "cpu" else name, precision),
    )


def plan_run(
    *,
    model: nn.Module,
    works: Sequence[tuple[float, Work]],
    arguments: TrainingArguments,
    wanted: PlanArguments,
) -> list[Section]:
    """Everything that can be known of a run before it runs, as sections of names and values.

    Args:
        model: on any device, meta included.
        works: what is learned, from which share of the run on.
        arguments: the options of the run.
        wanted: for which devices.

    Raises:
        InputError: the options do not fit each other, the device is not known, or the model cannot be estimated.
    """
    device = _device_of(wanted, arguments)
    is_auto = arguments.micro_batch_size == 0
    arguments = replace(arguments, micro_batch_size=None) if is_auto else arguments
    stages = plan_stages(arguments=arguments, works=works, num_processes=wanted.num_devices)
    arguments = arguments.resolved(
        epochs_per_step=epochs_per_step(stages),
        tokens_per_step=tokens_per_step(stages) if arguments.max_tokens else 1.0,
    )
    return [
        ("parameters", _counts(parameters_by_part(model))),
        *_memory_sections(model, stages, arguments, device, wanted.num_devices, is_auto=is_auto),
        *_work_sections(model, stages, arguments, device, wanted),
    ]


def _counts(parts: dict[str, int]) -> list[tuple[str, str]]:
    total = sum(parts.values())
    lines = [(name, f"{count:>13,}  {count / max(total, 1):6.1%}") for name, count in parts.items() if count]
    return [*lines, ("total", f"{total:>13,}")]


def _memory_sections(
    model: nn.Module, stages: list[Stage], arguments: TrainingArguments, device: _Device, count: int, *, is_auto: bool
) -> list[Section]:
    """Memory by part in the stage that needs most, what fits, and what is written."""

    @cache
    def of(number: int, rows: int) -> Memory:
        return plan(
            model,
            micro_batch=micro_batch_of(stages[number].work, rows=rows),
            arguments=replace(arguments, batch_size=Numbers(stages[number].batch_size), batch_size_at=Numbers(0)),
            precision=device.precision,
            device_type=device.kind,
            num_processes=count,
        )

    largest = [
        largest_micro_batch(
            share=stage.batch_size // count,
            memory=device.memory - _PROCESS,
            needed=lambda rows, number=number: of(number, rows).total,  # type: ignore[misc]
        )
        for number, stage in enumerate(stages)
    ]
    asked = [(fits or 1) if is_auto else stage.micro_batch_size for stage, fits in zip(stages, largest, strict=True)]
    number = max(range(len(stages)), key=lambda number: of(number, asked[number]).total)
    memory, shape = of(number, asked[number]), micro_batch_of(stages[number].work, rows=asked[number])
    needed = memory.total + _PROCESS
    verdict = "fits" if needed <= device.memory else "does NOT fit"
    parts = [
        *_parts(memory, trained=trained_bytes(model), count=count),
        ("process", f"{_megabytes(_PROCESS)}  Python and libraries, or the CUDA context"),
    ]
    parts += [("total", f"{_megabytes(needed)}  {verdict} into {device.memory / 1e9:,.1f} GB of {device.name}")]
    for stage, fits in zip(stages, largest, strict=True):
        where = f" from {stage.at:g} of the run" if len(stages) > 1 else ""
        least = f"none: one row needs {(of(stages.index(stage), 1).total + _PROCESS) / 1e9:.2f} GB"
        share = f"  of the {stage.batch_size // count:,} that a process has in each step"
        parts.append((f"largest micro-batch{where}", f"{fits:>13,}{share}" if fits else least))
    if arguments.writes_checkpoints and device.kind != "cpu":
        parts.append(
            ("checkpoint copy", f"{_megabytes(memory.checkpoint)}  in the host's memory, beside what the GPU holds")
        )
    title = f"memory of a process, {shape.rows:,} rows of {shape.length:,} tokens at once, in {device.numbers}"
    return [
        (title, parts),
        ("disk", _disk(memory, arguments, is_evaluated=bool(stages[-1].work.num_eval_examples))),
    ]


def _parts(memory: Memory, *, trained: int, count: int) -> list[tuple[str, str]]:
    """Each part of a process's memory in a few words; `trained` bytes have all gradients together."""
    twice = f", and a second copy of all for {count} processes" if count > 1 else ""
    present = memory.gradients - (trained if count > 1 else 0)
    which = "all of them" if present >= trained else f"those there at the fullest moment, of {trained / 1e6:,.1f} MB"
    words = {
        "gradients": which + twice,
        "activations": "what layers keep for backward",
        "logits": "output layer and loss",
        "working": "what backward, or the optimizer, holds besides",
        "allocator": "freed, and not given back: an estimate",
        "checkpoint_copy": f"written while training goes on{', by the first process' if count > 1 else ''}",
    }
    return [
        (name.replace("_", " "), "  ".join([_megabytes(size), *filter(None, [words.get(name)])]))
        for name, size in vars(memory).items()
        if size or name == "gradients"
    ]


def _disk(memory: Memory, arguments: TrainingArguments, *, is_evaluated: bool) -> list[tuple[str, str]]:
    """A checkpoint, all that can be there at once, and the model."""
    content = "weights, optimizer and average" if memory.averages else "weights and optimizer"
    one, final = _megabytes(memory.checkpoint), ("the final model", _megabytes(memory.weights))
    if not arguments.writes_checkpoints:
        return [("a checkpoint", f"{one}  {content}; written only if the run is told to stop"), final]
    has_best = bool(is_evaluated and arguments.eval_steps)
    most = arguments.keep_checkpoints + has_best + 1
    which = f"the newest {arguments.keep_checkpoints},{' the best,' if has_best else ''} one being written"
    return [
        ("a checkpoint", f"{one}  {content}"),
        ("checkpoints", f"{_megabytes(most * memory.checkpoint)}  {most} at most: {which}"),
        final,
    ]


def _work_sections(
    model: nn.Module,
    stages: list[Stage],
    arguments: TrainingArguments,
    device: _Device,
    wanted: PlanArguments,
) -> list[Section]:
    """Rows, steps and operations; time and energy."""
    rate = None if device.peak is None else device.peak * wanted.mfu * wanted.num_devices
    ends = [*(stage.at for stage in stages[1:]), 1.0]
    spans = [end - stage.at for stage, end in zip(stages, ends, strict=True)]
    per_step, per_token, tokens = 0.0, 0.0, 0.0
    for stage, span in zip(stages, spans, strict=True):
        shape = micro_batch_of(stage.work)
        cost = flops_per_token(
            model,
            length=shape.length,
            target_length=shape.target_length,
            predicted_share=shape.predicted_share,
            device_type=device.kind,
        )
        per_step += span * cost * shape.length * stage.batch_size
        tokens += span * shape.length * stage.batch_size
    per_token = per_step / tokens
    steps = arguments.max_steps
    if arguments.max_minutes and rate:
        by_clock = max(1, int(arguments.max_minutes * 60 * rate / per_step))
        steps = min(by_clock, steps) if steps else by_clock
    rows = sorted({stage.work.num_examples for stage in stages})
    work = [
        ("rows of training text", " ".join(f"{count:>13,}" for count in rows)),
        ("operations of a token", f"{per_token:>13.3e}  forward and backward, as docs/planning.md says"),
        ("operations of a step", f"{per_step:>13.3e}  {tokens:,.0f} tokens"),
    ]
    if steps is None:
        unknown = f"unknown: no peak of {device.name} in {device.numbers} is known, and --max_minutes is the limit"
        return [("work", [*work, ("steps", unknown)])]
    work += [
        ("steps", f"{steps:>13,}  {steps * epochs_per_step(stages):.2f} epochs, {steps * tokens:,.0f} tokens"),
        ("operations of the run", f"{per_step * steps:>13.3e}"),
    ]
    if rate is None:
        return [("work", work), ("time", [("unknown", f"no peak of {device.name} in {device.numbers} is known")])]
    return [("work", work), _time(steps * per_step / rate, steps, device, wanted)]


def _time(seconds: float, steps: int, device: _Device, wanted: PlanArguments) -> Section:
    assert device.peak is not None
    measured = ", measured" if device.kind == "cpu" else ""
    lines = [
        ("a step", f"{seconds / steps:>13.3f} s"),
        ("the run", f"{_duration(seconds):>13}  training alone, without evaluations and saves"),
        ("peak", f"{device.peak / 1e12:>13.2f} TFLOP/s of {device.name} in {device.numbers}{measured}"),
    ]
    if device.watts is None:
        lines.append(("energy", "say --watts to have it"))
    else:
        energy = seconds / 3600 * device.watts * wanted.num_devices / 1000
        lines.append(("energy", f"{energy:>13.3f} kWh  at {device.watts:g} W for each device, nothing around it"))
    return f"time on {wanted.num_devices} x {device.name}, if training reaches {wanted.mfu:.0%} of the peak", lines


def _megabytes(size: float) -> str:
    return f"{size / 1e6:>13,.1f} MB"


def _duration(seconds: float) -> str:
    for unit, length in (("days", 86400), ("hours", 3600), ("minutes", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:.1f} {unit}"
    return f"{seconds:.1f} seconds"


def as_text(sections: Sequence[Section]) -> str:
    """Sections as a table for people."""
    width = max(len(name) for _, lines in sections for name, _ in lines)
    blocks = [
        "\n".join([title, *(f"  {name:<{width}}  {value}" for name, value in lines)]) for title, lines in sections
    ]
    return "\n\n".join(blocks)


def facts_of(sections: Sequence[Section]) -> dict[str, Any]:
    """The same by heading and name, for tests and tools."""
    return {title: dict(lines) for title, lines in sections}
