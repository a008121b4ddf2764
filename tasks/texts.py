"""The texts of a task for pretraining, without its labels: self-pretraining (https://arxiv.org/abs/2209.14389)."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from lacuna.common.errors import InputError, called
from lacuna.common.private import shown
from lacuna.tasks.base.columns import Layout
from lacuna.tasks.base.fine_tuning import fingerprints
from lacuna.tasks.base.rows import Row, as_rows
from lacuna.tasks.base.task import Reader, Task
from lacuna.tasks.classification.reader import CLASSIFICATION
from lacuna.tasks.classification.task import Classification
from lacuna.tasks.embeddings.task import Embeddings
from lacuna.tasks.multiple_choice.task import MULTIPLE_CHOICE, MultipleChoice
from lacuna.tasks.question_answering.task import QuestionAnswering
from lacuna.tasks.sequence_to_sequence.task import SEQUENCE_TO_SEQUENCE, SequenceToSequence, unfold
from lacuna.tasks.token_classification.reader import TOKEN_CLASSIFICATION
from lacuna.tasks.token_classification.task import TokenClassification

_KINDS = (Classification, QuestionAnswering, TokenClassification, MultipleChoice, SequenceToSequence, Embeddings)
TASKS: dict[str, type[Task]] = {kind.name: kind for kind in _KINDS}

_MOST_LABELS = 20  # or half of the rows: with more different texts a column is no column of labels


def read_task_texts(
    files: Sequence[str], *, task: str | None, read: Reader, builtin: Mapping[str, Reader]
) -> tuple[list[str], list[dict[str, Any]]]:
    """The texts of the rows that fine-tuning on each file learns from by default, and what run.json says of each file.

    The rows are read and divided by the `Task` itself, so that none of those that it holds out is among them. Files
    are named as with `--train_file`, or are in `builtin`; `task` is one of `TASKS`, None: by the columns of each file.
    Raises InputError: there is no such task, its columns do not tell the task, or fine-tuning would refuse the file.
    """
    if task is not None and task not in TASKS:
        raise InputError(f"--for_task {task} is not known; choose from {', '.join(TASKS)}")
    texts: list[str] = []
    facts: list[dict[str, Any]] = []
    for file in files:
        with called({"there is no file": f"--for: built-in tasks are {', '.join(builtin)}, and there is no file"}):
            rows = builtin[file]() if file in builtin else read(file)
        name = task or (file if file in builtin else task_of(as_rows(rows, part="training"), file=file))
        kind = TASKS[name]
        options = kind.__annotations__["options"]
        try:
            # The default seed of fine-tuning, which decides what is held out, whatever that of pretraining is.
            work = kind(options(train_file=file), train_rows=rows, tokenizer=None, seed=0)
        except InputError as error:
            why = re.sub(r"[:;] [^:;]*--(?!column_names|encoding).*", "", str(error))  # no option of that recipe
            raise InputError(
                f"--for reads {shown(file)} for {name}, as its recipe does by default (--for_task names another "
                f"task): {why}"
            ) from error
        own = work.training_texts()
        # As fine-tuning reads them: see `tasks.base.models.read_first_words`.
        texts += own if kind.writes else [f" {text.lstrip()}" for text in own]
        facts.append({"file": file, "task": name, "texts": len(own), **fingerprints(file, own)})
    return texts, facts


def task_of(rows: Sequence[Row], *, file: str) -> str:
    """The task whose columns the rows have. InputError where that cannot be told; `file` is for its message."""
    fields = rows[0].fields
    asked = {"question", "context"} <= {*fields} and {"answers", "answer_start"} & {*fields}
    if asked or any(isinstance(fields.get(name), list) for name in ("data", "paragraphs", "qas")):
        return "question_answering"
    tokens = _columns(TOKEN_CLASSIFICATION, rows)
    if tokens and isinstance(fields[tokens["tokens_column"]], list):
        return "token_classification"
    if _columns(MULTIPLE_CHOICE, rows):
        return "multiple_choice"
    if labelled := _columns(CLASSIFICATION, rows):
        labels = {label for row in rows if isinstance(label := row.fields.get(labelled["label_column"]), str)}
        if len(labels) <= max(_MOST_LABELS, len(rows) // 2):
            return "classification"
    if _columns(SEQUENCE_TO_SEQUENCE, unfold(rows)):
        return "sequence_to_sequence"
    raise InputError(
        f"--for {shown(file)}: its columns {rows[0].shown(fields)} do not tell which task it is for: name it with "
        f"--for_task ({', '.join(TASKS)})"
    )


def _columns(layout: Layout, rows: Sequence[Row]) -> dict[str, Any] | None:
    """The columns that a task would find; None where it would find none."""
    try:
        return layout.find(rows)
    except InputError:
        return None


def describe(facts: Sequence[Mapping[str, Any]], *, share: float) -> list[str]:
    """Lines for people on what `read_task_texts` found; `share` is that of the training rows."""
    parts = []
    for fact in facts:
        where = "the built-in task" if fact["file"] == fact["task"] else shown(fact["file"])
        parts.append(f"{fact['texts']:,} texts of {where} ({fact['task']})")
    how = "without labels and without the rows that fine-tuning holds out by default"
    return [f"self-pretraining: {share:.0%} of the training rows are from {', '.join(parts)}, {how}"] if parts else []
