"""What words alone tell, without a language model: the baselines that a person could use instead, in seconds."""

import re
import warnings
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from itertools import chain
from typing import Any

import numpy as np
from scipy.sparse import hstack
from sklearn.feature_extraction.text import CountVectorizer, TfidfVectorizer
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.multiclass import OneVsRestClassifier
from sklearn.pipeline import make_union

MOST_TEXTS, MOST_WORDS = 100_000, 300_000
"""Training rows of classification, and words of tagging, beyond which they would take minutes."""
MOST_CHARACTERS = 10_000_000
"""Characters of training rows beyond which their parts of words would take minutes and gigabytes."""
_logistic = partial(LogisticRegression, C=10, max_iter=1000, solver="saga", tol=1e-3, random_state=0)
"""As accurate on TF-IDF as L-BFGS (within 0.005 on six data sets), and about three times as fast with many classes."""
Sentences = Sequence[Sequence[str]]
_WORDS = re.compile(r"\w+")
_SENTENCES = re.compile(r"(?<=[.!?])\s+")


def vectorizer(texts: Iterable[str], **words: Any) -> Any:
    """Of scikit-learn, not fitted: TF-IDF of words, pairs of words and three to five characters of a word.

    Where these texts have more than `MOST_CHARACTERS`, of words and pairs alone. `words` are options of
    `TfidfVectorizer` for these.
    """
    kinds: list[dict[str, Any]] = [{"ngram_range": (1, 2), **words}, {"analyzer": "char_wb", "ngram_range": (3, 5)}]
    kinds = kinds[: 1 + (sum(map(len, texts)) <= MOST_CHARACTERS)]
    return make_union(*(TfidfVectorizer(sublinear_tf=True, **kind) for kind in kinds))


def tfidf(train: Sequence[tuple[str, ...]], held_out: Sequence[tuple[str, ...]]) -> tuple[Any, Any] | None:
    """Features of `vectorizer`, of both parts, sparse [rows, features]. None where a column has no words."""
    parts = []
    for texts, others in zip(zip(*train, strict=True), zip(*held_out, strict=True), strict=True):
        words = vectorizer(chain.from_iterable(train))
        try:
            parts.append((words.fit_transform(texts), words.transform(others)))
        except ValueError:  # an empty vocabulary
            return None
    first, second = zip(*parts, strict=True)
    return hstack(first, format="csr"), hstack(second, format="csr")


def fit_and_predict(problem_type: str, train: Any, targets: Any, held_out: Any) -> Any:
    """Predictions of a linear model for features [rows, features]; problem types are those of transformers."""
    model = Ridge() if problem_type == "regression" else _logistic()
    if problem_type == "multi_label_classification":
        model = OneVsRestClassifier(model)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Label .* is present in all training examples")
        return model.fit(train, targets).predict(held_out)


def log_probabilities(train: Any, others: Any, *, targets: Sequence[int], num_labels: int) -> np.ndarray:
    """What logistic regression on features [rows, features] says of others: float64 [others, num_labels]."""
    model = _logistic().fit(train, targets)
    scores = np.full((others.shape[0], num_labels), np.log(1e-9))  # of labels without a training row
    scores[:, model.classes_] = model.predict_log_proba(others)
    return scores


def tag_words(sentences: Sentences, tags: Sequence[Sequence[int]], held_out: Sentences) -> list[list[int]]:
    """The tag of each held-out word, by logistic regression on its form, its ends, and the words around it."""
    vectorizer = CountVectorizer(analyzer=list)
    train = vectorizer.fit_transform(word for sentence in sentences for word in _described(sentence))
    others = vectorizer.transform(word for sentence in held_out for word in _described(sentence))
    targets = [tag for sentence in tags for tag in sentence]
    found = iter(LogisticRegression(C=10, max_iter=1000).fit(train, targets).predict(others).tolist())
    return [[next(found) for _ in sentence] for sentence in held_out]


def _described(words: Sequence[str]) -> Iterator[list[str]]:
    """Features of each word of a sentence."""
    for place, word in enumerate(words):
        around = [(step, words[place + step]) for step in (-2, -1, 0, 1, 2) if 0 <= place + step < len(words)]
        shape = re.sub(r"[^\W\d_]", "x", re.sub(r"[A-Z]", "X", re.sub(r"\d", "0", word)))
        ends = [f"{size}:{end}" for size in (1, 2, 3) for end in (f"{word[:size]}-", f"-{word[-size:]}")]
        yield [*(f"{step}={near.lower()}" for step, near in around), *ends, f"shape={shape}"]


def words_in_common(question: str, context: str, *, whole: bool) -> str:
    """The sentence of a context with most words of a question; or in it the longest run of words without them."""
    asked = set(map(str.lower, _WORDS.findall(question)))

    def common(text: str) -> int:
        return len(asked & set(map(str.lower, _WORDS.findall(text))))

    sentence = max(_SENTENCES.split(context), key=common)
    if whole:
        return sentence
    runs: list[list[Any]] = [[]]
    for found in _WORDS.finditer(sentence):
        runs[-1].append(found) if found[0].lower() not in asked else runs.append([])
    run = max(runs, key=len)
    return sentence[run[0].start() : run[-1].end()] if run else sentence
