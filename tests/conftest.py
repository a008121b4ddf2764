"""Fixtures shared by all rooms."""

import os
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parent.parent

# Tests never reach for the network, whatever the machine allows.
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("HF_DATASETS_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")
if "PYTEST_XDIST_WORKER" in os.environ:  # a process for each core already; torch's threads would fight over them
    os.environ["OMP_NUM_THREADS"] = "1"


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder of real public data beside the repository; tests that need it skip where it is absent."""
    folder = Path(os.environ.get("LACUNA_DATA", REPOSITORY.parent / "shared" / "data"))
    if not folder.is_dir():
        pytest.skip(f"no real data at {folder} (set LACUNA_DATA to point elsewhere)")
    return folder
