"""The options of a pretraining objective."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, Literal

from lacuna.common.errors import InputError
from lacuna.common.options import Arguments, Numbers, check_range, essential, option

LONGEST = 1 << 20  # tokens in a row: more than any model reads
OBJECTIVES: dict[str, Any] = {}  # the class of each objective by its name; `objectives/__init__.py` fills it

_data = partial(option, group="data")
_objective = partial(option, group="objective")


@dataclass
class ObjectiveArguments(Arguments):
    """What the model is asked to fill in. docs/objectives.md shows an example of each."""

    objective: str = essential("mlm", "What the model learns.", choices=OBJECTIVES)
    sequence_length: Numbers = _objective(
        Numbers(128),
        "Tokens per row, special tokens included; 128,512 with --sequence_length_at 0,0.9 grows near the end.",
    )
    sequence_length_at: Numbers = _objective(
        Numbers(0), "Fraction of the run at which each --sequence_length starts, as in 0,0.9.", advanced=True
    )
    mask_probability: float = _objective(
        0.3, "Fraction of tokens to mask. Held-out text is always masked at 0.15 (denoising: at 0.3)."
    )
    masking: Literal["token", "whole_word", "span"] = _objective(
        "token", "Mask single tokens (token), whole words (whole_word) or spans of words (span)."
    )
    mask_replace_prob: float = _objective(0.8, "Fraction of masked tokens replaced by [MASK].", advanced=True)
    random_replace_prob: float = _objective(
        0.1, "Fraction of masked tokens replaced by a random token; the rest stay as they are.", advanced=True
    )
    packing: Literal["concatenate", "none"] = _objective(
        "concatenate",
        "How documents fill rows: concatenate (cut at row ends) or none (padded). Attention never crosses documents. "
        "Sentence pairs always have a row each.",
    )
    hybrid_causal_share: float = _objective(
        0.5, "Fraction of rows of --objective hybrid that are causal; the rest are masked.", advanced=True
    )
    embedding_init: Literal["cooccurrence", "random"] = _objective(
        "cooccurrence",
        "First embeddings of a new model: from which tokens of the text occur together, or random.",
        advanced=True,
    )
    eval_fraction: float = _data(0.05, "Fraction of documents to hold out for evaluation.")
    max_eval_examples: int = _data(512, "Most held-out examples to evaluate.", advanced=True)
    show_examples: int = _objective(0, "Print this many training examples and exit.")

    def __post_init__(self) -> None:
        self.sequence_length, self.sequence_length_at = Numbers(self.sequence_length), Numbers(self.sequence_length_at)
        for length in self.sequence_length:
            if not 8 <= length <= LONGEST or length != int(length):
                raise InputError(f"--sequence_length must be a whole number from 8 to {LONGEST}, got {length}")
        self.check_stages("sequence_length", example="--sequence_length 128,512 --sequence_length_at 0,0.9")
        check_range(self, "mask_probability", above=0, at_most=1)
        check_range(self, "mask_replace_prob", "random_replace_prob", at_least=0, at_most=1)
        check_range(self, "eval_fraction", at_least=0, below=1)
        check_range(self, "hybrid_causal_share", above=0, below=1)
        check_range(self, "max_eval_examples", "show_examples", at_least=0)
        if self.mask_replace_prob + self.random_replace_prob > 1 + 1e-9:
            raise InputError(
                f"--mask_replace_prob {self.mask_replace_prob} and --random_replace_prob {self.random_replace_prob} "
                "are together more than 1"
            )

    def identity(self) -> dict[str, Any]:
        """The options without which a run would be another one: all but those of looking at it."""
        looking = ("max_eval_examples", "show_examples")
        return {name: value for name, value in asdict(self).items() if name not in looking}

    def check_used(self) -> None:
        """Refuse options that were given and that this objective has no use for.

        Raises InputError: names the first of them.
        """
        own = OBJECTIVES[self.objective].options
        for name in dict.fromkeys(name for objective in OBJECTIVES.values() for name in objective.options):
            if name not in own and getattr(self, name) != type(self).__dataclass_fields__[name].default:
                users = ", ".join(other for other, objective in OBJECTIVES.items() if name in objective.options)
                raise InputError(
                    f"--{name} {getattr(self, name)} means nothing to --objective {self.objective}, only to {users}; "
                    "leave it out"
                )

    @property
    def vocabulary(self) -> Mapping[str, Any]:
        """In what a tokenizer that is learned for this objective differs from the usual one."""
        return OBJECTIVES[self.objective].vocabulary

    @property
    def lengths(self) -> tuple[int, ...]:
        """Tokens in a row, for each stage of the run."""
        return tuple(int(length) for length in self.sequence_length)

    @property
    def stages(self) -> list[tuple[float, int]]:
        """From which share of the run rows have which length."""
        return list(zip(self.sequence_length_at, self.lengths, strict=True))
