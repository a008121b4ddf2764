"""Whole examples of mlm and clm against the slow reference, for each packing; the others have files of their own."""

import pytest
from examples import examples
from hypothesis import given
from hypothesis import strategies as st
from slow_reference import concatenated, cut, flat, framed, masked

from lacuna.objectives import IGNORED, OBJECTIVES, random_stream

LENGTH = 32
LENGTHS = st.lists(st.lists(st.integers(1, 20), min_size=1, max_size=8), min_size=1, max_size=8)


def rows_of(work, *, packing: str, overlap: int) -> list[list[list[int]]]:
    """The rows that are to be found, each a list of pieces."""
    documents = framed(work.store, work.documents)
    if packing == "concatenate":
        return concatenated(documents, length=LENGTH, overlap=overlap)
    return [[piece] for document in documents for piece in cut(document, length=LENGTH, overlap=overlap)]


def check(found, *, seen: list[int], labels: list[int], pieces: list[list[int]], packing: str) -> None:
    positions = [place for piece in pieces for place in range(len(piece))]
    if packing == "none":
        assert set(found) == {"input_ids", "labels", "attention_mask"}
        assert found["attention_mask"].tolist() == [1] * len(seen)
        missing = 0
    else:
        missing = LENGTH - len(seen)
        assert found["position_ids"].tolist() == positions + list(range(missing))
    assert found["input_ids"].tolist() == seen + [0] * missing
    assert found["labels"].tolist() == labels + [IGNORED] * missing


@pytest.mark.parametrize("packing", ["concatenate", "none"])
@examples(30)
@given(
    lengths=LENGTHS,
    seed=st.integers(0, 2**32),
    index=st.integers(0, 2**40),
    how=st.sampled_from(["token", "whole_word", "span"]),
    rate=st.sampled_from([0.15, 0.2625, 0.3]),
)
def test_mlm(numbered, parts, packing, lengths, seed, index, how, rate) -> None:
    options = {"masking": how, "packing": packing, "mask_probability": rate, "eval_fraction": 0, "seed": seed}
    arguments = parts(numbered(lengths), objective="mlm", **options)
    work = OBJECTIVES["mlm"](**arguments)
    rows = rows_of(work, packing=packing, overlap=0)
    assert work.num_examples == len(rows)
    for number, pieces in enumerate(rows):
        seen, labels = masked(
            flat(pieces),
            tokens=work.tokens,
            edges=arguments["token_edges"].tolist(),
            how=how,
            probability=rate,
            generator=random_stream(seed=seed, stream="mask", index=index + number),
        )
        check(work.example(number, index + number), seen=seen, labels=labels, pieces=pieces, packing=packing)


@pytest.mark.parametrize("packing", ["concatenate", "none"])
@examples(30)
@given(lengths=LENGTHS, index=st.integers(0, 2**40))
def test_clm(numbered, parts, packing, lengths, index) -> None:
    work = OBJECTIVES["clm"](**parts(numbered(lengths), objective="clm", packing=packing, eval_fraction=0))
    rows = rows_of(work, packing=packing, overlap=1)
    assert work.num_examples == len(rows)
    for number, pieces in enumerate(rows):
        labels = flat([[IGNORED, *piece[1:]] for piece in pieces])
        check(work.example(number, index), seen=flat(pieces), labels=labels, pieces=pieces, packing=packing)
