"""Rejoin hard-wrapped lines and no others: paragraphs, verse, headings, lists and indented text stay.

A line was broken where the first word of the next line would not have fitted into the width of the text. Nothing here
knows a language.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import chain, groupby

from rich.cells import cell_len

from lacuna.common.errors import BadRecord

from .streams import Piece

SECTION_LINES = 300  # that have one width
MIN_WIDTH = 40  # columns; narrower lines are verse, lists and tables
MAX_CAPITALS = 0.6  # share of lines that begin with a capital: prose has less (German 0.3), verse more
OVERLONG = 0.02  # share of the lines that may be longer than the width
EDITED = 0.85  # of the width that a line reaches at least before one that goes on in lower case: text may be edited
# What a continuation line does not begin with: white space, a list marker, a table, a heading, a rule.
_STARTS_ANEW = re.compile(r"\s|[-*•+–—]\s|\(?(?:\d{1,3}|[A-Za-z]|[ivx]{2,4}|[IVX]{2,4})[.)]\s|[|#>]|[^\w\s]{3,}$")
_GOES_NOWHERE = re.compile(r"#{1,6}\s|\||[^\w]*$|.*(\t|\S   )")  # headings, tables, rules
# Scripts that write no space between words: Thai to Myanmar, Khmer, kana, Han, full width.
_UNSPACED = re.compile("[\u0e00-\u109f\u1780-\u17ff\u3000-\u30ff\u31f0-\u31ff\u3400-\u9fff\uf900-\ufaff\uff00-\uff60]")


def find_width(lines: Sequence[str]) -> int:
    """Columns that lines were wrapped to; 0 if they were not: too narrow, too few of them full, or verse."""
    firsts = [line[0] for line in lines if line[:1].isupper() or line[:1].islower()]
    if sum(map(str.isupper, firsts)) > MAX_CAPITALS * len(firsts):
        return 0
    lengths = sorted(_columns(line.rstrip()) for line in lines if line.strip())
    width = lengths[int((1 - OVERLONG) * (len(lengths) - 1))] if lengths else 0
    full = sum(0.8 * width < length <= width for length in lengths)
    return width if width >= MIN_WIDTH and 3 * full >= len(lengths) > 3 else 0


def unwrap(text: str, *, width: int | None = None) -> str:
    """The text with lines joined that were broken to a width; only white space changes.

    A word broken at a hyphen is joined without a space and keeps the hyphen; so are scripts that write none. The width
    is found for each 300 lines, unless one is given.
    """
    lines = text.split("\n")
    parts = [lines[0]]
    for start in range(0, len(lines), SECTION_LINES):
        section = lines[start : start + SECTION_LINES + 1]
        joined = _continued(section, find_width(section) if width is None else width)
        for number, line in enumerate(section[1:]):
            if number in joined:
                parts[-1] = parts[-1].rstrip(" \t")
                parts.append(_space(parts[-1], line) + line)
            else:
                parts.append("\n" + line)
    return "".join(parts)


def _continued(lines: Sequence[str], width: int) -> set[int]:
    """Numbers of the lines that the next one continues. Of lines without a blank one between, half are or none is:
    in verse and lists a long line comes before a long word now and then."""
    found: set[int] = set()
    edges = range(len(lines) - 1) if width else []
    for is_break, block in groupby(edges, key=lambda edge: bool(lines[edge].strip() and lines[edge + 1].strip())):
        numbers = [number for number in block if is_break and _may_go_on(lines[number], lines[number + 1])]
        full = [number for number in numbers if _is_full(lines[number].rstrip(), lines[number + 1], width)]
        if 2 * len(full) >= len(numbers):
            found.update(full)
    return found


def _may_go_on(line: str, following: str) -> bool:
    """Whether one line may be continued by another, as far as what they are tells."""
    letter = following[:1].isalpha() and following[1:2] not in (".", ")")  # but "a) ..."
    heading = line.isupper() and following[:1].isupper() and not following.isupper()
    anew = not letter and _STARTS_ANEW.match(following)
    return not (anew or heading or _GOES_NOWHERE.match(line.strip()))


def _is_full(line: str, following: str, width: int) -> bool:
    """Whether the first word of the next line would not have fitted."""
    word = following[0] if _UNSPACED.match(following) else following.split(None, 1)[0]
    least = EDITED * width if word[0].islower() else width
    return _columns(line) + len(_space(line, word)) + _columns(word) > least


def _space(line: str, following: str) -> str:
    """What stands between two lines that are joined."""
    if line.endswith(("--", "—")) and line.rstrip("-—")[-1:].strip():
        return ""
    if line.endswith("\xad") or (line.endswith(("-", "‐")) and line[-2:-1].isalpha() and following[:1].islower()):
        return ""
    return "" if _UNSPACED.match(line[-1]) and _UNSPACED.match(following) else " "


def _columns(text: str) -> int:
    """Columns on a terminal, of which a Chinese character takes two."""
    return len(text) if text.isascii() else cell_len(text)


def unwrapped(pieces: Iterable[Piece | BadRecord], *, together: bool) -> Iterator[Piece | BadRecord]:
    """The same pieces with lines joined that were broken to a width; `together`, some hundred lines of pieces that
    follow each other have one width, for they are paragraphs of one file."""
    group: list[Piece | BadRecord] = []
    lines: list[str] = []
    for piece in chain(pieces, [None]):  # which ends the last group
        group += [] if piece is None else [piece]
        lines += [*piece.text.split("\n"), ""] if isinstance(piece, Piece) else []
        if piece is None or len(lines) >= SECTION_LINES or not together:
            width = find_width(lines) if together else None
            for each in group:
                yield replace(each, text=unwrap(each.text, width=width)) if isinstance(each, Piece) else each
            group, lines = [], []
