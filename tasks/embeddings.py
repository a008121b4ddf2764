"""Embeddings: a vector for each text, near to those of texts that belong to it; by way of sentence-transformers.

Its trainer and losses teach the encoder, and what is saved is a folder that `SentenceTransformer(folder)` loads. How
good it is, is measured here: the correlation of cosines with scores, or at which rank a text finds what belongs to it.
"""

import math
import random
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.feature_extraction.text import TfidfVectorizer
from torch import Tensor
from tqdm import tqdm
from transformers import PrinterCallback

from lacuna.common.errors import InputError
from lacuna.tasks.encoders import KeepBest, Log, num_evaluations, seconds_of
from lacuna.tasks.local_metric import optional_module
from lacuna.tasks.metrics import correlation_metrics
from lacuna.tasks.pairs import KINDS, PAIRS, SCORED, TRIPLES, guess_columns, kind_of, read_together
from lacuna.tasks.rows import as_rows
from lacuna.tasks.splits import split_groups
from lacuna.tasks.tables import Matrix, Points, Table
from lacuna.tasks.task import Inputs, Task
from lacuna.tasks.words import WORDS

CUTOFFS = (1, 5, 10)
LOSSES = {SCORED: "CoSENTLoss", PAIRS: "MultipleNegativesRankingLoss", TRIPLES: "MultipleNegativesRankingLoss"}
_QUERIES_AT_ONCE = 256
_TEXTS_AT_ONCE = 256
_QUIET: dict[str, Any] = {"save_strategy": "no", "report_to": [], "logging_steps": 10, "disable_tqdm": True}
_SPOKEN = {
    SCORED: "pairs with a score of how alike they are",
    PAIRS: "pairs that belong together",
    TRIPLES: "triples: two texts that belong together and one that does not",
}
Vectors = Callable[[Sequence[str]], Any]
"""Texts to vectors of length 1, [texts, size]: a tensor, or a sparse matrix of scipy."""


class Embeddings(Task):
    """Learning vectors from texts that belong together.

    Args:
        train_rows: mappings, or records with `fields`, `path` and `line`.
        eval_rows: the same, held out; empty: a seeded part of `train_rows`, all rows of a first text together.
        tokenizer: a fast tokenizer, to show what is cut.
        kind: one of `KINDS`, or "auto": told by the columns and the values of the label.
        text_column, text_pair_column, negative_column, label_column: column names; None: guessed, and said.
        max_length: tokens that texts are cut to, special tokens included.
        seed: decides the held-out part.
        eval_fraction: share of `train_rows` to hold out.

    Raises:
        InputError: a column, text or label that is missing or cannot be used; the message has its file and line.
    """

    name = "embeddings"

    def __init__(
        self,
        *,
        train_rows: Sequence[Any],
        eval_rows: Sequence[Any] = (),
        tokenizer: Any,
        kind: str = "auto",
        text_column: str | None = None,
        text_pair_column: str | None = None,
        negative_column: str | None = None,
        label_column: str | None = None,
        max_length: int = 128,
        seed: int = 0,
        eval_fraction: float = 0.1,
    ) -> None:
        super().__init__(tokenizer=tokenizer, max_length=max_length)
        rows = as_rows(train_rows, part="training")
        if not rows:
            raise InputError("there are no training rows: name a file that has some with --train_file")
        columns = guess_columns(
            rows, first=text_column, second=text_pair_column, negative=negative_column, label=label_column
        )
        found = kind_of(rows, columns) if kind == "auto" else kind
        if found not in KINDS:
            raise InputError(f"--kind {kind} is none of auto, {', '.join(KINDS)}")
        self._note_columns(columns, guessed=not (text_column and text_pair_column and kind != "auto"))
        self.note_names(rows, texts=[columns.first, columns.second, columns.negative], label=columns.label)
        train, notes = read_together(rows, columns, kind=found)
        held_out = read_together(as_rows(eval_rows, part="evaluation"), columns, kind=found)[0] if eval_rows else []
        self.columns = columns
        self.kind = SCORED if found == SCORED else PAIRS if train[0].negative is None else TRIPLES
        self.metric = "spearman" if self.kind == SCORED else "mrr_at_10"
        self.mistakes_heading = (
            "The {count} largest differences of rank" if self.kind == SCORED else "The {count} surest wrong texts"
        )
        how = " (told by the columns; --kind overrides it)" if kind == "auto" else ""
        self.notes += [f"the rows are {_SPOKEN[self.kind]}{how}; the loss is {LOSSES[self.kind]}", *notes]
        if held_out:
            self.note_overlap(train=[item.texts for item in train], held_out=[item.texts for item in held_out])
        else:
            kept, out = split_groups(groups=[item.first for item in train], fraction=eval_fraction, seed=seed)
            self.note_held_out(of=train, count=len(out), more=", by first text")
            train, held_out = [train[i] for i in kept], [train[i] for i in out]
        self.train_rows, self.eval_rows = train, held_out
        self._documents: list[str] = []
        self._found: dict[str, float] = {}
        self.num_examples, self.num_eval_examples = len(train), len(held_out)
        self._note_scores()
        lengths = tokenizer([text for item in train for text in item.texts], truncation=True, max_length=max_length)
        self.note_cut([len(ids) for ids in lengths["input_ids"]])

    def _note_columns(self, columns: Any, *, guessed: bool) -> None:
        named = {"negative": columns.negative, "label": columns.label}
        parts = [f"texts from columns '{columns.first}' and '{columns.second}'"]
        parts += [f"{what} from '{column}'" for what, column in named.items() if column is not None]
        options = "--text_column, --text_pair_column, --negative_column and --label_column override it"
        self.notes.append(", ".join(parts) + (f" (guessed; {options})" if guessed else ""))

    def _note_scores(self) -> None:
        if self.kind != SCORED:
            return
        scores = [item.score for item in self.train_rows if item.score is not None]
        if len(set(scores)) < 2:
            raise InputError(
                f"{self.train_rows[0].where}: every pair has the score {scores[0]:g}: two are needed to tell pairs "
                "apart; leave the column out with --kind pairs, or name another with --label_column"
            )
        self.notes.append(f"scores from {min(scores):g} to {max(scores):g}; only their order is learnt")

    # Learning

    def dataset(self) -> Any:
        """The training rows as sentence-transformers wants them: columns of texts in order, then the score."""
        import datasets

        names = ["anchor", "positive", "negative"] if self.kind == TRIPLES else ["first", "second"]
        columns: dict[str, list[Any]] = {
            name: [item.texts[number] for item in self.train_rows] for number, name in enumerate(names)
        }
        if self.kind == SCORED:
            columns["score"] = [item.score for item in self.train_rows]
        return datasets.Dataset.from_dict(columns)

    def train(
        self,
        encoder: Any,
        *,
        log: Log,
        output_dir: Path | str,
        batch_size: int = 32,
        max_steps: int | None = None,
        max_epochs: float = 3.0,
        learning_rate: float = 3e-4,
        warmup_steps: float = 0.06,
        eval_steps: float = 0.2,
        seed: int = 0,
        bf16: bool = False,
        num_processes: int = 1,
    ) -> dict[str, float]:
        """Train an encoder, in place, with the trainer and the loss of sentence-transformers; keep the best weights.

        Args:
            encoder: a `SentenceTransformer`.
            log: shows how far training is, and keeps losses and scores.
            output_dir: nothing is written there but what the trainer may want to keep for itself.
            batch_size: rows in one step, over all processes.
            warmup_steps, eval_steps: steps, or below 1 shares of the run.
            num_processes: how many train together.

        Returns:
            What results.json says: scores before (`start_`) and after (`eval_`), of a method without a model
            (`baseline_`), steps and seconds. The `records` are those of the weights that were kept.
        """
        library = optional_module("sentence_transformers", extra="embeddings")
        losses = optional_module("sentence_transformers.sentence_transformer.losses", extra="embeddings")
        if batch_size % num_processes:
            raise InputError(f"--batch_size {batch_size} cannot be divided among {num_processes} processes evenly")
        on_cpu = not torch.accelerator.is_available()
        arguments = library.SentenceTransformerTrainingArguments(
            output_dir=str(output_dir),
            per_device_train_batch_size=batch_size // num_processes,
            max_steps=max_steps or -1,
            num_train_epochs=max_epochs,
            learning_rate=learning_rate,
            warmup_steps=warmup_steps,
            lr_scheduler_type="linear",
            seed=seed,
            bf16=bf16,
            use_cpu=on_cpu,
            ddp_backend="gloo" if on_cpu and num_processes > 1 else None,
            # A text that comes twice in a batch would be a wrong text for itself.
            batch_sampler="batch_sampler" if self.kind == SCORED else "no_duplicates",
            **_QUIET,
        )
        loss = getattr(losses, LOSSES[self.kind])(encoder)
        # Its own card, which takes a while and shows bars of its own, is not written.
        parts = {"add_model_card_callback": lambda trainer, defaults: None}
        trainer = type("Trainer", (library.SentenceTransformerTrainer,), parts)(
            model=encoder, args=arguments, train_dataset=self.dataset(), loss=loss
        )
        trainer.remove_callback(PrinterCallback)  # `log` says it for people
        enabled = trainer.is_world_process_zero() and bool(self.eval_rows)
        return self._learn(trainer, KeepBest(self, encoder, every=eval_steps, enabled=enabled, log=log))

    def _learn(self, trainer: Any, watch: KeepBest) -> dict[str, float]:
        """Train, and measure before, on the way and after; the results."""
        trainer.add_callback(watch)
        start = watch.evaluate(0) if watch.enabled else {}
        began = time.perf_counter()
        trainer.train()
        seconds = time.perf_counter() - began
        end = watch.finish(trainer.state.global_step) if watch.enabled else {}
        return {
            **{f"eval_{name}": value for name, value in end.items()},
            **{f"start_{name}": value for name, value in start.items()},
            **{f"baseline_{name}": value for name, value in self.baseline().items()},
            "steps": trainer.state.global_step,
            "train_seconds": round(seconds, 2),
        }

    def expected(
        self,
        encoder: Any,
        *,
        batch_size: int,
        max_steps: int | None,
        max_epochs: float,
        eval_steps: float,
        seed: int = 0,
        bf16: bool = False,
        num_processes: int = 1,
    ) -> tuple[tuple[int, float], tuple[int, float]]:
        """What `train` would do: how many steps and evaluations, and the seconds of each, measured on a few rows."""
        losses = optional_module("sentence_transformers.sentence_transformer.losses", extra="embeddings")
        steps = max_steps or math.ceil(max_epochs * math.ceil(len(self.train_rows) / batch_size))
        loss, device = getattr(losses, LOSSES[self.kind])(encoder), encoder.device
        share = min(batch_size // num_processes, len(self.train_rows))
        rows = random.Random(seed).sample(self.train_rows, share)
        sides = [list(texts) for texts in zip(*(row.texts for row in rows), strict=True)]
        scores = torch.tensor([row.score or 0.0 for row in rows], device=device)

        def learn() -> None:
            features = [
                {name: value.to(device) if isinstance(value, Tensor) else value for name, value in side.items()}
                for side in map(encoder.preprocess, sides)
            ]
            with torch.autocast(device.type, dtype=torch.bfloat16, enabled=bf16):
                value = loss(features, scores)
            value.backward()
            encoder.zero_grad(set_to_none=True)
            float(value.detach())  # a GPU is waited for

        texts = [text for item in self.eval_rows for text in item.texts]
        some = texts[:_TEXTS_AT_ONCE]
        encoder.train()
        a_step = seconds_of(learn)
        encoder.eval()
        all_texts = seconds_of(lambda: encoder.encode(some, show_progress_bar=False)) * len(texts) / max(len(some), 1)
        return (steps, a_step), (num_evaluations(eval_steps, steps) if texts else 0, all_texts)

    def evaluate_encoder(self, encoder: Any) -> dict[str, float]:
        """Scores of the held-out rows; what was found of each stays in `records`."""
        options = {"convert_to_tensor": True, "normalize_embeddings": True, "show_progress_bar": False}

        def vectors(texts: Sequence[str]) -> Tensor:
            # With `delay` the bar appears only where evaluation takes long enough to ask what is happening.
            starts = tqdm(range(0, len(texts), _TEXTS_AT_ONCE), "evaluating", leave=False, delay=3, disable=None)
            return torch.cat([encoder.encode(texts[at : at + _TEXTS_AT_ONCE], **options).float() for at in starts])

        encoder.eval()
        self.records, self._found = self._measure(vectors)
        return self.scores()

    def _measure(self, vectors: Vectors) -> tuple[list[dict[str, Any]], dict[str, float]]:
        """What is found of each held-out row or text, and the scores of that."""
        if self.kind == SCORED:
            cosines = _rowwise(*(vectors([item.texts[side] for item in self.eval_rows]) for side in (0, 1))).tolist()
            gold = [item.score or 0.0 for item in self.eval_rows]
            records = [{"row": row, "cosine": cosine} for row, cosine in enumerate(cosines)]
            return records, correlation_metrics(predictions=cosines, references=gold)
        records = self._ranks(vectors)
        count = max(len(records), 1)
        found = {f"recall_at_{k}": sum(record["found"][str(k)] for record in records) / count for k in CUTOFFS}
        found["mrr_at_10"] = sum(1 / record["rank"] for record in records if record["rank"] <= 10) / count
        if self.kind == TRIPLES:
            first, second, third = (vectors([item.texts[side] for item in self.eval_rows]) for side in range(3))
            found["triplet_accuracy"] = float((_rowwise(first, second) > _rowwise(first, third)).float().mean())
        return records, found

    def _ranks(self, vectors: Vectors) -> list[dict[str, Any]]:
        """For each first text: the rank of what belongs to it among all held-out texts, and the nearest of these."""
        wanted: dict[str, set[str]] = {}
        for item in self.eval_rows:
            wanted.setdefault(item.first, set()).add(item.second)
        self._documents = list(dict.fromkeys(text for item in self.eval_rows for text in item.texts[1:]))
        number = {text: place for place, text in enumerate(self._documents)}
        queries, there = list(wanted), vectors(self._documents)
        asked = vectors(queries)
        records = []
        for begin in range(0, len(queries), _QUERIES_AT_ONCE):
            cosines = _all_by_all(asked[begin : begin + _QUERIES_AT_ONCE], there)
            nearest = cosines.topk(min(max(CUTOFFS), len(self._documents)), dim=1)
            for place, query in enumerate(queries[begin : begin + _QUERIES_AT_ONCE]):
                right = [number[text] for text in wanted[query]]
                best = cosines[place, right].max()
                # What is as near as the right text comes before it: nothing tells them apart.
                before = (cosines[place] >= best).sum() - (cosines[place, right] == best).sum()
                top = nearest.indices[place].tolist()
                records.append(
                    {
                        "row": begin + place,
                        "query": query,
                        "rank": 1 + int(before),
                        "found": {f"{k}": len(set(top[:k]) & set(right)) / len(right) for k in CUTOFFS},
                        "nearest": top[0],
                        "cosine": float(nearest.values[place, 0]),
                    }
                )
        return records

    def scores(self) -> dict[str, float]:
        """Correlations of cosines and scores; or recall among the first 1, 5 and 10, mean reciprocal rank, triples."""
        return self._found

    def baseline(self) -> dict[str, float]:
        """The same with the words of the texts, weighted by their rarity in training, in place of a model."""
        if not self.eval_rows:
            return {}
        texts = [text for item in self.train_rows for text in item.texts]
        words = TfidfVectorizer(tokenizer=WORDS.findall, token_pattern=None).fit(texts)
        return self._measure(words.transform)[1]

    # For people

    def predictions(self) -> list[dict[str, Any]]:
        """Pairs with cosine, score and how far apart their ranks are (from -1 to 1); or texts with the nearest one."""
        if self.kind != SCORED:
            wanted: dict[str, list[str]] = {}
            for item in self.eval_rows:
                wanted.setdefault(item.first, []).append(item.second)
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
        cosines = [record["cosine"] for record in self.records]
        gold = [item.score or 0.0 for item in self.eval_rows]
        off = _shares(cosines) - _shares(gold)
        return [
            {
                "text": item.first,
                "text_pair": item.second,
                "gold": score,
                "prediction": round(cosine, 6),
                "rank_difference": round(float(difference), 4),
            }
            for item, score, cosine, difference in zip(self.eval_rows, gold, cosines, off, strict=True)
        ]

    def mistakes(self, predictions: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
        """Of scores the largest differences of rank; else the wrong texts that are nearest."""
        if self.kind != SCORED:
            return super().mistakes(predictions)
        return sorted(predictions, key=lambda prediction: -abs(prediction["rank_difference"]))

    def tables(self) -> dict[str, Matrix | Table | Points]:
        """Scores over cosines; or how many texts find what belongs to them at which rank."""
        if self.kind == SCORED:
            gold, cosines = [item.score or 0.0 for item in self.eval_rows], [each["cosine"] for each in self.records]
            return {"Cosines and scores": Points(gold, cosines, scales=("score", "cosine"))}
        bounds = [(1, 1), (2, 5), (6, 10), (11, 100), (101, math.inf)]
        rows: list[list[object]] = []
        for first, last in bounds:
            count = sum(first <= record["rank"] <= last for record in self.records)
            name = str(first) if first == last else f"{first} to {last}" if last < math.inf else f"beyond {first - 1}"
            rows.append([name, count, count / max(len(self.records), 1)])
        return {"Rank of what belongs to a text": Table(("rank", "texts", "share"), rows, bars=("share",))}

    def settings(self) -> dict[str, Any]:
        """What `recipes/predict.py` needs to know."""
        columns = {"text_column": self.columns.first, "text_pair_column": self.columns.second}
        return {**super().settings(), "kind": self.kind, **columns}

    def describe(self, examples: int = 0) -> list[str]:
        """`notes`, counts, and the first training rows as the model will see them."""
        lines = super().describe(0)
        for number, item in enumerate(self.train_rows[:examples], start=1):
            lines += [f"example {number}:", *(f"    {line}" for line in self.show({"texts": item.texts}))]
        return lines

    def show(self, example: Inputs) -> list[str]:
        """The texts of a row, as tokens."""
        options = {"truncation": True, "max_length": self.max_length}
        return [self.tokenizer.decode(self.tokenizer(text, **options)["input_ids"]) for text in example["texts"]]


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
    from scipy.stats import rankdata

    return (rankdata(values) - 1) / max(len(values) - 1, 1)
