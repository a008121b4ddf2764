"""What a model is pretrained to predict: masked, next or lost tokens, sentence pairs. One class per objective.

An example is a function of the token store, the seed and the number of the sample.

To add an objective, write a file with a class like those here and add the class to the registry below; its name, help,
options and the legend of `--show_examples` are its own.
"""

from functools import partial
from typing import Any

import numpy as np

from .arguments import OBJECTIVES, ObjectiveArguments
from .base import TokenPrediction
from .clm import CausalLanguageModelling
from .data import IGNORED, SpecialTokens, random_stream, split_documents
from .denoising import Denoising
from .distillation import DISTILLED, DistillationArguments, ask, fingerprint_of, load_teacher
from .embeddings import warm_start
from .hybrid import HybridLanguageModelling
from .mlm import MaskedLanguageModelling
from .pairs import MaskedLanguageModellingWithOrder, MaskedLanguageModellingWithPairs, PassagePrediction
from .show import show_examples
from .spans import RecurringSpans

OBJECTIVES |= {
    kind.name: kind
    for kind in (
        *(MaskedLanguageModelling, MaskedLanguageModellingWithPairs, MaskedLanguageModellingWithOrder),
        *(PassagePrediction, CausalLanguageModelling, HybridLanguageModelling, Denoising, RecurringSpans),
    )
}


def make_works(
    arguments: ObjectiveArguments,
    *,
    store: Any,
    tokenizer: Any,
    byte_lengths: np.ndarray,
    token_edges: np.ndarray,
    seed: int,
    teacher: DistillationArguments | None = None,
) -> list[tuple[float, TokenPrediction]]:
    """For each stage of the run: the share of the run at which it starts, and the objective at its row length; with a
    `teacher` the objective of a student, which `learn_from` gives its answers."""
    make = partial(
        partial(DISTILLED[arguments.objective], how=teacher)
        if teacher and teacher.teacher
        else OBJECTIVES[arguments.objective],
        store=store,
        tokens=SpecialTokens.of(tokenizer),
        byte_lengths=byte_lengths,
        token_edges=token_edges,
        seed=seed,
        arguments=arguments,
    )
    return [(at, make(sequence_length=length)) for at, length in arguments.stages]
