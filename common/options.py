"""Dataclasses of command-line options, and the checks that they share."""

import argparse
import math
from collections.abc import Iterable
from dataclasses import Field, dataclass, field, fields, is_dataclass
from functools import partial
from itertools import pairwise
from operator import ge, gt, le, lt
from typing import Any, Literal

from .errors import InputError


class Arguments:
    """Base class of all option dataclasses; through it the parser knows the options of other recipes."""

    @classmethod
    def known_options(cls) -> set[str]:
        """Names of the options of this class and of all that derive from it, in the modules imported so far."""
        own: set[str] = {name for each in fields(cls) for name in names_of(each)} if is_dataclass(cls) else set()
        return own.union(*(kind.known_options() for kind in cls.__subclasses__()))

    def check_steps(self, *names: str) -> None:
        """Refuse options that are neither a number of steps nor a share of the run. Raises InputError."""
        check_range(self, *names, at_least=0)
        for name in names:
            value = getattr(self, name)
            if value > 1 and value != int(value):
                raise InputError(f"--{name} counts steps, or is a share of the run below 1, got {value}")

    def check_stages(self, name: str, *, example: str) -> None:
        """InputError where `NAME_at` is no share of the run for each value of an option from which on it holds."""
        values, starts = getattr(self, name), getattr(self, f"{name}_at")
        rise = all(before < after for before, after in pairwise([*starts, 1]))
        if len(starts) != len(values) or starts[0] != 0 or not rise:
            raise InputError(
                f"--{name}_at {starts} must begin with 0, rise, stay below 1 and have a share of the run for each of "
                f"--{name} {values}, as in {example}"
            )


def names_of(option: Field) -> list[str]:
    """What an option is called on the command line and in YAML: the name of its field, and perhaps another."""
    return [option.name, *(name.lstrip("-") for name in option.metadata.get("aliases", ()))]


ESSENTIALS = "what most runs set"  # the title of the options that `--help` shows first
_CODE = "Run the code in the checkpoint of --model; checkpoints made by Lacuna do not need it."
_COMMIT = "Branch, tag or commit of a --model of the Hub. Default: main."
TRUST_CODE: dict[str, Any] = {"default": False, "text": _CODE}  # what `option` takes for --trust_remote_code
REVISION: dict[str, Any] = {"default": None, "text": _COMMIT, "metavar": "NAME"}


def option(
    default: Any,
    text: str,
    *,
    group: str = "options",
    advanced: bool = False,
    metavar: str | None = None,
    choices: Iterable[str] | None = None,
    alias: str | None = None,
) -> Any:
    """A dataclass field for an option.

    Args:
        default: its value when it is not given; a list is copied for each instance.
        text: its help. Give the default where it is computed ("Default: ..."); any other is added by `--help`.
        group: the title that it stands under in the help.
        advanced: shown by `--help_all` only.
        metavar: placeholder for its value in the help, where type and name do not tell.
        choices: the values it can take, where its type is not a `Literal`: names, or a registry of classes by name,
            each with a `summary` for the help.
        alias: the name that people know it by, where Python keeps that for itself, such as `for`.
    """
    metadata: dict[str, Any] = {"help": text, "group": group, "advanced": advanced}
    given = {"aliases": alias and [f"--{alias}"], "metavar": metavar, "choices": choices}
    metadata |= {name: value for name, value in given.items() if value is not None}
    if isinstance(default, list):
        return field(default_factory=lambda: list(default), metadata=metadata)
    return field(default=default, metadata=metadata)


essential = partial(option, group=ESSENTIALS)  # the same for an option that most runs set

Normalizer = Literal["none", "nfc", "nfkc", "lowercase", "strip_accents", "lowercase_strip_accents"]
NORMALIZER = (
    "Text normalization: none, nfc, nfkc (also full-width letters and ligatures), lowercase, strip_accents or "
    "lowercase_strip_accents. Only none is lossless."
)
VOCABULARY: dict[str, Any] = {"vocab_size": 8192, "normalizer": "none"}
"""What a new tokenizer is like where neither a person nor an objective says otherwise."""


@dataclass
class ReadingArguments(Arguments):
    """How files of text and of rows are read."""

    column_names: list[str] = option(  # noqa: RUF009
        [],
        "Names of the columns of .csv and .tsv files whose first line holds none, as in id,label,text.",
        group="data",
        advanced=True,
        metavar="NAME,NAME",
    )
    encoding: str = option(
        "utf-8",
        "Encoding of text, by its name in Python, such as latin-1, cp1252 or utf-16.",
        group="data",
        advanced=True,
        metavar="NAME",
    )

    def reading(self) -> dict[str, Any]:
        """What of the two was given, for whatever reads; InputError where names of columns are empty or repeated."""
        names = [name.strip() for part in self.column_names for name in part.split(",")]
        if not all(names) or len({*names}) < len(names):
            raise InputError(
                f"--column_names {' '.join(self.column_names)}: each column needs a name of its own, with commas "
                "between, as in id,label,text"
            )
        given = {"column_names": names} if names else {}
        return given if self.encoding == "utf-8" else {**given, "encoding": self.encoding}


class Numbers(tuple[float, ...]):
    """One number, or one for each stage of a run: `64`, `64,128`, `0.30,0.15`. Whole numbers are of type int."""

    def __new__(cls, value: "str | float | Iterable[float]") -> "Numbers":
        """Parse text, or take numbers as they are. argparse.ArgumentTypeError: a part of the text is not a number."""
        parts = value.split(",") if isinstance(value, str) else value if isinstance(value, Iterable) else [value]
        try:
            numbers = [float(part) for part in parts]
        except (TypeError, ValueError):
            message = f"expected a number, or several with commas between, got {value!r}"
            raise argparse.ArgumentTypeError(message) from None
        return super().__new__(cls, (int(number) if number.is_integer() else number for number in numbers))

    def __eq__(self, other: object) -> bool:
        # A list too: what a checkpoint wrote as JSON must compare equal when its run is resumed.
        return isinstance(other, list | tuple) and tuple(self) == tuple(other)

    __hash__ = tuple.__hash__

    def __str__(self) -> str:
        return ",".join(map(str, self))

    def __repr__(self) -> str:
        return f"Numbers({str(self)!r})"


def check_range(
    options: Any,
    *names: str,
    above: float = -math.inf,
    at_least: float = -math.inf,
    below: float = math.inf,
    at_most: float = math.inf,
) -> None:
    """InputError for options whose values lie outside a range; None, for one that was not given, is always fine."""
    limits = [("above", above, gt), ("at least", at_least, ge), ("below", below, lt), ("at most", at_most, le)]
    for name in names:
        value = getattr(options, name)
        if value is None or (math.isfinite(value) and all(holds(value, limit) for _, limit, holds in limits)):
            continue
        what = " and ".join(f"{words} {limit:,.10g}" for words, limit, _ in limits if math.isfinite(limit))
        plain = {"at least 0": "not be negative", "above 0": "be greater than 0"}
        got = f"{value}{'' if math.isfinite(value) else ', which is not finite'}"
        raise InputError(f"--{name} must {plain.get(what, f'be {what}')}, got {got}")
