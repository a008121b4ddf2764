"""Let a model answer new rows: with its label, its answer, its tags, its text.

    python recipes/predict.py --model runs/classifier --input new.csv --output answers.csv
    python recipes/predict.py --model runs/answers --input questions.jsonl --output answers.jsonl --batch_size 8
    python recipes/predict.py --model runs/model --input masked.txt --output filled.jsonl       # a laptop, seconds

What is answered follows from the model: task.json, which fine-tuning has left beside it, or its head says it. Every
row of --input is in --output with all its columns, in the same order, and the answer beside them: docs/fine_tuning.md
says which columns a task reads and writes. All rows are checked first, so that a broken one is found at once; --output
is written whole or not at all. Everything is computed in float32: after training in bf16 (--mixed_precision),
probabilities differ from those of its predictions.jsonl in the third digit.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import transformers
from tqdm import tqdm

from lacuna import modeling  # noqa: F401  (makes Lacuna's checkpoints known to the Auto classes)
from lacuna.common.command_line import exit_cleanly, parse_arguments
from lacuna.common.errors import BadRecord, InputError, StorageError
from lacuna.corpus import Record, read_labelled, read_records
from lacuna.corpus.read.formats import kind_of
from lacuna.corpus.read.labelled import TAGGED_KINDS
from lacuna.corpus.read.sources import RECORD_KINDS
from lacuna.corpus.read.streams import decode, open_stream, read_lines, shown
from lacuna.modeling.pipeline_lacuna import QuestionAnsweringPipeline
from lacuna.tasks import PredictionArguments
from lacuna.tasks.answers import WRITERS, write_answers
from lacuna.tasks.inference import check_output, check_rows, open_predictor, predict
from lacuna.training import use_all_cores

BAR_AFTER = 5  # seconds


def read(name: str) -> Iterator[Record]:
    """Rows of a file, one at a time; of .txt its lines, blank ones at the end left out. What has labels (sentences in
    columns, folders saved by `datasets`, the Hub) is read as for training."""
    path = Path(name).expanduser()
    if path.is_file() and kind_of(path) not in (*TAGGED_KINDS, *RECORD_KINDS):
        raise InputError(
            f"--input {shown(path)} has the ending {path.suffix!r}; rows are read from {', '.join(RECORD_KINDS)}, "
            "texts, one a line, from .txt, each also with .gz or .zst: rename or convert it"
        )
    if not path.is_file() or kind_of(path) not in (".txt", *RECORD_KINDS):
        yield from read_labelled(name)
    elif kind_of(path) != ".txt":
        yield from read_records(path)
    else:
        waiting: list[Record] = []
        with open_stream(path) as stream:
            for line in read_lines(stream):
                if isinstance(line, BadRecord):
                    raise line
                text = decode(line, path).rstrip("\r\n")
                waiting.append(Record({"text": text}, str(path), line.number, line.offset))
                if text.strip() and len(waiting) > 1:
                    number = waiting[0].line
                    raise InputError(f"{shown(path)}:{number}: line {number} is empty: remove it or write its text")
                if text.strip():
                    yield from waiting
                    waiting = []


def main() -> None:
    """Parse, check, answer."""
    (arguments,) = parse_arguments((PredictionArguments,), description=__doc__)
    path, source = check_output(arguments, endings=WRITERS), arguments.input
    next(read(source), None)  # what cannot be read is said before a model is loaded for it
    use_all_cores()
    transformers.logging.set_verbosity_error()
    predictor = open_predictor(arguments=arguments, question_pipeline=QuestionAnsweringPipeline)
    count = check_rows(predictor, read(source))
    print("\n".join([f"{count:,} rows of {source} through {arguments.model}", *predictor.notes]), flush=True)

    def answers() -> Iterator[dict[str, Any]]:
        with tqdm(total=count, unit=" rows", delay=BAR_AFTER, leave=False, disable=None) as bar:
            for row in predict(predictor, read(source)):
                yield row
                bar.update()

    try:
        written = write_answers(rows=answers(), path=path)
    except OSError as error:
        raise StorageError(f"--output {path} cannot be written: {error.strerror or error}") from error
    print(f"{written:,} rows with their answers are in {path}")


if __name__ == "__main__":
    exit_cleanly(main)
