"""Results as a table for people and as JSON with flat names."""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lacuna.common.errors import StorageError
from lacuna.common.files import write_text


def format_results(results: Mapping[str, Any]) -> str:
    """Two columns, a line for each number."""
    width = max(len(name) for name in results)
    return "\n".join(f"{name:<{width}}  {_format(value):>12}" for name, value in results.items())


def _format(value: Any) -> str:
    return f"{value:,.4f}" if isinstance(value, float) else f"{value:,}" if isinstance(value, int) else str(value)


def check_output_file(*, output_file: str | None, model: str, suite: str) -> Path:
    """Where results go, known to be writable before the model is asked anything.

    Args:
        output_file: the value of --output_file; None: evaluation_SUITE.json in the model's folder, or here for a
            model of the Hub.

    Raises:
        StorageError: nothing can be written there.
    """
    folder = Path(model).expanduser()
    default = (folder if folder.is_dir() else Path()) / f"evaluation_{suite}.json"
    path = Path(output_file).expanduser() if output_file else default
    parent = next(parent for parent in path.resolve().parents if parent.exists())
    if path.is_dir() or not parent.is_dir() or not os.access(path if path.exists() else parent, os.W_OK):
        raise StorageError(f"cannot write results to {path}: choose another file with --output_file")
    return path


def write_results(*, results: Mapping[str, Any], path: Path) -> None:
    """Write JSON; the file appears whole or not at all.

    Raises:
        StorageError: the disk is full or does not let us write.
    """
    write_text(path, json.dumps(dict(results), indent=2) + "\n", hint=". See --output_file")
