"""Quality of a vocabulary: the bytes and characters of each token, compression, and the tokenizer report."""

import json
import re
import sys
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Iterable
from functools import cache
from typing import Any

import numpy as np
from transformers import PreTrainedTokenizerFast
from transformers.convert_slow_tokenizer import bytes_to_unicode

from lacuna.common.errors import InputError, progress_bar

from .patterns import batches, copy_backend

BYTE_OF = {letter: byte for byte, letter in bytes_to_unicode().items()}  # by the letter that byte-level BPE writes
ALPHABET = sorted(BYTE_OF)  # the 256 bytes as byte-level tokenizers write them

CONTINUATION = range(0x80, 0xC0)  # bytes after the first of a character

# Classes of `token_edges`.
NONE, SPACE, BLANK, LETTER, DIGIT, OTHER, UNSPACED, PARTIAL = range(8)

# Scripts written without spaces between words: line-break class SA of Unicode (https://www.unicode.org/reports/tr14/),
# Tibetan, Javanese, Balinese, and what is written with Han and kana.
UNSPACED_SCRIPTS = re.compile(
    "[\u0e00-\u109f\u1780-\u17ff\u1950-\u19df\u1a20-\u1aaf\u1b00-\u1b7f"  # Thai to Myanmar, Khmer, Tai, Balinese
    "\ua980-\ua9ff\uaa60-\uaadf\U00011700-\U0001174f"  # Javanese, Myanmar A and B, Tai Viet, Ahom
    "\u2e80-\u312f\u31a0-\u4dbf\u4e00-\ua4cf\uf900-\ufaff\uff66-\uff9f"  # Han, kana, Bopomofo, Yi
    "\U00016fe0-\U00018dff\U0001aff0-\U0001b16f\U00020000-\U0003ffff]"  # Tangut, Khitan, historic kana, Han B onwards
)
# Combining in name, but they belong to a symbol: emoji and keycaps.
OF_SYMBOLS = re.compile("[\ufe00-\ufe0f\U000e0100-\U000e01ef]")

ROWS = [
    ("bytes per token", "bytes_per_token", ".2f"),
    ("characters per token", "characters_per_token", ".2f"),
    ("tokens per word", "tokens_per_word", ".2f"),
    ("single-byte tokens", "single_byte_share", ".1%"),
    ("text fallen to bytes", "torn_share", ".2%"),
]
SHOWN_CHARACTERS = 30  # of one of the longest tokens
MOST_TORN = 0.01  # of the text, before it is worth a warning


def token_bytes(tokenizer: PreTrainedTokenizerFast) -> list[bytes]:
    """The UTF-8 bytes of text that each token stands for, by id; empty for special tokens and unused ids.

    Raises InputError: the tokenizer is not byte-level, so that its tokens do not add up to the text.
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
    """Bytes of UTF-8 text that each token stands for, int64 [len(tokenizer)]: they turn losses into bits per byte."""
    return np.array([len(piece) for piece in token_bytes(tokenizer)], dtype=np.int64)


def token_facts(tokenizer: PreTrainedTokenizerFast) -> dict[str, Any]:
    """What objectives ask of tokens: `byte_lengths` [len(tokenizer)] and `token_edges` [len(tokenizer), 2]."""
    return {"byte_lengths": token_byte_lengths(tokenizer), "token_edges": token_edges(tokenizer)}


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
    begin so are.
    """
    pieces = token_bytes(tokenizer)
    edges = np.array([(_first_class(it), _last_class(it)) if it else (NONE, NONE) for it in pieces], dtype=np.uint8)
    edges[(edges == NONE).any(axis=1)] = NONE
    return edges


def _first_class(piece: bytes) -> int:
    length = _character_length(piece[0])
    if piece[0] in CONTINUATION:
        return PARTIAL
    return _likely_classes().get(piece, OTHER) if len(piece) < length else _class_of_bytes(piece[:length])


def _last_class(piece: bytes) -> int:
    start = max((place for place in range(len(piece)) if piece[place] not in CONTINUATION), default=-1)
    length = _character_length(piece[start])
    return PARTIAL if start < 0 or len(piece) - start < length else _class_of_bytes(piece[start : start + length])


def _character_length(byte: int) -> int:
    """Bytes of the UTF-8 character that begins with this byte; 0 where none does."""
    return 1 if byte < 0x80 else 2 + (byte >= 0xE0) + (byte >= 0xF0) if 0xC2 <= byte <= 0xF4 else 0


def _class_of_bytes(character: bytes) -> int:
    try:
        return character_class(character.decode()) if character else NONE
    except UnicodeDecodeError:  # too many continuation bytes, surrogates: no text holds them
        return NONE


@cache
def _likely_classes() -> dict[bytes, int]:
    """The most frequent class among the characters that begin with some bytes, by these bytes."""
    counts: defaultdict[bytes, Counter[int]] = defaultdict(Counter)
    for character in map(chr, range(0x80, sys.maxunicode + 1)):
        if unicodedata.category(character) not in ("Cn", "Co", "Cs"):
            data, kind = character.encode(), character_class(character)
            for length in range(1, len(data)):
                counts[data[:length]][kind] += 1
    return {begin: of_kinds.most_common(1)[0][0] for begin, of_kinds in counts.items()}


@cache
def character_class(character: str) -> int:
    """The class of one character, as in `token_edges`: SPACE to UNSPACED."""
    if character == " ":
        return SPACE
    if character.isspace() and not "\x1c" <= character <= "\x1f":  # Python alone takes these four for white space
        return BLANK
    category = unicodedata.category(character)
    letter = category[0] in "LM"
    # Nl for the Han digit zero and the Hangzhou numerals.
    if (letter or category == "Nl") and UNSPACED_SCRIPTS.match(character):
        return UNSPACED
    if category[0] == "N":
        return DIGIT
    return LETTER if letter and category != "Me" and not OF_SYMBOLS.match(character) else OTHER


def compression_report(*, tokenizer: PreTrainedTokenizerFast, documents: Iterable[str]) -> dict[str, Any]:
    """Encode the documents and count.

    Returns: vocab_size; texts, bytes, words (runs without white space) and tokens; bytes_per_token,
    characters_per_token, tokens_per_word (fertility); single_byte_share (tokens of one byte over all tokens, spaces
    and punctuation included); torn_share (bytes of characters that no token holds whole, over all bytes);
    unused_tokens (ids never seen, special tokens aside); longest_tokens (the ten longest that are not white space
    alone, decoded).

    Raises InputError: there is no text, or the tokenizer is not byte-level.
    """
    pieces = token_bytes(tokenizer)
    lengths = np.array([len(piece) for piece in pieces])
    backend = copy_backend(tokenizer, special_is_text=True)
    counts = np.zeros(len(pieces), dtype=np.int64)
    texts = num_bytes = characters = words = 0
    with progress_bar(doing="measuring", unit="B") as bar:
        for batch in batches(documents):
            size = sum(len(document.encode()) for document in batch)
            texts, num_bytes, characters = texts + len(batch), num_bytes + size, characters + sum(map(len, batch))
            words += sum(len(document.split()) for document in batch)
            for encoding in backend.encode_batch_fast(batch, add_special_tokens=False):
                counts += np.bincount(encoding.ids, minlength=len(counts))
            bar.update(size)
    if not (num_tokens := int(counts.sum())):
        raise InputError("there is no text to measure the tokenizer on. Check --data.")
    whole = np.array([len(piece.decode(errors="ignore").encode()) for piece in pieces])  # bytes of whole characters
    visible = [token_id for token_id, piece in enumerate(pieces) if piece.strip()]
    longest = sorted(visible, key=lambda token_id: (-lengths[token_id], token_id))[:10]
    return {
        "vocab_size": len(tokenizer),
        "texts": texts,
        "bytes": num_bytes,
        "words": words,
        "tokens": num_tokens,
        "bytes_per_token": num_bytes / num_tokens,
        "characters_per_token": characters / num_tokens,
        "tokens_per_word": num_tokens / max(1, words),
        "single_byte_share": float(counts[lengths == 1].sum() / num_tokens),
        "torn_share": float((counts * (lengths - whole)).sum() / max(1, (counts * lengths).sum())),
        "unused_tokens": int(((counts == 0) & (lengths > 0)).sum()),
        "longest_tokens": [pieces[token_id].decode(errors="backslashreplace") for token_id in longest],
    }


def peak_memory() -> int | None:
    """Bytes of memory that this process has held at most; None where the system does not say (Windows)."""
    try:
        import resource
    except ImportError:
        return None
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def torn_warning(report: dict[str, Any], *, held_out: dict[str, Any] | None = None) -> str | None:
    """What to say when more than MOST_TORN of the text falls to bytes; None when it does not."""
    worst, which = max((report["torn_share"], ""), (held_out["torn_share"] if held_out else 0, "held-out "))
    if worst <= MOST_TORN:
        return None
    return (
        f"{worst:.1%} of the {which}text falls to bytes: its characters have no token of their own and are written as "
        "two to four tokens each. Ask for a larger --vocab_size, or bring more text with these characters."
    )


def describe_report(report: dict[str, Any]) -> str:
    """The lines that the recipe prints: the report, its `held_out` and `before_extending` (the old tokenizer on the
    held-out text) beside it where they are there."""
    more = {"held out": report.get("held_out"), "old tokenizer": report.get("before_extending")}
    columns = [("trained on", report), *((title, column) for title, column in more.items() if column)]
    lines = [
        f"vocabulary size       {report['vocab_size']:,} ({report['unused_tokens']:,} unused in the text measured)",
        f"{'':20}" + "".join(f"{title:>14}" for title, _ in columns),
    ]
    for title, key, form in ROWS:
        lines.append(f"{title:20}" + "".join(f"{column[key]:>14{form}}" for _, column in columns))
    lines.append(f"longest tokens        {', '.join(map(_shown, report['longest_tokens'][:5]))}")
    return "\n".join(lines)


def _shown(token: str) -> str:
    """A token in quotes, the middle left out where it is long."""
    if len(token) > SHOWN_CHARACTERS:
        token = f"{token[: SHOWN_CHARACTERS - 8]}…{token[-4:]}"
    return repr(token)
