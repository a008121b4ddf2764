"""What all objectives build examples with: special tokens, random numbers, the held-out split, padding to a batch."""

from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from lacuna.common.errors import InputError
from lacuna.common.work import Tensors

IGNORED = -100  # the label of a position that is no target, as everywhere in transformers

TOKENS_A_SLOT = 128
"""A batch has as many bounds of documents as if documents had this many tokens: one number for all batches of a shape,
so that nothing is recompiled. If there are more documents, twice, four times ... as many."""

HINTS = ("document_bounds", "target_positions")


class Store(Protocol):
    """What objectives read from a token store: arrays that may lie on disk, of which slices and rows are read.

    `corpus.TokenStore` is one. A store of several sources also has `source_offsets`, [num_sources + 1] in documents,
    `source_names`, and `source_weights`: a list that adds up to 1, or None if each text counts by its size.
    """

    tokens: Any  # [num_tokens], without special tokens
    sentence_offsets: Any  # [num_sentences + 1], in tokens
    document_offsets: Any  # [num_documents + 1], in sentences


@dataclass(frozen=True, eq=False)
class SpecialTokens:
    """The ids that are not text."""

    pad: int
    start: int
    end: int
    mask: int | None
    is_special: np.ndarray  # bool [vocab_size]
    ordinary: np.ndarray  # the ids that are text, int64

    @property
    def vocab_size(self) -> int:
        """Number of ids, special ones included."""
        return len(self.is_special)

    @classmethod
    def of(cls, tokenizer: Any) -> "SpecialTokens":
        """Read them from a tokenizer; a document is framed by [CLS] and [SEP], or else by beginning and end of text.

        Raises InputError: the tokenizer has neither.
        """

        def first(*names: str) -> int | None:
            found = (getattr(tokenizer, f"{name}_token_id", None) for name in names)
            return next((token for token in found if token is not None), None)

        start, end = first("cls", "bos", "eos"), first("sep", "eos")
        if start is None or end is None:
            raise InputError("the tokenizer has no token for the start or end of a document (cls/bos, sep/eos)")
        pad = first("pad")
        is_special = np.zeros(len(tokenizer), dtype=bool)
        is_special[list(tokenizer.all_special_ids)] = True
        return cls(
            pad=end if pad is None else pad,
            start=start,
            end=end,
            mask=first("mask"),
            is_special=is_special,
            ordinary=np.flatnonzero(~is_special),
        )

    def required_mask(self) -> int:
        """The mask token's id. Raises InputError: the tokenizer has none."""
        if self.mask is None:
            raise InputError("this objective masks tokens, and the tokenizer has no mask token; use --objective clm")
        return self.mask


def random_stream(*, seed: int, stream: str, index: int) -> np.random.Generator:
    """Random numbers that depend on (seed, stream, index) and on nothing else.

    Philox is a counter-based generator (Salmon et al., 2011, https://doi.org/10.1145/2063384.2063405): the key names
    the stream and the highest counter word the sample, so streams never meet. The first 8 bytes of a stream's name
    count. Making one takes about 20 microseconds.
    """
    key = int.from_bytes(stream.encode()[:8], "little")
    return np.random.Generator(np.random.Philox(key=[seed, key], counter=[0, 0, 0, index]))


def rounded(number: float, generator: np.random.Generator) -> int:
    """Round up or down at random, so that the mean is `number`: 0.15 of 62 tokens must not always be 9, or 0.145."""
    return int(number + generator.random())


def split_sources(*, store: Store, eval_fraction: float, seed: int) -> list[tuple[np.ndarray, np.ndarray]]:
    """Divide the documents of each source into a training part and a held-out part, see `split_documents`.

    Without weights the whole text is one source: held-out documents come from all of it. A source that is a single
    sentence stays in the training part. Documents behind the last source (--eval_data) are the held-out part where
    there are any, as if all were of the first source.
    """
    offsets = np.asarray(store.document_offsets[:], dtype=np.int64)
    documents = np.stack([offsets[:-1], offsets[1:]], axis=1)
    weights, given = getattr(store, "source_weights", None), getattr(store, "source_offsets", None)
    end = len(documents) if given is None else int(given[-1])
    sources = [0, end] if weights is None or given is None else [*map(int, given)]
    if end < len(documents):
        held_out = [documents[end:], *(documents[:0] for _ in sources[2:])]
        return [(documents[first:last], held) for (first, last), held in zip(pairwise(sources), held_out, strict=True)]
    if weights is None:
        return [split_documents(store=store, documents=documents, eval_fraction=eval_fraction, seed=seed)]
    parts = []
    for source, (first, last) in enumerate(pairwise(sources)):
        own = documents[first:last]
        fraction = 0 if len(own) == 1 and own[0, 1] - own[0, 0] == 1 else eval_fraction
        parts.append(split_documents(store=store, documents=own, eval_fraction=fraction, seed=seed, source=source))
    return parts


def split_documents(
    *, store: Store, documents: np.ndarray, eval_fraction: float, seed: int, source: int = 0
) -> tuple[np.ndarray, np.ndarray]:
    """Divide documents into a training part and a held-out part; a single document is cut between two sentences.

    All three are int64 [num_documents, 2], first and one past the last sentence of each, in the order of the store.
    Each `source` is divided by random numbers of its own. Raises InputError: there is too little text to hold anything
    out.
    """
    if eval_fraction == 0 or len(documents) == 0:
        return documents, documents[:0]
    if len(documents) == 1:
        first, last = (int(bound) for bound in documents[0])
        cut = last - max(1, round(eval_fraction * (last - first)))
        if cut <= first:
            raise InputError("the text has a single sentence; training needs more, or an --eval_fraction of 0")
        return np.array([[first, cut]]), np.array([[cut, last]])
    lengths = store.sentence_offsets[documents[:, 1]] - store.sentence_offsets[documents[:, 0]]
    order = random_stream(seed=seed, stream="split", index=source).permutation(len(documents))
    enough = int(np.searchsorted(np.cumsum(lengths[order]), eval_fraction * lengths.sum())) + 1
    held_out = np.zeros(len(documents), dtype=bool)
    held_out[order[: min(enough, len(documents) - 1)]] = True
    return documents[~held_out], documents[held_out]


def spread(total: int, at_most: int) -> np.ndarray:
    """At most `at_most` of the numbers 0 ... total - 1, evenly spread."""
    return np.unique(np.linspace(0, total - 1, num=min(total, at_most)).astype(np.int64)) if total else np.arange(0)


def spread_by_weight(sizes: list[int], weights: list[float] | None, at_most: int) -> np.ndarray:
    """At most `at_most` rows of sources that follow one another, in proportion to their weights if there are enough.

    `sizes`: rows of each source, of which each gets one if possible; `weights` add up to 1; None: they do not matter.
    """
    if weights is None:
        return spread(sum(sizes), at_most)
    if sum(sizes) <= at_most:
        return np.arange(sum(sizes))
    counts = [min(size, max(1, int(weight * at_most))) for size, weight in zip(sizes, weights, strict=True)]
    while sum(counts) > at_most:
        counts[int(np.argmax(counts))] -= 1
    begins = np.cumsum([0, *sizes])
    parts = [begin + spread(size, count) for begin, size, count in zip(begins, sizes, counts, strict=False)]
    return np.concatenate(parts).astype(np.int64)


def stack(examples: list[dict[str, Any]], *, padding: dict[str, int]) -> Tensors:
    """Stack examples into tensors; arrays shorter than the longest are filled at the end with `padding[name]`."""
    batch: Tensors = {}
    for name, value in examples[0].items():
        if np.ndim(value) == 0:
            batch[name] = torch.tensor([example[name] for example in examples])
            continue
        length = max(len(example[name]) for example in examples)
        rows = np.full((len(examples), length), padding.get(name, 0), dtype=np.int64)
        for row, example in zip(rows, examples, strict=True):
            row[: len(example[name])] = example[name]
        batch[name] = torch.from_numpy(rows)
    return batch


def unwrap(model: nn.Module) -> nn.Module:
    """The model itself rather than DDP, which takes any argument."""
    return getattr(model, "module", model)


# Where documents begin and which positions have a target are numbers that shapes follow from: to learn them from a
# GPU, the host waits until all work queued before is done. So they are found on the CPU before the batch moves there.
# Models of Lacuna take them as arguments; to others they mean nothing.


def document_bounds(position_ids: Tensor) -> Tensor:
    """Where the documents of packed rows begin and end in the flattened batch: int32 [slots + 1].

    A document ends with its row. Slots that are left over are empty documents at the end. `position_ids`: [batch,
    length], restarting at 0 with each document.
    """
    starts = position_ids == 0
    starts[:, 0] = True
    found = starts.flatten().nonzero().flatten()
    slots = max(1, position_ids.numel() // TOKENS_A_SLOT)
    while slots < len(found):
        slots *= 2
    bounds = torch.full((slots + 1,), position_ids.numel(), dtype=torch.int32)
    bounds[: len(found)] = found
    return bounds


def target_positions(labels: Tensor) -> Tensor:
    """Where in the flattened labels [batch, length] the targets are: int64 [number of targets], rising."""
    return (labels != IGNORED).flatten().nonzero().flatten()


def add_hints(batch: Tensors, *, targets: Tensor) -> Tensors:
    """A batch on the CPU with its hints; `targets` [batch, length] says what each position predicts.

    Masks that hide nothing are left out, as a GPU has faster kernels without.
    """
    batch = {name: value for name, value in batch.items() if not (name.endswith("attention_mask") and value.all())}
    hints = {"target_positions": target_positions(targets)}
    if "position_ids" in batch:
        hints["document_bounds"] = document_bounds(batch["position_ids"])
    return {**batch, **hints}


def for_model(model: nn.Module, batch: Tensors) -> Tensors:
    """The batch as the model takes it: without hints, unless it is one of Lacuna's."""
    if getattr(unwrap(model), "can_take_hints", False):
        return batch
    return {name: value for name, value in batch.items() if name not in HINTS}
