"""What the objectives with pairs of segments share: `[CLS] A [SEP] B [SEP]`, masked, and a question about A and B."""

import math
from typing import Any

import numpy as np
from torch import Tensor, nn
from torch.nn import functional

from . import masking
from .base import TokenPrediction, describe_masking
from .chunks import Chunks
from .data import IGNORED, random_stream
from .masking import EVAL_MASK_PROBABILITY, Masking, masked_loss, score_masked

_COUNTED_CHUNKS = 200_000
"""Chunks from which the shares of padding and of cropped tokens are worked out."""


class SourceChunks:
    """The chunks of several sources, one source after another."""

    def __init__(self, parts: list[Chunks]) -> None:
        self.parts = parts
        self._begins = np.cumsum([0, *map(len, parts)])

    @property
    def sizes(self) -> list[int]:
        """Chunks of each source."""
        return np.diff(self._begins).tolist()

    def __len__(self) -> int:
        return int(self._begins[-1])

    def __getitem__(self, chunk: int) -> tuple[int, int, int, int]:
        """Source, document (its row among those of the source), first and one past the last sentence."""
        source = int(np.searchsorted(self._begins, chunk, side="right")) - 1
        return source, *self.parts[source][chunk - int(self._begins[source])]


class PairPrediction(TokenPrediction):
    """Masked tokens of a pair of segments, and one label for the pair. Subclasses say how the pair is made."""

    head = "AutoModelForPreTraining"
    shape = "encoder"
    options = (*masking.OPTIONS, "short_sequence_probability")
    legend = (masking.LEGEND, "A and B see each other, and the label says what B is to A   ↵ line break")
    pair_name: str
    """What the metrics of the pairs begin with."""
    answers: tuple[str, str]
    """What the labels 0 and 1 say of a pair."""

    def __init__(self, **parts: Any) -> None:
        super().__init__(**parts)
        self.tokens.required_mask()
        self.room = self.sequence_length - 3
        self.chunks, self.eval_chunks = (
            SourceChunks(
                [
                    Chunks(
                        store=self.store,
                        documents=documents,
                        length=self.room,
                        short_probability=self.arguments.short_sequence_probability,
                        seed=self.seed,
                    )
                    for documents in by_source
                ]
            )
            for by_source in (self.by_source, self.held_out_by_source)
        )
        self._evaluated = self._evaluated_rows(self.eval_chunks.sizes, self.arguments.max_eval_examples)
        self.num_examples, self.num_eval_examples = len(self.chunks), len(self._evaluated)

    def _row_counts(self) -> list[int]:
        return self.chunks.sizes

    def _pair(
        self, chunk: tuple[int, int, int, int], *, held_out: bool, generator: np.random.Generator
    ) -> tuple[np.ndarray, np.ndarray, int]:
        """A, B, together at most `room` tokens, and the label."""
        raise NotImplementedError

    def _text(self, first: int, last: int) -> tuple[np.ndarray, np.ndarray]:
        """The tokens of some sentences, int64, and where each sentence begins among them, the end included."""
        offsets = np.asarray(self.store.sentence_offsets[first : last + 1])
        text = np.asarray(self.store.tokens[int(offsets[0]) : int(offsets[-1])]).astype(np.int64)
        return text, offsets - offsets[0]

    def _example(
        self,
        chunk: tuple[int, int, int, int],
        *,
        held_out: bool,
        masking: Masking,
        probability: float,
        generator: np.random.Generator,
    ) -> dict[str, Any]:
        first, second, label = self._pair(chunk, held_out=held_out, generator=generator)
        start, end = [self.tokens.start], [self.tokens.end]
        ids = np.concatenate([start, first, end, second, end]).astype(np.int64)
        masked, labels = masking(ids, probability=probability, generator=generator)
        return {
            "input_ids": masked,
            "token_type_ids": np.repeat([0, 1], [len(first) + 2, len(second) + 1]),
            "attention_mask": np.ones_like(ids),
            "labels": labels,
            "next_sentence_label": label,
        }

    def example(self, row: int, index: int, progress: float = 0.0) -> dict[str, Any]:
        """`input_ids`, `token_type_ids`, `attention_mask`, `labels`, int64 [length <= sequence_length] each, and
        `next_sentence_label`; pair and masks from (seed, index)."""
        return self._example(
            self.chunks[row],
            held_out=False,
            masking=self.masking,
            probability=self.mask_rate(progress),
            generator=random_stream(seed=self.seed, stream="pair", index=index),
        )

    def eval_example(self, row: int) -> dict[str, Any]:
        """A held-out chunk with its frozen pair and mask."""
        return self._example(
            self.eval_chunks[int(self._evaluated[row])],
            held_out=True,
            masking=self.eval_masking,
            probability=EVAL_MASK_PROBABILITY,
            generator=random_stream(seed=self.seed, stream="evalpair", index=row),
        )

    def count_targets(self, batch: dict[str, Tensor]) -> dict[str, int]:
        """Masked positions, and pairs."""
        return {**super().count_targets(batch), "pairs": len(batch["next_sentence_label"])}

    def loss(
        self, model: nn.Module, batch: dict[str, Tensor], num_targets: dict[str, Tensor]
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Cross-entropy at the masked positions, a mean over tokens, plus that of the pairs, a mean over pairs."""
        output = model(**batch, num_items_in_batch=num_targets["tokens"], num_pairs_in_batch=num_targets["pairs"])
        pairs, answers = output.seq_relationship_logits, batch["next_sentence_label"]
        if output.prediction_logits.ndim == 3:  # not of Lacuna, whose logits stand at the masked positions only
            mlm_loss = masked_loss(output.prediction_logits, batch["labels"], num_targets["tokens"])
            pair_loss = functional.cross_entropy(pairs.float(), answers, reduction="sum") / num_targets["pairs"]
        else:
            mlm_loss, pair_loss = output.mlm_loss, output.nsp_loss
        parts = {
            "mlm_loss": mlm_loss.detach(),
            "mlm_accuracy": self._share_found(output.prediction_logits, batch["labels"], num_targets["tokens"]),
            f"{self.pair_name}_loss": pair_loss.detach(),
            f"{self.pair_name}_accuracy": (pairs.argmax(dim=-1) == answers).sum() / num_targets["pairs"],
        }
        scored = (output.prediction_logits, batch["labels"])
        return self._with_z_loss(mlm_loss + pair_loss, parts, num_targets, scored)

    @staticmethod
    def _share_found(logits: Tensor, labels: Tensor, num_targets: Tensor) -> Tensor:
        """Of the step's masked tokens those that the model puts first, as far as they are in this batch."""
        is_target = labels != IGNORED
        found = logits.detach()[is_target] if logits.ndim == 3 else logits.detach()
        return (found.argmax(dim=-1) == labels[is_target]).sum() / num_targets

    def evaluate(self, model: nn.Module, batch: dict[str, Tensor]) -> list[dict[str, Any]]:
        """Sums over the masked positions of each pair, and how the pair was judged."""
        output = model(**batch, sparse_prediction=True)
        logits, labels = output.seq_relationship_logits.float(), batch["next_sentence_label"]
        records = score_masked(output.prediction_logits, batch["labels"], self.byte_lengths.to(logits.device))
        nats = functional.cross_entropy(logits, labels, reduction="none").double().tolist()
        right = (logits.argmax(dim=-1) == labels).tolist()
        return [
            {**record, "pair_nats": loss, "pair_right": hit}
            for record, loss, hit in zip(records, nats, right, strict=True)
        ]

    def summarize(self, records: list[dict[str, Any]]) -> dict[str, float]:
        """Scores of the masked tokens as `mlm_...` and of the pairs under their name; `loss` is the sum of both."""
        tokens = super().summarize(records)
        pairs = max(len(records), 1)
        pair_loss = math.fsum(record["pair_nats"] for record in records) / pairs
        return {
            "loss": tokens["loss"] + pair_loss,
            "mlm_loss": tokens["loss"],
            "mlm_accuracy": tokens["accuracy"],
            "bits_per_byte": tokens["bits_per_byte"],
            f"{self.pair_name}_loss": pair_loss,
            f"{self.pair_name}_accuracy": math.fsum(record["pair_right"] for record in records) / pairs,
        }

    def _known_without_text(self, example: dict[str, Any]) -> dict[str, Any]:
        """For the pairs a coin."""
        return {"pair_nats": math.log(2), "pair_right": 0.5}

    def _describe_left_out(self) -> str:
        """What else of the text is not shown, after a sentence about what is cropped."""
        return ""

    def describe(self) -> str:
        """Rows, how full they are, what is cropped, and what is predicted."""
        lengths = []
        for part in self.chunks.parts:
            counted = np.arange(min(len(part), _COUNTED_CHUNKS))
            bounds = np.array([part[int(chunk)][1:] for chunk in counted], dtype=np.int64).reshape(-1, 2)
            lengths.append(self.store.sentence_offsets[bounds[:, 1]] - self.store.sentence_offsets[bounds[:, 0]])
        tokens = np.concatenate(lengths)
        kept = np.minimum(tokens, self.room)
        cropped = 1 - kept.sum() / max(tokens.sum(), 1)
        filled = (kept + 3).sum() / max(len(kept) * self.sequence_length, 1)
        return (
            f"{self.num_examples:,} pairs of up to {self.sequence_length:,} tokens from {len(self.documents):,} "
            f"documents: rows are {filled:.1%} full, padded to the longest of a batch; {cropped:.2%} of the text is "
            f"cropped where a last sentence does not fit{self._describe_left_out()}, another part each time; "
            f"{self.num_eval_examples:,} of {len(self.eval_chunks):,} held-out pairs are evaluated\n"
            f"{describe_masking(self.arguments)}; half of the pairs are {self.answers[0]} and half {self.answers[1]}"
        )
