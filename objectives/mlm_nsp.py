"""`mlm_nsp`: masked language modelling and next sentence prediction, as BERT was trained.

Devlin et al., 2019, section 3.1 and appendix A.2 (https://arxiv.org/abs/1810.04805).
"""

import math
from typing import Any

import numpy as np
from torch import Tensor, nn
from torch.nn import functional

from .base import TokenPrediction
from .data import IGNORED, ObjectiveError, Store, random_stream, spread, stack
from .masking import EVAL_MASK_PROBABILITY, mask_tokens, masked_loss, score_masked

_CANDIDATES = 8
"""Places that are tried for a random B; the one whose sentences come nearest to the wanted length is taken."""

IS_NEXT, IS_RANDOM = 0, 1
"""Labels of the pair, in BERT's order."""


def cut_into_chunks(*, store: Store, documents: np.ndarray, length: int) -> np.ndarray:
    """Group consecutive sentences of each document until they reach `length` tokens or the document ends.

    The last sentence of a chunk usually goes beyond `length`; `_truncated` cuts the pair to size afterwards. As in
    BERT, real and random pairs are then cut alike, and neither can be told by its length.

    Returns:
        int64 [num_chunks, 3]: document (its row in `documents`), first and one past the last sentence.
    """
    offsets = store.sentence_offsets
    chunks: list[tuple[int, int, int]] = []
    for document, (first, last) in enumerate(documents.tolist()):
        while first < last:
            enough = int(np.searchsorted(offsets[: last + 1], offsets[first] + length, side="left"))
            end = min(max(enough, first + 1), last)
            chunks.append((document, first, end))
            first = end
    return np.array(chunks, dtype=np.int64).reshape(-1, 3)


class MaskedLanguageModellingWithPairs(TokenPrediction):
    """`[CLS] A [SEP] B [SEP]`: half the time B follows A, half the time it comes from another document.

    An example starts from a chunk of consecutive sentences that fills the row; it is cut at a random sentence into A
    and what follows. For a random pair, B is taken from a random sentence of another document onward, of the length
    of what would have followed. A chunk of one sentence is cut inside the sentence, and its random partner then
    starts inside one too. Lengths must not give the answer away: with a first version, whose real pairs were
    shorter than its random ones, a tiny model was right for 88 % within 100 steps; with equal lengths the same model
    was near chance there.
    """

    name = "mlm_nsp"
    head = "AutoModelForPreTraining"
    shape = "encoder"

    def __init__(self, **parts: Any) -> None:
        super().__init__(**parts)
        self.tokens.required_mask()
        self.room = self.sequence_length - 3
        self.chunks, self.eval_chunks = (
            cut_into_chunks(store=self.store, documents=documents, length=self.room)
            for documents in (self.documents, self.held_out)
        )
        if len(self.documents) < 2:
            raise ObjectiveError(
                "next sentence prediction needs pairs from different documents, and the text has "
                f"{len(self.documents)} to train on; use --objective mlm, or give documents as separate files or "
                "lines of .jsonl"
            )
        self._evaluated = spread(len(self.eval_chunks), self.max_eval_examples)
        self.num_examples, self.num_eval_examples = len(self.chunks), len(self._evaluated)

    def _tokens(self, first: int, last: int) -> np.ndarray:
        offsets = self.store.sentence_offsets
        return self.store.tokens[offsets[first] : offsets[last]].astype(np.int64)

    def _random_continuation(
        self, documents: np.ndarray, document: int, *, length: int, inside: bool, generator: np.random.Generator
    ) -> np.ndarray:
        """Text of a document other than `document` that ends with a sentence and has about `length` tokens.

        Of a few places in a few documents it is the one whose length comes nearest.

        Args:
            inside: the end of a sentence, without its first token, rather than whole sentences.
        """
        if len(documents) == 1:  # a single held-out document: partners come from the training part
            documents, document = self.documents, -1
        others = generator.integers(len(documents) - (document >= 0), size=_CANDIDATES)
        others += (document >= 0) & (others >= document)
        places = generator.random(_CANDIDATES)
        best, least = (0, 0), np.inf
        for other, place in zip(others.tolist(), places.tolist(), strict=True):
            first, last = documents[other].tolist()
            offsets = self.store.sentence_offsets[first : last + 1]
            start = int(place * (last - first))
            if inside:
                end = int(offsets[start + 1])
                begin = max(end - length, int(offsets[start]) + 1)
            else:
                # Too near the end of the document: as late as will do.
                start = min(start, max(0, int(np.searchsorted(offsets, offsets[-1] - length, side="right")) - 1))
                begin = int(offsets[start])
                end = int(offsets[min(int(np.searchsorted(offsets, begin + length, side="left")), last - first)])
            if abs(end - begin - length) < least:
                best, least = (begin, end), abs(end - begin - length)
            if least == 0:
                break
        return self.store.tokens[best[0] : best[1]].astype(np.int64)

    def _pair(
        self, chunk: np.ndarray, documents: np.ndarray, generator: np.random.Generator
    ) -> tuple[np.ndarray, np.ndarray, int]:
        document, first, last = (int(value) for value in chunk)
        text = self._tokens(first, last)
        one_sentence = last - first == 1
        if one_sentence:
            cut = int(generator.integers(1, max(len(text), 2)))
        else:
            middle = int(generator.integers(first + 1, last))
            cut = int(self.store.sentence_offsets[middle] - self.store.sentence_offsets[first])
        before, after = text[:cut], text[cut:]
        if generator.random() < 0.5:
            return before, after, IS_NEXT
        after = self._random_continuation(
            documents, document, length=len(after), inside=one_sentence, generator=generator
        )
        return before, after, IS_RANDOM

    def _truncated(
        self, first: np.ndarray, second: np.ndarray, generator: np.random.Generator
    ) -> tuple[np.ndarray, np.ndarray]:
        """Shorten the longer of the two, at a random end, until both fit, token for token as BERT does."""
        bounds = [[0, len(first)], [0, len(second)]]
        excess = len(first) + len(second) - self.room
        at_front = generator.random(max(excess, 0)) < 0.5
        for drop_front in at_front:
            longer = bounds[0] if bounds[0][1] - bounds[0][0] > bounds[1][1] - bounds[1][0] else bounds[1]
            if drop_front:
                longer[0] += 1
            else:
                longer[1] -= 1
        return first[slice(*bounds[0])], second[slice(*bounds[1])]

    def _example(
        self, chunk: np.ndarray, documents: np.ndarray, *, probability: float, stream: str, index: int
    ) -> dict[str, Any]:
        generator = random_stream(seed=self.seed, stream=stream, index=index)
        first, second, label = self._pair(chunk, documents, generator)
        first, second = self._truncated(first, second, generator)
        start, end = [self.tokens.start], [self.tokens.end]
        ids = np.concatenate([start, first, end, second, end]).astype(np.int64)
        masked, labels = mask_tokens(ids, tokens=self.tokens, probability=probability, generator=generator)
        return {
            "input_ids": masked,
            "token_type_ids": np.repeat([0, 1], [len(first) + 2, len(second) + 1]),
            "attention_mask": np.ones_like(ids),
            "labels": labels,
            "next_sentence_label": label,
        }

    def example(self, row: int, index: int) -> dict[str, Any]:
        """`input_ids`, `token_type_ids`, `attention_mask`, `labels`, int64 [length <= sequence_length] each, and
        `next_sentence_label`; pair and masks from (seed, index)."""
        return self._example(
            self.chunks[row], self.documents, probability=self.mask_probability, stream="pair", index=index
        )

    def eval_example(self, row: int) -> dict[str, Any]:
        """A held-out chunk with its frozen partner and mask."""
        chunk = self.eval_chunks[self._evaluated[row]]
        return self._example(chunk, self.held_out, probability=EVAL_MASK_PROBABILITY, stream="evalpair", index=row)

    def collate(self, examples: list[dict[str, Any]]) -> dict[str, Tensor]:
        """Padded to the longest pair."""
        return stack(examples, padding={"input_ids": self.tokens.pad, "labels": IGNORED})

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
            nsp_loss = functional.cross_entropy(pairs.float(), answers, reduction="sum") / num_targets["pairs"]
        else:
            mlm_loss, nsp_loss = output.mlm_loss, output.nsp_loss
        parts = {
            "mlm_loss": mlm_loss.detach(),
            "nsp_loss": nsp_loss.detach(),
            "nsp_accuracy": (pairs.argmax(dim=-1) == answers).sum() / num_targets["pairs"],
        }
        return mlm_loss + nsp_loss, parts

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
        """Scores of the masked tokens as `mlm_...` and of the pairs as `nsp_...`; `loss` is the sum of both."""
        tokens = super().summarize(records)
        pairs = max(len(records), 1)
        nsp_loss = math.fsum(record["pair_nats"] for record in records) / pairs
        return {
            "loss": tokens["loss"] + nsp_loss,
            "mlm_loss": tokens["loss"],
            "mlm_accuracy": tokens["accuracy"],
            "bits_per_byte": tokens["bits_per_byte"],
            "nsp_loss": nsp_loss,
            "nsp_accuracy": sum(record["pair_right"] for record in records) / pairs,
        }

    def baseline(self) -> dict[str, float]:
        """Token frequencies for the masks; for the pairs a coin."""
        tokens = super().baseline()
        if not tokens:
            return {}
        return {
            "loss": tokens["loss"] + math.log(2),
            "mlm_loss": tokens["loss"],
            "mlm_accuracy": tokens["accuracy"],
            "bits_per_byte": tokens["bits_per_byte"],
            "nsp_loss": math.log(2),
            "nsp_accuracy": 0.5,
        }
