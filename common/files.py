"""Atomic file writes, and locks between processes."""

import hashlib
import json
import os
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from .errors import InputError, StorageError

LOCK, OWNER = ".lock", ".owner.json"
_held: dict[Path, FileLock] = {}


def cache_folder() -> Path:
    """Cache of tokenizers and tokenized text, shared by runs: $LACUNA_CACHE, or ~/.cache/lacuna."""
    return Path(os.environ.get("LACUNA_CACHE") or Path.home() / ".cache" / "lacuna")


def sync(path: Path) -> None:
    """Flush a file, or the entries of a folder, to disk (fsync)."""
    if os.name == "nt" and path.is_dir():
        return
    number = os.open(path, os.O_RDWR if os.name == "nt" else os.O_RDONLY)  # Windows flushes what may be written
    try:
        os.fsync(number)
    finally:
        os.close(number)


def sha256(path: Path) -> str:
    """SHA-256 (hexadecimal) of a file, about 1 GB/s."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@contextmanager
def storage_errors(what: str) -> Iterator[None]:
    """Errors of reading and writing in here become a `StorageError`, those of Rust libraries included."""
    try:
        yield
    except Exception as error:
        if not isinstance(error, OSError) and "os error" not in str(error):
            raise
        raise StorageError(f"{what}: {error}") from error


@contextmanager
def replacing(path: Path, *, hint: str = "") -> Iterator[Path]:
    """Write to a temporary path, which replaces `path` once it is complete and on disk; else the old file stays.

    The folder is made if it is missing. Raises StorageError: the file cannot be written; `hint`, the end of its
    message, says what to do about the disk.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        yield temporary
        sync(temporary)
        os.replace(temporary, path)
    except OSError as error:
        raise StorageError(f"cannot write {path}: {error.strerror or error}{hint}") from error
    finally:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)


def write_text(path: Path, text: str, *, hint: str = "") -> None:
    """Write a small text file atomically. Raises StorageError: the file cannot be written."""
    with replacing(path, hint=hint) as temporary:
        temporary.write_text(text, encoding="utf-8", newline="\n")  # as long on Windows as elsewhere


def json_lines(path: Path) -> list[dict[str, Any]]:
    """The rows of a .jsonl file, except a last one that is not whole; none without it. InputError: one is broken."""
    rows, lines = [], path.read_bytes().splitlines() if path.is_file() else []
    for number, line in enumerate(lines, start=1):
        try:
            rows.append(json.loads(line))
        except ValueError:
            if number < len(lines):
                raise InputError(f"{path}:{number} cannot be read as JSON: mend or remove the line") from None
    return rows


@contextmanager
def locked(path: Path, *, waiting: str, silent_seconds: float = 5.0) -> Iterator[None]:
    """Hold a lock file while others wait for it; `waiting` is printed if another has had it for `silent_seconds`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    lock = FileLock(path)
    try:
        held = lock.acquire(timeout=silent_seconds)
    except Timeout:
        print(waiting, file=sys.stderr, flush=True)
        held = lock.acquire()
    with held:
        yield


def hold(folder: Path) -> None:
    """Keep other runs out of a folder until `release` or the end of this process, however it ends.

    The lock of a process that is gone is taken over, with a notice. Raises InputError: another run uses the folder, by
    its host and process; StorageError: the folder cannot be written.
    """
    place = folder.absolute()
    if place in _held:
        return
    try:
        place.mkdir(parents=True, exist_ok=True)
        lock = FileLock(place / LOCK, blocking=False)
        lock.acquire()
    except Timeout:
        raise InputError(
            f"--output_dir {folder}: {_owner(place)} is training there now; choose another folder or wait"
        ) from None
    except OSError as error:
        raise StorageError(f"--output_dir {folder} cannot be written: {error.strerror}") from error
    _held[place] = lock
    if (place / OWNER).exists():
        print(f"taking over the lock of {_owner(place)}, whose run has ended", file=sys.stderr)
    owner = {"host": socket.gethostname(), "process": os.getpid(), "since": time.strftime("%Y-%m-%d %H:%M:%S")}
    with suppress(OSError):  # a disk that is full: the lock holds without it
        (place / OWNER).write_text(json.dumps(owner) + "\n", encoding="utf-8")


def release() -> None:
    """Release all held folders; one that holds nothing else is removed."""
    for place in list(_held):
        with suppress(OSError):
            (place / OWNER).unlink(missing_ok=True)
            if [path.name for path in place.iterdir()] == [LOCK]:
                (place / LOCK).unlink()
        _held.pop(place).release()
        with suppress(OSError):
            place.rmdir()  # only if it is empty


def _owner(place: Path) -> str:
    try:
        owner = json.loads((place / OWNER).read_text(encoding="utf-8"))
        return f"process {owner['process']} on {owner['host']} (since {owner['since']})"
    except (OSError, ValueError, KeyError, TypeError):
        return "another process"
