"""Files that are there whole or not at all, and locks."""

import multiprocessing
import os
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from lacuna.common import files
from lacuna.common.errors import InputError, StorageError
from lacuna.common.files import cache_folder, json_lines, locked, replacing, write_text


def test_a_file_appears_under_its_name_when_it_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "new" / "a.txt"
    with replacing(path) as temporary:
        temporary.write_text("whole")
        assert not path.exists() and temporary.parent == path.parent
    assert path.read_text() == "whole" and [file.name for file in path.parent.iterdir()] == ["a.txt"]


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), ValueError("mine"), KeyboardInterrupt()])
def test_what_stood_there_stays_when_writing_fails(tmp_path: Path, error: BaseException) -> None:
    path = tmp_path / "a.txt"
    path.write_text("before")
    expected = StorageError if isinstance(error, OSError) else type(error)
    with pytest.raises(expected) as raised, replacing(path, hint="; see --output") as temporary:
        temporary.write_text("half")
        raise error
    assert path.read_text() == "before" and os.listdir(tmp_path) == ["a.txt"]
    if expected is StorageError:
        assert str(raised.value) == f"cannot write {path}: No space left on device; see --output"
        assert raised.value.exit_code == 5


def test_a_folder_that_cannot_be_made_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match=r"cannot write .*a.txt: "):
        write_text(tmp_path / "file" / "a.txt", "text")


@pytest.mark.parametrize("end", [b"", b'{"step": 3, "lo', b'{"text": "\xc3', b"\0\0\0\0"])
def test_a_last_row_that_was_cut_off_is_left_out(tmp_path: Path, end: bytes) -> None:
    path = tmp_path / "rows.jsonl"
    assert json_lines(path) == []
    path.write_bytes('{"step": 1}\n{"text": "a\u2028b"}\n'.encode() + end)
    assert json_lines(path) == [{"step": 1}, {"text": "a\u2028b"}]
    path.write_bytes(b'{"step": 1}\n' + (end or b"{") + b'\n{"step": 2}\n')
    with pytest.raises(InputError, match=r"rows\.jsonl:2 cannot be read as JSON: mend or remove the line"):
        json_lines(path)


def _hold(path: Path, seconds: float, held: "multiprocessing.synchronize.Event") -> None:  # type: ignore[name-defined]
    with locked(path, waiting=""):
        held.set()
        time.sleep(seconds)


def test_whoever_comes_second_waits_and_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "made" / ".lock"
    context = multiprocessing.get_context("fork")
    held = context.Event()
    other = context.Process(target=_hold, args=(path, 0.5, held))
    other.start()
    held.wait(10)
    with locked(path, waiting="waiting for the other", silent_seconds=0.05):
        other.join(0.2)
        assert other.exitcode == 0
    with locked(path, waiting="never said"):
        pass
    assert capsys.readouterr().err == "waiting for the other\n"


def test_windows_flushes_files_that_may_be_written_and_no_folders(tmp_path: Path, monkeypatch) -> None:
    (tmp_path / "a.txt").write_text("whole")
    modes: list[int] = []
    names = ("O_RDONLY", "O_RDWR", "fsync", "close")
    windows = SimpleNamespace(name="nt", **{name: getattr(os, name) for name in names})
    windows.open = lambda path, mode: modes.append(mode) or os.open(path, mode)
    monkeypatch.setattr(files, "os", windows)
    files.sync(tmp_path)
    files.sync(tmp_path / "a.txt")
    assert modes == [os.O_RDWR]


def test_the_cache_is_at_home_unless_another_place_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Path, "home", lambda: Path("home"))
    monkeypatch.delenv("LACUNA_CACHE", raising=False)
    assert cache_folder() == Path("home/.cache/lacuna")
    monkeypatch.setenv("LACUNA_CACHE", "")
    assert cache_folder() == Path("home/.cache/lacuna")
    monkeypatch.setenv("LACUNA_CACHE", "mine")
    assert cache_folder() == Path("mine")
