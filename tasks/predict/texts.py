"""What pretrained models answer without fine-tuning: what is behind a mask, and what follows a text."""

from typing import Any

from lacuna.common.errors import InputError
from lacuna.tasks.base.rows import Row
from lacuna.tasks.predict.predictor import PipelinePredictor

NEW_TOKENS = 64


class FillMaskPredictor(PipelinePredictor):
    """What stands behind each mask: the likeliest tokens, and the text with the likeliest of all in it."""

    task, auto_class = "fill-mask", "AutoModelForMaskedLM"
    columns = ("prediction", "tokens")

    def options(self) -> dict[str, Any]:
        return {"top_k": self.arguments.top_k, "tokenizer_kwargs": self.cut}

    def prepare(self) -> None:
        if self.tokenizer.mask_token is None:
            raise InputError(f"--model {self.arguments.model}: its tokenizer has no mask token to fill")
        super().prepare()

    def read(self, row: Row) -> str:
        mask = self.tokenizer.mask_token
        text = row.text(self.text_column, option="--text_column").replace("[MASK]", mask)
        if self.tokenizer.mask_token_id not in self.tokenizer(text, **self.cut)["input_ids"]:
            where = f"in its first {self.max_length} tokens" if mask in text else "in it"
            raise InputError(f"{row.where}: column '{self.text_column}' has no {mask} {where}, and nothing to fill")
        return text

    def readable(self, given: Any, found: Any) -> dict[str, Any]:
        masks = [found] if isinstance(found[0], dict) else found
        parts = given.split(self.tokenizer.mask_token)
        best = [choices[0]["token_str"] for choices in masks] + [""] * len(parts)
        filled = ""
        for part, token in zip(parts, best, strict=False):
            filled += part  # a token brings the blank before it along
            filled += token.lstrip() if filled[-1:].isspace() else token
        tokens = [[[each["token_str"], round(each["score"], 6)] for each in choices] for choices in masks]
        return {"prediction": filled, "tokens": tokens}


class GenerationPredictor(PipelinePredictor):
    """What follows a text: the likeliest token each time."""

    task, auto_class = "text-generation", "AutoModelForCausalLM"

    def options(self) -> dict[str, Any]:
        self.tokenizer.truncation_side = "left"  # of a long text the end is what goes on
        new = self.arguments.max_new_tokens or NEW_TOKENS
        room = self.max_length - new
        if room < 1:
            raise InputError(
                f"--max_new_tokens {new} leaves no room for a text: the model takes {self.max_length} tokens in all"
            )
        cut = {"truncation": True, "max_length": room}
        how = {"max_new_tokens": new, "do_sample": False, "return_full_text": False}
        return {**how, "tokenizer_encode_kwargs": cut}

    def readable(self, given: Any, found: Any) -> dict[str, Any]:
        return {"prediction": found[0]["generated_text"]}
