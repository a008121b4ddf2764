"""A small tokenizer, and random native models of 32 hidden units, as checkpoints and in memory."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from transformers import BertConfig, BertForMaskedLM, GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

from lacuna.tokenization import adapt_tokenizer, train_bpe

TEXT = "The cats sit on the mat. A dog runs to the river, and the cats run. Who sees the dogs? She does. " * 4


@pytest.fixture(scope="session")
def tokenizer() -> PreTrainedTokenizerFast:
    """300 ids, with the template of an encoder; rare characters fall into several tokens."""
    made = train_bpe(documents=[TEXT], vocab_size=300)
    return adapt_tokenizer(tokenizer=made, shape="encoder", segments=False, max_length=64)


@pytest.fixture
def make_model(tokenizer: PreTrainedTokenizerFast) -> Callable[[str], Any]:
    """Makes a random native GPT-2 ("causal") or BERT ("masked") with strong weights, so that scores differ."""

    def make(kind: str) -> Any:
        torch.manual_seed(7)
        if kind == "causal":
            sizes = {"n_embd": 32, "n_layer": 2, "n_head": 2, "n_positions": 64, "initializer_range": 0.3}
            sizes |= {"bos_token_id": 2, "eos_token_id": 3}
            return GPT2LMHeadModel(GPT2Config(vocab_size=len(tokenizer), **sizes)).eval()
        sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
        config = BertConfig(vocab_size=len(tokenizer), max_position_embeddings=64, initializer_range=0.3, **sizes)
        return BertForMaskedLM(config).eval()

    return make
