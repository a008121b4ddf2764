"""Byte-level BPE: exact round trips, special tokens, vocabularies that can and cannot be reached."""

from collections.abc import Iterator

import pytest
from examples import examples
from hypothesis import example, given
from hypothesis import strategies as st
from transformers import PreTrainedTokenizerFast

from lacuna.common.errors import InputError
from lacuna.tokenization import SPECIAL_TOKENS, tokenizer_fingerprint, train_bpe
from lacuna.tokenization.patterns import NORMALIZERS, PATTERNS, PIECE_CHARACTERS

TEXT = "The cat sat on the mat. The dog, too, sat there in 1984; it's the cat's mat , not the dog's ! " * 20
AWKWARD = [
    "a , b . isn 't",
    "  two  spaces\t\n\r\n ",
    "नमस्ते दुनिया",
    "你好，世界。",
    "👩‍👩‍👧 e\u0301",
    "\x00\x1c\u2028\ufeff",
    "\x1c \x1d\n\x1e\x1f \x85\xa0",
    "\u0301\u0301 \u20e3",
    "שלום עולם \u202eمرحبا\u202c",
    "\U0010ffff",
    "\n\n    \n\t\tx\r    y\r\n  ",
]


def encode_text(tokenizer: PreTrainedTokenizerFast, text: str) -> list[int]:
    return tokenizer(text, add_special_tokens=False)["input_ids"]


@pytest.fixture(scope="module", params=PATTERNS)
def patterned(request: pytest.FixtureRequest) -> PreTrainedTokenizerFast:
    return train_bpe(documents=[TEXT + "\n    x = 1\n" * 9, *AWKWARD * 3], vocab_size=330, pattern=request.param)


@examples(200)
@given(text=st.text() | st.text(alphabet=" \t\n\r\x1c\u0301\u3000a1.é你'👍") | st.sampled_from(AWKWARD))
@example("[CLS] [MASK]")
def test_every_text_survives_a_round_trip(patterned: PreTrainedTokenizerFast, text: str) -> None:
    # Names of special tokens are special tokens, unless they are asked to be text; a mask takes the space before it.
    as_text = patterned(text, add_special_tokens=False, split_special_tokens=True)["input_ids"]
    assert patterned.decode(as_text) == text
    assert all(token_id > 4 for token_id in as_text)
    if "[MASK]" not in text:
        assert patterned.decode(encode_text(patterned, text)) == text


@pytest.mark.parametrize("text", AWKWARD)
def test_round_trip_of_awkward_texts(patterned: PreTrainedTokenizerFast, text: str) -> None:
    ids = encode_text(patterned, text)
    assert patterned.decode(ids) == text
    assert patterned.decode(patterned(text)["input_ids"], skip_special_tokens=True) == text
    assert patterned.unk_token_id not in ids


def test_special_tokens_have_the_agreed_ids(tokenizer: PreTrainedTokenizerFast) -> None:
    assert tokenizer.convert_tokens_to_ids(SPECIAL_TOKENS) == [0, 1, 2, 3, 4]
    assert (tokenizer.pad_token_id, tokenizer.unk_token_id, tokenizer.mask_token_id) == (0, 1, 4)
    assert tokenizer.cls_token_id == tokenizer.bos_token_id == 2
    assert tokenizer.sep_token_id == tokenizer.eos_token_id == 3
    assert len(tokenizer) == 290


def test_digits_come_in_groups_of_three_at_most() -> None:
    with pytest.warns(UserWarning, match="--vocab_size"):
        tokenizer = train_bpe(documents=["12345678 " * 200], vocab_size=400, pattern="modern")
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
    with pytest.raises(InputError, match="no text"):
        train_bpe(documents=documents, vocab_size=300)


def test_a_vocabulary_below_the_alphabet_is_an_error() -> None:
    with pytest.raises(InputError, match="--vocab_size 200"):
        train_bpe(documents=[TEXT], vocab_size=200)


def test_an_error_of_the_source_keeps_its_class_and_message() -> None:
    class BrokenFileError(ValueError):
        pass

    def documents() -> Iterator[str]:
        yield TEXT
        raise BrokenFileError("file.txt:3")

    with pytest.raises(BrokenFileError, match=r"file.txt:3"):
        train_bpe(documents=documents(), vocab_size=300)


def test_text_that_gives_no_pair_is_an_error() -> None:
    with pytest.raises(InputError, match="nothing to learn") as caught:
        train_bpe(documents=["ab cd ef"], vocab_size=300)
    assert caught.value.exit_code == 2


def test_extra_special_tokens_come_after_the_five() -> None:
    made = train_bpe(documents=[TEXT], vocab_size=290, extra_special_tokens=["<user>", "<end>"])
    assert made.convert_ids_to_tokens(range(8)) == [*SPECIAL_TOKENS, "<user>", "<end>", "!"]
    assert len(made) == 290
    assert set(made.all_special_ids) == set(range(7))
    assert made("a<user>b", add_special_tokens=False)["input_ids"].count(5) == 1
    ids = made("a<user>b", add_special_tokens=False, split_special_tokens=True)["input_ids"]
    assert 5 not in ids and made.decode(ids) == "a<user>b"


@pytest.mark.parametrize("token", ["the", " <a>", "", "###", "[MASK]", "\n", "a"])
def test_a_special_token_that_cannot_be_one_is_an_error(token: str) -> None:
    with pytest.raises(InputError, match="--extra_special_tokens"):
        train_bpe(documents=[TEXT], vocab_size=300, extra_special_tokens=[token])


def test_a_vocabulary_is_padded_to_a_multiple_by_learning_more() -> None:
    made = train_bpe(documents=[TEXT], vocab_size=270, pad_to_multiple_of=8)
    plain = train_bpe(documents=[TEXT], vocab_size=272)
    assert len(made) == 272 and made.get_vocab() == plain.get_vocab()


def test_where_the_text_ends_reserved_tokens_fill_to_the_next_multiple() -> None:
    with pytest.warns(UserWarning, match=r"not the 5000 of --vocab_size.*reserved"):
        made = train_bpe(documents=["abab abab"], vocab_size=5000, pad_to_multiple_of=64)
    assert len(made) == 320
    last = made.convert_ids_to_tokens(319)
    assert last.startswith("[unused") and made.decode([319], skip_special_tokens=True) == ""


@pytest.mark.parametrize(
    ("normalizer", "text", "expected"),
    [
        ("none", "Ｅ\u0301ﬁ", "Ｅ\u0301ﬁ"),
        ("nfc", "E\u0301ﬁ", "Éﬁ"),
        ("nfkc", "Ｅ\u0301ﬁ", "Éfi"),
        ("lowercase", "ÉTÉ", "été"),
        ("strip_accents", "Été Ångström Ёлка ή", "Ete Angstrom Елка η"),
        ("strip_accents", "हिन्दी ภาษาไทยไม่ が 한국어 שָׁלוֹם", "हिन्दी ภาษาไทยไม่ が 한국어 שָׁלוֹם"),
        ("lowercase_strip_accents", "ÉTÉ İ", "ete i"),
    ],
)
def test_normalizers(normalizer: str, text: str, expected: str) -> None:
    made = train_bpe(documents=[TEXT], vocab_size=290, normalizer=normalizer)
    assert made.decode(encode_text(made, text)) == expected


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"normalizer": "nfx"}, f"--normalizer 'nfx'.*{', '.join(NORMALIZERS)}"),
        ({"pattern": "gpt5"}, "--pattern 'gpt5'.*gpt2, modern, code"),
        ({"min_frequency": 0}, "--min_frequency must be at least 1, got 0"),
        ({"pad_to_multiple_of": 0}, "--pad_to_multiple_of must be at least 1, got 0"),
        ({"extra_special_tokens": [f"<{number}>" for number in range(100)]}, "361"),
    ],
)
def test_an_option_that_cannot_be_is_an_error(options: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        train_bpe(documents=[TEXT], vocab_size=300, **options)  # type: ignore[arg-type]
