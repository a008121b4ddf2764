"""Benchmarks import one another as scripts do, from their own folder."""

import sys
from functools import partial
from itertools import islice
from pathlib import Path

import psutil
import pytest

from lacuna.corpus import builtin_documents

sys.path.append(str(Path(__file__).resolve().parents[2] / "benchmarks"))


@pytest.fixture(autouse=True)
def a_short_look_at_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reports say how busy it was before, for which they wait two seconds."""
    look = partial(psutil.cpu_percent, interval=0.01)
    monkeypatch.setattr(psutil, "cpu_percent", lambda interval: look())


@pytest.fixture(scope="session")
def two_texts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with train.txt and valid.txt, of the built-in text; the latter has blank lines."""
    folder = tmp_path_factory.mktemp("texts")
    documents = list(islice(builtin_documents(), 12))
    (folder / "train.txt").write_text("\n\n".join(documents)[:40_000], encoding="utf-8")
    (folder / "valid.txt").write_text("\n\n".join(documents)[40_000:44_000], encoding="utf-8")
    return folder
