"""The metrics of all tasks."""

import math
import re
import string
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from importlib import import_module
from types import SimpleNamespace
from typing import Any

import numpy as np
from scipy import stats
from sklearn.metrics import accuracy_score, f1_score, matthews_corrcoef

from lacuna.common.errors import InputError
from lacuna.tasks.base.features import WORDS

_PUNCTUATION = str.maketrans("", "", string.punctuation)
_ARTICLES = re.compile(r"\b(?:a|an|the)\b")


def normalize_answer(text: str) -> str:
    """Lower case, without ASCII punctuation, English articles and surplus blanks (Rajpurkar et al. 2016).

    Where that leaves nothing, the text as it is, unlike in SQuAD's scripts, for which `()` and `{}` are one answer.
    """
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_PUNCTUATION)).split()) or text.strip()


def exact_match(prediction: str, answer: str) -> float:
    """1.0 when prediction and answer are equal after normalization, else 0.0."""
    return float(normalize_answer(prediction) == normalize_answer(answer))


def token_f1(prediction: str, answer: str) -> float:
    """F1 of the bags of normalized words, never less than `exact_match`: 1.0 for two empty texts."""
    predicted, wanted = normalize_answer(prediction).split(), normalize_answer(answer).split()
    if predicted == wanted:
        return 1.0
    shared = sum((Counter(predicted) & Counter(wanted)).values())
    return 2 * shared / (len(predicted) + len(wanted))


def best_over_answers(score: Callable[[str, str], float], prediction: str, answers: Iterable[str]) -> float:
    """The best score of a prediction over all answers that count as right."""
    return max(score(prediction, answer) for answer in answers)


def answers_or_none(answers: Sequence[str]) -> list[str]:
    """The answers that version 2.0 counts: blanks are none, and "" is right where there is none."""
    return [text for text in answers if text.strip()] or [""]


def squad(predictions: Sequence[str], references: Sequence[Sequence[str]]) -> dict[str, float]:
    """Exact match and F1 in percent, as by the script for SQuAD 1.1; without answers, "" is right (`squad_v2`)."""
    found = squad_v2(predictions, references)
    return {name: found[name] for name in ("exact_match", "f1")}


def squad_v2(
    predictions: Sequence[str],
    references: Sequence[Sequence[str]],
    *,
    no_answer: Sequence[float] | None = None,
    threshold: float = 1.0,
) -> dict[str, float]:
    """Exact match and F1 in percent, as by the script for SQuAD 2.0, also of questions with an answer and without.

    Predicted are the best texts, also where "no answer" is more likely: a question for which that, `no_answer`, is
    above the `threshold` counts as not answered. A question without answers cannot be answered.
    """
    refused = [value > threshold for value in no_answer] if no_answer is not None else [False] * len(predictions)
    scores = {
        name: [
            float(not answers) if is_refused else best_over_answers(score, guess, answers_or_none(answers))
            for guess, answers, is_refused in zip(predictions, references, refused, strict=True)
        ]
        for name, score in (("exact_match", exact_match), ("f1", token_f1))
    }
    every = range(len(references))
    parts = {"": [*every], "has_answer_": [number for number in every if references[number]]}
    parts["no_answer_"] = [number for number in every if not references[number]]
    return {
        part + name: 100.0 * sum(values[number] for number in numbers) / len(numbers)
        for part, numbers in parts.items()
        if numbers
        for name, values in scores.items()
    }


def tuned_threshold(
    predictions: Sequence[str], references: Sequence[Sequence[str]], *, no_answer: Sequence[float]
) -> float:
    """The threshold of `squad_v2` with the best F1, half-way between two questions so that rounding moves none."""
    gains: dict[float, float] = {}
    for guess, answers, value in zip(predictions, references, no_answer, strict=True):
        gain = best_over_answers(token_f1, guess, answers_or_none(answers)) - float(not answers)
        gains[value] = gains.get(value, 0.0) + gain  # over "no answer"
    values = sorted(gains)
    answered = int(np.argmax(np.cumsum([0.0, *(gains[value] for value in values)])))  # so many of the values
    below = values[answered - 1] if answered else values[0] - 2.0
    above = values[answered] if answered < len(values) else below + 2.0
    middle = (below + above) / 2
    return middle if math.isfinite(middle) else below + 1.0


Labels = Sequence[int]
Tags = Sequence[Sequence[str]]  # of each sentence


def optional_module(name: str, *, extra: str = "tasks") -> Any:
    """A module of a package that only some tasks need; InputError, which says how to install it, where it is not."""
    try:
        return import_module(name)
    except ImportError as error:
        raise InputError(
            f"this task needs the package {name.split('.')[0]}, which cannot be imported ({error}): "
            f"pip install -e '.[{extra}]'"
        ) from error


def classification(predictions: Labels, references: Labels) -> dict[str, float]:
    """Accuracy, F1 over classes (macro) and decisions (micro), and Matthews correlation, 0 for any constant guess."""
    constant = len({*predictions, *references}) == 1  # scikit-learn warns about it, and returns 0 too
    f1 = {name: f1_score(references, predictions, average=name, zero_division=0) for name in ("macro", "micro")}
    return {
        "accuracy": float(accuracy_score(references, predictions)),
        **{f"f1_{name}": float(value) for name, value in f1.items()},
        "matthews_correlation": 0.0 if constant else float(matthews_corrcoef(references, predictions)),
    }


def multi_label(predictions: Sequence[Labels], references: Sequence[Labels]) -> dict[str, float]:
    """F1 of label sets over labels (macro), decisions (micro) and examples (samples), and the share of exact sets.

    Predictions and references hold 0 or 1 for each label. Macro F1 is the mean over the labels that occur. An example
    without labels for which none is predicted has an F1 of 1.
    """
    guessed, wanted = np.asarray(predictions), np.asarray(references)
    occur = np.flatnonzero((guessed | wanted).any(axis=0))
    return {
        "f1_macro": float(f1_score(wanted, guessed, average="macro", labels=occur)) if len(occur) else 0.0,
        "f1_micro": float(f1_score(wanted, guessed, average="micro", zero_division=0)),
        "f1_samples": float(f1_score(wanted, guessed, average="samples", zero_division=1)),
        "subset_accuracy": float(accuracy_score(wanted, guessed)),
    }


def correlation(predictions: Sequence[float], references: Sequence[float]) -> dict[str, float]:
    """Pearson's and Spearman's correlation; 0 where one side is constant."""
    if min(len(set(predictions)), len(set(references))) < 2:
        return {"pearson": 0.0, "spearman": 0.0}
    found = {"pearson": stats.pearsonr, "spearman": stats.spearmanr}
    return {name: float(compute(predictions, references).statistic) for name, compute in found.items()}


def entity_f1(predictions: Tags, references: Tags) -> dict[str, Any]:
    """Precision, recall and F1 of entities by seqeval, overall and `by_type` (with `number`), and accuracy of tags."""
    seqeval = optional_module("seqeval.metrics")
    report: dict[str, Any] = {}
    if any(tag != "O" for tags in [*predictions, *references] for tag in tags):  # seqeval needs one entity
        report = seqeval.classification_report(references, predictions, output_dict=True, zero_division=0)
    columns = {"precision": "precision", "recall": "recall", "f1": "f1-score"}
    by_type = {
        name: {ours: float(scores[theirs]) for ours, theirs in columns.items()} | {"number": int(scores["support"])}
        for name, scores in report.items()
    }
    averages = {name: by_type.pop(name) for name in [*by_type] if name.endswith(" avg")}
    total = averages.get("micro avg", dict.fromkeys(columns, 0.0))
    accuracy = float(seqeval.accuracy_score(references, predictions))
    return {**{name: total[name] for name in columns}, "accuracy": accuracy, "by_type": by_type}


def generation(predictions: Sequence[str], references: Sequence[str]) -> dict[str, float]:
    """BLEU and chrF of the corpus (sacrebleu: Post 2018, Popović 2015) and ROUGE-1, -2, -L (Lin 2004), from 0 to 100.

    ROUGE is the mean over texts of the F-measure, without stemming.
    """
    sacrebleu, rouge = optional_module("sacrebleu"), optional_module("rouge_score.rouge_scorer")
    kinds = ["rouge1", "rouge2", "rougeL"]
    # Its own tokenizer, equal on ASCII, drops all other letters.
    words = SimpleNamespace(tokenize=lambda text: WORDS.findall(text.lower().replace("_", " ")))
    scorer = rouge.RougeScorer(kinds, tokenizer=words)
    found = [scorer.score(text, guess) for guess, text in zip(predictions, references, strict=True)]
    return {
        "bleu": float(sacrebleu.corpus_bleu(predictions, [references]).score),
        "chrf": float(sacrebleu.corpus_chrf(predictions, [references]).score),
        **{kind: 100.0 * sum(scores[kind].fmeasure for scores in found) / len(found) for kind in kinds},
    }
