"""Build a token store: text -> pieces, by several processes -> files. A killed build resumes.

    .NAME.building-XXXX/            beside NAME, the place of the store; XXXX stands for text, tokenizer and options
        build.json  tokenizer.json  what all pieces are made with
        pieces/
        pieces.json                 what was read and left out; there when all pieces are
        store/                      the last step, repeated after a kill

One process reads, and cuts pieces at edges of documents; whole pieces are kept. So the bytes of a store depend neither
on workers nor on kills. Of each group of equal documents the first stays; documents with equal hashes are equal.
"""

import glob
import hashlib
import json
import os
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np

from lacuna.common.errors import InputError, StorageError, progress_bar
from lacuna.common.files import cache_folder, locked, sha256, sync, write_text
from lacuna.common.private import shown

from ..arguments import CorpusArguments
from ..read.streams import say_once
from ..read.text import Document, Text, open_text
from .encoding import SentenceEncoder
from .pieces import BUILD, KEPT, SUFFIX, TOKENIZER, BuildOptions, Piece, TextPiece, make_pieces
from .token_store import FILES, FOLDER, FORMAT_VERSION, MANIFEST, TokenStore, open_store

VERSIONS = (2, 1)  # of whole documents, and of sentences that are encoded one by one; rise when other tokens are made
MAX_DEFAULT_WORKERS = 8  # a worker takes about 100 MB, and all together are to stay under 1 GiB
PIECE_BYTES = 2 << 20  # of text: a second of work for one process
COUNTS = ("num_documents", "num_sentences", "num_tokens", "num_bytes")
DOCUMENT_OVERHEAD = 64  # bytes that a document counts beside its text, so that many tiny ones make no giant piece


def prepare_store(
    *, text: Text, tokenizer: Any, tokenizer_fingerprint: str, output_dir: Path | str, num_workers: int | None = None
) -> TokenStore:
    """Tokenize a text into a store at `output_dir`, or open the one that is there of the same text and tokenizer.

    A store of something else is replaced when the new one is whole; a folder that is no store is not touched.
    Special tokens are text where they occur in documents. By default there is a worker for each core, up to 8.

    Raises InputError: bad text or options, no text at all, or `output_dir` holds something else; StorageError: the
    disk is full or read-only, and nothing half-built has the name of the store; WorkerError: a worker was killed.
    """
    shared = BuildOptions(text.fingerprint, tokenizer_fingerprint, len(tokenizer), text.language)
    encoder = SentenceEncoder(tokenizer_json=tokenizer.backend_tokenizer.to_str(), dtype=shared.dtype)
    builder = _Builder(_place(output_dir), shared, text, by_sentence=encoder.by_sentence)
    if num_workers is None:
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        num_workers = min(cores, MAX_DEFAULT_WORKERS)
    try:
        return builder.build(tokenizer, num_workers)
    except OSError as error:
        raise StorageError(f"cannot write {builder.output_dir}: {error}{KEPT}") from error


def prepare_corpus(
    arguments: CorpusArguments,
    *,
    tokenizer_for: Callable[[Text | None], Any],
    fingerprint_of: Callable[[Any], str],
    more: Sequence[str] = (),
) -> tuple[Any, TokenStore]:
    """The tokenizer and the token store: those of --corpus, or of the text of --data and the texts of --for (`more`),
    built by whichever process comes first and found by the others.

    `tokenizer_for` gives the tokenizer of a text, or of --corpus where it is given None.

    Raises InputError: options that do not fit each other, or bad text; StorageError: the store cannot be written.
    """
    if arguments.corpus:
        if arguments.data:
            raise InputError("--corpus goes without --data, and with the --tokenizer that it was made with")
        tokenizer, store = tokenizer_for(None), open_store(arguments.corpus)
        if store.tokenizer_fingerprint != fingerprint_of(tokenizer):
            raise InputError(f"--corpus {arguments.corpus} was made with another tokenizer than the one that is given")
        return tokenizer, _with_held_out(store, arguments, tokenizer)
    text = open_text(arguments)
    if arguments.for_file:
        text = text.after(more, name=f"texts of {' '.join(arguments.for_file)}", share=arguments.for_share)
    tokenizer = tokenizer_for(text)
    return tokenizer, _with_held_out(_cached_store(text, tokenizer, fingerprint_of(tokenizer)), arguments, tokenizer)


def _cached_store(text: Text, tokenizer: Any, made_with: str) -> TokenStore:
    folder = cache_folder() / "corpora" / hashlib.sha256(f"{text.fingerprint} {made_with}".encode()).hexdigest()[:16]
    return prepare_store(text=text, tokenizer=tokenizer, tokenizer_fingerprint=made_with, output_dir=folder)


def _with_held_out(store: TokenStore, arguments: CorpusArguments, tokenizer: Any) -> TokenStore:
    """The store before the documents of --eval_data, if there are any."""
    if not arguments.eval_data:
        return store
    without: dict[str, Any] = {"corpus": None, "for_file": [], "for_share": None, "for_task": None}
    text = open_text(replace(arguments, data=arguments.eval_data, **without))
    held_out = _cached_store(text, tokenizer, store.tokenizer_fingerprint)
    if shared := store.shared_documents(held_out):
        say_once(
            f"warning: {shared:,} of the {held_out.num_documents:,} documents of --eval_data are in the training text "
            "too: what is measured on them says nothing about new text"
        )
    return store.before(held_out)


class _Builder:
    """One process that builds a store."""

    def __init__(self, output_dir: Path, options: BuildOptions, text: Text, *, by_sentence: bool) -> None:
        self.output_dir = output_dir
        self.options = options
        self.text = text
        # 0.0 was an option once: without it, stores that are there would be built again.
        about = json.dumps([FORMAT_VERSION, *vars(options).values(), 0.0, VERSIONS[by_sentence]])
        self.fingerprint = hashlib.sha256(about.encode()).hexdigest()
        self.folder = output_dir.with_name(f".{output_dir.name}.building-{self.fingerprint[:16]}")
        self.pieces, self.done = self.folder / "pieces", self.folder / "pieces.json"
        weights: Sequence[float | None] = text.weights or [None] * len(text.names)
        self.sources = [{"name": name, "weight": it} for name, it in zip(text.names, weights, strict=True)]

    def build(self, tokenizer: Any, num_workers: int) -> TokenStore:
        if store := self._existing():
            return store
        self.output_dir.parent.mkdir(parents=True, exist_ok=True)
        with self._locked():
            if store := self._existing():  # another builder was first
                return store
            self._make_folder(tokenizer)
            try:
                self._make_pieces(num_workers)
                return self._assemble()
            except InputError:
                # Text that cannot be used: when it is mended it is another text, and other pieces.
                shutil.rmtree(self.folder, ignore_errors=True)
                raise

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """One builder at a time; the lock file goes with its last holder."""
        path = self.output_dir.with_name(f".{self.output_dir.name}.lock")
        path.touch()  # filelock would wait for ever in a folder that takes no files
        waiting = f"another process is building {self.output_dir}; waiting for it"
        with locked(path, waiting=waiting):
            try:
                yield
            finally:
                with suppress(PermissionError):  # Windows keeps a file that is open
                    path.unlink(missing_ok=True)  # filelock sees that a waiter holds a lock that is gone

    def _existing(self) -> TokenStore | None:
        """The store at its place if it is the one wanted; None when it may be written."""
        place = self.output_dir
        if not place.exists() or (place.is_dir() and not any(place.iterdir())):
            if place.is_mount():
                raise InputError(f"{place} is where a disk is mounted; name a folder in it: {place / 'corpus'}")
            return None
        if not (place / MANIFEST).is_file():
            raise InputError(f"{place} is there and is not a token store; choose another --output_dir.")
        try:
            store = open_store(place)
        except InputError:
            return None  # damaged, or of an older version: it is built again
        if store.fingerprint != self.fingerprint:
            return None
        if store.source_names != self.text.names or store.source_weights != self.text.weights:
            sources = [old | new for old, new in zip(store.manifest["sources"], self.sources, strict=True)]
            check_weighted(sources)
            write_manifest(place, store.manifest | {"sources": sources})
            store = open_store(place)
        return store

    def _make_folder(self, tokenizer: Any) -> None:
        """Make the folder of this build, and remove those of others, which were killed: the lock is held here."""
        for other in self.output_dir.parent.glob(f".{glob.escape(self.output_dir.name)}.building-*"):
            if other != self.folder:
                shutil.rmtree(other, ignore_errors=True)
        self.pieces.mkdir(parents=True, exist_ok=True)
        write_text(self.folder / TOKENIZER, tokenizer.backend_tokenizer.to_str(), hint=KEPT)
        write_text(self.folder / BUILD, json.dumps(asdict(self.options), indent=2), hint=KEPT)

    def _make_pieces(self, num_workers: int) -> None:
        """Make the pieces that are not there yet."""
        if ready := self._ready():
            print(f"{len(ready)} of {len(ready)} pieces were ready and are kept", file=sys.stderr)
            return
        text = self.text
        count = made = 0

        def missing_pieces() -> Iterator[tuple[TextPiece, Path]]:
            nonlocal count, made
            for piece in _cut_pieces(text.documents()):
                path = self._piece(piece.number)
                there = Piece.open(path)
                count += 1
                if there is None or there.text_checksum != piece.checksum:
                    made += 1
                    yield piece, path
                bar.update(text.bytes_read - bar.n)

        try:
            with progress_bar(total=text.total_bytes, doing="tokenizing", unit="B", delay=0) as bar:
                make_pieces(missing_pieces(), folder=self.folder, num_workers=num_workers)
        finally:
            for half in self.pieces.glob("*.tmp"):  # of workers that were stopped while they wrote
                half.unlink(missing_ok=True)
        sync(self.pieces)
        if made < count:
            print(f"{count - made} of {count} pieces were ready and are kept", file=sys.stderr)
        done = {"pieces": count, "dropped": text.dropped, "bad_records": text.bad_records}
        write_text(self.done, json.dumps(done), hint=KEPT)

    def _piece(self, number: int) -> Path:
        return self.pieces / f"{number:08}{SUFFIX}"

    def _ready(self) -> list[Piece]:
        """All pieces; none where they are not all there."""
        try:
            count = json.loads(self.done.read_bytes())["pieces"]
        except (OSError, ValueError):
            return []
        whole = [piece for number in range(count) if (piece := Piece.open(self._piece(number)))]
        return whole if len(whole) == count else []

    def _assemble(self) -> TokenStore:
        """Put the pieces together and the store in its place."""
        store, done = self.folder / "store", json.loads(self.done.read_bytes())
        try:
            manifest = assemble(self._ready(), self.options, self.sources, store=store)
        except BaseException:
            shutil.rmtree(store, ignore_errors=True)  # room for the pieces
            raise
        manifest["dropped"] = dict(sorted(done["dropped"].items())) | manifest["dropped"]
        manifest["bad_records"] = done["bad_records"]
        fingerprints = {"fingerprint": self.fingerprint, "tokenizer_fingerprint": self.options.tokenizer}
        write_manifest(store, manifest | fingerprints)
        if self.output_dir.exists():
            # Whoever has the old store open keeps it: its files live as long as they are mapped.
            shutil.rmtree(self.folder / "replaced", ignore_errors=True)
            os.replace(self.output_dir, self.folder / "replaced")
        os.replace(store, self.output_dir)
        sync(self.output_dir.parent)
        shutil.rmtree(self.folder, ignore_errors=True)
        return open_store(self.output_dir)


def _cut_pieces(documents: Iterable[Document]) -> Iterator[TextPiece]:
    """Pieces of PIECE_BYTES and what the last document has more; each of one source."""
    texts: list[bytes] = []
    number = size = source = 0
    place = ""
    for document in documents:
        if texts and (size >= PIECE_BYTES or document.source != source):
            yield TextPiece(number=number, source=source, place=place, texts=texts)
            number, texts, size = number + 1, [], 0
        if not texts:
            source, place = document.source, document.place
        texts.append(document.text.encode())
        size += len(texts[-1]) + DOCUMENT_OVERHEAD
    if texts:
        yield TextPiece(number=number, source=source, place=place, texts=texts)


def _place(output_dir: Path | str) -> Path:
    """Where the store goes: what a link points to, for a folder cannot be renamed into the place of a link."""
    place = Path(output_dir)
    if not str(output_dir) or place.name in ("", ".."):
        raise InputError(f"--output_dir {str(output_dir)!r} has no name of its own; name a folder: runs/corpus")
    return place.resolve() if place.is_symlink() else place


def assemble(
    pieces: list[Piece], options: BuildOptions, sources: list[dict[str, Any]], *, store: Path
) -> dict[str, Any]:
    """Write the files of a store, and return its manifest without what readers left out and without fingerprints.

    Raises InputError: no document is left, or none of a source that has a weight; StorageError: a piece was damaged on
    the disk.
    """
    shutil.rmtree(store, ignore_errors=True)
    folder = store / FOLDER
    folder.mkdir(parents=True)
    again = find_equal(piece.load("hashes")[0] for piece in pieces)
    dropped = {"duplicates": int(again.sum())} if again.any() else {}
    total = sum(piece.num_tokens for piece in pieces) * options.dtype.itemsize
    counts = np.zeros((len(sources), len(COUNTS)), dtype=np.int64)
    first = 0
    with progress_bar(total=total, doing="joining", unit="B", delay=0) as bar, ExitStack() as stack:
        tokens_file, *offset_files = [stack.enter_context((folder / name).open("wb")) for name in FILES]
        for file in offset_files:
            _write_header(file, 0)
            file.write(bytes(8))
        for piece in pieces:
            kept = ~again[first : first + piece.num_documents]
            first += piece.num_documents
            tokens, lengths, sentences, sizes = _load(piece, kept, dropped)
            tokens_file.write(tokens.tobytes())
            _, num_sentences, num_tokens, _ = counts.sum(axis=0)
            for file, start, each in zip(offset_files, (num_tokens, num_sentences), (lengths, sentences), strict=True):
                file.write((start + np.cumsum(each, dtype=np.int64)).tobytes())
            counts[piece.source] += len(sentences), len(lengths), len(tokens), sizes.sum(dtype=np.int64)
            bar.update(piece.num_tokens * options.dtype.itemsize)
        num_documents, num_sentences, *_ = counts.sum(axis=0).tolist()
        for file, count in zip(offset_files, (num_sentences, num_documents), strict=True):
            _write_header(file, count + 1)
    described = [source | _named(count) for source, count in zip(sources, counts, strict=True)]
    check_weighted(described)
    if not num_documents:
        raise InputError("there is no text to tokenize: every document is empty. Check --data.")
    files = [folder / name for name in FILES]
    for path in (*files, folder):
        sync(path)
    about_files = {path.name: {"bytes": path.stat().st_size, "sha256": sha256(path)} for path in files}
    in_all = _named(counts.sum(axis=0))
    return {
        "format_version": FORMAT_VERSION,
        "dtype": options.dtype.name,
        "vocab_size": options.vocab_size,
        **in_all,
        "language": options.language,
        "dropped": dropped,
        "bad_records": [],
        "sources": described,
        "shards": [{"name": FOLDER, **in_all, "files": about_files}],
    }


def check_weighted(sources: list[dict[str, Any]]) -> None:
    """Raises InputError if a source of a manifest has a weight and no document."""
    for source in sources:
        if source["weight"] and not source["num_documents"]:
            raise InputError(
                f"--data: no document of {shown(source['name'])} is left: all of them stand in earlier sources too. "
                "Leave it out, or leave out the weights."
            )


def write_manifest(folder: Path, manifest: dict[str, Any]) -> None:
    """Write manifest.json so that it is there whole, or as it was before."""
    text = json.dumps(manifest, indent=2, ensure_ascii=False) + "\n"
    # A file name that is not UTF-8 has halves of surrogate pairs, whose escapes here are those of JSON.
    write_text(folder / MANIFEST, text.encode(errors="backslashreplace").decode(), hint=KEPT)
    sync(folder)


def _named(counts: Iterable[int]) -> dict[str, int]:
    return dict(zip(COUNTS, map(int, counts), strict=True))


def _load(piece: Piece, kept: np.ndarray, dropped: dict[str, int]) -> list[np.ndarray]:
    """Tokens, sentence lengths, sentence counts and bytes of the documents of a piece that stay."""
    tokens, lengths, sentences, sizes = piece.load("tokens", "sentence_lengths", "sentence_counts", "document_bytes")
    if empty := int((kept & (sentences == 0)).sum()):
        dropped["without tokens"] = dropped.get("without tokens", 0) + empty
    kept = kept & (sentences > 0)
    if kept.all():
        return [tokens, lengths, sentences, sizes]
    of_sentences = np.repeat(kept, sentences)
    return [tokens[np.repeat(of_sentences, lengths)], lengths[of_sentences], sentences[kept], sizes[kept]]


def _write_header(file: Any, count: int) -> None:
    """Write the header of a .npy file of so many numbers; that of a larger one has the same size."""
    file.seek(0)
    np.lib.format.write_array_header_1_0(file, {"descr": "<i8", "fortran_order": False, "shape": (count,)})


def find_equal(hashes: Iterable[np.ndarray]) -> np.ndarray:
    """Documents whose hash (16 bytes, dtype V16, in parts) an earlier one has: bool [documents]."""
    halves = np.concatenate([np.zeros((0, 2), dtype="<u8"), *(part.view("<u8").reshape(-1, 2) for part in hashes)])
    order = np.lexsort(halves.T)  # stable: the first of the corpus is the first of its group
    found = np.zeros(len(halves), dtype=bool)
    found[order[1:]] = (halves[order[1:]] == halves[order[:-1]]).all(axis=1)
    return found
