"""Cut a text into sentences without losing a character: blank lines and list items first, the library `sentencex`
(Wikimedia's rules and abbreviations for some 240 languages) within.
"""

import re
from collections.abc import Iterator

import sentencex

# A text without any mark (a table, a log) is cut between words, so that no piece is larger than a model can use.
MAX_CHARACTERS = 2000
# More is given to the library in parts: its time grows with the square where quotation marks are never closed.
MAX_LIBRARY_CHARACTERS = 8_000

# White space is what Unicode calls so; Python alone adds the four separators \x1c to \x1f.
_SPACE = r"[^\S\x1c-\x1f]"
# The line end before a blank line or a list item, which ends a sentence whatever stands around it.
_UNIT_EDGE = re.compile(r"\n(?=[^\S\n]*(?:\n|[-*•+]\s|\d{1,3}[.)]\s))")
_LIST_NUMBER = re.compile(r"\s*\d{1,3}[.)]\s+")
_SPACES = re.compile(r"\s*+")
_WORD_EDGE = re.compile(rf"(?<=\S)(?={_SPACE})")
# Where a sentence ends at a mark that takes no space after it, as in Chinese and Japanese.
_UNSPACED_END = re.compile(r"[。！？][」』”’）]*\Z")
# What may stand before the first letter of a sentence.
_OPENING = "\"'“‘«„‹([{*_`¡¿"
# The library cuts nothing between quotation marks or brackets, and takes an apostrophe for one: of the novels it would
# miss a quarter of the ends. It is shown spaces in their place; an apostrophe within a word stays.
# Nor is it shown spaces of several bytes: sentencex 1.0 panics where one stands between an initial and a full stop.
_WIDE_SPACES = "".join(map(chr, (0x85, 0xA0, 0x1680, *range(0x2000, 0x200B), 0x2028, 0x2029, 0x202F, 0x205F, 0x3000)))
_QUOTES = str.maketrans(dict.fromkeys('"“”„‟«»‹›()[]{}' + _WIDE_SPACES, " "))
_APOSTROPHE = re.compile(r"(?<!\w)['‘’]|['‘’](?!\w)")


def split_sentences(text: str, *, language: str = "en") -> list[str]:
    """Sentences in order; white space goes with the sentence after it, and `"".join(result) == text`.

    With white space in front, and no cut inside a run of letters, digits or marks, encoding the pieces one by one
    with a tokenizer of `tokenization/` gives the tokens of the whole text.

    Args:
        language: ISO code. One that the library does not know gets the rules of a language near to it, or English.
    """
    pieces: list[str] = []
    start = 0
    for end in _ends(text, language):
        if end > start and not text[start:end].isspace():
            _append(pieces, text, start, end)
            start = end
    if pieces and text[start:].isspace():
        pieces[-1] += text[start:]
    elif start < len(text):
        _append(pieces, text, start, len(text))
    return pieces


def _ends(text: str, language: str) -> Iterator[int]:
    """Where sentences may end, before the white space that follows; the last end may be missing."""
    start = spaces_end = 0
    for edge in _UNIT_EDGE.finditer(text):
        if edge.start() < spaces_end:
            continue  # of the same run of blank lines
        yield from _unit_ends(text, start, edge.start(), language)
        end = edge.start()
        while end > start and is_space(text[end - 1]):
            end -= 1
        yield end
        start, spaces_end = end, _SPACES.match(text, edge.end()).end()  # type: ignore[union-attr]  # always matches
    yield from _unit_ends(text, start, len(text), language)


def _unit_ends(text: str, start: int, end: int, language: str) -> Iterator[int]:
    """Ends within a paragraph or list item. Its number, "1.", is not a sentence."""
    number = _LIST_NUMBER.match(text, start, end)
    begin = number.end() if number else _SPACES.match(text, start, end).end()  # type: ignore[union-attr]
    shown = _APOSTROPHE.sub(" ", text[start:end].translate(_QUOTES))
    while begin < end:
        last = end
        if end - begin > MAX_LIBRARY_CHARACTERS:
            edge = text.rfind(" ", begin + 1, begin + MAX_LIBRARY_CHARACTERS)
            last = edge if edge > 0 else begin + MAX_LIBRARY_CHARACTERS
        sentences = sentencex.segment(language, shown[begin - start : last - start])
        if sum(map(len, sentences)) != last - begin:  # it drops line ends in some places
            return
        if last < end and len(sentences) > 1:
            last -= len(sentences.pop())  # it may go on in the next part
        for sentence in sentences[:-1] if last == end else sentences:
            begin += len(sentence)
            # A piece of white space alone ends where the one before it did; to find that anew takes quadratic time.
            cut = 0 if sentence.isspace() else _cut(text, begin)
            if cut:
                yield cut
        begin = last


def _cut(text: str, begin: int) -> int:
    """Where to cut for a sentence that the library lets begin at `begin`: before the white space in front of it and
    of the marks that open it; 0 for not here."""
    end = spaces = begin
    while end and (text[end - 1] in _OPENING or is_space(text[end - 1])):
        before = end
        while end and text[end - 1] in _OPENING:
            end -= 1
        if end and not is_space(text[end - 1]):  # these marks close what stands before them
            end = before
            break
        spaces = end
        while end and is_space(text[end - 1]):
            end -= 1
    if end < spaces:
        following = text[spaces : begin + 8].lstrip(_OPENING)[:1]
        return 0 if following.islower() else end  # a quotation goes on, or an abbreviation that the library has not
    return begin if text[begin : begin + 1].isalnum() and _UNSPACED_END.search(text, max(0, begin - 4), begin) else 0


def is_space(character: str) -> bool:
    """Whether a character is white space as Unicode, and so a tokenizer, has it."""
    return character.isspace() and not "\x1c" <= character <= "\x1f"


def _append(pieces: list[str], text: str, start: int, end: int) -> None:
    """Add text[start:end], cut between words while it is too long."""
    visible_end = end
    while visible_end > start and text[visible_end - 1].isspace():
        visible_end -= 1
    while end - start > MAX_CHARACTERS:
        edge = _WORD_EDGE.search(text, start + MAX_CHARACTERS // 2, visible_end)
        if edge is None:
            break
        pieces.append(text[start : edge.start()])
        start = edge.start()
    pieces.append(text[start:end])
