"""--eval_data: a text of its own to evaluate on."""

import json
from pathlib import Path

import pytest

from lacuna.common.command_line import parse_arguments
from lacuna.corpus import CorpusArguments, open_store, prepare_corpus
from lacuna.objectives import ObjectiveArguments, make_works
from lacuna.tokenization import load_or_train, token_facts, tokenizer_fingerprint


def works_of(words: list[str], **options):
    data, goal = parse_arguments((CorpusArguments, ObjectiveArguments), words)
    tokenizer, store = prepare_corpus(
        data,
        tokenizer_for=lambda text: load_or_train(text, tokenizer=data.tokenizer, model=None, vocab_size=300),
        fingerprint_of=tokenizer_fingerprint,
    )
    ((_, work),) = make_works(goal, store=store, tokenizer=tokenizer, seed=0, **token_facts(tokenizer))
    return tokenizer, store, work


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path


@pytest.fixture
def texts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("LACUNA_CACHE", str(tmp_path / "cache"))
    for name, word in (("a", "apple"), ("b", "berry"), ("held", "hazel")):
        (tmp_path / name).mkdir()
        for number in range(4):
            text = " ".join(f"The {word} number {number} is {i % 5} days old." for i in range(40))
            (tmp_path / name / f"{number}.txt").write_text(text)
    return tmp_path


@pytest.mark.parametrize("data", [["a"], ["a:0.7", "b:0.3"]])
@pytest.mark.parametrize("objective", ["clm", "mlm_nsp"])
def test_it_is_held_out_whole_and_nothing_else_is(texts: Path, data: list[str], objective: str) -> None:
    paths = [str(texts / name) for name in data]
    words = ["--data", *paths, "--objective", objective, "--sequence_length", "64"]
    tokenizer, store, work = works_of([*words, "--eval_data", str(texts / "held")])
    _, plain, _ = works_of(words)
    assert store.fingerprint != plain.fingerprint and "evaluated on 4 documents of --eval_data" in store.summary()
    seen = {part: "" for part in ("example", "eval_example")}
    for row in range(work.num_examples):
        seen["example"] += tokenizer.decode(work.example(row, row)["input_ids"])
    for row in range(work.num_eval_examples):
        seen["eval_example"] += tokenizer.decode(work.eval_example(row)["input_ids"])
    assert "apple" in seen["example"] and "hazel" not in seen["example"]
    assert "hazel" in seen["eval_example"] and not {"apple", "berry"} & {*seen["eval_example"].split()}
    assert len(work.held_out) == 4 and len(work.documents) == 4 * len(data)


def test_documents_that_are_trained_on_too_are_counted(texts: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--data", str(texts / "a"), "--objective", "clm", "--eval_data"]
    works_of([*words, str(texts / "held")])
    assert "eval_data" not in capsys.readouterr().err
    (texts / "held" / "1.txt").write_bytes((texts / "a" / "3.txt").read_bytes())
    works_of([*words, str(texts / "held")])
    said = capsys.readouterr().err.splitlines()
    line = [each for each in said if "--eval_data" in each]
    assert len(line) == 1 and line[0].startswith(
        "warning: 1 of the 4 documents of --eval_data are in the training text"
    )


def test_a_worker_that_does_not_fork_opens_both(texts: Path) -> None:
    import pickle

    _, store, _ = works_of(["--data", str(texts / "a"), "--objective", "clm", "--eval_data", str(texts / "held")])
    again = pickle.loads(pickle.dumps(store))  # noqa: S301
    assert again.fingerprint == store.fingerprint
    assert again.tokens[:].tolist() == store.tokens[:].tolist()
    assert again.document_offsets[:].tolist() == store.document_offsets[:].tolist()


def test_a_run_with_it(texts: Path, recipe) -> None:
    words = ["--data", str(texts / "a"), "--eval_data", str(texts / "held"), "--max_steps", "2", "--batch_size", "4"]
    small = ["--vocab_size", "300", "--optimizer", "adamw", "--num_hidden_layers", "1"]
    code, said = recipe("pretrain", *words, *small, "--output_dir", str(texts / "run"))
    info = json.loads((texts / "run" / "run.json").read_text())
    assert code == 0 and "evaluated on 4 documents of --eval_data" in info["text"]
    assert (
        info["eval_data"] == [str(texts / "held")] and info["command"].endswith("--output_dir run") and info["began"]
    )
    code, said = recipe(
        "pretrain", *words[:2], "--eval_data", str(texts / "nowhere"), "--output_dir", str(texts / "2")
    )
    assert code == 2 and "nowhere" in said


def test_it_goes_with_a_store_too(texts: Path) -> None:
    tokenizer, store, _ = works_of(["--data", str(texts / "a"), "--objective", "clm"])
    tokenizer.save_pretrained(texts / "tokenizer")
    words = ["--corpus", str(store.path), "--tokenizer", str(texts / "tokenizer"), "--eval_data", str(texts / "held")]
    _, _, work = works_of([*words, "--objective", "clm"])
    assert len(work.held_out) == 4 and open_store(store.path).num_documents == len(work.documents)
