"""Building a store: the same bytes whatever happens on the way, and nothing half-built under its name."""

import errno
import hashlib
import json
import multiprocessing
import os
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import processes
import psutil
import pytest
from examples import document_tokens, sentence_tokens
from filelock import FileLock
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from lacuna.common.errors import InputError, StorageError, WorkerError
from lacuna.corpus import (
    StoreArguments,
    TextArguments,
    TokenStore,
    open_store,
    open_text,
    prepare_store,
    split_sentences,
)
from lacuna.corpus.read.text import Text
from lacuna.corpus.store import build as build_module
from lacuna.corpus.store import encoding as encoding_module
from lacuna.tokenization import tokenizer_fingerprint, train_bpe

REPOSITORY = Path(__file__).resolve().parents[2]
DOCUMENTS = [
    "The cat sat. The dog ran!\n\nA new paragraph.",
    "One sentence only",
    "Special names in text are text: [MASK] [SEP]. Yes.",
    "Ünïcödé 你好。世界！ 👩‍👧",
    "The last one. Really.\n",
]


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerFast:
    return train_bpe(documents=["The cat sat. The dog ran! A new one. " * 20], vocab_size=280)


@pytest.fixture
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build_module, "PIECE_BYTES", 300)


def write_files(folder: Path, count: int = 12) -> list[str]:
    """Text files of many different lines, and one that all have."""
    folder.mkdir(exist_ok=True)
    for number in range(count):
        lines = [f"Line {line} of {number}. {'The cat sat. ' * (line % 5)}It ran." for line in range(8 + number % 3)]
        (folder / f"{number:02}.txt").write_text("\n".join([*lines, "All have this one."]))
    return [str(folder)]


def lines_of(paths: list[str]) -> Text:
    return open_text(TextArguments(data=paths, document_boundary="line"))


def prepare(text: Text, tokenizer: Any, output_dir: Path, **options: Any) -> TokenStore:
    return prepare_store(
        text=text,
        tokenizer=tokenizer,
        tokenizer_fingerprint="t1",
        output_dir=output_dir,
        **({"num_workers": 0} | options),
    )


def contents(folder: Path) -> dict[str, str]:
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def check_against_documents(store: TokenStore, tokenizer: PreTrainedTokenizerFast, documents: list[str]) -> None:
    """Every document and sentence, encoded one by one with the tokenizer's own call."""
    sentence = 0
    assert store.num_documents == len(documents)
    for index, document in enumerate(documents):
        expected = tokenizer(document, add_special_tokens=False, split_special_tokens=True)["input_ids"]
        assert document_tokens(store, index).tolist() == expected
        for text in split_sentences(document):
            assert tokenizer.decode(sentence_tokens(store, sentence)) == text
            sentence += 1
        assert store.document_offsets[index + 1] == sentence
    assert store.num_sentences == sentence
    assert store.num_tokens == store.sentence_offsets[-1]
    assert store.num_bytes == sum(len(document.encode()) for document in documents)


def write_rows(file: Path, documents: list[str]) -> Text:
    file.write_text("".join(json.dumps({"text": document}) + "\n" for document in documents))
    return open_text(TextArguments(data=[str(file)]))


# What a store holds


@pytest.mark.parametrize("batch_characters", [1, 40, 1 << 18])
def test_tokens_and_edges(
    tokenizer: PreTrainedTokenizerFast, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, batch_characters: int
) -> None:
    monkeypatch.setattr(encoding_module, "BATCH_CHARACTERS", batch_characters)
    text = write_rows(tmp_path / "rows.jsonl", [DOCUMENTS[0], "   ", "", *DOCUMENTS[1:]])
    store = prepare(text, tokenizer, tmp_path / "store")
    check_against_documents(store, tokenizer, DOCUMENTS)
    assert store.tokens.dtype == np.uint16 and not (store.tokens[:] < 5).any()
    assert store.vocab_size == len(tokenizer)
    assert (store.tokenizer_fingerprint, store.path) == ("t1", tmp_path / "store")
    assert "5 documents" in store.summary() and f"{store.num_tokens:,} tokens" in store.summary()
    assert store.manifest["dropped"] == {"empty": 2}
    assert sorted(os.listdir(tmp_path)) == ["rows.jsonl", "store"]


def test_a_novel_comes_back_byte_for_byte(shared_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "part.txt"
    file.write_bytes((shared_data / "novels" / "Woolf_Lighthouse_1927.txt").read_bytes()[:200_000])
    text = open_text(TextArguments(data=[str(file)]))
    documents = list(text.texts())
    tokenizer = train_bpe(documents=documents, vocab_size=2000)
    store = prepare_store(
        text=text,
        tokenizer=tokenizer,
        tokenizer_fingerprint=tokenizer_fingerprint(tokenizer),
        output_dir=tmp_path / "store",
    )
    check_against_documents(store, tokenizer, documents)
    assert tokenizer.decode(store.tokens[:]) == file.read_text(encoding="utf-8-sig").replace("\r\n", "\n")
    assert store.num_bytes / store.num_tokens > 3
    # Cut into sections before it is cut into sentences, a document keeps its tokens, and hardly a sentence changes.
    monkeypatch.setattr(encoding_module, "SECTION_BYTES", 3000)
    cut = prepare(text, tokenizer, tmp_path / "cut")
    assert cut.tokens[:].tolist() == store.tokens[:].tolist()
    assert abs(cut.num_sentences - store.num_sentences) <= 0.002 * store.num_sentences


@pytest.mark.parametrize(("size", "dtype"), [(100, np.uint8), (256, np.uint8), (257, np.uint16), (65537, np.uint32)])
def test_the_smallest_integers_that_hold_the_vocabulary(tmp_path: Path, size: int, dtype: type) -> None:
    vocabulary = {"[UNK]": 0, **{f"w{number}": number for number in range(1, size)}}
    backend = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    words = PreTrainedTokenizerFast(tokenizer_object=backend, unk_token="[UNK]")
    store = prepare(write_rows(tmp_path / "rows.jsonl", [f"w{size - 1} w1", "\x01"]), words, tmp_path / "store")
    assert store.tokens.dtype == dtype
    assert store.tokens[:].tolist()[:2] == [size - 1, 1]


def test_documents_of_which_the_tokenizer_makes_nothing_are_counted(tmp_path: Path) -> None:
    words = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.WordLevel({"a": 0}, unk_token="b")))
    words.backend_tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    words = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.BPE({"a": 0, "b": 1}, [])))
    store = prepare(write_rows(tmp_path / "rows.jsonl", ["ab", "xyz", "ba"]), words, tmp_path / "store")
    assert store.manifest["dropped"] == {"without tokens": 1}
    assert [document_tokens(store, 0).tolist(), document_tokens(store, 1).tolist()] == [[0, 1], [1, 0]]
    with pytest.raises(InputError, match="no text to tokenize"):
        prepare(write_rows(tmp_path / "rows.jsonl", ["xyz"]), words, tmp_path / "other")
    assert sorted(os.listdir(tmp_path)) == ["rows.jsonl", "store"]


# The same bytes whatever happens on the way


@pytest.mark.usefixtures("small_pieces")
def test_the_bytes_depend_on_neither_workers_nor_pieces(
    tokenizer: PreTrainedTokenizerFast, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = write_files(tmp_path / "text")
    expected = contents(prepare(lines_of(data), tokenizer, tmp_path / "0").path)
    assert len(expected) == 4
    for workers in (1, 2):
        store = prepare(lines_of(data), tokenizer, tmp_path / f"w{workers}", num_workers=workers)
        assert contents(store.path) == expected
    monkeypatch.setattr(build_module, "PIECE_BYTES", 10_000)
    assert contents(prepare(lines_of(data), tokenizer, tmp_path / "large").path) == expected
    assert sorted(os.listdir(tmp_path)) == ["0", "large", "text", "w1", "w2"]


class Driver:
    """Starts builds as programs of their own, with files of one folder."""

    script = "tests/corpus/store_builder.py"

    def __init__(self, tokenizer: PreTrainedTokenizerFast, folder: Path) -> None:
        self.folder = folder
        tokenizer.backend_tokenizer.save(str(folder / "tokenizer.json"))

    def words(self, data: str, output_dir: str, *more: int) -> list[object]:
        return [*(self.folder / name for name in ("tokenizer.json", data, output_dir)), *more]

    def start(self, *arguments: Any) -> processes.Running:
        return processes.start(self.script, *self.words(*arguments))


@pytest.fixture
def driver(tokenizer: PreTrainedTokenizerFast, tmp_path: Path) -> Driver:
    return Driver(tokenizer, tmp_path)


def pieces_in(folder: Path, name: str = "store") -> int:
    return len(list(folder.glob(f".{name}.building-*/*/*.piece")))


@pytest.mark.usefixtures("small_pieces")
def test_a_kill_at_the_last_step_leaves_the_bytes_too(
    tokenizer: PreTrainedTokenizerFast, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every call that names or forces something on the disk is the last one in turn."""
    data = write_files(tmp_path / "text", count=1)
    expected = contents(prepare(lines_of(data), tokenizer, tmp_path / "expected").path)
    (tmp_path / "other.txt").write_text("Something else.")
    other = lines_of([str(tmp_path / "other.txt")])
    old = contents(prepare(other, tokenizer, tmp_path / "store").path)

    class Killed(BaseException):
        pass

    rename, step = os.replace, 0
    while True:
        calls = 0

        def dies(source: Any, target: Any, step: int = step) -> None:
            nonlocal calls
            if calls == step:
                raise Killed
            calls += 1
            rename(source, target)

        with monkeypatch.context() as patch:
            patch.setattr(os, "replace", dies)
            patch.setattr(build_module.shutil, "rmtree", lambda *_, **__: None)  # nothing tidies up after a kill
            try:
                prepare(lines_of(data), tokenizer, tmp_path / "store")
            except Killed:
                pass
            else:
                break
        there = contents(tmp_path / "store") if (tmp_path / "store").exists() else None
        assert there in (None, old, expected)
        assert contents(prepare(lines_of(data), tokenizer, tmp_path / "store").path) == expected
        prepare(other, tokenizer, tmp_path / "store")
        step += 1
    assert step >= 8


@pytest.mark.usefixtures("small_pieces")
def test_damaged_and_foreign_pieces_are_made_anew(
    tokenizer: PreTrainedTokenizerFast, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = write_files(tmp_path / "text")
    expected = contents(prepare(lines_of(data), tokenizer, tmp_path / "expected").path)

    def interrupt(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(build_module, "assemble", interrupt)
        with pytest.raises(KeyboardInterrupt):
            prepare(lines_of(data), tokenizer, tmp_path / "store")
    pieces = sorted(tmp_path.glob(".store.building-*/*/*.piece"))
    assert len(pieces) > 10
    pieces[0].write_bytes(pieces[0].read_bytes()[:-1])
    pieces[1].unlink()
    pieces[2].write_bytes(b"")
    pieces[3].write_bytes(pieces[4].read_bytes())  # whole, and of another text
    (pieces[0].parent / ".00000003.piece.77.tmp").write_bytes(b"half")
    (pieces[0].parent.parent / "pieces.json").unlink()
    assert contents(prepare(lines_of(data), tokenizer, tmp_path / "store").path) == expected

    with monkeypatch.context() as patch:
        patch.setattr(build_module, "assemble", interrupt)
        with pytest.raises(KeyboardInterrupt):
            prepare(lines_of(data), tokenizer, tmp_path / "again")
    piece = sorted(tmp_path.glob(".again.building-*/*/*.piece"))[5]
    flipped = bytearray(piece.read_bytes())
    flipped[len(flipped) // 2] ^= 1
    piece.write_bytes(flipped)
    with pytest.raises(StorageError, match="was damaged on the disk"):
        prepare(lines_of(data), tokenizer, tmp_path / "again")
    assert contents(prepare(lines_of(data), tokenizer, tmp_path / "again").path) == expected


# Several at once, and what is there already


def test_the_same_store_is_reused_and_another_one_replaced(
    tokenizer: PreTrainedTokenizerFast, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "store"
    text = write_rows(tmp_path / "rows.jsonl", DOCUMENTS)
    first = prepare(text, tokenizer, folder)
    inode = (folder / "00000").stat().st_ino

    def never(*_: Any, **__: Any) -> Iterator[Any]:
        raise AssertionError("a store that is there must not be built again")

    with monkeypatch.context() as patch:
        patch.setattr(Text, "documents", never)
        assert prepare(text, tokenizer, folder).num_tokens == first.num_tokens
    with monkeypatch.context() as patch:
        patch.setattr(build_module, "VERSIONS", (2, 3))
        assert prepare(text, tokenizer, folder).fingerprint != first.fingerprint
        assert (folder / "00000").stat().st_ino != inode
    other = write_rows(tmp_path / "rows.jsonl", ["Something else."])
    assert prepare(other, tokenizer, folder).num_documents == open_store(folder).num_documents == 1
    (folder / "00000" / "tokens.bin").write_bytes(b"")
    assert prepare(other, tokenizer, folder).num_documents == 1
    assert sorted(os.listdir(tmp_path)) == ["rows.jsonl", "store"]


def test_sentences_end_as_the_language_has_it(tokenizer: PreTrainedTokenizerFast, tmp_path: Path) -> None:
    """And what was built for one is not taken for another's."""
    (tmp_path / "a.txt").write_text("Am 3. Mai kam Dr. Kant. Er ging.")
    for language, count in (("en", 3), ("de", 2)):
        text = open_text(TextArguments(data=[str(tmp_path / "a.txt")], language=language))
        store = prepare(text, tokenizer, tmp_path / "store")
        assert (store.num_sentences, store.manifest["language"]) == (count, language)


def test_what_an_older_build_left_is_removed_and_never_opened(
    tokenizer: PreTrainedTokenizerFast, tmp_path: Path
) -> None:
    for name in (".store.building-abc", ".store.building-0123456789abcdef"):
        (tmp_path / name / "store" / "00000").mkdir(parents=True)
        (tmp_path / name / "store" / "00000" / "tokens.bin").write_bytes(b"\0\0")
    (tmp_path / ".store.lock").touch()
    with pytest.raises(InputError, match="no such folder"):
        open_store(tmp_path / "store")
    prepare(write_rows(tmp_path / "rows.jsonl", DOCUMENTS), tokenizer, tmp_path / "store")
    assert sorted(os.listdir(tmp_path)) == ["rows.jsonl", "store"]


def test_a_folder_that_is_no_store_is_not_touched(tokenizer: PreTrainedTokenizerFast, tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("years of work")
    with pytest.raises(InputError, match="not a token store"):
        prepare(write_rows(tmp_path / "rows.jsonl", DOCUMENTS), tokenizer, tmp_path)
    assert (tmp_path / "thesis.txt").read_text() == "years of work"


@pytest.mark.skipif(sys.platform != "linux", reason="/proc is a folder that takes no files, whoever asks")
def test_a_folder_that_takes_no_files_is_an_error_and_no_endless_wait(
    tokenizer: PreTrainedTokenizerFast, tmp_path: Path
) -> None:
    with pytest.raises(StorageError, match=r"cannot write /proc/store: .*choose another --output_dir"):
        prepare(write_rows(tmp_path / "rows.jsonl", DOCUMENTS), tokenizer, Path("/proc/store"))


def test_builders_at_once_build_once(tokenizer: PreTrainedTokenizerFast, tmp_path: Path) -> None:
    documents = [f"Document {number}. It has text." for number in range(200)]
    write_rows(tmp_path / "rows.jsonl", documents)

    def one(_: int) -> TokenStore:
        return prepare(open_text(TextArguments(data=[str(tmp_path / "rows.jsonl")])), tokenizer, tmp_path / "store")

    with ThreadPoolExecutor(4) as pool:
        stores = list(pool.map(one, range(4)))
    for store in stores:
        check_against_documents(store, tokenizer, documents)
    assert sorted(os.listdir(tmp_path)) == ["rows.jsonl", "store"]


def test_the_second_builder_says_that_it_waits(
    tokenizer: PreTrainedTokenizerFast, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: Any
) -> None:
    monkeypatch.setattr(build_module, "locked", partial(build_module.locked, silent_seconds=0.05))
    text = write_rows(tmp_path / "rows.jsonl", DOCUMENTS)
    with ThreadPoolExecutor(1) as pool:
        with FileLock(tmp_path / ".store.lock"):
            waiting = pool.submit(prepare, text, tokenizer, tmp_path / "store")
            while "waiting" not in capfd.readouterr().err:
                time.sleep(0.02)
            assert not waiting.done()
        assert waiting.result().num_documents == 5


def test_three_processes_at_once_build_once(
    tokenizer: PreTrainedTokenizerFast, driver: Driver, tmp_path: Path
) -> None:
    expected = prepare(lines_of(write_files(tmp_path / "text", count=20)), tokenizer, tmp_path / "expected").path
    ends = [each.wait() for each in [driver.start("text", "store", 500, 0) for _ in range(3)]]
    messages = "".join(end.stderr for end in ends)
    assert [end.returncode for end in ends] == [0] * 3, messages
    assert "were ready" not in messages  # two opened what the first had built
    assert contents(tmp_path / "store") == contents(expected)
    assert not list(tmp_path.glob(".store*"))


def test_impossible_options_are_refused() -> None:
    with pytest.raises(InputError, match="--num_workers must not be negative, got -1") as caught:
        StoreArguments(num_workers=-1)
    assert caught.value.exit_code == 2


# What goes wrong


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.usefixtures("small_pieces")
def test_text_that_cannot_be_used_leaves_nothing(
    tokenizer: PreTrainedTokenizerFast, tmp_path: Path, num_workers: int
) -> None:
    text = write_rows(tmp_path / "rows.jsonl", ["Some text. " * 50] * 6)
    with (tmp_path / "rows.jsonl").open("a") as file:
        file.write("{broken")
    text = open_text(TextArguments(data=[str(tmp_path / "rows.jsonl")]))
    with pytest.raises(InputError, match=r"rows\.jsonl:7: not valid JSON"):
        prepare(text, tokenizer, tmp_path / "store", num_workers=num_workers)
    assert os.listdir(tmp_path) == ["rows.jsonl"]


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_full_disk_is_exit_code_5_and_what_is_ready_is_kept(
    tokenizer: PreTrainedTokenizerFast, driver: Driver, tmp_path: Path, num_workers: int
) -> None:
    """A limit on the size of files stands for the full disk: the operating system refuses to write on."""
    data = write_files(tmp_path / "text")
    (tmp_path / "text" / "06.txt").write_text("A long line. " * 8000)
    done = driver.start("text", "store", 300, num_workers, 30_000).wait()
    assert done.returncode == 5, done.stderr
    assert "File too large" in done.stderr and "What is ready is kept" in done.stderr
    assert not (tmp_path / "store").exists() and pieces_in(tmp_path) > 5
    assert not list(tmp_path.glob(".store.building-*/*/*.tmp"))
    done = driver.start("text", "store", 300, 0).wait()
    assert done.returncode == 0 and "pieces were ready and are kept" in done.stderr
    assert contents(tmp_path / "store") == contents(prepare(lines_of(data), tokenizer, tmp_path / "expected").path)


def test_a_small_disk_that_runs_full(driver: Driver, tmp_path: Path) -> None:
    """A real one, in memory, where the system lets a test mount it."""
    (tmp_path / "disk").mkdir()
    (tmp_path / "text").mkdir()
    random = np.random.default_rng(0)
    for number in range(8):
        words = random.integers(0, 10**6, size=(400, 12))
        (tmp_path / "text" / f"{number}.txt").write_text("\n".join(" ".join(map(str, row)) for row in words))
    words = shlex.join(map(str, [sys.executable, driver.script, *driver.words("text", "disk/store", 20_000, 0)]))
    disk = shlex.quote(f"{tmp_path}/disk")
    script = f"mount -t tmpfs -o size=400k tmpfs {disk} || exit 77; {words}; code=$?; ls -a {disk}; exit $code"
    namespace = ["unshare", "--mount", "--map-root-user"]
    try:
        done = subprocess.run(
            [*namespace, "sh", "-c", script], cwd=REPOSITORY, capture_output=True, text=True, timeout=60
        )
    except FileNotFoundError:
        pytest.skip("no unshare here")
    if done.returncode in (1, 77) and "Error" not in done.stderr:
        pytest.skip(f"this system lets no test mount a disk: {done.stderr[:100]}")
    assert done.returncode == 5, done.stderr
    assert "No space left" in done.stderr
    assert "store" not in done.stdout.split()


@pytest.mark.parametrize(
    ("number", "message"),
    [(errno.ENOSPC, "No space left"), (errno.EDQUOT, "quota exceeded"), (errno.EROFS, "Read-only")],
)
@pytest.mark.usefixtures("small_pieces")
def test_each_failure_to_write_says_which(
    tokenizer: PreTrainedTokenizerFast, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, message: str
) -> None:
    """Whichever call fails: no call is the last one that may."""
    text = lines_of(write_files(tmp_path / "text", count=2))
    expected = contents(prepare(text, tokenizer, tmp_path / "expected").path)
    fsync, step = os.fsync, 0
    while True:
        calls = 0

        def fails(descriptor: int, step: int = step) -> None:
            nonlocal calls
            if calls == step:
                raise OSError(number, os.strerror(number))
            calls += 1
            fsync(descriptor)

        with monkeypatch.context() as patch:
            patch.setattr(os, "fsync", fails)
            try:
                prepare(text, tokenizer, tmp_path / "store")
                break
            except StorageError as error:
                assert message in str(error) and error.exit_code == 5
        assert not (tmp_path / "store").exists() or contents(tmp_path / "store") == expected
        step += 2
    assert step >= 8 and contents(tmp_path / "store") == expected


@pytest.mark.usefixtures("small_pieces")
def test_a_worker_that_is_killed_is_an_error_and_no_endless_wait(
    tokenizer: PreTrainedTokenizerFast, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = write_files(tmp_path / "text", count=30)
    documents = Text.documents

    def killing(self: Text) -> Iterator[Any]:
        for number, document in enumerate(documents(self)):
            if number == 60:
                workers = [each for each in psutil.Process().children() if "spawn_main" in "".join(each.cmdline())]
                assert len(workers) == 2
                workers.pop().kill()
            yield document

    with monkeypatch.context() as patch:
        patch.setattr(Text, "documents", killing)
        with pytest.raises(WorkerError, match=r"was killed .*, perhaps because memory ran out") as it:
            prepare(lines_of(data), tokenizer, tmp_path / "store", num_workers=2)
    assert it.value.exit_code == 1 and "the text from" in str(it.value)
    assert not multiprocessing.active_children()
    assert pieces_in(tmp_path) > 3 and not (tmp_path / "store").exists()
    expected = contents(prepare(lines_of(data), tokenizer, tmp_path / "expected").path)
    assert contents(prepare(lines_of(data), tokenizer, tmp_path / "store").path) == expected


@pytest.mark.usefixtures("small_pieces")
def test_a_fault_in_a_worker_arrives_with_its_trace(
    tokenizer: PreTrainedTokenizerFast, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(build_module, "asdict", lambda options: {"text": 1})
    with pytest.raises(WorkerError, match=r"(?s)\d\d\.txt:\d+ on failed:.*Traceback.*TypeError"):
        prepare(lines_of(write_files(tmp_path / "text")), tokenizer, tmp_path / "store", num_workers=2)


# Memory

MEMORY = f"""
import sys
sys.path.insert(0, {str(REPOSITORY)!r})
from tokenizers import Tokenizer
from lacuna.corpus import prepare_store
from lacuna.corpus.store import build
from lacuna.corpus.read.text import Document

class Fast:
    backend_tokenizer = Tokenizer.from_file(sys.argv[1])
    def __len__(self):
        return self.backend_tokenizer.get_vocab_size()

class Endless:
    names, weights, language, dropped, bad_records, bytes_read = ["x"], None, "en", {{}}, [], 0
    fingerprint, total_bytes = "f", None
    def documents(self):
        body = "The cat sat on the mat, and the dog ran after it. " * 20
        for number in range(int(sys.argv[3]) // 1000):
            yield Document(f"Document {{number}}. {{body}}", 0, "x")

build.PIECE_BYTES = int(sys.argv[4])
prepare_store(text=Endless(), tokenizer=Fast(), tokenizer_fingerprint="t", output_dir=sys.argv[2], num_workers=2)
"""


def peak_memory(folder: Path, tokenizer: PreTrainedTokenizerFast, size: int, piece_bytes: int) -> int:
    """Largest sum of resident bytes of a build of `size` bytes of text and of all its processes."""
    tokenizer.backend_tokenizer.save(str(folder / "tokenizer.json"))
    arguments = [str(folder / "tokenizer.json"), str(folder / f"store{size}"), str(size), str(piece_bytes)]
    peak = 0
    with subprocess.Popen([sys.executable, "-c", MEMORY, *arguments]) as process:
        here = psutil.Process(process.pid)
        while process.poll() is None:
            total = 0
            for each in [here, *here.children(recursive=True)]:
                try:
                    total += each.memory_info().rss
                except psutil.Error:
                    continue
            peak = max(peak, total)
            time.sleep(0.02)
    assert process.returncode == 0
    assert open_store(folder / f"store{size}").num_bytes > size
    return peak


@pytest.mark.slow
def test_memory_does_not_grow_with_the_corpus(tokenizer: PreTrainedTokenizerFast, tmp_path: Path) -> None:
    small = peak_memory(tmp_path, tokenizer, 2 << 20, 1 << 17)
    large = peak_memory(tmp_path, tokenizer, 16 << 20, 1 << 17)
    assert large - small < 14 << 20, (small, large)


@pytest.mark.slow
def test_a_large_corpus_takes_less_than_a_gibibyte(tokenizer: PreTrainedTokenizerFast, tmp_path: Path) -> None:
    assert peak_memory(tmp_path, tokenizer, 2 << 30, build_module.PIECE_BYTES) < 1 << 30
