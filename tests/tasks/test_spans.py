"""Spans of windows: the best ones equal a search over all pairs of ends, and with the rest they make a softmax."""

import math

import pytest
import torch
from examples import examples
from hypothesis import given
from hypothesis import strategies as st

from lacuna.tasks.question_answering.reader import trimmed
from lacuna.tasks.question_answering.task import best_spans


def all_spans(start, end, allowed, null, longest):
    return [
        (start[i] + end[j] - start[null] - end[null], i, j)
        for i in range(len(start))
        for j in range(i, min(i + longest, len(start)))
        if allowed[i] and allowed[j]
    ]


@examples(60)
@given(st.integers(0, 10**6), st.integers(1, 12), st.integers(1, 15), st.integers(1, 9))
def test_best_spans_equal_a_search_over_all_pairs(seed, length, longest, count):
    generator = torch.Generator().manual_seed(seed)
    start, end = torch.randn(3, length, generator=generator), torch.randn(3, length, generator=generator)
    allowed = torch.rand(3, length, generator=generator) < 0.7
    null = torch.randint(0, length, (3,), generator=generator)
    scores, firsts, lasts, rest = best_spans(
        start=start, end=end, allowed=allowed, null=null, max_answer_length=longest, num_best=count
    )
    for n in range(3):
        every = all_spans(start[n].tolist(), end[n].tolist(), allowed[n].tolist(), int(null[n]), longest)
        every.sort(reverse=True)
        found = [
            (s, i, j)
            for s, i, j in zip(scores[n].tolist(), firsts[n].tolist(), lasts[n].tolist(), strict=True)
            if s > -math.inf
        ]
        assert [(i, j) for _, i, j in found] == [(i, j) for _, i, j in every[:count]]
        assert [s for s, _, _ in found] == pytest.approx([s for s, _, _ in every[:count]], abs=1e-5)
        others = math.fsum(math.exp(s) for s, _, _ in every[count:])
        assert math.exp(rest[n]) == pytest.approx(others, rel=1e-4)


def test_trimmed():
    assert trimmed("a  fox ", 1, 7) == (3, 6)
    assert trimmed("a fox", 2, 5) == (2, 5)
    start, end = trimmed("a   b", 1, 4)
    assert start == end
