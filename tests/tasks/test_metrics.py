"""Metrics against hand-computed cases, against slow independent ones, and without touching the disk."""

import os
import string
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tasks.metrics import (
    METRICS,
    best_over_answers,
    classification_metrics,
    exact_match,
    normalize_answer,
    squad_metrics,
    token_f1,
)


def slow_classification(predictions: list[int], references: list[int]) -> dict[str, float]:
    """Every metric from the confusion matrix, by its textbook formula."""
    classes = sorted({*predictions, *references})
    matrix = np.zeros((len(classes), len(classes)))  # [reference, prediction]
    for predicted, wanted in zip(predictions, references, strict=True):
        matrix[classes.index(wanted), classes.index(predicted)] += 1
    total, right = matrix.sum(), np.trace(matrix)
    scores = []
    for k in range(len(classes)):
        missed, wrong = matrix[k].sum() - matrix[k, k], matrix[:, k].sum() - matrix[k, k]
        scores.append(2 * matrix[k, k] / (2 * matrix[k, k] + missed + wrong))
    true, guessed = matrix.sum(axis=1), matrix.sum(axis=0)
    below = np.sqrt(total**2 - (guessed**2).sum()) * np.sqrt(total**2 - (true**2).sum())
    return {
        "accuracy": right / total,
        "f1_macro": float(np.mean(scores)),
        "f1_micro": right / total,  # single label: micro precision, recall and F1 are all the accuracy
        "matthews_correlation": float((right * total - (guessed * true).sum()) / below) if below else 0.0,
    }


def test_classification_metrics_by_hand():
    # class 0: precision 2/3, recall 2/2, F1 0.8; class 1: 1/1, 1/2, F1 2/3
    found = classification_metrics(predictions=[0, 0, 0, 1], references=[0, 0, 1, 1])
    assert found["accuracy"] == 0.75
    assert found["f1_macro"] == pytest.approx((0.8 + 2 / 3) / 2)
    assert found["f1_micro"] == 0.75
    # (tp tn - fp fn) / sqrt((tp+fp)(tp+fn)(tn+fp)(tn+fn)) = (1*2 - 0*1) / sqrt(1*2*2*3)
    assert found["matthews_correlation"] == pytest.approx(2 / np.sqrt(12))


@settings(max_examples=25, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), min_size=1, max_size=40))
def test_classification_metrics_equal_slow_ones(pairs):
    predictions, references = [a for a, _ in pairs], [b for _, b in pairs]
    found = classification_metrics(predictions=predictions, references=references)
    assert found == pytest.approx(slow_classification(predictions, references), abs=1e-12)


@pytest.mark.parametrize(
    ("text", "normal"),
    [
        ("The Eiffel Tower.", "eiffel tower"),
        ("an  apple,\ta pear", "apple pear"),
        ("theatre a-the-an", "theatre athean"),  # punctuation goes first, then articles that stand alone
        ("U.S.A.", "usa"),
        ("A", ""),
        ("24–10", "24–10"),  # an en dash is not ASCII punctuation
        ("¿Qué?", "¿qué"),
        ("THÉ the", "thé"),
        ("a\u00a0dog", "dog"),
    ],
)
def test_normalize_answer_by_hand(text, normal):
    assert normalize_answer(text) == normal


@pytest.mark.parametrize(
    ("prediction", "answer", "match", "f1"),
    [
        ("the Denver Broncos", "Denver Broncos", 1.0, 1.0),
        ("Denver", "Denver Broncos", 0.0, 2 / 3),
        ("Denver Denver", "Denver Broncos", 0.0, 0.5),  # one shared word of two and of two
        ("Carolina", "Denver", 0.0, 0.0),
        ("", "Denver", 0.0, 0.0),
        ("the", "a", 1.0, 0.0),  # both normalize to nothing: equal, with no word in common
    ],
)
def test_scores_by_hand(prediction, answer, match, f1):
    assert exact_match(prediction, answer) == match
    assert token_f1(prediction, answer) == pytest.approx(f1)


def slow_normal(text: str) -> list[str]:
    kept = "".join(" " if letter.isspace() else letter for letter in text.lower() if letter not in string.punctuation)
    words, word = [], ""
    for letter in kept + " ":  # \b ends a word at anything that is not a letter, digit or underscore
        if letter.isalnum() or letter == "_":
            word += letter
        else:
            words.append("" if word in ("a", "an", "the") else word)
            if words[-1] == "" and word:
                words[-1] = " "
            words.append(letter)
            word = ""
    return "".join(words).split()


def slow_f1(prediction: str, answer: str) -> float:
    left, right = slow_normal(prediction), slow_normal(answer)
    shared, rest = 0, list(right)
    for word in left:
        if word in rest:
            rest.remove(word)
            shared += 1
    return 0.0 if shared == 0 else 2 * shared / (len(left) + len(right))


words = st.lists(
    st.sampled_from(["a", "The", "an", "dog", "Dog.", "dog", "24–10", "é", "日本", "it's", "-", "“the”", "a-b", "  "])
).map(" ".join)


@settings(max_examples=300, deadline=None)
@given(words, st.lists(words, min_size=1, max_size=3))
def test_squad_scores_equal_slow_ones(prediction, answers):
    assert best_over_answers(token_f1, prediction, answers) == pytest.approx(
        max(slow_f1(prediction, answer) for answer in answers)
    )
    assert best_over_answers(exact_match, prediction, answers) == any(
        slow_normal(prediction) == slow_normal(answer) for answer in answers
    )


def test_squad_is_in_percent_and_takes_the_best_answer():
    found = squad_metrics(
        predictions={"1": "the Broncos", "2": "1887"}, answers={"1": ["Denver Broncos", "Broncos"], "2": ["in 1888"]}
    )
    assert found == {"exact_match": 50.0, "f1": 50.0}


def test_squad_counts_a_question_without_prediction_as_wrong():
    predictions = [{"id": "1", "prediction_text": "x"}, {"id": "other", "prediction_text": "x"}]
    references = [{"id": name, "answers": {"text": ["x"], "answer_start": [0]}} for name in ("1", "2")]
    found = METRICS["squad"]().compute(predictions=predictions, references=references)
    assert found == {"exact_match": 50.0, "f1": 50.0}


def test_metrics_keep_evaluates_own_interface():
    metric = METRICS["accuracy"]()
    metric.add_batch(predictions=[1, 0], references=[1, 1])
    metric.add(prediction=1, reference=1)
    assert metric.compute() == {"accuracy": pytest.approx(2 / 3)}
    assert metric.name == "accuracy"
    assert metric.compute(predictions=[1], references=[1]) == {"accuracy": 1.0}


def test_metrics_write_nothing_and_need_no_home(tmp_path: Path):
    """With a home folder that cannot be written (here: a file), metrics still work, and leave nothing behind."""
    home = tmp_path / "home"
    home.write_text("not a folder")
    code = """
from tasks.metrics import classification_metrics, squad_metrics
assert classification_metrics(predictions=[1, 0], references=[1, 1])["accuracy"] == 0.5
assert squad_metrics(predictions={"1": "x"}, answers={"1": ["x"]})["f1"] == 100.0
"""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("HF_", "XDG_"))}
    environment |= {"HOME": str(home), "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    repository = Path(__file__).resolve().parents[2]
    run = subprocess.run(
        [sys.executable, "-c", code], cwd=repository, env=environment, capture_output=True, text=True, timeout=120
    )
    assert run.returncode == 0, run.stderr
    assert home.read_text() == "not a folder"
