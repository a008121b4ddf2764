"""Exact match and F1 of extracted answers, by the arithmetic of the scripts for SQuAD 1.1 and 2.0."""

import math
import re
import string
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import datasets
import evaluate

from lacuna.tasks.local_metric import LocalMetric, metric_info

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
        return metric_info(
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


def squad_v2_f1(prediction: str, answer: str) -> float:
    """`token_f1` of the script for version 2.0: two texts without words agree, and score 1.0."""
    if not normalize_answer(prediction) or not normalize_answer(answer):
        return float(normalize_answer(prediction) == normalize_answer(answer))
    return token_f1(prediction, answer)


class SquadV2(LocalMetric):
    """Scores of answers where some questions have none, by the arithmetic and names of the SQuAD v2.0 script.

    A prediction has `no_answer_probability`, or any other number that rises with the belief in "no answer"; one that
    is greater than `no_answer_threshold` counts as "no answer" whatever its text. `best_f1` is what the threshold
    `best_f1_thresh` would give, the best of all, likewise for `best_exact`. As in the script, a threshold is tried
    after each question, also between questions of the same number; and a question without an answer counts as lost by
    any text, also by one that normalizes to nothing ("the", "."), which the script's own `f1` and `exact` take for
    right. So `best_f1` may be less than what a threshold can give; `tuned_threshold` has neither flaw.
    """

    def _info(self) -> evaluate.MetricInfo:
        text, number = datasets.Value("string"), datasets.Value("float64")
        answers = {"text": datasets.List(text), "answer_start": datasets.List(datasets.Value("int32"))}
        prediction = {"id": text, "prediction_text": text, "no_answer_probability": number}
        return metric_info(
            "SQuAD v2.0: exact match and F1 in percent, also apart for questions with and without an answer.",
            "P. Rajpurkar, R. Jia, P. Liang, Know What You Don't Know: Unanswerable Questions for SQuAD, 2018",
            datasets.Features({"predictions": prediction, "references": {"id": text, "answers": answers}}),
        )

    def _compute(
        self,
        predictions: Sequence[Mapping[str, Any]],
        references: Sequence[Mapping[str, Any]],
        no_answer_threshold: float = 1.0,
    ) -> dict[str, float]:
        guesses = {item["id"]: item for item in predictions}
        has_answer = {item["id"]: bool(item["answers"]["text"]) for item in references}
        raw: dict[str, dict[str, float]] = {"exact": {}, "f1": {}}
        for reference in references:
            # An answer without words is no answer; a question without answers is answered right by nothing.
            answers = [text for text in reference["answers"]["text"] if normalize_answer(text)] or [""]
            if (guess := guesses.get(reference["id"])) is not None:
                for name, score in (("exact", exact_match), ("f1", squad_v2_f1)):
                    raw[name][reference["id"]] = best_over_answers(score, guess["prediction_text"], answers)
        final = {
            name: {
                key: float(not has_answer[key])
                if guesses[key]["no_answer_probability"] > no_answer_threshold
                else score
                for key, score in scores.items()
            }
            for name, scores in raw.items()
        }
        results: dict[str, float] = {}
        parts = {"": list(raw["f1"])}
        parts |= {
            f"{name}Ans_": [key for key in has_answer if has_answer[key] is (name == "Has")] for name in ("Has", "No")
        }
        for prefix, keys in parts.items():
            if keys:
                for name, scores in final.items():
                    results[prefix + name] = 100.0 * sum(scores.get(key, 0.0) for key in keys) / len(keys)
                results[f"{prefix}total"] = len(keys)
        for name, scores in raw.items():
            results[f"best_{name}"], results[f"best_{name}_thresh"] = _best_threshold(scores, guesses, has_answer)
        return results


def _best_threshold(
    scores: Mapping[str, float], guesses: Mapping[str, Mapping[str, Any]], has_answer: Mapping[str, bool]
) -> tuple[float, float]:
    """The best score in percent over all thresholds of "no answer", and that threshold; 0.0 if none answers best."""
    best = current = float(sum(not has for has in has_answer.values()))  # nobody answers anything
    threshold = 0.0
    for key in sorted(guesses, key=lambda key: guesses[key]["no_answer_probability"]):
        if key not in scores:
            continue
        if has_answer[key]:
            current += scores[key]
        elif guesses[key]["prediction_text"]:
            current -= 1
        if current > best:
            best, threshold = current, float(guesses[key]["no_answer_probability"])
    return 100.0 * best / max(len(scores), 1), threshold


def _squad_references(answers: Mapping[str, Sequence[str]]) -> list[dict[str, Any]]:
    return [
        {"id": key, "answers": {"text": list(texts), "answer_start": [0] * len(texts)}}
        for key, texts in answers.items()
    ]


def squad_metrics(*, predictions: Mapping[str, str], answers: Mapping[str, Sequence[str]]) -> dict[str, float]:
    """Exact match and F1 in percent. Both mappings go by question id; every question has at least one answer."""
    return Squad().compute(
        predictions=[{"id": key, "prediction_text": text} for key, text in predictions.items()],
        references=_squad_references(answers),
    )


def squad_v2_metrics(
    *,
    predictions: Mapping[str, str],
    no_answer: Mapping[str, float],
    answers: Mapping[str, Sequence[str]],
    threshold: float = 1.0,
) -> dict[str, float]:
    """Scores of the SQuAD v2.0 script under its names. All mappings go by question id.

    Args:
        predictions: the best text of each question, also where "no answer" is believed more.
        no_answer: rises with the belief that there is no answer.
        answers: texts that count as right; none for a question that cannot be answered.
        threshold: `no_answer` above it makes a prediction empty.
    """
    return SquadV2().compute(
        predictions=[
            {"id": key, "prediction_text": text, "no_answer_probability": no_answer[key]}
            for key, text in predictions.items()
        ],
        references=_squad_references(answers),
        no_answer_threshold=threshold,
    )


def tuned_threshold(
    *, predictions: Mapping[str, str], no_answer: Mapping[str, float], answers: Mapping[str, Sequence[str]]
) -> float:
    """The threshold of "no answer" that gives the best F1: `no_answer` above it makes a prediction empty.

    It lies half-way between two questions and never between two of the same number, so that rounding does not move
    any over it. Unlike in the script for version 2.0, a text that normalizes to nothing costs nothing where there is
    no answer. Arguments are those of `squad_v2_metrics`.
    """
    gains: dict[float, float] = {}
    for key, text in predictions.items():
        wanted = [answer for answer in answers[key] if normalize_answer(answer)] or [""]
        gain = best_over_answers(squad_v2_f1, text, wanted) - float(not answers[key])  # over "no answer"
        gains[no_answer[key]] = gains.get(no_answer[key], 0.0) + gain
    values = sorted(gains)
    if not values:
        return 0.0
    best = current = 0.0
    chosen = -1  # the last value that is answered
    for place, value in enumerate(values):
        current += gains[value]
        if current > best:
            best, chosen = current, place
    below = values[chosen] if chosen >= 0 else values[0] - 2.0
    above = values[chosen + 1] if chosen + 1 < len(values) else below + 2.0
    middle = (below + above) / 2
    return middle if math.isfinite(middle) else below + 1.0
