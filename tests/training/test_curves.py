"""curves.png of runs of every kind."""

import json
import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from lacuna.common.errors import StorageError
from lacuna.training.reports.curves import draw_curves, series, smoothed


def line(step: int, **changes: Any) -> dict[str, Any]:
    facts = {"step": step, "epoch": step / 100, "loss": 3.0 + 1.0 / step, "learning_rate": 1e-3, "seconds": 2.0 * step}
    return {**facts, "tokens_per_second": 1000.0 + step % 7, **changes}


def mark(step: int, event: str) -> dict[str, Any]:
    return {"step": step, "event": event}


@pytest.fixture
def drawn(monkeypatch, tmp_path) -> Any:
    """Draws records and gives the figure that was written."""
    from matplotlib.figure import Figure

    figures: list[Figure] = []
    original = Figure.savefig

    def keep(figure: Figure, *words: Any, **options: Any) -> None:
        figures.append(figure)
        original(figure, *words, **options)

    monkeypatch.setattr(Figure, "savefig", keep)

    def draw(records: list[dict[str, Any]], title: str = "", **options: Any) -> Figure:
        draw_curves(records=records, path=tmp_path / "curves.png", title=title, **options)
        assert [path.name for path in tmp_path.iterdir()] == ["curves.png"]
        with Image.open(tmp_path / "curves.png") as picture:
            picture.verify()
        return figures[-1]

    return draw


def legend(axes: Any) -> list[str]:
    return [text.get_text() for text in axes.get_legend().get_texts()] if axes.get_legend() else []


def titles(figure: Any) -> list[str]:
    return [axes.get_title(loc="left") for axes in figure.axes]


def test_what_a_run_shows(drawn) -> None:
    records = [line(step, mfu=0.31) for step in range(1, 121)]
    records += [{"step": step, "eval_loss": 3.5 - step / 100, "eval_f1": 0.5} for step in (40, 80, 120)]
    records += [mark(40, "checkpoint"), mark(80, "checkpoint"), mark(80, "resume"), mark(90, "skipped")]
    figure = drawn(records, "BertForMaskedLM, mlm")
    loss, *others = figure.axes
    assert titles(figure) == ["loss", "held out", "learning rate", "tokens per second"]
    assert legend(loss) == ["train 3.008", "held out 2.3", "resume (1)", "checkpoint (2)", "skipped (1)"]
    assert [legend(axes) for axes in others] == [["f1 0.5"], ["learning_rate 0.001"], ["median 1,003"]]
    assert figure.get_suptitle() == "BertForMaskedLM, mlm  ·  step 120  ·  1.2 epochs  ·  04:00"
    assert len(others[2].lines) == 2, "each window, and their mean"


@pytest.mark.parametrize(
    "records",
    [
        [],
        [line(1)],
        [{"step": 1, "eval_loss": 2.0}],
        [{"step": 0, "eval_loss": 2.0}],
        [line(1), {"step": 1, "eval_loss": 2.0, "eval_accuracy": 0.5, "eval_f1": 0.2}, line(2)],
        [line(1, loss=math.inf), {"step": 1, "eval_loss": 1.0}],
        [line(step, loss=math.nan, tokens_per_second=math.nan, mfu=math.nan) for step in range(1, 200)],
        [line(step, loss=2.0, mfu=0.0, tokens_per_second=0.0, learning_rate=0.0) for step in range(1, 200)],
        [mark(3, "resume"), mark(4, "checkpoint"), mark(4, "something else")],
        [line(1, loss=None, mfu="much", eval_loss=math.nan)],
        [{"step": 5, **{f"eval_metric_{name}": 0.1 for name in "abcdefgh"}}],
    ],
)
def test_curves_of_any_records(drawn, records) -> None:
    drawn(records, "LacunaForMaskedLM $x_1$ \\frac 模型")


def test_panels_are_there_for_what_was_recorded(drawn) -> None:
    figure = drawn([{"step": 10, "eval_loss": 2.0}, {"step": 20, "eval_loss": 1.5}])
    assert legend(figure.axes[0]) == ["held out 1.5"] and titles(figure) == ["loss"]
    records = [{"step": step, "loss": 1.0, "learning_rate": 1e-3} for step in (1, 2)]
    assert titles(drawn(records)) == ["loss", "learning rate"]
    assert titles(drawn([*records, {"step": 2, "eval_f1": 0.5}])) == ["loss", "held out", "learning rate"]


def test_neither_a_spike_nor_the_first_steps_press_the_rest_flat(drawn) -> None:
    records = [line(step, loss=2.0 + 9.0 * math.exp(-step / 30) + step % 5 / 100) for step in range(1, 10_001)]
    records[5000]["loss"] = 80.0
    axes = drawn(records).axes[0]
    assert axes.get_ylim()[1] < 4.0 and axes.get_ylim()[0] < 2.0


def test_a_mean_that_follows() -> None:
    few = np.arange(39.0)
    np.testing.assert_array_equal(smoothed(few), few)
    values = np.sin(np.arange(400) / 80) + np.random.default_rng(0).normal(size=400)
    halves = [min(10, i, 399 - i) for i in range(400)]
    expected = [values[i - half : i + half + 1].mean() for i, half in enumerate(halves)]
    np.testing.assert_allclose(smoothed(values), expected)
    values[100:120] = np.nan
    smooth = smoothed(values)
    assert np.isnan(smooth[100:120]).all() and np.isfinite(np.delete(smooth, range(100, 120))).all()
    assert smooth[99] == pytest.approx(np.nanmean(values[89:110]))


def test_series_are_in_order_and_without_marks() -> None:
    records = [line(3), {"step": 9, "event": "spike", "loss": 70.0}, line(2, loss=math.inf), line(1)]
    steps, values = series(records, "loss")
    assert steps.tolist() == [1, 2, 3] and values[0] == 4.0 and math.isnan(values[1])


@pytest.mark.slow
def test_a_hundred_thousand_lines(drawn) -> None:
    records = [line(step, mfu=0.3) for step in range(1, 100_001)]
    records += [mark(step, "checkpoint") for step in range(10, 100_001, 10)]
    assert "checkpoint (10,000)" in legend(drawn(records).axes[0])


def test_a_picture_that_cannot_be_written_leaves_the_older_one(tmp_path, monkeypatch) -> None:
    from matplotlib.figure import Figure

    path = tmp_path / "curves.png"
    draw_curves(records=[line(1)], path=path)
    before = path.read_bytes()

    def fill_the_disk(figure: Figure, name: Path, **_: Any) -> None:
        name.write_bytes(b"half")
        raise OSError(28, os.strerror(28))

    monkeypatch.setattr(Figure, "savefig", fill_the_disk)
    with pytest.raises(StorageError, match="No space"):
        draw_curves(records=[line(1), line(2)], path=path)
    assert path.read_bytes() == before and [found.name for found in tmp_path.iterdir()] == ["curves.png"]


@pytest.mark.slow
def test_a_persons_own_settings_of_matplotlib_change_nothing(tmp_path) -> None:
    """usetex would start LaTeX for each label, and takes seconds where there is one."""
    (tmp_path / "matplotlibrc").write_text("text.usetex: True\nfont.family: Nowhere\nbackend: TkAgg\n")
    code = (
        "import json, sys; from pathlib import Path; from lacuna.training.reports.curves import draw_curves\n"
        "draw_curves(records=json.loads(sys.argv[1]), path=Path(sys.argv[2]))"
    )
    records = json.dumps([line(1), line(2)])
    done = subprocess.run(
        [sys.executable, "-c", code, records, str(tmp_path / "curves.png")],
        env={**os.environ, "MATPLOTLIBRC": str(tmp_path), "PYTHONPATH": str(Path(__file__).parents[2])},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0 and not done.stderr, done.stderr
    assert (tmp_path / "curves.png").read_bytes().startswith(b"\x89PNG")


def test_the_metric_that_judges_comes_first_with_its_baselines_and_the_step_that_is_kept(drawn) -> None:
    scores = {"eval_f1_macro": 0.5, "eval_f1_micro": 0.7, "eval_accuracy": 0.7, "eval_loss": 1.0}
    records = [line(1), line(2, **scores), line(3), line(4, **{**scores, "eval_f1_macro": 0.6})]
    figure = drawn(
        records, metric="accuracy", results={"baseline_accuracy": 0.1, "words_accuracy": 0.8, "best_step": 2}
    )
    loss, held_out, *_ = figure.axes
    assert legend(loss)[-1] == "kept" and loss.lines[-1].get_xdata() == [2, 2]
    named = ["accuracy 0.7", "f1_macro 0.6", "without a model 0.1", "bag of words 0.8"]  # f1_micro would hide accuracy
    assert legend(held_out) == named
    assert legend(figure.axes[-1]) == ["median 1,002"]


def test_what_a_guess_would_score_in_a_probe_is_a_dashed_line_of_its_colour(drawn) -> None:
    scores = {"eval_accuracy": 0.3, "eval_minimal_pairs": 0.55, "eval_loss": 1.0}
    records = [line(1), line(2, **scores), line(3, eval_minimal_pairs=0.6)]
    results = {"baseline_accuracy": 0.1, "baseline_minimal_pairs": 0.5}
    held_out = drawn(records, metric="accuracy", results=results).axes[1]
    assert legend(held_out) == ["accuracy 0.3", "minimal_pairs 0.6", "without a model 0.1"]
    (guess,) = (each for each in held_out.lines if list(each.get_ydata()) == [0.5, 0.5])
    (scored,) = (each for each in held_out.lines if each.get_label() == "minimal_pairs 0.6")
    assert guess.get_linestyle() == "--" and guess.get_color() == scored.get_color()
