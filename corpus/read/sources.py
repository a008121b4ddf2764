"""What `--data` names: files behind paths, folders and globs, and datasets of the Hub, which are streamed."""

import difflib
import glob
import json
import math
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from lacuna.common.errors import BadRecord, HubError, InputError, LacunaError
from lacuna.common.hub import HUB_NAME
from lacuna.common.private import shown, without_secrets

from .formats import RECORD_KINDS, Record, check_named, iter_records, kind_of
from .streams import COMPRESSIONS, MARKUP, Reading, unreadable

KINDS = frozenset({".txt", *RECORD_KINDS})
TEXT_KINDS = KINDS | MARKUP.keys()
SPLIT_WAY = "name one with --dataset_split"
SAVED_DATASET, SAVED_SPLITS = "state.json", "dataset_dict.json"  # what `datasets` leaves beside the data it saves


def parse_sources(data: Sequence[str]) -> tuple[list[str], list[float] | None]:
    """Names and weights of `--data a.txt:0.7 b/:0.3`; weights sum to 1, and are None when no source has one.

    What stands after the last ":" is a weight unless the whole is the name of a file. Raises InputError for a weight
    that is not a positive number, and where only some sources have one.
    """
    sources = [_parse_source(value) for value in data]
    without = [name for name, weight in sources if weight is None]
    if without and len(without) < len(sources):
        raise InputError(
            f"--data: {shown(without[0])} has no weight and others have; give all sources weights (a.txt:0.7 b/:0.3) "
            "or none."
        )
    weights = [weight for _, weight in sources if weight is not None]
    total = math.fsum(weights)
    return [name for name, _ in sources], [weight / total for weight in weights] or None


def _parse_source(value: str) -> tuple[str, float | None]:
    name, colon, tail = value.rpartition(":")
    if not colon or not name or "/" in tail or "\\" in tail or os.path.lexists(_expand(value)):
        return value, None
    try:
        weight = float(tail)
    except ValueError:
        if not os.path.lexists(_expand(name)) and not glob.has_magic(name):
            return value, None  # the message on a missing file shows the whole
        raise InputError(f"--data {shown(value)}: the weight {tail!r} is not a number.") from None
    if not (0 < weight < math.inf):
        raise InputError(f"--data {shown(value)}: the weight must be greater than 0, got {tail}.")
    return name, weight


def find_files(*, paths: Sequence[str], split: str | None = None, kinds: frozenset[str] = KINDS) -> list[Path]:
    """The files behind paths, folders (to the bottom, through links) and globs: each once, in order of their names.

    Hidden files and .json are read only where they are named, others only if they are of `kinds`. A folder that
    `datasets` saved gives the data files of `split`, or of the only one, or "train". Raises InputError if nothing is
    there, or nothing can be read.
    """
    found: dict[Path, Path] = {}
    for name in paths:
        for file in _files_of(name, split, kinds):
            found.setdefault(file.resolve(), file)
    return list(found.values())


def _files_of(name: str, split: str | None, kinds: frozenset[str]) -> list[Path]:
    path = _expand(name)
    try:
        if path.is_dir():
            return _folder_files(path, split, kinds)
        if path.exists():
            if kind_of(path) not in kinds:
                raise InputError(f"{shown(path)} has the ending {''.join(path.suffixes[-2:])!r}; {_readable(kinds)}.")
            if not path.is_file():
                raise InputError(
                    f"{shown(path)} is a pipe or a device, and text is read more than once. Write it to a file first."
                )
            return [path]
    except OSError as error:
        raise unreadable(path, error) from error
    if path.is_symlink():
        raise InputError(f"{shown(path)} is a link to {shown(os.readlink(path))}, which is not there.")
    if glob.has_magic(name):
        return _glob_files(name, split, kinds)
    raise InputError(f"there is no file or folder {shown(path)}.{near_names(path)}")


def _glob_files(name: str, split: str | None, kinds: frozenset[str]) -> list[Path]:
    matches = sorted(map(Path, glob.glob(str(_expand(name)), recursive=True)))
    files = [match for match in matches if kind_of(match) in kinds and match.is_file()]
    if not files:  # as the shell would, had it seen the pattern
        files = [file for match in matches if match.is_dir() for file in _folder_files(match, split, kinds)]
    if not files:
        raise InputError(f"no file matches {shown(name)!r} ({len(matches)} other matches); {_readable(kinds)}.")
    return files


def _folder_files(folder: Path, split: str | None, kinds: frozenset[str]) -> list[Path]:
    if is_saved(folder):
        return saved_files(folder, split)
    inside = _walk(folder)
    # In a folder of text .json is a description of it, not text.
    files = [file for file in inside if kind_of(file) in kinds - {".json"}]
    if not files:
        others = sorted({shown(file.suffix or file.name) for file in inside})
        holds = f"only {', '.join(others[:20])}" if others else "nothing"
        raise InputError(f"the folder {shown(folder)} holds {holds}; {_readable(kinds)}.")
    return files


def _walk(folder: Path) -> list[Path]:
    """Files in the order of their names, those of folders in the place of the folder. Links are followed, each folder
    is entered once; hidden ones are not: caches and copies of editors, not somebody's text."""

    def refuse(error: OSError) -> None:
        raise unreadable(Path(error.filename or folder), error) from error

    found: list[Path] = []
    entered: set[tuple[int, int]] = set()
    for root, folders, names in os.walk(folder, onerror=refuse, followlinks=True):
        about = os.stat(root)
        is_new = (about.st_dev, about.st_ino) not in entered
        entered.add((about.st_dev, about.st_ino))
        folders[:] = sorted(name for name in folders if is_new and not name.startswith("."))
        paths = [Path(root, name) for name in names if is_new and not name.startswith(".")]
        found += [path for path in paths if path.is_file() or path.is_symlink()]
    return sorted(found, key=lambda path: path.parts)


def is_saved(folder: Path) -> bool:
    """Whether `datasets` has saved a folder."""
    names = (SAVED_DATASET, "dataset_info.json")
    return (folder / SAVED_SPLITS).is_file() or all((folder / name).is_file() for name in names)


def saved_files(folder: Path, split: str | None, *, way: str = SPLIT_WAY) -> list[Path]:
    """The data files of a folder written by `save_to_disk`: of a Dataset, or of one split of a DatasetDict."""
    try:
        if (folder / SAVED_SPLITS).is_file():
            splits = json.loads((folder / SAVED_SPLITS).read_text(encoding="utf-8"))["splits"]
            folder = folder / Path(choose_split(splits, split, where=shown(folder), way=way)).name.lstrip(".")
        names = [entry["filename"] for entry in json.loads((folder / SAVED_DATASET).read_bytes())["_data_files"]]
    except LacunaError:
        raise
    except OSError as error:
        raise unreadable(folder, error) from error
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(
            f"{shown(folder)} looks like a folder saved by `datasets`, but what describes it is broken "
            f"({type(error).__name__}: {str(error)[:80]}). Save it again."
        ) from error
    files = [folder / Path(str(name)).name for name in names]  # whatever path it says: they are all in there
    for file in files:
        if not file.is_file():
            raise InputError(f"{shown(file)} is missing; {shown(folder)} was not saved whole. Save it again.")
    return files


def choose_split(splits: Sequence[str], split: str | None, *, where: str, way: str = SPLIT_WAY) -> str:
    """The split asked for, or else the only one, or else "train"; InputError, with `where` they are and the `way` to
    name one, where there is none."""
    chosen = split or (splits[0] if len(splits) == 1 else "train")
    if chosen not in splits:
        asked = f"no split {chosen!r}" if split else "several splits"
        raise InputError(f"{where} has {asked}; {way}: {', '.join(map(str, splits))}.")
    return chosen


def read_records(path: Path | str, how: Reading | None = None, *, more: str = "") -> Iterator[Record]:
    """Rows of a .jsonl, .json, .csv, .tsv or .parquet file, or of one of these with .gz or .zst after it.

    `more`: what else the caller reads, for the message.

    Raises InputError: the file is missing, empty or broken, or of another kind; the message says where.
    """
    path = _expand(path)
    if path.is_dir():
        raise InputError(f"{shown(path)} is a folder; name one file: {', '.join(RECORD_KINDS)}.")
    if not path.exists():
        raise InputError(f"there is no file {shown(path)}.{near_names(path)}")
    if kind_of(path) not in RECORD_KINDS:
        raise InputError(
            f"{shown(path)} has the ending {kind_of(path)!r}; rows are read from {', '.join(RECORD_KINDS)}, each also "
            f"with .gz or .zst{more}. If it has columns with tabs between them, call it .tsv."
        )
    if path.stat().st_size == 0:
        raise InputError(f"{shown(path)} is empty (0 bytes).")
    check_named(path, how)
    row = None
    for row in iter_records(path, how):
        if isinstance(row, BadRecord):
            raise row
        yield row
    if row is None:
        raise InputError(f"{shown(path)} is empty: it has no row.")


def _expand(name: Path | str) -> Path:
    if not str(name):
        raise InputError("--data has an empty name; name a file or folder, or leave --data out.")
    return Path(os.path.expanduser(name))


def near_names(path: Path) -> str:
    """A sentence on what stands near a path that does not exist."""
    parent = path.parent
    if not parent.is_dir():
        return f" Its folder {shown(parent)} does not exist either."
    names = sorted(entry.name for entry in parent.iterdir())
    near = difflib.get_close_matches(path.name, names, n=3, cutoff=0.5)
    return f" Did you mean {' or '.join(shown(parent / name) for name in near)}?" if near else ""


def _readable(kinds: frozenset[str]) -> str:
    return f"text is read from {', '.join(sorted(kinds))}, each also with {' or '.join(COMPRESSIONS)}"


@dataclass(frozen=True, slots=True)
class HubDataset:
    """One split of a dataset at one commit; `num_parts` says of how many data files it is made."""

    name: str
    config: str | None
    split: str
    revision: str
    num_parts: int

    def place(self, part: int) -> str:
        """What a message calls a data file."""
        return f"{self.name} ({self.split}, part {part + 1} of {self.num_parts})"

    def records(self, *, part: int, column: str) -> Iterator[Record | BadRecord]:
        """Rows of one data file, as they arrive; HubError if the connection broke, or the file is."""
        with hub_errors(self.name):
            dataset = load_hub(self.name, self.config, self.revision)[self.split]
            if dataset.column_names is not None and column in dataset.column_names:
                dataset = dataset.select_columns([column])
            for number, row in enumerate(dataset.shard(num_shards=self.num_parts, index=part), start=1):
                yield Record(row, self.place(part), number)


def is_hub_name(name: str) -> bool:
    """Whether a value of --data can be meant as OWNER/NAME or OWNER/NAME@REVISION of the Hub and not as a path."""
    if not HUB_NAME.fullmatch(name.partition("@")[0]) or os.path.lexists(name) or kind_of(Path(name)) in TEXT_KINDS:
        return False
    return not Path(name).parent.exists()  # beside files that are there it is a path that is not


def open_dataset(*, name: str, config: str | None, split: str | None) -> HubDataset:
    """Find a dataset of the Hub, OWNER/NAME or OWNER/NAME@REVISION, and the commit it is at.

    Raises HubError: it does not exist, is gated, or the Hub cannot be reached; InputError: it has no such
    configuration or split.
    """
    import huggingface_hub

    name, _, asked = name.partition("@")
    with hub_errors(name):
        revision = huggingface_hub.HfApi().dataset_info(name, revision=asked or None, timeout=30).sha
        splits = load_hub(name, config, revision)
    chosen = choose_split(list(splits), split, where=f"the dataset {name}")
    return HubDataset(name, config, chosen, str(revision), max(1, splits[chosen].num_shards))


@lru_cache(maxsize=8)
def load_hub(name: str, config: str | None, revision: str | None) -> Any:
    """All splits of a dataset, OWNER/NAME or OWNER/NAME@REVISION, none of them read yet."""
    import datasets

    name, _, asked = name.partition("@")

    # No code of the dataset runs: `datasets` 4 and later reads data files only.
    return datasets.load_dataset(name, config, revision=revision or asked or None, streaming=True)


@contextmanager
def hub_errors(
    name: str, *, option: str = "--data ", config: str = "choose a configuration with --dataset_config"
) -> Iterator[None]:
    """Whatever the two libraries raise, as one sentence that says what to do. Neither token nor password is shown."""
    try:
        yield
    except LacunaError:
        raise
    except Exception as error:
        text = without_secrets(" ".join(str(error).split()))
        if isinstance(error, ValueError) and "onfig" in text:
            raise InputError(f"{option}{name}: {config}. {text[:600]}") from None
        raise HubError(
            f"{option}{name}: there is no such file or folder, and the dataset {name} of the Hub cannot be read "
            f"({type(error).__name__}: {text[:300]}). For a private or gated one log in (hf auth login); else check "
            "the name, the connection, and that HF_HUB_OFFLINE is not set."
        ) from None
