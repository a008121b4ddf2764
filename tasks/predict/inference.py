"""Opening a model to answer new rows: finding its task, loading it, and the registry of predictors."""

import json
import os
import re
from pathlib import Path
from typing import Any

import torch

from lacuna.common.errors import InputError
from lacuna.common.loading import commit_of, file_of, load_exported, load_model, longest_input
from lacuna.tasks.base.columns import names_in
from lacuna.tasks.base.models import check_tokenizer, load_base, pad_for_reading, resolve_max_length
from lacuna.tasks.base.rows import ENDINGS
from lacuna.tasks.classification.task import ClassificationPredictor
from lacuna.tasks.embeddings.encoders import EmbeddingPredictor
from lacuna.tasks.multiple_choice.task import ChoicePredictor
from lacuna.tasks.predict.predictor import FillMaskPredictor, GenerationPredictor, PredictionArguments, Predictor
from lacuna.tasks.question_answering.task import QuestionPredictor
from lacuna.tasks.sequence_to_sequence.task import WritingPredictor
from lacuna.tasks.token_classification.task import TagPredictor

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

HEADS = {kind.auto_class.removeprefix("AutoModel"): task for task, kind in PREDICTORS.items() if kind.auto_class}
HEADS |= {"ForConditionalGeneration": "sequence_to_sequence", "ForPreTraining": "fill_mask"}
HEADS |= {"LMHeadModel": "text_generation", "MTModel": "sequence_to_sequence"}
"""What the names of heads end with, and what they are for."""
_ALIKE = {"classification", "question_answering", "token_classification", "multiple_choice"}
"""Tasks whose heads often have weights of the same names, so that one loads as another."""


def read_settings(model: str, *, revision: str | None = None) -> dict[str, Any]:
    """What `task.json` beside a model says; InputError where it cannot be read or names no known task."""
    if (path := file_of(model, "task.json", revision=revision)) is None:
        return {}
    try:
        content = dict(json.loads(path.read_text(encoding="utf-8")))
        task = content["name"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(
            f"{path} is not what fine-tuning writes ({type(error).__name__}: {error}): remove it, or name the task "
            f"with --task ({', '.join(PREDICTORS)})"
        ) from error
    if task not in PREDICTORS:
        raise InputError(f"{path} names the task {task!r}; known are {', '.join(PREDICTORS)}")
    return content


def trained_columns(model: str, *, revision: str | None = None) -> set[str]:
    """Names of the columns that a model was fine-tuned on, by `task.json`."""
    settings = read_settings(model, revision=revision)
    found = [it for name, it in settings.items() if re.search("_columns?$", name)]
    found += [("question", "context")] * (settings.get("name") == "question_answering")  # which always has these
    return {name for columns in found for name in names_in(columns)}


def load_head(*, auto_class: str, model: str, trust_remote_code: bool, revision: str | None = None) -> Any:
    """A model with the head of a task, all of it from the checkpoint, in float32, on the GPU where there is one.

    The head of an ONNX export is the one that it was made with.
    """
    if file_of(model, "export.json", revision=revision) is not None:
        if auto_class in ("AutoModelForCausalLM", "AutoModelForSeq2SeqLM"):
            raise InputError(
                f"--model {model} is an ONNX export, which keeps no cache and cannot generate: take the model "
                "that it was made of, or export a decoder with --format gguf"
            )
        return load_exported(model, trust_remote_code=trust_remote_code, revision=revision)
    loaded, report = load_model(model, auto_class=auto_class, trust_remote_code=trust_remote_code, revision=revision)
    if missing := sorted(report["missing_keys"]):
        raise InputError(
            f"--model {model} was not trained for this task: it has no {missing[0]}; fine-tune it first, or name "
            "another task with --task"
        )
    return loaded.to(torch.accelerator.current_accelerator(check_available=True) or "cpu").eval()


def open_predictor(arguments: PredictionArguments) -> Predictor:
    """What answers the rows of --input with the model of --model. InputError, HubError, CorruptCheckpointError."""
    name, task, code = arguments.model, arguments.task, arguments.trust_remote_code
    if task is not None and task not in PREDICTORS:
        raise InputError(f"--task {task} is not known; choose from {', '.join(PREDICTORS)}")
    arguments.revision = revision = commit_of(name, revision=arguments.revision)
    settings = read_settings(name, revision=revision) if task is None else {}
    encoder = "embeddings" if task is None and file_of(name, "modules.json", revision=revision) else None
    task = task or settings.get("name") or encoder
    given: dict[str, Any] = {"settings": settings, "arguments": arguments}
    if task == "embeddings":
        return PREDICTORS[task](**given)
    config, tokenizer = load_base(model=name, trust_remote_code=code, revision=revision, writes=True)
    head = next(iter(config.architectures or []), "")
    own = next((HEADS[ending] for ending in HEADS if head.endswith(ending)), task)
    if own is None:
        raise InputError(
            f"--model {name} has the head {head or 'of no name'}, which does not say what it is for: name the task "
            f"with --task ({', '.join(PREDICTORS)})"
        )
    if own != task and {own, task} <= _ALIKE:
        raise InputError(
            f"--model {name} was not trained for {task}: its head, {head}, is for {own}; fine-tune it first, or leave "
            "--task out"
        )
    kind = PREDICTORS[task or own]
    auto_class = kind.head(config)
    if auto_class != "AutoModelForCausalLM":
        pad_for_reading(config=config, tokenizer=tokenizer)
    elif tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token  # on the left, behind the mask
    asked = arguments.max_length or settings.get("max_length")
    longest = longest_input(config=config, tokenizer=tokenizer) or 512
    max_length = resolve_max_length(asked=asked, default=longest, config=config, tokenizer=tokenizer)
    model = load_head(auto_class=auto_class, model=name, trust_remote_code=code, revision=revision)
    check_tokenizer(tokenizer=tokenizer, model=model)
    return kind(**given, model=model, tokenizer=tokenizer, max_length=max_length)


def check_output(arguments: PredictionArguments) -> Path:
    """Where answers go to; InputError for a file that is there, is the input or cannot be written, or its ending."""
    path, source = Path(arguments.output), Path(arguments.input)
    if path.suffix.lower() not in ENDINGS:
        raise InputError(
            f"--output {path} has the ending {path.suffix!r}; answers are written as {', '.join(ENDINGS)}"
        )
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
