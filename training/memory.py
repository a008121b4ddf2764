"""How much memory a training step needs, by part, and how many rows fit.

Found by running a step without computing it (training/live_tensors.py), from the model, the optimizer and the shape
of a batch. What is not in it: Python and its libraries (0.5 GB), a CUDA context (0.5 GB), what kernels take for
themselves, batches that wait, and the text, which is mapped from the disk.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from lacuna.common.errors import InputError
from lacuna.common.work import TrainingBatches, Work, to_device

from .arguments import TrainingArguments
from .flops import predicts_targets_only
from .live_tensors import LiveTensors, counting
from .optimizers import OPTIMIZERS

_KEPT = 1 / 3
"""Freed memory that glibc's allocator does not give back, as a share of what is made and freed in each step: 0.27 to
0.43 in five runs of tiny and mini models. With MALLOC_MMAP_THRESHOLD_=65536 it is 0.03, and training slower."""

_IGNORED = -100
_LOOKED_AT = 32
"""Examples of a work from which the shape of its batches is taken."""


@dataclass(frozen=True)
class MicroBatch:
    """What one process sends through the model at once, as far as memory is concerned."""

    rows: int
    length: int
    target_length: int | None = None
    """Tokens in the decoder's row of an encoder-decoder; by default as many as in the encoder's."""
    predicted_share: float = 1.0
    """Share of the positions that have a target."""

    @property
    def targets(self) -> int:
        """Positions with a target."""
        return max(1, round(self.rows * (self.target_length or self.length) * self.predicted_share))


@dataclass(frozen=True)
class Memory:
    """Bytes at the fullest moment of a step."""

    weights: int
    gradients: int
    """Those that are there at that moment; with the buckets of DDP."""
    optimizer: int
    averages: int
    activations: int
    """What the layers leave for backward, with copies of weights in bf16."""
    logits: int
    """The same of the output layer and the loss."""
    working: int
    """What backward, or the optimizer, holds besides."""
    allocator: int = 0
    """What a CPU's allocator keeps beside what is in use, see `_KEPT`."""
    checkpoint_copy: int = 0
    """What a checkpoint is written from while training goes on, on a CPU: one at most, in the first process of a run.
    Of a model on a GPU it is in the memory of the host."""

    @property
    def total(self) -> int:
        """All of it."""
        return sum(vars(self).values())

    @property
    def checkpoint(self) -> int:
        """Size of a checkpoint that can be resumed, without its few small files: weights, optimizer and averages."""
        return self.weights + self.optimizer + self.averages


def parameters_by_part(model: nn.Module) -> dict[str, int]:
    """Numbers of weights in embeddings, attention, MLP, norms and head; tied ones count where they come first."""
    parts = dict.fromkeys(("embeddings", "attention", "MLP", "norms", "head"), 0)
    for name, parameter in model.named_parameters():
        path = name.split(".")[:-1]
        owner = model.get_submodule(".".join(path))
        if isinstance(owner, nn.Embedding):
            part = "embeddings"
        elif "norm" in f"{type(owner).__name__} {path[-1:]}".lower() or path[-1:] in (["ln_1"], ["ln_2"], ["ln_f"]):
            part = "norms"
        elif not any(word.isdigit() for word in path):
            part = "head"
        else:
            is_attention = any("att" in word.lower() for word in path)
            part = "attention" if is_attention else "MLP"
        parts[part] += parameter.numel()
    return parts


def plan(
    model: nn.Module,
    *,
    micro_batch: MicroBatch,
    arguments: TrainingArguments,
    precision: str = "no",
    device_type: str = "cpu",
    num_processes: int = 1,
) -> Memory:
    """Memory of training in one process, at its fullest moment: in a step, with a checkpoint being written.

    Args:
        model: on any device, meta included; gradient checkpointing as it is set there.
        arguments: the optimizer, the averages, whether there are checkpoints; whether a step has more than one
            micro-batch follows from --batch_size (the largest, where there are several) and `micro_batch`.
        precision: bf16 or no, as `--mixed_precision` says once it is resolved.
        device_type: "cpu" or "cuda", where it will be trained.
        num_processes: more than one keep a second copy of the gradients, in DDP.

    Raises:
        InputError: the model cannot be run on tensors without numbers.
    """
    share = int(max(arguments.batch_size)) // num_processes
    accumulates = share > micro_batch.rows
    try:
        with counting(model, device_type=device_type) as (twin, tensors):
            _run_step(twin, tensors, micro_batch, precision=precision, accumulates=accumulates)
            passes = tensors.at_peak.copy()
            state = _run_optimizer(twin, tensors, arguments)
            updating = tensors.at_peak
    except (RuntimeError, TypeError, ValueError, NotImplementedError) as error:
        raise InputError(
            f"the memory of {type(model).__name__} cannot be estimated ({str(error).splitlines()[0]}); "
            "give --micro_batch_size a number"
        ) from error
    trained = trained_bytes(model)
    fullest = max(passes, updating, key=lambda count: count.total() - count["optimizer"])
    has_averages = getattr(arguments, "average", "none") != "none"
    made = fullest["gradients"] + fullest["activations"] + fullest["logits"] + fullest["working"]
    memory = Memory(
        weights=sum(_bytes(tensor) for tensor in [*model.parameters(), *model.buffers()]),
        gradients=fullest["gradients"] + (trained if num_processes > 1 else 0),
        optimizer=state,
        averages=trained if has_averages else 0,
        activations=fullest["activations"],
        logits=fullest["logits"],
        working=fullest["working"],
        allocator=round(made * _KEPT) if device_type == "cpu" else 0,
    )
    copies = device_type == "cpu" and arguments.writes_checkpoints
    return replace(memory, checkpoint_copy=memory.checkpoint) if copies else memory


def trained_bytes(model: nn.Module) -> int:
    """Bytes of the weights that training moves, and of their gradients."""
    return sum(_bytes(parameter) for parameter in model.parameters() if parameter.requires_grad)


def micro_batch_of(work: Work, *, rows: int = 1) -> MicroBatch:
    """The shape of a work's batches, from a few of its examples: the longest of them, and how many have a target."""
    seen = [
        work.collate([work.example(row, row, progress) for row in _longest_rows(work, _LOOKED_AT)])
        for progress in (0.0, 1.0)
    ]
    shares, lengths, decoded = [], [], []
    for batch in seen:
        lengths.append(batch["input_ids"].shape[1])
        decoded.append(batch["labels"].shape[-1] if "decoder_input_ids" in batch else lengths[-1])
        labels = batch.get("labels", torch.zeros(0))
        shares.append((labels != _IGNORED).sum().item() / labels.numel() if labels.ndim == 2 else 1.0)
    return MicroBatch(rows, length=max(lengths), target_length=max(decoded), predicted_share=max(shares))


def _longest_rows(work: Work, count: int) -> list[int]:
    """Rows of the longest examples, where the work says how long they are; else the first ones."""
    lengths = work.lengths
    if lengths is None:
        return list(range(min(count, work.num_examples)))
    return sorted(range(work.num_examples), key=lambda row: -lengths[row])[:count]


def largest_micro_batch(*, share: int, memory: float, needed: Callable[[int], int]) -> int | None:
    """The largest divisor of a process's share of the batch that fits, or None where one row does not.

    Args:
        share: rows that the process has of a batch.
        memory: bytes that a step may need.
        needed: bytes for so many rows; more rows need more.
    """
    divisors = [rows for rows in range(1, share + 1) if share % rows == 0]
    low, high = 0, len(divisors)  # what fits lies below `high`; all below `low` do
    while low < high:
        middle = (low + high) // 2
        if needed(divisors[middle]) <= memory:
            low = middle + 1
        else:
            high = middle
    return divisors[low - 1] if low else None


def choose_micro_batch(
    model: nn.Module,
    work: Work,
    *,
    share: int,
    arguments: TrainingArguments,
    device: torch.device,
    precision: str,
    num_processes: int = 1,
    local_count: int = 1,
    optimizers: Sequence[torch.optim.Optimizer] = (),
) -> int:
    """What `--micro_batch_size auto` stands for in this process: the largest divisor of its share that fits.

    On a GPU a step of so many rows is tried, with the optimizer's state held free; on a CPU it is estimated, and may
    take nine tenths of the memory that is available, less the copy that checkpoints are written from, shared among
    the processes of this machine. All processes must then take the smallest of their choices: it divides the share
    of each.

    Args:
        share: rows that each process has of a batch.
        local_count: processes on this machine.
        optimizers: whose states are in memory already, when a run is resumed.

    Raises:
        InputError: one row does not fit, or the model cannot be estimated.
    """
    shape = micro_batch_of(work)

    def estimate(rows: int) -> Memory:
        return plan(
            model,
            micro_batch=replace(shape, rows=rows),
            arguments=arguments,
            precision=precision,
            device_type=device.type,
            num_processes=num_processes,
        )

    loaded, one = _state_bytes(optimizers), estimate(1)
    if device.type == "cuda":
        held = max(0, one.optimizer - loaded) + one.averages + (one.weights if num_processes > 1 else 0)
        sizes = sorted((rows for rows in range(1, share + 1) if share % rows == 0), reverse=True)
        chosen = next((rows for rows in sizes if _fits(model, work, rows, held, device, precision)), None)
        memory = float(torch.cuda.mem_get_info(device)[0])
    else:
        import psutil

        # One process of all makes a copy, which is why the others of this machine need not have room for theirs.
        spared = one.checkpoint_copy * (local_count - 1)
        memory = (0.9 * psutil.virtual_memory().available + spared) / local_count
        there = loaded + sum(_bytes(tensor) for tensor in [*model.parameters(), *model.buffers()])
        chosen = largest_micro_batch(share=share, memory=memory + there, needed=lambda rows: estimate(rows).total)
    if chosen is None:
        copy = f" ({one.checkpoint_copy / 1e9:.2f} GB to write checkpoints from)" if one.checkpoint_copy else ""
        raise InputError(
            f"--micro_batch_size auto: a step of one row of {shape.length} tokens needs "
            f"{one.total / 1e9:.2f} GB{copy}, and {memory / 1e9:.2f} GB are free; use a smaller model or shorter rows"
        )
    return chosen


def _fits(model: nn.Module, work: Work, rows: int, held: int, device: torch.device, precision: str) -> bool:
    """Whether forward and backward of so many rows run on a GPU while `held` bytes are taken; leaves no gradient."""
    longest = _longest_rows(work, rows)
    batch = TrainingBatches(work, device)([work.example(longest[row % len(longest)], row, 1.0) for row in range(rows)])
    counts = {name: torch.tensor(max(count, 1), device=device) for name, count in work.count_targets(batch).items()}
    model.train()
    kept: list[Tensor] = []
    try:
        with torch.random.fork_rng(devices=[device]):
            kept = [torch.empty(held, dtype=torch.uint8, device=device)]
            kept += [torch.empty_like(parameter) for parameter in model.parameters() if parameter.requires_grad]
            with torch.autocast(device.type, dtype=torch.bfloat16, enabled=precision == "bf16"):
                loss, _ = work.loss(model, to_device(batch, device), counts)
            kept = kept[:1]  # the gradients of earlier micro-batches become those that backward makes
            loss.backward()
            del loss
        return True
    except torch.OutOfMemoryError:
        return False
    finally:
        kept.clear()
        model.zero_grad(set_to_none=True)
        torch.cuda.empty_cache()


def _bytes(tensor: Tensor) -> int:
    return tensor.numel() * tensor.element_size()


def _run_step(model: Any, tensors: LiveTensors, micro_batch: MicroBatch, *, precision: str, accumulates: bool) -> None:
    """Forward and backward as the loop does them; the last micro-batch of several, where the gradients are there."""
    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter.register_post_accumulate_grad_hook(lambda p: tensors.call_it(p.grad, "gradients"))
            if accumulates:
                tensors.kind = "gradients"
                parameter.grad = torch.empty_like(parameter)
    tensors.kind = "activations"
    loss = _loss(model, tensors, micro_batch, in_bf16=precision == "bf16")
    tensors.kind = "working"
    loss.backward()


def _loss(model: Any, tensors: LiveTensors, micro_batch: MicroBatch, *, in_bf16: bool) -> Tensor:
    """The loss of a batch, with the copies that its objective, the model and accelerate make of the logits."""
    for head in (getattr(model, "transform", None), getattr(model, "get_output_embeddings", lambda: None)()):
        if isinstance(head, nn.Module):
            head.register_forward_pre_hook(lambda *_: setattr(tensors, "kind", "logits"))
    targets = micro_batch.targets
    is_sparse = predicts_targets_only(model)
    if is_sparse:
        model.transform.register_forward_pre_hook(lambda _, states: states[0].flatten(0, -2)[:targets].clone())
    inputs = _inputs(model, micro_batch)
    is_decoder = type(model).__name__.endswith(("CausalLM", "LMHeadModel"))
    labels = torch.zeros(targets, dtype=torch.long)
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=in_bf16):
        output = model(**inputs)
        logits = getattr(output, "prediction_logits", None)
        logits = output[0] if logits is None else logits
        others = [
            part.float().sum() for part in (getattr(output, "seq_relationship_logits", None),) if part is not None
        ]
        loss = None
        if is_sparse or is_decoder:  # models of these compute the loss themselves
            labels = labels if is_sparse else torch.zeros(logits.shape[:-1].numel(), dtype=torch.long)
            loss = functional.cross_entropy(logits.flatten(0, -2).float(), labels, reduction="sum")
    del output
    logits = logits.float()  # accelerate does this to all that leaves a model
    if loss is not None:
        return sum(others, loss)
    if logits.ndim == 3 and logits.shape[1] > 1:
        return functional.cross_entropy(logits.flatten(0, -2)[:targets].clone(), labels, reduction="sum")
    return logits.sum()


def _inputs(model: Any, micro_batch: MicroBatch) -> dict[str, Any]:
    """What stands for a batch. Ids are looked up here: models may look at their numbers, and there are none."""
    rows, length = micro_batch.rows, micro_batch.length
    decoded = micro_batch.target_length or length
    table = model.get_input_embeddings()
    inputs = {
        "inputs_embeds": table(torch.empty(rows, length, dtype=torch.long)),
        "attention_mask": torch.ones(rows, length, dtype=torch.long),
    }
    if getattr(model.config, "is_encoder_decoder", False):
        inputs["decoder_inputs_embeds"] = table(torch.empty(rows, decoded, dtype=torch.long))
        inputs["decoder_attention_mask"] = torch.ones(rows, decoded, dtype=torch.long)
    return {**inputs, "use_cache": False} if hasattr(model.config, "use_cache") else inputs


def _run_optimizer(model: Any, tensors: LiveTensors, arguments: TrainingArguments) -> int:
    """Two steps of the optimizer, the second with its state in place; returns the bytes of that state."""
    optimizers = OPTIMIZERS[arguments.optimizer](model, arguments)
    for _ in range(2):
        tensors.kind = "working"
        tensors.at_peak = Counter()
        for optimizer in optimizers:
            optimizer.step()
        for value in _states(optimizers):
            tensors.call_it(value, "optimizer")
    return _state_bytes(optimizers)


def _states(optimizers: Sequence[torch.optim.Optimizer]) -> list[Tensor]:
    return [
        value
        for optimizer in optimizers
        for values in optimizer.state.values()
        for value in values.values()
        if isinstance(value, Tensor)
    ]


def _state_bytes(optimizers: Sequence[torch.optim.Optimizer]) -> int:
    return sum(_bytes(value) for value in _states(optimizers))
