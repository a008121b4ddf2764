"""curves.png: a run at a glance."""

from pathlib import Path
from typing import Any

INK, TRAIN, HELD_OUT, QUIET = "#222222", "#7fa8d1", "#c0392b", "#8a8a8a"


def _series(records: list[dict[str, Any]], name: str) -> tuple[list[int], list[float]]:
    found = [(record["step"], record[name]) for record in records if name in record]
    return [step for step, _ in found], [value for _, value in found]


def draw_curves(*, records: list[dict[str, Any]], path: Path) -> None:
    """Draw train and held-out loss over the held-out metrics, learning rate and throughput.

    Args:
        records: the lines of metrics.jsonl.
        path: the PNG file; replaced as a whole.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    names = list(dict.fromkeys(name for record in records for name in record if name.startswith("eval_")))
    # Losses and shares of one do not fit on one axis.
    metrics = [name for name in names if "loss" not in name and "bits" not in name] or names[-1:]
    figure = Figure(figsize=(10, 6), dpi=110, layout="constrained")
    FigureCanvasAgg(figure)
    loss, quality, rate, speed = figure.subplots(2, 2, sharex=True).flatten()

    loss.plot(*_series(records, "loss"), color=TRAIN, linewidth=1.2, label="train")
    loss.plot(*_series(records, "eval_loss"), color=HELD_OUT, marker="o", markersize=4, label="held out")
    loss.set_title("loss")
    loss.legend(frameon=False)
    for shade, name in zip(("#c0392b", "#2c7a4b", "#8e5ea2", "#d08c2e"), metrics[:4], strict=False):
        quality.plot(*_series(records, name), color=shade, marker="o", markersize=4, label=name.removeprefix("eval_"))
    quality.set_title("held-out metrics")
    if metrics:
        quality.legend(frameon=False)
    rate.plot(*_series(records, "learning_rate"), color=INK, linewidth=1.2)
    rate.set_title("learning rate")
    speed.plot(*_series(records, "tokens_per_second"), color=QUIET, linewidth=1.2)
    speed.set_title("training tokens per second")
    speed.set_ylim(bottom=0)
    for axes in (loss, quality, rate, speed):
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(alpha=0.25, linewidth=0.6)
        axes.ticklabel_format(axis="y", style="plain", useOffset=False)
    rate.ticklabel_format(axis="y", style="sci", scilimits=(-2, 3))
    for axes in (rate, speed):
        axes.set_xlabel("step")
    temporary = path.with_name(f".{path.name}.tmp")
    figure.savefig(temporary, format="png")
    temporary.replace(path)
