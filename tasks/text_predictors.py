"""Answers that are texts: what stands behind a mask, what follows a text."""

from collections.abc import Iterator, Sequence
from typing import Any

from tasks.errors import TaskError
from tasks.predictor import Predictor
from tasks.rows import Row


class FillMaskPredictor(Predictor):
    """What stands behind each mask: the likeliest tokens, and the text with the likeliest of all in it."""

    columns = ("prediction", "tokens")

    @classmethod
    def auto_class(cls, config: Any) -> str:
        return "AutoModelForMaskedLM"

    def prepare(self, question_pipeline: Any) -> None:
        if self.tokenizer.mask_token is None:
            raise TaskError(f"--model {self.arguments.model}: its tokenizer has no mask token to fill")
        self._cut = {"truncation": True, "max_length": self.max_length}
        self._pipeline = self.pipeline("fill-mask", top_k=self.arguments.top_k)

    def read(self, row: Row) -> str:
        mask = self.tokenizer.mask_token
        text = row.text(self.text_column, option="--text_column").replace("[MASK]", mask)
        if self.tokenizer.mask_token_id not in self.tokenizer(text, **self._cut)["input_ids"]:
            where = f"in its first {self.max_length} tokens" if mask in text else "in it"
            raise TaskError(f"{row.where}: column '{self.text_column}' has no {mask} {where}, and nothing to fill")
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
        room = self.max_length - self.arguments.max_new_tokens
        if room < 1:
            raise TaskError(
                f"--max_new_tokens {self.arguments.max_new_tokens} leaves no room for a text: the model takes "
                f"{self.max_length} tokens in all"
            )
        self._options = {
            "max_new_tokens": self.arguments.max_new_tokens,
            "do_sample": False,
            "return_full_text": False,
            "tokenizer_encode_kwargs": {"truncation": True, "max_length": room},
        }
        self._pipeline = self.pipeline("text-generation")

    def answer(self, given: Sequence[Any]) -> Iterator[dict[str, Any]]:
        for found in self.through(self._pipeline, given, **self._options):
            yield {"prediction": found[0]["generated_text"]}
