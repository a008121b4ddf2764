"""Pretraining with a teacher on tiny models: from text to a card, resumed, and what is refused."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import processes
import pytest
from small_models import TEXTS
from transformers import AutoModelForCausalLM, AutoModelForMaskedLM, AutoTokenizer

from lacuna.tokenization import save_tokenizer, train_bpe

RECIPE = Path(__file__).resolve().parents[2] / "recipes" / "pretrain.py"
SMALLEST = ("--logging_steps", 1, "--eval_steps", 0, "--sequence_length", 32, "--batch_size", 8)
SMALLEST += ("--mixed_precision", "no", "--optimizer", "adamw", "--num_hidden_layers", 1)


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A text of 120 documents."""
    folder = tmp_path_factory.mktemp("home")
    rows = [
        {"text": f"{TEXTS[number % 7]} {TEXTS[number * 3 % 7]} {TEXTS[number * number % 7]}"} for number in range(120)
    ]
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


@pytest.fixture(scope="session")
def teachers(folder_of) -> Callable[[str], Path]:
    """The folder of the teacher for an objective."""
    kinds = {"mlm": ("modernbert", "LacunaForMaskedLM"), "clm": ("qwen3", "LacunaForCausalLM")}
    found = {objective: folder_of(*kind) for objective, kind in kinds.items()}
    return found.__getitem__


def options_of(teacher: Path, output: Path, *more: object, objective: str = "mlm", steps: int = 4) -> list[object]:
    words = ["--teacher", teacher, "--data", "rows.jsonl", "--objective", objective, "--output_dir", output]
    return [*words, "--max_steps", steps, "--save_steps", 0, "--top_k", 4, *SMALLEST, *more]


def losses(output: Path) -> list[float]:
    lines = [json.loads(line) for line in (output / "metrics.jsonl").read_text().splitlines()]
    return [line["loss"] for line in lines if "loss" in line]


@pytest.mark.parametrize(("objective", "auto"), [("mlm", AutoModelForMaskedLM), ("clm", AutoModelForCausalLM)])
def test_a_student_and_what_it_writes_and_how_it_is_resumed(recipe, home, tmp_path, teachers, objective, auto) -> None:
    whole, halves, teacher = tmp_path / "whole", tmp_path / "halves", teachers(objective)
    more = [
        "--save_steps",
        2,
        "--average",
        "ema",
        *(("--micro_batch_size", 4) if objective == "clm" else ()),
    ]
    code, said = recipe("pretrain", *options_of(teacher, whole, *more, objective=objective))
    assert code == 0, said
    about = json.loads((whole / "run.json").read_text())
    assert about["objective"].startswith(f"{objective}, distilled from `") and about["teacher_scores"]["loss"] > 0
    assert about["identity"]["teacher_weights"] == about["teacher_weights"] and about["distill_weight"] == 0.9
    assert f"trained with Lacuna by {objective}, distilled from `" in (whole / "README.md").read_text()
    lines = [json.loads(line) for line in (whole / "metrics.jsonl").read_text().splitlines()]
    steps = [line for line in lines if "loss" in line]
    for line in steps:
        assert line["loss"] == pytest.approx(0.9 * line["teacher_loss"] + 0.1 * line["text_loss"], rel=1e-5)
    assert len(steps) == 4 and steps[-1]["text_loss"] < steps[0]["text_loss"]
    results = json.loads((whole / "results.json").read_text())
    assert results["eval_loss"] > 0 and {"eval_bits_per_byte", "baseline_loss"} <= results.keys()
    tokenizers = [AutoTokenizer.from_pretrained(folder) for folder in (teacher, whole)]
    assert tokenizers[0]("a gap")["input_ids"] == tokenizers[1]("a gap")["input_ids"]
    auto.from_pretrained(whole)

    [*_, made] = sorted((home / "cache" / "teachers").glob("*/about.json"), key=lambda path: path.stat().st_mtime)
    before = made.stat().st_mtime
    shutil.copytree(whole / "checkpoints" / "step-00000002", halves / "checkpoints" / "step-00000002")
    shutil.copy(whole / "run.json", halves)
    given = options_of(teacher, halves, *more, "--resume", objective=objective)
    for option in (("--distill_weight", 0.4), ("--top_k", 5)):
        code, said = recipe("pretrain", *given, *option)
        assert code == 2 and f": {option[0][2:]} is " in said
    code, said = recipe("pretrain", *given)
    assert code == 0 and "at step 2" in said, said
    assert (halves / "model.safetensors").read_bytes() == (whole / "model.safetensors").read_bytes()
    assert losses(halves) == losses(whole)[2:] and made.stat().st_mtime == before


@pytest.mark.slow
def test_two_processes_ask_once_and_see_what_one_does(home, tmp_path, teachers) -> None:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "LACUNA_CACHE": str(home / "cache")}
    outputs = {number: tmp_path / str(number) for number in (2, 1)}
    for number, output in outputs.items():
        words = options_of(teachers("mlm"), output, "--optimizer", "adamw", "--seed", 7, "--eval_fraction", 0)
        words[words.index("rows.jsonl")] = home / "rows.jsonl"
        run = processes.run(RECIPE, *words, env=environment, num_processes=number)
        assert run.returncode == 0, run.stderr
        assert run.stdout.count("asking the teacher once about") == (number == 2)
    assert losses(outputs[2]) == pytest.approx(losses(outputs[1]), rel=1e-5)


def test_what_is_refused(recipe, home, tmp_path, teachers, folder_of) -> None:
    """In the words of the options that were typed."""
    encoder, decoder = teachers("mlm"), teachers("clm")
    other = tmp_path / "other"
    save_tokenizer(tokenizer=train_bpe(documents=["quite another text"] * 9, vocab_size=280), output_dir=other)
    bart = folder_of("bart", "LacunaForConditionalGeneration")
    for teacher, more, message in (
        (tmp_path / "none", (), "--teacher: there is no folder"),
        (
            encoder,
            ("--tokenizer", other),
            "--tokenizer cannot be combined with --teacher, whose tokenizer reads the text",
        ),
        (encoder, ("--sequence_length", 65), "--sequence_length 65 is more than the 64 positions of --teacher"),
        (encoder, ("--objective", "clm"), "is a LacunaForMaskedLM, and --objective clm is learned from a class that"),
        (decoder, (), "ends in ForMaskedLM or ForPreTraining: use --objective clm"),
        (bart, (), "is a LacunaForConditionalGeneration, and --objective mlm"),
        (encoder, ("--objective", "hybrid"), "--objective hybrid is not learned from a teacher: use mlm or clm"),
        (encoder, ("--vocab_size", 300), "--vocab_size cannot be combined with --teacher"),
        (encoder, ("--for", "rows.jsonl"), "--for cannot be combined with --teacher"),
        ("", (), "--top_k 4 means nothing without --teacher; leave it out"),
    ):
        code, said = recipe("pretrain", *options_of(teacher, tmp_path / "out", *more))
        assert code == 2 and message in said and "Traceback" not in said, said
    made = sorted((home / "cache" / "teachers").glob("*"))
    for more, message in (  # before the teacher is asked
        (("--micro_batch_size", 5), "--micro_batch_size 5 does not divide the 8 examples"),
        (("--family", "qwen3"), "--objective mlm trains models of shape encoder"),
        (("--probe", "missing.jsonl"), "missing.jsonl"),
    ):
        code, said = recipe("pretrain", *options_of(encoder, tmp_path / "out", "--seed", 99, *more))
        assert code == 2 and message in said and "Traceback" not in said, said
    assert sorted((home / "cache" / "teachers").glob("*")) == made
    assert not (tmp_path / "out" / "run.json").exists()


def test_examples_are_shown_without_asking(recipe, home, tmp_path, teachers, capsys) -> None:
    code, _ = recipe("pretrain", *options_of(teachers("mlm"), tmp_path / "out", "--show_examples", 2, "--seed", 11))
    assert code == 0 and not (tmp_path / "out").exists()
