"""Metrics as `evaluate.Metric` classes that need no hub: `evaluate.load("accuracy")` downloads a script, these do not.

A plain `evaluate.Metric` writes an Arrow file with a lock under the user's cache folder even for one number; two
processes, or a home folder that is read-only, then get in each other's way. These keep their data in memory and
create no folder, unless `num_process` asks for evaluate's own joining of processes through files.
"""

import os
import re
import string
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import datasets
import evaluate
from sklearn.metrics import accuracy_score, f1_score, matthews_corrcoef


class LocalMetric(evaluate.Metric):
    """An `evaluate.Metric` that lives in memory while one process uses it."""

    def __init__(self, config_name: str | None = None, *, num_process: int = 1, **options: Any) -> None:
        options.setdefault("keep_in_memory", num_process == 1)
        super().__init__(config_name, num_process=num_process, **options)

    def _build_data_dir(self) -> str:
        if self.keep_in_memory:
            return os.path.join(self._data_dir_root, self.name, self.config_name)  # named, never created
        return super()._build_data_dir()


def _info(description: str, citation: str, features: datasets.Features) -> evaluate.MetricInfo:
    return evaluate.MetricInfo(
        description=description, citation=citation, inputs_description=description, features=features
    )


def _class_features() -> datasets.Features:
    return datasets.Features({"predictions": datasets.Value("int32"), "references": datasets.Value("int32")})


class Accuracy(LocalMetric):
    """Share of predictions that equal their reference."""

    def _info(self) -> evaluate.MetricInfo:
        return _info("Share of predictions that equal their reference.", "", _class_features())

    def _compute(self, predictions: Sequence[int], references: Sequence[int]) -> dict[str, float]:
        return {"accuracy": float(accuracy_score(references, predictions))}


class F1(LocalMetric):
    """Harmonic mean of precision and recall of each class, averaged over classes (macro) or over decisions (micro).

    The classes are those that occur in the references or the predictions; a class that is never predicted counts 0.
    """

    def _info(self) -> evaluate.MetricInfo:
        return _info("F1, macro (mean over classes) and micro (over all decisions).", "", _class_features())

    def _compute(self, predictions: Sequence[int], references: Sequence[int]) -> dict[str, float]:
        return {
            f"f1_{average}": float(f1_score(references, predictions, average=average, zero_division=0))
            for average in ("macro", "micro")
        }


class MatthewsCorrelation(LocalMetric):
    """Correlation of predicted and true classes; 0 for any constant guess (Gorodkin 2004 for more than two)."""

    def _info(self) -> evaluate.MetricInfo:
        return _info(
            "Matthews correlation coefficient.",
            "J. Gorodkin, Comparing two K-category assignments by a K-category correlation coefficient, 2004",
            _class_features(),
        )

    def _compute(self, predictions: Sequence[int], references: Sequence[int]) -> dict[str, float]:
        constant = len({*predictions, *references}) == 1  # scikit-learn warns about it, and returns 0 too
        return {"matthews_correlation": 0.0 if constant else float(matthews_corrcoef(references, predictions))}


_PUNCTUATION = str.maketrans("", "", string.punctuation)
_ARTICLES = re.compile(r"\b(?:a|an|the)\b")


def normalize_answer(text: str) -> str:
    """Lower case, without ASCII punctuation, English articles and surplus blanks (Rajpurkar et al. 2016)."""
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_PUNCTUATION)).split())


def exact_match(prediction: str, answer: str) -> float:
    """1.0 when prediction and answer are equal after normalization, else 0.0."""
    return float(normalize_answer(prediction) == normalize_answer(answer))


def token_f1(prediction: str, answer: str) -> float:
    """F1 of the bags of words of prediction and answer, both normalized; 0.0 when they share no word.

    As in the script for version 1.1, two empty texts share no word.
    """
    predicted, wanted = normalize_answer(prediction).split(), normalize_answer(answer).split()
    shared = sum((Counter(predicted) & Counter(wanted)).values())
    if not shared:
        return 0.0
    precision, recall = shared / len(predicted), shared / len(wanted)
    return 2 * precision * recall / (precision + recall)


def best_over_answers(score: Callable[[str, str], float], prediction: str, answers: Iterable[str]) -> float:
    """The best score of a prediction over all answers that count as right."""
    return max(score(prediction, answer) for answer in answers)


class Squad(LocalMetric):
    """Exact match and F1 of extracted answers, in percent, by the arithmetic of the SQuAD v1.1 script."""

    def _info(self) -> evaluate.MetricInfo:
        text, number = datasets.Value("string"), datasets.Value("int32")
        answers = {"text": datasets.List(text), "answer_start": datasets.List(number)}
        return _info(
            "SQuAD v1.1 exact match and F1 in percent; a question without a prediction counts 0.",
            "P. Rajpurkar et al., SQuAD: 100,000+ Questions for Machine Comprehension of Text, 2016",
            datasets.Features(
                {"predictions": {"id": text, "prediction_text": text}, "references": {"id": text, "answers": answers}}
            ),
        )

    def _compute(
        self, predictions: Sequence[Mapping[str, Any]], references: Sequence[Mapping[str, Any]]
    ) -> dict[str, float]:
        guesses = {item["id"]: item["prediction_text"] for item in predictions}
        totals = {"exact_match": 0.0, "f1": 0.0}
        for reference in references:
            guess = guesses.get(reference["id"])
            if guess is not None:
                answers = reference["answers"]["text"]
                totals["exact_match"] += best_over_answers(exact_match, guess, answers)
                totals["f1"] += best_over_answers(token_f1, guess, answers)
        return {name: 100.0 * total / len(references) for name, total in totals.items()}


METRICS: dict[str, type[LocalMetric]] = {
    "accuracy": Accuracy,
    "f1": F1,
    "matthews_correlation": MatthewsCorrelation,
    "squad": Squad,
}


def classification_metrics(*, predictions: Sequence[int], references: Sequence[int]) -> dict[str, float]:
    """Accuracy, F1 (macro and micro) and Matthews correlation of class numbers."""
    results: dict[str, float] = {}
    for name in ("accuracy", "f1", "matthews_correlation"):
        results |= METRICS[name]().compute(predictions=list(predictions), references=list(references))
    return results


def squad_metrics(*, predictions: Mapping[str, str], answers: Mapping[str, Sequence[str]]) -> dict[str, float]:
    """Exact match and F1 in percent. Both mappings go by question id; every question has at least one answer."""
    return Squad().compute(
        predictions=[{"id": key, "prediction_text": text} for key, text in predictions.items()],
        references=[
            {"id": key, "answers": {"text": list(texts), "answer_start": [0] * len(texts)}}
            for key, texts in answers.items()
        ],
    )
