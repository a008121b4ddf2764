"""What a person can say about a tokenizer on the command line."""

from dataclasses import dataclass, field


@dataclass
class TokenizerArguments:
    """Options of `recipes/train_tokenizer.py`."""

    output_dir: str = field(
        default="runs/tokenizer", metadata={"help": "Folder that receives the tokenizer and its report."}
    )
    data: list[str] = field(
        default_factory=list,
        metadata={
            "help": "Files, folders or globs of text to learn from; nothing means the built-in corpus, "
            "the documentation that ships inside the Python interpreter."
        },
    )
    text_column: str = field(
        default="text", metadata={"help": "Column that holds the text, in files that have columns (.jsonl, .csv ...)."}
    )
    vocab_size: int = field(
        default=8192,
        metadata={"help": "Number of tokens to reach: 5 special ones, the 256 bytes, and what is learned above them."},
    )
    min_frequency: int = field(
        default=2, metadata={"help": "A pair of tokens seen fewer times than this is never merged into a new one."}
    )
