"""How text is normalized and cut before byte-pair encoding: nothing is ever merged across a cut."""

import re
from collections.abc import Callable, Iterator
from typing import Any

from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

# Three expressions for the words of a text. In all of them a word takes the space before it, and none reaches over
# the edge from visible text to white space, which is what lets sentences be encoded one by one.
#
# modern: that of GPT-2 with two changes. Digits come in groups of three at most, so that the vocabulary is not filled
# with years and page numbers. Combining marks (\p{M}) stay with their letters: GPT-2 tears Hindi and Thai words apart.
# code: as modern, but white space with a line end in it stays whole: a line end and the indentation after it are one
# word, and a line begins with the same token at every depth, where the others give it the last space of the
# indentation. (Line end and indentation as two words took 8 % more tokens for Python.)
PATTERNS = {
    "gpt2": r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
    "modern": r"'(?:[sdmt]|ll|ve|re)| ?[\p{L}\p{M}]+| ?\p{N}{1,3}| ?[^\s\p{L}\p{M}\p{N}]+|\s+(?!\S)|\s+",
    "code": r"\s*[\r\n]\s*| ?[\p{L}\p{M}]+| ?\p{N}{1,3}| ?[^\s\p{L}\p{M}\p{N}]+|\s+(?!\S)|\s+",
}


def _strip_accents() -> list[Any]:
    # `normalizers.StripAccents` would take every mark that takes no room, and with them the vowels of Hindi and Thai;
    # U+0300 to U+036F are the accents of Latin, Greek and Cyrillic.
    return [normalizers.NFD(), normalizers.Replace(Regex(r"[\x{0300}-\x{036F}]"), ""), normalizers.NFC()]


NORMALIZERS: dict[str, Callable[[], list[Any]]] = {
    "none": lambda: [],
    "nfc": lambda: [normalizers.NFC()],
    "nfkc": lambda: [normalizers.NFKC()],
    "lowercase": lambda: [normalizers.Lowercase()],
    "strip_accents": _strip_accents,
    "lowercase_strip_accents": lambda: [normalizers.Lowercase(), *_strip_accents()],
}

# Training works in parallel over the strings it is given, so that one large file would keep all cores but one idle:
# 13 MB of novels took 2.8 s whole and 2.1 s in pieces of 65,536 characters on two cores. Shorter ones also keep the
# library's own lists small: 16,384 take 12 % less processor time than that for training, 15 % less for encoding.
PIECE_CHARACTERS = 16384
PIECE_EDGE = re.compile(r"(?<=\S)(?=[^\S\x1c-\x1f])")  # Python alone takes \x1c to \x1f for white space
RUN = re.compile(r"\S+")
RUN_CHARACTERS = 1024  # 1 MB of DNA without a space took 8.3 s of processor time, and takes 1.3 s so cut
LATEST_EDGE = 4096  # characters behind PIECE_CHARACTERS: what has no white space for so long is cut anywhere


def untrained_backend(*, normalizer: str, pattern: str) -> Tokenizer:
    """A byte-level BPE that has learned nothing yet."""
    backend = Tokenizer(models.BPE())
    steps = NORMALIZERS[normalizer]()
    if steps:
        backend.normalizer = steps[0] if len(steps) == 1 else normalizers.Sequence(steps)
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(PATTERNS[pattern]), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    backend.decoder = decoders.ByteLevel()
    return backend


def split_pieces(document: str) -> Iterator[str]:
    """Cut a long document into pieces of about PIECE_CHARACTERS, where no word can reach across.

    A document that is one run without white space is cut anywhere, because the memory and time that training needs
    for one word grow with its length.
    """
    start = 0
    while len(document) - start > PIECE_CHARACTERS + LATEST_EDGE:  # so that a piece is not cut again
        aim = start + PIECE_CHARACTERS
        edge = PIECE_EDGE.search(document, aim, aim + LATEST_EDGE)
        end = edge.start() if edge else aim
        yield document[start:end]
        start = end
    yield document[start:]


def cut_runs(piece: str) -> Iterator[str]:
    """Cut what has no white space for more than RUN_CHARACTERS (DNA, base64), where most of a piece is such.

    A merge goes through the whole of each word that it changes, and a cut in so long a run costs one pair.
    """
    start = 0
    if piece.count(" ") + piece.count("\n") < len(piece) // 16:  # ordinary text has more, and is not looked at
        for run in RUN.finditer(piece):
            for end in range(run.start() + RUN_CHARACTERS, run.end(), RUN_CHARACTERS):
                yield piece[start:end]
                start = end
    yield piece[start:]
