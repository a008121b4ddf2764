"""Multiple choice: which of several texts answers a question, or continues a context?

Each choice is scored beside the question by itself, and the scores of a question's choices go through one softmax.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lacuna.tasks.base.columns import names_in
from lacuna.tasks.base.features import model_inputs, pad_inputs, records, stacked, tokenize
from lacuna.tasks.base.report import Shown, Table
from lacuna.tasks.base.rows import Row, gathered
from lacuna.tasks.base.task import Inputs, Task
from lacuna.tasks.multiple_choice.reader import (
    MULTIPLE_CHOICE,
    Columns,
    MultipleChoiceArguments,
    Problem,
    find_reading,
    read_labels,
    read_problem,
    read_problems,
)
from lacuna.tasks.predict.predictor import Predictor


class MultipleChoice(Task):
    """Learning to choose; whole contexts are held out."""

    options: MultipleChoiceArguments
    name, objective = "multiple_choice", "fine-tuning for multiple choice"
    auto_class = "AutoModelForMultipleChoice"
    metric = "accuracy"
    probability_note = "The probability is that of the chosen one among the choices."

    def read(self, train: list[Any], held_out: list[Any]) -> None:
        self._named = self.find_columns(MULTIPLE_CHOICE, train)
        self.columns = Columns(*self._named.values())
        train, held_out = read_problems(train, self.columns), read_problems(held_out, self.columns)
        reading = find_reading(train)
        self.notes.append(f"labels are read as {reading}")
        sizes = Counter(len(problem.choices) for problem in train)
        self.notes.append(
            ", ".join(f"{count:,} questions with {size} choices" for size, count in sorted(sizes.items()))
        )
        train, held_out = self.divide(
            train,
            held_out,
            same=lambda item: (item.context, item.question, item.choices),
            group=lambda item: item.context or item.question,
            what="questions",
            how=", by context",
        )
        self._train_problems, self._eval_problems = train, held_out
        self._train_labels, self._eval_labels = (read_labels(part, reading=reading) for part in (train, held_out))

    def training_texts(self) -> list[str]:
        parts = ((item.context, item.question, *item.choices) for item in self._train_problems)
        return gathered([text for text in texts if text] for texts in parts)

    def encode(self) -> None:
        self.note_pairs()
        examples, cut = self._examples(self._train_problems, self._train_labels)
        self.note_cut(cut, of=sum(len(example["sizes"]) for example in examples), what="questions with their choices")
        self.set_examples(train=examples, held_out=self._examples(self._eval_problems, self._eval_labels)[0])

    def _examples(self, problems: Sequence[Problem], labels: Sequence[int]) -> tuple[list[Inputs], int]:
        """Of each question the inputs of its choices, one after the other, `sizes` [choices] and the label; and how
        many choices were cut."""
        pairs = [problem.pair(choice) for problem in problems for choice in problem.choices]
        texts, choices = zip(*pairs, strict=True)
        inputs, cut = tokenize(tokenizer=self.tokenizer, texts=texts, pairs=choices, max_length=self.max_length)
        examples: list[Inputs] = []
        rest = iter(inputs)
        for problem, label in zip(problems, labels, strict=True):
            rows = list(islice(rest, len(problem.choices)))
            example: Inputs = {name: np.concatenate([row[name] for row in rows]) for name in rows[0]}
            example["sizes"] = np.array([len(row["input_ids"]) for row in rows], dtype=np.int32)
            examples.append({**example, "labels": label})
        return examples, cut

    # What the loop asks for

    def collate(self, examples: list[Inputs]) -> dict[str, Tensor]:
        """The choices of all questions padded to the longest, [choices of the batch, length].

        Beside them `choices` [batch], how many of those rows are of each question, `labels` [batch], and `row` [batch]
        for held-out examples.
        """
        batch = pad_inputs(
            examples=[row for example in examples for row in split_choices(example)], tokenizer=self.tokenizer
        )
        batch["choices"] = torch.tensor([len(example["sizes"]) for example in examples])
        return batch | stacked(examples, "labels", "row")

    def count_targets(self, batch: dict[str, Tensor]) -> dict[str, int]:
        return {"examples": len(batch["choices"])}

    @staticmethod
    def logits(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
        """Scores in float32, [batch, most choices], -inf where a question has fewer.

        All choices of the batch go in as those of one question, so that none is made up where another one has more.
        """
        scores = model(**{name: value[None] for name, value in model_inputs(batch).items()}).logits.float().flatten()
        counts = batch["choices"]
        there = torch.arange(int(counts.max()), device=counts.device) < counts[:, None]
        return scores.new_full(there.shape, -torch.inf).masked_scatter(there, scores)

    def loss(
        self, model: nn.Module, batch: dict[str, Tensor], num_targets: dict[str, Tensor]
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Cross-entropy over a question's choices, and accuracy, summed and divided by the questions of the step."""
        logits = self.logits(model, batch)
        loss = F.cross_entropy(logits, batch["labels"], reduction="sum") / num_targets["examples"]
        correct = (logits.detach().argmax(dim=1) == batch["labels"]).sum()
        return loss, {"accuracy": correct / num_targets["examples"]}

    def evaluate(self, model: nn.Module, batch: dict[str, Tensor]) -> list[dict[str, Any]]:
        """One record a question: row, label, prediction, the probability of each choice, and the loss in nats."""
        logits = self.logits(model, batch)
        losses = F.cross_entropy(logits, batch["labels"], reduction="none")
        found = records(
            row=batch["row"],
            label=batch["labels"],
            prediction=logits.argmax(dim=1),
            loss=losses,
            probabilities=logits.softmax(dim=1),
        )
        for record, count in zip(found, batch["choices"].tolist(), strict=True):
            record["probabilities"] = [round(probability, 6) for probability in record["probabilities"][:count]]
        return found

    def scores(self) -> dict[str, float]:
        """Accuracy."""
        right = sum(record["prediction"] == record["label"] for record in self.records)
        return {"accuracy": right / max(len(self.records), 1)}

    def baseline(self) -> dict[str, float]:
        """The better of two guesses: always the place that is right most often in training, or the longest choice.

        The loss is that of a guess without a preference.
        """
        if not self._eval_problems:
            return {}
        place = Counter(self._train_labels).most_common(1)[0][0]
        longest = [max(range(len(item.choices)), key=lambda n: len(item.choices[n])) for item in self._eval_problems]
        right = [
            sum(guess == label for guess, label in zip(guesses, self._eval_labels, strict=True))
            for guesses in ([place] * len(longest), longest)
        ]
        loss = np.mean([np.log(len(problem.choices)) for problem in self._eval_problems])
        return {"loss": float(loss), "accuracy": max(right) / len(longest)}

    # For people

    def predictions(self) -> list[dict[str, Any]]:
        """Each question with its choices, the chosen and the right one, and what the model believes of each."""
        readable = []
        for record in self.records:
            problem, guess, label = self._eval_problems[record["row"]], record["prediction"], record["label"]
            texts = {"context": problem.context, "question": problem.question}
            readable.append(
                {
                    **{name: text for name, text in texts.items() if text},
                    "choices": list(problem.choices),
                    "prediction": problem.choices[guess],
                    "gold": problem.choices[label],
                    "prediction_number": guess,
                    "gold_number": label,
                    "probability": record["probabilities"][guess],
                    "probabilities": record["probabilities"],
                    "correct": guess == label,
                }
            )
        return readable

    def settings(self) -> dict[str, Any]:
        return {**super().settings(), **self._named, "choices_columns": list(self.columns.choices)}

    def tables(self) -> dict[str, Shown]:
        """How often each place is right, was chosen, and was chosen where it was right."""
        places = range(max((len(record["probabilities"]) for record in self.records), default=0))
        rows: list[list[object]] = []
        for place in places:
            right = [record for record in self.records if record["label"] == place]
            chosen = sum(record["prediction"] == place for record in self.records)
            hits = sum(record["prediction"] == place for record in right)
            rows.append([f"choice {place}", len(right), chosen, hits / len(right) if right else None])
        columns = ("place", "right", "chosen", "accuracy")
        return {"By the place of the right choice": Table(columns, rows)}

    def balance(self) -> Mapping[str, int]:
        return {f"choice {place}": count for place, count in sorted(Counter(self._train_labels).items())}

    def show(self, example: Inputs) -> list[str]:
        return [
            f"{'*' if number == example['labels'] else ' '} {self.tokenizer.decode(row['input_ids'])}"
            for number, row in enumerate(split_choices(example))
        ]


def split_choices(example: Inputs) -> list[Inputs]:
    """The inputs of each choice of an example, which holds them one after the other."""
    ends = np.cumsum(example["sizes"]).tolist()
    names = [name for name in ("input_ids", "token_type_ids") if name in example]
    return [
        {name: example[name][end - size : end] for name in names}
        for end, size in zip(ends, example["sizes"].tolist(), strict=True)
    ]


class ChoicePredictor(Predictor):
    """The best of several choices, its number from 0, and what the model believes of each."""

    columns = ("prediction", "prediction_number", "probability", "probabilities")
    auto_class = "AutoModelForMultipleChoice"

    def choose_columns(self, row: Row) -> None:
        layout = MULTIPLE_CHOICE.only("context_column", "question_column", "choices_columns")
        named = {name: self.settings.get(name) for name in layout.columns}
        there = [name for value in named.values() for name in names_in(value)]
        trained = bool(named["choices_columns"]) and all(name in row.fields for name in there)
        self._places = Columns(*layout.find([row], **(named if trained else {})))
        if not trained:
            there = [name for value in self._places for name in names_in(value)]
            self.notes.append(f"question and choices from columns {', '.join(there)} (inferred)")

    def read(self, row: Row) -> Problem:
        return read_problem(row, self._places)

    def size(self, given: Any) -> int:
        return max(sum(map(len, given.pair(choice))) for choice in given.choices)

    def forward(self, given: Sequence[Any]) -> Iterator[dict[str, Any]]:
        firsts, seconds = zip(*(problem.pair(choice) for problem in given for choice in problem.choices), strict=True)
        examples, _ = tokenize(tokenizer=self.tokenizer, texts=firsts, pairs=seconds, max_length=self.max_length)
        batch = pad_inputs(examples=examples, tokenizer=self.tokenizer)
        batch["choices"] = torch.tensor([len(problem.choices) for problem in given])
        chances = MultipleChoice.logits(self.model, self.to_model(batch)).softmax(dim=1).tolist()
        for problem, row in zip(given, chances, strict=True):
            believed = [round(chance, 6) for chance in row[: len(problem.choices)]]
            best = max(range(len(believed)), key=row.__getitem__)
            numbers = {"prediction_number": best, "probability": believed[best], "probabilities": believed}
            yield {"prediction": problem.choices[best], **numbers}
