"""Sentences are a partition of the text, cut where a reader would."""

import time

import pytest
from examples import examples
from hypothesis import example, given
from hypothesis import strategies as st

from lacuna.corpus import split_sentences
from lacuna.corpus.store.encoding import MAX_CHARACTERS
from lacuna.tokenization import train_bpe

PROSE = st.text(alphabet=st.sampled_from('ABCabc019.!?…"”’)]\n\t -*•。！」 你é\x1c\xa0'), max_size=60)


@examples(300)
@given(text=st.one_of(st.text(), PROSE))
@example(text="")
@example(text=" \n")
@example(text="A. B.\n\n")
@example(text='A\xa0.-?"CA你]')  # sentencex 1.0.32 panics at an initial, a space of two bytes and a full stop
def test_pieces_join_to_the_text(text: str) -> None:
    pieces = split_sentences(text)
    assert "".join(pieces) == text
    assert all(pieces)
    if text.strip():
        assert all(piece.strip() for piece in pieces)


@pytest.fixture(scope="module")
def tokenizer():
    return train_bpe(documents=["The cat sat. A dog ran! " * 20, "1. item\n- other\n\n" * 20], vocab_size=270)


@examples(300)
@given(text=PROSE)
def test_tokens_of_the_pieces_are_the_tokens_of_the_whole(tokenizer, text: str) -> None:
    def encode(part: str) -> list[int]:
        return tokenizer(part, add_special_tokens=False)["input_ids"]

    assert [token for piece in split_sentences(text) for token in encode(piece)] == encode(text)


@pytest.mark.parametrize(
    ("text", "pieces"),
    [
        ("One. Two!  Three?", ["One.", " Two!", "  Three?"]),
        ("Mr. Smith met Dr. J. S. Bach. He left.", ["Mr. Smith met Dr. J. S. Bach.", " He left."]),
        ("It costs 3.50 dollars, e.g. here. Yes.", ["It costs 3.50 dollars, e.g. here.", " Yes."]),
        ('He said "No." Then he went.', ['He said "No."', " Then he went."]),
        ("a sentence. with no capital", ["a sentence. with no capital"]),
        ("Title\n\nBody text\n", ["Title", "\n\nBody text\n"]),
        ("Items:\n- one\n  * two\n1. three", ["Items:", "\n- one", "\n  * two", "\n1. three"]),
        ("1. First.\n2. Second, in 1984. Third", ["1. First.", "\n2. Second, in 1984.", " Third"]),
        ("hard\nwrapped\nlines", ["hard\nwrapped\nlines"]),
        ("你好。世界！再见", ["你好。", "世界！", "再见"]),
        ("Es war gut. Österreich auch.", ["Es war gut.", " Österreich auch."]),
        ("Wait… What?! Really.", ["Wait… What?!", " Really."]),
    ],
)
def test_where_a_reader_would_cut(text: str, pieces: list[str]) -> None:
    assert split_sentences(text) == pieces


@pytest.mark.parametrize(
    ("language", "text", "pieces"),
    [
        (
            "fr",
            "Il a dit : « Oui. » M. Dupont est parti. Et puis ?",
            ["Il a dit : « Oui. »", " M. Dupont est parti.", " Et puis ?"],
        ),
        ("ru", "Он сказал: «Да». Потом г. Иванов ушёл.", ["Он сказал: «Да».", " Потом г. Иванов ушёл."]),
        ("hi", "यह एक वाक्य है। क्या?", ["यह एक वाक्य है।", " क्या?"]),
        ("ar", "هل هذا صحيح؟ نعم.", ["هل هذا صحيح؟", " نعم."]),
        ("de", "Am 3. Mai kam Dr. Kant. Er ging.", ["Am 3. Mai kam Dr. Kant.", " Er ging."]),
        ("ja", "彼は行く。そして去った。", ["彼は行く。", "そして去った。"]),
        ("zz", "One. Two.", ["One.", " Two."]),
    ],
)
def test_languages_have_their_own_marks_and_abbreviations(language: str, text: str, pieces: list[str]) -> None:
    assert split_sentences(text, language=language) == pieces


@pytest.mark.parametrize(
    ("text", "pieces"),
    [
        # The library alone cuts nothing between quotation marks, nor between two apostrophes.
        (
            '"I went. He stayed," she said. "Why?" he asked.',
            ['"I went.', ' He stayed," she said.', ' "Why?" he asked.'],
        ),
        ("'Tis late. The dogs' bowl is here. Go.", ["'Tis late.", " The dogs' bowl is here.", " Go."]),
        ("She left (it rained. Hard.) and wept.", ["She left (it rained.", " Hard.) and wept."]),
        ('He went.\n" The door opened.', ["He went.", '\n" The door opened.']),
    ],
)
def test_quotations_are_cut_as_other_text(text: str, pieces: list[str]) -> None:
    assert split_sentences(text) == pieces


def test_a_long_paragraph_is_cut_as_its_parts_are() -> None:
    sentences = [f" The number {number} is {'very ' * (number % 40)}nice." for number in range(1000)]
    assert split_sentences("".join(sentences)) == sentences


def test_text_without_marks_is_cut_between_words() -> None:
    text = "word " * 2000
    pieces = split_sentences(text)
    assert "".join(pieces) == text
    assert max(map(len, pieces)) <= MAX_CHARACTERS
    unbroken = "x" * 5000
    assert split_sentences(unbroken) == [unbroken]


@pytest.mark.parametrize("unit", [".", "\n", "。", ".)", "x", "word ", " ", "\n- ", "? ", "\n \t"])
def test_much_of_anything_takes_no_time(unit: str) -> None:
    text = "A" + unit * (300_000 // len(unit)) + " End."
    start = time.process_time()
    assert "".join(split_sentences(text)) == text
    assert time.process_time() - start < 3  # quadratic time takes many times that; a slow processor needs a second
