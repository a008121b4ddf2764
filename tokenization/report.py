"""How good a tokenizer is: what each token stands for, and how far text shrinks."""

import json
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerFast

from .bpe import ALPHABET, TokenizerError

BATCH_CHARACTERS = 1 << 20


def token_byte_lengths(tokenizer: PreTrainedTokenizerFast) -> np.ndarray:
    """Bytes of UTF-8 text that each token stands for: int64 [len(tokenizer)], 0 for special tokens and unused ids.

    Summed over the tokens of a text they give its length in bytes, which turns a loss per token into bits per byte,
    the one figure that compares models across tokenizers.

    Raises:
        TokenizerError: the tokenizer is not byte-level, so that its tokens do not add up to the text.
    """
    state = json.loads(tokenizer.backend_tokenizer.to_str())
    if "ByteLevel" not in json.dumps([state["pre_tokenizer"], state["decoder"]]):
        raise TokenizerError(
            "Lacuna pretrains with byte-level tokenizers, and this one (of --tokenizer or --model) is not byte-level; "
            "make one with recipes/train_tokenizer.py."
        )
    added = {token["id"]: token for token in state["added_tokens"]}
    lengths = np.zeros(len(tokenizer), dtype=np.int64)
    for token, token_id in tokenizer.get_vocab().items():
        if token_id not in added:
            lengths[token_id] = len(token)  # each character is one byte in the alphabet of a byte-level tokenizer
        elif not added[token_id]["special"]:
            lengths[token_id] = len(token.encode())
    return lengths


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
