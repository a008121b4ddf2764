"""What a column of labels holds is told by its values; names, sets and numbers are read, what is wrong is named."""

from decimal import Decimal
from itertools import permutations

import pytest

from lacuna.common.errors import InputError
from lacuna.tasks.base.rows import Row, as_number, note_alike
from lacuna.tasks.classification.heads import SingleLabel
from lacuna.tasks.classification.reader import (
    MULTI,
    NUMBER,
    SINGLE,
    ClassificationArguments,
    joined_by,
    label_name,
    label_set,
    multi_hot_width,
    name_labels,
    number_of,
    problem_type_of,
    sorted_names,
)


def rows(*values) -> list[Row]:
    return [Row(fields={"text": "x", "y": value}, where=f"f.csv:{line}") for line, value in enumerate(values, start=2)]


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        (["a", "b", "a"], SINGLE),
        ([0, 1, 2], SINGLE),
        (["1", "2", "2"], SINGLE),
        ([1.0, 2.0, 5.0], SINGLE),
        ([True, False], SINGLE),
        (["0.5", "1", "2.25"], NUMBER),
        ([0.5, 1, None], NUMBER),
        ([1e-3, 2.0], NUMBER),
        ([Decimal("0.25"), Decimal("1.00")], NUMBER),
        ([Decimal("1.00"), Decimal("2.00")], SINGLE),
        (["1.5", "high"], SINGLE),
        ([["a"], ["a", "b"], []], MULTI),
        ([[0, 1, 0], [1, 1, 0]], MULTI),
        (["I like it, a lot", "no, thanks", "well, well"], SINGLE),
        (["news", "rock & roll", "n/a"], SINGLE),
        (["1_000", "0.5"], SINGLE),
    ],
)
def test_kinds_are_told_by_values(values, kind):
    assert problem_type_of(rows=rows(*values), column="y", separator=None) == kind


@pytest.mark.parametrize(
    ("values", "named"),
    [
        (["a|b", "b|c", "a"], r'f.csv:2: column .y. holds the text .a\|b..*--label_separator "\|"'),
        (["a", "b", "a|b", "b", "a"], r'f.csv:4: .*--label_separator "\|"'),
        (["['a', 'b']", "['a']", "[]"], r'f.csv:2: .*--label_separator ","'),
        (['["a","b"]', '["a"]'], r'f.csv:2: .*--label_separator ","'),
        (["news, sports", "sports, arts", "arts, news", "news"], r'--label_separator ","'),
        (["a;b", "b;c", "c;a", "a;c"], r'--label_separator ";"'),
    ],
)
def test_several_labels_written_as_text_are_refused_with_the_remedy(values, named):
    with pytest.raises(InputError, match=named) as caught:
        problem_type_of(rows=rows(*values), column="y", separator=None)
    assert "--problem_type single_label_classification" in str(caught.value)
    assert problem_type_of(rows=rows(*values), column="y", separator="|") == MULTI


def test_codes_and_whole_numbers_are_labels():
    codes = ["3.10", "3.11", "3.12", "3.13rc1", "3.13"] * 4
    assert problem_type_of(rows=rows(*codes), column="y", separator=None) == SINGLE
    whole = [*map(str, range(9)), "n/a"]
    assert problem_type_of(rows=rows(*whole), column="y", separator=None) == SINGLE


def test_labels_that_are_nearly_the_same_are_named():
    assert note_alike(["good", "bad", "very good"]) == []
    (line,) = note_alike(["good", "bad", "GOOD", "very good", "very  good", "good"])
    assert line.startswith("warning: ") and line.endswith("apart: 'GOOD' and 'good', 'very  good' and 'very good'")


def test_messages_name_no_more_labels_than_people_read():
    options = ClassificationArguments()
    head = SingleLabel(rows(*[f"label{n}" for n in range(83)] * 2), "y", options)
    with pytest.raises(InputError, match=r"label34', 'label35' and 53 more\] of the training rows") as caught:
        head.target(rows("x")[0])
    assert "label36" not in str(caught.value)
    found = {str(n) for n in range(40)}
    note = name_labels(found=found, given=[f"n{n}" for n in range(40)], rows=rows(*range(100)), column="y")[2]
    assert note is not None and note.endswith("29 is n29 and 10 more")


def test_among_numbers_that_are_too_many_to_be_labels_the_first_other_cell_is_named():
    values = [*range(30), "n/a"]
    with pytest.raises(InputError, match=r"regression, after mending f.csv:32, which holds 'n/a', no number$"):
        name_labels(found={str(value) for value in values}, given=None, rows=rows(*values), column="y")


def test_what_is_no_label_is_said_of_the_first_row_too():
    with pytest.raises(
        InputError, match=r"f.csv:2: column 'y' holds \{'a': 0\}, not one label, a text or a whole number"
    ):
        label_name(rows({"a": 0})[0], "y")


def test_lists_among_texts_are_refused():
    with pytest.raises(InputError, match=r"f.csv:3: column 'y' holds 'b', and other rows hold lists"):
        problem_type_of(rows=rows(["a"], "b"), column="y", separator=None)
    with pytest.raises(InputError, match=r"f.csv:2: no column 'z'; the columns there are \['text', 'y'\]"):
        problem_type_of(rows=rows("a"), column="z", separator=None)
    assert joined_by([]) is None


@pytest.mark.parametrize(
    ("value", "separator", "expected"),
    [
        (["b", "a", "b "], None, ["b", "a"]),
        ([1, 2.0], None, ["1", "2"]),
        ([], None, []),
        ("a | b|a|", "|", ["a", "b"]),
        ("", "|", []),
        ("a", ",", ["a"]),
        ('["a, b", "c"]', ",", ["a, b", "c"]),
        ("['a', 'b']", "|", ["a", "b"]),
        ("[]", "|", []),
        ("[a", "|", ["[a"]),
        ("[a]", "|", ["[a]"]),
        (["x|y"], "|", ["x|y"]),
    ],
)
def test_label_sets(value, separator, expected):
    assert label_set(rows(value)[0], "y", separator=separator) == expected


@pytest.mark.parametrize(
    ("value", "separator", "message"),
    [
        (None, None, "f.csv:2: column 'y' has no list of labels: write \\[\\]"),
        (None, "|", "f.csv:2: column 'y' has no list of labels"),
        ("a", None, "'a', not a list of labels.*--label_separator"),
        (["a", None], None, "None in it is not a label"),
        (["a", 0.5], None, "0.5 in it is not a label"),
        ([["a"]], None, "\\['a'\\] in it is not a label: labels are texts or whole numbers$"),
        (
            [{"qas": ["x" * 99]}],
            None,
            "x… in it .* numbers; questions and answers are for finetune_question_answering$",
        ),
    ],
)
def test_label_sets_that_are_none(value, separator, message):
    with pytest.raises(InputError, match=message):
        label_set(rows(value)[0], "y", separator=separator)


def test_zeros_and_ones():
    assert multi_hot_width(rows=rows([0, 1, 0], [1.0, 1, 0]), column="y") == 3
    assert multi_hot_width(rows=rows([0, 1], [1, 1, 0]), column="y") is None
    assert multi_hot_width(rows=rows([0, 1, 2], [1, 1, 0]), column="y") is None
    assert multi_hot_width(rows=rows(["a", "b"]), column="y") is None
    assert multi_hot_width(rows=rows([1], [0]), column="y") is None


def test_numbers():
    assert [as_number(value) for value in (" 1.5", 2, "1e3", True, "nan", float("inf"), "x", "", None, [1])] == [
        1.5, 2.0, 1000.0, None, None, None, None, None, None, None,
    ]  # fmt: skip
    empty = [(value, "is empty") for value in (None, " ", float("nan"))]
    large = ("1e300", r"holds '1e300', beyond 1e\+15 \(divide the column\)")
    for value, what in (("high", "holds 'high', not a finite number"), large, *empty):
        with pytest.raises(InputError, match=f"f.csv:2: column 'y' {what}, and to learn numbers"):
            number_of(rows(value)[0], "y")


def test_names_in_order():
    assert sorted_names({"10", "9", "-1"}) == ["-1", "9", "10"]
    assert sorted_names({"b", "a", "10"}) == ["10", "a", "b"]
    equal = ["1", "01", "001", "2", "02", "0002"]  # in every order of a set, which is another one in each process
    for order in permutations(equal):
        assert sorted_names(dict.fromkeys(order)) == ["001", "01", "1", "0002", "02", "2"]
    options = {"rows": rows(*["x"] * 50), "column": "y"}
    assert name_labels(found={"1", "0"}, given=["no", "yes"], **options) == (
        ["no", "yes"], {"0": 0, "1": 1}, "labels are numbers in the data: 0 is no, 1 is yes"
    )  # fmt: skip
    with pytest.raises(InputError, match=r"30 different values in 50 rows.*--problem_type regression"):
        name_labels(found={str(n) for n in range(30)}, given=None, **options)
    with pytest.raises(InputError, match="no training row has a label"):
        name_labels(found=set(), given=None, **options)
