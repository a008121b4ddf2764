"""The options of a pretraining objective."""

import math
from dataclasses import asdict, dataclass
from functools import partial
from itertools import pairwise
from typing import Any, Literal

from lacuna.common.errors import InputError
from lacuna.common.options import Arguments, Numbers, check_range, essential, option

MEAN_SPAN = 3  # mean tokens in a span of denoising, in BART and T5
EVAL_CORRUPTION = 0.15  # share of held-out tokens that span corruption takes, as T5 did in training
LONGEST = 1 << 20  # tokens in a row: more than any model reads
OBJECTIVES: dict[str, Any] = {}  # the class of each objective by its name; `objectives/__init__.py` fills it

_data = partial(option, group="data")
_objective = partial(option, group="objective")


def sentinels_needed(*, length: int, probability: float) -> int:
    """Spans that span corruption takes out of a row, at most."""
    return math.ceil(math.ceil(probability * length) / MEAN_SPAN)


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
    mask_probability: float | None = _objective(
        None,
        "Fraction of tokens to mask. Default: 0.3 (0.15 for --denoising span_corruption). Held-out text is always "
        "masked at 0.15.",
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
    denoising: Literal["infilling", "span_corruption"] = _objective(
        "infilling",
        "Variant of --objective denoising: infilling (BART: one [MASK] per span, write everything) or span_corruption "
        "(T5: write the spans; masks 0.15 by default).",
        advanced=True,
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
        self._check_stages()
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

    def _check_stages(self) -> None:
        for length in self.sequence_length:
            if not 8 <= length <= LONGEST or length != int(length):
                raise InputError(f"--sequence_length must be a whole number from 8 to {LONGEST}, got {length}")
        starts = self.sequence_length_at
        if len(starts) != len(self.sequence_length):
            raise InputError(
                f"--sequence_length {self.sequence_length} has {len(self.sequence_length)} stages and "
                f"--sequence_length_at {starts} has {len(starts)}; give a fraction for each, as 128,512 and 0,0.9"
            )
        increasing = all(before < after for before, after in pairwise(starts))
        if starts[0] != 0 or not increasing or not all(math.isfinite(start) and start < 1 for start in starts):
            raise InputError(
                f"--sequence_length_at must begin with 0, rise from stage to stage and stay below 1, got {starts}"
            )

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
    def lengths(self) -> tuple[int, ...]:
        """Tokens in a row, for each stage of the run."""
        return tuple(int(length) for length in self.sequence_length)

    @property
    def mask_rate(self) -> float:
        """Share of tokens to hide."""
        default = 0.15 if (self.objective, self.denoising) == ("denoising", "span_corruption") else 0.3
        return default if self.mask_probability is None else self.mask_probability

    @property
    def num_sentinels(self) -> int:
        """Sentinel tokens that a tokenizer for this objective needs: hundreds, as T5 has 100."""
        if (self.objective, self.denoising) != ("denoising", "span_corruption"):
            return 0
        highest = max(self.mask_rate, EVAL_CORRUPTION)
        return -(-sentinels_needed(length=max(self.lengths), probability=highest) // 100) * 100

    @property
    def stages(self) -> list[tuple[float, int]]:
        """From which share of the run rows have which length."""
        return list(zip(self.sequence_length_at, self.lengths, strict=True))
