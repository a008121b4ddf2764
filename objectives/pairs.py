"""Masked language modelling on pairs, with a question about each pair.

`mlm_nsp` trains as BERT was (Devlin et al., 2019, section 3.1 and appendix A.2, https://arxiv.org/abs/1810.04805),
`mlm_sop` as ALBERT (Lan et al., 2020, section 3.1, https://arxiv.org/abs/1909.11942), and `mlm_contrastive` nearly as
DeCLUTR (Giorgi et al., 2021, https://arxiv.org/abs/2006.03659).
"""

import math
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from lacuna.common.errors import InputError

from .base import at_targets, score_targets, token_loss
from .data import IGNORED, Tensors, for_model
from .mlm import MaskedLanguageModelling, MaskedPrediction
from .packing import Chunk, Chunks, PackedRow

_CANDIDATES = 8  # places tried for a random B; the one whose sentences come nearest to the wanted length is taken
_COUNTED_CHUNKS = 200_000  # chunks from which the shares of padding and of cropped tokens are worked out

IS_NEXT, IS_RANDOM = 0, 1  # labels of the pair in `mlm_nsp`, in BERT's order
IN_ORDER, SWAPPED = 0, 1  # labels of the pair in `mlm_sop`, in ALBERT's order
GROUP, TEMPERATURE = 16, 0.05  # rows among which passages find each other; 0.05 is that of DeCLUTR and SimCSE

Pair = tuple[np.ndarray, np.ndarray, int]  # A and B, together at most `room` tokens, and the label


class ChunkPrediction(MaskedPrediction):
    """An objective whose rows are chunks of consecutive sentences, each cut in two."""

    options = MaskedPrediction.options
    num_frames = 3  # special tokens of a row

    @property
    def room(self) -> int:
        """Tokens of A and B together, at most."""
        return self.sequence_length - self.num_frames

    def _rows_of(self, documents: np.ndarray, source: int) -> Chunks:
        return Chunks(store=self.store, documents=documents, length=self.room, source=source)

    def _text(self, chunk: Chunk) -> tuple[np.ndarray, np.ndarray]:
        """The tokens of a chunk, int64, and where each of its sentences begins among them, the end included."""
        offsets = np.asarray(self.store.sentence_offsets[chunk.first : chunk.last + 1])
        text = np.asarray(self.store.tokens[int(offsets[0]) : int(offsets[-1])]).astype(np.int64)
        return text, offsets - offsets[0]

    def count_targets(self, batch: Tensors) -> dict[str, int]:
        """Masked positions, and pairs."""
        return {**super().count_targets(batch), "pairs": len(batch["labels"])}

    def _describe_rows(self) -> str:
        bounds = [
            np.array([part[chunk][2:] for chunk in range(min(len(part), _COUNTED_CHUNKS))], dtype=np.int64)
            for part in self.rows.parts
        ]
        first, last = np.concatenate([part.reshape(-1, 2) for part in bounds]).T
        tokens = self.store.sentence_offsets[last] - self.store.sentence_offsets[first]
        kept = np.minimum(tokens, self.room)
        cropped = 1 - kept.sum() / max(tokens.sum(), 1)
        filled = (kept + self.num_frames).sum() / max(len(kept) * self.sequence_length, 1)
        return (
            f"{self.num_examples:,} pairs of up to {self.sequence_length:,} tokens from {len(self.documents):,} "
            f"documents: rows are {filled:.1%} full; {cropped:.2%} of the text is "
            "cropped where a last sentence does not fit, another part each time; "
            f"{self.num_eval_examples:,} of {len(self.eval_rows):,} held-out pairs are evaluated"
        )


class PairPrediction(ChunkPrediction):
    """`[CLS] A [SEP] B [SEP]`, masked, and one label for the pair. Subclasses say how the pair is made."""

    head = "AutoModelForPreTraining"
    shape = "encoder"
    legend = (*MaskedPrediction.legend, "A and B see each other, and the label says what B is to A   ↵ line break")
    pair_name: str  # what the metrics of the pairs begin with
    answers: tuple[str, str]  # what the labels 0 and 1 say of a pair

    def _pair(self, chunk: Chunk, *, held_out: bool, generator: np.random.Generator) -> Pair:
        """What is made of a chunk."""
        raise NotImplementedError

    def _example(self, row: Chunk, index: int, *, rate: float, held_out: bool) -> dict[str, Any]:
        """`input_ids`, `token_type_ids`, `attention_mask`, `labels`, int64 [length <= sequence_length] each, and
        `next_sentence_label`."""
        generator = self._generator("pair", index, held_out=held_out)
        first, second, label = self._pair(row, held_out=held_out, generator=generator)
        start, end = [self.tokens.start], [self.tokens.end]
        ids = np.concatenate([start, first, end, second, end]).astype(np.int64)
        masking = self.eval_masking if held_out else self.masking
        masked, labels = masking(ids, probability=rate, generator=generator)
        return {
            "input_ids": masked,
            "token_type_ids": np.repeat([0, 1], [len(first) + 2, len(second) + 1]),
            "attention_mask": np.ones_like(ids),
            "labels": labels,
            "next_sentence_label": label,
        }

    def loss(self, model: nn.Module, batch: Tensors, num_targets: Tensors) -> tuple[Tensor, Tensors]:
        """Cross-entropy at the masked positions, a mean over tokens, plus that of the pairs, a mean over pairs."""
        given = for_model(model, batch)
        output = model(**given, num_items_in_batch=num_targets["tokens"], num_pairs_in_batch=num_targets["pairs"])
        logits, labels = output.prediction_logits, batch["labels"]
        pairs, answers = output.seq_relationship_logits, batch["next_sentence_label"]
        if logits.ndim == 3:  # a native model; Lacuna's only compute logits at the targets
            mlm_loss = token_loss(logits, labels, num_targets["tokens"])
            pair_loss = functional.cross_entropy(pairs.float(), answers, reduction="sum") / num_targets["pairs"]
        else:
            mlm_loss, pair_loss = output.mlm_loss, output.nsp_loss
        is_target = given.get("target_positions")
        targets = labels[labels != IGNORED] if is_target is None else labels.flatten()[is_target]
        is_found = at_targets(logits.detach(), labels).argmax(dim=-1) == targets
        parts = {
            "mlm_loss": mlm_loss.detach(),
            "mlm_accuracy": is_found.sum() / num_targets["tokens"],
            f"{self.pair_name}_loss": pair_loss.detach(),
            f"{self.pair_name}_accuracy": (pairs.argmax(dim=-1) == answers).sum() / num_targets["pairs"],
        }
        return mlm_loss + pair_loss, parts

    def evaluate(self, model: nn.Module, batch: Tensors) -> list[dict[str, Any]]:
        """Sums over the masked positions of each pair, and how the pair was judged."""
        output, labels = model(**batch, sparse_prediction=True), batch["labels"]
        pairs, answers = output.seq_relationship_logits.float(), batch["next_sentence_label"]
        records = score_targets(output.prediction_logits, labels, self.byte_lengths)
        nats = functional.cross_entropy(pairs, answers, reduction="none").tolist()
        right = (pairs.argmax(dim=-1) == answers).tolist()
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

    def _describe_targets(self) -> str:
        return f"{super()._describe_targets()}; half of the pairs are {self.answers[0]} and half {self.answers[1]}"


class MaskedLanguageModellingWithPairs(PairPrediction):
    """`[CLS] A [SEP] B [SEP]`: half the time B follows A, half the time it comes from another document.

    A chunk of consecutive sentences that fills the row is cut at a random sentence into A and what follows. A random B
    begins at a random sentence of another document of the same source and is as long as what would have followed. A
    chunk of one sentence is cut inside it, and its random partner then begins inside one too. Lengths must not give
    the answer away.

    When B is random, BERT continues after A; here a row is a chunk, whatever the label, and what would have followed
    is seen in other epochs, when the chunk is cut elsewhere or makes a real pair.
    """

    name = "mlm_nsp"
    summary = "masked tokens and next sentence, as BERT"
    pair_name = "nsp"
    answers = ("IsNext", "Random")

    def __init__(self, **parts: Any) -> None:
        super().__init__(**parts)
        if len(self.documents) < 2:
            raise InputError(
                "--objective mlm_nsp needs pairs from different documents, and the text has "
                f"{len(self.documents)} to train on and {len(self.held_out)} held out; give more documents (separate "
                "files, lines of .jsonl, or --document_boundary line or blank_line), or use --objective mlm"
            )
        self._elsewhere = {
            source: np.concatenate([part for number, part in enumerate(self.by_source) if number != source])
            for source in range(len(self.by_source))
            if len(self.by_source[source]) == 1
        }

    def _partners(self, source: int, document: int, *, held_out: bool) -> tuple[np.ndarray, int]:
        """Documents from which a random B may come, and the place of A's own among them, or -1.

        They are of the same part and source, so that style does not give the answer away; if A's is the only one, of
        the training part; if its source has no other document, of other sources.
        """
        own = self.held_out_by_source[source] if held_out else self.by_source[source]
        if len(own) > 1:
            return own, document
        if held_out and len(self.by_source[source]) > 1:
            return self.by_source[source], -1
        return self._elsewhere[source], -1

    def _random_continuation(
        self, documents: np.ndarray, document: int, *, length: int, inside: bool, generator: np.random.Generator
    ) -> np.ndarray:
        """Text of about `length` tokens that ends with a sentence, from a document other than `document`.

        Of a few random places, the one whose length comes nearest is taken. `inside`: take the end of a sentence,
        without its first token, rather than whole sentences.
        """
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
                # If it is too near the end of the document, as late as possible.
                start = min(start, max(0, int(np.searchsorted(offsets, offsets[-1] - length, side="right")) - 1))
                begin = int(offsets[start])
                end = int(offsets[min(int(np.searchsorted(offsets, begin + length, side="left")), last - first)])
            if abs(end - begin - length) < least:
                best, least = (begin, end), abs(end - begin - length)
            if least == 0:
                break
        return np.asarray(self.store.tokens[best[0] : best[1]]).astype(np.int64)

    def _pair(self, chunk: Chunk, *, held_out: bool, generator: np.random.Generator) -> Pair:
        text, offsets = self._text(chunk)
        is_single = chunk.last - chunk.first == 1  # one sentence
        if is_single:
            cut = int(generator.integers(1, max(len(text), 2)))
        else:
            cut = int(offsets[generator.integers(chunk.first + 1, chunk.last) - chunk.first])
        before, after, label = text[:cut], text[cut:], IS_NEXT
        if generator.random() >= 0.5:
            documents, own = self._partners(chunk.source, chunk.document, held_out=held_out)
            after = self._random_continuation(documents, own, length=len(after), inside=is_single, generator=generator)
            label = IS_RANDOM
        return *truncate_pair(before, after, room=self.room, generator=generator), label


class MaskedLanguageModellingWithOrder(PairPrediction):
    """`[CLS] A [SEP] B [SEP]`: two segments that follow one another, half the time in order, half the time swapped.

    A chunk of consecutive sentences that fills the row loses what does not fit, at its beginning or at its end, and is
    divided at a random sentence, or inside one if there is no other way. ALBERT cuts the longer of the two segments
    instead, which is more often the second, so that lengths give a little of the answer away.
    """

    name = "mlm_sop"
    summary = "masked tokens and sentence order, as ALBERT"
    pair_name = "sop"
    answers = ("InOrder", "Swapped")

    def _pair(self, chunk: Chunk, *, held_out: bool, generator: np.random.Generator) -> Pair:
        text, offsets = self._text(chunk)
        dropped = max(0, len(text) - self.room)
        front = dropped if generator.random() < 0.5 else 0
        text = text[front : front + self.room]
        cuts = offsets[(offsets > front) & (offsets < front + len(text))] - front
        is_swapped = generator.random() < 0.5
        cut = int(generator.choice(cuts)) if len(cuts) else int(generator.integers(1, max(len(text), 2)))
        if is_swapped and len(text) > 1:  # a single token is in order whatever is done to it
            return text[cut:], text[:cut], SWAPPED
        return text[:cut], text[cut:], IN_ORDER


class PassagePrediction(ChunkPrediction, MaskedLanguageModelling):
    """`[CLS] A [SEP]` and `[CLS] B [SEP]`, two passages that follow one another and do not see each other.

    Tokens of both are masked, and the mean of the states of A is to find that of B among those of `GROUP` rows:
    cross-entropy of the cosines, divided by a temperature. No weights are added. A group is so many samples that
    follow one another in the order of the run, not what happens to be in a micro-batch.
    """

    name = "mlm_contrastive"
    summary = "masked tokens and passages of one document"
    num_frames, piece, group = 4, "passage", GROUP
    vocabulary = MappingProxyType({"vocab_size": 16384, "normalizer": "lowercase"})  # topics are known by whole words
    legend = (*MaskedLanguageModelling.legend, f"the first passage is to find its second among {GROUP}   ↵ line break")

    def _example(self, row: Chunk, index: int, *, rate: float, held_out: bool) -> dict[str, Any]:  # type: ignore[override]
        generator = self._generator("pair", index, held_out=held_out)
        text, offsets = self._text(row)
        cut = int(generator.choice(offsets[1:-1] if len(offsets) > 2 else np.arange(1, max(len(text), 2))))
        first, second = truncate_pair(text[:cut], text[cut:], room=self.room, generator=generator)
        start, end = [self.tokens.start], [self.tokens.end]
        ids = np.concatenate([start, first, end, start, second, end]).astype(np.int64)
        masking = self.eval_masking if held_out else self.masking
        packed = PackedRow(ids=ids, bounds=np.array([0, len(first) + 2, len(ids)]))
        return self._finished(packed, *masking(ids, probability=rate, generator=generator))

    def count_tokens(self, batch: Tensors) -> int:
        """Tokens of both passages: padding is the third document of a row."""
        return int(((batch["position_ids"] == 0).cumsum(1) <= 2).sum())

    def loss(self, model: nn.Module, batch: Tensors, num_targets: Tensors) -> tuple[Tensor, Tensors]:
        """Cross-entropy at the masked positions, a mean over tokens, plus that of the passages, a mean over pairs."""
        mlm_loss, output = self._read(model, batch, num_targets, output_hidden_states=True)
        group = math.gcd(len(batch["labels"]), GROUP)  # a plan also tries fewer rows
        states, part = output.hidden_states[-1].float(), (batch["position_ids"] == 0).cumsum(1)
        first, second = (
            functional.normalize((states * (part == which).unsqueeze(-1)).sum(1), dim=-1).unflatten(0, (-1, group))
            for which in (1, 2)
        )
        scores = (first @ second.transpose(1, 2) / TEMPERATURE).flatten(0, 1)
        own = torch.arange(group, device=scores.device).repeat(len(scores) // group)
        passage_loss = functional.cross_entropy(scores, own, reduction="sum") / num_targets["pairs"]
        return mlm_loss + passage_loss, {
            "mlm_loss": mlm_loss.detach(),
            "passage_loss": passage_loss.detach(),
            "passage_accuracy": (scores.argmax(dim=-1) == own).sum() / num_targets["pairs"],
        }


def truncate_pair(
    first: np.ndarray, second: np.ndarray, *, room: int, generator: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """Take tokens from a random end of the longer text until both fit into `room` tokens, exactly as BERT does.

    Computed at once: the longer one loses tokens until both are equal, then they take turns, the second one first.
    """
    excess = max(0, len(first) + len(second) - room)
    at_front = generator.random(excess) < 0.5
    alone = min(excess, abs(len(first) - len(second)))
    from_first = np.arange(alone, excess) % 2 != alone % 2
    from_first = np.concatenate([np.full(alone, len(first) > len(second)), from_first])
    cut = []
    for text, is_cut in ((first, from_first), (second, ~from_first)):
        front, total = int((at_front & is_cut).sum()), int(is_cut.sum())
        cut.append(text[front : len(text) - (total - front)])
    return cut[0], cut[1]
