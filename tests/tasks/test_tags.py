"""Tags of entities: told from others, read in all ways of writing them, and written in one; spans as seqeval's."""

import pytest
from examples import examples
from hypothesis import given
from hypothesis import strategies as st

from lacuna.tasks.token_classification.reader import (
    ENTITIES,
    PLAIN,
    Entity,
    entities,
    find_scheme,
    write_tags,
)

# A machine that has much else to do is no fault of the tests.
often = examples(200)
TAGS = st.sampled_from(["O", *(f"{letter}-{kind}" for letter in "BIES" for kind in ("a", "b-c"))])


@st.composite
def sentences(draw: st.DrawFn) -> tuple[int, list[Entity]]:
    """A length and entities that do not overlap."""
    length = draw(st.integers(1, 12))
    found, place = [], 0
    while place < length:
        size = draw(st.integers(0, min(3, length - place)))
        if size:
            found.append(Entity(place, place + size, draw(st.sampled_from(["a", "b-c"]))))
        place += max(size, 1)
    return length, found


@often
@given(sentence=sentences())
def test_what_is_written_comes_back(sentence):
    length, found = sentence
    tags = write_tags(found, length=length)
    assert entities(tags) == found and find_scheme([tags]) == (ENTITIES if found else PLAIN)


@often
@given(tags=st.lists(TAGS, max_size=10))
def test_spans_are_those_of_seqeval(tags):
    sequence_labeling = pytest.importorskip(
        "seqeval.metrics.sequence_labeling", reason="seqeval is not installed: pip install -e '.[tasks]'"
    )
    expected = sequence_labeling.get_entities(tags)
    assert [(each.type, each.start, each.end - 1) for each in entities(tags)] == expected


@pytest.mark.parametrize(
    ("tags", "scheme"),
    [
        ("I-LOC B-LOC I-LOC O", ENTITIES),
        ("B-LOC B-LOC I-LOC O", ENTITIES),
        ("S-LOC B-LOC E-LOC O", ENTITIES),
        ("U-LOC B-LOC L-LOC O", ENTITIES),
        ("S-LOC B-LOC M-LOC E-LOC", ENTITIES),
        ("B I O B", ENTITIES),
        ("B-LOC O", ENTITIES),
        ("O O", PLAIN),
        ("NN VB NN", PLAIN),
        ("O NN B", PLAIN),
        ("NN VB O B-ZZ", PLAIN),
        ("B-LOC I-LOC O I-LOC B-PER B-PER", ENTITIES),  # one slip in five tags is a slip
        ("I-LOC I-LOC O I-LOC B-LOC O", ENTITIES),
    ],
)
def test_the_way_of_writing_is_told_from_the_tags(tags, scheme):
    assert find_scheme([tags.split()]) == scheme


def test_letters_of_others_are_read_as_ours():
    assert entities(["U-a", "B-b", "I-b", "L-b"]) == [Entity(0, 1, "a"), Entity(1, 4, "b")]
    assert entities(["B", "I", "O", "B"]) == [Entity(0, 2, ""), Entity(3, 4, "")]


@pytest.mark.parametrize("tag", ["X-LOC", "LOC", "", "B_LOC", "BI-LOC"])
def test_other_tags_are_refused(tag):
    with pytest.raises(ValueError, match="neither O nor"):
        entities(["O", tag])
