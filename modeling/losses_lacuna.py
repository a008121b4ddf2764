"""The losses of all heads, in one place.

Every loss is a sum over its targets divided by `num_items`, the number of targets in the whole batch over all of its
parts. Parts of a batch that hold different numbers of targets then add up to the loss of the whole, and gradient
accumulation changes neither loss nor gradient. Letters in shapes: B rows, T tokens of a row, C hidden_size,
V vocab_size, L num_labels, N targets.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from .attention_lacuna import compute_dtype
from .checks_lacuna import as_classes, check_range, refuse_other_shape, refuse_outside
from .configuration_lacuna import LacunaConfig

IGNORED = -100  # The label of a position that is not to be predicted, as in torch and transformers.

# Logits that are held at a time: 2^24 of them are 64 MiB in float32. A GPU works on so few for too short a time.
_CHUNK_LOGITS, _CHUNK_ON_GPU = 2**24, 2**28


def count_items(num_items: int | Tensor | None, labels: Tensor, *, ignore_index: int = IGNORED) -> int | Tensor:
    """`num_items`, or the number of targets in `labels` when that is None; at least 1, so that no target gives 0."""
    if num_items is None:
        return (labels != ignore_index).sum().clamp(min=1)
    return num_items.to(labels.device) if isinstance(num_items, Tensor) else num_items


def summed_cross_entropy(logits: Tensor, labels: Tensor, *, ignore_index: int, name: str, field: str) -> Tensor:
    """Sum of the cross-entropies of logits [N, V] in float32; labels outside V are refused by name, on a CPU."""
    labels = as_classes(labels, name=name)
    try:
        return nn.functional.cross_entropy(logits.float(), labels, ignore_index=ignore_index, reduction="sum")
    except IndexError:
        refuse_outside(labels, name=name, limit=logits.shape[-1], field=field, ignored=ignore_index)
        raise


def cross_entropy(
    logits: Tensor,
    labels: Tensor,
    *,
    num_items: int | Tensor | None = None,
    ignore_index: int = IGNORED,
    name: str = "labels",
    field: str = "vocab_size",
    is_checked: bool = False,
) -> Tensor:
    """Summed cross-entropy divided by `num_items`, or by the number of targets here when that is None.

    Args:
        logits: [..., V], any float dtype; the loss is computed in float32.
        labels: [...], `ignore_index` where nothing is to be predicted.
        name, field: what to call the labels, and the field that says V, when they do not fit.
        is_checked: whether `check_range` has seen the labels already.

    Raises ValueError: when the shapes differ, or a label is outside V.
    """
    refuse_other_shape(labels, tuple(logits.shape[:-1]), name=name)
    if not is_checked:
        check_range(labels, name=name, limit=logits.shape[-1], field=field, ignored=ignore_index)
    loss = summed_cross_entropy(
        logits.flatten(0, -2), labels.flatten(), ignore_index=ignore_index, name=name, field=field
    )
    return loss / count_items(num_items, labels, ignore_index=ignore_index)


def chunked_cross_entropy(
    hidden_states: Tensor,
    labels: Tensor,
    *,
    project: Callable[[Tensor], Tensor],
    vocab_size: int,
    num_items: int | Tensor | None = None,
    target_positions: Tensor | None = None,
) -> Tensor:
    """`cross_entropy(project(hidden_states), labels)` without ever holding all the logits, for any projection.

    Logits are made for some tokens at a time and again in the backward pass: the memory of one chunk in place of
    [B, T, V] in two dtypes and their gradient, for one more product with the output embeddings.

    Args:
        hidden_states, labels: [..., C], and [...] with -100 where nothing is to be predicted.
        project: hidden states [N, C] -> logits [N, V].
        target_positions: see `find_targets`.
    """
    hidden_states, flat_labels = _to_predict(hidden_states, labels, vocab_size=vocab_size, positions=target_positions)

    def loss_of(states: Tensor, targets: Tensor) -> Tensor:
        return summed_cross_entropy(project(states), targets, ignore_index=IGNORED, name="labels", field="vocab_size")

    rows = _rows_of_chunk(hidden_states, vocab_size)
    chunks = (tensor.split(rows) for tensor in (hidden_states, flat_labels))
    losses = [checkpoint(loss_of, *chunk, use_reentrant=False) for chunk in zip(*chunks, strict=True)]
    # Without a target the sum of no states is 0, and still a part of the graph: backward works and reaches nothing.
    total = torch.stack(losses).sum() if len(flat_labels) else hidden_states.float().sum()
    return total / count_items(num_items, labels)


def _rows_of_chunk(hidden_states: Tensor, vocab_size: int) -> int:
    """How many of the states [N, C] have logits at a time."""
    return max(1, (_CHUNK_LOGITS if hidden_states.device.type == "cpu" else _CHUNK_ON_GPU) // vocab_size)


def linear_cross_entropy(
    hidden_states: Tensor,
    labels: Tensor,
    *,
    weight: Tensor,
    bias: Tensor | None,
    num_items: int | Tensor | None = None,
    target_positions: Tensor | None = None,
    score: Callable[..., tuple[Tensor, Tensor, Tensor, Tensor | None]] | None = None,
) -> Tensor:
    """`chunked_cross_entropy` for a matrix with a bias, in two thirds of its time: see `LinearCrossEntropy`.

    Args:
        hidden_states, labels, target_positions: as in `chunked_cross_entropy`.
        weight, bias: [V, C], and [V] or None.
        score: `score_targets`, or what a compiler made of it.
    """
    states, targets = _to_predict(
        hidden_states, as_classes(labels), vocab_size=weight.shape[0], positions=target_positions
    )
    try:
        total = LinearCrossEntropy.apply(states, targets, weight, bias, score or score_targets)
    except (IndexError, RuntimeError):
        refuse_outside(targets, name="labels", limit=weight.shape[0], field="vocab_size", ignored=IGNORED)
        raise
    return total / count_items(num_items, labels)


def _to_predict(
    hidden_states: Tensor, labels: Tensor, *, vocab_size: int, positions: Tensor | None
) -> tuple[Tensor, Tensor]:
    """The positions to make logits for, [N, C] and [N]: those with a target, but in a graph all of them.

    Labels [N] come from `find_targets`: to select once more would copy the states, and make a GPU wait.
    """
    is_open = positions is None and torch.compiler.is_compiling()  # the number of targets is data
    if is_open or labels.dim() == 1:
        refuse_other_shape(labels, tuple(hidden_states.shape[:-1]))
        return hidden_states.flatten(0, -2), labels.flatten()
    shape = hidden_states.shape[:-1]
    positions, labels = find_targets(labels, shape, vocab_size=vocab_size, positions=positions)
    return hidden_states.flatten(0, -2)[positions], labels


def score_targets(
    states: Tensor, labels: Tensor, weight: Tensor, bias: Tensor | None
) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """Summed cross-entropy of some tokens, and its gradients, from one set of logits that nobody else sees.

    Of states [N, C], labels [N] (-100: nothing is to be predicted), weight [V, C], bias [V] or None. Returns the sum,
    float32, and its gradients for states, weight and bias.
    """
    logits = states @ weight.t()
    if bias is not None:  # apart from the product, which would first write it to every row of its result
        logits = logits.add_(bias)
    is_target = (labels != IGNORED).unsqueeze(1)
    targets = labels.unsqueeze(1).masked_fill(~is_target, 0)
    gradient = torch.log_softmax(logits, dim=-1, dtype=torch.float32)
    nats = -gradient.gather(1, targets).masked_fill(~is_target, 0.0).sum()
    if torch.compiler.is_compiling():  # a comparison is fused with what is around it; eagerly it would be a table
        gradient = gradient.exp() - (torch.arange(weight.shape[0], device=labels.device) == targets)
    else:
        gradient = gradient.exp_().scatter_add_(1, targets, gradient.new_full((1, 1), -1.0).expand_as(targets))
    gradient = gradient.to(states.dtype).masked_fill_(~is_target, 0.0)
    of_bias = None if bias is None else gradient.sum(0, dtype=torch.float32)
    return nats, gradient @ weight, gradient.t() @ states, of_bias


class LinearCrossEntropy(torch.autograd.Function):
    """Summed cross-entropy of `states @ weight.T + bias`, with gradients from the same logits, in the forward pass.

    The logits of a chunk of tokens are computed once and do not outlive it. What is kept for the backward pass has the
    size of the states and of the weight.
    """

    @staticmethod
    def forward(
        ctx: Any,
        states: Tensor,
        labels: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        score: Callable[..., tuple[Tensor, Tensor, Tensor, Tensor | None]],
    ) -> Tensor:
        """States [N, C], labels [N], weight [V, C], bias [V] -> the sum, float32; `score` is a `score_targets`."""
        dtype = compute_dtype(states)
        inputs, table = states.to(dtype), weight.to(dtype)
        offset = None if bias is None else bias.to(dtype)
        rows = _rows_of_chunk(inputs, weight.shape[0])
        chunks = list(zip(inputs.split(rows), labels.split(rows), strict=True))
        total, *found = score(*chunks[0], table, offset)
        of_states = [found[0]]
        for number, (chunk, targets) in enumerate(chunks[1:]):
            nats, *gradients = score(chunk, targets, table, offset)
            total += nats
            of_states.append(gradients[0])
            # Many small numbers are added up in float32; those of one chunk were, by the product that made them.
            found[1] = gradients[1].float().add_(found[1]) if number == 0 else found[1].add_(gradients[1])
            found[2] = None if bias is None else found[2] + gradients[2]
        ctx.save_for_backward(torch.cat(of_states), *found[1:])
        ctx.dtypes = states.dtype, weight.dtype
        return total

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        """Those of the forward pass, times the factor that the sum was given."""
        of_states, of_weight, of_bias = ctx.saved_tensors
        of_states, of_weight = (
            torch.mul(gradient, gradients[0], out=torch.empty_like(gradient, dtype=dtype))
            for gradient, dtype in zip((of_states, of_weight), ctx.dtypes, strict=True)
        )
        of_bias = None if of_bias is None else (of_bias * gradients[0]).to(ctx.dtypes[1])
        return of_states, None, of_weight, of_bias, None


def find_targets(
    labels: Tensor, shape: tuple[int, ...], *, vocab_size: int, positions: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Where in the flattened labels [...] of this shape the targets are, and which: int64 [N] each, in that order.

    `positions`: the former, where it is known, rising: a GPU is not waited for then.

    Raises ValueError: when the shapes differ, or a label is outside the vocabulary (on a GPU: see `check_range`).
    """
    refuse_other_shape(labels, shape)
    check_range(labels, name="labels", limit=vocab_size, field="vocab_size", ignored=IGNORED)
    if positions is None:
        positions = (labels != IGNORED).flatten().nonzero()[:, 0]
    return positions, labels.flatten()[positions]


def shifted(labels: Tensor) -> Tensor:
    """Labels [B, T] moved to the position that predicts them; the last position predicts nothing."""
    return nn.functional.pad(labels[:, 1:], (0, 1), value=IGNORED)


def _per_row(labels: Tensor, rows: int, *, name: str) -> Tensor:
    """Labels [B] or [B, 1] -> [B]."""
    labels = labels.squeeze(-1) if labels.dim() == 2 and labels.shape[1] == 1 else labels
    refuse_other_shape(labels, (rows,), name=name)
    return labels


def relation_loss(logits: Tensor, labels: Tensor, *, num_items: int | Tensor | None) -> Tensor:
    """Cross-entropy of the sentence relation: logits [B, 2], labels [B] or [B, 1]."""
    name = "next_sentence_label"
    labels = _per_row(labels, len(logits), name=name)
    return cross_entropy(logits, labels, num_items=num_items, name=name, field="number of sentence relations")


def classification_loss(
    logits: Tensor, labels: Tensor, *, config: LacunaConfig, num_items: int | Tensor | None = None
) -> Tensor:
    """The loss of `config.problem_type`, which the labels decide when it is None (and then is written down there).

    Args:
        logits: [B, L].
        labels: [B] class numbers; [B, L] of 0 and 1 for several labels at once; [B] or [B, L] numbers for regression.
        num_items: number of elements of `labels` in the whole batch, as `Trainer` counts them.

    Raises ValueError: when the shapes do not fit, or a class number is outside num_labels.
    """
    if config.problem_type is None:
        if config.num_labels == 1:
            config.problem_type = "regression"
        elif labels.dtype in (torch.int64, torch.int32):
            config.problem_type = "single_label_classification"
        else:
            config.problem_type = "multi_label_classification"
    if config.problem_type == "single_label_classification":
        labels = _per_row(labels, len(logits), name="labels")
        return cross_entropy(logits, labels, num_items=num_items, field="num_labels")
    if labels.dim() == 1 and logits.shape[1] == 1:
        labels = labels.unsqueeze(1)
    refuse_other_shape(labels, tuple(logits.shape))
    logits, labels = logits.float(), labels.float()
    if config.problem_type == "regression":
        loss = nn.functional.mse_loss(logits, labels, reduction="sum")
    else:
        loss = nn.functional.binary_cross_entropy_with_logits(logits, labels, reduction="sum")
    return loss / (labels.numel() if num_items is None else num_items)


def span_loss(
    start_logits: Tensor,
    end_logits: Tensor,
    start_positions: Tensor,
    end_positions: Tensor,
    *,
    num_items: int | Tensor | None = None,
) -> Tensor:
    """Mean of the cross-entropies of start and end; positions [B] outside the text [B, T] are ignored."""
    rows, length = start_logits.shape
    losses = []
    for logits, positions, name in (
        (start_logits, start_positions, "start_positions"),
        (end_logits, end_positions, "end_positions"),
    ):
        positions = as_classes(_per_row(positions, rows, name=name), name=name)
        positions = positions.masked_fill((positions < 0) | (positions >= length), length)
        losses.append(cross_entropy(logits, positions, num_items=num_items, ignore_index=length, name=name))
    return (losses[0] + losses[1]) / 2
