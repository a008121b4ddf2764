"""docs/fine_tuning.md: its recipes, tasks and options are there, and what predict writes is what the page says."""

import ast
import re
from pathlib import Path

import lacuna.corpus.arguments
import lacuna.objectives.arguments
import lacuna.training.arguments  # noqa: F401  (their options are known then)
from lacuna.common.options import Arguments
from lacuna.tasks.predict.inference import HEADS, PREDICTORS

REPOSITORY = Path(__file__).resolve().parents[2]
PAGE = (REPOSITORY / "docs" / "fine_tuning.md").read_text(encoding="utf-8")


def test_the_recipes_are_there() -> None:
    named = set(re.findall(r"`(finetune_\w+\.py)`", PAGE)) | set(re.findall(r"recipes/(\w+\.py)", PAGE))
    assert {path.name for path in (REPOSITORY / "recipes").glob("finetune_*.py")} <= named
    assert all((REPOSITORY / "recipes" / name).is_file() for name in named)


def test_the_options_are_there() -> None:
    assert set(re.findall(r"--(\w+)", PAGE)) <= Arguments.known_options() | {"help"}


def test_every_task_has_a_place() -> None:
    table = PAGE.split("## New rows")[1]
    assert set(re.findall(r"^\| `(\w+)` \|", table, flags=re.MULTILINE)) == set(PREDICTORS)
    assert set(HEADS.values()) <= set(PREDICTORS)


def test_the_precision_of_new_rows_is_said_on_the_page_and_in_the_help() -> None:
    help_text = ast.get_docstring(ast.parse((REPOSITORY / "recipes" / "predict.py").read_text(encoding="utf-8")))
    for text in (PAGE.split("## New rows")[1], help_text or ""):
        assert all(words in " ".join(text.split()) for words in ("computed in float32", "in the third digit"))


def test_what_only_one_recipe_measures_is_explained() -> None:
    (row,) = (line for line in PAGE.splitlines() if "`finetune_seq2seq.py` |" in line)
    assert "`ended`: the share of texts that the model ended itself" in row
    assert "The one before training, at step 0," in PAGE
