"""The warm start of the embeddings in the pretraining recipe: when it happens, and from how much text."""

import json
import random
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.lib.stride_tricks import sliding_window_view as windows
from transformers import AutoModel

from lacuna import objectives, tokenization, training
from lacuna.corpus import open_store
from lacuna.objectives.embeddings import cooccurrence_embeddings
from lacuna.tasks.base.models import read_first_words

WORDS = "the a cat dog bird sat ran sang on under over mat tree house and but then when it was so very old new"
SHAPES = {"mlm": "encoder", "clm": "decoder", "denoising": "encoder-decoder"}


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A text of sixty documents and a tokenizer."""
    folder = tmp_path_factory.mktemp("home")
    chance = random.Random(0)
    rows = [{"text": f"{' '.join(chance.choices(WORDS.split(), k=40)).capitalize()}."} for _ in range(60)]
    (folder / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    tokenizer = tokenization.train_bpe(documents=[row["text"] for row in rows], vocab_size=300)
    tokenization.save_tokenizer(tokenizer=tokenizer, output_dir=folder / "tokenizer")
    return folder


@pytest.fixture
def pretrain(recipe) -> Callable[..., tuple[int, str]]:
    """The recipe for one step at a rate that changes nothing to speak of; its exit code and what it said."""

    def run(output: Path, *more: object, objective: str = "mlm", steps: int = 1) -> tuple[int, str]:
        words = ["--data", "a.jsonl", "--output_dir", output, "--objective", objective, "--learning_rate", 1e-9]
        words += ["--sequence_length", 32, "--batch_size", 8, "--max_steps", steps, "--mixed_precision", "no"]
        words += ["--eval_steps", 0, "--save_steps", 1, "--optimizer", "adamw"]
        words += [] if "--model" in more else ["--tokenizer", "tokenizer", "--num_hidden_layers", 1]
        return recipe("pretrain", *words, *more)

    return run


def embeddings_of(output: Path) -> torch.Tensor:
    return AutoModel.from_pretrained(output).get_input_embeddings().weight.detach()[:300]


def open_work(home: Path, objective: str) -> objectives.TokenPrediction:
    [place] = (home / "cache" / "corpora").glob("*/")
    tokenizer = tokenization.load_tokenizer(str(home / "tokenizer"))
    [(_, work)] = objectives.make_works(
        objectives.ObjectiveArguments(objective=objective, sequence_length="32"),
        store=open_store(place),
        tokenizer=tokenizer,
        seed=0,
        **tokenization.token_facts(tokenizer),
    )
    return work


def row_length(work: objectives.TokenPrediction) -> float:
    """Tokens of a row, the mean of all."""
    return float(np.mean([len(work.example(row, row)["input_ids"]) for row in range(work.num_examples)]))


@pytest.mark.parametrize("objective", SHAPES)
def test_a_new_model_begins_with_it(pretrain, home, tmp_path, objective) -> None:
    code, said = pretrain(tmp_path / "warm", objective=objective)
    assert code == 0, said
    work = open_work(home, objective)
    assert work.shape == SHAPES[objective]
    found, counted = embeddings_of(tmp_path / "warm"), int(3 * 8 * row_length(work))
    expected = cooccurrence_embeddings(work, size=found.shape[1], std=0.05, counted=counted)
    known = expected.any(1)
    assert 20 < known.sum() < 300
    assert json.loads((tmp_path / "warm" / "run.json").read_text())["warm_start_seconds"] > 0
    assert torch.allclose(found[known], expected[known], atol=1e-4)  # threads round differently
    assert found[~known].std() == pytest.approx(0.02, rel=0.1)  # what the text has not keeps its first weights


def test_without_it_weights_are_random_and_a_run_goes_on_with_the_embeddings_it_has(
    pretrain, tmp_path, monkeypatch
) -> None:
    for name in ("random", "cooccurrence"):
        code, said = pretrain(tmp_path / name, "--embedding_init", name)
        assert code == 0, said
    cold, warm = (embeddings_of(tmp_path / name) for name in ("random", "cooccurrence"))
    assert cold.std() == pytest.approx(0.02, rel=0.05) and warm.std() > 1.2 * cold.std()

    code, said = pretrain(tmp_path / "continued", "--model", tmp_path / "random")
    assert code == 0 and torch.allclose(embeddings_of(tmp_path / "continued"), cold, atol=1e-6), said

    tokenizer = tokenization.load_tokenizer(str(tmp_path / "random"))
    read_first_words(tokenizer)
    tokenizer.save_pretrained(tmp_path / "random")
    code, said = pretrain(tmp_path / "other", "--model", tmp_path / "random")
    assert code == 2 and "begins every text with a space" in said

    monkeypatch.setattr(objectives, "warm_start", None)  # not made again
    code, said = pretrain(tmp_path / "cooccurrence", "--resume", steps=2)
    assert code == 0 and torch.allclose(embeddings_of(tmp_path / "cooccurrence"), warm, atol=1e-6), said
    code, said = pretrain(tmp_path / "cooccurrence", "--resume", "--embedding_init", "random", steps=3)
    assert code == 2 and "error: --resume: " in said and "embedding_init is " in said


def test_how_much_text_is_counted(pretrain, home, tmp_path, monkeypatch) -> None:
    """All of it, or an even share of each stretch; three times what the run is expected to train on."""
    assert pretrain(tmp_path / "out")[0] == 0
    work = open_work(home, "mlm")
    first, last = work.store.sentence_offsets[work.held_out.T]
    whole = [*work.training_text()]
    assert sum(map(len, whole)) == len(work.store.tokens) - int((last - first).sum())
    monkeypatch.setattr("lacuna.objectives.base._COUNTED_IN_A_ROW", 20)
    parts, text = [*work.training_text(sum(map(len, whole)) // 3)], np.concatenate(whole)
    places = [int(np.flatnonzero((windows(text, len(part)) == part).all(1))[0]) for part in parts]
    assert places == sorted(places) and places[0] == 0 and places[-1] > 2 / 3 * len(text) - 100
    assert all(len(part) >= 20 for part in parts) and 0 <= sum(map(len, parts)) - len(text) // 3 <= 20

    a_row = row_length(work)
    for limits, tokens in (
        ({"max_steps": 10}, 80 * a_row),
        ({"max_epochs": 2}, 2 * work.num_examples * a_row),
        ({"max_minutes": 2}, 600_000),
        ({"max_minutes": 2, "max_steps": 10}, 80 * a_row),
        ({"max_minutes": 0.001, "max_steps": 10}, 300),
    ):
        given = training.TrainingArguments(output_dir=str(tmp_path / "new"), batch_size=8, **limits)
        assert training.expected_tokens(given, [(0.0, work)]) == pytest.approx(tokens, abs=8 * 32)  # whole steps
