"""All errors that a recipe reports, each with its exit code."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager


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
