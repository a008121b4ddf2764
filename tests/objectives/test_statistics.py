"""Shares and lengths over 832 examples, as a run would draw them: each within four standard errors.

The seed is fixed, so that nothing here fails by chance; a right share lies outside of its interval for one seed in
16,000. Targets of one row depend on one another, so that the standard error of a share is that of a ratio over rows
(Cochran, Sampling Techniques, 3rd edition, 1977, section 6.4), not that of a binomial over tokens. Lengths of spans as
they are drawn: test_masking.py and test_denoising.py. Which B goes with which A: test_mlm_nsp.py and test_mlm_sop.py.
"""

import dataclasses
import math
from itertools import groupby
from typing import Any

import numpy as np
import pytest

from lacuna.objectives import IGNORED, OBJECTIVES, TokenPrediction
from lacuna.training.order import row_of

EXAMPLES = 832
MASK, VOCAB = 4, 1005
MASKED = ["mlm", "mlm_nsp", "mlm_sop", "mlm_contrastive", "hybrid"]


@pytest.fixture(scope="module")
def store(store_of):
    generator = np.random.default_rng(1)
    lengths = [generator.integers(3, 30, size=generator.integers(1, 30)) for _ in range(200)]
    documents = [[generator.integers(5, VOCAB, size=size).tolist() for size in document] for document in lengths]
    documents[0][0][:2] = 5, VOCAB - 1  # all ids occur
    return store_of(documents)


def drawn(work: TokenPrediction, *, count: int = EXAMPLES) -> list[dict[str, Any]]:
    """The first examples of a run."""
    rows = [
        row_of(index, seed=work.seed, num_examples=work.num_examples, mixture=work.mixture) for index in range(count)
    ]
    return [work.example(row, index) for index, row in enumerate(rows)]


def check_share(hits: list[int] | np.ndarray, sizes: list[int] | np.ndarray, expected: float) -> None:
    """The share of hits, counted in each example, is within four standard errors of what is expected."""
    hits, sizes = np.asarray(hits, dtype=float), np.asarray(sizes, dtype=float)
    error = math.sqrt(((hits - expected * sizes) ** 2).sum()) / sizes.sum()
    assert abs(hits.sum() / sizes.sum() - expected) < 4 * error, (hits.sum() / sizes.sum(), expected, error)


def texts_and_targets(examples: list[dict[str, Any]]) -> tuple[list[np.ndarray], list[np.ndarray], list[np.ndarray]]:
    """Of each masked example what the model sees, the text below it, and where its targets are."""
    masked = [example for example in examples if not example.get("is_causal")]
    seen = [example["input_ids"] for example in masked]
    targets = [example["labels"] != IGNORED for example in masked]
    texts = [
        np.where(target, example["labels"], example["input_ids"])
        for target, example in zip(targets, masked, strict=True)
    ]
    return seen, texts, targets


@pytest.mark.parametrize("name, shares", [*((name, (0.15, 0.8, 0.1)) for name in MASKED), ("mlm", (0.3, 0.5, 0.3))])
def test_share_of_masks_and_what_becomes_of_them(store, parts, name, shares) -> None:
    """A constant share (of 62 tokens 9 or 10 at 0.15, never 9 every time); 80 % hidden, 10 % random, 10 % kept, or
    what else is asked; no special token."""
    probability, hidden, replaced = shares
    options = {"mask_probability": probability, "mask_replace_prob": hidden, "random_replace_prob": replaced}
    work = OBJECTIVES[name](**parts(store, objective=name, sequence_length=64, **options))
    examples = drawn(work, count=EXAMPLES * (2 if name == "hybrid" else 1))
    seen, texts, targets = texts_and_targets(examples)
    assert abs(len(texts) - EXAMPLES) <= 32  # half of each 64
    candidates = [text > MASK for text in texts]
    if name == "hybrid":  # what begins a piece of a document is given
        candidates = [
            candidate & (example["position_ids"] > 0)
            for candidate, example in zip(
                candidates, (example for example in examples if not example["is_causal"]), strict=True
            )
        ]
    assert not any((target & ~candidate).any() for target, candidate in zip(targets, candidates, strict=True))
    sizes = np.array([target.sum() for target in targets])
    check_share(sizes, [candidate.sum() for candidate in candidates], probability)
    fates = [
        (given[target] == MASK, given[target] == text[target])
        for given, text, target in zip(seen, texts, targets, strict=True)
    ]
    same = replaced / (VOCAB - 5)  # a random token may be the one that stood there
    check_share([hide.sum() for hide, _ in fates], sizes, hidden)
    check_share([keep.sum() for _, keep in fates], sizes, 1 - hidden - replaced + same)
    check_share([(~hide & ~keep).sum() for hide, keep in fates], sizes, replaced - same)
    # What is put in is text.
    assert all(
        set(given[target & (given != MASK)] > MASK) <= {True} for given, target in zip(seen, targets, strict=True)
    )


@pytest.mark.parametrize("masking", ["whole_word", "span"])
def test_whole_words_fall_short_of_the_share_by_less_than_one_percent_of_it(store, parts, masking) -> None:
    """A word that does not fit into what is left is left out, as in BERT."""
    work = OBJECTIVES["mlm"](**parts(store, masking=masking, mask_probability=0.15, sequence_length=64))
    seen, texts, targets = texts_and_targets(drawn(work))
    share = sum(int(target.sum()) for target in targets) / sum(int((text > MASK).sum()) for text in texts)
    assert 0.99 * 0.15 < share < 0.15 * 1.001
    sizes = [target.sum() for target in targets]
    check_share([(given[target] == MASK).sum() for given, target in zip(seen, targets, strict=True)], sizes, 0.8)
    if masking == "span":
        # Runs of hidden words: 3.8 words are drawn for a span on average; some meet, some end at the edge of a row.
        runs = [sum(1 for hidden, _ in groupby(target.tolist()) if hidden) for target in targets]
        assert 3 < sum(sizes) / sum(runs) < 5
    else:
        runs = [sum(1 for hidden, _ in groupby(target.tolist()) if hidden) for target in targets]
        assert sum(sizes) / sum(runs) < 2  # words have 1.33 tokens


@pytest.mark.parametrize("name", ["mlm_nsp", "mlm_sop"])
def test_half_of_the_pairs_are_false(store, parts, name) -> None:
    """What is in them: test_mlm_nsp.py and test_mlm_sop.py."""
    work = OBJECTIVES[name](**parts(store, objective=name, sequence_length=64))
    labels = [example["next_sentence_label"] for example in drawn(work)]
    check_share(labels, np.ones(len(labels)), 0.5)


def test_rows_of_hybrid_are_causal_in_the_share_asked(store, parts) -> None:
    """Exactly, in each 64 samples."""
    work = OBJECTIVES["hybrid"](**parts(store, objective="hybrid", hybrid_causal_share=0.0625))
    assert sum(example["is_causal"] for example in drawn(work)) == EXAMPLES // 16


def test_noise_of_denoising(store, parts) -> None:
    """30 % in spans of Poisson(3), of the rows of a run."""
    work = OBJECTIVES["denoising"](**parts(store, objective="denoising", mask_probability=0.3, sequence_length=96))
    gone, sizes, spans = [], [], []
    for example in drawn(work, count=2 * EXAMPLES):
        read, written = example["input_ids"], example["labels"]
        if (example["position_ids"] == 0).sum() > 1:
            continue
        kept, text = int((read > MASK).sum()), int((written > MASK).sum())
        if text + kept < 40:  # at least one token goes: of a text of three, a third
            continue
        sizes.append(text)
        gone.append(text - kept)
        spans.append(int((read == MASK).sum()))
    assert len(sizes) >= EXAMPLES
    check_share(gone, sizes, 0.3)
    # The last span of a piece is cut to what is left, which makes the mean a little smaller than 3.
    assert 2.8 < sum(gone) / sum(spans) < 3.05


def test_sources_are_drawn_by_their_weights(store, parts) -> None:
    """Counted in the text of the examples, not in numbers of rows."""
    weights = [0.6, 0.3, 0.1]
    # Three sources with ids of their own, the one with the least weight having the most text.
    bounds = store.sentence_offsets[store.document_offsets[[0, 20, 50, 200]]]
    tokens = 5 + (store.tokens - 5) % 300 + np.repeat([0, 300, 600], np.diff(bounds)).astype(np.uint32)
    mixed = dataclasses.replace(
        store, tokens=tokens, source_offsets=np.array([0, 20, 50, 200]), source_weights=weights
    )
    for name, options in (("clm", {}), ("mlm_nsp", {"mask_replace_prob": 1.0, "random_replace_prob": 0.0})):
        work = OBJECTIVES[name](**parts(mixed, objective=name, sequence_length=64, **options))
        counts = np.zeros(3)
        for example in drawn(work):
            found = {int(token - 5) // 300 for token in example["input_ids"] if token > MASK}
            assert len(found) == 1
            counts[found.pop()] += 1
        # They alternate evenly rather than at random, which is far closer than four standard errors.
        assert np.abs(counts - EXAMPLES * np.array(weights)).max() <= 2
