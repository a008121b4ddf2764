"""Chunks of sentences against a loop over the sentences of each document."""

import numpy as np
from examples import examples
from hypothesis import given
from hypothesis import strategies as st
from slow_reference import chunks_of

from lacuna.objectives.packing import Chunks

DOCUMENTS = st.lists(st.lists(st.integers(1, 30), min_size=1, max_size=40), min_size=1, max_size=12)


@examples(150)
@given(
    lengths=DOCUMENTS,
    length=st.integers(5, 50),
    left_out=st.integers(0, 2**12),
)
def test_chunks_are_those_of_a_loop(numbered, lengths, length, left_out) -> None:
    """Whatever documents are held out."""
    store = numbered(lengths)
    documents = np.stack([store.document_offsets[:-1], store.document_offsets[1:]], axis=1)
    documents = documents[[not left_out >> number & 1 for number in range(len(documents))]]
    expected = []
    for number, (first, last) in enumerate(documents.tolist()):
        sizes = np.diff(store.sentence_offsets[first : last + 1]).tolist()
        expected += [[0, number, first + begin, first + end] for begin, end in chunks_of(sizes, length=length)]
    chunks = Chunks(store=store, documents=documents, length=length, source=0)
    assert [list(chunks[number]) for number in range(len(chunks))] == expected
