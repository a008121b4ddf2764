"""What a pretrained model knows: bits per byte of text, and minimal pairs.

Names are resolved on first use, so that a recipe which only parses options does not wait for torch to load.
"""

from importlib import import_module
from typing import Any

_HOME = {
    "EvaluationArguments": "arguments",
    "LanguageModel": "language_model",
    "measure_bits_per_byte": "bits_per_byte",
    "check_output_file": "results",
    "format_results": "results",
    "load_language_model": "language_model",
    "measure_minimal_pairs": "minimal_pairs",
    "group_pairs": "minimal_pairs",
    "score_sentences": "minimal_pairs",
    "write_results": "results",
}
__all__ = sorted(_HOME)


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'lacuna.evaluation' has no attribute {name!r}")
    return getattr(import_module(f"lacuna.evaluation.{_HOME[name]}"), name)
