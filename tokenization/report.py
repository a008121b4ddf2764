"""How good a tokenizer is: how far text shrinks, and what of it falls to bytes."""

import sys
from collections.abc import Iterable
from typing import Any

import numpy as np
from tqdm import tqdm
from transformers import PreTrainedTokenizerFast

from lacuna.common.errors import InputError

from .patterns import batches, copy_backend
from .vocabulary import token_bytes

SHOWN_SECONDS = 3  # before a bar appears

# What GPT-2's tokenizer does with texts of other people, as they published it: bytes per token.
GPT2_REFERENCE: dict[str, Any] = {
    "vocab_size": 50257,
    "bytes_per_token": {"English web text": 4.67, "Python code": 2.19, "Korean": 1.20},
    "source": "https://huggingface.co/nanochat-students/nanochat-tokenizer-2B, read 2026-11-21; "
    "English web text: 4,208,518 bytes of FineWeb-Edu in 900,364 tokens",
}
COLUMNS = [("held out", "held_out"), ("old tokenizer", "before_extending")]
ROWS = [
    ("bytes per token", "bytes_per_token", ".2f"),
    ("characters per token", "characters_per_token", ".2f"),
    ("tokens per word", "tokens_per_word", ".2f"),
    ("single-byte tokens", "single_byte_share", ".1%"),
    ("text fallen to bytes", "torn_share", ".2%"),
]
SHOWN_CHARACTERS = 30  # of one of the longest tokens
MOST_TORN = 0.01  # of the text, before it is worth a warning


def compression_report(
    *, tokenizer: PreTrainedTokenizerFast, documents: Iterable[str], show_progress: bool = False
) -> dict[str, Any]:
    """Encode the documents and count.

    Returns:
        vocab_size; texts, bytes, words (runs without white space) and tokens; bytes_per_token, characters_per_token,
        tokens_per_word (fertility); single_byte_share (tokens of one byte over all tokens, spaces and punctuation
        included); torn_share (bytes of characters that no token holds whole, over all bytes); unused_tokens (ids never
        seen, special tokens aside); longest_tokens (the ten longest that are not white space alone, decoded).

    Raises:
        InputError: there is no text, or the tokenizer is not byte-level.
    """
    pieces = token_bytes(tokenizer)
    lengths = np.array([len(piece) for piece in pieces])
    backend = copy_backend(tokenizer, special_is_text=True)
    counts = np.zeros(len(pieces), dtype=np.int64)
    num_texts = num_bytes = num_characters = num_words = 0
    hidden = None if show_progress else True  # None: hidden where standard error is no terminal
    with tqdm(desc="measuring", unit="B", unit_scale=True, leave=False, delay=SHOWN_SECONDS, disable=hidden) as bar:
        for batch in batches(documents):
            size = sum(len(document.encode()) for document in batch)
            num_texts += len(batch)
            num_bytes += size
            num_characters += sum(map(len, batch))
            num_words += sum(len(document.split()) for document in batch)
            for encoding in backend.encode_batch_fast(batch, add_special_tokens=False):
                counts += np.bincount(encoding.ids, minlength=len(counts))
            bar.update(size)
    num_tokens = int(counts.sum())
    if not num_tokens:
        raise InputError("there is no text to measure the tokenizer on. Check --data.")
    whole = np.array([len(piece.decode(errors="ignore").encode()) for piece in pieces])  # bytes of whole characters
    visible = [token_id for token_id, piece in enumerate(pieces) if piece.strip()]
    longest = sorted(visible, key=lambda token_id: (-lengths[token_id], token_id))[:10]
    return {
        "vocab_size": len(tokenizer),
        "texts": num_texts,
        "bytes": num_bytes,
        "words": num_words,
        "tokens": num_tokens,
        "bytes_per_token": num_bytes / num_tokens,
        "characters_per_token": num_characters / num_tokens,
        "tokens_per_word": num_tokens / max(1, num_words),
        "single_byte_share": float(counts[lengths == 1].sum() / num_tokens),
        "torn_share": float((counts * (lengths - whole)).sum() / max(1, (counts * lengths).sum())),
        "unused_tokens": int(((counts == 0) & (lengths > 0)).sum()),
        "longest_tokens": [tokenizer.decode([token_id]) for token_id in longest],
    }


def peak_memory() -> int | None:
    """Bytes of memory that this process has held at most; None where the system does not say (Windows)."""
    try:
        import resource
    except ImportError:
        return None
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def torn_warning(report: dict[str, Any], *, held_out: dict[str, Any] | None = None) -> str | None:
    """What to say when more than MOST_TORN of the text falls to bytes; None when it does not."""
    worst, which = max((report["torn_share"], ""), (held_out["torn_share"] if held_out else 0, "held-out "))
    if worst <= MOST_TORN:
        return None
    return (
        f"{worst:.1%} of the {which}text falls to bytes: its characters have no token of their own and are written as "
        "two to four tokens each. Ask for a larger --vocab_size, or bring more text with these characters."
    )


def describe_report(report: dict[str, Any]) -> str:
    """The lines that the recipe prints: the report, its `held_out` and `before_extending` (the old tokenizer on the
    held-out text) beside it where they are there, and GPT-2's figures."""
    columns = [("trained on", report)] + [(title, report[key]) for title, key in COLUMNS if report.get(key)]
    lines = [
        f"vocabulary size       {report['vocab_size']:,} ({report['unused_tokens']:,} unused in the text measured)",
        f"{'':20}" + "".join(f"{title:>14}" for title, _ in columns),
    ]
    for title, key, form in ROWS:
        lines.append(f"{title:20}" + "".join(f"{column[key]:>14{form}}" for _, column in columns))
    figures = ", ".join(f"{value:.2f} ({name})" for name, value in GPT2_REFERENCE["bytes_per_token"].items())
    lines.append(f"GPT-2, as published   {figures} bytes per token, {GPT2_REFERENCE['vocab_size']:,} tokens")
    lines.append(f"longest tokens        {', '.join(map(_shown, report['longest_tokens'][:5]))}")
    return "\n".join(lines)


def _shown(token: str) -> str:
    """A token in quotes, the middle left out where it is long."""
    if len(token) > SHOWN_CHARACTERS:
        token = f"{token[: SHOWN_CHARACTERS - 8]}…{token[-4:]}"
    return repr(token)
