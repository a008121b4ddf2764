"""The page on optimizers names all that there is."""

from pathlib import Path

from lacuna.training.optimizers.averages import AVERAGES
from lacuna.training.optimizers.optimizers import OPTIMIZERS
from lacuna.training.optimizers.schedules import SCHEDULES

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "optimizers.md").read_text(encoding="utf-8")


def test_every_optimizer_schedule_and_average_has_a_place() -> None:
    assert all(f"| `{name}` |" in PAGE for name in OPTIMIZERS)
    assert all(f"`{name}`" in PAGE for name in (*SCHEDULES, *AVERAGES))
