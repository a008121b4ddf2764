"""What all tests of the room share."""

from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of its own, for the first process of a run."""
    folder = tmp_path_factory.mktemp("cache")
    monkeypatch.setenv("LACUNA_CACHE", str(folder))
    monkeypatch.delenv("RANK", raising=False)
    return folder
