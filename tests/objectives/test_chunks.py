"""Chunks of sentences against a loop over the sentences of each document."""

from itertools import pairwise

import numpy as np
from examples import examples
from hypothesis import given
from hypothesis import strategies as st
from slow_reference import chunks_of

from lacuna.objectives.packing import Chunks, hashed

DOCUMENTS = st.lists(st.lists(st.integers(1, 30), min_size=1, max_size=40), min_size=1, max_size=12)


def goals_of(sentences: np.ndarray, *, length: int, share: float, seed: int) -> list[int]:
    """How far the chunk that begins with each sentence shall reach, as BERT draws it."""
    short = hashed(sentences, seed=seed, stream="short") < share
    drawn = hashed(sentences, seed=seed, stream="goal")
    return [2 + int(u * (length - 1)) if is_short else length for is_short, u in zip(short, drawn, strict=True)]


@examples(150)
@given(
    lengths=DOCUMENTS,
    length=st.integers(5, 50),
    share=st.sampled_from([0.0, 0.1, 1.0]),
    left_out=st.integers(0, 2**12),
    seed=st.integers(0, 2**32),
)
def test_chunks_are_those_of_a_loop(numbered, lengths, length, share, left_out, seed) -> None:
    """Whatever documents are held out."""
    store = numbered(lengths)
    documents = np.stack([store.document_offsets[:-1], store.document_offsets[1:]], axis=1)
    documents = documents[[not left_out >> number & 1 for number in range(len(documents))]]
    expected = []
    for number, (first, last) in enumerate(documents.tolist()):
        sizes = np.diff(store.sentence_offsets[first : last + 1]).tolist()
        goals = goals_of(np.arange(first, last), length=length, share=share, seed=seed)
        expected += [[0, number, first + begin, first + end] for begin, end in chunks_of(sizes, goals=goals)]
    chunks = Chunks(store=store, documents=documents, length=length, short_probability=share, seed=seed, source=0)
    assert [list(chunks[number]) for number in range(len(chunks))] == expected


def test_hashed_numbers_are_even_and_of_their_own() -> None:
    numbers = np.arange(100_000)
    one, other, third = (hashed(numbers, seed=seed, stream=stream) for seed, stream in ((0, "a"), (1, "a"), (0, "b")))
    for drawn in (one, other, third):
        assert drawn.min() >= 0 and drawn.max() < 1
        counts = np.histogram(drawn, bins=20, range=(0, 1))[0]
        assert ((counts - 5000) ** 2 / 5000).sum() < 50  # chi-squared with 19 degrees of freedom: 1 in 7,000
    far = hashed(numbers, seed=128, stream="a")  # all of a seed counts, up to 2^64
    for pair in ((one, other), (one, third), (one[1:], one[:-1]), (one, far)):
        assert abs(np.corrcoef(*pair)[0, 1]) < 4 / np.sqrt(len(pair[0]))


def test_short_chunks_lose_no_text_and_are_as_many_as_asked(numbered) -> None:
    store = numbered([[1] * 50_000])
    documents = np.array([[0, 50_000]])
    chunks = Chunks(store=store, documents=documents, length=20, short_probability=0.1, seed=3, source=0)
    bounds = [chunks[number][2:] for number in range(len(chunks))]
    assert bounds[0][0] == 0 and bounds[-1][1] == 50_000
    assert all(before[1] == after[0] for before, after in pairwise(bounds))
    short = np.mean([last - first < 20 for first, last in bounds])
    expected = 0.1 * 18 / 19  # 20 is drawn as often as each from 2 on
    assert abs(short - expected) < 4 * np.sqrt(expected * (1 - expected) / len(bounds))
