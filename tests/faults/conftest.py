"""Folders for short runs with faults in them, and a run without any."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from toy import Toy


@pytest.fixture
def toy(tmp_path: Path) -> Toy:
    return Toy(tmp_path / "toy")


@pytest.fixture
def new_toy(tmp_path: Path) -> Callable[[str], Toy]:
    """Makes further ones by name."""
    return lambda name: Toy(tmp_path / name)


@pytest.fixture(scope="session")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What a run of one process without any fault ends with."""
    toy = Toy(tmp_path_factory.mktemp("undisturbed"))
    done = toy.run()
    assert done.returncode == 0, done.stderr
    return toy.oracle()
