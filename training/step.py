"""One optimizer step: `step` makes the gradients, forward and backward for each micro-batch; `update` applies them.

The loop repeats both. Compiling and a dry run go through `step` once, and planning measures it.
"""

import math
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from lacuna.common.work import Work, to_device


def step(
    work: Work,
    model: nn.Module,
    micro_batches: Sequence[dict[str, Tensor]],
    *,
    device: torch.device,
    backward: Callable[[Tensor], object] = Tensor.backward,
    micro_step: Callable[[int], AbstractContextManager[object]] = lambda number: nullcontext(),
    over_processes: Callable[[list[int]], Tensor] | None = None,
) -> tuple[dict[str, Tensor], int]:
    """Add the gradients of one optimizer step to those that the weights have.

    The loss is the sum over targets divided by their number in the whole step, over micro-batches and processes. One
    that is not finite has a gradient of NaN, which reaches all processes with the gradients.

    Args:
        model: what forward passes go through, on `device`, under autocast by itself; put into training mode.
        micro_batches: as the work collates them, on the host.
        backward: makes gradients of the loss of a micro-batch.
        micro_step: number -> entered for forward and backward of this micro-batch.
        over_processes: counts of this process -> their sums over all, on the device; None: this process is alone.

    Returns this process's share of the loss ("loss") and of other metrics; tokens of all processes, without padding.
    """
    model.train()
    counts: dict[str, int] = {}
    tokens = 0
    for batch in micro_batches:
        for name, count in work.count_targets(batch).items():
            counts[name] = counts.get(name, 0) + count
        tokens += work.count_tokens(batch)
    if over_processes is None:
        totals, all_tokens = torch.tensor([*counts.values()]).to(device, non_blocking=True).unbind(), tokens
    else:
        *totals, sum_of_tokens = over_processes([*counts.values(), tokens])
        all_tokens = int(sum_of_tokens)
    # A step without a single target of a kind divides zero by one.
    num_targets = {name: total.clamp(min=1) for name, total in zip(counts, totals, strict=True)}
    parts: dict[str, Tensor] = {}
    for number, batch in enumerate(micro_batches):
        with micro_step(number):
            loss, metrics = work.loss(model, to_device(batch, device), num_targets)
            backward(loss * torch.where(torch.isfinite(loss.detach()), 1.0, math.nan))
        for name, value in {"loss": loss.detach(), **metrics}.items():
            parts[name] = parts[name] + value if name in parts else value
    return parts, all_tokens


def update(
    model: nn.Module, optimizers: list[Any], *, loss: Tensor, max_norm: float, loss_scale: float
) -> tuple[float, float]:
    """Clip the gradients to a norm (0: do not), make the optimizers' step, and clear the gradients.

    `loss`: over all processes, a scalar; `loss_scale`: what it was multiplied by, and gradients are divided by first.

    Returns the loss, and the norm that the gradients have then, over all weights and the same on all processes. Where
    it is not finite, no process has made the step. Both are read before the optimizers work: the host waits for a GPU
    here and nowhere else in a step, and prepares the next one while they do.
    """
    weights = [weight for weight in model.parameters() if weight.grad is not None]
    gradients = [weight.grad for weight in weights if weight.grad is not None]
    if loss_scale != 1:
        torch._foreach_mul_(gradients, 1 / loss_scale)
    norm = nn.utils.get_total_norm(gradients)
    if max_norm:
        nn.utils.clip_grads_with_norm_(weights, max_norm, norm)
    found = float(loss), float(norm)
    if math.isfinite(found[1]):
        for optimizer in optimizers:
            optimizer.step()
    for optimizer in optimizers:
        optimizer.zero_grad()
    return found
