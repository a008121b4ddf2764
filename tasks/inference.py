"""New rows through a model: which task it is for, what it sees of a row, and what it answers, as columns.

A predictor reads a row, and answers many of them at a time. Rows of like length go through the model together; answers
come in the order of the rows, and nothing is kept of a row whose answer was given.
"""

import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any

import torch

from lacuna.common.errors import InputError
from lacuna.common.loading import load_model, longest_input
from lacuna.tasks.answers import unwritable
from lacuna.tasks.arguments import PredictionArguments
from lacuna.tasks.label_predictors import ChoicePredictor, ClassificationPredictor, QuestionPredictor
from lacuna.tasks.models import check_tokenizer, load_base, pad_for_reading
from lacuna.tasks.predictor import Predictor
from lacuna.tasks.rows import Row, as_rows
from lacuna.tasks.tag_predictor import TagPredictor
from lacuna.tasks.text_predictors import EmbeddingPredictor, FillMaskPredictor, GenerationPredictor, WritingPredictor

PREDICTORS: dict[str, type[Predictor]] = {
    "classification": ClassificationPredictor,
    "question_answering": QuestionPredictor,
    "token_classification": TagPredictor,
    "multiple_choice": ChoicePredictor,
    "sequence_to_sequence": WritingPredictor,
    "embeddings": EmbeddingPredictor,
    "fill_mask": FillMaskPredictor,
    "text_generation": GenerationPredictor,
}

SETTINGS = "task.json"
_BATCHES_AT_ONCE = 16  # whose rows are sorted by length

# What the names of heads end with, and what they are for; the first that fits.
HEADS = {
    "ForSequenceClassification": "classification",
    "ForQuestionAnswering": "question_answering",
    "ForTokenClassification": "token_classification",
    "ForMultipleChoice": "multiple_choice",
    "ForConditionalGeneration": "sequence_to_sequence",
    "ForMaskedLM": "fill_mask",
    "ForPreTraining": "fill_mask",
    "ForCausalLM": "text_generation",
    "LMHeadModel": "text_generation",
}


def read_settings(model: str) -> dict[str, Any]:
    """What `task.json` in the folder of a model says; nothing where there is none.

    Raises:
        InputError: it cannot be read.
    """
    path = Path(model, SETTINGS)
    if not path.is_file():
        return {}
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        return {"name": str(content["name"]), **content}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(
            f"{path} is not what fine-tuning writes ({type(error).__name__}: {error}): remove it, or name the task "
            f"with --task ({', '.join(PREDICTORS)})"
        ) from error


def named_task(*, settings: Mapping[str, Any], model: str) -> str | None:
    """The task that `task.json` names, or that of a folder of sentence-transformers; None where neither says one.

    Raises:
        InputError: there is no such task.
    """
    named = settings.get("name")
    if named is None:
        return "embeddings" if Path(model, "modules.json").is_file() else None
    if named not in PREDICTORS:
        raise InputError(f"{Path(model, SETTINGS)} names the task {named!r}; known are {', '.join(PREDICTORS)}")
    return str(named)


def task_of_head(*, config: Any, model: str) -> str:
    """What the head of a model is for.

    Raises:
        InputError: its name does not say it.
    """
    head = next(iter(getattr(config, "architectures", None) or []), "")
    for ending, task in HEADS.items():
        if head.endswith(ending):
            return task
    raise InputError(
        f"--model {model} has the head {head or 'of no name'}, which does not say what it is for: name the task with "
        f"--task ({', '.join(PREDICTORS)})"
    )


def load_head(*, auto_class: str, model: str, trust_remote_code: bool) -> Any:
    """A model with the head of a task, all of it from the checkpoint, in float32, on the GPU where there is one.

    Raises:
        InputError: the model has no such head.
        CorruptCheckpointError: its weights cannot be read.
    """
    loaded, report = load_model(model, auto_class=auto_class, trust_remote_code=trust_remote_code)
    if missing := sorted(report["missing_keys"]):
        raise InputError(
            f"--model {model} was not trained for this task: it has no {missing[0]}; fine-tune it first, or name "
            "another task with --task"
        )
    return loaded.to("cuda" if torch.cuda.is_available() else "cpu").eval()


def open_predictor(*, arguments: PredictionArguments, question_pipeline: Callable[..., Any]) -> Predictor:
    """What answers the rows of --input with the model of --model.

    Args:
        question_pipeline: makes the pipeline for questions out of `model` and `tokenizer`.

    Raises:
        InputError: there is no such model, or it is for nothing that is known.
        CorruptCheckpointError: its weights cannot be read.
    """
    name = arguments.model
    if arguments.task is not None and arguments.task not in PREDICTORS:
        raise InputError(f"--task {arguments.task} is not known; choose from {', '.join(PREDICTORS)}")
    settings = read_settings(name) if arguments.task is None else {}
    task = arguments.task or named_task(settings=settings, model=name)
    given: dict[str, Any] = {"settings": settings, "arguments": arguments, "question_pipeline": question_pipeline}
    if task == "embeddings":
        return PREDICTORS[task](**given)
    config, tokenizer = load_base(model=name, trust_remote_code=arguments.trust_remote_code, writes=True)
    kind = PREDICTORS[task or task_of_head(config=config, model=name)]
    auto_class = kind.auto_class(config)
    if auto_class != "AutoModelForCausalLM":
        pad_for_reading(config=config, tokenizer=tokenizer)
    elif tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token  # on the left, behind the mask
    limit = longest_input(config=config, tokenizer=tokenizer)
    asked = arguments.max_length or settings.get("max_length")
    if limit is not None and asked is not None and asked > limit:
        raise InputError(f"--max_length {asked} is more than the {limit} tokens that the model takes: lower it")
    model = load_head(auto_class=auto_class, model=name, trust_remote_code=arguments.trust_remote_code)
    check_tokenizer(tokenizer=tokenizer, model=model)
    return kind(**given, model=model, tokenizer=tokenizer, max_length=asked or limit or 512)


def check_rows(predictor: Predictor, records: Iterable[Any]) -> int:
    """Read every row as it will be read for its answer, so that none is refused after hours; returns how many.

    Raises:
        InputError: a row cannot be answered, or cannot be written as --output ends (the message has its file and
            line), or there is none.
    """
    count, columns, ending = 0, [], Path(predictor.arguments.output).suffix.lower()
    for row in _rows(predictor, records):
        if not count:
            predictor.choose_columns(row)
            columns = list(row.fields)
        if taken := [name for name in predictor.columns if name in row.fields]:
            raise InputError(
                f"{row.where}: there is a column '{taken[0]}' already, where the answer would stand: rename it"
            )
        predictor.read(row)
        if reason := unwritable(row.fields, columns=columns, ending=ending):
            raise InputError(f"{row.where} {reason}")
        count += 1
    if not count:
        raise InputError("--input has no row")
    return count


def predict(predictor: Predictor, records: Iterable[Any]) -> Iterator[dict[str, Any]]:
    """Each row with its answer beside its own columns, in the order of the rows; they are read as answers are taken.

    Args:
        records: as in `check_rows`, which comes before.
    """
    rows = _rows(predictor, records)
    while part := list(islice(rows, _BATCHES_AT_ONCE * predictor.batch_size)):
        inputs = [predictor.read(row) for row in part]
        order = sorted(range(len(part)), key=lambda number: predictor.size(inputs[number]), reverse=True)
        answers = predictor.answer([inputs[number] for number in order])
        by_row = dict(zip(order, answers, strict=True))
        for number, row in enumerate(part):
            yield {**row.fields, **by_row[number]}


def _rows(predictor: Predictor, records: Iterable[Any]) -> Iterator[Row]:
    for record in records:
        yield from predictor.expand(as_rows([record], part="input")[0])


def check_output(arguments: PredictionArguments, *, endings: Iterable[str]) -> Path:
    """Where answers go to.

    Raises:
        InputError: the file has another ending, is there already or is the input, or its folder cannot be written.
    """
    path, source = Path(arguments.output), Path(arguments.input)
    if path.suffix.lower() not in endings:
        raise InputError(f"--output {path} has the ending {path.suffix!r}; answers are {', '.join(endings)}")
    if path.is_dir():
        raise InputError(f"--output {path} is a folder; name a file")
    if path.exists() and source.exists() and os.path.samefile(path, source):
        raise InputError(f"--output {path} is the file of --input; name another one")
    if path.exists() and not arguments.overwrite:
        raise InputError(f"--output {path} is there already; add --overwrite to write over it, or name another one")
    parent = next(folder for folder in path.absolute().parents if folder.exists())
    if not parent.is_dir() or not os.access(parent, os.W_OK):
        raise InputError(f"--output {path}: {parent} is a file or cannot be written; name another place")
    return path
