"""What can go wrong between a file and the token store."""


class CorpusError(ValueError):
    """Text cannot be read, or a store cannot be used: bad data or a bad option."""

    exit_code = 2


class StorageError(CorpusError):
    """The disk is full or does not let us write."""

    exit_code = 5
