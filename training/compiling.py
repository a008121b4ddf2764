"""torch.compile: whether a run compiles its model, block by block, and the warm-up that compiles before training.

Blocks are alike, so a model of 12 layers compiles as fast as one of 2. What stands between them (masks, selection of
targets) depends on the data and is not compiled.
"""

import math
import os
import shutil
import sysconfig
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from torch import nn

from lacuna.common.errors import InputError
from lacuna.common.work import training_batch

from .arguments import TrainingArguments
from .stages import Stage, tokens_per_step
from .step import step

LONG_ENOUGH = 6e13  # operations of a run from which on compiling for a CPU pays: about a minute on two cores
MINUTES_ENOUGH = 5  # of --max_minutes, since a busy machine takes two or three of them to compile
_VERSIONS = 64
"""Of a block's code: by type of layer, for training and evaluation, for each number of documents on a GPU."""


def compiler_of(device: torch.device) -> str | None:
    """What turns the code into machine code on this device; None where it or the headers of Python are missing."""
    if not Path(sysconfig.get_path("include"), "Python.h").is_file():
        return None
    if device.type == "cuda":  # triton compiles what calls its kernels with a compiler of C; on Windows it brings one
        c = os.name == "nt" or shutil.which(os.environ.get("CC", "gcc")) or shutil.which("clang")
        return "triton" if torch.utils._triton.has_triton() and c else None
    return shutil.which(os.environ.get("CXX", "g++")) or shutil.which("clang++") if device.type == "cpu" else None


def should_compile(
    arguments: TrainingArguments, *, model: nn.Module, stages: Sequence[Stage], device: torch.device, is_divided: bool
) -> bool:
    """What `--compile` means for this run, by its resolved options alone: a resumed run must compute the same.

    `is_divided`: weights or states are sharded among processes. Raises InputError: `--compile on`, and there is no
    compiler.
    """
    if arguments.compile == "off":
        return False
    compiler = compiler_of(device)
    if arguments.compile == "on":
        if compiler is None:
            raise InputError(
                f"--compile on: there is no compiler for {device.type} here (a CPU needs g++, a GPU triton and gcc, "
                "and both the headers of Python, as in python3-dev); install it, or drop --compile"
            )
        return True
    if compiler is None or is_divided or not all(stage.work.fixed_length(stage.micro_batch_size) for stage in stages):
        return False  # batches of other shapes are recompiled
    if device.type == "cuda":
        return True
    if arguments.max_minutes and arguments.max_minutes < MINUTES_ENOUGH:
        return False
    # Six operations for each weight and token.
    weights = sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)
    operations = 6 * weights * tokens_per_step(stages) * arguments.max_steps if arguments.max_steps else math.inf
    return operations >= LONG_ENOUGH


def compile_model(model: nn.Module) -> int:
    """Have the blocks of a model compiled when they first run, and return how many there are."""
    # Blocks share their code, and with it one limit of versions; beyond it they would silently run uncompiled.
    torch._dynamo.config.recompile_limit = max(torch._dynamo.config.recompile_limit, _VERSIONS)
    names = set(getattr(model, "_no_split_modules", None) or [])
    lists = [module for module in model.modules() if isinstance(module, nn.ModuleList)]
    blocks = [block for modules in lists for block in modules if type(block).__name__ in names]
    for block in blocks:
        block.compile(dynamic=False)
    if hasattr(model, "score_targets"):
        model.score_targets = torch.compile(model.score_targets, dynamic=True)
    return len(blocks)


def warm_up(
    model: nn.Module, stages: Sequence[Stage], *, device: torch.device, backward: Callable[..., None]
) -> float:
    """Compile by a forward and a backward pass for each stage, which change nothing; returns the seconds it took."""
    started = time.perf_counter()
    for stage in stages:
        rows = range(stage.micro_batch_size)
        examples = [stage.work.example(row % stage.work.num_examples, row) for row in rows]
        batch = training_batch(examples, work=stage.work, device=device)  # or a GPU would compile other kernels
        with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
            step(stage.work, model, [batch], device=device, backward=backward)
        model.zero_grad(set_to_none=True)
    return time.perf_counter() - started
