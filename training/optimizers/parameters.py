"""What each weight of a model is: matrix or not, backbone or head, and in which layer."""

from collections.abc import Iterator

from torch import Tensor, nn

SMALLEST_MATRIX = 32
"""Rows and columns below which a matrix is the classifier of a few labels, which Muon leaves to AdamW."""


def split_parameters(model: nn.Module) -> tuple[list[Tensor], list[Tensor]]:
    """Trainable weights in two lists: matrices, which decay, and embeddings, norms and biases, which do not.

    Tied weights appear once.
    """
    embeddings = {id(module.weight) for module in model.modules() if isinstance(module, nn.Embedding)}
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    matrices = [parameter for parameter in trained if parameter.ndim >= 2 and id(parameter) not in embeddings]
    chosen = {id(parameter) for parameter in matrices}
    return matrices, [parameter for parameter in trained if id(parameter) not in chosen]


def backbone_of(model: nn.Module) -> tuple[str, nn.Module | None]:
    """The name with a dot and the module that the heads of a model share (`base_model_prefix` of transformers).

    A model that has none, or is one, gives "" and None.
    """
    name = str(getattr(model, "base_model_prefix", ""))
    backbone = getattr(model, name, None) if name else None
    return (f"{name}.", backbone) if isinstance(backbone, nn.Module) else ("", None)


def is_pooler(name: str) -> bool:
    """Whether a weight or a module is in the pooler, which stands in the backbone and is trained with the head."""
    return "pooler" in name.split(".")


def head_weights(model: nn.Module) -> dict[str, Tensor]:
    """The weights outside the backbone that are not also weights of it (a tied output layer), and the pooler.

    All of them, where there is no backbone.
    """
    prefix, backbone = backbone_of(model)
    inside = {id(weight) for weight in backbone.parameters()} if backbone is not None else set()
    return {
        name: weight
        for name, weight in model.named_parameters()
        if id(weight) not in inside or (name.startswith(prefix) and is_pooler(name))
    }


def output_layer(model: nn.Module) -> nn.Module | None:
    """The layer over the vocabulary, where there is one."""
    return getattr(model, "get_output_embeddings", lambda: None)()


def _stacks(model: nn.Module) -> Iterator[tuple[str, int]]:
    """Name with a dot, and length, of each outermost list of blocks."""
    prefix, backbone = backbone_of(model)
    found: list[str] = []
    for name, module in (backbone if backbone is not None else model).named_modules():
        if isinstance(module, nn.ModuleList) and len(module) and not name.startswith(tuple(found)):
            found.append(f"{name}.")
            yield f"{prefix}{name}.", len(module)


def rate_scales(model: nn.Module, decay: float) -> dict[int, float]:
    """The share of the learning rate of each weight, by its id: 1 at the head, less with each layer below it.

    The uppermost layer of a stack of n has `decay`, the lowest `decay^n`, the embeddings `decay^(n + 1)` of the
    deepest stack; what stands behind the layers (final norm, pooler, head) has 1. Encoder and decoder are counted
    each for itself. Howard and Ruder, 2018, https://arxiv.org/abs/1801.06146; Clark et al., 2020 (ELECTRA),
    https://arxiv.org/abs/2003.10555; counted as by Bao et al., 2021 (BEiT), https://arxiv.org/abs/2106.08254.

    Args:
        decay: share of a layer's rate that the layer below it has; 1 for all alike.
    """
    stacks = list(_stacks(model))
    lowest = decay ** (1 + max((length for _, length in stacks), default=0))
    tables = {id(module.weight) for module in model.modules() if isinstance(module, nn.Embedding)}
    head = head_weights(model) if backbone_of(model)[1] is not None else {}

    def scale(name: str, weight: Tensor) -> float:
        if name in head:
            return 1.0
        for stack, length in stacks:
            if name.startswith(stack):
                return decay ** (length - int(name.removeprefix(stack).split(".")[0]))
        is_embedding = id(weight) in tables or any("embed" in part for part in name.split("."))
        return lowest if is_embedding else 1.0

    return {id(weight): scale(name, weight) for name, weight in model.named_parameters()}
