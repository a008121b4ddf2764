"""Embeddings, a vector for each text: which rows are learnt from, and how good vectors are.

Measured is the correlation of cosines with scores, or at which rank a text finds what belongs to it.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property, partial
from typing import Any, Literal

import datasets
import numpy as np
import torch
from scipy.sparse import csr_array
from scipy.stats import rankdata
from sklearn.preprocessing import normalize
from torch import Tensor

from lacuna.common.errors import InputError, NumericsError
from lacuna.common.options import check_range, essential
from lacuna.tasks.base.arguments import (
    ROWS,
    TaskArguments,
    column_option,
    data_option,
    max_length_option,
    optimizer_option,
    rest_option,
)
from lacuna.tasks.base.bag_of_words import vectorizer
from lacuna.tasks.base.columns import TEXT, Column, Layout, only_ones
from lacuna.tasks.base.features import WORDS, records, tokenize
from lacuna.tasks.base.metrics import correlation
from lacuna.tasks.base.report import Points, Shown, Table
from lacuna.tasks.base.rows import Row, as_number, gathered
from lacuna.tasks.base.task import Inputs, Task


@dataclass
class EmbeddingArguments(TaskArguments):
    """Which texts that belong together to learn from, and how; training is that of sentence-transformers."""

    train_file: str | None = essential(None, f"Rows to train on: scored pairs, pairs or triples; {ROWS}.")
    data: list[str] = essential(
        [],
        "Text without any pairs, instead of --train_file: files, folders or Hub datasets, as for pretraining. "
        "A sentence and the passage around it belong together then.",
        metavar="PATH",
    )
    kind: Literal["auto", "scored", "pairs", "triples"] = data_option(
        "auto", "What the rows are: scored (pairs), pairs, triples or auto (inferred from columns and printed)."
    )
    text_column: str | None = column_option("Column of the first text.")
    text_pair_column: str | None = column_option("Column of the matching text.")
    negative_column: str | None = column_option("Column of a text that does not match.")
    label_column: str | None = column_option("Column of the score or label.")
    max_length: int | None = max_length_option("Truncate texts to this many tokens.", 128)
    output_dir: str = essential("runs/embeddings", "Where the model, predictions and metrics are written.")
    push_to_hub: str | None = rest_option(
        None, "Private repository on the Hugging Face Hub to push the model to at the end.", metavar="OWNER/NAME"
    )
    batch_size: int = optimizer_option(
        64, "Rows per step, over all processes; the texts of other rows serve as in-batch negatives."
    )
    max_steps: int | None = optimizer_option(None, "Stop after this many steps.")
    max_epochs: float | None = essential(None, "Stop after this many passes over the data. Default: 3; with --data 1.")
    max_minutes: float | None = optimizer_option(
        None, "Stop after this many minutes of training, evaluation not counted; the best weights so far are kept."
    )
    learning_rate: float | None = essential(None, "Peak learning rate. Default: automatic, by the RMS of the weights.")
    warmup_steps: float = optimizer_option(0.06, "Warmup steps; below 1, a fraction of the run.")
    eval_steps: float = rest_option(0.2, "Steps between evaluations; below 1, a share of the run; 0: only at the end.")
    mixed_precision: Literal["auto", "no", "bf16"] = rest_option("auto", "bf16, no, or auto: bf16 where it is fast.")
    seed: int = rest_option(0, "Seed of the held-out part, sample order and dropout.")
    dry_run: bool = rest_option(False, "Show what would be trained, then exit without training.")

    def __post_init__(self) -> None:
        if self.data and (rows := self.train_file or self.eval_file):
            raise InputError(
                f"--data {' '.join(self.data)} is text without any pairs, and {rows} has some: leave one of them out"
            )
        if self.data and self.kind not in ("auto", "pairs"):
            raise InputError(f"--kind {self.kind}: passages of --data are pairs: leave it out")
        self.is_built_in = bool(self.data)
        super().__post_init__()
        self.max_epochs = (1.0 if self.data else 3.0) if self.max_epochs is None else self.max_epochs
        check_range(self, "batch_size", "max_steps", "max_epochs", "max_minutes", "learning_rate", above=0)
        check_range(self, "warmup_steps", "eval_steps", "seed", at_least=0)


EMBEDDINGS = Layout(
    {
        "text_column": Column("a text", "", TEXT),
        "text_pair_column": Column("one that belongs to it", "", TEXT),
        "negative_column": Column("one that does not", "negative neg hard_negative", optional=True),
        "label_column": Column(
            "the label",
            "score similarity similarity_score relatedness_score gold_label label labels is_duplicate",
            optional=True,
        ),
    },
    pairs=(
        "anchor positive, query positive document passage answer response pos, premise hypothesis, "
        "sentence1 sentence2, sentence_A sentence_B, text1 text2, question1 question2, "
        "question positive answer context passage, title body abstract text, text text_pair positive"
    ),
    by_content=only_ones,
)

SCORED, PAIRS, TRIPLES = "scored", "pairs", "triples"  # the kinds of rows
LOSSES = {SCORED: "CoSENTLoss", PAIRS: "MultipleNegativesRankingLoss", TRIPLES: "MultipleNegativesRankingLoss"}
_SPOKEN = {
    SCORED: "pairs with a score of how alike they are",
    PAIRS: "pairs that belong together",
    TRIPLES: "triples: two texts that belong together and one that does not",
}
CUTOFFS = (1, 5, 10)
MODEL_WEIGHT = 0.5
"""Of the cosines of the model beside those of words: the best of five (benchmarks/results/2026-11-27-search-tried)."""
_QUERIES_AT_ONCE = 256

Vectors = Callable[[Sequence[str]], Any]
"""Texts to vectors of length 1, [texts, size]: a tensor, or a sparse array of scipy."""
Columns = Mapping[str, str | None]  # names of the columns of the texts and the label, by the options that name them
PASSAGES: Columns = {**dict.fromkeys(EMBEDDINGS.columns), "text_column": "text", "text_pair_column": "text_pair"}
"""Those of `corpus.pair_passages`."""


@dataclass(frozen=True, slots=True)
class RelatedTexts:
    """Two texts that belong together, and perhaps one that does not."""

    texts: tuple[str, ...]
    score: float  # how alike they are, on the scale of the data; 1 where it does not say
    where: str


def kind_of(rows: Sequence[Row], columns: Columns) -> str:
    """Which kind the rows are, told by their columns. InputError: they say what follows from a premise."""
    if columns["negative_column"] is not None:
        return TRIPLES
    if columns["label_column"] is None:
        return PAIRS
    if columns["text_column"] == "premise":
        raise InputError(
            f"{rows[0].where}: premises with labelled hypotheses are of no kind that is learnt from: keep those that "
            "follow as pairs, or as triples with a contradiction (sentence-transformers/all-nli:triplet has them)"
        )
    return SCORED


def read_related(rows: Sequence[Row], columns: Columns, *, kind: str) -> list[RelatedTexts]:
    if kind == TRIPLES and columns["negative_column"] is None:
        raise InputError(f"{rows[0].where}: triples need a third text: name its column with --negative_column")
    if kind == SCORED and columns["label_column"] is None:
        raise InputError(
            f"{rows[0].where}: which of {rows[0].shown(rows[0].fields)} is the label? Name it with --label_column"
        )
    named = ["text_column", "text_pair_column", "negative_column"][: 3 if kind == TRIPLES else 2]
    column, found = str(columns["label_column"]), list[RelatedTexts]()
    for row in rows:
        texts = tuple(row.text(str(columns[name]), option=f"--{name}").strip() for name in named)
        score = as_number(row.value(column, option="--label_column")) if kind == SCORED else 1.0
        if score is None:
            raise InputError(
                f"{row.where}: column '{column}' holds {row.fields[column]!r}, not a number that says how alike the "
                "texts are: mend the row, or name another column with --label_column"
            )
        found.append(RelatedTexts(texts, score, row.where))
    return found


class Embeddings(Task):
    """Learning vectors (in `encoders`) from texts that belong together; all rows of a text are held out together."""

    options: EmbeddingArguments
    name, objective = "embeddings", "sentence-transformers"
    default_length = 128

    def read(self, train: list[Any], held_out: list[Any]) -> None:
        self.columns = PASSAGES if self.options.data else self.find_columns(EMBEDDINGS, train)
        asked = self.options.kind
        self.kind = kind_of(train, self.columns) if asked == "auto" else asked
        train, held_out = (read_related(part, self.columns, kind=self.kind) for part in (train, held_out))
        self.metric, self.mistakes_heading = "mrr_at_10", "The {count} surest wrong texts"
        if self.kind == SCORED:
            self.metric, self.error = "spearman", "rank_difference"
            self.mistakes_heading = "The {count} largest differences of rank"
        how = " (inferred; --kind overrides it)" if asked == "auto" else ""
        rows = f"the rows are {_SPOKEN[self.kind]}{how}"
        if self.options.data:
            rows = "a sentence and the passage around it belong together"
        self.notes.append(f"{rows}; the loss is {LOSSES[self.kind]}")
        self.train_items, self.eval_items = self.divide(
            train,
            held_out,
            same=lambda item: item.texts,
            group=lambda item: item.where if self.options.data else item.texts[0],
            how=", by part of a document" if self.options.data else ", by first text",
        )

    def training_texts(self) -> list[str]:
        # Apart, so that nobody can tell which belong together.
        return gathered([text] for item in self.train_items for text in item.texts)

    def encode(self) -> None:
        train = self.train_items
        self._train = [{"texts": item.texts} for item in train]
        self._found: dict[str, float] = {}
        self.num_examples, self.num_eval_examples = len(train), len(self.eval_items)
        if self.kind == SCORED:
            low, high = (end(item.score for item in train) for end in (min, max))
            if low == high:
                raise InputError(
                    f"{train[0].where}: every pair has the score {low:g}: two are needed to tell pairs apart; leave "
                    "the column out with --kind pairs, or name another with --label_column"
                )
            self.notes.append(f"scores from {low:g} to {high:g}; only their order is learnt")
        texts = [text for item in train for text in item.texts]
        self.note_cut(tokenize(tokenizer=self.tokenizer, texts=texts, max_length=self.max_length)[1], of=len(texts))

    def dataset(self) -> Any:
        """The training rows as sentence-transformers wants them: columns of texts in order, then the score."""
        names = ["anchor", "positive", "negative"] if self.kind == TRIPLES else ["first", "second"]
        texts = zip(*(item.texts for item in self.train_items), strict=True)
        columns: dict[str, Any] = {name: [*column] for name, column in zip(names, texts, strict=True)}
        if self.kind == SCORED:
            columns["score"] = [item.score for item in self.train_items]
        return datasets.Dataset.from_dict(columns)

    def evaluate_encoder(self, encoder: Any) -> dict[str, float]:
        """Scores of the held-out rows; what was found of each stays in `records`."""
        options = {"convert_to_tensor": True, "normalize_embeddings": True, "show_progress_bar": False}
        encoder.eval()
        vectors = cache(lambda texts: encoder.encode(list(texts), **options).float())
        if not vectors(tuple(dict.fromkeys(text for item in self.eval_items for text in item.texts))).isfinite().all():
            raise NumericsError("the vectors are not finite numbers: try a lower --learning_rate")
        self.records, self._found = self._measure(vectors)
        return self.scores()

    def _measure(self, *vectors: Vectors) -> tuple[list[dict[str, Any]], dict[str, float]]:
        """What is found of each held-out row or first text, as in `predictions`, by the sum of the cosines of these
        vectors; and the scores of that."""
        items = self.eval_items
        texts = dict.fromkeys(text for item in items for text in item.texts)
        number = {text: place for place, text in enumerate(texts)}
        known = [each((*texts,)) for each in vectors]
        rows = [[number[text] for text in side] for side in zip(*(item.texts for item in items), strict=True)]
        sides = [[each[side] for each in known] for side in rows]
        if self.kind == SCORED:
            gold, cosines = [item.score for item in items], _rowwise(*sides).tolist()
            found = records(
                text=[item.texts[0] for item in items],
                text_pair=[item.texts[1] for item in items],
                gold=gold,
                prediction=[round(cosine, 6) for cosine in cosines],
                rank_difference=[round(off, 4) for off in (_shares(cosines) - _shares(gold)).tolist()],
            )
            return found, correlation(cosines, gold)
        found, recalls = self._ranked(known, number)
        scores = {f"recall_at_{k}": sum(recall[k] for recall in recalls) / len(recalls) for k in CUTOFFS}
        scores["mrr_at_10"] = sum(1 / each["rank"] for each in found if each["rank"] <= 10) / len(found)
        if self.kind == TRIPLES:
            first, second, third = sides
            scores["triplet_accuracy"] = float((_rowwise(first, second) > _rowwise(first, third)).float().mean())
        return found, scores

    def _ranked(self, known: list[Any], number: Mapping[str, int]) -> tuple[list[Any], list[dict[int, float]]]:
        """Of each first text the rank of what belongs to it among all other texts, and the nearest of these; and which
        share of what belongs to it is among the first k, for each of `CUTOFFS`.

        `known` are the vectors of all texts of each kind, [texts, size]; `number` has the row of each text there.
        """
        wanted: dict[str, dict[str, None]] = {}
        for item in self.eval_items:
            wanted.setdefault(item.texts[0], {})[item.texts[1]] = None
        documents = [*dict.fromkeys(text for item in self.eval_items for text in item.texts[1:])]
        place = {text: column for column, text in enumerate(documents)}
        asked, there = ([each[[number[text] for text in texts]] for each in known] for texts in (wanted, documents))
        found, recalls = [], []
        for begin in range(0, len(wanted), _QUERIES_AT_ONCE):
            part = slice(begin, begin + _QUERIES_AT_ONCE)
            products = [each[part] @ other.T for each, other in zip(asked, there, strict=True)]
            cosines = sum(each if isinstance(each, Tensor) else torch.from_numpy(each.toarray()) for each in products)
            for row, (query, texts) in enumerate([*wanted.items()][part]):
                if query in place and query not in texts:  # the text itself is none of the others
                    cosines[row, place[query]] = -torch.inf
            best, order = (each.tolist() for each in cosines.topk(min(max(CUTOFFS), len(documents)), dim=1))
            for row, (query, texts) in enumerate([*wanted.items()][part]):
                right = [place[text] for text in texts]
                nearest = cosines[row, right].max()
                # What is as near as the right text comes before it: nothing tells them apart.
                rank = 1 + int((cosines[row] >= nearest).sum() - (cosines[row, right] == nearest).sum())
                recalls.append({k: len({*order[row][:k]} & {*right}) / len(right) for k in CUTOFFS})
                said = {"text": query, "prediction": documents[order[row][0]], "gold": [*texts]}
                found.append({**said, "score": round(best[row][0], 6), "rank": rank, "correct": rank == 1})
        return found, recalls

    def scores(self) -> dict[str, float]:
        """Correlations of cosines and scores; or recall among the first 1, 5 and 10, mean reciprocal rank, triples."""
        return self._found

    def baseline(self) -> dict[str, float]:
        """The same with words and parts of words, weighted by their rarity in training, in place of a model."""
        return self._measure(self._words)[1]

    def hybrid(self, encoder: Any) -> dict[str, float]:
        """The same with both: cosines of the words plus `MODEL_WEIGHT` times those of the model."""
        vectors = partial(encoder.encode, normalize_embeddings=True, show_progress_bar=False)
        model = lambda texts: torch.tensor(vectors([*texts])) * math.sqrt(MODEL_WEIGHT)  # noqa: E731
        return self._measure(self._words, model)[1]

    @cached_property
    def _words(self) -> Vectors:
        """TF-IDF, of length 1."""
        train, held_out = ([text for it in part for text in it.texts] for part in (self.train_items, self.eval_items))
        found = lambda text: WORDS.findall(text) or [text]  # noqa: E731
        words = vectorizer([*train, *held_out], tokenizer=found, token_pattern=None).fit(train)
        return cache(lambda texts: csr_array(normalize(words.transform(texts))))

    # For people

    def predictions(self) -> list[dict[str, Any]]:
        """Pairs with cosine, score and how far apart their ranks are (from -1 to 1); or texts with the nearest one."""
        return self.records

    def tables(self) -> dict[str, Shown]:
        """Scores over cosines; or how many texts find what belongs to them at which rank."""
        if self.kind == SCORED:
            gold, cosines = ([record[name] for record in self.records] for name in ("gold", "prediction"))
            return {"Cosines and scores": Points(gold, cosines, scales=("score", "cosine"))}
        first = {"1": 1, "2 to 5": 2, "6 to 10": 6, "11 to 100": 11, "beyond 100": 101}
        counts = np.histogram([each["rank"] for each in self.records], bins=[*first.values(), math.inf])[0].tolist()
        rows = [[name, count, count / len(self.records)] for name, count in zip(first, counts, strict=True)]
        return {"Rank of what belongs to a text": Table(("rank", "texts", "share"), rows)}

    def settings(self) -> dict[str, Any]:
        texts = {name: self.columns[name] for name in ("text_column", "text_pair_column")}
        return {**super().settings(), "kind": self.kind, **texts}

    def show(self, example: Inputs) -> list[str]:
        inputs, _ = tokenize(tokenizer=self.tokenizer, texts=example["texts"], max_length=self.max_length)
        return [self.tokenizer.decode(each["input_ids"]) for each in inputs]


def _rowwise(one: Sequence[Any], other: Sequence[Any]) -> Tensor:
    """Products of the vectors of two texts, one by one, and their sum over kinds of vectors: [texts]."""
    return torch.stack([torch.as_tensor((a * b).sum(axis=1)) for a, b in zip(one, other, strict=True)]).sum(dim=0)


def _shares(values: Sequence[float]) -> np.ndarray:
    """The rank of each value, from 0 (smallest) to 1; equal values share the mean of their ranks."""
    return (rankdata(values) - 1) / max(len(values) - 1, 1)
