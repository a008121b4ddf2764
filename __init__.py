"""Lacuna in Python: what the recipes do, with the same options, checks and files.

    import lacuna

    run = lacuna.pretrain(data="my_texts/", max_minutes=20, output_dir="runs/model")
    tuned = lacuna.finetune("classification", model=run, train_file=rows, output_dir="runs/reviews")
    tuned.predict(["good", "bad"])

Each function is a recipe, and its keyword arguments are the options that `lacuna.help("pretrain")` lists. Where an
option names a file of text or rows, it may also be a `datasets.Dataset`, a frame of pandas or a list of dicts. What is
returned can stand wherever a folder can. A mistake is an exception with the message of the command line
(`lacuna.common.errors`); a run that is interrupted saves a checkpoint, and `resume=True` goes on from it.
"""

import contextlib
import difflib
import hashlib
import importlib
import inspect as _inspect
import io
import json
import os
import re
import shutil
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator, Sequence, Sized
from pathlib import Path
from typing import Any

# What torch lacks on Apple's GPUs it then computes on the CPU, with a warning. It asks when it is imported.
os.environ.setdefault("PYTORCH_ENABLE_MPS_FALLBACK", "1")

TASKS = ("classification", "question_answering", "token_classification", "multiple_choice", "seq2seq", "embeddings")
ROWS = (
    *("data", "eval_data", "for", "for_file", "train_file", "eval_file", "validation_file", "test_file"),
    *("unlabelled_file", "input"),
)
COMMANDS = {name: name for name in ("train_tokenizer", "prepare_corpus", "pretrain", "predict")}
COMMANDS |= {f"finetune_{task}": f"finetune_{task}" for task in TASKS}
COMMANDS |= {"plan": "plan_run", "evaluate": "evaluate_language_model", "inspect": "inspect_model"}
COMMANDS |= {"try": "try_models", "report": "report_run", "export": "export_model", "push": "push_model"}
"""Names of functions here and after `lacuna` on the command line, and the recipe of each."""


class Picture(str):
    """The path of a picture, which a notebook shows."""

    def _repr_png_(self) -> bytes | None:
        return Path(self).read_bytes() if Path(self).is_file() else None


class Result(os.PathLike):
    """What a recipe has written: a path, and what stands in its files."""

    def __init__(self, path: str | os.PathLike) -> None:
        self.path = Path(path)

    def __fspath__(self) -> str:
        return str(self.path)

    def __repr__(self) -> str:
        scores = {name: value for name, value in self.results.items() if name.startswith(("eval_", "baseline_"))}
        return "\n".join([str(self.path), *(f"{name:<32}{value:>12.4f}" for name, value in scores.items())])

    @property
    def results(self) -> dict[str, Any]:
        """Scores by flat names: of results.json, tokenizer_report.json or the file itself; empty without one."""
        for path in (self.path / "results.json", self.path / "tokenizer_report.json", self.path):
            if path.is_file() and path.suffix == ".json":
                return dict(json.loads(path.read_text(encoding="utf-8")))
        return {}

    @property
    def metrics(self) -> list[dict[str, Any]]:
        """The lines of metrics.jsonl, one for each logged step."""
        from lacuna.common.files import json_lines

        return json_lines(self.path / "metrics.jsonl")

    @property
    def curves(self) -> Picture:
        """The curves of the run: a figure in a notebook, a path elsewhere."""
        return Picture(str(self.path / "curves.png"))

    def predict(self, rows: Any, **options: Any) -> list[dict[str, Any]]:
        """Rows (texts, dicts, a frame, a dataset or a file) with the model's answers; see `lacuna.predict`."""
        return predict(model=self, input=rows, **options)


def _function(command: str, what: str) -> Callable[..., Result]:
    def call(**options: Any) -> Result:
        return _call(command, options)

    call.__name__ = call.__qualname__ = command
    call.__doc__ = f"{what} and others; `lacuna.help({command!r})` lists all."
    return call


train_tokenizer = _function("train_tokenizer", "Train a tokenizer on raw text: `data`, `vocab_size`, `output_dir`")
prepare_corpus = _function("prepare_corpus", "Tokenize text once, for `pretrain(corpus=...)`: `data`, `tokenizer`")
plan = _function("plan", "Print what a run of `pretrain` would need, without training: its options, `device`")
pretrain = _function("pretrain", "Pretrain a language model: `data`, `objective`, `size`, `max_minutes`, `output_dir`")
evaluate = _function("evaluate", "Measure what a pretrained model knows: `model`, `suite`, `data`")
inspect = _function("inspect", "Make a page of what a model looks at, expects and makes of a token: `model`, `text`")
report = _function("report", "Make a page about one run or several: `run`, `output_file`")
export = _function("export", "Export a model for other programs: `model`, `format`, `quantize`, `output_dir`")
push = _function("push", "Push a model to the Hugging Face Hub: `model`, `to`, `public`, `license`")


def finetune(task: str, **options: Any) -> Result:
    """Fine-tune a model on a task of `TASKS`; `model`, `train_file`, `eval_file`, `output_dir` and others."""
    from lacuna.common.errors import InputError

    if task not in TASKS:
        raise InputError(f"there is no task {task!r}; the tasks are {', '.join(TASKS)}")
    return _call(f"finetune_{task}", options)


def predict(*, model: Any, input: Any, output: Any = None, **options: Any) -> list[dict[str, Any]]:
    """Rows with a model's answers, as dicts; `input` is a file, a dataset, a frame, dicts or texts.

    `output` keeps them in a file too.
    """
    from lacuna.corpus import read_records

    with tempfile.TemporaryDirectory() as folder:
        where = output or Path(folder, "answers.jsonl")
        # What it says is about files that nobody has made, but for an output that was asked for.
        with contextlib.nullcontext() if output else contextlib.redirect_stdout(io.StringIO()):
            answered = _call("predict", {"model": model, "input": input, "output": where, **options})
        return [record.fields for record in read_records(answered.path)]


def help(command: str) -> None:
    """Print all options of a function, as the command line has them; `help("finetune_classification")` for a task."""
    with contextlib.suppress(SystemExit):
        _recipe(command).main(["--help_all"])


def _recipe(command: str) -> Any:
    from lacuna.common.errors import InputError

    if command == "finetune":
        raise InputError(f"finetune what? The tasks are {', '.join(TASKS)}")
    if command not in COMMANDS:
        near = difflib.get_close_matches(str(command), COMMANDS, n=1)
        remedy = f"did you mean {near[0]!r}?" if near else f"the commands are {', '.join(COMMANDS)}"
        raise InputError(f"there is no command {command!r}; {remedy}")
    return importlib.import_module(f"lacuna.recipes.{COMMANDS[command]}")


def _call(command: str, options: dict[str, Any]) -> Result:
    """Run a recipe with options as words of a command line, so that they meet the same checks."""
    from lacuna.common.errors import called
    from lacuna.common.files import release

    recipe, before, kept = _recipe(command), sys.argv, {"(--help lists": f"(lacuna.help({command!r}) lists"}
    words = [word for name, value in options.items() for word in _words(name, value, kept)]
    sys.argv = [f"lacuna {command}", *words]  # for run.json and messages
    try:
        with warnings.catch_warnings(), called(kept):
            return Result(recipe.main(words))
    finally:
        sys.argv = before
        release()


def _words(name: str, value: Any, kept: dict[str, str]) -> Iterator[str]:
    """An option as words of a command line; none for None. `kept` gets the files of rows, and what they are called."""
    from lacuna.common.aliases import as_words
    from lacuna.common.options import Arguments

    value = _rows_of(name, value)
    is_rows = isinstance(value, list | tuple) and all(isinstance(row, dict) for row in value)
    if is_rows or hasattr(value, "save_to_disk") or hasattr(value, "to_json"):
        value = _kept(value, name)
        kept[str(value)] = name
    if isinstance(value, list | tuple):
        words = [os.fspath(each) if isinstance(each, os.PathLike) else str(each) for each in value]
        yield from as_words(name, words)
    elif value is not None or name not in Arguments.known_options():  # a name that is unknown is told
        yield f"--{name}={os.fspath(value) if isinstance(value, os.PathLike) else value}"


def _rows_of(name: str, value: Any) -> Any:
    """What stands for rows as a frame, a dataset or a list of dicts; all else as it is."""
    from lacuna.common.errors import InputError

    kind = type(value).__name__
    if kind in ("DatasetDict", "IterableDataset", "IterableDatasetDict"):
        raise InputError(f"{name} is a {kind}: give one split of it, a datasets.Dataset")
    if hasattr(value, "__next__") or kind == "Column":  # a generator; a column of a dataset
        value = list(value)
    elif hasattr(value, "tolist") and not hasattr(value, "columns"):  # of NumPy, or a column of a frame
        value = value.tolist()
    if isinstance(value, dict) and name in ROWS:  # columns
        lists = [each for each in value.values() if isinstance(each, Sized) and not isinstance(each, str)]
        if len(lists) < len(value) or len({*map(len, lists)}) != 1:
            raise InputError(f"{name} is a dict, and its columns are not lists of one length")
        value = [dict(zip(value, row, strict=True)) for row in zip(*value.values(), strict=True)]
    if isinstance(value, list | tuple) and not value:
        raise InputError(f"{name} is empty")
    if name in ROWS and isinstance(value, list | tuple):
        for number, row in enumerate(value, start=1):
            if not isinstance(row, str | dict | os.PathLike):
                raise InputError(f"{name}, row {number} is {repr(row)[:80]}: give texts or dicts")
            if isinstance(row, dict) != isinstance(value[0], dict):
                what = "a dict, which row 1 is not" if isinstance(row, dict) else "no dict, which row 1 is"
                raise InputError(f"{name}, row {number} is {what}: give rows of one kind")
        if all(_is_text(each, anything=name == "input") for each in value):
            value = [{"text": text} for text in value]
    if name == "input" and isinstance(value, str) and " " in value and not os.path.exists(value):
        raise InputError(f"input is a text: give a list of them, as in [{value[:40]!r}]")
    return value


def _is_text(value: Any, *, anything: bool) -> bool:
    """Whether a string is a text, and not the path of one."""
    from lacuna.corpus.read.formats import kind_of
    from lacuna.corpus.read.sources import TEXT_KINDS

    if not isinstance(value, str) or anything:
        return isinstance(value, str)
    named = os.path.exists(value) or kind_of(Path(re.sub(r":[\d.]+$", "", value))) in TEXT_KINDS
    return " " in value.strip() and not named


def _kept(rows: Any, name: str = "rows") -> Path:
    """The file of rows in memory, named by what is in them, so that a run which is resumed finds the same."""
    from lacuna.common.errors import InputError
    from lacuna.common.files import cache_folder, write_text

    folder = cache_folder() / "rows"
    if hasattr(rows, "save_to_disk"):  # of `datasets`: with the names of its labels
        path = folder / hashlib.sha256(json.dumps([repr(rows.features), rows._fingerprint]).encode()).hexdigest()[:16]
        if not path.exists():
            begun = path.with_name(f".{path.name}.{os.getpid()}")
            rows.save_to_disk(begun)
            with contextlib.suppress(OSError):  # another process was faster
                begun.rename(path)
            shutil.rmtree(begun, ignore_errors=True)
        return path
    if hasattr(rows, "to_json"):  # of pandas: what is missing there is null
        if twice := [*rows.columns[rows.columns.duplicated()]]:
            raise InputError(f"{name}: two columns have the name {twice[0]!r}: rename or remove one")
        rows = rows.astype(object).where(rows.notna(), None).to_dict(orient="records")
    text = "".join(_as_line(row, f"{name}, row {number}") + "\n" for number, row in enumerate(rows, start=1))
    path = folder / f"{hashlib.sha256(text.encode()).hexdigest()[:16]}.jsonl"
    if not path.exists():
        write_text(path, text)
    return path


def _as_line(row: Any, where: str) -> str:
    """A row as JSON, half a surrogate pair escaped, which the reader refuses; InputError where it cannot be."""
    from lacuna.common.errors import InputError

    def plain(value: Any) -> Any:
        if isinstance(value, bytes | bytearray):
            raise TypeError(f"bytes are no text: decode {bytes(value[:40])!r} first")
        return value.tolist() if hasattr(value, "tolist") else str(value)

    try:
        return json.dumps(row, ensure_ascii=False, default=plain).encode(errors="backslashreplace").decode()
    except (TypeError, ValueError, RecursionError) as error:
        raise InputError(f"{where} cannot be written as JSON: {error}") from error


def main(words: Sequence[str] | None = None) -> None:
    """The command `lacuna NAME [options]`: the recipe of that name; ends the process."""
    from lacuna.common.command_line import exit_cleanly

    command, *words = (sys.argv[1:] if words is None else words) or ["--help"]
    if command == "finetune" and words and words[0] in TASKS:
        command = f"finetune_{words.pop(0)}"
    sys.argv = [f"lacuna {command}", *words]
    exit_cleanly(_usage if command in ("--help", "-h") else lambda: _recipe(command).main(words))


def _usage() -> None:
    lines = [f"  {name:<32}{(_inspect.getdoc(_recipe(name)) or '').splitlines()[0]}" for name in COMMANDS]
    print("\n".join(["usage: lacuna COMMAND [options]", "", *lines, "", "lacuna COMMAND --help lists the options"]))
