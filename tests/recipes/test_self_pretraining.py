"""`--for` of the pretraining recipe: which rows a run sees of a task, how many, and what it writes of them."""

import json
import random
from pathlib import Path

import pytest
from examples import document_tokens

from lacuna import objectives, tokenization
from lacuna.corpus import CorpusArguments, open_store, open_text, prepare_corpus
from lacuna.training.order import row_of

WORDS = "the a cat dog bird sat ran sang on under over mat tree house and but then when it was so very old new"


def sentences(seed: int, count: int) -> str:
    chance = random.Random(seed)
    return " ".join(f"{' '.join(chance.choices(WORDS.split(), k=8)).capitalize()}." for _ in range(count))


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two texts, a labelled table of 100 rows, questions, and a tokenizer."""
    folder = tmp_path_factory.mktemp("home")
    for number, name in enumerate(("a", "b")):
        rows = [{"text": sentences(number * 100 + row, 6)} for row in range(20 + 20 * number)]
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    table = [f"review {n}: {sentences(1000 + n, 2)},{('good', 'bad')[n % 2]}x\n" for n in range(100)]
    (folder / "train.csv").write_text("".join(["text,label\n", *table]))
    tokenizer = tokenization.train_bpe(documents=[sentences(seed, 5) for seed in range(40)], vocab_size=300)
    tokenization.save_tokenizer(tokenizer=tokenizer, output_dir=folder / "tokenizer")
    return folder


def options_of(output: Path, *more: object, steps: int = 1) -> list[object]:
    return [
        *("--data", "a.jsonl", "--tokenizer", "tokenizer", "--output_dir", output, "--objective", "mlm"),
        *("--sequence_length", 32, "--batch_size", 8, "--max_steps", steps, "--mixed_precision", "no"),
        *("--save_steps", 1, "--eval_steps", 0, "--optimizer", "adamw", "--num_hidden_layers", 1, *more),
    ]


def test_a_run_for_a_task(recipe, home, tmp_path) -> None:
    """What is in the store, run.json and the card; another share or file is another run; fine-tuning warns."""
    out = tmp_path / "out"
    code, said = recipe("pretrain", *options_of(out, "--for", "train.csv"))
    assert code == 0, said
    about = json.loads((out / "run.json").read_text())
    [facts] = about["self_pretraining"]
    assert {"file": "train.csv", "task": "classification", "texts": 90}.items() <= facts.items()
    assert about["for_share"] == 0.3
    assert "30% of the rows, without labels: 90 of `train.csv`" in (out / "README.md").read_text()

    [place] = (home / "cache" / "corpora").glob("*/")
    store, tokenizer = open_store(place), tokenization.load_tokenizer(str(home / "tokenizer"))
    assert store.source_weights == [0.3, 0.7] and store.source_names == ["texts of train.csv", "a.jsonl"]
    documents = [tokenizer.decode(document_tokens(store, number)) for number in range(store.num_documents)]
    first = int(store.source_offsets[1])
    rows = [line.rpartition(",")[0] for line in (home / "train.csv").read_text().splitlines()[1:]]
    assert first == 90 and {text[1:] for text in documents[:first]} < {*rows} and not {*documents[first:]} & {*rows}
    assert not any("goodx" in text or "badx" in text for text in documents)

    others = ["--for_share", 0.5, "--for_task", "classification", "--eval_data", "b.jsonl"]
    for more in (["--for_share", 0.5], ["--for_share", 0.3, "--data", "b.jsonl"], others):
        code, said = recipe("pretrain", *options_of(out, "--for", "train.csv", *more, steps=2), "--resume")
        assert code == 2 and "error: --resume: " in said and "--allow_change" in said
    code, said = recipe("pretrain", *options_of(out, steps=2), "--resume")
    assert code == 2 and "error: --resume: " in said and "corpus is " in said
    code, said = recipe("pretrain", *options_of(out, "--for", "train.csv", steps=2), "--resume")
    assert code == 0, said


def test_the_share_is_exact_and_the_data_keep_their_proportions(home, tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("LACUNA_CACHE", str(tmp_path))
    tokenizer = tokenization.load_tokenizer(str(home / "tokenizer"))
    more = [f"task {number}. {sentences(number, 3)}" for number in range(30)]
    for data, shares in (
        ([f"{home}/a.jsonl", f"{home}/b.jsonl"], {0: 0.2}),
        ([f"{home}/a.jsonl:3", f"{home}/b.jsonl:1"], {0: 0.2, 1: 0.6, 2: 0.2}),
        ([], {0: 0.2}),
    ):
        arguments = CorpusArguments(data=data, for_file=["t.csv"], for_share=0.2)
        if not data:  # the built-in corpus, which takes a while to tokenize
            text = open_text(arguments).after(more, name="texts of t.csv", share=0.2)
            assert text.weights == [0.2, 0.8] and [each.source for each in text.documents()][29:31] == [0, 1]
            continue
        _, store = prepare_corpus(
            arguments,
            tokenizer_for=lambda text: tokenizer,
            fingerprint_of=tokenization.tokenizer_fingerprint,
            more=more,
        )
        [(_, work)] = objectives.make_works(
            objectives.ObjectiveArguments(objective="mlm", sequence_length="32"),
            store=store,
            tokenizer=tokenizer,
            seed=0,
            **tokenization.token_facts(tokenizer),
        )
        edges = [sum(rows for rows, _ in work.mixture[: number + 1]) for number in range(len(work.mixture))]
        seen = [row_of(n, seed=0, num_examples=work.num_examples, mixture=work.mixture) for n in range(1000)]
        counts = [sum(row < edge for row in seen) for edge in edges]
        for source, share in shares.items():
            assert counts[source] - (counts[source - 1] if source else 0) == pytest.approx(1000 * share, abs=2)
        assert len(work.mixture) == (2 if len(shares) == 1 else 3)  # without weights all of --data is one source
        assert len(work.by_source[0]) + len(work.held_out_by_source[0]) == len(more)


def test_what_is_also_in_the_data_counts_for_the_task(home, tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("LACUNA_CACHE", str(tmp_path))
    tokenizer = tokenization.load_tokenizer(str(home / "tokenizer"))
    more = [sentences(row, 6) for row in range(5)]  # the first rows of a.jsonl
    _, store = prepare_corpus(
        CorpusArguments(data=[f"{home}/a.jsonl"], for_file=["t.csv"]),
        tokenizer_for=lambda text: tokenizer,
        fingerprint_of=tokenization.tokenizer_fingerprint,
        more=more,
    )
    assert store.source_offsets.tolist() == [0, 5, 20]


@pytest.mark.parametrize(
    "words, message",
    [
        (["--for", "train.csv", "--corpus", "c"], "--for adds texts to those of --data, and --corpus c is tokenized"),
        (["--for_task", "classification"], "name one with --for"),
        (["--for_share", "0.5"], "--for_share 0.5 says how the file of --for is read: name one with --for"),
        (["--for", "train.csv", "--for_share", "1"], "--for_share must be above 0 and below 1, got 1.0"),
        (["--for", "train.csv", "--for_task", "tags"], "--for_task tags is not known"),
        (["--for", "tran.csv"], "there is no file or folder tran.csv. Did you mean train.csv"),
        (["--for", "sentiment"], "--for: built-in tasks are classification, question_answering, and there is no file"),
        (["--for"], "error: --for: expected at least one argument"),
        (["--for_share", "0.3"], "--for_share 0.3 says how the file of --for is read: name one with --for"),
        (["--for", "train.csv", "--for_task", "question_answering"], "train.csv:2: no column "),
    ],
)
def test_mistakes_are_one_message(recipe, tmp_path, words, message) -> None:
    code, said = recipe("pretrain", *options_of(tmp_path / "out"), *words)
    assert code == 2 and message in said and "Traceback" not in said and len(said) < 700
    assert not (tmp_path / "out").exists()


def test_examples_and_plans_know_it_and_a_store_does_not(recipe, home, tmp_path) -> None:
    code, said = recipe("pretrain", *options_of(tmp_path / "out", "--for", "train.csv"), "--show_examples", 1)
    assert code == 0 and not (tmp_path / "out").exists(), said
    code, said = recipe("plan_run", *options_of(tmp_path / "out", "--for", "train.csv", "--size", "tiny"))
    assert code == 0, said
    code, said = recipe("prepare_corpus", "--data", "a.jsonl", "--for", "train.csv")
    assert code == 2 and "unknown option '--for': it belongs to other recipes" in said
