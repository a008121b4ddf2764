"""Finds out whether a step makes the host wait for a GPU, on a machine without one.

The device is `meta`, whose tensors have shapes alone, and stands for a GPU: batches have the hints of one, and packed
rows its kernels. Whatever would read a number, or make a tensor whose shape depends on numbers, is an error, and so is
every tensor that is made on the host or in float64.
"""

import contextlib
from collections.abc import Iterator
from functools import partial
from typing import Any
from unittest import mock

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from lacuna.common.work import Work, training_batch
from lacuna.modeling import kernels_lacuna, masks_lacuna
from lacuna.training.step import step

GPU = torch.device("meta")
WAITING = {"_local_scalar_dense", "is_nonzero", "equal", "nonzero", "nonzero_static", "argwhere", "masked_select"}
WAITING |= {"unique_dim", "_unique", "_unique2", "unique_consecutive", "unique_dim_consecutive", "bincount"}
INDEXING = {"index", "_unsafe_index", "index_put", "index_put_", "_index_put_impl_"}


class WaitsError(Exception):
    """The host would wait here."""


def tensors_of(tree: Any) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(tree) if torch.is_tensor(leaf)]


class NoWaiting(TorchDispatchMode):
    """Refuses operations that make the host wait, and those that make tensors elsewhere or in float64."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        if name in WAITING:
            raise WaitsError(f"{name} asks for numbers")
        if name in INDEXING and any(index is not None and index.dtype == torch.bool for index in args[1]):
            raise WaitsError(f"{name} with a mask asks for numbers")
        result = func(*args, **(kwargs or {}))
        was_there = any(tensor.device == GPU for tensor in tensors_of((args, kwargs)))
        for tensor in tensors_of(result):
            if tensor.dtype == torch.float64:
                raise WaitsError(f"{name} makes float64")
            if tensor.device != GPU and (tensor.ndim or was_there):
                raise WaitsError(f"{name} makes a tensor {tuple(tensor.shape)} on the host")
        return result


def _shapes_alone(module: nn.Module, query: Tensor, key: Tensor, value: Tensor, *rest: Any, **options: Any) -> Tensor:
    """What FlexAttention returns, without its numbers."""
    seen = (key + value).repeat_interleave(query.shape[1] // key.shape[1], 1)
    return (query + seen.mean(dim=2, keepdim=True)).transpose(1, 2)


@contextlib.contextmanager
def as_on_a_gpu(kernel: str = "varlen") -> Iterator[None]:
    """Packed rows go to a kernel of a GPU: varlen, flex (where bounds are not known), or none, as short ones do."""
    kernels = {**kernels_lacuna.PACKED_KERNELS, "flex": _shapes_alone}
    dtypes = {torch.float32} if kernel == "varlen" else set()
    changes = {"PACKED_DEVICES": {"meta"}, "VARLEN_DTYPES": dtypes, "PACKED_KERNELS": kernels}
    with (
        mock.patch.multiple(kernels_lacuna, SHORT=4096 if kernel == "none" else 0, **changes),
        mock.patch.object(masks_lacuna, "_BLOCK", 16),
        mock.patch.object(torch, "is_autocast_enabled", lambda *_: False),  # which knows no such device
    ):
        yield


def run_step(work: Work, model: Any, *, has_hints: bool = True, micro_batches: int = 2) -> None:
    """Forward and backward passes of a step on batches that were made for a GPU; WaitsError: see `NoWaiting`."""
    collate = partial(training_batch, work=work, device=GPU) if has_hints else work.collate
    rows = [range(start, start + 4) for start in range(0, 4 * micro_batches, 4)]
    batches = [collate([work.example(row % work.num_examples, row) for row in each]) for each in rows]
    model = model.to(GPU).train()
    step(
        work,
        model,
        batches,
        device=GPU,
        over_processes=lambda counts: [*torch.tensor(counts[:-1], device=GPU), counts[-1]],  # type: ignore[arg-type]
        micro_step=lambda number: NoWaiting(),
    )
    assert all(weight.grad is not None and weight.grad.device == GPU for weight in model.parameters())
