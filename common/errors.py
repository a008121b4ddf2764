"""Every way in which a run can end other than well, each with the exit code that a recipe returns for it."""


class LacunaError(Exception):
    """An error whose message is meant for the person at the keyboard: a recipe prints it without a traceback."""

    exit_code = 1


class InputError(LacunaError, ValueError):
    """An option, a configuration, a text, a table or a model that cannot be used, or two that do not fit together."""

    exit_code = 2


class BadRecord(InputError):
    """One record or document is broken and what follows it can still be read: `--on_bad_record skip` passes over it.

    Readers yield it in the place of the record; whoever reads decides whether to raise it.
    """


class CorruptCheckpointError(LacunaError, RuntimeError):
    """Weights or a checkpoint that are incomplete, or whose bytes are not the ones that were written."""

    exit_code = 3


class NumericsError(LacunaError, RuntimeError):
    """A loss, a gradient or an output that is not a finite number."""

    exit_code = 4


class StorageError(LacunaError, RuntimeError):
    """The disk is full or does not let us write."""

    exit_code = 5


class HubError(LacunaError, RuntimeError):
    """A model or a dataset of the Hub is missing, gated or out of reach."""

    exit_code = 6


class WorkerError(LacunaError, RuntimeError):
    """A process that helps to build a token store failed or was killed."""


class StoppedError(LacunaError, RuntimeError):
    """The run was asked to stop, and has stopped with its work saved."""

    exit_code = 143
