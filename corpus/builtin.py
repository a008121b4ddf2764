"""The built-in corpus and tasks: the documentation that ships inside every Python interpreter.

Docstrings of the standard library, read from its source with `ast` and never imported, and the chapters of the
language reference in `pydoc_data.topics`. Two labelled tasks are made of it: which family of modules wrote a
docstring, and what is the default of a parameter. All is a function of the interpreter, in a stable order.
"""

import ast
import hashlib
import inspect
import platform
import re
import sysconfig
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
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

Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


@dataclass(frozen=True, slots=True)
class Entry:
    """A function or class: where it is, how it is called and what it says of itself."""

    name: str  # with the classes around it: "HTTPConnection.request"
    kind: str  # "function" or "class"
    arguments: ast.arguments | None  # of a function
    signature: str  # "HTTPConnection.request(self, method, url, body=None)"; the name alone without a docstring
    docstring: str  # cleaned; may be empty


@dataclass(frozen=True, slots=True)
class Module:
    """A module of the standard library."""

    name: str  # "http.client"
    docstring: str
    entries: tuple[Entry, ...]


def builtin_documents() -> Iterator[str]:
    """Documents: one a module (its docstring, then each class and function with signature and docstring, in source
    order) and one a topic of the language reference. Equal documents come once.

    Raises InputError: this interpreter has no source of its standard library.
    """
    seen: set[str] = set()
    for text in _all_documents():
        text = RULE.sub("", text)
        if len(text) >= MIN_CHARACTERS and text not in seen:
            seen.add(text)
            yield text


def builtin_fingerprint() -> str:
    """What stands for the built-in corpus: version of this reader and of Python, names and sizes of the files read."""
    digest = hashlib.sha256(f"{VERSION} {platform.python_implementation()} {platform.python_version()}".encode())
    root = _root()
    for path in [*_module_files(), root / "pydoc_data" / "topics.py"]:
        if path.exists():
            digest.update(f" {path.relative_to(root).as_posix()} {path.stat().st_size}".encode())
    return digest.hexdigest()


def _all_documents() -> Iterator[str]:
    for module in read_library():
        parts = [module.docstring] if module.docstring else []
        seen = {module.docstring}
        for entry in module.entries:
            if entry.docstring and entry.docstring not in seen:
                seen.add(entry.docstring)
                parts.append(f"{_qualified(module, entry)}\n{entry.docstring}")
        if parts:
            yield f"{module.name}\n\n" + "\n\n".join(parts) + "\n"
    yield from read_topics()


def _qualified(module: Module, entry: Entry) -> str:
    """The signature as reference documentation writes it: "statistics.mean(data)", "class enum.member(object)"."""
    kind, space, rest = entry.signature.rpartition("class ") if entry.kind == "class" else ("", "", entry.signature)
    return f"{kind}{space}{module.name}.{rest}"


@cache
def read_topics() -> tuple[str, ...]:
    """The chapters of the language reference behind `help()`, sorted by name."""
    path = _root() / "pydoc_data" / "topics.py"
    if not path.exists():  # some systems leave it out
        return ()
    for node in ast.parse(path.read_bytes()).body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and node.targets[0].id == "topics":
            topics = ast.literal_eval(node.value)
            return tuple(topics[name] for name in sorted(topics))
    return ()


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
        modules.append(Module(name, _docstring(tree), tuple(_entries(tree.body, prefix=""))))
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
    folders = [_root()]
    while folders:
        folder = folders.pop()
        if not folder.is_dir():
            continue
        for path in folder.iterdir():
            if path.suffix == ".py":
                if not path.name.startswith("_sysconfigdata"):  # has paths of this one machine in it
                    files.append(path)
            elif path.is_dir() and path.name not in SKIPPED_FOLDERS and not path.name.startswith("config-"):
                folders.append(path)
    return sorted(files, key=lambda path: path.as_posix())


def _entries(body: list[ast.stmt], *, prefix: str) -> Iterator[Entry]:
    """Functions and classes in source order, those in classes and under `if` and `try` too; not those in functions."""
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            name = prefix + node.name
            docstring = _docstring(node)
            signature = f"{name}({ast.unparse(node.args)})" if docstring else name
            yield Entry(name, "function", node.args, signature, docstring)
        elif isinstance(node, ast.ClassDef):
            name = prefix + node.name
            bases = ", ".join(ast.unparse(base) for base in node.bases)
            yield Entry(name, "class", None, f"class {name}({bases})" if bases else f"class {name}", _docstring(node))
            yield from _entries(node.body, prefix=name + ".")
        elif isinstance(node, ast.If | ast.Try | ast.With):
            yield from _entries(node.body, prefix=prefix)
            yield from _entries(getattr(node, "orelse", []), prefix=prefix)
            for handler in getattr(node, "handlers", []):
                yield from _entries(handler.body, prefix=prefix)


def _docstring(node: ast.Module | Definition) -> str:
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
    """Rows {"id", "text", "label"}: a docstring and the family of modules it comes from, eight families.

    Each docstring comes once and no family has more than 480. Python 3.11 gives 3,822 rows; always answering the
    largest family is right for 12.6 % of them; the recipe says what a linear model reaches. Raises InputError as
    `builtin_documents` does.
    """
    family_of = {module: family for family, modules in FAMILIES.items() for module in modules.split()}
    rows: dict[str, list[dict[str, Any]]] = {family: [] for family in FAMILIES}
    seen: set[str] = set()
    for module in read_library():
        family = family_of.get(module.name.split(".")[0])
        if family is None:
            continue
        named = [(module.name, module.docstring)]
        named += [(f"{module.name}.{entry.name}", entry.docstring) for entry in module.entries]
        for name, docstring in named:
            key = " ".join(docstring.lower().split())
            if len(docstring) >= MIN_DOCSTRING_CHARACTERS and key not in seen:
                seen.add(key)
                rows[family].append({"id": f"{name}:{_digest(docstring)[:8]}", "text": docstring, "label": family})
    kept = [
        row
        for family in rows.values()
        for row in sorted(family, key=lambda row: _digest(row["text"]))[:MAX_FAMILY_ROWS]
    ]
    return sorted(kept, key=lambda row: _digest(row["text"]))


def builtin_questions() -> list[dict[str, Any]]:
    """Rows {"id", "question", "context", "answers": {"text", "answer_start"}}, flat as SQuAD is on the Hub.

    A context tells the parameters of a function and begins its docstring; the question asks for the default of one of
    them. Each different default of a context is asked for at most once, and no answer stands in more than 300 rows.
    Rows of one context stand together, so that a split by context is a split by function. Python 3.11 gives 2,457
    rows over 1,856 contexts. The most frequent answer is right for 12.2 % of them, a rule that takes the first default
    for 64.6 %. Raises InputError as `builtin_documents` does.
    """
    groups: dict[str, list[dict[str, Any]]] = {}
    for module in read_library():
        for context, answers in map(_describe, module.entries):
            if answers:
                groups.setdefault(context, list(_ask(module, context, answers)))
    asked: Counter[str] = Counter()
    kept = []
    for row in (row for context in sorted(groups, key=_digest) for row in groups[context]):
        answer = row["answers"]["text"][0]
        asked[answer] += 1
        if asked[answer] <= MAX_SAME_ANSWER:
            kept.append(row)
    return kept


class _Answer(NamedTuple):
    """A default, where it starts in its context, and what it is the default of."""

    function: str
    parameter: str
    text: str
    start: int


def _describe(entry: Entry) -> tuple[str, list[_Answer]]:
    """A function in a sentence and the start of its docstring; no answers when it is not fit for questions."""
    name = entry.name.removesuffix(".__init__")
    text = f"`{name}` takes "
    answers: list[_Answer] = []
    parameters = _parameters(entry)
    for number, (parameter, default) in enumerate(parameters):
        if number:
            text += " and " if number == len(parameters) - 1 else ", "
        text += f"`{parameter}`"
        if default is not None:
            text += " (default `"
            answers.append(_Answer(name, parameter, default, len(text)))
            text += f"{default}`)"
    text += "."
    if len(text) > MAX_CONTEXT_CHARACTERS:
        return "", []
    for sentence in split_sentences(entry.docstring and " " + entry.docstring):
        if len(text) + len(sentence) > MAX_CONTEXT_CHARACTERS:
            break
        text += sentence
    return text, answers


def _ask(module: Module, context: str, answers: list[_Answer]) -> Iterator[dict[str, Any]]:
    """Questions about one context, in an order that does not follow it."""
    answers = sorted(answers, key=lambda answer: _digest(f"{module.name} {answer.function} {answer.parameter}"))
    first = {answer.text: answer for answer in reversed(answers)}
    for answer in [answer for answer in answers if first[answer.text] is answer][:MAX_QUESTIONS]:
        yield {
            "id": f"{module.name}.{answer.function}#{answer.parameter}:{_digest(context)[:8]}",
            "question": f"What is the default of `{answer.parameter}` in `{answer.function}`?",
            "context": context,
            "answers": {"text": [answer.text], "answer_start": [answer.start]},
        }


def _parameters(entry: Entry) -> list[tuple[str, str | None]]:
    """Parameters in order with the text of their defaults; [] when a default is too long to be an answer."""
    if entry.arguments is None:
        return []
    positional = [*entry.arguments.posonlyargs, *entry.arguments.args]
    required = len(positional) - len(entry.arguments.defaults)
    values: list[ast.expr | None] = [*([None] * required), *entry.arguments.defaults, *entry.arguments.kw_defaults]
    parameters: list[tuple[str, str | None]] = []
    for parameter, value in zip([*positional, *entry.arguments.kwonlyargs], values, strict=True):
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
