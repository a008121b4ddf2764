"""Raw text -> a byte-level BPE tokenizer, and a report on how good it is."""

from .arguments import TokenizerArguments
from .bpe import (
    SPECIAL_TOKENS,
    TokenizerError,
    adapt_tokenizer,
    load_tokenizer,
    save_tokenizer,
    tokenizer_fingerprint,
    train_bpe,
)
from .report import compression_report, token_byte_lengths

__all__ = [
    "SPECIAL_TOKENS",
    "TokenizerArguments",
    "TokenizerError",
    "adapt_tokenizer",
    "compression_report",
    "load_tokenizer",
    "save_tokenizer",
    "token_byte_lengths",
    "tokenizer_fingerprint",
    "train_bpe",
]
