"""Reading questions about contexts, from SQuAD's JSON or flat rows, and cutting contexts into windows."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from lacuna.common.errors import InputError
from lacuna.common.options import check_range, essential
from lacuna.tasks.base.arguments import TaskArguments, data_option, max_length_option
from lacuna.tasks.base.features import encodings, tokenizer_inputs
from lacuna.tasks.base.rows import Row


@dataclass
class QuestionAnsweringArguments(TaskArguments):
    """Which training questions, and how to cut their contexts."""

    is_built_in = True
    train_file: str | None = essential(
        None,
        "Questions to train on: SQuAD JSON (1.1 or 2.0), .jsonl or .parquet with one question per row, or a Hub "
        "dataset (OWNER/NAME:CONFIG:SPLIT). Default: the built-in task.",
    )
    max_length: int | None = max_length_option("Tokens per window: the question and a part of the context.", 384)
    stride: int | None = data_option(None, "Tokens by which windows overlap. Default: a third of --max_length.")
    max_answer_length: int = data_option(48, "Most tokens in an answer.")

    def __post_init__(self) -> None:
        super().__post_init__()
        check_range(self, "stride", "max_answer_length", above=0)


_SHORTEST_QUESTION = 8  # tokens
_TOLERATED = 0.01  # of the answers may stand elsewhere


@dataclass(frozen=True, slots=True)
class Question:
    """A question whose answer is a piece of its context, or that has none."""

    id: str
    question: str
    context: str
    answers: tuple[str, ...]  # texts that count as right; none where the context does not answer the question
    starts: tuple[int, ...]  # character of the context at which each answer starts
    where: str

    @property
    def is_aligned(self) -> bool:
        """Whether the first answer, the one that is learned, is at its stated position; there may be none."""
        return not self.answers or (self.starts[0] >= 0 and self.context.startswith(self.answers[0], self.starts[0]))

    @property
    def target(self) -> tuple[int, int]:
        """Characters [start, end) of the first answer, which `is_aligned`, without blanks around it."""
        return trimmed(self.context, self.starts[0], self.starts[0] + len(self.answers[0]))


def trimmed(context: str, start: int, end: int) -> tuple[int, int]:
    """The characters [start, end) without blanks at either end."""
    text = context[start:end]
    start += len(text) - len(text.lstrip())
    return start, start + len(text.strip())


_FORMAT = "questions are read from columns of these names; rename yours, or convert the file"


def _answers(row: Row) -> tuple[tuple[str, ...], tuple[int, ...]]:
    """Texts and starts, from {"text": [...], "answer_start": [...]} or [{"text": ..., "answer_start": ...}, ...].

    A table may have columns "answer" and "answer_start" instead. A question that "is_impossible" has none.
    """
    if _is_impossible(row):
        return (), ()
    alone = {"text": [row.fields.get("answer")], "answer_start": [row.fields.get("answer_start")]}
    value: Any = row.fields.get("answers", alone)
    try:
        if not isinstance(value, Mapping):
            value = {name: [answer[name] for answer in value] for name in ("text", "answer_start")}
        texts, starts = tuple(value["text"]), tuple(map(int, value["answer_start"]))
        if len(texts) != len(starts):
            raise ValueError(f"{len(texts)} texts and {len(starts)} starts")
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(
            f"{row.where}: 'answers' holds {str(value)[:100]!r}; it must be "
            '{"text": [...], "answer_start": [...]} or a list of {"text": ..., "answer_start": ...}'
        ) from error
    if not all(isinstance(text, str) and text.strip() for text in texts):
        raise InputError(
            f"{row.where}: the question has an empty answer: a question that its context does not answer has an empty "
            'list, "answers": []'
        )
    return texts, starts


def _is_impossible(row: Row) -> bool:
    return row.fields.get("is_impossible") in (True, "True", "true", 1)


def flat_rows(row: Row) -> Iterator[Row]:
    """The flat rows inside a row: of SQuAD's whole file, of one article, of one paragraph, or the row itself."""
    fields, where = row.fields, row.where
    part = next((name for name in ("data", "paragraphs", "qas") if isinstance(fields.get(name), list)), None)
    if part is None or "question" in fields:
        yield row
        return
    for number, inner in enumerate(fields[part], start=1):
        if not isinstance(inner, Mapping):
            raise InputError(f"{where}: '{part}' number {number} is not an object, so this is not SQuAD JSON")
        if part == "qas":
            if "context" not in inner:
                row.require(["context"], remedy="in SQuAD's format it stands beside the questions; mend the file")
            inner = {"context": fields.get("context"), **inner}
            where = f"{row.where}, question {inner.get('id', number)}"
        yield from flat_rows(Row(fields=inner, where=where))


def check_columns(row: Row, *, answered: bool) -> None:
    """See that a flat row has a question and its context, and with `answered` the answers too."""
    told = {"answer", "answer_start"} <= row.fields.keys() or _is_impossible(row)
    row.require(["question", "context", *(["answers"] if answered and not told else [])], remedy=_FORMAT)


def read_questions(rows: Sequence[Row]) -> list[Question]:
    """Questions of flat rows with question, context, answers and perhaps id, or of rows of SQuAD's JSON."""
    questions: list[Question] = []
    for row in (flat for nested in rows for flat in flat_rows(nested)):
        check_columns(row, answered=True)
        texts, starts = _answers(row)
        questions.append(
            Question(
                id=str(row.fields.get("id", len(questions))),
                question=row.text("question", option=None).strip(),
                context=row.text("context", option=None),
                answers=texts,
                starts=starts,
                where=row.where,
            )
        )
    return questions


def misaligned(questions: Sequence[Question], *, option: str = "--train_file") -> str | None:
    """A note on the questions whose first answer does not stand where `answer_start` says.

    InputError where more than a share of `_TOLERATED` is wrong; `option` named their file.
    """
    wrong = [question for question in questions if not question.is_aligned]
    if not wrong:
        return None
    first, total = wrong[0], sum(bool(question.answers) for question in questions)
    found = first.context[max(0, first.starts[0]) :][: len(first.answers[0])]
    line = (
        f"{len(wrong)} of {total} answers are not where answer_start says; the first: {first.where}: "
        f"answer {first.answers[0]!r}, but at character {first.starts[0]} stands {found!r}"
    )
    if len(wrong) > _TOLERATED * total:
        raise InputError(
            f"{line}; more than {_TOLERATED:.0%} are too many: count characters (not bytes) from 0 in {option}"
        )
    return line


@dataclass(frozen=True, slots=True)
class Window:
    """A question with a piece of its context, as the model sees it."""

    inputs: dict[str, np.ndarray]
    question: int  # number of the question in the list that was cut
    first: int  # position of the first token of the context
    offsets: np.ndarray  # int32 [context tokens, 2]: characters [start, end) of the context that each token stands for
    start: int  # first token of the answer
    end: int  # last one; both 0, the first token of all, unless all of the answer is in this window

    @property
    def features(self) -> dict[str, Any]:
        return {**self.inputs, "start": self.start, "end": self.end}

    @property
    def allowed(self) -> np.ndarray:
        """Tokens at which an answer may start or end, bool [length]."""
        allowed = np.zeros(len(self.inputs["input_ids"]), dtype=bool)
        allowed[self.first : self.first + len(self.offsets)] = self.offsets[:, 0] < self.offsets[:, 1]
        return allowed

    def characters(self, start: int, end: int) -> tuple[int, int]:
        """The characters [start, end) of the context under the tokens from `start` to `end`, the latter included."""
        return int(self.offsets[start - self.first, 0]), int(self.offsets[end - self.first, 1])


def answer_tokens(offsets: np.ndarray, start: int, end: int) -> tuple[int, int] | None:
    """First and last of the tokens that hold characters [start, end), or None when they do not hold all of them.

    `offsets`: int [tokens, 2], characters of each token; those of one character of several bytes all have its own.
    """
    touching = np.flatnonzero((offsets[:, 0] < end) & (offsets[:, 1] > start) & (offsets[:, 0] < offsets[:, 1]))
    if not len(touching) or offsets[touching[0], 0] > start or offsets[touching[-1], 1] < end:
        return None
    return int(touching[0]), int(touching[-1])


def _shortened(questions: Sequence[str], *, tokenizer: Any, longest: int) -> list[str]:
    """Each question, cut after `longest` tokens."""
    parts = encodings(tokenizer, questions, add_special_tokens=False, return_offsets_mapping=True)
    every = [offsets for _, encoding in parts for offsets in encoding["offset_mapping"]]
    return [
        question if len(offsets) <= longest else question[: offsets[longest - 1][1]]
        for question, offsets in zip(questions, every, strict=True)
    ]


def cut_windows(*, questions: Sequence[Question], tokenizer: Any, max_length: int, stride: int) -> list[Window]:
    """Cut every context into windows of at most `max_length` tokens, question and special tokens included.

    Neighbouring windows share `stride` tokens of the context. Questions are cut to half of what that leaves, so that a
    window always moves on by as much. InputError where the lengths leave no room.
    """
    longest_question = (max_length - tokenizer.num_special_tokens_to_add(pair=True) - stride) // 2
    if longest_question < _SHORTEST_QUESTION:
        raise InputError(
            f"--max_length {max_length} with --stride {stride} leaves {max(0, longest_question)} tokens for a "
            f"question, fewer than {_SHORTEST_QUESTION}: raise --max_length or lower --stride"
        )
    windows: list[Window] = []
    options: dict[str, Any] = {"max_length": max_length, "stride": stride, "truncation": "only_second"}
    asked = _shortened([item.question for item in questions], tokenizer=tokenizer, longest=longest_question)
    contexts = [item.context for item in questions]
    for begin, encoding in encodings(
        tokenizer, asked, contexts, **options, return_overflowing_tokens=True, return_offsets_mapping=True
    ):
        for number, sample in enumerate(encoding["overflow_to_sample_mapping"]):
            context = np.flatnonzero([sequence == 1 for sequence in encoding.sequence_ids(number)])
            first = int(context[0]) if len(context) else 0
            offsets = np.asarray(encoding["offset_mapping"][number], dtype=np.int32)[context]
            item = questions[begin + sample]
            found = answer_tokens(offsets, *item.target) if item.answers and item.is_aligned else None
            start, end = (found[0] + first, found[1] + first) if found else (0, 0)
            inputs = tokenizer_inputs(encoding, number)
            windows.append(Window(inputs, begin + sample, first, offsets.reshape(-1, 2), start, end))
    return windows
