"""Documents -> sentences -> token ids: no character is lost, and the ids are those of the tokenizer.

A text is cut at blank lines and list items first, and within by the library `sentencex` (Wikimedia's rules and
abbreviations for some 240 languages). White space goes with the sentence after it.

A byte-level BPE encodes each word by itself, so a word that was met before need not be encoded again: with a table, a
core made pieces of English novels 2.1 times as fast (vocabulary 32,000). The `regex` library cuts with the tokenizer's
own expression; what it might cut in another way (characters that are younger than either library, syntax that the two
engines read differently) and tokenizers of another make go through `tokenizers` itself, and whole documents do where a
word may reach over the end of a sentence.
"""

import json
import re
import unicodedata
from collections.abc import Iterator
from functools import cache, lru_cache
from typing import Any

import numpy as np
import regex
import sentencex
from tokenizers import Tokenizer
from tokenizers.pre_tokenizers import ByteLevel

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
# The library cuts nothing between quotation marks (an apostrophe is one to it) or brackets, and would miss a quarter
# of the ends in novels: it is shown spaces in their place. So it is for spaces of several bytes: sentencex 1.0 panics
# where one stands between an initial and a full stop.
_WIDE_SPACES = "".join(map(chr, (0x85, 0xA0, 0x1680, *range(0x2000, 0x200B), 0x2028, 0x2029, 0x202F, 0x205F, 0x3000)))
_WHITE = " \t\n\v\f\r" + _WIDE_SPACES
_QUOTES = str.maketrans(dict.fromkeys('"“”„‟«»‹›()[]{}' + _WIDE_SPACES, " "))
_APOSTROPHE = re.compile(r"(?<!\w)['‘’]|['‘’](?!\w)")

# Text handed to the tokenizer at once. Encodings take some 50 bytes of memory a character.
BATCH_CHARACTERS = 1 << 18
SECTION_BYTES = 1 << 20  # of a document are decoded and cut into sentences at once
MAX_SENTENCE = 1 << 16  # characters; a "sentence" without a space in a megabyte is no sentence

GPT2_PATTERN = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
# Syntax that `regex` and Oniguruma, the engine of `tokenizers`, read alike; case is ignored in English endings alone.
_ITEM = r"\\p\{[LMN][a-z]?\}|\\[srnt]|[ '/a-zA-Z]"
_ENDINGS = r"\(\?i:(?:'s\|'t\|'re\|'ve\|'m\|'ll\|'d|\[sdmt\]\|ll\|ve\|re)\)"
SAFE_PATTERN = re.compile(
    rf"(?:{_ITEM}|\\S|\[\^?(?:{_ITEM})+\]|{_ENDINGS}|\(\?[:!=]|[|)?*+]|\{{\d+(?:,\d*)?\}}(?![+?]))+"
)
MAX_WORDS = 1 << 17  # in the table, with some 150 bytes for each
_BYTE_LEVEL = ByteLevel(add_prefix_space=False, use_regex=False)


def split_sentences(text: str, *, language: str = "en") -> list[str]:
    """Sentences in order; white space goes with the sentence after it, and `"".join(result) == text`.

    No cut is inside a run of letters, digits or marks: with the patterns of Lacuna's own tokenizers the tokens of the
    pieces, one by one, are those of the text.
    A language (ISO code) that the library does not know gets the rules of one near to it, or of English.
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
        end = start + len(text[start : edge.start()].rstrip(_WHITE))
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
            last -= len(sentences.pop())  # it may continue in the next part
        for sentence in sentences[:-1] if last == end else sentences:
            begin += len(sentence)
            # A piece of white space alone ends where the one before it did; searching again takes quadratic time.
            cut = 0 if sentence.isspace() else _cut(text, begin)
            if cut:
                yield cut
        begin = last


def _cut(text: str, begin: int) -> int:
    """Where to cut for a sentence that the library lets begin at `begin`: before the white space in front of it and
    of the marks that open it; 0 for not here."""
    end = spaces = begin
    while end and (text[end - 1] in _OPENING or text[end - 1] in _WHITE):
        before = end
        while end and text[end - 1] in _OPENING:
            end -= 1
        if end and text[end - 1] not in _WHITE:  # these marks close what stands before them
            end = before
            break
        spaces = end
        while end and text[end - 1] in _WHITE:
            end -= 1
    if end < spaces:
        following = text[spaces : begin + 8].lstrip(_OPENING)[:1]
        return 0 if following.islower() else end  # a quotation continues, or an abbreviation the library does not know
    return begin if text[begin : begin + 1].isalnum() and _UNSPACED_END.search(text, max(0, begin - 4), begin) else 0


def _append(pieces: list[str], text: str, start: int, end: int) -> None:
    """Add text[start:end], cut between words while it is too long."""
    visible_end = start + len(text[start:end].rstrip())
    while end - start > MAX_CHARACTERS:
        if (edge := _WORD_EDGE.search(text, start + MAX_CHARACTERS // 2, visible_end)) is None:
            break
        pieces.append(text[start : edge.start()])
        start = edge.start()
    pieces.append(text[start:end])


def cut_sections(data: bytes) -> Iterator[str]:
    """A document in parts of about SECTION_BYTES, cut before a blank line, where a sentence ends anyway.

    Where there is none within another SECTION_BYTES the cut is before a line end, a space or any character, and never
    inside white space, which is one word for the tokenizer.
    """
    start = 0
    while len(data) - start > 2 * SECTION_BYTES:
        first, last = start + SECTION_BYTES, start + 2 * SECTION_BYTES
        places = (data.find(sign, first, last) for sign in (b"\n\n", b"\n", b" "))
        end = next((place for place in places if place >= 0), last)
        while data[end] & 0xC0 == 0x80:  # inside a character
            end -= 1
        text = data[start:end].decode()
        text = text.rstrip(_WHITE) or text  # a megabyte of white space is cut all the same
        yield text
        start += len(text.encode())
    yield data[start:].decode()


class SentenceEncoder:
    """Encodes lists of sentences with a tokenizer, as its `to_str` gives it; special tokens in them are text."""

    def __init__(self, *, tokenizer_json: str, dtype: np.dtype) -> None:
        self.dtype = dtype
        self.backend = Tokenizer.from_str(tokenizer_json)
        self.backend.no_padding()
        self.backend.no_truncation()
        self.backend.encode_special_tokens = True  # "[MASK]" in somebody's text is text
        self._normalizer, self._model = self.backend.normalizer, self.backend.model
        parts = json.loads(tokenizer_json)
        # A token that was added to the BPE stands for its text wherever that occurs.
        added = [re.escape(token["content"]) for token in parts["added_tokens"] if not token["special"]]
        pattern = _word_pattern(parts)
        if parts["normalizer"] is not None and added:
            pattern = None  # whether it stands in the text before or after is a matter of the tokenizer
        self.uses_table = pattern is not None
        self._find_words = regex.compile(pattern or "").findall
        ends = [(left, right) for left in "a1." for right in (" B", "\tB", "\nB", "\r\nB", "\n\nB")] + [("。", "世")]
        self.by_sentence = self.uses_table and not added
        """Whether no word reaches over the end of a sentence, so that sentences are encoded one by one."""
        self.by_sentence &= all(self._find_words(left + right)[0] == left for left, right in ends)
        self._is_unfit = re.compile("|".join([f"[^{_known_characters()}]", *added])).search
        self._word_ids = lru_cache(MAX_WORDS)(self._encode_word)

    def documents(self, texts: list[bytes], language: str) -> Iterator[tuple[list[int], np.ndarray, np.ndarray]]:
        """Some sentences at a time: the number of the document of each, their ids, and how many ids each has.

        The ids are those of the whole text, or of each section of a large one. A token that reaches over the end of a
        sentence, as full stop and line end do for Qwen, is of the first one.
        """
        owners: list[int] = []
        sentences: list[str] = []
        size = 0
        for number, data in enumerate(texts):
            for section in cut_sections(data):
                whole = split_sentences(section, language=language)
                found = [each[at : at + MAX_SENTENCE] for each in whole for at in range(0, len(each), MAX_SENTENCE)]
                if not self.by_sentence:
                    encoded = self.backend.encode(section, add_special_tokens=False)
                    starts = np.array(encoded.offsets, dtype=np.int64).reshape(-1, 2)[:, 0]
                    firsts = np.searchsorted(starts, np.cumsum([0, *map(len, found)])[:-1])
                    lengths = np.diff(firsts, append=len(starts))
                    yield [number] * len(found), np.array(encoded.ids, dtype=self.dtype), lengths
                    continue
                owners += [number] * len(found)
                sentences += found
                size += len(section)
                if size >= BATCH_CHARACTERS:
                    yield owners, *self.encode(sentences)
                    owners, sentences, size = [], [], 0
        if sentences:
            yield owners, *self.encode(sentences)

    def encode(self, sentences: list[str]) -> tuple[np.ndarray, np.ndarray]:
        """Ids of all sentences one after the other, and how many each has (int64 [len(sentences)])."""
        known = [self._by_word(sentence) if self.uses_table else None for sentence in sentences]
        rest = [sentence for sentence, ids in zip(sentences, known, strict=True) if ids is None]
        encoded = iter(self.backend.encode_batch_fast(rest, add_special_tokens=False))
        rows = [self._pack(next(encoded).ids) if ids is None else ids for ids in known]
        lengths = np.fromiter(map(len, rows), dtype=np.int64, count=len(rows)) // self.dtype.itemsize
        return np.frombuffer(b"".join(rows), dtype=self.dtype), lengths

    def _pack(self, ids: list[int]) -> bytes:
        return np.array(ids, dtype=self.dtype).tobytes()

    def _by_word(self, sentence: str) -> bytes | None:
        """The ids of a sentence from those of its words; None where only the tokenizer itself knows its words."""
        text = self._normalizer.normalize_str(sentence) if self._normalizer else sentence
        if self._is_unfit(text) or sum(map(len, words := self._find_words(text))) != len(text):
            return None  # the latter: the expression leaves something out
        return b"".join(map(self._word_ids, words))

    def _encode_word(self, word: str) -> bytes:
        # The model neither normalizes nor cuts, and sees bytes as letters.
        letters = "".join(part for part, _ in _BYTE_LEVEL.pre_tokenize_str(word))
        return self._pack([token.id for token in self._model.tokenize(letters)])


def _word_pattern(parts: dict[str, Any]) -> str | None:
    """The expression that cuts words in a byte-level BPE of known make; None for other tokenizers."""
    steps = parts["pre_tokenizer"] or {"type": "none"}
    *before, last = steps["pretokenizers"] if steps["type"] == "Sequence" else [steps]
    if parts["model"]["type"] != "BPE" or parts["model"].get("dropout"):
        return None
    if last["type"] != "ByteLevel" or last.get("add_prefix_space"):
        return None
    if not before:
        return GPT2_PATTERN if last.get("use_regex", True) else None
    split = before[0]
    if len(before) > 1 or split["type"] != "Split" or split["behavior"] != "Isolated" or split.get("invert"):
        return None
    pattern = split["pattern"].get("Regex", "")
    return pattern if SAFE_PATTERN.fullmatch(pattern) and not last.get("use_regex", True) else None


@cache
def _known_characters() -> str:
    """Characters below U+3000 that Unicode had in 2002: both engines have known them and their classes for long.

    Beyond begin the scripts that are written without spaces, whose words hardly come again.
    """
    old = unicodedata.ucd_3_2_0
    return "".join(re.escape(chr(code)) for code in range(0x3000) if old.category(chr(code)) != "Cn")
