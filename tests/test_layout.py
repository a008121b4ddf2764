"""Rules of the house that matter, held by reading the code with `ast`; a test for each rule, each file parsed once."""

import ast
import dataclasses
import importlib
import re
import subprocess
import sys
import tomllib
from collections import Counter
from collections.abc import Iterator
from functools import cache
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

from lacuna.common.options import Arguments
from lacuna.tasks.texts import TASKS

REPOSITORY = Path(__file__).resolve().parents[1]
GROUND = "common"  # every room but `modeling` stands on it
ROOMS = ["modeling", "tokenization", "corpus", "objectives", "training", "tasks", "evaluation", "exporting"]
SHOPS = ["recipes", "benchmarks"]  # these may import any room, and nothing imports them
ROOM_FILES = sorted(path for room in [GROUND, *ROOMS] for path in (REPOSITORY / room).rglob("*.py"))
SHOP_FILES = sorted(path for shop in SHOPS for path in (REPOSITORY / shop).rglob("*.py"))
RECIPES = sorted((REPOSITORY / "recipes").glob("*.py"))
TRAVELLING = sorted((REPOSITORY / "modeling").glob("*_lacuna.py"))
MOST_LINES, MOST_FILES, MOST_LINES_OF_BENCHMARKS = 30_000, 150, 2_500
LONGEST_FILE, LONGEST_FUNCTION, MOST_OPTIONS = 450, 60, 45


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def short(path: Path) -> str:
    return str(path.relative_to(REPOSITORY))


def imported(path: Path) -> Iterator[str]:
    """Top names of the modules that a file imports, anywhere in it, and for ours the room's, as `lacuna.corpus`."""
    folder = list(path.relative_to(REPOSITORY).parent.parts)
    for node in ast.walk(tree_of(path)):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = node.module.split(".") if node.module else []
            if node.level:
                base = ["lacuna", *folder[: len(folder) - node.level + 1], *base]
            names = [".".join([*base, alias.name]) for alias in node.names]
        for name in names:
            top, *rest = name.split(".")
            yield f"lacuna.{rest[0]}" if top == "lacuna" and rest else top


def test_rooms_import_the_ground_floor_and_none_of_each_other() -> None:
    wrong = {}
    for path in ROOM_FILES:
        room = short(path).split("/")[0]
        allowed = {f"lacuna.{room}"} | ({f"lacuna.{GROUND}"} if room != "modeling" else set())
        ours = {name for name in imported(path) if name.split(".")[0] in {"lacuna", GROUND, *ROOMS, *SHOPS, "tests"}}
        wrong[short(path)] = ours - allowed
    assert {path: names for path, names in wrong.items() if names} == {}


def test_nothing_imports_recipes_and_no_recipe_another() -> None:
    bare = {GROUND, *ROOMS, *SHOPS, "tests", "lacuna.recipes", "lacuna.benchmarks"}
    recipes = {path.stem for path in RECIPES}
    wrong = {
        short(path): (bare | (recipes if path in RECIPES else set())) & set(imported(path)) for path in SHOP_FILES
    }
    assert {path: names for path, names in wrong.items() if names} == {}


def test_modelling_files_can_travel() -> None:
    # huggingface_hub is what transformers itself stands on; its `strict` makes configurations typed.
    allowed = {"torch", "transformers", "huggingface_hub", "lacuna.modeling", "__future__", *sys.stdlib_module_names}
    for path in TRAVELLING:
        assert set(imported(path)) <= allowed, path
        for node in ast.walk(tree_of(path)):
            if isinstance(node, ast.ImportFrom) and node.level:
                assert node.level == 1 and node.module, "only `from .file import Name`"
                assert (path.parent / f"{node.module}.py") in TRAVELLING, path
        # transformers finds the files to copy with this expression, in docstrings too.
        found = re.findall(r"^\s*(?:import\s+\.(\S+)|from\s+\.(\S+)\s+import)", path.read_text(), flags=re.MULTILINE)
        assert {f"{''.join(names)}.py" for names in found} <= {file.name for file in TRAVELLING}, path


def test_modelling_is_flat() -> None:
    assert not [path for path in (REPOSITORY / "modeling").rglob("*.py") if path.parent.name != "modeling"]


def test_every_folder_is_installed() -> None:
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))
    folders = {".".join(["lacuna", *path.relative_to(REPOSITORY).parent.parts]) for path in ROOM_FILES}
    assert set(project["tool"]["setuptools"]["packages"]) == {*folders, "lacuna", "lacuna.recipes"}


def test_recipes_hide_no_module() -> None:
    """`recipes/` is first on the path when a recipe runs, so `recipes/datasets.py` would replace the library."""
    taken = {*sys.stdlib_module_names, *packages_distributions(), *ROOMS, GROUND}
    assert [path.stem for path in RECIPES if path.stem in taken] == []


def test_recipes_are_short_and_open_with_their_commands() -> None:
    for path in RECIPES:
        most = 160 if path.stem == "try_models" else 150  # it stands alone, and can do without us
        assert len(path.read_text(encoding="utf-8").splitlines()) <= most, path
        assert not [node for node in ast.walk(tree_of(path)) if isinstance(node, ast.ClassDef)], path
        assert f"recipes/{path.name}" in (ast.get_docstring(tree_of(path)) or ""), path


FORBIDDEN_CALLS = {
    "eval", "exec", "__import__", "torch.load", "torch.save", "yaml.load", "pickle.load", "pickle.loads",
}  # fmt: skip
FORBIDDEN_MODULES = {"pickle", "cPickle", "dill", "cloudpickle", "joblib", "marshal", "shelve"}


def test_nothing_executes_what_it_reads() -> None:
    for path in ROOM_FILES + SHOP_FILES:
        assert not FORBIDDEN_MODULES & set(imported(path)), path
        for node in ast.walk(tree_of(path)):
            if isinstance(node, ast.Call):
                where = f"{path}:{node.lineno}"
                assert ast.unparse(node.func) not in FORBIDDEN_CALLS, where
                for keyword in node.keywords:
                    is_true = isinstance(keyword.value, ast.Constant) and keyword.value.value is True
                    assert not (keyword.arg == "allow_pickle" and is_true), where
                    assert not (keyword.arg == "trust_remote_code" and is_true and path in ROOM_FILES), where
            if isinstance(node, ast.ImportFrom) and node.module in ("torch", "yaml"):
                assert not {"load", "save", "unsafe_load"} & {alias.name for alias in node.names}, path


def public_functions(tree: ast.Module) -> Iterator[ast.FunctionDef]:
    """Functions and methods whose names, and those of their classes, do not begin with an underscore."""
    pending: list[ast.AST] = list(tree.body)
    while pending:
        node = pending.pop()
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
            pending += node.body
        if isinstance(node, ast.FunctionDef) and (not node.name.startswith("_") or node.name == "__init__"):
            yield node


def test_public_functions_are_annotated() -> None:
    for path in ROOM_FILES:
        for function in public_functions(tree_of(path)):
            where = f"{path}:{function.lineno} {function.name}"
            assert function.returns is not None, where
            every = [*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs]
            every += [extra for extra in (function.args.vararg, function.args.kwarg) if extra]
            assert all(argument.annotation for argument in every if argument.arg not in ("self", "cls")), where


def test_functions_and_files_have_a_size_that_can_be_read() -> None:
    functions = {
        f"{short(path)}:{node.lineno} {node.name}": (node.end_lineno or 0) - node.lineno + 1
        for path in ROOM_FILES + SHOP_FILES
        for node in ast.walk(tree_of(path))
        if isinstance(node, ast.FunctionDef)
    }
    assert {name: lines for name, lines in functions.items() if lines > LONGEST_FUNCTION} == {}
    files = {short(path): len(path.read_text(encoding="utf-8").splitlines()) for path in ROOM_FILES + SHOP_FILES}
    the_model = "modeling/modeling_lacuna.py"
    assert {name: lines for name, lines in files.items() if lines > LONGEST_FILE and name != the_model} == {}


def test_nothing_but_rooms_is_tracked() -> None:
    if not (REPOSITORY / ".git").exists():
        pytest.skip("not a clone")
    tracked = subprocess.run(["git", "ls-files"], cwd=REPOSITORY, capture_output=True, text=True, check=True).stdout
    folders = {path.split("/")[0] for path in tracked.splitlines() if "/" in path}
    assert folders == {".ci", GROUND, *ROOMS, *SHOPS, "docs", "tests"}  # no cache or run that somebody left here


def test_the_house_stays_small() -> None:
    files = [*ROOM_FILES, *SHOP_FILES, REPOSITORY / "__init__.py"]
    lines = {path: len(path.read_text(encoding="utf-8").splitlines()) for path in files}
    assert len(files) <= MOST_FILES
    assert sum(lines.values()) <= MOST_LINES
    assert sum(count for path, count in lines.items() if path.parent.name == "benchmarks") <= MOST_LINES_OF_BENCHMARKS


def test_names_of_test_files_are_unique() -> None:
    """pytest imports them by their base names, and one process that meets a name twice stops."""
    names = Counter(path.name for path in (REPOSITORY / "tests").rglob("test_*.py"))
    assert [name for name, count in names.items() if count > 1] == []


def option_dataclasses() -> set[type]:
    for path in ROOM_FILES:
        if "Arguments):" in path.read_text(encoding="utf-8"):
            importlib.import_module(".".join(["lacuna", *path.relative_to(REPOSITORY).with_suffix("").parts]))
    pending, found = [Arguments], set()
    while pending:
        kind = pending.pop()
        pending += kind.__subclasses__()
        found |= {kind} if dataclasses.is_dataclass(kind) and kind.__module__.startswith("lacuna.") else set()
    return found


def test_every_option_has_a_help_text() -> None:
    kinds = option_dataclasses()
    assert len(kinds) >= 10
    for kind in kinds:
        for field in dataclasses.fields(kind):
            assert str(field.metadata.get("help", "")).strip().endswith("."), f"{kind.__name__}.{field.name}"
            assert "group" in field.metadata, f"{kind.__name__}.{field.name} is made by `option`"


def shown_options(path: Path) -> set[str]:
    """Names of the options that a recipe's `--help` shows: fields of the dataclasses that it names."""
    nodes = [node for node in ast.walk(tree_of(path)) if isinstance(node, (ast.Name, ast.Attribute))]
    names = {ast.unparse(node).split(".")[-1] for node in nodes}
    if "run_task" in names:  # with the options of the task that it is given
        names |= {"ModelArguments", "FineTuningArguments"}
        names |= {task.__annotations__["options"].__name__ for task in TASKS.values() if task.__name__ in names}
    kinds = [kind for kind in option_dataclasses() if kind.__name__ in names]
    return {field.name for kind in kinds for field in dataclasses.fields(kind) if not field.metadata.get("advanced")}


def test_no_recipe_shows_more_options_than_a_person_can_look_through() -> None:
    counts = {path.name: len(shown_options(path)) for path in RECIPES}
    assert sum(count > 0 for count in counts.values()) >= 4
    assert {name: count for name, count in counts.items() if count > MOST_OPTIONS} == {}
