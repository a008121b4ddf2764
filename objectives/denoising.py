"""`denoising`: an encoder reads damaged text, and a decoder writes what was lost.

`infilling` is BART's (Lewis et al., 2020, https://arxiv.org/abs/1910.13461, section 2.2), `span_corruption` T5's
(Raffel et al., 2020, https://arxiv.org/abs/1910.10683, section 3.1.4).
"""

from itertools import pairwise
from typing import Any

import numpy as np
from torch import Tensor, nn

from lacuna.common.errors import InputError

from .arguments import EVAL_CORRUPTION, MEAN_SPAN, sentinels_needed
from .base import PackedPrediction
from .clm import logit_rows, score_everywhere
from .data import IGNORED, random_stream, rounded, spread, stack
from .masking import masked_loss
from .models import loss_alone, require_argument
from .packing import Row

EVAL_PROBABILITY = {"infilling": 0.3, "span_corruption": EVAL_CORRUPTION}
"""Held-out text is damaged as in the papers, whatever the training rate."""

_HIGHEST_CORRUPTION = 0.75
"""With more, the spans and their sentinels would need more room than the text."""

_COUNTED_ROWS = 512
"""Rows of training from which the baseline counts its tokens."""


def fill_in(
    text: np.ndarray, *, mask: int, probability: float, generator: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """Replace spans by one mask token each; their lengths are Poisson(3), those of length 0 only insert one.

    `probability * length` tokens go, rounded up or down at random, at least one: the last span is cut to that. All
    spans and the tokens between them are laid down in random order. Inserted masks never make the text longer than it
    was, so that it still fits its row: in a short text some are left out.

    Args:
        text: int64 [length], not empty.

    Returns:
        The damaged text, and the lengths of the spans in the order in which they stand.
    """
    budget = min(max(1, rounded(probability * len(text), generator)), len(text))
    lengths = generator.poisson(MEAN_SPAN, size=budget + 8)
    sums = np.cumsum(lengths)
    lengths = lengths[: int(np.searchsorted(sums, budget)) + 1]
    lengths[-1] -= lengths.sum() - budget  # also where all of them together were too few
    real = lengths[lengths > 0]
    lengths = np.concatenate([real, np.zeros(min(len(lengths), budget) - len(real), dtype=np.int64)])
    order = generator.permutation(len(lengths) + len(text) - budget)
    blocks = np.concatenate([lengths, np.ones(len(text) - budget, dtype=np.int64)])[order]
    starts = np.minimum(np.cumsum(blocks) - blocks, len(text) - 1)
    is_span = order < len(lengths)
    return np.where(is_span, mask, text[starts]), blocks[is_span]


def corrupt_spans(
    text: np.ndarray, *, sentinels: np.ndarray, probability: float, generator: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """Replace spans by a sentinel each; the target is each sentinel with the span that it stands for.

    `probability * length` tokens go, in spans of 3 on average; as in T5's `random_spans_noise_mask` both these and
    what stays are divided at random into equally many parts, which alternate. Text stands first, a span last. Both
    numbers are rounded up or down at random, where T5 takes the nearest.

    Args:
        text: int64 [length], not empty.
        sentinels: at least as many ids as there are spans.

    Returns:
        The damaged text, and the target.
    """
    noise = min(max(1, rounded(probability * len(text), generator)), max(1, len(text) - 1))
    kept = len(text) - noise
    spans = max(1, min(rounded(noise / MEAN_SPAN, generator), kept))
    gone = _divided(noise, spans, generator)
    stays = _divided(kept, spans, generator) if kept else np.zeros(1, dtype=np.int64)
    is_gone = np.repeat(np.tile([False, True], spans), np.stack([stays, gone], axis=1).ravel())
    source = np.insert(text[~is_gone], np.cumsum(stays), sentinels[:spans])
    target = np.insert(text[is_gone], np.cumsum(gone) - gone, sentinels[:spans])
    return source, target


def _divided(total: int, parts: int, generator: np.random.Generator) -> np.ndarray:
    """Divide a number into parts of at least 1, every way as likely as any other: int64 [parts]."""
    cuts = np.sort(generator.permutation(total - 1)[: parts - 1]) + 1
    return np.diff(cuts, prepend=0, append=total)


class Denoising(PackedPrediction):
    """Documents packed into rows on both sides: the n-th of the decoder sees the n-th of the encoder.

    A piece of a document keeps its frame `[start] ... [end]`; one that is cut ends with [end] too, so that a model
    always learns to stop. The decoder begins with [start].
    """

    name = "denoising"
    summary = "damaged text restored, for encoder-decoders, as BART and T5"
    options = ("mask_probability", "denoising")
    legend = ("reads: the encoder, damaged   writes: the decoder, in full, or what each sentinel stands for",)
    head = "AutoModelForSeq2SeqLM"
    shape = "encoder-decoder"
    spare = 1  # for the [end] of a piece that is cut

    def __init__(self, **parts: Any) -> None:
        super().__init__(**parts)
        self.kind = self.arguments.denoising
        if self.kind == "infilling":
            self.tokens.required_mask()
            return
        highest = max(*self.arguments.mask_rates, EVAL_PROBABILITY[self.kind])
        if highest > _HIGHEST_CORRUPTION:
            raise InputError(
                f"--mask_probability {highest} is too much for span_corruption: above {_HIGHEST_CORRUPTION} the spans "
                "with their sentinels are longer than the text"
            )
        needed = sentinels_needed(length=self.sequence_length, probability=highest)
        there = len(self.tokens.sentinels)
        if there < needed:
            raise InputError(
                f"--denoising span_corruption needs {needed} sentinels (<extra_id_0>, <extra_id_1>, ...) for rows of "
                f"{self.sequence_length} tokens, and the tokenizer has {there}; make one with "
                f"recipes/train_tokenizer.py --num_sentinels {-(-needed // 100) * 100}, or use --denoising infilling"
            )

    def _damaged(
        self, text: np.ndarray, probability: float, generator: np.random.Generator
    ) -> tuple[np.ndarray, np.ndarray]:
        """What the encoder reads of a text, and what the decoder writes."""
        if self.kind == "infilling":
            mask = self.tokens.required_mask()
            return fill_in(text, mask=mask, probability=probability, generator=generator)[0], text
        return corrupt_spans(text, sentinels=self.tokens.sentinels, probability=probability, generator=generator)

    def _example(self, row: Row, *, probability: float, generator: np.random.Generator) -> dict[str, Any]:
        sources, targets = [], []
        is_text = ~self.tokens.is_special[row.ids]
        for left, right in pairwise(row.bounds.tolist()):
            text = row.ids[left:right][is_text[left:right]]
            if len(text):  # a piece may be nothing but a frame
                source, target = self._damaged(text, probability, generator)
                start = [] if is_text[left] else [self.tokens.start]
                sources.append(np.concatenate([start, source, [self.tokens.end]]).astype(np.int64))
                targets.append(np.append(target, self.tokens.end))
        if not sources:  # a row that is nothing but a frame: no target
            sources, targets = [np.array([self.tokens.end])], [np.array([IGNORED])]
        example = {
            "input_ids": np.concatenate(sources),
            "position_ids": np.concatenate([np.arange(len(source)) for source in sources]),
            "decoder_input_ids": np.concatenate([np.append(self.tokens.start, target[:-1]) for target in targets]),
            "decoder_position_ids": np.concatenate([np.arange(len(target)) for target in targets]),
            "labels": np.concatenate(targets),
        }
        if self.arguments.packing == "none":
            del example["position_ids"], example["decoder_position_ids"]
        masks = {"attention_mask": "input_ids", "decoder_attention_mask": "labels"}
        return {**example, **{mask: np.ones_like(example[name]) for mask, name in masks.items()}}

    def example(self, row: int, index: int, progress: float = 0.0) -> dict[str, Any]:
        """`input_ids`, `attention_mask`, `position_ids` of the encoder, int64 [length <= sequence_length] each; the
        same of the decoder and `labels`, which are not to be shifted; spans from (seed, index)."""
        generator = random_stream(seed=self.seed, stream="noise", index=index)
        return self._example(self.rows[row], probability=self.mask_rate(progress), generator=generator)

    def eval_example(self, row: int) -> dict[str, Any]:
        """A held-out row with its frozen spans."""
        generator = random_stream(seed=self.seed, stream="evalnois", index=row)
        packed = self.eval_rows[int(self._evaluated[row])]
        return self._example(packed, probability=EVAL_PROBABILITY[self.kind], generator=generator)

    def collate(self, examples: list[dict[str, Any]]) -> dict[str, Tensor]:
        """Padded to the longest, on each side."""
        pad = self.tokens.pad
        return stack(examples, padding={"input_ids": pad, "decoder_input_ids": pad, "labels": IGNORED})

    def check_model(self, model: nn.Module) -> None:
        """Refuse a model that cannot be told which document of the decoder sees which of the encoder."""
        if self.arguments.packing != "none":
            require_argument(
                model,
                "decoder_position_ids",
                reason="it cannot keep the documents of a row apart; use --packing none",
            )

    def _inputs(self, batch: dict[str, Tensor]) -> dict[str, Any]:
        return {**{name: value for name, value in batch.items() if name != "labels"}, "use_cache": False}

    def loss(
        self, model: nn.Module, batch: dict[str, Tensor], num_targets: dict[str, Tensor]
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Cross-entropy of each token of the target given those before it and the damaged text."""
        labels, num_items = batch["labels"], num_targets["tokens"]
        options = loss_alone(model, z_loss=self.arguments.z_loss)
        if options:
            loss = model(**self._inputs(batch), labels=labels, num_items_in_batch=num_items, **options).loss
            return loss, {}
        logits = model(**self._inputs(batch)).logits
        loss = masked_loss(logits, labels, num_items)
        return self._with_z_loss(loss, {}, num_targets, (logits, labels))

    def evaluate(self, model: nn.Module, batch: dict[str, Tensor]) -> list[dict[str, Any]]:
        """Sums over the targets of each row; a few rows at a time, so that logits stay small."""
        step = logit_rows(length=batch["labels"].shape[1], vocab_size=self.tokens.vocab_size)
        byte_lengths = self.byte_lengths.to(batch["labels"].device)
        records: list[dict[str, Any]] = []
        for start in range(0, len(batch["labels"]), step):
            part = {name: value[start : start + step] for name, value in batch.items()}
            logits = model(**self._inputs(part)).logits.float()
            records += score_everywhere(logits, part["labels"], byte_lengths)
        return records

    def _count_tokens(self) -> np.ndarray:
        """As often as each token is a target in some rows of training: sentinels and ends are targets too."""
        counts = np.ones(self.tokens.vocab_size, dtype=np.int64)
        for row in spread(self.num_examples, _COUNTED_ROWS).tolist():
            labels = self.example(row, row)["labels"]
            counts += np.bincount(labels[labels != IGNORED], minlength=len(counts))
        return counts

    def _describe_targets(self) -> str:
        first, last = self.arguments.mask_rates
        rate = f"{first:.0%}" if first == last else f"{first:.0%} at first and {last:.0%} at last"
        if self.kind == "infilling":
            return (
                f"{rate} of the tokens go, one [MASK] stands for a span of them, and the whole text is to be written"
            )
        return f"{rate} of the tokens go, a sentinel stands for each span, and sentinels and spans are to be written"
