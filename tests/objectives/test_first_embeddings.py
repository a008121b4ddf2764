"""First embeddings from co-occurrence, beside counts made pair by pair and numpy's singular values."""

import numpy as np
import pytest
import torch

from lacuna.objectives import embeddings, warm_start
from lacuna.objectives.embeddings import cooccurrence_embeddings


class Text:
    """What `cooccurrence_embeddings` asks of an objective."""

    shape, seed = "encoder", 3

    def __init__(self, *stretches, vocab_size=30):
        self.stretches = [np.array(stretch, dtype=np.uint16) for stretch in stretches]
        self.tokens = type("Tokens", (), {"vocab_size": vocab_size})

    def training_text(self, at_most):
        yield from self.stretches


def pointwise_information(text, contexts=None):
    """PPMI [vocab_size, vocab_size], or of these contexts alone, one pair after the other."""
    number = text.tokens.vocab_size
    contexts = set(range(number)) if contexts is None else contexts
    counts = np.zeros((number, number))
    for stretch in text.stretches:
        for place, token in enumerate(stretch):
            for other in range(max(0, place - 5), min(len(stretch), place + 6)):
                if other != place and stretch[other] in contexts:
                    counts[token, stretch[other]] += 1 / abs(place - other)
    found = np.zeros((number, number))
    of_contexts = counts.sum(0) ** 0.75 / (counts.sum(0) ** 0.75).sum()
    for token, context in zip(*counts.nonzero(), strict=True):
        share = counts[token, context] / counts[token].sum()
        found[token, context] = max(0.0, np.log(share / of_contexts[context]))
    return found


@pytest.fixture
def text():
    generator = np.random.default_rng(0)
    return Text(generator.integers(0, 25, 300), generator.integers(5, 25, 100), [7, 8], [9])


def check(found, expected):
    """Products of vectors are those of PPMI's exact factors, but for the scale, and their spread is as asked."""
    left, values, _ = np.linalg.svd(expected)
    exact = (left * np.sqrt(values))[:, : found.shape[1]]
    found, products = found.double().numpy(), exact @ exact.T
    assert np.allclose(found @ found.T, products * ((found @ found.T).trace() / products.trace()), atol=1e-5)
    assert found[:25].std(ddof=1) == pytest.approx(0.05, rel=1e-3) and not found[25:].any()


def test_vectors_factorise_the_counts_made_by_hand(text):
    check(cooccurrence_embeddings(text, size=30, std=0.05), pointwise_information(text))


@pytest.mark.parametrize("stretches", [[[7]], [[7], [8], [9]], [[5] * 40], []])
def test_a_text_that_says_nothing_of_company_gives_zeros(stretches):
    assert not cooccurrence_embeddings(Text(*stretches), size=8, std=0.05).any()


def test_they_depend_on_the_text_and_the_seed_alone(text):
    state = torch.random.get_rng_state()
    first, again = (cooccurrence_embeddings(text, size=8, std=0.05) for _ in range(2))
    assert torch.equal(first, again) and torch.equal(torch.random.get_rng_state(), state)
    assert cooccurrence_embeddings(text, size=64, std=0.05)[:, 30:].count_nonzero() == 0  # no more than there are


def most_frequent(text, count):
    frequencies = np.bincount(np.concatenate(text.stretches), minlength=30)
    return {int(token) for token in np.argsort(-frequencies, kind="stable")[:count]}


@pytest.mark.parametrize(
    "limit, value, count", [("COUNTS", 30 * 12, 12), ("CONTEXTS", 11, 11), ("PER_CONTEXT", 40, 10)]
)
def test_few_contexts_are_the_most_frequent(text, monkeypatch, limit, value, count):
    monkeypatch.setattr(embeddings, "PER_CONTEXT", 1)
    monkeypatch.setattr(embeddings, limit, value)
    check(cooccurrence_embeddings(text, size=10, std=0.05), pointwise_information(text, most_frequent(text, count)))


def test_there_are_as_many_contexts_as_a_vector_has_entries_even_where_text_is_short(text):
    assert sum(map(len, text.stretches)) < 2 * embeddings.PER_CONTEXT
    found = cooccurrence_embeddings(text, size=8, std=0.05)
    check(found, pointwise_information(text, most_frequent(text, 8)))


def test_tokens_of_one_company_get_similar_vectors():
    """Two words that never meet, in the same places; a third in others."""
    generator = np.random.default_rng(1)
    frames = {0: [10, 11, 12], 1: [10, 11, 12], 2: [20, 21, 22]}
    lines = [
        np.concatenate([generator.permutation(frames[word]), [word], generator.permutation(frames[word])])
        for word in generator.integers(0, 3, 300)
    ]
    vectors = cooccurrence_embeddings(Text(*lines), size=4, std=0.05)
    near, far = (torch.cosine_similarity(vectors[0], vectors[other], dim=0) for other in (1, 2))
    assert near > 0.9 > 0.3 > far


def test_tokens_that_are_not_in_the_text_keep_their_first_weights(text):
    table = torch.nn.Embedding(32, 8)  # padded beyond the vocabulary
    before = table.weight.detach().clone()
    model = type("Model", (), {"get_input_embeddings": lambda self: table})()
    warm_start(model, text)
    assert (
        torch.equal(table.weight[25:], before[25:]) and not torch.isclose(table.weight[:25], before[:25]).any(1).all()
    )
    assert torch.equal(table.weight[:25], cooccurrence_embeddings(text, size=8, std=0.05)[:25])
