"""What a training step needs, found by running it on fake tensors: memory by part, operations, and how many rows fit.

Fake tensors have shapes and dtypes but no numbers. The model is copied into them, batches stay real, and every tensor
is counted while it lives. So the answer follows the code of model, objective and optimizer, and a model of any size
takes seconds and no memory.

Not counted: Python and its libraries, a CUDA context, what kernels take for themselves, batches that wait.
"""

import copy
import weakref
from bisect import bisect_right
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
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
from lacuna.common.work import TrainingBatches, Work

from ..arguments import TrainingArguments
from ..optimizers.optimizers import OPTIMIZERS
from ..step import step

_KEPT = 1 / 3
"""Freed memory that glibc's allocator does not give back, as a share of what is made and freed in each step: 0.27 to
0.43 in five runs of tiny and mini models. With MALLOC_MMAP_THRESHOLD_=65536 it is 0.03, and training slower."""
_LOOKED_AT = 32
"""Examples of a work among which the longest are sought."""
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
    """Bytes at the fullest moment of a step, by part."""

    weights: int
    gradients: int
    """Those that are there at that moment; with the buckets of DDP."""
    optimizer: int
    averages: int
    activations: int
    """What the layers leave for backward, with copies of weights in bf16."""
    logits: int
    """What is made after the first scores over the vocabulary."""
    working: int
    """What backward, or the optimizer, holds besides."""
    allocator: int
    """What a CPU's allocator keeps beside what is in use, see `_KEPT`."""
    checkpoint_copy: int = 0
    """What a checkpoint is written from while training goes on, by one process; that of a GPU is the host's."""

    @property
    def total(self) -> int:
        """All of it."""
        return sum(vars(self).values())

    @property
    def checkpoint(self) -> int:
        """Size of a checkpoint that can be resumed, without its few small files."""
        return self.weights + self.optimizer + self.averages


def fake_copy(model: nn.Module) -> nn.Module:
    """A copy of a model whose tensors have no numbers, on a CPU as they say."""
    with FakeTensorMode(allow_non_fake_inputs=True):
        memo: dict[int, Any] = {}
        for tensor in [*model.parameters(), *model.buffers()]:
            fake = torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu")
            if isinstance(tensor, nn.Parameter):
                fake = nn.Parameter(fake, requires_grad=tensor.requires_grad)
            memo.setdefault(id(tensor), fake)
        return copy.deepcopy(model, memo)


class FakeStep(TorchDispatchMode):
    """A step of training on a fake copy of a model: what lives meanwhile, and what is computed.

    Args:
        model: on any device, meta included; it is left as it is.
        precision: bf16 or no.
        device_type: "cpu" or "cuda", where the step is meant to be.
    """

    def __init__(self, model: nn.Module, *, precision: str, device_type: str) -> None:
        super().__init__()
        self.flops = 0.0
        """Operations of matrix products, by the formulas of `torch.utils.flop_counter`: two for a multiplication with
        its addition; none of norms, softmax, look-ups and updates. A fused attention makes the scores once more in its
        backward pass. All pairs of a row count, also those that kernels leave out: of the future, outside a window,
        between documents."""
        self.peak: Counter[str] = Counter()
        """Bytes by kind, at the moment when most were live."""
        self._live: Counter[str] = Counter()
        self._kind = "activations"
        self._kinds: dict[int, str] = {}
        self._model: Any = fake_copy(model)
        self._fake_mode = next(self._model.parameters()).fake_mode
        self._on_cpu = device_type == "cpu"
        head = getattr(self._model, "get_output_embeddings", lambda: None)()
        self._vocab_size = None if head is None else head.weight.shape[0]
        if precision == "bf16":  # as accelerate does
            forward = torch.autocast("cpu", dtype=torch.bfloat16)(self._model.forward)
            self._model.forward = convert_outputs_to_fp32(forward)

    def run(self, work: Work, batch: dict[str, Tensor], *, accumulates: bool = False) -> None:
        """Forward and backward; where gradients accumulate, those of another micro-batch are there already.

        Raises:
            InputError: the model cannot be run on fake tensors.
        """
        if not self._on_cpu or batch["input_ids"].shape[-1] > _MASKED:
            batch = {name: value for name, value in batch.items() if name not in ("position_ids", "document_bounds")}
        known = [tensor.untyped_storage() for tensor in (*self._model.parameters(), *self._model.buffers())]
        self._kinds.update({id(storage): "known" for storage in known})
        try:
            with self, mock.patch.object(functional, "scaled_dot_product_attention", self._attend):
                for weight in (each for each in self._model.parameters() if each.requires_grad):
                    weight.register_post_accumulate_grad_hook(lambda weight: self._call_it(weight.grad, "gradients"))
                    if accumulates:
                        weight.grad = torch.empty_like(weight)
                        self._call_it(weight.grad, "gradients")
                step(work, self._model, [batch], device=torch.device("cpu"), backward=self._backward)
        except Exception as error:  # whatever a model does with numbers that are not there
            reason = next(iter(str(error).splitlines()), type(error).__name__)
            raise InputError(
                f"the memory of {type(self._model).__name__} cannot be estimated ({reason}); "
                "give --micro_batch_size a number"
            ) from error

    def update(self, arguments: TrainingArguments) -> int:
        """Two steps of the optimizer, the second with its state in place; returns the bytes of that state."""
        with self:
            optimizers = OPTIMIZERS[arguments.optimizer](self._model, arguments)
            for _ in range(2):
                self.peak = Counter()
                for optimizer in optimizers:
                    optimizer.step()
                for value in _states(optimizers):
                    self._call_it(value, "optimizer")
        return sum(value.nbytes for value in _states(optimizers))

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs, operator = kwargs or {}, func.overloadpacket
        if operator.__name__ in ("index", "index_put", "index_put_", "_index_put_impl_"):
            args = (args[0], _as_numbers(args[1]), *args[2:])
        result = func(*args, **kwargs)
        if type(result) is Tensor and result.ndim > 3:  # a mask of attention, which nothing looks into
            result = self._fake_mode.from_tensor(result)
        if operator in _FLOPS:
            self.flops += _FLOPS[operator](*args, **kwargs, out_val=result)
        for leaf in tree_leaves(result):
            if isinstance(leaf, Tensor):
                self._notice(leaf, leaf.untyped_storage())
        return result

    def _notice(self, tensor: Tensor, storage: Any) -> None:
        # torch keeps the Python object of a storage as long as the storage lives, so that its id is one.
        if id(storage) in self._kinds:
            return
        if self._kind == "activations" and tensor.ndim > 1 and tensor.shape[-1] == self._vocab_size:
            self._kind = "logits"
        self._kinds[id(storage)] = self._kind
        self._live[self._kind] += storage.nbytes()
        weakref.finalize(storage, self._forget, id(storage), storage.nbytes()).atexit = False
        if self._live.total() > self.peak.total():
            self.peak = self._live.copy()

    def _forget(self, key: int, size: int) -> None:
        self._live[self._kinds.pop(key)] -= size

    def _call_it(self, tensor: Any, kind: str) -> None:
        storage = tensor.untyped_storage()
        if self._kinds.get(id(storage), "known") != "known":
            self._live[self._kinds[id(storage)]] -= storage.nbytes()
            self._live[kind] += storage.nbytes()
            self._kinds[id(storage)] = kind

    def _backward(self, loss: Tensor) -> None:
        self._kind = "working"
        loss.backward()

    def _attend(self, *args: Any, dropout_p: float = 0.0, **options: Any) -> Tensor:
        """torch's attention. Kernels of GPUs know dropout; the fused one for CPUs, which stands for them, does not."""
        return _ATTENTION(*args, dropout_p=dropout_p if self._on_cpu else 0.0, **options)


def _as_numbers(indices: Sequence[Tensor | None]) -> list[Tensor | None]:
    """The same indices with numbers in place of masks: how many they are follows from the batch, which is real."""
    found: list[Tensor | None] = []
    for index in indices:
        found += index.nonzero(as_tuple=True) if index is not None and index.dtype == torch.bool else [index]
    return found


def _states(optimizers: Sequence[torch.optim.Optimizer]) -> list[Tensor]:
    states = [state for optimizer in optimizers for state in optimizer.state.values()]
    return [value for state in states for value in state.values() if isinstance(value, Tensor)]


@dataclass
class StepPlan:
    """What a training step of a work needs in one process.

    Args:
        model: on any device, meta included; gradient checkpointing as it is set there.
        share: rows that the process has of a batch; smaller micro-batches add to gradients that are there.
        precision: bf16 or no, as `--mixed_precision` says once it is resolved.
        device_type: "cpu" or "cuda", where it will be trained.
        num_processes: more than one keep a second copy of the gradients, in DDP.

    Raises:
        InputError: by `flops`, `memory` and `largest_micro_batch`; see `FakeStep.run`.
    """

    model: nn.Module
    work: Work
    arguments: TrainingArguments
    share: int
    precision: str = "no"
    device_type: str = "cpu"
    num_processes: int = 1

    def __post_init__(self) -> None:
        self.trained = sum(weight.nbytes for weight in self.model.parameters() if weight.requires_grad)
        """Bytes of the weights that training moves, and of their gradients."""
        self._examples = _longest_examples(self.work)
        self._measured: dict[int, Memory] = {}
        self.length = self.batch(1)["input_ids"].shape[-1]
        """Tokens of the longest rows."""

    def batch(self, rows: int) -> dict[str, Tensor]:
        """A batch of long examples."""
        examples = self._examples * (rows // len(self._examples) + 1)
        return TrainingBatches(self.work, torch.device(self.device_type))(examples[:rows])

    def flops(self) -> float:
        """Operations of forward and backward for each row, see `FakeStep`."""
        return self._run(len(self._examples)).flops / len(self._examples)

    def memory(self, rows: int) -> Memory:
        """What a step with so many rows at once needs, with a checkpoint being written."""
        if rows not in self._measured:
            self._measured[rows] = self._measure(rows)
        return self._measured[rows]

    def largest_micro_batch(self, memory: float) -> int | None:
        """The largest divisor of the share that needs no more bytes than `memory`; None where one row needs more."""
        divisors = [rows for rows in range(1, self.share + 1) if self.share % rows == 0]
        fitting = bisect_right(divisors, memory, key=lambda rows: self.memory(rows).total)
        return divisors[fitting - 1] if fitting else None

    def _run(self, rows: int) -> FakeStep:
        fake = FakeStep(self.model, precision=self.precision, device_type=self.device_type)
        fake.run(self.work, self.batch(rows), accumulates=rows < self.share)
        return fake

    def _measure(self, rows: int) -> Memory:
        fake, on_cpu = self._run(rows), self.device_type == "cpu"
        passes, state = fake.peak, fake.update(self.arguments)
        del fake.peak["optimizer"]
        fullest = max(passes, fake.peak, key=Counter.total)
        memory = Memory(
            weights=sum(tensor.nbytes for tensor in [*self.model.parameters(), *self.model.buffers()]),
            gradients=fullest["gradients"] + (self.trained if self.num_processes > 1 else 0),
            optimizer=state,
            averages=self.trained if getattr(self.arguments, "average", "none") != "none" else 0,
            activations=fullest["activations"],
            logits=fullest["logits"],
            working=fullest["working"],
            allocator=round(fullest.total() * _KEPT) if on_cpu else 0,
        )
        copies = on_cpu and self.arguments.writes_checkpoints
        return replace(memory, checkpoint_copy=memory.checkpoint) if copies else memory


def _longest_examples(work: Work) -> list[dict[str, Any]]:
    """Some examples, the longest first; from the end of the run that has more targets."""
    rows: Sequence[int] = range(work.num_examples)
    if (lengths := work.lengths) is not None:
        rows = sorted(rows, key=lambda row: -lengths[row])
    tried = []
    for progress in (0.0, 1.0):
        examples = [work.example(row, row, progress) for row in rows[:_LOOKED_AT]]
        tried.append(sorted(examples, key=lambda one: -work.collate([one])["input_ids"].shape[-1]))
    return max(tried, key=lambda examples: sum(work.count_targets(work.collate(examples)).values()))


def choose_micro_batch(
    plan: StepPlan, device: torch.device, *, local_count: int = 1, optimizers: Sequence[torch.optim.Optimizer] = ()
) -> int:
    """What `--micro_batch_size auto` stands for in this process: the largest divisor of its share that fits.

    On a GPU a step of so many rows is tried, with the optimizer's state held free. On a CPU it is planned: processes
    of a machine (`local_count`) share nine tenths of the memory that is available, less one copy for checkpoints.
    All processes must then take the smallest of their choices.

    Args:
        optimizers: whose states are in memory already, when a run is resumed.

    Raises:
        InputError: one row does not fit, or the model cannot be run on fake tensors.
    """
    loaded, one = sum(value.nbytes for value in _states(optimizers)), plan.memory(1)
    if device.type == "cuda":
        held = max(0, one.optimizer - loaded) + one.averages + (one.weights if plan.num_processes > 1 else 0)
        sizes = (rows for rows in range(plan.share, 0, -1) if plan.share % rows == 0)
        chosen = next((rows for rows in sizes if _fits(plan, rows, held, device)), None)
        memory = float(torch.cuda.mem_get_info(device)[0])
    else:
        spared = one.checkpoint_copy * (local_count - 1)
        memory = (0.9 * psutil.virtual_memory().available + spared) / local_count
        chosen = plan.largest_micro_batch(memory + loaded + one.weights)
    if chosen is None:
        copied = f" ({one.checkpoint_copy / 1e9:.2f} GB to write checkpoints from)" if one.checkpoint_copy else ""
        raise InputError(
            f"--micro_batch_size auto: a step of one row of {plan.length} tokens needs {one.total / 1e9:.2f} GB"
            f"{copied}, and {memory / 1e9:.2f} GB are free; use a smaller model or shorter rows"
        )
    return chosen


def _fits(plan: StepPlan, rows: int, held: int, device: torch.device) -> bool:
    """Whether forward and backward of so many rows run on a GPU while `held` bytes are taken; leaves no gradient."""
    taken = [torch.empty(0)]

    def backward(loss: Tensor) -> None:
        del taken[1:]  # the gradients of earlier micro-batches become those that backward makes
        loss.backward()

    autocast = partial(torch.autocast, device.type, dtype=torch.bfloat16, enabled=plan.precision == "bf16")
    try:
        with torch.random.fork_rng(devices=[device]):
            taken[0] = torch.empty(held, dtype=torch.uint8, device=device)
            taken += [torch.empty_like(weight) for weight in plan.model.parameters() if weight.requires_grad]
            step(plan.work, plan.model, [plan.batch(rows)], device=device, backward=backward, autocast=autocast)
        return True
    except torch.OutOfMemoryError:
        return False
    finally:
        taken.clear()
        plan.model.zero_grad(set_to_none=True)
        torch.cuda.empty_cache()
