"""What words alone tell: cases that are known by hand, and what is printed and written of it."""

import warnings
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors import safe_open
from scipy.optimize import minimize
from scipy.sparse import hstack
from scipy.special import log_softmax

from lacuna.common.errors import InputError
from lacuna.tasks.base import bag_of_words
from lacuna.tasks.base.bag_of_words import Words, tag_words, vectorizer, words_in_common
from lacuna.tasks.classification.reader import ClassificationArguments
from lacuna.tasks.classification.task import Classification
from lacuna.tasks.question_answering.reader import QuestionAnsweringArguments
from lacuna.tasks.question_answering.task import QuestionAnswering
from lacuna.tasks.token_classification.reader import TokenClassificationArguments
from lacuna.tasks.token_classification.task import TokenClassification

TRAIN = [("the film is good",), ("the film is bad",), ("good actors",), ("bad actors",)]
HELD_OUT = [("good or so",), ("bad music",), ("music",)]
SINGLE = "single_label_classification"


def tfidf(train: list[Any], held_out: list[Any]) -> tuple[Any, Any]:
    """Features of both parts by scikit-learn alone, which keeps the words."""
    parts = []
    for texts, others in zip(zip(*train, strict=True), zip(*held_out, strict=True), strict=True):
        words = vectorizer(chain.from_iterable(train))
        parts.append((words.fit_transform(texts), words.transform(others)))
    first, second = zip(*parts, strict=True)
    return hstack(first, format="csr"), hstack(second, format="csr")


def test_a_label_without_a_row_is_least_likely() -> None:
    words: Any = Words.fit(SINGLE, TRAIN, [2, 0, 2, 0])
    found = np.exp(words.log_probabilities(HELD_OUT, num_labels=3))
    assert found[:, [0, 2]].sum(axis=1) == pytest.approx([1, 1, 1]) and found[:, 1] == pytest.approx([1e-9] * 3)
    assert found.argmax(axis=1).tolist()[:2] == [2, 0]


PAIRED = [(text, other) for (text,), (other,) in zip(TRAIN, TRAIN[1:] + TRAIN[:1], strict=True)]
MORE = [("nothing known", "good"), ("the film", "music"), ("", "ähnlich good-good\n\nbad")]


@pytest.mark.parametrize("most", [51, 10**7])
@pytest.mark.parametrize(("train", "others"), [(TRAIN, HELD_OUT), (PAIRED, MORE)])
def test_words_in_a_file_say_what_tfidf_says_and_are_not_in_it(
    train, others, most, monkeypatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("lacuna.tasks.base.bag_of_words.MOST_CHARACTERS", most)
    words: Any = Words.fit(SINGLE, train, [1, 0, 1, 0])
    features = tfidf(train, others)
    expected = bag_of_words._logistic().fit(features[0], [1, 0, 1, 0]).predict_log_proba(features[1])
    np.testing.assert_allclose(words.log_probabilities(others, num_labels=2), expected, atol=1e-9)
    words.save(tmp_path / "words.safetensors")
    again = Words.load(tmp_path / "words.safetensors")
    np.testing.assert_allclose(again.log_probabilities(others, num_labels=2), expected, atol=0.01)
    content = (tmp_path / "words.safetensors").read_bytes()
    assert not any(word in content for word in (b"film", b"actors", b"good"))
    with safe_open(tmp_path / "words.safetensors", framework="np") as file:
        assert file.get_tensor("coefficients").shape[1] == features[0].shape[1]


def test_what_is_no_file_of_words_is_refused(tmp_path: Path) -> None:
    assert Words.fit(SINGLE, [("!",), ("?",)], [0, 1]) is None
    for content in (b"", b"nothing", b"{}" * 99):
        (tmp_path / "words.safetensors").write_bytes(content)
        with pytest.raises(InputError, match="is not what fine-tuning writes"):
            Words.load(tmp_path / "words.safetensors")


def test_features_are_words_and_pairs_of_all_texts_of_a_row(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lacuna.tasks.base.bag_of_words.MOST_CHARACTERS", 51)
    train, held_out = tfidf(TRAIN, HELD_OUT)
    # actors, bad, film, good, is, the; bad actors, film is, good actors, is bad, is good, the film
    assert train.shape == (4, 12) and held_out.shape == (3, 12)
    assert held_out[2].nnz == 0 and held_out[0].nnz == 1
    both, _ = tfidf([texts * 2 for texts in TRAIN], [texts * 2 for texts in HELD_OUT])
    assert both.shape == (4, 24) and np.allclose(both.toarray()[:, :12], both.toarray()[:, 12:])


def test_features_are_parts_of_words_too(monkeypatch: pytest.MonkeyPatch) -> None:
    train, held_out = tfidf([("good",), ("bad",)], [("goodness",)])
    # good, bad; in " good " 4 of three, 3 of four and 2 of five characters, in " bad " 3, 2 and 1
    assert train.shape == (2, 2 + 9 + 6) and held_out.nnz == 3 + 2 + 1
    monkeypatch.setattr("lacuna.tasks.base.bag_of_words.MOST_CHARACTERS", 6)
    assert tfidf([("good",), ("bad",)], [("goodness",)])[0].shape == (2, 2)
    bad, good, *_ = tfidf([("good good bad",)], [("",)])[0].toarray()[0]  # bad, "good bad", good, "good good"
    assert good / bad == pytest.approx(1 + np.log(2)), "a word that comes twice counts less than twice"


def test_labels_several_labels_and_numbers() -> None:
    def said(kind: str, targets: Any) -> Any:
        words: Any = Words.fit(kind, TRAIN, targets)
        return words.model.predict(words.features(HELD_OUT))

    assert said(SINGLE, [1, 0, 1, 0])[:2].tolist() == [1, 0]
    with warnings.catch_warnings(action="error"):
        always = said("multi_label_classification", np.eye(2, dtype=int)[[1, 1, 1, 1]])
    assert always.tolist() == [[0, 1]] * 3
    several = said("multi_label_classification", np.eye(2, dtype=int)[[1, 0, 1, 0]])
    assert several[:2].tolist() == [[0, 1], [1, 0]]
    good, bad, none = said("regression", [1.0, -1.0, 1.0, -1.0])
    assert good > 0.1 and bad < -0.1 and none == pytest.approx(0, abs=0.05)


def test_a_tag_comes_from_the_word_its_ends_and_its_neighbours() -> None:
    names = ["Smith", "Jones", "Brown", "Taylor", "Wilson", "Davies", "Evans", "Thomas"]
    sentences = [["Mr", name, "walks"] for name in names] + [["he", "walks", "home"]] * 8
    tags = [[0, 1, 0]] * 8 + [[0, 0, 0]] * 8
    assert tag_words(sentences, tags, [["Mr", "Green", "talks"], ["he", "talks", "home"]]) == [[0, 1, 0], [0, 0, 0]]


def test_words_that_a_question_and_a_sentence_share() -> None:
    context = "The river is long. The river of Alphaville is called Alpha Beta, and it is wide. It rains."
    question = "What is the river of Alphaville called?"
    assert words_in_common(question, context, whole=True) == context.split(". ")[1] + "."
    assert words_in_common(question, context, whole=False) == "Alpha Beta, and it"
    assert words_in_common("What?", "What", whole=False) == "What" and words_in_common("?", "", whole=False) == ""
    assert words_in_common("Who walked?", "Old Tom walked home at night.", whole=False) == "home at night"


ROWS = [
    {"text": f"{word} number {i}", "label": label} for i in range(8) for label, word in ((0, "quick"), (1, "lazy"))
]


def test_tasks_have_the_metrics_of_words_alone(tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    def task(rows: list[dict[str, object]]) -> Classification:
        return Classification(
            ClassificationArguments(), train_rows=rows, eval_rows=ROWS[:4], tokenizer=tokenizer, config=None
        )

    found = task(ROWS).bag_of_words
    assert found["accuracy"] == 1.0 and found.keys() == task(ROWS).baseline().keys() - {"loss"}
    monkeypatch.setattr("lacuna.tasks.classification.task.MOST_TEXTS", 10)
    large = task(ROWS)
    assert large.bag_of_words == {} and "no bag of words beside it: more than 10 training rows" in large.notes


def test_the_model_and_the_words_answer_together(tokenizer, tmp_path: Path) -> None:
    work = Classification(ClassificationArguments(), train_rows=ROWS, eval_rows=ROWS[:4], tokenizer=tokenizer)
    words: Any = Words.fit(SINGLE, [(row["text"],) for row in ROWS], [row["label"] for row in ROWS])
    of_words = words.log_probabilities([(row["text"],) for row in ROWS[:4]], num_labels=2)
    assert work.bag_of_words["accuracy"] == 1.0
    for weight in (2.0, 0.5):  # the model says the opposite, surer or less sure than the words
        work.records = [{"log_probabilities": each, "row": row} for row, each in enumerate(-weight * of_words)]
        assert work.with_words()["accuracy"] == 1, "the held-out rows tell whom to trust"
        for alone in (0.0, 1.0):  # kept where it is better than the model alone
            results = {"eval_accuracy": alone, "hybrid_accuracy": 1.0}
            assert work.keep(results, tmp_path) == ["bag_of_words.safetensors"] * (alone < 1)
            assert work.settings()["words"] == (alone < 1)
    again, given = Words.load(tmp_path / "bag_of_words.safetensors"), [("quick",)]
    expected = words.log_probabilities(given, num_labels=2)
    np.testing.assert_allclose(again.log_probabilities(given, num_labels=2), expected, atol=0.01)
    assert again.weights[0] < 0.5 < again.weights[1]
    ours = again.together(np.log([[0.9, 0.1]]), np.log([[0.4, 0.6]]))
    powers = 0.9 ** again.weights[0] * 0.4 ** again.weights[1], 0.1 ** again.weights[0] * 0.6 ** again.weights[1]
    np.testing.assert_allclose(np.exp(ours[0]), np.array(powers) / sum(powers))


def test_rows_are_judged_by_the_weights_of_the_others(tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    held_out = [{"text": f"number {i}", "label": i % 2} for i in range(20)]
    work = Classification(ClassificationArguments(), train_rows=ROWS, eval_rows=held_out, tokenizer=tokenizer)
    model = log_softmax(np.random.default_rng(1).normal(size=(20, 2)), axis=1)
    work.records = [{"log_probabilities": each, "row": row} for row, each in enumerate(model)]
    fitted: list[list[int]] = []

    def weigh(self: Words, given: np.ndarray, of_words: np.ndarray, labels: np.ndarray) -> None:
        rows = [int(np.flatnonzero((model == each).all(axis=1))[0]) for each in given]
        assert labels.tolist() == [row % 2 for row in rows] and len(of_words) == len(rows)
        fitted.append(rows)
        self.weights = np.array([1.0, 0.0]) * (-1 if len(fitted) == 2 else 1)  # the second half says the opposite

    monkeypatch.setattr(Words, "weigh", weigh)
    found = work.with_words()["accuracy"]
    first, second, every = fitted
    assert sorted(first + second) == every == list(range(20)) and len(first) == len(second) == 10
    assert {row % 2 for row in first} == {row % 2 for row in second} == {0, 1}, "rows in turn are not taken apart"
    guesses = model.argmax(axis=1)
    guesses[first] = 1 - guesses[first]  # those that were not in the second half
    assert found == (guesses == np.arange(20) % 2).mean() != (model.argmax(axis=1) == np.arange(20) % 2).mean()


def test_weights_make_probabilities_calibrated_and_few_rows_hardly_move_them() -> None:
    chance = np.random.default_rng(0)
    truth, noise = chance.normal(size=(2, 20_000, 3))
    labels = np.array([chance.choice(3, p=p) for p in np.exp(log_softmax(truth, axis=1))])
    sure, useless = log_softmax(4 * truth, axis=1), log_softmax(noise, axis=1)  # four times as sure as it may be
    words: Any = Words([], None)
    words.weigh(sure, useless, labels)
    np.testing.assert_allclose(words.weights, [0.25, 0.0], atol=0.02)
    words.weigh(sure[:1], useless[:1], labels[:1])
    assert abs(words.weights - 0.5).max() < 0.6, "a prior"
    by_hand = minimize(
        lambda w: -log_softmax(w[0] * sure[:50] + w[1] * useless[:50], axis=1)[range(50), labels[:50]].sum()
        + ((w - 0.5) ** 2).sum(),
        [1.0, 1.0], method="Nelder-Mead",
    ).x  # fmt: skip
    words.weigh(sure[:50], useless[:50], labels[:50])
    np.testing.assert_allclose(words.weights, by_hand.clip(0), atol=0.01)


def test_tagging_and_questions_have_them_too(tokenizer) -> None:
    rows = [{"tokens": ["Mr", name, "walks"], "tags": ["O", "B-PER", "O"]} for name in ("Smith", "Jones", "Brown")]
    tagging = TokenClassification(
        TokenClassificationArguments(train_file="rows"), train_rows=rows, eval_rows=rows[:1], tokenizer=tokenizer
    )
    assert tagging.bag_of_words["f1"] == 1.0
    row = {"id": "1", "question": "What is the river called?", "context": "The river is called Alpha. It is wide."}
    row |= {"answers": {"text": ["Alpha"], "answer_start": [20]}}
    questions = QuestionAnswering(QuestionAnsweringArguments(), train_rows=[row], eval_rows=[row], tokenizer=tokenizer)
    assert questions.bag_of_words == {"exact_match": 100.0, "f1": 100.0}
