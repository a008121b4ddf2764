"""What can go wrong between a file and the token store."""


class CorpusError(ValueError):
    """Text cannot be read, or a store cannot be used: bad data or a bad option."""

    exit_code = 2


class BadRecord(CorpusError):
    """One record or document is broken and what follows it can still be read: `--on_bad_record skip` passes over it.

    Readers yield it in the place of the record; whoever reads decides whether to raise it.
    """


class StorageError(CorpusError):
    """The disk is full or does not let us write."""

    exit_code = 5


class HubError(CorpusError):
    """A dataset of the Hub is missing, gated or out of reach."""

    exit_code = 6


class WorkerError(RuntimeError):
    """A process that helps to build a store failed or was killed."""

    exit_code = 1
