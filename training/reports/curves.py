"""curves.png: loss, held-out metrics, learning rate and speed of a run over its steps."""

import warnings
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tqdm import tqdm

from lacuna.common.files import replacing

# Okabe and Ito's colours, which people with any kind of colour blindness tell apart.
BLUE, VERMILION, GREEN, PURPLE, ORANGE, GREY = "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#767676"
_STYLE = {  # over a person's own matplotlibrc: usetex would start LaTeX for each label
    "text.usetex": False,
    "font.family": "DejaVu Sans",
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
}
_EVENTS = {"resume": ("v", PURPLE), "checkpoint": ("^", GREY), "skipped": ("x", "black"), "spike": ("*", ORANGE)}
"""Marker and colour."""

Values = NDArray[np.float64]
Records = list[dict[str, Any]]


def series(records: Records, name: str) -> tuple[Values, Values]:
    """Steps and values of a name, in order of steps; what is not finite is NaN, which leaves a gap in a line."""
    found = {each["step"]: each[name] for each in _lines(records) if isinstance(each.get(name), int | float)}
    table = np.array(sorted(found.items()), dtype=np.float64).reshape(-1, 2)
    return table[:, 0], np.where(np.isfinite(table[:, 1]), table[:, 1], np.nan)


def smoothed(values: Values) -> Values:
    """Means over a fortieth of the values to each side, less at the ends; NaN are left out, and stay."""
    half, place = len(values) // 40, np.arange(len(values))
    half_here = np.minimum(half, np.minimum(place, place[::-1]))
    sums, counts = (np.concatenate([[0.0], np.cumsum(part)]) for part in (np.nan_to_num(values), np.isfinite(values)))
    first, end = place - half_here, place + half_here + 1
    means = (sums[end] - sums[first]) / np.maximum(counts[end] - counts[first], 1)
    return np.where(np.isfinite(values), means, np.nan)


def draw_curves(
    *, records: Records, path: Path, title: str = "", metric: str = "", results: dict[str, Any] | None = None
) -> None:
    """Draw the lines of metrics.jsonl, with marks where checkpoints were written, steps skipped and runs resumed.

    The PNG file is replaced as a whole. `metric`: the held-out one that judges the model, which is drawn first and
    with its baseline; `results`: of a run that has ended, its baselines and the step whose weights are kept. Raises
    StorageError: the file cannot be written.
    """
    results = results or {}
    from matplotlib import style
    from matplotlib.figure import Figure

    # Up to four held-out metrics beside the losses, which have an axis of their own: shares of one first.
    names = list(dict.fromkeys(name for record in records for name in record if name.startswith("eval_")))
    shares = [name for name in names if not any(unit in name for unit in ("loss", "bits", "perplexity"))]
    shares.sort(key=lambda name: name != f"eval_{metric}")  # what judges is first
    lines = {tuple(series(records, name)[1]): name for name in reversed(shares)}  # of equal ones the first
    shares = [name for name in shares if name in lines.values()]
    metrics = (shares or [name for name in names if "bits" in name])[:4]
    below = {"held out": metrics, "learning rate": ["learning_rate"], "tokens per second": ["tokens_per_second"]}
    below = {name: shown for name, shown in below.items() if any(len(series(records, each)[0]) for each in shown)}
    newest = {name: value for record in _lines(records) for name, value in record.items()}
    facts = [f"step {newest.get('step', 0):,}"]
    facts += [f"{newest['epoch']:.3g} epochs"] if "epoch" in newest else []
    facts += [tqdm.format_interval(newest["seconds"])] if "seconds" in newest else []
    with style.context(["seaborn-v0_8-whitegrid", _STYLE]), warnings.catch_warnings(), replacing(path) as temporary:
        warnings.simplefilter("ignore")  # a letter of a title that the font has not
        figure = Figure(figsize=(11, 7), dpi=120, layout="constrained")
        panels = figure.subplot_mosaic([["loss"] * max(len(below), 1), [*below]] if below else [["loss"]])
        _draw_loss(panels["loss"], records)
        for name, shown in below.items():
            for color, each in zip((VERMILION, GREEN, PURPLE, ORANGE), shown, strict=False):
                _plot(panels[name], records, each, label=each.removeprefix("eval_"), color=color)
                guess = results.get(each.replace("eval_", "baseline_", 1))
                if each != shown[0] and guess is not None:  # as of probes; that of the first is named in the legend
                    panels[name].axhline(guess, color=color, linestyle="--", linewidth=1.2)
            panels[name].set_title(name)
            if name == "held out":
                _draw_baselines(panels[name], results, shown[0].removeprefix("eval_"))
            panels[name].legend(fontsize=8.5)
        if results.get("best_step", -1) >= 0:
            for axes in [panels["loss"], *([panels["held out"]] if metrics else [])]:
                axes.axvline(results["best_step"], color=GREY, linestyle=":", label="kept")
            panels["loss"].legend(loc="upper right")
        for axes in panels.values():
            axes.set_xlabel("step")
            axes.set_xlim(0, 1.01 * newest.get("step", 1) or 1)
        figure.suptitle("  ·  ".join([title or "training", *facts]), parse_math=False)
        figure.savefig(temporary, format="png")


def _lines(records: Records) -> Records:
    return [record for record in records if "event" not in record]


def _plot(axes: Any, records: Records, name: str, *, label: str, color: str) -> Values:
    """A line with the last value in its label, over the single values where it is a mean; returns its points."""
    steps, raw = series(records, name)
    values = smoothed(raw)
    if len(values) >= 40:
        axes.plot(steps, raw, color=color, linewidth=0.8, alpha=0.3)
    finite = values[np.isfinite(values)]
    last = f"{finite[-1]:.4g}" if len(finite) else "not finite"
    if name == "tokens_per_second" and len(finite):  # the last interval says little of the run
        label, last = "median", f"{np.median(finite):,.0f}"
    if len(values):
        axes.plot(steps, values, color=color, marker="o" if len(values) <= 30 else "", label=f"{label} {last}")
    return values


def _draw_baselines(axes: Any, results: dict[str, Any], metric: str) -> None:
    """Lines for what is reached without a model."""
    for part, what, style in (("baseline", "without a model", "--"), ("words", "bag of words", "-.")):
        if isinstance(value := results.get(f"{part}_{metric}"), int | float):
            axes.axhline(value, color=GREY, linestyle=style, linewidth=1.2, label=f"{what} {value:.4g}")


def _draw_loss(axes: Any, records: Records) -> None:
    train = _plot(axes, records, "loss", label="train", color=BLUE)
    held_out = _plot(axes, records, "eval_loss", label="held out", color=VERMILION)
    later = train[len(train) // 50 :]
    if np.isfinite(later).sum() >= 100:  # neither single spikes nor the first steps of a long run decide the axis
        shown = np.concatenate([later, held_out[len(held_out) // 50 :]])
        low, high = np.nanmin(shown), np.nanmax(shown)
        axes.set_ylim(low - 0.1 * (high - low) - 1e-9, high + 0.1 * (high - low) + 1e-9)
    for event, (marker, color) in _EVENTS.items():
        if steps := sorted({record["step"] for record in records if record.get("event") == event}):
            place = {"transform": axes.get_xaxis_transform(), "clip_on": False, "linestyle": ""}
            label = f"{event} ({len(steps):,})"
            axes.plot(steps, [0.02] * len(steps), marker=marker, color=color, label=label, **place)
    axes.set_title("loss")
    if axes.get_legend_handles_labels()[0]:
        axes.legend(loc="upper right")
