"""`clm`: causal language modelling over packed rows, as in Radford et al., 2019."""

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from .base import PackedPrediction
from .data import IGNORED
from .hints import add_hints, for_model
from .models import loss_alone
from .packing import Row

LEGEND = "causal rows: every token is predicted from those before it, except ‹cat›, with which a piece begins"

_LOGIT_BYTES = 2**28
"""Logits held at once while evaluating: 256 MiB."""


def next_token_labels(row: Row) -> np.ndarray:
    """The ids of a row, IGNORED where a piece begins: nothing stands before, or it is a target of the row before."""
    labels = row.ids.copy()
    labels[row.bounds[:-1]] = IGNORED
    return labels


def logit_rows(*, length: int, vocab_size: int) -> int:
    """Rows whose float32 logits may be held at once."""
    return max(1, _LOGIT_BYTES // (4 * length * vocab_size))


def next_tokens(logits: Tensor | None, labels: Tensor) -> tuple[Tensor | None, Tensor]:
    """Logits [B, T, vocab_size] and labels [B, T] of the positions that have a next token; no logits stay none."""
    return None if logits is None else logits[:, :-1], labels[:, 1:]


def score_next_tokens(
    model: nn.Module, batch: dict[str, Tensor], byte_lengths: Tensor, **options: Any
) -> list[dict[str, Any]]:
    """Sums over the targets of each row, `labels` shifted by one; a few rows at a time, so that logits stay small.

    Args:
        batch: arguments of the model [batch, length] and `labels`.
        byte_lengths: [vocab_size], bytes of text each token stands for.
        options: further arguments of the model.
    """
    rows = logit_rows(length=batch["input_ids"].shape[1], vocab_size=len(byte_lengths))
    byte_lengths = byte_lengths.to(batch["input_ids"].device)
    records: list[dict[str, Any]] = []
    for start in range(0, len(batch["input_ids"]), rows):
        part = {name: value[start : start + rows] for name, value in batch.items()}
        labels = part.pop("labels")[:, 1:]
        logits = model(**part, use_cache=False, **options).logits[:, :-1].float()
        records += score_everywhere(logits, labels, byte_lengths)
    return records


def score_everywhere(logits: Tensor, labels: Tensor, byte_lengths: Tensor) -> list[dict[str, Any]]:
    """One record a row: loss in nats, bytes, targets and hits.

    Args:
        logits: [batch, length, vocab_size], of what `labels` [batch, length] say.
        byte_lengths: [vocab_size].
    """
    nats = functional.cross_entropy(logits.transpose(1, 2), labels, ignore_index=IGNORED, reduction="none").double()
    is_target = labels != IGNORED
    hits = (logits.argmax(dim=-1) == labels) & is_target
    size = byte_lengths[labels.clamp(min=0)] * is_target
    columns = torch.stack([column.double().sum(dim=1) for column in (nats, size, is_target, hits)], dim=1)
    names = ("nats", "bytes", "targets", "hits")
    return [dict(zip(names, values, strict=True)) for values in columns.tolist()]


class CausalLanguageModelling(PackedPrediction):
    """Every token of every document is predicted once an epoch, from those before it in its row of the document."""

    name = "clm"
    summary = "next tokens, for decoders"
    legend = (LEGEND,)
    head = "AutoModelForCausalLM"
    shape = "decoder"
    predicts_document_ends = True
    overlap = 1

    @property
    def fixed_length(self) -> bool:
        """Whether all training batches of so many rows have one shape; rows of their own are as long as documents."""
        return self.arguments.packing != "none"

    def example(self, row: int, index: int, progress: float = 0.0) -> dict[str, Any]:
        """`input_ids`, `labels` and `position_ids` (or, unpacked, `attention_mask`), int64 [length] each; the model
        shifts the labels."""
        packed = self.rows[row]
        return self._finished(packed, packed.ids, next_token_labels(packed))

    def eval_example(self, row: int) -> dict[str, Any]:
        """A held-out row."""
        packed = self.eval_rows[int(self._evaluated[row])]
        return self._finished(packed, packed.ids, next_token_labels(packed))

    def with_hints(self, batch: dict[str, Tensor]) -> dict[str, Tensor]:
        """A batch on the CPU with what a GPU would have to wait for: documents' bounds, positions that predict."""
        return add_hints(batch, targets=functional.pad(batch["labels"][:, 1:], (0, 1), value=IGNORED))

    def loss(
        self, model: nn.Module, batch: dict[str, Tensor], num_targets: dict[str, Tensor]
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Cross-entropy of each token given those before it."""
        options = {"use_cache": False, **loss_alone(model, z_loss=self.arguments.z_loss)}
        output = model(**for_model(model, batch), num_items_in_batch=num_targets["tokens"], **options)
        return self._with_z_loss(output.loss, {}, num_targets, next_tokens(output.logits, batch["labels"]))

    def evaluate(self, model: nn.Module, batch: dict[str, Tensor]) -> list[dict[str, Any]]:
        """Sums over the tokens of each row."""
        return score_next_tokens(model, batch, self.byte_lengths)

    def _describe_targets(self) -> str:
        return "every token is to be found from those before it in its row and document"
