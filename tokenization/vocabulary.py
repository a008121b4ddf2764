"""What the tokens of a byte-level tokenizer stand for: their bytes, their lengths, the characters at their edges."""

import json
import unicodedata
from collections import Counter
from functools import cache

import numpy as np
from transformers import PreTrainedTokenizerFast

from lacuna.common.errors import InputError

# Byte-level tokenizers write each byte as one printable character: the byte itself where Latin-1 prints it, and
# U+0100 onwards, in order, for the rest (`bytes_to_unicode` of GPT-2, https://github.com/openai/gpt-2).
_PRINTED = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
BYTE_OF = {chr(byte): byte for byte in _PRINTED}
BYTE_OF |= {chr(0x100 + i): byte for i, byte in enumerate(byte for byte in range(256) if byte not in set(_PRINTED))}
ALPHABET = sorted(BYTE_OF)  # the 256 bytes as byte-level tokenizers write them

CONTINUATION = range(0x80, 0xC0)  # bytes after the first of a character

# Classes of `token_edges`.
NONE, SPACE, BLANK, LETTER, DIGIT, OTHER, UNSPACED, PARTIAL = range(8)

# Scripts written without spaces between words: line-break class SA of Unicode (https://www.unicode.org/reports/tr14/),
# Tibetan, Javanese, Balinese, and what is written with Han and kana.
UNSPACED_RANGES = [
    (0x0E00, 0x109F),  # Thai, Lao, Tibetan, Myanmar
    (0x1780, 0x17FF),  # Khmer
    (0x1950, 0x19DF),  # Tai Le, New Tai Lue
    (0x1A20, 0x1AAF),  # Tai Tham
    (0x1B00, 0x1B7F),  # Balinese
    (0x2E80, 0x312F),  # Han radicals, iteration marks, Hiragana, Katakana, Bopomofo
    (0x31A0, 0x4DBF),  # Bopomofo and Katakana extended, Han A
    (0x4E00, 0xA4CF),  # Han, Yi
    (0xA980, 0xA9FF),  # Javanese, Myanmar B
    (0xAA60, 0xAADF),  # Myanmar A, Tai Viet
    (0xF900, 0xFAFF),  # Han, compatibility
    (0xFF66, 0xFF9F),  # Katakana of half width
    (0x11700, 0x1174F),  # Ahom
    (0x16FE0, 0x18DFF),  # marks of Han, Tangut, Khitan
    (0x1AFF0, 0x1B16F),  # kana, historic and small
    (0x20000, 0x3FFFF),  # Han B onwards
]
# Combining in name, but they belong to a symbol: emoji and keycaps.
VARIATION_SELECTORS = [(0xFE00, 0xFE0F), (0xE0100, 0xE01EF)]


def token_bytes(tokenizer: PreTrainedTokenizerFast) -> list[bytes]:
    """The UTF-8 bytes of text that each token stands for, by id; empty for special tokens and unused ids.

    Raises:
        InputError: the tokenizer is not byte-level, so that its tokens do not add up to the text.
    """
    state = json.loads(tokenizer.backend_tokenizer.to_str())
    if "ByteLevel" not in json.dumps([state["pre_tokenizer"], state["decoder"]]):
        raise InputError(
            "Lacuna pretrains with byte-level tokenizers, and this one (of --tokenizer or --model) is not byte-level; "
            "make one with recipes/train_tokenizer.py."
        )
    added = {token["id"]: token for token in state["added_tokens"]}
    pieces = [b""] * len(tokenizer)
    for token, token_id in tokenizer.get_vocab().items():
        if token_id not in added:
            try:
                pieces[token_id] = bytes(BYTE_OF[character] for character in token)
            except KeyError as error:
                raise InputError(
                    f"token {token_id} ({token!r}) of the tokenizer (of --tokenizer or --model) holds {error}, which "
                    "stands for no byte: the tokenizer is not byte-level. Make one with recipes/train_tokenizer.py."
                ) from error
        elif not added[token_id]["special"]:
            pieces[token_id] = token.encode()
    return pieces


def token_byte_lengths(tokenizer: PreTrainedTokenizerFast) -> np.ndarray:
    """Bytes of UTF-8 text that each token stands for: int64 [len(tokenizer)], 0 for special tokens and unused ids.

    Their sum over a text turns a loss per token into bits per byte, which compares models across tokenizers.
    Raises InputError as `token_bytes` does.
    """
    return np.array([len(piece) for piece in token_bytes(tokenizer)], dtype=np.int64)


def token_edges(tokenizer: PreTrainedTokenizerFast) -> np.ndarray:
    """Class of the first and of the last character of each token: uint8 [len(tokenizer), 2].

    0 NONE      a special token, an unused id, or bytes that no text holds
    1 SPACE     the character U+0020
    2 BLANK     any other white space
    3 LETTER    a letter or combining mark of a script that writes spaces
    4 DIGIT     a number
    5 OTHER     punctuation, symbols, control characters
    6 UNSPACED  a letter of a script written without spaces (Han, kana, Thai, Lao, Khmer, Myanmar, Tibetan ...)
    7 PARTIAL   first: the token begins inside a character; last: it ends inside one, or with the end of one that
                begins in an earlier token

    Where a token begins with a character that it does not finish, the first column says what most characters that
    begin so are. Raises InputError as `token_bytes` does.
    """
    pieces = token_bytes(tokenizer)
    edges = np.zeros((len(pieces), 2), dtype=np.uint8)
    for token_id, piece in enumerate(pieces):
        if piece:
            edges[token_id] = _first_class(piece), _last_class(piece)
    edges[(edges == NONE).any(axis=1)] = NONE
    return edges


def _first_class(piece: bytes) -> int:
    if piece[0] in CONTINUATION:
        return PARTIAL
    length = _character_length(piece[0])
    if len(piece) < length:
        return _likely_class(piece, length)
    return _class_of_bytes(piece[:length])


def _last_class(piece: bytes) -> int:
    start = len(piece) - 1
    while start >= 0 and piece[start] in CONTINUATION:
        start -= 1
    if start < 0:
        return PARTIAL
    length = _character_length(piece[start])
    return PARTIAL if len(piece) - start < length else _class_of_bytes(piece[start : start + length])


def _character_length(byte: int) -> int:
    """Bytes of the UTF-8 character that begins with this byte; 0 where none does."""
    if byte < 0x80:
        return 1
    if 0xC2 <= byte <= 0xF4:
        return 2 + (byte >= 0xE0) + (byte >= 0xF0)
    return 0


def _class_of_bytes(character: bytes) -> int:
    try:
        return character_class(character.decode()) if character else NONE
    except UnicodeDecodeError:  # too many continuation bytes, surrogates: no text holds them
        return NONE


@cache
def _likely_class(begin: bytes, length: int) -> int:
    """The most frequent class among the characters of `length` bytes that begin with `begin`."""
    counts: Counter[int] = Counter()
    missing = length - len(begin)
    for tail in range(64**missing):
        rest = bytes(0x80 | (tail >> 6 * place) & 0x3F for place in reversed(range(missing)))
        try:
            character = (begin + rest).decode()
        except UnicodeDecodeError:
            continue
        if unicodedata.category(character) not in ("Cn", "Co"):  # unassigned, private
            counts[character_class(character)] += 1
    return counts.most_common(1)[0][0] if counts else OTHER


@cache
def character_class(character: str) -> int:
    """The class of one character, as in `token_edges`: SPACE to UNSPACED."""
    if character == " ":
        return SPACE
    if character.isspace() and not "\x1c" <= character <= "\x1f":  # Python alone takes these four for white space
        return BLANK
    category = unicodedata.category(character)
    code = ord(character)
    letter = category[0] in "LM"
    # Nl for the Han digit zero and the Hangzhou numerals.
    if (letter or category == "Nl") and any(low <= code <= high for low, high in UNSPACED_RANGES):
        return UNSPACED
    if category[0] == "N":
        return DIGIT
    if category == "Me" or any(low <= code <= high for low, high in VARIATION_SELECTORS):
        return OTHER
    return LETTER if letter else OTHER
