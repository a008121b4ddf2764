"""Questions about a model and where it runs."""

import inspect

import torch
from torch import distributed, nn

from lacuna.common.errors import InputError


def require_argument(model: nn.Module, name: str, *, reason: str) -> None:
    """Refuse a model whose `forward` does not name an argument: many take any and pass over what they do not know.

    Args:
        reason: what the model cannot do without it, and what to do.

    Raises:
        InputError: it does not.
    """
    bare = getattr(model, "module", model)  # DDP takes anything
    if name not in inspect.signature(bare.forward).parameters:
        raise InputError(f"{type(bare).__name__} takes no {name}: {reason}")


def loss_alone(model: nn.Module, *, z_loss: float) -> dict[str, bool]:
    """The argument that makes a model of Lacuna return its loss without logits, which are most of a step's memory.

    Args:
        z_loss: its weight; it is made of the logits.
    """
    bare = getattr(model, "module", model)
    return {"skip_logits": True} if getattr(bare, "can_skip_logits", False) and not z_loss else {}


def require_documents_apart(model: nn.Module, *, token: int, other: int) -> None:
    """Refuse a model that reads across the documents of a packed row. It is tried: one token of the first document is
    another one, and nothing may change in the second.

    Args:
        token, other: two ids of the text.

    Raises:
        InputError: something changes, or the model takes no positions.
    """
    require_argument(model, "position_ids", reason="it cannot keep the documents of a row apart; use --packing none")
    rows = torch.full((2, 8), token)
    rows[1, 1] = other
    positions = torch.arange(4).repeat(2, 2)
    options = {"use_cache": False} if "use_cache" in inspect.signature(model.forward).parameters else {}
    device, training = next(model.parameters()).device, model.training
    model.eval()
    with torch.no_grad():
        logits = model(input_ids=rows.to(device), position_ids=positions.to(device), **options).logits.float()
    model.train(training)
    if not torch.allclose(logits[0, 4:], logits[1, 4:], rtol=0, atol=1e-5):
        raise InputError(
            f"{type(model).__name__} reads across the documents of a packed row; use --packing none with this model"
        )


def several_processes() -> bool:
    """Whether this is one of several processes that train a model together."""
    return distributed.is_available() and distributed.is_initialized() and distributed.get_world_size() > 1
