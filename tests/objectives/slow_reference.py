"""Every objective once more, slowly and in plain Python: lists, loops, one token at a time.

The same random numbers are drawn in the same order as in the code; all that is done with them is written anew.
"""

import math
from typing import Any

import numpy as np

from lacuna.objectives import IGNORED

NONE, SPACE, BLANK, LETTER, DIGIT, OTHER, UNSPACED, PARTIAL = range(8)


def flat(lists: list[list[Any]]) -> list[Any]:
    """The members of lists, one after another."""
    return [member for part in lists for member in part]


# Documents and rows


def sentences_of(store: Any, document: tuple[int, int]) -> list[list[int]]:
    """The sentences of a document, each a list of tokens."""
    bounds = store.sentence_offsets
    return [store.tokens[bounds[number] : bounds[number + 1]].tolist() for number in range(*document)]


def framed(store: Any, documents: Any, *, start: int = 2, end: int = 3) -> list[list[int]]:
    """Each document with its frame."""
    return [[start, *flat(sentences_of(store, tuple(document))), end] for document in documents]


def concatenated(documents: list[list[int]], *, length: int, overlap: int = 0) -> list[list[list[int]]]:
    """Rows, each a list of pieces, each a list of tokens: the stream, cut."""
    stream = [(token, number) for number, document in enumerate(documents) for token in document]
    rows, begin = [], 0
    while stream and (not rows or begin + overlap < len(stream)):
        pieces: list[list[int]] = []
        last = None
        for token, number in stream[begin : begin + length]:
            if number != last:
                pieces.append([])
            pieces[-1].append(token)
            last = number
        rows.append(pieces)
        begin += length - overlap
    return rows


def cut(document: list[int], *, length: int, overlap: int = 0) -> list[list[int]]:
    """The pieces of one document when it begins a row."""
    pieces, begin = [], 0
    while begin == 0 or begin + overlap < len(document):
        pieces.append(document[begin : begin + length])
        begin += length - overlap
    return pieces


# Masks


def either_side(number: float, generator: np.random.Generator) -> int:
    """The whole number below or above, the one above as often as the fraction says."""
    below = math.floor(number)
    return below + (generator.random() >= 1 - (number - below))


def continues(before: Any, after: Any) -> bool:
    """Whether a token, by its classes, goes on with the word of the one before."""
    first, last = after[0], before[1]
    if first == PARTIAL:
        return True
    if last == SPACE:
        return first not in (NONE, SPACE, BLANK)
    return first == last and first in (LETTER, DIGIT, OTHER)


def words_of(ids: list[int], *, edges: Any, candidates: list[bool]) -> list[list[int]]:
    """Places of the tokens of each word."""
    words: list[list[int]] = []
    for place, token in enumerate(ids):
        if not candidates[place]:
            continue
        if place and candidates[place - 1] and continues(edges[ids[place - 1]], edges[token]):
            words[-1].append(place)
        else:
            words.append([place])
    return words


def span_length(number: float) -> int:
    """Geometric with p = 0.2, at most 10, from a number between 0 and 1."""
    shares = [0.2 * 0.8**k for k in range(10)]
    passed = 0.0
    for length, share in enumerate(shares, start=1):
        passed += share / sum(shares)
        if number < passed:
            return length
    return 10


def spans_of(words: list[list[int]], *, budget: int, generator: np.random.Generator) -> list[list[int]]:
    """Spans in the order in which they were drawn, each a list of words; laid down without overlap."""
    goal = min(2 * budget, len(words))
    lengths: list[int] = []
    for number in generator.random(goal):
        if sum(lengths) < goal:
            lengths.append(min(span_length(number), len(words) - sum(lengths)))
    singles = len(words) - sum(lengths)
    spans: list[list[int]] = [[] for _ in lengths]
    word = 0
    for block in generator.permutation(len(lengths) + singles):
        size = lengths[block] if block < len(lengths) else 1
        if block < len(lengths):
            spans[block] = list(range(word, word + size))
        word += size
    shift = int(generator.integers(len(words)))
    divided = []
    for span in [[(word + shift) % len(words) for word in span] for span in spans]:
        parts = [[span[0]]]
        for word in span[1:]:
            if words[word][0] == words[word - 1][-1] + 1:
                parts[-1].append(word)
            else:  # something that is no word stands between
                parts.append([word])
        divided += parts
    return divided


def masked(
    ids: list[int],
    *,
    tokens: Any,
    edges: Any,
    how: str,
    probability: float,
    generator: np.random.Generator,
    mask_share: float = 0.8,
    random_share: float = 0.1,
    given: list[bool] | None = None,
) -> tuple[list[int], list[int]]:
    """Masked ids, and labels."""
    candidates = [not tokens.is_special[token] for token in ids]
    if given is not None:
        candidates = [own and allowed for own, allowed in zip(candidates, given, strict=True)]
    places = [place for place, allowed in enumerate(candidates) if allowed]
    seen, labels = list(ids), [IGNORED] * len(ids)
    if not places:
        return seen, labels
    budget = max(1, either_side(probability * len(places), generator))
    units: list[list[int]]  # what shares a fate
    if how == "token":
        units = [[place] for place in generator.permutation(places).tolist()[:budget]]
    else:
        words = words_of(ids, edges=edges, candidates=candidates)
        if how == "whole_word":
            groups = [[number] for number in generator.permutation(len(words)).tolist()]
        else:
            groups = spans_of(words, budget=budget, generator=generator)
        taken, left = [], budget
        for group in groups:
            for number in group:
                if len(words[number]) > left:
                    break
                left -= len(words[number])
                taken.append((number, group))
        if not taken:
            order = [(number, group) for group in groups for number in group]
            taken = [min(order, key=lambda entry: len(words[entry[0]]))]
        if how == "whole_word":
            units = [[place] for place in sorted(place for number, _ in taken for place in words[number])]
        else:
            units = [
                [place for number, own in taken if own is group for place in words[number]]
                for group in groups
                if any(own is group for _, own in taken)
            ]
    fates = generator.random(len(units))
    fate_of = {place: fate for unit, fate in zip(units, fates, strict=True) for place in unit}
    order = [unit[0] for unit in units] if how == "token" else sorted(fate_of)
    for place, drawn in zip(order, generator.integers(len(tokens.ordinary), size=len(order)), strict=True):
        labels[place] = ids[place]
        if fate_of[place] < mask_share:
            seen[place] = tokens.mask
        elif fate_of[place] < mask_share + random_share:
            seen[place] = int(tokens.ordinary[drawn])
    return seen, labels


# Pairs


def chunks_of(lengths: list[int], *, length: int) -> list[tuple[int, int]]:
    """First and one past the last sentence of each chunk of a document; each reaches `length` tokens if it can."""
    chunks, first, size = [], 0, 0
    for sentence, own in enumerate(lengths):
        size += own
        if size >= length or sentence == len(lengths) - 1:
            chunks.append((first, sentence + 1))
            first, size = sentence + 1, 0
    return chunks


def truncated(first: list[int], second: list[int], *, room: int, generator: Any) -> tuple[list[int], list[int]]:
    """`truncate_seq_pair` as the paper's authors describe it: one token at a time, from the longer of the two."""
    first, second = list(first), list(second)
    while len(first) + len(second) > room:
        longer = first if len(first) > len(second) else second
        longer.pop(0 if generator.random() < 0.5 else -1)
    return first, second


def next_pair(
    documents: list[list[list[int]]], own: int, chunk: tuple[int, int], *, room: int, generator: Any
) -> tuple[list[int], list[int], int]:
    """A, B and label of BERT from a chunk of document `own`."""
    sentences = documents[own][slice(*chunk)]
    text = flat(sentences)
    if len(sentences) == 1:
        place = int(generator.integers(1, max(len(text), 2)))
    else:
        place = len(flat(sentences[: int(generator.integers(chunk[0] + 1, chunk[1])) - chunk[0]]))
    first, second, label = text[:place], text[place:], 0
    if generator.random() >= 0.5:
        second = other_text(documents, own, size=len(second), inside=len(sentences) == 1, generator=generator)
        label = 1
    return *truncated(first, second, room=room, generator=generator), label


def other_text(documents: list[list[list[int]]], own: int, *, size: int, inside: bool, generator: Any) -> list[int]:
    """Of eight places in other documents the text that comes nearest to a size, the first of equals."""
    others = [number for number in range(len(documents)) if number != own]
    drawn = [others[number] for number in generator.integers(len(others), size=8)]
    found = []
    for number, place in zip(drawn, generator.random(8), strict=True):
        sentences = documents[number]
        start = int(place * len(sentences))
        if inside:
            text = sentences[start][1:]
            found.append(text[max(0, len(text) - size) :])
            continue
        while start and len(flat(sentences[start:])) < size:
            start -= 1
        end = start
        while end < len(sentences) and len(flat(sentences[start:end])) < size:
            end += 1
        found.append(flat(sentences[start:end]))
    return min(found, key=lambda text: abs(len(text) - size))


def ordered_pair(sentences: list[list[int]], *, room: int, generator: Any) -> tuple[list[int], list[int], int]:
    """A, B and label of ALBERT from the sentences of a chunk."""
    text = flat(sentences)
    begins = {len(flat(sentences[:number])) for number in range(1, len(sentences))}
    excess = max(0, len(text) - room)
    front = excess if generator.random() < 0.5 else 0
    kept = range(front, front + min(len(text), room))
    swapped = bool(generator.random() < 0.5)
    cuts = sorted(place - front for place in begins if place in kept and place > front)
    text = [text[place] for place in kept]
    place = int(generator.choice(cuts)) if cuts else int(generator.integers(1, max(len(text), 2)))
    if swapped and len(text) > 1:
        return text[place:], text[:place], 1
    return text[:place], text[place:], 0


# Damage


def filled_in(text: list[int], *, mask: int, probability: float, generator: Any) -> list[int]:
    """BART's text infilling."""
    budget = min(max(1, either_side(probability * len(text), generator)), len(text))
    lengths: list[int] = []
    for length in generator.poisson(3, size=budget + 8).tolist():
        if sum(lengths) < budget:
            lengths.append(length)
    lengths[-1] += budget - sum(lengths)
    real = [length for length in lengths if length]
    while len(real) < min(len(lengths), budget):
        real.append(0)
    read, place = [], 0
    for block in generator.permutation(len(real) + len(text) - budget):
        if block < len(real):
            read.append(mask)
            place += real[block]
        else:
            read.append(text[place])
            place += 1
    assert place == len(text)
    return read
