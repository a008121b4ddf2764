"""Choices in new questions."""

from collections.abc import Iterator, Sequence
from typing import Any

import torch

from lacuna.tasks.base.features import pad_inputs, tokenizer_inputs
from lacuna.tasks.base.rows import Row
from lacuna.tasks.multiple_choice.reader import MULTIPLE_CHOICE, Columns, Problem, read_problem
from lacuna.tasks.multiple_choice.task import MultipleChoice
from lacuna.tasks.predict.predictor import Predictor


class ChoicePredictor(Predictor):
    """The best of several choices, its number from 0, and what the model believes of each."""

    columns = ("prediction", "prediction_number", "probability", "probabilities")
    auto_class = "AutoModelForMultipleChoice"

    def choose_columns(self, row: Row) -> None:
        named = {name.partition("_")[0]: self.settings.get(name) for name in ("context_column", "question_column")}
        named["choices"] = self.settings.get("choices_columns")
        there = [name for name in (named["context"], named["question"], *(named["choices"] or ())) if name]
        trained = named["choices"] is not None and all(name in row.fields for name in there)
        layout = MULTIPLE_CHOICE.only("context", "question", "choices")
        self._places = Columns(*layout.find([row], **(named if trained else {})))
        if not trained:
            there = [name for name in (self._places.context, self._places.question, *self._places.choices) if name]
            self.notes.append(f"question and choices from columns {', '.join(there)} (guessed)")

    def read(self, row: Row) -> Problem:
        return read_problem(row, self._places)

    def size(self, given: Any) -> int:
        return max(sum(map(len, given.pair(choice))) for choice in given.choices)

    def forward(self, given: Sequence[Any]) -> Iterator[dict[str, Any]]:
        firsts, seconds = zip(*(problem.pair(choice) for problem in given for choice in problem.choices), strict=True)
        encoding = self.tokenizer(list(firsts), list(seconds), **self.cut, return_attention_mask=False)
        examples = [tokenizer_inputs(encoding, number) for number in range(len(firsts))]
        batch = pad_inputs(examples=examples, tokenizer=self.tokenizer)
        batch["choices"] = torch.tensor([len(problem.choices) for problem in given])
        chances = MultipleChoice.logits(self.model, self.to_model(batch)).softmax(dim=1).tolist()
        for problem, row in zip(given, chances, strict=True):
            believed = [round(chance, 6) for chance in row[: len(problem.choices)]]
            best = max(range(len(believed)), key=row.__getitem__)
            numbers = {"prediction_number": best, "probability": believed[best], "probabilities": believed}
            yield {"prediction": problem.choices[best], **numbers}
