"""What a person can say about text on the command line."""

from dataclasses import dataclass
from typing import Literal

from lacuna.common.options import Arguments, option


@dataclass
class TextArguments(Arguments):
    """Which text, and the tokenizer for it."""

    data: list[str] = option(
        [],
        "Files, folders or globs of text (.txt, .jsonl, .csv, .tsv, .parquet, each also .gz or .zst), "
        "folders saved by `datasets`, or datasets of the Hub (OWNER/NAME), each with a weight or none "
        "(a.txt:0.7 b/:0.3). Nothing means the built-in corpus, the documentation inside the Python interpreter.",
    )
    text_column: str = option("text", "Column that holds the text, in files that have columns (.jsonl, .csv ...).")
    document_boundary: Literal["file", "line", "blank_line"] = option(
        "file", "What ends a document in .txt files: the file, each line, or a blank line."
    )
    unwrap: bool = option(False, "Join lines that were broken to a width; paragraphs, verse, headings and lists stay.")
    on_bad_record: Literal["stop", "skip"] = option(
        "stop",
        "What a broken record does: stop with an error, or be counted and passed over, "
        "as long as no more than one in a thousand is broken.",
    )
    language: str = option("en", "Language of the text (ISO code), for where its sentences end.")
    dataset_config: str | None = option(None, "Configuration of a dataset of the Hub, where it has several.")
    dataset_split: str | None = option(
        None, "Split of a dataset of the Hub or a saved one. Default: the only one, or train."
    )
    tokenizer: str | None = option(None, "Folder of a tokenizer, made by recipes/train_tokenizer.py.")


@dataclass
class CorpusArguments(TextArguments):
    """What a model is pretrained on."""

    corpus: str | None = option(None, "Folder of a token store, made by recipes/prepare_corpus.py, instead of --data.")


@dataclass
class StoreArguments(TextArguments):
    """Options of `recipes/prepare_corpus.py`."""

    output_dir: str = option("runs/corpus", "Folder that receives the token store.")
    num_workers: int | None = option(
        None, "Processes that tokenize; 0 for none beside the first. Default: one a core, up to 8."
    )
    max_shard_bytes: int = option(4 << 30, "The files of one shard of the store are not larger than this.")
    num_shards: int = option(1, "Prepare the text in this many parts, each by a command of its own, at once or not.")
    shard: int | None = option(None, "Which part this command prepares, from 0; the last one joins them.")
    near_duplicates: float = option(
        0.0,
        "Leave out documents that resemble an earlier one at least this much (Jaccard similarity of word "
        "5-grams, such as 0.8); 0 keeps them. Equal documents are always left out.",
    )
