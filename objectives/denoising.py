"""`denoising`: an encoder reads damaged text, and a decoder writes the whole.

It is the infilling of BART (Lewis et al., 2020, https://arxiv.org/abs/1910.13461, section 2.2).
"""

from itertools import pairwise
from typing import Any

import numpy as np
from torch import Tensor, nn

from .base import PackedPrediction, require_argument, score_targets, token_loss
from .data import HINTS, IGNORED, Tensors, random_stream, rounded, spread, stack
from .packing import PackedRow

_MEAN_SPAN = 3  # tokens
_COUNTED_ROWS = 512  # training rows from which the baseline counts its tokens


def fill_in(
    text: np.ndarray, *, mask: int, probability: float, generator: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """Replace spans by one mask token each; their lengths are Poisson(3), and those of length 0 insert a mask.

    `probability * length` tokens go, rounded up or down at random, at least one; the last span is cut to that. Spans
    and the tokens between them are laid out in random order. So that the text still fits its row, inserted masks that
    would make it longer than it was are left out.

    The text, int64 [length], is not empty. Returns the corrupted one, and the lengths of the spans in its order.
    """
    budget = min(max(1, rounded(probability * len(text), generator)), len(text))
    lengths = generator.poisson(_MEAN_SPAN, size=budget + 8)
    lengths = lengths[: int(np.searchsorted(np.cumsum(lengths), budget)) + 1]
    lengths[-1] -= lengths.sum() - budget  # also where all of them together were too few
    real = lengths[lengths > 0]
    lengths = np.concatenate([real, np.zeros(min(len(lengths), budget) - len(real), dtype=np.int64)])
    order = generator.permutation(len(lengths) + len(text) - budget)
    blocks = np.concatenate([lengths, np.ones(len(text) - budget, dtype=np.int64)])[order]
    starts = np.minimum(np.cumsum(blocks) - blocks, len(text) - 1)
    is_span = order < len(lengths)
    return np.where(is_span, mask, text[starts]), blocks[is_span]


class Denoising(PackedPrediction):
    """Documents packed into rows on both sides: the n-th of the decoder sees the n-th of the encoder.

    A piece of a document keeps its frame `[start] ... [end]`; one that is cut also ends with [end], so that the model
    always learns to stop. The decoder begins with [start].
    """

    name = "denoising"
    summary = "damaged text restored, for encoder-decoders, as BART"
    options = ("mask_probability", "packing")
    legend = ("reads: the encoder, damaged   writes: the decoder, in full",)
    head = "AutoModelForSeq2SeqLM"
    shape = "encoder-decoder"
    eval_rate = 0.3  # BART's
    spare = 1  # for the [end] of a piece that is cut
    one_shape = False

    def __init__(self, **parts: Any) -> None:
        super().__init__(**parts)
        self.tokens.required_mask()

    def _example(self, row: PackedRow, index: int, *, rate: float, held_out: bool) -> dict[str, Any]:
        """`input_ids`, `attention_mask`, `position_ids` of the encoder, int64 [length <= sequence_length] each; the
        same of the decoder, and `labels`, which are not to be shifted."""
        generator = random_stream(seed=self.seed, stream="evalnois" if held_out else "noise", index=index)
        sources, targets = [], []
        is_text = ~self.tokens.is_special[row.ids]
        for left, right in pairwise(row.bounds.tolist()):
            text = row.ids[left:right][is_text[left:right]]
            if len(text):  # a piece may be nothing but a frame
                source, _ = fill_in(text, mask=self.tokens.required_mask(), probability=rate, generator=generator)
                start = [] if is_text[left] else [self.tokens.start]
                sources.append(np.concatenate([start, source, [self.tokens.end]]).astype(np.int64))
                targets.append(np.append(text, self.tokens.end))
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

    def collate(self, examples: list[dict[str, Any]]) -> Tensors:
        pad = self.tokens.pad
        return stack(examples, padding={"input_ids": pad, "decoder_input_ids": pad, "labels": IGNORED})

    def check_model(self, model: nn.Module) -> None:
        """Refuse a model that cannot be told which document of the decoder sees which of the encoder."""
        if self.arguments.packing != "none":
            reason = "it cannot keep the documents of a row apart; use --packing none"
            require_argument(model, "decoder_position_ids", reason=reason)

    def _inputs(self, batch: Tensors) -> dict[str, Any]:
        return {**{name: value for name, value in batch.items() if name not in ("labels", *HINTS)}, "use_cache": False}

    def loss(self, model: nn.Module, batch: Tensors, num_targets: Tensors) -> tuple[Tensor, Tensors]:
        """Cross-entropy of each token of the target given those before it and the corrupted text."""
        labels, num_items = batch["labels"], num_targets["tokens"]
        if options := self._loss_alone(model):
            options |= {"target_positions": batch["target_positions"]} if "target_positions" in batch else {}
            loss = model(**self._inputs(batch), labels=labels, num_items_in_batch=num_items, **options).loss
            return loss, {}
        return token_loss(model(**self._inputs(batch)).logits, labels, num_items), {}

    def evaluate(self, model: nn.Module, batch: Tensors) -> list[dict[str, Any]]:
        records: list[dict[str, Any]] = []
        for part in self.in_parts(batch):
            records += score_targets(model(**self._inputs(part)).logits, part["labels"], self.byte_lengths)
        return records

    def _count_tokens(self) -> np.ndarray:
        """How often each token is a target in some training rows, plus one: ends are targets too."""
        counts = np.ones(self.tokens.vocab_size, dtype=np.int64)
        for row in spread(self.num_examples, _COUNTED_ROWS).tolist():
            labels = self.example(row, row)["labels"]
            counts += np.bincount(labels[labels != IGNORED], minlength=len(counts))
        return counts

    def _describe_targets(self) -> str:
        rate = f"{self.arguments.mask_probability:.0%}"
        return f"{rate} of the tokens go, one [MASK] stands for a span of them, and all text is to be written"
