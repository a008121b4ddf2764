"""What a pretrained model knows: bits per byte of text, and minimal pairs."""

from .arguments import EvaluationArguments, check_output_file, format_results
from .bits_per_byte import measure_bits_per_byte
from .language_model import LanguageModel, load_language_model
from .minimal_pairs import group_pairs, measure_minimal_pairs, score_sentences

__all__ = [
    "EvaluationArguments",
    "LanguageModel",
    "check_output_file",
    "format_results",
    "group_pairs",
    "load_language_model",
    "measure_bits_per_byte",
    "measure_minimal_pairs",
    "score_sentences",
]
