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
from lacuna.training.reports.curves import axis_number, draw_curves, series, smoothed, thinned


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
    figure = drawn(records, "BertForMaskedLM  ·  mlm", peak_rate=0.002)
    loss, quality, rate, speed = figure.axes
    assert titles(figure) == [
        "loss",
        "held out",
        "learning rate  0.001 (peak 0.002)",
        "tokens per second  1k, MFU 31.0%",
    ]
    assert legend(loss) == [
        "train 3.008 (from 4)",
        "held out 2.3 (best 2.3)",
        "resume",
        "checkpoint (2)",
        "skipped step",
    ]
    assert legend(quality) == ["f1 0.5"]
    assert [text.get_text() for text in figure.texts] == [
        "BertForMaskedLM  ·  mlm",
        "step 120  ·  1.2 epochs  ·  4.0 min",
    ]
    # A resume goes through all. MFU would trace the line of the speed a second time.
    assert [len(axes.collections) for axes in (loss, quality, rate, speed)] == [1, 1, 2, 1]
    assert len(figure.axes) == 4 and len(speed.lines) == 2, "each window, and their mean"
    assert all(axes.get_xlim()[0] == 0 and axes.get_xlim()[1] >= 120 for axes in figure.axes)


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


def test_nothing_is_numbered_that_is_not_there(drawn) -> None:
    figure = drawn([{"step": 10, "eval_loss": 2.0}, {"step": 20, "eval_loss": 1.5}])
    assert legend(figure.axes[0]) == ["held out 1.5 (best 1.5)"]
    assert titles(figure)[1:] == ["learning rate", "tokens per second"]
    assert [len(axes.get_yticks()) for axes in figure.axes[1:]] == [0, 0]


def test_a_trainer_that_counts_no_tokens_has_no_speed(drawn) -> None:
    records = [{"step": step, "loss": 1.0, "learning_rate": 1e-3} for step in (1, 2)]
    rate = "learning rate  0.001"
    assert titles(drawn(records)) == ["loss", rate]
    assert titles(drawn([*records, {"step": 2, "eval_f1": 0.5}])) == ["loss", "held out", rate]


def test_neither_a_spike_nor_the_first_steps_press_the_rest_flat(drawn) -> None:
    records = [line(step, loss=2.0 + 9.0 * math.exp(-step / 30) + step % 5 / 100) for step in range(1, 10_001)]
    records[5000]["loss"] = 80.0
    axes = drawn(records).axes[0]
    assert axes.get_ylim()[1] < 4.0 and axes.get_ylim()[0] < 2.0
    assert legend(axes)[0].endswith("(from 10.71)")


WIDE = {"learning_rate": 1.2345e-4, "tokens_per_second": 123456.7, "mfu": 0.98765}


@pytest.mark.parametrize("events", [[], ["checkpoint"], ["checkpoint", "resume", "skipped", "spike"]])
@pytest.mark.parametrize("count", [1, 3, 200])
def test_no_words_lie_over_others_or_over_lines(drawn, count: int, events: list[str]) -> None:
    records = [line(step, **WIDE, loss=2.0 + step / 1000) for step in range(1, count + 1)]
    records += [{"step": count, "eval_loss": 2.34567, "eval_accuracy": 0.12345}]
    records += [mark(step, event) for event in events for step in range(1, count + 1)]
    figure = drawn(records, "LacunaForMaskedLM, mlm", peak_rate=1.2345e-4)
    loss, *others = figure.axes
    words = [axes._left_title.get_window_extent() for axes in figure.axes] + [loss.get_legend().get_window_extent()]
    words += [text.get_window_extent() for text in figure.texts]
    assert all(box.x0 >= 0 and box.x1 <= figure.bbox.x1 for box in words)
    overlaps = [(a, b) for a, one in enumerate(words) for b, other in enumerate(words[:a]) if one.overlaps(other)]
    assert not overlaps and not any(words[len(figure.axes)].overlaps(axes.bbox) for axes in figure.axes)
    assert others[1].get_title(loc="left") == "learning rate  0.000123 (peak 0.000123)"


@pytest.mark.parametrize("spread", [1e-9, 1e-5, 3e-3, 0.2, 5.0])
def test_each_number_along_an_axis_is_another_one(drawn, spread: float) -> None:
    figure = drawn([line(step, loss=9.7346 + spread * step / 30) for step in (10, 20, 30)])
    for axes in figure.axes:
        shown = [label.get_text() for label in axes.get_yticklabels()]
        assert len(set(shown)) == len(shown) and max(map(len, shown)) <= 7
        assert min(label.get_window_extent().x0 for label in axes.get_yticklabels()) > 0


def test_a_mean_that_follows() -> None:
    few = np.arange(39.0)
    assert smoothed(few) is few
    values = np.sin(np.arange(400) / 80) + np.random.default_rng(0).normal(size=400)
    smooth = smoothed(values)
    expected = [values[i - min(10, i // 4) : i + min(10, i // 4) + 1].mean() for i in range(400)]
    np.testing.assert_allclose(smooth, expected)
    values[100:120] = np.nan
    smooth = smoothed(values)
    assert np.isnan(smooth[100:120]).all() and np.isfinite(np.delete(smooth, range(100, 120))).all()
    assert smooth[99] == pytest.approx(np.nanmean(values[89:110]))


def test_thinning_keeps_spikes_ends_and_gaps() -> None:
    steps = np.arange(100_000.0)
    values = np.random.default_rng(0).normal(size=100_000)
    values[[333, 77_777]] = 50.0, -50.0
    values[20_000:30_000] = np.nan
    at, kept = thinned(steps, values)
    assert len(at) == len(kept) <= 2001 and (np.diff(at) > 0).all()
    assert {0.0, 333.0, 77_777.0, 99_999.0} <= set(at)
    assert np.isnan(kept[(at >= 20_100) & (at < 29_900)]).all()
    assert thinned(steps[:2000], values[:2000])[1] is not None and len(thinned(steps[:2000], values[:2000])[0]) == 2000


def test_series_are_in_order_and_without_marks() -> None:
    records = [line(3), {"step": 9, "event": "spike", "loss": 70.0}, line(2, loss=math.inf), line(1)]
    steps, values = series(records, "loss")
    assert steps.tolist() == [1, 2, 3] and values[0] == 4.0 and math.isnan(values[1])


def test_numbers_on_axes() -> None:
    numbers = (0, 0.25, 1e-3, 2.5e-5, 950, 12_500, 1_500_000, 2e9, -2000)
    shown = ["0", "0.25", "0.001", "2.5e-05", "950", "12.5k", "1.5M", "2G", "\N{MINUS SIGN}2k"]
    assert [axis_number(number) for number in numbers] == shown


def test_a_hundred_thousand_lines(drawn) -> None:
    records = [line(step, mfu=0.3) for step in range(1, 100_001)]
    records += [mark(step, "checkpoint") for step in range(10, 100_001, 10)]
    figure = drawn(records)
    lines = [each for axes in figure.axes for each in axes.lines if each.get_linestyle() != "None"]
    assert max(len(each.get_xdata()) for each in lines) <= 2002
    assert "checkpoint (10,000)" in legend(figure.axes[0])


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
