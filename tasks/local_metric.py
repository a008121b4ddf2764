"""Metrics as `evaluate.Metric` classes that need no hub: `evaluate.load("accuracy")` downloads a script, these do not.

A plain `evaluate.Metric` writes an Arrow file with a lock under the user's cache folder even for one number; two
processes, or a home folder that is read-only, then get in each other's way. These keep their data in memory and
create no folder, unless `num_process` asks for evaluate's own joining of processes through files.
"""

import os
from importlib import import_module
from typing import Any

import datasets
import evaluate

from lacuna.common.errors import InputError


def optional_module(name: str, *, extra: str = "tasks") -> Any:
    """A module of a package that only some tasks need.

    Raises:
        InputError: it is not installed; the message says how to install it.
    """
    try:
        return import_module(name)
    except ImportError as error:
        raise InputError(
            f"this task is measured with the package {name.split('.')[0]}, which cannot be imported ({error}): "
            f"pip install 'lacuna[{extra}]'"
        ) from error


class LocalMetric(evaluate.Metric):
    """An `evaluate.Metric` that lives in memory while one process uses it."""

    def __init__(self, config_name: str | None = None, *, num_process: int = 1, **options: Any) -> None:
        options.setdefault("keep_in_memory", num_process == 1)
        super().__init__(config_name, num_process=num_process, **options)

    def _build_data_dir(self) -> str:
        if self.keep_in_memory:
            return os.path.join(self._data_dir_root, self.name, self.config_name)  # named, never created
        return super()._build_data_dir()


def metric_info(description: str, citation: str, features: datasets.Features) -> evaluate.MetricInfo:
    """What evaluate wants to know of a metric; the description stands for that of its inputs too."""
    return evaluate.MetricInfo(
        description=description, citation=citation, inputs_description=description, features=features
    )
