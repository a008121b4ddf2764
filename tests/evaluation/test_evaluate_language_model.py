"""The recipe, run as people run it, on a Lacuna decoder and a native encoder of 32 hidden units."""

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import processes
import pytest
import torch

from lacuna import modeling

REPOSITORY = Path(__file__).resolve().parents[2]
PAIRS = [("The cats sit.", "The cats sits."), ("She runs.", "She run.")]


def run(*options: object, cwd: Path) -> subprocess.CompletedProcess[str]:
    return processes.run("recipes/evaluate_language_model.py", *options, cwd=cwd)


@pytest.fixture
def folder(tmp_path: Path, tokenizer, make_model) -> Path:
    """A decoder of Lacuna, a native encoder, a text and a folder of two paradigms."""
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 2}
    config = modeling.LacunaConfig.from_family("qwen3", **sizes, vocab_size=320, max_position_embeddings=64)
    modeling.LacunaForCausalLM(config).save_pretrained(tmp_path / "decoder")
    make_model("masked").save_pretrained(tmp_path / "encoder")
    for name in ("decoder", "encoder"):
        tokenizer.save_pretrained(tmp_path / name)
    (tmp_path / "text.txt").write_text("The cats sit on the mat. " * 20)
    (tmp_path / "pairs").mkdir()
    for name in ("one", "two"):
        lines = [json.dumps({"sentence_good": good, "sentence_bad": bad}) + "\n" for good, bad in PAIRS]
        (tmp_path / "pairs" / f"{name}.jsonl").write_text("".join(lines))
    return tmp_path


def test_bits_per_byte_of_a_decoder(folder: Path) -> None:
    done = run("--model", "decoder", "--data", "text.txt", cwd=folder)
    assert done.returncode == 0, done.stderr
    results = json.loads((folder / "decoder" / "evaluation_bits_per_byte.json").read_text())
    assert results["bytes"] == 500 and results["window"] == 64 and results["kind"] == "causal"
    assert 2 < results["bits_per_byte"] < 12  # random weights: about log2(320) bits a token
    assert f"{results['bits_per_byte']:.4f}" in done.stdout
    assert all(isinstance(value, (int, float, str)) for value in results.values())


def test_minimal_pairs_of_an_encoder(folder: Path) -> None:
    options = ["--suite", "minimal_pairs", "--data", "pairs", "--output_file", "new/pairs.json"]
    done = run("--model", "encoder", *options, cwd=folder)
    assert done.returncode == 0, done.stderr
    results = json.loads((folder / "new" / "pairs.json").read_text())
    assert results["pairs"] == 4 and results["accuracy_one"] == results["accuracy_two"] == results["accuracy"]
    assert "accuracy_two" in done.stdout


def test_the_built_in_corpus(folder: Path) -> None:
    done = run("--model", "encoder", "--max_examples", 2, cwd=folder)
    assert done.returncode == 0, done.stderr
    assert "built-in corpus" in done.stdout and "masked_bits_per_byte" in done.stdout


def test_mistakes_are_one_message_and_leave_nothing(
    folder: Path, run_recipe: Callable[..., tuple[int, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    (folder / "pairs" / "two.jsonl").write_text('{"sentence_good": "a", "sentence_bad": "b"}\n{"text": "x"}\n')
    before = sorted(folder.rglob("*"))
    cases = [
        ([], "--model"),
        (["--model", "decoder", "--suite", "minimal_pairs"], "needs --data"),
        (["--model", "decoder", "--suite", "minimal_pairs", "--data", "pairs"], "two.jsonl:2: no sentence"),
    ]
    for options, message in cases:
        code, said = run_recipe("evaluate_language_model", *options)
        assert code == 2, said
        assert message in said and "Traceback" not in said
    assert sorted(folder.rglob("*")) == before
