"""SHA-256 of files, remembered from one start to the next."""

import hashlib
import json
import os
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from lacuna.common.errors import StorageError
from lacuna.common.files import write_text

from .streams import progress_bar, unreadable

MIN_BYTES = 64 << 10  # smaller files are hashed as fast as they are looked up
MAX_ENTRIES = 100_000
SETTLED_SECONDS = 2  # a file written later than this could change again with the same time of change
PROGRESS_SECONDS = 3


def sha256(path: Path) -> str:
    """SHA-256 (hexadecimal) of a file, about 1 GB/s."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def hash_files(paths: Sequence[Path]) -> list[str]:
    """SHA-256 (hexadecimal) of each file, with a progress bar when that takes long.

    Files of 64 KiB and more that have not changed since an earlier call (path, size, inode and times) are not read
    again: the hashes are kept in hashes.json in $LACUNA_CACHE or ~/.cache/lacuna.

    Raises:
        InputError: a file cannot be read.
    """
    known = _load()
    new: dict[str, list[Any]] = {}
    digests = []
    try:
        total = sum(path.stat().st_size for path in paths)
        with progress_bar(total=total, doing="hashing", delay=PROGRESS_SECONDS) as bar:
            for path in paths:
                stat = path.stat()
                key = os.path.abspath(path)
                state = [stat.st_size, stat.st_ino, stat.st_mtime_ns, stat.st_ctime_ns]
                remembered = known.get(key, [])[:-1] == state
                digests.append(str(known[key][-1]) if remembered else sha256(path))
                settled = time.time() - max(stat.st_mtime, stat.st_ctime) > SETTLED_SECONDS
                if not remembered and settled and stat.st_size >= MIN_BYTES:
                    new[key] = [*state, digests[-1]]
                bar.update(stat.st_size)
    except OSError as error:
        raise unreadable(Path(error.filename or path), error) from error
    finally:
        if new:
            _save(new)
    return digests


def _cache_file() -> Path:
    return Path(os.environ.get("LACUNA_CACHE", Path.home() / ".cache" / "lacuna")) / "hashes.json"


def _load() -> dict[str, list[Any]]:
    """What is remembered; nothing if the file is absent or broken."""
    try:
        entries = json.loads(_cache_file().read_bytes())["files"]
        return {key: value for key, value in entries.items() if isinstance(value, list)}
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return {}


def _save(new: dict[str, list[Any]]) -> None:
    """Add entries. Of two processes that write at once the later wins; what the other learned is hashed again."""
    entries = {key: value for key, value in _load().items() if key not in new} | new
    with suppress(StorageError):  # a cache that cannot be written is none
        write_text(_cache_file(), json.dumps({"files": dict(list(entries.items())[-MAX_ENTRIES:])}, indent=0))
