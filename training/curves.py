"""curves.png: a run at a glance."""

import math
import warnings
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

# Okabe and Ito's colours, which people with any kind of colour blindness tell apart.
BLUE, SKY, VERMILION, GREEN, PURPLE, ORANGE = "#0072B2", "#56B4E9", "#D55E00", "#009E73", "#CC79A7", "#E69F00"
INK, QUIET, FAINT = "#222222", "#767676", "#dddddd"
_MOST_POINTS = 2000
"""More than a line has pixels across."""
_STYLE = {
    "text.usetex": False,
    "font.family": "DejaVu Sans",
    "font.size": 9.5,
    "axes.edgecolor": QUIET,
    "axes.linewidth": 0.8,
    "axes.labelcolor": QUIET,
    "axes.titlesize": 10.5,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": FAINT,
    "grid.linewidth": 0.6,
    "xtick.color": QUIET,
    "ytick.color": QUIET,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "legend.frameon": False,
    "lines.solid_capstyle": "round",
    "savefig.facecolor": "white",
}

Series = tuple[NDArray[np.float64], NDArray[np.float64]]


def series(records: list[dict[str, Any]], name: str) -> Series:
    """Steps and values of a name, in order of steps; what is not finite is NaN, which leaves a gap in a line."""
    found = [
        (record["step"], record[name])
        for record in records
        if isinstance(record.get(name), int | float) and "event" not in record
    ]
    table = np.array(sorted(found, key=lambda pair: pair[0]), dtype=np.float64).reshape(-1, 2)
    return table[:, 0], np.where(np.isfinite(table[:, 1]), table[:, 1], np.nan)


def smoothed(values: NDArray[np.float64]) -> NDArray[np.float64]:
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


def thinned(steps: NDArray[np.float64], values: NDArray[np.float64], most: int = _MOST_POINTS) -> Series:
    """About `most` points at most: of each stretch its first, its lowest and its highest, so that spikes stay."""
    if len(values) <= most:
        return steps, values
    chosen: set[int] = {len(values) - 1}
    for part in np.array_split(np.arange(len(values)), most // 3):
        chosen.add(int(part[0]))
        finite = part[np.isfinite(values[part])]
        if len(finite):
            chosen |= {int(finite[values[finite].argmin()]), int(finite[values[finite].argmax()])}
    kept = sorted(chosen)
    return steps[kept], values[kept]


def short(value: float, *, digits: int = 4) -> str:
    """A number on an axis: 12k, 1.5M, 0.25, 0.0003."""
    for scale, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= scale:
            return f"{value / scale:.{digits}g}{unit}"
    return f"{value:.{digits}g}"


def tick_names(ticks: Sequence[float]) -> list[str]:
    """The numbers along an axis, with as many digits as each needs to stand where it says; tiny ones as 2.5e-4."""
    step = min((b - a for a, b in pairwise(ticks)), default=0.0)
    ticks = [0.0 if abs(tick) < step / 100 else tick for tick in ticks]
    digits = 4
    while digits < 15 and any(abs(float(f"{tick:.{digits}g}") - tick) > step / 100 for tick in ticks):
        digits += 1
    if 0 < max(map(abs, ticks), default=0.0) < 1e-3:
        powers = [math.floor(math.log10(abs(tick))) if tick else 0 for tick in ticks]
        parts = zip(ticks, powers, strict=True)
        return [f"{tick / 10.0**power:.{digits}g}" + (f"e{power}" if tick else "") for tick, power in parts]
    return [short(tick, digits=digits) for tick in ticks]


def draw_curves(*, records: list[dict[str, Any]], path: Path, title: str = "", peak_rate: float | None = None) -> None:
    """Draw train and held-out loss, over held-out metrics, learning rate and throughput, with marks of events.

    Args:
        records: the lines of metrics.jsonl.
        path: the PNG file; replaced as a whole.
        title: model and objective.
        peak_rate: the highest learning rate of the run, which a short one has not logged; None: not known.
    """
    import matplotlib
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    metrics = _metrics(records)
    lines = [record for record in records if "loss" in record]
    speed = not lines or any("tokens_per_second" in line for line in lines)  # other trainers do not count tokens
    with matplotlib.rc_context(_STYLE), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a letter of a title that the font has not
        figure = Figure(figsize=(11, 7), dpi=120)
        FigureCanvasAgg(figure)
        below = 1 + bool(metrics) + speed
        grid = figure.add_gridspec(
            2,
            below,
            height_ratios=(1.75, 1),
            left=0.06,
            right=0.955,
            top=0.87,
            bottom=0.075,
            hspace=0.3,
            wspace=0.24,
        )
        loss = figure.add_subplot(grid[0, :])
        others = [figure.add_subplot(grid[1, place]) for place in range(below)]
        _draw_loss(loss, records)
        if metrics:
            _draw_metrics(others[0], records, metrics)
        _draw_rate(others[bool(metrics)], records, peak_rate)
        if speed:
            _draw_speed(others[-1], records)
        for axes in (loss, *others):
            _number_steps(axes, records)
        _draw_events(loss, others, records)
        _name(figure, records, title)
        temporary = path.with_name(f".{path.name}.tmp")
        try:
            figure.savefig(temporary, format="png")
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)


def _metrics(records: list[dict[str, Any]]) -> list[str]:
    """Up to four held-out metrics beside the losses, which have an axis of their own: shares of one first."""
    names = list(dict.fromkeys(name for record in records for name in record if name.startswith("eval_")))
    shares = [name for name in names if "loss" not in name and "bits" not in name and "perplexity" not in name]
    return (shares or [name for name in names if "bits" in name])[:4]


def _draw_loss(axes: Any, records: list[dict[str, Any]]) -> None:
    steps, raw = series(records, "loss")
    smooth = smoothed(raw)
    if len(raw):
        if smooth is not raw:
            axes.plot(*thinned(steps, raw), color=SKY, linewidth=0.8, alpha=0.55)
        first = f" (from {_last(raw[np.isfinite(raw)][:1])})" if np.isfinite(raw).sum() > 1 else ""
        label = f"train {_last(smooth)}{first}"
        _line(axes, steps, smooth, color=BLUE, linewidth=2.0, label=label)
    at, held_out = series(records, "eval_loss")
    if len(held_out):
        best = f" (best {np.nanmin(held_out):.4g})" if np.isfinite(held_out).sum() > 1 else ""
        label = f"held out {_last(held_out)}{best}"
        _line(axes, at, held_out, color=VERMILION, linewidth=1.8, label=label, marker="o")
    axes.set_title("loss", loc="left", color=INK)
    _limit(axes, records)


def _limit(axes: Any, records: list[dict[str, Any]]) -> None:
    """A loss axis on which the run can be read: in a long one, neither single spikes nor the first steps decide it."""
    (steps, raw), (at, held_out) = series(records, "loss"), series(records, "eval_loss")
    if np.isfinite(raw).sum() < 100:
        return
    later = steps >= steps[0] + 0.02 * (steps[-1] - steps[0])
    usual = np.nanquantile(raw[later], [0.002, 0.995]) if np.isfinite(raw[later]).any() else raw
    shown = np.concatenate([smoothed(raw)[later], usual, held_out[at >= steps[later][0]]])
    low, high = float(np.nanmin(shown)), float(np.nanmax(shown))
    margin = 0.06 * (high - low) or 0.5
    axes.set_ylim(low - margin, high + margin)


def _draw_metrics(axes: Any, records: list[dict[str, Any]], metrics: list[str]) -> None:
    for colour, marker, name in zip((VERMILION, GREEN, PURPLE, ORANGE), "osD^", metrics, strict=False):
        steps, values = series(records, name)
        label = f"{name.removeprefix('eval_').replace('_', ' ')} {_last(values)}"
        _line(axes, steps, values, color=colour, linewidth=1.5, label=label, marker=marker)
    axes.set_title("held out", loc="left", color=INK)
    if any(len(series(records, name)[0]) for name in metrics):
        axes.margins(y=0.12)
        low, high = axes.get_ylim()
        axes.set_ylim(low, high + 0.17 * len(metrics) * (high - low))  # room for the legend
        axes.legend(loc="upper left", fontsize=8.5, handlelength=1.6, labelspacing=0.25, borderaxespad=0.2)


def _draw_rate(axes: Any, records: list[dict[str, Any]], peak: float | None) -> None:
    steps, values = series(records, "learning_rate")
    _line(axes, steps, values, color=INK, linewidth=1.5)
    axes.fill_between(*thinned(steps, values), color=INK, alpha=0.06, linewidth=0)
    text = f"  {_last(values, '{:.3g}'.format)}" if np.isfinite(values).any() else ""
    text += f" (peak {peak:.3g})" if text and peak is not None else ""
    axes.set_title("learning rate" + text, loc="left", color=INK)
    axes.set_ylim(0, _above(values))


def _draw_speed(axes: Any, records: list[dict[str, Any]]) -> None:
    steps, raw = series(records, "tokens_per_second")
    smooth = smoothed(raw)
    if smooth is not raw:
        axes.plot(*thinned(steps, raw), color=GREEN, linewidth=0.7, alpha=0.35)
    _line(axes, steps, smooth, color=GREEN, linewidth=1.6)
    text = "tokens per second" + (f"  {_last(smooth, lambda value: short(float(f'{value:.3g}')))}" if len(raw) else "")
    axes.set_ylim(0, _above(smooth if len(raw) >= 40 else raw))
    share = smoothed(series(records, "mfu")[1])
    if np.isfinite(share).any():  # but for lengths that change it has the shape of the line, and needs none of its own
        text += f", MFU {_last(share, lambda value: f'{value:.1%}')}"
    axes.set_title(text, loc="left", color=INK)


def _line(
    axes: Any, steps: NDArray[np.float64], values: NDArray[np.float64], *, marker: str = "", **style: Any
) -> None:
    """A line with its points shown where they are few, and where NaN on both sides would hide one."""
    steps, values = thinned(steps, values)
    if len(values) <= 30:
        style |= {"marker": marker or ".", "markersize": 4.5 if marker else 6}
    axes.plot(steps, values, clip_on=len(values) > 30, **style)


def _last(values: NDArray[np.float64], form: Any = None) -> str:
    finite = values[np.isfinite(values)]
    return (form or "{:.4g}".format)(float(finite[-1])) if len(finite) else "not finite"


def _above(values: NDArray[np.float64]) -> float:
    """The end of an axis that begins at 0."""
    finite = values[np.isfinite(values)]
    return 1.15 * float(finite.max()) if len(finite) and finite.max() > 0 else 1.0


def _number_steps(axes: Any, records: list[dict[str, Any]]) -> None:
    from matplotlib.ticker import MaxNLocator

    last = max((record["step"] for record in records if "event" not in record), default=1) or 1
    axes.set_xlim(0, last * 1.01)
    axes.xaxis.set_major_locator(MaxNLocator(nbins=6, integer=True))
    low, high = axes.get_ylim()
    if (lacking := 1e-4 * max(abs(low), abs(high)) - (high - low)) > 0:  # or numbers would need more digits than fit
        axes.set_ylim(low - lacking / 2, high + lacking / 2)
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(_named_by(axis))
    if not axes.lines or not any(len(line.get_xdata()) for line in axes.lines):
        axes.set_yticks([])  # nothing to read there yet
    axes.tick_params(length=0)
    axes.set_xlabel("step", loc="right", labelpad=1)


def _named_by(axis: Any) -> Callable[[float, int | None], str]:
    """What names a tick: how many digits it needs depends on the others."""

    def name(value: float, _: int | None) -> str:
        ticks = axis.get_majorticklocs().tolist()
        return tick_names(ticks)[ticks.index(value)] if value in ticks else short(value)

    return name


def _draw_events(loss: Any, others: list[Any], records: list[dict[str, Any]]) -> None:
    """Checkpoints and skipped steps at the foot of the loss, resumes across all."""
    at: dict[str, list[float]] = {}
    for record in records:
        if "event" in record:
            at.setdefault(record["event"], []).append(record["step"])
    at = {event: sorted(set(steps)) for event, steps in at.items()}
    if resumes := at.get("resume"):
        for axes in (loss, *others):
            axes.vlines(
                resumes, 0, 1, transform=axes.get_xaxis_transform(), color=PURPLE, linewidth=0.9, linestyle=(0, (4, 3))
            )
        _mark(loss, resumes, "resume", height=0.985, marker="v", color=PURPLE)
    if checkpoints := at.get("checkpoint"):
        _mark(loss, checkpoints, "checkpoint", height=0.022, marker="^", color=QUIET)
    if skipped := at.get("skipped"):
        _mark(loss, skipped, "skipped step", height=0.065, marker="x", color=INK)
    if spikes := at.get("spike"):
        _mark(loss, spikes, "spike", height=0.94, marker="*", color=ORANGE)
    if count := len(loss.get_legend_handles_labels()[0]):  # over the axes, where it hides nothing
        loss.legend(
            loc="lower right",
            bbox_to_anchor=(1.0, 1.0),
            ncols=count if count <= 4 else 3,
            fontsize=9,
            handlelength=1.6,
            columnspacing=1.6,
            labelspacing=0.3,
            borderpad=0,
            borderaxespad=0.6,
        )


def _mark(axes: Any, steps: list[float], name: str, *, height: float, marker: str, color: str) -> None:
    label = name if len(steps) == 1 else f"{name} ({len(steps):,})"
    # No more than find room beside each other.
    shown = sorted({round(step / max(steps[-1], 1) * 250): step for step in steps}.values())
    axes.plot(
        shown,
        [height] * len(shown),
        transform=axes.get_xaxis_transform(),
        linestyle="",
        marker=marker,
        markersize=5.5,
        color=color,
        clip_on=False,
        label=label,
        zorder=3,
    )


def _name(figure: Any, records: list[dict[str, Any]], title: str) -> None:
    """The title over a line with how far the run is."""
    newest: dict[str, Any] = {}
    for record in records:
        if "event" not in record:
            newest |= record
    parts = [f"step {newest['step']:,}"] if newest else []
    if "epoch" in newest:
        parts.append(f"{newest['epoch']:.3g} epochs")
    if isinstance(seconds := newest.get("seconds"), int | float) and math.isfinite(seconds):
        size, unit = next(
            pair for pair in ((86400, "days"), (3600, "h"), (60, "min"), (0, "")) if seconds >= 1.5 * pair[0]
        )
        parts.append(f"{seconds / size:.1f} {unit}" if size else f"{seconds:.0f} s")
    figure.text(
        0.06, 0.965, title or "training", fontsize=14, fontweight="bold", color=INK, va="center", parse_math=False
    )
    figure.text(0.06, 0.925, "  ·  ".join(parts), fontsize=9.5, color=QUIET, va="center")
