"""The tokenizer of a run: the one that is named, or one that several processes and runs share."""

import hashlib
import sys
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from lacuna.common import loading
from lacuna.common.errors import InputError
from lacuna.common.files import cache_folder, locked

from .bpe import train_bpe
from .files import load_tokenizer, save_tokenizer
from .sampling import sample_documents

MAX_BYTES = 1_000_000_000
SILENT_WAIT_SECONDS = 5


def load_or_train(
    text: Any,
    *,
    tokenizer: str | None,
    model: str | None,
    vocab_size: int,
    num_sentinels: int = 0,
    trust_remote_code: bool = False,
) -> Any:
    """The tokenizer that the options name, else that of the model they name, else one that is learned on the text.

    Args:
        text: with `texts()` and a `fingerprint`; None where there is only a token store, which has a tokenizer.
        tokenizer: --tokenizer.
        model: --model, a folder or a Hub id.

    Raises:
        InputError: there is none, it cannot be loaded, or there is nothing to learn from.
    """
    if model and not Path(model).is_dir() and tokenizer in (None, "", model):
        return loading.load_tokenizer(model, trust_remote_code=trust_remote_code)
    folder = tokenizer or model
    if not folder and text is None:
        raise InputError("--corpus goes without --data, and with the --tokenizer that it was made with")
    if not folder:
        key = hashlib.sha256(f"{text.fingerprint} sample {vocab_size} {num_sentinels}".encode()).hexdigest()[:16]
        folder = str(cache_folder() / "tokenizers" / key)
        train_once(documents=text.texts(), output_dir=Path(folder), vocab_size=vocab_size, num_sentinels=num_sentinels)
    return load_tokenizer(folder)


def train_once(*, documents: Iterable[str], output_dir: Path, vocab_size: int, num_sentinels: int = 0) -> None:
    """Learn a tokenizer from a sample of a text and save it, unless it is there.

    Args:
        documents: the texts of the corpus; read only if there is something to learn.
        output_dir: the place of this tokenizer alone, named by what decides it.

    Raises:
        InputError: there is nothing to learn; OSError: the folder cannot be written.
    """
    waiting = f"another process is learning the tokenizer {output_dir}; waiting for it"
    with locked(output_dir.with_name(f".{output_dir.name}.lock"), waiting=waiting, silent_seconds=SILENT_WAIT_SECONDS):
        if (output_dir / "tokenizer.json").is_file():
            return
        sample = sample_documents(documents=documents, max_bytes=MAX_BYTES)
        with _said_plainly():
            made = train_bpe(documents=sample.training(), vocab_size=vocab_size, num_sentinels=num_sentinels)
        save_tokenizer(tokenizer=made, output_dir=output_dir)


@contextmanager
def _said_plainly() -> Iterator[None]:
    """Print warnings as a line each, without the place in the code that they come from."""
    with warnings.catch_warnings():
        warnings.simplefilter("always", UserWarning)
        warnings.showwarning = lambda message, *_, **__: print(f"warning: {message}", file=sys.stderr)
        yield
