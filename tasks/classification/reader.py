"""Reading labelled texts: options, columns, and what a label column holds."""

import ast
import json
import math
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Literal

from lacuna.common.errors import InputError
from lacuna.common.options import check_range, essential
from lacuna.tasks.base.arguments import ROWS, TaskArguments, column_option, data_option, model_option
from lacuna.tasks.base.columns import SAMPLE, TEXT, Column, Found, Free, Layout
from lacuna.tasks.base.rows import Row, as_number, some_of

FEW_ROWS = 3000  # training rows up to which tokens are hidden by default
LARGEST = 1e15  # number to learn: sums of its square are finite in float32


@dataclass
class ClassificationArguments(TaskArguments):
    """Which labelled texts to learn from, and how to read them."""

    is_built_in = True
    train_file: str | None = essential(
        None, f"Labelled rows to train on: {ROWS}, or .txt with a label before each text. Default: the built-in task."
    )
    text_column: str | None = column_option("Column of the text.")
    text_pair_column: str | None = column_option("Column of the second text, for pairs.")
    label_column: str | None = column_option("Column of the label.")
    label_names: list[str] | None = data_option(
        None, "Labels in the order of the outputs. Default: those of the training rows, sorted.", metavar="NAME"
    )
    problem_type: Literal["auto", "single_label_classification", "multi_label_classification", "regression"] = (
        data_option(
            "auto",
            "What the label column holds: single_label_classification, multi_label_classification, regression or auto "
            "(inferred and printed).",
        )
    )
    label_separator: str | None = data_option(None, 'Separator of labels in a text, such as "|"; lists need none.')
    unlabelled_file: str | None = data_option(
        None, "Texts to learn from too, with the labels of --teacher: as --train_file, or .txt with a text a line."
    )
    teacher: str | None = model_option(
        None, "Classifier, fine-tuned on these training rows, that labels --unlabelled_file: a folder or Hub id."
    )
    class_weights: Literal["none", "balanced"] = data_option(
        "none", "Loss weights: none, or balanced (rare labels count as much as frequent ones)."
    )
    token_dropout: float | None = model_option(
        None,
        "Fraction of tokens hidden behind [MASK] in training, against overfitting. Default: 0.2 with up to "
        f"{FEW_ROWS:,} training rows, else 0.",
        metavar="X",
    )
    pooling: Literal["auto", "first", "mean"] = model_option(
        "auto", "Encoder output to classify: first (token), mean (of all tokens) or auto (as in its config.json)."
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        check_range(self, "token_dropout", at_least=0, below=1)
        if (self.unlabelled_file is None) != (self.teacher is None):
            raise InputError(
                "--unlabelled_file and --teacher belong together: texts without labels, and the classifier that "
                "labels them. Fine-tune one on the training rows, then another with the first as --teacher"
            )
        if self.label_separator is not None and not self.label_separator.strip(" "):
            raise InputError(
                f'--label_separator {self.label_separator!r} is blank: name a sign, such as --label_separator "|"'
            )


def _longest_text(rows: Sequence[Row], found: Found, free: Free) -> None:
    """The longest text is the text, and the one column that is left the label."""
    if texts := [] if found["text_column"] else free("text_column"):
        found["text_column"] = max(texts, key=lambda one: sum(len(str(row.fields.get(one))) for row in rows[:SAMPLE]))
    if found["label_column"] is None and len(others := free("label_column")) == 1:
        found["label_column"] = others[0]


CLASSIFICATION = Layout(
    {
        "text_column": Column(
            "the text",
            "text sentence sentence1 premise question1 text1 text_a content review document body comment tweet "
            "message question title",
            TEXT,
        ),
        "text_pair_column": Column("the second text", "", TEXT, optional=True, instead="text_column"),
        "label_column": Column("the label", "label labels target class category sentiment gold_label y score rating"),
    },
    pairs=(
        "sentence1 sentence2, text1 text2, text_a text_b, premise hypothesis, question1 question2, "
        "question sentence, text text_pair, sentence_a sentence_b, sentence_A sentence_B"
    ),
    by_content=_longest_text,
)

SINGLE, MULTI, NUMBER = "single_label_classification", "multi_label_classification", "regression"
_OPTION = "--label_column"
_JOINED = 0.5  # share of texts with a separator in them from which on they look like several labels


def is_missing(value: Any) -> bool:
    """Whether a cell is empty: nothing, blanks, or the NaN that tables write for nothing."""
    return value is None or (isinstance(value, float) and math.isnan(value)) or not str(value).strip()


def problem_type_of(*, rows: Sequence[Row], column: str, separator: str | None) -> str:
    """What a column holds, by its values: lists are several labels, fractions are numbers, all else is one label.

    With a `separator` each text is several labels. InputError where texts stand among lists, or seem to be joined
    labels.
    """
    values = [row.value(column, option=_OPTION) for row in rows]
    lists = [isinstance(value, list | tuple) for value in values]
    if separator is not None or all(lists):
        return MULTI
    if any(lists):
        row = rows[lists.index(False)]
        raise InputError(
            f"{row.where}: column '{column}' holds {_shown(row.fields[column])}, and other rows hold lists of "
            "labels: make it a list too, or name another column with --label_column"
        )
    numbers = [as_number(value) for value in values if not is_missing(value)]
    if numbers and None not in numbers:
        return NUMBER if any(number % 1 for number in numbers if number) else SINGLE
    found = joined_by([value for value in values if isinstance(value, str) and value.strip()])
    if found is not None:
        row = next(row for row in rows if found in str(row.fields[column]))
        raise InputError(
            f"{row.where}: column '{column}' holds the text {_shown(row.fields[column])}, which looks like several "
            f'labels in one text: take them apart with --label_separator "{"," if found == "[" else found}", or '
            f"take each text as one label with --problem_type {SINGLE}"
        )
    return SINGLE


def joined_by(texts: Sequence[str]) -> str | None:
    """The sign that joins labels in the texts ("[" for written lists), or None; pieces by ";" and "," come again."""
    wholes, stripped = set(texts), [text.strip() for text in texts]
    if sum(text[:1] + text[-1:] == "[]" for text in stripped) > _JOINED * len(texts):
        return "["
    for sign in ("|", ";", ","):
        joined = [text for text in texts if sign in text]
        pieces = {piece.strip() for text in joined for piece in text.split(sign)}
        alone = {text.strip() for text in wholes if sign not in text}
        if joined and pieces <= alone:
            return sign
        if len(joined) > _JOINED * len(texts) and (sign == "|" or len(pieces | alone) < len(wholes)):
            return sign
    return None


def label_name(row: Row, column: str) -> str:
    """The label of a row as a name: numbers as they are written, blanks around it removed."""
    value = row.value(column, option=_OPTION)
    if is_missing(value):
        raise InputError(f"{row.where}: column '{column}' has no label: remove the row or label it")
    if (name := _name(value)) is None:
        raise InputError(
            f"{row.where}: column '{column}' holds {_shown(value)}, not one label, a text or a whole number: "
            f"name another column with --label_column, or say what it holds with --problem_type ({MULTI} for lists, "
            f"{NUMBER} for fractions)"
        )
    return name


def _name(value: Any) -> str | None:
    if isinstance(value, float | Decimal) and math.isfinite(value) and value % 1 == 0:
        value = int(value)
    return str(value).strip() if isinstance(value, str | int) else None


def label_set(row: Row, column: str, *, separator: str | None) -> list[str]:
    """The labels of a row, each once, of a list or of a text with a separator or a list in JSON or Python."""
    value = row.value(column, option=_OPTION)
    if isinstance(value, str) and separator is not None:
        written = _written_list(value)
        value = [piece for piece in value.split(separator) if piece.strip()] if written is None else written
    if not isinstance(value, list | tuple):
        if is_missing(value):
            raise InputError(f"{row.where}: column '{column}' has no list of labels: write [] for none")
        raise InputError(
            f"{row.where}: column '{column}' holds {_shown(value)}, not a list of labels: "
            'say what stands between labels with --label_separator, such as --label_separator "|"'
        )
    names = [None if is_missing(item) else _name(item) for item in value]
    if None in names:
        odd = value[names.index(None)]
        squad = isinstance(odd, dict) and "qas" in odd
        raise InputError(
            f"{row.where}: column '{column}' holds {_shown(value)}, and {_shown(odd)} in it is not a label: labels "
            f"are texts or whole numbers{'; questions and answers are for finetune_question_answering' * squad}"
        )
    return [name for name in dict.fromkeys(names) if name is not None]


def _written_list(text: str) -> list[Any] | None:
    for read in (json.loads, ast.literal_eval) if text.strip().startswith("[") else ():
        with suppress(ValueError, SyntaxError, RecursionError, MemoryError):
            value = read(text.strip())
            return value if isinstance(value, list) else None
    return None


def multi_hot_width(*, rows: Sequence[Row], column: str) -> int | None:
    """The number of labels where every row is a list of that many 0 and 1, as in [0, 1, 0]; else None."""
    lists: list[Any] = [row.fields.get(column) for row in rows]
    if not all(isinstance(item, list | tuple) and all(value in (0, 1) for value in item) for item in lists):
        return None
    widths = {len(item) for item in lists}
    return max(widths) if len(widths) == 1 and max(widths) > 1 else None


def number_of(row: Row, column: str) -> float:
    """The number of a row, a target of regression."""
    value = row.value(column, option=_OPTION)
    if (number := as_number(value)) is None or abs(number) > LARGEST:
        none = "not a finite number" if number is None else f"beyond {LARGEST:g} (divide the column)"
        what = "is empty" if is_missing(value) else f"holds {_shown(value)}, {none}"
        raise InputError(
            f"{row.where}: column '{column}' {what}, and to learn numbers ({NUMBER}) each row needs one: correct or "
            f"remove the row, or name another column with {_OPTION}"
        )
    return number


def sorted_names(names: set[str]) -> list[str]:
    """Label names in order: as numbers when all are numbers, else as text; "1" and "01" are two labels."""
    whole = all(name.removeprefix("-").isdecimal() for name in names)
    return sorted(names, key=lambda name: (int(name), name)) if whole else sorted(names)


def name_labels(
    *, found: set[str], given: Sequence[str] | None, rows: Sequence[Row], column: str
) -> tuple[list[str], dict[str, int], str | None]:
    """Names of the labels in the order of the model's outputs, the output of each label of the data, perhaps a note.

    `found` are those of the training rows. With names that are `given`, labels that are the numbers 0, 1, ... are
    matched to them in order, which the note says.
    """
    where, another = f"{rows[0].where}: ", f"name another column with {_OPTION}"
    if not found:
        raise InputError(f"{where}no training row has a label in column '{column}': {another}")
    if len(found) > max(20, len(rows) // 2):
        numeric = 2 * sum(as_number(name) is not None for name in found) > len(found)
        or_else = f", or learn them as numbers with --problem_type {NUMBER}" if numeric else ""
        odd = [row for row in rows if as_number(row.fields.get(column)) is None]
        if numeric and odd:
            or_else += f", after mending {odd[0].where}, which holds {_shown(odd[0].fields.get(column))}, no number"
        raise InputError(
            f"{where}column '{column}' has {len(found)} different values in {len(rows)} rows, too many to be labels: "
            f"{another}{or_else}"
        )
    if len(found) == 1:
        raise InputError(
            f"{where}every training row has the label '{next(iter(found))}' in column '{column}': at least two labels "
            f"are needed to learn from; {another}"
        )
    note, names = None, sorted_names(found) if given is None else list(given)
    if len(set(names)) != len(names):
        raise InputError(f"--label_names {' '.join(names)} names a label twice")
    written = [str(number) for number in range(len(names))]
    if found <= set(written) and not found & set(names):
        pairs = some_of([f"{number} is {name}" for number, name in zip(written, names, strict=True)])
        note = f"labels are numbers in the data: {pairs}"
    else:
        written = names
    return names, {name: number for number, name in enumerate(written)}, note


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:80] + "…"
