"""A page on a run, or on several side by side, in one file that needs no network."""

import html
import io
import json
import sys
from base64 import b64encode
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path
from typing import Any

from lacuna.common.errors import InputError
from lacuna.common.files import json_lines, write_text
from lacuna.common.foreign import read_json
from lacuna.common.options import Arguments, essential
from lacuna.common.work import BESIDE

from .curves import BLUE, GREEN, ORANGE, PURPLE, VERMILION, series, smoothed

ASKED = (
    *("objective", "model", "family", "size", "data", "corpus", "for_file", "task", "optimizer", "learning_rate"),
    *("batch_size", "max_steps", "max_minutes", "max_epochs", "seed"),
)
PICTURES = ("curves.png", "confusion.png", "scatter.png")
EVENTS = {"resume": "taken up again", "skipped": "steps not applied", "spike": "spikes of the loss"}
MOST_SAMPLES, EXCERPT = 12, 300  # lines, and characters of a text


@dataclass
class ReportArguments(Arguments):
    """Which runs, and where the page goes."""

    run: list[str] = essential([], "Folders of runs.", metavar="DIR")
    output_file: str | None = essential(None, "The page. Default: run.html in the first folder.", metavar="FILE")


def ending(folder: str, *, of: str | None = None) -> str:
    """The last lines of a run: where its model is, what may follow its objective `of`, and how to get the page."""

    def command(name: str, recipe: str) -> str:  # the command `lacuna` is there where recipes/ is not
        return f"lacuna {name}" if sys.argv[0].startswith("lacuna ") else f"python recipes/{recipe}.py"

    lines = [f"the model is in {folder}"]
    if of is not None:
        tasks = {"denoising": ("seq2seq", "csv"), "spans": ("question_answering", "json")}
        task, kind = tasks.get(of, ("classification", "csv"))
        lines += ["what may follow:", *[f"  {command('try', 'try_models')} --model {folder}"] * (of != "spans")]
        tune = command(f"finetune_{task}", f"finetune_{task}")
        lines.append(f"  {tune} --model {folder} --train_file train.{kind} --output_dir runs/tuned")
        if of not in tasks:
            lines.append(f"  {command('evaluate', 'evaluate_language_model')} --model {folder} --data held_out/")
    return "\n".join([*lines, f"a page on it: {command('report', 'report_run')} --run {folder}"])


def write_page(folders: Sequence[Path], path: Path) -> None:
    """Write the page of finished or interrupted runs, of several their scores and losses first, side by side.

    Raises InputError: a folder has no run.json, or a file in it is broken.
    """
    for folder in folders:
        if not (folder / "run.json").is_file():
            raise InputError(f"--run {folder} has no run.json: name the --output_dir of a recipe that trains")
    runs = {folder.resolve().name: folder for folder in folders}
    runs = runs if len(runs) == len(folders) else {str(folder): folder for folder in folders}
    title = f"Run{'s' if len(runs) > 1 else ''}: {', '.join(runs)}"
    parts = [f"<h1>{html.escape(title)}</h1>"]
    if len(runs) > 1:
        records = {name: json_lines(folder / "metrics.jsonl") for name, folder in runs.items()}
        parts += ["<h2>Side by side</h2>", _table_of_scores(runs), _image(_losses(records), "losses of all runs")]
    for name, folder in runs.items():
        parts += [f"<h2>{html.escape(name)}</h2>"] if len(runs) > 1 else []
        parts += _sections(folder)
    template = Path(__file__).with_name("page.html").read_text(encoding="utf-8")
    page = template.replace("__CONTENT__", "\n".join(parts)).replace("__TITLE__", html.escape(title))
    write_text(path, page, hint=". Name another place with --output_file")


def _sections(folder: Path) -> list[str]:
    """What is there of one run; what is missing has no section."""
    info = read_json(folder / "run.json", dict)
    every = {**info.get("arguments", {}), **{name: value for name, value in info.items() if name != "arguments"}}
    asked = {name: every[name] for name in ASKED if every.get(name) not in (None, [], "")}
    results, took = _results(folder), "It has not ended."
    if {"steps", "train_seconds"} <= results.keys():
        tokens = f"{results['train_tokens']:,} tokens, " if "train_tokens" in results else ""
        numbers = f"{results['steps']:,} steps, {tokens}{results['train_seconds']:,.0f} s"
        took = " on ".join(filter(None, (numbers, every.get("environment", {}).get("device")))) + "."
    parts = [f"<p>{html.escape(took)}</p>", _table("What was asked", ("option", "value"), asked.items())]
    text = [("text", info.get("text")), *(("rows", line) for row in info.get("rows", []) for line in row.splitlines())]
    excerpts = [("held out", line["text"][:EXCERPT]) for line in json_lines(folder / "held_out.jsonl")[:3]]
    parts.append(_table("What it read", ("", ""), [line for line in [*text, *excerpts] if line[1]]))
    parts.append(_table_of_scores({"this model": folder}))
    parts += [_image(path.read_bytes(), path.stem) for name in PICTURES if (path := folder / name).is_file()]
    records, samples = json_lines(folder / "metrics.jsonl"), json_lines(folder / "samples.jsonl")
    events = {what: [line["step"] for line in records if line.get("event") == name] for name, what in EVENTS.items()}
    survived = [(what, len(steps), ", ".join(map(str, steps[:20]))) for what, steps in events.items() if steps]
    parts.append(_table("Faults that it survived", ("what", "times", "at step"), survived))
    said = ("step", "prompt", "text")
    kept = samples[:: max(1, -(-len(samples) // MOST_SAMPLES))]
    parts.append(_table("What it said along the way", said, [[line[name] for name in said] for line in kept]))
    for path in sorted(folder.glob("evaluation_*.json")):
        found = read_json(path, dict)
        most = f", at most {found['max_examples']:,} examples of a kind" if "max_examples" in found else ""
        columns = ("suite", "score", "value (95 % interval)", "beside it")
        parts.append(_table(f"Evaluation of what it knows{most}", columns, found.get("summary", [])))
    heads = ("run", "task", "score", "value", "without a model", "bag of words")
    return [*parts, _table("Fine-tuned from it", heads, _tuned(folder))]


def _results(folder: Path) -> dict[str, Any]:
    return dict(read_json(path, dict)) if (path := folder / "results.json").is_file() else {}


def _tuned(folder: Path) -> Iterable[tuple[Any, ...]]:
    """Runs beside this one that began with its model: name, task, and each score beside its baselines."""
    for path in sorted(folder.resolve().parent.glob("*/run.json")):
        with suppress(InputError):  # of another run, which may be broken
            info, results = read_json(path, dict), _results(path.parent)
            if isinstance(model := info.get("model"), str) and Path(model).resolve() == folder.resolve():
                task = str(info.get("objective", "")).removeprefix("fine-tuning for ")
                for name in (key[5:] for key in results if key[:5] == "eval_" and "loss" not in key):
                    scores = (results.get(f"{part}_{name}", "") for part in ("eval", "baseline", "words"))
                    yield (path.parent.name, task, name, *scores)


def _table_of_scores(folders: dict[str, Path]) -> str:
    """Held-out scores of each run, which mean the same for one objective; of one alone, beside those of baselines."""
    results = {name: _results(folder) for name, folder in folders.items()}
    columns = {name: {key[5:]: it for key, it in row.items() if key[:5] == "eval_"} for name, row in results.items()}
    if len(folders) == 1:
        (only,) = results.values()
        for part, what in BESIDE.items():
            named = {key.removeprefix(f"{part}_"): it for key, it in only.items() if key.startswith(f"{part}_")}
            columns |= {what: named} if named else {}
    else:
        infos = {name: read_json(folder / "run.json", dict) for name, folder in folders.items()}
        columns = {name: {"objective": info.get("objective", ""), **columns[name]} for name, info in infos.items()}
    names = dict.fromkeys(name for column in columns.values() for name in column)
    rows = [(name, *(column.get(name, "") for column in columns.values())) for name in names]
    return _table("Held-out scores", ("score", *columns), rows)


def _losses(records: dict[str, list[dict[str, Any]]]) -> bytes:
    """A picture of the losses of several runs by step: those held out, else those of training."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 4), dpi=120, layout="constrained")
    axes = figure.subplots()
    for (name, lines), color in zip(records.items(), cycle((BLUE, VERMILION, GREEN, PURPLE, ORANGE)), strict=False):
        kind = "eval_loss" if len(series(lines, "eval_loss")[0]) > 1 else "loss"
        steps, values = series(lines, kind)
        axes.plot(steps, smoothed(values), color=color, label=f"{name}, {kind.replace('eval_loss', 'held-out loss')}")
    axes.set(xlabel="step", ylabel="loss")
    axes.grid(alpha=0.3)
    axes.legend()
    content = io.BytesIO()
    figure.savefig(content, format="png")
    return content.getvalue()


def _image(png: bytes, what: str) -> str:
    return f'<figure><img alt="{html.escape(what)}" src="data:image/png;base64,{b64encode(png).decode()}"></figure>'


def _table(caption: str, heads: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """A table, or nothing without rows."""
    if not (cells := ["".join(f"<td>{html.escape(_shown(cell))}</td>" for cell in row) for row in rows]):
        return ""
    head = "".join(f'<th scope="col">{html.escape(name)}</th>' for name in heads)
    head = f"<thead><tr>{head}</tr></thead>" if any(heads) else ""
    opening = f'<div class="wide"><table><caption>{html.escape(caption)}</caption>'
    return f"{opening}{head}<tbody><tr>{'</tr><tr>'.join(cells)}</tr></tbody></table></div>"


def _shown(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:,.4g}" if abs(value) < 1000 else f"{value:,.0f}"
    if isinstance(value, list | dict):
        return ", ".join(map(_shown, value)) if isinstance(value, list) else json.dumps(value, ensure_ascii=False)
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)
