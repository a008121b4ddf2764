"""The options of an evaluation, and its results as a table for people and as JSON."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

from lacuna.common.errors import StorageError
from lacuna.common.options import ESSENTIALS, Arguments, check_range, option

_bits = partial(option, group="bits_per_byte")


@dataclass
class EvaluationArguments(Arguments):
    """Which model to examine, on what, and how."""

    model: str | None = option(
        None, "Pretrained encoder or decoder: a folder or Hub id.", group=ESSENTIALS, metavar="MODEL"
    )
    suite: Literal["bits_per_byte", "minimal_pairs"] = option(
        "bits_per_byte",
        "bits_per_byte (how well the model predicts text) or minimal_pairs (whether it prefers the grammatical "
        "sentence).",
        group=ESSENTIALS,
    )
    data: list[str] = option(
        [],
        "Files, folders or globs: text for bits_per_byte, or rows with sentence_good and sentence_bad for "
        "minimal_pairs, one file per paradigm as in BLiMP. Default: the built-in corpus.",
        group=ESSENTIALS,
        metavar="PATH",
    )
    text_column: str = option("text", "Column that holds the text, in files with columns.")
    max_examples: int | None = option(None, "Most documents, or pairs per paradigm, to evaluate. Default: all.")
    window: int | None = _bits(
        None,
        "Tokens that the model reads at once; beyond the training length models seldom work well. Default: 256, or "
        "the model's limit if that is less.",
    )
    stride: int | None = _bits(
        None, "Decoders: tokens from one window to the next within a document. Default: half a window."
    )
    join_documents: bool = _bits(False, "Decoders: let windows cross document boundaries.")
    batch_size: int | None = option(None, "Rows per forward pass. Default: about 8,000 tokens.")
    output_file: str | None = option(
        None, "JSON file for the results. Default: evaluation_SUITE.json in the folder of --model, or here."
    )
    trust_remote_code: bool = option(
        False, "Run the code in the checkpoint of --model; checkpoints made by Lacuna do not need it."
    )
    revision: str | None = option(
        None, "Branch, tag or commit of a --model of the Hub. Default: main.", metavar="NAME"
    )

    def __post_init__(self) -> None:
        check_range(self, "max_examples", "stride", "batch_size", at_least=1)
        check_range(self, "window", at_least=2)


def format_results(results: Mapping[str, Any]) -> str:
    """Two columns, a line for each number."""
    width = max(len(name) for name in results)
    shown = {name: f"{value:,.4f}" if isinstance(value, float) else f"{value:,}" for name, value in results.items()}
    return "\n".join(f"{name:<{width}}  {value:>12}" for name, value in shown.items())


def check_output_file(*, output_file: str | None, model: str, suite: str) -> Path:
    """Where results go: --output_file, else evaluation_SUITE.json in the model's folder, or here for a Hub model.

    StorageError: nothing can be written there.
    """
    folder = Path(model).expanduser()
    default = (folder if folder.is_dir() else Path()) / f"evaluation_{suite}.json"
    path = Path(output_file).expanduser() if output_file else default
    parent = next(parent for parent in path.resolve().parents if parent.exists())
    if path.is_dir() or not parent.is_dir() or not os.access(path if path.exists() else parent, os.W_OK):
        raise StorageError(f"cannot write results to {path}: choose another file with --output_file")
    return path
