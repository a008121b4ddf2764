"""The recipes for tagged tokens, choices, written texts and embeddings, run as people run them, for a few steps."""

import hashlib
import json
import math
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
from processes import run

from lacuna import modeling
from lacuna.modeling import LacunaConfig
from lacuna.tasks.base.arguments import used
from lacuna.tasks.classification.reader import ClassificationArguments
from lacuna.tasks.sequence_to_sequence.task import SequenceToSequenceArguments
from lacuna.tokenization import adapt_tokenizer

SMALL = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "head_dim": 16, "intermediate_size": 64}
HEADS = {
    "modernbert": "LacunaForMaskedLM",
    "bert": "LacunaForMaskedLM",
    "qwen3": "LacunaForCausalLM",
    "bart": "LacunaForConditionalGeneration",
}
LEFT = {"results.json", "predictions.jsonl", "report.md", "task.json", "README.md", "model.safetensors", "config.json"}
TAGGED = [
    {"tokens": ["the", f"river{i}", "of", "York"][: 2 + i % 3], "tags": ["O", "B-water", "O", "B-place"][: 2 + i % 3]}
    for i in range(23)
]
CHOICES = [
    {"question": f"what is {i}?", "choices": ["a fox", "a dog", "the river"][: 2 + i % 2], "label": i % 2}
    for i in range(23)
]
PAIRS = [{"en": f"the fox {i}", "de": f"der fuchs {i}"} for i in range(23)]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory, tokenizer):
    def make(family: str) -> Path:
        folder = tmp_path_factory.mktemp("pretrained")
        torch.manual_seed(0)
        config = LacunaConfig.from_family(family, vocab_size=len(tokenizer), max_position_embeddings=64, **SMALL)
        getattr(modeling, HEADS[family])(config).save_pretrained(folder)
        adapted = adapt_tokenizer(
            tokenizer=tokenizer, shape=config.shape, segments=bool(config.type_vocab_size), max_length=64
        )
        adapted.save_pretrained(folder)
        return folder

    return make


def written(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def fine_tuned(recipe: str, model: Path, rows: list[dict[str, Any]], folder: Path, *more: object, **how: Any) -> dict:
    """The results of two steps on the first 16 rows, evaluated on the other 7."""
    train, held_out = written(folder / "train.jsonl", rows[:16]), written(folder / "eval.jsonl", rows[16:])
    output = folder / f"out{how.get('num_processes', 1)}"
    options = ["--train_file", train, "--eval_file", held_out, "--output_dir", output, "--max_steps", 2, *more]
    done = run(f"recipes/{recipe}.py", "--model", model, *options, "--mixed_precision", "no", **how)
    assert done.returncode == 0, done.stderr
    assert {path.name for path in output.iterdir()} >= LEFT
    lines = (output / "predictions.jsonl").read_text(encoding="utf-8").splitlines()
    assert len(lines) == 7
    return json.loads((output / "results.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize(
    ("recipe", "family", "rows", "names", "package"),
    [
        ("finetune_token_classification", "modernbert", TAGGED, ("loss", "f1", "accuracy"), "seqeval"),
        pytest.param(
            *("finetune_multiple_choice", "qwen3", CHOICES, ("loss", "accuracy"), "torch"), marks=pytest.mark.slow
        ),
        ("finetune_seq2seq", "bart", PAIRS, ("loss", "chrf", "bleu", "rougeL"), "sacrebleu"),
        pytest.param(
            *("finetune_seq2seq", "qwen3", PAIRS, ("loss", "chrf", "bleu", "rougeL"), "sacrebleu"),
            marks=pytest.mark.slow,
        ),
    ],
)
def test_two_processes_give_the_numbers_of_one(recipe, family, rows, names, package, checkpoint, tmp_path):
    pytest.importorskip(package)
    model, small = checkpoint(family), ["--batch_size", 8, "--eval_batch_size", 2, "--compile", "off"]
    if recipe == "finetune_seq2seq":
        small += ["--max_target_length", 8]
    found = [fine_tuned(recipe, model, rows, tmp_path, *small, num_processes=number) for number in (1, 2)]
    one, two = ([results[f"eval_{name}"] for name in names] for results in found)
    # Two steps make 1e-4 of rounding; an example that counts twice makes 1e-2.
    assert two == pytest.approx(one, rel=1e-3, abs=1e-6)
    assert all(f"baseline_{name}" in found[0] for name in names)


def test_a_native_model_that_chooses_is_saved_as_it_came(checkpoint, tmp_path, run_recipe):
    rows, output = written(tmp_path / "train.jsonl", CHOICES), tmp_path / "out"
    short = ["--max_steps", 1, "--batch_size", 4, "--compile", "off", "--save_steps", 0, "--mixed_precision", "no"]
    words = ["--model", checkpoint("bert"), "--train_file", rows, "--output_dir", output, *short]
    code, said = run_recipe("finetune_multiple_choice", *words)
    assert code == 0, said
    results = json.loads((output / "results.json").read_text(encoding="utf-8"))
    assert results["native_difference"] < 1e-4 and not [*output.glob("*.py")]


@pytest.mark.slow
def test_embeddings_load_where_nobody_knows_lacuna(checkpoint, tmp_path):
    pytest.importorskip("sentence_transformers")
    rows = [{"question": row["en"], "answer": row["de"]} for row in PAIRS]
    results = fine_tuned("finetune_embeddings", checkpoint("modernbert"), rows, tmp_path, "--batch_size", 8)
    assert {"eval_mrr_at_10", "start_mrr_at_10", "baseline_mrr_at_10", "steps"} <= results.keys()
    script = (
        "import sys; from sentence_transformers import SentenceTransformer as S; "
        "vectors = S(sys.argv[1], trust_remote_code=True, device='cpu').encode(['a', 'b']); "
        "print(vectors.shape, 'lacuna.modeling' in sys.modules)"
    )
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    environment |= {"HF_MODULES_CACHE": str(tmp_path / "code")}
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path / "out1")],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.split("\n")[-2] == "(2, 32) False", done.stderr


def test_embeddings_say_what_they_have_reached(checkpoint, tmp_path, run_recipe):
    pytest.importorskip("sentence_transformers")
    rows = [{"sentence1": row["en"], "sentence2": row["de"], "score": i % 5} for i, row in enumerate(PAIRS)]
    train, output = written(tmp_path / "train.jsonl", rows), tmp_path / "out"
    options = ["--train_file", train, "--output_dir", output, "--max_steps", 12, "--batch_size", 4]
    done = run("recipes/finetune_embeddings.py", "--model", checkpoint("modernbert"), *options, "--eval_fraction", 0.3)
    assert done.returncode == 0, done.stderr
    beside = "".join(rf"   {what} -?0\.\d{{4}}" for what in ("before training", "without a model", "with words"))
    assert re.search(rf"^spearman +-?0\.\d{{4}}{beside}$", done.stdout, flags=re.MULTILINE)
    page = f"a page on it: python recipes/report_run.py --run {output}"
    assert done.stdout.splitlines()[-2:] == [f"the model is in {output}", page]
    code, said = run_recipe("report_run", "--run", output)
    assert code == 0 and "12 steps" in (text := (output / "run.html").read_text(encoding="utf-8")), said
    assert "<td>spearman</td>" in text and "<td>sentence-transformers</td>" in text and 'alt="curves"' in text
    assert "{" not in done.stdout + done.stderr and "it/s" not in done.stderr, "what the Trainer would print"
    assert {"metrics.jsonl", "curves.png", "scatter.png"} <= {path.name for path in output.iterdir()}
    card = (output / "README.md").read_text(encoding="utf-8")
    results = json.loads((output / "results.json").read_text(encoding="utf-8"))
    shown = [f"{results[f'{part}_spearman']:.4f}" for part in ("eval", "start", "baseline")]
    assert f"| spearman | {' | '.join(shown)} |" in card
    assert f"| train_file | `{train}` |" in card and "| examples | 16 to train on, 7 held out |" in card
    assert "library_name: sentence-transformers" in card and "pipeline_tag: sentence-similarity" in card
    assert "python recipes/finetune_embeddings.py --model" in card and "--max_steps 12" in card
    taken = f"--output_dir {output} already holds a run; name another folder"
    options[1] = tmp_path / "not there.jsonl"
    code, said = run_recipe("finetune_embeddings", "--model", checkpoint("modernbert"), *options)
    assert code == 2 and taken in said, "it is told before rows are read"
    options[1] = train
    dry = run("recipes/finetune_embeddings.py", "--model", checkpoint("modernbert"), *options, "--dry_run")
    assert dry.returncode == 0, dry.stderr
    weights, note = dry.stdout.splitlines()[-2:]
    assert re.fullmatch(r"[\d,]+ of [\d,]+ weights learn, at a rate of \S+ at its peak", weights)
    assert note == f"note: without --dry_run this would be refused: {taken}"


def test_embeddings_have_a_page_while_they_learn(checkpoint, tmp_path, run_recipe, monkeypatch):
    pytest.importorskip("sentence_transformers")
    train, output = (
        written(tmp_path / "train.jsonl", [{"question": f"a {i}?", "answer": f"{i}"} for i in range(20)]),
        tmp_path / "out",
    )
    monkeypatch.setattr("lacuna.tasks.embeddings.encoders.train_encoder", mock.Mock(side_effect=KeyboardInterrupt))
    start = ["--model", checkpoint("modernbert"), "--train_file", train, "--output_dir", output]
    assert run_recipe("finetune_embeddings", *start)[0] == 130
    code, said = run_recipe("report_run", "--run", output)
    assert code == 0 and "It has not ended." in (output / "run.html").read_text(encoding="utf-8"), said


def test_embeddings_learn_from_text_alone_and_a_classifier_begins_there(checkpoint, tmp_path, run_recipe):
    pytest.importorskip("sentence_transformers")
    texts = [
        "\n\n".join(f"Passage {place} of text {number}, which is all about subject {number}." for place in range(5))
        for number in range(8)
    ]
    file = written(tmp_path / "texts.jsonl", [{"body": text} for text in texts])
    start, near, output = ["--model", checkpoint("modernbert")], tmp_path / "near", tmp_path / "out"
    alone = ["--data", file, "--text_column", "body", "--eval_fraction", 0.3, "--batch_size", 4]
    code, said = run_recipe("finetune_embeddings", *start, *alone, "--output_dir", near)
    assert code == 0, said
    note = "a sentence and the passage around it belong together; the loss is MultipleNegatives"
    assert note in (near / "report.md").read_text(encoding="utf-8")
    held_out = [json.loads(line) for line in (near / "predictions.jsonl").read_text(encoding="utf-8").splitlines()]
    subjects = [{re.search(r"subject (\d)", text)[1] for text in (row["text"], *row["gold"])} for row in held_out]
    assert all(len(each) == 1 for each in subjects) and len(set.union(*subjects)) == 2, "whole documents, of which two"
    facts = json.loads((near / "run.json").read_text(encoding="utf-8"))
    assert facts["task"]["data"] == [str(file)] and facts["examples"] + facts["held_out"] == 8 * 2
    assert json.loads((near / "results.json").read_text(encoding="utf-8"))["steps"] == math.ceil(facts["examples"] / 4)
    rows = written(tmp_path / "rows.jsonl", [{"text": f"subject {i}", "label": "ab"[i % 2]} for i in range(20)])
    once = ["--train_file", rows, "--output_dir", output, "--max_steps", 1, "--compile", "off", "--save_steps", 0]
    code, said = run_recipe("finetune_classification", "--model", near, *once)
    assert code == 0, said
    assert json.loads((output / "config.json").read_text(encoding="utf-8"))["classifier_pooling"] == "mean"
    both = [*alone, "--train_file", rows, "--output_dir", tmp_path / "no"]
    code, said = run_recipe("finetune_embeddings", *start, *both)
    assert code == 2 and "is text without any pairs, and" in said and not (tmp_path / "no").exists()
    code, said = run_recipe(
        "finetune_embeddings", *start, *alone, "--kind", "triples", "--output_dir", tmp_path / "no"
    )
    assert code == 2 and "--kind triples: passages of --data are pairs" in said


def test_embeddings_on_two_processes(checkpoint, tmp_path):
    pytest.importorskip("sentence_transformers")
    rows = [{"question": row["en"], "answer": row["de"]} for row in PAIRS]
    results = fine_tuned(
        "finetune_embeddings",
        checkpoint("modernbert"),
        rows,
        tmp_path,
        "--batch_size",
        8,
        "--max_minutes",
        60,
        num_processes=2,
    )
    assert results["steps"] == 2 and 0 < results["eval_mrr_at_10"] <= 1


@pytest.mark.parametrize(
    ("recipe", "options", "message"),
    [
        ("finetune_token_classification", [], "--train_file"),
        ("finetune_multiple_choice", [], "--train_file"),
        ("finetune_seq2seq", ["--train_target_file", "x"], "--train_file"),
        ("finetune_embeddings", [], "--train_file"),
        ("finetune_token_classification", ["--train_file", "no.conll"], "no.conll"),
        (
            "finetune_embeddings",
            ["--train_file", "a.csv", "--lora_rank", "8"],
            "'--lora_rank': it belongs to other recipes",
        ),
    ],
)
def test_mistakes_are_one_message_and_leave_nothing(recipe, options, message, checkpoint, tmp_path, run_recipe):
    output = tmp_path / "out"
    code, said = run_recipe(recipe, "--model", checkpoint("modernbert"), "--output_dir", output, *options)
    assert code == 2 and message in said and "Traceback" not in said
    assert not output.exists()


ASKED = (
    "['the fox', 'a fox', '5.0'] (the first line looks like data and not like names: name the columns with "
    "--column_names)"
)


@pytest.mark.parametrize(
    ("recipe", "name", "message"),
    [
        ("finetune_embeddings", "pairs.txt", "has the ending '.txt'; rows are read from"),
        ("finetune_multiple_choice", "pairs.txt", "has the ending '.txt'; rows are read from"),
        ("finetune_embeddings", "pairs.tsv", f"which columns of {ASKED} hold a text and one that belongs to it?"),
        ("finetune_classification", "pairs.tsv", f"which column of {ASKED} holds the label?"),
        ("finetune_multiple_choice", "pairs.tsv", f"which columns of {ASKED} hold the question, the choices ("),
    ],
)
def test_what_is_no_table_with_names_is_told(recipe, name, message, checkpoint, tmp_path, run_recipe):
    pairs = tmp_path / name
    pairs.write_text("the fox\ta fox\t5.0\nthe dog\ta river\t0.5\n", encoding="utf-8")
    code, said = run_recipe(recipe, "--model", checkpoint("modernbert"), "--train_file", pairs)
    assert code == 2 and message in said and "Traceback" not in said


def test_an_encoder_cannot_write(checkpoint, tmp_path, run_recipe):
    pairs = written(tmp_path / "pairs.jsonl", PAIRS)
    code, said = run_recipe("finetune_seq2seq", "--model", checkpoint("modernbert"), "--train_file", pairs)
    assert code == 2 and "is an encoder (lacuna), which writes no text" in said


def test_the_card_leaves_out_what_decided_nothing():
    """Beside files with a text a line no column is read, and beside held-out rows no share is held out."""
    two = SequenceToSequenceArguments(train_file="a.en", train_target_file="a.de")
    assert {"eval_fraction", "eval_file", "num_beams"} <= used(two).keys()
    assert not {"source_column", "target_column", "source_prefix"} & used(two).keys()
    both = {"eval_file": "b.en", "eval_target_file": "b.de", "source_prefix": "to German: "}
    four = used(SequenceToSequenceArguments(train_file="a.en", train_target_file="a.de", **both))
    assert not {"eval_fraction", "source_column"} & four.keys() and four["source_prefix"] == "to German: "
    table = used(SequenceToSequenceArguments(train_file="a.en", train_target_file="a.de", eval_file="b.csv"))
    assert "source_column" in table and "eval_fraction" not in table
    assert "label_column" in used(ClassificationArguments(train_file="a.csv", eval_file="b.csv"))


@pytest.mark.parametrize("lines", [False, True], ids=["a table", "two files"])
def test_a_model_that_writes_says_on_its_card_what_it_has_read(lines, checkpoint, tmp_path, run_recipe):
    pytest.importorskip("sacrebleu")
    train = written(tmp_path / "train.jsonl", PAIRS)
    files = ["--train_file", train, "--eval_file", train]
    if lines:
        for name in ("en", "de"):
            (tmp_path / name).write_text("".join(f"{row[name]}\n" for row in PAIRS), encoding="utf-8")
        files = [f"--{part}_{what}" for part in ("train", "eval") for what in ("file", "target_file")]
        files = [
            word for option, name in zip(files, ["en", "de"] * 2, strict=True) for word in (option, tmp_path / name)
        ]
    short = ["--max_steps", 1, "--batch_size", 4, "--max_target_length", 4, "--compile", "off", "--save_steps", 0]
    short += ["--mixed_precision", "no"]  # as the other runs of this process have it
    code, said = run_recipe(
        "finetune_seq2seq", "--model", checkpoint("bart"), *files, *short, "--output_dir", tmp_path / "out"
    )
    assert code == 0, said
    card = (tmp_path / "out" / "README.md").read_text(encoding="utf-8")
    data = card[card.index("## Data") : card.index("## Made by")]
    assert "eval_fraction" not in data and "source_prefix" not in data and "| eval_file |" in data
    assert ("source_column" in data) is not lines
    digest = hashlib.sha256(Path(files[1]).read_bytes()).hexdigest()
    assert f"| train_file_sha256 | `{digest}` |" in data
