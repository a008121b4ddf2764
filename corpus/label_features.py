"""Labels that a data set keeps as numbers with a list of their names, as `datasets` writes them."""

from collections.abc import Mapping
from typing import Any


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
