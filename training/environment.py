"""What this process runs on (processes, cores, whether bf16 is fast here), and what ends it: signals, a watchdog."""

import ctypes
import faulthandler
import os
import platform
import re
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any, Self

import psutil
import torch

SAME_REQUEST = 1.0
"""Seconds in which further signals are the same request: launchers pass on the Ctrl-C that all processes got."""


def processes() -> int:
    """How many processes the launcher started, by its environment variables; no process group is needed."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def running_on() -> str:
    """One line for people."""
    return f"running on {processes()} {'process' if processes() == 1 else 'processes'}"


def hardware(device: torch.device) -> str:
    """What a run computes on, all processes together."""
    if device.type != "cpu":
        gpu = torch.cuda.get_device_name(device) if device.type == "cuda" else device.type
        return f"{processes()} × {gpu}"
    about = Path("/proc/cpuinfo").read_text() if Path("/proc/cpuinfo").exists() else ""
    name = re.search(r"model name\s*: (.*)", about)
    return f"{processes() * torch.get_num_threads()} × thread of {name[1] if name else platform.machine()}"


def is_main_process() -> bool:
    return int(os.environ.get("RANK", "0")) == 0


def use_all_cores(threads: int | None = None) -> int:
    """Give this process its share of the machine's cores for CPU computation, or so many threads; returns how many.

    OMP_NUM_THREADS is somebody's wish and is kept, but where `accelerate launch` or `torchrun` have begun the process:
    they set it to 1 by default, which leaves all cores but one idle on a machine without a GPU.
    """
    asked, launched = os.environ.get("OMP_NUM_THREADS"), {"WORLD_SIZE", "ACCELERATE_MIXED_PRECISION"} & {*os.environ}
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else (os.cpu_count() or 1)
    if threads:
        torch.set_num_threads(threads)
    elif not torch.cuda.is_available() and asked in (None, *("1" for _ in launched)):
        torch.set_num_threads(max(1, cores // int(os.environ.get("LOCAL_WORLD_SIZE", "1"))))
    return torch.get_num_threads()


def keep_memory() -> bool:
    """Have memory that was freed kept for the next tensors, and say whether this system can be told to.

    glibc gives large blocks back to the system and requests them again in each step: 27,000 page faults and a quarter
    of the time of a step of a model of 5 M parameters. What a process holds stays at its peak.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):  # another C library: macOS, musl, Windows
        return False
    trim_threshold, top_pad, mmap_max = -1, -2, -4
    return all([mallopt(trim_threshold, 2**31 - 1), mallopt(top_pad, 2**26), mallopt(mmap_max, 0)])


@contextmanager
def bounded_memory() -> Iterator[None]:
    """Have memory refused that the machine does not have: Linux grants it, and ends some process once it is used.
    Nothing is done with a GPU, whose driver reserves more addresses than there is memory."""
    try:
        import resource
    except ImportError:  # Windows
        resource = None  # type: ignore[assignment]
    if resource is None or sys.platform != "linux" or torch.cuda.is_available():
        yield
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    room = psutil.Process().memory_info().data + psutil.virtual_memory().available
    resource.setrlimit(resource.RLIMIT_DATA, (room if soft < 0 else min(room, soft), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))


def bf16_is_fast() -> bool:
    """Whether bf16 matrix products are faster than float32 ones on the device that will train.

    True on CUDA GPUs that compute in bf16, on Apple's MPS no, on CPUs only with AMX tiles or AVX512-BF16: elsewhere
    bf16 is emulated and several times slower than float32 (pytorch issue 118499).
    `torch.backends.cpu.get_cpu_capability()` says only AVX512 on such processors, so the flags are asked directly.
    """
    if torch.cuda.is_available():
        return torch.cuda.is_bf16_supported(including_emulation=False)
    if torch.backends.mps.is_available():
        return False
    supported = [getattr(torch.cpu, name, None) for name in ("_is_amx_tile_supported", "_is_avx512_bf16_supported")]
    masked = os.environ.get("ONEDNN_MAX_CPU_ISA", "DEFAULT").upper() not in ("DEFAULT", "ALL", "AVX512_CORE_AMX")
    masked = masked and "BF16" not in os.environ["ONEDNN_MAX_CPU_ISA"].upper()
    return not masked and any(check is not None and check() for check in supported)


def resolved_precision(asked: str) -> str:
    """bf16, fp16 or no, of `--mixed_precision`. GPUs before Ampere have matrix units for fp16 alone, from Volta on."""
    if asked != "auto" or bf16_is_fast():
        return "bf16" if asked == "auto" else asked
    return "fp16" if torch.cuda.is_available() and torch.cuda.get_device_capability() >= (7, 0) else "no"


class StopSignals:
    """While it is entered, SIGTERM and SIGINT are noted in `received` instead of ending the process.

    A second one, later than `SAME_REQUEST`, ends the process at once with 128 + its number; nothing is saved then.
    """

    def __init__(self) -> None:
        self.received: int | None = None
        self._at = 0.0
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():  # elsewhere Python takes no handlers
            for number in (signal.SIGTERM, signal.SIGINT):
                if signal.getsignal(number) != signal.SIG_IGN:  # as of what a shell's script has started with &
                    self._before[number] = signal.signal(number, self._note)
        return self

    def __exit__(self, *error: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.received is None:
            self.received, self._at = number, time.monotonic()
        elif time.monotonic() - self._at > SAME_REQUEST:
            os._exit(128 + number)


def serve_on(worker: int) -> None:
    """Leave it to the process that began this data worker to stop it: Ctrl-C, batch systems and `timeout` signal all
    processes at once, and a run whose workers are gone could not end the step after which it is saved."""
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)


class Watchdog:
    """Ends a process that has not called `beat` for some seconds (0: never), after printing the stack of each thread.

    It is Python's own (`faulthandler`), which works where the interpreter itself hangs; the exit code is 1.
    """

    def __init__(self, seconds: float) -> None:
        self.seconds, self._next = seconds, 0.0

    def __enter__(self) -> Self:
        self.beat()
        return self

    def __exit__(self, *error: object) -> None:
        if self.seconds:
            faulthandler.cancel_dump_traceback_later()

    def beat(self) -> None:
        """Say that all is well; the clock, which is a thread, is set a hundred times in `seconds` at most."""
        if self.seconds and sys.__stderr__ is not None and (now := time.monotonic()) >= self._next:
            self._next = now + self.seconds / 100
            faulthandler.dump_traceback_later(self.seconds, exit=True, file=sys.__stderr__)
