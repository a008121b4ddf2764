"""Rows of packed documents against rows written out token by token."""

import math
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from examples import examples
from hypothesis import given
from hypothesis import strategies as st
from slow_reference import concatenated, cut, fitted, flat, framed

from lacuna.objectives import IGNORED, OBJECTIVES
from lacuna.objectives.packing import (
    BestFitRows,
    ConcatenatedRows,
    PackedRows,
    SingleRows,
    SourceRows,
    best_fit_decreasing,
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


@examples(100)
@given(lengths=LENGTHS, length=st.integers(2, 40), overlap=st.integers(0, 1))
def test_best_fit_rows_hold_every_piece_once(numbered, special, lengths, length, overlap) -> None:
    store = numbered(lengths)
    rows = make_rows(BestFitRows, store, special, length=length, overlap=overlap)
    pieces = [cut(document, length=length, overlap=overlap) for document in framed(store, all_documents(store))]
    found = [pieces_of(rows[number]) for number in range(len(rows))]
    assert sorted(flat(found)) == sorted(flat(pieces))
    sizes = [sum(map(len, row)) for row in found]
    assert max(sizes) <= length and rows.num_tokens == sum(sizes)
    # All pieces but the last of a document fill rows of their own; the last ones are packed.
    full = sum(len(parts) - 1 for parts in pieces)
    assert sizes[:full] == [length] * full and all(len(row) == 1 for row in found[:full])
    rests = fitted([len(parts[-1]) for parts in pieces], capacity=length)
    assert sorted(length - size for size in sizes[full:]) == sorted(rests)
    # Within a row the documents stand in their order.
    with_text = [[piece for piece in row if max(piece) > END] for row in found]
    assert all(row == sorted(row, key=max) for row in with_text)


@examples(200)
@given(items=st.lists(st.integers(1, 60), max_size=150), spare=st.integers(0, 30))
def test_best_fit_decreasing_is_that_of_a_loop(items, spare) -> None:
    capacity = max([*items, 1]) + spare
    bins, count = best_fit_decreasing(np.array(items, dtype=np.int64), capacity=capacity)
    filled = np.bincount(bins, weights=items, minlength=count).astype(int) if items else np.zeros(0, dtype=int)
    assert len(filled) == count
    assert sorted(capacity - filled) == sorted(fitted(items, capacity=capacity))


def test_best_fit_of_many_documents_is_full() -> None:
    """A million, which a loop over them would not finish in the time of a test."""
    generator = np.random.default_rng(0)
    lengths = np.minimum(generator.lognormal(4, 1, size=1_000_000).astype(np.int64) + 3, 512)
    bins, count = best_fit_decreasing(lengths, capacity=512)
    filled = np.bincount(bins, weights=lengths)
    assert len(filled) == count and filled.max() <= 512
    assert count == math.ceil(lengths.sum() / 512) or filled.mean() > 0.999 * 512


@pytest.mark.parametrize("what", ["novels", "wikitext-2", "multi30k"])
def test_best_fit_pads_less_than_two_percent_at_512(shared_data: Path, what: str) -> None:
    """Words stand for tokens: only the lengths of documents count."""
    files = [
        path for path in sorted((shared_data / what).rglob("*")) if path.suffix in (".txt", ".en", ".de", ".tokens")
    ]
    texts = [path.read_text(encoding="utf-8", errors="ignore") for path in files[:80]]
    documents = texts if what == "novels" else [line for text in texts for line in text.splitlines()]
    words = [len(document.split()) for document in documents]
    lengths = np.array([count for count in words if count]) + 2
    assert len(lengths) > 50
    rests = lengths - (np.maximum(1, -(-lengths // 512)) - 1) * 512
    _, rows = best_fit_decreasing(rests, capacity=512)
    rows += int(((lengths - rests) // 512).sum())
    assert 0 <= 1 - lengths.sum() / (512 * rows) < 0.02


@pytest.mark.parametrize("packing", ["concatenate", "best_fit", "none"])
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


@pytest.mark.parametrize("packing", ["concatenate", "best_fit", "none"])
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
    assert sorted(seen) == sorted(stream)
    if packing != "best_fit":
        assert seen == stream


def test_rows_written_by_hand(store_of, special) -> None:
    store = store_of([[[10, 11]], [[12], [13, 14, 15]]])
    rows = make_rows(ConcatenatedRows, store, special, length=6)
    assert [rows[row].ids.tolist() for row in range(len(rows))] == [[2, 10, 11, 3, 2, 12], [13, 14, 15, 3]]
    assert [rows[row].positions.tolist() for row in range(len(rows))] == [[0, 1, 2, 3, 0, 1], [0, 1, 2, 3]]
    assert SourceRows([rows]).padding == pytest.approx(2 / 12)
    rows = make_rows(BestFitRows, store, special, length=10)
    assert [rows[row].ids.tolist() for row in range(len(rows))] == [[2, 10, 11, 3, 2, 12, 13, 14, 15, 3]]
    rows = make_rows(SingleRows, store, special, length=10)
    assert [rows[row].ids.tolist() for row in range(len(rows))] == [[2, 10, 11, 3], [2, 12, 13, 14, 15, 3]]


@pytest.mark.parametrize("kind", [ConcatenatedRows, BestFitRows, SingleRows])
def test_no_documents_are_no_rows(store_of, special, kind) -> None:
    store = store_of([[[10, 11]]])
    none = np.zeros((0, 2), dtype=np.int64)
    for overlap in (0, 1):
        rows = kind(store=store, documents=none, tokens=special(20), length=4, overlap=overlap)
        assert len(rows) == 0 and rows.num_tokens == 0
        assert len(SourceRows([rows, rows])) == 0


@pytest.mark.parametrize("dtype", [np.uint16, np.uint32])
@pytest.mark.parametrize("kind", [ConcatenatedRows, BestFitRows, SingleRows])
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
