"""What a person can say about text on the command line."""

from dataclasses import dataclass, field


@dataclass
class TextArguments:
    """Which text, and the tokenizer for it."""

    data: list[str] = field(
        default_factory=list,
        metadata={
            "help": "Files, folders or globs of text; nothing means the built-in corpus, the documentation that ships "
            "inside the Python interpreter."
        },
    )
    text_column: str = field(
        default="text", metadata={"help": "Column that holds the text, in files that have columns (.jsonl, .csv ...)."}
    )
    tokenizer: str | None = field(
        default=None, metadata={"help": "Folder of a tokenizer, made by recipes/train_tokenizer.py."}
    )


@dataclass
class CorpusArguments(TextArguments):
    """What a model is pretrained on."""

    corpus: str | None = field(
        default=None,
        metadata={"help": "Folder of a token store, made by recipes/prepare_corpus.py, instead of --data."},
    )


@dataclass
class StoreArguments(TextArguments):
    """Options of `recipes/prepare_corpus.py`."""

    output_dir: str = field(default="runs/corpus", metadata={"help": "Folder that receives the token store."})
