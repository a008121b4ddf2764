"""Sequence to sequence: generating a text from another one, as a translation or a summary."""

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from torch import Tensor, nn

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
from lacuna.tasks.base.features import IGNORED, records, stacked
from lacuna.tasks.base.metrics import measure
from lacuna.tasks.base.rows import Row, gathered
from lacuna.tasks.base.task import Batch, Inputs, Task
from lacuna.tasks.predict.predictor import NEW_TOKENS, Predictor
from lacuna.tasks.sequence_to_sequence.writing import Writer, resolve_lengths, writes_with


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
    max_target_length: int | None = max_length_option("Truncate targets and generated text to this many tokens.", 128)
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
    pairs=(
        "source target, src tgt trg, input output target, instruction output response, prompt completion response, "
        "article highlights summary abstract, document summary, dialogue summary, text summary title target, "
        "question answer"
    ),
    by_content=only_ones,
)


class TextPair(NamedTuple):
    """A source and the text to be written from it, without blanks around them."""

    source: str
    target: str
    where: str


def read_pair(row: Row, *, source_column: str, target_column: str) -> TextPair:
    """The two texts of a row; InputError where one is missing or empty."""
    source = row.text(source_column, option="--source_column").strip()
    return TextPair(source, row.text(target_column, option="--target_column").strip(), row.where)


def unfold(rows: Sequence[Row]) -> list[Row]:
    """Rows whose column "translation" holds {"en": ..., "de": ...}, as on the Hub, get the columns en and de."""
    unfolded = []
    for row in rows:
        inner = row.fields.get("translation")
        whole = {name: value for name, value in row.fields.items() if name != "translation"}
        unfolded.append(Row({**inner, **whole}, row.where) if isinstance(inner, Mapping) else row)
    return unfolded


class SequenceToSequence(Task):
    """Learning to write a text from another one; all pairs of a source are held out together.

    A model is judged by chrF, which also tells apart models that hardly get a word right.
    """

    options: SequenceToSequenceArguments
    name, objective = "sequence_to_sequence", "fine-tuning from one text to another"
    writes = True
    metric = "chrf"
    mistakes_heading = "The {count} surest texts that are not as they should be"
    probability_note = "The probability is the geometric mean of those of the tokens that were written."

    def longest(self) -> int:
        """`max_length`, and `max_target_length` with it: a decoder has to take both together."""
        self.auto_class = writes_with(self.config)
        source, target = self.options.max_length, self.options.max_target_length
        length, self.max_target_length = resolve_lengths(
            source=source, target=target, config=self.config, tokenizer=self.tokenizer
        )
        return length

    def read(self, train: list[Any], held_out: list[Any]) -> None:
        asked = self.options
        train, held_out = unfold(train), unfold(held_out)
        files = f"source from {asked.train_file}, target from {asked.train_target_file}, line by line"
        instead = files if asked.train_target_file else None
        self.columns = self.find_columns(SEQUENCE_TO_SEQUENCE, train, instead=instead)
        train, held_out = ([read_pair(row, **self.columns) for row in part] for part in (train, held_out))
        self._train_pairs, self._eval_pairs = self.divide(
            train, held_out, same=lambda pair: pair[:2], group=lambda pair: pair.source, what="pairs"
        )

    def training_texts(self) -> list[str]:
        return gathered([pair.source] for pair in self._train_pairs)

    def encode(self) -> None:
        self.writer = Writer(
            tokenizer=self.tokenizer,
            config=self.config,
            max_length=self.max_length,
            max_target_length=self.max_target_length,
            num_beams=self.options.num_beams,
            source_prefix=self.options.source_prefix,
        )
        examples, _, cut_sources, cut_targets = self._examples(self._train_pairs)
        self.note_cut(cut_sources, of=len(examples), what="sources")
        self.note_cut(cut_targets, of=len(examples), what="targets", option="max_target_length")
        judged, self._eval_sources, *_ = self._examples(self._eval_pairs)
        self.set_examples(train=examples, held_out=judged)

    def _examples(self, pairs: Sequence[TextPair]) -> tuple[list[Inputs], list[Inputs], int, int]:
        """Examples, what is read of each before writing, and how many sources and targets were cut."""
        sources, cut_sources = self.writer.sources([pair.source for pair in pairs])
        targets, cut_targets = self.writer.targets([pair.target for pair in pairs])
        return [*map(self.writer.example, sources, targets)], sources, cut_sources, cut_targets

    # What the loop asks for

    def collate(self, examples: list[Inputs]) -> Batch:
        """Inputs padded to the longest, `labels`, -100 where nothing is to be written; `row` for held-out examples."""
        return self.writer.collate(examples) | stacked(examples, "row")

    def count_targets(self, batch: Batch) -> dict[str, int]:
        return {"tokens": int((batch["labels"] != IGNORED).sum())}

    def with_hints(self, batch: Batch) -> Batch:
        return self.writer.with_hints(batch)

    def loss(self, model: nn.Module, batch: Batch, num_targets: Batch) -> tuple[Tensor, Batch]:
        """Cross-entropy of the targets' tokens, summed over the batch and divided by the tokens of the step."""
        return self.writer.nats(model, batch)[0].sum() / num_targets["tokens"], {}

    def evaluate(self, model: nn.Module, batch: Batch) -> list[dict[str, Any]]:
        """One record a pair: row, nats and tokens of its target, what the model writes, and how sure it is of that."""
        nats, counts = self.writer.nats(model, batch)
        answers = self.writer.answers(model, [self._eval_sources[row] for row in batch["row"].tolist()])
        found = records(row=batch["row"], loss=nats, tokens=counts)
        return [{**record, **answer} for record, answer in zip(found, answers, strict=True)]

    def scores(self) -> dict[str, float]:
        """BLEU, chrF and ROUGE from 0 to 100, and the share of texts that came to an end."""
        ended = sum(record["ended"] for record in self.records) / max(len(self.records), 1)
        return {**self._scores(self.records), "ended": ended}

    def _scores(self, found: Sequence[Mapping[str, Any]]) -> dict[str, float]:
        references = [[self._eval_pairs[each["row"]].target] for each in found]
        return measure("generation", predictions=[each["prediction"] for each in found], references=references)

    def baseline(self) -> dict[str, float]:
        """The source itself as the text; the loss: the tokens' frequencies in the training targets (plus 1)."""
        counts = Counter(int(token) for item in self._train for token in item["labels"] if token != IGNORED)
        total = math.log(sum(counts.values()) + len(self.tokenizer))
        wanted = [int(token) for item in self._eval for token in item["labels"] if token != IGNORED]
        loss = float(np.mean([total - math.log(counts[token] + 1) for token in wanted]))
        copies = [{"row": row, "prediction": pair.source} for row, pair in enumerate(self._eval_pairs)]
        return {"loss": loss, **self._scores(copies)}

    # For people

    def predictions(self) -> list[dict[str, Any]]:
        """Each source with what was written and what should have been; correct is only what is the same."""
        readable = []
        for record in self.records:
            pair = self._eval_pairs[record["row"]]
            sides = {"source": pair.source, "prediction": record["prediction"], "gold": pair.target}
            right = record["prediction"].split() == pair.target.split()
            readable.append({**sides, "probability": record["probability"], "correct": right})
        return readable

    def settings(self) -> dict[str, Any]:
        options = {name: getattr(self.options, name) for name in ("num_beams", "source_prefix")}
        return {**super().settings(), "max_target_length": self.max_target_length, **options, **self.columns}

    def show(self, example: Inputs) -> list[str]:
        labels = example["labels"]
        read = example["input_ids"] if self.writer.is_encoder_decoder else example["input_ids"][labels == IGNORED]
        return [self.tokenizer.decode(read), f"-> {self.tokenizer.decode(labels[labels != IGNORED])}"]


class WritingPredictor(Predictor):
    """A text written from another one, and the mean probability of its tokens."""

    columns = ("prediction", "probability")
    trained_column = "source_column"

    @classmethod
    def head(cls, config: Any) -> str:
        return writes_with(config)

    def prepare(self) -> None:
        source, target = resolve_lengths(
            source=self.arguments.max_length or self.settings.get("max_length"),
            target=self.arguments.max_new_tokens or self.settings.get("max_target_length"),
            config=self.model.config,
            tokenizer=self.tokenizer,
            default=(256, NEW_TOKENS),
        )
        self._writer = Writer(
            tokenizer=self.tokenizer,
            config=self.model.config,
            max_length=source,
            max_target_length=target,
            num_beams=self.settings.get("num_beams", 1),
            source_prefix=self.settings.get("source_prefix", ""),
        )

    def expand(self, row: Row) -> Iterator[Row]:
        yield from unfold([row])

    def read(self, row: Row) -> str:
        return row.text(self.text_column, option="--text_column").strip()

    def forward(self, given: Sequence[Any]) -> Iterator[dict[str, Any]]:
        sources, _ = self._writer.sources(given)
        for answer in self._writer.answers(self.model, sources):
            yield {name: answer[name] for name in self.columns}
