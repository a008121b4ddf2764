"""The built-in corpus and tasks: the documentation that ships inside every Python interpreter.

Docstrings of the standard library, read from its source with `ast` and never imported, and the chapters of the
language reference in `pydoc_data.topics`. Two labelled tasks are made of it: which family of modules wrote a
docstring, and what is the default of a parameter. All is a function of the interpreter, in a stable order.
"""

import ast
import hashlib
import inspect
import os
import platform
import re
import sysconfig
from collections import Counter
from collections.abc import Iterator
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple

from lacuna.common.errors import InputError

from .store.encoding import split_sentences

VERSION = 2  # rises when another text is made of the same interpreter
MIN_CHARACTERS = 300  # a module with less to say has no topic

# Tests are 62 % of the bytes of the library and 21 % of its docstrings, many of them fixtures; Debian leaves them out.
# Without them the library is read in 2 s on one core instead of 7, and processes to share the work would not pay.
SKIPPED_FOLDERS = frozenset(
    {"site-packages", "dist-packages", "__pycache__", "test", "tests", "idle_test", "lib-dynload", "pydoc_data"}
)

# Rules of tables and underlines of headings: without words, and long enough to take the longest tokens for themselves.
RULE = re.compile(r"^[ \t]*[-+=*~^|_#.][-+=*~^|_# \t]{3,}\n", re.MULTILINE)


class Entry(NamedTuple):
    """A function or class of a module."""

    name: str  # with the classes around it: "HTTPConnection.request"
    docstring: str  # cleaned; may be empty
    heading: str = ""  # "http.client.HTTPConnection.request(self, method, url)", "class enum.member(object)"
    arguments: ast.arguments | None = None  # of a function


class Module(NamedTuple):
    """A module of the standard library."""

    name: str  # "http.client"
    docstring: str
    entries: tuple[Entry, ...]


def builtin_documents() -> Iterator[str]:
    """Documents: one a module (its docstring, then each class and function with signature and docstring, in source
    order) and one a topic of the language reference. Equal documents come once.

    Raises InputError: this interpreter has no source of its standard library.
    """
    texts = (RULE.sub("", text) for text in [*map(_document, read_library()), *read_topics()])
    yield from dict.fromkeys(text for text in texts if len(text) >= MIN_CHARACTERS)


def builtin_fingerprint() -> str:
    """What stands for the built-in corpus: version of this reader and of Python, names and sizes of the files read."""
    digest = hashlib.sha256(f"{VERSION} {platform.python_implementation()} {platform.python_version()}".encode())
    root = _root()
    for path in [*_module_files(), root / "pydoc_data" / "topics.py"]:
        if path.exists():
            digest.update(f" {path.relative_to(root).as_posix()} {path.stat().st_size}".encode())
    return digest.hexdigest()


def _document(module: Module) -> str:
    parts = {module.docstring: module.docstring}  # by docstring: equal ones come once
    for entry in module.entries:
        parts.setdefault(entry.docstring, f"{entry.heading}\n{entry.docstring}")
    parts.pop("", None)
    return "\n\n".join([module.name, *parts.values()]) + "\n" if parts else ""


def read_topics() -> list[str]:
    """The chapters of the language reference behind `help()`, sorted by name; none on systems that leave them out."""
    try:
        from pydoc_data.topics import topics
    except ImportError:
        return []
    return [topics[name] for name in sorted(topics)]


@cache
def read_library() -> tuple[Module, ...]:
    """Every module of the standard library that has a docstring somewhere, in the order of its path. Read once."""
    modules = []
    root = _root()
    for path in _module_files():
        source = path.read_bytes()
        if b'"""' not in source and b"'''" not in source and b"def " not in source:
            continue
        try:
            tree = ast.parse(source)
        except (SyntaxError, ValueError):  # lib2to3 keeps files of Python 2
            continue
        name = ".".join(path.relative_to(root).with_suffix("").parts).removesuffix(".__init__")
        modules.append(Module(name, _docstring(tree), tuple(_entries(tree.body, module=name))))
    if not modules:
        raise InputError(
            f"this Python has no source of its standard library in {root}, which the built-in corpus is made of. "
            "Name your own text with --data."
        )
    return tuple(modules)


def _root() -> Path:
    return Path(sysconfig.get_paths()["stdlib"])


def _module_files() -> list[Path]:
    files: list[Path] = []
    for root, folders, names in os.walk(_root(), followlinks=True):
        folders[:] = [name for name in folders if name not in SKIPPED_FOLDERS and not name.startswith("config-")]
        # _sysconfigdata has paths of this one machine in it.
        files += [Path(root, name) for name in names if name.endswith(".py") and not name.startswith("_sysconfigdata")]
    return sorted(files, key=lambda path: path.as_posix())


def _entries(body: list[ast.stmt], *, module: str, inside: str = "") -> Iterator[Entry]:
    """Functions and classes in source order, those in classes and under `if` and `try` too; not those in functions."""
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            name, docstring = inside + node.name, _docstring(node)
            heading = f"{module}.{name}({ast.unparse(node.args)})" if docstring else ""
            yield Entry(name, docstring, heading, node.args)
        elif isinstance(node, ast.ClassDef):
            name, bases = inside + node.name, ", ".join(map(ast.unparse, node.bases))
            yield Entry(name, _docstring(node), f"class {module}.{name}" + (f"({bases})" if bases else ""))
            yield from _entries(node.body, module=module, inside=f"{name}.")
        elif isinstance(node, ast.If | ast.Try | ast.With):
            handlers = [line for handler in getattr(node, "handlers", []) for line in handler.body]
            yield from _entries([*node.body, *getattr(node, "orelse", []), *handlers], module=module, inside=inside)


def _docstring(node: ast.Module | ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) -> str:
    return inspect.cleandoc(ast.get_docstring(node, clean=False) or "").strip()


# Top-level modules by what they are for. Modules of some versions of Python only may stand here as well. Labels are
# phrases that no docstring holds.
FAMILIES: dict[str, str] = {
    "windows and drawing": "tkinter turtle turtledemo curses",
    "network and web": """http urllib wsgiref ssl smtplib ftplib socket socketserver telnetlib imaplib nntplib poplib
        xmlrpc ipaddress cgi webbrowser smtpd asynchat asyncore netrc mimetypes""",
    "text and data formats": """email xml html json csv configparser textwrap difflib string codecs plistlib tomllib
        encodings quopri base64 gettext pprint reprlib shlex""",
    "concurrent work": """asyncio multiprocessing threading concurrent subprocess queue selectors sched signal
        _threading_local contextvars""",
    "numbers and dates": """_pydecimal decimal statistics datetime _pydatetime random fractions numbers calendar
        _strptime heapq bisect zoneinfo colorsys hashlib hmac secrets uuid _pylong""",
    "files and archives": """tarfile zipfile pathlib shutil os _pyio io tempfile gzip bz2 lzma ntpath posixpath
        genericpath glob fnmatch filecmp fileinput linecache mailbox shelve dbm pickle pickletools stat zipapp
        _compression""",
    "tests and diagnosis": """unittest doctest pdb bdb traceback trace tracemalloc timeit profile cProfile pstats
        logging warnings cgitb _pyrepl""",
    "code and its building": """distutils importlib lib2to3 pkgutil venv ensurepip ast dis tokenize symtable inspect
        compileall runpy modulefinder zipimport typing imp annotationlib sysconfig""",
}
# Rows of one family at most: without it, the majority class would be a fifth of the rows.
MAX_FAMILY_ROWS = 480
MIN_DOCSTRING_CHARACTERS = 40

MAX_CONTEXT_CHARACTERS = 300
MAX_ANSWER_CHARACTERS = 40
MAX_QUESTIONS = 4  # about one context
MAX_SAME_ANSWER = 300  # without it, half of all answers would be `None`


def builtin_classification() -> list[dict[str, Any]]:
    """Rows {"id", "text", "label"}: a docstring, each once, and the family of modules it comes from, eight families.

    Python 3.11 gives 3,822 rows; always answering the largest family is right for 12.6 % of them.
    """
    family_of = {module: family for family, modules in FAMILIES.items() for module in modules.split()}
    rows: dict[str, list[dict[str, Any]]] = {family: [] for family in FAMILIES}
    seen: set[str] = set()
    for module in read_library():
        family = family_of.get(module.name.split(".")[0], "")
        named = [(module.name, module.docstring)]
        named += [(f"{module.name}.{entry.name}", entry.docstring) for entry in module.entries]
        for name, text in named if family else ():
            key = " ".join(text.lower().split())
            if len(text) >= MIN_DOCSTRING_CHARACTERS and key not in seen:
                seen.add(key)
                rows[family].append({"id": f"{name}:{_digest(text)[:8]}", "text": text, "label": family})
    by_digest = partial(sorted, key=lambda row: _digest(row["text"]))
    return by_digest(row for family in rows.values() for row in by_digest(family)[:MAX_FAMILY_ROWS])


def builtin_questions() -> list[dict[str, Any]]:
    """Rows {"id", "question", "context", "answers": {"text", "answer_start"}}, flat as SQuAD is on the Hub.

    A context tells the parameters of a function and begins its docstring; the question asks for the default of one of
    them, each different one at most once. Rows of one context stand together, so that a split by context is a split by
    function. Python 3.11 gives 2,457 rows over 1,856 contexts. The most frequent answer is right for 12.2 % of them, a
    rule that takes the first default for 64.6 %.
    """
    groups: dict[str, list[dict[str, Any]]] = {}
    for module in read_library():
        for entry in module.entries:
            if rows := _ask(module, entry):
                groups.setdefault(rows[0]["context"], rows)
    asked: Counter[str] = Counter()
    kept = []
    for row in (row for context in sorted(groups, key=_digest) for row in groups[context]):
        answer = row["answers"]["text"][0]
        asked[answer] += 1
        if asked[answer] <= MAX_SAME_ANSWER:
            kept.append(row)
    return kept


def _ask(module: Module, entry: Entry) -> list[dict[str, Any]]:
    """Questions about a function in an order that does not follow the context, which tells its parameters and begins
    its docstring; none when it is not fit for questions."""
    name = entry.name.removesuffix(".__init__")
    text = f"`{name}` takes "
    starts = {}  # of the default of each parameter
    parameters = _parameters(entry.arguments) if entry.arguments else []
    for number, (parameter, default) in enumerate(parameters):
        if number:
            text += " and " if number == len(parameters) - 1 else ", "
        text += f"`{parameter}`"
        if default is not None:
            text += " (default `"
            starts[parameter] = len(text)
            text += f"{default}`)"
    text += "."
    if not starts or len(text) > MAX_CONTEXT_CHARACTERS:
        return []
    for sentence in split_sentences(entry.docstring and " " + entry.docstring):
        if len(text) + len(sentence) > MAX_CONTEXT_CHARACTERS:
            break
        text += sentence
    defaults = dict(parameters)
    different: dict[str, str] = {}  # the parameter to ask for, by its default
    for parameter in sorted(starts, key=lambda parameter: _digest(f"{module.name} {name} {parameter}")):
        different.setdefault(str(defaults[parameter]), parameter)
    return [
        {
            "id": f"{module.name}.{name}#{parameter}:{_digest(text)[:8]}",
            "question": f"What is the default of `{parameter}` in `{name}`?",
            "context": text,
            "answers": {"text": [default], "answer_start": [starts[parameter]]},
        }
        for default, parameter in list(different.items())[:MAX_QUESTIONS]
    ]


def _parameters(arguments: ast.arguments) -> list[tuple[str, str | None]]:
    """Parameters in order with the text of their defaults; [] when a default is too long to be an answer."""
    positional = [*arguments.posonlyargs, *arguments.args]
    required = len(positional) - len(arguments.defaults)
    values: list[ast.expr | None] = [*([None] * required), *arguments.defaults, *arguments.kw_defaults]
    parameters: list[tuple[str, str | None]] = []
    for parameter, value in zip([*positional, *arguments.kwonlyargs], values, strict=True):
        if parameter.arg in ("self", "cls"):
            continue
        default = None if value is None else ast.unparse(value)
        if default and (len(default) > MAX_ANSWER_CHARACTERS or "`" in default or not default.isprintable()):
            return []
        parameters.append((parameter.arg, default))
    return parameters


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


BUILTIN_TASKS = {"classification": builtin_classification, "question_answering": builtin_questions}
"""What gives the rows of each, by the name of its task."""
