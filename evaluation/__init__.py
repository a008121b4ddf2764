"""What a pretrained model knows: bits per byte, minimal pairs, words; and what it does while it reads."""

from .arguments import FORMS, EvaluationArguments, InspectionArguments, format_results, format_summary, summarize
from .baselines import measure_text_baselines
from .bits_per_byte import measure_bits_per_byte
from .language_model import LanguageModel, load_language_model
from .minimal_pairs import group_pairs, measure_minimal_pairs, score_sentences
from .words import collect_vectors, measure_words, nearest_neighbours, read_questions, words_of
