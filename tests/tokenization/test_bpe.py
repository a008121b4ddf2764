"""Byte-level BPE: exact round trips, templates, files that any transformers reads."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from tokenization import (
    SPECIAL_TOKENS,
    TokenizerError,
    adapt_tokenizer,
    load_tokenizer,
    save_tokenizer,
    tokenizer_fingerprint,
    train_bpe,
)
from tokenization.bpe import PIECE_CHARACTERS

TEXT = "The cat sat on the mat. The dog, too, sat there in 1984; it's the cat's mat , not the dog's ! " * 20


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerFast:
    return train_bpe(documents=[TEXT], vocab_size=290)


def encode_text(tokenizer: PreTrainedTokenizerFast, text: str) -> list[int]:
    return tokenizer(text, add_special_tokens=False)["input_ids"]


@settings(max_examples=300, deadline=None)
@given(text=st.text())
def test_every_text_survives_a_round_trip(tokenizer: PreTrainedTokenizerFast, text: str) -> None:
    # Names of special tokens are special tokens, unless they are asked to be text; a mask takes the space before it.
    as_text = tokenizer(text, add_special_tokens=False, split_special_tokens=True)["input_ids"]
    assert tokenizer.decode(as_text) == text
    assert all(token_id > 4 for token_id in as_text)
    if "[MASK]" not in text:
        assert tokenizer.decode(encode_text(tokenizer, text)) == text


@pytest.mark.parametrize(
    "text",
    [
        "a , b . isn 't",
        "  two  spaces\t\n\r\n ",
        "नमस्ते दुनिया",
        "你好，世界。",
        "👩‍👩‍👧 e\u0301",
        "\x00\x1c\u2028\ufeff",
        "\U0010ffff",
    ],
)
def test_round_trip_of_awkward_texts(tokenizer: PreTrainedTokenizerFast, text: str) -> None:
    ids = encode_text(tokenizer, text)
    assert tokenizer.decode(ids) == text
    assert tokenizer.decode(tokenizer(text)["input_ids"], skip_special_tokens=True) == text
    assert tokenizer.unk_token_id not in ids


def test_special_tokens_have_the_agreed_ids(tokenizer: PreTrainedTokenizerFast) -> None:
    assert tokenizer.convert_tokens_to_ids(SPECIAL_TOKENS) == [0, 1, 2, 3, 4]
    assert (tokenizer.pad_token_id, tokenizer.unk_token_id, tokenizer.mask_token_id) == (0, 1, 4)
    assert tokenizer.cls_token_id == tokenizer.bos_token_id == 2
    assert tokenizer.sep_token_id == tokenizer.eos_token_id == 3
    assert len(tokenizer) == 290


def test_digits_come_in_groups_of_three_at_most() -> None:
    with pytest.warns(UserWarning, match="--vocab_size"):
        tokenizer = train_bpe(documents=["12345678 " * 200], vocab_size=400)
    assert tokenizer.tokenize("12345678") == ["123", "456", "78"]


def test_combining_marks_stay_with_their_letters() -> None:
    with pytest.warns(UserWarning, match="--vocab_size"):
        tokenizer = train_bpe(documents=["हिन्दी " * 50], vocab_size=400)
    assert len(tokenizer.tokenize("हिन्दी")) == 1


def test_a_space_before_the_mask_belongs_to_it(tokenizer: PreTrainedTokenizerFast) -> None:
    ids = encode_text(tokenizer, "the [MASK] sat")
    expected = encode_text(tokenizer, "the") + [4] + encode_text(tokenizer, " sat")
    assert ids == expected


def test_training_is_deterministic_and_does_not_depend_on_pieces() -> None:
    document = TEXT * (3 * PIECE_CHARACTERS // len(TEXT))
    whole = train_bpe(documents=[document], vocab_size=285)
    again = train_bpe(documents=iter([document]), vocab_size=285)
    assert tokenizer_fingerprint(whole) == tokenizer_fingerprint(again)
    # The same words cut by hand at other places.
    cut = document.index(" ", len(document) // 2)
    halves = train_bpe(documents=[document[:cut], document[cut:]], vocab_size=285)
    assert tokenizer_fingerprint(halves) == tokenizer_fingerprint(whole)


def test_unreachable_vocabulary_is_a_warning_with_the_reached_size() -> None:
    with pytest.warns(UserWarning, match=r"has (\d+) tokens, not the 5000 of --vocab_size"):
        tokenizer = train_bpe(documents=["abab"], vocab_size=5000)
    assert 261 <= len(tokenizer) < 300


@pytest.mark.parametrize("documents", [[], [""], ["", "  \n"]])
def test_no_text_is_an_error(documents: list[str]) -> None:
    with pytest.raises(TokenizerError, match="no text"):
        train_bpe(documents=documents, vocab_size=300)


def test_a_vocabulary_below_the_alphabet_is_an_error() -> None:
    with pytest.raises(TokenizerError, match="--vocab_size 200"):
        train_bpe(documents=[TEXT], vocab_size=200)


def test_an_error_of_the_source_keeps_its_class_and_message() -> None:
    class BrokenFileError(ValueError):
        pass

    def documents() -> Iterator[str]:
        yield TEXT
        raise BrokenFileError("file.txt:3")

    with pytest.raises(BrokenFileError, match=r"file.txt:3"):
        train_bpe(documents=documents(), vocab_size=300)


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


def test_adapting_makes_a_copy_and_leaves_the_fingerprint(tokenizer: PreTrainedTokenizerFast) -> None:
    before = tokenizer("the cat", "a dog")["input_ids"]
    decoder = adapt_tokenizer(tokenizer=tokenizer, shape="decoder", segments=False, max_length=8)
    assert tokenizer("the cat", "a dog")["input_ids"] == before
    assert tokenizer_fingerprint(decoder) == tokenizer_fingerprint(tokenizer)
    other = train_bpe(documents=[TEXT.upper()], vocab_size=285)
    assert tokenizer_fingerprint(other) != tokenizer_fingerprint(tokenizer)


def test_an_unknown_shape_is_an_error(tokenizer: PreTrainedTokenizerFast) -> None:
    with pytest.raises(TokenizerError, match=r"'tree'.*encoder, decoder"):
        adapt_tokenizer(tokenizer=tokenizer, shape="tree", segments=True, max_length=8)


def test_offsets_leave_out_the_space_before_a_word(tokenizer: PreTrainedTokenizerFast) -> None:
    text = "the  cat sat"
    encoding = tokenizer(text, return_offsets_mapping=True, add_special_tokens=False)
    pieces = [text[start:end] for start, end in encoding["offset_mapping"]]
    assert "".join(pieces) == "thecatsat"
    assert (5, 8) in encoding["offset_mapping"]  # " cat" is one token; its offsets are those of "cat"


def test_save_and_load(tokenizer: PreTrainedTokenizerFast, tmp_path: Path) -> None:
    folder = tmp_path / "deep" / "tokenizer"
    save_tokenizer(tokenizer=tokenizer, output_dir=folder)
    assert sorted(path.name for path in folder.iterdir()) == ["tokenizer.json", "tokenizer_config.json"]
    assert [path.name for path in folder.parent.iterdir()] == ["tokenizer"]
    config = json.loads((folder / "tokenizer_config.json").read_text())
    assert config["tokenizer_class"] == "PreTrainedTokenizerFast"
    assert config["clean_up_tokenization_spaces"] is False
    assert "auto_map" not in config
    for loaded in (load_tokenizer(folder), load_tokenizer(str(folder)), AutoTokenizer.from_pretrained(folder)):
        assert loaded("the cat", "a dog") == tokenizer("the cat", "a dog")
        assert tokenizer_fingerprint(loaded) == tokenizer_fingerprint(tokenizer)
        assert loaded.decode(encode_text(loaded, "a , b .")) == "a , b ."
    assert Tokenizer.from_file(str(folder / "tokenizer.json")).encode("the cat").ids == tokenizer("the cat").input_ids


def test_save_into_a_folder_with_other_files(tokenizer: PreTrainedTokenizerFast, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    save_tokenizer(tokenizer=tokenizer, output_dir=folder)
    decoder = adapt_tokenizer(tokenizer=tokenizer, shape="decoder", segments=False, max_length=8)
    save_tokenizer(tokenizer=decoder, output_dir=folder)
    assert (folder / "config.json").read_text() == "{}"
    assert load_tokenizer(folder).padding_side == "left"
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_save_that_fails_leaves_nothing(
    tokenizer: PreTrainedTokenizerFast, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(PreTrainedTokenizerFast, "save_pretrained", fail)
    with pytest.raises(TokenizerError, match="No space left") as caught:
        save_tokenizer(tokenizer=tokenizer, output_dir=tmp_path / "tokenizer")
    assert caught.value.exit_code == 5
    assert not list(tmp_path.iterdir())


def test_load_of_what_is_not_there_or_broken(tmp_path: Path) -> None:
    with pytest.raises(TokenizerError, match=r"no such folder.*train_tokenizer"):
        load_tokenizer(tmp_path / "nothing")
    with pytest.raises(TokenizerError, match=r"no tokenizer\.json"):
        load_tokenizer(tmp_path)
    (tmp_path / "tokenizer.json").write_text('{"model": ')
    with pytest.raises(TokenizerError, match="does not hold a tokenizer"):
        load_tokenizer(tmp_path)


def test_a_fresh_process_reads_it_without_lacuna(tokenizer: PreTrainedTokenizerFast, tmp_path: Path) -> None:
    save_tokenizer(tokenizer=tokenizer, output_dir=tmp_path / "tokenizer")
    code = (
        "import json; from transformers import AutoTokenizer\n"
        "t = AutoTokenizer.from_pretrained('tokenizer')\n"
        "print(json.dumps([t('the cat', 'a dog').data, type(t).__name__]))"
    )
    result = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True)
    data, _ = json.loads(result.stdout)
    assert data == tokenizer("the cat", "a dog").data
