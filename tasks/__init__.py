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
from .encoders import load_encoder, save_encoder
from .models import check_tokenizer, load_base, load_model, resolve_max_length
from .multiple_choice import MultipleChoice
from .question_answering import QuestionAnswering
from .report import write_results
from .sequence_to_sequence import SequenceToSequence
from .token_classification import TokenClassification
from .writing import resolve_lengths, writes_with

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
    "load_base",
    "load_encoder",
    "load_model",
    "resolve_lengths",
    "resolve_max_length",
    "save_encoder",
    "used",
    "write_results",
    "writes_with",
]
