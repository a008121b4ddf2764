"""Command-line options of a tokenizer."""

from dataclasses import dataclass
from functools import partial
from typing import Literal

from lacuna.common.options import NORMALIZER, VOCABULARY, Arguments, Normalizer, essential, option

_tokenizer = partial(option, group="tokenizer")


@dataclass
class TokenizerArguments(Arguments):
    """Options of `recipes/train_tokenizer.py`, besides those that say which text."""

    output_dir: str = essential("runs/tokenizer", "Where the tokenizer and its report are written.")
    vocab_size: int = essential(
        VOCABULARY["vocab_size"], "Vocabulary size: 5 special tokens, the 256 bytes, and learned merges."
    )
    min_frequency: int = _tokenizer(2, "Merge only pairs of tokens that occur at least this often.")
    normalizer: Normalizer = _tokenizer(VOCABULARY["normalizer"], NORMALIZER)
    pattern: Literal["gpt2", "modern", "code"] | None = _tokenizer(
        None,
        "Pre-tokenization: gpt2, which llama.cpp knows too, modern (digits in groups of three, combining marks stay "
        "with their letters) or code (as modern, and keeps indentation whole). Default: modern where the text has "
        "combining marks, as Hindi and Thai do, else gpt2.",
    )
    extra_special_tokens: list[str] = _tokenizer([], "More special tokens, such as <user> <tool>.", metavar="TOKEN")
    pad_to_multiple_of: int = _tokenizer(
        64,
        "Round --vocab_size up to a multiple of this, which GPUs prefer; if the text yields too few merges, [unused0] "
        "... fill the rest. 1 turns it off.",
    )
    max_bytes: int = _tokenizer(
        1_000_000_000,
        "Train on a random sample of about this many bytes if there is more text. The sample is held in memory.",
    )
    seed: int = _tokenizer(0, "Seed of the sample and of the text held out for the report.")
    extend: str | None = _tokenizer(
        None,
        "Tokenizer to extend to --vocab_size instead of training a new one; it keeps its ids, normalizer and pattern.",
        metavar="DIR",
    )
