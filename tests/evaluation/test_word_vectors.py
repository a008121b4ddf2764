"""Analogies, similarity and vectors of words on cases computed by hand, and against loops over single words."""

import warnings
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.stats import spearmanr
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from lacuna.common.errors import InputError, NumericsError
from lacuna.evaluation import (
    LanguageModel,
    collect_vectors,
    measure_words,
    nearest_neighbours,
    read_questions,
    words_of,
)
from lacuna.evaluation.words import answer_analogies, contextual_vectors, skip_gram_vectors, spearman, unit_vectors

ROYAL = {
    "man": [1.0, 0, 0], "woman": [0, 2.0, 0], "king": [1.0, 0, 1], "queen": [0, 1.0, 1], "apple": [0, 0, -3.0],
}  # fmt: skip
ROYAL = {word: np.array(vector) for word, vector in ROYAL.items()}
QUESTION = ("man", "king", "woman", "queen")
TEXT = "The cats sit on the mat. A dog runs to the river, and the cats run. Who sees the dogs? zqzq does. "


def test_an_analogy_by_hand():
    """king - man + woman has with queen (1 + sqrt(1/2)) / sqrt(2) = 1.21, with apple -0.71."""
    words = list(ROYAL)
    assert answer_analogies(vectors=ROYAL, questions=[QUESTION], words=words) == {
        "3cosadd": ["queen"],
        "3cosmul": ["queen"],
    }
    without = [word for word in words if word != "queen"]  # all but apple are the question's own
    assert answer_analogies(vectors=ROYAL, questions=[QUESTION], words=without)["3cosadd"] == ["apple"]


def test_the_two_rules_differ_where_one_cosine_is_large():
    """Levy and Goldberg's point. Cosines with a, b, c: x has 0, 1, -1/2, so 3CosAdd gives it 1/2, and y with 0, 0, 0.4
    only 0.4. Moved to 0 to 1, x has 1 * 1/4 / (1/2 + 0.001) = 0.499, and y 1/2 * 0.7 / 0.501 = 0.699."""
    a, b, c = np.array([0, 0, 1.0, 0]), np.array([1.0, 0, 0, 0]), np.array([-0.5, 0.75**0.5, 0, 0])
    vectors = {"a": a, "b": b, "c": c, "x": b}
    y = np.array([0, 0.4 / 0.75**0.5, 0, 0])
    vectors["y"] = y + np.array([0, 0, 0, (1 - y @ y) ** 0.5])
    found = answer_analogies(vectors=vectors, questions=[("a", "b", "c", "y")], words=list(vectors))
    assert found == {"3cosadd": ["x"], "3cosmul": ["y"]}


def test_answers_equal_the_slow_way(monkeypatch):
    monkeypatch.setattr("lacuna.evaluation.words.QUESTIONS_AT_ONCE", 7)
    generator = np.random.default_rng(0)
    words = [f"w{number}" for number in range(30)]
    vectors = {word: generator.normal(size=5) for word in words}

    def cos(one: str, two: str, *, moved: bool = False) -> float:
        cosine = vectors[one] @ vectors[two] / np.linalg.norm(vectors[one]) / np.linalg.norm(vectors[two])
        return (cosine + 1) / 2 if moved else cosine

    questions = [tuple(generator.choice(words, 4, replace=False)) for _ in range(20)]
    found = answer_analogies(vectors=vectors, questions=questions, words=words)
    for number, (a, b, c, _) in enumerate(questions):
        others = [word for word in words if word not in (a, b, c)]
        sums = {word: cos(word, b) - cos(word, a) + cos(word, c) for word in others}
        add = max(others, key=sums.__getitem__)
        parts = {word: [cos(word, other, moved=True) for other in (a, b, c)] for word in others}
        products = {word: of_b * of_c / (of_a + 0.001) for word, (of_a, of_b, of_c) in parts.items()}
        mul = max(others, key=products.__getitem__)
        assert (found["3cosadd"][number], found["3cosmul"][number]) == (add, mul)


def test_accuracy_is_the_mean_over_sections_and_all_kinds_answer_the_same():
    less = {word: vector for word, vector in ROYAL.items() if word != "apple"}
    wrong = ("man", "king", "woman", "man")
    questions = {"one": [QUESTION], "two": [QUESTION, wrong, ("apple", "man", "king", "queen")]}
    found = measure_words(suite="analogies", vectors={"": ROYAL, "baseline_random_": less}, questions=questions)
    assert found["accuracy_3cosadd"] == found["baseline_random_accuracy_3cosmul"] == (1 + 1 / 2) / 2
    assert (found["accuracy_3cosadd_one"], found["accuracy_3cosadd_two"]) == (1, 1 / 2)
    assert (found["accuracy_3cosadd_low"], found["accuracy_3cosadd_high"]) == (0.5, 1)
    assert (found["asked"], found["left_out"], found["words"], found["out_of_vocabulary"]) == (3, 1, 5, 1)
    assert found["out_of_vocabulary_words"] == "apple"
    with pytest.raises(InputError, match="4 of 4 words have no vector"):
        measure_words(suite="analogies", vectors={"": {}}, questions={"one": [QUESTION]})


def test_similarity_by_hand():
    """Cosines with up: 1, 0.8, 0.6, 0. Two neighbours are swapped in the second file: 1 - 6 * 2 / (4 ** 3 - 4)."""
    vectors = {"up": [0, 1], "also": [0, 2], "a": [0.6, 0.8], "b": [0.8, 0.6], "right": [1, 0], "Up": [5, 5]}
    vectors = {word: np.array(vector, dtype=float) for word, vector in vectors.items()}
    agree = [("up", "also", 9.0), ("up", "a", 7.0), ("up", "b", 2.0), ("up", "right", 0.5)]
    swapped = [("up", "also", 9.0), ("up", "a", 2.0), ("up", "b", 7.0), ("up", "right", 0.5), ("up", "none", 1.0)]
    few = [("up", "a", 1.0), ("up", "none", 3.0), ("a", "b", 2.0)]
    found = measure_words(suite="similarity", vectors={"": vectors}, questions={"x": agree, "y": swapped, "few": few})
    assert found["spearman_x"] == pytest.approx(1) and found["spearman_y"] == pytest.approx(1 - 6 * 2 / (64 - 4))
    assert found["spearman"] == pytest.approx((1 + 0.8) / 2)
    assert found["spearman_y_low"] <= found["spearman_y"] <= found["spearman_y_high"]
    assert (found["asked"], found["left_out"], found["out_of_vocabulary_words"]) == (8, 4, "none")
    assert "spearman_few" not in found
    with pytest.raises(InputError, match="nothing is left to ask"):
        measure_words(suite="similarity", vectors={"": vectors}, questions={"few": few})


def test_correlation_is_scipys():
    generator = np.random.default_rng(3)
    for ties in (4, 100):
        one, two = generator.integers(ties, size=(2, 50)).astype(float)
        assert spearman(one, two) == pytest.approx(spearmanr(one, two).statistic)
    with warnings.catch_warnings(action="error"):
        assert np.isnan(spearman(np.ones(3), np.arange(3.0))) and np.isnan(spearman(np.ones(1), np.ones(1)))


def test_nearest_neighbours_by_hand():
    """With king (1, 0, 1): man sqrt(1/2), queen 1/2, woman 0, apple -sqrt(1/2)."""
    near = nearest_neighbours(vectors=ROYAL, word="king", count=3)
    assert [word for word, _ in near] == ["man", "queen", "woman"]
    assert [cosine for _, cosine in near] == pytest.approx([0.5**0.5, 0.5, 0])
    assert nearest_neighbours(vectors=ROYAL, word="King") == []


def test_vectors_that_say_nothing_are_an_error():
    with pytest.raises(InputError, match="same vector"):
        unit_vectors({"a": np.ones(2), "b": np.ones(2)}, ["a", "b"])
    with pytest.raises(NumericsError, match="not finite"):
        unit_vectors({"a": np.ones(2), "b": np.array([1, np.nan])}, ["a", "b"])


def test_a_vector_is_the_mean_of_the_tokens_behind_a_blank(tokenizer, make_model):
    model = make_model("causal")
    language_model = LanguageModel.of(model=model, tokenizer=tokenizer)
    words = ["cats", "zqzq", "日", "the"]
    vectors, missing = collect_vectors(language_model=language_model, words=words, documents=[])
    assert set(vectors) == {"", "baseline_random_"} and missing.keys() == {"missing_contextual", "missing_skip_gram"}
    table = model.get_input_embeddings().weight.detach().numpy()
    for word in words:
        ids = tokenizer(f" {word}", add_special_tokens=False)["input_ids"]
        if len(ids) > 1 and tokenizer.decode(ids[:1]) == " ":  # a blank alone
            ids = ids[1:]
        np.testing.assert_allclose(vectors[""][word], table[ids].mean(axis=0), rtol=1e-6)
    again, _ = collect_vectors(language_model=language_model, words=words, documents=[])
    np.testing.assert_array_equal(vectors["baseline_random_"]["cats"], again["baseline_random_"]["cats"])


def test_a_word_that_the_tokenizer_does_not_know_has_no_vector(make_model):
    known = {"[UNK]": 0, "[CLS]": 1, "cat": 2, "dog": 3}
    words = Tokenizer(models.WordLevel(known, unk_token="[UNK]"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    wrapped = PreTrainedTokenizerFast(tokenizer_object=words, unk_token="[UNK]", bos_token="[CLS]")
    language_model = LanguageModel.of(model=make_model("causal"), tokenizer=wrapped)
    vectors, _ = collect_vectors(language_model=language_model, words=["cat", "dog", "emu"], documents=[])
    assert list(vectors[""]) == ["cat", "dog"]


@torch.no_grad()
@pytest.mark.parametrize("kind", ["causal", "masked"])
def test_contextual_vectors_equal_the_slow_way(tokenizer, make_model, monkeypatch, kind):
    monkeypatch.setattr("lacuna.evaluation.words.CONTEXT", 16)
    monkeypatch.setattr("lacuna.evaluation.words.MOST_OCCURRENCES", 7)
    model = make_model(kind)
    language_model = LanguageModel.of(model=model, tokenizer=tokenizer)
    documents = [TEXT * 4, "zqzq the dog", TEXT.replace("dogs", "Dogs") * 6]
    words, prefix, suffix = ["cats", "dogs", "zqzq", "the", "Dog", "emu"], [2], [3] if kind == "masked" else []
    room = 16 - len(prefix) - len(suffix)
    expected: dict[str, list[np.ndarray]] = {word: [] for word in words}
    for text in documents:
        encoded = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
        ids, spans = encoded["input_ids"], encoded["offset_mapping"]
        for begin in range(0, len(ids), room):
            row = [*prefix, *ids[begin : begin + room], *suffix]
            states = model.base_model(input_ids=torch.tensor([row])).last_hidden_state[0].double().numpy()
            for word in words:
                for place in [i for i in range(len(text)) if text.startswith(word, i)]:
                    end = place + len(word)
                    whole = (
                        not (text[place - 1 : place] if place else " ").isalnum() and not text[end : end + 1].isalnum()
                    )
                    tokens = [number for number, span in enumerate(spans) if span[0] < end and span[1] > place]
                    inside = begin <= tokens[0] and tokens[-1] < begin + room
                    if whole and inside and len(expected[word]) < 7:
                        expected[word].append(states[[1 + number - begin for number in tokens]].mean(axis=0))
    for batch_size in (None, 1, 3):
        found = contextual_vectors(
            language_model=replace(language_model, batch_size=batch_size), words=words, documents=documents
        )
        assert set(found) == {word for word, states in expected.items() if len(states) >= 5} >= {"cats", "zqzq", "the"}
        for word, vector in found.items():
            np.testing.assert_allclose(vector, np.mean(expected[word], axis=0), rtol=1e-4, atol=1e-6)


def test_skip_gram_vectors_are_the_same_each_time(tokenizer, make_model):
    pytest.importorskip("gensim", reason="pip install -e .[vectors]")
    documents = [TEXT * 5, "emu " * 4]
    found = [skip_gram_vectors(words=["cats", "the", "emu", "Cats"], documents=documents, size=8) for _ in range(2)]
    assert list(found[0]) == ["cats", "the"] and found[0]["the"].shape == (8,)
    np.testing.assert_array_equal(found[0]["cats"], found[1]["cats"])
    assert skip_gram_vectors(words=["emu"], documents=["emu"], size=8) == {}
    language_model = LanguageModel.of(model=make_model("causal"), tokenizer=tokenizer)
    vectors, missing = collect_vectors(language_model=language_model, words=["cats", "the"], documents=documents)
    assert list(vectors) == ["", "baseline_random_", "contextual_", "baseline_skip_gram_"] and not missing


def test_files_are_read_by_section_and_by_file():
    lines = ["a b c d", ": one two", "Athens Greece  Oslo Norway", "w x y z"]
    found = read_questions([(text, f"some/q.txt:{number}") for number, text in enumerate(lines)], suite="analogies")
    assert found == {"q": [("a", "b", "c", "d")], "one two": [("Athens", "Greece", "Oslo", "Norway"), tuple("wxyz")]}
    more = [(": first", "a.txt:1"), ("a b c d", "a.txt:2"), ("w x y z", "b.txt:1")]
    assert [*read_questions(more, suite="analogies")] == ["first", "b"]  # a section ends with its file
    lines = [("ice cream\tcat\t7.5", "x/EN.txt:1"), ("a b 1", "y/DE.txt.gz:1"), ("b\tc \t-2e-1\n", "x/EN.txt:2")]
    found = read_questions(lines, suite="similarity")
    assert found == {"EN": [("ice cream", "cat", 7.5), ("b", "c", -0.2)], "DE": [("a", "b", 1.0)]}
    for text, suite in [
        ("a b c", "analogies"), ("a b c d e", "analogies"), ("a\tb\t", "similarity"), ("a\tb\tscore", "similarity"),
        ("a\tb\tnan", "similarity"), ("\ta\t3", "similarity"), (": name", "similarity"),
    ]:  # fmt: skip
        with pytest.raises(InputError, match=r"q\.txt:7: expected"):
            read_questions([(text, "q.txt:7")], suite=suite)
    with pytest.raises(InputError, match="no questions below"):
        read_questions([(": only", "q.txt:1")], suite="analogies")


def test_the_published_files(tokenizer, make_model, shared_data, monkeypatch):
    """All of them are read, and asked of 32 random dimensions."""
    monkeypatch.setattr("lacuna.evaluation.baselines.RESAMPLES", 20)
    lines = (shared_data / "word_analogy" / "questions-words.txt").read_text().splitlines()
    questions = read_questions([(text, f"q.txt:{number}") for number, text in enumerate(lines)], suite="analogies")
    assert len(questions) == 14 and sum(map(len, questions.values())) == 19_544
    paths = sorted((shared_data / "word_similarity").glob("*.txt"))
    rows = [(text, f"{path}:{number}") for path in paths for number, text in enumerate(path.read_text().splitlines())]
    pairs = read_questions(rows, suite="similarity")
    assert len(pairs) == 9 and len(pairs["EN-SIMLEX-999"]) == 999
    language_model = LanguageModel.of(model=make_model("masked"), tokenizer=tokenizer)
    few = {name: some[:20] for name, some in questions.items()}
    vectors, _ = collect_vectors(language_model=language_model, words=[*words_of(few), *words_of(pairs)], documents=[])
    assert measure_words(suite="analogies", vectors=vectors, questions=few)["asked"] == 280
    found = measure_words(suite="similarity", vectors=vectors, questions=pairs)
    assert found["left_out"] == 0 and found["spearman_low"] < 0 < found["spearman_high"]
