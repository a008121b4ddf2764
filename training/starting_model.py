"""The model that pretraining starts from: a new one of --family and --size, or the one that --model names."""

from typing import Any

import transformers

from lacuna.common.errors import InputError
from lacuna.common.loading import check_vocabulary, load_configuration, load_model, num_positions

from .arguments import NewModelArguments

DEFAULT_FAMILY = {"encoder": "lacuna", "decoder": "qwen3", "encoder-decoder": "bart"}
_BOTH_HEADS = "AutoModelForPreTraining"
"""Of masked words and of the relation of two sentences; some native families have the first alone."""


def starting_model(
    arguments: NewModelArguments, *, modeling: Any, objective: Any, tokenizer: Any, length: int, seed: int
) -> Any:
    """A new model, or the one that --model names, with a head for the objective and positions for `length` tokens.

    Args:
        modeling: the room of that name: `LacunaConfig`, `as_ours`, by which a native model becomes one of ours.
        objective: its `name`, the `shape` of model that it trains, and `head`, the name of an Auto class.

    Raises:
        InputError: there is no such model, it cannot have that head, or it is too small.
        CorruptCheckpointError: its weights cannot be read.
    """
    transformers.set_seed(seed)
    if arguments.model:
        model = modeling.as_ours(_load(arguments, arguments.model, objective.head, tokenizer, length))
        if objective.head == _BOTH_HEADS and type(model) is modeling.LacunaForMaskedLM:
            masked, model = model, modeling.LacunaForPreTraining(model.config)
            model.load_state_dict(masked.state_dict(), strict=False)  # all but the sentence head, which is new
        return model
    family = arguments.family or DEFAULT_FAMILY[objective.shape]
    ids = {f"{name}_token_id": getattr(tokenizer, f"{name}_token_id") for name in ("pad", "bos", "eos", "cls", "sep")}
    config = modeling.LacunaConfig.from_family(
        family,
        arguments.size,
        hybrid=objective.name == "hybrid",
        vocab_size=-(-len(tokenizer) // 64) * 64,
        max_position_embeddings=max(length, 512),
        **ids,
    )
    if config.shape != objective.shape:
        raise InputError(
            f"--objective {objective.name} trains models of shape {objective.shape}, and --family "
            f"{arguments.family} has shape {config.shape}; use --family {DEFAULT_FAMILY[objective.shape]}"
        )
    return getattr(transformers, objective.head).from_config(config)


def _load(arguments: NewModelArguments, model: str, head: str, tokenizer: Any, length: int) -> Any:
    code, revision = arguments.trust_remote_code, arguments.revision
    config = load_configuration(model, trust_remote_code=code, revision=revision)
    if head == _BOTH_HEADS and type(config) not in transformers.MODEL_FOR_PRETRAINING_MAPPING:
        head = "AutoModelForMaskedLM"
    loaded, _ = load_model(model, auto_class=head, trust_remote_code=code, revision=revision)
    check_vocabulary(tokenizer=tokenizer, model=loaded)
    longest = num_positions(loaded.config)
    if longest is not None and length > longest:
        raise InputError(
            f"--sequence_length {length} is more than the {longest} positions of --model {model}; lower it"
        )
    return loaded
