"""Answers that are texts, or stand for them: what is behind a mask, what follows, a translation, a vector."""

from collections.abc import Iterator, Sequence
from typing import Any

import torch

from lacuna.common.errors import InputError
from lacuna.common.loading import missing_folder
from lacuna.tasks.metrics import optional_module
from lacuna.tasks.pairs import unfold
from lacuna.tasks.predictor import Predictor
from lacuna.tasks.rows import Row
from lacuna.tasks.writing import Writer, resolve_lengths, writes_with

NEW_TOKENS = 64


class FillMaskPredictor(Predictor):
    """What stands behind each mask: the likeliest tokens, and the text with the likeliest of all in it."""

    columns = ("prediction", "tokens")

    @classmethod
    def auto_class(cls, config: Any) -> str:
        return "AutoModelForMaskedLM"

    def prepare(self, question_pipeline: Any) -> None:
        if self.tokenizer.mask_token is None:
            raise InputError(f"--model {self.arguments.model}: its tokenizer has no mask token to fill")
        self._cut = {"truncation": True, "max_length": self.max_length}
        self._pipeline = self.pipeline("fill-mask", top_k=self.arguments.top_k)

    def read(self, row: Row) -> str:
        mask = self.tokenizer.mask_token
        text = row.text(self.text_column, option="--text_column").replace("[MASK]", mask)
        if self.tokenizer.mask_token_id not in self.tokenizer(text, **self._cut)["input_ids"]:
            where = f"in its first {self.max_length} tokens" if mask in text else "in it"
            raise InputError(f"{row.where}: column '{self.text_column}' has no {mask} {where}, and nothing to fill")
        return text

    def answer(self, given: Sequence[Any]) -> Iterator[dict[str, Any]]:
        found = self.through(self._pipeline, given, tokenizer_kwargs=self._cut)
        for text, places in zip(given, found, strict=True):
            masks = [places] if isinstance(places[0], dict) else places
            parts = text.split(self.tokenizer.mask_token)
            best = [choices[0]["token_str"] for choices in masks] + [""] * len(parts)
            filled = ""
            for part, token in zip(parts, best, strict=False):
                filled += part  # a token brings the blank before it along
                filled += token.lstrip() if filled[-1:].isspace() else token
            tokens = [[[each["token_str"], round(each["score"], 6)] for each in choices] for choices in masks]
            yield {"prediction": filled, "tokens": tokens}


class GenerationPredictor(Predictor):
    """What follows a text: the likeliest token each time."""

    @classmethod
    def auto_class(cls, config: Any) -> str:
        return "AutoModelForCausalLM"

    def prepare(self, question_pipeline: Any) -> None:
        self.tokenizer.truncation_side = "left"  # of a long text the end is what goes on
        new = self.arguments.max_new_tokens or NEW_TOKENS
        room = self.max_length - new
        if room < 1:
            raise InputError(
                f"--max_new_tokens {new} leaves no room for a text: the model takes {self.max_length} tokens in all"
            )
        self._options = {
            "max_new_tokens": new,
            "do_sample": False,
            "return_full_text": False,
            "tokenizer_encode_kwargs": {"truncation": True, "max_length": room},
        }
        self._pipeline = self.pipeline("text-generation")

    def answer(self, given: Sequence[Any]) -> Iterator[dict[str, Any]]:
        for found in self.through(self._pipeline, given, **self._options):
            yield {"prediction": found[0]["generated_text"]}


class WritingPredictor(Predictor):
    """A text written from another one, and the mean probability of its tokens."""

    columns = ("prediction", "probability")
    trained_column = "source_column"

    @classmethod
    def auto_class(cls, config: Any) -> str:
        return writes_with(config)

    def prepare(self, question_pipeline: Any) -> None:
        asked, trained = self.arguments, self.settings
        source, target = resolve_lengths(
            source=asked.max_length or trained.get("max_length"),
            target=asked.max_new_tokens or trained.get("max_target_length"),
            config=self.model.config,
            tokenizer=self.tokenizer,
            default=(256, NEW_TOKENS),
        )
        self._writer = Writer(
            tokenizer=self.tokenizer,
            config=self.model.config,
            max_length=source,
            max_target_length=target,
            num_beams=trained.get("num_beams", 1),
            source_prefix=trained.get("source_prefix", ""),
        )

    def expand(self, row: Row) -> Iterator[Row]:
        yield from unfold([row])

    def read(self, row: Row) -> str:
        return row.text(self.text_column, option="--text_column").strip()

    @torch.no_grad()
    def answer(self, given: Sequence[Any]) -> Iterator[dict[str, Any]]:
        for start in range(0, len(given), self.batch_size):
            sources, _ = self._writer.sources(given[start : start + self.batch_size])
            prompts = self._writer.prompts(sources)
            written = self._writer.write(
                self.model, {name: value.to(self.model.device) for name, value in prompts.items()}
            )
            for ids, sure in zip(written, self._writer.sureness(self.model, sources, written), strict=True):
                yield {"prediction": self._writer.text(ids), "probability": round(sure, 6)}


class EmbeddingPredictor(Predictor):
    """The vector of a text, by sentence-transformers; also where training was on pairs."""

    def _choose_pair(self, row: Row) -> str | None:
        return None

    def prepare(self, question_pipeline: Any) -> None:
        library = optional_module("sentence_transformers", extra="embeddings")
        name = self.arguments.model
        try:
            self._encoder = library.SentenceTransformer(name, trust_remote_code=self.arguments.trust_remote_code)
        except (OSError, ValueError) as error:
            reason = next(iter(str(error).strip().splitlines()), type(error).__name__)
            message = f"--model {name} cannot be loaded by sentence-transformers: {reason}"
            raise InputError(missing_folder(name) or message) from error
        if self.arguments.max_length:
            self._encoder.max_seq_length = self.arguments.max_length

    def answer(self, given: Sequence[Any]) -> Iterator[dict[str, Any]]:
        for start in range(0, len(given), self.batch_size):
            part = list(given[start : start + self.batch_size])
            for vector in self._encoder.encode(part, batch_size=self.batch_size, show_progress_bar=False).tolist():
                yield {"prediction": [round(value, 6) for value in vector]}
