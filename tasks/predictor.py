"""What answers rows: what is the same whatever the task."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import transformers

from lacuna.common.errors import InputError
from lacuna.tasks.arguments import PredictionArguments
from lacuna.tasks.classification import PAIR_COLUMNS, TEXT_COLUMNS
from lacuna.tasks.rows import Row, columns_of


class Predictor:
    """Answers rows; a subclass says what it needs of a row and what it answers."""

    columns: tuple[str, ...] = ("prediction",)
    """Names of what is answered."""
    trained_column = "text_column"
    """What `task.json` calls the column of the text."""

    def __init__(
        self,
        *,
        settings: Mapping[str, Any],
        arguments: PredictionArguments,
        model: Any = None,
        tokenizer: Any = None,
        max_length: int = 512,
        question_pipeline: Any = None,
    ) -> None:
        """
        Args:
            settings: what fine-tuning has left in `task.json`.
            arguments: what the person asked for.
            model: with the head of the task; None where the subclass loads its own.
            tokenizer: a fast tokenizer with a padding token; None as the model.
            max_length: tokens that an input is cut to.
            question_pipeline: see `open_predictor`.
        """
        self.model, self.tokenizer, self.settings, self.arguments = model, tokenizer, settings, arguments
        self.max_length, self.batch_size = max_length, arguments.batch_size
        self.notes: list[str] = []
        """What was guessed, a line each, for people."""
        self.text_column = ""
        self.pair_column: str | None = None
        self.prepare(question_pipeline)

    @classmethod
    def auto_class(cls, config: Any) -> str:
        """Name of the Auto class of the head."""
        raise NotImplementedError

    def prepare(self, question_pipeline: Any) -> None:
        """Make what answers."""

    def expand(self, row: Row) -> Iterator[Row]:
        """The rows inside a row of the file: itself, but for nested formats."""
        yield row

    def choose_columns(self, row: Row) -> None:
        """Which columns of a file are read, by its first row: as asked, as in training, or else guessed.

        Raises:
            InputError: there is no such column, or nothing looks like a text.
        """
        self.text_column, guessed = self._choose_text(row)
        self.pair_column = self._choose_pair(row)
        if guessed:
            second = "" if self.pair_column is None else f", second text from '{self.pair_column}'"
            self.notes.append(f"text from column '{self.text_column}'{second} (guessed; --text_column overrides it)")

    def _choose_text(self, row: Row) -> tuple[str, bool]:
        if asked := self.arguments.text_column:
            row.value(asked, option="--text_column")
            return asked, False
        trained = self.settings.get(self.trained_column)
        if trained in row.fields:
            return str(trained), False
        texts = [column for column in columns_of([row]) if isinstance(row.fields[column], str)]
        if not texts:
            raise InputError(
                f"{row.where}: no column of {row.shown(row.fields)} holds text: name one with --text_column"
            )
        named = [name for name in TEXT_COLUMNS if name in texts]
        if not named and len(texts) > 1:
            raise InputError(
                f"{row.where}: which column of {row.shown(texts)} is the text? Name it with --text_column"
            )
        return (named or texts)[0], len(texts) > 1

    def _choose_pair(self, row: Row) -> str | None:
        """The second text, where the model was trained with one."""
        trained = self.settings.get("text_pair_column")
        if asked := self.arguments.text_pair_column:
            row.value(asked, option="--text_pair_column")
            return asked
        if trained is None:
            return None
        if trained in row.fields:
            return str(trained)
        fitting = PAIR_COLUMNS.get(self.text_column)
        if fitting not in row.fields:
            raise InputError(
                f"{row.where}: the model was trained with pairs of texts, and no column '{trained}' is among "
                f"{row.shown(row.fields)}: name the second text with --text_pair_column"
            )
        return fitting

    def read(self, row: Row) -> Any:
        """What the model is asked of a row.

        Raises:
            InputError: the row has no such column, or nothing in it.
        """
        text = row.text(self.text_column, option="--text_column")
        if self.pair_column is None:
            return text
        return {"text": text, "text_pair": row.text(self.pair_column, option="--text_pair_column")}

    def size(self, given: Any) -> int:
        """How long what was read is, roughly; rows of like size go through the model together."""
        return sum(map(len, given.values())) if isinstance(given, dict) else len(given)

    def answer(self, given: Sequence[Any]) -> Iterator[dict[str, Any]]:
        """One dictionary with `columns` for each of what was read, in order."""
        raise NotImplementedError

    def pipeline(self, task: str, **options: Any) -> Any:
        """A pipeline of transformers around the model."""
        return transformers.pipeline(
            task, model=self.model, tokenizer=self.tokenizer, device=self.model.device, **options
        )

    def through(self, pipeline: Any, given: Iterable[Any], **options: Any) -> Iterator[Any]:
        """Answers of a pipeline, in batches. A list of one is another thing to some pipelines than a list of two."""
        return iter(pipeline((each for each in given), batch_size=self.batch_size, **options))
