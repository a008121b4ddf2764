"""Planted tokens and passwords: in no file that recipes write, in nothing that they print, and in no error."""

import json
import runpy
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from small_models import TEXTS

from lacuna.common.command_line import exit_cleanly
from lacuna.common.errors import InputError
from lacuna.common.private import shown_command, without_secrets

REPOSITORY = Path(__file__).resolve().parents[2]
TOKEN, PASSWORD, KEY = "hf_" + "Planted9" * 4 + "xy", "pa55word-planted", "0123456789planted0123456789"
SECRETS = (TOKEN, PASSWORD, KEY)


@pytest.fixture
def ran(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Runs a recipe in this process with secrets around it; returns all that it printed, in which none may stand."""
    monkeypatch.setattr("lacuna.training.run.use_all_cores", lambda threads: torch.set_num_threads(1))
    monkeypatch.setattr("lacuna.training.reports.log.draw_curves", lambda **_: None)
    for name, value in {
        "LACUNA_CACHE": str(tmp_path / "cache"),
        "HF_TOKEN": TOKEN,
        "WANDB_API_KEY": KEY,
        "HTTPS_PROXY": f"http://me:{PASSWORD}@proxy.example:8080",
    }.items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(tmp_path)

    def run(name: str, *words: object, code: int = 0) -> str:
        path = str(REPOSITORY / "recipes" / f"{name}.py")
        monkeypatch.setattr(sys, "argv", [path, *map(str, words)])
        capfd.readouterr()
        with pytest.raises(SystemExit) as left:
            runpy.run_path(path, run_name="__main__")
        said = "".join(capfd.readouterr())
        assert (left.value.code or 0) == code, said[-3000:]
        assert not [secret for secret in SECRETS if secret in said], said
        return said

    return run


def holding_a_secret(folder: Path) -> list[Path]:
    files = [path for path in folder.rglob("*") if path.is_file()]
    return [path for path in files if any(secret.encode() in path.read_bytes() for secret in SECRETS)]


def test_runs_leave_no_secret(ran, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("\n\n".join(TEXTS * 12))
    rows = [{"text": text, "label": "long" if len(text) > 30 else "short"} for text in TEXTS * 6]
    (tmp_path / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    small = ["--sequence_length", 32, "--vocab_size", 300, "--batch_size", 8, "--max_steps", 2]
    small += ["--mixed_precision", "no", "--eval_steps", 0, "--save_steps", 0]
    small += ["--optimizer", "adamw", "--num_hidden_layers", 1]
    said = ran("pretrain", "--data", "a.txt", "--objective", "mlm", *small, "--output_dir", "model")
    assert "the model is in" in said or (tmp_path / "model" / "model.safetensors").is_file()
    options = ["--train_file", "train.jsonl", "--output_dir", "judge", "--max_steps", 2, "--batch_size", 8]
    options += ["--mixed_precision", "no"]
    ran("finetune_classification", "--model", "model", *options)
    ran("predict", "--model", "judge", "--input", "train.jsonl", "--output", "answers.jsonl")
    for written in ("model/run.json", "model/README.md", "judge/run.json", "judge/README.md", "judge/metrics.jsonl"):
        assert (tmp_path / written).is_file()
    assert holding_a_secret(tmp_path) == []


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("pretrain", ["--data", f"https://me:{PASSWORD}@example.org/a.txt"]),
        ("pretrain", ["--model", f"https://me:{PASSWORD}@example.org/model"]),
        ("pretrain", ["--data", f"{TOKEN}.txt"]),
        ("pretrain", [f"--{TOKEN}", "x"]),
        ("finetune_classification", ["--model", f"me/{TOKEN}", "--train_file", "train.jsonl"]),
        ("predict", ["--model", "m", "--input", f"https://me:{PASSWORD}@example.org/x.csv", "--output", "x.csv"]),
    ],
)
def test_errors_hold_no_secret(ran, name: str, words: list[str]) -> None:
    code = 6 if f"me/{TOKEN}" in words else 2  # of the Hub, which the tests do not reach
    assert "error: " in ran(name, *words, code=code)


def test_what_is_shown_and_kept_of_a_command(monkeypatch) -> None:
    words = [
        "recipes/pretrain.py",
        "--data",
        f"https://me:{PASSWORD}@example.org/x",
        "--note",
        TOKEN,
        "hf_corpora/a.txt",
    ]
    monkeypatch.setattr("sys.argv", words)
    shown = shown_command()
    assert TOKEN not in shown and PASSWORD not in shown and shown.endswith("--note *** hf_corpora/a.txt")
    assert without_secrets(f"{TOKEN} hf_corpora", names_stay=True) == "*** hf_corpora"
    assert without_secrets("hf_planted", names_stay=False) == "***"


def test_the_last_word_of_a_recipe(capsys: pytest.CaptureFixture[str]) -> None:
    def fail() -> None:
        raise InputError(f"no answer from https://me:{PASSWORD}@hub for {TOKEN}")

    with pytest.raises(SystemExit):
        exit_cleanly(fail)
    assert capsys.readouterr().err == "error: no answer from https://***hub for ***\n"
