"""Labelled data to features, metrics and readable predictions: one file a task."""

from .arguments import (
    ClassificationArguments,
    EmbeddingArguments,
    MultipleChoiceArguments,
    PredictionArguments,
    QuestionAnsweringArguments,
    SequenceToSequenceArguments,
    TokenClassificationArguments,
    used,
)
from .classification import Classification
from .embeddings import Embeddings
from .fine_tuning import fine_tune_task
from .models import check_tokenizer, load_base, load_model, resolve_max_length
from .multiple_choice import MultipleChoice
from .question_answering import QuestionAnswering
from .report import write_results
from .sequence_to_sequence import SequenceToSequence
from .token_classification import TokenClassification

__all__ = [
    "Classification",
    "ClassificationArguments",
    "EmbeddingArguments",
    "Embeddings",
    "MultipleChoice",
    "MultipleChoiceArguments",
    "PredictionArguments",
    "QuestionAnswering",
    "QuestionAnsweringArguments",
    "SequenceToSequence",
    "SequenceToSequenceArguments",
    "TokenClassification",
    "TokenClassificationArguments",
    "check_tokenizer",
    "fine_tune_task",
    "load_base",
    "load_model",
    "resolve_max_length",
    "used",
    "write_results",
]
