"""What can be wrong with a task's data or with the model that is to learn it."""


class TaskError(ValueError):
    """Labelled data, a column or a model that a task cannot use; the message says where and what to do."""

    exit_code = 2


class CorruptModelError(RuntimeError):
    """The weights to start from are incomplete or damaged."""

    exit_code = 3


class StorageError(RuntimeError):
    """What was found cannot be written."""

    exit_code = 5
