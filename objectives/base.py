"""What all objectives share: a training part and a held-out part of a store, and scores of predicted tokens."""

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from .data import IGNORED, SpecialTokens, Store, split_documents

_COUNTED = 50_000_000
"""Tokens counted for the unigram baseline; the frequencies of more would not differ in the digits shown."""


class TokenPrediction:
    """An objective whose targets are tokens. Subclasses say what an example is and how a batch is scored."""

    name: str
    """What `--objective` calls it."""
    head: str
    """The Auto class of the model it trains."""
    shape: str
    """The shape of the model it trains."""
    metric = "loss"
    greater_is_better = False
    num_examples: int
    num_eval_examples: int
    predicts_document_ends = False

    def __init__(
        self,
        *,
        store: Store,
        tokens: SpecialTokens,
        byte_lengths: np.ndarray,
        sequence_length: int,
        seed: int,
        eval_fraction: float,
        max_eval_examples: int,
        mask_probability: float,
    ) -> None:
        """
        Args:
            store: the text as tokens.
            tokens: which ids are special.
            byte_lengths: int64 [vocab_size], bytes of text that each token stands for.
            sequence_length: tokens in a row.
            seed: decides the held-out part, masks and pairs.
            eval_fraction: share of the text to hold out.
            max_eval_examples: at most this many held-out examples are evaluated, evenly spread.
            mask_probability: share of tokens to predict; without effect where nothing is masked.

        Raises:
            ObjectiveError: what was asked cannot be had with this text or tokenizer.
        """
        self.store, self.tokens, self.seed, self.mask_probability = store, tokens, seed, mask_probability
        self.byte_lengths = torch.from_numpy(byte_lengths)
        self.sequence_length, self.max_eval_examples = sequence_length, max_eval_examples
        self.documents, self.held_out = split_documents(store=store, eval_fraction=eval_fraction, seed=seed)

    def example(self, row: int, index: int) -> dict[str, Any]:
        """Training example `row` as seen at global sample number `index`."""
        raise NotImplementedError

    def eval_example(self, row: int) -> dict[str, Any]:
        """Held-out example `row`, always the same."""
        raise NotImplementedError

    def collate(self, examples: list[dict[str, Any]]) -> dict[str, Tensor]:
        """Examples as tensors [batch, length]."""
        raise NotImplementedError

    def loss(
        self, model: nn.Module, batch: dict[str, Tensor], num_targets: dict[str, Tensor]
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """The batch's share of the step's loss, and its parts."""
        raise NotImplementedError

    def evaluate(self, model: nn.Module, batch: dict[str, Tensor]) -> list[dict[str, Any]]:
        """For each example: nats, bytes, targets and hits."""
        raise NotImplementedError

    def count_targets(self, batch: dict[str, Tensor]) -> dict[str, int]:
        """Positions with a label."""
        return {"tokens": int((batch["labels"] != IGNORED).sum())}

    def summarize(self, records: list[dict[str, Any]]) -> dict[str, float]:
        """Loss (nats a target), share predicted exactly, bits per byte of predicted text; independent of order."""
        nats, size, targets, hits = (
            math.fsum(record[name] for record in records) for name in ("nats", "bytes", "targets", "hits")
        )
        return {
            "loss": nats / max(targets, 1),
            "accuracy": hits / max(targets, 1),
            "bits_per_byte": nats / math.log(2) / max(size, 1),
        }

    def baseline(self) -> dict[str, float]:
        """The same of a model that knows only how often each token occurs in the training part.

        Empty where nothing is held out.
        """
        if not self.num_eval_examples:
            return {}
        counts = np.ones(self.tokens.vocab_size, dtype=np.int64)
        seen = 0
        for first, last in self.documents:
            text = self.store.tokens[self.store.sentence_offsets[first] : self.store.sentence_offsets[last]]
            counts += np.bincount(text, minlength=self.tokens.vocab_size)
            seen += len(text)
            if seen >= _COUNTED:
                break
        if self.predicts_document_ends:
            counts[self.tokens.end] += len(self.documents)
        labels = (self.eval_example(row)["labels"] for row in range(self.num_eval_examples))
        targets = np.concatenate([array[array != IGNORED] for array in labels])
        nats = -np.log(counts / counts.sum())[targets]
        return {
            "loss": float(nats.mean()),
            "accuracy": float((targets == counts.argmax()).mean()),
            "bits_per_byte": float(nats.sum() / np.log(2) / max(self.byte_lengths.numpy()[targets].sum(), 1)),
        }
