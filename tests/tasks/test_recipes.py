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
        assert "label from column 'label' (inferred" in done.stdout
        results = json.loads((output / "results.json").read_text())
        names = ("eval_loss", "eval_accuracy", "eval_f1_macro", "baseline_accuracy")
        found[number] = [results[name] for name in names]
        lines = check_predictions(output / "predictions.jsonl", 7, {"text", "gold", "prediction", "probability"})
        assert [line["text"] for line in lines] == [row["text"] for row in LABELLED[32:39]]
    # Two steps of AdamW make 1e-4 of rounding in gradients near zero; an example that counts twice makes 1e-2.
    assert found[2] == pytest.approx(found[1], rel=1e-3)
    assert results["native_difference"] < 1e-4 and not [*output.glob("*.py")], "trained as ours, saved as it came"
    model = AutoModelForSequenceClassification.from_pretrained(output)
    assert type(model).__name__ == "BertForSequenceClassification" and model.config.id2label == {0: "+", 1: "-"}
    assert {"report.md", "confusion.png", "task.json", "results.json"} <= {path.name for path in output.iterdir()}
    settings = json.loads((output / "task.json").read_text())
    assert (settings["name"], settings["label_names"]) == ("classification", ["+", "-"])
    assert "| - | " in (output / "report.md").read_text()


def test_question_answering(checkpoint, tmp_path):
    train, output = write_rows(tmp_path / "train.jsonl", QUESTIONS), tmp_path / "out"
    options = ["--train_file", train, "--output_dir", output, "--max_steps", 2, "--max_length", 64, "--stride", 16]
    done = run("recipes/finetune_question_answering.py", "--model", checkpoint, *options)
    assert done.returncode == 0, done.stderr
    results = json.loads((output / "results.json").read_text())
    assert results["baseline_exact_match"] == 100.0 and 0 <= results["eval_f1"] <= 100
    keys = {"question", "prediction", "gold", "probability", "start", "end"}
    assert all(0 <= row["probability"] <= 1 for row in check_predictions(output / "predictions.jsonl", 2, keys))
    AutoModelForQuestionAnswering.from_pretrained(output)
    settings = json.loads((output / "task.json").read_text())
    lengths = {"max_length": 64, "stride": 16, "max_answer_length": 48}
    assert settings == {"name": "question_answering", **lengths, "threshold": None}


def test_questions_without_an_answer_on_two_processes(checkpoint, tmp_path):
    rows = [
        {**row, "answers": {"text": [], "answer_start": []}} if n % 3 == 0 else row for n, row in enumerate(QUESTIONS)
    ]
    train, held_out = write_rows(tmp_path / "t.jsonl", rows), write_rows(tmp_path / "e.jsonl", rows[:11])
    found = {}
    for number in (1, 2):
        output = tmp_path / f"out{number}"
        options = ["--train_file", train, "--eval_file", held_out, "--output_dir", output, "--max_steps", 2]
        options += ["--max_length", 64, "--stride", 16, "--batch_size", 8, "--eval_batch_size", 3]
        done = run(
            "recipes/finetune_question_answering.py", "--model", checkpoint, *options, "--mixed_precision", "no",
            num_processes=number,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        assert "7 of 20 training questions and 4 of 11 held-out questions have no answer" in done.stdout
        assert "warning: 11 of 11 held-out rows are also in the training rows" in done.stdout
        results = json.loads((output / "results.json").read_text())
        found[number] = [results[f"eval_{name}"] for name in ("loss", "f1", "has_answer_f1", "no_answer_f1")]
        settings = json.loads((output / "task.json").read_text())
        assert settings["threshold"] == results["eval_no_answer_threshold"]
        assert len(check_predictions(output / "predictions.jsonl", 11, {"gold", "correct"})) == 11
    assert found[2] == pytest.approx(found[1], rel=1e-3)


@pytest.mark.parametrize(
    ("rows", "options", "said", "loaded"),
    [
        (
            [{"text": f"row {i}", "topics": ["a"] * (i % 2) + ["b"] * (i % 3 == 0)} for i in range(30)],
            ["--label_column", "topics", "--class_weights", "balanced"],
            "holds several labels a row, multi_label_classification",
            ("multi_label_classification", {0: "a", 1: "b"}),
        ),
        (
            [{"sentence1": f"row {i}", "sentence2": "x", "score": i % 5 / 2} for i in range(30)],
            [],
            "holds a number a row, regression",
            ("regression", {0: "score"}),
        ),
    ],
)
def test_several_labels_and_numbers(checkpoint, tmp_path, rows, options, said, loaded):
    output = tmp_path / "out"
    options = [*options, "--train_file", write_rows(tmp_path / "t.jsonl", rows), "--output_dir", output]
    done = run("recipes/finetune_classification.py", "--model", checkpoint, *options, "--max_steps", 2)
    assert done.returncode == 0, done.stderr
    assert said in done.stdout
    config = AutoModelForSequenceClassification.from_pretrained(output).config
    assert (config.problem_type, config.id2label) == loaded
    assert (output / "report.md").is_file() and len(list(output.glob("*.png"))) >= 1
    check_predictions(output / "predictions.jsonl", 3, {"gold", "prediction"})


def test_dry_run_shows_and_writes_nothing(checkpoint, tmp_path):
    train, output = write_rows(tmp_path / "t.jsonl", LABELLED), tmp_path / "out"
    options = ["--train_file", train, "--output_dir", output, "--dry_run"]
    done = run("recipes/finetune_classification.py", "--model", checkpoint, *options)
    assert done.returncode == 0, done.stderr
    assert "example 5:" in done.stdout and "label balance" in done.stdout and not output.exists()


def test_mistakes_are_one_message_and_leave_nothing(checkpoint, tmp_path, run_recipe):
    bad = write_rows(tmp_path / "bad.jsonl", [*LABELLED, {"text": "x"}])
    good = write_rows(tmp_path / "good.jsonl", LABELLED)
    new = write_rows(tmp_path / "new.jsonl", [LABELLED[0], {"text": "x", "label": "?"}])
    one = write_rows(tmp_path / "one.jsonl", [row for row in LABELLED if row["label"] == "+"])
    empty = write_rows(tmp_path / "empty.jsonl", [*LABELLED, {"text": " ", "label": "+"}])
    joined = write_rows(tmp_path / "joined.jsonl", [{"text": f"x {i}", "label": "a|b"} for i in range(9)])
    output = tmp_path / "out"
    cases = [
        (["--output_dir", output], "--model"),
        (["--model", checkpoint, "--train_file", bad, "--output_dir", output], "bad.jsonl:43: no column 'label'"),
        (
            ["--model", checkpoint, "--train_file", good, "--eval_file", new, "--output_dir", output],
            "new.jsonl:2: label '?'",
        ),
        (["--model", checkpoint, "--train_file", one, "--output_dir", output], "every training row has the label '+'"),
        (
            ["--model", checkpoint, "--train_file", empty, "--output_dir", output],
            "empty.jsonl:43: column 'text' is empty",
        ),
        (["--model", checkpoint, "--train_file", joined, "--output_dir", output], '--label_separator "|"'),
        (["--model", checkpoint, "--train_file", tmp_path / "god.jsonl", "--output_dir", output], "Did you mean"),
    ]
    for options, message in cases:
        code, said = run_recipe("finetune_classification", *options)
        assert code == 2, said
        assert message in said and "Traceback" not in said
        assert not output.exists()
