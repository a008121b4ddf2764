"""Metrics against hand-computed cases, against slow independent ones, and without touching the disk."""

import os
import string
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from examples import examples
from hypothesis import given
from hypothesis import strategies as st

from lacuna.common.errors import InputError
from lacuna.tasks.base.metrics import (
    best_over_answers,
    classification,
    correlation,
    entity_f1,
    exact_match,
    generation,
    multi_label,
    normalize_answer,
    squad,
    squad_v2,
    token_f1,
    tuned_threshold,
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
    found = classification(predictions=[0, 0, 0, 1], references=[0, 0, 1, 1])
    assert found["accuracy"] == 0.75
    assert found["f1_macro"] == pytest.approx((0.8 + 2 / 3) / 2)
    assert found["f1_micro"] == 0.75
    # (tp tn - fp fn) / sqrt((tp+fp)(tp+fn)(tn+fp)(tn+fn)) = (1*2 - 0*1) / sqrt(1*2*2*3)
    assert found["matthews_correlation"] == pytest.approx(2 / np.sqrt(12))


@examples(25)
@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), min_size=1, max_size=40))
def test_classification_metrics_equal_slow_ones(pairs):
    predictions, references = [a for a, _ in pairs], [b for _, b in pairs]
    found = classification(predictions=predictions, references=references)
    assert found == pytest.approx(slow_classification(predictions, references), abs=1e-12)


def slow_multi_label(predictions: list[list[int]], references: list[list[int]]) -> dict[str, float]:
    """From sets of labels, by the definition of F1."""
    guessed = [{k for k, on in enumerate(row) if on} for row in predictions]
    wanted = [{k for k, on in enumerate(row) if on} for row in references]

    def f1(both: int, one: int, other: int) -> float:
        precision, recall = both / max(one, 1), both / max(other, 1)
        return 2 * precision * recall / (precision + recall) if both else 0.0

    by_label = []
    for label in set().union(*guessed, *wanted):
        mine, gold = ({n for n, row in enumerate(rows) if label in row} for rows in (guessed, wanted))
        by_label.append(f1(len(mine & gold), len(mine), len(gold)))
    return {
        "f1_macro": float(np.mean(by_label)) if by_label else 0.0,
        "f1_micro": f1(
            sum(len(a & b) for a, b in zip(guessed, wanted, strict=True)),
            sum(map(len, guessed)),
            sum(map(len, wanted)),
        ),
        "f1_samples": float(
            np.mean([f1(len(a & b), len(a), len(b)) if a | b else 1.0 for a, b in zip(guessed, wanted, strict=True)])
        ),
        "subset_accuracy": float(np.mean([a == b for a, b in zip(guessed, wanted, strict=True)])),
    }


rows_of_labels = st.lists(
    st.tuples(*[st.lists(st.integers(0, 1), min_size=4, max_size=4)] * 2), min_size=1, max_size=9
)


@examples(25)
@given(rows_of_labels)
def test_multi_label_metrics_equal_slow_ones(pairs):
    predictions, references = [a for a, _ in pairs], [b for _, b in pairs]
    found = multi_label(predictions=predictions, references=references)
    assert found == pytest.approx(slow_multi_label(predictions, references), abs=1e-12)


def test_multi_label_metrics_by_hand():
    found = multi_label(predictions=[[1, 0, 0], [0, 0, 0]], references=[[1, 1, 0], [0, 0, 0]])
    assert found == pytest.approx(
        {"f1_macro": 0.5, "f1_micro": 2 / 3, "f1_samples": (2 / 3 + 1) / 2, "subset_accuracy": 0.5}
    )


def test_correlations_by_hand():
    # deviations (-1.5, -.5, .5, 1.5) and (-4, -3, -2, 9): sums of products 20, of squares 5 and 110; ranks are equal
    found = correlation(predictions=[1.0, 2.0, 3.0, 4.0], references=[1.0, 2.0, 3.0, 14.0])
    assert found["pearson"] == pytest.approx(20 / np.sqrt(5 * 110))
    assert found["spearman"] == pytest.approx(1.0)
    # ranks 1, 2.5, 2.5 and 3, 1, 2
    assert correlation(predictions=[0.0, 5.0, 5.0], references=[9.0, 1.0, 2.0])["spearman"] == pytest.approx(
        -1.5 / np.sqrt(1.5 * 2)
    )
    assert correlation(predictions=[2.0, 2.0], references=[1.0, 3.0]) == {"pearson": 0.0, "spearman": 0.0}
    assert correlation(predictions=[2.0], references=[1.0]) == {"pearson": 0.0, "spearman": 0.0}


@pytest.mark.parametrize(
    ("text", "normal"),
    [
        ("The Eiffel Tower.", "eiffel tower"),
        ("an  apple,\ta pear", "apple pear"),
        ("theatre a-the-an", "theatre athean"),  # punctuation goes first, then articles that stand alone
        ("U.S.A.", "usa"),
        ("A", "A"),  # nothing would be left: as it is
        (" {} ", "{}"),
        ("", ""),
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
        ("()", "()", 1.0, 1.0),
        ("()", "{}", 0.0, 0.0),  # equal for the scripts, which drop all punctuation
        ("-1", "1", 1.0, 1.0),
        ("", "", 1.0, 1.0),
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
    return "".join(words).split() or ([text.strip()] if text.strip() else [])


def slow_f1(prediction: str, answer: str) -> float:
    left, right = slow_normal(prediction), slow_normal(answer)
    shared, rest = 0, list(right)
    for word in left:
        if word in rest:
            rest.remove(word)
            shared += 1
    return 1.0 if left == right else 0.0 if shared == 0 else 2 * shared / (len(left) + len(right))


words = st.lists(
    st.sampled_from(["a", "The", "an", "dog", "Dog.", "dog", "24–10", "é", "日本", "it's", "-", "“the”", "a-b", "  "])
).map(" ".join)


@examples(300)
@given(words, st.lists(words, min_size=1, max_size=3))
def test_squad_scores_equal_slow_ones(prediction, answers):
    assert best_over_answers(token_f1, prediction, answers) >= best_over_answers(exact_match, prediction, answers)
    assert best_over_answers(token_f1, prediction, answers) == pytest.approx(
        max(slow_f1(prediction, answer) for answer in answers)
    )
    assert best_over_answers(exact_match, prediction, answers) == any(
        slow_normal(prediction) == slow_normal(answer) for answer in answers
    )


def test_squad_is_in_percent_and_takes_the_best_answer():
    found = squad(
        predictions=["the Broncos", "1887", "red", "blue"],
        references=[["Denver Broncos", "Broncos"], ["in 1888"], ["Red."], ["blue"]],
    )
    assert found == {"exact_match": 75.0, "f1": 75.0}


def slow_v2(predictions: list, answers: list, no_answer: list, threshold: float) -> dict[str, float]:
    """All scores of version 2.0, question by question."""
    found: dict[str, float] = {}
    for prefix, kept in (("", (True, False)), ("has_answer_", (True,)), ("no_answer_", (False,))):
        marks = []
        for text, right, value in zip(predictions, answers, no_answer, strict=True):
            if bool(right) not in kept:
                continue
            wanted = [answer for answer in right if answer.strip()] or [""]
            match = float(slow_normal(text) in [slow_normal(gold) for gold in wanted])
            f1 = max(slow_f1(text, gold) for gold in wanted)
            marks.append([float(not right)] * 2 if value > threshold else [match, f1])
        if marks:
            for place, name in enumerate(("exact_match", "f1")):
                found[prefix + name] = 100 * sum(mark[place] for mark in marks) / len(marks)
    return found


asked = st.lists(
    st.tuples(words, st.lists(words, max_size=3), st.sampled_from([-2.5, 0.0, 0.1, 0.5, 0.9, 1.0, 1.5])),
    min_size=1,
    max_size=8,
)


@examples(150)
@given(asked, st.sampled_from([0.0, 0.5, 1.0]))
def test_squad_v2_equals_a_slow_one(questions, threshold):
    predictions, answers, no_answer = map(list, zip(*questions, strict=True))
    found = squad_v2(predictions=predictions, references=answers, no_answer=no_answer, threshold=threshold)
    assert found == pytest.approx(slow_v2(predictions, answers, no_answer, threshold), abs=1e-9)


def test_squad_v2_by_hand():
    found = squad_v2(
        predictions=["the fox", "dog", "cat", ""],
        references=[["fox", "a red fox"], [], ["cat food"], ["yes"]],
        no_answer=[-3.0, 2.0, -1.0, 5.0],
        threshold=0.0,
    )
    assert (found["exact_match"], found["f1"]) == (50.0, pytest.approx(100 * (1 + 1 + 2 / 3) / 4))
    assert found["has_answer_exact_match"] == pytest.approx(100 / 3)
    assert (found["no_answer_exact_match"], found["no_answer_f1"]) == (100.0, 100.0)
    assert squad_v2(["dog", "fox"], [[], []], no_answer=[1.5, 1.0])["exact_match"] == 50.0  # refused above 1


@pytest.mark.parametrize(
    ("references", "threshold"),
    [([["a"], ["b"], []], 1.5), ([["a"], ["b"], ["c"]], 3.0), ([[], [], []], -1.0), ([["a"], [], ["c"]], 0.5)],
    ids=["between two", "all are answered", "none is", "of equals the lower"],
)
def test_the_threshold_by_hand(references, threshold):
    assert tuned_threshold(["a", "b", "c"], references, no_answer=[0.0, 1.0, 2.0]) == threshold


def test_a_threshold_below_infinity_stays_above_what_is_answered():
    assert tuned_threshold(["a", "b"], [["a"], []], no_answer=[3.0, float("inf")]) == 4.0


# Metrics of packages that may be absent


def test_entities_by_type():
    pytest.importorskip("seqeval")
    gold = [["B-PER", "I-PER", "O", "B-LOC"], ["O", "B-LOC", "B-LOC", "O"]]
    found = entity_f1(predictions=[["B-PER", "I-PER", "O", "B-PER"], ["O", "B-LOC", "I-LOC", "O"]], references=gold)
    # of PER one of two guesses is right, of LOC none of one; there are one and three
    assert found["by_type"] == {
        "PER": {"precision": 0.5, "recall": 1.0, "f1": pytest.approx(2 / 3), "number": 1},
        "LOC": {"precision": 0.0, "recall": 0.0, "f1": 0.0, "number": 3},
    }
    assert (found["precision"], found["recall"]) == (pytest.approx(1 / 3), 0.25)
    assert found["f1"] == pytest.approx(2 / 7) and found["accuracy"] == 6 / 8
    missed = entity_f1(predictions=[["O", "B-PER"]], references=[["B-LOC", "B-PER"]])
    assert missed["by_type"]["LOC"] == {"precision": 0.0, "recall": 0.0, "f1": 0.0, "number": 1}
    nothing = entity_f1(predictions=[["O", "O"]], references=[["O", "O"]])
    assert nothing == {"precision": 0.0, "recall": 0.0, "f1": 0.0, "accuracy": 1.0, "by_type": {}}


@pytest.mark.parametrize("tags", [["I-PER", "I-PER", "O"], ["B-PER", "I-PER", "O"], ["B-PER", "E-PER", "O"]])
def test_entities_in_all_three_ways_of_writing_them(tags):
    pytest.importorskip("seqeval")
    assert entity_f1(predictions=[tags], references=[tags])["by_type"]["PER"]["number"] == 1


def test_generated_texts():
    pytest.importorskip("sacrebleu"), pytest.importorskip("rouge_score")
    sentence = "The quick brown fox jumps over the lazy dog."
    assert generation(predictions=[sentence] * 2, references=[sentence] * 2) == pytest.approx(
        dict.fromkeys(("bleu", "chrf", "rouge1", "rouge2", "rougeL"), 100.0)
    )
    found = generation(predictions=["für drei große"], references=["für vier große Hunde"])
    # two of three words are right, two of four found; the umlaut does not divide a word
    assert found["rouge1"] == found["rougeL"] == pytest.approx(100 * 4 / 7)
    assert found["rouge2"] == 0.0 and found["bleu"] == pytest.approx(0.0, abs=20) and 0 < found["chrf"] < 100


def test_rouge_counts_words_of_any_script():
    pytest.importorskip("rouge_score"), pytest.importorskip("sacrebleu")
    for guess, gold in (("हिन्दी में", "हिन्दी नदी"), ("Zu\u0308rich hier", "Zu\u0308rich da")):
        found = generation(predictions=[guess], references=[gold])
        assert found["rouge1"] == pytest.approx(50.0) and found["rouge2"] == 0.0  # one word of two, and no pair


def test_bleu_and_rouge_equal_what_the_packages_say():
    sacrebleu = pytest.importorskip("sacrebleu")
    scorer = pytest.importorskip("rouge_score.rouge_scorer").RougeScorer(["rougeL"])
    guesses = ["the cat is on the mat", "a dog, which barks", "snake_case words"]
    golds = ["there is a cat on the mat", "the dog barks", "words in snake case"]
    found = generation(predictions=guesses, references=golds)
    assert found["bleu"] == pytest.approx(sacrebleu.corpus_bleu(guesses, [golds]).score)
    assert found["chrf"] == pytest.approx(sacrebleu.corpus_chrf(guesses, [golds]).score)
    own = [scorer.score(gold, guess)["rougeL"].fmeasure for gold, guess in zip(golds, guesses, strict=True)]
    assert found["rougeL"] == pytest.approx(100 * sum(own) / 3)


def test_a_package_that_is_absent_is_named_with_its_remedy(monkeypatch):
    def absent(name):
        raise ImportError(f"No module named {name!r}")

    monkeypatch.setattr("lacuna.tasks.base.metrics.import_module", absent)
    for call in (
        lambda: entity_f1(predictions=[["O"]], references=[["O"]]),
        lambda: generation(predictions=["a"], references=["a"]),
    ):
        with pytest.raises(InputError, match=r"pip install -e '\.\[tasks\]'") as caught:
            call()
        assert caught.value.exit_code == 2


@pytest.mark.slow
def test_metrics_write_nothing_and_need_no_home(tmp_path: Path):
    """With a home folder that cannot be written (here: a file), metrics still work, and leave nothing behind."""
    home = tmp_path / "home"
    home.write_text("not a folder")
    code = """
from lacuna.tasks.base.metrics import classification, squad
assert classification(predictions=[1, 0], references=[1, 1])["accuracy"] == 0.5
assert squad(predictions=["x"], references=[["x"]])["f1"] == 100.0
"""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("HF_", "XDG_"))}
    environment |= {"HOME": str(home), "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    repository = Path(__file__).resolve().parents[2]
    run = subprocess.run(
        [sys.executable, "-c", code], cwd=repository, env=environment, capture_output=True, text=True, timeout=120
    )
    assert run.returncode == 0, run.stderr
    assert home.read_text() == "not a folder"
