"""The token store: a corpus as token ids in memory-mapped files, with the edges of sentences and documents.

    manifest.json                 format, counts, sources, what was dropped, fingerprints, SHA-256 of every file
    00000/tokens.bin              token ids, none special, as the smallest unsigned integers that hold the vocabulary
    00000/sentence_offsets.npy    int64 [sentences + 1], in tokens
    00000/document_offsets.npy    int64 [documents + 1], in sentences

`build.py` makes a store in a hidden folder beside its place and renames it when it is whole: what has its name is
complete.
"""

import copy
import hashlib
import json
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from lacuna.common.errors import InputError, LacunaError, StorageError
from lacuna.common.files import sha256
from lacuna.common.private import counted, shown

FORMAT_VERSION = 2
MANIFEST, FOLDER = "manifest.json", "00000"
FILES = ("tokens.bin", "sentence_offsets.npy", "document_offsets.npy")
REMEDY = "Build it again: python recipes/prepare_corpus.py"
SHOWN_CHARACTERS = 150  # of an example, in the report


class _JoinedTokens:
    """The tokens of two stores, read as one by slices, which are views but where they cross the edge."""

    def __init__(self, first: Any, second: Any) -> None:
        self._first, self._second = first, second

    def __len__(self) -> int:
        return len(self._first) + len(self._second)

    def __getitem__(self, key: slice) -> np.ndarray:
        start, stop, _ = key.indices(len(self))
        edge = len(self._first)
        if start >= edge or stop <= edge:
            return self._second[start - edge : stop - edge] if start >= edge else self._first[start:stop]
        return np.concatenate([self._first[start:], self._second[: stop - edge]])


class TokenStore:
    """A corpus of tokens, read by index from disk. Open one with `open_store`.

    Attributes:
        tokens: uint8, uint16 or uint32 [num_tokens], as the next two on disk and mapped into memory.
        sentence_offsets: int64 [num_sentences + 1], in tokens.
        document_offsets: int64 [num_documents + 1], in sentences.
        source_offsets: int64 [number of sources + 1], in documents; an array in memory.
        source_names, source_weights: as given with --data; weights sum to 1, None where none was given.
        vocab_size: ids are below it. num_bytes: UTF-8 bytes of the text behind the tokens.
        fingerprint, tokenizer_fingerprint: what the store was made from.
    """

    def __init__(self, *, path: Path, manifest: dict[str, Any]) -> None:
        self.path = path
        self.manifest = manifest
        self.vocab_size: int = manifest["vocab_size"]
        self.num_documents: int = manifest["num_documents"]
        self.num_sentences: int = manifest["num_sentences"]
        self.num_tokens: int = manifest["num_tokens"]
        self.num_bytes: int = manifest["num_bytes"]
        self.fingerprint: str = manifest["fingerprint"]
        self.tokenizer_fingerprint: str = manifest["tokenizer_fingerprint"]
        self.held_out: TokenStore | None = None  # see `before`
        sources = manifest["sources"]
        self.source_names: list[str] = [source["name"] for source in sources]
        weights = [source["weight"] for source in sources]
        self.source_weights: list[float] | None = None if None in weights else weights
        self.source_offsets = np.cumsum([0, *(source["num_documents"] for source in sources)], dtype=np.int64)
        tokens, sentences, documents = (path / FOLDER / name for name in FILES)
        # Plain views: slices of np.memmap itself cost five times as much.
        self.tokens: Any = np.memmap(tokens, dtype=manifest["dtype"], mode="r").view(np.ndarray)
        self.sentence_offsets = _load_offsets(sentences, self.num_tokens)
        self.document_offsets = _load_offsets(documents, self.num_sentences)

    def summary(self) -> str:
        """One line for people."""
        others = self.held_out and f"; evaluated on {counted(self.held_out.num_documents, 'document')} of --eval_data"
        return (
            f"{counted(self.num_documents, 'document')}, {counted(self.num_sentences, 'sentence')}, "
            f"{counted(self.num_tokens, 'token')}, {_size(self.num_bytes)} of text, "
            f"{self.num_bytes / self.num_tokens:.2f} bytes per token{others or ''}"
        )

    def report(self, *, decode: Callable[[list[int]], str], num_examples: int = 10, seed: int = 0) -> str:
        """Several lines for people: each source, what was dropped and why, and what stands at random places.

        `decode` is that of the tokenizer that the store was made with.
        """
        lines = ["sources:"]
        for source in self.manifest["sources"]:
            weight = "" if source["weight"] is None else f"weight {source['weight']:.3g}, "
            lines.append(
                f"  {shown(source['name'])}: {weight}{counted(source['num_documents'], 'document')}, "
                f"{counted(source['num_tokens'], 'token')} ({source['num_tokens'] / self.num_tokens:.1%}), "
                f"{_size(source['num_bytes'])}"
            )
        lines = lines if len(self.source_names) > 1 else []
        reasons = ", ".join(f"{reason} {number:,}" for reason, number in self.manifest["dropped"].items())
        lines.append(f"dropped: {reasons or 'nothing'}")
        lines += [f"  {_one_line(message, 200)}" for message in self.manifest["bad_records"]]
        count = min(num_examples, self.num_documents)
        random = np.random.default_rng(seed)
        chosen = np.sort(random.choice(self.num_documents, size=count, replace=False))
        lines.append(f"{counted(count, 'random document')}, each from a random sentence on (⏎ is a line end):")
        for document in chosen.tolist():
            first, last = self.document_offsets[document : document + 2]
            sentence = int(random.integers(first, last))
            begin, end = self.sentence_offsets[[sentence, last]]
            text = decode(self.tokens[begin : min(end, begin + 2 * SHOWN_CHARACTERS)].tolist())
            text = text.strip().replace("\n", " ⏎ ")
            place = f"{document}, sentence {sentence - first}" if sentence > first else f"{document}"
            lines.append(f"  {place}: {_one_line(text, SHOWN_CHARACTERS)}")
        return "\n".join(lines)

    def before(self, held_out: "TokenStore") -> "TokenStore":
        """This store with the documents of another one, of the same tokenizer, behind its last source."""
        both = copy.copy(self)
        both.held_out = held_out
        both.fingerprint = hashlib.sha256(f"{self.fingerprint} {held_out.fingerprint}".encode()).hexdigest()
        both.tokens = _JoinedTokens(self.tokens, held_out.tokens)
        for name, size in (("sentence_offsets", self.num_tokens), ("document_offsets", self.num_sentences)):
            setattr(both, name, np.concatenate([getattr(self, name)[:-1], getattr(held_out, name)[:] + size]))
        return both

    def shared_documents(self, other: "TokenStore") -> int:
        """How many documents of another store, of the same tokenizer, stand here too, token for token."""
        bounds, others = (store.sentence_offsets[:][store.document_offsets[:]] for store in (self, other))
        alike = np.flatnonzero(np.isin(np.diff(bounds), np.diff(others)))
        here = {hash(self.tokens[bounds[number] : bounds[number + 1]].tobytes()) for number in alike}
        return sum(hash(other.tokens[begin:end].tobytes()) in here for begin, end in pairwise(others.tolist()))

    def __reduce__(self) -> tuple[Any, ...]:
        # A worker process that does not fork gets the path, not a copy of the corpus; and the weights, which another
        # run may change on the disk.
        return _open_again, (self.path, self.manifest["fingerprint"], self.source_weights, self.held_out)


def open_store(path: str | Path, *, verify: bool = False) -> TokenStore:
    """Open a complete store; sizes are checked, with `verify` every byte (SHA-256, about 1 GB/s).

    Raises InputError if there is no store, it is damaged, or another version wrote it; the message says which file.
    """
    path = Path(path)
    if not (path / MANIFEST).is_file():
        what = f"there is no {MANIFEST} in it" if path.is_dir() else "there is no such folder"
        place = "runs/corpus" if path.exists() else path
        raise InputError(f"{path} is not a token store: {what}. {REMEDY} --output_dir {place}")
    try:
        manifest = json.loads((path / MANIFEST).read_text(encoding="utf-8"))
        version = manifest["format_version"]
        if version != FORMAT_VERSION:
            older = "an older" if isinstance(version, int) and version < FORMAT_VERSION else "a newer"
            raise InputError(
                f"{path} has format {version}, of {older} version of Lacuna; this one reads format {FORMAT_VERSION}. "
                f"{REMEDY}"
            )
        if [shard["name"] for shard in manifest["shards"]] != [FOLDER]:
            raise InputError(f"{path} has other parts than {FOLDER}, of an older version of Lacuna. {REMEDY}")
        for name in FILES:
            _check_file(path / FOLDER / name, manifest["shards"][0]["files"][name], verify=verify)
        return TokenStore(path=path, manifest=manifest)
    except LacunaError:
        raise
    except OSError as error:
        raise StorageError(
            f"{shown(path)} cannot be opened: {error.strerror}. Its files stay open: allow more (ulimit -n)."
        ) from error
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(f"{path} cannot be read ({type(error).__name__}: {str(error)[:120]}). {REMEDY}") from error


def _open_again(path: Path, fingerprint: str, weights: list[float] | None, held_out: TokenStore | None) -> TokenStore:
    store = open_store(path)
    if store.fingerprint != fingerprint:
        raise InputError(f"{path} was replaced by another store while it was used. Start again.")
    store.source_weights = weights
    return store if held_out is None else store.before(held_out)


def _check_file(file: Path, expected: dict[str, Any], *, verify: bool) -> None:
    size = file.stat().st_size if file.exists() else None
    if size != expected["bytes"]:
        found = "is missing" if size is None else f"has {size} bytes"
        raise InputError(f"{file} {found}, its manifest says {expected['bytes']}. {REMEDY}")
    if verify and sha256(file) != expected["sha256"]:
        raise InputError(f"{file} has changed since it was written (its SHA-256 differs). {REMEDY}")


def _load_offsets(path: Path, size: int) -> np.ndarray:
    array = np.load(path, mmap_mode="r", allow_pickle=False).view(np.ndarray)
    if array[0] != 0 or array[-1] != size:
        raise InputError(f"{path} ends at {array[-1]}, its manifest says {size}. {REMEDY}")
    return array


def _size(number: int) -> str:
    return f"{number / 1e6:.2f} MB" if number >= 100_000 else f"{number / 1e3:.1f} kB"


def _one_line(text: str, limit: int) -> str:
    line = shown(" ".join(text.split()))
    return line if len(line) <= limit else f"{line[: limit - 1]}…"
