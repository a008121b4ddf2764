"""`clm`: causal language modelling over packed rows, as in Radford et al., 2019."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from .base import TokenPrediction
from .data import IGNORED, spread, stack
from .packing import PackedRows

_LOGIT_BYTES = 2**28
"""Logits held at once while evaluating: 256 MiB."""


class CausalLanguageModelling(TokenPrediction):
    """Every token of every document is predicted once an epoch, from those before it in the document."""

    name = "clm"
    head = "AutoModelForCausalLM"
    shape = "decoder"
    predicts_document_ends = True

    def __init__(self, **parts: Any) -> None:
        super().__init__(**parts)
        self.rows, self.eval_rows = (
            PackedRows(
                store=self.store, documents=documents, tokens=self.tokens, length=self.sequence_length, overlap=1
            )
            for documents in (self.documents, self.held_out)
        )
        self._evaluated = spread(len(self.eval_rows), self.max_eval_examples)
        self.num_examples, self.num_eval_examples = len(self.rows), len(self._evaluated)

    def example(self, row: int, index: int) -> dict[str, Any]:
        """`input_ids`, `position_ids`, `labels`, int64 [sequence_length] each; the model shifts the labels."""
        packed = self.rows[row]
        packed["labels"][0] = IGNORED  # it is a target of the row before
        return packed

    def eval_example(self, row: int) -> dict[str, Any]:
        """A held-out row."""
        packed = self.eval_rows[int(self._evaluated[row])]
        packed["labels"][0] = IGNORED
        return packed

    def collate(self, examples: list[dict[str, Any]]) -> dict[str, Tensor]:
        """Rows have equal lengths: stacked as they are."""
        return stack(examples, padding={})

    def loss(
        self, model: nn.Module, batch: dict[str, Tensor], num_targets: dict[str, Tensor]
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Cross-entropy of each token given those before it."""
        return model(**batch, num_items_in_batch=num_targets["tokens"], use_cache=False).loss, {}

    def evaluate(self, model: nn.Module, batch: dict[str, Tensor]) -> list[dict[str, Any]]:
        """Sums over the tokens of each row; a few rows at a time, so that logits stay small."""
        length = batch["input_ids"].shape[1]
        rows = max(1, _LOGIT_BYTES // (4 * length * self.tokens.vocab_size))
        byte_lengths = self.byte_lengths.to(batch["input_ids"].device)
        records: list[dict[str, Any]] = []
        for start in range(0, len(batch["input_ids"]), rows):
            part = {name: value[start : start + rows] for name, value in batch.items()}
            labels = part.pop("labels")[:, 1:]
            logits = model(**part, use_cache=False).logits[:, :-1].float()
            nats = functional.cross_entropy(
                logits.transpose(1, 2), labels, ignore_index=IGNORED, reduction="none"
            ).double()
            is_target = labels != IGNORED
            hits = (logits.argmax(dim=-1) == labels) & is_target
            size = byte_lengths[labels.clamp(min=0)] * is_target
            columns = torch.stack([column.double().sum(dim=1) for column in (nats, size, is_target, hits)], dim=1)
            names = ("nats", "bytes", "targets", "hits")
            records += [dict(zip(names, values, strict=True)) for values in columns.tolist()]
        return records
