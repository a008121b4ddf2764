"""Answers that are chosen: a label, a piece of the context, one of several choices."""

import math
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from lacuna.tasks.choices import Problem, guess_columns, read_problems
from lacuna.tasks.features import pad_inputs, tokenizer_inputs
from lacuna.tasks.multiple_choice import MultipleChoice
from lacuna.tasks.predictor import Predictor
from lacuna.tasks.questions import check_columns, flat_rows
from lacuna.tasks.rows import Row

_NO_LABEL = "\0label"


class ClassificationPredictor(Predictor):
    """The label of a text or a pair; where several can hold, these and the probabilities of all; or a number."""

    @classmethod
    def auto_class(cls, config: Any) -> str:
        return "AutoModelForSequenceClassification"

    def prepare(self, question_pipeline: Any) -> None:
        config = self.model.config
        self.problem = self.settings.get("problem_type") or config.problem_type
        if self.problem is None:
            self.problem = "regression" if config.num_labels == 1 else "single_label_classification"
        if self.problem != "regression":
            several = self.problem == "multi_label_classification"
            self.columns = ("prediction", "probability", *(("probabilities",) if several else ()))
        config.problem_type = self.problem  # by which the pipeline chooses between softmax, sigmoid and neither
        self._pipeline = self.pipeline("text-classification", top_k=None)

    def answer(self, given: Sequence[Any]) -> Iterator[dict[str, Any]]:
        options = {"truncation": True, "max_length": self.max_length}
        for scores in self.through(self._pipeline, given, **options):
            if self.problem == "regression":
                numbers = {each["label"]: round(each["score"], 6) for each in scores}
                yield {"prediction": next(iter(numbers.values())) if len(numbers) == 1 else numbers}
            elif self.problem == "multi_label_classification":
                threshold = self.settings.get("threshold", 0.5)
                found = {each["label"]: each["score"] for each in scores}
                chances = {name: found[name] for _, name in sorted(self.model.config.id2label.items())}
                chosen = [name for name, chance in chances.items() if chance > threshold]
                whole = math.prod(chance if name in chosen else 1 - chance for name, chance in chances.items())
                rounded = {name: round(chance, 6) for name, chance in chances.items()}
                yield {"prediction": chosen, "probability": round(whole, 6), "probabilities": rounded}
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
        check_columns(row, answered=False)

    def read(self, row: Row) -> dict[str, str]:
        check_columns(row, answered=False)
        return {name: row.text(name, option=None) for name in ("question", "context")}

    def answer(self, given: Sequence[Any]) -> Iterator[dict[str, Any]]:
        for found in self.through(self._pipeline, given):
            place = {name: found[name] if found["answer"] else None for name in ("start", "end")}
            yield {"prediction": found["answer"], "probability": round(found["score"], 6), **place}


class ChoicePredictor(Predictor):
    """The best of several choices, its number from 0, and what the model believes of each."""

    columns = ("prediction", "prediction_number", "probability", "probabilities")

    @classmethod
    def auto_class(cls, config: Any) -> str:
        return "AutoModelForMultipleChoice"

    def choose_columns(self, row: Row) -> None:
        names = ("context_column", "question_column")
        trained = {name.removesuffix("_column"): self.settings.get(name) for name in names}
        choices = self.settings.get("choices_columns")
        there = [name for name in [*trained.values(), *(choices or [])] if name is not None]
        if choices is None or any(name not in row.fields for name in there):
            trained, choices = {}, None
        self._places = guess_columns([_unlabelled(row)], **trained, choices=choices, label=_NO_LABEL)
        if choices is None:
            named = [name for name in (self._places.context, self._places.question, *self._places.choices) if name]
            self.notes.append(f"question and choices from columns {', '.join(named)} (guessed)")

    def read(self, row: Row) -> Problem:
        return read_problems([_unlabelled(row)], self._places)[0]

    def size(self, given: Any) -> int:
        return max(sum(map(len, given.pair(choice))) for choice in given.choices)

    @torch.no_grad()
    def answer(self, given: Sequence[Any]) -> Iterator[dict[str, Any]]:
        for start in range(0, len(given), self.batch_size):
            part = given[start : start + self.batch_size]
            pairs = [problem.pair(choice) for problem in part for choice in problem.choices]
            encoding = self.tokenizer(
                [first for first, _ in pairs],
                [second for _, second in pairs],
                truncation=True,
                max_length=self.max_length,
                return_attention_mask=False,
            )
            examples = [tokenizer_inputs(encoding, number) for number in range(len(pairs))]
            batch = pad_inputs(examples=examples, tokenizer=self.tokenizer)
            batch["choices"] = torch.tensor([len(problem.choices) for problem in part])
            batch = {name: value.to(self.model.device) for name, value in batch.items()}
            chances = MultipleChoice.logits(self.model, batch).softmax(dim=1).tolist()
            for problem, row in zip(part, chances, strict=True):
                believed = [round(chance, 6) for chance in row[: len(problem.choices)]]
                best = max(range(len(believed)), key=lambda number: row[number])
                yield {
                    "prediction": problem.choices[best],
                    "prediction_number": best,
                    "probability": believed[best],
                    "probabilities": believed,
                }


def _unlabelled(row: Row) -> Row:
    """The row with a label that says nothing, for readers that want one."""
    return Row(fields={**row.fields, _NO_LABEL: 0}, where=row.where)
