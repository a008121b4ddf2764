"""The names that people know from `TrainingArguments` and the example scripts of transformers, and ours for them."""

import os
from collections.abc import Container, Mapping, Sequence

from .errors import InputError

SAME = {
    "model_name_or_path": ("model",),
    "tokenizer_name": ("tokenizer",),
    "dataset_name": ("train_file", "data"),
    "dataset_config_name": ("dataset_config",),
    "train_file": ("train_file", "data"),
    "validation_file": ("eval_file", "eval_data"),
    "test_file": ("eval_file",),
    "text_column_name": ("text_column", "tokens_column"),
    "label_column_name": ("label_column", "tags_column"),
    "max_seq_length": ("sequence_length", "max_length"),
    "block_size": ("sequence_length", "max_length"),
    "max_source_length": ("max_length",),
    "doc_stride": ("stride",),
    "mlm_probability": ("mask_probability",),
    "num_train_epochs": ("max_epochs",),
    "per_device_eval_batch_size": ("eval_batch_size",),
    "lr": ("learning_rate",),
    "warmup_ratio": ("warmup_steps",),
    "lr_scheduler_type": ("schedule",),
    "optim": ("optimizer",),
    "save_total_limit": ("keep_checkpoints",),
    "metric_for_best_model": ("metric",),
    "dataloader_num_workers": ("num_workers",),
    "hub_model_id": ("push_to_hub",),
}
"""Options that mean the same, and what they are called here: the first that a recipe has."""
VALUES = {
    "lr_scheduler_type": {"constant_with_warmup": "constant", "warmup_stable_decay": "wsd"},
    "optim": {"adamw_torch": "adamw", "adamw_torch_fused": "adamw", "adamw_hf": "adamw"},
    "report_to": {"none": ""},
}
SWITCHES = {
    "bf16": "--mixed_precision=bf16",
    "fp16": "--mixed_precision=fp16",
    "torch_compile": "--compile=on",
    "load_best_model_at_end": "--average=best",
    "resume_from_checkpoint": "--resume",
}
"""Options that are on or off, and what they are here when they are on."""
NEEDLESS = {
    "do_train": "training is what this recipe does",
    "do_eval": "held-out data are evaluated anyway",
    "do_predict": "predictions of held-out rows are written anyway; recipes/predict.py answers others",
    "eval_strategy": "--eval_steps says when (0.34 for three times in a run)",
    "save_strategy": "--save_steps says when",
    "logging_strategy": "--logging_steps says when",
    "greater_is_better": "every metric says so itself",
    "disable_tqdm": "the line is drawn in terminals and notebooks, and printed elsewhere",
    "remove_unused_columns": "columns that no option names are not read",
}
"""Options that change nothing here, and why."""
REFUSED = {
    "overwrite_output_dir": "a model is never overwritten; name another --output_dir, or --resume the run there",
    "auto_find_batch_size": "not there; recipes/plan_run.py says how many rows fit, for --micro_batch_size",
    "gradient_checkpointing": "not there; use a smaller --micro_batch_size",
    "hub_token": "a token on a command line is seen by others; log in with: hf auth login",
    "max_train_samples": "not there; use a smaller file, or --max_steps",
    "deepspeed": "not there; FSDP2 shards too: accelerate launch --config_file recipes/accelerate/fsdp2.yaml",
    "fsdp": "start with: accelerate launch --config_file recipes/accelerate/fsdp2.yaml",
    "metric_for_best_model": "pretraining keeps what has the least loss, with --average best",
    "validation_split_percentage": "here it is a fraction: --eval_fraction 0.05 for 5 %",
    "line_by_line": "here: --document_boundary line",
    "data_seed": "here --seed is that of the order, too",
    "config_name": "a new model is chosen with --family and --size",
    "run_name": "not there: a run has the name of its --output_dir",
    "use_cpu": "hide the GPU: CUDA_VISIBLE_DEVICES= python recipes/...",
    "cache_dir": "set HF_HOME for what comes from the Hub, and LACUNA_CACHE for tokenized text",
}
"""Options that cannot be, and what to use."""
_YES, _NO = ("", "true", "1", "yes", "on"), ("false", "0", "no", "off")


def understood(known: Container[str]) -> list[str]:
    """Names of transformers that mean something to a recipe with these options."""
    same = [name for name, ours in SAME.items() if any(each in known for each in ours)]
    return [*same, *SWITCHES, *NEEDLESS, "per_device_train_batch_size", "gradient_accumulation_steps"]


def as_words(name: str, values: Sequence[str]) -> list[str]:
    """An option and its values as words of a command line, where no value is taken for another option."""
    if any(value.startswith("--") for value in values):
        return [f"--{name}={value}" for value in values]
    return [f"--{name}", *values]


def translate(
    options: Sequence[tuple[str, list[str]]], known: Container[str], *, together: Mapping[str, list[str]] | None = None
) -> tuple[list[str], list[str]]:
    """Put our names for those of transformers; an option of the recipe is left alone.

    Args:
        options: names without dashes, each with its values, as they were given.
        known: names of the options of the recipe.
        together: all that are given beside each other, where these are some of them.

    Returns words of a command line, and a sentence on each that was put in place of another. Raises InputError: an
    option of transformers that cannot be, and what to use.
    """
    words: list[str] = []
    said: list[str] = []
    given = together or dict(options)
    steps = given.get("gradient_accumulation_steps")
    for name, values in options:
        shown, plain = " ".join([f"--{name}", *values]), " ".join(values).lower()
        ours: list[str] | None = None
        if name == "push_to_hub" and plain in _YES:
            raise InputError("--push_to_hub needs a name, as in --push_to_hub OWNER/NAME")
        if name in VALUES and name in known:
            kept = [each for each in (VALUES[name].get(value, value) for value in values) if each]
            words += as_words(name, kept) if kept else []
        elif name in known:
            words += as_words(name, values)
        elif target := next((each for each in SAME.get(name, ()) if each in known), None):
            ours = [f"--{target}", *(VALUES.get(name, {}).get(value, value) for value in values)]
            if name == "metric_for_best_model":
                ours[1:] = [value.removeprefix("eval_") for value in values]
        elif name in REFUSED and plain not in _NO:
            raise InputError(f"--{name}: {REFUSED[name]}")
        elif name in NEEDLESS or name in REFUSED:
            said.append(f"{shown} changes nothing: {NEEDLESS.get(name, 'it is not there')}")
        elif name in SWITCHES:
            if plain not in (*_YES, *_NO):
                raise InputError(f"{shown}: here this is {SWITCHES[name]}, which takes no such value")
            ours = [SWITCHES[name]] if plain in _YES else []
        elif name == "per_device_train_batch_size" and "batch_size" in known:
            ours = _batches(values, steps or ["1"])
            shown += f" --gradient_accumulation_steps {' '.join(steps)}" if steps else ""
        elif name == "gradient_accumulation_steps" and "batch_size" in known:
            if "per_device_train_batch_size" not in given:
                raise InputError(
                    f"{shown}: give --per_device_train_batch_size with it, or here --batch_size, which is that of a "
                    "step, and --micro_batch_size, which is that of a forward pass"
                )
        else:
            words += as_words(name, values)
        if ours is not None:
            words += ours
            said.append(f"{shown} is {' '.join(ours) or 'nothing'} here")
    return words, said


def _batches(size: list[str], steps: list[str]) -> list[str]:
    """The batch of a step and of a forward pass, from that of a device and the number of passes in a step."""
    try:
        each, passes, processes = int(size[0]), int(steps[0]), int(os.environ.get("WORLD_SIZE", "1"))
    except (IndexError, ValueError):
        raise InputError(
            f"--per_device_train_batch_size {' '.join(size)} --gradient_accumulation_steps {' '.join(steps)}: both "
            "must be whole numbers"
        ) from None
    return [f"--batch_size={each * passes * processes}", f"--micro_batch_size={each}"]
