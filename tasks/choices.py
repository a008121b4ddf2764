"""Questions with several choices, out of the columns of public data sets or of anybody's own."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lacuna.common.errors import InputError
from lacuna.tasks.rows import Row, columns_of
from lacuna.tasks.tagged import listed

# Names that public data sets give their columns, best guess first.
CONTEXT_COLUMNS = (
    "sent1", "context", "passage", "article", "story", "premise", "ctx", "startphrase", "sentence", "text",
)  # fmt: skip
QUESTION_COLUMNS = ("sent2", "question", "question_stem", "query", "goal", "prompt", "stem")
CHOICES_COLUMNS = ("choices", "endings", "options", "candidates", "alternatives", "answers")
LABEL_COLUMNS = ("label", "labels", "answer", "answerKey", "answer_key", "correct_option", "gold", "correct", "target")
_NUMBERED = re.compile(r"(ending|choice|option|sol|answer|alternative)[ _-]?([0-9]{1,2}|[A-Za-z])")


@dataclass(frozen=True, slots=True)
class Columns:
    """Where a question is found; `context` or `question` may be None."""

    context: str | None
    question: str | None
    choices: tuple[str, ...]
    """One column that holds a list, or one for each choice."""
    label: str


@dataclass(frozen=True, slots=True)
class Problem:
    """A question and its choices."""

    context: str
    question: str
    """What each choice continues or answers; "" where the context alone is the question."""
    choices: tuple[str, ...]
    keys: tuple[str, ...]
    """What the data calls the choices, such as A, B, C; empty where it does not."""
    answer: Any
    """The label as the data has it."""
    where: str

    def pair(self, choice: str) -> tuple[str, str]:
        """The two texts that a model sees of a choice; the first is "" where there is no context."""
        if not self.context:
            return self.question, choice
        return self.context, f"{self.question} {choice}".strip()


def numbered_columns(columns: Sequence[str]) -> tuple[str, ...]:
    """The columns of one name with numbers or letters from first to last, as ending0, ending1, ...; () without two."""
    families: dict[str, list[str]] = {}
    for column in columns:
        if found := _NUMBERED.fullmatch(column):
            families.setdefault(found[1], []).append(column)
    best = max(families.values(), key=len, default=[])
    return tuple(sorted(best, key=lambda column: (len(column), column))) if len(best) > 1 else ()


def guess_columns(
    rows: Sequence[Row],
    *,
    context: str | None = None,
    question: str | None = None,
    choices: Sequence[str] | None = None,
    label: str | None = None,
) -> Columns:
    """Where context, question, choices and label are; those not given are guessed by name.

    Raises:
        InputError: a given column is not there, or nothing looks like choices, a question or a label.
    """
    there = columns_of(rows)
    given = {"--context_column": [context], "--question_column": [question], "--label_column": [label]}
    for option, names in {**given, "--choices_columns": choices or []}.items():
        for name in names:
            if name is not None:
                rows[0].value(name, option=option)
    listing = [name for name in CHOICES_COLUMNS if name in there and not isinstance(rows[0].fields[name], str)]
    found = tuple(choices or ()) or tuple(listing[:1]) or numbered_columns(there)
    if not found:
        raise InputError(
            f"{rows[0].where}: which of {rows[0].shown(there)} hold the choices? Name one with a list in it, or one "
            "for each choice, with --choices_columns"
        )
    taken = {*found, context, question, label}
    free = [name for name in there if name not in taken]
    if context is None and question is None:
        context = next((name for name in CONTEXT_COLUMNS if name in free), None)
        question = next((name for name in QUESTION_COLUMNS if name in free), None)
        if context == "startphrase" or (context is None and question is None):
            question = None
    if context is None and question is None:
        raise InputError(
            f"{rows[0].where}: which column of {rows[0].shown(there)} holds the question? Name it with "
            "--question_column, or --context_column for a text that the choices continue"
        )
    label = label or next((name for name in LABEL_COLUMNS if name in free), None)
    if label is None:
        raise InputError(
            f"{rows[0].where}: which column of {rows[0].shown(there)} is the label? Name it with --label_column"
        )
    return Columns(context, question, found, label)


def _choices(row: Row, columns: tuple[str, ...]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The choices of a row and what the data calls them."""
    option, keys = "--choices_columns", []
    if len(columns) == 1:
        value = row.value(columns[0], option=option)
        if isinstance(value, Mapping):  # as ARC has them: {"text": [...], "label": ["A", ...]}
            texts, keys = list(value.get("text", ())), list(value.get("label", ()))
        else:
            texts = listed(row, columns[0], option=option)
            if texts and all(isinstance(each, Mapping) for each in texts):
                keys = [each.get("label") for each in texts]
                texts = [each.get("text") for each in texts]
    else:
        texts = [row.value(column, option=option) for column in columns]
        while texts and (texts[-1] is None or not str(texts[-1]).strip()):  # a table holds the row with most choices
            texts.pop()
    for number, text in enumerate(texts, start=1):
        if text is None or isinstance(text, list | Mapping) or not str(text).strip():
            raise InputError(f"{row.where}: choice {number} of {len(texts)} is {text!r}, not a text: mend the row")
    if len(texts) < 2:
        raise InputError(f"{row.where}: {len(texts)} choices in {list(columns)}, and two are needed to choose from")
    named = len(keys) == len(texts) and None not in keys
    return tuple(str(text).strip() for text in texts), tuple(str(key).strip() for key in keys) if named else ()


def read_problems(rows: Sequence[Row], columns: Columns) -> list[Problem]:
    """The questions of rows.

    Raises:
        InputError: a text is missing, there are fewer than two choices, or no label.
    """
    problems = []
    for row in rows:
        context = "" if columns.context is None else row.text(columns.context, option="--context_column")
        question = ""
        if columns.question is not None and columns.context is None:
            question = row.text(columns.question, option="--question_column")
        elif columns.question is not None:
            question = str(row.value(columns.question, option="--question_column") or "").strip()
        choices, keys = _choices(row, columns.choices)
        answer = row.value(columns.label, option="--label_column")
        if isinstance(answer, float) and answer.is_integer():
            answer = int(answer)
        if answer is None or not str(answer).strip():
            raise InputError(f"{row.where}: column '{columns.label}' has no label: remove the row or label it")
        problems.append(Problem(context, question, choices, keys, str(answer).strip(), row.where))
    return problems


def _as_number(problem: Problem, first: int) -> int | None:
    if not problem.answer.isdecimal():
        return None
    number = int(problem.answer) - first
    return number if 0 <= number < len(problem.choices) else None


def _as_letter(problem: Problem) -> int | None:
    letter = problem.answer.upper()
    number = ord(letter) - ord("A") if len(letter) == 1 else -1
    return number if 0 <= number < len(problem.choices) else None


def _as_one_of(problem: Problem, names: Sequence[str]) -> int | None:
    return names.index(problem.answer) if problem.answer in names else None


# What a label may be, in the order of preference where several would do for all rows.
READINGS = {
    "the name of a choice": lambda problem: _as_one_of(problem, problem.keys),
    "a number from 0": lambda problem: _as_number(problem, 0),
    "a number from 1": lambda problem: _as_number(problem, 1),
    "a letter": _as_letter,
    "the text of a choice": lambda problem: _as_one_of(problem, problem.choices),
}


def find_reading(problems: Sequence[Problem]) -> str:
    """The one of `READINGS` that makes sense of most labels; of several, the first."""
    fits = {name: sum(read(problem) is not None for problem in problems) for name, read in READINGS.items()}
    return max(fits, key=lambda name: fits[name])


def read_labels(problems: Sequence[Problem], *, reading: str) -> list[int]:
    """The number of the right choice of each question, from 0.

    Raises:
        InputError: a label names no choice.
    """
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
