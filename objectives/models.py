"""Questions about a model and where it runs."""

import inspect

from torch import distributed, nn

from .data import ObjectiveError


def require_argument(model: nn.Module, name: str, *, reason: str) -> None:
    """Refuse a model whose `forward` does not name an argument: many take any and pass over what they do not know.

    Args:
        reason: what the model cannot do without it, and what to do.

    Raises:
        ObjectiveError: it does not.
    """
    bare = getattr(model, "module", model)  # DDP takes anything
    if name not in inspect.signature(bare.forward).parameters:
        raise ObjectiveError(f"{type(bare).__name__} takes no {name}: {reason}")


def several_processes() -> bool:
    """Whether this is one of several processes that train a model together."""
    return distributed.is_available() and distributed.is_initialized() and distributed.get_world_size() > 1
