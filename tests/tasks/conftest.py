"""A small tokenizer and small models for the tests of tasks."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from processes import no_curves
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import BertConfig, BertForQuestionAnswering, BertForSequenceClassification, PreTrainedTokenizerFast

SPECIAL_TOKENS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
TEXT = """The quick brown fox jumps over the lazy dog. A tokenizer learns pieces of words such as these from any text.
What is the name of the river that runs through the city? It is the river of the north, built in the year 1887.
"""


@pytest.fixture(scope="session")
def tokenizer() -> PreTrainedTokenizerFast:
    """A byte-level BPE tokenizer of 320 ids: long words and all that is not ASCII fall into many pieces."""
    core = Tokenizer(models.BPE(unk_token="[UNK]"))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    core.train_from_iterator(
        [TEXT], trainers.BpeTrainer(vocab_size=320, special_tokens=SPECIAL_TOKENS, initial_alphabet=alphabet)
    )
    core.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=core,
        pad_token="[PAD]",
        unk_token="[UNK]",
        cls_token="[CLS]",
        sep_token="[SEP]",
        mask_token="[MASK]",
        model_max_length=512,
        model_input_names=["input_ids", "token_type_ids", "attention_mask"],
    )


@pytest.fixture(autouse=True)
def undrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs in this process draw no curves, which take a second each: tests/training draws them."""
    monkeypatch.setattr("lacuna.training.reports.log.draw_curves", no_curves)


@pytest.fixture
def small_model() -> Callable[..., Any]:
    """Makes a native BERT with 32 hidden units for classification (with `num_labels`) or question answering."""

    def make(*, num_labels: int | None = None, hidden: int = 32) -> Any:
        torch.manual_seed(0)
        config = BertConfig(
            vocab_size=320,
            hidden_size=hidden,
            num_hidden_layers=2,
            num_attention_heads=2,
            intermediate_size=2 * hidden,
            max_position_embeddings=512,
            hidden_dropout_prob=0.0,
            attention_probs_dropout_prob=0.0,
            num_labels=num_labels or 2,
        )
        return BertForSequenceClassification(config) if num_labels else BertForQuestionAnswering(config)

    return make


@pytest.fixture
def fit() -> Callable[..., float]:
    """A loop of ten lines: full-batch AdamW; returns the last loss."""

    def run(*, model: Any, work: Any, steps: int, learning_rate: float = 3e-3) -> float:
        optimizer = torch.optim.AdamW(model.parameters(), lr=learning_rate)
        batch = work.collate([work.example(row, row) for row in range(work.num_examples)])
        targets = {name: torch.tensor(count) for name, count in work.count_targets(batch).items()}
        model.train()
        for _ in range(steps):
            loss, _ = work.loss(model, batch, targets)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        return loss.item()

    return run


@pytest.fixture
def evaluate() -> Callable[..., list[dict[str, Any]]]:
    """All records of a work's held-out part, in batches of `batch_size`."""

    @torch.no_grad()
    def run(*, model: Any, work: Any, batch_size: int = 8, rows: Any = None) -> list[dict[str, Any]]:
        rows = range(work.num_eval_examples) if rows is None else rows
        model.eval()
        records = []
        for start in range(0, len(rows), batch_size):
            batch = work.collate([work.eval_example(row) for row in rows[start : start + batch_size]])
            records += work.evaluate(model, batch)
        return records

    return run
