"""Tags of entities: the three ways of writing them, told apart, read and written; spans as seqeval finds them."""

import pytest
from examples import examples
from hypothesis import given
from hypothesis import strategies as st

from lacuna.tasks.token_classification.reader import (
    PLAIN,
    SCHEMES,
    Entity,
    entities,
    find_scheme,
    irregular,
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
@given(sentence=sentences(), scheme=st.sampled_from(SCHEMES))
def test_what_is_written_comes_back(sentence, scheme):
    length, found = sentence
    tags = write_tags(found, length=length, scheme=scheme)
    assert entities(tags) == found and irregular(tags, scheme=scheme) == 0


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
        ("I-LOC B-LOC I-LOC O", "IOB1"),
        ("B-LOC B-LOC I-LOC O", "IOB2"),
        ("S-LOC B-LOC E-LOC O", "BIOES"),
        ("U-LOC B-LOC L-LOC O", "BIOES"),
        ("S-LOC B-LOC M-LOC E-LOC", "BIOES"),
        ("B I O B", "IOB2"),
        ("B-LOC O", "IOB2"),
        ("O O", PLAIN),
        ("NN VB NN", PLAIN),
        ("O NN B", PLAIN),
        ("NN VB O B-ZZ", PLAIN),
        ("B-LOC I-LOC O I-LOC B-PER B-PER", "IOB2"),  # one slip in five tags is a slip
        ("I-LOC I-LOC O I-LOC B-LOC O", "IOB1"),
    ],
)
def test_the_way_of_writing_is_told_from_the_tags(tags, scheme):
    assert find_scheme([tags.split()]) == scheme


@often
@given(data=st.data(), scheme=st.sampled_from(SCHEMES))
def test_a_scheme_writes_what_it_is_told_from(data, scheme):
    drawn = data.draw(st.lists(sentences(), min_size=1, max_size=4))
    tags = [write_tags(found, length=length, scheme=scheme) for length, found in drawn]
    found = find_scheme(tags)
    if any(each for _, each in drawn):
        assert sum(irregular(each, scheme=found) for each in tags) == 0
        assert SCHEMES.index(found) <= SCHEMES.index(scheme)
    else:
        assert found == PLAIN


def test_letters_of_others_are_read_as_ours():
    assert entities(["U-a", "B-b", "I-b", "L-b"]) == [Entity(0, 1, "a"), Entity(1, 4, "b")]
    assert entities(["B", "I", "O", "B"]) == [Entity(0, 2, ""), Entity(3, 4, "")]
    assert irregular(["O", "I-a", "I-a"], scheme="IOB2") == 1


@pytest.mark.parametrize("tag", ["X-LOC", "LOC", "", "B_LOC", "BI-LOC"])
def test_other_tags_are_refused(tag):
    with pytest.raises(ValueError, match="neither O nor"):
        entities(["O", tag])
