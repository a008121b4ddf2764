"""Answers to new questions."""

from collections.abc import Iterator
from typing import Any

from lacuna.tasks.base.rows import Row
from lacuna.tasks.predict.predictor import PipelinePredictor
from lacuna.tasks.question_answering.reader import check_columns, flat_rows


class QuestionPredictor(PipelinePredictor):
    """The piece of a context that answers a question; nothing where the model says that there is no answer."""

    columns = ("prediction", "probability", "start", "end")
    auto_class = "AutoModelForQuestionAnswering"

    def prepare(self) -> None:
        assert self.question_pipeline is not None
        options = {"max_length": self.arguments.max_length} if self.arguments.max_length else {}
        self.pipeline = self.question_pipeline(
            model=self.model, tokenizer=self.tokenizer, device=self.model.device, **options
        )

    def expand(self, row: Row) -> Iterator[Row]:
        yield from flat_rows(row)

    def choose_columns(self, row: Row) -> None:
        check_columns(row, answered=False)

    def read(self, row: Row) -> dict[str, str]:
        check_columns(row, answered=False)
        return {name: row.text(name, option=None) for name in ("question", "context")}

    def readable(self, given: Any, found: Any) -> dict[str, Any]:
        place = {name: found[name] if found["answer"] else None for name in ("start", "end")}
        return {"prediction": found["answer"], "probability": round(found["score"], 6), **place}
