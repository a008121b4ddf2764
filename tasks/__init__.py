"""Labelled data to features, metrics and readable predictions: one file a task.

Names are resolved on first use, so that a recipe which only parses options does not wait for torch and scikit-learn.
"""

from importlib import import_module
from typing import Any

_HOME = {
    "Classification": "classification",
    "ClassificationArguments": "arguments",
    "EmbeddingArguments": "arguments",
    "Embeddings": "embeddings",
    "MultipleChoice": "multiple_choice",
    "MultipleChoiceArguments": "arguments",
    "PredictionArguments": "arguments",
    "QuestionAnswering": "question_answering",
    "QuestionAnsweringArguments": "arguments",
    "SequenceToSequence": "sequence_to_sequence",
    "SequenceToSequenceArguments": "arguments",
    "TokenClassification": "token_classification",
    "TokenClassificationArguments": "arguments",
    "check_tokenizer": "models",
    "load_configuration": "models",
    "load_encoder": "encoders",
    "load_model": "models",
    "resolve_lengths": "writing",
    "resolve_max_length": "models",
    "save_encoder": "encoders",
    "used": "arguments",
    "write_results": "report",
    "writes_with": "writing",
}
__all__ = sorted(_HOME)


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'lacuna.tasks' has no attribute {name!r}")
    return getattr(import_module(f"lacuna.tasks.{_HOME[name]}"), name)
