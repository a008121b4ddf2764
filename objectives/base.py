"""What all objectives share: training and held-out rows of a text, losses and scores of predicted tokens."""

import inspect
import math
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from lacuna.common.errors import InputError
from lacuna.common.private import counted
from lacuna.common.work import Work

from .arguments import ObjectiveArguments
from .data import IGNORED, SpecialTokens, Store, Tensors, add_hints, split_sources, spread_by_weight, stack, unwrap
from .packing import PACKINGS, PackedRow, SourceRows

_LOGIT_BYTES = 2**28  # logits held at once while evaluating: 256 MiB
_COUNTED = 50_000_000  # tokens counted for the unigram baseline; more would not change the digits shown
_COUNTED_AT_ONCE, _COUNTED_IN_A_ROW = 2**22, 2**16  # at most; at least, where as many follow one another


class TokenPrediction(Work):
    """An objective whose targets are tokens. Subclasses say what rows and examples are and how a batch is scored."""

    name: str  # the value of `--objective`
    summary: str  # its line in the help of `--objective`
    options: tuple[str, ...] = ()  # of the options that not every objective uses, those that this one does
    legend: tuple[str, ...]  # what the signs of `--show_examples` mean
    head: str  # the Auto class of the model it trains
    shape: str  # the shape of the model it trains
    eval_rate = 0.15
    """Held-out text is masked at BERT's rate whatever the training rate, so that losses can be compared."""
    piece = "document"  # what stands apart in a row
    evaluations = 1  # how many held-out examples are made of each held-out row
    predicts_document_ends = False
    fields: Mapping[str, bool] = MappingProxyType({})  # of the configuration of the model that it trains
    vocabulary: Mapping[str, Any] = MappingProxyType({})  # what is unusual in a tokenizer that is learned for it
    learns_means = False  # whether the states of a text are trained, not that of [CLS]: a classifier reads their mean

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
            byte_lengths: int64 [vocab_size], bytes of text that each token stands for.
            token_edges: uint8 [vocab_size, 2], see `mlm.find_words`.
            seed: decides the held-out part, masks, pairs and spans.
            sequence_length: tokens per row; each stage of a run has an objective of its own.

        Raises InputError: this text or tokenizer cannot provide what was asked.
        """
        self.store, self.tokens, self.seed, self.arguments = store, tokens, seed, arguments
        self.sequence_length, self.token_edges = sequence_length, token_edges
        self.byte_lengths = torch.from_numpy(byte_lengths)
        parts = split_sources(store=store, eval_fraction=arguments.eval_fraction, seed=seed)
        self.by_source, self.held_out_by_source = map(list, zip(*parts, strict=True))
        self.documents, self.held_out = np.concatenate(self.by_source), np.concatenate(self.held_out_by_source)
        self.rows, self.eval_rows = (
            SourceRows([self._rows_of(documents, source) for source, documents in enumerate(by_source)])
            for by_source in (self.by_source, self.held_out_by_source)
        )
        self.weights: list[float] | None = getattr(store, "source_weights", None)
        mixed = sum(map(bool, self.eval_rows.sizes)) > 1
        evaluated = spread_by_weight(
            self.eval_rows.sizes, self.weights if mixed else None, arguments.max_eval_examples // self.evaluations
        )
        self._evaluated = np.repeat(evaluated, self.evaluations)
        self.num_examples, self.num_eval_examples = len(self.rows), len(self._evaluated)

    def _rows_of(self, documents: np.ndarray, source: int) -> Any:
        """The rows of some documents of a source, int64 [num_documents, 2]."""
        raise NotImplementedError

    @property
    def mixture(self) -> list[tuple[int, float]]:
        """(rows, weight) of each source, whose rows follow one another; empty if sources have no weights."""
        return list(zip(self.rows.sizes, self.weights, strict=True)) if self.weights else []

    def example(self, row: int, index: int) -> dict[str, Any]:
        return self._example(self.rows[row], index, rate=self.arguments.mask_probability, held_out=False)

    def held_out_texts(self, tokenizer: Any, number: int = 20) -> list[str]:
        """The beginnings of the first documents that are held out."""
        texts = []
        for first, last in self.held_out[:number].tolist():
            begin, end = (int(self.store.sentence_offsets[place]) for place in (first, last))
            texts.append(tokenizer.decode(np.asarray(self.store.tokens[begin : min(end, begin + 48)]).tolist()))
        return texts

    def eval_example(self, row: int) -> dict[str, Any]:
        return self._example(self.eval_rows[int(self._evaluated[row])], row, rate=self.eval_rate, held_out=True)

    def _example(self, row: Any, index: int, *, rate: float, held_out: bool) -> dict[str, Any]:
        """An example of `row`, one of `rows` or `eval_rows`, with a share `rate` of its tokens hidden.

        Its random numbers depend on `index`, the number of the training sample or of the held-out example.
        """
        raise NotImplementedError

    def collate(self, examples: list[dict[str, Any]]) -> Tensors:
        return stack(examples, padding={"input_ids": self.tokens.pad, "labels": IGNORED})

    def wanted(self, labels: Tensor) -> Tensor:
        """What each position predicts, [batch, length]."""
        return labels

    def with_hints(self, batch: Tensors) -> Tensors:
        """Add the bounds of documents and the positions that predict something."""
        return add_hints(batch, targets=self.wanted(batch["labels"]))

    def check_model(self, model: nn.Module) -> None:
        """Raise InputError, before training, for a model that cannot learn this."""

    def _loss_alone(self, model: nn.Module) -> dict[str, bool]:
        """Options that make a model of Lacuna return its loss without logits, which are most of a step's memory."""
        return {"skip_logits": True} if getattr(unwrap(model), "can_skip_logits", False) else {}

    def in_parts(self, batch: Tensors) -> Iterator[Tensors]:
        """A few rows of a batch at a time, so that float32 logits of all their positions stay small."""
        num_rows, length = batch["labels"].shape
        step = max(1, _LOGIT_BYTES // (4 * length * self.tokens.vocab_size))
        for start in range(0, num_rows, step):
            yield {name: value[start : start + step] for name, value in batch.items()}

    def count_targets(self, batch: Tensors) -> dict[str, int]:
        """Positions with a label."""
        return {"tokens": int((batch["labels"] != IGNORED).sum())}

    def summarize(self, records: list[dict[str, Any]]) -> dict[str, float]:
        """Loss (nats per target), share predicted exactly, bits per byte of predicted text; independent of order."""
        nats, size, targets, hits = (
            math.fsum(record[name] for record in records) for name in ("nats", "bytes", "targets", "hits")
        )
        return {
            "loss": nats / max(targets, 1),
            "accuracy": hits / max(targets, 1),
            "bits_per_byte": nats / math.log(2) / max(size, 1),
        }

    def describe(self) -> str:
        """Two lines for people: rows, padding and what is cropped; what is predicted."""
        return f"{self._describe_rows()}\n{self._describe_targets()}"

    def _describe_rows(self) -> str:
        raise NotImplementedError

    def _describe_targets(self) -> str:
        raise NotImplementedError

    def baseline(self) -> dict[str, float]:
        """Metrics of a model that only knows how often each token occurs in training; empty if nothing is held out."""
        if not self.num_eval_examples:
            return {}
        counts = self._count_tokens()
        nats, sizes = -np.log(counts / counts.sum()), self.byte_lengths.numpy()
        best = int(counts.argmax())
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
        """What `summarize` needs in a baseline's record besides the tokens."""
        return {}

    def _count_tokens(self) -> np.ndarray:
        """How often each token is a target, plus one: int64 [vocab_size]."""
        counts = np.ones(self.tokens.vocab_size, dtype=np.int64)
        for text in self.training_text():
            counts += np.bincount(text, minlength=self.tokens.vocab_size)
        if self.predicts_document_ends:
            counts[self.tokens.end] += len(self.documents)
        return counts

    def training_text(self, at_most: int = _COUNTED) -> Iterator[np.ndarray]:
        """Tokens of the training part, in stretches of the store; of more than `at_most`, evenly spread ones."""
        if not len(self.documents):
            return
        firsts, lasts = self.documents.T
        breaks = np.flatnonzero(firsts[1:] != lasts[:-1]) + 1  # documents that are held out lie between
        offsets = self.store.sentence_offsets
        ends = [
            (int(offsets[int(part[0, 0])]), int(offsets[int(part[-1, 1])]))
            for part in np.split(self.documents, breaks)
        ]
        total, passed, taken = sum(end - begin for begin, end in ends), 0, 0
        for begin, end in ends:
            for start in range(begin, end, _COUNTED_AT_ONCE):
                stop = min(start + _COUNTED_AT_ONCE, end)
                passed += stop - start
                if (missing := math.ceil(min(total, at_most) * passed / total) - taken) > 0:
                    found = np.asarray(self.store.tokens[start : min(stop, start + max(missing, _COUNTED_IN_A_ROW))])
                    taken += len(found)
                    yield found


class PackedPrediction(TokenPrediction):
    """An objective over packed rows of documents."""

    options: tuple[str, ...] = ("packing",)
    overlap = 0  # tokens that a piece of a document shares with the next one
    spare = 0  # tokens of a row that are left free for what the objective adds
    one_shape = True  # whether filled rows make batches of one shape

    def _rows_of(self, documents: np.ndarray, source: int) -> Any:
        return PACKINGS[self.arguments.packing](
            store=self.store,
            documents=documents,
            tokens=self.tokens,
            length=self.sequence_length - self.spare,
            overlap=self.overlap,
        )

    def fixed_length(self, rows: int) -> bool:
        """Whether all training batches of so many rows have one shape; unpacked rows are as long as documents."""
        return self.one_shape and self.arguments.packing != "none"

    def check_model(self, model: nn.Module) -> None:
        """Refuse a model that reads across the documents of a row.

        It is tried: one token of the first document changes, and no prediction may change in the second.
        """
        if self.arguments.packing == "none":
            return
        reason = "it cannot keep the documents of a row apart; use --packing none"
        require_argument(model, "position_ids", reason=reason)
        token, other = self.tokens.ordinary[[0, -1]].tolist()
        rows = torch.full((2, 8), token)
        rows[1, 1] = other
        positions = torch.arange(4).repeat(2, 2)
        options = {"use_cache": False} if "use_cache" in inspect.signature(model.forward).parameters else {}
        device, training = next(model.parameters()).device, model.training
        model.eval()
        with torch.no_grad():
            logits = model(input_ids=rows.to(device), position_ids=positions.to(device), **options).logits.float()
        model.train(training)
        if not torch.allclose(logits[0, 4:], logits[1, 4:], rtol=0, atol=1e-5):
            raise InputError(
                f"{type(model).__name__} reads across the documents of a packed row; use --packing none with it"
            )

    def _finished(self, row: PackedRow, ids: np.ndarray, labels: np.ndarray) -> dict[str, Any]:
        """`input_ids`, `labels` and what keeps documents apart: `position_ids`, which restart, or `attention_mask` if
        a row is one document; int64 [length] each, padded."""
        if self.arguments.packing == "none":
            return {"input_ids": ids, "attention_mask": np.ones_like(ids), "labels": labels}
        missing = self.sequence_length - len(ids)
        return {
            "input_ids": np.pad(ids, (0, missing), constant_values=self.tokens.pad),
            # Padding is a document of its own, so that no attention mask is needed.
            "position_ids": np.concatenate([row.positions, np.arange(missing)]),
            "labels": np.pad(labels, (0, missing), constant_values=IGNORED),
        }

    def _describe_rows(self) -> str:
        packing, padding = self.arguments.packing, f"{self.rows.padding:.2%} padding"
        up_to, filled = ("up to ", " if all were filled up") if packing == "none" else ("", "")
        return (
            f"{counted(self.num_examples, 'row')} of {up_to}{self.sequence_length:,} tokens from "
            f"{counted(len(self.documents), 'document')}, --packing {packing}: {padding}{filled}, no token cropped; "
            f"{len(self._evaluated) // self.evaluations:,} of {len(self.eval_rows):,} held-out rows are evaluated"
        )


def require_argument(model: nn.Module, name: str, *, reason: str) -> None:
    """Refuse a model whose `forward` does not name an argument; many accept any and ignore what they do not know.

    `reason`: what the model cannot do without it, and what to do.
    """
    bare = unwrap(model)
    if name not in inspect.signature(bare.forward).parameters:
        raise InputError(f"{type(bare).__name__} takes no {name}: {reason}")


def at_targets(logits: Tensor, labels: Tensor) -> Tensor:
    """Logits at the targets only, [num_targets, vocab_size], in row-major order.

    They may be there already, or be [batch, length, vocab_size]; labels [batch, length] are IGNORED where there is no
    target.
    """
    return logits[labels != IGNORED] if logits.ndim == 3 else logits


def token_loss(logits: Tensor, labels: Tensor, num_targets: Tensor) -> Tensor:
    """Cross-entropy in nats, summed over the targets of a batch and divided by those of the step.

    For native models, most of which take the mean over their batch whatever `num_items_in_batch` says.
    """
    targets = labels[labels != IGNORED]
    return functional.cross_entropy(at_targets(logits, labels).float(), targets, reduction="sum") / num_targets


def score_targets(logits: Tensor, labels: Tensor, byte_lengths: Tensor) -> list[dict[str, Any]]:
    """One record per row: loss in nats, bytes, targets and hits.

    Logits and labels are as in `at_targets`; `byte_lengths`, [vocab_size], are bytes of text each token stands for.
    """
    is_target = labels != IGNORED
    logits, wanted = at_targets(logits, labels), labels[is_target]
    losses = functional.cross_entropy(logits.float(), wanted, reduction="none")
    nats = losses.new_zeros(labels.shape).masked_scatter(is_target, losses)
    hits = torch.zeros_like(is_target).masked_scatter(is_target, logits.argmax(dim=-1) == wanted)
    size = byte_lengths.to(labels.device)[labels.clamp(min=0)] * is_target
    columns = torch.stack([column.cpu().double().sum(dim=1) for column in (nats, size, is_target, hits)], dim=1)
    names = ("nats", "bytes", "targets", "hits")
    return [dict(zip(names, values, strict=True)) for values in columns.tolist()]
