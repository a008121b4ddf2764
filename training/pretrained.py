"""The model that pretraining continues from, when --model names one."""

from typing import Any

from lacuna.common.errors import InputError
from lacuna.common.loading import check_vocabulary, load_model, num_positions


def load_pretrained(
    model: str, *, auto_class: str, tokenizer: Any, sequence_length: int, trust_remote_code: bool = False
) -> Any:
    """Load a model with a head, and refuse one that is too small for the tokenizer or the rows.

    Args:
        auto_class: name of the Auto class of the head.
        tokenizer: whose ids the embedding must hold.
        sequence_length: tokens in a row, for which the model must have positions.

    Raises:
        InputError: there is no such model, it cannot have that head, or it is too small.
        CorruptCheckpointError: its weights cannot be read.
    """
    loaded, _ = load_model(model, auto_class=auto_class, trust_remote_code=trust_remote_code)
    check_vocabulary(tokenizer=tokenizer, model=loaded)
    longest = num_positions(loaded.config)
    if longest is not None and sequence_length > longest:
        raise InputError(
            f"--sequence_length {sequence_length} is more than the {longest} positions of --model {model}; lower it"
        )
    return loaded
