"""`mlm`: masked language modelling over packed rows.

Devlin et al., 2019 (https://arxiv.org/abs/1810.04805), without its sentence task and with masks drawn anew in each
epoch, as in Liu et al., 2019 (https://arxiv.org/abs/1907.11692). A falling share of masks is that of Ankner et al.,
2023 (https://arxiv.org/abs/2305.15096).
"""

from typing import Any

from torch import Tensor, nn

from lacuna.common.errors import InputError

from . import masking
from .base import PackedPrediction, describe_masking
from .data import random_stream
from .hints import add_hints, for_model
from .masking import EVAL_MASK_PROBABILITY, masked_loss, score_masked
from .models import loss_alone


class MaskedLanguageModelling(PackedPrediction):
    """Documents packed into rows; a share of the tokens is hidden and predicted from both sides."""

    name = "mlm"
    summary = "masked tokens"
    options = masking.OPTIONS
    legend = (masking.LEGEND,)
    head = "AutoModelForMaskedLM"
    shape = "encoder"

    @property
    def fixed_length(self) -> bool:
        """Whether all training batches of so many rows have one shape; rows of their own are as long as documents."""
        return self.arguments.packing != "none"

    def __init__(self, **parts: Any) -> None:
        super().__init__(**parts)
        self.tokens.required_mask()

    def example(self, row: int, index: int, progress: float = 0.0) -> dict[str, Any]:
        """`input_ids`, `labels` and `position_ids` (or, unpacked, `attention_mask`), int64 [length] each; masks from
        (seed, index)."""
        packed = self.rows[row]
        generator = random_stream(seed=self.seed, stream="mask", index=index)
        return self._finished(
            packed, *self.masking(packed.ids, probability=self.mask_rate(progress), generator=generator)
        )

    def eval_example(self, row: int) -> dict[str, Any]:
        """A held-out row under its frozen mask."""
        packed = self.eval_rows[int(self._evaluated[row])]
        generator = random_stream(seed=self.seed, stream="evalmask", index=row)
        return self._finished(
            packed, *self.eval_masking(packed.ids, probability=EVAL_MASK_PROBABILITY, generator=generator)
        )

    def check_model(self, model: nn.Module) -> None:
        """Refuse a hybrid decoder, which says a hidden token one position before it."""
        if getattr(model.config, "hybrid", False):
            raise InputError("--objective mlm cannot go on with --model: that is a hybrid; use --objective hybrid")
        super().check_model(model)

    def with_hints(self, batch: dict[str, Tensor]) -> dict[str, Tensor]:
        """A batch on the CPU with what a GPU would have to wait for: documents' bounds and masked positions."""
        return add_hints(batch, targets=batch["labels"])

    def loss(
        self, model: nn.Module, batch: dict[str, Tensor], num_targets: dict[str, Tensor]
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Cross-entropy at the masked positions."""
        options = loss_alone(model, z_loss=self.arguments.z_loss)
        output = model(**for_model(model, batch), num_items_in_batch=num_targets["tokens"], **options)
        loss, logits, labels = output.loss, output.logits, batch["labels"]
        if logits is not None and logits.ndim == 3:  # not of Lacuna, whose logits stand at the masked positions only
            loss = masked_loss(logits, labels, num_targets["tokens"])
        return self._with_z_loss(loss, {}, num_targets, (logits, labels))

    def evaluate(self, model: nn.Module, batch: dict[str, Tensor]) -> list[dict[str, Any]]:
        """Sums over the masked positions of each row."""
        logits = model(**batch, sparse_prediction=True).logits
        return score_masked(logits, batch["labels"], self.byte_lengths.to(logits.device))

    def _describe_targets(self) -> str:
        return describe_masking(self.arguments)
