"""Reading sentences of tokens with a tag each, and cutting them into windows that a model can take."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from lacuna.common.errors import InputError
from lacuna.tasks.base.arguments import TaskArguments, column_option, data_option, essential_option, max_length_option
from lacuna.tasks.base.columns import SAMPLE, Column, Found, Free, Layout
from lacuna.tasks.base.features import encodings
from lacuna.tasks.base.rows import Row, listed


@dataclass
class TokenClassificationArguments(TaskArguments):
    """Which tagged sentences to learn from, and how to read them."""

    train_file: str | None = essential_option(
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
    label_all_tokens: bool = data_option(
        False, "Train on all tokens of a word and average their predictions. Default: the first token alone."
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


TOKEN_CLASSIFICATION = Layout(
    {
        "tokens_column": Column("the tokens", "tokens words token word form sentence text", (list, str)),
        "tags_column": Column(
            "the tags",
            "tags ner_tags ner labels label tag pos_tags upos pos xpos chunk_tags word_labels",
            (list, str),
        ),
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
                f"{row.where}: {len(words)} tokens in column '{tokens_column}' but {len(tags)} tags in column "
                f"'{tags_column}': every token needs one tag; mend the row or remove it"
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


@dataclass(frozen=True, slots=True)
class TokenWindow:
    """A sentence, or a piece of a long one, as the model sees it."""

    inputs: dict[str, np.ndarray]
    sentence: int
    """Number of the sentence in the list that was cut."""
    words: np.ndarray
    """int32 [length]: the word of its sentence that a token speaks for; -1: for none."""


def words_of_tokens(words: Sequence[str], offsets: Sequence[tuple[int, int]]) -> np.ndarray:
    """The word that each token belongs to: int32 [tokens], -1 for a token of nothing but blanks.

    `offsets` are the characters [start, end) of each token in the words with a blank between each two. Some tokenizers
    count the blank before a word to its first token; a token over several words belongs to the first of them.
    """
    text = " ".join(words)
    starts = np.cumsum([0, *(len(word) + 1 for word in words[:-1])])
    found = np.full(len(offsets), -1, dtype=np.int32)
    for number, (start, end) in enumerate(offsets):
        piece = text[start:end]
        letters = piece.lstrip()
        if letters:
            first = start + len(piece) - len(letters)
            found[number] = np.searchsorted(starts, first, side="right") - 1
    return found


def window_bounds(*, length: int, room: int) -> list[tuple[int, int]]:
    """Windows [start, end) over `length` tokens, `room` each; neighbours share a quarter of it or more."""
    if length <= room:
        return [(0, length)]
    starts = [0]
    while starts[-1] + room < length:
        starts.append(min(starts[-1] + max(1, room - room // 4), length - room))
    return [(start, start + room) for start in starts]


def assign_words(words: np.ndarray, bounds: Sequence[tuple[int, int]], *, all_tokens: bool) -> list[np.ndarray]:
    """For each window, which of its tokens speaks for which word: every word in one window, that with most around it.

    Args:
        words: int32 [tokens] of the sentence, as `words_of_tokens` makes them.
        bounds: of the windows.

    Returns:
        int32 [tokens of the window] for each window, -1 for tokens that speak for none.
    """
    speaking = [np.full(end - start, -1, dtype=np.int32) for start, end in bounds]
    if len(bounds) == 1:
        firsts = slice(None) if all_tokens else np.unique(words, return_index=True)[1]
        speaking[0][firsts] = words[firsts]
        return speaking
    for word in np.unique(words[words >= 0]).tolist():
        places = np.flatnonzero(words == word)
        first, last = int(places[0]), int(places[-1])

        def context(number: int, first: int = first, last: int = last) -> int:
            start, end = bounds[number]
            left = first - start if start else len(words)
            return min(left, end - 1 - last if end < len(words) else len(words))

        inside = [number for number, (start, end) in enumerate(bounds) if start <= first < end]
        chosen = max(inside, key=context)
        start, end = bounds[chosen]
        mine = places[places < end] if all_tokens else places[:1]
        speaking[chosen][mine - start] = word
    return speaking


def special_frame(tokenizer: Any) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray], int]:
    """What the tokenizer puts before and after a text, as inputs, and the segment of the text itself."""
    encoding = tokenizer(["a"], return_attention_mask=False)
    own = [place for place, sequence in enumerate(encoding.sequence_ids(0)) if sequence == 0]
    kinds = {"input_ids": np.int32, "token_type_ids": np.int8}
    arrays = {name: np.asarray(encoding[name][0], dtype=kind) for name, kind in kinds.items() if name in encoding}
    before = {name: values[: own[0]] for name, values in arrays.items()}
    after = {name: values[own[-1] + 1 :] for name, values in arrays.items()}
    segment = int(arrays["token_type_ids"][own[0]]) if "token_type_ids" in arrays else 0
    return before, after, segment


def cut_sentences(
    *, sentences: Sequence[Sequence[str]], tokenizer: Any, max_length: int, all_tokens: bool = False
) -> list[TokenWindow]:
    """Windows of at most `max_length` tokens, special ones included, in the order of the sentences, one or more each.

    A sentence is tokenized as its words with a blank between each two, and tokens find their words by characters,
    which is exact for any fast tokenizer. A word without a token of its own (control characters that a tokenizer
    drops) is in no window. With `all_tokens` all tokens of a word speak for it, else the first.
    """
    before, after, segment = special_frame(tokenizer)
    room = max_length - len(before["input_ids"]) - len(after["input_ids"])
    if room < 1:
        raise InputError(f"--max_length {max_length} leaves no room for text beside special tokens: raise it")
    windows: list[TokenWindow] = []
    # With `verbose` it would warn of sentences that are longer than the model takes.
    options: dict[str, Any] = {"add_special_tokens": False, "return_offsets_mapping": True, "verbose": False}
    for begin, encoding in encodings(tokenizer, [" ".join(words) for words in sentences], **options):
        for number, found in enumerate(encoding["input_ids"]):
            ids = np.asarray(found, dtype=np.int32)
            bounds = window_bounds(length=len(ids), room=room)
            owners = words_of_tokens(sentences[begin + number], encoding["offset_mapping"][number])
            for (start, end), speaking in zip(
                bounds, assign_words(owners, bounds, all_tokens=all_tokens), strict=True
            ):
                own = {"input_ids": ids[start:end], "token_type_ids": np.full(end - start, segment, dtype=np.int8)}
                inputs = {name: np.concatenate([before[name], own[name], after[name]]) for name in before}
                around = (len(before["input_ids"]), len(after["input_ids"]))
                windows.append(TokenWindow(inputs, begin + number, np.pad(speaking, around, constant_values=-1)))
    return windows
