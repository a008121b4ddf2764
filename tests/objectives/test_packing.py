"""Rows of packed documents against the stream written out token by token."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from objectives import IGNORED, CausalLanguageModelling, MaskedLanguageModelling
from objectives.packing import ConcatenatedRows

START, END, PAD = 2, 3, 0
LENGTHS = st.lists(st.lists(st.integers(1, 9), min_size=1, max_size=4), min_size=1, max_size=12)


def stream_of(store, documents) -> list[int]:
    """[start] document [end] [start] document [end] ..., token by token."""
    stream: list[int] = []
    for first, last in documents:
        stream.append(START)
        for sentence in range(first, last):
            stream += store.tokens[store.sentence_offsets[sentence] : store.sentence_offsets[sentence + 1]].tolist()
        stream.append(END)
    return stream


def slow_rows(stream: list[int], *, length: int, overlap: int) -> list[tuple[list[int], list[int]]]:
    """(ids, positions) of each row, written as one would say it."""
    rows, begin = [], 0
    while not rows or begin + overlap < len(stream):
        ids = stream[begin : begin + length]
        positions: list[int] = []
        for place, token in enumerate(ids):
            positions.append(0 if place == 0 or token == START else positions[-1] + 1)
        rows.append((ids, positions))
        begin += length - overlap
    return rows


def all_documents(store) -> np.ndarray:
    return np.stack([store.document_offsets[:-1], store.document_offsets[1:]], axis=1)


@settings(max_examples=150, deadline=None)
@given(lengths=LENGTHS, length=st.integers(2, 40), overlap=st.integers(0, 1))
def test_rows_are_the_stream_cut_into_pieces(numbered, special, lengths, length, overlap) -> None:
    store = numbered(lengths)
    documents = all_documents(store)
    tokens = special(int(store.tokens.max()) + 1)
    rows = ConcatenatedRows(store=store, documents=documents, tokens=tokens, length=length, overlap=overlap)
    expected = slow_rows(stream_of(store, documents), length=length, overlap=overlap)
    assert len(rows) == len(expected)
    for row, (ids, positions) in enumerate(expected):
        assert rows[row].ids.tolist() == ids
        assert rows[row].positions.tolist() == positions
    assert rows.num_tokens == sum(len(ids) for ids, _ in expected)


@settings(max_examples=75, deadline=None)
@given(lengths=st.lists(st.lists(st.integers(1, 9), min_size=1, max_size=4), min_size=2, max_size=12))
def test_clm_asks_for_every_token_of_every_document_once_an_epoch(numbered, parts, lengths) -> None:
    store = numbered(lengths)
    work = CausalLanguageModelling(**parts(store, sequence_length=7))
    rows = [work.example(row, 1000 + row) for row in range(work.num_examples)]
    # The model predicts token t from those before it: labels are shifted, the first of a row has nothing before it.
    targets = [token for row in rows for token in row["labels"][1:].tolist() if token != IGNORED]
    assert targets == [token for token in stream_of(store, work.documents) if token != START]
    seen_before = [row["input_ids"][place - 1] for row in rows for place in np.flatnonzero(row["labels"] != IGNORED)]
    assert END not in seen_before and PAD not in seen_before


@settings(max_examples=50, deadline=None)
@given(lengths=st.lists(st.lists(st.integers(1, 9), min_size=1, max_size=4), min_size=2, max_size=12))
def test_mlm_shows_every_token_of_every_document_once_an_epoch(numbered, parts, lengths) -> None:
    store = numbered(lengths)
    work = MaskedLanguageModelling(**parts(store, sequence_length=8))
    seen: list[int] = []
    for row in range(work.num_examples):
        example = work.example(row, row)
        ids = np.where(example["labels"] != IGNORED, example["labels"], example["input_ids"])
        seen += ids[ids != PAD].tolist()
    assert seen == stream_of(store, work.documents)


def test_a_row_written_by_hand(store_of, special) -> None:
    store = store_of([[[10, 11]], [[12], [13, 14, 15]]])
    rows = ConcatenatedRows(store=store, documents=all_documents(store), tokens=special(20), length=6)
    assert [rows[row].ids.tolist() for row in range(len(rows))] == [[2, 10, 11, 3, 2, 12], [13, 14, 15, 3]]
    assert [rows[row].positions.tolist() for row in range(len(rows))] == [[0, 1, 2, 3, 0, 1], [0, 1, 2, 3]]
    assert rows.padding == pytest.approx(2 / 12)


def test_no_documents_are_no_rows(store_of, special) -> None:
    store = store_of([[[10, 11]]])
    none = np.zeros((0, 2), dtype=np.int64)
    for overlap in (0, 1):
        assert len(ConcatenatedRows(store=store, documents=none, tokens=special(20), length=4, overlap=overlap)) == 0


@pytest.mark.parametrize("dtype", [np.uint16, np.uint32])
def test_ids_are_int64_whatever_the_store_holds(store_of, special, dtype) -> None:
    store = store_of([[[10, 11]]])
    store.tokens = store.tokens.astype(dtype)
    row = ConcatenatedRows(store=store, documents=all_documents(store), tokens=special(20), length=4)[0]
    assert {row.ids.dtype, row.bounds.dtype, row.positions.dtype} == {np.dtype(np.int64)}
