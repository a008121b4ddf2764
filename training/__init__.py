"""The one loop: arguments, optimizers, schedules, precision, checkpoints, progress.

Names are resolved on first use, so that a recipe which only parses options does not wait for torch to load.
"""

from importlib import import_module
from typing import Any

_HOME = {
    "FineTuningArguments": "arguments",
    "ModelArguments": "arguments",
    "NewModelArguments": "arguments",
    "TrainingArguments": "arguments",
    "exit_cleanly": "command_line",
    "parse_arguments": "command_line",
    "claim_output_dir": "checkpoints",
    "refusal": "checkpoints",
    "processes": "environment",
    "use_all_cores": "environment",
    "is_main_process": "environment",
    "load_pretrained": "pretrained",
    "load_pretrained_tokenizer": "pretrained",
    "Work": "work",
    "fine_tune": "fine_tuning",
    "shown_command": "shown",
    "train": "loop",
}
__all__ = sorted(_HOME)


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'lacuna.training' has no attribute {name!r}")
    return getattr(import_module(f"lacuna.training.{_HOME[name]}"), name)
