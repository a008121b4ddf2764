"""Fixtures shared by all rooms."""

import gc
import os
import runpy
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from processes import last_of_each, no_curves

REPOSITORY = Path(__file__).resolve().parent.parent
gc.disable()  # until all is imported: collections look through all that is there, again and again

# Tests never reach for the network, whatever the machine allows.
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("HF_DATASETS_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")
if "PYTEST_XDIST_WORKER" in os.environ:  # a process for each core already; torch's threads would fight over them
    os.environ["OMP_NUM_THREADS"] = "1"
    if hasattr(os, "sched_setaffinity"):  # recipes use all cores that they may, and inherit this
        _cores = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, {_cores[int(os.environ["PYTEST_XDIST_WORKER"].removeprefix("gw")) % len(_cores)]})


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder of real public data beside the repository; tests that need it skip where it is absent."""
    folder = Path(os.environ.get("LACUNA_DATA", REPOSITORY.parent / "shared" / "data"))
    if not folder.is_dir():
        pytest.skip(f"no real data at {folder} (set LACUNA_DATA to point elsewhere)")
    return folder


@pytest.fixture
def typed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], request: pytest.FixtureRequest
) -> Callable[..., tuple[int, str, str]]:
    """Runs a recipe in this process as `python recipes/NAME.py` would; returns its exit code and what it said on each
    of its two outputs.

    A process of its own takes five seconds to import what it needs; one test of each recipe is enough for that. Curves
    are drawn only for a test that is marked `curves`.
    """

    def run(name: str, *words: object) -> tuple[int, str, str]:
        if name.startswith(("pretrain", "finetune_")) and "curves" not in request.keywords:
            monkeypatch.setattr("lacuna.training.reports.log.draw_curves", no_curves)
        path = str(REPOSITORY / "recipes" / f"{name}.py")
        monkeypatch.setattr(sys, "argv", [path, *last_of_each([*map(str, words)])])
        monkeypatch.setattr(gc, "freeze", lambda: None)  # for what ends, and this process does not
        capsys.readouterr()
        code = 0
        try:
            runpy.run_path(path, run_name="__main__")
        except SystemExit as left:
            code = int(left.code or 0)
        return code, *capsys.readouterr()

    return run


@pytest.fixture
def run_recipe(typed: Callable[..., tuple[int, str, str]]) -> Callable[..., tuple[int, str]]:
    """The same; returns the exit code and the errors and notices."""
    return lambda name, *words: typed(name, *words)[::2]


# A process of xdist takes a whole file at a time, in the order in which they come here: those that take long go first,
# or one process would still be at them when the others are done. (Those above 15 seconds.)
LONG = [
    "test_compiling",
    "test_stops",
    "test_readme",
    "test_numbers_and_changes",
    "test_pretrain",
    "test_python",
    "test_exporting",
    "test_evaluate_language_model",
    "test_push_model",
    "test_loop",
    "test_graphs",
    "test_conversion",
    "test_build",
    "test_remote_code",
]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files that take long first; all else stays."""
    ranks = {name: rank for rank, name in enumerate(LONG)}
    items.sort(key=lambda item: ranks.get(item.path.stem, len(LONG)))


def pytest_collection_finish() -> None:
    """Imports are done."""
    gc.enable()


@pytest.fixture(scope="module", autouse=True)
def quick_collections() -> None:
    """What imports have made stays: many runs end with a collection, which would look through all of it each time."""
    gc.collect()
    gc.freeze()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """How many faults tests/faults has injected, and how many of them were in tests that passed."""
    counts = {
        outcome: sum(
            value
            for report in terminalreporter.stats.get(outcome, [])
            if getattr(report, "when", "") == "call"
            for name, value in report.user_properties
            if name == "faults"
        )
        for outcome in ("passed", "failed")
    }
    if injected := sum(counts.values()):
        terminalreporter.write_line(f"faults injected: {injected:,}; survived: {counts['passed']:,}")
