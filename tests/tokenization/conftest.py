"""A small tokenizer, and texts that are easy to get wrong."""

import pytest
from transformers import PreTrainedTokenizerFast

from lacuna.tokenization import train_bpe

TEXT = "The cat sat on the mat. The dog, too, sat there in 1984; it's the cat's mat , not the dog's ! " * 20


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerFast:
    return train_bpe(documents=[TEXT], vocab_size=290)
