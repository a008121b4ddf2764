"""One run at a time in an output folder."""

import json
import os
import socket
import sys
import time
from contextlib import suppress
from pathlib import Path

from filelock import FileLock, Timeout

from lacuna.common.errors import InputError, StorageError

LOCK, OWNER = ".lock", ".owner.json"
_held: dict[Path, FileLock] = {}


def hold(folder: Path) -> None:
    """Keep other runs out of a folder until `release`, or until this process ends, however it ends.

    What a process that is gone has left behind is taken over, with a notice.

    Raises:
        InputError: a run is in that folder now; the message names its host and process.
        StorageError: the folder cannot be written.
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
            f"--output_dir {folder}: {_owner(place)} is training there now; name another folder, or wait for its end"
        ) from None
    except OSError as error:
        raise StorageError(f"--output_dir {folder} cannot be written: {error.strerror}") from error
    _held[place] = lock
    if (place / OWNER).exists():
        print(f"the lock of {_owner(place)}, whose run has ended, is taken over", file=sys.stderr)
    owner = {"host": socket.gethostname(), "process": os.getpid(), "since": time.strftime("%Y-%m-%d %H:%M:%S")}
    with suppress(OSError):  # a disk that is full: the lock holds without it
        (place / OWNER).write_text(json.dumps(owner) + "\n", encoding="utf-8")


def release() -> None:
    """Let other runs in again; a folder that holds nothing else is removed."""
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
