"""Loading the model that a task starts from: a checkpoint of Lacuna or any native model, with a head for the task."""

import json
from collections.abc import Sequence
from typing import Any

import transformers
from tokenizers import normalizers

from lacuna.common import loading
from lacuna.common.errors import InputError

_READ_THE_LAST_TOKEN = {"xlnet"}  # models whose classifiers read the last token, be it padding or not
_FIRST_TOKENS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]  # the first ids of a tokenizer of Lacuna


def load_base(
    *, model: str | None, trust_remote_code: bool = False, revision: str | None = None, writes: bool = False
) -> tuple[Any, Any]:
    """The configuration and the tokenizer of a checkpoint; the tokenizer knows how long a text the model takes.

    One that `writes` generates text; for others see `pad_for_reading` and `read_first_words`. Raises InputError: no
    model was named, or there is no model or no fast tokenizer under that name.
    """
    if not model:
        raise InputError("fine-tuning needs a pretrained model: name its folder or Hub id with --model")
    config = loading.load_configuration(model, trust_remote_code=trust_remote_code, revision=revision)
    tokenizer = loading.load_tokenizer(model, trust_remote_code=trust_remote_code, revision=revision)
    if not tokenizer.is_fast:
        raise InputError(f"--model {model} has no fast tokenizer (tokenizer.json), which maps tokens to characters")
    longest = loading.longest_input(config=config, tokenizer=tokenizer)
    tokenizer.model_max_length = longest or tokenizer.model_max_length
    if not writes:
        pad_for_reading(config=config, tokenizer=tokenizer)
        read_first_words(tokenizer)
    return config, tokenizer


def pad_for_reading(*, config: Any, tokenizer: Any) -> None:
    """Let the tokenizer of a model that generates nothing pad on the right; it is saved so beside the model.

    Decoders come with padding on the left. Those that learn a vector for each position count positions from the first
    token of padding, and would see the same text at other positions beside a longer one.
    """
    if config.model_type not in _READ_THE_LAST_TOKEN:
        tokenizer.padding_side = "right"


def read_first_words(tokenizer: Any) -> None:
    """Let a tokenizer of Lacuna begin each text with one space, as words have it elsewhere; it is saved so.

    In a byte-level vocabulary "good" and " good" are two tokens, and a pretrained model has seen the second in every
    sentence, the first where lines begin. Short texts would begin with words that it hardly knows
    (docs/pretraining.md). Other tokenizers stay as they came.
    """
    backend = tokenizer.backend_tokenizer
    state = json.loads(backend.to_str())
    is_own = tokenizer.bos_token == tokenizer.cls_token == "[CLS]" and tokenizer.eos_token == tokenizer.sep_token
    is_own &= [backend.id_to_token(number) for number in range(len(_FIRST_TOKENS))] == _FIRST_TOKENS
    is_own &= "ByteLevel" in json.dumps(state["pre_tokenizer"])
    if is_own and "Prepend" not in json.dumps(state["normalizer"]):
        one_space = [normalizers.Strip(left=True, right=False), normalizers.Prepend(" ")]
        before = [] if backend.normalizer is None else [backend.normalizer]
        backend.normalizer = normalizers.Sequence([*before, *one_space])


def resolve_max_length(
    *, asked: int | None, default: int, config: Any, tokenizer: Any, option: str = "max_length"
) -> int:
    """The length to truncate inputs to: the requested one, else the smaller of `default` and what the model takes.

    InputError: more was requested, with `option`, than the model takes.
    """
    limit = loading.longest_input(config=config, tokenizer=tokenizer)
    if asked is None:
        return default if limit is None else min(default, limit)
    if limit is not None and asked > limit:
        raise InputError(f"--{option} {asked} is more than the {limit} tokens that the model takes: lower it")
    return asked


def check_tokenizer(*, tokenizer: Any, model: Any) -> None:
    """InputError for a tokenizer with ids that the model has no embedding for, or without a padding token."""
    loading.check_vocabulary(tokenizer=tokenizer, model=model)
    if tokenizer.pad_token_id is None:
        raise InputError(
            "the tokenizer has no padding token, which batches of texts of different length need: "
            "set tokenizer.pad_token (often to its eos_token) and save it in the folder of --model"
        )


def load_model(
    *,
    auto_class: str,
    model: str,
    tokenizer: Any,
    label_names: Sequence[str] | None = None,
    problem_type: str | None = None,
    pooling: str = "auto",
    trust_remote_code: bool = False,
    revision: str | None = None,
    seed: int = 0,
) -> Any:
    """A checkpoint with the head of a task, in float32; what the checkpoint lacks is drawn from `seed`.

    Labels are in the order of the head's outputs; a head of another number of labels is replaced. Pooling: "first" or
    "mean" is what of an encoder a classifier reads, "auto" as its configuration says. Raises InputError: no such head
    or pooling, or tokenizer or weights do not fit the configuration; CorruptCheckpointError: the weights cannot be
    read.
    """
    origin: dict[str, Any] = {"trust_remote_code": trust_remote_code, "revision": revision}
    options: dict[str, Any] = {"ignore_mismatched_sizes": True}
    if label_names is not None:
        numbers = {name: number for number, name in enumerate(label_names)}
        options |= {"id2label": dict(enumerate(label_names)), "label2id": numbers}
    if problem_type is not None:
        options["problem_type"] = problem_type
    if pooling != "auto":
        config = loading.load_configuration(model, **origin)
        own = getattr(config, "classifier_pooling", None)
        names = {"first": "first" if config.model_type == "lacuna" else "cls", "mean": "mean"}
        if own not in names.values():
            raise InputError(
                f"--pooling {pooling}: the classifier of --model {model} ({config.model_type}) always reads "
                f"{'the same token' if own is None else f'the {own} token'}: leave --pooling out"
            )
        options["classifier_pooling"] = names[pooling]
    transformers.set_seed(seed)
    loaded, report = loading.load_model(model, auto_class=auto_class, **origin, **options)
    body = f"{loaded.base_model_prefix}."
    misfits = [str(item[0] if isinstance(item, tuple) else item) for item in report["mismatched_keys"]]
    if any(name.startswith(body) for name in misfits):
        raise InputError(f"--model {model}: weights and config.json disagree on the shape of {misfits[0]}")
    check_tokenizer(tokenizer=tokenizer, model=loaded)
    counts_from_padding = loaded.config.model_type in loading.COUNT_POSITIONS_FROM_PADDING
    is_classifier = auto_class.endswith("ForSequenceClassification")
    if getattr(loaded.config, "pad_token_id", None) is None or (is_classifier and not counts_from_padding):
        loaded.config.pad_token_id = tokenizer.pad_token_id  # decoders look for the last token that is not padding
    return loaded
