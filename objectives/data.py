"""What every objective starts from: a part of a token store, special tokens, and streams of random numbers."""

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

IGNORED = -100
"""The label of a position that is no target, as everywhere in transformers."""


class ObjectiveError(ValueError):
    """An objective that cannot be had with this text, tokenizer or sequence length."""

    exit_code = 2


class Store(Protocol):
    """What objectives read from a token store; `corpus.TokenStore` is one."""

    tokens: np.ndarray
    """[num_tokens], without special tokens."""
    sentence_offsets: np.ndarray
    """[num_sentences + 1], in tokens."""
    document_offsets: np.ndarray
    """[num_documents + 1], in sentences."""


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

    @property
    def vocab_size(self) -> int:
        """Number of ids, special ones included."""
        return len(self.is_special)

    @classmethod
    def of(cls, tokenizer: Any) -> "SpecialTokens":
        """Read them from a tokenizer; [CLS] and [SEP], or else beginning and end of text, frame a document.

        Raises:
            ObjectiveError: the tokenizer has neither.
        """

        def first(*names: str) -> int | None:
            found = (getattr(tokenizer, f"{name}_token_id", None) for name in names)
            return next((token for token in found if token is not None), None)

        start, end = first("cls", "bos", "eos"), first("sep", "eos")
        if start is None or end is None:
            raise ObjectiveError("the tokenizer has no token for the start or end of a document (cls/bos, sep/eos)")
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
        """The mask token's id.

        Raises:
            ObjectiveError: the tokenizer has none.
        """
        if self.mask is None:
            raise ObjectiveError(
                "this objective masks tokens, and the tokenizer has no mask token; use --objective clm"
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


def split_documents(*, store: Store, eval_fraction: float, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Divide a store into a training part and a held-out part, by whole documents.

    A store of a single document is cut between two of its sentences.

    Returns:
        Two arrays of int64 [num_documents, 2]: first and one past the last sentence of each document, in the order
        of the store.

    Raises:
        ObjectiveError: there is too little text to hold anything out.
    """
    offsets = store.document_offsets.astype(np.int64)
    documents = np.stack([offsets[:-1], offsets[1:]], axis=1)
    if eval_fraction == 0:
        return documents, documents[:0]
    if len(documents) == 1:
        first, last = (int(bound) for bound in documents[0])
        cut = last - max(1, round(eval_fraction * (last - first)))
        if cut <= first:
            raise ObjectiveError("the text has a single sentence; training needs more, or an --eval_fraction of 0")
        return np.array([[first, cut]]), np.array([[cut, last]])
    lengths = store.sentence_offsets[documents[:, 1]] - store.sentence_offsets[documents[:, 0]]
    order = random_stream(seed=seed, stream="split", index=0).permutation(len(documents))
    enough = int(np.searchsorted(np.cumsum(lengths[order]), eval_fraction * lengths.sum())) + 1
    held_out = np.zeros(len(documents), dtype=bool)
    held_out[order[: min(enough, len(documents) - 1)]] = True
    return documents[~held_out], documents[held_out]


def spread(total: int, at_most: int) -> np.ndarray:
    """At most `at_most` of the numbers 0 ... total - 1, evenly spread."""
    return np.unique(np.linspace(0, total - 1, num=min(total, at_most)).astype(np.int64)) if total else np.arange(0)


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
