"""Let a model answer new rows: with its label, its answer, its tags, its text.

    python recipes/predict.py --model runs/classifier --input new.csv --output answers.csv
    python recipes/predict.py --model runs/answers --input questions.jsonl --output answers.jsonl --batch_size 8
    python recipes/predict.py --model runs/model --input masked.txt --output filled.jsonl       # a laptop, seconds
    cat new.txt | python recipes/predict.py --model runs/classifier --input - --output - | head

What is answered follows from the model: task.json, which fine-tuning has left beside it, or its head says it. Every
row of --input is in --output with all its columns, in the same order, and the answer beside them: docs/fine_tuning.md
says which columns a task reads and writes. A - stands for standard output, and for standard input: texts, one a
line, rows as JSON, or a table whose header has a column `text`, that of --text_column or one of training. All rows are
checked first, so that a broken one is found at once; --output is written whole or not at all. Everything is computed
in float32: after training in bf16 (--mixed_precision), probabilities differ from predictions.jsonl in the third digit.
"""

import codecs
import json
import re
import sys
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import transformers

from lacuna import modeling  # noqa: F401  (makes Lacuna's checkpoints known to the Auto classes)
from lacuna.common.command_line import exit_cleanly, parse_arguments
from lacuna.common.errors import called, progress_bar
from lacuna.common.private import counted
from lacuna.corpus import read_unlabelled
from lacuna.tasks.base.rows import write_rows
from lacuna.tasks.predict.inference import check_output, open_predictor, trained_columns
from lacuna.tasks.predict.predictor import PredictionArguments, check_rows, predict
from lacuna.training import use_all_cores


def main(words: Sequence[str] | None = None) -> str:
    """Parse, check, answer; returns the file of the answers."""
    (arguments,) = parse_arguments((PredictionArguments,), words, description=__doc__)
    with TemporaryDirectory() as folder:
        names, source = dict[str, str](), arguments.input
        if arguments.input == "-":
            data = sys.stdin.buffer.read()
            known = {"text", arguments.text_column, *trained_columns(arguments.model, revision=arguments.revision)}
            rows = Path(folder, f"standard input{ending_of(data, known)}")
            rows.write_bytes(data)
            arguments.input, source = str(rows), "standard input"
            names = {str(rows): source, f" {rows.name}": ""}  # without a name iconv and jq read from there
        with called(names):
            if arguments.output != "-":
                return str(answer(arguments, source=source, say=print))
            arguments.output = str(Path(folder, "answers.jsonl"))
            written = answer(arguments, source=source, say=partial(print, file=sys.stderr))
            sys.stdout.write(written.read_text(encoding="utf-8"))
        return "-"


def ending_of(data: bytes, columns: Collection[str | None]) -> str:
    """What a file of these rows ends in. A text may begin with [MASK]; a table has columns, one of these too."""
    data = data.removeprefix(codecs.BOM_UTF8)
    if data.lstrip()[:1] == b"[":
        with suppress(ValueError):
            json.loads(data)
            return ".json"
    first = data.partition(b"\n")[0].decode(errors="replace")
    header = {cell.strip(' "\r') for cell in re.split("[,;\t]", first)}
    if len(header) > 1 and not header.isdisjoint(columns):
        return ".csv"
    return ".jsonl" if data.lstrip()[:1] == b"{" else ".txt"


def answer(arguments: PredictionArguments, *, source: str, say: Callable[..., None]) -> Path:
    """Write the rows of --input, called `source`, with the model's answers to --output; `say` is told how it goes."""
    path, rows = check_output(arguments), partial(read_unlabelled, arguments.input, **arguments.reading())
    next(rows(), None)  # report unreadable input before loading a model
    use_all_cores()
    transformers.logging.set_verbosity_error()
    predictor = open_predictor(arguments)
    count = check_rows(predictor, rows())
    say("\n".join([f"{counted(count, 'row')} of {source} through {arguments.model}", *predictor.notes]), flush=True)
    answers = progress_bar(predict(predictor, rows()), total=count, doing="answering", unit="row")
    written = write_rows(rows=answers, path=path)
    if say is print:
        print(f"{counted(written, 'row')} written with answers to {path}")
    return path


if __name__ == "__main__":
    exit_cleanly(main)
