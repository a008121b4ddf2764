"""Multiple choice: which of several texts answers a question, or continues a context?

Each choice is scored beside the question by itself, and the scores of a question's choices go through one softmax.
"""

import re
import string
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lacuna.common.errors import InputError, called
from lacuna.common.options import essential
from lacuna.tasks.base.arguments import ROWS, TaskArguments, column_option, max_length_option
from lacuna.tasks.base.columns import Column, Found, Free, Layout, names_in
from lacuna.tasks.base.features import model_inputs, pad_inputs, records, stacked, tokenize
from lacuna.tasks.base.report import Shown, Table
from lacuna.tasks.base.rows import Row, gathered, listed
from lacuna.tasks.base.task import Batch, Inputs, Task
from lacuna.tasks.predict.predictor import Predictor


@dataclass
class MultipleChoiceArguments(TaskArguments):
    """Which questions with choices to learn from, and how to read them."""

    train_file: str | None = essential(
        None, f"Questions to train on, with a list of choices or one column per choice (ending0, ...): {ROWS}."
    )
    context_column: str | None = column_option("Column of the context.")
    question_column: str | None = column_option("Column of the question.")
    choices_columns: list[str] | None = column_option("Column of the lists of choices, or one column per choice.")
    label_column: str | None = column_option("Column of the correct choice: its number, letter, name or text.")
    max_length: int | None = max_length_option("Truncate a question with one choice to this many tokens.", 256)


_NUMBERED = re.compile(r"(ending|choice|option|sol|answer|alternative)[ _-]?([0-9]{1,2}|[A-Za-z])")


def numbered_columns(columns: Sequence[str]) -> list[str]:
    """The columns of one name with numbers or letters from first to last, as ending0, ending1, ...; [] without two."""
    families: dict[str, list[str]] = {}
    for column in columns:
        if part := _NUMBERED.fullmatch(column):
            families.setdefault(part[1], []).append(column)
    best = max(families.values(), key=len, default=[])
    return sorted(best, key=lambda column: (len(column), column)) if len(best) > 1 else []


def _choice_columns(rows: Sequence[Row], found: Found, free: Free) -> None:
    """One column that holds lists, or one for each choice."""
    found["choices_columns"] = names_in(found["choices_columns"]) or numbered_columns([*rows[0].fields])


_CONTEXTS = "sent1 context passage article story premise ctx startphrase sentence text"
_LABELS = "label labels answer answerKey answer_key correct_option gold correct target"
MULTIPLE_CHOICE = Layout(
    {
        "context_column": Column("the context", _CONTEXTS, optional=True, instead="question_column"),
        "question_column": Column(
            "the question", "sent2 question question_stem query goal prompt stem", instead="context_column"
        ),
        "choices_columns": Column(
            "the choices (a list, or one in each column)",
            "choices endings options candidates alternatives answers",
            (list, tuple, Mapping),
        ),
        "label_column": Column("the label", _LABELS),
    },
    by_content=_choice_columns,
)


@dataclass(frozen=True, slots=True)
class Problem:
    """A question and its choices."""

    context: str
    question: str  # what each choice continues or answers; "" where the context alone is the question
    choices: tuple[str, ...]
    keys: tuple[str, ...]  # what the data calls the choices, such as A, B, C; empty where it does not
    answer: str  # the label as the data has it
    where: str

    @property
    def pairs(self) -> list[tuple[str, str]]:
        """The two texts that a model sees of each choice; the first is "" where there is no context."""
        if not self.context:
            return [(self.question, choice) for choice in self.choices]
        return [(self.context, f"{self.question} {choice}".strip()) for choice in self.choices]


def read_problem(row: Row, columns: Found) -> Problem:
    """The question of a row; InputError where a text is missing, it has fewer than two choices, or no label."""
    context_column, question_column = columns["context_column"], columns["question_column"]
    label_column = columns.get("label_column")  # new rows need none
    context = question = ""
    if context_column is not None:
        context = row.text(context_column, option="--context_column")
        if question_column is not None:
            question = str(row.value(question_column, option="--question_column") or "").strip()
    elif question_column is not None:
        question = row.text(question_column, option="--question_column")
    choices, keys = _choices(row, columns["choices_columns"])
    answer = "" if label_column is None else row.value(label_column, option="--label_column")
    if label_column is not None and (answer is None or not str(answer).strip()):
        raise InputError(f"{row.where}: column '{label_column}' has no label: remove the row or label it")
    if isinstance(answer, float) and answer.is_integer():
        answer = int(answer)
    return Problem(context, question, choices, keys, str(answer).strip(), row.where)


def _choices(row: Row, columns: Sequence[str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The choices of a row and what the data calls them."""
    keys: list[Any] = []
    values = [row.value(column, option="--choices_columns") for column in columns]
    if len(columns) > 1:
        texts = values
        while texts and (texts[-1] is None or not str(texts[-1]).strip()):  # a table holds the row with most choices
            texts.pop()
    elif isinstance(values[0], Mapping):  # as ARC has them: {"text": [...], "label": ["A", ...]}
        texts, keys = list(values[0].get("text", ())), list(values[0].get("label", ()))
    else:
        texts = listed(row, columns[0], option="--choices_columns")
        if texts and all(isinstance(each, Mapping) for each in texts):
            texts, keys = ([each.get(name) for each in texts] for name in ("text", "label"))
    for number, text in enumerate(texts, start=1):
        if text is None or isinstance(text, list | Mapping) or not str(text).strip():
            raise InputError(f"{row.where}: choice {number} of {len(texts)} is {text!r}, not a text: mend the row")
    if len(texts) < 2:
        raise InputError(
            f"{row.where}: {'1 choice' if texts else 'no choice'} in {list(columns)}, and it takes two to choose"
        )
    named = keys if len(keys) == len(texts) and None not in keys else []
    return tuple(str(text).strip() for text in texts), tuple(str(key).strip() for key in named)


def _letters(problem: Problem) -> list[str]:
    letters = string.ascii_lowercase if problem.answer.islower() else string.ascii_uppercase
    return [*letters[: len(problem.choices)]]


READINGS: dict[str, Callable[[Problem], Sequence[str]]] = {
    "the name of a choice": lambda problem: problem.keys,
    "a number from 0": lambda problem: [str(place) for place in range(len(problem.choices))],
    "a number from 1": lambda problem: [str(place + 1) for place in range(len(problem.choices))],
    "a letter": _letters,
    "the text of a choice": lambda problem: problem.choices,
}
"""What a label may be, and what it calls the choices then; in the order of preference where several fit all rows."""


def find_reading(problems: Sequence[Problem]) -> str:
    """The one of `READINGS` that makes sense of most labels; of several, the first."""
    return max(READINGS, key=lambda name: sum(each.answer in READINGS[name](each) for each in problems))


def read_labels(problems: Sequence[Problem], *, reading: str) -> list[int]:
    """The number of the right choice of each question, from 0; InputError where a label names none."""
    labels = []
    for problem in problems:
        names = READINGS[reading](problem)
        if problem.answer not in names:
            known = f" ({', '.join(names)})" if names and reading == "the name of a choice" else ""
            raise InputError(
                f"{problem.where}: label {problem.answer!r} is none of the {len(problem.choices)} choices{known}; "
                f"labels are read as {reading}, as most are: correct it, or name another column with --label_column"
            )
        labels.append(names.index(problem.answer))
    return labels


class MultipleChoice(Task):
    """Learning to choose; whole contexts are held out."""

    options: MultipleChoiceArguments
    name, objective = "multiple_choice", "fine-tuning for multiple choice"
    auto_class = "AutoModelForMultipleChoice"
    metric = "accuracy"
    probability_note = "The probability is that of the chosen one among the choices."

    def read(self, train: list[Any], held_out: list[Any]) -> None:
        self.columns = self.find_columns(MULTIPLE_CHOICE, train)
        train, held_out = ([read_problem(row, self.columns) for row in part] for part in (train, held_out))
        reading = find_reading(train)
        self.notes.append(f"labels are read as {reading}")
        sizes = sorted(Counter(len(problem.choices) for problem in train).items())
        self.notes.append(", ".join(f"{count:,} questions with {size} choices" for size, count in sizes))
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
        choices = sum(len(problem.choices) for problem in self._train_problems)
        self.note_cut(cut, of=choices, what="questions with their choices")
        self.set_examples(train=examples, held_out=self._examples(self._eval_problems, self._eval_labels)[0])

    def _examples(self, problems: Sequence[Problem], labels: Sequence[int]) -> tuple[list[Inputs], int]:
        """Of each question the inputs of its `choices`, all their `input_ids` in a row, and the label; and how many
        choices were cut."""
        inputs, cut = tokenize_choices(problems, tokenizer=self.tokenizer, max_length=self.max_length)
        rest, examples = iter(inputs), list[Inputs]()
        for problem, label in zip(problems, labels, strict=True):
            choices = list(islice(rest, len(problem.choices)))
            ids = np.concatenate([choice["input_ids"] for choice in choices])
            examples.append({"choices": choices, "input_ids": ids, "labels": label})
        return examples, cut

    # What the loop asks for

    def collate(self, examples: list[Inputs]) -> Batch:
        """The choices of all questions padded to the longest, [choices of the batch, length].

        Beside them `choices`, how many rows are of each question, `labels`, and `row` for held-out examples: [batch].
        """
        choices = [choice for example in examples for choice in example["choices"]]
        batch = pad_inputs(examples=choices, tokenizer=self.tokenizer)
        return batch | counted(len(example["choices"]) for example in examples) | stacked(examples, "labels", "row")

    def count_targets(self, batch: Batch) -> dict[str, int]:
        return {"examples": len(batch["choices"])}

    @staticmethod
    def logits(model: nn.Module, batch: Batch) -> Tensor:
        """Scores in float32, [batch, most choices], -inf where a question has fewer.

        All choices of the batch go in as those of one question, so that none is made up where another one has more.
        """
        scores = model(**{name: value[None] for name, value in model_inputs(batch).items()}).logits.float().flatten()
        there = batch["has_choice"]
        return scores.new_full(there.shape, -torch.inf).masked_scatter(there, scores)

    def loss(self, model: nn.Module, batch: Batch, num_targets: Batch) -> tuple[Tensor, Batch]:
        """Cross-entropy over a question's choices, and accuracy, summed and divided by the questions of the step."""
        logits = self.logits(model, batch)
        loss = F.cross_entropy(logits, batch["labels"], reduction="sum") / num_targets["examples"]
        correct = (logits.detach().argmax(dim=1) == batch["labels"]).sum()
        return loss, {"accuracy": correct / num_targets["examples"]}

    def evaluate(self, model: nn.Module, batch: Batch) -> list[dict[str, Any]]:
        """One record a question: row, label, prediction, the probability of each choice, and the loss in nats."""
        logits, labels = self.logits(model, batch), batch["labels"]
        return records(
            row=batch["row"],
            label=labels,
            prediction=logits.argmax(dim=1),
            loss=F.cross_entropy(logits, labels, reduction="none"),
            probabilities=probabilities(logits, batch["choices"]),
        )

    def scores(self) -> dict[str, float]:
        """The share of questions whose chosen choice is the right one."""
        right = sum(record["prediction"] == record["label"] for record in self.records)
        return {"accuracy": right / max(len(self.records), 1)}

    def baseline(self) -> dict[str, float]:
        """The better of two guesses: the place that is right most often in training, or the longest choice.

        The loss is that of a guess without a preference.
        """
        place = Counter(self._train_labels).most_common(1)[0][0]
        longest = [int(np.argmax([*map(len, problem.choices)])) for problem in self._eval_problems]
        by_place, by_length = (np.mean(np.equal(guess, self._eval_labels)) for guess in (place, longest))
        loss = np.mean([np.log(len(problem.choices)) for problem in self._eval_problems])
        return {"loss": float(loss), "accuracy": float(max(by_place, by_length))}

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
        return {**super().settings(), **self.columns}

    def tables(self) -> dict[str, Shown]:
        """How often each place is right, was chosen, and was chosen where it was right."""
        rows: list[list[object]] = []
        for place in range(max((len(record["probabilities"]) for record in self.records), default=0)):
            right = [record["prediction"] == place for record in self.records if record["label"] == place]
            chosen = sum(record["prediction"] == place for record in self.records)
            rows.append([f"choice {place}", len(right), chosen, sum(right) / len(right) if right else None])
        return {"By the place of the right choice": Table(("place", "right", "chosen", "accuracy"), rows)}

    def balance(self) -> Mapping[str, int]:
        return {f"choice {place}": count for place, count in sorted(Counter(self._train_labels).items())}

    def show(self, example: Inputs) -> list[str]:
        return [
            f"{'*' if number == example['labels'] else ' '} {self.tokenizer.decode(row['input_ids'])}"
            for number, row in enumerate(example["choices"])
        ]


def tokenize_choices(
    problems: Sequence[Problem], *, tokenizer: Any, max_length: int
) -> tuple[list[dict[str, np.ndarray]], int]:
    """The inputs of all choices of all questions, one after the other; and how many were cut."""
    texts, choices = zip(*(pair for problem in problems for pair in problem.pairs), strict=True)
    return tokenize(tokenizer=tokenizer, texts=texts, pairs=choices, max_length=max_length)


def counted(choices: Iterable[int]) -> Batch:
    """How many choices each question has, [batch], and which of the most that one has are there, [batch, most]."""
    counts = torch.tensor(list(choices))
    return {"choices": counts, "has_choice": torch.arange(int(counts.max())) < counts[:, None]}


def probabilities(logits: Tensor, choices: Tensor) -> list[list[float]]:
    """Of each of the choices of each question, whose scores are [batch, most choices] and numbers [batch]."""
    rows = zip(logits.softmax(dim=1).tolist(), choices.tolist(), strict=True)
    return [[round(chance, 6) for chance in row[:count]] for row, count in rows]


class ChoicePredictor(Predictor):
    """The best of several choices, its number from 0, and what the model believes of each."""

    columns = ("prediction", "prediction_number", "probability", "probabilities")
    auto_class = "AutoModelForMultipleChoice"

    def choose_columns(self, row: Row) -> None:
        layout = MULTIPLE_CHOICE.only("context_column", "question_column", "choices_columns")
        trained = {name: self.settings.get(name) for name in layout.columns}
        names = [name for value in trained.values() for name in names_in(value)]
        if not trained["choices_columns"] or not all(name in row.fields for name in names):
            trained = {}
        usual = " and ".join(names_in(self.settings.get("choices_columns")) or ["choices"])
        with called({"Name it with --choices_columns": f"Give it the name '{usual}'"}):
            self._columns = layout.find([row], **trained)
        if not trained:
            found = ", ".join(name for value in self._columns.values() for name in names_in(value))
            self.notes.append(f"question and choices from columns {found} (inferred)")

    def read(self, row: Row) -> Problem:
        return read_problem(row, self._columns)

    def size(self, given: Any) -> int:
        return max(len(text) + len(choice) for text, choice in given.pairs)

    def forward(self, given: Sequence[Any]) -> Iterator[dict[str, Any]]:
        examples, _ = tokenize_choices(given, tokenizer=self.tokenizer, max_length=self.max_length)
        batch = pad_inputs(examples=examples, tokenizer=self.tokenizer)
        batch |= counted(len(problem.choices) for problem in given)
        logits = MultipleChoice.logits(self.model, self.to_model(batch))
        chosen, chances = logits.argmax(dim=1).tolist(), probabilities(logits, batch["choices"])
        for problem, best, row in zip(given, chosen, chances, strict=True):
            numbers = {"prediction_number": best, "probability": row[best], "probabilities": row}
            yield {"prediction": problem.choices[best], **numbers}
