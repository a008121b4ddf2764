"""Equal documents, and documents that say nearly the same. Of each group the first in the corpus stays.

Documents with equal hashes are equal. Documents that share a band of their MinHash signatures are candidates, and
their whole signatures are compared. In memory are about 50 bytes for each document; signatures lie on disk.

Resemblance is the Jaccard similarity of the sets of word 5-grams of two documents (A. Broder, "On the resemblance and
containment of documents", 1997), estimated from MinHash signatures. Texts with few spaces (Chinese, Japanese, Thai)
are compared by 5-grams of characters.
"""

import importlib.util
import re
import tempfile
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np

from lacuna.common.errors import InputError

NUM_PERMUTATIONS = 128  # the estimate's standard error is sqrt(J (1 - J) / 128): 0.035 at 0.8
SHINGLE = 5  # words, or characters
MAX_CHARACTERS_PER_WORD = 15  # on average; in a text with more, words are not what stands between spaces
SHINGLES_AT_ONCE = 4096  # 2 MB of permuted hashes
MISSES_COUNT = 0.98  # a pair that is missed is worse than one looked at in vain: candidates are verified

NEIGHBOURS = 4  # in a group of equal bands a document is compared with the first and with these before it
AT_ONCE = 1 << 14  # signatures that are read together, 8 MB

_WORD = re.compile(r"\w+")
_ODD = np.uint64(0x9E3779B97F4A7C15)


def find_equal(hashes: Iterable[np.ndarray]) -> np.ndarray:
    """Documents whose hash an earlier one has: bool [documents].

    Args:
        hashes: 16 bytes a document (dtype V16), in order, in parts.
    """
    halves = np.concatenate([np.zeros((0, 2), dtype="<u8"), *(part.view("<u8").reshape(-1, 2) for part in hashes)])
    order = np.lexsort(halves.T)  # stable: the first of the corpus is the first of its group
    found = np.zeros(len(halves), dtype=bool)
    found[order[1:]] = (halves[order[1:]] == halves[order[:-1]]).all(axis=1)
    return found


def find_near(*, signatures: Iterable[np.ndarray], skipped: np.ndarray, threshold: float, folder: Path) -> np.ndarray:
    """Documents whose signature agrees with that of an earlier one, dropped or not, in a share `threshold` of places.

    Args:
        signatures: uint32 [documents, NUM_PERMUTATIONS], in order, in parts.
        skipped: bool [num_documents], those that are dropped anyway.
        folder: for a file of 0.5 KB a document, removed again.

    Returns:
        bool [num_documents].
    """
    found = np.zeros(len(skipped), dtype=bool)
    numbers = np.flatnonzero(~skipped)
    with tempfile.TemporaryFile(dir=folder) as file:
        for part in signatures:
            file.write(part.tobytes())
        file.flush()

        def at(places: np.ndarray) -> np.ndarray:
            # Opened anew each time, so that pages that were read do not stay in this process.
            return np.memmap(file, dtype="<u4", mode="r").reshape(-1, NUM_PERMUTATIONS)[places]

        bands, rows = _bands(threshold)
        for band in range(bands if len(numbers) else 0):
            parts = (numbers[start : start + AT_ONCE] for start in range(0, len(numbers), AT_ONCE))
            keys = np.concatenate([_mix(at(part)[:, band * rows : (band + 1) * rows], seed=band) for part in parts])
            order = np.argsort(keys, kind="stable")
            for early, late in _candidates(keys[order], numbers[order]):
                late, early = late[~found[late]], early[~found[late]]
                for start in range(0, len(late), AT_ONCE):
                    chosen = slice(start, start + AT_ONCE)
                    equal = (at(early[chosen]) == at(late[chosen])).mean(axis=1)
                    found[late[chosen][equal >= threshold]] = True
    return found


def check_near_duplicates(threshold: float) -> None:
    """Raises InputError where --near_duplicates is no similarity, or its library is not installed."""
    if not 0 <= threshold <= 1:
        raise InputError(
            f"--near_duplicates must be a similarity from 0 (keep all) to 1, such as 0.8; got {threshold}"
        )
    if threshold and importlib.util.find_spec("datasketch") is None:
        raise InputError(
            "--near_duplicates needs the library datasketch, which is not installed. Install it: "
            'pip install -e ".[dedup]"'
        )


def make_signature(text: str) -> np.ndarray:
    """MinHash signature of the set of 5-grams of a text: uint32 [NUM_PERMUTATIONS]."""
    from datasketch import MinHash

    signature = MinHash(num_perm=NUM_PERMUTATIONS, seed=1, scheme="affine32", hashfunc=int)
    shingles = make_shingles(text)
    for start in range(0, len(shingles), SHINGLES_AT_ONCE):
        signature.update_batch(shingles[start : start + SHINGLES_AT_ONCE].tolist())
    return np.asarray(signature.hashvalues, dtype=np.uint32)


def make_shingles(text: str) -> np.ndarray:
    """Hashes of the different 5-grams of a text, words without case, or characters where there are few spaces.

    uint32, sorted, at least one: a text of fewer than five words is one shingle.
    """
    text = text.lower()
    words = _WORD.findall(text)
    if len(words) * MAX_CHARACTERS_PER_WORD < len(text):
        parts = np.frombuffer("".join(text.split()).encode("utf-32-le"), dtype="<u4").astype(np.uint64)
    else:
        parts = np.fromiter((zlib.crc32(word.encode()) for word in words), dtype=np.uint64, count=len(words))
    size = min(SHINGLE, len(parts))
    grams = np.lib.stride_tricks.sliding_window_view(parts, size) if size else np.zeros((1, 1), dtype=np.uint64)
    return np.unique((_mix(grams, seed=size) >> np.uint64(32)).astype(np.uint32))


def _mix(values: np.ndarray, *, seed: int) -> np.ndarray:
    """One hash (uint64) of each row of numbers, in their order."""
    result = np.full(len(values), seed, dtype=np.uint64)
    for column in values.T:
        result = (result ^ column.astype(np.uint64)) * _ODD
        result ^= result >> np.uint64(29)
    return result * _ODD


def _bands(threshold: float) -> tuple[int, int]:
    """How signatures are cut: bands, and places in each, so that pairs at the threshold meet in one of them."""
    from datasketch import MinHashLSH

    index = MinHashLSH(
        threshold=min(threshold, 0.95), num_perm=NUM_PERMUTATIONS, weights=(round(1 - MISSES_COUNT, 6), MISSES_COUNT)
    )
    return index.b, index.r


def _candidates(keys: np.ndarray, documents: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Pairs (earlier, later) within runs of equal keys: each with the first of its run and those just before."""
    starts = np.concatenate([[0], np.flatnonzero(keys[1:] != keys[:-1]) + 1])
    first = np.repeat(starts, np.diff(starts, append=len(keys)))
    places = np.arange(len(keys))
    for earlier in (first, *(places - lag for lag in range(1, NEIGHBOURS + 1))):
        within = (earlier >= first) & (earlier < places)
        yield documents[earlier[within]], documents[within]
