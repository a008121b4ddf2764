"""What words alone tell, without a language model: the baselines that a person could use instead, in seconds."""

import json
import re
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save
from scipy.optimize import minimize
from scipy.sparse import csr_matrix, hstack
from scipy.special import log_softmax
from sklearn.feature_extraction.text import CountVectorizer, HashingVectorizer, TfidfVectorizer
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.multiclass import OneVsRestClassifier
from sklearn.pipeline import make_union
from sklearn.preprocessing import normalize

from lacuna.common.errors import InputError

MOST_TEXTS, MOST_WORDS = 100_000, 300_000
"""Training rows of classification, and words of tagging, beyond which they would take minutes."""
WORDS = "bag_of_words.safetensors"
_HASHES = 2**31 - 1  # so many that hardly any two words have the same
MOST_CHARACTERS = 10_000_000
"""Characters of training rows beyond which their parts of words would take minutes and gigabytes."""
_logistic = partial(LogisticRegression, C=10, max_iter=1000, solver="saga", tol=1e-3, random_state=0)
"""As accurate on TF-IDF as L-BFGS (within 0.005 on six data sets), and about three times as fast with many classes."""
Sentences = Sequence[Sequence[str]]
_WORDS = re.compile(r"\w+")


def vectorizer(texts: Iterable[str], **words: Any) -> Any:
    """Of scikit-learn, not fitted: TF-IDF of words, pairs of words and three to five characters of a word.

    Where these texts have more than `MOST_CHARACTERS`, of words and pairs alone. `words` are options of
    `TfidfVectorizer` for these.
    """
    kinds: list[dict[str, Any]] = [{"ngram_range": (1, 2), **words}, {"analyzer": "char_wb", "ngram_range": (3, 5)}]
    kinds = kinds[: 1 + (sum(map(len, texts)) <= MOST_CHARACTERS)]
    return make_union(*(TfidfVectorizer(sublinear_tf=True, **kind) for kind in kinds))


class Words:
    """A linear model of TF-IDF of texts, or of pairs of texts; one of labels can be kept in a file.

    It has hashes in place of words, which may be somebody's. `parts`, the kinds of features of each text, have options
    of `HashingVectorizer`, its hashes in order and inverse document frequencies, [features] each. `weights` [2] are
    those of a language model and of these words, where both answer together.
    """

    def __init__(self, parts: list[dict[str, Any]], model: Any, *, weights: np.ndarray | None = None) -> None:
        self.parts, self.model = parts, model
        self.weights = np.ones(2) if weights is None else weights

    @classmethod
    def fit(cls, problem_type: str, train: Sequence[tuple[str, ...]], targets: Any) -> "Words | None":
        """Learn targets of texts or pairs, for a problem type of transformers. None: there are no words."""
        parts, model = [], Ridge() if problem_type == "regression" else _logistic()
        for texts in zip(*train, strict=True):
            for _, kind in vectorizer(chain.from_iterable(train)).transformer_list:
                how = {"analyzer": kind.analyzer, "ngram_range": kind.ngram_range}
                hashes, seen = np.unique(_counts(texts, how).col, return_counts=True)
                if not len(hashes):
                    return None
                parts.append({"how": how, "hashes": hashes, "idf": np.log((1 + len(texts)) / (1 + seen)) + 1})
        words = cls(parts, OneVsRestClassifier(model) if problem_type == "multi_label_classification" else model)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="Label .* is present in all training examples")
            words.model.fit(words.features(train), targets)
        return words

    def features(self, texts: Sequence[tuple[str, ...]]) -> Any:
        """TF-IDF, sparse [texts, features]."""
        sides, found = [*zip(*texts, strict=True)], []
        for number, part in enumerate(self.parts):
            counts = _counts(sides[number * len(sides) // len(self.parts)], part["how"])
            place = np.searchsorted(part["hashes"], counts.col).clip(max=len(part["hashes"]) - 1)
            known = part["hashes"][place] == counts.col
            values = (1 + np.log(counts.data[known])) * part["idf"][place[known]]
            shape = (counts.shape[0], len(part["hashes"]))
            found.append(normalize(csr_matrix((values, (counts.row[known], place[known])), shape=shape)))
        return hstack(found, format="csr")

    def log_probabilities(self, texts: Sequence[tuple[str, ...]], *, num_labels: int) -> np.ndarray:
        """Of each label: float64 [texts, labels]."""
        scores = np.full((len(texts), num_labels), np.log(1e-9))  # of labels without a training row
        scores[:, self.model.classes_] = self.model.predict_log_proba(self.features(texts))
        return scores

    def together(self, model: np.ndarray, words: np.ndarray) -> np.ndarray:
        """The product of two probabilities, each to the power of its weight; all are logarithms [..., labels]."""
        return np.asarray(log_softmax(np.tensordot(self.weights, [model, words], 1), axis=-1))

    def weigh(self, model: np.ndarray, words: np.ndarray, labels: np.ndarray) -> None:
        """Take the weights by which the labels [rows] are likeliest; log probabilities are [rows, labels].

        A logarithmic opinion pool (Genest and Zidek, 1986, https://doi.org/10.1214/ss/1177013825), whose probabilities
        are calibrated on these rows. The prior, one half each, decides where rows are few.
        """
        both, rows = np.stack([model, words]), np.arange(len(labels))

        def loss(weights: np.ndarray) -> tuple[float, np.ndarray]:
            scores = log_softmax(np.tensordot(weights, both, 1), axis=1)
            slope = (np.exp(scores) * both).sum(axis=(1, 2)) - both[:, rows, labels].sum(axis=1)
            return ((weights - 0.5) ** 2).sum() - scores[rows, labels].sum(), 2 * (weights - 0.5) + slope

        self.weights = minimize(loss, np.full(2, 0.5), jac=True, bounds=[(0, None)] * 2).x

    def save(self, path: Path) -> None:
        """Write the file, some 12 bytes for each feature and 2 more for each label of it."""
        kept = {f"{name}_{number}": part[name] for number, part in enumerate(self.parts) for name in ("hashes", "idf")}
        kept |= {"coefficients": self.model.coef_.astype(np.float16, order="C"), "intercepts": self.model.intercept_}
        kept |= {"labels": self.model.classes_.astype(np.int32), "weights": self.weights}
        path.write_bytes(save(kept, metadata={"parts": json.dumps([part["how"] for part in self.parts])}))

    @classmethod
    def load(cls, path: Path) -> "Words":
        """Read the file; InputError where it is no such file."""
        try:
            with safe_open(path, framework="np") as file:
                about, kept = file.metadata(), {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            model = _logistic()
            model.classes_, model.intercept_ = kept["labels"], kept["intercepts"]
            model.coef_ = kept["coefficients"].astype(np.float64)
            parts = [
                {"how": {**how, "ngram_range": tuple(how["ngram_range"])}}
                | {name: kept[f"{name}_{number}"] for name in ("hashes", "idf")}
                for number, how in enumerate(json.loads(about["parts"]))
            ]
            if not np.isfinite(weights := np.reshape(kept.get("weights", np.ones(2)), 2)).all():
                raise ValueError("weights that are no numbers")
            return cls(parts, model, weights=weights)
        except (OSError, ValueError, KeyError, TypeError, SafetensorError) as error:
            raise InputError(
                f"{path} is not what fine-tuning writes ({error}): remove it, or add --without_words"
            ) from None


def _counts(texts: Sequence[str], how: Mapping[str, Any]) -> Any:
    """How often each term stands in each text, by the term's hash: sparse [texts, hashes]."""
    return HashingVectorizer(n_features=_HASHES, alternate_sign=False, norm=None, **how).transform(texts).tocoo()


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

    sentence = max(re.split(r"(?<=[.!?])\s+", context), key=common)
    if whole:
        return sentence
    runs: list[list[Any]] = [[]]
    for found in _WORDS.finditer(sentence):
        runs[-1].append(found) if found[0].lower() not in asked else runs.append([])
    run = max(runs, key=len)
    return sentence[run[0].start() : run[-1].end()] if run else sentence
