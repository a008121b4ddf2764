"""Schemes of entity tags (IOB1, IOB2, BIOES): finding the one a data set has, reading entities, writing tags.

By the example of two places that stand side by side, "Bern" and "New York":

    IOB1    I-LOC B-LOC I-LOC           B- only where an entity follows another one of its type
    IOB2    B-LOC B-LOC I-LOC           B- at the beginning of every entity
    BIOES   S-LOC B-LOC E-LOC           with an end of its own, and one letter for entities of a single token

BILOU (L for E, U for S) and BMES (M for I), with W for S, are read as BIOES. Tags without such letters, as those of
parts of speech, are PLAIN: each stands for itself.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

PLAIN = "plain"
SCHEMES = ("IOB2", "IOB1", "BIOES")
OUTSIDE = "O"
_LETTERS = "BIESLUMW"
_TYPED = re.compile(rf"([{_LETTERS}])-(.+)", flags=re.DOTALL)
_READ_AS = {"L": "E", "U": "S", "W": "S", "M": "I"}


@dataclass(frozen=True, slots=True, order=True)
class Entity:
    """Tokens from `start` up to `end`, which is not part of it, and what they are."""

    start: int
    end: int
    type: str


def split_tag(tag: str) -> tuple[str, str]:
    """Letter (B, I, O, E or S) and type of a tag of entities; the type is empty where there is but one.

    ValueError: it is no such tag.
    """
    if tag == OUTSIDE:
        return OUTSIDE, ""
    found = _TYPED.fullmatch(tag)
    letter, kind = found.groups() if found else (tag, "")
    if letter not in {*_LETTERS}:
        raise ValueError(f"{tag!r} is neither O nor B-, I-, E- or S- with a type")
    return _READ_AS.get(letter, letter), kind


def is_tag(tag: str) -> bool:
    """Whether it is a tag of entities, which `split_tag` takes."""
    return tag in {OUTSIDE, *_LETTERS} or _TYPED.fullmatch(tag) is not None


def join_tag(letter: str, kind: str) -> str:
    """The tag of a letter and a type."""
    return letter if letter == OUTSIDE or not kind else f"{letter}-{kind}"


def entities(tags: Sequence[str]) -> list[Entity]:
    """The entities of a sentence, in order, as the script of CoNLL-2000 finds them in tags of any of the three ways.

    Nothing is an error: "I-" or "E-" after nothing of its type begins an entity too.

    Raises:
        ValueError: a tag is not one of entities.
    """
    found: list[Entity] = []
    start: int | None = None
    before, kind_before = OUTSIDE, ""
    for place, tag in enumerate([*tags, OUTSIDE]):
        letter, kind = split_tag(tag)
        begins = letter != OUTSIDE and (letter in "BS" or before in "OES" or kind != kind_before)
        if start is not None and (begins or letter == OUTSIDE):
            found.append(Entity(start, place, kind_before))
            start = None
        if begins:
            start = place
        before, kind_before = letter, kind
    return found


def write_tags(found: Iterable[Entity], *, length: int, scheme: str) -> list[str]:
    """The tags of a sentence of `length` tokens, by one of `SCHEMES`; entities must not overlap."""
    tags = [OUTSIDE] * length
    before: Entity | None = None
    for entity in sorted(found):
        size = entity.end - entity.start
        touches = before is not None and (before.end, before.type) == (entity.start, entity.type)
        letters = ["I"] * size
        if scheme != "IOB1" or touches:
            letters[0] = "B"
        if scheme == "BIOES":
            letters[-1] = "E" if size > 1 else "S"
        tags[entity.start : entity.end] = [join_tag(letter, entity.type) for letter in letters]
        before = entity
    return tags


def irregular(tags: Sequence[str], *, scheme: str) -> int:
    """How many tags of a sentence are not as the scheme would write its entities."""
    proper = write_tags(entities(tags), length=len(tags), scheme=scheme)
    return sum(join_tag(*split_tag(tag)) != wanted for tag, wanted in zip(tags, proper, strict=True))


def find_scheme(sentences: Sequence[Sequence[str]]) -> str:
    """Which of `SCHEMES` these tags follow most closely, the first of equal ones; `PLAIN` if they are no entity tags.

    They are entity tags where most of them begin with a letter and "-", or where all are letters and O.
    """
    seen = {tag for tags in sentences for tag in tags}
    named = seen - {OUTSIDE}
    typed = {tag for tag in named if _TYPED.fullmatch(tag)}
    if 2 * len(typed) < len(named) or not typed:
        if not named or OUTSIDE not in seen or not named <= {*"BIES"}:
            return PLAIN
        typed = named
    known = {*typed, OUTSIDE}
    whole = [tags for tags in sentences if known.issuperset(tags)]
    return min(SCHEMES, key=lambda scheme: sum(irregular(tags, scheme=scheme) for tags in whole))


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
