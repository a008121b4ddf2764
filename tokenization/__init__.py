"""Raw text -> a byte-level BPE tokenizer, and a report on how good it is."""

from .arguments import TokenizerArguments
from .bpe import (
    SPECIAL_TOKENS,
    adapt_tokenizer,
    load_tokenizer,
    save_tokenizer,
    tokenizer_fingerprint,
    train_bpe,
)
from .errors import TokenizerError
from .report import compression_report
from .vocabulary import token_byte_lengths, token_edges

__all__ = [
    "SPECIAL_TOKENS",
    "TokenizerArguments",
    "TokenizerError",
    "adapt_tokenizer",
    "compression_report",
    "load_tokenizer",
    "save_tokenizer",
    "token_byte_lengths",
    "token_edges",
    "tokenizer_fingerprint",
    "train_bpe",
]
