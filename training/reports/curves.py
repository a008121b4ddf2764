"""curves.png: a run at a glance."""

import math
import warnings
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lacuna.common.files import replacing

# Okabe and Ito's colours, which people with any kind of colour blindness tell apart.
BLUE, SKY, VERMILION, GREEN, PURPLE, ORANGE = "#0072B2", "#56B4E9", "#D55E00", "#009E73", "#CC79A7", "#E69F00"
INK, QUIET, FAINT = "#222222", "#767676", "#dddddd"
_STYLE = {
    "text.usetex": False,
    "font.family": "DejaVu Sans",
    "font.size": 9.5,
    "axes.titlesize": 10.5,
    "axes.titlelocation": "left",
    "axes.labelcolor": QUIET,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "grid.color": FAINT,
}
_EVENTS = {  # name in the legend, height in the panel, marker, colour
    "resume": ("resume", 0.985, "v", PURPLE),
    "checkpoint": ("checkpoint", 0.022, "^", QUIET),
    "skipped": ("skipped step", 0.065, "x", INK),
    "spike": ("spike", 0.94, "*", ORANGE),
}

Values = NDArray[np.float64]


def series(records: list[dict[str, Any]], name: str) -> tuple[Values, Values]:
    """Steps and values of a name, in order of steps; what is not finite is NaN, which leaves a gap in a line."""
    found = {each["step"]: each[name] for each in _lines(records) if isinstance(each.get(name), int | float)}
    table = np.array(sorted(found.items()), dtype=np.float64).reshape(-1, 2)
    return table[:, 0], np.where(np.isfinite(table[:, 1]), table[:, 1], np.nan)


def smoothed(values: Values) -> Values:
    """Means over a fortieth of the values to each side; NaN are left out, and stay.

    The window begins narrow and symmetric, where a loss falls steeply and a wide mean would lie above it, and is
    one-sided at the end, where it is flat and people look. Fewer than 40 values stay as they are.
    """
    count, half = len(values), len(values) // 40
    if half == 0:
        return values
    place = np.arange(count)
    left = np.minimum(half, place // 4)
    first, last = place - left, np.minimum(place + left, count - 1)
    sums, numbers = (np.concatenate([[0.0], np.cumsum(part)]) for part in (np.nan_to_num(values), np.isfinite(values)))
    total, number = sums[last + 1] - sums[first], numbers[last + 1] - numbers[first]
    return np.where(np.isfinite(values), total / np.maximum(number, 1), np.nan)


def thinned(steps: Values, values: Values, most: int = 2000) -> tuple[Values, Values]:
    """About `most` points, more than a line has pixels across: of each stretch the lowest and the highest."""
    if len(values) <= most:
        return steps, values
    low, high = np.nan_to_num(values, nan=np.inf), np.nan_to_num(values, nan=-np.inf)
    stretches = np.array_split(np.arange(len(values)), most // 2)
    kept = {place for part in stretches for place in (part[low[part].argmin()], part[high[part].argmax()])}
    chosen = sorted(kept | {0, len(values) - 1})
    return steps[chosen], values[chosen]


def axis_number(value: float, _: object = None) -> str:
    """A number on an axis: 12.5k, 1.5M, 0.25, 2.5e-05."""
    from matplotlib.ticker import EngFormatter

    return EngFormatter(sep="")(value) if abs(value) >= 1000 else f"{value:.5g}"


def draw_curves(*, records: list[dict[str, Any]], path: Path, title: str = "", peak_rate: float | None = None) -> None:
    """Draw train and held-out loss, over held-out metrics, learning rate and throughput, with marks of events.

    Args:
        records: the lines of metrics.jsonl.
        path: the PNG file; replaced as a whole.
        title: model and objective.
        peak_rate: the highest learning rate of the run, which a short one has not logged; None: not known.

    Raises:
        StorageError: the file cannot be written.
    """
    from matplotlib import style
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    metrics = _metrics(records)
    lines = [record for record in records if "loss" in record]
    speed = not lines or any("tokens_per_second" in line for line in lines)  # other trainers do not count tokens
    below = ["metrics"] * bool(metrics) + ["rate"] + ["speed"] * speed
    with style.context(["seaborn-v0_8-whitegrid", _STYLE]), warnings.catch_warnings(), replacing(path) as temporary:
        warnings.simplefilter("ignore")  # a letter of a title that the font has not
        figure = Figure(figsize=(11, 7), dpi=120)
        FigureCanvasAgg(figure)
        margins = {"left": 0.06, "right": 0.955, "top": 0.87, "bottom": 0.075, "hspace": 0.3, "wspace": 0.24}
        layout = [["loss"] * len(below), below]
        panels = figure.subplot_mosaic(layout, height_ratios=(1.75, 1), gridspec_kw=margins)
        _draw_loss(panels["loss"], records)
        if metrics:
            _draw_metrics(panels["metrics"], records, metrics)
        _draw_rate(panels["rate"], records, peak_rate)
        if speed:
            _draw_speed(panels["speed"], records)
        for axes in panels.values():
            _number(axes, records)
        _draw_events(panels, records)
        figure.text(
            0.06, 0.965, title or "training", fontsize=14, weight="bold", color=INK, va="center", parse_math=False
        )
        figure.text(0.06, 0.925, _how_far(records), color=QUIET, va="center")
        figure.savefig(temporary, format="png")


def _lines(records: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [record for record in records if "event" not in record]


def _metrics(records: list[dict[str, Any]]) -> list[str]:
    """Up to four held-out metrics beside the losses, which have an axis of their own: shares of one first."""
    names = list(dict.fromkeys(name for record in records for name in record if name.startswith("eval_")))
    shares = [name for name in names if "loss" not in name and "bits" not in name and "perplexity" not in name]
    return (shares or [name for name in names if "bits" in name])[:4]


def _plot(
    axes: Any, steps: Values, values: Values, *, color: str, marker: str = ".", mean: bool = False, **style: Any
) -> None:
    """A line, with its points where they are few (NaN on both sides would hide one), or the mean of many values."""
    smooth = smoothed(values) if mean else values
    if smooth is not values:
        axes.plot(*thinned(steps, values), color=color, linewidth=0.8, alpha=0.35)
    few = len(values) <= 30
    style = {"linewidth": 1.6, "markersize": 5} | style
    axes.plot(*thinned(steps, smooth), color=color, marker=marker if few else "", clip_on=not few, **style)


def _draw_loss(axes: Any, records: list[dict[str, Any]]) -> None:
    steps, raw = series(records, "loss")
    smooth = smoothed(raw)
    if len(raw):
        finite = raw[np.isfinite(raw)]
        first = f" (from {finite[0]:.4g})" if len(finite) > 1 else ""
        _plot(axes, steps, raw, mean=True, color=BLUE, linewidth=2.0, label=f"train {_last(smooth)}{first}")
    at, held_out = series(records, "eval_loss")
    if len(held_out):
        best = f" (best {np.nanmin(held_out):.4g})" if np.isfinite(held_out).sum() > 1 else ""
        _plot(
            axes, at, held_out, color=VERMILION, linewidth=1.8, marker="o", label=f"held out {_last(held_out)}{best}"
        )
    axes.set_title("loss")
    later = steps >= steps[0] + 0.02 * (steps[-1] - steps[0]) if len(raw) else []
    if np.isfinite(raw[later]).sum() >= 100:  # neither single spikes nor the first steps of a long run decide the axis
        usual = np.nanquantile(raw[later], [0.002, 0.995])
        shown = np.concatenate([smooth[later], usual, held_out[at >= steps[later][0]]])
        low, high = np.nanmin(shown), np.nanmax(shown)
        margin = 0.06 * (high - low) or 0.5
        axes.set_ylim(low - margin, high + margin)


def _draw_metrics(axes: Any, records: list[dict[str, Any]], metrics: list[str]) -> None:
    for color, marker, name in zip((VERMILION, GREEN, PURPLE, ORANGE), "osD^", metrics, strict=False):
        steps, values = series(records, name)
        label = f"{name.removeprefix('eval_').replace('_', ' ')} {_last(values)}"
        _plot(axes, steps, values, color=color, marker=marker, label=label)
    axes.set_title("held out")
    low, high = axes.get_ylim()
    axes.set_ylim(low, high + 0.17 * len(metrics) * (high - low))  # room for the legend
    axes.legend(loc="upper left", fontsize=8.5, handlelength=1.6, labelspacing=0.25, borderaxespad=0.2)


def _draw_rate(axes: Any, records: list[dict[str, Any]], peak: float | None) -> None:
    steps, values = series(records, "learning_rate")
    _plot(axes, steps, values, color=INK)
    axes.fill_between(*thinned(steps, values), color=INK, alpha=0.06, linewidth=0)
    text = f"  {_last(values, '.3g')}" if len(values) else ""
    axes.set_title("learning rate" + text + (f" (peak {peak:.3g})" if text and peak is not None else ""))
    axes.set_ylim(0, 1.15 * np.nanmax(values, initial=0.0) or 1.0)


def _draw_speed(axes: Any, records: list[dict[str, Any]]) -> None:
    steps, raw = series(records, "tokens_per_second")
    smooth, share = smoothed(raw), smoothed(series(records, "mfu")[1])
    _plot(axes, steps, raw, mean=True, color=GREEN)
    finite = smooth[np.isfinite(smooth)]
    text = f"  {axis_number(float(f'{finite[-1]:.3g}'))}" if len(finite) else ""
    # MFU has the shape of the line but for lengths that change, and needs none of its own.
    axes.set_title("tokens per second" + text + (f", MFU {_last(share, '.1%')}" if np.isfinite(share).any() else ""))
    axes.set_ylim(0, 1.15 * np.nanmax(smooth, initial=0.0) or 1.0)


def _last(values: Values, form: str = ".4g") -> str:
    finite = values[np.isfinite(values)]
    return format(float(finite[-1]), form) if len(finite) else "not finite"


def _number(axes: Any, records: list[dict[str, Any]]) -> None:
    """Steps along the foot, and numbers at both axes that differ from each other."""
    from matplotlib.ticker import MaxNLocator

    axes.set_xlim(0, 1.01 * max((record["step"] for record in _lines(records)), default=1) or 1)
    axes.xaxis.set_major_locator(MaxNLocator(nbins=6, integer=True))
    low, high = axes.get_ylim()
    if (lacking := 1e-3 * max(abs(low), abs(high)) - (high - low)) > 0:  # five digits tell neighbours apart
        axes.set_ylim(low - lacking / 2, high + lacking / 2)
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(axis_number)
    if not any(len(line.get_xdata()) for line in axes.lines):
        axes.set_yticks([])  # nothing to read there yet
    axes.set_xlabel("step", loc="right", labelpad=1)


def _draw_events(panels: dict[str, Any], records: list[dict[str, Any]]) -> None:
    """Checkpoints and skipped steps at the foot of the loss, spikes at its head, resumes across all panels."""
    loss = panels["loss"]
    for event, (name, height, marker, color) in _EVENTS.items():
        steps = sorted({record["step"] for record in records if record.get("event") == event})
        if not steps:
            continue
        for axes in panels.values() if event == "resume" else ():
            across = {"transform": axes.get_xaxis_transform(), "linewidth": 0.9, "linestyle": "dashed"}
            axes.vlines(steps, 0, 1, color=color, **across)
        label = name if len(steps) == 1 else f"{name} ({len(steps):,})"
        place = {"transform": loss.get_xaxis_transform(), "clip_on": False, "linestyle": "", "zorder": 3}
        loss.plot(steps, [height] * len(steps), color=color, marker=marker, markersize=5.5, label=label, **place)
    if count := len(loss.get_legend_handles_labels()[0]):  # over the axes, where it hides nothing
        columns = {"ncols": count if count <= 4 else 3, "columnspacing": 1.6, "labelspacing": 0.3, "handlelength": 1.6}
        loss.legend(loc="lower right", bbox_to_anchor=(1.0, 1.0), borderpad=0, borderaxespad=0.6, **columns)


def _how_far(records: list[dict[str, Any]]) -> str:
    """Steps, epochs and time of a run so far."""
    newest: dict[str, Any] = {}
    for record in _lines(records):
        newest |= record
    parts = [f"step {newest['step']:,}"] if newest else []
    if "epoch" in newest:
        parts.append(f"{newest['epoch']:.3g} epochs")
    if isinstance(seconds := newest.get("seconds"), int | float) and math.isfinite(seconds):
        units = ((86400, "days"), (3600, "h"), (60, "min"), (1, "s"))
        size, unit = next((pair for pair in units if seconds >= 1.5 * pair[0]), units[-1])
        parts.append(f"{seconds / size:.{int(size > 1)}f} {unit}")
    return "  ·  ".join(parts)
