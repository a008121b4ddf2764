"""Which tokens are hidden and how, against a slow reference and against intervals worked out apart from the code."""

import math

import numpy as np
import pytest
import torch
from examples import examples
from hypothesis import given
from hypothesis import strategies as st
from slow_reference import masked, span_length, spans_of, words_of
from torch.nn import functional

from lacuna.objectives import IGNORED, OBJECTIVES, random_stream
from lacuna.objectives.base import score_targets
from lacuna.objectives.mlm import SPAN_LENGTHS, Masking, draw_spans, find_words, take_words

VOCAB, MASK = 1005, 4
NONE, SPACE, BLANK, LETTER, DIGIT, OTHER, UNSPACED, PARTIAL = range(8)
CLASSES = st.tuples(st.integers(1, 7), st.integers(1, 7))


def edges_with_words(vocab_size: int) -> np.ndarray:
    """Two tokens in three begin a word, so that a word has 1.5 tokens."""
    ids = np.arange(vocab_size)
    edges = np.stack([np.where(ids % 3, SPACE, LETTER), np.full(vocab_size, LETTER)], axis=1)
    edges[:5] = NONE
    return edges.astype(np.uint8)


# Whole examples against the reference


@examples(200)
@given(
    ids=st.lists(st.integers(0, 24), min_size=1, max_size=60),
    classes=st.lists(CLASSES, min_size=20, max_size=20),
    how=st.sampled_from(["token", "whole_word", "span"]),
    probability=st.floats(0.01, 1),
    shares=st.sampled_from([(0.8, 0.1), (1.0, 0.0), (0.0, 0.5), (0.5, 0.5)]),
    seed=st.integers(0, 2**32),
    is_given=st.booleans(),
)
def test_masks_are_those_of_the_reference(special, ids, classes, how, probability, shares, seed, is_given) -> None:
    tokens = special(25)
    edges = np.array([(NONE, NONE)] * 5 + classes, dtype=np.uint8)
    candidates = np.random.default_rng(seed).random(len(ids)) < 0.7 if is_given else None
    mask_share, random_share = shares
    masking = Masking(tokens=tokens, edges=edges, how=how, mask_share=mask_share, random_share=random_share)
    found = masking(
        np.array(ids),
        probability=probability,
        generator=random_stream(seed=seed, stream="test", index=0),
        candidates=candidates,
    )
    expected = masked(
        ids,
        tokens=tokens,
        edges=edges.tolist(),
        how=how,
        probability=probability,
        generator=random_stream(seed=seed, stream="test", index=0),
        mask_share=mask_share,
        random_share=random_share,
        given=None if candidates is None else candidates.tolist(),
    )
    assert tuple(part.tolist() for part in found) == expected


@examples(200)
@given(ids=st.lists(st.integers(0, 24), min_size=1, max_size=40), classes=st.lists(CLASSES, min_size=20, max_size=20))
def test_words_are_those_of_the_reference(special, ids, classes) -> None:
    edges = np.array([(NONE, NONE)] * 5 + classes, dtype=np.uint8)
    candidates = ~special(25).is_special[np.array(ids)]
    found = find_words(np.array(ids), edges=edges, candidates=candidates)
    expected = [-1] * len(ids)
    for number, word in enumerate(words_of(ids, edges=edges.tolist(), candidates=candidates.tolist())):
        for place in word:
            expected[place] = number
    assert found.tolist() == expected


def test_words_by_hand() -> None:
    names = {" un": (SPACE, LETTER), "believ": (LETTER, LETTER), " ": (SPACE, SPACE), "\n": (BLANK, BLANK)}
    names |= {"12": (DIGIT, DIGIT), "3": (DIGIT, DIGIT), ",": (OTHER, OTHER), "漢": (UNSPACED, UNSPACED)}
    names |= {"(half é": (LETTER, PARTIAL), "half)": (PARTIAL, PARTIAL), "[CLS]": (NONE, NONE)}
    edges, ids = np.array(list(names.values()), dtype=np.uint8), {name: number for number, name in enumerate(names)}

    def words(*text: str) -> list[int]:
        row = np.array([ids[name] for name in text])
        return find_words(row, edges=edges, candidates=row != ids["[CLS]"]).tolist()

    assert words("[CLS]", " un", "believ", "believ", ",", ",", " un") == [-1, 0, 0, 0, 1, 1, 2]
    assert words(" ", "believ", " ", " un", " ", " ", "\n", "believ") == [0, 0, 1, 2, 3, 4, 5, 6]
    assert words("believ", "12", "3", "believ", "[CLS]", "believ") == [0, 1, 1, 2, -1, 3]
    assert words("漢", "漢", "believ") == [0, 1, 2]
    assert words(" un", "(half é", "half)", "believ") == [0, 0, 0, 1]
    assert words("[CLS]", "half)") == [-1, 0]


def test_words_that_are_too_large_are_left_out_as_bert_does() -> None:
    sizes, apart = np.array([3, 4, 1, 2, 1]), np.arange(5)
    assert take_words(sizes, apart, budget=6).tolist() == [0, 2, 3]
    assert take_words(sizes, apart, budget=11).tolist() == [0, 1, 2, 3, 4]
    assert take_words(sizes[:2], apart[:2], budget=2).tolist() == [0]  # nothing fits: the smallest
    # The rest of a span is left out with the first word that does not fit.
    assert take_words(sizes, np.array([0, 0, 0, 1, 1]), budget=6).tolist() == [0, 3, 4]


# Statistics: 1,000 rows of 32 tokens, among them [CLS], two [SEP] and two [PAD]


@pytest.fixture(scope="module")
def many(special):
    """Ids, masked ids and labels, [1,000, 32] each, for each way of masking."""
    rows: dict[str, list] = {how: [] for how in ("token", "whole_word", "span")}
    tokens, edges = special(VOCAB), edges_with_words(VOCAB)
    for how, found in rows.items():
        masking = Masking(tokens=tokens, edges=edges, how=how)
        for index in range(1000):
            generator = random_stream(seed=7, stream="mask", index=index)
            ids = generator.integers(5, VOCAB, size=32)
            ids[[0, 9, 29]], ids[30:] = (2, 3, 3), 0
            found.append((ids, *masking(ids, probability=0.3, generator=generator)))
    return {how: [np.stack(column) for column in zip(*found, strict=True)] for how, found in rows.items()}


def test_counts_are_next_to_the_share_and_labels_are_what_stood_there(many) -> None:
    for how, (ids, seen, labels) in many.items():
        chosen = labels != IGNORED
        assert (labels[chosen] == ids[chosen]).all()
        assert (seen[~chosen] == ids[~chosen]).all()
        counts = chosen.sum(axis=1)
        assert counts.max() == math.ceil(0.3 * 27)
        if how == "token":
            assert counts.min() == math.floor(0.3 * 27)
            assert abs(counts.mean() - 0.3 * 27) < 4 * math.sqrt(0.1 * 0.9 / len(counts))
        else:  # no word may be left that fits
            assert counts.min() >= 5 and counts.mean() > 0.995 * 0.3 * 27


def test_special_tokens_are_never_chosen_and_never_put_in(many) -> None:
    for ids, seen, labels in many.values():
        assert not (labels != IGNORED)[ids < 5].any()
        assert set(np.unique(seen[(labels != IGNORED)])) <= {MASK, *range(5, VOCAB)}


def test_every_position_is_chosen_equally_often(many) -> None:
    ids, _, labels = many["token"]
    often = (labels != IGNORED).mean(axis=0)[ids[0] >= 5]
    expected = 0.3
    assert np.abs(often - expected).max() < 4.5 * math.sqrt(expected * (1 - expected) / len(ids))


def test_words_are_hidden_whole(many) -> None:
    edges = edges_with_words(VOCAB)
    for how in ("whole_word", "span"):
        ids, _, labels = many[how]
        for row in range(500):
            words = words_of(ids[row].tolist(), edges=edges.tolist(), candidates=(ids[row] >= 5).tolist())
            for word in words:
                assert len(set((labels[row][word] != IGNORED).tolist())) == 1


def test_every_token_is_put_in_equally_often(many) -> None:
    """How often one is: test_statistics.py."""
    for how in ("token", "whole_word"):
        ids, seen, labels = many[how]
        changed = (labels != IGNORED) & (seen != MASK) & (seen != ids)
        replaced = np.bincount(seen[changed], minlength=VOCAB)[5:]
        assert abs(replaced.mean() - replaced.var()) / replaced.mean() < 0.25  # Poisson


def test_a_span_has_one_fate(special) -> None:
    """Rows of one span each: a small budget, one word for a token."""
    edges = np.full((VOCAB, 2), UNSPACED, dtype=np.uint8)
    masking = Masking(tokens=special(VOCAB), edges=edges, how="span")
    fates = []
    for index in range(1000):
        generator = random_stream(seed=1, stream="mask", index=index)
        ids = generator.integers(5, VOCAB, size=10)
        seen, labels = masking(ids, probability=0.2, generator=generator)
        here = np.flatnonzero(labels != IGNORED)
        kinds = ["hidden" if seen[place] == MASK else "kept" if seen[place] == ids[place] else "new" for place in here]
        if here[1] - here[0] == 1:
            fates.append(kinds)
    # Two spans of one word may touch, and then differ in one case of three.
    assert np.mean([first == second for first, second in fates]) > 0.95
    share = np.mean([first == "hidden" for first, _ in fates])
    assert abs(share - 0.8) < 4 * math.sqrt(0.16 / len(fates))


def test_lengths_of_spans_are_geometric_up_to_ten() -> None:
    """All but the last of a row, which ends where enough is hidden; without documents that a span could meet."""
    drawn = []
    for index in range(3000):
        generator = random_stream(seed=3, stream="mask", index=index)
        _, groups, lengths = draw_spans(np.zeros(100, dtype=bool), num_words=30, generator=generator)
        assert np.bincount(groups).tolist() == lengths.tolist()
        drawn.append(lengths[0])  # the first is never cut
    shares = 0.2 * 0.8 ** (SPAN_LENGTHS - 1)
    shares /= shares.sum()
    assert abs(np.dot(shares, SPAN_LENGTHS) - 3.8) < 0.01  # as the paper says
    for length, share in zip(SPAN_LENGTHS, shares, strict=True):
        assert abs(np.mean(np.array(drawn) == length) - share) < 4 * math.sqrt(share * (1 - share) / len(drawn))
    assert [span_length(number) for number in (0.0, 0.2, 0.9999999)] == [1, 1, 10]


def test_spans_are_laid_down_evenly_and_end_at_documents() -> None:
    covered = np.zeros(40)
    for index in range(1500):
        generator = random_stream(seed=4, stream="mask", index=index)
        breaks = np.zeros(40, dtype=bool)
        breaks[[0, 20]] = True
        words, groups, _ = draw_spans(breaks, num_words=10, generator=generator)
        assert len(set(words.tolist())) == len(words)
        covered[words] += 1
        for group in set(groups.tolist()):
            span = words[groups == group]
            assert span.tolist() == list(range(span[0], span[-1] + 1))
            assert (span < 20).all() or (span >= 20).all()
    share = covered.sum() / 40 / 1500
    assert np.abs(covered / 1500 - share).max() < 4.5 * math.sqrt(share * (1 - share) / 1500)
    assert spans_of([[0], [1], [3]], budget=3, generator=np.random.default_rng(0))


def test_at_least_one_and_none_where_there_is_no_text(special) -> None:
    for how in ("token", "whole_word", "span"):
        masking = Masking(tokens=special(VOCAB), edges=edges_with_words(VOCAB), how=how)
        generator = np.random.default_rng(0)
        seen, labels = masking(np.array([2, 77, 3]), probability=0.01, generator=generator)
        assert labels.tolist() == [IGNORED, 77, IGNORED]
        seen, labels = masking(np.array([2, 3, 0]), probability=0.5, generator=generator)
        assert seen.tolist() == [2, 3, 0] and (labels == IGNORED).all()


def test_as_many_are_hidden_as_the_share_says(numbered, parts) -> None:
    for share in (0.30, 0.225, 0.15):
        work = OBJECTIVES["mlm"](**parts(numbered([[40]] * 20), sequence_length=42, mask_probability=share))
        hidden = [int((work.example(0, index)["labels"] != IGNORED).sum()) for index in range(400)]
        assert (
            set(hidden) == {math.floor(share * 40), math.ceil(share * 40)} and abs(np.mean(hidden) - share * 40) < 0.1
        )
        assert [(work.eval_example(row)["labels"] != IGNORED).sum() for row in range(2)] == [6, 6]  # always 0.15


# Scores


def test_scores_are_those_of_a_loop() -> None:
    generator = torch.Generator().manual_seed(0)
    labels = torch.tensor([[IGNORED, 5, 6, IGNORED], [IGNORED] * 4, [7, IGNORED, IGNORED, 5]])
    logits = torch.randn(4, 9, generator=generator)
    logits[0, 5] = 9.0  # a hit
    byte_lengths = torch.arange(9)
    records = score_targets(logits, labels, byte_lengths)
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
