"""Tokenize text once, into a store that training reads from disk.

    python recipes/prepare_corpus.py                                                   # the built-in corpus, seconds
    python recipes/prepare_corpus.py --data my_texts/ --tokenizer runs/tokenizer --output_dir runs/corpus

A store that is already there for the same text and tokenizer is kept; a build that was interrupted resumes where it
stopped. Pretraining takes the store with --corpus.
"""

import time
from collections.abc import Sequence

from lacuna.common.command_line import exit_cleanly, parse_arguments
from lacuna.common.private import shown
from lacuna.corpus import StoreArguments, open_text, prepare_store
from lacuna.tokenization import load_tokenizer, tokenizer_fingerprint


def main(words: Sequence[str] | None = None) -> str:
    """Parse, build, show what came of it; returns the folder of the store."""
    (arguments,) = parse_arguments((StoreArguments,), words, description=__doc__)
    tokenizer = load_tokenizer(arguments.tokenizer or "runs/tokenizer")
    text = open_text(arguments)
    start = time.perf_counter()
    store = prepare_store(
        text=text,
        tokenizer=tokenizer,
        tokenizer_fingerprint=tokenizer_fingerprint(tokenizer),
        output_dir=arguments.output_dir,
        num_workers=arguments.num_workers,
    )
    seconds = time.perf_counter() - start
    print(f"{shown(store.path)}: {store.summary()}, {seconds:.1f} s, {store.num_bytes / 1e6 / seconds:.1f} MB/s")
    print(store.report(decode=tokenizer.decode))
    return str(arguments.output_dir)


if __name__ == "__main__":
    exit_cleanly(main)
