"""What a model on a GPU would have to wait for, found on the CPU before the batch moves there.

Where documents begin and which positions have a target are numbers that shapes follow from: to learn them from a GPU,
the host waits until all work queued before is done. Models of Lacuna take them as arguments; to others, and on a CPU,
they are of no use.
"""

import torch
from torch import Tensor, nn

from .data import IGNORED

TOKENS_A_SLOT = 128
"""Of the bounds of documents there are as many as if documents had that many tokens: one number for all batches of a
shape, so that nothing is compiled anew. Twice, four times ... as many where there are more."""

HINTS = ("document_bounds", "target_positions")


def document_bounds(position_ids: Tensor) -> Tensor:
    """Where the documents of packed rows begin and end in the flattened batch: int32 [slots + 1].

    What is left of the slots are documents of no token at the end. A document ends with its row.

    Args:
        position_ids: [batch, length], restarting at 0 with each document.
    """
    starts = position_ids == 0
    starts[:, 0] = True
    found = starts.flatten().nonzero().flatten()
    slots = max(1, position_ids.numel() // TOKENS_A_SLOT)
    while slots < len(found):
        slots *= 2
    bounds = torch.full((slots + 1,), position_ids.numel(), dtype=torch.int32)
    bounds[: len(found)] = found
    return bounds


def target_positions(labels: Tensor) -> Tensor:
    """Where in the flattened labels [batch, length] the targets are: int64 [number of targets], rising."""
    return (labels != IGNORED).flatten().nonzero().flatten()


def add_hints(batch: dict[str, Tensor], *, targets: Tensor) -> dict[str, Tensor]:
    """The batch, which is on the CPU, with what can be told of it.

    Args:
        targets: [batch, length], what each position predicts.
    """
    hints = {"target_positions": target_positions(targets)}
    if "position_ids" in batch:
        hints["document_bounds"] = document_bounds(batch["position_ids"])
    return {**batch, **hints}


def for_model(model: nn.Module, batch: dict[str, Tensor]) -> dict[str, Tensor]:
    """The batch as the model takes it: without hints, unless it is one of Lacuna's."""
    bare = getattr(model, "module", model)  # DDP takes anything
    if getattr(bare, "can_take_hints", False):
        return batch
    return {name: value for name, value in batch.items() if name not in HINTS}
