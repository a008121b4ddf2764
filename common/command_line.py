"""Parse the command line and YAML files, print the help, and turn errors into exit codes."""

import argparse
import copy
import dataclasses
import difflib
import gc
import os
import re
import signal
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NoReturn, get_origin

import yaml
from transformers import HfArgumentParser
from transformers.utils import logging as transformers_logging

from .aliases import translate, understood
from .errors import InputError, StoppedError
from .files import release
from .options import ESSENTIALS, Arguments, Numbers, names_of
from .private import without_secrets

_METAVARS = {int: "N", float: "X", Numbers: "X[,X]"}
_BY_NAME = {"_dir": "DIR", "_file": "FILE", "_column": "NAME", "_columns": "NAME"}


class _Parser(HfArgumentParser):
    """`HfArgumentParser` with titled groups, one spelling of each option in the help, and errors of one line."""

    def error(self, message: str) -> NoReturn:
        message = re.sub(r"argument (?:--[\w-]+/)*?(--\w+)(/--\w*-[\w-]+)*:", r"\1:", message)  # one spelling of it
        raise InputError(f"{message} (--help lists the options)")

    def _parse_optional(self, arg_string: str) -> Any:
        """Only what is the name of an option is one: all else, as -1 or -- in a text, is a value."""
        known = arg_string.partition("=")[0] in self._option_string_actions
        return super()._parse_optional(arg_string) if known else None

    @staticmethod
    def _parse_dataclass_field(parser: Any, field: dataclasses.Field) -> None:
        plain = copy.copy(field)
        plain.metadata = {name: value for name, value in field.metadata.items() if name not in ("group", "advanced")}  # type: ignore[assignment]
        HfArgumentParser._parse_dataclass_field(parser, plain)

    def format_help(self, *, everything: bool = False) -> str:
        """The description and every option under its title, or those that are not advanced."""
        fields = {each.name: each for kind in self.dataclass_types for each in dataclasses.fields(kind)}
        groups: dict[str, list[argparse.Action]] = {ESSENTIALS: []}
        hidden = 0
        for action in self._actions:
            facts = fields[action.dest].metadata if action.dest in fields else {"group": "help"}
            if f"--no_{action.dest}" in action.option_strings:
                continue
            if facts.get("advanced") and not everything:
                hidden += 1
            else:
                groups.setdefault(facts.get("group", "options"), []).append(_shown(action))
        groups["help"] = groups.pop("help")  # last
        formatter = self._get_formatter()
        formatter.add_usage(f"{self.prog} [options]", [], [], prefix="usage: ")
        formatter.add_text(self.description)
        for title, actions in groups.items():
            formatter.start_section(title)
            formatter.add_arguments(actions)
            formatter.end_section()
        if hidden:
            formatter.add_text(f"--help_all shows {hidden} more options, which few runs need.")
        return formatter.format_help()


def _shown(action: argparse.Action) -> argparse.Action:
    """An option as the help shows it: one spelling, its value and its default."""
    shown = copy.copy(action)
    shown.option_strings = [word for word in action.option_strings if word[:2] == "--" and "-" not in word[2:]][-1:]
    if action.nargs == "?":  # a switch
        shown.nargs = 0
    elif action.nargs != 0:
        ends = [metavar for end, metavar in _BY_NAME.items() if action.dest.endswith(end)]
        by_type = "NAME" if action.choices else _METAVARS.get(action.type, (ends or ["TEXT"])[0])  # type: ignore[call-overload]
        shown.metavar = action.metavar or by_type
        if action.nargs == "+":
            shown.nargs, shown.metavar = None, f"{shown.metavar}..."
    text = action.help or ""
    if isinstance(action.choices, dict):
        text += f" {'; '.join(f'{name}: {kind.summary}' for name, kind in action.choices.items())}."
    elif action.choices and not all(str(choice) in text for choice in action.choices):
        text += f" One of {', '.join(map(str, action.choices))}."
    if action.default is True:
        text += f" On unless --no_{action.dest} is given."
    elif "efault" not in text and action.dest not in ("help", "help_all", "config"):
        given = f"{action.default:g}" if isinstance(action.default, float) else action.default
        text += f" Default: {'off' if given is False else given or ('none' if given != 0 else 0)}."
    shown.help = text.replace("%", "%%")
    return shown


class _HelpAll(argparse.Action):
    def __call__(self, parser: Any, *_: Any, **__: Any) -> None:
        parser._print_message(parser.format_help(everything=True), sys.stdout)
        parser.exit()


def _parser(kinds: Sequence[type], description: str | None) -> _Parser:
    parser = _Parser(
        list(kinds),
        description=description,
        allow_abbrev=False,
        add_help=False,
        formatter_class=partial(argparse.RawDescriptionHelpFormatter, max_help_position=28),
    )
    parser.add_argument("--help", "-h", action="help", help="Show the main options and exit.")
    parser.add_argument("--config", metavar="FILE", help="YAML file of options; the command line overrides it.")
    parser.add_argument("--help_all", action=_HelpAll, nargs=0, help="Show all options and exit.")
    return parser


def _nearest(name: str, known: Sequence[str]) -> str:
    """An unknown option, and where it belongs: to other recipes, or to the nearest known name."""
    if name in Arguments.known_options():
        return f"'--{name}': it belongs to other recipes"
    usual = difflib.get_close_matches(name, understood(known), n=1, cutoff=0.85)  # only where it is all but typed
    close = difflib.get_close_matches(name, [*known, *usual], n=1, cutoff=0.66)
    return f"'--{name}' (did you mean '--{close[0]}'?)" if close else f"'--{name}'"


def _options_from_yaml(path: Path) -> dict[str, tuple[list[str], str]]:
    """The options of a flat YAML mapping by name: values, and where it stands (file:line). InputError: it is none."""
    try:
        loader = yaml.SafeLoader(path.read_text(encoding="utf-8"))
        content = loader.get_single_node()
        if not isinstance(content, yaml.MappingNode | None):
            raise InputError(f"--config {path} must hold 'option: value' lines, not a {content.tag.split(':')[-1]}")
        found = [] if content is None else content.value
        loader.construct_document(content or yaml.ScalarNode("tag:yaml.org,2002:null", ""))  # refuses tags of Python
    except OSError as error:
        raise InputError(f"--config {path}: {error.strerror}") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise InputError(f"--config {path} is not valid YAML: {error}") from error
    options: dict[str, tuple[list[str], str]] = {}
    for key, value in found:
        name, where = str(key.value).replace("-", "_"), f"{path}:{key.start_mark.line + 1}"
        if name in ("config", "help", "help_all"):
            raise InputError(f"{where}: '{key.value}' is for the command line only")
        values = value.value if isinstance(value, yaml.SequenceNode) else [value]
        if not all(isinstance(each, yaml.ScalarNode) for each in values):
            raise InputError(f"{where}: option '{key.value}' must be a value or a list of values")
        if name in options:
            raise InputError(f"{where}: '{key.value}' stands above too, at {options[name][1]}; leave one of them")
        if not value.tag.endswith(":null"):
            options[name] = ([each.value for each in values], where)
    return options


def _options_of(words: Sequence[str]) -> list[tuple[str, list[str]]]:
    """Words of a command line as names, without dashes, and the values that follow each."""
    options: list[tuple[str, list[str]]] = []
    for word in words:
        if word.startswith("--") and len(word) > 2:
            name, equals, value = word[2:].partition("=")
            options.append((name.replace("-", "_"), [value] if equals else []))
        elif word == "-h":
            options.append(("help", []))
        elif options:
            options[-1][1].append(word)
        else:
            raise InputError(f"'{word}' stands before any option (--help lists the options)")
    return options


def _merged(options: Sequence[tuple[str, list[str]]], parser: _Parser) -> dict[str, list[str]]:
    """The words of each option by the name of its field; lists that are given several times add up."""
    actions = {word.lstrip("-").replace("-", "_"): action for word, action in parser._option_string_actions.items()}
    if unknown := [name for name, _ in options if name not in actions]:
        many = "s" if len(unknown) > 1 else ""
        nearest = "; ".join(_nearest(name, list(actions)) for name in dict.fromkeys(unknown))
        raise InputError(f"unknown option{many} {nearest} (--help lists the options)")
    merged: dict[str, list[str]] = {}
    for name, values in options:
        action, word = actions[name], f"--{name}"
        if action.dest in merged and action.nargs != "+":
            given = " and ".join(" ".join(words) for words in (merged[action.dest], [word, *values]))
            raise InputError(f"--{action.dest} is given twice: {given}")
        if (len(values) > 1 and action.nargs != "+") or (not values and action.nargs is None):
            raise InputError(f"{word} takes one value, got {' '.join(values) or 'none'} (--help lists the options)")
        if action.nargs != "+" and len(values) == 1:
            merged[action.dest] = [f"{word}={values[0]}"]  # a value that begins with a dash is one too
        else:
            merged[action.dest] = merged.get(action.dest, [word]) + values
    return merged


def parse_arguments(
    dataclass_types: Sequence[type], arguments: Sequence[str] | None = None, description: str | None = None
) -> tuple[Any, ...]:
    """Fill dataclasses of options: their defaults, then `--config file.yaml`, then the command line.

    The dataclasses are flat, and their fields are the options; `arguments` are `sys.argv[1:]` by default. Names of
    `TrainingArguments` are understood (`aliases.py`). Returns one filled dataclass for each type, in order. Raises
    InputError: unknown options (with the nearest known ones), one given twice, a value of the wrong type or choice.
    """
    transformers_logging.disable_progress_bar()  # they would garble our progress line
    parser = _parser(dataclass_types, description)
    fields = [field for kind in dataclass_types for field in dataclasses.fields(kind)]
    known = {name: field.type for field in fields for name in names_of(field)}
    given = _options_of(sys.argv[1:] if arguments is None else arguments)
    words, said = translate(given, known)
    try:
        by_hand, from_file = _merged(_options_of(words), parser), dict[str, list[str]]()
    except InputError as error:
        raise InputError("; ".join([str(error), *said])) from error
    path = Path(by_hand["config"][-1].removeprefix("--config=")) if "config" in by_hand else None
    in_file = _options_from_yaml(path) if path else {}
    together = {name: values for name, (values, _) in in_file.items()}
    for name, (values, where) in in_file.items():
        single = [",".join(values)] if get_origin(known.get(name)) is not list else values
        try:
            words, more = translate([(name, single)], known, together=together)
            option = _merged(_options_of(words), parser)
            parser.parse_known_args([word for words in option.values() for word in words])
            if twice := [each for each in option if each in from_file]:
                raise InputError(f"--{twice[0]} is given twice")
        except InputError as error:
            raise InputError(f"{where}: {error}") from error
        from_file |= option
        said += more
    if os.environ.get("RANK", "0") == "0" and said:
        print(*said, sep="\n", file=sys.stderr)
    last = [word for words in (from_file | by_hand).values() for word in words]
    *filled, _ = parser.parse_args_into_dataclasses(last, look_for_args_file=False)
    return tuple(filled)


def exit_cleanly(main: Callable[[], object]) -> NoReturn:
    """Run `main` and exit the process with the right code.

    Of an exception with an `exit_code` only the message is printed. Any other exception is a bug and keeps its
    traceback.
    """
    try:
        # At once: before and after training there is nothing to save.
        signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
        main()
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        sys.exit(130)
    except BrokenPipeError:
        os._exit(1)
    except Exception as error:
        if (exit_code := getattr(error, "exit_code", None)) is None:
            raise
        what = "" if exit_code == StoppedError.exit_code else "error: "
        print(without_secrets(f"{what}{error}", names_stay=True), file=sys.stderr, flush=True)
        sys.exit(exit_code)
    finally:
        release()
        gc.freeze()  # or the interpreter would look through all that is left, for more than a second
    sys.exit(0)
