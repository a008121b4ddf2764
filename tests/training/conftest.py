"""What the loop is handed in its tests."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from toys import PlainTokenizer, ToyWork, make_model
from transformers import BertForMaskedLM

from lacuna.training import FineTuningArguments, TrainingArguments


@pytest.fixture(autouse=True)
def one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """Matrices of 16 columns gain nothing from more, and lose much on a busy machine."""
    monkeypatch.setattr("lacuna.training.run.use_all_cores", lambda threads: torch.set_num_threads(1))


@pytest.fixture(autouse=True)
def no_curves(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    """The loop draws no pictures, unless a test is marked `curves`: that takes a second a run."""
    if "curves" not in request.keywords:
        monkeypatch.setattr("lacuna.training.reports.log.draw_curves", lambda **_: None)


@pytest.fixture
def new_work() -> type[ToyWork]:
    return ToyWork


@pytest.fixture
def plain_tokenizer() -> PlainTokenizer:
    return PlainTokenizer()


@pytest.fixture
def new_model() -> Callable[..., BertForMaskedLM]:
    return make_model


@pytest.fixture
def options(tmp_path: Path) -> Callable[..., TrainingArguments]:
    """Options of a short run into tmp_path/run."""

    def make(**overrides: Any) -> TrainingArguments:
        defaults = {
            "output_dir": str(tmp_path / "run"),
            "batch_size": 8,
            "max_steps": 8,
            "logging_steps": 1,
            "eval_steps": 0,
            "save_steps": 0,
            "learning_rate": 1e-2,
            "embedding_rate": 1.0,
            "weight_decay": 0.01,
            "mixed_precision": "no",
        }
        return TrainingArguments(**{**defaults, **overrides})

    return make


@pytest.fixture
def tuning_options(tmp_path: Path) -> Callable[..., FineTuningArguments]:
    """The same with the defaults of fine-tuning."""

    def make(**overrides: Any) -> FineTuningArguments:
        defaults = {"output_dir": str(tmp_path / "run"), "batch_size": 8, "max_steps": 8, "logging_steps": 1}
        return FineTuningArguments(**{**defaults, "learning_rate": 1e-2, "mixed_precision": "no", **overrides})

    return make


@pytest.fixture
def log_of() -> Callable[[Path], list[dict[str, Any]]]:
    """The lines of a metrics.jsonl."""

    def read(folder: Path) -> list[dict[str, Any]]:
        return [json.loads(line) for line in (Path(folder) / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]

    return read
