"""What all objectives share: a training part and a held-out part of a store, rows, and scores of predicted tokens."""

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from lacuna.common.work import Work

from .arguments import ObjectiveArguments
from .data import IGNORED, SpecialTokens, Store, split_sources, spread, spread_by_weight, stack
from .masking import Masking
from .models import require_documents_apart
from .packing import PACKINGS, Row, SourceRows
from .z_loss import summed_z_loss

_COUNTED = 50_000_000
"""Tokens counted for the unigram baseline; the frequencies of more would not differ in the digits shown."""

_COUNTED_AT_ONCE = 2**22


class TokenPrediction(Work):
    """An objective whose targets are tokens. Subclasses say what an example is and how a batch is scored."""

    name: str
    """What `--objective` calls it."""
    summary: str
    """What the help of `--objective` says of it."""
    options: tuple[str, ...] = ()
    """The options that it has a use for, of those that some objectives have none for."""
    legend: tuple[str, ...]
    """What the signs of `--show_examples` mean."""
    head: str
    """The Auto class of the model it trains."""
    shape: str
    """The shape of the model it trains."""
    predicts_document_ends = False

    def __init__(
        self,
        *,
        store: Store,
        tokens: SpecialTokens,
        byte_lengths: np.ndarray,
        token_edges: np.ndarray,
        seed: int,
        sequence_length: int,
        arguments: ObjectiveArguments,
    ) -> None:
        """
        Args:
            store: the text as tokens.
            tokens: which ids are special.
            byte_lengths: int64 [vocab_size], bytes of text that each token stands for.
            token_edges: uint8 [vocab_size, 2], see `masking.find_words`.
            seed: decides the held-out part, masks, pairs and spans.
            sequence_length: tokens in a row; for a run in stages each stage has an objective of its own.
            arguments: the options.

        Raises:
            InputError: what was asked cannot be had with this text or tokenizer.
        """
        self.store, self.tokens, self.seed, self.arguments = store, tokens, seed, arguments
        self.sequence_length = sequence_length
        self.byte_lengths = torch.from_numpy(byte_lengths)
        parts = split_sources(store=store, eval_fraction=arguments.eval_fraction, seed=seed)
        self.by_source = [train for train, _ in parts]
        self.held_out_by_source = [held_out for _, held_out in parts]
        self.documents, self.held_out = (np.concatenate(documents) for documents in zip(*parts, strict=True))
        self.weights: list[float] | None = getattr(store, "source_weights", None)
        self.masking = Masking(
            tokens=tokens,
            edges=token_edges,
            how=arguments.masking,
            mask_share=arguments.mask_replace_prob,
            random_share=arguments.random_replace_prob,
        )
        # The same whatever the options of training, so that held-out losses can be compared.
        self.eval_masking = Masking(tokens=tokens, edges=token_edges)

    @property
    def mixture(self) -> list[tuple[int, float]]:
        """(rows, weight) of each source, whose rows lie one after another; empty where no source has a weight."""
        return list(zip(self._row_counts(), self.weights, strict=True)) if self.weights else []

    def _row_counts(self) -> list[int]:
        """Training rows of each source."""
        raise NotImplementedError

    def mask_rate(self, progress: float) -> float:
        """Share of tokens to hide when `progress` (0 to 1) of the run is done."""
        first, last = self.arguments.mask_rates
        return first + (last - first) * progress

    def _evaluated_rows(self, sizes: list[int], at_most: int) -> np.ndarray:
        """Which held-out rows are evaluated, of sources with `sizes` of them."""
        if self.weights is None:
            return spread(sum(sizes), at_most)
        return spread_by_weight(sizes, self.weights, at_most)

    def example(self, row: int, index: int, progress: float = 0.0) -> dict[str, Any]:
        """Training example `row` as seen at global sample number `index`, when `progress` of the run is done."""
        raise NotImplementedError

    def eval_example(self, row: int) -> dict[str, Any]:
        """Held-out example `row`, always the same."""
        raise NotImplementedError

    def collate(self, examples: list[dict[str, Any]]) -> dict[str, Tensor]:
        """Examples as tensors [batch, length], padded to the longest."""
        return stack(examples, padding={"input_ids": self.tokens.pad, "labels": IGNORED})

    def check_model(self, model: nn.Module) -> None:
        """Refuse, before training, a model that cannot learn this.

        Raises:
            InputError: says why, and what to do.
        """

    def loss(
        self, model: nn.Module, batch: dict[str, Tensor], num_targets: dict[str, Tensor]
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """The batch's share of the step's loss, and its parts."""
        raise NotImplementedError

    def _with_z_loss(
        self, loss: Tensor, parts: dict[str, Tensor], num_targets: dict[str, Tensor], *scored: tuple[Any, Tensor]
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Add the z-loss, times its weight, to a loss and to its parts; without a weight nothing is computed.

        Args:
            scored: pairs of logits and labels, see `summed_z_loss`.
        """
        if not self.arguments.z_loss:
            return loss, parts
        summed = torch.stack([summed_z_loss(logits, labels) for logits, labels in scored]).sum()
        z_loss = self.arguments.z_loss * summed / num_targets["tokens"]
        return loss + z_loss, {**parts, "z_loss": z_loss.detach()}

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

    def describe(self) -> str:
        """One or two lines for people: rows, padding, what is cropped, what is predicted."""
        raise NotImplementedError

    def baseline(self) -> dict[str, float]:
        """The same of a model that knows only how often each token occurs in the training part.

        Empty where nothing is held out.
        """
        if not self.num_eval_examples:
            return {}
        counts = self._count_tokens()
        nats = -np.log(counts / counts.sum())
        best = int(counts.argmax())
        sizes = self.byte_lengths.numpy()
        records = []
        for row in range(self.num_eval_examples):
            example = self.eval_example(row)
            targets = example["labels"][example["labels"] != IGNORED]
            records.append(
                {
                    "nats": float(nats[targets].sum()),
                    "bytes": float(sizes[targets].sum()),
                    "targets": float(len(targets)),
                    "hits": float((targets == best).sum()),
                    **self._known_without_text(example),
                }
            )
        return self.summarize(records)

    def _known_without_text(self, example: dict[str, Any]) -> dict[str, Any]:
        """What `summarize` wants of a baseline's record besides its tokens."""
        return {}

    def _count_tokens(self) -> np.ndarray:
        """How often each token is a target, plus one: int64 [vocab_size]."""
        counts = np.ones(self.tokens.vocab_size, dtype=np.int64)
        for text in self._training_text():
            counts += np.bincount(text, minlength=self.tokens.vocab_size)
        if self.predicts_document_ends:
            counts[self.tokens.end] += len(self.documents)
        return counts

    def _training_text(self) -> Iterator[np.ndarray]:
        """The first tokens of the training part, in stretches that lie together in the store."""
        if not len(self.documents):
            return
        breaks = np.flatnonzero(self.documents[1:, 0] != self.documents[:-1, 1]) + 1
        firsts = self.documents[np.concatenate([[0], breaks]), 0]
        lasts = self.documents[np.concatenate([breaks - 1, [-1]]), 1]
        left = _COUNTED
        for first, last in zip(firsts, lasts, strict=True):
            begin, end = int(self.store.sentence_offsets[int(first)]), int(self.store.sentence_offsets[int(last)])
            for start in range(begin, min(end, begin + left), _COUNTED_AT_ONCE):
                yield np.asarray(self.store.tokens[start : min(start + _COUNTED_AT_ONCE, end, begin + left)])
            left -= end - begin
            if left <= 0:
                return


class PackedPrediction(TokenPrediction):
    """An objective over packed rows of documents."""

    overlap = 0
    """Tokens that a piece of a document shares with the next one."""
    spare = 0
    """Tokens of a row that are kept free for what the objective adds."""

    def __init__(self, **parts: Any) -> None:
        super().__init__(**parts)
        self.rows, self.eval_rows = (
            SourceRows(
                [
                    PACKINGS[self.arguments.packing](
                        store=self.store,
                        documents=documents,
                        tokens=self.tokens,
                        length=self.sequence_length - self.spare,
                        overlap=self.overlap,
                    )
                    for documents in by_source
                ]
            )
            for by_source in (self.by_source, self.held_out_by_source)
        )
        self._evaluated = self._evaluated_rows(self.eval_rows.sizes, self.arguments.max_eval_examples)
        self.num_examples, self.num_eval_examples = len(self.rows), len(self._evaluated)

    def check_model(self, model: nn.Module) -> None:
        """Refuse a model that reads across the documents of a row, where rows hold several."""
        if self.arguments.packing != "none":
            token, other = self.tokens.ordinary[[0, -1]].tolist()
            require_documents_apart(model, token=token, other=other)

    def _row_counts(self) -> list[int]:
        return self.rows.sizes

    def _finished(self, row: Row, ids: np.ndarray, labels: np.ndarray) -> dict[str, np.ndarray]:
        """Add what tells documents apart: positions that restart and padding, or where rows hold one a mask."""
        if self.arguments.packing == "none":
            return {"input_ids": ids, "attention_mask": np.ones_like(ids), "labels": labels}
        missing = self.sequence_length - len(ids)
        return {
            "input_ids": np.pad(ids, (0, missing), constant_values=self.tokens.pad),
            # Padding is a document of its own, so that no attention mask is needed.
            "position_ids": np.concatenate([row.positions, np.arange(missing)]),
            "labels": np.pad(labels, (0, missing), constant_values=IGNORED),
        }

    def describe(self) -> str:
        """Rows, padding, and what is predicted."""
        return f"{self._describe_rows()}\n{self._describe_targets()}"

    def _describe_rows(self) -> str:
        arguments = self.arguments
        lengths = f"{self.num_examples:,} rows of {self.sequence_length:,} tokens"
        padding = f"{self.rows.padding:.2%} of them padding"
        if arguments.packing == "none":
            lengths = f"{self.num_examples:,} rows of up to {self.sequence_length:,} tokens"
            padding = f"{self.rows.padding:.2%} padding if all were filled up (they are, to the longest of a batch)"
        documents = "document" if len(self.documents) == 1 else "documents"
        return (
            f"{lengths} from {len(self.documents):,} {documents}, --packing {arguments.packing}: {padding}, no token "
            f"cropped; {len(self._evaluated):,} of {len(self.eval_rows):,} held-out rows are evaluated"
        )

    def _describe_targets(self) -> str:
        raise NotImplementedError


def describe_masking(arguments: ObjectiveArguments) -> str:
    """One line on what is hidden and how."""
    first, last = arguments.mask_rates
    rate = f"{first:.0%}" if first == last else f"{first:.0%} falling to {last:.0%}" if last < first else ""
    rate = rate or f"{first:.0%} rising to {last:.0%}"
    what = {"token": "tokens", "whole_word": "tokens, by whole words,", "span": "tokens, by spans of words,"}
    stay = 1 - arguments.mask_replace_prob - arguments.random_replace_prob
    return (
        f"{rate} of the {what[arguments.masking]} are to be found: {arguments.mask_replace_prob:.0%} of these are "
        f"hidden behind [MASK], {arguments.random_replace_prob:.0%} replaced at random, {max(stay, 0):.0%} left as "
        "they are"
    )
