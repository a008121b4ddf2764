"""Peak FLOP/s of GPUs (data sheets) and of this CPU (measured), and which share of it a run reaches."""

import functools
import math
import re
import time
from collections import Counter
from typing import Any, NamedTuple

import torch
from accelerate import Accelerator
from torch import Tensor, nn

from lacuna.common.errors import InputError
from lacuna.common.work import Work

from ..arguments import DTYPES
from .memory import FakeStep, fake_copy

WAIT = 30.0  # seconds of training before a CPU's peak is measured and operations are counted, which takes some


class Gpu(NamedTuple):
    """A GPU as its maker's data sheet describes it."""

    name: str
    memory_gb: float  # 10^9 bytes, as makers count
    bf16: float | None
    """TFLOP/s of dense matrix products with sums in float32 (half of what sheets give "with sparsity"), or None."""
    fp32: float  # TFLOP/s of float32 without TF32, torch's default
    fp16: float | None = None  # TFLOP/s, where bf16 is missing; elsewhere both are equal


GPUS = [  # NVIDIA: data sheets of 2019 to 2024, for RTX the architecture papers; AMD: data sheets of 2021 and 2023
    Gpu("A100 40GB", 40, 312, 19.5),
    Gpu("A100", 80, 312, 19.5),
    Gpu("V100", 32, None, 15.7, fp16=125),
    Gpu("T4", 16, None, 8.1, fp16=65),
    Gpu("H100", 80, 989.4, 67),
    Gpu("H100 PCIE", 80, 756, 51),
    Gpu("H100 NVL", 94, 835, 60),
    Gpu("GH200", 96, 989.4, 67),
    Gpu("H200", 141, 989.4, 67),
    Gpu("H200 NVL", 141, 835, 60),
    Gpu("B200", 180, 2250, 75),  # an eighth of an HGX board
    Gpu("A10", 24, 125, 31.2),
    Gpu("A30", 24, 165, 10.3),
    Gpu("A40", 48, 149.7, 37.4),
    Gpu("L4", 24, 121, 30.3),
    Gpu("L40", 48, 181, 90.5),
    Gpu("L40S", 48, 362, 91.6),
    Gpu("RTX A6000", 48, 154.8, 38.7),
    Gpu("RTX 3090", 24, 71, 35.6),
    Gpu("RTX 4080", 16, 97.5, 48.7),
    Gpu("RTX 4090", 24, 165.2, 82.6),
    Gpu("RTX 5090", 32, 209.5, 104.8),
    Gpu("RTX 6000 ADA", 48, 364.2, 91.1),
    Gpu("MI250X", 64, 191.5, 23.9),  # one of the two devices of a board
    Gpu("MI300X", 192, 1307.4, 163.4),
]
_VARIANTS = {"TI", "SUPER", "LAPTOP", "MOBILE", "MAX", "D", "MIG"}
"""Words that make another device of a name that would fit."""


def find_gpu(name: str) -> Gpu | None:
    """The GPU of the table that a name means ("H100", "NVIDIA A100-SXM4-80GB"), or None."""
    words = set(re.split(r"[\s_-]+", name.upper()))
    fitting = [gpu for gpu in GPUS if {*gpu.name.split()} <= words and not words & _VARIANTS]
    fitting += [gpu for gpu in GPUS if not fitting and {*gpu.name.removeprefix("RTX ").split()} == words]
    return max(fitting, key=lambda gpu: len(gpu.name.split())) if fitting else None


def peak_flops(device: str | torch.device, precision: str) -> float | None:
    """Peak FLOP/s of a torch device, or of a GPU by name, in dense matrix products in bf16, fp16 or float32 (no).

    For a GPU the data sheet's number, None if the table lacks it. For a CPU what is measured here on torch's threads,
    once per process (half a second at most).
    """
    name = str(device)
    if name.startswith("cpu"):
        return _measured_on_cpu(DTYPES.get(precision, torch.float32), torch.get_num_threads())
    if name.startswith("cuda") and torch.cuda.is_available():
        name = torch.cuda.get_device_name(torch.device(name))
    gpu = find_gpu(name)
    teraflops = gpu and {"bf16": gpu.bf16, "fp16": gpu.fp16 or gpu.bf16}.get(precision, gpu.fp32)
    return teraflops * 1e12 if teraflops else None


@functools.cache
def _measured_on_cpu(dtype: torch.dtype, threads: int) -> float:
    """The fastest of several products, of sizes that grow while one takes a twentieth of a second at most."""
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
    """Model FLOPs utilization, MFU (Chowdhery et al., 2022, https://arxiv.org/abs/2204.02311).

    The operations of the rows of a step, padding included, over what all devices could do in its time. They are
    counted per token, once for rows of similar length, when a line of the log first asks for them.
    """

    def __init__(self, model: nn.Module, accelerator: Accelerator) -> None:
        """The model is as it is before it is sharded, wrapped or compiled."""
        self.model, self.accelerator = fake_copy(model), accelerator
        self._tokens: Counter[Any] = Counter()  # by work and length, since `share` was asked last; over all processes
        self._batches: dict[Any, tuple[Work, dict[str, Tensor]]] = {}
        self._per_token: dict[Any, float] = {}

    def see(self, work: Work, batch: dict[str, Tensor], *, rows: int) -> None:
        """One more step of `rows` rows over all processes; `batch` has some of them."""
        ids = batch["input_ids"]
        like = (id(work), ids.shape[-1].bit_length())
        self._tokens[like] += ids.numel() * rows // len(ids)
        self._batches.setdefault(like, (work, batch))

    def share(self, *, seconds: float, trained: float) -> float | None:
        """MFU of the steps since the last call, `seconds` of the `trained` seconds of the run; None: no peak known."""
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
