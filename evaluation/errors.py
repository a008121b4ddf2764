"""What can go wrong when a pretrained model is asked what it knows."""


class EvaluationError(ValueError):
    """A model, text or option that a suite cannot use; the message says where and what to do."""

    exit_code = 2


class CorruptModelError(EvaluationError):
    """The weights are incomplete or damaged."""

    exit_code = 3


class NumericsError(EvaluationError):
    """The model gives numbers that are not finite."""

    exit_code = 4


class StorageError(EvaluationError):
    """The results cannot be written."""

    exit_code = 5
