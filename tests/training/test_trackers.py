"""Trackers that work, are missing, or fail wherever they can."""

import json
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from accelerate import PartialState
from accelerate.tracking import LOGGER_TYPE_TO_CLASS, GeneralTracker

from lacuna.training.arguments import TRACKERS
from lacuna.training.reports.log import RunLog, Trackers, presentable


class FakeTracker(GeneralTracker):
    """Remembers what it is told; fails where `fails` says."""

    name, requires_logging_directory = "fake", False
    fails = ""
    tracker = None

    def __init__(self, run_name: str, **_: Any) -> None:
        super().__init__()
        self.calls: list[Any] = [run_name]
        self.made.append(self)
        self._fail("init")

    made: list["FakeTracker"] = []

    def _fail(self, where: str) -> None:
        if self.fails == where:
            raise SystemExit(1) if where == "finish" else RuntimeError(f"no route\nto host at {where}")

    def start(self) -> None:
        self._fail("start")

    def store_init_configuration(self, values: dict[str, Any]) -> None:
        self.calls.append(values)
        self._fail("config")

    def log(self, values: dict[str, Any], step: int | None = None, **_: Any) -> None:
        self._fail("log")
        self.calls.append((step, values))

    def finish(self) -> None:
        self.calls.append("finish")
        self._fail("finish")


@pytest.fixture
def fakes(monkeypatch) -> dict[str, list[FakeTracker]]:
    """Trackers `good` and `bad_...` for each place where one may fail; the instances that were made of each."""
    made: dict[str, list[FakeTracker]] = {}
    for fails in ("", "init", "start", "config", "log", "finish"):
        name = f"bad_{fails}" if fails else "good"
        made[name] = []
        tracker = type(name, (FakeTracker,), {"name": name, "fails": fails, "made": made[name]})
        monkeypatch.setitem(LOGGER_TYPE_TO_CLASS, name, tracker)
    return made


def open_trackers(names: list[str], folder: Path, warnings: list[str], **options: Any) -> Trackers:
    PartialState()
    options = {"project": "lacuna", "config": {"seed": 0}, "output_dir": folder, **options}
    return Trackers(names=names, warn=warnings.append, **options)


@pytest.mark.parametrize("place", ["init", "start", "config", "log", "finish"])
def test_one_that_fails_is_named_once_and_the_other_goes_on(fakes, tmp_path, place) -> None:
    warnings: list[str] = []
    trackers = open_trackers([f"bad_{place}", "good", "good"], tmp_path, warnings)
    for step in (1, 2):
        trackers.log({"step": step, "loss": 0.5, "eval_loss": 0.25, "note": "text", "flag": True}, step=step)
    assert [*trackers.running] == [*([f"bad_{place}"] if place == "finish" else []), "good"]
    trackers.finish()
    trackers.finish()
    trackers.log({"step": 3, "loss": 0.5}, step=3)
    (good,) = fakes["good"]
    values = {"train/loss": 0.5, "eval/loss": 0.25}
    assert good.calls == ["lacuna", {"seed": 0}, (1, values), (2, values), "finish"]
    (warning,) = warnings
    assert warning.startswith(f"warning: --report_to bad_{place} is left out, it failed to ")
    assert warning.endswith("training continues") and "\n" not in warning
    assert place == "finish" or f"RuntimeError: no route to host at {place}" in warning


def test_one_that_is_not_installed_names_its_extra(tmp_path, monkeypatch) -> None:
    for module in ("tensorboard", "torch.utils.tensorboard", "tensorboardX", "wandb", "trackio"):
        monkeypatch.setitem(sys.modules, module, None)
    warnings: list[str] = []
    trackers = open_trackers([*TRACKERS, "tensorbord"], tmp_path, warnings)
    trackers.log({"step": 1, "loss": 1.0}, step=1)
    trackers.finish()
    assert [*trackers.running] == []
    for name, warning in zip(TRACKERS, warnings, strict=False):
        assert f'--report_to {name} is left out, it is not installed (pip install -e ".[{name}]"): ' in warning
    assert "--report_to tensorbord is left out, it failed to start" in warnings[3]


def test_the_log_hands_its_lines_on_and_ends_them(fakes, tmp_path) -> None:
    trackers = open_trackers(["good"], tmp_path, [])
    log = RunLog(output_dir=tmp_path, enabled=True, first_step=0, done=0.0, trackers=trackers)
    log.record({"step": 1, "loss": 1.0, "mlm_accuracy": 0.5})
    log.evaluation({"step": 1, "eval_loss": 2.0})
    log.mark("checkpoint", 1)
    log.close()
    log.close()
    log.finish({})
    (good,) = fakes["good"]
    assert good.calls[2:] == [(1, {"train/loss": 1.0, "train/mlm_accuracy": 0.5}), (1, {"eval/loss": 2.0}), "finish"]


def test_options_are_sent_without_secrets_and_places(monkeypatch) -> None:
    monkeypatch.setenv("WANDB_API_KEY", "0123456789abcdef")
    monkeypatch.setenv("HOME", "/home/somebody")
    sent = presentable(
        {
            "output_dir": "/scratch/somebody/runs/mine",
            "data": ["/home/somebody/a.txt", "relative/b.txt", "~/c.txt", "file:///home/somebody/d"],
            "model": "org/model",
            "remote": "https://somebody:secret@example.org/x",
            "note": "token hf_abcdefghijklmnopqrstuvwxyz and 0123456789abcdef in /home/somebody/notes",
            "batch_size": (64, 128),
            "learning_rate": 1e-3,
            "resume": False,
            "max_minutes": None,
            "limit": float("inf"),
            "corpus": Path("/home/somebody/store"),
        }
    )
    assert sent == {
        "output_dir": "mine",
        "data": "~/a.txt,relative/b.txt,~/c.txt,~/d",
        "model": "org/model",
        "remote": "x",
        "note": "token *** and *** in ~/notes",
        "batch_size": "64,128",
        "learning_rate": 1e-3,
        "resume": False,
        "limit": "inf",
        "corpus": "~/store",
    }
    assert "somebody" not in json.dumps(sent)


def test_tensorboard_forgets_what_came_after_the_checkpoint(tmp_path) -> None:
    pytest.importorskip("tensorboard", reason="tensorboard is not installed: pip install -e '.[tensorboard]'")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    warnings: list[str] = []
    for first_step in (0, 2):
        trackers = open_trackers(["tensorboard"], tmp_path, warnings, first_step=first_step, config={"sizes": (1, 2)})
        for step in range(first_step + 1, first_step + 5):
            trackers.log({"step": step, "loss": 10.0 * first_step + step}, step=step)
        trackers.log({"step": 4, "eval_loss": 0.5}, step=4)
        trackers.finish()
    assert not warnings
    events = EventAccumulator(str(tmp_path / "tensorboard")).Reload()
    assert [(point.step, point.value) for point in events.Scalars("train/loss")] == [
        (1, 1.0),
        (2, 2.0),
        *((step, 20.0 + step) for step in range(3, 7)),
    ]
    assert events.Scalars("eval/loss")


def test_wandb_offline(tmp_path, monkeypatch) -> None:
    pytest.importorskip("wandb", reason="wandb is not installed: pip install -e '.[wandb]'")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    monkeypatch.setenv("HOME", str(tmp_path / "somebody"))  # whose name is in the path below
    warnings: list[str] = []
    trackers = open_trackers(["wandb"], tmp_path, warnings, config={"data": "/data/somebody/texts"})
    assert [*trackers.running] == ["wandb"], warnings
    for step in (1, 2):
        trackers.log({"step": step, "loss": 1.0}, step=step)
    trackers.finish()
    assert not warnings
    (run,) = (tmp_path / "wandb").glob("offline-run-*/*.wandb")
    end = time.monotonic() + 30
    while b"train/loss" not in run.read_bytes() and time.monotonic() < end:
        time.sleep(0.05)  # a process of its own writes it
    assert b"train/loss" in run.read_bytes() and b"/data/somebody" not in run.read_bytes()


def test_trackio_keeps_a_run(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path / "kept"))  # read when it is imported
    pytest.importorskip("trackio", reason="trackio is not installed: pip install -e '.[trackio]'")
    warnings: list[str] = []
    trackers = open_trackers(["trackio"], tmp_path, warnings, project="lacuna-test")
    trackers.log({"step": 1, "loss": 1.0}, step=1)
    trackers.finish()
    assert not warnings and (tmp_path / "kept" / "lacuna-test.db").is_file()
