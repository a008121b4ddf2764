"""Checkpoints as a stranger meets them: folders with a tokenizer, whose code is loaded from the folder itself."""

import os
import sys
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from transformers import PreTrainedTokenizerFast, dynamic_module_utils
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from lacuna import modeling
from lacuna.modeling import LacunaConfig
from lacuna.tokenization import adapt_tokenizer, save_tokenizer, train_bpe

TEXTS = [
    "The quick brown fox jumps over the lazy dog.",
    "A lacuna is a gap in a text.",
    "The lazy dog sleeps in the garden, and the fox is gone.",
    "Every gap in the text can be filled.",
    "The river runs through the city of the north.",
    "A tokenizer learns the pieces of words from a text.",
    "The dog runs.",
    "In the garden of the city the fox learns to sleep, and the dog sleeps through the text of the river.",
]
SMALL: dict[str, Any] = {
    "hidden_size": 32,
    "num_hidden_layers": 3,
    "num_attention_heads": 2,
    "head_dim": 16,
    "intermediate_size": 64,
    "max_position_embeddings": 128,
    "initializer_range": 0.2,  # weights of the usual 0.02 make outputs that are almost equal whatever the input
}
# Whatever is random in a forward pass would hide what the tests compare.
NO_DROPOUT = {"embedding_dropout": 0.0, "hidden_dropout": 0.0, "attention_dropout": 0.0}


@pytest.fixture(scope="session")
def texts() -> list[str]:
    return TEXTS


@pytest.fixture(scope="session")
def tokenizer() -> PreTrainedTokenizerFast:
    return train_bpe(documents=[text + "\n" for text in TEXTS] * 4, vocab_size=320)


def loaded_modules() -> list[str]:
    """Names of the modules that came from folders, as transformers calls them."""
    return [name for name in sys.modules if name.split(".")[0] == "transformers_modules"]


@pytest.fixture(autouse=True)
def stranger(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """Forget that this process knows Lacuna: classes that are registered win over those that a folder brings.

    The code of the folders is kept in the folder of the test, not in the cache of the person who runs it.
    """
    monkeypatch.delitem(CONFIG_MAPPING._extra_content, LacunaConfig.model_type)
    monkeypatch.setattr(dynamic_module_utils, "HF_MODULES_CACHE", str(tmp_path / "loaded_code"))
    monkeypatch.syspath_prepend(str(tmp_path / "loaded_code"))
    before = {name: sys.modules.pop(name) for name in loaded_modules()}
    yield
    for name in loaded_modules():
        del sys.modules[name]
    sys.modules.update(before)


@pytest.fixture(scope="session")
def checkpoint(tokenizer, tmp_path_factory) -> Callable[..., Path]:
    """Makes the folder of a small model with random weights and a tokenizer, once for each set of arguments."""
    root = tmp_path_factory.mktemp("checkpoints")
    made: dict[str, Path] = {}

    def make(family: str, head: str, **overrides: Any) -> Path:
        key = f"{family}-{head}-{sorted(overrides.items())}"
        if key not in made:
            torch.manual_seed(zlib.crc32(key.encode()))  # whatever other tests have asked for before
            fields = {**SMALL, **NO_DROPOUT, **overrides, "vocab_size": len(tokenizer)}
            config = LacunaConfig.from_family(family, **fields)
            made[key] = root / f"{family}_{head}_{len(made)}"
            getattr(modeling, head)(config).save_pretrained(made[key])
            shape = "decoder" if config.shape == "decoder" else "encoder"
            adapted = adapt_tokenizer(
                tokenizer=tokenizer, shape=shape, segments=bool(config.type_vocab_size), max_length=128
            )
            save_tokenizer(tokenizer=adapted, output_dir=made[key])
        return made[key]

    return make


@pytest.fixture
def load() -> Callable[..., Any]:
    """Loads a folder through an Auto class, and makes sure that the code came from the folder."""

    def run(folder: str | os.PathLike[str], auto_name: str, **options: Any) -> Any:
        model = getattr(transformers, auto_name).from_pretrained(folder, trust_remote_code=True, **options)
        assert type(model).__module__.startswith("transformers_modules."), type(model).__module__
        return model

    return run
