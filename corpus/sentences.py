"""Cut a text into sentences without losing a character."""

import re

# A sentence ends at . ! ? (and what closes after it) before white space; at a mark of Chinese or Japanese, which takes
# no space after it; a blank line or the start of a list item ends one as well.
# Possessive, and begun only where a run of marks begins: a megabyte of dots takes a millisecond, not an hour.
# White space is what Unicode calls so; Python alone adds the four separators \x1c to \x1f.
_EDGE = re.compile(
    r"""
      (?<![.!?…]) [.!?…]++ ["'”’»)\]}*_`]*+ (?=[^\S\x1c-\x1f])  # an end, to be confirmed by what stands around it
    | (?<![。！？]) [。！？]++ [」』”’）]*+ (?=[^\S\x1c-\x1f]|[^\W_])
    | \n (?= [^\S\n]* (?: \n | [-*•+]\s | \d{1,3}[.)]\s ))    # a blank line, or a list item
    """,
    re.VERBOSE,
)
_NEXT = re.compile(r"""\s+["'“‘«(\[{*_`]*(.)""")
_SPACES = re.compile(r"\s*+")
_LAST_WORD = re.compile(r"[\w.]+\.$")
_WORD_EDGE = re.compile(r"(?<=\S)(?=[^\S\x1c-\x1f])")

# Words that carry a full stop inside a sentence.
_TITLES = "mr mrs ms dr prof st rev hon capt col gen lt sgt sen rep gov jr sr messrs mme mlle"
_SHORT_FORMS = "vs etc eg ie e.g i.e cf viz al approx no nos vol vols pp fig figs ch sec dept univ inc ltd co corp"
_MONTHS = "jan feb mar apr jun jul aug sep sept oct nov dec"
_ABBREVIATIONS = frozenset(" ".join((_TITLES, _SHORT_FORMS, _MONTHS)).split())
_ENDS_OFTEN = frozenset({"etc", "al", "inc", "ltd", "co", "corp", "jr", "sr", "no", "mar", "sec"})

# A text without any mark (a table, a log) is cut between words, so that no piece is larger than a model can use.
MAX_CHARACTERS = 2000


def split_sentences(text: str) -> list[str]:
    """Sentences in order; white space goes with the sentence after it, and `"".join(result) == text`.

    With white space in front, and no cut inside a run of letters, digits or marks, encoding the pieces one by one
    with a tokenizer of `tokenization/` gives the tokens of the whole text.
    """
    pieces: list[str] = []
    start = spaces_end = 0
    for match in _EDGE.finditer(text):
        end = match.end()
        if match.group()[0] == "\n":
            if match.start() < spaces_end:
                continue  # of the same run of blank lines
            spaces_end = _SPACES.match(text, end).end()  # type: ignore[union-attr]  # it matches everywhere
            end = match.start()
            while end > start and _is_space(text[end - 1]):
                end -= 1
        elif _is_space(text[end : end + 1]) and not _ends_sentence(text, start, match.start(), end):
            continue
        if end > start and not text[start:end].isspace():
            _append(pieces, text, start, end)
            start = end
    if pieces and text[start:].isspace():
        pieces[-1] += text[start:]
    elif start < len(text):
        _append(pieces, text, start, len(text))
    return pieces


def _ends_sentence(text: str, start: int, mark: int, end: int) -> bool:
    """Whether the mark at text[mark:end] ends the sentence that begins at `start`."""
    following = _NEXT.match(text, end)
    if following is None:
        return False  # only white space is left; it stays with this sentence
    first = following.group(1)
    if first.islower():
        return False
    if text[mark : mark + 2].rstrip() != ".":
        return True  # ! ? … or a full stop in quotes
    if text[start:mark].strip().isdigit():
        return False  # the number of a list item
    word = _LAST_WORD.search(text, max(start, mark - 20), mark + 1)
    if word is None:
        return True
    stem = word.group().rstrip(".").lower()
    if stem in _ABBREVIATIONS:
        return stem in _ENDS_OFTEN and first.isupper()
    return not (len(stem) == 1 and stem.isalpha() and stem != "i")  # an initial: J. S. Bach


def _is_space(character: str) -> bool:
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
