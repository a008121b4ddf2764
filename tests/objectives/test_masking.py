"""Which tokens are hidden and how, against counts and intervals worked out apart from the code."""

import math

import numpy as np
import pytest
import torch
from torch.nn import functional

from objectives import IGNORED, random_stream
from objectives.masking import Masking, score_masked

VOCAB, MASK = 1005, 4


@pytest.fixture(scope="module")
def many(special):
    """10,000 masked rows of 32 tokens, among them [CLS], two [SEP] and two [PAD]."""
    masking = Masking(tokens=special(VOCAB), edges=np.zeros((VOCAB, 2), dtype=np.uint8))
    rows = []
    for index in range(10_000):
        generator = random_stream(seed=7, stream="mask", index=index)
        ids = generator.integers(5, VOCAB, size=32)
        ids[[0, 9, 29]], ids[30:] = (2, 3, 3), 0
        rows.append((ids, *masking(ids, probability=0.3, generator=generator)))
    return [np.stack(column) for column in zip(*rows, strict=True)]


def test_counts_are_exact_and_labels_are_what_stood_there(many) -> None:
    ids, masked, labels = many
    chosen = labels != IGNORED
    assert (chosen.sum(axis=1) == round(0.3 * 27)).all()
    assert (labels[chosen] == ids[chosen]).all()
    assert (masked[~chosen] == ids[~chosen]).all()


def test_special_tokens_are_never_chosen_and_never_put_in(many) -> None:
    ids, masked, labels = many
    assert not (labels != IGNORED)[ids < 5].any()
    assert set(np.unique(masked[(labels != IGNORED)])) <= {MASK, *range(5, VOCAB)}


def test_every_position_is_chosen_equally_often(many) -> None:
    ids, _, labels = many
    often = (labels != IGNORED).mean(axis=0)[ids[0] >= 5]
    expected = 8 / 27
    assert np.abs(often - expected).max() < 4.5 * math.sqrt(expected * (1 - expected) / len(ids))


def test_eighty_ten_ten(many) -> None:
    ids, masked, labels = many
    chosen = labels != IGNORED
    total = chosen.sum()
    kept = masked[chosen] == ids[chosen]
    hidden = masked[chosen] == MASK
    # One in a thousand of the random tokens is the token that stood there.
    for share, expected in (
        (hidden.mean(), 0.8),
        (kept.mean(), 0.1 + 0.1 / 1000),
        ((~hidden & ~kept).mean(), 0.1 - 0.1 / 1000),
    ):
        assert abs(share - expected) < 4 * math.sqrt(expected * (1 - expected) / total)
    replaced = np.bincount(masked[chosen][~hidden & ~kept], minlength=VOCAB)[5:]
    assert abs(replaced.mean() - replaced.var()) / replaced.mean() < 0.25  # Poisson: every token equally likely


def test_at_least_one_and_none_where_there_is_no_text(special) -> None:
    masking = Masking(tokens=special(VOCAB), edges=np.zeros((VOCAB, 2), dtype=np.uint8))
    generator = np.random.default_rng(0)
    masked, labels = masking(np.array([2, 77, 3]), probability=0.01, generator=generator)
    assert labels.tolist() == [IGNORED, 77, IGNORED]
    masked, labels = masking(np.array([2, 3, 0]), probability=0.5, generator=generator)
    assert masked.tolist() == [2, 3, 0] and (labels == IGNORED).all()


def test_scores_are_those_of_a_loop() -> None:
    generator = torch.Generator().manual_seed(0)
    labels = torch.tensor([[IGNORED, 5, 6, IGNORED], [IGNORED] * 4, [7, IGNORED, IGNORED, 5]])
    logits = torch.randn(4, 9, generator=generator)
    logits[0, 5] = 9.0  # a hit
    byte_lengths = torch.arange(9)
    records = score_masked(logits, labels, byte_lengths)
    place = 0
    for row, record in zip(labels, records, strict=True):
        expected = {"nats": 0.0, "bytes": 0.0, "targets": 0.0, "hits": 0.0}
        for label in row[row != IGNORED]:
            expected["nats"] += float(functional.cross_entropy(logits[place], label))
            expected["bytes"] += int(label)
            expected["targets"] += 1
            expected["hits"] += float(logits[place].argmax() == label)
            place += 1
        assert record == pytest.approx(expected, rel=1e-6)
    assert records[0]["hits"] >= 1
