"""The report: every file whole or none, scores beside the baseline, mistakes in order, pictures of 2 to 60 labels."""

import json
import math
import os
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from examples import fast
from matplotlib.figure import Figure

from lacuna.common.errors import StorageError
from lacuna.tasks.base.report import (
    MOST_LABELS,
    Matrix,
    Points,
    Table,
    draw,
    markdown_table,
    number,
    write_results,
)
from lacuna.tasks.base.task import Task


class Invented(Task):
    """A task whose results are what the test says."""

    name, metric = "invented_task", "accuracy"

    def __init__(self, predictions: list[dict[str, Any]], tables: dict[str, Any]) -> None:
        options = SimpleNamespace(max_length=16)
        super().__init__(options, tokenizer=SimpleNamespace(), train_rows=[{}])
        self.num_eval_examples = len(predictions)
        self._predictions, self._tables = predictions, tables
        self.notes = ["text from <column> 'text'"]

    def read(self, train: Any, held_out: Any) -> None:
        pass

    def encode(self) -> None:
        self.set_examples(train=[], held_out=[])

    def predictions(self) -> list[dict[str, Any]]:
        return self._predictions

    def tables(self) -> dict[str, Any]:
        return self._tables


RESULTS = {"eval_loss": 0.25, "eval_accuracy": 0.8125, "baseline_accuracy": 0.5, "steps": 10}
PREDICTIONS = [
    {
        "text": f"row {n} | <b>\n*",
        "gold": "a",
        "prediction": "ab"[n % 2],
        "correct": n % 2 == 0,
        "probability": n / 100,
    }
    for n in range(60)
]


def picture(path) -> np.ndarray:
    from matplotlib.image import imread

    return imread(path)


def test_all_files_are_there_and_say_the_same(tmp_path, capsys):
    matrix = Matrix(["a", "b"], [[30, 30], [0, 0]])
    write_results(Invented(PREDICTIONS, {"Confusion": matrix}), RESULTS, tmp_path / "out")
    folder = tmp_path / "out"
    names = ["confusion.png", "predictions.jsonl", "report.md", "task.json"]
    assert sorted(path.name for path in folder.iterdir()) == names
    lines = (folder / "predictions.jsonl").read_text(encoding="utf-8").splitlines()
    assert [json.loads(line) for line in lines] == PREDICTIONS
    assert json.loads((folder / "task.json").read_text()) == {"name": "invented_task", "max_length": 16}
    report = (folder / "report.md").read_text()
    assert report.startswith("# Invented task: what was learned\n\n- text from &lt;column> 'text'\n")
    assert "| accuracy | 0.8125 | 0.5 |\n| loss | 0.25 |  |\n" in report
    assert "| gold \\\\ predicted | a | b |\n| --- | ---: | ---: |\n| a | 30 | 30 |\n" in report
    assert "![Confusion](confusion.png)" in report
    assert "\n\nOn 60 held-out examples:\n\n| metric | this model | without a model |\n" in report
    assert "report.md, predictions.jsonl, confusion.png, task.json are in" in capsys.readouterr().out
    assert picture(folder / "confusion.png").std() > 0.05


def test_mistakes_are_the_surest_twenty(tmp_path):
    write_results(Invented(PREDICTIONS, {}), RESULTS, tmp_path)
    report = (tmp_path / "report.md").read_text()
    assert "## The 20 most confident mistakes" in report
    block = report.split("````")[1].splitlines()
    assert block[1] == "  1. text: row 59 | <b> *" and "     probability: 0.59" in block
    assert sum(": row " in line for line in block) == 20
    assert " 20. text: row 21 | <b> *" in block
    right = [{**prediction, "correct": True} for prediction in PREDICTIONS]
    write_results(Invented(right, {}), RESULTS, tmp_path)
    assert (tmp_path / "report.md").read_text().endswith("## Mistakes\n\nThere are none.\n")


def test_what_a_probability_is_that_of_is_said_above_the_mistakes(tmp_path):
    work = Invented(PREDICTIONS, {})
    work.probability_note = "The probability is that of the predicted label."
    write_results(work, RESULTS, tmp_path)
    heading = "## The 20 most confident mistakes\n\nThe probability is that of the predicted label.\n\n````text\n"
    assert heading in (tmp_path / "report.md").read_text()
    write_results(Invented(PREDICTIONS, {}), RESULTS, tmp_path)
    assert "## The 20 most confident mistakes\n\n````text\n" in (tmp_path / "report.md").read_text()


def test_long_texts_are_cut_and_contexts_around_the_answer(tmp_path):
    context = "".join(f"{n:04} " for n in range(2000))
    wrong = {"question": "q " * 400, "context": context, "prediction": "1500", "gold": ["x"], "score": 2.0}
    wrong |= {"start": context.index("1500"), "correct": False}
    write_results(Invented([wrong, {**wrong, "start": None}], {}), RESULTS, tmp_path)
    first, second = (tmp_path / "report.md").read_text().split("````")[1].split("  2. ")
    assert " 1500 " in first and "context: …1480 " in first and first.rstrip().endswith("start: 7500")
    assert "context: 0000 0001" in second
    assert max(map(len, first.splitlines())) < 330


def test_numbers_and_letters_that_json_has_not(tmp_path):
    odd = [{"text": "half \ud800 pair", "score": math.inf, "correct": False, "prediction": "é", "gold": ""}]
    write_results(Invented(odd, {}), {**RESULTS, "eval_loss": math.nan}, tmp_path)
    line = json.loads((tmp_path / "predictions.jsonl").read_text(encoding="utf-8"))
    assert line == {**odd[0], "score": None}
    assert "half \\ud800 pair" in (tmp_path / "report.md").read_text(encoding="utf-8")


def test_nothing_held_out(tmp_path):
    write_results(Invented([], {}), {"steps": 3}, tmp_path)
    assert "nothing was held out" in (tmp_path / "report.md").read_text()
    assert (tmp_path / "predictions.jsonl").read_text() == ""


def test_written_whole_or_not_at_all(tmp_path, monkeypatch):
    write_results(Invented(PREDICTIONS[:3], {}), RESULTS, tmp_path)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}

    class Full(Invented):
        def settings(self) -> dict[str, Any]:  # the last file
            raise OSError(28, os.strerror(28))

    with pytest.raises(StorageError, match=r"--output_dir .*: the report cannot be written: No space left") as caught:
        write_results(Full(PREDICTIONS, {"Confusion": Matrix(["a", "b"], [[1, 0], [0, 1]])}), RESULTS, tmp_path)
    assert caught.value.exit_code == 5
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_a_folder_that_is_a_file(tmp_path):
    (tmp_path / "out").write_text("")
    with pytest.raises(StorageError, match="--output_dir"):
        write_results(Invented([], {}), RESULTS, tmp_path / "out")


# Tables and pictures


def test_cells():
    assert [number(value) for value in (12345, 0.123456, 83.14159, "a", None, True)] == [
        "12,345", "0.1235", "83.14", "a", "", "True"
    ]  # fmt: skip
    assert markdown_table(["a|b", "c"], [["x\ny", 1]]) == ["| a\\|b | c |", "| --- | ---: |", "| x y | 1 |"]


@pytest.mark.parametrize("size", fast([2, 12, 13, 60, 90], 2, 13))
def test_a_matrix_of_any_size_can_be_read(tmp_path, size):
    counts = np.diag(np.arange(size) * 37 + 5)
    counts[0, size - 1] = 1234
    labels = [
        f"$label_{n} with a name that is far too long to stand there" if n % 7 == 0 else f"{n}" for n in range(size)
    ]
    matrix = Matrix(labels, counts.tolist())
    draw(matrix, heading="Confusion_$", path=tmp_path / "m.png")
    height, width = picture(tmp_path / "m.png").shape[:2]
    assert 120 < height < 3000 and 120 < width < 3000
    text = "\n".join(matrix.text())
    assert ("1,234" in text) and (len(matrix.text()) == size + 2 if size <= 12 else "most frequent confusions" in text)


def test_a_picture_has_the_frequent_labels():
    counts = [[10 * (i == j) + (i == 0 and j == 69) + i for j in range(70)] for i in range(70)]
    axes = Figure().add_subplot()
    Matrix([f"l{i}" for i in range(70)], counts).draw(axes)
    names = [label.get_text() for label in axes.get_yticklabels()]
    assert len(names) == MOST_LABELS and names[0] == "l10" and names[-1] == "l69"
    assert axes.texts[0].get_text() == "20"


def test_tables_and_points(tmp_path):
    table = Table(
        ["type", "precision", "recall", "f1", "number"],
        [["person", 0.5, 0.25, 1 / 3, 12], ["a_$very long type name indeed, of many words", 1.0, 1.0, 1.0, 1]],
    )
    points = Points([1.0, 2.0, 3.0, 4.0, 5.0], [1.5, 2.0, 2.0, 4.0, 9.0])
    write_results(Invented(PREDICTIONS, {"By type": table, "Numbers": points}), RESULTS, tmp_path)
    report = (tmp_path / "report.md").read_text()
    assert "| person | 0.5 | 0.25 | 0.3333 | 12 |\n" in report and "![By type]" not in report
    assert "## Numbers\n\n![Numbers](scatter.png)" in report
    assert picture(tmp_path / "scatter.png").std() > 0.03
    write_results(Invented(PREDICTIONS, {"By type": Table(["type", "f1"], [["x", 0.1]])}), RESULTS, tmp_path / "plain")
    assert not list((tmp_path / "plain").glob("*.png"))


def test_what_has_no_scale_in_common_has_no_line(tmp_path, monkeypatch):
    figures = []
    original = Figure.savefig
    monkeypatch.setattr(Figure, "savefig", lambda self, *a, **b: (figures.append(self), original(self, *a, **b))[1])
    gold, cosines = [float(n // 4) for n in range(20)], [n / 20 for n in range(20)]
    points = Points(gold, cosines, scales=("score", "cosine"))
    for each in (points, Points(gold, cosines)):
        draw(each, heading="Cosines and scores", path=tmp_path / "scatter.png")
    (apart,), (together,) = (figure.axes for figure in figures)
    assert (apart.get_xlabel(), apart.get_ylabel(), len(apart.lines)) == ("cosine", "score", 0)
    assert (together.get_xlabel(), together.get_ylabel(), len(together.lines)) == ("gold", "predicted", 1)
    assert apart.get_xlim()[1] < 1.1 and apart.get_ylim()[1] > 3.9, "each has a range of its own"
    np.testing.assert_allclose(apart.collections[0].get_offsets(), np.stack([cosines, gold], axis=1))


def test_scores_before_training_stand_beside(tmp_path):
    results = {**RESULTS, "start_accuracy": 0.625}
    write_results(Invented(PREDICTIONS, {}), results, tmp_path)
    report = (tmp_path / "report.md").read_text()
    assert "| metric | this model | before training | without a model |\n" in report
    assert "| accuracy | 0.8125 | 0.625 | 0.5 |\n| loss | 0.25 |  |  |\n" in report


def test_what_training_made_worse_and_what_ended_early_is_said(tmp_path, capsys):
    early = {"stopped_early": True, "planned_steps": 1500}
    write_results(Invented(PREDICTIONS, {}), {**RESULTS, "start_accuracy": 0.875, **early}, tmp_path)
    report = (tmp_path / "report.md").read_text()
    worse = "warning: worse than before training (accuracy 0.8125, before 0.875)\n"
    assert f"\n\n{worse}\ntraining ended early, after step 10 of 1,500 (--early_stopping_patience)\n" in report
    assert capsys.readouterr().out.startswith(f"{worse}report.md, predictions.jsonl")
    write_results(Invented(PREDICTIONS, {}), {**RESULTS, "start_accuracy": 0.8125, "stopped_early": False}, tmp_path)
    report = (tmp_path / "report.md").read_text()
    assert "warning" not in report + capsys.readouterr().out and "early" not in report
