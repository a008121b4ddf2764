"""How text is cut, beside the same expressions in another library."""

import pytest
import regex
from examples import examples
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, models

from lacuna.tokenization import train_bpe
from lacuna.tokenization.patterns import (
    LATEST_EDGE,
    PATTERNS,
    PIECE_CHARACTERS,
    RUN_CHARACTERS,
    choose_pattern,
    cut_runs,
    pattern_of,
    split_pieces,
    untrained_backend,
)
from lacuna.tokenization.vocabulary import BYTE_OF

# Characters that are assigned in the oldest tables here: the libraries are of different years.
TEXTS = st.text(alphabet=" \n\r\t\x1c\x85\u3000ab1٣.,'_é\u0301你की👍(") | st.text(
    alphabet=st.characters(exclude_categories=["Cn", "Cs", "Co"])
)


def words_of(text: str, pattern: str) -> list[str]:
    pieces = untrained_backend(normalizer="none", pattern=pattern).pre_tokenizer.pre_tokenize_str(text)
    return [bytes(BYTE_OF[character] for character in piece).decode() for piece, _ in pieces]


@examples(200)
@given(text=TEXTS, name=st.sampled_from(sorted(PATTERNS)))
def test_words_are_those_of_the_expression_and_make_up_the_text(text: str, name: str) -> None:
    if "\x1c" not in text:  # white space in `regex`, not in Unicode
        assert words_of(text, name) == regex.findall(PATTERNS[name], text)
    assert "".join(words_of(text, name)) == text


@examples(200)
@given(text=TEXTS, name=st.sampled_from(sorted(PATTERNS)))
def test_no_word_reaches_from_visible_text_into_white_space(text: str, name: str) -> None:
    for word in words_of(text, name):
        assert not regex.search(r"\P{White_Space}\p{White_Space}", word)


def test_the_patterns_cut_as_they_say() -> None:
    text = "It's 12345 naïve_words\n\n    if x:\n\treturn  1"
    assert words_of(text, "gpt2") == [
        "It", "'s", " 12345", " naïve", "_", "words", "\n\n   ", " if", " x", ":", "\n", "\t", "return", " ", " 1"
    ]  # fmt: skip
    assert words_of(text, "modern") == [
        "It", "'s", " 123", "45", " naïve", "_", "words", "\n\n   ", " if", " x", ":", "\n", "\t", "return", " ", " 1"
    ]  # fmt: skip
    assert words_of(text, "code") == [
        "It", "'", "s", " 123", "45", " naïve", "_", "words", "\n\n    ", "if", " x", ":", "\n\t", "return", " ", " 1"
    ]  # fmt: skip
    assert words_of("a  \n \n b   c", "code") == ["a", "  \n \n ", "b", "  ", " c"]
    assert words_of("हिन्दी", "modern") == ["हिन्दी"] and len(words_of("हिन्दी", "gpt2")) > 1


def test_indentation_is_one_token_with_the_pattern_for_code() -> None:
    code = "".join(f"{' ' * (4 * (i % 4))}value_{i} = call({i})\n" for i in range(40)) + "\tx\n\t\ty\n" * 9
    tokenizer = train_bpe(documents=[code], vocab_size=300, pattern="code")
    for indent in (4, 8, 12):
        assert tokenizer.tokenize(")\n" + " " * indent + "value")[:3] == [")", "Ċ" + "Ġ" * indent, "value"]
    assert tokenizer.tokenize("x\n\t\ty") == ["x", "Ċĉĉ", "y"]
    assert tokenizer.decode(tokenizer(code, add_special_tokens=False)["input_ids"]) == code


@pytest.mark.parametrize("length", [0, 1, PIECE_CHARACTERS, PIECE_CHARACTERS + LATEST_EDGE + 1, 5 * PIECE_CHARACTERS])
def test_pieces_make_up_the_document_and_are_not_cut_again(length: int) -> None:
    for document in (("some words " * length)[:length], "x" * length):
        pieces = list(split_pieces(document))
        assert "".join(pieces) == document
        assert max(map(len, pieces)) <= PIECE_CHARACTERS + LATEST_EDGE
        assert [again for piece in pieces for again in split_pieces(piece)] == pieces
        assert all(pieces) or not document


def test_pieces_end_before_white_space() -> None:
    pieces = list(split_pieces("one two\x1c three\n" * PIECE_CHARACTERS))
    assert len(pieces) > 10
    assert all(piece[0] in " \n" for piece in pieces[1:])


def test_long_runs_without_white_space_are_cut_and_ordinary_text_is_not() -> None:
    dna = "ACGT" * 2000
    for text in (dna, f"id 1\n{dna}\nid 2\n{dna[:500]}", "x" * RUN_CHARACTERS, " ", ""):
        pieces = list(cut_runs(text))
        assert "".join(pieces) == text
        assert max(len(word) for piece in pieces for word in [*piece.split(), ""]) <= RUN_CHARACTERS
    assert list(cut_runs("some words " * 999)) == ["some words " * 999]
    assert list(cut_runs("你好，世界。" * 100)) == ["你好，世界。" * 100]


@pytest.mark.parametrize(
    ("documents", "pattern"),
    [
        (["A river runs.", "Es fließt – leise – à côté."], "gpt2"),
        (["A river runs. " * 40, "हिन्दी में"], "modern"),
        (["A river runs. " * 400, "é"], "gpt2"),  # one mark in thousands of characters
    ],
)
def test_the_text_chooses_a_pattern_that_does_not_tear_its_words(documents: list[str], pattern: str) -> None:
    assert choose_pattern(iter(documents)) == pattern
    for source in (documents, iter(documents)):
        tokenizer = train_bpe(documents=source, vocab_size=262, min_frequency=1)
        assert pattern_of(tokenizer.backend_tokenizer) == pattern
    asked = train_bpe(documents=documents, vocab_size=262, min_frequency=1, pattern="code")
    assert pattern_of(asked.backend_tokenizer) == "code"
    assert pattern_of(Tokenizer(models.BPE())) == "other"
