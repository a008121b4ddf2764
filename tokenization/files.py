"""Tokenizers on disk: saved, loaded, told apart, and learned once for all processes and runs that need the same."""

import hashlib
import json
import os
import sys
import tempfile
import warnings
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from transformers import PreTrainedTokenizerFast

from lacuna.common import loading
from lacuna.common.errors import InputError, StorageError
from lacuna.common.files import cache_folder, locked, write_text
from lacuna.common.foreign import check_foreign, without_panic

from .arguments import TokenizerArguments
from .bpe import train_bpe
from .patterns import PATTERNS, pattern_of
from .sampling import sample_documents

_FILES = ("tokenizer_config.json", "tokenizer.json")  # the latter is written last: where it stands, all is whole
REPORT = "tokenizer_report.json"


def check_output_dir(output_dir: str | Path) -> None:
    """InputError where it cannot be a folder; StorageError where the nearest one above it cannot be written."""
    if not str(output_dir):
        raise InputError("--output_dir is empty; name a folder: runs/tokenizer")
    path = Path(output_dir)
    nearest = next(folder for folder in (path, *path.absolute().parents) if folder.exists())
    if not nearest.is_dir():
        raise InputError(f"{nearest} is a file, not a folder; choose another --output_dir.")
    if not os.access(nearest, os.W_OK):
        raise StorageError(f"cannot write {path}: no permission in {nearest}. Choose another --output_dir.")


def check_replaceable(output_dir: str | Path) -> None:
    """`check_output_dir`, and InputError where the folder holds anything but what train_tokenizer.py has written."""
    check_output_dir(output_dir)
    there = sorted(path.name for path in Path(output_dir).glob("[!.]*"))
    for name in there if REPORT not in there else [name for name in there if name not in (*_FILES, REPORT)]:
        raise InputError(f"--output_dir {output_dir} holds {name}, made by something else; name another folder")


def save_tokenizer(*, tokenizer: PreTrainedTokenizerFast, output_dir: Path) -> None:
    """Write tokenizer.json and tokenizer_config.json; other files in `output_dir` are left alone.

    Raises InputError: `output_dir` is a file, or (StorageError) cannot be written.
    """
    check_output_dir(output_dir)
    with tempfile.TemporaryDirectory() as folder:
        try:
            loading.save_tokenizer_files(tokenizer, folder)
        except OSError as error:
            raise StorageError(f"cannot write {folder}, on the way to {output_dir}: {error}") from error
        for name in _FILES:
            text = Path(folder, name).read_text(encoding="utf-8")
            write_text(Path(output_dir).resolve() / name, text, hint=". Choose another --output_dir.")


def load_tokenizer(path: str | Path) -> PreTrainedTokenizerFast:
    """Read a folder that holds tokenizer.json, from here or from any fast tokenizer of transformers.

    Raises InputError: the folder or its tokenizer.json is missing, or does not hold a tokenizer for raw text.
    """
    folder = Path(path)
    if not (folder / "tokenizer.json").is_file():
        what = "there is no tokenizer.json in it" if folder.is_dir() else "there is no such folder"
        place = "runs/tokenizer" if folder.exists() else folder  # whose files are not ours
        raise InputError(
            f"cannot load a tokenizer from {folder}: {what}. "
            f"Train one: python recipes/train_tokenizer.py --output_dir {place}"
        )
    check_foreign(folder, tokenizer=True)
    try:
        found = without_panic(PreTrainedTokenizerFast.from_pretrained, folder)
    except Exception as error:  # the Rust library raises bare Exception
        raise InputError(
            f"{folder} does not hold a tokenizer that can be read ({type(error).__name__}: {str(error)[:200]}). "
            "Train it again with recipes/train_tokenizer.py."
        ) from error
    return _for_raw_text(found, folder)


def _for_raw_text(tokenizer: Any, name: str | Path) -> Any:
    """The tokenizer, unless fine-tuning has let it begin every text with a space, which many sentences do not."""
    if '"prepend": " "' in json.dumps(json.loads(tokenizer.backend_tokenizer.to_str())["normalizer"]):
        raise InputError(
            f"the tokenizer of {name} begins every text with a space, as fine-tuning has it; raw text wants the one "
            "that the model was pretrained with: name its folder with --tokenizer"
        )
    return tokenizer


def tokenizer_fingerprint(tokenizer: PreTrainedTokenizerFast) -> str:
    """SHA-256 (hexadecimal) of what decides the ids of a text: normalizer, pre-tokenizer, model and added tokens.

    Templates, padding and maximum length do not count: `adapt_tokenizer` leaves it as it is.
    """
    state = json.loads(tokenizer.backend_tokenizer.to_str())
    parts = {key: state[key] for key in ("normalizer", "pre_tokenizer", "model", "added_tokens")}
    if merges := parts["model"].get("merges"):  # as older versions of the library wrote them
        parts["model"]["merges"] = [" ".join(merge) for merge in merges]
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def load_or_train(
    text: Any,
    *,
    tokenizer: str | None,
    model: str | None,
    trust_remote_code: bool = False,
    revision: str | None = None,
    **vocabulary: Any,
) -> Any:
    """The tokenizer that --tokenizer names, else that of --model (at `revision` of the Hub), else one that is learned
    on the text, which has `texts()` and a `fingerprint`; it is None where there is only a token store. `vocabulary`
    are options of `train_bpe`.

    Raises InputError: there is none, it cannot be loaded, or there is nothing to learn from.
    """
    if model and not Path(model).is_dir() and tokenizer in (None, "", model):
        found = loading.load_tokenizer(model, trust_remote_code=trust_remote_code, revision=revision)
        return _for_raw_text(found, model)
    folder = tokenizer or model
    if not folder and text is None:
        raise InputError("--corpus goes without --data, and with the --tokenizer that it was made with")
    if not folder:
        key = hashlib.sha256(f"{text.fingerprint} {PATTERNS} {sorted(vocabulary.items())}".encode()).hexdigest()[:16]
        folder = str(cache_folder() / "tokenizers" / key)
        train_once(documents=text.texts(), output_dir=Path(folder), **vocabulary)
    return load_tokenizer(folder)


def train_once(*, documents: Iterable[str], output_dir: Path, **options: Any) -> None:
    """Learn a tokenizer from a sample of a text and save it at `output_dir`, unless it is there: a place of its own,
    named by what decides it. Options are those of `train_bpe`. The documents are read only if there is something to
    learn."""
    waiting = f"another process is learning the tokenizer {output_dir}; waiting for it"
    with locked(output_dir.with_name(f".{output_dir.name}.lock"), waiting=waiting):
        if (output_dir / "tokenizer.json").is_file():
            return
        sample = sample_documents(documents=documents, max_bytes=TokenizerArguments.max_bytes)
        with warnings.catch_warnings():
            warnings.simplefilter("always", UserWarning)
            warnings.showwarning = lambda message, *_, **__: print(f"warning: {message}", file=sys.stderr)
            made = train_bpe(documents=sample.training(), **options)
        if (pattern := pattern_of(made.backend_tokenizer)) != "gpt2":
            what = f"letters with combining marks: the tokenizer cuts it by --pattern {pattern}"
            print(f"this text has {what}, which llama.cpp does not know: no GGUF", file=sys.stderr)
        save_tokenizer(tokenizer=made, output_dir=output_dir)
