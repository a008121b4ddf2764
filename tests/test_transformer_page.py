"""docs/transformer.md runs: its program holds and prints what the page says, and what it quotes is in the code.

To write the printed text anew: `python -m tests.test_transformer_page`.
"""

import ast
import contextlib
import io
import re
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import pytest
import torch

REPOSITORY = Path(__file__).resolve().parents[1]
PAGE = REPOSITORY / "docs" / "transformer.md"
TEXT = PAGE.read_text(encoding="utf-8")
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", flags=re.MULTILINE | re.DOTALL)
POINTER = re.compile(r"\[`([\w.]+)`\]\(\.\./(\w+/[\w/]+\.py)\)")


class Block(NamedTuple):
    """A fenced block: its language, what is in it, and the line of the page on which that begins."""

    language: str
    body: str
    line: int


def blocks(text: str) -> list[Block]:
    return [Block(found[1], found[2], text[: found.start()].count("\n") + 2) for found in BLOCK.finditer(text)]


def run(text: str) -> list[tuple[Block, str]]:
    """Execute the `python` blocks as one program; each with what it printed. Errors name the line of the page."""
    names: dict[str, Any] = {"__name__": "transformer_page"}
    printed = []
    with torch.random.fork_rng(devices=[]), TemporaryDirectory() as folder, contextlib.chdir(folder):
        for block in blocks(text):
            if block.language == "python":
                with contextlib.redirect_stdout(io.StringIO()) as output:
                    exec(compile("\n" * (block.line - 1) + block.body, str(PAGE), "exec"), names)
                printed.append((block, output.getvalue()))
    return printed


def shown_after(text: str, block: Block) -> str:
    """The `text` block that follows a block directly, or nothing."""
    rest = text.split("\n", block.line - 1)[-1].removeprefix(f"{block.body}```\n\n")
    found = BLOCK.match(rest)
    return found[2] if found and found[1] == "text" else ""


@cache
def functions(path: str) -> dict[str, list[str]]:
    """The lines of all functions and classes of a file by their names, as `LacunaLayer.forward`."""
    source = (REPOSITORY / path).read_text(encoding="utf-8")
    lines = [line.strip() for line in source.splitlines()]
    found: dict[str, list[str]] = {}
    pending: list[tuple[str, ast.AST]] = [("", ast.parse(source))]
    while pending:
        prefix, parent = pending.pop()
        for node in ast.iter_child_nodes(parent):
            if isinstance(node, ast.FunctionDef | ast.ClassDef):
                found[f"{prefix}{node.name}"] = lines[node.lineno - 1 : node.end_lineno]
                pending.append((f"{prefix}{node.name}.", node))
    return found


def test_the_program_of_the_page_holds_and_prints_what_stands_there() -> None:
    printed = run(TEXT)
    assert len(printed) >= 30
    for block, output in printed:
        assert shown_after(TEXT, block) == output, f"{PAGE}:{block.line}"
    said = sum(block.language == "text" for block in blocks(TEXT))
    assert said == sum(bool(output) for _, output in printed), "a text block follows the program that prints it"


@pytest.mark.parametrize("block", [block for block in blocks(TEXT) if block.language == "py"], ids=lambda b: b.line)
def test_what_the_page_quotes_is_in_the_function(block: Block) -> None:
    place, *lines = block.body.splitlines()
    path, name = place.removeprefix("# ").split(": ")
    source = functions(path)[name]
    assert lines and not [line for line in lines if line.strip() not in source], f"{name} has changed: quote it anew"
    places = [source.index(line.strip()) for line in lines]
    assert places == sorted(places)


def test_functions_that_the_page_points_to_are_there() -> None:
    pointers = POINTER.findall(TEXT)
    assert len(pointers) == len(re.findall(r"\(\.\./.+?\.py\)", TEXT)) >= 4, "a pointer is [`name`](../room/file.py)"
    for name, path in pointers:
        assert name in functions(path) or path.endswith(f"/{name}"), f"{name} is not in {path}"


def test_every_section_with_formulas_has_a_program_that_checks_them() -> None:
    for section in re.split(r"^## ", TEXT, flags=re.MULTILINE)[1:]:
        title = section.splitlines()[0]
        has_formula, parts = "\n$$" in section, blocks(section)
        assert not has_formula or any("assert" in block.body for block in parts if block.language == "python"), title


def test_formulas_are_such_that_github_shows() -> None:
    """Markdown reads a formula first: backslashes before punctuation are gone before TeX sees them."""
    prose = BLOCK.sub("", TEXT)
    formulas = re.findall(r"^\$\$(.+)\$\$$", prose, flags=re.MULTILINE)
    assert len(formulas) >= 20 and prose.count("$$") == 2 * len(formulas), "a formula in a line of its own"
    inline = re.sub(r"\$\$.+?\$\$", "", re.sub(r"`[^`]*`", "", prose))
    assert inline.count("$") % 2 == 0
    for formula in [*formulas, *re.findall(r"\$([^$]+)\$", inline)]:
        assert not re.search(r"\\[^a-zA-Z ]|\\operatorname|[<>*\n]", formula), formula
        assert not re.search(r"(?<!\w)_", formula), f"{formula}: a place where Markdown could begin to emphasise"
        assert formula.count("{") == formula.count("}"), formula


def test_the_page_is_read_in_half_an_hour() -> None:
    words = len(re.sub(r"\$\$.+?\$\$|\$[^$]+\$", "formula", BLOCK.sub("", TEXT)).split())
    lines = sum(bool(line.strip()) for block in blocks(TEXT) for line in block.body.splitlines())
    assert words / 200 + lines / 30 <= 33, "minutes at 200 words or 30 lines of code"
    programs = [block.body.splitlines() for block in blocks(TEXT) if block.language == "python"]
    assert max(map(len, programs)) <= 25 and max(len(line) for program in programs for line in program) <= 106


if __name__ == "__main__":
    text = TEXT
    for block, output in run(TEXT):
        program, said = f"```python\n{block.body}```\n", shown_after(TEXT, block)
        before, after = (program + (f"\n```text\n{words}```\n" if words else "") for words in (said, output))
        text = text.replace(before, after)
    PAGE.write_text(text, encoding="utf-8")
