"""Reading questions with several choices: options, columns, and what a label says."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from lacuna.common.errors import InputError
from lacuna.tasks.base.arguments import ROWS, TaskArguments, column_option, essential_option, max_length_option
from lacuna.tasks.base.columns import Column, Found, Free, Layout, names_in
from lacuna.tasks.base.rows import Row, columns_of, listed


@dataclass
class MultipleChoiceArguments(TaskArguments):
    """Which questions with choices to learn from, and how to read them."""

    train_file: str | None = essential_option(
        None, f"Questions to train on, with a list of choices or one column per choice (ending0, ...): {ROWS}."
    )
    context_column: str | None = column_option("Column of the context.")
    question_column: str | None = column_option("Column of the question.")
    choices_columns: list[str] | None = column_option("Column of the lists of choices, or one column per choice.")
    label_column: str | None = column_option("Column of the correct choice: its number, letter, name or text.")
    max_length: int | None = max_length_option("Truncate a question with one choice to this many tokens.", 256)


_NUMBERED = re.compile(r"(ending|choice|option|sol|answer|alternative)[ _-]?([0-9]{1,2}|[A-Za-z])")


def numbered_columns(columns: Sequence[str]) -> tuple[str, ...]:
    """The columns of one name with numbers or letters from first to last, as ending0, ending1, ...; () without two."""
    families: dict[str, list[str]] = {}
    for column in columns:
        if part := _NUMBERED.fullmatch(column):
            families.setdefault(part[1], []).append(column)
    best = max(families.values(), key=len, default=[])
    return tuple(sorted(best, key=lambda column: (len(column), column))) if len(best) > 1 else ()


def _choice_columns(rows: Sequence[Row], found: Found, free: Free) -> None:
    """One column that holds lists, or one for each choice."""
    found["choices_columns"] = tuple(names_in(found["choices_columns"])) or numbered_columns(columns_of(rows))


MULTIPLE_CHOICE = Layout(
    {
        "context_column": Column(
            "the context",
            "sent1 context passage article story premise ctx startphrase sentence text",
            optional=True,
            instead="question_column",
        ),
        "question_column": Column(
            "the question",
            "sent2 question question_stem query goal prompt stem",
            instead="context_column",
        ),
        "choices_columns": Column(
            "the choices (a list, or one in each column)",
            "choices endings options candidates alternatives answers",
            (list, tuple, Mapping),
        ),
        "label_column": Column(
            "the label",
            "label labels answer answerKey answer_key correct_option gold correct target",
        ),
    },
    by_content=_choice_columns,
)

_OPTION = "--choices_columns"


class Columns(NamedTuple):
    """Where a question is found; `context` or `question` may be None, and `label` of questions to be answered."""

    context: str | None
    question: str | None
    choices: tuple[str, ...]
    """One column that holds a list, or one for each choice."""
    label: str | None = None


@dataclass(frozen=True, slots=True)
class Problem:
    """A question and its choices."""

    context: str
    question: str
    """What each choice continues or answers; "" where the context alone is the question."""
    choices: tuple[str, ...]
    keys: tuple[str, ...]
    """What the data calls the choices, such as A, B, C; empty where it does not."""
    answer: str
    """The label as the data has it."""
    where: str

    def pair(self, choice: str) -> tuple[str, str]:
        """The two texts that a model sees of a choice; the first is "" where there is no context."""
        if not self.context:
            return self.question, choice
        return self.context, f"{self.question} {choice}".strip()


def _choices(row: Row, columns: tuple[str, ...]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The choices of a row and what the data calls them."""
    keys: list[Any] = []
    if len(columns) == 1:
        value = row.value(columns[0], option=_OPTION)
        if isinstance(value, Mapping):  # as ARC has them: {"text": [...], "label": ["A", ...]}
            texts, keys = list(value.get("text", ())), list(value.get("label", ()))
        else:
            texts = listed(row, columns[0], option=_OPTION)
            if texts and all(isinstance(each, Mapping) for each in texts):
                keys = [each.get("label") for each in texts]
                texts = [each.get("text") for each in texts]
    else:
        texts = [row.value(column, option=_OPTION) for column in columns]
        while texts and (texts[-1] is None or not str(texts[-1]).strip()):  # a table holds the row with most choices
            texts.pop()
    for number, text in enumerate(texts, start=1):
        if text is None or isinstance(text, list | Mapping) or not str(text).strip():
            raise InputError(f"{row.where}: choice {number} of {len(texts)} is {text!r}, not a text: mend the row")
    if len(texts) < 2:
        raise InputError(f"{row.where}: {len(texts)} choices in {list(columns)}, and two are needed to choose from")
    named = len(keys) == len(texts) and None not in keys
    return tuple(str(text).strip() for text in texts), tuple(str(key).strip() for key in keys) if named else ()


def _answer(row: Row, column: str) -> str:
    answer = row.value(column, option="--label_column")
    if isinstance(answer, float) and answer.is_integer():
        answer = int(answer)
    if answer is None or not str(answer).strip():
        raise InputError(f"{row.where}: column '{column}' has no label: remove the row or label it")
    return str(answer).strip()


def read_problem(row: Row, columns: Columns) -> Problem:
    """The question of a row; InputError where a text is missing, it has fewer than two choices, or no label."""
    context = "" if columns.context is None else row.text(columns.context, option="--context_column")
    question = ""
    if columns.question is not None and columns.context is None:
        question = row.text(columns.question, option="--question_column")
    elif columns.question is not None:
        question = str(row.value(columns.question, option="--question_column") or "").strip()
    choices, keys = _choices(row, columns.choices)
    answer = "" if columns.label is None else _answer(row, columns.label)
    return Problem(context, question, choices, keys, answer, row.where)


def read_problems(rows: Sequence[Row], columns: Columns) -> list[Problem]:
    """The questions of rows."""
    return [read_problem(row, columns) for row in rows]


def _number(problem: Problem, number: int) -> int | None:
    return number if 0 <= number < len(problem.choices) else None


def _as_number(problem: Problem, first: int) -> int | None:
    return _number(problem, int(problem.answer) - first) if problem.answer.isdecimal() else None


def _as_letter(problem: Problem) -> int | None:
    letter = problem.answer.upper()
    return _number(problem, ord(letter) - ord("A")) if len(letter) == 1 else None


def _as_one_of(problem: Problem, names: Sequence[str]) -> int | None:
    return names.index(problem.answer) if problem.answer in names else None


# What a label may be, in the order of preference where several would do for all rows.
READINGS: dict[str, Callable[[Problem], int | None]] = {
    "the name of a choice": lambda problem: _as_one_of(problem, problem.keys),
    "a number from 0": lambda problem: _as_number(problem, 0),
    "a number from 1": lambda problem: _as_number(problem, 1),
    "a letter": _as_letter,
    "the text of a choice": lambda problem: _as_one_of(problem, problem.choices),
}


def find_reading(problems: Sequence[Problem]) -> str:
    """The one of `READINGS` that makes sense of most labels; of several, the first."""
    return max(READINGS, key=lambda name: sum(READINGS[name](problem) is not None for problem in problems))


def read_labels(problems: Sequence[Problem], *, reading: str) -> list[int]:
    """The number of the right choice of each question, from 0; InputError where a label names none."""
    labels = []
    for problem in problems:
        number = READINGS[reading](problem)
        if number is None:
            names = f" ({', '.join(problem.keys)})" if problem.keys and reading == "the name of a choice" else ""
            raise InputError(
                f"{problem.where}: label {problem.answer!r} is none of the {len(problem.choices)} choices{names}; "
                f"labels are read as {reading}, as most are: correct it, or name another column with --label_column"
            )
        labels.append(number)
    return labels
