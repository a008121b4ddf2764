"""`hybrid`: one decoder that learns to find hidden tokens from both sides and next tokens from those before.

GPT-BERT (Charpentier and Samuel, 2024, https://arxiv.org/abs/2410.24159): masked next-token prediction, in which the
token hidden at a position is predicted one position before it, so that both kinds of rows train the same outputs.
"""

import math
from fractions import Fraction
from typing import Any

import torch
from torch import Tensor, distributed, nn

from lacuna.common.errors import InputError

from .base import require_argument
from .clm import CausalLanguageModelling, NextTokenPrediction, next_token_labels
from .data import HINTS, IGNORED, Tensors, add_hints, for_model, random_stream
from .mlm import MaskedPrediction
from .packing import PackedRow

_BLOCK = 64  # samples that hold the stated share of causal rows
_OF_NO_ROW = ("is_causal", "_False", "_True")  # ends of names in a batch that the model does not get row by row


def several_processes() -> bool:
    """Whether this is one of several processes that train a model together."""
    return distributed.is_available() and distributed.is_initialized() and distributed.get_world_size() > 1


class HybridLanguageModelling(MaskedPrediction, NextTokenPrediction):
    """A share of the rows is causal, as in `clm`; in the others tokens are hidden, as in `mlm`.

    Which is which depends on the seed and the number of the sample alone: of each 64 samples the share is causal, up
    to one, in random order, so that sources which take turns each get it too. Every target counts the same, so that a
    causal row, all of whose tokens are targets, has more weight than a masked one. In both kinds the first token of a
    piece is no target: nothing before it could predict it.

    Of each held-out row there are two examples: masked, where their number is even, and causal.
    """

    name = "hybrid"
    summary = "masked and next tokens in one decoder, as GPT-BERT"
    options = (*MaskedPrediction.options, "packing", "hybrid_causal_share")
    legend = (
        "masked rows are read from both sides, and a masked token is predicted at the position before it",
        *MaskedPrediction.legend,
        *CausalLanguageModelling.legend,
    )
    evaluations, learns_means, fields = 2, True, {"hybrid": True}

    def __init__(self, **parts: Any) -> None:
        super().__init__(**parts)
        self.share = Fraction(str(self.arguments.hybrid_causal_share))

    def fixed_length(self, rows: int) -> bool:
        """Whole blocks hold equally many rows of each kind."""
        return super().fixed_length(rows) and rows % _BLOCK == 0

    def is_causal(self, index: int) -> bool:
        """Whether training sample number `index` is a causal row."""
        block, place = divmod(index, _BLOCK)
        order = random_stream(seed=self.seed, stream="kinds", index=block).permutation(_BLOCK)
        number = block * _BLOCK + int(order[place])
        return math.floor((number + 1) * self.share) > math.floor(number * self.share)

    def _example(self, row: PackedRow, index: int, *, rate: float, held_out: bool) -> dict[str, Any]:
        """See `_finished`, and `is_causal`; the model shifts the labels of both kinds."""
        if index % 2 if held_out else self.is_causal(index):
            return {**self._finished(row, row.ids, next_token_labels(row)), "is_causal": 1}
        masking = self.eval_masking if held_out else self.masking
        generator = self._generator("mask", index // 2 if held_out else index, held_out=held_out)
        ids, labels = masking(row.ids, probability=rate, generator=generator, candidates=row.positions > 0)
        return {**self._finished(row, ids, labels), "is_causal": 0}

    def count_targets(self, batch: Tensors) -> dict[str, int]:
        """Positions with a label, in all rows and in each kind."""
        of_row = (batch["labels"] != IGNORED).sum(dim=1)
        total, causal = int(of_row.sum()), int(of_row[batch["is_causal"] == 1].sum())
        return {"tokens": total, "masked": total - causal, "causal": causal}

    def with_hints(self, batch: Tensors) -> Tensors:
        """Add the rows of each kind, and the bounds of documents and the positions that predict in them."""
        found = dict(batch)
        for is_causal, rows, part in self._by_kind(batch, both=True):
            hinted = add_hints(part, targets=self.wanted(part["labels"]))
            found |= {f"{name}_{is_causal}": value for name, value in hinted.items() if name in HINTS}
            found[f"rows_{is_causal}"] = rows
        return found

    @staticmethod
    def _by_kind(batch: Tensors, *, both: bool) -> list[tuple[bool, Tensor, Tensors]]:
        """For each kind that the batch holds: whether it is causal, its rows, and what the model gets of them.

        `both`: give a kind that is missing a row without a target.
        """
        kinds = []
        for is_causal in (False, True):
            hints = {name: batch[f"{name}_{is_causal}"] for name in HINTS if f"{name}_{is_causal}" in batch}
            rows = batch.get(f"rows_{is_causal}")
            rows = (batch["is_causal"] == int(is_causal)).nonzero()[:, 0] if rows is None else rows
            chosen = rows if len(rows) else rows.new_zeros(1)
            part = {name: value[chosen] for name, value in batch.items() if not name.endswith(_OF_NO_ROW)} | hints
            if not len(rows):
                part["labels"] = torch.full_like(part["labels"], IGNORED)
            if len(rows) or both:
                kinds.append((is_causal, rows, part))
        return kinds

    def loss(self, model: nn.Module, batch: Tensors, num_targets: Tensors) -> tuple[Tensor, Tensors]:
        """Cross-entropy of hidden and of next tokens, a mean over all; the model runs once for each kind.

        Each of several processes runs it for both kinds, even if its batch holds one: DDP shares buffers in each
        forward pass (and FSDP weights), and a process that ran once more than the others would wait forever.
        """
        losses: list[Tensor] = []
        # Nats and targets: a step may hold no row of one kind.
        parts = {name: torch.zeros(2, device=batch["labels"].device) for name in ("mlm_loss", "clm_loss")}
        options = {"use_cache": False, **self._loss_alone(model)}
        for is_causal, _, part in self._by_kind(batch, both=several_processes()):
            output = model(
                **for_model(model, part), is_causal=is_causal, num_items_in_batch=num_targets["tokens"], **options
            )
            losses.append(output.loss)
            sums = [output.loss.detach() * num_targets["tokens"], (part["labels"] != IGNORED).sum()]
            parts["clm_loss" if is_causal else "mlm_loss"] = torch.stack(sums)
        return torch.stack(losses).sum(), parts

    def evaluate(self, model: nn.Module, batch: Tensors, **options: Any) -> list[dict[str, Any]]:
        """Sums over the targets of each row, and which kind it is."""
        records: list[dict[str, Any]] = [{}] * len(batch["labels"])
        for is_causal, rows, part in self._by_kind(batch, both=False):
            scores = super().evaluate(model, part, is_causal=is_causal, **options)
            for row, score in zip(rows.tolist(), scores, strict=True):
                records[row] = {**score, "is_causal": int(is_causal)}
        return records

    def check_model(self, model: nn.Module) -> None:
        """Refuse a decoder that only reads forwards."""
        reason = "it cannot read a row from both sides; train a model of Lacuna, or use --objective clm"
        require_argument(model, "is_causal", reason=reason)
        if not getattr(model.config, "hybrid", False):
            raise InputError(
                "--objective hybrid cannot continue --model: that decoder is causal only. Begin a new model "
                "without --model, or use --objective clm"
            )
        super().check_model(model)

    def summarize(self, records: list[dict[str, Any]]) -> dict[str, float]:
        """Scores of hidden tokens as `mlm_...`, of next tokens as `clm_...`; bits per byte are those of next tokens.

        `loss` weighs both by their share of the training rows.
        """
        kinds = ([record for record in records if record["is_causal"] == kind] for kind in (0, 1))
        masked, causal = map(super().summarize, kinds)
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
            f"others {super()._describe_targets()}"
        )
