"""What people are told: all errors that a recipe reports, each with its exit code, and how far it is."""

import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

from tqdm import tqdm

LOG_SECONDS = 30


def progress_bar(rows: Iterable[Any] | None = None, *, doing: str, unit: str, delay: float = 3, **how: Any) -> Any:
    """How much of `rows` is done, and time left, on standard error after `delay` seconds; in a log each half minute.

    `how`: options of tqdm, such as the `total` of what is counted by hand.
    """
    seconds = 0.1 if sys.stderr.isatty() else LOG_SECONDS
    look: dict[str, Any] = {"unit": unit, "unit_scale": True, "leave": False, "mininterval": seconds, **how}
    if not sys.stderr.isatty():  # whole lines, where tqdm would go back to begin one again
        written = {"write": lambda text: text.strip() and print(text.strip(), file=sys.stderr)}
        look["file"] = SimpleNamespace(**written, flush=sys.stderr.flush)
    return tqdm(rows, desc=doing, delay=max(delay, seconds), **look)


class LacunaError(Exception):
    """An error whose message is for the user: recipes print it without a traceback."""

    exit_code = 1


@contextmanager
def called(names: Mapping[str, str]) -> Iterator[None]:
    """Errors in here call files and options by these names, as what keeps rows of standard input, or --teacher."""
    try:
        yield
    except LacunaError as error:
        message = str(error)
        for known, name in names.items():
            message = message.replace(known, name)
        error.args = (message,)
        raise


class InputError(LacunaError, ValueError):
    """An option, configuration, text, table or model that cannot be used, or two that do not fit together."""

    exit_code = 2


class BadRecord(InputError):
    """One broken record or document, after which reading can continue: `--on_bad_record skip` skips it.

    Readers yield it in place of the record; the caller decides whether to raise it.
    """


class CorruptCheckpointError(LacunaError, RuntimeError):
    """Weights or a checkpoint that are incomplete or damaged."""

    exit_code = 3


class NumericsError(LacunaError, RuntimeError):
    """A loss, a gradient or an output that is not a finite number."""

    exit_code = 4


class StorageError(LacunaError, RuntimeError):
    """The disk is full or cannot be written."""

    exit_code = 5


class HubError(LacunaError, RuntimeError):
    """A model or a dataset of the Hub is missing, gated or out of reach."""

    exit_code = 6


class WorkerError(LacunaError, RuntimeError):
    """A worker process that builds a token store failed or was killed."""


class StoppedError(LacunaError, RuntimeError):
    """The run was stopped by a signal after saving its work."""

    exit_code = 143
