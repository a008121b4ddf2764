"""A work of random tokens for any model with a head over the vocabulary, whose loss is the model's own."""

from typing import Any

import torch

from lacuna.common.work import Work

AUTO = {
    "encoder": "AutoModelForMaskedLM",
    "decoder": "AutoModelForCausalLM",
    "encoder-decoder": "AutoModelForSeq2SeqLM",
}
FAMILIES = ["bert", "modernbert", "lacuna", "gpt2", "llama", "qwen3", "bart", "vaswani"]


class RowsOfTokens(Work):
    """Rows whose last two tokens are padding; the first `share` of the others are targets.

    Args:
        target_length: tokens in a row of the decoder, of an encoder-decoder.
    """

    num_examples = 64

    def __init__(self, length: int = 64, target_length: int | None = None, share: float = 1.0) -> None:
        self.length, self.target_length, self.targets = length, target_length, round(length * share)

    def batch_for(self, model: Any, *, rows: int) -> dict[str, torch.Tensor]:
        self.target_length = (self.target_length or self.length) if model.config.is_encoder_decoder else None
        return self.collate([self.example(row, row) for row in range(rows)])

    def example(self, row: int, index: int) -> dict[str, Any]:
        return {"input_ids": torch.randint(5, 90, (self.length,), generator=torch.Generator().manual_seed(row))}

    def collate(self, examples: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
        ids = torch.stack([example["input_ids"] for example in examples])
        mask = torch.ones_like(ids)
        mask[:, -2:] = 0
        labels = torch.where(torch.arange(self.length) < self.targets, ids, -100)
        batch = {"input_ids": ids, "attention_mask": mask, "labels": labels}
        if self.target_length is not None:
            shorter = {"labels": ids[:, : self.target_length].contiguous()}
            batch |= {**shorter, "decoder_attention_mask": mask[:, -self.target_length :].contiguous()}
        return batch

    def count_targets(self, batch: dict[str, torch.Tensor]) -> dict[str, int]:
        return {"tokens": int((batch["labels"] != -100).sum())}

    def loss(self, model: Any, batch: dict[str, torch.Tensor], num_targets: Any) -> Any:
        return model(**batch).loss, {}
