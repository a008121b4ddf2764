"""What a run will need, as a table: parameters, memory, disk, operations, time."""

import re
from dataclasses import dataclass
from functools import partial

import psutil
import torch
from torch import nn

from lacuna.common.errors import InputError
from lacuna.common.options import Arguments, check_range, option

from ..arguments import TrainingArguments
from ..checkpoints.saving import native_form
from ..environment import resolved_precision
from ..stages import Stage, Works, epochs_per_step, mean_over_run, resolve
from .flops import GPUS, Gpu, find_gpu, peak_flops
from .memory import Memory, StepNeeds

_PROCESS = 0.65e9  # bytes that Python with its libraries, or a CUDA context, takes before there is a model
_MEANING = {
    "activations": "kept by the forward pass for backward",
    "gradients": "at the fullest moment, with all else that backward or the optimizer holds",
    "communication": "DDP's copy of all gradients",
    "allocator": "freed, and not given back: an estimate",
    "checkpoint_copy": "written while training continues, by the first process",
    "process": "Python and libraries, or the CUDA context",
}
_NUMBERS = {"bf16": "bf16", "fp16": "fp16", "no": "float32"}
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
    mfu: float = _device(0.3, "Assumed model FLOPs utilization; small models reach 0.05 to 0.5.", advanced=True)

    def __post_init__(self) -> None:
        check_range(self, "num_devices", "memory_gb", above=0)
        check_range(self, "mfu", above=0, at_most=1)


def plan_run(*, model: nn.Module, works: Works, arguments: TrainingArguments, wanted: PlanArguments) -> str:
    """A table for people of all that a run will need."""
    device, precision = _device_of(wanted, arguments.mixed_precision)
    on_cpu, count = device.name == "cpu", wanted.num_devices
    arguments, stages = resolve(arguments, works, num_processes=count)
    where = (precision, "cpu" if on_cpu else "cuda", count)
    needs = [StepNeeds(model, stage.work, arguments, stage.batch_size // count, *where) for stage in stages]
    free = 1e9 * device.memory_gb - _PROCESS
    largest = [each.largest_micro_batch(free) for each in needs]
    rows = [stage.micro_batch_size for stage in stages]
    fullest = max(range(len(stages)), key=lambda number: needs[number].memory(rows[number]).total)
    memory, length = needs[fullest].memory(rows[fullest]), needs[fullest].length
    verdict = f"{'fits' if memory.total <= free else 'does NOT fit'} into {device.memory_gb:,.1f} GB of {device.name}"
    parts = {name: size for name, size in vars(memory).items() if size} | {"process": _PROCESS}
    of_process = {name.replace("_", " "): _megabytes(size, _MEANING.get(name)) for name, size in parts.items()}
    of_process["total"] = _megabytes(memory.total + _PROCESS, verdict)
    for stage, each, fits in zip(stages, needs, largest, strict=True):
        name = "largest micro-batch" + (f" from {stage.at:g} of the run" if len(stages) > 1 else "")
        none = f"none: one row needs {(each.memory(1).total + _PROCESS) / 1e9:.2f} GB"
        of_process[name] = f"{fits:>13,}  of the {each.share:,} that a process has in each step" if fits else none
    if arguments.writes_checkpoints and not on_cpu:
        of_process["checkpoint copy"] = _megabytes(memory.checkpoint, "in the host's memory, beside the GPU's")
    title = f"memory of a process, {rows[fullest]:,} rows of {length:,} tokens at once, in {_NUMBERS[precision]}"
    native = native_form(model, arguments.save_as)[0] is not None
    sections = {
        "parameters": _parameters(model),
        title: of_process,
        "disk": _disk(memory, arguments, is_evaluated=bool(stages[-1].work.num_eval_examples), native=native),
        **_work_and_time(stages, needs, arguments, wanted, device, precision),
    }
    width = max(len(name) for lines in sections.values() for name in lines)
    return "\n\n".join(
        "\n".join([title, *(f"  {name:<{width}}  {value}" for name, value in lines.items())])
        for title, lines in sections.items()
    )


def _device_of(wanted: PlanArguments, precision: str) -> tuple[Gpu, str]:
    """The device with the memory to plan for, and its precision."""
    name = wanted.device or (torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu")
    if name.lower() == "cpu":
        device, precision = Gpu("cpu", psutil.virtual_memory().total / 1e9, None, 0), resolved_precision(precision)
    elif found := find_gpu(name):
        fast = "bf16" if found.bf16 else "fp16" if found.fp16 else "no"
        device, precision = found, fast if precision == "auto" else precision
    else:
        raise InputError(f"--device {name} is not known; known are cpu and {', '.join(gpu.name for gpu in GPUS)}")
    return device._replace(memory_gb=wanted.memory_gb or device.memory_gb), precision


def parameters_by_part(model: nn.Module) -> dict[str, int]:
    """Number of parameters in embeddings, attention, MLP, norms and head; tied ones count where they come first."""
    parts = dict.fromkeys(("embeddings", "attention", "MLP", "norms", "head"), 0)
    for name, parameter in model.named_parameters():
        owner = model.get_submodule(name.rpartition(".")[0])
        if isinstance(owner, nn.Embedding):
            part = "embeddings"
        elif "norm" in type(owner).__name__.lower():
            part = "norms"
        elif not re.search(r"\.\d+\.", name):
            part = "head"
        else:
            part = "attention" if "att" in name.lower() else "MLP"
        parts[part] += parameter.numel()
    return parts


def _parameters(model: nn.Module) -> dict[str, str]:
    parts = parameters_by_part(model)
    total = sum(parts.values())
    lines = {name: f"{count:>13,}  {count / total:6.1%}" for name, count in parts.items() if count}
    return {**lines, "total": f"{total:>13,}"}


def _disk(memory: Memory, arguments: TrainingArguments, *, is_evaluated: bool, native: bool) -> dict[str, str]:
    """A checkpoint, all that can be there at once, and the model."""
    content = "weights, optimizer and average" if memory.averages else "weights and optimizer"
    content += ", and the weights of the native model" * native
    size = memory.checkpoint + memory.weights * native
    content += "" if arguments.writes_checkpoints else "; written only if the run is stopped"
    has_best = bool(is_evaluated and arguments.eval_steps)
    most = arguments.keep_checkpoints + has_best + 1
    which = f"{most} at most: the newest {arguments.keep_checkpoints},{' the best,' * has_best} one being written"
    every = {"checkpoints": _megabytes(most * size, which)} if arguments.writes_checkpoints else {}
    return {"a checkpoint": _megabytes(size, content), **every, "the final model": _megabytes(memory.weights)}


def _work_and_time(
    stages: list[Stage],
    needs: list[StepNeeds],
    arguments: TrainingArguments,
    wanted: PlanArguments,
    device: Gpu,
    precision: str,
) -> dict[str, dict[str, str]]:
    per_step = wanted.num_devices * mean_over_run([each.flops() * each.share for each in needs], stages)
    tokens = wanted.num_devices * mean_over_run([each.length * each.share for each in needs], stages)
    texts = " ".join(f"{count:>13,}" for count in sorted({stage.work.num_examples for stage in stages}))
    lines = {
        "rows of training text": texts,
        "operations of a token": f"{per_step / tokens:>13.3e}  forward and backward, as docs/planning.md says",
        "operations of a step": f"{per_step:>13.3e}  {tokens:,.0f} tokens",
    }
    peak, numbers = peak_flops(device.name, precision), _NUMBERS[precision]
    unknown = f"unknown: no peak of {device.name} in {numbers} is known"
    steps, rate = arguments.max_steps, (peak or 0.0) * wanted.mfu * wanted.num_devices
    if arguments.max_minutes and rate:
        by_clock = max(1, int(arguments.max_minutes * 60 * rate / per_step))
        steps = min(by_clock, steps or by_clock)
    if steps is None:
        return {"work": {**lines, "steps": f"{unknown}, and --max_minutes is the limit"}}
    lines["steps"] = f"{steps:>13,}  {steps * epochs_per_step(stages):.2f} epochs, {steps * tokens:,.0f} tokens"
    lines["operations of the run"] = f"{per_step * steps:>13.3e}"
    if not peak:
        return {"work": lines, "time": {"the run": unknown}}
    a_step, measured = per_step / rate, ", measured" if device.name == "cpu" else ""
    time = {
        "a step": f"{a_step:>13.3f} s",
        "the run": f"{_duration(a_step * steps):>13}  training alone, without evaluations and saves",
        "peak": f"{peak / 1e12:>13.2f} TFLOP/s of {device.name} in {numbers}{measured}",
    }
    title = f"time on {wanted.num_devices} x {device.name}, if training reaches {wanted.mfu:.0%} of the peak"
    return {"work": lines, title: time}


def _megabytes(size: float, words: str | None = None) -> str:
    return f"{size / 1e6:>13,.1f} MB" + (f"  {words}" if words else "")


def _duration(seconds: float) -> str:
    units = {"days": 86400, "hours": 3600, "minutes": 60, "seconds": 1}
    unit = next((unit for unit, length in units.items() if seconds >= 2 * length), "seconds")
    return f"{seconds / units[unit]:.1f} {unit}"
