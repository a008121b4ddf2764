"""`Predictor`, the base class of what answers new rows with a model; predictors that fill masks and continue texts."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

import torch
import transformers

from lacuna.common.errors import InputError
from lacuna.common.options import REVISION, TRUST_CODE, ReadingArguments, check_range, essential, option
from lacuna.common.work import to_device
from lacuna.tasks.base.arguments import check_max_length
from lacuna.tasks.base.columns import only_ones
from lacuna.tasks.base.rows import Row, as_rows, unwritable
from lacuna.tasks.classification.reader import CLASSIFICATION


@dataclass
class PredictionArguments(ReadingArguments):
    """Which model answers which rows, and where the answers go."""

    model: str = essential("runs/finetuned", "Fine-tuned model: a folder or Hub id.", metavar="MODEL")
    input: str = essential(
        "",
        "Rows to answer: .jsonl, .json, .csv, .tsv, .parquet, .txt with one text per line, or - for standard input.",
        metavar="FILE",
    )
    output: str = essential(
        "", "File for the rows and their answers: .jsonl, .csv or .tsv, or - for standard output.", metavar="FILE"
    )
    task: str | None = option(None, "What the model does. Default: from its task.json or its head.", metavar="NAME")
    batch_size: int = option(32, "Rows, or windows of long rows, per forward pass.")
    text_column: str | None = option(None, "Column of the text. Default: as in training, or inferred and printed.")
    text_pair_column: str | None = option(None, "Column of a second text. Default: as for --text_column.")
    max_length: int | None = option(None, "Truncate inputs to this many tokens. Default: as in training.")
    max_new_tokens: int | None = option(None, "Most tokens to generate. Default: as in training, or 64.")
    top_k: int = option(5, "Predictions to list for each masked token.")
    without_words: bool = option(False, "Answer without the bag of words that fine-tuning has left beside a model.")
    overwrite: bool = option(False, "Overwrite --output if it exists.")
    trust_remote_code: bool = option(**TRUST_CODE)
    revision: str | None = option(**REVISION)

    def __post_init__(self) -> None:
        for name in ("input", "output"):
            if not getattr(self, name):
                raise InputError(f"--{name} is missing: name a file, as in --input new.jsonl --output answers.jsonl")
        check_max_length(self.max_length)
        check_range(self, "batch_size", "max_new_tokens", "top_k", above=0)


NEW_TOKENS = 64
_BATCHES_AT_ONCE = 16  # whose rows are sorted by length
_PAIR = replace(CLASSIFICATION.columns["text_pair_column"], optional=False, instead="")
_TEXTS = CLASSIFICATION.only("text_column", by_content=only_ones, pairs="")
_TEXT_PAIRS = replace(CLASSIFICATION, columns={**_TEXTS.columns, "text_pair_column": _PAIR}, by_content=only_ones)


class Predictor:
    """Answers rows; a subclass says what it needs of a row (`read`) and what it answers to a batch (`forward`)."""

    columns: tuple[str, ...] = ("prediction",)  # names of what is answered
    auto_class = ""  # name of the Auto class of the head
    trained_column = "text_column"  # what `task.json` calls the column of the text
    takes_pairs = False

    def __init__(
        self,
        *,
        settings: Mapping[str, Any],
        arguments: PredictionArguments,
        model: Any = None,
        tokenizer: Any = None,
        max_length: int = 512,
    ) -> None:
        """With the `settings` that fine-tuning has left in `task.json`; without a model the subclass loads its own."""
        self.model, self.tokenizer, self.settings, self.arguments = model, tokenizer, settings, arguments
        self.max_length, self.batch_size = max_length, arguments.batch_size
        self.cut = {"truncation": True, "max_length": max_length}
        self.notes: list[str] = []  # what was guessed, a line each, for people
        self.text_column = ""
        self.pair_column: str | None = None
        self.prepare()

    @classmethod
    def head(cls, config: Any) -> str:
        return cls.auto_class

    def prepare(self) -> None:
        """Make what answers."""

    # Reading

    def expand(self, row: Row) -> Iterator[Row]:
        """The rows inside a row of the file: itself, but for nested formats."""
        yield row

    def choose_columns(self, row: Row) -> None:
        """Which columns of a file are read, by its first row: as asked, as in training, or else guessed."""
        asked, trained = self.arguments, self.settings
        names = {"text_column": (asked.text_column, trained.get(self.trained_column))}
        if self.takes_pairs and (asked.text_pair_column or trained.get("text_pair_column")):
            names["text_pair_column"] = (asked.text_pair_column, trained.get("text_pair_column"))
        known = {what: one or other for what, (one, other) in names.items() if one or other in row.fields}
        layout = _TEXT_PAIRS if len(names) > 1 else _TEXTS
        self.text_column, self.pair_column, *_ = *layout.find([row], **known).values(), None
        if "text_column" not in known and sum(isinstance(value, str) for value in row.fields.values()) > 1:
            second = "" if self.pair_column is None else f", second text from '{self.pair_column}'"
            self.notes.append(f"text from column '{self.text_column}'{second} (inferred; --text_column overrides it)")

    def read(self, row: Row) -> Any:
        """What the model is asked of a row; InputError where the row does not have it."""
        text = row.text(self.text_column, option="--text_column")
        if self.pair_column is None:
            return text
        return {"text": text, "text_pair": row.text(self.pair_column, option="--text_pair_column")}

    def size(self, given: Any) -> int:
        """How long what was read is, roughly; rows of like size go through the model together."""
        return sum(map(len, given.values())) if isinstance(given, dict) else len(given)

    # Answering

    def answer(self, given: Sequence[Any]) -> Iterator[dict[str, Any]]:
        """One dictionary with `columns` for each of what was read, in order."""
        for start in range(0, len(given), self.batch_size):
            with torch.no_grad():
                answers = list(self.forward(given[start : start + self.batch_size]))
            yield from answers

    def forward(self, given: Sequence[Any]) -> Iterator[dict[str, Any]]:
        """The answers to a batch of what was read."""
        raise NotImplementedError

    def to_model(self, batch: Mapping[str, Any]) -> dict[str, Any]:
        return to_device(dict(batch), self.model.device)


class PipelinePredictor(Predictor):
    """Answers by a pipeline of transformers, which makes the batches itself."""

    task = ""

    def options(self) -> dict[str, Any]:
        return self.cut

    def prepare(self) -> None:
        parts = {"model": self.model, "tokenizer": self.tokenizer, "device": self.model.device}
        self.pipeline = transformers.pipeline(self.task, **parts, **self.options())

    def answer(self, given: Sequence[Any]) -> Iterator[dict[str, Any]]:
        # A list of one is another thing to some pipelines than a list of two.
        found = self.pipeline((each for each in given), batch_size=self.batch_size)
        return map(self.readable, given, found)

    def readable(self, given: Any, found: Any) -> dict[str, Any]:
        """The answer, from what was read of a row and what the pipeline has found."""
        raise NotImplementedError


def _rows(predictor: Predictor, records: Iterable[Any]) -> Iterator[Row]:
    for record in records:
        yield from predictor.expand(as_rows([record], part="input")[0])


def check_rows(predictor: Predictor, records: Iterable[Any]) -> int:
    """Read every row as it will be read for its answer, so that none is refused after hours; returns how many.

    InputError, with file and line, where a row cannot be answered or written to --output, or there is none.
    """
    count, columns, ending = 0, [], Path(predictor.arguments.output).suffix.lower()
    for count, row in enumerate(_rows(predictor, records), start=1):
        if count == 1:
            predictor.choose_columns(row)
            columns = list(row.fields)
        if taken := [name for name in predictor.columns if name in row.fields]:
            raise InputError(
                f"{row.where}: there is a column '{taken[0]}' already, where the answer would stand: rename it"
            )
        predictor.read(row)
        if reason := unwritable(row.fields, columns=columns, ending=ending):
            raise InputError(f"{row.where} {reason}")
    if not count:
        raise InputError("--input has no row")
    return count


def predict(predictor: Predictor, records: Iterable[Any]) -> Iterator[dict[str, Any]]:
    """Each row with its answer beside its own columns, in order, after `check_rows`; they are read as they are taken.

    Rows of like length go through the model together.
    """
    rows = _rows(predictor, records)
    while part := list(islice(rows, _BATCHES_AT_ONCE * predictor.batch_size)):
        inputs = [predictor.read(row) for row in part]
        order = sorted(range(len(part)), key=lambda number: predictor.size(inputs[number]), reverse=True)
        by_row = dict(zip(order, predictor.answer([inputs[number] for number in order]), strict=True))
        for number, row in enumerate(part):
            yield {**row.fields, **by_row[number]}


class FillMaskPredictor(PipelinePredictor):
    """What stands behind each mask: the likeliest tokens, and the text with the likeliest of all in it."""

    task, auto_class = "fill-mask", "AutoModelForMaskedLM"
    columns = ("prediction", "tokens")

    def options(self) -> dict[str, Any]:
        return {"top_k": min(self.arguments.top_k, self.model.config.vocab_size), "tokenizer_kwargs": self.cut}

    def prepare(self) -> None:
        if self.tokenizer.mask_token is None:
            raise InputError(f"--model {self.arguments.model}: its tokenizer has no mask token to fill")
        super().prepare()

    def read(self, row: Row) -> str:
        mask = self.tokenizer.mask_token
        text = row.text(self.text_column, option="--text_column").replace("[MASK]", mask)
        if self.tokenizer.mask_token_id not in self.tokenizer(text, **self.cut)["input_ids"]:
            where = f"in its first {self.max_length} tokens" if mask in text else "in it"
            raise InputError(f"{row.where}: column '{self.text_column}' has no {mask} {where}, and nothing to fill")
        return text

    def readable(self, given: Any, found: Any) -> dict[str, Any]:
        masks = [found] if isinstance(found[0], dict) else found
        parts = given.split(self.tokenizer.mask_token)
        best = [choices[0]["token_str"] for choices in masks]
        best += [self.tokenizer.mask_token] * (len(parts) - 1 - len(best)) + [""]  # of those that were cut off
        filled = ""
        for part, token in zip(parts, best, strict=False):
            filled += part  # a token brings the blank before it along
            filled += token.lstrip() if filled[-1:].isspace() else token
        tokens = [[[each["token_str"], round(each["score"], 6)] for each in choices] for choices in masks]
        return {"prediction": filled, "tokens": tokens}


class GenerationPredictor(PipelinePredictor):
    """What follows a text: the likeliest token each time."""

    task, auto_class = "text-generation", "AutoModelForCausalLM"

    def options(self) -> dict[str, Any]:
        self.tokenizer.truncation_side = "left"  # a decoder continues the end of a long text
        new = self.arguments.max_new_tokens or NEW_TOKENS
        room = self.max_length - new
        if room < 1:
            raise InputError(
                f"--max_new_tokens {new} leaves no room for a text: the model takes {self.max_length} tokens in all"
            )
        how = {"max_new_tokens": new, "do_sample": False, "return_full_text": False}
        return {**how, "tokenizer_encode_kwargs": {**self.cut, "max_length": room}}

    def readable(self, given: Any, found: Any) -> dict[str, Any]:
        return {"prediction": found[0]["generated_text"]}
