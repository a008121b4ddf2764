"""What a report shows beside scores: matrices of confusion, tables and clouds of points, with their text."""

from collections.abc import Sequence
from dataclasses import dataclass

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
