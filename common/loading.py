"""Load configuration, tokenizer and weights from a folder or the Hub, with errors that say what to do."""

import difflib
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import huggingface_hub
import torch
import transformers
from huggingface_hub.errors import HFValidationError, LocalEntryNotFoundError, RemoteEntryNotFoundError
from safetensors import SafetensorError
from tqdm import tqdm

from .errors import CorruptCheckpointError, HubError, InputError
from .foreign import check_foreign, without_panic
from .hub import READING, hub_errors

UNREADABLE = (OSError, ValueError, KeyError, TypeError, RuntimeError, huggingface_hub.errors.StrictDataclassError)
COUNT_POSITIONS_FROM_PADDING = {
    *("camembert", "data2vec-text", "esm", "ibert", "lilt", "longformer", "luke", "mpnet", "roberta"),
    *("roberta-prelayernorm", "xlm-roberta", "xlm-roberta-xl", "xmod"),
}
"""Model types whose first position is the id after that of their padding token, so that the ones before are lost."""


def first_line(error: Exception) -> str:
    """First line of an error from transformers; names our option where it asks for remote code."""
    line = next(iter(str(error).strip().splitlines()), type(error).__name__)
    if "use_safetensors" in line:
        line = f"{line.partition(' Please')[0]} Weights in other files can run code and are not opened (SECURITY.md)"
    return f"{line} Allow that with --trust_remote_code" if "trust_remote_code" in str(error) else line


def _is_path(model: str) -> bool:
    """Whether a --model cannot be a Hub id, which has at most one slash, as in OWNER/NAME."""
    return model.startswith(("./", "../", "/", "~", "runs/")) or model.endswith("/") or model.count("/") > 1


def missing_folder(model: str) -> str | None:
    """The message for a --model that is a path to no folder; None for anything else."""
    folder, name = os.path.split(model.rstrip("/"))
    if os.path.isdir(model) or not (_is_path(model) or os.path.isdir(folder)):
        return None
    near: list[str] = []
    with suppress(OSError):  # of a parent that is not there either
        near = difflib.get_close_matches(name, os.listdir(folder or "."), n=1)
    more = f" Did you mean {os.path.join(folder, near[0])}?" if near else ""
    if os.path.isfile(model):
        more = " It is a file; pass the folder that contains it."
    return f"--model: there is no folder {model}.{more}"


def refuse_missing(model: str) -> None:
    """InputError for a --model that is a path to no folder, or a file, or nearly the name of a folder beside it."""
    missing = missing_folder(model)
    if missing and (_is_path(model) or not missing.endswith(f" {model}.")):
        raise InputError(missing)


def check_folder(model: str) -> None:
    """Refuse a path that is no folder, or has no config.json, with an InputError, before transformers asks the Hub."""
    refuse_missing(model)
    folder = Path(model)
    if not folder.is_dir() or (folder / "config.json").is_file():
        return
    if not (folder / "adapter_config.json").is_file():
        raise InputError(f"--model {model} is not a model: the folder has no config.json")
    whole = folder.resolve().parent
    if (whole / "config.json").is_file():
        say = f"pass {folder.parent if folder.parent.name else whole}, which has the adapter merged in"
    else:
        say = "merge it into its base model (peft's merge_and_unload) and pass the result"
    raise InputError(f"--model {model} holds only an adapter (adapter_config.json): {say}")


def file_of(model: str, name: str, *, revision: str | None = None) -> Path | None:
    """A file of a model, which is downloaded if the model is on the Hub; None where it has none of that name.

    HubError: the Hub does not show the model, has no such revision, or is out of reach.
    """
    if Path(model).is_dir() or _is_path(model):
        return path if (path := Path(model, name)).is_file() else None
    with hub_errors(f"--model {model}" + (f" --revision {revision}" if revision else ""), READING):
        try:
            return Path(huggingface_hub.hf_hub_download(model, name, revision=revision))
        except (HFValidationError, RemoteEntryNotFoundError):
            return None
        except LocalEntryNotFoundError:
            if not huggingface_hub.is_offline_mode():
                raise
            return None


def commit_of(model: str | None, *, revision: str | None = None) -> str | None:
    """The commit of a model of the Hub, so that all that is loaded of it is of one state; None for a folder.

    Raises InputError: a folder has no revisions, or there is none of that name; HubError: see `file_of`.
    """
    if model:
        refuse_missing(model)
    if model and not Path(model).is_dir():
        try:
            found = file_of(model, "config.json", revision=revision)
            if found is None and huggingface_hub.is_offline_mode():
                raise HubError(f"--model {model} is not in the cache, and HF_HUB_OFFLINE allows no more: unset it")
        except HubError as error:
            if message := missing_folder(model):
                raise InputError(message) from None
            raise type(error)(f"{error}. There is no folder {model} here either") from None
        return revision if found is None else found.parent.name
    if revision:
        raise InputError(f"--revision {revision} is for a --model of the Hub, not for {model or 'none'}: leave it out")
    return None


def look_through(model: str, *, revision: str | None = None, **opened: bool) -> None:
    """`check_foreign` before a library opens a model; of one of the Hub small files are fetched (see `file_of`)."""
    folder: Path | None = Path(model)
    if not (Path(model).is_dir() or _is_path(model)):
        how: dict[str, Any] = {"revision": revision, "tqdm_class": partial(tqdm, disable=True)}
        with hub_errors(f"--model {model}" + (f" --revision {revision}" if revision else ""), READING):
            try:
                files = ["*.json", "[0-9]*_*/*.bin"]  # the latter of modules of sentence-transformers
                folder = Path(huggingface_hub.snapshot_download(model, allow_patterns=files, **how))
            except (HFValidationError, LocalEntryNotFoundError):  # no name of the Hub, or not all is in the cache
                found = file_of(model, "config.json", revision=revision)
                folder = found and found.parent
        if folder and (folder / "adapter_config.json").is_file():
            raise InputError(f"--model {model} has an adapter, which names another model: merge it into that")
    if folder and folder.is_dir():
        check_foreign(folder, **opened)


@contextmanager
def opening(model: str, failing: str) -> Iterator[None]:
    """Without transformers' table of new weights; errors are CorruptCheckpointError or InputError, "FAILING: why"."""
    before = transformers.logging.get_verbosity()
    transformers.logging.set_verbosity_error()
    try:
        yield
    except SafetensorError as error:
        raise CorruptCheckpointError(f"--model {model}: its weights cannot be read: {first_line(error)}") from error
    except UNREADABLE as error:
        why = first_line(error)
        if Path(model, "export.json").is_file() and "tokenizer" not in failing:
            why = "it is an ONNX export, for onnxruntime, and for predict.py if it has a head"
        elif why.startswith("Unrecognized configuration class"):
            why = "there is no such head for its kind of model; name another --model"
        raise InputError(missing_folder(model) or f"{failing}: {why}") from error
    finally:
        transformers.logging.set_verbosity(before)


def load_configuration(model: str, *, trust_remote_code: bool = False, revision: str | None = None) -> Any:
    """The configuration of a model, at a `revision` as `commit_of` gives it. InputError: there is no such model."""
    check_folder(model)
    look_through(model, revision=revision)
    options = {"trust_remote_code": trust_remote_code, "revision": revision or "main"}
    with opening(model, f"--model {model} cannot be read"):
        return transformers.AutoConfig.from_pretrained(model, **options)


def load_tokenizer(model: str, *, trust_remote_code: bool = False, revision: str | None = None) -> Any:
    """The tokenizer of a model, at a `revision` of the Hub. InputError: there is none, or its files are missing."""
    refuse_missing(model)
    look_through(model, revision=revision, tokenizer=True)
    options: dict[str, Any] = {"trust_remote_code": trust_remote_code, "revision": revision or "main"}
    with opening(model, f"cannot load the tokenizer of --model {model}"):
        tokenizer = without_panic(transformers.AutoTokenizer.from_pretrained, model, **options)
    if len(tokenizer) <= len(tokenizer.all_special_ids):  # what transformers makes up where the files are missing
        raise InputError(f"--model {model} has no tokenizer: copy tokenizer.json and tokenizer_config.json there")
    return tokenizer


def save_tokenizer_files(tokenizer: Any, folder: str | Path) -> None:
    """Write a tokenizer so that transformers 4.57 reads it too.

    transformers 5 names a class that older versions do not know, and gives a list under a name where they expect a
    dictionary; both have older names, which it still reads.
    """
    tokenizer.save_pretrained(folder)
    path = Path(folder, "tokenizer_config.json")
    if not path.is_file():
        return
    about = json.loads(path.read_text(encoding="utf-8"))
    if about.get("tokenizer_class") == "TokenizersBackend":
        about["tokenizer_class"] = "PreTrainedTokenizerFast"
    if isinstance(extra := about.get("extra_special_tokens"), list):
        del about["extra_special_tokens"]
        about |= {"additional_special_tokens": extra} if extra else {}
    for key in ("backend", "is_local", "local_files_only"):  # how it came here, not what it is
        about.pop(key, None)
    path.write_text(json.dumps(about, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def add_old_keys(path: Path) -> None:
    """Say the rotary base in a native config.json as transformers 4 has it too, which otherwise takes 10,000."""
    config = json.loads(path.read_text(encoding="utf-8"))
    if theta := (config.get("rope_parameters") or {}).get("rope_theta"):
        path.write_text(json.dumps(config | {"rope_theta": theta}, indent=2) + "\n", encoding="utf-8")


def load_model(
    model: str, *, auto_class: str, trust_remote_code: bool = False, revision: str | None = None, **options: Any
) -> tuple[Any, dict[str, Any]]:
    """The weights of a model with a head, in float32 whatever the file holds: bf16 weights swallow small updates.

    `auto_class` names the Auto class of the head, and `options` are more of what `from_pretrained` takes. Returns the
    model and transformers' report: `missing_keys`, `unexpected_keys`, `mismatched_keys`. Raises InputError: there is
    no such model, or it cannot have that head; CorruptCheckpointError: weights cannot be read, or are missing of its
    body.
    """
    look_through(model, revision=revision, weights=True)
    with opening(model, f"--model {model} cannot be loaded as {auto_class}"):
        how: dict[str, Any] = {"trust_remote_code": trust_remote_code, "revision": revision or "main", **options}
        how |= {"dtype": torch.float32, "output_loading_info": True, "use_safetensors": True}
        loaded, report = getattr(transformers, auto_class).from_pretrained(model, **how)
    body = "" if loaded.base_model is loaded else f"{loaded.base_model_prefix}."
    if body == "transformer." and any(name.startswith("model.") for name in report["unexpected_keys"]):
        # The head for questions of Llama, Qwen3 and others calls the body by another name than their other heads do.
        origin: dict[str, Any] = {"trust_remote_code": trust_remote_code, "revision": revision}
        loaded.base_model.load_state_dict(load_model(model, auto_class="AutoModel", **origin)[0].state_dict())
        report["missing_keys"] = {name for name in report["missing_keys"] if not name.startswith(body)}
    lacking = sorted(name for name in report["missing_keys"] if name.startswith(body) and "pooler" not in name)
    if lacking:
        raise CorruptCheckpointError(
            f"--model {model} is incomplete: {lacking[0]!r} is missing ({len(lacking)} weights of its body are)"
        )
    if auto_class != "AutoModelForQuestionAnswering" and getattr(loaded.config, "question_aware", False):
        loaded.config.question_aware = False  # which says something of that head alone: with another one it is native
    return loaded, report


class Exported(transformers.PreTrainedModel):
    """An ONNX export as a model of transformers: it has a configuration, and answers through onnxruntime."""

    _supports_sdpa = True

    def __init__(self, exported: Any) -> None:
        super().__init__(exported.config)
        self.exported = exported

    @property
    def device(self) -> torch.device:
        return self.exported.device

    def get_input_embeddings(self) -> torch.nn.Module:
        """As many rows as it knows tokens, and no weights, which are in the graph."""
        return torch.nn.Embedding(self.config.vocab_size, 1, device="meta")

    def forward(self, **inputs: Any) -> Any:
        """What the model that was exported would answer; inputs that its graph does not have are left out."""
        return self.exported(**inputs)


def load_exported(model: str, *, trust_remote_code: bool = False, revision: str | None = None) -> Exported:
    """What `recipes/export_model.py --format onnx` wrote. InputError: it, or what runs it, cannot be loaded."""
    look_through(model, revision=revision)
    try:
        from transformers.exporters import ExportedModel

        loaded = ExportedModel.from_pretrained(model, trust_remote_code=trust_remote_code, revision=revision or "main")
        head = next(iter(loaded.config.architectures or []), "Exported")
        return type(head, (Exported,), {})(loaded)  # pipelines go by the name of the class
    except (ImportError, OSError, ValueError, KeyError, RuntimeError) as error:
        needs = "; it needs pip install -e '.[onnx]'" if isinstance(error, ImportError) else ""
        raise InputError(f"--model {model}, an ONNX export, cannot be opened: {first_line(error)}{needs}") from error


def num_positions(config: Any) -> int | None:
    """Tokens that a model has positions for; None without a limit."""
    positions = getattr(config, "max_position_embeddings", None)
    if positions is not None and getattr(config, "model_type", None) in COUNT_POSITIONS_FROM_PADDING:
        positions -= (config.pad_token_id or 0) + 1
    return positions


def longest_input(*, config: Any, tokenizer: Any) -> int | None:
    """Most tokens that model and tokenizer take, special tokens included; None when neither has a limit."""
    limits = [num_positions(config), getattr(tokenizer, "model_max_length", None)]
    finite = [int(limit) for limit in limits if limit is not None and 0 < limit < 10**9]
    return min(finite) if finite else None


def check_vocabulary(*, tokenizer: Any, model: Any) -> None:
    """Refuse a tokenizer that has ids which the model has no embedding for. Raises InputError: it has."""
    rows = model.get_input_embeddings().weight.shape[0]
    if len(tokenizer) > rows:
        raise InputError(
            f"the tokenizer has {len(tokenizer)} ids but the model embeds only {rows}: --model must name a folder "
            "whose tokenizer was trained with its model"
        )
