"""Command-line options of text and token stores."""

from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

from lacuna.common.errors import InputError
from lacuna.common.options import ReadingArguments, check_range, essential, option

_data = partial(option, group="data")


@dataclass
class TextArguments(ReadingArguments):
    """Which text, and the tokenizer for it."""

    data: list[str] = essential(
        [],
        "Text to read: files, folders or globs (.txt, .md, .html, .jsonl, .csv, .tsv, .parquet, also .gz or .zst), "
        "folders saved by `datasets`, Hub datasets (OWNER/NAME); weights as in a.txt:0.7 b/:0.3. Default: the "
        "built-in corpus, the documentation inside the Python interpreter.",
        metavar="PATH",
    )
    tokenizer: str | None = essential(None, "Tokenizer made by recipes/train_tokenizer.py.", metavar="DIR")
    text_column: str = _data("text", "Column that holds the text, in files with columns.")
    document_boundary: Literal["file", "line", "blank_line"] = _data(
        "file", "What separates documents in .txt files: file, line or blank_line."
    )
    unwrap: bool = _data(False, "Rejoin hard-wrapped lines; paragraphs, verse, headings, lists stay.", advanced=True)
    on_bad_record: Literal["stop", "skip"] = _data(
        "stop", "On a broken record, stop or skip; skip tolerates one broken record in a thousand.", advanced=True
    )
    language: str = _data("en", "Language (ISO code), by which sentences are split.", metavar="CODE", advanced=True)
    dataset_config: str | None = _data(None, "Which configuration of a Hub dataset.", metavar="NAME", advanced=True)
    dataset_split: str | None = _data(
        None, "Split of a Hub dataset or a saved one. Default: the only one, or train.", metavar="NAME", advanced=True
    )


@dataclass
class CorpusArguments(TextArguments):
    """What a model is pretrained on."""

    corpus: str | None = _data(None, "Token store of recipes/prepare_corpus.py, instead of --data.", metavar="DIR")
    eval_data: list[str] = _data([], "Held-out text, as --data. Default: --eval_fraction of --data.", metavar="PATH")
    for_file: list[str] = _data(
        [],
        "Labelled rows that the model will be fine-tuned on: their texts are learned too, without labels and without "
        "the rows that the fine-tuning recipe holds out by default (another --seed or --eval_fraction there holds out "
        "others). Or a built-in task: classification, question_answering.",
        metavar="FILE",
        alias="for",
    )
    for_share: float = _data(None, "Share of the training rows that are texts of --for. Default: 0.3.", advanced=True)
    for_task: str | None = _data(
        None, "Which task --for is for. Default: by its columns, and printed.", metavar="NAME", advanced=True
    )

    def reading_for(self) -> dict[str, Any]:
        """How the files of --for are read."""
        return {"label_first": self.for_task == "classification", **self.reading()}

    def __post_init__(self) -> None:
        check_range(self, "for_share", above=0, below=1)
        for name in ("for_share", "for_task") if not self.for_file else ():
            if (value := getattr(self, name)) is not None:
                raise InputError(f"--{name} {value} says how the file of --for is read: name one with --for")
        self.for_share = self.for_share or 0.3
        if self.for_file and self.corpus:
            raise InputError(
                f"--for adds texts to those of --data, and --corpus {self.corpus} is tokenized already: name its "
                "texts with --data instead"
            )


@dataclass
class StoreArguments(TextArguments):
    """Options of `recipes/prepare_corpus.py`."""

    output_dir: str = essential("runs/corpus", "Where the token store is written.")
    num_workers: int | None = option(
        None,
        "Worker processes, which split text into sentences and tokenize it; with 0 the main process does it. Default: "
        "one per core, at most 8.",
        group="work",
    )

    def __post_init__(self) -> None:
        check_range(self, "num_workers", at_least=0)
