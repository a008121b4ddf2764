"""`clm`: causal language modelling over packed rows, as in Radford et al., 2019."""

from typing import Any

import numpy as np
from torch import Tensor, nn
from torch.nn import functional

from .base import PackedPrediction, score_targets
from .data import IGNORED, Tensors, for_model
from .packing import PackedRow


def next_token_labels(row: PackedRow) -> np.ndarray:
    """The ids of a row, IGNORED where a piece begins: nothing stands before, or it is a target of the row before."""
    labels = row.ids.copy()
    labels[row.bounds[:-1]] = IGNORED
    return labels


class NextTokenPrediction(PackedPrediction):
    """Rows of a decoder, whose targets are read one position before them."""

    head = "AutoModelForCausalLM"
    shape = "decoder"
    predicts_document_ends = True
    overlap = 1

    def wanted(self, labels: Tensor) -> Tensor:
        """The labels, one position before them."""
        return functional.pad(labels[:, 1:], (0, 1), value=IGNORED)

    def evaluate(self, model: nn.Module, batch: Tensors, **options: Any) -> list[dict[str, Any]]:
        """Sums over the targets of each row; `options` are further arguments of the model."""
        records: list[dict[str, Any]] = []
        for part in self.in_parts(batch):
            labels = part.pop("labels")
            logits = model(**part, use_cache=False, **options).logits
            records += score_targets(logits[:, :-1], labels[:, 1:], self.byte_lengths)
        return records


class CausalLanguageModelling(NextTokenPrediction):
    """Every token of every document is predicted once an epoch, from those before it in its row of the document."""

    name = "clm"
    summary = "next tokens, for decoders"
    legend = ("causal rows: every token is predicted from those before it, except ‹cat›, with which a piece begins",)

    def _example(self, row: PackedRow, index: int, *, rate: float, held_out: bool) -> dict[str, Any]:
        """See `_finished`; the model shifts the labels."""
        return self._finished(row, row.ids, next_token_labels(row))

    def loss(self, model: nn.Module, batch: Tensors, num_targets: Tensors) -> tuple[Tensor, Tensors]:
        """Cross-entropy of each token given those before it."""
        options = {"use_cache": False, **self._loss_alone(model)}
        output = model(**for_model(model, batch), num_items_in_batch=num_targets["tokens"], **options)
        return output.loss, {}

    def _describe_targets(self) -> str:
        return "every token is to be found from those before it in its row and document"
