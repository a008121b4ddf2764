"""`hybrid`: one decoder that learns to find hidden tokens from both sides and next tokens from those before.

GPT-BERT (Charpentier and Samuel, 2024, https://arxiv.org/abs/2410.24159): masked next-token prediction, in which the
token hidden at a position is predicted one position before it, so that both kinds of rows train the same outputs.
"""

import math
from fractions import Fraction
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor, nn

from lacuna.common.errors import InputError

from . import clm, masking
from .base import PackedPrediction, describe_masking
from .clm import next_token_labels, next_tokens, score_next_tokens
from .data import IGNORED, random_stream
from .masking import EVAL_MASK_PROBABILITY, Masking
from .models import loss_alone, require_argument, several_processes
from .packing import Row

_BLOCK = 64
"""Samples that hold the stated share of causal rows."""


@lru_cache(maxsize=64)
def _order(seed: int, block: int) -> list[int]:
    return random_stream(seed=seed, stream="kinds", index=block).permutation(_BLOCK).tolist()


class HybridLanguageModelling(PackedPrediction):
    """A share of the rows is causal, as in `clm`; in the others tokens are hidden, as in `mlm`.

    Which is which depends on the seed and the number of the sample alone: of each 64 samples the share is causal, up
    to one, in random order, so that sources which take turns each get it too. Every target counts alike, so that a
    causal row, all of whose
    tokens are targets, has more weight than a masked one. In both kinds the first token of a piece is no target:
    there is nothing before it that could predict it.
    """

    name = "hybrid"
    summary = "masked and next tokens in one decoder, as GPT-BERT"
    options = (*masking.OPTIONS, "hybrid_causal_share")
    legend = (
        "masked rows are read from both sides, and a masked token is predicted at the position before it",
        masking.LEGEND,
        clm.LEGEND,
    )
    head = "AutoModelForCausalLM"
    shape = "decoder"
    predicts_document_ends = True
    overlap = 1

    def __init__(self, **parts: Any) -> None:
        super().__init__(**parts)
        self.tokens.required_mask()
        self.share = Fraction(str(self.arguments.hybrid_causal_share))
        # Each held-out row is evaluated twice.
        rows = self.arguments.max_eval_examples // 2
        self._evaluated = self._evaluated_rows(self.eval_rows.sizes, rows)
        self.num_eval_examples = 2 * len(self._evaluated)

    def is_causal(self, index: int) -> bool:
        """Whether sample number `index` is a causal row."""
        block, place = divmod(index, _BLOCK)
        number = block * _BLOCK + _order(self.seed, block)[place]
        return math.floor((number + 1) * self.share) > math.floor(number * self.share)

    def _masked(self, row: Row, *, masking: Masking, probability: float, stream: str, index: int) -> dict[str, Any]:
        generator = random_stream(seed=self.seed, stream=stream, index=index)
        ids, labels = masking(row.ids, probability=probability, generator=generator, candidates=row.positions > 0)
        return {**self._finished(row, ids, labels), "is_causal": 0}

    def _causal(self, row: Row) -> dict[str, Any]:
        return {**self._finished(row, row.ids, next_token_labels(row)), "is_causal": 1}

    def example(self, row: int, index: int, progress: float = 0.0) -> dict[str, Any]:
        """`input_ids`, `labels` and `position_ids` (or, unpacked, `attention_mask`), int64 [length] each, and
        `is_causal`; the model shifts the labels of both kinds."""
        packed = self.rows[row]
        if self.is_causal(index):
            return self._causal(packed)
        return self._masked(
            packed, masking=self.masking, probability=self.mask_rate(progress), stream="mask", index=index
        )

    def eval_example(self, row: int) -> dict[str, Any]:
        """A held-out row: under its frozen mask if `row` is even, causal if it is odd."""
        packed = self.eval_rows[int(self._evaluated[row // 2])]
        if row % 2:
            return self._causal(packed)
        return self._masked(
            packed,
            masking=self.eval_masking,
            probability=EVAL_MASK_PROBABILITY,
            stream="evalmask",
            index=row // 2,
        )

    def count_targets(self, batch: dict[str, Tensor]) -> dict[str, int]:
        """Positions with a label, in all rows and in each kind."""
        of_row = (batch["labels"] != IGNORED).sum(dim=1)
        total, causal = int(of_row.sum()), int(of_row[batch["is_causal"] == 1].sum())
        return {"tokens": total, "masked": total - causal, "causal": causal}

    @staticmethod
    def _by_kind(batch: dict[str, Tensor], *, both: bool) -> list[tuple[bool, Tensor, dict[str, Tensor]]]:
        """For each kind that the batch holds: whether it is causal, its rows, and what the model gets of them.

        Args:
            both: give a kind that is not there a row without a target.
        """
        kinds = []
        for is_causal in (False, True):
            rows = (batch["is_causal"] == int(is_causal)).nonzero()[:, 0]
            chosen = rows if len(rows) else rows.new_zeros(1)
            part = {name: value[chosen] for name, value in batch.items() if name != "is_causal"}
            if not len(rows):
                part["labels"] = torch.full_like(part["labels"], IGNORED)
            if len(rows) or both:
                kinds.append((is_causal, rows, part))
        return kinds

    def loss(
        self, model: nn.Module, batch: dict[str, Tensor], num_targets: dict[str, Tensor]
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Cross-entropy of hidden and of next tokens, a mean over all; the model runs once for each kind.

        Of several processes each runs it for both kinds, also where its batch holds one: DDP shares out buffers in
        each forward pass (and FSDP weights), and a process that ran once more than the others would wait for ever.
        """
        losses: dict[bool, Tensor] = {}
        counts: dict[bool, Tensor] = {}
        scored: list[tuple[Tensor | None, Tensor]] = []
        options = {"use_cache": False, **loss_alone(model, z_loss=self.arguments.z_loss)}
        for is_causal, _, part in self._by_kind(batch, both=several_processes()):
            output = model(**part, is_causal=is_causal, num_items_in_batch=num_targets["tokens"], **options)
            losses[is_causal] = output.loss
            counts[is_causal] = (part["labels"] != IGNORED).sum()
            scored.append(next_tokens(output.logits, part["labels"]))
        zero = torch.zeros((), device=batch["labels"].device)
        # Nats and targets: a step may hold no row of one kind.
        parts = {
            name: torch.stack(
                [losses.get(is_causal, zero).detach() * num_targets["tokens"], counts.get(is_causal, zero)]
            )
            for name, is_causal in (("mlm_loss", False), ("clm_loss", True))
        }
        return self._with_z_loss(torch.stack(list(losses.values())).sum(), parts, num_targets, *scored)

    def evaluate(self, model: nn.Module, batch: dict[str, Tensor]) -> list[dict[str, Any]]:
        """Sums over the targets of each row, and which kind it is."""
        records: list[dict[str, Any]] = [{}] * len(batch["labels"])
        for is_causal, rows, part in self._by_kind(batch, both=False):
            scores = score_next_tokens(model, part, self.byte_lengths, is_causal=is_causal)
            for row, score in zip(rows.tolist(), scores, strict=True):
                records[row] = {**score, "is_causal": int(is_causal)}
        return records

    def check_model(self, model: nn.Module) -> None:
        """Refuse a decoder that reads forwards only."""
        require_argument(
            model,
            "is_causal",
            reason="it cannot read a row from both sides; train a model of Lacuna, or use --objective clm",
        )
        if not getattr(model.config, "hybrid", False):
            raise InputError(
                "--objective hybrid cannot go on with --model: that decoder reads forwards only. Begin a new model "
                "without --model, or use --objective clm"
            )
        super().check_model(model)

    def summarize(self, records: list[dict[str, Any]]) -> dict[str, float]:
        """Scores of hidden tokens as `mlm_...`, of next tokens as `clm_...`; bits per byte are those of next tokens.

        `loss` weighs both as the rows of training are shared out.
        """
        masked, causal = (
            super(HybridLanguageModelling, self).summarize(
                [record for record in records if record["is_causal"] == kind]
            )
            for kind in (0, 1)
        )
        share = float(self.share)
        return {
            "loss": share * causal["loss"] + (1 - share) * masked["loss"],
            "mlm_loss": masked["loss"],
            "mlm_accuracy": masked["accuracy"],
            "clm_loss": causal["loss"],
            "clm_accuracy": causal["accuracy"],
            "bits_per_byte": causal["bits_per_byte"],
        }

    def _known_without_text(self, example: dict[str, Any]) -> dict[str, Any]:
        return {"is_causal": example["is_causal"]}

    def _describe_targets(self) -> str:
        return (
            f"{float(self.share):.0%} of the rows are causal: every token is to be found from those before it; in the "
            f"others {describe_masking(self.arguments)}"
        )
