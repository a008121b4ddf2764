"""What a run is, and what may change when it is resumed."""

import hashlib
import json
from collections.abc import Sequence
from typing import Any

from lacuna.common.errors import InputError

from .arguments import TrainingArguments

IDENTITY = ("seed", "batch_size", "batch_size_at", "optimizer", "average")
"""Options without which the run is another one: resuming with another value is refused, unless --allow_change."""

PARTS = ("freeze_backbone", "lora_rank", "lora_alpha", "group_by_length")
"""The same of options that most runs leave alone: they are part of a run's identity where they are given."""

SCHEDULE = (
    *("max_steps", "max_minutes", "max_epochs", "max_tokens", "learning_rate", "schedule", "warmup_steps"),
    *("decay_share", "weight_decay", "adam_beta2", "max_grad_norm", "ema_decay", "tail_share", "skip_steps"),
    *("mixed_precision", "deterministic", "micro_batch_size", "compile"),
    *("layerwise_decay", "early_stopping_patience"),
)
"""Options that shape what follows and may change: the change is shown, and recorded in run.json."""


def identity_of(*, arguments: TrainingArguments, config: Any, facts: dict[str, Any]) -> dict[str, Any]:
    """What must not change between a run and its continuation, as JSON gives it back.

    Args:
        config: of the model; None where it has none.
        facts: what the recipe knows: fingerprints of data and tokenizer, the objective.
    """
    options = {
        name: str(value) if isinstance(value := getattr(arguments, name), tuple) else value for name in IDENTITY
    }
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
    """Compare what this run says of itself with what a checkpoint says.

    Args:
        allowed: names of `--allow_change`.

    Returns:
        The changes that were allowed: name, before, after.

    Raises:
        InputError: something else differs, or `allowed` names what there is not.
    """
    if unknown := sorted(set(allowed) - set(ours) - set(theirs)):
        raise InputError(f"--allow_change {unknown[0]}: a run has {', '.join(sorted(ours))}")
    differing = [name for name in sorted({*ours, *theirs}) if ours.get(name) != theirs.get(name)]
    for name in differing:
        if name not in allowed:
            raise InputError(
                f"--resume: {name} is {ours.get(name)!r}, but the run in {checkpoint} was made with "
                f"{theirs.get(name)!r}; resume with the same value, start a new --output_dir, or say that it is "
                f"meant: --allow_change {name}"
            )
    return changes(theirs, ours)


def changes(before: dict[str, Any], after: dict[str, Any]) -> list[dict[str, Any]]:
    """What differs between two sets of options that both have."""
    return [
        {"option": name, "before": before[name], "after": after[name]}
        for name in before
        if name in after and before[name] != after[name]
    ]


def skipped_steps(text: str) -> list[range]:
    """The steps, counted from 1, of `--skip_steps`: "120-125,300" is six steps and one more.

    Raises:
        InputError: a part is neither a number nor two with a dash between.
    """
    ranges = []
    for part in filter(None, text.replace(" ", "").split(",")):
        first, dash, last = part.partition("-")
        try:
            start, end = int(first), int(last if dash else first)
        except ValueError:
            start, end = 1, 0
        if not 1 <= start <= end:
            raise InputError(f"--skip_steps {text}: '{part}' is no step or range of steps, as in 120-125,300")
        ranges.append(range(start, end + 1))
    return ranges


def check_skipped(text: str, *, done: int, max_steps: int | None) -> list[str]:
    """What people are told of `--skip_steps` at the start of a run, or where it is taken up.

    Args:
        done: steps that the run has made.

    Raises:
        InputError: no step would be left.
    """
    ranges = skipped_steps(text)
    ahead = range(done + 1, (max_steps or 0) + 1)
    covered = done
    for steps in sorted(ranges, key=lambda steps: steps.start):
        covered = max(covered, steps.stop - 1) if steps.start <= covered + 1 else covered
    if ahead and covered >= ahead[-1]:
        raise InputError(f"--skip_steps {text} leaves out all the {len(ahead):,} steps that are to be made")
    behind = any(steps.start <= done for steps in ranges)
    return [f"--skip_steps {text}: {done:,} steps are made already, and stay as they were"] if behind else []
