"""What may be shown to anybody: a command, a name of a file, without the folders and hosts of who ran it."""

import os
import re
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

_PLACES = re.compile(
    r"(?P<host>\b[a-zA-Z][\w+.-]*://)(?:[^/\s]*/)?"  # https://user@host:port/
    r"|(?<![\w./~-])(?P<path>(?:~|[A-Za-z]:)?[/\\][^\s:,='\"]+)"  # /folder/name, ~/name, C:\folder\name
)


def without_places(text: str) -> str:
    """A text in which absolute paths are relative to the present folder, or their last parts, and hosts are left out.

    Relative paths and Hub ids stay as they are.
    """
    return _PLACES.sub(lambda match: _inside(match["path"]) if match["path"] else "", text)


def _inside(path: str) -> str:
    whole = Path(os.path.expanduser(path))
    if whole.is_relative_to(Path.cwd()):
        return str(whole.relative_to(Path.cwd()))
    return re.split(r"[/\\]", path.rstrip("/\\"))[-1]


def shown_command(words: Sequence[str] | None = None) -> str:
    """The command line of this process, as somebody else would type it: `python recipes/NAME.py ...`.

    Args:
        words: the script and its arguments; those of this process by default.
    """
    words = sys.argv if words is None else words
    # A whole word that is a path may have blanks in it.
    shown = [
        _inside(word) if Path(word).is_absolute() and Path(word).exists() else without_places(word) for word in words
    ]
    script = Path(words[0]) if words else Path()
    if script.parent.name:  # the folder of a recipe says more than where the person stood
        shown[0] = f"{script.parent.name}/{script.name}"
    return shlex.join(["python", *shown])
