"""Vectors of new texts."""

from collections.abc import Iterator, Sequence
from typing import Any

from lacuna.common.errors import InputError
from lacuna.common.loading import first_line, missing_folder
from lacuna.tasks.base.metrics import optional_module
from lacuna.tasks.predict.predictor import Predictor


class EmbeddingPredictor(Predictor):
    """The vector of a text, by sentence-transformers."""

    def prepare(self) -> None:
        library = optional_module("sentence_transformers", extra="embeddings")
        name = self.arguments.model
        try:
            self._encoder = library.SentenceTransformer(name, trust_remote_code=self.arguments.trust_remote_code)
        except (OSError, ValueError) as error:
            message = f"--model {name} cannot be loaded by sentence-transformers: {first_line(error)}"
            raise InputError(missing_folder(name) or message) from error
        if self.arguments.max_length:
            self._encoder.max_seq_length = self.arguments.max_length

    def forward(self, given: Sequence[Any]) -> Iterator[dict[str, Any]]:
        for vector in self._encoder.encode(list(given), batch_size=len(given), show_progress_bar=False).tolist():
            yield {"prediction": [round(value, 6) for value in vector]}
