"""What GPUs are made for, by name: memory, power and peaks, from their makers' data sheets."""

import re
from dataclasses import dataclass

from lacuna.common.errors import InputError


@dataclass(frozen=True)
class Gpu:
    """A GPU as its data sheet describes it."""

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


def require_gpu(name: str) -> Gpu:
    """The GPU of the table that a name means.

    Raises:
        InputError: it is not in the table.
    """
    gpu = find_gpu(name)
    if gpu is None:
        raise InputError(f"--device {name} is not known; known are cpu and {', '.join(gpu.name for gpu in GPUS)}")
    return gpu
