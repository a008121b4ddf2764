"""The model that a task starts from: a checkpoint of Lacuna or any native model, with a head for the task."""

import difflib
import os
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors import SafetensorError

from lacuna.common.errors import CorruptCheckpointError, InputError

_READ_THE_LAST_PLACE = {"xlnet"}
"""Models whose classifiers read the last place of a row, be it padding or not."""
_COUNT_FROM_PADDING = {
    *("camembert", "data2vec-text", "esm", "ibert", "lilt", "longformer", "luke", "mpnet", "roberta"),
    *("roberta-prelayernorm", "xlm-roberta", "xlm-roberta-xl", "xmod"),
}
"""Models whose first position is the number after that of their padding token, so that the ones before are lost."""


def _first_line(error: Exception) -> str:
    line = next(iter(str(error).strip().splitlines()), type(error).__name__)
    return f"{line} Allow that with --trust_remote_code" if "trust_remote_code" in str(error) else line


def _is_path(model: str) -> bool:
    """Whether a --model can be no name of the Hub, which has one slash at most, as OWNER/NAME."""
    return model.startswith(("./", "../", "/", "~", "runs/")) or model.count("/") > 1


def missing_folder(model: str) -> str | None:
    """What is wrong with a --model that names a place on this machine where no folder is; None of all others."""
    folder, name = os.path.split(model.rstrip("/"))
    if os.path.isdir(model) or not (_is_path(model) or os.path.isdir(folder)):
        return None
    near: list[str] = []
    with suppress(OSError):  # of a parent that is not there either
        near = difflib.get_close_matches(name, os.listdir(folder or "."), n=1)
    more = f" Did you mean {os.path.join(folder, near[0])}?" if near else ""
    if os.path.isfile(model):
        more = " It is a file: name the folder that it is in."
    return f"there is no folder {model}, which --model names.{more}"


def check_folder(model: str) -> None:
    """Refuse a path where no model is, before transformers asks the Hub for what is not there.

    Raises:
        InputError: there is no folder, it has no config.json, or nothing but low-rank additions.
    """
    if _is_path(model) and (missing := missing_folder(model)):
        raise InputError(missing)
    folder = Path(model)
    if not folder.is_dir() or (folder / "config.json").is_file():
        return
    if not (folder / "adapter_config.json").is_file():
        raise InputError(f"--model {model} is not a model that can be read: the folder has no config.json")
    whole = folder.resolve().parent
    if (whole / "config.json").is_file():
        say = f"the model that has them merged in is {folder.parent if folder.parent.name else whole}: name that"
    else:
        say = "merge them into the model that they were trained on (merge_and_unload of peft), and name that"
    raise InputError(f"--model {model} holds low-rank additions (adapter_config.json) and no model: {say}")


def load_configuration(*, model: str | None, trust_remote_code: bool = False, writes: bool = False) -> tuple[Any, Any]:
    """The configuration and the tokenizer of a checkpoint; the tokenizer knows how long a text the model takes.

    Args:
        model: a folder or Hub id, the value of --model.
        trust_remote_code: whether code in the checkpoint may run; checkpoints of Lacuna need none where `modeling`
            is imported.
        writes: whether the model is to go on with texts; else the tokenizer pads as `pad_for_reading` has it.

    Raises:
        InputError: no model was named, or there is no model or no fast tokenizer under that name.
    """
    if not model:
        raise InputError("fine-tuning needs a pretrained model: name its folder or Hub id with --model")
    check_folder(model)
    options = {"trust_remote_code": trust_remote_code}
    try:
        config = transformers.AutoConfig.from_pretrained(model, **options)
    except (OSError, ValueError, KeyError) as error:
        reason = f"--model {model} is not a model that can be read: {_first_line(error)}"
        raise InputError(missing_folder(model) or reason) from error
    try:
        tokenizer = transformers.AutoTokenizer.from_pretrained(model, **options)
    except (OSError, ValueError, KeyError) as error:
        raise InputError(f"--model {model} holds no tokenizer that can be read: {_first_line(error)}") from error
    if len(tokenizer) <= len(tokenizer.all_special_ids):  # what transformers makes up where the files are missing
        raise InputError(
            f"--model {model} holds no tokenizer: copy its tokenizer.json, tokenizer_config.json there"
        )
    if not tokenizer.is_fast:
        raise InputError(f"--model {model} has no fast tokenizer (tokenizer.json), which maps tokens to characters")
    tokenizer.model_max_length = longest_input(config=config, tokenizer=tokenizer) or tokenizer.model_max_length
    if not writes:
        pad_for_reading(config=config, tokenizer=tokenizer)
    return config, tokenizer


def pad_for_reading(*, config: Any, tokenizer: Any) -> None:
    """Let the tokenizer pad on the right, where a model that goes on with no text does not mind it.

    Decoders come with padding on the left. Those that learn a vector for each position count it from the first place
    of the row, and would see the same text at other positions beside a longer one.

    Args:
        config: the model's configuration.
        tokenizer: its tokenizer, which is changed, and saved so beside the fine-tuned model.
    """
    if config.model_type not in _READ_THE_LAST_PLACE:
        tokenizer.padding_side = "right"


def longest_input(*, config: Any, tokenizer: Any) -> int | None:
    """Most tokens that model and tokenizer take, special tokens included; None when neither has a limit.

    Args:
        config: the model's configuration.
        tokenizer: its tokenizer; transformers writes "no limit" as a number near 1e30.
    """
    positions = getattr(config, "max_position_embeddings", None)
    if positions is not None and getattr(config, "model_type", None) in _COUNT_FROM_PADDING:
        positions -= (config.pad_token_id or 0) + 1
    limits = [positions, getattr(tokenizer, "model_max_length", None)]
    finite = [int(limit) for limit in limits if limit is not None and 0 < limit < 10**9]
    return min(finite) if finite else None


def resolve_max_length(*, asked: int | None, default: int, config: Any, tokenizer: Any) -> int:
    """The length to cut inputs to: what was asked for, else the smaller of `default` and what the model takes.

    Raises:
        InputError: more was asked for than the model takes.
    """
    limit = longest_input(config=config, tokenizer=tokenizer)
    if asked is None:
        return default if limit is None else min(default, limit)
    if limit is not None and asked > limit:
        raise InputError(f"--max_length {asked} is more than the {limit} tokens that the model takes: lower it")
    return asked


def check_tokenizer(*, tokenizer: Any, embedding_rows: int) -> None:
    """Refuse a tokenizer that does not belong to the model, or cannot make batches for it.

    Args:
        embedding_rows: rows of the model's input embedding; ids must lie below.

    Raises:
        InputError: ids beyond the embedding, or no padding token to make batches with.
    """
    if len(tokenizer) > embedding_rows:
        raise InputError(
            f"the tokenizer has {len(tokenizer)} ids but the model embeds only {embedding_rows}: "
            "--model must name a folder whose tokenizer was trained with its model"
        )
    if tokenizer.pad_token_id is None:
        raise InputError(
            "the tokenizer has no padding token, which batches of texts of different length need: "
            "set tokenizer.pad_token (often to its eos_token) and save it in the folder of --model"
        )


@contextmanager
def _quiet() -> Iterator[None]:
    """Without the table of transformers on a head that is new, which is what fine-tuning is about."""
    before = transformers.logging.get_verbosity()
    transformers.logging.set_verbosity_error()
    try:
        yield
    finally:
        transformers.logging.set_verbosity(before)


def _pooling_name(model: str, pooling: str, *, trust_remote_code: bool) -> str:
    """What the configuration of an encoder calls a pooling.

    Raises:
        InputError: its classifier has no choice.
    """
    config = transformers.AutoConfig.from_pretrained(model, trust_remote_code=trust_remote_code)
    own = getattr(config, "classifier_pooling", None)
    names = {"first": "first" if config.model_type == "lacuna" else "cls", "mean": "mean"}
    if own not in names.values():
        raise InputError(
            f"--pooling {pooling}: the classifier of --model {model} ({config.model_type}) always reads "
            f"{'the same token' if own is None else f'the {own} token'}: leave --pooling out"
        )
    return names[pooling]


def load_model(
    *,
    auto_class: str,
    model: str,
    tokenizer: Any,
    label_names: Sequence[str] | None = None,
    problem_type: str | None = None,
    pooling: str = "auto",
    trust_remote_code: bool = False,
    seed: int = 0,
) -> Any:
    """A checkpoint with the head of a task, in float32; what the checkpoint lacks is drawn from `seed`.

    Args:
        auto_class: name of the Auto class of the head, such as "AutoModelForSequenceClassification".
        model: a folder or Hub id.
        tokenizer: the tokenizer that will make its inputs.
        label_names: labels in the order of the head's outputs, written to `config.id2label`; a head of another
            number of labels in the checkpoint is replaced.
        problem_type: written to `config.problem_type` beside them; None: the head has none.
        pooling: "first" or "mean": what of an encoder a classifier reads; "auto": as its configuration says. A
            decoder's is the last token that is not padding.

    Raises:
        InputError: the model has no such head or pooling, the tokenizer does not fit, or weights do not fit the
            configuration.
        CorruptCheckpointError: the weights cannot be read.
    """
    labels: dict[str, Any] = {}
    if label_names is not None:
        labels = {
            "id2label": dict(enumerate(label_names)),
            "label2id": {name: number for number, name in enumerate(label_names)},
        }
    if problem_type is not None:
        labels["problem_type"] = problem_type
    if pooling != "auto":
        labels["classifier_pooling"] = _pooling_name(model, pooling, trust_remote_code=trust_remote_code)
    transformers.set_seed(seed)
    try:
        with _quiet():
            loaded, report = getattr(transformers, auto_class).from_pretrained(
                model,
                dtype=torch.float32,  # the default keeps the precision of the file, and bf16 weights do not train well
                trust_remote_code=trust_remote_code,
                ignore_mismatched_sizes=True,
                output_loading_info=True,
                **labels,
            )
    except SafetensorError as error:
        raise CorruptCheckpointError(f"--model {model}: its weights cannot be read: {_first_line(error)}") from error
    except (OSError, ValueError, KeyError) as error:
        raise InputError(f"--model {model} cannot be loaded as {auto_class}: {_first_line(error)}") from error
    body = f"{loaded.base_model_prefix}."
    misfits = [str(item[0] if isinstance(item, tuple) else item) for item in report["mismatched_keys"]]
    if any(name.startswith(body) for name in misfits):
        raise InputError(f"--model {model}: weights and config.json disagree on the shape of {misfits[0]}")
    lacking = sorted(name for name in report["missing_keys"] if name.startswith(body) and "pooler" not in name)
    if lacking:
        warnings.warn(
            f"--model {model} lacks {len(lacking)} weights of its body, which begin at random: {lacking[0]} ...",
            stacklevel=2,
        )
    check_tokenizer(tokenizer=tokenizer, embedding_rows=loaded.get_input_embeddings().num_embeddings)
    if getattr(loaded.config, "pad_token_id", None) is None or (
        auto_class.endswith("ForSequenceClassification") and loaded.config.model_type not in _COUNT_FROM_PADDING
    ):
        loaded.config.pad_token_id = tokenizer.pad_token_id  # decoders look for the last token that is not padding
    return loaded
