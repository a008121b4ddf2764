"""Texts written from new ones."""

from collections.abc import Iterator, Sequence
from typing import Any

from lacuna.tasks.base.rows import Row
from lacuna.tasks.predict.predictor import NEW_TOKENS, Predictor
from lacuna.tasks.sequence_to_sequence.reader import unfold
from lacuna.tasks.sequence_to_sequence.writing import Writer, resolve_lengths, writes_with


class WritingPredictor(Predictor):
    """A text written from another one, and the mean probability of its tokens."""

    columns = ("prediction", "probability")
    trained_column = "source_column"

    @classmethod
    def head(cls, config: Any) -> str:
        return writes_with(config)

    def prepare(self) -> None:
        source, target = resolve_lengths(
            source=self.arguments.max_length or self.settings.get("max_length"),
            target=self.arguments.max_new_tokens or self.settings.get("max_target_length"),
            config=self.model.config,
            tokenizer=self.tokenizer,
            default=(256, NEW_TOKENS),
        )
        self._writer = Writer(
            tokenizer=self.tokenizer,
            config=self.model.config,
            max_length=source,
            max_target_length=target,
            num_beams=self.settings.get("num_beams", 1),
            source_prefix=self.settings.get("source_prefix", ""),
        )

    def expand(self, row: Row) -> Iterator[Row]:
        yield from unfold([row])

    def read(self, row: Row) -> str:
        return row.text(self.text_column, option="--text_column").strip()

    def forward(self, given: Sequence[Any]) -> Iterator[dict[str, Any]]:
        sources, _ = self._writer.sources(given)
        written = self._writer.write(self.model, self.to_model(self._writer.prompts(sources)))
        for ids, sure in zip(written, self._writer.sureness(self.model, sources, written), strict=True):
            yield {"prediction": self._writer.text(ids), "probability": round(sure, 6)}
