"""Tokenize text once, into a store that training reads from disk.

    python recipes/prepare_corpus.py                                                   # the built-in corpus, seconds
    python recipes/prepare_corpus.py --data my_texts/ --tokenizer runs/tokenizer --output_dir runs/corpus

A store that is already there for the same text and tokenizer is kept. Pretraining takes it with --corpus.
"""

import time
from pathlib import Path

from corpus import (
    StoreArguments,
    build_store,
    builtin_documents,
    corpus_fingerprint,
    find_files,
    read_documents,
)
from tokenization import load_tokenizer, tokenizer_fingerprint
from training import exit_cleanly, parse_arguments


def main() -> None:
    (arguments,) = parse_arguments((StoreArguments,))
    tokenizer = load_tokenizer(arguments.tokenizer or "runs/tokenizer")
    identity = tokenizer_fingerprint(tokenizer)
    fingerprint = corpus_fingerprint(
        paths=arguments.data, text_column=arguments.text_column, tokenizer_fingerprint=identity
    )
    if arguments.data:
        documents = read_documents(paths=arguments.data, text_column=arguments.text_column)
        total_bytes = sum(path.stat().st_size for path in find_files(paths=arguments.data))
    else:
        documents, total_bytes = builtin_documents(), None

    start = time.perf_counter()
    store = build_store(
        documents=documents,
        tokenizer=tokenizer,
        output_dir=Path(arguments.output_dir),
        fingerprint=fingerprint,
        tokenizer_fingerprint=identity,
        total_bytes=total_bytes,
    )
    seconds = time.perf_counter() - start
    print(f"{store.path}: {store.summary()}, {seconds:.1f} s")


if __name__ == "__main__":
    exit_cleanly(main)
