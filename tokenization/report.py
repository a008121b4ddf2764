"""How good a tokenizer is: what each token stands for, and how far text shrinks."""

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerFast

from .errors import TokenizerError
from .vocabulary import ALPHABET, token_byte_lengths

BATCH_CHARACTERS = 1 << 20


def compression_report(*, tokenizer: PreTrainedTokenizerFast, documents: Iterable[str]) -> dict[str, Any]:
    """Encode the documents and count.

    Returns:
        vocab_size; documents, bytes, words (runs without white space) and tokens; bytes_per_token; tokens_per_word
        (fertility); single_byte_share (tokens of one byte over all tokens, spaces and punctuation included);
        unused_tokens (ids never seen, special tokens aside); longest_tokens (ten, decoded).

    Raises:
        TokenizerError: there is no text, or the tokenizer is not byte-level.
    """
    lengths = token_byte_lengths(tokenizer)
    backend = Tokenizer.from_str(tokenizer.backend_tokenizer.to_str())
    backend.encode_special_tokens = True  # "[SEP]" in a text is text
    counts = np.zeros(len(tokenizer), dtype=np.int64)
    num_documents = num_bytes = num_words = 0
    for batch in _batches(documents):
        num_documents += len(batch)
        num_bytes += sum(len(document.encode()) for document in batch)
        num_words += sum(len(document.split()) for document in batch)
        for encoding in backend.encode_batch_fast(batch, add_special_tokens=False):
            counts += np.bincount(encoding.ids, minlength=len(counts))
    num_tokens = int(counts.sum())
    if not num_tokens:
        raise TokenizerError("there is no text to measure the tokenizer on. Check --data.")
    alphabet = set(ALPHABET)
    single = [token_id for token, token_id in tokenizer.get_vocab().items() if token in alphabet]
    longest = sorted(np.flatnonzero(lengths), key=lambda token_id: (-lengths[token_id], token_id))[:10]
    return {
        "vocab_size": len(tokenizer),
        "documents": num_documents,
        "bytes": num_bytes,
        "words": num_words,
        "tokens": num_tokens,
        "bytes_per_token": num_bytes / num_tokens,
        "tokens_per_word": num_tokens / max(1, num_words),
        "single_byte_share": float(counts[single].sum() / num_tokens),
        "unused_tokens": int(((counts == 0) & (lengths > 0)).sum()),
        "longest_tokens": [tokenizer.decode([int(token_id)]) for token_id in longest],
    }


def _batches(documents: Iterable[str]) -> Iterator[list[str]]:
    """Lists of documents of about BATCH_CHARACTERS, so that memory does not grow with the corpus."""
    batch: list[str] = []
    size = 0
    for document in documents:
        batch.append(document)
        size += len(document)
        if size >= BATCH_CHARACTERS:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch
