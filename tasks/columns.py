"""Which columns of a table a task reads: those that somebody named, else told by name, by type and by content.

Each task describes what it reads in a `Layout`; names are those that public data sets use, best guess first.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from lacuna.common.errors import InputError
from lacuna.tasks.rows import Row, all_of, columns_of

_SAMPLE = 200
Found = dict[str, Any]
"""Column of each thing that is read: a name, several names, or None."""
Free = Callable[[str], list[str]]
"""Columns that may still be something, by their type."""


@dataclass(frozen=True, slots=True)
class Column:
    """One thing that a task reads."""

    what: str
    """As messages call it."""
    option: str
    """Names its column."""
    names: str = ""
    """That public data sets give it, best guess first, with blanks between."""
    kinds: tuple[type, ...] = (object,)
    """Types of its values."""
    optional: bool = False
    instead: str = ""
    """It is not needed where this one was found, and not guessed where somebody named this one."""


@dataclass(frozen=True, slots=True)
class Layout:
    """What a task reads of a row."""

    columns: Mapping[str, Column]
    pairs: Mapping[str, str] = field(default_factory=dict)
    """Names of the first column, with those that the second has beside it."""
    by_content: Callable[[Sequence[Row], Found, Free], None] = lambda rows, found, free: None
    """Finds what no name tells, by what is in the columns."""

    def find(self, rows: Sequence[Row], **given: Any) -> tuple[Any, ...]:
        """The columns in the order of the layout; those not given are guessed, None is what was not found.

        Raises:
            InputError: a given column is not there, or something that is needed was not found.
        """
        found: Found = {name: given.get(name) for name in self.columns}
        for name, column in self.columns.items():
            for one in _listed(found[name]):
                rows[0].value(one, option=column.option)

        def free(name: str) -> list[str]:
            taken = {one for value in found.values() for one in _listed(value)}
            return [one for one in columns_of(rows) if one not in taken and self._fits(name, one, rows)]

        for name, column in self.columns.items():
            if not found[name] and not given.get(column.instead):
                fitting = free(name)
                found[name] = next((one for one in self._names(name, found, fitting) if one in fitting), None)
        self.by_content(rows, found, free)
        self._check(rows[0], found)
        return tuple(found.values())

    def only(self, *names: str, **changes: Any) -> "Layout":
        """The layout of some of the columns."""
        return replace(self, columns={name: self.columns[name] for name in names}, **changes)

    def _fits(self, name: str, column: str, rows: Sequence[Row]) -> bool:
        """Whether most values are of the type; a row whose value is not is named when it is read."""
        fits = [isinstance(row.fields.get(column), self.columns[name].kinds) for row in rows[:_SAMPLE]]
        return 2 * sum(fits) > len(fits)

    def _names(self, name: str, found: Found, fitting: Sequence[str]) -> list[str]:
        """What a column may be called, beside those that were found."""
        first, second, *_ = [*self.columns, ""]
        names = self.columns[name].names.split()
        if name == second:
            return self.pairs[found[first]].split() if found[first] in self.pairs else names
        if name == first:
            known = [one for one, others in self.pairs.items() if found.get(second) or {*others.split()} & {*fitting}]
            return [*known, *names]
        return names

    def _check(self, row: Row, found: Found) -> None:
        missing = [
            column
            for name, column in self.columns.items()
            if not (found[name] or column.optional or found.get(column.instead))
        ]
        if missing:
            whats, options = all_of([column.what for column in missing]), all_of([column.option for column in missing])
            columns, hold, them = ("columns", "hold", "them") if len(missing) > 1 else ("column", "holds", "it")
            raise InputError(
                f"{row.where}: which {columns} of {row.shown(row.fields)} {hold} {whats}? Name {them} with {options}"
            )


def _listed(value: Any) -> list[str]:
    return [value] if isinstance(value, str) else list(value or ())


def only_ones(rows: Sequence[Row], found: Found, free: Free) -> None:
    """Of the first two what is missing, where just as many columns are left for it."""
    missing = [name for name in [*found][:2] if found[name] is None]
    left = free(missing[0]) if missing else []
    if len(left) == len(missing):
        found.update(zip(missing, left, strict=True))


def _longest_text(rows: Sequence[Row], found: Found, free: Free) -> None:
    """The longest text is the text, and the one column that is left the label."""
    if texts := [] if found["text"] else free("text"):
        found["text"] = max(texts, key=lambda name: sum(len(str(row.fields.get(name))) for row in rows[:_SAMPLE]))
    if found["label"] is None and len(others := free("label")) == 1:
        found["label"] = others[0]


def _parallel_lists(rows: Sequence[Row], found: Found, free: Free) -> None:
    """Tokens and tags are the two lists of one length; there are fewer different tags than different tokens."""
    lists = [name for name in free("tokens") if isinstance(rows[0].fields[name], list)]
    sample = [[row.fields.get(name) for name in lists] for row in rows[:_SAMPLE]]
    if any(found.values()) or len(lists) != 2:
        return
    if all(isinstance(one, list) and isinstance(other, list) and len(one) == len(other) for one, other in sample):
        kinds = [len({str(value) for values in column for value in values}) for column in zip(*sample, strict=True)]
        found["tokens"], found["tags"] = lists if kinds[1] < kinds[0] else reversed(lists)


_NUMBERED = re.compile(r"(ending|choice|option|sol|answer|alternative)[ _-]?([0-9]{1,2}|[A-Za-z])")


def numbered_columns(columns: Sequence[str]) -> tuple[str, ...]:
    """The columns of one name with numbers or letters from first to last, as ending0, ending1, ...; () without two."""
    families: dict[str, list[str]] = {}
    for column in columns:
        if part := _NUMBERED.fullmatch(column):
            families.setdefault(part[1], []).append(column)
    best = max(families.values(), key=len, default=[])
    return tuple(sorted(best, key=lambda column: (len(column), column))) if len(best) > 1 else ()


def _choices(rows: Sequence[Row], found: Found, free: Free) -> None:
    """One column that holds lists, or one for each choice."""
    found["choices"] = tuple(_listed(found["choices"])) or numbered_columns(columns_of(rows))


TEXT = (str,)

CLASSIFICATION = Layout(
    {
        "text": Column(
            "the text",
            "--text_column",
            "text sentence sentence1 premise question1 text1 text_a content review document body comment tweet "
            "message question title",
            TEXT,
        ),
        "pair": Column("the second text", "--text_pair_column", "", TEXT, optional=True, instead="text"),
        "label": Column(
            "the label", "--label_column", "label labels target class category sentiment gold_label y score rating"
        ),
    },
    pairs={
        "sentence1": "sentence2",
        "text1": "text2",
        "text_a": "text_b",
        "premise": "hypothesis",
        "question1": "question2",
        "question": "sentence",
        "text": "text_pair",
    },
    by_content=_longest_text,
)

TOKEN_CLASSIFICATION = Layout(
    {
        "tokens": Column("the tokens", "--tokens_column", "tokens words token word form sentence text", (list, str)),
        "tags": Column(
            "the tags",
            "--tags_column",
            "tags ner_tags ner labels label tag pos_tags upos pos xpos chunk_tags word_labels",
            (list, str),
        ),
    },
    by_content=_parallel_lists,
)

MULTIPLE_CHOICE = Layout(
    {
        "context": Column(
            "the context",
            "--context_column",
            "sent1 context passage article story premise ctx startphrase sentence text",
            optional=True,
            instead="question",
        ),
        "question": Column(
            "the question",
            "--question_column",
            "sent2 question question_stem query goal prompt stem",
            instead="context",
        ),
        "choices": Column(
            "the choices (a list, or one in each column)",
            "--choices_columns",
            "choices endings options candidates alternatives answers",
            (list, tuple, Mapping),
        ),
        "label": Column(
            "the label",
            "--label_column",
            "label labels answer answerKey answer_key correct_option gold correct target",
        ),
    },
    by_content=_choices,
)

SEQUENCE_TO_SEQUENCE = Layout(
    {
        "source": Column("the source", "--source_column", "", TEXT),
        "target": Column("what is to be written from it", "--target_column", "", TEXT),
    },
    pairs={
        "source": "target",
        "src": "tgt trg",
        "input": "output target",
        "instruction": "output response",
        "prompt": "completion response",
        "article": "highlights summary abstract",
        "document": "summary",
        "dialogue": "summary",
        "text": "summary title target",
        "question": "answer",
    },
    by_content=only_ones,
)

EMBEDDINGS = Layout(
    {
        "first": Column("a text", "--text_column", "", TEXT),
        "second": Column("one that belongs to it", "--text_pair_column", "", TEXT),
        "negative": Column("one that does not", "--negative_column", "negative neg hard_negative", optional=True),
        "label": Column(
            "the label",
            "--label_column",
            "score similarity similarity_score relatedness_score gold_label label labels is_duplicate",
            optional=True,
        ),
    },
    pairs={
        "anchor": "positive",
        "query": "positive document passage answer response pos",
        "premise": "hypothesis",
        "sentence1": "sentence2",
        "sentence_A": "sentence_B",
        "text1": "text2",
        "question1": "question2",
        "question": "positive answer context passage",
        "title": "body abstract text",
        "text": "text_pair positive",
    },
    by_content=only_ones,
)
