"""Folders that others made are looked through before a library opens them; SECURITY.md says for what."""

import json
import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from math import prod
from pathlib import Path
from typing import Any

from .errors import InputError
from .private import shown

PICKLES = {".bin", ".ckpt", ".h5", ".msgpack", ".pickle", ".pkl", ".pt", ".pt2", ".pth"}
"""Endings of files that can run code when they are opened, or that nothing here reads."""
MOST_GROWTH = 1_000  # characters that a part of a tokenizer may make of one
_READ = re.compile(r".*safetensors\.index\.json|modules\.json|export\.json|.*config.*\.json")
_NAMES = {"configuration_files": "json", "fast_tokenizer_files": "json", "weight_map": "safetensors"}
_NAMES |= {"transformers_weights": r"safetensors(\.index\.json)?"}  # what names files, and how these end
_WRITTEN = {  # by libraries themselves
    *("_attn_implementation_autoset", "_commit_hash", "_from_model_config", "_name_or_path", "_num_labels"),
    *("_pad_token_id", "_remove_final_layer_norm", "_sliding_window_pattern", "__float__", "__type", "__version__"),
}
# Modules and arguments of sentence-transformers; classes of others it refuses itself without --trust_remote_code.
_MODULE = re.compile(r"(?!sentence_transformers\.).*|[\w.]+\.(Dense|Dropout|LayerNorm|Normalize|Pooling|Transformer)")
_ARGUMENTS = re.compile(r"(model|tokenizer|processor|config)_(args|kwargs)")
_HARMLESS = {"attn_implementation", "do_lower_case", "dtype", "max_length", "torch_dtype", "trust_remote_code"}


def check_foreign(folder: Path, *, tokenizer: bool = False, weights: bool = False) -> None:
    """InputError for a folder with which a library would run code, read files elsewhere or fill the memory.

    `tokenizer` and `weights` say whether they are opened next.
    """
    inside = [folder.resolve()]
    if is_cached := inside[0].parent.name == "snapshots":  # by the client of the Hub: each file is a link
        inside.append(inside[0].parents[1] / "blobs")
    modules = folder.glob("[0-9]*_*") if (folder / "modules.json").is_file() else ()
    for place in [folder, *filter(Path.is_dir, modules)]:
        for path in (paths := sorted(place.iterdir())):
            if path.is_symlink() and not any(path.resolve().is_relative_to(each) for each in inside):
                raise InputError(f"{shown(path)} is a link out of its folder: put a copy of the file in its place")
            if path.is_file() and _READ.fullmatch(path.name):
                _check(path)
            elif path.is_file() and tokenizer and re.fullmatch(r"tokenizer.*\.json", path.name):
                _check_growth(path)
        for start in ("", "adapter_model") if weights and not (is_cached and place == folder) else ():
            found = [path for path in paths if path.name.startswith(start)]
            unsafe = [path for path in found if path.suffix in PICKLES]
            if unsafe and not any(path.suffix in (".safetensors", ".onnx") for path in found):
                why = "whose like can run code when opened: convert it to safetensors (SECURITY.md says how)"
                raise InputError(f"the weights are in {shown(unsafe[0])}, {why}")


def _check(path: Path) -> None:
    """Refuse what a file of JSON would have a library do, wherever in it that stands."""
    for key, value in _pairs(read_json(path, list if path.name == "modules.json" else dict)):
        why, place, is_part = "", (path.name, key), isinstance(value, dict | list)
        ending = "onnx" if place == ("export.json", "file") else _NAMES.get(key)
        if "config" in path.name and key.startswith("_") and key not in _WRITTEN:
            why = "and sets what is inside a library: remove it"
        elif key.endswith(("attn_implementation", "experts_implementation")) and "/" in str(value):
            why = "code of the Hub, which is never fetched: write sdpa"
        elif place == ("export.json", "export_format") and value != "onnx":
            why = "which is not opened: export it again, to onnx"
        elif place == ("modules.json", "type") and not _MODULE.fullmatch(str(value)):
            why = "no module that is opened here: leave it out"
        elif place == ("modules.json", "path") and not re.fullmatch(r"|\d+_\w+", str(value)):
            why = "no name of a module's folder, as 1_Pooling is: write that"
        elif _ARGUMENTS.fullmatch(key) and isinstance(value, dict) and value.keys() - _HARMLESS:
            why = f"of which only {', '.join(sorted(_HARMLESS))} may be set: remove the others"
        elif ending and not is_part and not re.fullmatch(rf"(?!\.)[^/\\:\0]+\.{ending}", str(value)):
            why = f"no plain name of a file that ends with .{ending.split('(')[0]}: put one beside this, and name it"
        if why:
            raise InputError(f"{shown(path)}: {key} is {str(value)[:80]!r}, {why}")


def read_json(path: Path, *kinds: type) -> Any:
    """What a file of JSON holds; InputError where it is broken, or of none of these kinds."""
    with suppress(OSError, ValueError, RecursionError):
        if isinstance(content := json.loads(path.read_text(encoding="utf-8")), kinds):
            return content
    raise InputError(f"{shown(path)} cannot be read as JSON: mend or remove it")


def _pairs(part: Any, under: str = "") -> Iterator[tuple[str, Any]]:
    """Keys and values in a file, and all in these; names of files come with the key that they are under."""
    for key, value in part.items() if isinstance(part, dict) else [("", each) for each in part]:
        yield under or key, value
        if isinstance(value, dict | list) and key not in ("label2id", "prompts"):  # people choose the keys of these
            yield from _pairs(value, key if key in _NAMES else under)


def _check_growth(path: Path) -> None:
    """Refuse a tokenizer that multiplies text. Unicode's normal forms, at most 18 characters for one, do not count."""
    content = read_json(path, dict)
    for name in ("normalizer", "pre_tokenizer", "post_processor", "decoder"):
        steps = [step for _, step in _pairs([content.get(name)]) if isinstance(step, dict)]
        if (growth := prod(map(_growth, steps), start=1.0)) > MOST_GROWTH:
            what = f"makes up to {growth:.3g} characters of one, and {MOST_GROWTH:,} are allowed"
            raise InputError(f"{shown(path)}: its {name} {what}: take out steps that multiply text")


def _growth(step: dict[str, Any]) -> float:
    keys = list(_pairs(step))
    old, new = len(str(dict(keys).get("String", ""))), len(str(step.get("content")))
    grown = {
        "Replace": new / old if old else 1 + new,  # an expression may match the nothing between two characters
        "Prepend": 1 + len(str(step.get("prepend"))),
        "ByteLevel": 4,
        "TemplateProcessing": sum(key == "Sequence" for key, _ in keys),
    }
    return max(1.0, grown.get(str(step.get("type")), 1))


def without_panic(load: Callable[..., Any], *given: Any, **options: Any) -> Any:
    """What `load` makes of the rest, its tokenizer tried once; a panic of the library becomes an `InputError`."""
    try:
        loaded = load(*given, **options)
        with suppress(Exception):  # some want more than a text
            getattr(loaded, "tokenizer", loaded)("A gap.")
        return loaded
    except BaseException as error:  # a panic is no `Exception`
        if type(error).__name__ not in ("PanicException", "Exception"):  # the library raises the latter, too
            raise
        said = f"its tokenizer.json makes the tokenizers library fail ({str(error)[:99]!r})"
        raise InputError(f"{said}: copy it again") from None
