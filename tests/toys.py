"""A small work, a small model and a stand-in for a tokenizer, for tests of the loop."""

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.nn import functional
from transformers import BertConfig, BertForMaskedLM

from lacuna.common.work import Work

VOCAB, MASK, IGNORED = 40, 4, -100


def harmless(index: int) -> float:
    return 0.0


class ToyWork(Work):
    """Masked tokens in rows of different lengths; every mask from (seed, index) alone."""

    def __init__(self, *, num_examples: int = 24, num_eval_examples: int = 7, stop_at: int | None = None) -> None:
        self.num_examples, self.num_eval_examples = num_examples, num_eval_examples
        self.stop_at = stop_at
        self.batches: list[str] = []
        """A hash of every batch of training that `collate` returned."""
        self.rows: list[tuple[str, str]] = []
        """Hashes of ids and labels of each training example handed to `collate`."""
        self.poison: Callable[[int], float] = harmless
        """What is added to the loss of the batch with this sample; gradients stay finite whatever it is."""
        self.evaluated: list[int] = []

    def _row(self, row: int, stream: str, index: int) -> dict[str, Any]:
        generator = np.random.default_rng([row, 1])
        ids = generator.integers(5, VOCAB, size=generator.integers(6, 20))
        chosen = np.random.default_rng([index, len(stream)]).random(len(ids)) < 0.3
        chosen[0] = True
        return {
            "input_ids": np.where(chosen, MASK, ids),
            "labels": np.where(chosen, ids, IGNORED),
            "index": index,
            "held_out": stream != "train",
        }

    def example(self, row: int, index: int, progress: float = 0.0) -> dict[str, Any]:
        if self.stop_at is not None and index >= self.stop_at:
            raise InterruptedError(f"sample {index}")
        return self._row(row, "train", index)

    def eval_example(self, row: int) -> dict[str, Any]:
        self.evaluated.append(row)
        return self._row(1000 + row, "held out", row)

    def collate(self, examples: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
        length = max(len(example["input_ids"]) for example in examples)
        batch = {
            name: torch.full((len(examples), length), fill) for name, fill in (("input_ids", 0), ("labels", IGNORED))
        }
        batch["attention_mask"] = torch.zeros(len(examples), length, dtype=torch.long)
        for place, example in enumerate(examples):
            size = len(example["input_ids"])
            batch["attention_mask"][place, :size] = 1
            for name in ("input_ids", "labels"):
                batch[name][place, :size] = torch.from_numpy(example[name])
            if not example["held_out"]:
                names = ("input_ids", "labels")
                self.rows.append(tuple(hashlib.sha256(example[name].tobytes()).hexdigest() for name in names))
        batch["index"] = torch.tensor([example["index"] for example in examples])
        content = b"".join(batch[name].numpy().tobytes() for name in sorted(batch))
        if not examples[0]["held_out"]:
            self.batches.append(hashlib.sha256(content).hexdigest())
        return batch

    def count_targets(self, batch: dict[str, torch.Tensor]) -> dict[str, int]:
        return {"tokens": int((batch["labels"] != IGNORED).sum())}

    def _nats(self, model: Any, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        logits = model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"]).logits
        return functional.cross_entropy(
            logits.transpose(1, 2), batch["labels"], ignore_index=IGNORED, reduction="none"
        ).sum(dim=1)

    def loss(self, model: Any, batch: dict[str, torch.Tensor], num_targets: dict[str, torch.Tensor]) -> Any:
        loss = self._nats(model, batch).sum() / num_targets["tokens"]
        loss = loss + sum(map(self.poison, batch["index"].tolist()))
        return loss, {"rows": torch.tensor(len(batch["index"]), dtype=torch.float32)}

    def evaluate(self, model: Any, batch: dict[str, torch.Tensor]) -> list[dict[str, Any]]:
        targets = (batch["labels"] != IGNORED).sum(dim=1).tolist()
        return [
            {"nats": nats, "targets": count}
            for nats, count in zip(self._nats(model, batch).tolist(), targets, strict=True)
        ]

    def summarize(self, records: list[dict[str, Any]]) -> dict[str, float]:
        return {"loss": sum(record["nats"] for record in records) / sum(record["targets"] for record in records)}

    def baseline(self) -> dict[str, float]:
        return {"loss": float(np.log(VOCAB))}


class PlainTokenizer:
    """Saves a file, as a tokenizer does."""

    def save_pretrained(self, folder: Path) -> None:
        (Path(folder) / "tokenizer.json").write_text("{}\n", encoding="utf-8")
        (Path(folder) / "tokenizer_config.json").write_text('{"tokenizer_class": "TokenizersBackend"}\n')


def make_model(*, dropout: float = 0.0, seed: int = 0, **overrides: Any) -> BertForMaskedLM:
    """The same native BERT of 16 hidden units every time."""
    torch.manual_seed(seed)
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
    config = BertConfig(
        **{**sizes, "vocab_size": VOCAB, "max_position_embeddings": 32, **overrides},
        hidden_dropout_prob=dropout,
        attention_probs_dropout_prob=dropout,
    )
    return BertForMaskedLM(config)
