"""The built-in corpus: the documentation that ships inside every Python interpreter, with nothing to download.

Docstrings of the standard library, read from its source with `ast` and never imported, and the chapters of the
language reference in `pydoc_data.topics`. All is a function of the interpreter, in a stable order.
"""

import ast
import hashlib
import inspect
import platform
import re
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from lacuna.common.errors import InputError

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

    Raises:
        InputError: this interpreter has no source of its standard library.
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
        entries = tuple(_entries(tree.body, prefix=""))
        modules.append(Module(name=name, docstring=_docstring(tree), entries=entries))
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
                # Made by the build of this one machine, with its paths in it.
                if not path.name.startswith("_sysconfigdata"):
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
