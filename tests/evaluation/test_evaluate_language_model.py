"""The recipe, run as people run it, on a Lacuna decoder and a native encoder of 32 hidden units."""

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import processes
import pytest
import torch

from lacuna import modeling
from lacuna.corpus import builtin

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
    (tmp_path / "words.txt").write_text(
        ": plural\ncats dogs mat river\nmat river cats dogs\n: other\ndogs mat cats runs\n"
    )
    (tmp_path / "likeness.txt").write_text("cats\tdogs\t9\ncats\tmat\t2\nriver\tmat\t3\nruns\tcats\t4\n")
    (tmp_path / "more.txt").write_text("The cats and dogs sit on the mat. She runs to the river. " * 9)
    return tmp_path


SUITES = ["--suite", "all", "--data", "text.txt", "more.txt", "--pairs", "pairs", "--analogies", "words.txt"]
SUITES += ["--similarity", "likeness.txt", "--occurrences", "more.txt", "--train_text", "more.txt"]


def test_bits_per_byte_of_a_decoder(folder: Path) -> None:
    done = run("--model", "decoder", "--data", "text.txt", cwd=folder)
    assert done.returncode == 0, done.stderr
    results = json.loads((folder / "decoder" / "evaluation_bits_per_byte.json").read_text())
    assert results["bytes"] == 500 and results["window"] == 64 and results["kind"] == "causal"
    assert 2 < results["bits_per_byte"] < 12  # random weights: about log2(320) bits a token
    assert f"{results['bits_per_byte']:.4f}" in done.stdout
    ((suite, name, value, beside),) = results.pop("summary")
    assert (suite, name, value) == ("bits_per_byte", "bits_per_byte", f"{results['bits_per_byte']:.4f}") and beside
    assert all(isinstance(value, (int, float, str)) for value in results.values())


def test_minimal_pairs_of_an_encoder(folder: Path) -> None:
    options = ["--suite", "minimal_pairs", "--data", "pairs", "--output_file", "new/pairs.json"]
    done = run("--model", "encoder", *options, cwd=folder)
    assert done.returncode == 0, done.stderr
    results = json.loads((folder / "new" / "pairs.json").read_text())
    assert results["pairs"] == 4 and results["accuracy_one"] == results["accuracy_two"] == results["accuracy"]
    assert "accuracy_two" in done.stdout


def test_the_built_in_corpus(folder: Path, run_recipe: Callable[..., tuple[int, str]], monkeypatch) -> None:
    files = builtin._module_files()[:20]  # to read all takes seconds
    monkeypatch.setattr(builtin, "_module_files", lambda: files)
    monkeypatch.setattr(builtin, "read_library", builtin.read_library.__wrapped__)
    code, said = run_recipe("evaluate_language_model", "--model", folder / "encoder", "--max_examples", 2)
    assert code == 0, said
    results = json.loads((folder / "encoder" / "evaluation_bits_per_byte.json").read_text())
    assert results["data"] == "built-in corpus" and results["masked_bits_per_byte"] > 2


@pytest.mark.parametrize("model", ["encoder", "decoder"])
def test_all_suites_make_a_table(
    folder: Path, run_recipe: Callable[..., tuple[int, str]], monkeypatch, model: str
) -> None:
    monkeypatch.chdir(folder)
    code, said = run_recipe("evaluate_language_model", "--model", model, *SUITES, "--neighbours_of", "cats")
    assert code == 0, said
    results = json.loads((folder / model / "evaluation_all.json").read_text())
    table = (folder / model / "evaluation.md").read_text()
    bits = "bits_per_byte" if model == "decoder" else "masked_bits_per_byte"
    of_words = (
        "analogies/accuracy_3cosadd",
        "analogies/contextual_accuracy_3cosmul",
        "similarity/contextual_spearman",
    )
    for name in (f"bits_per_byte/{bits}", "minimal_pairs/accuracy", "similarity/spearman", *of_words):
        suite, score = name.split("/")
        low, high = results[f"{name}_low"], results[f"{name}_high"]
        assert low <= results[name] <= high
        assert f"| {suite} | {score} | {results[name]:,.4f} ({low:,.4f} to {high:,.4f}) |" in table
    assert f"| a guess {results['minimal_pairs/baseline_accuracy']:.4f} |" in table and "random 0." in table
    assert ", chosen among 5 words |" in table and results["analogies/chosen_among"] == 5
    assert ("5gram " in table) == (model == "decoder") == ("bits_per_byte/baseline_5gram_bits_per_byte" in results)
    assert results["analogies/near_cats"].count(",") == 3 and results["occurrences"] == "more.txt"
    assert "not run" not in table
    code, said = run_recipe("evaluate_language_model", "--model", model, "--suite", "all", "--data", "text.txt")
    assert code == 0 and "| similarity | not run: there is no data |" in (folder / model / "evaluation.md").read_text()


def test_a_text_with_too_few_words_ends_one_suite_of_all_and_not_the_others(folder: Path, run_recipe, monkeypatch):
    monkeypatch.chdir(folder)
    (folder / "short.txt").write_text("The cats and dogs sit.")
    words = ["--model", "decoder", *SUITES]
    words[words.index("--occurrences") + 1] = "short.txt"
    code, said = run_recipe("evaluate_language_model", *words)
    assert code == 0, said
    table = (folder / "decoder" / "evaluation.md").read_text()
    for suite in ("analogies", "similarity"):
        assert f"| {suite} | not run: nothing is left to ask: it takes a " in table
    assert "| minimal_pairs | accuracy |" in table and "bits_per_byte | bits_per_byte" in table
    results = json.loads((folder / "decoder" / "evaluation_all.json").read_text())
    assert "words have no vector" in results["analogies/not_run"] and results["minimal_pairs/pairs"] == 4
    code, said = run_recipe(
        "evaluate_language_model",
        *("--model", "decoder", "--suite", "analogies", "--data", "words.txt", "--occurrences", "short.txt"),
    )
    assert code == 2 and "nothing is left to ask: it takes a question whose words have vectors, and 5 of 5" in said


def test_other_encodings_and_pages_beside_pairs(
    folder: Path, tmp_path: Path, run_recipe: Callable[..., tuple[int, str]]
) -> None:
    (tmp_path / "latin.txt").write_bytes("Un café, un été.\n".encode("latin-1"))
    pairs = tmp_path / "latin_pairs"
    pairs.mkdir()
    (pairs / "README.md").write_text("About the pairs.")
    (pairs / "one.csv").write_bytes("sentence_good;sentence_bad\nLe café;Le le\n".encode("latin-1"))
    for options in (["--data", tmp_path / "latin.txt"], ["--suite", "minimal_pairs", "--data", pairs]):
        words = ["--model", folder / "encoder", *options, "--output_file", tmp_path / "found.json"]
        code, said = run_recipe("evaluate_language_model", *words)
        assert code == 2 and "not valid UTF-8 (0xe9)" in said and "--encoding latin1" in said
        code, said = run_recipe("evaluate_language_model", *words, "--encoding", "latin-1")
        assert code == 0, said


@pytest.mark.parametrize("model", ["encoder", "decoder"])
def test_neither_batches_nor_processes_change_a_result(folder: Path, typed, monkeypatch, model: str) -> None:
    """Choices are the same; sums of float32 differ in their last digits with the size of a batch, and no otherwise."""
    monkeypatch.chdir(folder)
    found = {}
    for name, options, num_processes in (("default", [], 1), ("two", [], 2), ("three", ["--batch_size", 3], 1)):
        words = ["--model", model, *SUITES, *options, "--output_file", f"{name}/found.json"]
        if num_processes == 1:
            code, said, errors = typed("evaluate_language_model", *words)
        else:
            path = "recipes/evaluate_language_model.py"
            done = processes.run(path, *words, cwd=folder, num_processes=num_processes)
            code, said, errors = done.returncode, done.stdout, done.stderr
        assert code == 0, errors
        assert said.count("results are in") == 1
        found[name] = json.loads((folder / name / "found.json").read_text())
        del found[name]["seconds"]
    assert found["two"] == found["default"]
    for key, value in found["default"].items():
        same = "bits" not in key or isinstance(value, (int, str))  # counts, choices and ranks of cosines
        assert found["three"][key] == (value if same else pytest.approx(value, rel=1e-6)), key


def test_mistakes_are_one_message_and_leave_nothing(
    folder: Path, run_recipe: Callable[..., tuple[int, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    (folder / "pairs" / "two.jsonl").write_text('{"sentence_good": "a", "sentence_bad": "b"}\n{"text": "x"}\n')
    (folder / "same.jsonl").write_text('{"sentence_good": "A b.", "sentence_bad": "A b."}\n')
    (folder / "two.txt").write_text("cats\tdogs\t9\ncats\tmat\t2\n")
    (folder / "equal.txt").write_text("cats\tdogs\t9\ncats\tmat\t9\nriver\tmat\t9\n")
    (folder / "broken").mkdir()
    (folder / "broken" / "config.json").write_text("{}")  # what is wrong with data is told before a model is looked at
    before = sorted(folder.rglob("*"))
    ranked = "a file with 3 pairs, not all of the same score, whose words have vectors, and 0 of"
    cases = [
        (["--model", "broken", "--suite", "minimal_pairs", "--data", "pairs"], "two.jsonl:2: no sentence"),
        (
            ["--model", "broken", "--suite", "all", "--pairs", "same.jsonl"],
            "same.jsonl:1: sentence_good and sentence_",
        ),
        (["--model", "broken", "--occurrences", "nowhere.txt"], "there is no file or folder nowhere.txt"),
        (["--model", "broken", "--suite", "minimal_pairs", "--data", "text.txt"], "each also with .gz or .zst. If it"),
        (["--model", "decoder", "--suite", "similarity", "--data", "two.txt"], ranked),
        (["--model", "decoder", "--suite", "similarity", "--data", "equal.txt"], ranked),
        ([], "--model"),
        (["--model", "decoder", "--output_file", "text.txt"], "results are JSON; name a file that ends in .json"),
        (["--model", "decoder", "--output_file", "pairs"], "results are JSON; name a file that ends in .json"),
        (["--model", "decoder", "--suite", "minimal_pairs"], "needs --data"),
        (["--model", "decoder", "--data", "text.txt", "--pairs", "pairs"], "--pairs is data of --suite minimal_pairs"),
        (["--model", "decoder", "--data", "text.txt", "--neighbours_of", "cat"], "--neighbours_of goes with --suite"),
        (["--model", "decoder", "--suite", "minimal_pairs", "--data", "pairs"], "two.jsonl:2: no sentence"),
        (["--model", "decoder", "--suite", "analogies", "--data", "likeness.txt"], "likeness.txt:1: expected four"),
        (
            ["--model", "decoder", "--suite", "similarity", "--data", "pairs"],
            "one.jsonl: --suite similarity reads .txt",
        ),
        (
            ["--model", "decoder", "--suite", "all", "--data", "text.txt", "--similarity", "words.txt"],
            "words.txt:1: ex",
        ),
    ]
    for options, message in cases:
        code, said = run_recipe("evaluate_language_model", *options)
        assert code == 2, said
        assert message in said and "Traceback" not in said
    assert sorted(folder.rglob("*")) == before
