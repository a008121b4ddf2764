"""Reading sentences of tagged tokens: columns, the schemes of their tags, and windows that a model can take.

Tags of entities come in schemes (IOB1, IOB2, BIOES). By the example of two places side by side, "Bern" and "New York":

    IOB1    I-LOC B-LOC I-LOC           B- only where an entity follows another one of its type
    IOB2    B-LOC B-LOC I-LOC           B- at the beginning of every entity
    BIOES   S-LOC B-LOC E-LOC           with an end of its own, and one letter for entities of a single token

BILOU (L for E, U for S) and BMES (M for I), with W for S, are read as BIOES. What is learnt and written is IOB2. Tags
without such letters, as those of parts of speech, are PLAIN: each stands for itself.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from lacuna.common.errors import InputError
from lacuna.common.options import essential
from lacuna.common.private import counted
from lacuna.tasks.base.arguments import TaskArguments, column_option, data_option, max_length_option
from lacuna.tasks.base.columns import SAMPLE, Column, Found, Free, Layout
from lacuna.tasks.base.features import encodings, tokenizer_inputs
from lacuna.tasks.base.metrics import optional_module
from lacuna.tasks.base.rows import Row, listed


@dataclass
class TokenClassificationArguments(TaskArguments):
    """Which tagged sentences to learn from, and how to read them."""

    train_file: str | None = essential(
        None,
        "Tagged sentences to train on: CoNLL columns (.conll, .txt), or rows with lists of tokens and tags (.jsonl, "
        ".parquet, a folder saved by `datasets` or a Hub dataset, OWNER/NAME:CONFIG:SPLIT).",
    )
    tokens_column: str | None = column_option("Column of the tokens.")
    tags_column: str | None = column_option("Column of the tags.")
    label_names: list[str] | None = data_option(
        None,
        "Names of numeric tags, in order; or all tags that can occur. Default: those in the training data.",
        metavar="NAME",
    )
    max_length: int | None = max_length_option("Tokens per window; longer sentences have several windows.", 256)


def _parallel_lists(rows: Sequence[Row], found: Found, free: Free) -> None:
    """Tokens and tags are the two lists of one length; there are fewer different tags than different tokens."""
    lists = [name for name in free("tokens_column") if isinstance(rows[0].fields[name], list)]
    sample = [[row.fields.get(name) for name in lists] for row in rows[:SAMPLE]]
    if any(found.values()) or len(lists) != 2:
        return
    if all(isinstance(one, list) and isinstance(other, list) and len(one) == len(other) for one, other in sample):
        kinds = [len({str(value) for values in column for value in values}) for column in zip(*sample, strict=True)]
        found["tokens_column"], found["tags_column"] = lists if kinds[1] < kinds[0] else reversed(lists)


_TAGS = "tags ner_tags ner labels label tag pos_tags upos pos xpos chunk_tags word_labels"
TOKEN_CLASSIFICATION = Layout(
    {
        "tokens_column": Column("the tokens", "tokens words token word form sentence text", (list, str)),
        "tags_column": Column("the tags", _TAGS, (list, str)),
    },
    by_content=_parallel_lists,
)


@dataclass(frozen=True, slots=True)
class Sentence:
    """Tokens as the data has them (here: words), their tags, and where they came from."""

    words: tuple[str, ...]
    tags: tuple[str, ...]
    where: str

    @property
    def text(self) -> str:
        """The words with a blank between each two; characters of predictions are counted in it."""
        return " ".join(self.words)


def read_sentences(rows: Sequence[Row], *, tokens_column: str, tags_column: str) -> list[Sentence]:
    """Sentences of rows; tags that are numbers are written as such."""
    sentences = []
    columns = ((tokens_column, "--tokens_column", str), (tags_column, "--tags_column", str | int))
    for row in rows:
        words, tags = (listed(row, column, option=named_by) for column, named_by, _ in columns)
        if not words:
            raise InputError(f"{row.where}: column '{tokens_column}' is empty: remove the row or fill in its tokens")
        if len(words) != len(tags):
            raise InputError(
                f"{row.where}: {counted(len(words), 'token')} in column '{tokens_column}' but "
                f"{counted(len(tags), 'tag')} in column '{tags_column}': every token needs one tag; mend the row "
                "or remove it"
            )
        for (column, named_by, kinds), values in zip(columns, (words, tags), strict=True):
            for value in values:
                if not isinstance(value, kinds) or isinstance(value, bool):
                    raise InputError(
                        f"{row.where}: {value!r} in column '{column}' is no text: name another with {named_by}"
                    )
        sentences.append(Sentence(tuple(words), tuple(str(tag).strip() for tag in tags), row.where))
    return sentences


def name_numbers(sentences: Sequence[Sentence], names: Sequence[str] | None) -> list[Sentence]:
    """Sentences whose tags are numbers get the names of these, the others stay. InputError: a number has no name."""
    numbers = all(tag.isdecimal() for sentence in sentences for tag in sentence.tags)
    if not names or not sentences or not numbers or any(name.isdecimal() for name in names):
        return list(sentences)
    named = []
    for sentence in sentences:
        if highest := [tag for tag in sentence.tags if int(tag) >= len(names)]:
            raise InputError(
                f"{sentence.where}: tag {highest[0]} has no name among the {len(names)} of --label_names "
                f"{' '.join(names)} (the first is that of tag 0): name every tag"
            )
        named.append(Sentence(sentence.words, tuple(names[int(tag)] for tag in sentence.tags), sentence.where))
    return named


# Tags

PLAIN, ENTITIES = "plain", "IOB2"
OUTSIDE = "O"
_TAG = re.compile(r"O|([BIESLUMW])(?:-(.+))?", flags=re.DOTALL)
_READ_AS = {"L": "E", "U": "S", "W": "S", "M": "I"}


class Entity(NamedTuple):
    """Tokens from `start` up to `end`, which is not part of it, and what they are."""

    start: int
    end: int
    type: str


def split_tag(tag: str) -> tuple[str, str]:
    """Letter (B, I, O, E or S) and type ("" where there is but one) of a tag of entities; ValueError for others."""
    if (found := _TAG.fullmatch(tag)) is None:
        raise ValueError(f"{tag!r} is neither O nor B-, I-, E- or S- with a type")
    letter, kind = found[1] or OUTSIDE, found[2] or ""
    return _READ_AS.get(letter, letter), kind


def is_tag(tag: str) -> bool:
    """Whether it is a tag of entities, which `split_tag` takes."""
    return _TAG.fullmatch(tag) is not None


def join_tag(letter: str, kind: str) -> str:
    return letter if letter == OUTSIDE or not kind else f"{letter}-{kind}"


def entities(tags: Sequence[str]) -> list[Entity]:
    """The entities of a sentence, in order, as seqeval and the script of CoNLL-2000 find them in any of the schemes.

    "I-" or "E-" after nothing of its type begins an entity too. ValueError: a tag is not one of entities.
    """
    find = optional_module("seqeval.metrics.sequence_labeling").get_entities
    found = find([join_tag(*split_tag(tag)) for tag in tags])
    return [Entity(start, last + 1, "" if kind == "_" else kind) for kind, start, last in found]


def write_tags(found: Iterable[Entity], *, length: int) -> list[str]:
    """The IOB2 tags of a sentence of `length` tokens; entities must not overlap."""
    tags = [OUTSIDE] * length
    for entity in found:
        letters = "B" + "I" * (entity.end - entity.start - 1)
        tags[entity.start : entity.end] = [join_tag(letter, entity.type) for letter in letters]
    return tags


def find_scheme(sentences: Sequence[Sequence[str]]) -> str:
    """Whether these are tags of `ENTITIES`, in any scheme, or `PLAIN` ones.

    They are entity tags where most of them begin with a letter and "-", or where all are letters and O.
    """
    seen = {tag for tags in sentences for tag in tags}
    named = seen - {OUTSIDE}
    typed = [tag for tag in named if is_tag(tag) and split_tag(tag)[1]]
    if typed and 2 * len(typed) >= len(named):
        return ENTITIES
    return ENTITIES if named and OUTSIDE in seen and named <= {*"BIES"} else PLAIN


def spans(words: Sequence[str], tags: Sequence[str], sure: Sequence[float] | None = None) -> list[dict[str, Any]]:
    """The entities of a sentence for people: type, text, its characters [start, end) and tokens, and how sure."""
    starts = np.cumsum([0, *(len(word) + 1 for word in words)]).tolist()
    found = []
    for entity in entities(tags):
        start, end = starts[entity.start], starts[entity.end] - 1
        span: dict[str, Any] = {"type": entity.type, "text": " ".join(words[entity.start : entity.end])}
        span |= {"start": start, "end": end, "tokens": [entity.start, entity.end]}
        if sure is not None:
            span["probability"] = min(sure[entity.start : entity.end])
        found.append(span)
    return found


# Windows


def words_of_tokens(words: Sequence[str], offsets: Sequence[tuple[int, int]]) -> np.ndarray:
    """The word that each token belongs to: int32 [tokens], -1 for a token of nothing but blanks.

    `offsets` are the characters [start, end) of each token in the words with a blank between each two. Some tokenizers
    count the blank before a word to its first token; a token over several words belongs to the first of them.
    """
    text = " ".join(words)
    starts = np.cumsum([0, *(len(word) + 1 for word in words[:-1])])
    letters = [text[start:end].lstrip() for start, end in offsets]
    firsts = [end - len(each) for (_, end), each in zip(offsets, letters, strict=True)]
    found = np.searchsorted(starts, firsts, side="right") - 1
    return np.where([not each for each in letters], -1, found).astype(np.int32)


def window_bounds(*, length: int, room: int) -> list[tuple[int, int]]:
    """Windows [start, end) over `length` tokens, `room` each; neighbours share a quarter of it or more."""
    if length <= room:
        return [(0, length)]
    starts = range(0, length - room, max(1, room - room // 4))
    return [(start, start + room) for start in (*starts, length - room)]


def assign_words(words: np.ndarray, bounds: Sequence[tuple[int, int]]) -> list[np.ndarray]:
    """For each window, which of its tokens speaks for which word: its first, in the window with most around the word.

    Of the int32 [tokens] of a sentence, as `words_of_tokens` makes them, int32 [tokens of the window] each, -1 for
    tokens that speak for none.
    """
    length, (starts, ends) = len(words), np.array(bounds).T
    _, firsts, places = np.unique(words, return_index=True, return_inverse=True)
    lasts = length - 1 - np.unique(words[::-1], return_index=True)[1]
    first, last = firsts[:, None], lasts[:, None]  # of each word, beside the windows
    left = np.where(starts > 0, first - starts, length)
    right = np.where(ends < length, ends - 1 - last, length)
    around = np.where((starts <= first) & (first < ends), np.minimum(left, right), -length - 1)
    chosen = around.argmax(axis=1)[places]  # the window of each token's word
    speaks = (words >= 0) & np.isin(np.arange(length), firsts)
    spoken = [np.where(speaks & (chosen == number), words, -1) for number in range(len(bounds))]
    return [each[start:end] for each, (start, end) in zip(spoken, bounds, strict=True)]


def cut_sentences(*, sentences: Sequence[Sequence[str]], tokenizer: Any, max_length: int) -> list[dict[str, Any]]:
    """Windows of at most `max_length` tokens, special ones included, in the order of the sentences, one or more each.

    Beside the inputs of a window are the number of its `sentence`, and `words`, int32 [length]: which word of that a
    token speaks for; -1: for none.

    A sentence is tokenized as its words with a blank between each two, and tokens find their words by characters,
    which is exact for any fast tokenizer. A word without a token of its own (control characters that a tokenizer
    drops) is in no window.
    """
    windows: list[dict[str, Any]] = []
    # With `verbose` it would warn of sentences that are longer than the model takes.
    options: dict[str, Any] = {"return_offsets_mapping": True, "verbose": False}
    for begin, encoding in encodings(tokenizer, [" ".join(words) for words in sentences], **options):
        for number, offsets in enumerate(encoding["offset_mapping"]):
            inputs, sentence = tokenizer_inputs(encoding, number), begin + number
            own = [place for place, part in enumerate(encoding.sequence_ids(number)) if part == 0]
            if not own:
                continue
            first, stop, length = own[0], own[-1] + 1, len(offsets)
            words = words_of_tokens(sentences[sentence], offsets[first:stop])
            bounds = window_bounds(length=len(words), room=max_length - length + len(words))
            for (start, end), speaking in zip(bounds, assign_words(words, bounds), strict=True):
                kept = np.r_[:first, first + start : first + end, stop:length]
                framed = np.pad(speaking, (first, length - stop), constant_values=-1)
                windows.append(
                    {name: ids[kept] for name, ids in inputs.items()} | {"sentence": sentence, "words": framed}
                )
    return windows
