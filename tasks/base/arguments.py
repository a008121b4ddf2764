"""`TaskArguments`, the options that all tasks share, and makers of options."""

from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

from lacuna.common.errors import InputError
from lacuna.common.options import ReadingArguments, check_range, essential, option

data_option = partial(option, group="data")
model_option = partial(option, group="model")
optimizer_option = partial(option, group="optimizer")
rest_option = partial(option, group="evaluation and hardware")
ROWS = ".jsonl, .csv, .tsv, .parquet, a folder saved by `datasets` or a Hub dataset (OWNER/NAME:CONFIG:SPLIT)"


def column_option(text: str) -> Any:
    return data_option(None, f"{text} Default: inferred and printed.")


def max_length_option(text: str, default: int) -> Any:
    return data_option(None, f"{text} Default: {default}, or the model's limit if that is less.")


def check_max_length(max_length: int | None) -> None:
    """Refuse a length that special tokens alone fill, with an InputError."""
    if max_length is not None and max_length < 8:
        raise InputError(f"--max_length must be at least 8, or special tokens leave no room; got {max_length}")


@dataclass
class TaskArguments(ReadingArguments):
    """The options of all tasks, to which each adds its own."""

    is_built_in = False  # whether there are rows to learn from without a file
    train_file: str | None = essential(None, f"Rows to train on: {ROWS}.")
    eval_file: str | None = essential(None, "Rows to evaluate on. Default: a part of the training rows.")
    eval_fraction: float = data_option(0.1, "Fraction of the training rows to hold out without --eval_file.")
    max_length: int | None = max_length_option("Truncate texts to this many tokens.", 256)
    metric: str | None = rest_option(
        None,
        "The held-out score by which the best weights are kept and early stopping judges, such as "
        "matthews_correlation or loss. Default: the task's own.",
        metavar="NAME",
        advanced=True,
    )

    def __post_init__(self) -> None:
        check_range(self, "eval_fraction", above=0, below=1)
        check_max_length(self.max_length)
        if self.train_file is None and not self.is_built_in:
            raise InputError("there is no training data: name a file with --train_file")
        if self.train_file is None and self.eval_file is not None:
            raise InputError(f"--eval_file {self.eval_file} needs a --train_file")


def identity(arguments: Any) -> dict[str, Any]:
    """Options by name; how files are read only where that was given, as when it could not be given."""
    options = {name: value for name, value in asdict(arguments).items() if name not in ("column_names", "encoding")}
    return options | arguments.reading()


def used(arguments: Any) -> dict[str, Any]:
    """Options of the data by name, for a model card: without those that decided nothing."""
    options = identity(arguments)
    without = {name for name, value in options.items() if value == ""}
    if options.get("eval_file"):
        without.add("eval_fraction")
    if options.get("train_target_file") and not (options["eval_file"] and not options["eval_target_file"]):
        without |= {"source_column", "target_column"}
    return {name: value for name, value in options.items() if name not in without}
