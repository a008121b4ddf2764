"""Embeddings, a vector for each text: which rows are learnt from, and how good vectors are.

Measured is the correlation of cosines with scores, or at which rank a text finds what belongs to it.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import datasets
import numpy as np
import torch
from scipy.stats import rankdata
from sklearn.feature_extraction.text import TfidfVectorizer
from torch import Tensor

from lacuna.common.errors import InputError
from lacuna.tasks.base.features import WORDS, records, tokenize
from lacuna.tasks.base.metrics import measure
from lacuna.tasks.base.report import Points, Shown, Table
from lacuna.tasks.base.rows import gathered
from lacuna.tasks.base.task import Inputs, Task
from lacuna.tasks.embeddings.reader import (
    EMBEDDINGS,
    KINDS,
    PAIRS,
    SCORED,
    TRIPLES,
    Columns,
    EmbeddingArguments,
    kind_of,
    read_related,
)

CUTOFFS = (1, 5, 10)
LOSSES = {SCORED: "CoSENTLoss", PAIRS: "MultipleNegativesRankingLoss", TRIPLES: "MultipleNegativesRankingLoss"}
_QUERIES_AT_ONCE = 256

_SPOKEN = {
    SCORED: "pairs with a score of how alike they are",
    PAIRS: "pairs that belong together",
    TRIPLES: "triples: two texts that belong together and one that does not",
}

Vectors = Callable[[Sequence[str]], Any]
"""Texts to vectors of length 1, [texts, size]: a tensor, or a sparse matrix of scipy."""


class Embeddings(Task):
    """Learning vectors from texts that belong together; all rows of a first text are held out together.

    `encoders` has the training.
    """

    options: EmbeddingArguments
    name, objective = "embeddings", "sentence-transformers"
    default_length = 128

    def read(self, train: list[Any], held_out: list[Any]) -> None:
        kind = self.options.kind
        named = self.find_columns(EMBEDDINGS, train)
        self.columns = columns = Columns(*named.values())
        found = kind_of(train, columns) if kind == "auto" else kind
        if found not in KINDS:
            raise InputError(f"--kind {kind} is none of auto, {', '.join(KINDS)}")
        train, notes = read_related(train, columns, kind=found)
        held_out = read_related(held_out, columns, kind=found)[0] if held_out else []
        self.kind = SCORED if found == SCORED else PAIRS if train[0].negative is None else TRIPLES
        self.metric = "spearman" if self.kind == SCORED else "mrr_at_10"
        self.mistakes_heading = (
            "The {count} largest differences of rank" if self.kind == SCORED else "The {count} surest wrong texts"
        )
        how = " (inferred; --kind overrides it)" if kind == "auto" else ""
        self.notes += [f"the rows are {_SPOKEN[self.kind]}{how}; the loss is {LOSSES[self.kind]}", *notes]
        train, held_out = self.divide(
            train, held_out, same=lambda item: item.texts, group=lambda item: item.first, how=", by first text"
        )
        self.train_items, self.eval_items = train, held_out

    def training_texts(self) -> list[str]:
        # Apart, so that nobody can tell which belong together.
        return gathered([text] for item in self.train_items for text in item.texts)

    def encode(self) -> None:
        train = self.train_items
        self._train = [{"texts": item.texts} for item in train]
        self._documents: list[str] = []
        self._found: dict[str, float] = {}
        self.num_examples, self.num_eval_examples = len(train), len(self.eval_items)
        self._note_scores()
        texts = [text for item in train for text in item.texts]
        self.note_cut(tokenize(tokenizer=self.tokenizer, texts=texts, max_length=self.max_length)[1], of=len(texts))

    def _note_scores(self) -> None:
        if self.kind != SCORED:
            return
        scores = [item.score or 0.0 for item in self.train_items]
        if len(set(scores)) < 2:
            raise InputError(
                f"{self.train_items[0].where}: every pair has the score {scores[0]:g}: two are needed to tell pairs "
                "apart; leave the column out with --kind pairs, or name another with --label_column"
            )
        self.notes.append(f"scores from {min(scores):g} to {max(scores):g}; only their order is learnt")

    def dataset(self) -> Any:
        """The training rows as sentence-transformers wants them: columns of texts in order, then the score."""
        names = ["anchor", "positive", "negative"] if self.kind == TRIPLES else ["first", "second"]
        columns: dict[str, Any] = {name: [] for name in names}
        for item in self.train_items:
            for name, text in zip(names, item.texts, strict=True):
                columns[name].append(text)
        if self.kind == SCORED:
            columns["score"] = [item.score for item in self.train_items]
        return datasets.Dataset.from_dict(columns)

    def evaluate_encoder(self, encoder: Any) -> dict[str, float]:
        """Scores of the held-out rows; what was found of each stays in `records`."""
        options = {"convert_to_tensor": True, "normalize_embeddings": True, "show_progress_bar": False}
        encoder.eval()
        self.records, self._found = self._measure(lambda texts: encoder.encode(list(texts), **options).float())
        return self.scores()

    def _measure(self, vectors: Vectors) -> tuple[list[dict[str, Any]], dict[str, float]]:
        """What is found of each held-out row or text, and the scores of that."""
        if self.kind == SCORED:
            sides = ([item.texts[side] for item in self.eval_items] for side in (0, 1))
            cosines = _rowwise(*map(vectors, sides)).tolist()
            found = measure("correlation", predictions=cosines, references=self._gold())
            return records(row=range(len(cosines)), cosine=cosines), found
        ranked = self._ranks(vectors)
        count = max(len(ranked), 1)
        found = {f"recall_at_{k}": sum(record["found"][str(k)] for record in ranked) / count for k in CUTOFFS}
        found["mrr_at_10"] = sum(1 / record["rank"] for record in ranked if record["rank"] <= 10) / count
        if self.kind == TRIPLES:
            first, second, third = (vectors([item.texts[side] for item in self.eval_items]) for side in range(3))
            found["triplet_accuracy"] = float((_rowwise(first, second) > _rowwise(first, third)).float().mean())
        return ranked, found

    def _gold(self) -> list[float]:
        return [item.score or 0.0 for item in self.eval_items]

    def _wanted(self) -> dict[str, list[str]]:
        """The texts that belong to each first text."""
        wanted: dict[str, dict[str, None]] = {}
        for item in self.eval_items:
            wanted.setdefault(item.first, {})[item.second] = None
        return {first: list(others) for first, others in wanted.items()}

    def _ranks(self, vectors: Vectors) -> list[dict[str, Any]]:
        """For each first text: the rank of what belongs to it among all held-out texts, and the nearest of these."""
        wanted = self._wanted()
        self._documents = list(dict.fromkeys(text for item in self.eval_items for text in item.texts[1:]))
        number = {text: place for place, text in enumerate(self._documents)}
        queries, there = list(wanted), vectors(self._documents)
        asked = vectors(queries)
        ranked = []
        for begin in range(0, len(queries), _QUERIES_AT_ONCE):
            cosines = _all_by_all(asked[begin : begin + _QUERIES_AT_ONCE], there)
            nearest = cosines.topk(min(max(CUTOFFS), len(self._documents)), dim=1)
            for place, query in enumerate(queries[begin : begin + _QUERIES_AT_ONCE]):
                right = [number[text] for text in wanted[query]]
                best = cosines[place, right].max()
                # What is as near as the right text comes before it: nothing tells them apart.
                before = (cosines[place] >= best).sum() - (cosines[place, right] == best).sum()
                top = nearest.indices[place].tolist()
                ranked.append(
                    {
                        "row": begin + place,
                        "query": query,
                        "rank": 1 + int(before),
                        "found": {f"{k}": len(set(top[:k]) & set(right)) / len(right) for k in CUTOFFS},
                        "nearest": top[0],
                        "cosine": float(nearest.values[place, 0]),
                    }
                )
        return ranked

    def scores(self) -> dict[str, float]:
        """Correlations of cosines and scores; or recall among the first 1, 5 and 10, mean reciprocal rank, triples."""
        return self._found

    def baseline(self) -> dict[str, float]:
        """The same with the words of the texts, weighted by their rarity in training, in place of a model."""
        if not self.eval_items:
            return {}
        texts = [text for item in self.train_items for text in item.texts]
        words = TfidfVectorizer(tokenizer=WORDS.findall, token_pattern=None).fit(texts)
        return self._measure(words.transform)[1]

    # For people

    def predictions(self) -> list[dict[str, Any]]:
        """Pairs with cosine, score and how far apart their ranks are (from -1 to 1); or texts with the nearest one."""
        if self.kind != SCORED:
            wanted = self._wanted()
            return [
                {
                    "text": record["query"],
                    "prediction": self._documents[record["nearest"]],
                    "gold": wanted[record["query"]],
                    "score": round(record["cosine"], 6),
                    "rank": record["rank"],
                    "correct": record["rank"] == 1,
                }
                for record in self.records
            ]
        cosines, gold = [record["cosine"] for record in self.records], self._gold()
        return records(
            text=[item.first for item in self.eval_items],
            text_pair=[item.second for item in self.eval_items],
            gold=gold,
            prediction=[round(cosine, 6) for cosine in cosines],
            rank_difference=[round(off, 4) for off in (_shares(cosines) - _shares(gold)).tolist()],
        )

    def mistakes(self, predictions: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
        if self.kind != SCORED:
            return super().mistakes(predictions)
        return sorted(predictions, key=lambda prediction: -abs(prediction["rank_difference"]))

    def tables(self) -> dict[str, Shown]:
        """Scores over cosines; or how many texts find what belongs to them at which rank."""
        if self.kind == SCORED:
            cosines = [record["cosine"] for record in self.records]
            return {"Cosines and scores": Points(self._gold(), cosines, scales=("score", "cosine"))}
        bounds = [(1, 1), (2, 5), (6, 10), (11, 100), (101, math.inf)]
        rows: list[list[object]] = []
        for first, last in bounds:
            count = sum(first <= record["rank"] <= last for record in self.records)
            name = str(first) if first == last else f"{first} to {last}" if last < math.inf else f"beyond {first - 1}"
            rows.append([name, count, count / max(len(self.records), 1)])
        return {"Rank of what belongs to a text": Table(("rank", "texts", "share"), rows)}

    def settings(self) -> dict[str, Any]:
        columns = {"text_column": self.columns.first, "text_pair_column": self.columns.second}
        return {**super().settings(), "kind": self.kind, **columns}

    def show(self, example: Inputs) -> list[str]:
        inputs, _ = tokenize(tokenizer=self.tokenizer, texts=example["texts"], max_length=self.max_length)
        return [self.tokenizer.decode(each["input_ids"]) for each in inputs]


def _rowwise(one: Any, other: Any) -> Tensor:
    """Products of the vectors of two lists, one by one: [texts]."""
    if isinstance(one, Tensor):
        return (one * other).sum(dim=1)
    return torch.from_numpy(np.asarray(one.multiply(other).sum(axis=1)).ravel())


def _all_by_all(one: Any, other: Any) -> Tensor:
    """Products of each vector of a list with each of another: [texts, other texts]."""
    product = one @ other.T
    return product if isinstance(product, Tensor) else torch.from_numpy(product.toarray())


def _shares(values: Sequence[float]) -> np.ndarray:
    """The rank of each value, from 0 (smallest) to 1; equal values share the mean of their ranks."""
    return (rankdata(values) - 1) / max(len(values) - 1, 1)
