"""What fine-tuning leaves for people beside the model: predictions, a report, its pictures, and task.json."""

import json
import math
import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from lacuna.common.errors import StorageError
from lacuna.tasks.base.rows import write_rows
from lacuna.tasks.base.task import Task
from lacuna.tasks.report.tables import Matrix, Points, Table, draw, markdown_table, number

MOST_MISTAKES = 20
_LONGEST_TEXT = 300
_BESIDE = {"start": "before training", "baseline": "without a model"}
"""What scores are compared with, by the first part of its name in results.json."""
_PICTURES: dict[type, str] = {Matrix: "confusion.png", Table: "per-type.png", Points: "scatter.png"}


def write_results(task: Task, results: Mapping[str, float], output_dir: Path | str) -> None:
    """Write what became of the held-out examples, and print which files tell of it, after what there is to warn of.

    The folder receives predictions.jsonl (an object for each example), report.md (scores beside the baseline, tables,
    the most confident mistakes), confusion.png, per-type.png or scatter.png, and task.json (what must be known to use
    the model on new rows). They appear when all of them are complete.

    Args:
        task: the task whose `records` are those of the model in the folder.
        results: the content of results.json, `eval_NAME`, `baseline_NAME` and perhaps `start_NAME` among it.
        output_dir: the folder of the model.

    Raises:
        StorageError: the folder cannot be written; none of the files is then there, or each is the one from before.
    """
    folder = Path(output_dir)
    hidden = folder / f".report.{os.getpid()}"
    try:
        hidden.mkdir(parents=True, exist_ok=True)
        names = _write_all(task, results, hidden)
        for name in names:
            os.replace(hidden / name, folder / name)
    except OSError as error:
        raise StorageError(
            f"--output_dir {folder}: the report cannot be written: {error.strerror or error}"
        ) from error
    finally:
        shutil.rmtree(hidden, ignore_errors=True)
    warnings = [remark for remark in remarks(task, results) if remark.startswith("warning")]
    print("\n".join([*warnings, f"{', '.join(names)} are in {folder}"]), flush=True)


def _write_all(task: Task, results: Mapping[str, float], folder: Path) -> list[str]:
    """Write the files into a folder; their names, report.md first."""
    predictions, tables = task.predictions(), task.tables()
    write_rows(rows=predictions, path=folder / "predictions.jsonl")
    pictures: dict[str, str] = {}
    for heading, shown in tables.items():
        name = _PICTURES[type(shown)]
        if name not in pictures.values() and not (isinstance(shown, Table) and not (shown.bars and shown.rows)):
            draw(shown, heading=heading, path=folder / name)
            pictures[heading] = name
    lines = [f"# {task.name.replace('_', ' ').capitalize()}: what was learned", "", *map(_as_item, task.notes), ""]
    lines += ["## Result", "", headline(task, results), "", *_scores(task, results), ""]
    lines += [line for remark in remarks(task, results) for line in (remark, "")]
    for heading, shown in tables.items():
        picture = ["", f"![{heading}]({pictures[heading]})"] if heading in pictures else []
        lines += [f"## {heading}", "", *shown.text(), *picture, ""]
    lines += _mistakes(task, predictions)
    (folder / "report.md").write_text("\n".join(lines).rstrip() + "\n", encoding="utf-8", errors="backslashreplace")
    settings = {"name": task.name, **task.settings()}
    (folder / "task.json").write_text(json.dumps(settings, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    return ["report.md", "predictions.jsonl", *pictures.values(), "task.json"]


def _as_item(note: str) -> str:
    return "- " + " ".join(note.split()).replace("<", "&lt;")


def headline(task: Task, results: Mapping[str, float]) -> str:
    """The score that judges the model in a line, beside those before training, if measured, and without a model."""
    score = results.get(f"eval_{task.metric}")
    if score is None:
        return "nothing was held out, so nothing is known of how good the model is"
    others = [(what, results.get(f"{part}_{task.metric}")) for part, what in _BESIDE.items()]
    beside = "".join(f"; {what}: {number(float(value))}" for what, value in others if value is not None)
    return f"{task.metric} {number(float(score))} on {task.num_judged:,} held-out examples{beside}"


def remarks(task: Task, results: Mapping[str, float]) -> list[str]:
    """What must be known beside the scores, a sentence each: that training made the model worse, or ended early."""
    found = []
    end, start = (float(results.get(f"{part}_{task.metric}", math.nan)) for part in ("eval", "start"))
    if (start > end) if task.greater_is_better else (start < end):
        found.append(f"warning: worse than before training ({task.metric} {number(end)}, before {number(start)})")
    if results.get("stopped_early"):
        planned = results.get("planned_steps")
        of_all = f" of {planned:,}" if planned else ""
        found.append(f"training ended early, after step {results['steps']:,}{of_all} (--early_stopping_patience)")
    return found


def _scores(task: Task, results: Mapping[str, float]) -> list[str]:
    names = [name.removeprefix("eval_") for name in results if name.startswith("eval_")]
    names.sort(key=lambda name: name != task.metric)  # the one that judges comes first
    measured = {name.split("_")[0] for name in results}
    columns = {"eval": "this model", **{part: what for part, what in _BESIDE.items() if part in measured}}
    values = {name: float(value) for name, value in results.items() if name.split("_")[0] in columns}
    rows = [[name, *(values.get(f"{part}_{name}") for part in columns)] for name in names]
    return markdown_table(["metric", *columns.values()], rows) if rows else []


def _mistakes(task: Task, predictions: Sequence[Mapping[str, Any]]) -> list[str]:
    """The mistakes that the model is surest of, a block of lines each."""
    found = task.mistakes(predictions)[:MOST_MISTAKES]
    if not found:
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
        text, start = value, prediction.get("start") if name == "context" else 0
        first = max(0, min((start or 0) - _LONGEST_TEXT // 3, len(text) - _LONGEST_TEXT))
        cut = " ".join(text[first : first + _LONGEST_TEXT].split())
        return ("…" if first else "") + cut + ("…" if first + _LONGEST_TEXT < len(text) else "")
    if isinstance(value, float):
        return number(value) if math.isfinite(value) else str(value)
    whole = json.dumps(value, ensure_ascii=False)
    return whole if len(whole) <= _LONGEST_TEXT else whole[:_LONGEST_TEXT] + "…"
