"""What may be shown to anybody: nothing unprintable, no tokens, no hosts or home folder of whoever ran it."""

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
_SECRETS = re.compile(r"hf_[A-Za-z0-9]{6,}|(?<=//)[^/@\s]+@")  # a token of the Hub, user:password@ of an address
_HOMES = re.compile(r"(?:^|[/\\])(?:home|Users)[/\\][^/\\]")  # /home/name, C:\Users\name


def without_secrets(text: str) -> str:
    """A text in which tokens of the Hub, and names and passwords in addresses, are ***."""
    return _SECRETS.sub("***", text)


def without_places(text: str) -> str:
    """A text in which hosts are left out, and paths that say who ran it are shortened.

    A path in the present folder becomes relative to it, and one in the home folder begins with ~. Of one in the home
    folder of somebody else, or with the name of who runs this in it, the last part is left. All others stay as they
    were typed, and so do Hub ids.
    """
    return _PLACES.sub(lambda match: _inside(match["path"]) if match["path"] else "", text)


def _inside(path: str) -> str:
    whole, home = Path(os.path.expanduser(path)), Path(os.path.expanduser("~"))
    if whole.is_relative_to(Path.cwd()):
        return str(whole.relative_to(Path.cwd()))
    if home.name and whole.is_relative_to(home):
        return str(Path("~", whole.relative_to(home)))
    if _HOMES.search(path) or (home.name and home.name in whole.parts):
        return re.split(r"[/\\]", path.rstrip("/\\"))[-1]
    return path


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
    return " ".join(["python", *map(_quoted, shown)])


def _quoted(word: str) -> str:
    """For a shell, which knows ~ only where no quotes are around it."""
    return f"~/{shlex.quote(word[2:])}" if len(word) > 2 and word.startswith("~/") else shlex.quote(word)


def visible(text: str) -> str:
    """Text for a message: what does not print (NUL, half a surrogate pair, a line end) becomes its escape."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape", "surrogatepass").decode() for c in text)


def shown(path: Path | str) -> str:
    """A path for a message; what does not print in it is escaped."""
    return visible(str(path))
