"""What one training step needs, measured on fake tensors: peak memory by part, and floating-point operations.

Fake tensors have shapes and dtypes but no values, so a model of any size takes seconds and no memory. The model is
copied into them, the batches are real, and every tensor is counted while it lives.

Not counted: Python and its libraries, the CUDA context, workspaces of kernels, prefetched batches.
"""

import copy
import weakref
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any
from unittest import mock

import psutil
import torch
from accelerate.utils import convert_outputs_to_fp32
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry, sdpa_backward_flop_count, sdpa_flop_count

from lacuna.common.errors import InputError
from lacuna.common.work import Work, training_batch

from ..arguments import TrainingArguments
from ..environment import resolved_precision
from ..optimizers.optimizers import OPTIMIZERS
from ..stages import Stage
from ..step import step

_KEPT = 1 / 3  # share of the memory made and freed in a step that glibc does not give back: 0.27 to 0.43 in five runs
_MUCH = 1 << 15  # tokens at once from which on a step is estimated before a run; of fewer any machine has memory
_LOOKED_AT = 32  # examples of a work among which the longest are sought
_MASKED = 512
"""Tokens of a row up to which packed rows have a mask on a CPU; beyond, and on a GPU, kernels know the documents."""
_ATTENTION = functional.scaled_dot_product_attention
_FLASH = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
_FLASH_BACKWARD = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward
_FLOPS: dict[Any, Any] = {  # torch's own table lacks the fused kernel for CPUs
    **flop_registry,
    _FLASH: lambda *args, **_: sdpa_flop_count(*(each.shape for each in args[:3])),
    _FLASH_BACKWARD: lambda *args, **_: sdpa_backward_flop_count(*(each.shape for each in args[:4])),
}


@dataclass(frozen=True)
class Memory:
    """Bytes of one process at the fullest moment of a step, by part."""

    weights: int
    optimizer: int
    averages: int
    activations: int  # what the forward pass leaves for backward
    gradients: int  # those that are there at that moment, with all else that backward or the optimizer holds
    communication: int  # the copy of all gradients that DDP keeps
    allocator: int  # what a CPU's allocator keeps beside what is in use, see `_KEPT`
    checkpoint_copy: int  # held by one process while a checkpoint is written; a GPU's lies in the memory of the host

    @property
    def total(self) -> int:
        return sum(vars(self).values())

    @property
    def checkpoint(self) -> int:
        """Size of a checkpoint, without its small files."""
        return self.weights + self.optimizer + self.averages


def fake_copy(model: nn.Module) -> nn.Module:
    """A copy of a model on fake CPU tensors."""
    with FakeTensorMode(allow_non_fake_inputs=True):
        memo: dict[int, Any] = {}
        for tensor in [*model.parameters(), *model.buffers()]:
            fake = torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu")
            is_weight = isinstance(tensor, nn.Parameter)
            memo[id(tensor)] = nn.Parameter(fake, tensor.requires_grad) if is_weight else fake
        return copy.deepcopy(model, memo)


class FakeStep(TorchDispatchMode):
    """A training step on a fake copy of a model: counts live memory, and the operations of matrix products.

    `precision` is bf16, fp16 or no, and `device_type` "cpu" or "cuda": where the step would run.
    """

    def __init__(self, model: nn.Module, *, precision: str, device_type: str) -> None:
        super().__init__()
        self.flops = 0.0  # by the formulas of `torch.utils.flop_counter`; attention counts all pairs of a row
        self.peak = self.activations = self._live = 0
        """Bytes: the most that was live at once; live at the start of backward; live now."""
        self._model: Any = fake_copy(model)
        tensors = [*self._model.parameters(), *self._model.buffers()]
        self._known = {id(tensor.untyped_storage()) for tensor in tensors}
        self._fake_mode, self._on_cpu = tensors[0].fake_mode, device_type == "cpu"
        if precision != "no":  # as accelerate does; fp16 takes as much
            forward = torch.autocast("cpu", dtype=torch.bfloat16)(self._model.forward)
            self._model.forward = convert_outputs_to_fp32(forward)

    def run(self, work: Work, batch: dict[str, Tensor], *, accumulates: bool = False) -> None:
        """Forward and backward; with `accumulates`, the gradients of an earlier micro-batch are there already.

        InputError: the model cannot be run on fake tensors.
        """
        if not self._on_cpu or batch["input_ids"].shape[-1] > _MASKED:
            batch = {name: value for name, value in batch.items() if name not in ("position_ids", "document_bounds")}
        try:
            with self, mock.patch.object(functional, "scaled_dot_product_attention", self._attend):
                for weight in self._model.parameters() if accumulates else ():
                    weight.grad = torch.empty_like(weight) if weight.requires_grad else None
                before = self._live
                step(work, self._model, [batch], device=torch.device("cpu"), backward=self._backward)
                self.activations -= before
        except Exception as error:  # whatever a model does with values that are not there
            reason = next(iter(str(error).splitlines()), type(error).__name__)
            raise InputError(
                f"the memory of {type(self._model).__name__} cannot be estimated ({reason}); "
                "give --micro_batch_size a number"
            ) from error

    def update(self, arguments: TrainingArguments) -> tuple[int, int]:
        """Bytes of the optimizer's state, and the most that lives besides in a step that finds it in place."""
        with self:  # in which the rate changes nothing
            optimizers = OPTIMIZERS[arguments.optimizer].make(self._model, replace(arguments, learning_rate=1.0))
            for _ in range(2):
                self.peak = 0
                for optimizer in optimizers:
                    optimizer.step()
        leaves = tree_leaves([[*optimizer.state.values()] for optimizer in optimizers])
        state = sum(leaf.nbytes for leaf in leaves if torch.is_tensor(leaf))
        return state, self.peak - state

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs, operator = kwargs or {}, func.overloadpacket
        if operator.__name__ in ("index", "index_put", "index_put_", "_index_put_impl_"):
            args = (args[0], _as_numbers(args[1]), *args[2:])
        result = func(*args, **kwargs)
        if type(result) is Tensor and result.ndim > 3:  # an attention mask, whose values nothing reads
            result = self._fake_mode.from_tensor(result)
        if operator in _FLOPS:
            self.flops += _FLOPS[operator](*args, **kwargs, out_val=result)
        for leaf in tree_leaves(result):
            if isinstance(leaf, Tensor):
                self._count(leaf.untyped_storage())
        return result

    def _count(self, storage: Any) -> None:
        # torch keeps the Python object of a storage as long as the storage lives, so its id identifies it.
        if id(storage) not in self._known:
            self._known.add(id(storage))
            self._live += storage.nbytes()
            self.peak = max(self.peak, self._live)
            weakref.finalize(storage, self._forget, id(storage), storage.nbytes()).atexit = False

    def _forget(self, key: int, size: int) -> None:
        self._known.remove(key)
        self._live -= size

    def _backward(self, loss: Tensor) -> None:
        self.activations = self._live
        loss.backward()

    def _attend(self, *args: Any, dropout_p: float = 0.0, **options: Any) -> Tensor:
        """torch's attention. GPU kernels do dropout; the fused CPU kernel, which stands for them, does not."""
        return _ATTENTION(*args, dropout_p=dropout_p if self._on_cpu else 0.0, **options)


def _as_numbers(indices: Sequence[Tensor | None]) -> list[Tensor | None]:
    """Indices with numbers in place of masks: how many they are follows from the batch, which is real."""
    found: list[Tensor | None] = []
    for index in indices:
        found += index.nonzero(as_tuple=True) if index is not None and index.dtype == torch.bool else [index]
    return found


@dataclass
class StepNeeds:
    """What one training step of a work needs in one process; its methods raise InputError, see `FakeStep.run`.

    The model may be on any device, meta included; `share` are the rows of a batch that one process has.
    """

    model: nn.Module
    work: Work
    arguments: TrainingArguments
    share: int
    precision: str = "no"
    device_type: str = "cpu"
    num_processes: int = 1

    def __post_init__(self) -> None:
        sizes = range(self.work.group, self.share + 1, self.work.group)
        self.divisors = [rows for rows in sizes if self.share % rows == 0]  # sizes that a micro-batch can have
        rows: Sequence[int] = range(self.work.num_examples)
        if (lengths := self.work.lengths) is not None:
            rows = sorted(rows, key=lambda row: -lengths[row])
        examples = [self.work.example(row, row) for row in rows[:_LOOKED_AT]]
        self._examples = sorted(examples, key=lambda one: -self.work.collate([one])["input_ids"].shape[-1])
        """The longest first."""
        self.length = self.batch(1)["input_ids"].shape[-1]  # tokens of the longest rows
        self._update: tuple[int, int] | None = None
        self.memory = cache(self._memory)  # rows at once -> what the step needs, while a checkpoint is written

    def batch(self, rows: int) -> dict[str, Tensor]:
        """A batch of long examples."""
        examples = self._examples * (rows // len(self._examples) + 1)
        return training_batch(examples[:rows], work=self.work, device=torch.device(self.device_type))

    def flops(self) -> float:
        """Operations of forward and backward for one row."""
        return self._run(len(self._examples)).flops / len(self._examples)

    def largest_micro_batch(self, memory: float) -> int | None:
        """The largest divisor of the share that needs at most `memory` bytes; None if one row needs more."""
        fitting = bisect_right(self.divisors, memory, key=lambda rows: self.memory(rows).total)
        return self.divisors[fitting - 1] if fitting else None

    def _run(self, rows: int) -> FakeStep:
        fake = FakeStep(self.model, precision=self.precision, device_type=self.device_type)
        fake.run(self.work, self.batch(rows), accumulates=rows < self.share)
        return fake

    def _memory(self, rows: int) -> Memory:
        fake, arguments, on_cpu = self._run(rows), self.arguments, self.device_type == "cpu"
        passes = fake.peak, fake.activations
        self._update = self._update or fake.update(arguments)  # the same for any number of rows
        state, in_update = self._update
        peak, activations = max(passes, (in_update, 0))
        trained = sum(weight.nbytes for weight in self.model.parameters() if weight.requires_grad)
        weights = sum(tensor.nbytes for tensor in [*self.model.parameters(), *self.model.buffers()])
        averages = trained if arguments.average != "none" else 0
        return Memory(
            weights=weights,
            optimizer=state,
            averages=averages,
            activations=activations,
            gradients=peak - activations,
            communication=trained if self.num_processes > 1 else 0,
            allocator=round(peak * _KEPT) if on_cpu else 0,
            checkpoint_copy=weights + state + averages if on_cpu and arguments.writes_checkpoints else 0,
        )


def check_memory(
    model: nn.Module,
    stages: Sequence[Stage],
    arguments: TrainingArguments,
    *,
    device: torch.device,
    num_processes: int,
) -> None:
    """Refuse steps of very many tokens that need more memory than the device has; the estimate takes seconds.

    The model is on the CPU. Raises InputError: says how much a step needs, and what would fit.
    """
    for stage in stages:
        longest = max(stage.work.lengths or [len(stage.work.example(0, 0)["input_ids"])])
        if stage.micro_batch_size * longest < _MUCH:
            continue
        on_gpu, rows = device.type == "cuda", stage.micro_batch_size
        has = torch.cuda.get_device_properties(device).total_memory if on_gpu else psutil.virtual_memory().total
        where = (resolved_precision(arguments.mixed_precision), "cuda" if on_gpu else "cpu", num_processes)
        needs = StepNeeds(model, stage.work, arguments, stage.batch_size // num_processes, *where)
        try:
            needed, fits = needs.memory(rows).total, needs.largest_micro_batch(has)
        except InputError:  # a model that cannot be estimated may still be trained
            continue
        if needed > has:
            way = f"--micro_batch_size {fits} would do, and learns the same" if fits else "not one row fits"
            size = f"{rows:,} rows of {needs.length:,} tokens at once need about {needed / 1e9:,.0f} GB"
            raise InputError(
                f"{size} of memory, and there are {has / 1e9:,.0f}: {way}; shorter rows and a smaller --size need less"
            )
