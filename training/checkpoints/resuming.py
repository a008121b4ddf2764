"""Resuming: may this run write to its output folder, is it the run of the checkpoint, and where does it continue?"""

import hashlib
import json
import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from torch import nn

from lacuna.common.errors import CorruptCheckpointError, InputError, StorageError
from lacuna.common.files import hold
from lacuna.common.hub import check_login

from ..arguments import TrainingArguments
from ..distributed import fsdp
from ..optimizers.adapters import Adapter
from ..optimizers.averages import Average
from ..progress import Progress
from .saving import load_state, load_weights, newest_checkpoint, read_progress

IDENTITY = ("seed", "batch_size", "batch_size_at", "optimizer", "average")
"""Options that make a run another one: resuming with another value is refused, unless --allow_change."""

PARTS = ("freeze_backbone", "lora_rank", "lora_alpha", "group_by_length")  # the same, where they are given

SCHEDULE = (
    *("max_steps", "max_minutes", "max_epochs", "max_tokens", "learning_rate", "schedule", "warmup_steps"),
    *("decay_share", "weight_decay", "adam_beta2", "max_grad_norm", "ema_decay", "skip_steps"),
    *("mixed_precision", "deterministic", "micro_batch_size", "compile"),
    *("layerwise_decay", "embedding_rate", "early_stopping_patience"),
)
"""Options that may change: the change is printed, and recorded in run.json."""

_OURS = {"run.json", "metrics.jsonl", "checkpoints"}  # of these a folder with a run has at least one


def claim_output_dir(arguments: TrainingArguments, *, resumes: bool = True, **identity: Any) -> None:
    """Refuse a folder that holds another run or somebody's files, and lock it against other runs.

    A `--push_to_hub` that cannot succeed is refused too; with `--dry_run` nothing is. A recipe that `resumes` has
    `--resume`, which is offered; what is known of its identity before the data is read is compared at once. Raises
    InputError: something must stay as it is; StorageError: the folder cannot be written.
    """
    if not getattr(arguments, "dry_run", False):
        _check_output_dir(arguments, resumes=resumes)
        hold(Path(arguments.output_dir))
        for checkpoint in sorted(Path(arguments.output_dir, "checkpoints").glob("step-*"))[-1:]:
            with suppress(CorruptCheckpointError):  # `resume` looks for an older one
                theirs = read_progress(checkpoint).identity
                ours = theirs | identity_of(arguments=arguments, config=None, facts=identity)
                check_identity(ours=ours, theirs=theirs, allowed=arguments.allow_change, checkpoint=checkpoint)


def refusal(arguments: TrainingArguments, *, resumes: bool) -> list[str]:
    """What `--dry_run` says of a folder that the run itself would be refused for: a line, or none."""
    try:
        _check_output_dir(arguments, resumes=resumes)
    except (InputError, StorageError) as error:
        return [f"note: without --dry_run this would be refused: {error}"]
    return []


def _check_output_dir(arguments: TrainingArguments, *, resumes: bool) -> None:
    if arguments.push_to_hub is not None:
        check_login(arguments.push_to_hub, asked_with="--push_to_hub")
    folder = Path(arguments.output_dir)
    parent = next(path for path in [folder, *folder.absolute().parents] if path.exists())
    if not parent.is_dir():
        raise InputError(f"--output_dir {folder}: {parent} is a file; name a folder")
    there = sorted(path.name for path in folder.iterdir() if path.name[0] != ".") if folder.exists() else []
    if not arguments.resume and {"run.json", "checkpoints"} & {*there}:
        ways = "add --resume to continue it, or name another folder" if resumes else "name another folder"
        raise InputError(f"--output_dir {folder} already holds a run; {ways}")
    if not arguments.resume and there:
        why = "is not empty and would be written over; name"
        if there == ["metrics.jsonl"]:
            why = "holds what an interrupted run has left, metrics.jsonl; delete that, or name"
        raise InputError(f"--output_dir {folder} {why} another folder")
    if {"run.json", "config.json"} <= {*there} and "checkpoints" not in there:
        raise InputError(f"--resume: the run in {folder} is finished, with no checkpoint to continue from")
    if there and not _OURS & {*there}:
        raise InputError(
            f"--resume: {folder} holds no run but {there[0]}, which might be written over; name another folder"
        )
    if not os.access(parent, os.W_OK):
        raise StorageError(f"--output_dir {folder}: no permission to write in {parent}")


def goes_on(arguments: TrainingArguments) -> bool:
    """Whether a run takes up a checkpoint, and so needs no first weights."""
    return arguments.resume and any(Path(arguments.output_dir, "checkpoints").glob("step-*"))


def identity_of(*, arguments: TrainingArguments, config: Any, facts: dict[str, Any]) -> dict[str, Any]:
    """What must not change between a run and its continuation, as JSON gives it back.

    `facts` are what the recipe knows: fingerprints of data and tokenizer, the objective.
    """
    options = {name: str(it) if isinstance(it := getattr(arguments, name), tuple) else it for name in IDENTITY}
    options |= {name: value for name in PARTS if (value := getattr(arguments, name))}
    if hasattr(config, "to_diff_dict"):
        content = {name: value for name, value in config.to_diff_dict().items() if name != "transformers_version"}
        text = json.dumps(content, sort_keys=True, default=str)
        options["model_config"] = hashlib.sha256(text.encode()).hexdigest()[:16]
    return json.loads(json.dumps({**options, **facts}, default=str))


def schedule_of(arguments: TrainingArguments) -> dict[str, Any]:
    """The options that may change, as JSON gives them back."""
    return json.loads(json.dumps({name: getattr(arguments, name) for name in SCHEDULE}))


def check_identity(
    *, ours: dict[str, Any], theirs: dict[str, Any], allowed: Sequence[str], checkpoint: Any
) -> list[dict[str, Any]]:
    """Compare the identity of this run with that of a checkpoint; returns the changes that were `allowed`.

    Raises InputError: something else differs, or `--allow_change` names what there is not.
    """
    if unknown := sorted(set(allowed) - set(ours) - set(theirs)):
        raise InputError(f"--allow_change {unknown[0]} is unknown; known are {', '.join(sorted(ours))}")
    names = [name for name in sorted({*ours, *theirs} - set(allowed)) if ours.get(name) != theirs.get(name)]
    if names:
        found = [each for name in names for each in _differences(name, ours.get(name), theirs.get(name))]
        raise InputError(
            f"--resume: this is another run than that in {checkpoint}: {'; '.join(found)}. Resume with the same "
            f"values, start a new --output_dir, or say that it is meant: --allow_change {' '.join(names)}"
        )
    return _changes(theirs, ours)


def _differences(name: str, ours: Any, theirs: Any) -> list[str]:
    """What differs between two values, of dictionaries only their parts that do."""
    if not isinstance(ours, dict) or not isinstance(theirs, dict):
        return [f"{name} is " + ("of another model" if name == "model_config" else f"{ours!r} and was {theirs!r}")]
    keys = [key for key in sorted({*ours, *theirs}) if ours.get(key) != theirs.get(key)]
    return [each for key in keys for each in _differences(f"{name}.{key}", ours.get(key), theirs.get(key))]


def _changes(before: dict[str, Any], after: dict[str, Any]) -> list[dict[str, Any]]:
    """What differs between two sets of options that both have."""
    changed = [name for name in before if name in after and before[name] != after[name]]
    return [{"option": name, "before": before[name], "after": after[name]} for name in changed]


def resume(
    arguments: TrainingArguments,
    *,
    model: nn.Module,
    optimizers: list[Any],
    average: Average | None,
    adapter: Adapter | None,
    fresh: Progress,
) -> tuple[Progress, list[dict[str, Any]], list[str]]:
    """Load the newest checkpoint; returns its progress, the options that changed since, and messages for people.

    The model is the bare one, and `fresh` the progress of a run from the beginning, with identity and options of this
    one. Raises InputError: the run is finished or another one; CorruptCheckpointError: no checkpoint verifies and
    fits.
    """
    output_dir = Path(arguments.output_dir)
    checkpoint, notices = newest_checkpoint(output_dir)
    if checkpoint is None and (output_dir / "config.json").exists():
        raise InputError(f"--resume: the run in {output_dir} is finished, with no checkpoint to continue from")
    if checkpoint is None:
        return fresh, [], [*notices, f"no checkpoint in {output_dir}: starting from the beginning"]
    progress = read_progress(checkpoint)
    changed = check_identity(
        ours=fresh.identity, theirs=progress.identity, allowed=arguments.allow_change, checkpoint=checkpoint
    )
    if arguments.max_steps and progress.step > arguments.max_steps:
        raise InputError(
            f"--resume: the run in {output_dir} has made {progress.step:,} steps, and the limit is now "
            f"{arguments.max_steps:,}; raise --max_steps, or whatever limits the run"
        )
    changed += _changes(progress.options, fresh.options)
    renewed = {change["option"] for change in changed} & {"optimizer", "average"}
    try:
        weights = load_state(checkpoint, "learned") or load_weights(checkpoint)
        names = None if adapter is None else adapter.learned(model.state_dict()).keys()
        fsdp.load_model_state(model, weights, names=names)
        state = {} if "optimizer" in renewed else load_state(checkpoint, "optimizer")
        fsdp.load_optimizer_state(model, optimizers, state)
    except (KeyError, ValueError) as error:
        raise CorruptCheckpointError(f"checkpoint {checkpoint} is not of this model: {error.args[0]}") from error
    if average is not None and "average" not in renewed:
        average.load(load_state(checkpoint, "average"))
    if "average" in renewed:  # the weights that were best so far are not there
        progress.best_metric, progress.best_step, progress.best_loss = None, -1, None
    notices.append(f"resuming from {checkpoint} at step {progress.step:,}")
    notices += [f"  {change['option']} was {change['before']} and is {change['after']} now" for change in changed]
    notices += [f"  the saved {name} is not loaded" for name in sorted(renewed)]
    progress.identity, progress.options = fresh.identity, fresh.options
    return progress, changed, notices
