"""What all fine-tuning recipes do: load a model, read rows, train, and write the results."""

import hashlib
import json
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from lacuna.common.command_line import parse_arguments
from lacuna.common.files import sha256
from lacuna.common.loading import commit_of
from lacuna.tasks.base.arguments import identity, used
from lacuna.tasks.base.models import load_base, load_model
from lacuna.tasks.base.report import write_results
from lacuna.tasks.base.task import Reader, Task


def fingerprints(file: str, texts: Sequence[str]) -> dict[str, str]:
    """SHA-256 (hexadecimal) of a file of rows, or the name of what is no file; and that of texts of its rows."""
    there = Path(file).expanduser()
    content = sha256(there) if there.is_file() else file
    return {"sha256": content, "texts_sha256": hashlib.sha256(json.dumps(texts).encode()).hexdigest()}


def warn_of_seen(model: str, data: Any, work: Task) -> list[str]:
    """A line where `--for` of recipes/pretrain.py gave the model, whose run.json says so, other rows of this file than
    are learned from here."""
    folder = Path(model).absolute()
    folder = folder.parents[1] if folder.parent.name == "checkpoints" else folder
    seen: list[dict[str, str]] = []
    with suppress(OSError, ValueError, KeyError, TypeError):
        seen = json.loads((folder / "run.json").read_text(encoding="utf-8"))["self_pretraining"]
    if not seen:
        return []
    file = data.eval_file or data.train_file or work.name
    now = fingerprints(file, [] if data.eval_file else work.training_texts())
    texts = {each["texts_sha256"] for each in seen if each["sha256"] == now["sha256"]}
    if not texts - {now["texts_sha256"]}:
        return []
    if data.eval_file:
        return [f"warning: {model} was pretrained on texts of {file} (--for): it has read what is held out here"]
    return [
        f"warning: {model} was pretrained on texts of this file (--for), and since other rows are held out here, some "
        "of theirs are among them: leave --seed, --eval_fraction and the columns as they are by default, or name an "
        "--eval_file"
    ]


def run_task(kind: type[Task], words: Sequence[str] | None, description: str | None, **rooms: Any) -> str:
    """`fine_tune_task` with the options that a recipe was given; `rooms` are the other arguments of it."""
    training = rooms["training"]
    kinds = training.ModelArguments, kind.__annotations__["options"], training.FineTuningArguments
    return fine_tune_task(kind, *parse_arguments(kinds, words, description=description), **rooms)


def fine_tune_task(
    kind: type[Task],
    start: Any,
    data: Any,
    arguments: Any,
    *,
    training: Any,
    as_ours: Callable[[Any], Any],
    read: Reader,
    builtin: Reader | None = None,
) -> str:
    """Fine-tune a pretrained model on a task, and return the folder that it is in.

    Args:
        start, data, arguments: `ModelArguments`, the options of the task's data, `FineTuningArguments`.
        training: the room of that name; a folder that it cannot have is refused before anything is read.
        as_ours: `lacuna.modeling.as_ours`; native models are trained as ours, which is faster, and saved as
            they came. With LoRA they stay native, since an adapter goes by names.
        read, builtin: see `Task.from_arguments`.
    """
    if training.is_main_process():
        training.claim_output_dir(arguments)
    training.use_all_cores(arguments.threads)  # a teacher is asked before training begins
    start.revision = commit_of(start.model, revision=start.revision)
    origin = {"model": start.model, "trust_remote_code": start.trust_remote_code, "revision": start.revision}
    config, tokenizer = load_base(**origin, writes=kind.writes)
    work = kind.from_arguments(
        data, tokenizer=tokenizer, config=config, seed=arguments.seed, read=read, builtin=builtin
    )
    work.notes += warn_of_seen(start.model, data, work)

    def make_model(seed: int) -> Any:
        model = load_model(auto_class=work.auto_class, tokenizer=tokenizer, seed=seed, **origin, **work.head_options())
        return model if arguments.lora_rank else as_ours(model)

    labels: dict[str, Any] = {} if work.label_names is None else {"labels": work.label_names}
    taught = {"pseudo_labels": work.pseudo_labels} if work.pseudo_labels else {}
    facts = used(data) | taught
    if data.train_file and (digest := fingerprints(data.train_file, [])["sha256"]) != data.train_file:  # a file
        facts["train_file_sha256"] = digest
    training.fine_tune(
        work=work,
        make_model=make_model,
        tokenizer=tokenizer,
        arguments=arguments,
        run_info={"objective": work.objective, "model": start.model, "revision": start.revision, "task": facts},
        identity={"task": identity(data), **labels, **taught, "examples": work.num_examples},
        finish=partial(write_results, work),
        describe=work.describe,
    )
    return str(arguments.output_dir)
