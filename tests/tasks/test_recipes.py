"""The two fine-tuning recipes, run as people run them, for two steps on a model of 32 hidden units."""

import json
from pathlib import Path

import pytest
from processes import run
from transformers import AutoModelForQuestionAnswering, AutoModelForSequenceClassification, BertConfig, BertForMaskedLM

SMALL = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory, tokenizer) -> Path:
    folder = tmp_path_factory.mktemp("pretrained")
    BertForMaskedLM(BertConfig(vocab_size=320, max_position_embeddings=128, **SMALL)).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def write_rows(path: Path, rows: list[dict]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def check_predictions(path: Path, number: int, keys: set[str]) -> list[dict]:
    lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    assert len(lines) == number and all(keys <= line.keys() for line in lines)
    return lines


LABELLED = [{"text": f"row {i} is {'good' if i % 3 else 'bad'}", "label": "+" if i % 3 else "-"} for i in range(42)]
QUESTIONS = [
    {
        "question": f"what is {i}?",
        "context": f"{i} is a fox. " + "And so on. " * i,
        "answers": {"text": ["fox"], "answer_start": [len(f"{i} is a ")]},
    }
    for i in range(20)
]


def test_classification_on_two_processes_gives_the_same_numbers(checkpoint, tmp_path):
    train, held_out = (
        write_rows(tmp_path / "t.jsonl", LABELLED[:32]),
        write_rows(tmp_path / "e.jsonl", LABELLED[32:39]),
    )
    found = {}
    for number in (1, 2):
        output = tmp_path / f"out{number}"
        options = ["--train_file", train, "--eval_file", held_out, "--output_dir", output, "--max_steps", 2]
        options += ["--batch_size", 8, "--eval_batch_size", 2, "--mixed_precision", "no"]
        done = run("recipes/finetune_classification.py", "--model", checkpoint, *options, num_processes=number)
        assert done.returncode == 0, done.stderr
        assert "label from column 'label' (guessed" in done.stdout
        results = json.loads((output / "results.json").read_text())
        names = ("eval_loss", "eval_accuracy", "eval_f1_macro", "baseline_accuracy")
        found[number] = [results[name] for name in names]
        lines = check_predictions(output / "predictions.jsonl", 7, {"text", "label", "prediction", "probability"})
        assert [line["text"] for line in lines] == [row["text"] for row in LABELLED[32:39]]
    # Two steps of AdamW make 1e-4 of rounding in gradients near zero; an example that counts twice makes 1e-2.
    assert found[2] == pytest.approx(found[1], rel=1e-3)
    model = AutoModelForSequenceClassification.from_pretrained(output)
    assert model.config.id2label == {0: "+", 1: "-"}


def test_question_answering(checkpoint, tmp_path):
    train, output = write_rows(tmp_path / "train.jsonl", QUESTIONS), tmp_path / "out"
    options = ["--train_file", train, "--output_dir", output, "--max_steps", 2, "--max_length", 64, "--stride", 16]
    done = run("recipes/finetune_question_answering.py", "--model", checkpoint, *options)
    assert done.returncode == 0, done.stderr
    results = json.loads((output / "results.json").read_text())
    assert results["baseline_exact_match"] == 100.0 and 0 <= results["eval_f1"] <= 100
    keys = {"question", "prediction", "answers", "score", "start", "end"}
    check_predictions(output / "predictions.jsonl", 2, keys)
    AutoModelForQuestionAnswering.from_pretrained(output)


def test_mistakes_are_one_message_and_leave_nothing(checkpoint, tmp_path, run_recipe):
    bad = write_rows(tmp_path / "bad.jsonl", [*LABELLED, {"text": "x"}])
    output = tmp_path / "out"
    cases = [
        (["--output_dir", output], "--model"),
        (["--model", checkpoint, "--train_file", bad, "--output_dir", output], "bad.jsonl:43: no column 'label'"),
    ]
    for options, message in cases:
        code, said = run_recipe("finetune_classification", *options)
        assert code == 2, said
        assert message in said and "Traceback" not in said
        assert not output.exists()
