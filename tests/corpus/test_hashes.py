"""Hashes of files, and what is remembered of them."""

import hashlib
import json
import os
import threading
from pathlib import Path

import pytest

from lacuna.common.errors import InputError
from lacuna.corpus.read import text as hashes
from lacuna.corpus.read.text import hash_files


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("LACUNA_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(hashes, "SETTLED_SECONDS", -1)
    return tmp_path / "cache" / "hashes.json"


def big(path: Path, text: str = "a") -> Path:
    path.write_text(text * hashes.HASH_KEPT_BYTES)
    return path


def sha(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def count_reads(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    read: list[Path] = []
    monkeypatch.setattr(hashes, "sha256", lambda path: read.append(path) or sha(path))
    return read


def test_large_files_are_read_once_until_they_change(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read = count_reads(monkeypatch)
    first, small = big(tmp_path / "a.txt"), tmp_path / "b.txt"
    small.write_text("small")
    for _ in range(3):
        assert hash_files([first, small]) == [sha(first), sha(small)]
    assert read.count(first) == 1 and read.count(small) == 3
    big(first, "b")
    assert hash_files([first]) == [sha(first)] and read.count(first) == 2
    stat = first.stat()
    big(first, "c")  # the same size, and the time of change set back: the inode's own time tells
    os.utime(first, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    assert hash_files([first]) == [sha(first)]


def test_what_was_written_just_now_is_not_remembered(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hashes, "SETTLED_SECONDS", 2)
    file = big(tmp_path / "a.txt")
    assert hash_files([file]) == [sha(file)] and not cache.exists()


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[]", b'{"files": 3}', b'{"files": {"a": "b"}}', b"\xff", b"[" * 10**5]
)
def test_a_broken_cache_is_none(tmp_path: Path, cache: Path, content: bytes) -> None:
    file = big(tmp_path / "a.txt")
    cache.parent.mkdir()
    cache.write_bytes(content)
    assert hash_files([file]) == hash_files([file]) == [sha(file)]
    assert list(json.loads(cache.read_bytes())["files"]) == [str(file)]
    assert os.listdir(cache.parent) == ["hashes.json"]


def test_a_cache_that_cannot_be_written_does_not_matter(tmp_path: Path, cache: Path) -> None:
    cache.parent.write_text("a file where the folder should be")
    file = big(tmp_path / "a.txt")
    assert hash_files([file]) == [sha(file)]


def test_it_does_not_grow_without_end(tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hashes, "MAX_ENTRIES", 2)
    files = [big(tmp_path / f"{number}.txt", str(number)) for number in range(4)]
    for file in files:
        hash_files([file])
    assert list(json.loads(cache.read_bytes())["files"]) == [str(file) for file in files[2:]]


def test_several_at_once_leave_a_whole_cache(tmp_path: Path, cache: Path) -> None:
    files = [big(tmp_path / f"{number}.txt", str(number)) for number in range(8)]
    threads = [threading.Thread(target=hash_files, args=([file],)) for file in files]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    known = json.loads(cache.read_bytes())["files"]
    assert known and all(value[-1] == sha(Path(key)) for key, value in known.items())


def test_a_file_that_went_away(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"a\.txt is no longer there"):
        hash_files([tmp_path / "a.txt"])
