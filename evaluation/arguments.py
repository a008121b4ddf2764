"""The options of an evaluation and of an inspection, and results as tables for people."""

import os
import re
import textwrap
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

from lacuna.common.errors import InputError, StorageError
from lacuna.common.options import REVISION, TRUST_CODE, Arguments, ReadingArguments, check_range, essential, option

SCORE = re.compile(r"(masked_)?bits_per_byte|(contextual_)?(accuracy(_3cos(add|mul))?|spearman)")
DETAIL = re.compile(r"((contextual|baseline_\w+?)_(accuracy_3cosadd|spearman)|\w*accuracy_3cosmul)_(?!low$|high$)")
FORMS = {
    "minimal_pairs": "rows with sentence_good and sentence_bad, a file per paradigm (github.com/alexwarstadt/blimp)",
    "analogies": ".txt files of four words a line, in sections that begin with a line ': name'",
    "similarity": ".txt files of word, word and score, with tabs between",
}
SUITES = ("bits_per_byte", *FORMS)
_bits = partial(option, group="bits_per_byte")
_words = partial(option, group="analogies and similarity")
_all = partial(option, group="data of the suites of all", metavar="PATH")
_BECAUSE = "The chicken didn't cross the road because it was too"


@dataclass
class ExaminedModelArguments(Arguments):
    """Which pretrained model."""

    model: str | None = essential(
        None, "Pretrained model with its language head: a folder or Hub id.", metavar="MODEL"
    )
    trust_remote_code: bool = option(**TRUST_CODE)
    revision: str | None = option(**REVISION)


@dataclass
class EvaluationArguments(ExaminedModelArguments, ReadingArguments):
    """Which model to examine, on what, and how."""

    suite: Literal["bits_per_byte", "minimal_pairs", "analogies", "similarity", "all"] = essential(
        "bits_per_byte",
        "bits_per_byte (how well the model predicts text), minimal_pairs (whether it prefers the grammatical "
        "sentence), analogies, similarity (what the vectors of words say), or all for which there is data.",
    )
    data: list[str] = essential(
        [],
        "Files, folders or globs: text for bits_per_byte and all (default: the built-in corpus)"
        + "".join(f"; for {suite} {form}" for suite, form in FORMS.items())
        + ".",
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
    train_text: list[str] = _bits(
        [], "Text for a 5-gram model and compressors that stand beside the model, such as its own.", metavar="PATH"
    )
    occurrences: list[str] = _words(
        [], "Text for vectors of words in context, and for skip-gram vectors beside them.", metavar="PATH"
    )
    neighbours_of: list[str] = _words(
        [], "Words whose nearest neighbours among those of the data are shown.", metavar="WORD"
    )
    pairs: list[str] = _all([], "Minimal pairs.")
    analogies: list[str] = _all([], "Analogies.")
    similarity: list[str] = _all([], "Pairs of words with their similarity.")
    bf16: bool = option(False, "Compute in bf16: faster where it is in the hardware, to two digits or three.")
    batch_size: int | None = option(None, "Rows per forward pass. Default: about 2,000 tokens, 8,000 on a GPU.")
    output_file: str | None = option(
        None, "JSON file for the results. Default: evaluation_SUITE.json in the folder of --model, or here."
    )

    def __post_init__(self) -> None:
        check_range(self, "max_examples", "stride", "batch_size", at_least=1)
        check_range(self, "window", at_least=2)
        if self.output_file and (Path(self.output_file).suffix != ".json" or Path(self.output_file).is_dir()):
            raise InputError(f"--output_file {self.output_file}: results are JSON; name a file that ends in .json")

    def asked(self) -> dict[str, list[str]]:
        """The suites that are run, with the data of each. InputError: the one that is asked for has none."""
        given = dict(zip(SUITES, (self.data, self.pairs, self.analogies, self.similarity), strict=True))
        if self.suite == "all":
            return {suite: paths for suite, paths in given.items() if paths or suite == "bits_per_byte"}
        if others := [suite for suite in FORMS if given[suite] and suite != self.suite]:
            option = others[0].removeprefix("minimal_")
            raise InputError(f"--{option} is data of --suite {others[0]} or all, and --suite is {self.suite}")
        if self.neighbours_of and self.suite not in ("analogies", "similarity"):
            raise InputError("--neighbours_of goes with --suite analogies, similarity or all")
        paths = self.data or given[self.suite]
        if not paths and self.suite in FORMS:
            raise InputError(f"--suite {self.suite} needs --data: {FORMS[self.suite]}")
        return {self.suite: paths}

    def place(self) -> Path:
        """Where results go: --output_file, else evaluation_SUITE.json in the model's folder, or here for a Hub model.

        StorageError: nothing can be written there.
        """
        folder = Path(self.model or "").expanduser()
        default = (folder if folder.is_dir() else Path()) / f"evaluation_{self.suite}.json"
        path = Path(self.output_file).expanduser() if self.output_file else default
        parent = next(parent for parent in path.resolve().parents if parent.exists())
        if path.is_dir() or not parent.is_dir() or not os.access(path if path.exists() else parent, os.W_OK):
            raise StorageError(f"cannot write results to {path}: choose another file with --output_file")
        return path


@dataclass
class InspectionArguments(ExaminedModelArguments):
    """Which model to look into, and which texts it reads for that."""

    text: list[str] = essential(
        [],
        "A text for the model to read; each time it is given adds one, and the others are compared with the first. "
        f'Default: "{_BECAUSE} tired" and "{_BECAUSE} wide".',
    )
    output_dir: str | None = essential(
        None, "Folder of the page and its pictures. Default: inspection/ in --model, or here."
    )

    def __post_init__(self) -> None:
        self.text = self.text or [f"{_BECAUSE} tired", f"{_BECAUSE} wide"]


def format_results(results: Mapping[str, Any]) -> str:
    """Two columns, a line for each number with its interval; without what is of one section, but of the embeddings."""
    ends = {f"{name}{end}" for name in results for end in ("_low", "_high") if f"{name}_low" in results}
    names = [name for name in results if name not in ends and not DETAIL.match(name)]
    width = max(map(len, names))
    return "\n".join(f"{name:<{width}}  {_shown(results, name):>12}" for name in names)


def _shown(results: Mapping[str, Any], name: str) -> str:
    value, low, high = (results.get(f"{name}{end}") for end in ("", "_low", "_high"))
    if isinstance(value, str):
        return textwrap.shorten(value, 90)
    shown = f"{value:,.4f}" if isinstance(value, float) else f"{value:,}"
    return shown if low is None else f"{shown} ({low:,.4f} to {high:,.4f})"


def summarize(found: Mapping[str, Mapping[str, Any]]) -> list[tuple[str, str, str, str]]:
    """Suite, name, value with its 95 % interval, and baselines of each score."""
    rows = []
    for suite, results in found.items():
        for name in filter(SCORE.fullmatch, results):
            measure = name.removeprefix("contextual_")
            others = {each: re.fullmatch(f"baseline_(.*?)_?{measure}", each) for each in results}
            beside = [f"{match[1] or 'a guess'} {_shown(results, each)}" for each, match in others.items() if match]
            beside += [f"chosen among {results['chosen_among']:,} words"] if "chosen_among" in results else []
            rows.append((suite, name, _shown(results, name), ", ".join(beside)))
    return rows


def format_summary(found: Mapping[str, Mapping[str, Any]]) -> str:
    """A Markdown table of the scores of each suite, with 95 % intervals and baselines."""
    lines = ["| suite | score | model (95 % interval) | beside it |", "| --- | --- | --- | --- |"]
    lines += [f"| {' | '.join(row)} |" for row in summarize(found)]
    why = {suite: found.get(suite, {"not_run": "there is no data"}).get("not_run") for suite in SUITES}
    lines += [f"| {suite} | not run: {reason} | | |" for suite, reason in why.items() if reason]
    return "\n".join(lines)
