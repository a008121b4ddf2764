"""Rows: what a message says of their columns."""

import dataclasses
from typing import Any

import pytest

from lacuna.common.errors import InputError
from lacuna.tasks.base.rows import as_rows, listed


@dataclasses.dataclass
class Record:
    """What `corpus.read_labelled` gives."""

    fields: dict[str, Any]
    path: str
    line: int = 2


@pytest.mark.parametrize(
    ("path", "asked"),
    [("a.tsv", True), ("A.CSV", True), ("a.csv.gz", True), ("a.tsv.zst", True), ("a.jsonl", False), ("csv.d", False)],
)
def test_only_tables_whose_first_line_names_columns_are_asked_about(path, asked):
    (row,) = as_rows([Record({"text": "x"}, path)], part="training")
    with pytest.raises(InputError) as caught:
        row.value("label", option="--label_column")
    question = " (does the first line hold names? If not, name the columns with --column_names)" if asked else ""
    columns = f"{path}:2: no column 'label'; the columns there are ['text']"
    assert str(caught.value) == f"{columns}{question}: name one with --label_column"


@pytest.mark.parametrize("column", ["5.0", "7", "x" * 41, "a line of more than five words"])
def test_names_that_look_like_data_are_told(column):
    hint = "the first line looks like data and not like names: name the columns with --column_names"
    (row,) = as_rows([Record({column: "x", "b": "y"}, "a.tsv")], part="training")
    assert row.unnamed() == hint and row.shown(["b"]) == f"['b'] ({hint})"
    for record in (
        Record({column: "x"}, "a.tsv", line=1),
        Record({column: "x"}, "a.jsonl"),
        Record({"b": ""}, "a.tsv"),
    ):
        (row,) = as_rows([record], part="training")
        assert not row.unnamed()  # it was named with --column_names, or is no table, or looks like names
    (first,) = as_rows([Record({"b": "x"}, "a.tsv", line=1)], part="training")
    assert first.shown(["b"]) == "['b']"
    (eleventh,) = as_rows([Record({"b": "x"}, "a.tsv", line=11)], part="training")
    assert "does the first line hold names?" in eleventh.shown(["b"])


def test_columns_that_are_texts_are_cut():
    (row,) = as_rows([{"word " * 20: "x", "b": "y"}], part="training")
    assert row.shown(row.fields) == f"['{('word ' * 20)[:39]}…', 'b']"


def test_columns_that_no_option_names_are_missed_together():
    (row,) = as_rows([{"a": "x"}], part="training")
    row.require(["a"], remedy="")
    message = r"^training row 1: no column 'b' or 'c'; the columns there are \['a'\]: mend it$"
    with pytest.raises(InputError, match=message):
        row.require(["b", "a", "c"], remedy="mend it")


def test_empty_cells_and_bytes_are_no_fault_of_the_column():
    (row,) = as_rows([{"a": None, "b": b"x"}], part="training")
    with pytest.raises(InputError, match=r"^training row 1: column 'a' is empty: remove the row or fill in its text$"):
        row.text("a", option="--text_column")
    with pytest.raises(InputError, match=r"^training row 1: column 'b' holds b'x', not text: decode its bytes first$"):
        row.text("b", option="--text_column")
    assert listed(row, "a", option="--tags_column") == []
