"""What a report counts, and what it warns of."""

import pytest
from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerFast

from lacuna.common.errors import InputError
from lacuna.tokenization import compression_report, describe_report, peak_memory, torn_warning, train_bpe


@pytest.fixture(scope="module")
def trained() -> PreTrainedTokenizerFast:
    return train_bpe(documents=["the cat sat on the mat; le café, naïve. " * 30], vocab_size=280)


def test_report_of_a_case_counted_by_hand(trained: PreTrainedTokenizerFast) -> None:
    documents = ["the cat", "é [SEP]"]
    report = compression_report(tokenizer=trained, documents=documents)
    plain = Tokenizer.from_str(trained.backend_tokenizer.to_str())
    plain.encode_special_tokens = True
    ids = [token_id for text in documents for token_id in plain.encode(text, add_special_tokens=False).ids]
    assert report["texts"] == 2
    assert report["bytes"] == 7 + 8
    assert report["words"] == 4
    assert report["tokens"] == len(ids)
    assert report["bytes_per_token"] == pytest.approx(15 / len(ids))
    assert report["characters_per_token"] == pytest.approx(14 / len(ids))
    assert report["tokens_per_word"] == pytest.approx(len(ids) / 4)
    assert report["single_byte_share"] == sum(5 <= token_id < 261 for token_id in ids) / len(ids)
    assert report["vocab_size"] == len(trained)
    assert report["unused_tokens"] == 275 - len(set(ids))
    assert len(report["longest_tokens"]) == 10 and report["longest_tokens"][0] == " the"


def test_half_a_character_is_shown_as_bytes() -> None:
    parts = compression_report(tokenizer=train_bpe(documents=["é è ê ë "], vocab_size=262), documents=["é"])
    assert "\\xc3" in "".join(parts["longest_tokens"]) and "�" not in "".join(parts["longest_tokens"])


def test_what_falls_to_bytes_is_counted_in_bytes_of_torn_characters() -> None:
    plain = train_bpe(documents=["some text, some text"], vocab_size=262)
    for text, share in [("text 123 \n;", 0.0), ("é", 1.0), ("aé", 2 / 3), ("ab你c👍", 7 / 10)]:
        report = compression_report(tokenizer=plain, documents=[text])
        assert report["torn_share"] == pytest.approx(share), text
    knows = train_bpe(documents=["你你你你 é é é"], vocab_size=266)
    assert compression_report(tokenizer=knows, documents=["你 é"])["torn_share"] == 0
    # Two of the three bytes of another character are in a token; it is torn all the same.
    assert compression_report(tokenizer=knows, documents=["佡"])["torn_share"] == 1


def test_a_warning_comes_above_one_percent() -> None:
    assert torn_warning({"torn_share": 0.01}) is None
    assert "1.1% of the text" in str(torn_warning({"torn_share": 0.011}))
    assert torn_warning({"torn_share": 0.001}, held_out={"torn_share": 0.001}) is None
    assert "30.0% of the held-out text" in str(torn_warning({"torn_share": 0.02}, held_out={"torn_share": 0.3}))


def test_description_has_a_column_for_each_text(trained: PreTrainedTokenizerFast) -> None:
    report = compression_report(tokenizer=trained, documents=["the cat"])
    alone = describe_report(report)
    assert f"{report['bytes_per_token']:.2f}" in alone and "held out" not in alone
    both = describe_report({**report, "held_out": {**report, "bytes_per_token": 9.87}})
    assert "held out" in both and "9.87" in both
    assert all(len(line) < 160 for line in both.splitlines())
    extended = describe_report({**report, "held_out": report, "before_extending": {**report, "bytes_per_token": 1.23}})
    assert "old tokenizer" in extended and "1.23" in extended


def test_long_tokens_are_shortened_for_people(trained: PreTrainedTokenizerFast) -> None:
    report = compression_report(tokenizer=trained, documents=["the cat"])
    said = describe_report({**report, "longest_tokens": [" " + "=" * 99] * 10})
    assert "…" in said and all(len(line) < 220 for line in said.splitlines())


def test_peak_memory_is_in_bytes() -> None:
    peak = peak_memory()
    assert peak is None or 20_000_000 < peak < 100_000_000_000


def test_no_text_is_an_error(trained: PreTrainedTokenizerFast) -> None:
    with pytest.raises(InputError, match="no text"):
        compression_report(tokenizer=trained, documents=[""])
