"""(token store, seed, index) -> one training example; and how examples become a batch.

To add an objective, write a file with a class like those here and add the class to the registry below: name, help,
options and the legend of `--show_examples` come with it.
"""

from .arguments import OBJECTIVES, ObjectiveArguments
from .base import TokenPrediction
from .clm import CausalLanguageModelling
from .data import IGNORED, SpecialTokens, random_stream, split_documents
from .denoising import Denoising
from .hybrid import HybridLanguageModelling
from .mlm import MaskedLanguageModelling
from .mlm_nsp import MaskedLanguageModellingWithPairs
from .mlm_sop import MaskedLanguageModellingWithOrder
from .show import show_examples

OBJECTIVES |= {
    objective.name: objective
    for objective in (
        MaskedLanguageModelling,
        MaskedLanguageModellingWithPairs,
        MaskedLanguageModellingWithOrder,
        CausalLanguageModelling,
        HybridLanguageModelling,
        Denoising,
    )
}

__all__ = [
    "IGNORED",
    "OBJECTIVES",
    "CausalLanguageModelling",
    "Denoising",
    "HybridLanguageModelling",
    "MaskedLanguageModelling",
    "MaskedLanguageModellingWithOrder",
    "MaskedLanguageModellingWithPairs",
    "ObjectiveArguments",
    "SpecialTokens",
    "TokenPrediction",
    "random_stream",
    "show_examples",
    "split_documents",
]
