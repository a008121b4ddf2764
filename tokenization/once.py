"""A tokenizer that several processes and runs share: whoever comes first learns it."""

import sys
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from lacuna.common.files import locked

from .bpe import train_bpe
from .files import save_tokenizer
from .sampling import sample_documents

MAX_BYTES = 1_000_000_000
SILENT_WAIT_SECONDS = 5


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
