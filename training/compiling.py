"""Compiling a model: its blocks, one by one, and the scores of its targets.

Blocks of a model are alike, so that a compiler that has seen one has seen all: a model of 12 layers takes it as long
as one of 2. What stands between the blocks (masks, selection of targets) depends on the data and stays as it is.
"""

import os
import shutil

import torch
from torch import nn

from .arguments import TrainingArguments
from .errors import ArgumentError

LONG_ENOUGH = 3e14
"""Floating-point operations of a run from which on compiling for a CPU pays: some five minutes on two cores, of which
a tenth to a fifth is saved, against the half minute that it takes."""

_VERSIONS = 64
"""Of a block's code: by type of layer, for training and evaluation, for each number of documents on a GPU."""


def compiler_of(device: torch.device) -> str | None:
    """What turns the code into machine code on this device; None where it is missing."""
    if device.type == "cuda":
        return "triton" if torch.utils._triton.has_triton() else None
    return shutil.which(os.environ.get("CXX", "g++")) or shutil.which("clang++") if device.type == "cpu" else None


def should_compile(
    arguments: TrainingArguments, *, device: torch.device, is_divided: bool, has_fixed_length: bool, operations: float
) -> bool:
    """What `--compile` means for this run; the answer follows from the run, never from a measurement.

    Args:
        is_divided: whether weights or states are sharded among processes.
        has_fixed_length: whether all batches have one shape: each other one is compiled anew.
        operations: floating-point operations of the whole run; infinite where only the clock ends it.

    Raises:
        ArgumentError: `--compile on`, and there is no compiler.
    """
    if arguments.compile == "off":
        return False
    compiler = compiler_of(device)
    if arguments.compile == "on":
        if compiler is None:
            raise ArgumentError(
                f"--compile on: there is no compiler for {device.type} here (a CPU needs g++, a GPU triton); "
                "install one, or leave --compile away"
            )
        return True
    is_worth_it = device.type == "cuda" or operations >= LONG_ENOUGH
    return compiler is not None and has_fixed_length and not is_divided and is_worth_it


def compile_model(model: nn.Module) -> int:
    """Have the blocks of a model compiled when they first run, and return how many there are.

    Weights, their names and what is saved stay as they are.
    """
    # Blocks share their code, and with it one limit of versions; beyond it they would silently run uncompiled.
    torch._dynamo.config.recompile_limit = max(torch._dynamo.config.recompile_limit, _VERSIONS)
    names = set(getattr(model, "_no_split_modules", None) or [])
    lists = [module for module in model.modules() if isinstance(module, nn.ModuleList)]
    blocks = [block for modules in lists for block in modules if type(block).__name__ in names]
    for block in blocks:
        block.compile(dynamic=False)
    if hasattr(model, "score_targets"):
        model.score_targets = torch.compile(model.score_targets, dynamic=True)  # type: ignore[assignment]
    return len(blocks)
