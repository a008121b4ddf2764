"""Reading pairs of texts, a source and a target: options and columns."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from lacuna.common.errors import InputError
from lacuna.common.options import check_range
from lacuna.tasks.base.arguments import (
    ROWS,
    TaskArguments,
    column_option,
    data_option,
    essential_option,
    max_length_option,
)
from lacuna.tasks.base.columns import TEXT, Column, Layout, only_ones
from lacuna.tasks.base.rows import Row


@dataclass
class SequenceToSequenceArguments(TaskArguments):
    """Which pairs of texts to learn from, and how to read and write them."""

    train_file: str | None = essential_option(
        None, f"Pairs to train on, in two columns: {ROWS}; or sources, one per line, with --train_target_file."
    )
    train_target_file: str | None = essential_option(None, "Targets for the lines of --train_file, one per line.")
    eval_target_file: str | None = essential_option(None, "Targets for the lines of --eval_file, one per line.")
    source_column: str | None = column_option("Column of the source.")
    target_column: str | None = column_option("Column of the target.")
    source_prefix: str = data_option("", "Prepended to every source, such as 'translate English to German: '.")
    max_target_length: int | None = max_length_option(
        "Truncate targets, and generated text, to this many tokens.", 128
    )
    num_beams: int = data_option(1, "Beams in evaluation; 1 is greedy decoding.")

    def __post_init__(self) -> None:
        super().__post_init__()
        check_range(self, "max_target_length", "num_beams", above=0)
        for part in ("train", "eval"):
            if getattr(self, f"{part}_target_file") is not None and getattr(self, f"{part}_file") is None:
                raise InputError(f"--{part}_target_file needs a --{part}_file with the sources, one a line")


SEQUENCE_TO_SEQUENCE = Layout(
    {
        "source_column": Column("the source", "", TEXT),
        "target_column": Column("what is to be written from it", "", TEXT),
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
