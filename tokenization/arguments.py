"""What a person can say about a tokenizer on the command line."""

from dataclasses import dataclass
from typing import Literal

from lacuna.common.options import Arguments, option


@dataclass
class TokenizerArguments(Arguments):
    """Options of `recipes/train_tokenizer.py`, beside those that say which text."""

    output_dir: str = option("runs/tokenizer", "Folder that receives the tokenizer and its report.")
    vocab_size: int = option(
        8192, "Number of tokens to reach: 5 special ones, the 256 bytes, and what is learned above them."
    )
    min_frequency: int = option(2, "A pair of tokens seen fewer times than this is never merged into a new one.")
    normalizer: Literal["none", "nfc", "nfkc", "lowercase", "strip_accents", "lowercase_strip_accents"] = option(
        "none",
        "What is done to every text first. Only none gives back each text as it was; nfc makes equal what "
        "looks equal, nfkc also full-width letters and ligatures.",
    )
    pattern: Literal["modern", "gpt2", "code"] = option(
        "modern",
        "How text is cut into words: modern keeps marks with their letters and digits in groups of three, "
        "code also keeps indentation whole, gpt2 is that of GPT-2.",
    )
    extra_special_tokens: list[str] = option([], "Further special tokens, such as <user> <assistant>.")
    num_sentinels: int = option(0, "Special tokens <extra_id_0>, <extra_id_1> ... for gaps; span corruption uses 100.")
    pad_to_multiple_of: int = option(
        64,
        "The vocabulary's size becomes a multiple of this, which GPUs like: --vocab_size is rounded up "
        "and learned. Where the text ends before, reserved tokens [unused0] ... fill up. 1 for none of it.",
    )
    max_bytes: int = option(
        1_000_000_000,
        "Learn from a random sample of about this much text, where there is more. Text with very many "
        "different words is sampled further, so that memory stays under 4 GiB.",
    )
    seed: int = option(0, "Chooses the sample, and what is held out for the report.")
    extend: str | None = option(
        None,
        "Folder of a tokenizer to add tokens to, up to --vocab_size with the old ones; old ids stay as "
        "they are, and so do normalizer and pattern.",
    )
