"""What a report shows beside scores: matrices of confusion, tables and clouds of points, with their text."""

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

_WIDEST_MATRIX = 12  # labels that a matrix in text has room for
_MOST_CONFUSIONS = 20


def number(value: object) -> str:
    """A cell as text: four digits of a fraction, thousands of a count apart."""
    if isinstance(value, bool) or value is None:
        return "" if value is None else str(value)
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def groups(values: Sequence[float], *, most: int = 5) -> list[tuple[str, list[int]]]:
    """Numbers in up to `most` parts of about as many each, from the smallest on; equal ones are never parted.

    Returns:
        The name of each part ("10", "11 to 13") and the places of its numbers.
    """
    places: dict[float, list[int]] = {}
    for place, value in enumerate(values):
        places.setdefault(float(f"{value:.9g}"), []).append(place)
    parts: dict[int, list[float]] = {}
    before = 0
    for value in sorted(places):
        middle = 2 * before + len(places[value])
        parts.setdefault(most * middle // (2 * len(values)), []).append(value)
        before += len(places[value])
    ends = {value for part in parts.values() for value in (part[0], part[-1])}
    digits = next(n for n in range(4, 10) if n == 9 or len({f"{end:.{n}g}" for end in ends}) == len(ends))
    names = {end: f"{end:.{digits}g}" if end % 1 or abs(end) >= 1e9 else number(int(end)) for end in ends}
    return [
        (
            names[part[0]] if len(part) == 1 else f"{names[part[0]]} to {names[part[-1]]}",
            [place for value in part for place in places[value]],
        )
        for part in parts.values()
    ]


def markdown_table(columns: Sequence[str], rows: Sequence[Sequence[object]]) -> list[str]:
    """Lines of a table; the first column is text, the others stand to the right."""
    lines = [[str(column) for column in columns], ["---", *["---:"] * (len(columns) - 1)]]
    lines += [[number(cell) for cell in row] for row in rows]
    return ["| " + " | ".join(_escaped(cell) for cell in line) + " |" for line in lines]


def _escaped(cell: str) -> str:
    return " ".join(cell.split()).replace("\\", "\\\\").replace("|", "\\|").replace("<", "&lt;").replace("*", "\\*")


@dataclass(frozen=True, slots=True)
class Matrix:
    """How often each label was taken for each: drawn as confusion.png."""

    labels: Sequence[str]
    counts: Sequence[Sequence[int]]
    """[gold label, predicted label]."""

    def text(self) -> list[str]:
        """The whole matrix, or the most frequent confusions where it would be too wide."""
        if len(self.labels) <= _WIDEST_MATRIX:
            rows = [[label, *map(int, row)] for label, row in zip(self.labels, self.counts, strict=True)]
            return markdown_table(["gold \\ predicted", *self.labels], rows)
        pairs = [
            (gold, predicted, int(count))
            for gold, row in zip(self.labels, self.counts, strict=True)
            for predicted, count in zip(self.labels, row, strict=True)
            if count and gold != predicted
        ]
        shown = sorted(pairs, key=lambda pair: -pair[2])[:_MOST_CONFUSIONS]
        table = markdown_table(["gold", "predicted", "times"], shown)
        return [f"The {len(shown)} most frequent confusions:", "", *table]

    def reduced(self, most: int) -> "Matrix":
        """The same with no more than `most` labels: the most frequent ones, and all others as one."""
        if len(self.labels) <= most:
            return self
        totals = [sum(row) for row in self.counts]
        kept = sorted(sorted(range(len(totals)), key=lambda label: -totals[label])[: most - 1])
        others = sorted(set(range(len(totals))) - set(kept))
        groups = [[label] for label in kept] + [others]
        counts = [[sum(self.counts[i][j] for i in gold for j in said) for said in groups] for gold in groups]
        return Matrix([*(self.labels[label] for label in kept), f"{len(others)} others"], counts)


@dataclass(frozen=True, slots=True)
class Table:
    """A row for each label, type or kind; with `bars` it is drawn too, as per-type.png."""

    columns: Sequence[str]
    """The first names the rows."""
    rows: Sequence[Sequence[object]]
    bars: Sequence[str] = ()
    """Columns of numbers that are drawn."""
    highest: float = 1.0
    """What the best of them would be: 1 for shares, 100 for scores out of 100."""

    def text(self) -> list[str]:
        """The table, or that nothing is in it."""
        return markdown_table(self.columns, self.rows) if self.rows else ["There are none."]


@dataclass(frozen=True, slots=True)
class Points:
    """Predicted numbers over the right ones: drawn as scatter.png."""

    gold: Sequence[float]
    predicted: Sequence[float]
    scales: tuple[str, str] | None = None
    """What both measure, where they have no scale in common and only their order is compared: a score, a cosine."""

    def text(self) -> list[str]:
        """Means by fifths of the right numbers; beside them mean distances, or quartiles where scales differ."""
        right, guess = self.scales or ("gold", "prediction")
        further = ["lower quartile", "upper quartile"] if self.scales else ["mean distance"]
        rows: list[list[object]] = []
        for name, part in groups(self.gold):
            gold, said = [self.gold[row] for row in part], [self.predicted[row] for row in part]
            off = sum(abs(a - b) for a, b in zip(gold, said, strict=True)) / len(part)
            spread = np.quantile(said, (0.25, 0.75)).tolist() if self.scales else [off]
            rows.append([name, len(part), sum(gold) / len(part), sum(said) / len(part), *spread])
        return markdown_table([right, "examples", f"mean {right}", f"mean {guess}", *further], rows)


BLUE, VERMILION, GREEN = "#0072B2", "#D55E00", "#009E73"  # Okabe and Ito's, which the colour-blind tell apart
MOST_LABELS = 60
_LONGEST_NAME = 28
_STYLE = {"text.usetex": False, "font.family": "DejaVu Sans", "font.size": 9.0, "savefig.facecolor": "white"}


def draw(shown: Matrix | Table | Points, *, heading: str, path: Path) -> None:
    """Write a picture as a PNG file."""
    import matplotlib
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    drawers: dict[type, Callable[[Any, Any, str], None]] = {
        Matrix: _draw_matrix,
        Table: _draw_bars,
        Points: _draw_points,
    }
    with matplotlib.rc_context(_STYLE), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a letter of a label that the font has not
        figure = Figure(dpi=120)
        FigureCanvasAgg(figure)
        drawers[type(shown)](figure, shown, heading)
        figure.savefig(path, format="png", bbox_inches="tight", pad_inches=0.15)


def _name(label: str) -> str:
    label = " ".join(label.split())
    return label if len(label) <= _LONGEST_NAME else label[: _LONGEST_NAME - 1] + "…"


def _short(count: float) -> str:
    """A count in at most four characters."""
    for scale, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if count >= scale:
            return f"{count / scale:.1f}{unit}" if count < 10 * scale else f"{count / scale:.0f}{unit}"
    return f"{count:.0f}"


def _draw_matrix(figure: Any, whole: Matrix, heading: str) -> None:
    """Cells are coloured by their share of the row, that is, of the examples that have the label."""
    matrix = whole.reduced(MOST_LABELS)
    counts = np.asarray(matrix.counts, dtype=np.float64)
    share = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    size = len(counts)
    cell = min(1.0, max(0.27, 3.6 / size + 0.2))  # inches
    figure.set_size_inches(cell * size + 0.6, cell * size)
    axes = figure.add_axes((0, 0, 1, 1))
    image = axes.imshow(share, cmap="Blues", vmin=0, vmax=1, aspect="equal")
    digits = min(9.0, 72 * cell * 0.31)
    for row, column in zip(*np.nonzero(counts), strict=True):
        ink = "white" if share[row, column] > 0.55 else "#222222"
        said = _short(counts[row, column])
        axes.text(column, row, said, ha="center", va="center", color=ink, fontsize=digits)
    names = [_name(label) for label in matrix.labels]
    steep = size > 12 or max(map(len, names)) > 8
    letters = min(9.0, 72 * cell * 0.55)
    axes.set_xticks(range(size), names, rotation=90 if steep else 0, fontsize=letters, parse_math=False)
    axes.set_yticks(range(size), names, fontsize=letters, parse_math=False)
    axes.set_xticks(np.arange(size + 1) - 0.5, minor=True)
    axes.set_yticks(np.arange(size + 1) - 0.5, minor=True)
    axes.grid(which="minor", color="#e8e8e8", linewidth=0.5)
    axes.tick_params(which="both", length=0)
    for spine in axes.spines.values():
        spine.set_visible(False)
    axes.set_xlabel("predicted")
    axes.set_ylabel("gold")
    axes.set_title(heading, loc="left", parse_math=False)
    figure.colorbar(image, ax=axes, fraction=0.3 / (cell * size + 0.6), pad=0.02, label="share of the row")


def _cell(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) else None


def _draw_bars(figure: Any, table: Table, heading: str) -> None:
    """A group of bars for each row, from the first row at the top, with their numbers."""
    rows = table.rows[:MOST_LABELS]
    names = [_name(str(row[0])) for row in rows]
    width = 0.8 / max(len(table.bars), 1)
    figure.set_size_inches(7.5, 0.5 + len(rows) * max(0.24, 0.14 * len(table.bars) + 0.08))
    axes = figure.add_axes((0, 0, 1, 1))
    places = np.arange(len(rows))
    found = [[_cell(row[list(table.columns).index(column)]) for row in rows] for column in table.bars]
    colours = (BLUE, VERMILION, GREEN, "#999999")
    for position, (column, values, colour) in enumerate(zip(table.bars, found, colours, strict=False)):
        at = places + (position - (len(table.bars) - 1) / 2) * width
        axes.barh(at, [value or 0.0 for value in values], height=0.92 * width, color=colour, label=column)
        for place, value in zip(at, values, strict=True):
            if value is not None:  # also 0, which would be no bar at all
                said = f" {value:.1f}" if table.highest > 1 else f" {value:.2f}"
                axes.text(value, place, said, va="center", fontsize=8 if len(table.bars) == 1 else 6.5)
    axes.set_yticks(places, names, parse_math=False)
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.set_xlim(0, 1.07 * table.highest)  # with room for the number of the longest bar
    axes.set_xticks(np.linspace(0, table.highest, 6))
    axes.tick_params(axis="y", length=0)
    axes.grid(axis="x", color="#dddddd", linewidth=0.6)
    axes.set_axisbelow(True)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.set_title(heading, loc="left", parse_math=False)
    axes.legend(loc="upper left", bbox_to_anchor=(1.01, 1.0), frameon=False)


def _draw_points(figure: Any, points: Points, heading: str) -> None:
    """A point for each example, and the line on which all would be right; none where two scales are compared."""
    figure.set_size_inches(5.5, 5.5)
    axes = figure.add_axes((0, 0, 1, 1))
    right, said = points.scales or ("gold", "predicted")
    sides = [(points.gold, right), (points.predicted, said)]
    (across, below), (up, beside) = sides[::-1] if points.scales else sides
    axes.scatter(across, up, s=9, alpha=0.45, color=BLUE, edgecolors="none")
    if points.scales is None:
        both = [*points.gold, *points.predicted] or [0.0]
        axes.plot([min(both), max(both)], [min(both), max(both)], color="#999999", linewidth=0.9)
    axes.set_xlabel(below)
    axes.set_ylabel(beside)
    axes.grid(color="#e4e4e4", linewidth=0.6)
    axes.set_axisbelow(True)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    axes.set_title(heading, loc="left", parse_math=False)
