"""The pipeline that answers questions, out of a folder, in a process that knows only transformers; and its answers."""

import json
import math
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from transformers import AutoModelForQuestionAnswering, AutoTokenizer, BertConfig, BertForQuestionAnswering, Pipeline

from lacuna.modeling.pipeline_lacuna import QuestionAnsweringPipeline, add_question_pipeline, best_spans
from lacuna.tasks.question_answering.reader import QuestionAnsweringArguments
from lacuna.tasks.question_answering.task import QuestionAnswering

TASK = "question-answering"
STRANGER = """
import json, sys
from pathlib import Path

sys.modules["lacuna"] = None  # an import of ours would fail
import transformers

transformers.logging.set_verbosity_error()
root, found = Path(sys.argv[1]), {}
asked = json.loads((root / "asked.json").read_text())
for folder in sorted(path.parent for path in root.glob("*/config.json")):
    options = {"model": str(folder), "trust_remote_code": True}
    answers = transformers.pipeline("question-answering", **options)
    answers.save_pretrained(root / "again" / folder.name)
    options["model"] = str(root / "again" / folder.name)
    again = transformers.pipeline(**options)  # its task is in config.json
    found[folder.name] = {
        "module": type(answers).__module__,
        "model": type(answers.model).__module__,
        "task": again.task,
        "answers": answers(asked, batch_size=3),
        "again": again(asked, batch_size=3),
    }
    # A model alone, saved again, brings the file along where its own code does.
    answers.model.save_pretrained(root / "alone" / folder.name)
    found[folder.name]["alone"] = sorted(path.name for path in (root / "alone" / folder.name).iterdir())
try:
    transformers.pipeline("question-answering", model=str(folder), trust_remote_code=False)
except ValueError as error:
    found["refused"] = str(error)
(root / "found.json").write_text(json.dumps(found))
"""


@pytest.fixture(scope="module")
def native(tokenizer, tmp_path_factory) -> Path:
    """A folder with BertForQuestionAnswering, as transformers saves it."""
    folder = tmp_path_factory.mktemp("native") / "bert"
    torch.manual_seed(5)
    config = BertConfig(
        vocab_size=len(tokenizer),
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=64,
        max_position_embeddings=128,
        initializer_range=0.2,
        type_vocab_size=2,
    )
    BertForQuestionAnswering(config).save_pretrained(folder)
    copy = AutoTokenizer.from_pretrained(save(tokenizer, folder))
    copy.model_max_length = 128
    copy.save_pretrained(folder)
    add_question_pipeline(folder)
    return folder


def save(tokenizer: Any, folder: Path) -> Path:
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def questions(texts) -> list[dict[str, Any]]:
    """Questions with contexts of one window and of many, and an answer that stands in them."""
    rows = []
    for number, text in enumerate(texts):
        context = " ".join([*texts[number:], *texts]) * (1 + number % 3) if number % 2 else f"  {text}"
        answer = text.split()[1]
        rows.append(
            {
                "id": str(number),
                "question": f" What of {text.split()[0].lower()}? ",
                "context": context,
                "answers": {"text": [answer], "answer_start": [context.index(answer)]},
            }
        )
    return rows


def by_task(folder: Path, questions: list[dict[str, Any]], **options: Any) -> QuestionAnswering:
    """The task, with what it found with the model of the folder."""
    tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=True)
    model = AutoModelForQuestionAnswering.from_pretrained(folder, trust_remote_code=True).eval()
    asked = QuestionAnsweringArguments(**options)
    work = QuestionAnswering(asked, train_rows=questions, eval_rows=questions, tokenizer=tokenizer)
    with torch.no_grad():
        rows = [work.eval_example(row) for row in range(work.num_eval_examples)]
        work.summarize([record for row in rows for record in work.evaluate(model, work.collate([row]))])
    assert work.num_eval_examples > len(questions) + 3, "no context is longer than a window"
    return work


def places(answers: list[dict[str, Any]], name: str = "answer") -> list[tuple[int, int, str]]:
    return [(answer["start"], answer["end"], answer[name]) for answer in answers]


@pytest.fixture
def answering(questions) -> Callable[..., Pipeline]:
    """The pipeline of a folder, made from nothing but that."""

    def make(folder: Path, **options: Any) -> Pipeline:
        made = transformers.pipeline(TASK, model=str(folder), trust_remote_code=True, **options)
        assert type(made).__module__.startswith("transformers_modules.")
        return made

    return make


FAMILIES = ["modernbert", "bert", "qwen3", "bart"]


@pytest.mark.slow
def test_a_stranger_gets_the_answers_of_the_task(checkpoint, native, questions, tmp_path) -> None:
    for family in FAMILIES:
        shutil.copytree(checkpoint(family, "LacunaForQuestionAnswering"), tmp_path / family)
    shutil.copytree(native, tmp_path / "native")
    settings = {"name": "question_answering", "max_length": 64, "stride": 16, "max_answer_length": 9}
    for path in tmp_path.glob("*/config.json"):
        path.with_name("task.json").write_text(json.dumps(settings))
    (tmp_path / "asked.json").write_text(json.dumps(questions))
    (tmp_path / "stranger.py").write_text(STRANGER)
    environment = {key: value for key, value in os.environ.items() if not key.startswith("PYTHON")}
    done = subprocess.run(
        [sys.executable, "-I", "stranger.py", str(tmp_path)],
        cwd=tmp_path,
        env=environment | {"HF_HOME": str(tmp_path / "cache"), "HF_HUB_OFFLINE": "1"},
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads((tmp_path / "found.json").read_text())
    assert "trust_remote_code=True" in found["refused"]
    for name in [*FAMILIES, "native"]:
        entry = found[name]
        assert entry["module"].startswith("transformers_modules.") and entry["task"] == TASK
        assert entry["model"].startswith("transformers_modules." if name != "native" else "transformers.models.bert")
        assert ("pipeline_lacuna.py" in entry["alone"]) == (name != "native")
        expected = by_task(tmp_path / name, questions, max_length=64, stride=16, max_answer_length=9).predictions()
        assert places(entry["answers"]) == places(expected, "prediction")
        assert places(entry["again"]) == places(expected, "prediction")
        assert [answer["score"] for answer in entry["answers"]] == pytest.approx(
            [row["probability"] for row in expected], rel=1e-3, abs=1e-5
        )
        assert len({answer["answer"] for answer in entry["answers"]}) > 3


def test_batches_options_and_ways_to_ask(native, answering, questions) -> None:
    answers = answering(native, max_length=64, stride=16)
    one = answers(questions[1])
    assert one == answers(question=questions[1]["question"], context=questions[1]["context"])
    assert set(one) == {"answer", "start", "end", "score"} and questions[1]["context"][one["start"] : one["end"]]
    together = answers(questions, batch_size=4)
    assert places(together) == places([answers(question) for question in questions])
    assert places(answers(question for question in questions)) == places(together)
    several = answers(question=[questions[0]["question"], questions[2]["question"]], context=questions[1]["context"])
    assert len(several) == 2 and answers([]) == []
    best = answers(questions[1], top_k=4)
    assert best[0] == one and len({(answer["start"], answer["end"]) for answer in best}) == 4
    assert [answer["score"] for answer in best] == sorted((answer["score"] for answer in best), reverse=True)
    # The names of old.
    assert answers(questions[1], max_seq_len=48, doc_stride=8, max_answer_len=3) == answers(
        questions[1], max_length=48, stride=8, max_answer_length=3
    )


def test_no_answer(native, answering, questions) -> None:
    answers = answering(native, max_length=64)
    plain = answers(questions[0])
    assert plain["answer"]
    nothing = {"answer": "", "start": 0, "end": 0}
    for threshold, says_nothing in ((-1e9, True), (1e9, False)):
        found = answers(questions[0], handle_impossible_answer=True, threshold=threshold)
        assert (nothing.items() <= found.items()) == says_nothing
        if not says_nothing:
            assert found == plain
    both = answers(questions[0], handle_impossible_answer=True, threshold=1e9, top_k=2)
    assert both[0] == plain and both[1]["answer"] == "" and 0 < both[0]["score"] + both[1]["score"] < 1


@pytest.mark.parametrize("number", [0, 1])
def test_scores_are_a_distribution_over_all_answers(native, answering, questions, number) -> None:
    """Those of every piece of a context, of one window and of several, and of "no answer" make 1 together."""
    answers = answering(native, max_length=64, stride=16, max_answer_length=4)
    every = answers(questions[number], handle_impossible_answer=True, top_k=10**6)
    assert sum(answer["score"] for answer in every) == pytest.approx(1)
    assert sum(not answer["answer"] for answer in every) >= 1 and len(every) > 20
    alone = answers(questions[number])
    same = next(answer for answer in every if (answer["start"], answer["end"]) == (alone["start"], alone["end"]))
    # What is not kept is not told apart, so that a place that is there twice weighs in twice.
    assert 0.2 * same["score"] < alone["score"] <= same["score"] + 1e-6


def test_the_threshold_of_the_task(native, answering, questions, tmp_path) -> None:
    """Questions without an answer are those that the task finds, by the threshold that it has tuned."""
    folder = shutil.copytree(native, tmp_path / "answers")
    probe = by_task(folder, questions, max_length=64, stride=16)._answers()
    likely = sorted(probe, key=lambda row: row["score"])
    # That have no answer, and where the model believes least in one.
    hidden = {questions[row["id"]]["id"] for row in likely[: len(likely) // 2]}
    none = {"text": [], "answer_start": []}
    work = by_task(
        folder,
        [{**row, "answers": none if row["id"] in hidden else row["answers"]} for row in questions],
        max_length=64,
        stride=16,
    )
    (folder / "task.json").write_text(json.dumps({"name": work.name, **work.settings()}))
    assert work.threshold is not None
    expected = [row["prediction"] for row in work.predictions()]
    assert 0 < expected.count("") < len(expected)
    answers = answering(folder)
    assert [answer["answer"] for answer in answers(questions, batch_size=3)] == expected
    assert all(answer["answer"] for answer in answers(questions, handle_impossible_answer=False))


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"question": "Who?"}, "context must be a text"),
        ({"question": "  ", "context": "a fox"}, "question must be a text"),
        ("Who?", "question must be a text"),
        ([{"question": "Who?", "context": 3}], "context must be a text"),
    ],
)
def test_what_is_no_question_is_refused(native, answering, asked, message) -> None:
    with pytest.raises(ValueError, match=message):
        answering(native)(asked)


def test_a_model_whose_folder_is_gone_has_the_usual_lengths(native, tmp_path) -> None:
    folder = shutil.copytree(native, tmp_path / "answers")
    (folder / "task.json").write_text(json.dumps({"name": "question_answering", "max_length": 40}))
    model, tokenizer = AutoModelForQuestionAnswering.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    assert QuestionAnsweringPipeline(model=model, tokenizer=tokenizer).settings["max_length"] == 40
    shutil.rmtree(folder)
    assert QuestionAnsweringPipeline(model=model, tokenizer=tokenizer).settings["max_length"] == 384


def test_lengths_that_leave_no_room_are_refused(native, answering, questions) -> None:
    with pytest.raises(ValueError, match="leaves 3 tokens for a question"):
        answering(native)(questions[0], max_length=20, stride=11)
    with pytest.raises(ValueError, match="top_k must be at least 1"):
        answering(native)(questions[0], top_k=0)
    with pytest.raises(ValueError, match="2 questions and 1 contexts"):
        answering(native)(question=["Who?", "What?"], context=["a fox"])


def test_spans_are_those_of_a_search_over_all_pairs() -> None:
    torch.manual_seed(0)
    start, end, allowed = torch.randn(4, 12), torch.randn(4, 12), torch.rand(4, 12) < 0.7
    allowed[3] = False
    scores, first, last, rest = best_spans(start=start, end=end, allowed=allowed, max_answer_length=5, count=6)
    for row in range(4):
        pairs = [
            (float(start[row, i] + end[row, j]), i, j)
            for i in range(12)
            for j in range(i, min(i + 5, 12))
            if allowed[row, i] and allowed[row, j]
        ]
        expected = sorted(pairs, reverse=True)[:6]
        found = [item for item in zip(*(x[row].tolist() for x in (scores, first, last)), strict=True)][: len(expected)]
        assert [item[1:] for item in found] == [item[1:] for item in expected]
        assert [item[0] for item in found] == pytest.approx([item[0] for item in expected])
        others = sum(math.exp(item[0]) for item in sorted(pairs, reverse=True)[6:])
        assert math.exp(rest[row]) == pytest.approx(others, rel=1e-4)
    assert scores[3].max() == -torch.inf


def test_it_is_put_into_a_folder_once(native, tmp_path) -> None:
    folder = shutil.copytree(native, tmp_path / "copy")
    config = json.loads((folder / "config.json").read_text())
    config["custom_pipelines"] = {"other": {"impl": "other.Other", "pt": []}}
    (folder / "config.json").write_text(json.dumps(config))
    add_question_pipeline(folder)
    once = {path.name: path.read_bytes() for path in folder.iterdir()}
    add_question_pipeline(folder)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == once
    pipelines = json.loads((folder / "config.json").read_text())["custom_pipelines"]
    assert set(pipelines) == {"other", TASK} and "pipeline_lacuna.py" in once
    with pytest.raises(FileNotFoundError):
        add_question_pipeline(tmp_path)
