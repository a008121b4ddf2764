"""Options: numbers, ranges, and what other recipes know."""

import argparse
import json
import math
from dataclasses import dataclass
from typing import Any

import pytest

from lacuna.common.command_line import parse_arguments
from lacuna.common.errors import InputError
from lacuna.common.options import Arguments, Numbers, check_range, option


@pytest.mark.parametrize(
    "given, numbers, text",
    [("64", [64], "64"), ("64,128", [64, 128], "64,128"), ("0.30,0.15", [0.3, 0.15], "0.3,0.15"), (7, [7], "7")],
)
def test_numbers_are_read_and_shown(given: Any, numbers: list[float], text: str) -> None:
    made = Numbers(given)
    assert made == numbers == json.loads(json.dumps(made)) and str(made) == text
    assert Numbers(made) == made and repr(made) == f"Numbers({text!r})"
    assert [type(number) for number in made] == [type(number) for number in numbers]


@pytest.mark.parametrize("given", ["", "a", "64,", "1,b"])
def test_what_is_no_number_is_refused(given: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="expected a number, or several with commas between"):
        Numbers(given)


@dataclass
class Some(Arguments):
    size: float | None = option(1.0, "A size.")
    names: list[str] = option([], "Names.")


def test_a_list_is_not_shared() -> None:
    one, other = Some(), Some()
    one.names.append("a")
    assert other.names == []


def test_every_derived_class_is_known() -> None:
    assert {"size", "names"} <= Arguments.known_options()
    assert Some.known_options() == {"size", "names"}


@dataclass
class Aliased(Arguments):
    for_file: str | None = option(None, "A file.", metavar="FILE", alias="for")


def test_an_option_that_python_has_no_name_for(tmp_path, capsys) -> None:
    (tmp_path / "options.yaml").write_text("for: a.csv\n")
    for words in (["--for", "a.csv"], ["--for_file", "a.csv"], ["--config", str(tmp_path / "options.yaml")]):
        assert parse_arguments((Aliased,), words) == (Aliased("a.csv"),)
    with pytest.raises(InputError, match=r"unknown option '--fro'.*'--for'"):
        parse_arguments((Aliased,), ["--fro", "a.csv"])
    with pytest.raises(SystemExit):
        parse_arguments((Aliased,), ["--help"])
    assert "--for FILE" in (shown := capsys.readouterr().out) and "--for_file" not in shown
    assert "for" in Arguments.known_options()


@pytest.mark.parametrize(
    "limits, inside, outside, says",
    [
        ({"above": 0}, [0.1, 9, None], [0, -1, math.nan, math.inf], "must be greater than 0"),
        ({"at_least": 0}, [0, None], [-0.1, math.nan], "must not be negative"),
        ({"at_least": 2}, [2], [1.9], "must be at least 2"),
        ({"above": 0, "at_most": 1}, [0.1, 1], [0, 1.1], "must be above 0 and at most 1"),
        ({"at_least": 0, "below": 1}, [0, 0.9], [1, -1], "must be at least 0 and below 1"),
    ],
)
def test_ranges(limits: dict[str, float], inside: list[Any], outside: list[float], says: str) -> None:
    for value in inside:
        check_range(Some(size=value), "size", **limits)
    for value in outside:
        with pytest.raises(InputError, match=f"--size {says}, got {value}") as raised:
            check_range(Some(size=value), "size", **limits)
        assert raised.value.exit_code == 2
        assert str(raised.value).endswith(", which is not finite") is not math.isfinite(value)


@dataclass
class Repeated(Arguments):
    text: list[str] = option([], "Texts.")


def test_an_option_that_adds_each_time_it_is_given(tmp_path) -> None:
    (tmp_path / "options.yaml").write_text("text: [c, d]\n")
    config = ["--config", str(tmp_path / "options.yaml")]
    for words, texts in (
        ([], []),
        (["--text", "a", "--text", "b"], ["a", "b"]),
        (["--text", "a", "b"], ["a", "b"]),
        (config, ["c", "d"]),
        ([*config, "--text", "a"], ["a"]),  # the command line replaces the file, it does not add to it
        ([*config, "--text=a"], ["a"]),
    ):
        assert parse_arguments((Repeated,), words) == (Repeated(texts),)
