"""Question answering: windows and characters, exact span search, records that can be split, learning, bad input."""

import copy
import json
import math
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from examples import examples, fast
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

from lacuna.common.errors import InputError
from lacuna.tasks.base.metrics import (
    best_over_answers,
    exact_match,
    squad_v2,
    token_f1,
    tuned_threshold,
)
from lacuna.tasks.base.rows import as_rows
from lacuna.tasks.question_answering.reader import (
    Question,
    QuestionAnsweringArguments,
    answer_tokens,
    cut_windows,
    misaligned,
    read_questions,
    trimmed,
)
from lacuna.tasks.question_answering.task import QuestionAnswering


def flat(context: str, answer: str, question: str = "what is it?", **fields: Any) -> dict[str, Any]:
    answers = {"text": [answer], "answer_start": [context.index(answer)]}
    return {"id": f"q{len(context)}", "question": question, "context": context, "answers": answers, **fields}


SENTENCE = "river north city dog fox lazy quick brown word piece year name text build run jump"
WORDS = SENTENCE.split()


def long_rows(count: int = 6, words: int = 60) -> list[dict[str, Any]]:
    """Contexts far longer than a window, with the answer at another place in each."""
    rows = []
    for number in range(count):
        parts = [WORDS[(7 * number + 3 * i * i) % len(WORDS)] for i in range(words)]
        parts[(number * 11) % words] = f"X{number}Z"
        rows.append(flat(" ".join(parts), f"X{number}Z", question=f"where is {number}?", id=str(number)))
    return rows


def task(tokenizer, rows, eval_rows=None, **options) -> QuestionAnswering:
    asked = QuestionAnsweringArguments(**{"max_length": 64, "stride": 16, **options})
    eval_rows = rows if eval_rows is None else eval_rows
    return QuestionAnswering(asked, train_rows=rows, eval_rows=eval_rows, tokenizer=tokenizer)


def questions_of(rows: list[dict[str, Any]]) -> list[Question]:
    return read_questions(as_rows(rows, part="training"))


# Reading

NESTED = {
    "version": "1.1",
    "data": [
        {
            "title": "A",
            "paragraphs": [
                {
                    "context": "The fox is brown.",
                    "qas": [
                        {"id": "1", "question": "Which colour?", "answers": [{"text": "brown", "answer_start": 11}]},
                        {"id": "2", "question": "Who?", "answers": [{"text": "The fox", "answer_start": 0}] * 2},
                    ],
                }
            ],
        }
    ],
}


def test_nested_and_flat_rows_are_the_same_questions():
    rows = [
        {
            "id": "1",
            "question": "Which colour?",
            "context": "The fox is brown.",
            "answers": {"text": ["brown"], "answer_start": [11]},
        },
        {
            "id": "2",
            "question": "Who?",
            "context": "The fox is brown.",
            "answers": [{"text": "The fox", "answer_start": 0}] * 2,
        },
    ]

    def bare(found: list[Question]) -> list[tuple[Any, ...]]:
        return [(q.id, q.question, q.context, q.answers, q.starts) for q in found]

    expected = bare(questions_of(rows))
    assert expected[0] == ("1", "Which colour?", "The fox is brown.", ("brown",), (11,))
    for nested in (NESTED, NESTED["data"][0], NESTED["data"][0]["paragraphs"][0]):
        assert bare(questions_of([nested])) == expected
    assert questions_of([NESTED])[1].where == "training row 1, question 2"


# Windows


def check_windows(windows, questions, tokenizer, *, max_length: int, stride: int) -> int:
    """Every claim that a window makes about its context; returns how many windows hold their answer."""
    with_answer = 0
    for number, question in enumerate(questions):
        mine = [window for window in windows if window.question == number]
        assert mine, question
        whole = tokenizer(question.context, add_special_tokens=False, return_offsets_mapping=True)
        rebuilt: list[int] = []
        for window in mine:
            ids = window.inputs["input_ids"].tolist()
            assert len(ids) <= max_length
            piece = ids[window.first : window.first + len(window.offsets)]
            place = len(rebuilt) - (stride if rebuilt else 0)
            assert piece == whole["input_ids"][place : place + len(piece)]
            assert window.offsets.tolist() == [list(o) for o in whole["offset_mapping"][place : place + len(piece)]]
            rebuilt = rebuilt[:place] + piece
            if (window.start, window.end) != (0, 0):
                with_answer += 1
                start, end = window.characters(window.start, window.end)
                assert question.context[start:end].strip() == question.answers[0].strip()
            else:
                covered = window.offsets[0, 0] <= question.target[0] and window.offsets[-1, 1] >= question.target[1]
                assert not covered
        assert rebuilt == whole["input_ids"]  # together the windows are the whole context
    return with_answer


@pytest.mark.parametrize(("max_length", "stride"), [(64, 16), (48, 8), (40, 1), (512, 128)])
def test_windows_cover_the_context_and_find_the_answer(tokenizer, max_length, stride):
    questions = questions_of(long_rows())
    windows = cut_windows(questions=questions, tokenizer=tokenizer, max_length=max_length, stride=stride)
    found = check_windows(windows, questions, tokenizer, max_length=max_length, stride=stride)
    assert found >= (len(questions) if stride > 4 else 1)
    assert (len(windows) == len(questions)) == (max_length == 512)


UNICODE = [
    ("Der Fluß heißt Würm, größer als der Bach.", "größer"),
    ("東京は日本の首都である。", "日本の首都"),
    ("He wrote “naïve café” in 1887.", "naïve café"),
    ("A 🦊 jumps over 👩‍👩‍👧 dogs", "👩‍👩‍👧"),
    ("e\u0301te\u0301 1999", "e\u0301te\u0301"),
    ("tab\tand\u00a0blank\u2009here", "blank"),
    ("x" * 30 + " ответ " + "y" * 30, "ответ"),
]


@pytest.mark.parametrize(("context", "answer"), UNICODE)
def test_unicode_answers_come_back_exactly(tokenizer, context, answer):
    questions = questions_of([flat(context, answer)])
    windows = cut_windows(questions=questions, tokenizer=tokenizer, max_length=512, stride=32)
    assert check_windows(windows, questions, tokenizer, max_length=512, stride=32) == 1


@examples(60)
@given(st.lists(st.text(min_size=1, max_size=8).filter(str.strip), min_size=1, max_size=20), st.data())
def test_any_whole_words_come_back_exactly(tokenizer, words, data):
    """Whole words of any characters: no token reaches across a blank into an answer."""
    words = ["".join(word.split()) for word in words]
    context = " ".join(words)
    first = data.draw(st.integers(0, len(words) - 1))
    last = data.draw(st.integers(first, len(words) - 1))
    start = len(" ".join(words[:first])) + (first > 0)
    answer = " ".join(words[first : last + 1])
    row = {"question": "q", "context": context, "answers": {"text": [answer], "answer_start": [start]}}
    windows = cut_windows(questions=questions_of([row]), tokenizer=tokenizer, max_length=512, stride=16)
    assert len(windows) >= 1
    for window in windows:
        if (window.start, window.end) != (0, 0):
            begin, end = window.characters(window.start, window.end)
            assert context[begin:end].strip() == answer.strip()


def test_answer_tokens_by_hand():
    import numpy as np

    offsets = np.array([[0, 3], [3, 7], [7, 8], [7, 8], [8, 8], [8, 12]])  # [7, 8) is a character of two tokens
    assert answer_tokens(offsets, 0, 3) == (0, 0)
    assert answer_tokens(offsets, 3, 8) == (1, 3)
    assert answer_tokens(offsets, 7, 8) == (2, 3)
    assert answer_tokens(offsets, 4, 6) == (1, 1)  # inside a token: the token
    assert answer_tokens(offsets, 7, 12) == (2, 5)
    assert answer_tokens(offsets, 9, 13) is None  # ends beyond the window
    assert answer_tokens(offsets[1:], 2, 5) is None  # starts before it
    assert answer_tokens(offsets, 20, 22) is None


def test_a_long_question_is_cut_and_leaves_room(tokenizer):
    row = flat("the answer is fox here " * 10, "fox", question="why " * 200)
    windows = cut_windows(questions=questions_of([row]), tokenizer=tokenizer, max_length=64, stride=16)
    assert all(len(window.inputs["input_ids"]) <= 64 for window in windows)
    assert all(window.first <= 2 + (64 - 3 - 16) // 2 for window in windows)
    assert any(window.start for window in windows)


def test_batch_of_windows(tokenizer):
    rows = [flat("the fox is brown", "brown"), flat("a dog " * 5 + "and a year", "year")]
    for side in ("right", "left"):
        sided = copy.deepcopy(tokenizer)
        sided.padding_side = side
        work = task(sided, rows)
        batch = work.collate([work.eval_example(0), work.eval_example(1)])
        for number, row in enumerate(rows):
            start, end = int(batch["start_positions"][number]), int(batch["end_positions"][number])
            text = tokenizer.decode(batch["input_ids"][number, start : end + 1])
            assert text.strip() == row["answers"]["text"][0]
            assert batch["allowed"][number, start] and batch["allowed"][number, end]
        allowed = [tokenizer.decode(batch["input_ids"][n][batch["allowed"][n]]) for n in (0, 1)]
        assert allowed == [row["context"] for row in rows]
        assert batch["row"].tolist() == [0, 1]
        assert "row" not in work.collate([work.example(0, 5)])


# What a model says


class Oracle(torch.nn.Module):
    """Logits that point at given tokens: (row of the batch -> start, end), with `sure` as their height."""

    def __init__(self, targets: list[tuple[int, int, float]]) -> None:
        super().__init__()
        self.targets = targets

    def forward(self, input_ids, **_):
        start, end = torch.zeros(input_ids.shape), torch.zeros(input_ids.shape)
        for number, (first, last, sure) in enumerate(self.targets):
            start[number, first], end[number, last] = sure, sure
        return SimpleNamespace(start_logits=start, end_logits=end)


def test_a_model_that_knows_gets_full_marks(tokenizer):
    rows = long_rows()
    work = task(tokenizer, rows)
    assert work.num_eval_examples > 3 * len(rows)
    batch = work.collate([work.eval_example(row) for row in range(work.num_eval_examples)])
    targets = [(int(a), int(b), 9.0) for a, b in zip(batch["start_positions"], batch["end_positions"], strict=True)]
    summary = work.summarize(work.evaluate(Oracle(targets), batch))
    assert (summary["exact_match"], summary["f1"]) == (100.0, 100.0)
    for prediction, row in zip(work.predictions(), rows, strict=True):
        assert prediction["prediction"] == row["answers"]["text"][0]
        assert row["context"][prediction["start"] : prediction["end"]] == prediction["prediction"]
        assert prediction["id"] == row["id"] and prediction["correct"] and 0.9 < prediction["probability"] < 1
    assert work.mistakes(work.predictions()) == [] and work.num_judged == len(rows) and work.threshold is None


def test_a_window_that_believes_in_itself_less_loses(tokenizer):
    """Two windows of one question: a span of 5 + 5 over nothing of 4 + 4 loses against one of 3 + 3 over nothing."""
    work = task(tokenizer, long_rows(count=1), max_answer_length=1)
    batch = work.collate([work.eval_example(0), work.eval_example(1)])
    first = int(batch["allowed"][0].nonzero()[3])
    second = int(batch["allowed"][1].nonzero()[5])

    def model(**inputs):
        shape = inputs["input_ids"].shape
        logits = torch.zeros(shape)
        logits[0, first], logits[0, 0], logits[1, second] = 5.0, 4.0, 3.0
        return SimpleNamespace(start_logits=logits, end_logits=logits.clone())

    records = work.evaluate(model, batch)
    assert records[0]["spans"][0][0] == pytest.approx(2.0) and records[1]["spans"][0][0] == pytest.approx(6.0)
    work.summarize(records)
    window = work._eval_windows[int(batch["row"][1])]
    start, end = window.characters(second, second)
    assert work.predictions()[0]["prediction"] == long_rows(1)[0]["context"][start:end].strip()


def spans_of(logits: Any, work: QuestionAnswering, batch: dict[str, Any], row: int) -> dict[tuple[int, int], float]:
    """Every span of a window that may be an answer, by its characters, with its score, found by trying all pairs."""
    start, end = logits.start_logits[row].tolist(), logits.end_logits[row].tolist()
    window = work._eval_windows[int(batch["row"][row])]
    context = work._eval_questions[window.question].context
    found: dict[tuple[int, int], float] = {}
    allowed = batch["allowed"][row].nonzero().flatten().tolist()
    for first in allowed:
        for last in allowed:
            if first <= last < first + work.max_answer_length:
                place = trimmed(context, *window.characters(first, last))
                score = start[first] + end[last] - start[0] - end[0]
                found[place] = max(score, found.get(place, -math.inf))
    return found


@pytest.mark.parametrize("threshold", [None, -1e9])
def test_a_probability_is_a_softmax_over_all_answers_there_are(tokenizer, threshold):
    """Over all places of all windows, each by its best score, and "no answer" at 0."""
    rows = [*long_rows(2, words=30), flat("a fox", "fox", id="short")]
    work = task(tokenizer, rows, max_answer_length=7)
    work.num_best = 10**6  # all spans are kept, none is counted twice
    batch = work.collate([work.eval_example(row) for row in range(work.num_eval_examples)])
    generator = torch.Generator().manual_seed(1)
    logits = SimpleNamespace(
        start_logits=2 * torch.randn(batch["input_ids"].shape, generator=generator),
        end_logits=2 * torch.randn(batch["input_ids"].shape, generator=generator),
    )
    expected: dict[int, dict[tuple[int, int], float]] = {}
    for row, number in enumerate(batch["row"].tolist()):
        mine = expected.setdefault(work._eval_windows[number].question, {})
        for place, score in spans_of(logits, work, batch, row).items():
            mine[place] = max(score, mine.get(place, -math.inf))
    work.summarize(work.evaluate(lambda **_: logits, batch))
    work.threshold = threshold
    kept = work.predictions()
    for number, prediction in enumerate(kept):
        total = 1 + math.fsum(math.exp(score) for score in expected[number].values())
        place, best = max(expected[number].items(), key=lambda item: item[1])
        weight = math.exp(best) if threshold is None else 1.0
        assert prediction["probability"] == pytest.approx(weight / total, abs=2e-6)
        if threshold is None:
            assert (prediction["start"], prediction["end"]) == place
        else:
            assert (prediction["prediction"], prediction["start"]) == ("", None)
    # With five spans of each window kept the others still weigh in, and a place that is there twice weighs in twice.
    work.num_best = 5
    work.summarize(work.evaluate(lambda **_: logits, batch))
    work.threshold = threshold
    for one, more in zip(work.predictions(), kept, strict=True):
        assert 0.2 * more["probability"] < one["probability"] <= more["probability"] + 2e-6


def test_the_surest_mistakes_come_first(tokenizer):
    """By their probability, whatever the logits are: 6 beside 5.9 is less sure than 4 beside 0."""
    rows = [flat("the quick brown fox", "fox", id="unsure"), flat("the lazy dog runs", "dog", id="sure")]
    work = task(tokenizer, rows, max_answer_length=1)
    batch = work.collate([work.eval_example(row) for row in range(2)])
    order = [work._eval_questions[work._eval_windows[row].question].id for row in batch["row"].tolist()]
    logits = torch.zeros(batch["input_ids"].shape)
    for row, name in enumerate(order):
        first, second = batch["allowed"][row].nonzero().flatten().tolist()[:2]
        logits[row, [first, second]] = torch.tensor([6.0, 5.9] if name == "unsure" else [4.0, 0.0])
    said = SimpleNamespace(start_logits=logits, end_logits=logits)
    work.summarize(work.evaluate(lambda **_: said, batch))
    predictions = work.predictions()
    assert [row["id"] for row in work.mistakes(predictions)] == ["sure", "unsure"]
    assert all(0 <= row["probability"] <= 1 and row["start"] is not None for row in predictions)


def test_an_answer_is_never_padding_question_or_special_token(tokenizer):
    work = task(tokenizer, [flat("ab", "ab"), flat("the quick brown fox jumps", "fox")])
    batch = work.collate([work.eval_example(0), work.eval_example(1)])

    def model(**inputs):  # sure of everything but the context
        logits = torch.where(batch["allowed"], 0.0, 50.0)
        return SimpleNamespace(start_logits=logits, end_logits=logits.clone())

    work.summarize(work.evaluate(model, batch))
    for prediction, context in zip(work.predictions(), ("ab", "the quick brown fox jumps"), strict=True):
        assert prediction["prediction"] and prediction["prediction"] in context


# Loss and records


def test_loss_adds_up_and_does_not_depend_on_padding(tokenizer, small_model):
    work, model = task(tokenizer, long_rows(3) + [flat("a short one", "short")]), small_model().eval()
    count = work.num_examples
    targets = {"examples": torch.tensor(count)}
    whole, extra = work.loss(model, work.collate([work.example(row, 0) for row in range(count)]), targets)
    singles = [work.loss(model, work.collate([work.example(row, 0)]), targets) for row in range(count)]
    assert whole.item() == pytest.approx(sum(loss.item() for loss, _ in singles), rel=1e-5)
    assert extra["accuracy"].item() == pytest.approx(sum(more["accuracy"].item() for _, more in singles))


def test_records_of_two_halves_give_the_same_summary(tokenizer, small_model, evaluate):
    work, model = task(tokenizer, long_rows()), small_model()
    whole = work.summarize(evaluate(model=model, work=work, batch_size=7))
    readable = work.predictions()
    count = work.num_eval_examples
    odd = evaluate(model=model, work=work, rows=range(1, count, 2), batch_size=3)  # windows of a question are apart
    even = evaluate(model=model, work=work, rows=range(0, count, 2), batch_size=5)
    assert work.summarize(odd + even) == pytest.approx(whole, rel=1e-5)
    assert [p["prediction"] for p in work.predictions()] == [p["prediction"] for p in readable]
    assert len(readable) == 6
    assert set(whole) == {"loss", "exact_match", "f1"} and work.metric in whole
    assert all(len(json.dumps(record)) < 400 for record in odd)


def test_baseline_is_the_better_of_two_guesses(tokenizer):
    train = [flat(f"alpha beta {n} gamma", "alpha beta", id=str(n)) for n in range(3)]
    first_words = task(tokenizer, train, eval_rows=[flat("delta epsilon zeta", "delta epsilon")]).baseline()
    assert first_words == {"exact_match": 100.0, "f1": 100.0}
    train = [flat(f"{n} is None by default", "None", id=str(n)) for n in range(3)]
    frequent = task(tokenizer, train, eval_rows=[flat("x is None", "None"), flat("y is True", "True")]).baseline()
    assert frequent == {"exact_match": 50.0, "f1": 50.0}


def test_a_small_model_learns_windows_by_heart(tokenizer, small_model, fit, evaluate):
    rows = [flat(" ".join(WORDS[n % 5 :][:9]) + f" {n}", WORDS[n % 5 + n % 7], question=f"{n}?") for n in range(16)]
    work, model = task(tokenizer, rows), small_model(hidden=64)
    assert work.num_examples == 16
    assert fit(model=model, work=work, steps=100, learning_rate=5e-3) < 0.1
    summary = work.summarize(evaluate(model=model, work=work))
    assert summary["exact_match"] == 100.0 and summary["f1"] == 100.0
    assert work.baseline()["f1"] < 60


# Questions without an answer


def test_version_two_and_its_kin_are_read():
    paragraph = {
        "context": "The fox is brown.",
        "qas": [
            {
                "id": "1",
                "question": "Colour?",
                "answers": [{"text": "brown", "answer_start": 11}],
                "is_impossible": False,
            },
            {
                "id": "2",
                "question": "Age?",
                "answers": [],
                "is_impossible": True,
                "plausible_answers": [{"text": "The"}],
            },
        ],
    }
    nested = questions_of([{"version": "v2.0", "data": [{"title": "A", "paragraphs": [paragraph]}]}])
    assert [(q.answers, q.starts, q.is_aligned) for q in nested] == [(("brown",), (11,), True), ((), (), True)]
    hub = {"question": "Age?", "context": "The fox is brown.", "answers": {"text": [], "answer_start": []}}
    table = {"question": "Colour?", "context": "The fox is brown.", "answer": "brown", "answer_start": "11"}
    assert [q.answers for q in questions_of([hub, table])] == [(), ("brown",)]
    assert questions_of([table])[0].starts == (11,)


def mixed_rows(count: int = 12) -> list[dict[str, Any]]:
    """Every third question has no answer in its context."""
    rows = long_rows(count, words=25)
    for row in rows[::3]:
        row["answers"] = {"text": [], "answer_start": []}
    return rows


def test_an_unanswerable_question_points_at_the_first_token_in_every_window(tokenizer):
    work = task(tokenizer, mixed_rows())
    for window in work._train_windows:
        if not work._train_questions[window.question].answers:
            assert (window.start, window.end) == (0, 0)
    balance = work.balance()
    assert sum(balance.values()) == work.num_examples and balance["window with the answer"] >= 8
    assert any(
        "4 of 12 training questions and 4 of 12 held-out questions have no answer" in note for note in work.notes
    )


def test_a_guess_may_be_that_there_is_no_answer(tokenizer):
    """For all: a third of the questions have none. Words in common always answer, and those cannot be right."""
    work = task(tokenizer, mixed_rows())
    assert work.baseline() == pytest.approx({"exact_match": 100 / 3, "f1": 100 / 3})
    assert work.bag_of_words["f1"] < 200 / 3


def test_a_model_that_knows_what_it_does_not_know(tokenizer):
    """Logits that are sure of answers and half sure of none: the threshold finds the place between them."""
    rows = mixed_rows()
    work = task(tokenizer, rows)
    batch = work.collate([work.eval_example(row) for row in range(work.num_eval_examples)])
    # Where there is no answer the model likes some word, by 2 nats; where there is one, by 18.
    targets = []
    for number, (start, end) in enumerate(
        zip(batch["start_positions"].tolist(), batch["end_positions"].tolist(), strict=True)
    ):
        word = int(batch["allowed"][number].nonzero()[2])
        targets.append((start, end, 9.0) if end else (word, word, 1.0))
    summary = work.summarize(work.evaluate(Oracle(targets), batch))
    assert summary["exact_match"] == summary["f1"] == summary["has_answer_f1"] == summary["no_answer_f1"] == 100.0
    assert summary["untuned_f1"] < 80  # the word may be an article, which counts as nothing
    assert -18 < work.threshold == summary["no_answer_threshold"] == -10.0 == work.settings()["threshold"]
    for prediction, row in zip(work.predictions(), rows, strict=True):
        assert prediction["gold"] == row["answers"]["text"] and prediction["correct"]
        assert prediction["prediction"] == (row["answers"]["text"] or [""])[0]
        assert (prediction["start"] is None) == (not row["answers"]["text"])


def test_scores_of_unanswerable_questions_equal_the_scripts_on_the_same_predictions(tokenizer, small_model, evaluate):
    work = task(tokenizer, mixed_rows(15))
    torch.manual_seed(3)
    summary = work.summarize(evaluate(model=small_model(), work=work))
    predictions = work.predictions()
    right = [
        p["prediction"] == "" if not p["gold"] else exact_match(p["prediction"], p["gold"][0]) for p in predictions
    ]
    overlap = [
        float(p["prediction"] == "") if not p["gold"] else token_f1(p["prediction"], p["gold"][0]) for p in predictions
    ]
    assert summary["exact_match"] == pytest.approx(100 * sum(right) / 15)
    assert summary["f1"] == pytest.approx(100 * sum(overlap) / 15)
    parts = {"has_answer": [n for n in range(15) if n % 3], "no_answer": [n for n in range(15) if n % 3 == 0]}
    for name, part in parts.items():
        assert summary[f"{name}_f1"] == pytest.approx(100 * sum(overlap[n] for n in part) / len(part))
        assert summary[f"{name}_exact_match"] == pytest.approx(100 * sum(right[n] for n in part) / len(part))
    assert [p["correct"] for p in predictions] == [bool(mark) for mark in right]
    assert summary["f1"] >= max(summary["untuned_f1"], 100 * 5 / 15) - 1e-9  # nothing for all is one threshold
    assert work.baseline()["exact_match"] >= 100 * 5 / 15


some_texts = st.sampled_from(["x", "y", "x y", "", "the", ".", "the x"])  # some of them have no words


@examples(200)
@given(st.lists(st.tuples(some_texts, st.lists(some_texts, max_size=2), st.integers(-3, 3)), min_size=1, max_size=8))
def test_the_threshold_is_the_best_of_all(questions):
    predictions, answers, no_answer = map(list, zip(*questions, strict=True))

    def score(threshold: float) -> float:
        total = 0.0
        for text, right, value in zip(predictions, answers, no_answer, strict=True):
            wanted = [answer for answer in right if answer.strip()] or [""]
            total += float(not right) if value > threshold else best_over_answers(token_f1, text, wanted)
        return 100 * total / len(questions)

    found = tuned_threshold(predictions, answers, no_answer=no_answer)
    assert score(found) == pytest.approx(max(score(value / 2) for value in range(-20, 21)))
    assert squad_v2(predictions, answers, no_answer=no_answer, threshold=found)["f1"] == pytest.approx(score(found))
    assert found not in no_answer


def test_what_is_shown_of_a_window(tokenizer):
    said = "\n".join(task(tokenizer, [flat("the fox is brown", "brown")], eval_rows=mixed_rows()).describe(1))
    assert "example 1:\n    answer: brown\n        [CLS]what is it?[SEP]the fox is brown[SEP]" in said
    assert "label balance of the training examples: window with the answer 1 (100.0%), window without 0" in said
    assert "warning: no training question is without an answer" in said
    assert "none of the training questions with their contexts is longer than --max_length 64" in said
    long = task(tokenizer, [*long_rows(3), flat("the fox is brown", "brown")]).describe(5)
    share = (
        "75.0% of the training questions with their contexts are longer than --max_length 64 and are seen in several"
    )
    assert any(share in line for line in long) and sum(line.startswith("example ") for line in long) == 5


# Held-out part


def test_whole_contexts_are_held_out(tokenizer):
    rows = [flat(f"context {n // 4} has 7 words", "words", id=str(n)) for n in range(40)]
    work = task(tokenizer, rows, eval_rows=[], eval_fraction=0.2)
    assert "held out 8 of 40 training questions for evaluation, by context" in work.notes
    kept, out = ([item.context for item in part] for part in (work._train_questions, work._eval_questions))
    assert sorted(kept + out) == sorted(row["context"] for row in rows) and len(out) == 8
    assert not set(kept) & set(out)


# Bad input

GOOD = flat("the fox is brown", "brown")


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ({"context": "x", "answers": GOOD["answers"]}, r"q.json:7: no column 'question'; the columns there are"),
        ({**GOOD, "context": " "}, "q.json:7: column 'context' is empty"),
        ({**GOOD, "answers": {"text": [], "answer_start": []}}, "q.json:7: no training question has an answer"),
        ({**GOOD, "is_impossible": True}, "q.json:7: no training question has an answer.*--train_file"),
        ({**GOOD, "answers": {"text": [""], "answer_start": [0]}}, "q.json:7: the question has an empty answer"),
        ({**GOOD, "answers": "brown"}, r"q.json:7: 'answers' holds 'brown'; it must be"),
        ({**GOOD, "answers": {"text": ["brown"]}}, "q.json:7: 'answers' holds"),
        ({"question": "x", "context": "y"}, "q.json:7: no column 'answers'; .*: questions are read from columns of"),
        ({"text": "x", "label": "y"}, "q.json:7: no column 'question', 'context' or 'answers'; .* rename yours"),
        ({"text": "x", "is_impossible": True}, "q.json:7: no column 'question' or 'context'; the columns there are"),
        ({"qas": [{"question": "x"}]}, "no column 'context'; .* in SQuAD's format it stands beside the questions"),
        ({**GOOD, "context": 3}, "q.json:7: column 'context' holds 3, not text: mend the row"),
        ({"paragraphs": ["text"]}, "q.json:7: 'paragraphs' number 1 is not an object"),
        ({**GOOD, "answers": {"text": ["brown"], "answer_start": [3]}}, "1 of 1 answers.*'brown'.*stands ' fox '"),
    ],
)
def test_a_bad_row_is_named(tokenizer, bad, message):
    record = SimpleNamespace(fields=bad, path="q.json", line=7)
    with pytest.raises(InputError, match=message) as caught:
        task(tokenizer, [record], eval_rows=[])
    assert caught.value.exit_code == 2


def test_one_question_is_not_enough(tokenizer):
    message = "training row 1: this is the only training question, so nothing can be held out.*--eval_file"
    with pytest.raises(InputError, match=message):
        task(tokenizer, [GOOD], eval_rows=[])


def misplaced(total: int, wrong: int) -> list[dict[str, Any]]:
    """Questions about contexts of their own, some of whose answers start one character before."""
    rows = [flat(f"the fox is brown {n}", "brown", id=str(n)) for n in range(total)]
    for row in rows[:wrong]:
        row["answers"]["answer_start"][0] -= 1
    return rows


def test_few_misplaced_answers_are_left_out_and_named(tokenizer):
    work = task(tokenizer, misplaced(200, 2), eval_rows=[])
    (note,) = [note for note in work.notes if note.startswith("left out")]
    assert "2 of 200 answers are not where answer_start says; the first: training row 1: answer 'brown'" in note
    assert "but at character 10 stands ' brow'" in note
    assert len(work._train_questions) + len(work._eval_questions) == 198
    with pytest.raises(InputError, match=r"3 of 200 answers.*more than 1% are too many.*--train_file") as caught:
        task(tokenizer, misplaced(200, 3), eval_rows=[])
    assert caught.value.exit_code == 2
    work = task(tokenizer, misplaced(3, 0), eval_rows=misplaced(100, 1))
    assert any(note.startswith("evaluated by their text alone: 1 of 100") for note in work.notes)
    assert work.num_judged == 100
    article = {"title": "Foxes", "paragraphs": []}
    for row in misplaced(200, 2):
        question = {name: row[name] for name in ("id", "question", "answers")}
        article["paragraphs"].append({"context": row["context"], "qas": [question]})
    nested = SimpleNamespace(fields=article, path="squad.json", line=1)
    (note,) = [note for note in task(tokenizer, [nested], eval_rows=[]).notes if note.startswith("left out")]
    assert "the first: squad.json:1, question 0: answer 'brown'" in note
    with pytest.raises(InputError, match=r"2 of 100 answers.*--eval_file"):
        task(tokenizer, misplaced(3, 0), eval_rows=misplaced(100, 2))
    assert misaligned(read_questions(as_rows(misplaced(5, 0), part="training"))) is None


def test_the_training_file_as_evaluation_file_is_told(tokenizer):
    rows = long_rows()
    assert any("warning: 6 of 6 held-out rows" in note for note in task(tokenizer, rows).notes)
    assert not any("warning" in note for note in task(tokenizer, rows[:3], eval_rows=rows[3:]).notes)


@pytest.mark.parametrize(
    ("rows", "options", "message"),
    [
        ([], {}, "no training rows.*--train_file"),
        ([GOOD, GOOD], {"max_length": 32, "stride": 30}, "--max_length 32 with --stride 30 leaves 0 tokens"),
    ],
)
def test_bad_settings(tokenizer, rows, options, message):
    with pytest.raises(InputError, match=message):
        task(tokenizer, rows, eval_rows=[], **options)


# Real data


def test_squad(tokenizer, shared_data, small_model, evaluate):
    articles = json.loads((shared_data / "squad" / "dev-v1.1.json").read_text(encoding="utf-8"))["data"]
    train = [{**article, "paragraphs": article["paragraphs"][:2]} for article in articles[:6]]
    held_out = [{**article, "paragraphs": article["paragraphs"][:1]} for article in articles[-8:]]
    work = task(tokenizer, train, eval_rows=held_out, max_length=256, stride=64, max_answer_length=60)
    questions = work._eval_questions
    assert len(questions) == sum(len(p["qas"]) for article in held_out for p in article["paragraphs"])
    windows = cut_windows(questions=questions, tokenizer=tokenizer, max_length=256, stride=64)
    assert check_windows(windows, questions, tokenizer, max_length=256, stride=64) >= 0.95 * len(questions)

    summary = work.summarize(evaluate(model=small_model(), work=work, batch_size=16))
    predictions = work.predictions()
    matches = [best_over_answers(exact_match, p["prediction"], p["gold"]) for p in predictions]
    overlaps = [best_over_answers(token_f1, p["prediction"], p["gold"]) for p in predictions]
    assert summary["exact_match"] == pytest.approx(100 * sum(matches) / len(questions))
    assert summary["f1"] == pytest.approx(100 * sum(overlaps) / len(questions))
    assert 0 < work.baseline()["f1"] < 40


def trained_tokenizer(contexts: list[str], *, vocab_size: int) -> PreTrainedTokenizerFast:
    """A byte-level BPE of the given contexts; without merges (261 ids) each byte is a token."""
    core = Tokenizer(models.BPE())
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    special = ["[PAD]", "[CLS]", "[SEP]"]
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    core.train_from_iterator(
        contexts,
        trainers.BpeTrainer(
            vocab_size=vocab_size, special_tokens=special, initial_alphabet=alphabet, show_progress=False
        ),
    )
    core.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B [SEP]", special_tokens=[("[CLS]", 1), ("[SEP]", 2)]
    )
    return PreTrainedTokenizerFast(tokenizer_object=core, pad_token="[PAD]", cls_token="[CLS]", sep_token="[SEP]")


@pytest.mark.parametrize("every", fast([1, 24], 24))
def test_every_answer_of_squad_comes_back(shared_data, every):
    """Windows of 384 tokens hold each answer, and its characters come back from its tokens.

    Where an answer begins or ends within a token ("10." of "2010.") those tokens come back; with bytes as tokens these
    answers come back exactly too, so that nothing but the tokenizer stands between.
    """
    whole = json.loads((shared_data / "squad" / "dev-v1.1.json").read_text(encoding="utf-8"))
    questions = questions_of([whole])
    assert len(questions) == 10570 and misaligned(questions) is None
    questions = questions[::every]
    contexts = list(dict.fromkeys(question.context for question in questions))

    def come_back(part: list[Question], *, vocab_size: int, max_length: int) -> tuple[set[int], set[int]]:
        tokenizer = trained_tokenizer(contexts, vocab_size=vocab_size)
        found, exact = set(), set()
        for window in cut_windows(questions=part, tokenizer=tokenizer, max_length=max_length, stride=max_length // 3):
            if window.end:
                question = part[window.question]
                start, end = window.characters(window.start, window.end)
                first, last = question.target
                assert start <= first and end >= last and question.context[first:last] == question.answers[0].strip()
                found.add(window.question)
                # A token of this tokenizer takes the blank before it.
                start += len(question.context[start:end]) - len(question.context[start:end].lstrip())
                if (start, end) == (first, last):
                    exact.add(window.question)
        return found, exact

    found, exact = come_back(questions, vocab_size=4096, max_length=384)
    assert len(found) == len(questions) and len(exact) >= 0.99 * len(questions)
    rest = [question for number, question in enumerate(questions) if number not in exact]
    found, exact = come_back(rest, vocab_size=259, max_length=1024)
    assert len(exact) == len(found) == len(rest) > 0
