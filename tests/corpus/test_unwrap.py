"""Hard-wrapped lines are joined where the width broke them, and nowhere else."""

import textwrap
from pathlib import Path
from random import Random

import pytest
from examples import examples
from hypothesis import given
from hypothesis import strategies as st

from lacuna.corpus import open_text
from lacuna.corpus.arguments import TextArguments
from lacuna.corpus.read.unwrap import find_width, unwrap

PROSE = (
    "It is a truth universally acknowledged, that a single man in possession of a good fortune, must be in want of a "
    "wife. However little known the feelings or views of such a man may be on his first entering a neighbourhood, "
    "this truth is so well-known in the minds of the surrounding families, that he is considered as the rightful "
    "property of some one or other of their daughters. “My dear Mr. Bennet,” said his lady to him one day, “have you "
    "heard that Netherfield Park is let at last?” Mr. Bennet replied that he had not."
)
VERSE = """Shall I compare thee to a summer's day?
Thou art more lovely and more temperate:
Rough winds do shake the darling buds of May,
And summer's lease hath all too short a date:
Sometime too hot the eye of heaven shines,
And often is his gold complexion dimm'd;
And every fair from fair sometime declines,
By chance or nature's changing course untrimm'd."""


def wrapped(text: str, width: int = 60) -> str:
    return textwrap.fill(text, width, break_on_hyphens=False, break_long_words=False)


@pytest.mark.parametrize("width", [50, 60, 72, 100])
def test_a_wrapped_paragraph_becomes_one_line(width: int) -> None:
    assert unwrap(wrapped(PROSE, width)) == PROSE
    assert unwrap(f"{wrapped(PROSE, width)}\n\n{wrapped(PROSE, width)}\n") == f"{PROSE}\n\n{PROSE}\n"


def test_paragraphs_without_a_blank_line_between_stay_apart() -> None:
    paragraphs = [PROSE, "“Is it?” said she.", "He made no answer.", PROSE, "“It is.”"]
    assert unwrap("\n".join(map(wrapped, paragraphs))) == "\n".join(paragraphs)


@pytest.mark.parametrize(
    "kept",
    [
        VERSE,
        "CHAPTER I\nIn which nothing happens",
        "- first item of a list that is about as long as a line of prose\n- second\n- third",
        "1. first of some items, as long as a line of wrapped prose is\n2. second\n10. third",
        "def wrap(text):\n    return textwrap.fill(text, width=60, break_long_words=True)\n    # a comment",
        "    An indented quotation that is as long as the lines around\n    it are and goes on in a second line.",
        "name        value       what it says of the things in the row\nalpha       1           beta",
        "| a table | with cells | and as long as a line of wrapped prose |\n| 1 | 2 | 3 |",
        "# A heading that is as long as the lines of prose around it are\nText",
        "=" * 60 + "\nA heading",
    ],
)
def test_what_is_not_wrapped_prose_stays(kept: str) -> None:
    assert unwrap(kept) == kept
    around = f"{wrapped(PROSE)}\n\n{kept}\n\n{wrapped(PROSE)}\n"
    assert unwrap(around) == f"{PROSE}\n\n{kept}\n\n{PROSE}\n"


def test_lines_of_any_length_are_not_wrapped() -> None:
    assert find_width(["One.", "Two or three words.", "A line of some more words than that.", "Four."] * 20) == 0
    assert unwrap("\n".join([PROSE] * 4)) == "\n".join([PROSE] * 4)
    assert find_width([]) == 0


def test_a_first_line_may_be_indented() -> None:
    text = "\n".join("  " + wrapped(PROSE) for _ in range(3))
    assert unwrap(text) == "\n".join("  " + PROSE for _ in range(3))


def test_hyphens_and_dashes_take_no_space() -> None:
    line = "x" * 49 + " so"
    assert unwrap(f"{line} a well-\nknown thing", width=60) == f"{line} a well-known thing"
    assert unwrap(f"{line} stopped--\nand then", width=60) == f"{line} stopped--and then"
    assert unwrap(f"{line} stopped --\nand then", width=60) == f"{line} stopped -- and then"


def test_scripts_without_spaces_are_joined_without_one() -> None:
    chinese = "天地玄黄宇宙洪荒日月盈昃辰宿列张寒来暑往秋收冬藏闰余成岁律吕调阳" * 8
    lines = [chinese[start : start + 30] for start in range(0, len(chinese), 30)]
    assert unwrap("\n".join(lines)) == chinese
    korean = "모든 국민은 인간으로서의 존엄과 가치를 가지며 행복을 추구할 권리를 가진다 " * 8
    lines = textwrap.wrap(korean, 30)
    assert unwrap("\n".join(lines)) == korean.strip()


def test_parts_of_a_text_may_have_their_own_width() -> None:
    text = "\n\n".join([wrapped(PROSE, 72)] * 60 + [wrapped(PROSE, 50)] * 60)
    paragraphs = unwrap(text).split("\n\n")
    assert (
        len(paragraphs) == 120 and paragraphs.count(PROSE) > 110
    )  # those at the change are judged by what was before


ANYTHING = st.text(alphabet=st.sampled_from("aaabcdeA .,-—\n\n\t\xad-你界。1"), max_size=300)


@examples(300)
@given(text=st.one_of(st.text(), ANYTHING), width=st.integers(1, 40))
def test_only_white_space_changes(text: str, width: int) -> None:
    for given_width in (None, width):
        assert "".join(unwrap(text, width=given_width).split()) == "".join(text.split())


@examples(50)
@given(seed=st.integers(0, 1 << 32), paragraphs=st.integers(1, 4), width=st.integers(44, 90))
def test_wrapping_is_undone(seed: int, paragraphs: int, width: int) -> None:
    draw = Random(seed)
    texts = [
        " ".join("".join(draw.choices("aeiouéñлж", k=draw.randint(1, 9))) for _ in range(200))
        for _ in range(paragraphs)
    ]
    assert unwrap("\n\n".join(wrapped(text, width) for text in texts)) == "\n\n".join(texts)


def test_blank_lines_as_boundaries_share_a_margin(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("\n\n".join(["One.", wrapped(PROSE), "“Two”,\nhe said.", wrapped(PROSE[:200])] * 40))
    text = open_text(TextArguments(data=[str(path)], document_boundary="blank_line", unwrap=True))
    assert list(text.texts()) == ["One.", PROSE, "“Two”,\nhe said.", PROSE[:200]] * 40


@pytest.mark.parametrize(
    ("name", "share"),
    [
        ("Dickens_Bleak_1853", 0.22),
        ("Corelli_Innocent_1914", 0.26),
        ("Ford_Soldier_1915", 1),  # its margin is so ragged that it could be verse
        ("Woolf_Night_1919", 1),
    ],
)
def test_novels(shared_data: Path, name: str, share: float) -> None:
    """What is left of the lines that hold text; one of these novels came with a paragraph a line."""
    text = (shared_data / "novels" / f"{name}.txt").read_text(encoding="utf-8-sig")
    before, after = (sum(bool(line.strip()) for line in each.split("\n")) for each in (text, unwrap(text)))
    assert after / before == pytest.approx(share, abs=0.01)
