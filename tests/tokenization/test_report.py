"""What a report counts."""

import pytest
from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerFast

from tokenization import TokenizerError, compression_report, train_bpe


@pytest.fixture(scope="module")
def trained() -> PreTrainedTokenizerFast:
    return train_bpe(documents=["the cat sat on the mat; le café, naïve. " * 30], vocab_size=280)


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
