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


def pointwise_information(text):
    """PPMI [vocab_size, vocab_size], one pair after the other."""
    number = text.tokens.vocab_size
    counts = np.zeros((number, number))
    for stretch in text.stretches:
        for place, token in enumerate(stretch):
            for other in range(max(0, place - 5), min(len(stretch), place + 6)):
                if other != place:
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


def test_vectors_factorise_the_counts_made_by_hand(text):
    found = cooccurrence_embeddings(text, size=30, std=0.05).double().numpy()
    left, values, _ = np.linalg.svd(pointwise_information(text))
    exact = left * np.sqrt(values)
    products = exact @ exact.T * (0.05 / found[:25].std(ddof=1)) ** 2
    scale = (found @ found.T).trace() / products.trace()
    assert np.allclose(found @ found.T, products * scale, atol=1e-5)
    assert found[:25].std(ddof=1) == pytest.approx(0.05, rel=1e-3) and not found[25:].any()


def test_they_depend_on_the_text_and_the_seed_alone(text):
    state = torch.random.get_rng_state()
    first, again = (cooccurrence_embeddings(text, size=8, std=0.05) for _ in range(2))
    assert torch.equal(first, again) and torch.equal(torch.random.get_rng_state(), state)
    assert cooccurrence_embeddings(text, size=64, std=0.05)[:, 30:].count_nonzero() == 0  # no more than there are


def test_few_contexts_are_the_most_frequent(text, monkeypatch):
    monkeypatch.setattr(embeddings, "COUNTS", 10 * 30)
    few = cooccurrence_embeddings(text, size=8, std=0.05)
    assert few.shape == (30, 8) and few[:25].any(1).all()
    text.stretches = [stretch % 10 for stretch in text.stretches]  # all of them are contexts
    few = cooccurrence_embeddings(text, size=8, std=0.05)
    monkeypatch.undo()
    assert torch.equal(few.abs() > 0, cooccurrence_embeddings(text, size=8, std=0.05).abs() > 0)


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
