"""Bytes, lengths and edges of tokens, beside a slow reference that decodes."""

import unicodedata
from itertools import pairwise

import numpy as np
import pytest
import regex
from examples import examples
from hypothesis import example, given
from hypothesis import strategies as st
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from lacuna.common.errors import InputError
from lacuna.tokenization import token_byte_lengths, train_bpe
from lacuna.tokenization.vocabulary import (
    ALPHABET,
    BLANK,
    BYTE_OF,
    DIGIT,
    LETTER,
    NONE,
    OTHER,
    PARTIAL,
    SPACE,
    UNSPACED,
    character_class,
    token_bytes,
    token_edges,
)

TEXTS = {
    "English": "The cat's 12,345 mats (all of them) -- were naïve; e\u0301tude.\n\n\tif x == 1:\n        return ",
    "Chinese": "你好，世界。我们在学习自然语言处理，二〇二六年１２月。ひらがなとカタカナー、々",
    "Thai": "สวัสดีชาวโลก ภาษาไทยไม่มีช่องว่าง ๑๒๓ ",
    "Hindi": "नमस्ते दुनिया, हिन्दी में १२३ शब्द। ",
    "Russian": "Съешь же ещё этих мягких французских булок, да выпей чаю. ",
    "Arabic": "السلام عليكم، كيف حالك؟ ١٢٣ שלום עולם ",
    "emoji": "👩‍👩‍👧 ❤️ 1️⃣ 🇩🇪 😀😀 ",
    "odd": "\x00\x1c\x1f\x85\xa0\u2028\u3000\ufeff\U0010ffff\U000e0100 ",
}
GPT2_PATTERN = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"


def gpt2_like(texts: list[str]) -> PreTrainedTokenizerFast:
    """A tokenizer made with the library alone, as GPT-2's is: `ByteLevel` splits by itself."""
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=560, special_tokens=["<|endoftext|>"], initial_alphabet=ALPHABET, show_progress=False
    )
    backend.train_from_iterator(texts, trainer)
    backend.add_tokens([AddedToken("<tool>", special=False), AddedToken("  \t", special=False)])
    return PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="<|endoftext|>")


def llama3_like(texts: list[str]) -> PreTrainedTokenizerFast:
    """Split by a pattern, then bytes; long tokens of spaces, and special tokens behind the vocabulary."""
    backend = Tokenizer(models.BPE())
    pattern = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s+"
    split = pre_tokenizers.Split(Regex(pattern), behavior="isolated")
    backend.pre_tokenizer = pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(False, use_regex=False)])
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=700, initial_alphabet=ALPHABET, show_progress=False)
    backend.train_from_iterator(texts, trainer)
    backend.add_special_tokens(["<|begin_of_text|>"])
    return PreTrainedTokenizerFast(tokenizer_object=backend, bos_token="<|begin_of_text|>")


@pytest.fixture(scope="module", params=["gpt2", "llama3", "ours", "ours, of English alone"])
def tokenizer(request: pytest.FixtureRequest) -> PreTrainedTokenizerFast:
    texts = [text * 5 for text in TEXTS.values()]
    if request.param == "gpt2":
        return gpt2_like(texts)
    if request.param == "llama3":
        return llama3_like(texts)
    return train_bpe(documents=texts if request.param == "ours" else texts[:1], vocab_size=310)


def slow_class(character: str) -> int:
    """The class of a character by the scripts of the `regex` library, which has tables of its own."""
    unspaced = "Han Hiragana Katakana Bopomofo Yi Thai Lao Khmer Myanmar Tibetan Tai_Le New_Tai_Lue Tai_Tham Tai_Viet"
    scripts = "".join(rf"\p{{Script={name}}}" for name in unspaced.split())
    for pattern, found in [
        (" ", SPACE),
        (r"\p{White_Space}", BLANK),
        (rf"(?=[{scripts}ー])[\p{{L}}\p{{M}}\p{{Nl}}]", UNSPACED),
        (r"\p{N}", DIGIT),
        (r"[\p{Me}\p{Variation_Selector}]", OTHER),
        (r"[\p{L}\p{M}]", LETTER),
    ]:
        if regex.fullmatch(pattern, character):
            return found
    return OTHER


def check_edges_of(text: str, tokenizer: PreTrainedTokenizerFast) -> None:
    """Walk over the bytes of the text and compare each token's edges with the characters that stand there."""
    backend = Tokenizer.from_str(tokenizer.backend_tokenizer.to_str())
    backend.encode_special_tokens = True
    ids = backend.encode(text, add_special_tokens=False).ids
    owner = [position for position, character in enumerate(text) for _ in character.encode()]
    begins = {position: owner.index(position) for position in set(owner)}
    ends = {position: len(owner) - owner[::-1].index(position) for position in set(owner)}
    edges, lengths = token_edges(tokenizer), token_byte_lengths(tokenizer)
    start = 0
    for token_id in ids:
        end = start + int(lengths[token_id])
        first, last = owner[start], owner[end - 1]
        if start > begins[first]:
            assert edges[token_id, 0] == PARTIAL
        elif end < ends[first]:
            assert edges[token_id, 0] in range(SPACE, PARTIAL)
        else:
            assert edges[token_id, 0] == slow_class(text[first])
        whole = end == ends[last] and start <= begins[last]
        assert edges[token_id, 1] == (slow_class(text[last]) if whole else PARTIAL)
        start = end
    assert start == len(owner)


@pytest.mark.parametrize("name", TEXTS)
def test_edges_of_the_tokens_of_a_text(tokenizer: PreTrainedTokenizerFast, name: str) -> None:
    check_edges_of(TEXTS[name], tokenizer)


@examples(150)
@given(text=st.text(max_size=20))
@example("e\u0301\u20e3\U0001f468\u200d\ufe0f")
def test_edges_of_any_text(tokenizer: PreTrainedTokenizerFast, text: str) -> None:
    assigned = "".join(character for character in text if unicodedata.category(character) != "Cn")
    check_edges_of(assigned, tokenizer)


def test_edges_of_every_token_of_whole_characters(tokenizer: PreTrainedTokenizerFast) -> None:
    edges = token_edges(tokenizer)
    assert edges.shape == (len(tokenizer), 2) and edges.dtype == np.uint8
    special = set(tokenizer.all_special_ids)
    for token_id in range(len(tokenizer)):
        text = tokenizer.decode([token_id], clean_up_tokenization_spaces=False)
        if token_id in special:
            assert edges[token_id].tolist() == [NONE, NONE]
        elif "\ufffd" not in text:
            assert edges[token_id].tolist() == [slow_class(text[0]), slow_class(text[-1])], text


def test_edges_of_single_bytes() -> None:
    tokenizer = train_bpe(documents=["some text, some text"], vocab_size=261)
    edges = token_edges(tokenizer)
    of = {BYTE_OF[token]: edges[tokenizer.convert_tokens_to_ids(token)].tolist() for token in ALPHABET}
    assert of[0x20] == [SPACE, SPACE]
    assert of[0x0A] == of[0x09] == [BLANK, BLANK]
    assert of[0x1C] == [OTHER, OTHER]
    assert of[ord("a")] == [LETTER, LETTER]
    assert of[ord("7")] == [DIGIT, DIGIT]
    assert of[0x80] == of[0xBF] == [PARTIAL, PARTIAL]
    assert of[0xC3] == of[0xD0] == [LETTER, PARTIAL]
    assert of[0xE4] == [UNSPACED, PARTIAL]
    assert of[0xC0] == of[0xF5] == of[0xFF] == [NONE, NONE]


def test_word_edges_follow_from_classes() -> None:
    """The rule of whole-word masking, on text whose words are known."""
    tokenizer = train_bpe(documents=["the cat sat on the mat 1984"], vocab_size=264)
    edges = token_edges(tokenizer)
    text = "unbelievable  cats, naïve 12345\n中国"
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    words: list[list[int]] = [[ids[0]]]
    for before, token_id in pairwise(ids):
        last, first = edges[before, 1], edges[token_id, 0]
        joined = first == PARTIAL or (last == SPACE and first not in (NONE, SPACE, BLANK))
        if joined or (first == last and first in (LETTER, DIGIT, OTHER)):
            words[-1].append(token_id)
        else:
            words.append([token_id])
    # "ï" is torn into two bytes here; what follows its end cannot know that a letter ended.
    expected = ["unbelievable", " ", " cats", ",", " naï", "ve", " 12345", "\n", "中", "国"]
    assert [tokenizer.decode(word) for word in words] == expected


def test_classes_of_characters_that_are_easy_to_get_wrong() -> None:
    classes = {
        BLANK: "\t\n\x0b\x85\xa0\u2009\u2028\u3000",
        OTHER: "\x00\x1c\x1f_#€。、\u200d\ufeff\ufe0f\u20e3👍",
        LETTER: "aßéжעعद한\u0301\u093e",
        DIGIT: "0٣३๓Ⅷ½１",
        UNSPACED: "中々〇ぁカーｱไ\u0e31ຂខကབ\U00020000",
    }
    for expected, characters in classes.items():
        for character in characters:
            assert character_class(character) == expected, (character, unicodedata.name(character, "?"))


def test_the_alphabet_is_that_of_the_library() -> None:
    assert sorted(pre_tokenizers.ByteLevel.alphabet()) == ALPHABET
    for byte in range(0x80):
        ((piece, _),) = pre_tokenizers.ByteLevel(False, use_regex=False).pre_tokenize_str(chr(byte))
        assert BYTE_OF[piece] == byte


@examples(200)
@given(text=st.text())
def test_bytes_and_their_lengths_add_up_to_the_text(tokenizer: PreTrainedTokenizerFast, text: str) -> None:
    ids = tokenizer(text, split_special_tokens=True, add_special_tokens=False)["input_ids"]
    assert token_byte_lengths(tokenizer)[ids].sum() == len(text.encode())
    pieces = token_bytes(tokenizer)
    assert b"".join(pieces[token_id] for token_id in ids) == text.encode()


def test_byte_lengths_of_every_token() -> None:
    trained = train_bpe(documents=["the cat sat on the mat; le café, naïve. " * 30], vocab_size=280)
    lengths = token_byte_lengths(trained)
    assert lengths.shape == (len(trained),)
    assert lengths.dtype == np.int64
    assert (lengths[:5] == 0).all()
    assert (lengths[5:261] == 1).all()
    assert lengths[trained.convert_tokens_to_ids("Ġthe")] == 4


def test_a_tokenizer_that_is_not_byte_level_is_an_error() -> None:
    backend = Tokenizer(models.WordLevel({"[UNK]": 0, "cat": 1}, unk_token="[UNK]"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    for function in (token_byte_lengths, token_edges):
        with pytest.raises(InputError, match="byte-level"):
            function(PreTrainedTokenizerFast(tokenizer_object=backend))
    # It says byte-level, and its vocabulary is something else.
    backend = Tokenizer(models.WordLevel({"[UNK]": 0, "a cat": 1}, unk_token="[UNK]"))
    backend.decoder = decoders.ByteLevel()
    with pytest.raises(InputError, match="'a cat'"):
        token_edges(PreTrainedTokenizerFast(tokenizer_object=backend))
