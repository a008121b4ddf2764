"""Datasets of the Hugging Face Hub, streamed: nothing is stored on the disk; and the names of labels in datasets."""

import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from lacuna.common.errors import BadRecord, HubError, InputError, LacunaError
from lacuna.common.private import without_secrets

from .formats import Record, kind_of
from .sources import KINDS, choose_split

_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")


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

    def rows(self, *, part: int, column: str) -> Iterator[Record | BadRecord]:
        """Rows of one data file, as they arrive.

        Raises:
            HubError: the connection broke (after the retries of `datasets`), or a file is broken.
        """
        with _hub_errors(self.name):
            dataset = _load(self.name, self.config, self.revision)[self.split]
            if dataset.column_names is not None and column in dataset.column_names:
                dataset = dataset.select_columns([column])
            for number, row in enumerate(dataset.shard(num_shards=self.num_parts, index=part), start=1):
                yield Record(row, self.place(part), number)


def is_hub_name(name: str) -> bool:
    """Whether a value of --data can be meant as OWNER/NAME of the Hub and not as a path."""
    if not _NAME.fullmatch(name) or os.path.lexists(name) or kind_of(Path(name)) in KINDS:
        return False
    return not Path(name).parent.exists()  # beside files that are there it is a path that is not


def open_dataset(*, name: str, config: str | None, split: str | None) -> HubDataset:
    """Find a dataset of the Hub and the commit it is at.

    Args:
        config: needed where it has several.
        split: by default the only one, or "train".

    Raises:
        HubError: it does not exist, is gated, or the Hub cannot be reached.
        InputError: it has no such configuration or split.
    """
    import huggingface_hub

    with _hub_errors(name):
        revision = huggingface_hub.HfApi().dataset_info(name, timeout=30).sha
        splits = _load(name, config, revision)
    chosen = choose_split(list(splits), split, where=f"the dataset {name}")
    return HubDataset(name, config, chosen, str(revision), max(1, splits[chosen].num_shards))


def read_split(*, name: str, config: str | None, split: str | None) -> Iterator[Record]:
    """All rows of a split with all their columns, as they arrive; numbers that stand for labels become their names.

    Args:
        split: by default the only one, or "train".

    Raises:
        HubError: the dataset does not exist, is gated, cannot be reached or cannot be read.
        InputError: it has no such configuration or split.
    """
    with _hub_errors(name, option="", config="write a configuration behind its name, OWNER/NAME:CONFIG"):
        splits = _load(name, config, None)
        way = "write one behind its name and configuration, which may be empty (OWNER/NAME:CONFIG:SPLIT)"
        chosen = choose_split(list(splits), split, where=name, way=way)
        features = splits[chosen].features
        labels = label_names(features.to_dict()) if features is not None else {}
        for number, row in enumerate(splits[chosen], start=1):
            yield Record(with_names(row, labels), f"{name} ({chosen})", number)


@lru_cache(maxsize=8)
def _load(name: str, config: str | None, revision: str | None) -> Any:
    """All splits of a dataset, none of them read yet."""
    import datasets

    # No code of the dataset runs: `datasets` 4 and later reads data files only.
    return datasets.load_dataset(name, config, revision=revision, streaming=True)


@contextmanager
def _hub_errors(
    name: str, *, option: str = "--data ", config: str = "choose a configuration with --dataset_config"
) -> Iterator[None]:
    """Whatever the two libraries raise, as one sentence that says what to do. Neither token nor password is shown."""
    try:
        yield
    except LacunaError:
        raise
    except Exception as error:
        kind, text = type(error).__name__, without_secrets(" ".join(str(error).split()))
        # The libraries wrap each other's exceptions: a gated dataset may come as DatasetNotFoundError.
        names = {type(cause).__name__ for cause in _causes(error)}
        where = f"{option}{name}: there is no such file or folder, and the dataset {name} of the Hub"
        if "GatedRepoError" in names or "is a gated dataset" in text:
            raise HubError(
                f"{where} is gated. Ask for access on https://huggingface.co/datasets/{name} and log in: hf auth login"
            ) from None
        if names & {"RepositoryNotFoundError", "DatasetNotFoundError"} or " 404 " in f" {text} ":
            raise HubError(
                f"{where} does not exist, or is private and you are not logged in (hf auth login)."
            ) from None
        if names & {"OfflineModeIsEnabled", "ConnectionError", "ConnectError", "ConnectTimeout", "ReadTimeout"}:
            raise HubError(
                f"{where} cannot be looked up: the Hub cannot be reached ({kind}: {text[:160]}). "
                "Check the connection, and that HF_HUB_OFFLINE is not set."
            ) from None
        if isinstance(error, ValueError) and "onfig" in text:
            raise InputError(f"{option}{name}: {config}. {text[:600]}") from None
        raise HubError(f"{option}{name}: the dataset cannot be read ({kind}: {text[:300]}).") from None


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def label_names(features: Mapping[str, Any]) -> dict[str, list[str]]:
    """The names of the labels of each column that holds labels or lists of them.

    Args:
        features: what `datasets.Features.to_dict` gives, and what stands in dataset_info.json and in parquet files.
    """
    found = {}
    for column, feature in features.items():
        inner = feature[0] if isinstance(feature, list) and feature else feature  # [ClassLabel] is an old way to write
        while isinstance(inner, Mapping) and isinstance(inner.get("feature"), Mapping):
            inner = inner["feature"]
        if isinstance(inner, Mapping) and inner.get("_type") == "ClassLabel" and isinstance(inner.get("names"), list):
            found[column] = [str(name) for name in inner["names"]]
    return found


def with_names(row: Mapping[str, Any], names: Mapping[str, list[str]]) -> dict[str, Any]:
    """The row with names in the place of numbers; None for -1, by which a data set says that there is no label."""
    return {column: _named(value, names[column]) if column in names else value for column, value in row.items()}


def _named(value: Any, names: list[str]) -> Any:
    if isinstance(value, list):
        return [_named(item, names) for item in value]
    if isinstance(value, int) and not isinstance(value, bool):
        return names[value] if 0 <= value < len(names) else None
    return value
