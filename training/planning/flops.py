"""What devices can compute, and how much of it a run does."""

import functools
import math
import re
import time
from collections import Counter
from dataclasses import dataclass
from typing import Any

import torch
from accelerate import Accelerator
from torch import Tensor, nn

from lacuna.common.errors import InputError
from lacuna.common.work import Work

from .memory import FakeStep, fake_copy

WAIT = 5.0
"""Seconds of training before a CPU's peak is measured, which takes a third of one."""


@dataclass(frozen=True)
class Gpu:
    """A GPU as its maker's data sheet describes it."""

    name: str
    memory_gb: float
    """10^9 bytes, as makers count."""
    watts: float
    """The most that the board draws."""
    bf16: float | None
    """TFLOP/s of dense matrix products with sums in float32 (half of what sheets give "with sparsity"), or None."""
    fp16: float
    fp32: float
    """TFLOP/s of float32 as it is: without TF32, as torch computes unless it is told otherwise."""


GPUS = [
    # NVIDIA A100 Tensor Core GPU data sheet, 2022; V100 data sheet, 2020; T4 data sheet, 2019
    Gpu("A100 PCIE 40GB", 40, 250, 312, 312, 19.5),
    Gpu("A100 PCIE", 80, 300, 312, 312, 19.5),
    Gpu("A100 40GB", 40, 400, 312, 312, 19.5),
    Gpu("A100", 80, 400, 312, 312, 19.5),
    Gpu("V100", 32, 300, None, 125, 15.7),
    Gpu("T4", 16, 70, None, 65, 8.1),
    # NVIDIA H100 data sheet, 2024 (SXM where nothing else is said); H200 data sheet, 2024
    Gpu("H100", 80, 700, 989.4, 989.4, 67),
    Gpu("H100 PCIE", 80, 350, 756, 756, 51),
    Gpu("H100 NVL", 94, 400, 835, 835, 60),
    Gpu("GH200", 96, 700, 989.4, 989.4, 67),
    Gpu("H200", 141, 700, 989.4, 989.4, 67),
    Gpu("H200 NVL", 141, 600, 835, 835, 60),
    # NVIDIA HGX B200 data sheet, 2024: an eighth of the board
    Gpu("B200", 180, 1000, 2250, 2250, 75),
    # NVIDIA data sheets of A10 (2021), A30 (2022), A40 (2021), L4 (2023), L40 (2022), L40S (2023)
    Gpu("A10", 24, 150, 125, 125, 31.2),
    Gpu("A30", 24, 165, 165, 165, 10.3),
    Gpu("A40", 48, 300, 149.7, 149.7, 37.4),
    Gpu("L4", 24, 72, 121, 121, 30.3),
    Gpu("L40", 48, 300, 181, 181, 90.5),
    Gpu("L40S", 48, 350, 362, 362, 91.6),
    # NVIDIA Ampere GA102 (2021), Ada (2023) and Blackwell RTX (2025) architecture papers, tables of specifications
    Gpu("RTX A6000", 48, 300, 154.8, 154.8, 38.7),
    Gpu("RTX 3090", 24, 350, 71, 71, 35.6),
    Gpu("RTX 4080", 16, 320, 97.5, 97.5, 48.7),
    Gpu("RTX 4090", 24, 450, 165.2, 165.2, 82.6),
    Gpu("RTX 5090", 32, 575, 209.5, 209.5, 104.8),
    Gpu("RTX 6000 ADA", 48, 300, 364.2, 364.2, 91.1),
    # AMD Instinct data sheets, 2021 (a board of MI250X holds two devices) and 2023
    Gpu("MI250X", 64, 280, 191.5, 191.5, 23.9),
    Gpu("MI300X", 192, 750, 1307.4, 1307.4, 163.4),
]

_KINDS = {"TI", "SUPER", "LAPTOP", "MOBILE", "MAX", "D", "MIG"}
"""Words that make another device of a name that would fit."""


def find_gpu(name: str) -> Gpu | None:
    """The GPU of the table that a name means ("H100", "NVIDIA A100-SXM4-80GB"), or None."""
    words = set(re.split(r"[\s_-]+", name.upper()))
    fitting = [gpu for gpu in GPUS if set(gpu.name.split()) <= words and not (words & _KINDS) - set(gpu.name.split())]
    fitting += [gpu for gpu in GPUS if not fitting and set(gpu.name.removeprefix("RTX ").split()) == words]
    return max(fitting, key=lambda gpu: len(gpu.name.split())) if fitting else None


def peak_flops(device: str | torch.device, precision: str) -> float | None:
    """Floating-point operations a second that a device could do at best in dense matrix products.

    Args:
        device: a torch device; or the name of a GPU, see `GPUS`.
        precision: bf16, fp16, or no for float32 (without TF32).

    Returns:
        For a GPU the data sheet's number, None where the table lacks it. For a CPU what a product of good size
        reaches here on the threads that torch has, measured once in a process (half a second at most).
    """
    kind = {"bf16": "bf16", "fp16": "fp16"}.get(precision, "fp32")
    name = str(device)
    if name.startswith("cpu"):
        return _measured_on_cpu(kind, torch.get_num_threads())
    if name.startswith("cuda") and torch.cuda.is_available():
        name = torch.cuda.get_device_name(torch.device(name))
    gpu = find_gpu(name)
    teraflops = None if gpu is None else getattr(gpu, kind)
    return None if teraflops is None else teraflops * 1e12


@functools.cache
def _measured_on_cpu(kind: str, threads: int) -> float:
    """The fastest of several products, of sizes that grow while one takes a twentieth of a second at most."""
    dtype = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(kind, torch.float32)
    best, seconds, size = 0.0, 0.0, 256
    while seconds < 0.05 and size <= 4096:
        matrix = torch.ones(size, size, dtype=dtype)  # a product takes as long whatever is multiplied
        for _ in range(3):
            before = time.perf_counter()
            torch.mm(matrix, matrix)
            seconds = time.perf_counter() - before
            best = max(best, 2.0 * size**3 / seconds)
        size *= 2
    return best


class Throughput:
    """Model FLOPs utilization (Chowdhery et al., 2022, https://arxiv.org/abs/2204.02311).

    Operations that the rows of a step need, padding included, over what all devices could do in its time. Those of a
    token are counted once for rows of like length (see `FakeStep`), when a line of the log first asks for them.

    Args:
        model: as it is before it is divided, wrapped or compiled.
    """

    def __init__(self, model: nn.Module, accelerator: Accelerator) -> None:
        self.model, self.accelerator = fake_copy(model), accelerator
        self._tokens: Counter[Any] = Counter()
        """By work and length, since `share` was asked last; over all processes."""
        self._batches: dict[Any, tuple[Work, dict[str, Tensor]]] = {}
        self._per_token: dict[Any, float] = {}

    def see(self, work: Work, batch: dict[str, Tensor], *, rows: int) -> None:
        """One more step of `rows` rows over all processes, of which `batch` is some."""
        ids = batch["input_ids"]
        like = (id(work), ids.shape[-1].bit_length())
        self._tokens[like] += ids.numel() * rows // len(ids)
        self._batches.setdefault(like, (work, batch))

    def share(self, *, seconds: float, trained: float) -> float | None:
        """Share of the peak in the steps since the last call; None where the peak is not known, or not yet.

        Args:
            seconds: that they took.
            trained: seconds of training in all.
        """
        tokens, self._tokens = self._tokens, Counter()
        device, precision = self.accelerator.device, str(self.accelerator.mixed_precision)
        peak = None if device.type == "cpu" and trained < WAIT else peak_flops(device, precision)
        if not peak or seconds <= 0:
            return None
        for like in tokens.keys() - self._per_token.keys():
            work, batch = self._batches[like]
            fake = FakeStep(self.model, precision=precision, device_type=device.type)
            try:
                with torch.random.fork_rng(devices=[]):
                    fake.run(work, batch)
                self._per_token[like] = fake.flops / batch["input_ids"].numel()
            except InputError:
                self._per_token[like] = math.nan
        flops = sum(self._per_token[like] * count for like, count in tokens.items())
        return None if math.isnan(flops) else flops / (seconds * peak * self.accelerator.num_processes)
