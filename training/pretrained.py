"""The model that a run starts from, when --model names one."""

from typing import Any

import transformers
from safetensors import SafetensorError

from lacuna.common.errors import CorruptCheckpointError, InputError

from .arguments import ModelArguments


def load_pretrained_tokenizer(arguments: ModelArguments) -> Any:
    """Load the tokenizer of --model, a folder or a Hub id.

    Raises:
        InputError: there is none.
    """
    name = arguments.model
    try:
        return transformers.AutoTokenizer.from_pretrained(name, trust_remote_code=arguments.trust_remote_code)
    except (OSError, ValueError, KeyError) as error:
        reason = next(iter(str(error).strip().splitlines()), type(error).__name__)
        raise InputError(f"--model {name} has no tokenizer that can be loaded: {reason}") from error


def load_pretrained(*, arguments: ModelArguments, auto_class: str, num_ids: int, sequence_length: int) -> Any:
    """Load the model of --model with a head.

    Args:
        auto_class: name of the Auto class, as in transformers.
        num_ids: ids of the tokenizer, which the embedding must hold.
        sequence_length: tokens in a row, for which the model must have positions.

    Raises:
        InputError: there is no such model, it cannot have that head, or it is too small for tokenizer or rows.
        CorruptCheckpointError: its weights cannot be read.
    """
    name = arguments.model
    try:
        # float32 whatever the file holds: bf16 weights would swallow small updates.
        model = getattr(transformers, auto_class).from_pretrained(
            name, dtype="float32", trust_remote_code=arguments.trust_remote_code
        )
    except SafetensorError as error:
        raise CorruptCheckpointError(f"--model {name}: its weights cannot be read ({error})") from error
    except (OSError, ValueError, KeyError) as error:
        reason = next(iter(str(error).strip().splitlines()), type(error).__name__)
        raise InputError(f"--model {name} cannot be loaded with {auto_class}: {reason}") from error
    rows = model.get_input_embeddings().num_embeddings
    if num_ids > rows:
        raise InputError(
            f"the tokenizer has {num_ids} ids and --model {name} has embeddings for {rows}; "
            "use the tokenizer that the model was trained with"
        )
    longest = getattr(model.config, "max_position_embeddings", None)
    if longest is not None and sequence_length > longest:
        raise InputError(
            f"--sequence_length {sequence_length} is more than the {longest} positions of --model {name}; lower it"
        )
    return model
