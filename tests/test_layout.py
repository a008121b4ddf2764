"""Rules of the house that matter, held by reading the code with `ast`."""

import ast
import dataclasses
import importlib
import re
import sys
from collections import Counter
from collections.abc import Iterator
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[1]
ROOMS = ["modeling", "tokenization", "corpus", "objectives", "training", "tasks", "evaluation"]
GROUND = ["common"]  # every room but `modeling` stands on it
SHOPS = ["recipes", "benchmarks"]  # these may import any room, and nothing imports them
ROOM_FILES = sorted(path for room in GROUND + ROOMS for path in (REPOSITORY / room).rglob("*.py"))
SHOP_FILES = sorted(path for shop in SHOPS for path in (REPOSITORY / shop).rglob("*.py"))
RECIPES = sorted((REPOSITORY / "recipes").glob("*.py"))
TRAVELLING = sorted((REPOSITORY / "modeling").glob("*_lacuna.py"))


def named(paths: list[Path]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("path", paths, ids=lambda path: str(path.relative_to(REPOSITORY)))


def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def imported(path: Path) -> Iterator[str]:
    """Top names of the modules that a file imports, anywhere in it, and for ours the room's, as `lacuna.corpus`."""
    folder = list(path.relative_to(REPOSITORY).parent.parts)
    for node in ast.walk(tree_of(path)):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = (node.module or "").split(".") if node.module else []
            if node.level:
                base = ["lacuna", *folder[: len(folder) - node.level + 1], *base]
            names = [".".join([*base, alias.name]) for alias in node.names]
        for name in names:
            top, *rest = name.split(".")
            yield f"lacuna.{rest[0]}" if top == "lacuna" and rest else top


@named(ROOM_FILES)
def test_rooms_import_none_of_each_other(path: Path) -> None:
    room = path.relative_to(REPOSITORY).parts[0]
    allowed = {f"lacuna.{room}"} | ({"lacuna.common"} if room != "modeling" else set())
    ours = {name for name in imported(path) if name.split(".")[0] in {"lacuna", *GROUND, *ROOMS, *SHOPS, "tests"}}
    assert ours <= allowed


@named(SHOP_FILES)
def test_nothing_imports_recipes(path: Path) -> None:
    siblings = (
        {file.stem for file in SHOP_FILES if file.parent == path.parent} if path.parent.name == "recipes" else set()
    )
    bare = {*GROUND, *ROOMS, *SHOPS, "tests", "lacuna.recipes", "lacuna.benchmarks"}
    assert not (bare | siblings) & set(imported(path))


def test_a_recipe_that_only_parses_options_does_not_wait_for_torch() -> None:
    """`training` resolves its names on first use; its options and its command line stay light."""
    for name in ("__init__", "arguments", "command_line", "environment", "errors"):
        top = [node for node in tree_of(REPOSITORY / "training" / f"{name}.py").body]
        modules = {alias.name for node in top if isinstance(node, ast.Import) for alias in node.names}
        assert "torch" not in modules, name


@named(TRAVELLING)
def test_modelling_files_can_travel(path: Path) -> None:
    # huggingface_hub is what transformers itself stands on; its `strict` makes configurations typed.
    allowed = {"torch", "transformers", "huggingface_hub", "lacuna.modeling", "__future__"} | set(
        sys.stdlib_module_names
    )
    assert set(imported(path)) <= allowed
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.ImportFrom) and node.level:
            assert node.level == 1 and node.module, "only `from .file import Name`"
            assert (path.parent / f"{node.module}.py") in TRAVELLING
    # transformers finds the files to copy with this expression, in docstrings too.
    relative = re.findall(r"^\s*(?:import\s+\.(\S+)|from\s+\.(\S+)\s+import)", path.read_text(), flags=re.MULTILINE)
    assert {f"{''.join(names)}.py" for names in relative} <= {file.name for file in TRAVELLING}


def test_modelling_is_flat() -> None:
    assert not [path for path in (REPOSITORY / "modeling").rglob("*.py") if path.parent.name != "modeling"]


@named(RECIPES)
def test_recipes_hide_no_module(path: Path) -> None:
    """`recipes/` is first on the path when a recipe runs, so `recipes/datasets.py` would replace the library."""
    assert path.stem not in sys.stdlib_module_names
    assert path.stem not in packages_distributions()
    assert path.stem not in ROOMS


@named(RECIPES)
def test_recipes_are_short_and_open_with_their_commands(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 150
    assert not [node for node in ast.walk(tree_of(path)) if isinstance(node, ast.ClassDef)]
    assert f"recipes/{path.name}" in (ast.get_docstring(tree_of(path)) or "")


FORBIDDEN_CALLS = {
    "eval", "exec", "__import__", "torch.load", "torch.save", "yaml.load", "pickle.load", "pickle.loads",
}  # fmt: skip
FORBIDDEN_MODULES = {"pickle", "cPickle", "dill", "cloudpickle", "joblib", "marshal", "shelve"}


@named(ROOM_FILES + SHOP_FILES)
def test_nothing_executes_what_it_reads(path: Path) -> None:
    assert not FORBIDDEN_MODULES & set(imported(path))
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.Call):
            assert ast.unparse(node.func) not in FORBIDDEN_CALLS, f"line {node.lineno}"
            for keyword in node.keywords:
                is_true = isinstance(keyword.value, ast.Constant) and keyword.value.value is True
                assert not (keyword.arg == "allow_pickle" and is_true), f"line {node.lineno}"
        if isinstance(node, ast.ImportFrom) and node.module in ("torch", "yaml"):
            assert not {"load", "save", "unsafe_load"} & {alias.name for alias in node.names}


@named(ROOM_FILES)
def test_no_room_trusts_remote_code_unasked(path: Path) -> None:
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.keyword) and node.arg == "trust_remote_code":
            assert not (isinstance(node.value, ast.Constant) and node.value.value is True)


def public_functions(tree: ast.Module) -> Iterator[ast.FunctionDef]:
    """Functions and methods whose names, and those of their classes, do not begin with an underscore."""
    pending: list[ast.AST] = list(tree.body)
    while pending:
        node = pending.pop()
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
            pending += node.body
        if isinstance(node, ast.FunctionDef) and (not node.name.startswith("_") or node.name == "__init__"):
            yield node


@named(ROOM_FILES)
def test_public_functions_are_annotated(path: Path) -> None:
    for function in public_functions(tree_of(path)):
        where = f"{function.name}, line {function.lineno}"
        assert function.returns is not None, where
        every = [*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs]
        every += [extra for extra in (function.args.vararg, function.args.kwarg) if extra]
        assert all(argument.annotation for argument in every if argument.arg not in ("self", "cls")), where


@named(sorted((REPOSITORY / "modeling").glob("*.py")))
def test_functions_of_the_model_fit_on_a_screen(path: Path) -> None:
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.FunctionDef):
            assert node.end_lineno - node.lineno + 1 <= 60, f"{node.name}, line {node.lineno}"


def test_names_of_test_files_are_unique() -> None:
    """pytest imports them by their base names, and one process that meets a name twice stops."""
    names = Counter(path.name for path in (REPOSITORY / "tests").rglob("test_*.py"))
    assert [name for name, count in names.items() if count > 1] == []


@named([path for path in ROOM_FILES if path.parent.name != "modeling"])
def test_files_have_a_size_that_can_be_read(path: Path) -> None:
    assert len(path.read_text(encoding="utf-8").splitlines()) <= 480


def option_dataclasses() -> Iterator[type]:
    for path in sorted(REPOSITORY.glob("*/arguments.py")):
        module = importlib.import_module(f"lacuna.{path.parent.name}.arguments")
        yield from (
            kind for kind in vars(module).values() if isinstance(kind, type) and dataclasses.is_dataclass(kind)
        )


def test_every_option_has_a_help_text() -> None:
    for kind in option_dataclasses():
        for field in dataclasses.fields(kind):
            assert str(field.metadata.get("help", "")).strip().endswith("."), f"{kind.__name__}.{field.name}"


def options_of(path: Path) -> set[str]:
    """Names of the options that a recipe takes: the fields of the dataclasses that it hands to `parse_arguments`."""
    calls = [
        node
        for node in ast.walk(tree_of(path))
        if isinstance(node, ast.Call) and ast.unparse(node.func).endswith("parse_arguments")
    ]
    kinds = [ast.unparse(kind).split(".")[-1] for call in calls for kind in call.args[0].elts]
    homes = [importlib.import_module(f"lacuna.{room}") for room in ROOMS] + [
        importlib.import_module("lacuna.training.planning")
    ]
    found = [next(getattr(home, kind) for home in homes if hasattr(home, kind)) for kind in kinds]
    return {field.name for kind in found for field in dataclasses.fields(kind)}


def test_no_recipe_has_more_options_than_a_person_can_look_through() -> None:
    """Counted for each recipe: nobody sees those of all rooms together, and a room may grow."""
    counts = {path.name: len(options_of(path)) for path in RECIPES}
    assert sum(count > 0 for count in counts.values()) >= 6
    assert {name: count for name, count in counts.items() if count > 85} == {}
