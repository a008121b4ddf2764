"""A token store in memory, and special tokens, for the tests of objectives."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import pytest

from lacuna.objectives import ObjectiveArguments, SpecialTokens

SPACE, LETTER = 1, 3  # classes of `tokenization.token_edges`
NUM_SPECIAL = 5  # [PAD] [UNK] [CLS] [SEP] [MASK], as the tokenizer room numbers them


@dataclass
class MemoryStore:
    tokens: np.ndarray
    sentence_offsets: np.ndarray
    document_offsets: np.ndarray
    source_offsets: np.ndarray | None = None
    source_weights: list[float] | None = None


def _store(documents: Sequence[Sequence[Sequence[int]]]) -> MemoryStore:
    sentences = [sentence for document in documents for sentence in document]
    return MemoryStore(
        tokens=np.array([token for sentence in sentences for token in sentence], dtype=np.uint32),
        sentence_offsets=np.cumsum([0, *map(len, sentences)]),
        document_offsets=np.cumsum([0, *map(len, documents)]),
    )


@pytest.fixture(scope="session")
def store_of() -> Callable[..., MemoryStore]:
    """Makes a store of documents, each a list of sentences, each a list of token ids."""
    return _store


@pytest.fixture(scope="session")
def numbered() -> Callable[..., MemoryStore]:
    """Makes a store from lengths of sentences, in which no id occurs twice: an id then tells where it stood."""

    def make(lengths: Sequence[Sequence[int]]) -> MemoryStore:
        ids = iter(range(NUM_SPECIAL, NUM_SPECIAL + sum(map(sum, lengths))))
        return _store([[[next(ids) for _ in range(length)] for length in document] for document in lengths])

    return make


@pytest.fixture(scope="session")
def special() -> Callable[..., SpecialTokens]:
    """Special tokens 0 ... 4 in a vocabulary of a given size."""

    def make(vocab_size: int) -> SpecialTokens:
        is_special = np.arange(vocab_size) < NUM_SPECIAL
        return SpecialTokens(
            pad=0, start=2, end=3, mask=4, is_special=is_special, ordinary=np.flatnonzero(~is_special)
        )

    return make


@pytest.fixture(scope="session")
def parts(special: Callable[..., SpecialTokens]) -> Callable[..., dict]:
    """Arguments of an objective over a store; what is an option by name goes into its options."""

    def make(store: MemoryStore, **overrides: object) -> dict:
        tokens = special(int(store.tokens.max()) + 1)
        ids = np.arange(tokens.vocab_size)
        # Three tokens in four begin with a space, so that a word has 1.33 of them.
        classes = np.stack([np.where(ids % 4, SPACE, LETTER), np.full(len(ids), LETTER)], axis=1)
        defaults = {
            "store": store,
            "tokens": tokens,
            "byte_lengths": np.where(tokens.is_special, 0, 1 + ids % 4),
            "token_edges": np.where(tokens.is_special[:, None], 0, classes).astype(np.uint8),
            "sequence_length": 32,
            "seed": 0,
        }
        options = {"eval_fraction": 0.1, "max_eval_examples": 64, "mask_probability": 0.3}
        options |= {name: value for name, value in overrides.items() if name not in defaults}
        given = {name: value for name, value in overrides.items() if name in defaults}
        return {**defaults, **given, "arguments": ObjectiveArguments(**options)}

    return make
