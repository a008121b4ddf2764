"""SHA-256 of files, remembered from one start to the next."""

import hashlib
import json
import os
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from .progress import progress_bar
from .streams import unreadable

MIN_BYTES = 64 << 10  # smaller files are hashed as fast as they are looked up
MAX_ENTRIES = 100_000
SETTLED_SECONDS = 2  # a file written later than this could change again with the same time of change
CHUNK_BYTES = 1 << 20
PROGRESS_SECONDS = 3


def hash_files(paths: Sequence[Path]) -> list[str]:
    """SHA-256 (hexadecimal) of each file, about 1 GB/s, with a progress bar when that takes long.

    Files of 64 KiB and more that have not changed since an earlier call (path, size, inode and times) are not read
    again: the hashes are kept in hashes.json in $LACUNA_CACHE or ~/.cache/lacuna.

    Raises:
        InputError: a file cannot be read.
    """
    known = _load()
    new: dict[str, list[Any]] = {}
    digests = []
    try:
        sizes = [path.stat().st_size for path in paths]
        bar = progress_bar(total=sum(sizes), doing="hashing", delay=PROGRESS_SECONDS)
        with bar:
            for path in paths:
                stat = path.stat()
                key = os.path.abspath(path)
                state = [stat.st_size, stat.st_ino, stat.st_mtime_ns, stat.st_ctime_ns]
                if known.get(key, [])[:-1] == state:
                    digest = str(known[key][-1])
                    bar.update(stat.st_size)
                else:
                    digest = _hash(path, bar)
                    settled = time.time() - max(stat.st_mtime, stat.st_ctime) > SETTLED_SECONDS
                    if settled and stat.st_size >= MIN_BYTES:
                        new[key] = [*state, digest]
                digests.append(digest)
    except OSError as error:
        raise unreadable(Path(error.filename or path), error) from error
    finally:
        if new:
            _save(new)
    return digests


def _hash(path: Path, bar: Any) -> str:
    digest = hashlib.sha256()
    with path.open("rb", buffering=0) as file:
        while chunk := file.read(CHUNK_BYTES):
            digest.update(chunk)
            bar.update(len(chunk))
    return digest.hexdigest()


def _cache_file() -> Path:
    return Path(os.environ.get("LACUNA_CACHE", Path.home() / ".cache" / "lacuna")) / "hashes.json"


def _load() -> dict[str, list[Any]]:
    """What is remembered; nothing if the file is absent or broken."""
    try:
        entries = json.loads(_cache_file().read_bytes())["files"]
        return {
            key: value
            for key, value in entries.items()
            if isinstance(value, list) and len(value) == 5 and isinstance(value[-1], str) and len(value[-1]) == 64
        }
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return {}


def _save(new: dict[str, list[Any]]) -> None:
    """Add entries; the file is replaced whole, so that other processes read the old or the new one. Of two that write
    at once the later wins, and what the other learned is hashed again some day."""
    file = _cache_file()
    entries = {key: value for key, value in _load().items() if key not in new} | new
    entries = dict(list(entries.items())[-MAX_ENTRIES:])
    with suppress(OSError):  # a cache that cannot be written is none
        file.parent.mkdir(parents=True, exist_ok=True)
        descriptor, name = tempfile.mkstemp(prefix=".hashes-", dir=file.parent)
        try:
            with os.fdopen(descriptor, "w", encoding="ascii") as temporary:
                json.dump({"files": entries}, temporary, indent=0)
            os.replace(name, file)
        except OSError:
            os.unlink(name)
            raise
