"""What a model answers to a row, one class a task. Where transformers has a pipeline for it, that does the work."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import transformers

from tasks.arguments import PredictionArguments
from tasks.classification import PAIR_COLUMNS, TEXT_COLUMNS
from tasks.errors import TaskError
from tasks.questions import flat_rows
from tasks.rows import Row, columns_of


class Predictor:
    """Answers rows; a subclass says what it needs of a row and what it answers."""

    columns: tuple[str, ...] = ("prediction",)
    """Names of what is answered."""

    def __init__(
        self,
        *,
        model: Any,
        tokenizer: Any,
        settings: Mapping[str, Any],
        arguments: PredictionArguments,
        max_length: int,
        question_pipeline: Any = None,
    ) -> None:
        """
        Args:
            model: with the head of the task; None where `auto_class` names none.
            tokenizer: a fast tokenizer with a padding token.
            settings: what fine-tuning has left in `task.json`.
            arguments: what the person asked for.
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
            TaskError: there is no such column, or nothing looks like a text.
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
        trained = self.settings.get("text_column")
        if trained in row.fields:
            return str(trained), False
        texts = [column for column in columns_of([row]) if isinstance(row.fields[column], str)]
        if not texts:
            raise TaskError(f"{row.where}: no column of {columns_of([row])} holds text: name one with --text_column")
        named = [name for name in TEXT_COLUMNS if name in texts]
        if not named and len(texts) > 1:
            raise TaskError(f"{row.where}: which column of {texts} is the text? Name it with --text_column")
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
            raise TaskError(
                f"{row.where}: the model was trained with pairs of texts, and no column '{trained}' is among "
                f"{columns_of([row])}: name the second text with --text_pair_column"
            )
        return fitting

    def read(self, row: Row) -> Any:
        """What the model is asked of a row.

        Raises:
            TaskError: the row has no such column, or nothing in it.
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


class ClassificationPredictor(Predictor):
    """The label of a text or a pair; all labels with their probabilities where several can hold; or a number."""

    @classmethod
    def auto_class(cls, config: Any) -> str:
        return "AutoModelForSequenceClassification"

    def prepare(self, question_pipeline: Any) -> None:
        config = self.model.config
        self.problem = self.settings.get("problem_type") or config.problem_type
        if self.problem is None:
            self.problem = "regression" if config.num_labels == 1 else "single_label_classification"
        if self.problem != "regression":
            self.columns = ("prediction", "probability")
        config.problem_type = self.problem  # by which the pipeline chooses between softmax, sigmoid and neither
        self._pipeline = self.pipeline("text-classification", top_k=None)

    def answer(self, given: Sequence[Any]) -> Iterator[dict[str, Any]]:
        options = {"truncation": True, "max_length": self.max_length}
        for scores in self.through(self._pipeline, given, **options):
            if self.problem == "regression":
                numbers = {each["label"]: each["score"] for each in scores}
                yield {"prediction": next(iter(numbers.values())) if len(numbers) == 1 else numbers}
            elif self.problem == "multi_label_classification":
                threshold = self.settings.get("threshold", 0.5)
                chances = {each["label"]: round(each["score"], 6) for each in scores}
                yield {
                    "prediction": [name for name, chance in chances.items() if chance >= threshold],
                    "probability": chances,
                }
            else:
                yield {"prediction": scores[0]["label"], "probability": round(scores[0]["score"], 6)}


class QuestionPredictor(Predictor):
    """The piece of a context that answers a question; nothing where the model says that there is no answer."""

    columns = ("prediction", "probability", "start", "end")

    @classmethod
    def auto_class(cls, config: Any) -> str:
        return "AutoModelForQuestionAnswering"

    def prepare(self, question_pipeline: Any) -> None:
        options = {"max_length": self.arguments.max_length} if self.arguments.max_length else {}
        self._pipeline = question_pipeline(
            model=self.model, tokenizer=self.tokenizer, device=self.model.device, **options
        )

    def expand(self, row: Row) -> Iterator[Row]:
        yield from flat_rows(row)

    def choose_columns(self, row: Row) -> None:
        for name in ("question", "context"):
            row.value(name, option="a file with columns question and context")

    def read(self, row: Row) -> dict[str, str]:
        option = "a file with columns question and context"
        return {name: row.text(name, option=option) for name in ("question", "context")}

    def answer(self, given: Sequence[Any]) -> Iterator[dict[str, Any]]:
        for found in self.through(self._pipeline, given):
            yield {
                "prediction": found["answer"],
                "probability": round(found["score"], 6),
                "start": found["start"],
                "end": found["end"],
            }


class FillMaskPredictor(Predictor):
    """What stands behind each mask: the likeliest tokens, and the text with the likeliest of all in it."""

    columns = ("prediction", "tokens")

    @classmethod
    def auto_class(cls, config: Any) -> str:
        return "AutoModelForMaskedLM"

    def prepare(self, question_pipeline: Any) -> None:
        if self.tokenizer.mask_token is None:
            raise TaskError(f"--model {self.arguments.model}: its tokenizer has no mask token to fill")
        self._cut = {"truncation": True, "max_length": self.max_length}
        self._pipeline = self.pipeline("fill-mask", top_k=self.arguments.top_k)

    def read(self, row: Row) -> str:
        mask = self.tokenizer.mask_token
        text = row.text(self.text_column, option="--text_column").replace("[MASK]", mask)
        if self.tokenizer.mask_token_id not in self.tokenizer(text, **self._cut)["input_ids"]:
            where = f"in its first {self.max_length} tokens" if mask in text else "in it"
            raise TaskError(f"{row.where}: column '{self.text_column}' has no {mask} {where}, and nothing to fill")
        return text

    def answer(self, given: Sequence[Any]) -> Iterator[dict[str, Any]]:
        found = self.through(self._pipeline, given, tokenizer_kwargs=self._cut)
        for text, places in zip(given, found, strict=True):
            masks = [places] if isinstance(places[0], dict) else places
            parts = text.split(self.tokenizer.mask_token)
            best = [choices[0]["token_str"] for choices in masks] + [""] * len(parts)
            filled = ""
            for part, token in zip(parts, best, strict=False):
                filled += part  # a token brings the blank before it along
                filled += token.lstrip() if filled[-1:].isspace() else token
            tokens = [[[each["token_str"], round(each["score"], 6)] for each in choices] for choices in masks]
            yield {"prediction": filled, "tokens": tokens}


class GenerationPredictor(Predictor):
    """What follows a text: the likeliest token each time."""

    @classmethod
    def auto_class(cls, config: Any) -> str:
        return "AutoModelForCausalLM"

    def prepare(self, question_pipeline: Any) -> None:
        self.tokenizer.truncation_side = "left"  # of a long text the end is what goes on
        room = self.max_length - self.arguments.max_new_tokens
        if room < 1:
            raise TaskError(
                f"--max_new_tokens {self.arguments.max_new_tokens} leaves no room for a text: the model takes "
                f"{self.max_length} tokens in all"
            )
        self._options = {
            "max_new_tokens": self.arguments.max_new_tokens,
            "do_sample": False,
            "return_full_text": False,
            "tokenizer_encode_kwargs": {"truncation": True, "max_length": room},
        }
        self._pipeline = self.pipeline("text-generation")

    def answer(self, given: Sequence[Any]) -> Iterator[dict[str, Any]]:
        for found in self.through(self._pipeline, given, **self._options):
            yield {"prediction": found[0]["generated_text"]}


PREDICTORS: dict[str, type[Predictor]] = {
    "classification": ClassificationPredictor,
    "question_answering": QuestionPredictor,
    "fill_mask": FillMaskPredictor,
    "text_generation": GenerationPredictor,
}
