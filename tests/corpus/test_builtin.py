"""The corpus inside the interpreter."""

import ast
import hashlib
import importlib
import inspect
import subprocess
import sys
from pathlib import Path

import pytest

from lacuna.common.errors import InputError
from lacuna.corpus import builtin as builtin_module
from lacuna.corpus import builtin_documents, split_sentences
from lacuna.corpus.builtin import builtin_fingerprint, read_library, read_topics


@pytest.fixture(scope="module")
def documents() -> list[str]:
    return list(builtin_documents())


def test_it_is_a_real_corpus(documents: list[str]) -> None:
    assert len(documents) > 300
    assert sum(len(document.encode()) for document in documents) > 1_500_000
    assert min(map(len, documents)) >= 300
    assert len(set(documents)) == len(documents)
    several = sum(len(split_sentences(document)) > 1 for document in documents)
    assert several == len(documents)


def test_a_document_holds_a_module_with_its_functions(documents: list[str]) -> None:
    (document,) = [document for document in documents if document.startswith("json.decoder\n")]
    assert "Implementation of JSONDecoder" in document
    assert "class json.decoder.JSONDecoder" in document
    assert "\njson.decoder.JSONDecoder.raw_decode(self, s, idx=0)\nDecode a JSON document" in document


def test_docstrings_are_those_that_import_shows() -> None:
    modules = {module.name: module for module in read_library()}
    for name in ("textwrap", "shutil", "http.client"):
        imported = importlib.import_module(name)
        assert modules[name].docstring == inspect.getdoc(imported).strip()
        for entry in modules[name].entries:
            if entry.arguments is None and "." not in entry.name and entry.docstring:
                assert entry.docstring == inspect.getdoc(getattr(imported, entry.name)).strip()


def test_topics_are_those_of_help() -> None:
    from pydoc_data.topics import topics

    assert list(read_topics()) == [topics[name] for name in sorted(topics)]


def test_tests_and_installed_packages_are_left_out() -> None:
    names = {module.name for module in read_library()}
    assert not any(part in ("test", "tests", "site-packages") for name in names for part in name.split("."))
    assert not any(name.startswith("_sysconfigdata") for name in names)
    assert "unittest.mock" in names


@pytest.mark.slow
def test_every_process_reads_the_same(documents: list[str]) -> None:
    code = (
        "import hashlib, sys; from lacuna.corpus import builtin_documents\n"
        "from lacuna.corpus.builtin import builtin_fingerprint\n"
        "print(hashlib.sha256(chr(0).join(builtin_documents()).encode()).hexdigest(), builtin_fingerprint())\n"
        "print('turtle' in sys.modules, 'antigravity' in sys.modules)"
    )
    root = Path(__file__).resolve().parents[2]
    result = subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=True)
    digest, fingerprint, *imported = result.stdout.split()
    assert digest == hashlib.sha256("\0".join(documents).encode()).hexdigest()
    assert fingerprint == builtin_fingerprint()
    assert imported == ["False", "False"]  # read, never imported


def test_entries_under_conditions_and_in_classes_are_found() -> None:
    source = """
try:
    def a(x, *, y=1): "first"
except ImportError:
    class B(Base):
        "second"
        def c(self): "third"
def outer():
    def inner(): "not seen"
"""
    entries = list(builtin_module._entries(ast.parse(source).body, module="m"))
    assert [(entry.name, entry.heading, entry.docstring) for entry in entries] == [
        ("a", "m.a(x, *, y=1)", "first"),
        ("B", "class m.B(Base)", "second"),
        ("B.c", "m.B.c(self)", "third"),
        ("outer", "", ""),
    ]


def test_an_interpreter_without_source_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(builtin_module, "_root", lambda: tmp_path)
    with pytest.raises(InputError, match="--data"):
        read_library.__wrapped__()
    monkeypatch.setitem(sys.modules, "pydoc_data.topics", None)  # as where it is left out
    assert read_topics() == []
