"""Exact match and F1 of extracted answers, by the arithmetic of the scripts for SQuAD 1.1 and 2.0."""

import math
import re
import string
from collections import Counter
from collections.abc import Callable, Iterable, Sequence

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


def squad_v2_f1(prediction: str, answer: str) -> float:
    """`token_f1` of the script for version 2.0: two texts without words agree, and score 1.0."""
    if not normalize_answer(prediction) or not normalize_answer(answer):
        return exact_match(prediction, answer)
    return token_f1(prediction, answer)


def best_over_answers(score: Callable[[str, str], float], prediction: str, answers: Iterable[str]) -> float:
    """The best score of a prediction over all answers that count as right."""
    return max(score(prediction, answer) for answer in answers)


def answers_with_words(answers: Sequence[str]) -> list[str]:
    """The answers that version 2.0 counts: an answer without words is none, and "" is right where there is none."""
    return [text for text in answers if normalize_answer(text)] or [""]


def squad(predictions: Sequence[str], references: Sequence[Sequence[str]]) -> dict[str, float]:
    """Exact match and F1 in percent, by the script for SQuAD 1.1; each question has at least one answer."""
    pairs = list(zip(predictions, references, strict=True))
    return {
        name: 100.0 * sum(best_over_answers(score, guess, answers) for guess, answers in pairs) / len(pairs)
        for name, score in (("exact_match", exact_match), ("f1", token_f1))
    }


def squad_v2(
    predictions: Sequence[str],
    references: Sequence[Sequence[str]],
    *,
    no_answer: Sequence[float] | None = None,
    threshold: float = 1.0,
) -> dict[str, float]:
    """Exact match and F1 in percent, by the script for SQuAD 2.0, also for questions with and without an answer alone.

    Args:
        predictions: the best text of each question, also where "no answer" is more likely.
        references: the answers of each question; none where it cannot be answered.
        no_answer: a number for each question that rises with the belief in "no answer"; None: all are answered.
        threshold: a question whose number is above it counts as not answered.
    """
    refused = [value > threshold for value in no_answer] if no_answer is not None else [False] * len(predictions)
    scores = {
        name: [
            float(not answers) if is_refused else best_over_answers(score, guess, answers_with_words(answers))
            for guess, answers, is_refused in zip(predictions, references, refused, strict=True)
        ]
        for name, score in (("exact_match", exact_match), ("f1", squad_v2_f1))
    }
    parts = {
        "": list(range(len(references))),
        "has_answer_": [number for number, answers in enumerate(references) if answers],
        "no_answer_": [number for number, answers in enumerate(references) if not answers],
    }
    return {
        part + name: 100.0 * sum(values[number] for number in numbers) / len(numbers)
        for part, numbers in parts.items()
        if numbers
        for name, values in scores.items()
    }


def tuned_threshold(
    predictions: Sequence[str], references: Sequence[Sequence[str]], *, no_answer: Sequence[float]
) -> float:
    """The threshold of `squad_v2` that gives the best F1.

    It lies half-way between the numbers of two questions and never between equal ones, so that rounding moves no
    question over it.
    """
    gains: dict[float, float] = {}
    for guess, answers, value in zip(predictions, references, no_answer, strict=True):
        gain = best_over_answers(squad_v2_f1, guess, answers_with_words(answers)) - float(not answers)
        gains[value] = gains.get(value, 0.0) + gain  # over "no answer"
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
