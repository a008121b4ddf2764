"""The page on objectives names all that there is."""

from dataclasses import fields
from pathlib import Path
from typing import get_args, get_type_hints

from lacuna.objectives import OBJECTIVES, ObjectiveArguments

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "objectives.md").read_text(encoding="utf-8")


def test_every_objective_has_a_section_and_every_option_a_place() -> None:
    assert all(f"\n## {name}\n" in PAGE for name in OBJECTIVES)
    kinds = get_type_hints(ObjectiveArguments)
    for option in fields(ObjectiveArguments):
        assert f"--{option.name}" in PAGE, option.name
        assert all(f"`{choice}`" in PAGE for choice in option.metadata.get("choices", ()))
        assert all(f"`{choice}`" in PAGE for choice in get_args(kinds[option.name]) if isinstance(choice, str))
