"""Rejoin hard-wrapped lines and no others: paragraphs, verse, headings, lists and indented text stay.

A line was broken to width W when it is no longer than W and the first word of the next line would not have fitted.
Each line end says in this way which widths would explain it; the width that explains most of them, among some hundred
lines, is the one they were wrapped to. Nothing here knows a language.
"""

import re
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby, pairwise
from typing import NamedTuple

from lacuna.common.errors import BadRecord

from .streams import Piece

SECTION_LINES = 300  # judged together: a text may be put together of several widths
MIN_WIDTH = 40  # columns; narrower lines are verse, lists and tables
MIN_BREAKS = 3  # that one width explains
EXPLAINED = 0.5  # share of the breaks that it must explain; the others end paragraphs that no blank line follows
OVERLONG = 0.06  # share of the breaks that may come after the width
SLACKS = (0, 1, 2, 4, 6, 8, 12, 16, 20, 24)  # columns by which a ragged margin may differ; the first that will do
MAX_SLACK = 0.35  # of the width
MAX_CAPITALS = 0.6  # share of lines after a break that begin with a capital: prose has less (German 0.3), verse more
# A line continues in lower case although its first word would have fitted: text that was edited after it was wrapped
# (7 % of the line ends of one novel) has lost so many columns, in parts of the width, before that line.
EDITED = 0.15

# Thai, Lao, Tibetan, Myanmar; Khmer; punctuation and kana; kana extended; Han; Han compatibility; full width; Han B on
UNSPACED = (
    "\u0e00\u109f",
    "\u1780\u17ff",
    "\u3000\u30ff",
    "\u31f0\u31ff",
    "\u3400\u9fff",
    "\uf900\ufaff",
    "\uff00\uff60",
    "\U00020000\U0003ffff",
)

# What a continuation line does not begin with: white space, a list marker, a table, a heading, a rule.
_STARTS_ANEW = re.compile(r"\s|[-*•+–—]\s|\(?(?:\d{1,3}|[A-Za-z]|[ivx]{2,4}|[IVX]{2,4})[.)]\s|[|#>]|[^\w\s]{3,}$")
_GOES_NOWHERE = re.compile(r"#{1,6}\s|\||[^\w]*$")  # headings, tables, rules
DASHES = ("- ", "– ", "— ")
_DASHES = re.compile(r"(\S(?:--|—)[^\s-])|((?:--|—)[ ])|(\S[ ][-–—][ ]\S)")


class _Break(NamedTuple):
    """The end of a line that the next one may continue."""

    number: int  # of the line
    before: int  # columns of the line
    after: int  # columns with the first word of the next line
    case: int  # of the first letter of the next line: 1 capital, -1 small, 0 neither
    block: int  # how many lines before this one are blank: the same number means no blank line between


@dataclass(frozen=True, slots=True)
class Margin:
    """Where lines were broken: at no more than `most` columns, and where the next word would have passed `least`."""

    least: int
    most: int
    tight_dashes: bool  # "word--word" rather than "word-- word"
    spaced_dashes: bool  # "word - word", so that a line may begin with a dash and be no item of a list


def find_margin(lines: Sequence[str]) -> Margin | None:
    """The margin that lines (without their ends) were wrapped to; None if they were not."""
    tight = loose = spaced = 0
    for line in lines:
        if "-" in line or not line.isascii():
            for match in _DASHES.finditer(line):
                tight, loose, spaced = tight + bool(match[1]), loose + bool(match[2]), spaced + bool(match[3])
    spaced_dashes = spaced > 3 * sum(line.startswith(DASHES) for line in lines)
    breaks = list(_breaks(lines, spaced_dashes))
    cases = [edge.case for edge in breaks]
    if len(breaks) < MIN_BREAKS or cases.count(1) > MAX_CAPITALS * (cases.count(1) + cases.count(-1)):
        return None
    for slack in SLACKS:
        explained, most = _best_width(breaks, slack)
        overlong = sum(edge.before > most for edge in breaks)
        enough = explained >= max(MIN_BREAKS, EXPLAINED * len(breaks)) and overlong <= OVERLONG * len(breaks)
        if enough and most >= MIN_WIDTH and slack <= MAX_SLACK * most:
            return Margin(most - slack, most, tight > loose, spaced_dashes)
    return None


def _best_width(breaks: Sequence[_Break], slack: int) -> tuple[int, int]:
    """How many breaks some width explains at most, and the smallest such width."""
    changes: dict[int, int] = {}
    for edge in breaks:
        changes[edge.before] = changes.get(edge.before, 0) + 1
        end = max(edge.before, edge.after + slack - 1) + 1
        changes[end] = changes.get(end, 0) - 1
    best = width = count = 0
    for column in sorted(changes):
        count += changes[column]
        if count > best:
            best, width = count, column
    return best, width


def unwrap(text: str, *, margin: Margin | None = None) -> str:
    """The text with lines joined that were broken to a width; only white space changes.

    A word broken at a hyphen is joined without a space and keeps the hyphen; so are scripts that write none. The
    margin is found for each 300 lines, unless one is given.
    """
    lines = text.split("\n")
    parts = [lines[0]]
    edges = [*range(0, max(1, len(lines) - SECTION_LINES + 1), SECTION_LINES), len(lines)]  # the last run is longer
    for start, end in pairwise(edges):
        found = margin or find_margin(lines[start:end])
        joined = _forced(lines[start : end + 1], found) if found else set()
        for index in range(start + 1, min(end + 1, len(lines))):
            line = lines[index]
            if found and index - 1 - start in joined:
                parts[-1] = parts[-1].rstrip(" \t")
                parts.append(_space(parts[-1], line, tight_dashes=found.tight_dashes) + line)
            else:
                parts.append("\n" + line)
    return "".join(parts)


def _forced(lines: Sequence[str], margin: Margin) -> set[int]:
    """Numbers of the lines that the next one continues. Of lines without a blank one between, half are or none is:
    in verse and lists a long line comes before a long word now and then."""
    forced: set[int] = set()
    for _, block in groupby(_breaks(lines, margin.spaced_dashes), key=lambda edge: edge.block):
        edges = list(block)
        least = {-1: margin.least - EDITED * margin.most}
        numbers = [edge.number for edge in edges if edge.after > least.get(edge.case, margin.least)]
        if 2 * len(numbers) >= len(edges):
            forced.update(numbers)
    return forced


def _breaks(lines: Sequence[str], spaced_dashes: bool) -> Iterator[_Break]:
    """Line ends that a wrapped paragraph may have."""
    blank = 0
    for index in range(len(lines) - 1):
        line, following = lines[index].rstrip(), lines[index + 1]
        if not line:
            blank += 1
            continue
        dash = spaced_dashes and following.startswith(DASHES)
        letter = following[:1].isalpha() and following[1:2] not in (".", ")")  # but "a) ..."
        if not following or (not letter and not dash and _STARTS_ANEW.match(following)):
            continue
        if "\t" in line or "   " in line.lstrip() or (not line[0].isalpha() and _GOES_NOWHERE.match(line)):
            continue  # a table, a heading, a rule
        capital = following[0].isupper()
        if capital and line.isupper() and not following.isupper():
            continue  # a heading
        before = _columns(line)
        word = following[0] if _is_unspaced(following[0]) else following.split(None, 1)[0]
        after = before + len(_space(line, word)) + _columns(word)
        first = next((character for character in following if character.isalpha()), "")
        yield _Break(index, before, after, first.isupper() - first.islower(), blank)


def _space(line: str, following: str, *, tight_dashes: bool = False) -> str:
    """What stands between two lines that are joined."""
    if tight_dashes and line.endswith(("--", "—")) and line[-3:-2].strip():
        return ""
    if line.endswith("\xad") or (line.endswith(("-", "‐")) and line[-2:-1].isalpha() and following[:1].islower()):
        return ""
    return "" if _is_unspaced(line[-1]) and _is_unspaced(following[0]) else " "


def _columns(text: str) -> int:
    """Columns on a terminal: two for a wide character, none for a combining mark."""
    if text.isascii():
        return len(text)
    is_wide = lambda each: each >= "\u1100" and unicodedata.east_asian_width(each) in "WF"  # noqa: E731
    return sum(1 + is_wide(each) for each in text if not unicodedata.combining(each))


def _is_unspaced(character: str) -> bool:
    """Whether a character belongs to a script that writes no space between words, or to its punctuation."""
    return character >= "\u0e00" and any(pair[0] <= character <= pair[1] for pair in UNSPACED)


def unwrapped(pieces: Iterable[Piece | BadRecord], *, together: bool) -> Iterator[Piece | BadRecord]:
    """The same pieces with lines joined that were broken to a width; `together`, some hundred lines of pieces that
    follow each other have one margin, for they are paragraphs of one file."""
    if not together:
        for piece in pieces:
            yield piece if isinstance(piece, BadRecord) else replace(piece, text=unwrap(piece.text))
        return
    remaining = iter(pieces)
    while group := list(_some_lines(remaining)):
        lines = [line for piece in group if isinstance(piece, Piece) for line in (*piece.text.split("\n"), "")]
        margin = find_margin(lines)
        for piece in group:
            if margin is None or isinstance(piece, BadRecord):
                yield piece
            else:
                yield replace(piece, text=unwrap(piece.text, margin=margin))


def _some_lines(pieces: Iterator[Piece | BadRecord]) -> Iterator[Piece | BadRecord]:
    count = 0
    for piece in pieces:
        yield piece
        count += piece.text.count("\n") + 1 if isinstance(piece, Piece) else 1
        if count >= SECTION_LINES:
            return
