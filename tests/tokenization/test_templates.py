"""What is put around a text for each shape of model."""

import pytest
from transformers import PreTrainedTokenizerFast

from lacuna.common.errors import InputError
from lacuna.tokenization import adapt_tokenizer, tokenizer_fingerprint, train_bpe


def encode_text(tokenizer: PreTrainedTokenizerFast, text: str) -> list[int]:
    return tokenizer(text, add_special_tokens=False)["input_ids"]


def test_encoder_templates(tokenizer: PreTrainedTokenizerFast) -> None:
    a, b = encode_text(tokenizer, "the cat"), encode_text(tokenizer, "a dog")
    with_segments = adapt_tokenizer(tokenizer=tokenizer, shape="encoder", segments=True, max_length=64)
    pair = with_segments("the cat", "a dog")
    assert pair["input_ids"] == [2, *a, 3, *b, 3]
    assert pair["token_type_ids"] == [0] * (len(a) + 2) + [1] * (len(b) + 1)
    single = with_segments("the cat")
    assert single["input_ids"] == [2, *a, 3]
    assert single["token_type_ids"] == [0] * (len(a) + 2)
    assert with_segments.model_max_length == 64

    without = adapt_tokenizer(tokenizer=tokenizer, shape="encoder", segments=False, max_length=64)
    assert set(without("the cat", "a dog")) == {"input_ids", "attention_mask"}
    assert without("the cat", "a dog")["input_ids"] == pair["input_ids"]
    assert set(without("the cat", "a dog", return_token_type_ids=True)["token_type_ids"]) == {0}


def test_decoder_template_opens_and_does_not_close(tokenizer: PreTrainedTokenizerFast) -> None:
    decoder = adapt_tokenizer(tokenizer=tokenizer, shape="decoder", segments=False, max_length=64)
    a = encode_text(tokenizer, "the cat")
    assert decoder("the cat")["input_ids"] == [2, *a]
    batch = decoder(["the cat", ""], padding=True)
    assert batch["input_ids"][1] == [0] * len(a) + [2]  # padded on the left
    # The end is there for who writes documents, and between the two of a pair.
    assert (decoder.bos_token_id, decoder.eos_token_id) == (2, 3)
    assert decoder("the cat", "a dog")["input_ids"] == [2, *a, 3, *encode_text(tokenizer, "a dog")]


def test_encoder_decoder_template_closes_and_pads_right(tokenizer: PreTrainedTokenizerFast) -> None:
    adapted = adapt_tokenizer(tokenizer=tokenizer, shape="encoder-decoder", segments=False, max_length=64)
    a, b = encode_text(tokenizer, "the cat"), encode_text(tokenizer, "a dog")
    assert adapted("the cat", text_target="a dog")["labels"] == [2, *b, 3]
    assert adapted("the cat", "a dog")["input_ids"] == [2, *a, 3, *b, 3]
    batch = adapted(["the cat", ""], padding=True)
    assert batch["input_ids"] == [[2, *a, 3], [2, 3, *[0] * len(a)]]
    assert set(batch) == {"input_ids", "attention_mask"}


def test_adapting_makes_a_copy_and_leaves_the_fingerprint(tokenizer: PreTrainedTokenizerFast) -> None:
    before = tokenizer("the cat", "a dog")["input_ids"]
    decoder = adapt_tokenizer(tokenizer=tokenizer, shape="decoder", segments=False, max_length=8)
    assert tokenizer("the cat", "a dog")["input_ids"] == before
    assert tokenizer_fingerprint(decoder) == tokenizer_fingerprint(tokenizer)
    other = train_bpe(documents=["THE CAT SAT ON THE MAT. " * 20], vocab_size=270)
    assert tokenizer_fingerprint(other) != tokenizer_fingerprint(tokenizer)


def test_an_unknown_shape_is_an_error(tokenizer: PreTrainedTokenizerFast) -> None:
    with pytest.raises(InputError, match=r"'tree'.*encoder, decoder"):
        adapt_tokenizer(tokenizer=tokenizer, shape="tree", segments=True, max_length=8)


def test_offsets_leave_out_the_space_before_a_word(tokenizer: PreTrainedTokenizerFast) -> None:
    text = "the  cat sat"
    encoding = tokenizer(text, return_offsets_mapping=True, add_special_tokens=False)
    pieces = [text[start:end] for start, end in encoding["offset_mapping"]]
    assert "".join(pieces) == "thecatsat"
    assert (5, 8) in encoding["offset_mapping"]  # " cat" is one token; its offsets are those of "cat"
