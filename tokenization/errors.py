"""What can go wrong with a tokenizer that a person can mend."""


class TokenizerError(ValueError):
    """A tokenizer cannot be trained, saved or read."""

    exit_code = 2


class TokenizerStorageError(TokenizerError):
    """The disk is full or does not let us write."""

    exit_code = 5
