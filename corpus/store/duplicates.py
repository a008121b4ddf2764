"""Equal documents, and documents that say nearly the same, over a corpus of any size in bounded memory.

Keys of documents (hashes of their text; hashes of bands of their MinHash signatures) are sorted into buckets on disk,
so that equal keys stand in one bucket and one bucket fits in memory. The first of a group in the order of the corpus
stays.

Resemblance is the Jaccard similarity of the sets of word 5-grams of two documents (A. Broder, "On the resemblance and
containment of documents", 1997), estimated from MinHash signatures. Texts with few spaces (Chinese, Japanese, Thai)
are compared by 5-grams of characters.
"""

import importlib.util
import re
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

RECORDS_IN_BUCKET = 1 << 19
MAX_BUCKETS = 256  # files that are open at once
NEIGHBOURS = 4  # in a group of equal bands a document is compared with the first and with these before it
PAIRS_AT_ONCE = 1 << 14  # signatures of a pair are a page of the disk each

_KEY = np.dtype([("key", "<u8"), ("rest", "<u8"), ("document", "<u8")])
_WORD = re.compile(r"\w+")
_ODD = np.uint64(0x9E3779B97F4A7C15)


def find_equal(*, hashes: Iterable[np.ndarray], num_documents: int, folder: Path) -> np.ndarray:
    """Documents whose hash an earlier one has: bool [num_documents].

    Args:
        hashes: 16 bytes a document (dtype V16), in order, in parts.
        folder: for files of some 24 bytes a document, removed again.
    """
    found = np.zeros(num_documents, dtype=bool)
    with _Buckets(folder / "equal", num_records=num_documents) as buckets:
        first = 0
        for part in hashes:
            halves = part.view("<u8").reshape(-1, 2)
            buckets.add(halves[:, 0], halves[:, 1], np.arange(first, first + len(part)))
            first += len(part)
        for records in buckets.sorted():
            found[records["document"][1:][_same(records)]] = True
    return found


def find_near(*, signatures: Iterable[np.ndarray], skipped: np.ndarray, threshold: float, folder: Path) -> np.ndarray:
    """Documents whose signature agrees with that of an earlier one, dropped or not, in a share `threshold` of places.

    Args:
        signatures: uint32 [documents, NUM_PERMUTATIONS], in order, in parts.
        skipped: bool [num_documents], those that are dropped anyway.
        folder: for files of some 0.5 KB a document for signatures and 24 bytes a band, removed again.

    Returns:
        bool [num_documents].
    """
    bands, rows = _bands(threshold)
    found = np.zeros(len(skipped), dtype=bool)
    path = folder / "signatures"
    try:
        with _Buckets(folder / "near", num_records=len(skipped) * bands) as buckets, path.open("wb") as file:
            first = 0
            for part in signatures:
                file.write(part.tobytes())
                numbers = np.flatnonzero(~skipped[first : first + len(part)])
                for band in range(bands):
                    keys = _mix(part[numbers, band * rows : (band + 1) * rows], seed=band)
                    buckets.add(keys, np.full(len(keys), band), numbers + first)
                first += len(part)
            file.flush()
            for records in buckets.sorted():
                for early, late in _candidates(records):
                    late, early = late[~found[late]], early[~found[late]]
                    for start in range(0, len(late), PAIRS_AT_ONCE):
                        chosen = slice(start, start + PAIRS_AT_ONCE)
                        # Opened anew each time, so that pages that were read do not stay in this process.
                        all_signatures = np.memmap(path, dtype="<u4", mode="r").reshape(-1, NUM_PERMUTATIONS)
                        equal = (all_signatures[early[chosen]] == all_signatures[late[chosen]]).mean(axis=1)
                        found[late[chosen][equal >= threshold]] = True
    finally:
        path.unlink(missing_ok=True)
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


def _same(records: np.ndarray) -> np.ndarray:
    """bool [len(records) - 1]: whether a record has the key of the one before."""
    return (records["key"][1:] == records["key"][:-1]) & (records["rest"][1:] == records["rest"][:-1])


def _candidates(records: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Pairs (earlier, later) within groups of equal keys: each with the first of its group and those just before."""
    documents = records["document"].astype(np.int64)
    starts = np.concatenate([[0], np.flatnonzero(~_same(records)) + 1])
    first = np.repeat(starts, np.diff(starts, append=len(records)))
    places = np.arange(len(records))
    for earlier in (first, *(places - lag for lag in range(1, NEIGHBOURS + 1))):
        within = (earlier >= first) & (earlier < places)
        yield documents[earlier[within]], documents[within]


class _Buckets:
    """Records of a key and a document, on disk, in files by key."""

    def __init__(self, folder: Path, *, num_records: int) -> None:
        self.folder = folder
        needed = max(1, -(-num_records // RECORDS_IN_BUCKET))
        self.count = min(MAX_BUCKETS, 1 << (needed - 1).bit_length())

    def __enter__(self) -> "_Buckets":
        self.folder.mkdir(exist_ok=True)
        self.files = [(self.folder / f"{number:03}").open("wb") for number in range(self.count)]
        return self

    def add(self, keys: np.ndarray, rest: np.ndarray, documents: np.ndarray) -> None:
        records = np.empty(len(keys), dtype=_KEY)
        records["key"], records["rest"], records["document"] = keys, rest, documents
        buckets = records["key"] & np.uint64(self.count - 1)
        order = np.argsort(buckets, kind="stable")
        edges = np.searchsorted(buckets[order], np.arange(self.count + 1, dtype=np.uint64))
        for number in range(self.count):
            if edges[number] < edges[number + 1]:
                self.files[number].write(records[order[edges[number] : edges[number + 1]]].tobytes())

    def sorted(self) -> Iterator[np.ndarray]:
        """The buckets, each sorted by key and then by document."""
        for file in self.files:
            file.close()
        for number in range(self.count):
            records = np.fromfile(self.folder / f"{number:03}", dtype=_KEY)
            yield records[np.lexsort((records["document"], records["rest"], records["key"]))]

    def __exit__(self, *exception: object) -> None:
        for file in self.files:
            file.close()
        for number in range(self.count):
            (self.folder / f"{number:03}").unlink(missing_ok=True)
        self.folder.rmdir()
