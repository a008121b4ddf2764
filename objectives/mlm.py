"""`mlm`: masked language modelling over packed rows.

Devlin et al., 2019 (https://arxiv.org/abs/1810.04805), without its sentence task and with masks drawn anew in each
epoch, as in Liu et al., 2019 (https://arxiv.org/abs/1907.11692).
"""

from typing import Any

import numpy as np
from torch import Tensor, nn

from .base import TokenPrediction
from .data import random_stream, spread, stack
from .masking import EVAL_MASK_PROBABILITY, mask_tokens, masked_loss, score_masked
from .packing import PackedRows


class MaskedLanguageModelling(TokenPrediction):
    """Documents packed into rows; a share of the tokens is hidden and predicted from both sides."""

    name = "mlm"
    head = "AutoModelForMaskedLM"
    shape = "encoder"

    def __init__(self, **parts: Any) -> None:
        super().__init__(**parts)
        self.tokens.required_mask()
        self.rows, self.eval_rows = (
            PackedRows(store=self.store, documents=documents, tokens=self.tokens, length=self.sequence_length)
            for documents in (self.documents, self.held_out)
        )
        self._evaluated = spread(len(self.eval_rows), self.max_eval_examples)
        self.num_examples, self.num_eval_examples = len(self.rows), len(self._evaluated)

    def _masked(self, row: dict[str, np.ndarray], *, probability: float, stream: str, index: int) -> dict[str, Any]:
        generator = random_stream(seed=self.seed, stream=stream, index=index)
        ids, labels = mask_tokens(row["input_ids"], tokens=self.tokens, probability=probability, generator=generator)
        return {"input_ids": ids, "position_ids": row["position_ids"], "labels": labels}

    def example(self, row: int, index: int) -> dict[str, Any]:
        """`input_ids`, `position_ids`, `labels`, int64 [sequence_length] each; masks from (seed, index)."""
        return self._masked(self.rows[row], probability=self.mask_probability, stream="mask", index=index)

    def eval_example(self, row: int) -> dict[str, Any]:
        """A held-out row under its frozen mask."""
        packed = self.eval_rows[int(self._evaluated[row])]
        return self._masked(packed, probability=EVAL_MASK_PROBABILITY, stream="evalmask", index=row)

    def collate(self, examples: list[dict[str, Any]]) -> dict[str, Tensor]:
        """Rows have equal lengths: stacked as they are."""
        return stack(examples, padding={})

    def loss(
        self, model: nn.Module, batch: dict[str, Tensor], num_targets: dict[str, Tensor]
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Cross-entropy at the masked positions."""
        output = model(**batch, num_items_in_batch=num_targets["tokens"])
        if output.logits.ndim == 3:  # not of Lacuna, whose logits stand at the masked positions only
            return masked_loss(output.logits, batch["labels"], num_targets["tokens"]), {}
        return output.loss, {}

    def evaluate(self, model: nn.Module, batch: dict[str, Tensor]) -> list[dict[str, Any]]:
        """Sums over the masked positions of each row."""
        logits = model(**batch, sparse_prediction=True).logits
        return score_masked(logits, batch["labels"], self.byte_lengths.to(logits.device))
