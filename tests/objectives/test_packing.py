"""Rows of packed documents against rows written out token by token."""

from itertools import pairwise

import numpy as np
import pytest
from examples import examples
from hypothesis import given
from hypothesis import strategies as st
from slow_reference import concatenated, cut, framed

from lacuna.objectives import IGNORED, OBJECTIVES
from lacuna.objectives.packing import (
    ConcatenatedRows,
    PackedRows,
    SingleRows,
    SourceRows,
)

START, END, PAD = 2, 3, 0
LENGTHS = st.lists(st.lists(st.integers(1, 9), min_size=1, max_size=4), min_size=1, max_size=12)


def all_documents(store) -> np.ndarray:
    return np.stack([store.document_offsets[:-1], store.document_offsets[1:]], axis=1)


def make_rows(kind, store, special, *, length: int, overlap: int = 0) -> PackedRows:
    tokens = special(int(store.tokens.max()) + 1)
    return kind(store=store, documents=all_documents(store), tokens=tokens, length=length, overlap=overlap)


def pieces_of(row) -> list[list[int]]:
    bounds = row.bounds.tolist()
    return [row.ids[left:right].tolist() for left, right in pairwise(bounds)]


@examples(100)
@given(lengths=LENGTHS, length=st.integers(2, 40), overlap=st.integers(0, 1))
def test_concatenated_rows_are_the_stream_cut_into_pieces(numbered, special, lengths, length, overlap) -> None:
    store = numbered(lengths)
    rows = make_rows(ConcatenatedRows, store, special, length=length, overlap=overlap)
    expected = concatenated(framed(store, all_documents(store)), length=length, overlap=overlap)
    assert [pieces_of(rows[number]) for number in range(len(rows))] == expected
    for number, pieces in enumerate(expected):
        assert rows[number].positions.tolist() == [place for piece in pieces for place in range(len(piece))]
    assert rows.num_tokens == sum(len(piece) for pieces in expected for piece in pieces)


@examples(100)
@given(lengths=LENGTHS, length=st.integers(2, 40), overlap=st.integers(0, 1))
def test_single_rows_are_the_documents_cut_one_by_one(numbered, special, lengths, length, overlap) -> None:
    store = numbered(lengths)
    rows = make_rows(SingleRows, store, special, length=length, overlap=overlap)
    documents = framed(store, all_documents(store))
    expected = [[piece] for document in documents for piece in cut(document, length=length, overlap=overlap)]
    assert [pieces_of(rows[number]) for number in range(len(rows))] == expected
    assert rows.num_tokens == sum(len(piece) for pieces in expected for piece in pieces)


@pytest.mark.parametrize("packing", ["concatenate", "none"])
@examples(30)
@given(lengths=st.lists(st.lists(st.integers(1, 9), min_size=1, max_size=4), min_size=2, max_size=12))
def test_clm_asks_for_every_token_of_every_document_once_an_epoch(numbered, parts, packing, lengths) -> None:
    store = numbered(lengths)
    work = OBJECTIVES["clm"](**parts(store, sequence_length=9, packing=packing))
    rows = [work.example(row, 1000 + row) for row in range(work.num_examples)]
    # The model predicts token t from those before it: labels are shifted, the first of a row has nothing before it.
    assert all(row["labels"][0] == IGNORED for row in rows)
    targets = [token for row in rows for token in row["labels"].tolist() if token != IGNORED]
    stream = [token for document in framed(store, work.documents) for token in document if token != START]
    assert sorted(targets) == sorted(stream)
    # A target stands behind the token that precedes it in the document, in the same piece.
    before = {}
    for document in framed(store, work.documents):
        before |= {after: token for token, after in pairwise(document) if after != END}
    for row in rows:
        for place in np.flatnonzero(row["labels"] != IGNORED):
            given_token, target = int(row["input_ids"][place - 1]), int(row["labels"][place])
            assert target == END or before[target] == given_token
            if "position_ids" in row:
                assert row["position_ids"][place] == row["position_ids"][place - 1] + 1


@pytest.mark.parametrize("packing", ["concatenate", "none"])
@pytest.mark.parametrize("masking", ["token", "whole_word", "span"])
def test_mlm_shows_every_token_of_every_document_once_an_epoch(numbered, parts, packing, masking) -> None:
    store = numbered([[3, 9, 1], [5], [1], [20, 3, 11, 2], [4, 4], [1, 1, 1]])
    work = OBJECTIVES["mlm"](**parts(store, sequence_length=8, packing=packing, masking=masking))
    seen: list[int] = []
    for row in range(work.num_examples):
        example = work.example(row, row)
        ids = np.where(example["labels"] != IGNORED, example["labels"], example["input_ids"])
        seen += ids[ids != PAD].tolist()
    stream = [token for document in framed(store, work.documents) for token in document]
    assert seen == stream


def test_rows_written_by_hand(store_of, special) -> None:
    store = store_of([[[10, 11]], [[12], [13, 14, 15]]])
    rows = make_rows(ConcatenatedRows, store, special, length=6)
    assert [rows[row].ids.tolist() for row in range(len(rows))] == [[2, 10, 11, 3, 2, 12], [13, 14, 15, 3]]
    assert [rows[row].positions.tolist() for row in range(len(rows))] == [[0, 1, 2, 3, 0, 1], [0, 1, 2, 3]]
    assert SourceRows([rows]).padding == pytest.approx(2 / 12)
    rows = make_rows(SingleRows, store, special, length=10)
    assert [rows[row].ids.tolist() for row in range(len(rows))] == [[2, 10, 11, 3], [2, 12, 13, 14, 15, 3]]


@pytest.mark.parametrize("kind", [ConcatenatedRows, SingleRows])
def test_no_documents_are_no_rows(store_of, special, kind) -> None:
    store = store_of([[[10, 11]]])
    none = np.zeros((0, 2), dtype=np.int64)
    for overlap in (0, 1):
        rows = kind(store=store, documents=none, tokens=special(20), length=4, overlap=overlap)
        assert len(rows) == 0 and rows.num_tokens == 0
        assert len(SourceRows([rows, rows])) == 0


@pytest.mark.parametrize("dtype", [np.uint16, np.uint32])
@pytest.mark.parametrize("kind", [ConcatenatedRows, SingleRows])
def test_ids_are_int64_whatever_the_store_holds(store_of, special, dtype, kind) -> None:
    store = store_of([[[10, 11]]])
    store.tokens = store.tokens.astype(dtype)
    row = make_rows(kind, store, special, length=4)[0]
    assert {row.ids.dtype, row.bounds.dtype, row.positions.dtype} == {np.dtype(np.int64)}


def test_rows_of_sources_lie_one_after_another(numbered, special) -> None:
    store = numbered([[5]] * 10)
    documents = all_documents(store)
    tokens = special(100)
    parts = [
        ConcatenatedRows(store=store, documents=documents[part], tokens=tokens, length=8)
        for part in (slice(0, 3), slice(3, 10))
    ]
    rows = SourceRows(parts)
    assert rows.sizes == [3, 7] and len(rows) == 10
    assert [rows[row].ids.tolist() for row in range(10)] == [
        part[row].ids.tolist() for part in parts for row in range(len(part))
    ]
