"""Make text safe to show or publish: without access tokens, hosts, home folders and unprintable characters."""

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
_USER = r"(?<=//)[^/@\s]+@|(?<=:/)[^/@\s]+:[^/@\s]+@"  # user:password@ of an address, also of one taken for a path
_SECRETS = re.compile(rf"hf_[A-Za-z0-9]{{6,}}|{_USER}")  # with tokens of the Hub
_HOMES = re.compile(r"(?:^|[/\\])(?:home|Users)[/\\][^/\\]")  # /home/name, C:\Users\name
# What must not be published. Words such as hf_transfer are none: a token has 34 letters after its first three.
_TOKEN = r"hf_[A-Za-z0-9]{16,}"
_PASSWORD = r"://[^/\s:@\"']+:[^/\s:@\"']+@"
_HOME = r"(?<![\w.~-])(?:[A-Za-z]:)?[/\\]+(?:home|Users)[/\\]+\w"  # a backslash in JSON is two


def without_secrets(text: str, *, names_stay: bool = False) -> str:
    """Replace Hub tokens, and users and passwords in URLs, by ***; `names_stay`: not what is too short for a token."""
    return re.sub(f"{_TOKEN}|{_USER}" if names_stay else _SECRETS, "***", text)


def without_places(text: str) -> str:
    """Remove hosts, and shorten paths that tell who ran it.

    A path in the current folder becomes relative to it, one in the home folder begins with ~, and one that contains
    the user's name or lies in somebody else's home folder keeps only its last part. Other paths, and Hub ids, stay.
    """
    return _PLACES.sub(lambda match: _inside(match["path"]) if match["path"] else "", text.replace("file:///", "/"))


def _inside(path: str) -> str:
    whole, home = Path(os.path.expanduser(path)), Path(os.path.expanduser("~"))
    if whole.is_relative_to(Path.cwd()):
        return str(whole.relative_to(Path.cwd()))
    if home.name and whole.is_relative_to(home):
        return str(Path("~", whole.relative_to(home)))
    if _HOMES.search(path) or (home.name and home.name in whole.parts):
        return re.split(r"[/\\]", path.rstrip("/\\"))[-1]
    return path


def leak(text: str, *, secrets: Sequence[str] = ()) -> tuple[int, str] | None:
    """The first line of a text that must not be published, counted from 1, and what stands there; None for a good one.

    `secrets`: more of what must not stand there, word for word.
    """
    home = os.path.expanduser("~").rstrip("/\\")
    tokens = [_TOKEN, *(re.escape(secret) for secret in secrets if len(secret) > 7)]
    homes = [_HOME, *([rf"(?<!\w){re.escape(home)}[/\\]+\w"] if len(Path(home).parts) > 1 else [])]
    kinds = {"an access token": tokens, "a password": [_PASSWORD], "a path of a home folder": homes}
    found = [(match.start(), kind) for kind, them in kinds.items() if (match := re.search("|".join(them), text))]
    return (text.count("\n", 0, min(found)[0]) + 1, min(found)[1]) if found else None


def shown_command() -> str:
    """The command line of this process, as somebody else would type it: `python recipes/NAME.py ...`."""
    words = sys.argv
    # A whole word that is a path may contain spaces.
    shown = [
        _inside(word) if Path(word).is_absolute() and Path(word).exists() else without_places(word) for word in words
    ]
    script = Path(words[0]) if words else Path()
    if script.parent.name:  # the folder of a recipe says more than where the person stood
        shown[0] = f"{script.parent.name}/{script.name}"
    if shown and shown[0].startswith("lacuna "):  # the command, or the function in Python
        return without_secrets(" ".join([shown[0], *map(_quoted, shown[1:])]), names_stay=True)
    return without_secrets(" ".join(["python", *map(_quoted, shown)]), names_stay=True)


def _quoted(word: str) -> str:
    """Quote for a shell, which expands ~ only outside quotes."""
    return f"~/{shlex.quote(word[2:])}" if len(word) > 2 and word.startswith("~/") else shlex.quote(word)


def shown(text: str | Path) -> str:
    """Text or a path for a message: unprintable characters (NUL, half a surrogate, a line break) are escaped."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape", "surrogatepass").decode() for c in str(text))


def counted(number: int, noun: str) -> str:
    """A number of things: "1 step", "2,000 steps"."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
