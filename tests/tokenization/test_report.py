"""Bytes per token, and what a report counts."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from tokenization import TokenizerError, compression_report, token_byte_lengths, train_bpe


@pytest.fixture(scope="module")
def trained() -> PreTrainedTokenizerFast:
    return train_bpe(documents=["the cat sat on the mat; le café, naïve. " * 30], vocab_size=280)


@settings(max_examples=200, deadline=None)
@given(text=st.text())
def test_byte_lengths_add_up_to_the_text(trained: PreTrainedTokenizerFast, text: str) -> None:
    lengths = token_byte_lengths(trained)
    ids = trained(text, split_special_tokens=True)["input_ids"]
    assert lengths[ids].sum() == len(text.encode())


def test_byte_lengths_of_every_token(trained: PreTrainedTokenizerFast) -> None:
    lengths = token_byte_lengths(trained)
    assert lengths.shape == (len(trained),)
    assert lengths.dtype == np.int64
    assert (lengths[:5] == 0).all()
    assert (lengths[5:261] == 1).all()
    token = trained.convert_tokens_to_ids("Ġthe")
    assert lengths[token] == 4


def test_report_of_a_case_counted_by_hand(trained: PreTrainedTokenizerFast) -> None:
    documents = ["the cat", "é [SEP]"]
    report = compression_report(tokenizer=trained, documents=documents)
    plain = Tokenizer.from_str(trained.backend_tokenizer.to_str())
    plain.encode_special_tokens = True
    tokens = sum(len(plain.encode(text, add_special_tokens=False).ids) for text in documents)
    assert report["documents"] == 2
    assert report["bytes"] == 7 + 8
    assert report["words"] == 4
    assert report["tokens"] == tokens
    assert report["bytes_per_token"] == pytest.approx(15 / tokens)
    assert report["tokens_per_word"] == pytest.approx(tokens / 4)
    assert report["vocab_size"] == len(trained)
    assert 0 < report["unused_tokens"] < len(trained)


def test_no_text_is_an_error(trained: PreTrainedTokenizerFast) -> None:
    with pytest.raises(TokenizerError, match="no text"):
        compression_report(tokenizer=trained, documents=[""])


def test_a_tokenizer_that_is_not_byte_level_is_an_error() -> None:
    backend = Tokenizer(models.WordLevel({"[UNK]": 0, "cat": 1}, unk_token="[UNK]"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    with pytest.raises(TokenizerError, match="byte-level"):
        token_byte_lengths(PreTrainedTokenizerFast(tokenizer_object=backend))
