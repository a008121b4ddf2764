"""How well the label of a pair is told from lengths alone: texts of many kinds, and a judge that learns."""

import re
from pydoc_data.topics import topics
from typing import Any

import numpy as np
from examples import fast
from sklearn.ensemble import HistGradientBoostingClassifier


def random_lengths(*, documents: int, sentences: tuple[int, int], tokens: tuple[int, int], seed: int = 0):
    generator = np.random.default_rng(seed)
    return [generator.integers(*tokens, size=generator.integers(*sentences)).tolist() for _ in range(documents)]


def manual_lengths():
    """Python's manual, which comes with it, with a word for a token."""
    for text in topics.values():
        sentences = [len(sentence.split()) for sentence in re.split(r"(?<=[.!?:])\s+", text)]
        yield [length for length in sentences if length]


STORES = {
    "long documents": lambda: random_lengths(documents=200, sentences=(5, 60), tokens=(3, 40)),
    "short documents": lambda: random_lengths(documents=3000, sentences=(1, 6), tokens=(1, 40)),
    "single sentences": lambda: random_lengths(documents=4000, sentences=(1, 2), tokens=(3, 60)),
    "single words and phrases": lambda: random_lengths(documents=4000, sentences=(1, 2), tokens=(1, 8)),
    "sentences longer than a row": lambda: random_lengths(documents=300, sentences=(1, 40), tokens=(1, 200)),
    "Python's manual": lambda: list(manual_lengths()),
}

KINDS = fast(STORES, "long documents", "single sentences", "single words and phrases")
"""Of texts, for a test each."""


def accuracy_from_lengths(kind: type, store_of: Any, parts: Any, text: str) -> float:
    """Share of 2,000 pairs that is judged rightly by the lengths of A and B, after 2,000 to learn from."""
    store = store_of([[[5 + length % 7] * length for length in document] for document in STORES[text]()])
    work = kind(**parts(store, sequence_length=64))
    rows = np.random.default_rng(0).permutation(np.arange(4000) % work.num_examples)
    examples = [work.example(int(row), index) for index, row in enumerate(rows)]
    second = np.array([example["token_type_ids"].sum() for example in examples])
    total = np.array([len(example["input_ids"]) for example in examples])
    labels = np.array([example["next_sentence_label"] for example in examples])
    features = np.stack([total - second, second, total], axis=1)
    judge = HistGradientBoostingClassifier(max_iter=40, max_depth=4, random_state=0)
    return judge.fit(features[:2000], labels[:2000]).score(features[2000:], labels[2000:])
