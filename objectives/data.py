"""What every objective starts from: a part of a token store, special tokens, and streams of random numbers."""

from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from lacuna.common.errors import InputError

IGNORED = -100
"""The label of a position that is no target, as everywhere in transformers."""


class Numbered(Protocol):
    """An array of integers that may lie on disk in several files: it has a length, and slices and rows are read."""

    def __len__(self) -> int: ...

    def __getitem__(self, key: Any, /) -> Any: ...


class Store(Protocol):
    """What objectives read from a token store; `corpus.TokenStore` is one.

    One of several sources also has `source_offsets`, [num_sources + 1] in documents, `source_names`, and
    `source_weights`: a list that adds up to 1, or None where each text counts by its size.
    """

    @property
    def tokens(self) -> Numbered:
        """[num_tokens], without special tokens."""
        ...

    @property
    def sentence_offsets(self) -> Numbered:
        """[num_sentences + 1], in tokens."""
        ...

    @property
    def document_offsets(self) -> Numbered:
        """[num_documents + 1], in sentences."""
        ...


@dataclass(frozen=True, eq=False)
class SpecialTokens:
    """The ids that are not text."""

    pad: int
    start: int
    end: int
    mask: int | None
    is_special: np.ndarray
    """bool [vocab_size]."""
    ordinary: np.ndarray
    """The ids that are text, int64."""
    sentinels: np.ndarray = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    """Ids of <extra_id_0>, <extra_id_1>, ..., as T5 names what stands for a span; may be none."""

    @property
    def vocab_size(self) -> int:
        """Number of ids, special ones included."""
        return len(self.is_special)

    @classmethod
    def of(cls, tokenizer: Any) -> "SpecialTokens":
        """Read them from a tokenizer; [CLS] and [SEP], or else beginning and end of text, frame a document.

        Raises:
            InputError: the tokenizer has neither.
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
        vocabulary = tokenizer.get_vocab()
        sentinels: list[int] = []
        while (name := f"<extra_id_{len(sentinels)}>") in vocabulary:
            sentinels.append(vocabulary[name])
        is_special[sentinels] = True
        return cls(
            pad=end if pad is None else pad,
            start=start,
            end=end,
            mask=first("mask"),
            is_special=is_special,
            ordinary=np.flatnonzero(~is_special),
            sentinels=np.array(sentinels, dtype=np.int64),
        )

    def required_mask(self) -> int:
        """The mask token's id.

        Raises:
            InputError: the tokenizer has none.
        """
        if self.mask is None:
            raise InputError(
                "this objective masks tokens, and the tokenizer has no mask token; use --objective clm, or denoising "
                "with --denoising span_corruption"
            )
        return self.mask


def random_stream(*, seed: int, stream: str, index: int) -> np.random.Generator:
    """Random numbers that depend on (seed, stream, index) and on nothing else.

    Philox is a counter-based generator (Salmon et al., 2011, https://doi.org/10.1145/2063384.2063405): the key names
    the stream and the highest counter word the sample, so streams never meet. Making one takes about 20
    microseconds.
    """
    key = int.from_bytes(stream.encode()[:8], "little")
    return np.random.Generator(np.random.Philox(key=[seed, key], counter=[0, 0, 0, index]))


def rounded(number: float, generator: np.random.Generator) -> int:
    """A whole number next to `number`, above or below it at random, such that the mean is `number` itself.

    Rounded to the nearest, 0.15 of 62 tokens would be 9 every time, which is 0.145.
    """
    return int(number + generator.random())


def split_sources(*, store: Store, eval_fraction: float, seed: int) -> list[tuple[np.ndarray, np.ndarray]]:
    """For each source of a store that weighs its sources, what `split_documents` makes of it.

    Without weights all text is one: a mixture in proportion to size needs no parts, and held-out documents come from
    all of it. A single sentence, alone in its source, stays in the training part.
    """
    offsets = np.asarray(store.document_offsets[:], dtype=np.int64)
    documents = np.stack([offsets[:-1], offsets[1:]], axis=1)
    if getattr(store, "source_weights", None) is None:
        return [split_documents(store=store, documents=documents, eval_fraction=eval_fraction, seed=seed)]
    bounds = [int(bound) for bound in store.source_offsets]  # type: ignore[attr-defined]
    parts = []
    for source, (first, last) in enumerate(pairwise(bounds)):
        own = documents[first:last]
        single = len(own) == 1 and own[0, 1] - own[0, 0] == 1
        parts.append(
            split_documents(
                store=store, documents=own, eval_fraction=0 if single else eval_fraction, seed=seed, source=source
            )
        )
    return parts


def split_documents(
    *, store: Store, documents: np.ndarray, eval_fraction: float, seed: int, source: int = 0
) -> tuple[np.ndarray, np.ndarray]:
    """Divide documents into a training part and a held-out part.

    A single document is cut between two of its sentences.

    Args:
        documents: int64 [num_documents, 2], first and one past the last sentence of each, in the order of the store.
        source: which of several; each is divided by random numbers of its own.

    Returns:
        Two arrays like `documents`.

    Raises:
        InputError: there is too little text to hold anything out.
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


def spread_by_weight(sizes: list[int], weights: list[float], at_most: int) -> np.ndarray:
    """Rows to evaluate of sources that lie one after another, in proportion to the weights as far as there are rows.

    Args:
        sizes: rows of each source.
        weights: that add up to 1.
        at_most: number of rows in all; each source that has rows gets one if that is possible.
    """
    if sum(sizes) <= at_most:
        return np.arange(sum(sizes))
    counts = [min(size, max(1, int(weight * at_most))) for size, weight in zip(sizes, weights, strict=True)]
    while sum(counts) > at_most:
        counts[int(np.argmax(counts))] -= 1
    begins = np.cumsum([0, *sizes])
    parts = [begin + spread(size, count) for begin, size, count in zip(begins, sizes, counts, strict=False)]
    return np.concatenate(parts).astype(np.int64)


def stack(examples: list[dict[str, Any]], *, padding: dict[str, int]) -> dict[str, Tensor]:
    """Stack examples into tensors; arrays shorter than the longest are filled at the end with `padding[name]`."""
    batch: dict[str, Tensor] = {}
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
