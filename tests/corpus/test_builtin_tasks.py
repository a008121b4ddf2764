"""The two labelled tasks made of the built-in corpus: their sizes, their labels, and how far guessing goes."""

import ast
import importlib
import inspect
import re
from collections import Counter
from itertools import pairwise

from lacuna.corpus import builtin_classification, builtin_questions
from lacuna.corpus.builtin import FAMILIES, MAX_CONTEXT_CHARACTERS


def test_classes_are_of_comparable_size() -> None:
    rows = builtin_classification()
    counts = Counter(row["label"] for row in rows)
    assert set(counts) == set(FAMILIES) and len(counts) == 8
    assert len(rows) > 2500
    assert max(counts.values()) / len(rows) < 0.16
    assert min(counts.values()) > 100  # where tkinter is not installed, 164


def test_each_docstring_comes_once_and_names_no_label() -> None:
    rows = builtin_classification()
    assert len({row["id"] for row in rows}) == len(rows)
    assert len({" ".join(row["text"].lower().split()) for row in rows}) == len(rows)
    assert not any(label in row["text"].lower() for row in rows for label in FAMILIES)
    assert all(set(row) == {"id", "text", "label"} for row in rows)


def test_no_module_belongs_to_two_families() -> None:
    modules = [module for family in FAMILIES.values() for module in family.split()]
    assert len(modules) == len(set(modules))


def test_rows_are_shuffled_and_stable() -> None:
    rows = builtin_classification()
    assert rows == builtin_classification()
    head = Counter(row["label"] for row in rows[: len(rows) // 10])
    assert len(head) == 8
    rows[0]["text"] = "changed by a caller"
    assert builtin_classification()[0]["text"] != "changed by a caller"


def test_answers_stand_where_they_say() -> None:
    rows = builtin_questions()
    assert len(rows) > 1200
    assert len({row["id"] for row in rows}) == len(rows)
    for row in rows:
        (answer,), (start,) = row["answers"]["text"], row["answers"]["answer_start"]
        assert row["context"][start : start + len(answer)] == answer
        assert len(row["context"]) <= MAX_CONTEXT_CHARACTERS
        parameter, _ = re.fullmatch(r"What is the default of `(\w+)` in `([\w.]+)`\?", row["question"]).groups()
        # The parameter has this default, and no other function of the context has a default for it.
        assert row["context"].count(f"`{parameter}` (default `") == 1
        assert row["context"][:start].endswith(f"`{parameter}` (default `")


def test_answers_are_the_defaults_that_inspect_gives() -> None:
    checked = 0
    for row in builtin_questions():
        module, rest = row["id"].split(":")[0].split(".", 1)
        if module not in ("textwrap", "shutil", "json", "random", "argparse", "difflib"):
            continue
        path, parameter = rest.split("#")
        value: object = importlib.import_module(module)
        for part in path.split("."):
            value = getattr(value, part, None)
        (answer,) = row["answers"]["text"]
        if (
            inspect.isroutine(value)
            and not inspect.isbuiltin(value)
            and re.fullmatch(r"None|True|False|-?\d+|'\w*'", answer)
        ):
            assert inspect.signature(value).parameters[parameter].default == ast.literal_eval(answer)
            checked += 1
    assert checked > 20


def test_guessing_is_seldom_right() -> None:
    rows = builtin_questions()
    answers = Counter(row["answers"]["text"][0] for row in rows)
    assert max(answers.values()) / len(rows) < 0.15
    first = sum(re.findall(r"\(default `([^`]*)`\)", row["context"])[0] == row["answers"]["text"][0] for row in rows)
    assert first / len(rows) < 0.7


def test_rows_of_a_context_stand_together() -> None:
    contexts = [row["context"] for row in builtin_questions()]
    runs = 1 + sum(a != b for a, b in pairwise(contexts))
    assert runs == len(set(contexts))
