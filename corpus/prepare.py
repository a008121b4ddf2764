"""Whatever text the options name, as a token store: the one that --corpus names, or one of the text of --data."""

import hashlib
from collections.abc import Callable
from typing import Any

from lacuna.common.errors import InputError
from lacuna.common.files import cache_folder

from .arguments import CorpusArguments
from .read.text import Text, open_text
from .store.build import prepare_store
from .store.token_store import TokenStore, open_store


def prepare_corpus(
    arguments: CorpusArguments,
    *,
    tokenizer_for: Callable[[Text | None], Any],
    fingerprint_of: Callable[[Any], str],
) -> tuple[Any, TokenStore]:
    """The tokenizer and the token store; built by whichever process comes first, found there by the others.

    Args:
        tokenizer_for: the text, or None where there is a store already -> its tokenizer.
        fingerprint_of: what tells tokenizers apart.

    Raises:
        InputError: options that do not fit each other, or bad text.
        StorageError: the store cannot be written.
    """
    if arguments.corpus:
        if arguments.data:
            raise InputError("--corpus goes without --data, and with the --tokenizer that it was made with")
        tokenizer, store = tokenizer_for(None), open_store(arguments.corpus)
        if store.tokenizer_fingerprint != fingerprint_of(tokenizer):
            raise InputError(f"--corpus {arguments.corpus} was made with another tokenizer than the one that is given")
        return tokenizer, store
    text = open_text(arguments)
    tokenizer = tokenizer_for(text)
    made_with = fingerprint_of(tokenizer)
    folder = cache_folder() / "corpora" / hashlib.sha256(f"{text.fingerprint} {made_with}".encode()).hexdigest()[:16]
    made = prepare_store(text=text, tokenizer=tokenizer, tokenizer_fingerprint=made_with, output_dir=folder)
    assert made is not None  # as it is where only a part of several is prepared
    return tokenizer, made
