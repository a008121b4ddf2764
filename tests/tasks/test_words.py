"""Words of scripts whose letters carry marks stay whole; all others are what `\\w` of the standard library says."""

import re
import unicodedata

import pytest
from examples import examples
from hypothesis import given
from hypothesis import strategies as st

from lacuna.tasks.base.features import TOKENS, WORDS

WHOLE = [
    "हिन्दी",  # vowel signs and a virama
    "मुंबई",
    "বাংলাদেশ",
    "தமிழ்",
    "שָׁלוֹם",  # points
    "العَرَبِيَّة",
    "می\u200cخواهم",  # a joiner that keeps letters apart
    "ශ්\u200dරී",  # and one that ties them
    "เชียงใหม่",
    unicodedata.normalize("NFD", "Zürich"),
    unicodedata.normalize("NFD", "Việt"),
]


@pytest.mark.parametrize("word", WHOLE)
def test_marks_and_joiners_stay_with_their_letters(word):
    text = f"({word}, {word}-{word} #{word}."
    assert WORDS.findall(text) == [word] * 4
    assert TOKENS.findall(text) == ["(", word, ",", f"{word}-{word}", f"#{word}", "."]
    assert re.findall(r"\w+", word) != [word], "the standard library would do"


def test_a_mark_stays_with_its_sign():
    assert TOKENS.findall("❤\ufe0f love 1\ufe0f\u20e3") == ["❤\ufe0f", "love", "1\ufe0f\u20e3"]
    assert WORDS.findall("❤\ufe0f love") == ["love"]
    assert TOKENS.findall("\u0301 a") == ["\u0301", "a"]


@examples(300)
@given(
    st.text(st.characters(min_codepoint=1, max_codepoint=0x2FF) | st.sampled_from("’—日本語½²Ωж\u2003"), max_size=30)
)
def test_without_marks_words_are_those_of_the_standard_library(text):
    assert WORDS.findall(text) == re.findall(r"\w+", text)
    assert TOKENS.findall(text) == re.findall(r"\w+://\S+|[@#]?\w+(?:[-'’]\w+)*|[^\w\s]", text)


@examples(200)
@given(st.text(st.sampled_from("aé中_1-'’@#:/. \u0301\u093f\u094d\u200c\u200d\ufe0fह"), max_size=20))
def test_tokens_leave_out_nothing_but_blanks(text):
    assert "".join(TOKENS.findall(text)) == "".join(text.split())
