"""The ways a run can end other than well, each with the exit code that a recipe returns for it."""


class ArgumentError(ValueError):
    """An option, a configuration file or a combination of both that cannot be run."""

    exit_code = 2


class CorruptCheckpointError(RuntimeError):
    """A checkpoint that is incomplete or whose bytes are not the ones that were written."""

    exit_code = 3


class NumericsError(RuntimeError):
    """A loss or gradient that is not a finite number."""

    exit_code = 4


class StorageError(OSError):
    """The output folder cannot be written."""

    exit_code = 5


class StoppedError(RuntimeError):
    """The run was asked to stop, and has stopped with its work saved."""

    exit_code = 143
