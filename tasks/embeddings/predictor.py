"""Vectors of new texts."""

from collections.abc import Iterator, Sequence
from typing import Any

from lacuna.tasks.embeddings.encoders import load_encoder
from lacuna.tasks.predict.predictor import Predictor


class EmbeddingPredictor(Predictor):
    """The vector of a text, by sentence-transformers."""

    def prepare(self) -> None:
        asked = self.arguments
        self._encoder = load_encoder(
            model=asked.model, max_length=asked.max_length, trust_remote_code=asked.trust_remote_code
        )

    def forward(self, given: Sequence[Any]) -> Iterator[dict[str, Any]]:
        for vector in self._encoder.encode(list(given), batch_size=len(given), show_progress_bar=False).tolist():
            yield {"prediction": [round(value, 6) for value in vector]}
