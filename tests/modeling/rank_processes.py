"""Start the processes of a distributed test on this machine's CPU.

A distribution of transformers leaves its own helper of this kind out. `test_transformers_suite.py` puts a copy of this
file in its place, so the names, and the order of arguments, are those that the library's tests import.
"""

import functools
import os
import socket
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

LIMIT_S = 120.0  # a test takes 4 to 9 seconds; ranks of which one failed wait for each other for half an hour


def _get_distributed_device_type() -> str:
    return "cpu"


def _get_distributed_backend() -> str:
    return "gloo"


def _get_rank_device(rank: int) -> torch.device:
    return torch.device("cpu")


def _set_rank_device(rank: int) -> None:
    # Every rank would otherwise take all cores: two ranks on two cores then wait for each other most of the time.
    torch.set_num_threads(1)


def _start_rank_processes(func: Callable[..., None], args: tuple[Any, ...], nprocs: int) -> None:
    context = mp.spawn(func, args=args, nprocs=nprocs, join=False)
    deadline = time.monotonic() + LIMIT_S
    while not context.join(timeout=1.0):
        if time.monotonic() > deadline:
            for process in context.processes:
                process.kill()
            raise TimeoutError(f"{func.__name__}: {nprocs} ranks did not end within {LIMIT_S:.0f} s")


def _join_group_and_run(
    rank: int, func: Callable[..., None], world_size: int, port: int, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> None:
    _set_rank_device(rank)
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(world_size)}
    os.environ |= {"MASTER_ADDR": "localhost", "MASTER_PORT": str(port)}
    dist.init_process_group(_get_distributed_backend(), rank=rank, world_size=world_size)
    try:
        func(rank, *args, **kwargs)
        dist.barrier()
    finally:
        dist.destroy_process_group()


def run_distributed(world_size: int) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Turn `func(rank, ...)` into a function that runs it on every rank of a new process group, and waits."""

    def decorate(func: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(func)
        def run(*args: Any, **kwargs: Any) -> None:
            with socket.socket() as probe:
                probe.bind(("localhost", 0))
                port = probe.getsockname()[1]
            _start_rank_processes(_join_group_and_run, args=(func, world_size, port, args, kwargs), nprocs=world_size)

        return run

    return decorate
