"""The tool behind `make mutants`: what it breaks, and whether it tells who noticed."""

import ast
import importlib
import json
import os
from pathlib import Path

import mutants
import pytest

SOURCE = '''"""Nothing here is 1 < 2."""
from typing import TYPE_CHECKING
if TYPE_CHECKING:
    import math
Number = int
PERIOD: "Number" = 4

def check(a: int, b: int = 0) -> int:
    """More than 0 and not 1."""
    if a < b:
        raise ValueError(f"{a + b} is wrong", a - 1)
    print("a" * 3, max(a, b))
    total = min(a,
                b)
    return total * PERIOD
'''


def test_what_may_be_broken_and_what_only_speaks() -> None:
    found = list(mutants.mutants_of("file.py", SOURCE))
    assert sorted((each.first, each.last, each.function, str(each)) for each in found) == [
        (6, 6, False, "4 -> 5"),
        (8, 8, False, "0 -> 1"),
        (10, 10, True, "a < b -> (a <= b)"),
        (10, 10, True, "a < b -> (not a < b)"),
        (11, 11, True, 'raise ValueError(f"{a + b} is wrong", a - 1) -> pass'),
        (13, 14, True, "min(a, b) -> (max(a, b))"),
        (15, 15, True, "total * PERIOD -> (total / PERIOD)"),
    ]


def test_every_mutant_is_python_and_another_program(tmp_path: Path) -> None:
    path = "training/loop.py"
    source = (mutants.REPOSITORY / path).read_text(encoding="utf-8")
    (tmp_path / "training").mkdir()
    found = list(mutants.mutants_of(path, source))
    assert len(found) > 200
    for mutant in found[::40]:
        (tmp_path / path).write_text(source, encoding="utf-8")
        mutant.write(tmp_path)
        assert ast.dump(ast.parse((tmp_path / path).read_bytes())) != ast.dump(ast.parse(source)), mutant


def test_a_seed_draws_lines_and_one_change_of_each() -> None:
    files = mutants.files_of(["training/optimizers", "training/step.py"], "*.py")
    assert "__init__.py" not in {path.name for path in files} and len(files) > 3
    first, again, other = (mutants.sample(files, count=20, seed=seed) for seed in (1, 1, 2))
    assert first == again != other
    assert len({mutant.place for mutant in first}) == 20


def test_every_explanation_is_of_a_change_that_may_be_drawn() -> None:
    changes: set[str] = set()
    for path in mutants.files_of(mutants.PATHS, "*.py"):
        name, source = str(path.relative_to(mutants.REPOSITORY)), path.read_text(encoding="utf-8")
        lines = source.splitlines()
        changes |= {f"{name}: {lines[each.first - 1].strip()}: {each}" for each in mutants.mutants_of(name, source)}
    assert json.loads(mutants.EXPLAINED.read_text(encoding="utf-8")).keys() - changes == set()


@pytest.mark.slow
def test_what_tests_look_at_is_noticed_and_the_rest_survives(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A repository of one function, whose second line no test looks at, run from the copy of a copy."""
    home = tmp_path / "home"
    half = "def half(x):\n    y = x / 2\n    z = [0]\n    z[0] = y\n    return y\n\n\n"
    code = half + "def unused():\n    return None or 1\n"
    files = {
        "pyproject.toml": '[tool.pytest.ini_options]\npythonpath = ["."]\nmarkers = ["slow: x"]\n',
        "training/__init__.py": "",
        "training/toy.py": code,
        "tests/processes.py": "def _run(): ...\n",
        "tests/test_halves.py": (
            "import pytest\n\n\n@pytest.fixture(scope='module')\ndef of_four():\n"
            "    from lacuna.training.toy import half\n    return half(4)\n\n\n"
            "def test_first(of_four):\n    pass\n\n\ndef test_second(of_four):\n    assert of_four == 2\n"
        ),
    }
    for name, text in files.items():
        (home / name).parent.mkdir(parents=True, exist_ok=True)
        (home / name).write_text(text)
    importlib.import_module("hypothesis")  # or each child would: its plugin ends with that
    monkeypatch.setattr(mutants, "REPOSITORY", home)
    crew = mutants.Crew(tmp_path / "work", sorted(os.sched_getaffinity(0))[:1])
    known = mutants.learn(crew, ["tests/test_halves.py"], tmp_path / "work")
    broken = [each for each in mutants.mutants_of("training/toy.py", code) if each.old in ("x / 2", "z[0] = y", "1")]
    fates = mutants.try_mutants(crew, broken, known, deadline=float("inf"))
    outcomes = [(fate.outcome, fate.ran, str(fate.mutant)) for fate in fates]
    second = "tests/test_halves.py::test_second"
    assert {fate.noticed_by for fate in fates if fate.outcome == "noticed"} == {second}
    assert outcomes == [
        ("noticed", 1, "x / 2 -> (x * 2)"),
        ("survived", 2, "None"),  # the control
        ("survived", 2, "z[0] = y -> pass"),
        ("survived", 2, "1 -> 2"),  # in a function that no test runs
    ]
    assert (home / "training/toy.py").read_text() == code == (crew.path(crew.cores[0]) / "training/toy.py").read_text()
