"""Folders for short runs with faults in them, and a run without any."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import toy as toys
from toy import Toy


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> None:
    """Note in the report of a test how many faults it has injected."""
    if call.when == "call":
        item.user_properties.append(("faults", toys.injected))
        toys.injected = 0


@pytest.fixture
def toy(tmp_path: Path) -> Toy:
    return Toy(tmp_path / "toy")


@pytest.fixture
def new_toy(tmp_path: Path) -> Callable[[str], Toy]:
    """Makes further ones by name."""
    return lambda name: Toy(tmp_path / name)


@pytest.fixture(scope="session")
def ends_with(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., dict[str, Any]]:
    """What a run without any fault ends with, which is made once for the same options and environment."""
    known: dict[tuple[str, str], dict[str, Any]] = {}

    def find(environment: str = "", **options: Any) -> dict[str, Any]:
        if (key := (environment, repr(sorted(options.items())))) not in known:
            toy = Toy(tmp_path_factory.mktemp("undisturbed"))
            done = toy.run(**options)
            assert done.returncode == 0, done.stderr
            known[key] = toy.oracle()
        return known[key]

    return find


@pytest.fixture
def undisturbed(ends_with: Callable[..., dict[str, Any]]) -> dict[str, Any]:
    """That of one process."""
    return ends_with()
