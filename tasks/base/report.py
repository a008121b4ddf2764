"""What fine-tuning writes for people beside the model: predictions, report.md with tables and pictures, task.json."""

import json
import math
import os
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from sklearn.metrics import confusion_matrix, precision_recall_fscore_support

from lacuna.common.errors import StorageError
from lacuna.common.work import BESIDE
from lacuna.tasks.base.rows import write_rows

if TYPE_CHECKING:
    from lacuna.tasks.base.task import Task

MOST_MISTAKES = 20
MOST_LABELS = 60  # labels that a picture shows
_WIDEST_MATRIX = 12  # labels that a matrix in text has room for
_MOST_CONFUSIONS = 20
_LONGEST_TEXT, _LONGEST_NAME = 300, 28
_ESCAPES = str.maketrans({"\\": "\\\\", "|": "\\|", "<": "&lt;", "*": "\\*"})
_STYLE = {"text.usetex": False, "font.family": "DejaVu Sans", "font.size": 9.0, "savefig.facecolor": "white"}


def write_results(task: "Task", results: Mapping[str, float], output_dir: Path | str) -> None:
    """Write predictions.jsonl, report.md, its picture and task.json, all or none, and print their names and warnings.

    `results` is the content of results.json; the `records` of the task are those of the model in the folder.
    StorageError: the folder cannot be written.
    """
    with all_or_none(Path(output_dir), what="report") as hidden:
        predictions, tables = task.predictions(), task.tables()
        write_rows(rows=predictions, path=hidden / "predictions.jsonl")
        notes = ["- " + " ".join(note.split()).replace("<", "&lt;") for note in task.notes]
        lines = [f"# {task.name.replace('_', ' ').capitalize()}: what was learned", "", *notes, ""]
        lines += ["## Result", "", *_scores(task, results), ""]
        lines += [line for remark in remarks(task, results) for line in (remark, "")]
        pictures: list[str] = []
        for heading, shown in tables.items():
            lines += [f"## {heading}", ""]
            lines += [] if isinstance(shown, Points) else [*shown.text(), ""]
            if not isinstance(shown, Table):
                draw(shown, heading=heading, path=hidden / shown.picture)
                pictures.append(shown.picture)
                lines += [f"![{heading}]({shown.picture})", ""]
        lines += _mistakes(task, predictions)
        text = "\n".join(lines).rstrip() + "\n"
        (hidden / "report.md").write_text(text, encoding="utf-8", errors="backslashreplace")
        more = task.keep(results, hidden)
        settings = {"name": task.name, **task.settings()}
        (hidden / "task.json").write_text(json.dumps(settings, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    names = ["report.md", "predictions.jsonl", *pictures, "task.json", *more]
    said = [remark for remark in remarks(task, results) if remark.startswith("warning")]
    print("\n".join([*said, f"{', '.join(names)} are in {output_dir}"]), flush=True)


@contextmanager
def all_or_none(folder: Path, *, what: str) -> Iterator[Path]:
    """A hidden folder, whose content goes to `--output_dir` at the end; StorageError where it cannot be written."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(prefix=f".{what}.", dir=folder) as hidden:
            yield Path(hidden)
            for path in sorted(Path(hidden).iterdir()):
                os.replace(path, folder / path.name)
    except OSError as error:
        raise StorageError(
            f"--output_dir {folder}: the {what} cannot be written: {error.strerror or error}"
        ) from error


def remarks(task: "Task", results: Mapping[str, float]) -> list[str]:
    """What must be known beside the scores, a sentence each: that training made the model worse, or ended early."""
    found = []
    end, start = (float(results.get(f"{part}_{task.metric}", math.nan)) for part in ("eval", "start"))
    if (start > end) if task.greater_is_better else (start < end):
        found.append(f"warning: worse than before training ({task.metric} {number(end)}, before {number(start)})")
    if results.get("stopped_early"):
        of_all = f" of {results['planned_steps']:,}" if results.get("planned_steps") else ""
        found.append(f"training ended early, after step {results['steps']:,}{of_all} (--early_stopping_patience)")
    return found


def _scores(task: "Task", results: Mapping[str, float]) -> list[str]:
    """A table of all scores, the one that judges the model first, beside what they are compared with."""
    names = [name.removeprefix("eval_") for name in results if name.startswith("eval_")]
    if not names:
        return ["nothing was held out, so nothing is known of how good the model is"]
    names.sort(key=lambda name: name != task.metric)
    measured = {name.split("_")[0] for name in results}
    columns = {"eval": "this model", **{part: what for part, what in BESIDE.items() if part in measured}}
    values = {name: float(value) for name, value in results.items() if name.split("_")[0] in columns}
    lines = [[name, *(values.get(f"{part}_{name}") for part in columns)] for name in names]
    table = markdown_table(["metric", *columns.values()], lines)
    return [f"On {task.num_judged:,} held-out examples:", "", *table]


def _mistakes(task: "Task", predictions: Sequence[Mapping[str, Any]]) -> list[str]:
    """The mistakes that the model is surest of, a block of lines each."""
    if not (found := task.mistakes(predictions)[:MOST_MISTAKES]):
        return ["## Mistakes", "", "There are none."] if predictions else []
    note = [task.probability_note, ""] if task.probability_note else []
    lines = [f"## {task.mistakes_heading.format(count=len(found))}", "", *note, "````text"]
    for place, prediction in enumerate(found, start=1):
        for order, (name, value) in enumerate(item for item in prediction.items() if item[0] != "correct"):
            mark = f"{place:>3}. " if order == 0 else " " * 5
            lines.append(f"{mark}{name}: {_shown(name, value, prediction)}")
        lines.append("")
    lines[-1] = "````"
    return lines


def _shown(name: str, value: Any, prediction: Mapping[str, Any]) -> str:
    """A value in a line; a long text is cut, a context to what stands around the prediction."""
    if isinstance(value, str):
        start = prediction.get("start") if name == "context" else 0
        first = max(0, min((start or 0) - _LONGEST_TEXT // 3, len(value) - _LONGEST_TEXT))
        cut = " ".join(value[first : first + _LONGEST_TEXT].split())
        return ("…" if first else "") + cut + ("…" if first + _LONGEST_TEXT < len(value) else "")
    if isinstance(value, float):
        return number(value)
    whole = json.dumps(value, ensure_ascii=False)
    return whole if len(whole) <= _LONGEST_TEXT else whole[:_LONGEST_TEXT] + "…"


# What a report shows beside scores


def number(value: object) -> str:
    """A cell as text: four digits of a fraction, thousands of a count apart."""
    if isinstance(value, bool) or value is None:
        return "" if value is None else str(value)
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def markdown_table(columns: Sequence[str], rows: Sequence[Sequence[object]]) -> list[str]:
    """Lines of a table; the first column is text, the others stand to the right."""
    lines = [[str(column) for column in columns], ["---", *["---:"] * (len(columns) - 1)]]
    lines += [[number(cell) for cell in row] for row in rows]
    escaped = ((" ".join(cell.split()).translate(_ESCAPES) for cell in line) for line in lines)
    return [f"| {' | '.join(line)} |" for line in escaped]


@dataclass(frozen=True, slots=True)
class Matrix:
    """How often each label was taken for each."""

    labels: Sequence[str]
    counts: Sequence[Sequence[int]]  # [gold label, predicted label]
    picture: ClassVar[str] = "confusion.png"

    def text(self) -> list[str]:
        """The whole matrix, or the most frequent confusions where it would be too wide."""
        lines = [[gold, *counts] for gold, counts in zip(self.labels, self.counts, strict=True)]
        if len(lines) <= _WIDEST_MATRIX:
            return markdown_table(["gold \\ predicted", *self.labels], lines)
        counts = np.asarray(self.counts)
        pairs = [(self.labels[i], self.labels[j], int(counts[i, j])) for i, j in np.argwhere(counts) if i != j]
        shown = sorted(pairs, key=lambda pair: -pair[2])[:_MOST_CONFUSIONS]
        table = markdown_table(["gold", "predicted", "times"], shown)
        return [f"The {len(shown)} most frequent confusions:", "", *table]

    def draw(self, axes: Any) -> None:
        """The most frequent labels; cells are coloured by their share of the row, the examples that have the label."""
        counts = np.asarray(self.counts, dtype=np.float64)
        kept = np.sort(np.argsort(-counts.sum(axis=1), kind="stable")[:MOST_LABELS])
        counts = counts[np.ix_(kept, kept)]
        share = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
        size = len(counts)
        cell = min(1.0, max(0.27, 3.6 / size + 0.2))  # inches
        axes.figure.set_size_inches(cell * size + 0.6, cell * size)
        image = axes.imshow(share, cmap="Blues", vmin=0, vmax=1)
        for gold, predicted in np.argwhere(counts):
            count = counts[gold, predicted]
            said = f"{count:.0f}" if count < 1000 else f"{count / 1000:.3g}k"
            ink = "white" if share[gold, predicted] > 0.55 else "#222222"
            axes.text(predicted, gold, said, ha="center", va="center", color=ink, fontsize=min(9.0, 22 * cell))
        whole, letters = [" ".join(self.labels[label].split()) for label in kept], min(9.0, 40 * cell)
        names = [label if len(label) <= _LONGEST_NAME else label[: _LONGEST_NAME - 1] + "…" for label in whole]
        steep = size > 12 or max(map(len, names)) > 8
        axes.set_xticks(range(size), names, rotation=90 if steep else 0, fontsize=letters, parse_math=False)
        axes.set_yticks(range(size), names, fontsize=letters, parse_math=False)
        axes.set(xlabel="predicted", ylabel="gold")
        axes.figure.colorbar(image, ax=axes, fraction=0.3 / (cell * size + 0.6), pad=0.02, label="share of the row")


@dataclass(frozen=True, slots=True)
class Table:
    """A line for each label, type or kind, which the first of the columns names."""

    columns: Sequence[str]
    rows: Sequence[Sequence[object]]

    def text(self) -> list[str]:
        """The table, or that nothing is in it."""
        return markdown_table(self.columns, self.rows) if self.rows else ["There are none."]


@dataclass(frozen=True, slots=True)
class Points:
    """Predicted numbers over the right ones, which only a picture shows."""

    gold: Sequence[float]
    predicted: Sequence[float]
    scales: tuple[str, str] | None = None
    """What both measure, where they have no scale in common and only their order is compared: a score, a cosine."""
    picture: ClassVar[str] = "scatter.png"

    def draw(self, axes: Any) -> None:
        """A point for each example, and the line on which all would be right; none where two scales are compared."""
        axes.figure.set_size_inches(5.5, 5.5)
        across, up, (beside, below) = self.gold, self.predicted, ("predicted", "gold")
        if self.scales:
            across, up, (beside, below) = self.predicted, self.gold, self.scales
        axes.scatter(across, up, s=9, alpha=0.45, color="#0072B2", edgecolors="none")
        if self.scales is None:
            ends = [min(*across, *up), max(*across, *up)]
            axes.plot(ends, ends, color="#999999", linewidth=0.9)
        axes.set(xlabel=below, ylabel=beside)
        axes.grid(color="#e4e4e4", linewidth=0.6)


Shown = Matrix | Table | Points


def by_label(names: Sequence[str], gold: Any, predicted: Any) -> Table:
    """Scores of each label, from numbers of labels [rows] or zeros and ones [rows, labels]."""
    scores = precision_recall_fscore_support(gold, predicted, labels=range(len(names)), zero_division=0)
    rows = zip(names, *(values.tolist() for values in scores), strict=True)
    return Table(("label", "precision", "recall", "f1", "examples"), [list(row) for row in rows])


def label_tables(names: Sequence[str], gold: Sequence[int], predicted: Sequence[int]) -> dict[str, Shown]:
    """What was taken for what, and the scores of each label, from numbers of labels [rows]."""
    counts = confusion_matrix(gold, predicted, labels=range(len(names))).tolist()
    return {"Confusion matrix": Matrix(names, counts), "By label": by_label(names, gold, predicted)}


def draw(shown: Matrix | Points, *, heading: str, path: Path) -> None:
    import matplotlib
    from matplotlib.figure import Figure

    with matplotlib.rc_context(_STYLE), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a letter of a label that the font has not
        figure = Figure(dpi=120)
        axes = figure.add_axes((0, 0, 1, 1))
        axes.set_axisbelow(True)
        axes.spines[["top", "right"]].set_visible(False)
        shown.draw(axes)
        axes.set_title(heading, loc="left", parse_math=False)
        figure.savefig(path, format="png", bbox_inches="tight", pad_inches=0.15)
