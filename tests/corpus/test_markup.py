"""Text of .html and .md files: what a reader of the page would read, a paragraph for each block."""

import gzip
import sys
from pathlib import Path

import pytest
from opened_text import opened, write

from lacuna.common.errors import InputError
from lacuna.corpus import find_files

bs4 = pytest.importorskip("bs4")

PAGE = """<!DOCTYPE html><html><head><title>A page</title><style>p {}</style>
<script>var x = "<p>no</p>";</script></head><body><nav><ul><li>Home</li></ul></nav><!-- hidden -->
<h1>Head &amp; shoulders</h1>
<p>One  <b>bold</b>
word, a <a href="x">link</a>.<br>A new line.</p><p>Two<p>Three&nbsp;signs
<ul><li>first<li>second</ul>
<pre>def f():
    return 1

x = 2</pre>
<template><p>never</p></template><noscript>no script</noscript>
<table><tr><th>a</th><td>b</td></tr><tr><td>c</td><td>d</td></tr></table></body></html>
"""
PAGE_TEXT = """A page

Head & shoulders

One bold word, a link.
A new line.

Two

Three signs

first
second

def f():
    return 1

x = 2

a b
c d"""
NOTES = """---
title: never
---
# Notes

A *wrapped*
paragraph with [a link](http://x.y), `code` and <b>bold</b>.

- one
- two

```python
if a < b:
    print("<p>")
```

| a | b |
|---|---|
| 1 | 2 |

<!-- hidden --><script>never()</script>
"""
NOTES_TEXT = """Notes

A wrapped paragraph with a link, code and bold.

one
two

if a < b:
    print("<p>")

a b
1 2"""


def test_pages_are_read_as_people_read_them(tmp_path: Path) -> None:
    for name in ("a.html", "b.HTM"):
        (document,) = opened(write(tmp_path / name, PAGE)).documents()
        assert document.text == PAGE_TEXT and document.place == f"{tmp_path}/{name}:1"
    assert list(opened(write(tmp_path / "a.md", NOTES)).texts()) == [NOTES_TEXT]
    assert list(opened(write(tmp_path / "b.md", NOTES.replace("\n", "\r\n"))).texts()) == [NOTES_TEXT]
    assert list(opened(write(tmp_path / "a.md.gz", gzip.compress(NOTES.encode()))).texts()) == [NOTES_TEXT]


def test_a_page_is_one_document_whatever_its_encoding(tmp_path: Path) -> None:
    file = write(tmp_path / "a.html", "<p>é</p><p>b</p>".encode("latin-1"))
    for boundary in ("file", "line", "blank_line"):
        assert list(opened(file, document_boundary=boundary, encoding="latin-1").texts()) == ["é\n\nb"]
    fingerprint = opened(file).fingerprint
    assert opened(file, text_column="x").fingerprint == fingerprint != opened(file, encoding="latin-1").fingerprint


@pytest.mark.parametrize(
    ("markup", "text"),
    [
        ("plain", "plain"),
        ("http://x.y", "http://x.y"),  # of which bs4 warns
        ('<?xml version="1.0"?><html><p>x</p></html>', "x"),
        ("<p>a<![CDATA[b]]>c", "abc"),
        ("<p>&#xD800;&#0;&#1;&bogus;&lt;b&gt;", "��\n&bogus<b>"),
        ("<p>a <div> b </div> c", "a\n\nb\n\nc"),
        ("<div>" * 3000 + "deep", "deep"),
        ("a<", "a<"),
        ("<pre>\n\n  a\tb<br>c\n</pre>", "  a\tb\nc"),
    ],
)
def test_odd_pages(tmp_path: Path, markup: str, text: str, recwarn: pytest.WarningsRecorder) -> None:
    assert list(opened(write(tmp_path / "a.html", markup)).texts()) == [text]
    assert not recwarn.list


def test_folders_include_them_for_text_alone(tmp_path: Path) -> None:
    for name in ("a.md", "b.html", "c.txt", "d.rst"):
        write(tmp_path / name, name[0])
    assert list(opened(tmp_path).texts()) == ["a", "b", "c"]
    assert list(opened(tmp_path / "*.md").texts()) == ["a"]
    assert [path.name for path in find_files(paths=[str(tmp_path)])] == ["c.txt"]  # as those of minimal pairs are
    with pytest.raises(InputError, match=r"'.rst'; text is read from .*\.html.*\.md"):
        opened(tmp_path / "d.rst")


def test_pages_that_cannot_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    good = write(tmp_path / "good.txt", "good")
    bad = write(tmp_path / "bad.html", "<p>a</p><![foo]>")
    with pytest.raises(InputError, match=r"bad.html:1: not valid HTML \(AssertionError: unknown status keyword 'foo'"):
        list(opened(bad).texts())
    assert list(opened(good, bad, on_bad_record="skip").texts()) == ["good"]
    for name, content in {"a.html": b"<nav>x</nav>", "a.md": b"<!-- x -->"}.items():
        with pytest.raises(InputError, match=f"{name} is empty: it holds no text"):
            list(opened(write(tmp_path / name, content)).texts())
    with pytest.raises(InputError, match=r"c.md:2: not valid UTF-8 \(0xe9\)(.|\n)*--encoding"):
        list(opened(write(tmp_path / "c.md", b"a\n\xe9")).texts())
    monkeypatch.setitem(sys.modules, "bs4", None)
    with pytest.raises(InputError, match=r'good.md: .*beautifulsoup4 .*: pip install -e "\.\[web\]"'):
        list(opened(write(tmp_path / "good.md", "x")).texts())
    assert list(opened(good).texts()) == ["good"]
