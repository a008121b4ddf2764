"""Small models with random weights."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from small_models import SMALL, TEXTS
from transformers import PreTrainedTokenizerFast

from lacuna import modeling
from lacuna.modeling import LacunaConfig
from lacuna.tokenization import adapt_tokenizer, save_tokenizer, train_bpe


@pytest.fixture(scope="session")
def tokenizer() -> PreTrainedTokenizerFast:
    return train_bpe(documents=[text + "\n" for text in TEXTS] * 4, vocab_size=320)


@pytest.fixture(scope="session")
def folder_of(tokenizer, tmp_path_factory) -> Callable[..., Path]:
    """The folder of a small model with random weights."""
    root = tmp_path_factory.mktemp("models")

    def make(family: str, head: str, *, settings: dict[str, Any] | None = None, **fields: Any) -> Path:
        torch.manual_seed(3)
        config = LacunaConfig.from_family(family, **{**SMALL, **fields, "vocab_size": len(tokenizer)})
        folder = root / f"{family}_{head}_{len(list(root.iterdir()))}"
        getattr(modeling, head)(config).save_pretrained(folder)
        adapted = adapt_tokenizer(
            tokenizer=tokenizer,
            shape=config.shape if config.shape == "decoder" else "encoder",
            segments=config.type_vocab_size > 1,
            max_length=64,
        )
        save_tokenizer(tokenizer=adapted, output_dir=folder)
        if settings:
            (folder / "task.json").write_text(json.dumps(settings))
        return folder

    return make


@pytest.fixture
def recipe(home, monkeypatch, run_recipe) -> Callable[..., tuple[int, str]]:
    """`run_recipe` in the folder `home` of a module, with its cache there."""
    monkeypatch.setattr("lacuna.training.run.use_all_cores", lambda threads: torch.set_num_threads(1))
    monkeypatch.setenv("LACUNA_CACHE", str(home / "cache"))
    monkeypatch.chdir(home)
    return run_recipe
