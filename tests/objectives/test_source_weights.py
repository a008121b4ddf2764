"""Texts of several weighted sources: rows of each lie together, and each has held-out documents."""

import dataclasses

import numpy as np
import pytest

from lacuna.objectives import IGNORED, OBJECTIVES
from lacuna.objectives.data import split_sources

SIZES = (30, 10, 60)
WEIGHTS = [0.5, 0.3, 0.2]
NAMES = [name for name in OBJECTIVES if name != "spans"]  # no word recurs in this text


@pytest.fixture(scope="module")
def store(numbered):
    """Documents of two to five sentences; the ids say which source they are of."""
    generator = np.random.default_rng(2)
    documents = [generator.integers(1, 12, size=generator.integers(2, 6)).tolist() for _ in range(sum(SIZES))]
    return dataclasses.replace(
        numbered(documents), source_offsets=np.cumsum([0, *SIZES]), source_weights=list(WEIGHTS)
    )


def source_of(store, token: int) -> int:
    bounds = store.sentence_offsets[store.document_offsets[store.source_offsets]]
    return int(np.searchsorted(bounds, token - 5, side="right")) - 1


def text_of(example) -> list[int]:
    names = [name for name in ("input_ids", "labels") if name in example]
    return [int(token) for name in names for token in example[name] if token >= 5]


@pytest.mark.parametrize("packing", ["concatenate", "none"])
@pytest.mark.parametrize("name", NAMES)
def test_rows_of_a_source_lie_together_and_hold_no_other_text(store, parts, name, packing) -> None:
    work = OBJECTIVES[name](
        **parts(store, objective=name, packing=packing, mask_replace_prob=1.0, random_replace_prob=0.0)
    )
    rows, weights = zip(*work.mixture, strict=True)
    assert list(weights) == WEIGHTS and sum(rows) == work.num_examples and min(rows) > 0
    expected = np.repeat(np.arange(3), rows).tolist()
    for row in range(work.num_examples):
        assert {source_of(store, token) for token in text_of(work.example(row, row))} <= {expected[row]}


@pytest.mark.parametrize("name", NAMES)
def test_without_weights_there_is_no_mixture(store, parts, name) -> None:
    work = OBJECTIVES[name](**parts(dataclasses.replace(store, source_weights=None), objective=name))
    assert work.mixture == []


def test_held_out_documents_come_from_every_source(store) -> None:
    divided = split_sources(store=store, eval_fraction=0.1, seed=0)
    assert len(divided) == 3
    bounds = store.document_offsets[store.source_offsets].tolist()
    for source, (train, held_out) in enumerate(divided):
        assert len(train) and len(held_out) and len(train) + len(held_out) == SIZES[source]
        for part in (train, held_out):
            assert bounds[source] <= part.min() and part.max() <= bounds[source + 1]
    # Each source is divided by random numbers of its own, the first one as a text without sources is.
    alone = dataclasses.replace(store, document_offsets=store.document_offsets[:31], source_weights=None)
    assert split_sources(store=alone, eval_fraction=0.1, seed=0)[0][1].tolist() == divided[0][1].tolist()


@pytest.mark.parametrize("weights", [None, WEIGHTS])
def test_documents_behind_the_sources_are_held_out_and_all_others_train(store, weights) -> None:
    ends = store.source_offsets.copy()
    ends[-1] -= 7
    documents = np.stack([store.document_offsets[:-1], store.document_offsets[1:]], axis=1)
    given = dataclasses.replace(store, source_offsets=ends, source_weights=weights)
    parts = split_sources(store=given, eval_fraction=0.1, seed=0)
    assert np.array_equal(np.concatenate([train for train, _ in parts]), documents[:-7])
    assert [len(held_out) for _, held_out in parts] == [7, 0, 0][: len(parts)] and len(parts) == (3 if weights else 1)
    assert np.array_equal(parts[0][1], documents[-7:])


def test_evaluated_rows_are_shared_out_by_weight(store, parts) -> None:
    work = OBJECTIVES["clm"](
        **parts(store, objective="clm", eval_fraction=0.4, max_eval_examples=10, sequence_length=9)
    )
    sources = [
        {source_of(store, int(token)) for token in example["labels"] if token != IGNORED and token >= 5}
        for example in map(work.eval_example, range(work.num_eval_examples))
    ]
    assert len(sources) == 10
    assert [sources.count({number}) for number in range(3)] == [5, 3, 2]


def test_a_source_of_one_document_borrows_partners(numbered, parts) -> None:
    """Held-out text of such a source is the end of the same document, which is no partner either."""
    store = dataclasses.replace(
        numbered([[5] * 20, *[[4] * 6] * 12]), source_offsets=np.array([0, 1, 13]), source_weights=[0.5, 0.5]
    )
    work = OBJECTIVES["mlm_nsp"](**parts(store, objective="mlm_nsp"))
    bound = int(store.sentence_offsets[20])
    seen, partners = set(), set()
    examples = [work.example(row, index) for index in range(120) for row in range(work.mixture[0][0])]
    examples += [work.eval_example(row) for row in range(work.num_eval_examples)]
    for example in examples:
        ids = np.where(example["labels"] != IGNORED, example["labels"], example["input_ids"])
        second = example["token_type_ids"].astype(bool)
        first_ids, second_ids = ids[~second & (ids >= 5)] - 5, ids[second & (ids >= 5)] - 5
        if first_ids.max() < bound:
            assert ((second_ids < bound) == (example["next_sentence_label"] == 0)).all()
            seen.add(example["next_sentence_label"])
            partners |= {*(second_ids[second_ids >= bound] - bound) // 24}
    assert seen == {0, 1} and partners == {(first - 20) // 6 for first, _ in work.by_source[1].tolist()}


def test_a_source_of_one_sentence_stays_in_the_training_part(numbered) -> None:
    """Another whose first document is one sentence does not, nor does one of a single document."""
    text = numbered([[5], [4], *[[4] * 6] * 12, [4] * 6])
    store = dataclasses.replace(text, source_offsets=np.array([0, 1, 14, 15]), source_weights=[0.5, 0.3, 0.2])
    (train, held_out), (_, others), single = split_sources(store=store, eval_fraction=0.1, seed=0)
    assert train.tolist() == [[0, 1]] and len(held_out) == 0 and len(others) > 0
    assert len(single[0]) > 0 and len(single[1]) > 0
