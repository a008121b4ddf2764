"""The options of a pretraining objective."""

import math
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any, Literal

from lacuna.common.errors import InputError
from lacuna.common.options import Arguments, Numbers, check_range, option

MEAN_SPAN = 3
"""Mean tokens in a span of denoising, in BART and T5."""

EVAL_CORRUPTION = 0.15
"""Share of held-out tokens that span corruption takes, as T5 did in training."""

LONGEST = 1 << 20
"""Tokens in a row: more than any model reads."""

MASKED = ("mlm", "mlm_nsp", "mlm_sop", "hybrid")
USED_BY = {
    "mask_probability": (*MASKED, "denoising"),
    "masking": MASKED,
    "mask_replace_prob": MASKED,
    "random_replace_prob": MASKED,
    "short_sequence_probability": ("mlm_nsp", "mlm_sop"),
    "hybrid_causal_share": ("hybrid",),
    "denoising": ("denoising",),
}
"""Options that only some objectives have a use for."""


def sentinels_needed(*, length: int, probability: float) -> int:
    """Spans that span corruption takes out of a row, at most."""
    return math.ceil(math.ceil(probability * length) / MEAN_SPAN)


@dataclass
class ObjectiveArguments(Arguments):
    """What the model is asked to fill in. docs/objectives.md shows an example of each."""

    objective: Literal["mlm", "mlm_nsp", "mlm_sop", "clm", "hybrid", "denoising"] = option(
        "mlm_nsp",
        "mlm (masked tokens), mlm_nsp (and next sentence, as BERT), mlm_sop (and order of two segments, as ALBERT), "
        "clm (next token, for decoders), hybrid (masked and next tokens in one decoder, as GPT-BERT), denoising (text "
        "from damaged text, for encoder-decoders).",
    )
    sequence_length: Numbers = option(
        Numbers(128), "Tokens in one row, special tokens included. Several, as 128,512: one after the other."
    )
    sequence_length_at: Numbers = option(
        Numbers(0), "At which share of the run each --sequence_length begins, as 0,0.9."
    )
    mask_probability: Numbers | None = option(
        None,
        "Share of tokens to predict where tokens are hidden; two, as 0.30,0.15: linearly from one to the other over "
        "the run. Default: 0.3; span_corruption 0.15. Held-out text is always masked at 0.15.",
    )
    masking: Literal["token", "whole_word", "span"] = option(
        "token", "What is hidden together: nothing, all tokens of a word, or spans of words (SpanBERT)."
    )
    mask_replace_prob: float = option(0.8, "Share of the chosen tokens that [MASK] replaces.")
    random_replace_prob: float = option(0.1, "Share of them that a random token replaces; the others stay.")
    packing: Literal["concatenate", "best_fit", "none"] = option(
        "concatenate",
        "How documents fill rows: end to end, cut at row ends; as whole as possible, where they fit best; or each in "
        "rows of its own, with padding. Attention never crosses from one document to another. Pairs (mlm_nsp, "
        "mlm_sop) have a row each, whatever is asked.",
    )
    short_sequence_probability: float = option(
        0.0, "Share of the pairs of mlm_nsp and mlm_sop that are made shorter, of a random length (BERT: 0.1)."
    )
    hybrid_causal_share: float = option(0.5, "Share of the rows of hybrid that are causal; the others are masked.")
    denoising: Literal["infilling", "span_corruption"] = option(
        "infilling", "BART's text infilling (one [MASK] for a span; write all) or T5's span corruption (write spans)."
    )
    z_loss: float = option(0.0, "Weight of the z-loss, which keeps logits small; PaLM: 0.0001.")
    eval_fraction: float = option(0.05, "Share of the text, in whole documents, held out for evaluation; 0: none.")
    max_eval_examples: int = option(512, "At most this many held-out examples are evaluated.")
    show_examples: int = option(0, "Print this many training examples, made readable, and stop.")

    def __post_init__(self) -> None:
        self.sequence_length, self.sequence_length_at = Numbers(self.sequence_length), Numbers(self.sequence_length_at)
        self._check_stages()
        if self.mask_probability is not None:
            self.mask_probability = Numbers(self.mask_probability)
            if not 1 <= len(self.mask_probability) <= 2:
                raise InputError(f"--mask_probability must be one number or two, got {self.mask_probability}")
            for rate in self.mask_probability:
                if not 0 < rate <= 1:
                    raise InputError(f"--mask_probability must be above 0 and at most 1, got {rate}")
        check_range(
            self, "mask_replace_prob", "random_replace_prob", "short_sequence_probability", at_least=0, at_most=1
        )
        check_range(self, "eval_fraction", at_least=0, below=1)
        check_range(self, "z_loss", "max_eval_examples", "show_examples", at_least=0)
        if self.mask_replace_prob + self.random_replace_prob > 1 + 1e-9:
            raise InputError(
                f"--mask_replace_prob {self.mask_replace_prob} and --random_replace_prob {self.random_replace_prob} "
                "are together more than 1"
            )
        if not 0 < self.hybrid_causal_share < 1:
            raise InputError(
                f"--hybrid_causal_share must be between 0 and 1, got {self.hybrid_causal_share}; for one kind alone "
                "use --objective mlm or clm"
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
                f"--sequence_length_at {starts} has {len(starts)}; give a share of the run for each, as 128,512 and "
                "0,0.9"
            )
        increasing = all(before < after for before, after in pairwise(starts))
        if starts[0] != 0 or not increasing or not all(math.isfinite(start) and start < 1 for start in starts):
            raise InputError(
                f"--sequence_length_at must begin with 0, rise from stage to stage and stay below 1, got {starts}"
            )

    def check_used(self) -> None:
        """Refuse options that were given and that this objective has no use for.

        Raises:
            InputError: names the first of them.
        """
        for name, objectives in USED_BY.items():
            default = type(self).__dataclass_fields__[name].default
            if self.objective not in objectives and getattr(self, name) != default:
                raise InputError(
                    f"--{name} {getattr(self, name)} means nothing to --objective {self.objective}, only to "
                    f"{', '.join(objectives)}; leave it out"
                )

    @property
    def lengths(self) -> tuple[int, ...]:
        """Tokens in a row, for each stage of the run."""
        return tuple(int(length) for length in self.sequence_length)

    @property
    def mask_rates(self) -> tuple[float, float]:
        """Share of tokens to hide at the beginning and at the end of the run."""
        if self.mask_probability is not None:
            return self.mask_probability[0], self.mask_probability[-1]
        default = 0.15 if (self.objective, self.denoising) == ("denoising", "span_corruption") else 0.3
        return default, default

    @property
    def num_sentinels(self) -> int:
        """Sentinel tokens that a tokenizer for this objective needs: hundreds, as T5 has 100."""
        if (self.objective, self.denoising) != ("denoising", "span_corruption"):
            return 0
        highest = max(*self.mask_rates, EVAL_CORRUPTION)
        return -(-sentinels_needed(length=max(self.lengths), probability=highest) // 100) * 100

    @property
    def stages(self) -> list[tuple[float, int]]:
        """From which share of the run rows have which length."""
        return list(zip(self.sequence_length_at, self.lengths, strict=True))
