"""The options of a pretraining objective."""

from dataclasses import dataclass, field
from typing import Any, Literal

from .data import ObjectiveError


def _option(default: Any, text: str) -> Any:
    return field(default=default, metadata={"help": text})


@dataclass
class ObjectiveArguments:
    """What the model is asked to fill in."""

    objective: Literal["mlm", "mlm_nsp", "clm"] = _option(
        "mlm_nsp",
        "mlm (masked tokens), mlm_nsp (masked tokens and next sentence, as BERT), clm (next token, for decoders).",
    )
    sequence_length: int = _option(128, "Tokens in one row, special tokens included.")
    mask_probability: float = _option(
        0.3, "Share of tokens to predict in mlm and mlm_nsp. Held-out text is always masked at 0.15."
    )
    eval_fraction: float = _option(0.05, "Share of the text, in whole documents, held out for evaluation; 0: none.")
    max_eval_examples: int = _option(512, "At most this many held-out examples are evaluated.")

    def __post_init__(self) -> None:
        if self.sequence_length < 8:
            raise ObjectiveError(f"--sequence_length must be at least 8, got {self.sequence_length}")
        if not 0 < self.mask_probability <= 1:
            raise ObjectiveError(f"--mask_probability must be above 0 and at most 1, got {self.mask_probability}")
        if not 0 <= self.eval_fraction < 1:
            raise ObjectiveError(f"--eval_fraction must be at least 0 and below 1, got {self.eval_fraction}")
        if self.max_eval_examples < 0:
            raise ObjectiveError(f"--max_eval_examples must not be negative, got {self.max_eval_examples}")
