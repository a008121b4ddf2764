"""Pairs of texts, one to be written from the other: options and columns."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from lacuna.common.errors import InputError
from lacuna.common.options import check_range, option
from lacuna.tasks.base.arguments import TaskArguments
from lacuna.tasks.base.columns import TEXT, Column, Layout, only_ones
from lacuna.tasks.base.rows import Row


@dataclass
class SequenceToSequenceArguments(TaskArguments):
    """Which pairs of texts to learn from, and how to read and write them."""

    train_file: str | None = option(
        None,
        "Pairs to learn from: two columns (.jsonl, .csv, .tsv, .parquet, a folder saved by `datasets`, "
        "OWNER/NAME:CONFIG:SPLIT of the Hub), or sources, one a line, beside --train_target_file.",
    )
    train_target_file: str | None = option(None, "What is to be written from the lines of --train_file, one a line.")
    eval_file: str | None = option(None, "Pairs to evaluate on. Default: a part of the training pairs.")
    eval_target_file: str | None = option(None, "What is to be written from the lines of --eval_file, one a line.")
    source_column: str | None = option(None, "Column of the source. Default: guessed, and said.")
    target_column: str | None = option(None, "Column of what is to be written. Default: guessed, and said.")
    source_prefix: str = option("", "Stands before every source, as in: translate English to German: .")
    max_length: int | None = option(None, "Tokens to cut sources to. Default: 256, or what the model takes if less.")
    max_target_length: int | None = option(
        None, "Tokens to cut targets to, and to write at most. Default: 128, or what the model takes if less."
    )
    num_beams: int = option(1, "Beams of the search in evaluation; 1: the most probable token each time.")
    eval_fraction: float = option(0.1, "Share of the training pairs to hold out when there is no --eval_file.")

    def __post_init__(self) -> None:
        super().__post_init__()
        check_range(self, "max_target_length", "num_beams", above=0)
        for part in ("train", "eval"):
            if getattr(self, f"{part}_target_file") is not None and getattr(self, f"{part}_file") is None:
                raise InputError(f"--{part}_target_file needs a --{part}_file with the sources, one a line")


SEQUENCE_TO_SEQUENCE = Layout(
    {
        "source": Column("the source", "--source_column", "", TEXT),
        "target": Column("what is to be written from it", "--target_column", "", TEXT),
    },
    pairs={
        "source": "target",
        "src": "tgt trg",
        "input": "output target",
        "instruction": "output response",
        "prompt": "completion response",
        "article": "highlights summary abstract",
        "document": "summary",
        "dialogue": "summary",
        "text": "summary title target",
        "question": "answer",
    },
    by_content=only_ones,
)


@dataclass(frozen=True, slots=True)
class TextPair:
    """A source and the text to be written from it."""

    source: str
    target: str
    where: str


def unfold(rows: Sequence[Row]) -> list[Row]:
    """Rows whose column "translation" holds {"en": ..., "de": ...}, as on the Hub, get the columns en and de."""
    unfolded = []
    for row in rows:
        inner = row.fields.get("translation")
        whole = {name: value for name, value in row.fields.items() if name != "translation"}
        unfolded.append(Row({**inner, **whole}, row.where) if isinstance(inner, Mapping) else row)
    return unfolded


def read_pairs(rows: Sequence[Row], *, source: str, target: str) -> list[TextPair]:
    """The pairs of rows, without blanks around them."""
    pairs = []
    for row in rows:
        given = row.text(source, option="--source_column").strip()
        pairs.append(TextPair(given, row.text(target, option="--target_column").strip(), row.where))
    return pairs
