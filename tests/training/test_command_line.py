"""Options from YAML and command line, and what a mistake in them gets."""

import dataclasses
import gc
import re
import runpy
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from lacuna.common.command_line import exit_cleanly, parse_arguments
from lacuna.common.errors import InputError
from lacuna.common.options import ESSENTIALS, names_of
from lacuna.corpus import CorpusArguments
from lacuna.objectives import ObjectiveArguments
from lacuna.tasks.embeddings.task import EmbeddingArguments
from lacuna.training import FineTuningArguments, ModelArguments, TrainingArguments

RECIPES = Path(__file__).resolve().parents[2] / "recipes"
ROOMS = (ModelArguments, CorpusArguments, ObjectiveArguments, TrainingArguments)


@pytest.fixture
def yaml_file(tmp_path):
    def write(text: str) -> Path:
        path = tmp_path / "options.yaml"
        path.write_text(text, encoding="utf-8")
        return path

    return write


def test_default_then_yaml_then_command_line(yaml_file) -> None:
    path = yaml_file(
        "learning_rate: 2e-3\nmax_steps: 7\ndata: [a.txt, b.txt]\nresume: false\ntokenizer: null\nseed: 5\n"
    )
    model, corpus, goal, training = parse_arguments(ROOMS, ["--max_steps", "9", "--config", str(path), "--resume"])
    assert training == dataclasses.replace(TrainingArguments(), learning_rate=2e-3, max_steps=9, resume=True, seed=5)
    assert corpus.data == ["a.txt", "b.txt"] and corpus.tokenizer is None and model.model is None
    assert goal == ObjectiveArguments()


def test_nothing_given_is_the_defaults() -> None:
    assert parse_arguments(ROOMS, []) == tuple(kind() for kind in ROOMS)
    assert parse_arguments((FineTuningArguments,), []) == (FineTuningArguments(),)


def test_hyphens_and_equal_signs_are_as_good() -> None:
    (training,) = parse_arguments((TrainingArguments,), ["--max-steps=3", "--mixed_precision=no"])
    assert training.max_steps == 3 and training.mixed_precision == "no"


def test_trackers_by_name(yaml_file) -> None:
    (training,) = parse_arguments((TrainingArguments,), ["--report_to", "tensorboard", "wandb"])
    assert training.report_to == ["tensorboard", "wandb"]
    (training,) = parse_arguments((TrainingArguments,), ["--config", str(yaml_file("report_to: [trackio]\n"))])
    assert training.report_to == ["trackio"]


@pytest.mark.parametrize(
    "given, message",
    [
        (["--max_step", "3"], r"unknown option '--max_step' \(did you mean '--max_steps'\?\)"),
        (["--lerning_rate=3"], r"unknown option '--lerning_rate' \(did you mean '--learning_rate'\?\)"),
        (["--qqqqqq"], r"unknown option '--qqqqqq' \(--help"),
        (["--max_step", "3", "--seedd=1"], r"unknown options '--max_step' .*; '--seedd' \(did you mean '--seed'\?\)"),
        (["stray"], r"'stray' stands before any option"),
        (["--max_steps", "3", "4"], r"--max_steps takes one value, got 3 4"),
        (["--max_steps", "3", "--max_steps=4"], r"--max_steps is given twice: --max_steps=3 and --max_steps 4"),
        (["--max_steps", "many"], r"--max[_-]steps.*'many'"),
        (["--learning_rate", "fast"], r"--learning[_-]rate.*'fast'"),
        (["--objective", "gpt"], r"--objective.*'gpt'.*mlm_nsp"),
        (["--schedule", "step"], r"--schedule.*'step'.*cosine"),
        (["--resume", "perhaps"], r"--resume|perhaps"),
        (["--max_steps"], r"--max_steps takes one value, got none"),
        (["--config"], r"--config takes one value, got none"),
        (["--batch_size", "0"], r"--batch_size must be a whole number greater than 0, got 0"),
        (["--sequence_length", "3"], r"--sequence_length must be a whole number from 8 to 1048576, got 3"),
        (["--config", "nowhere.yaml"], r"--config nowhere.yaml: No such file"),
    ],
)
def test_mistakes_on_the_command_line(given, message) -> None:
    with pytest.raises(ValueError, match=message) as raised:
        parse_arguments(ROOMS, given)
    assert raised.value.exit_code == 2
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    "text, message",
    [
        ("seed: 1\n\n# a\nlerning_rate: 1\n", r"options.yaml:4: unknown .*'--lerning_rate' .*'--learning_rate'\?"),
        ("qqqqqq: 1\n", r"options.yaml:1: unknown option '--qqqqqq'"),
        ("seed: 1\nconfig: other.yaml\n", r"options.yaml:2: 'config' is for the command line only"),
        ("seed:\n  value: 1\n", r"options.yaml:1: option 'seed' must be a value or a list"),
        ("- seed\n", r"options.yaml must hold 'option: value' lines, not a seq"),
        ("seed: 1\n\nseed: 2\n", r"options.yaml:3: 'seed' stands above too, at .*options.yaml:1;"),
        ("seed: [1\n", r"options.yaml is not valid YAML"),
        ("seed: 1\nmax_steps: many\n", r"options.yaml:2: .*--max[_-]steps.*'many'"),
        ("objective: gpt\n", r"options.yaml:1: .*--objective.*'gpt'.*mlm_nsp"),
        ("data: []\n", r"options.yaml:1: .*--data.*expected at least one"),
        ("batch_size: [4, 8]\n", r"--batch_size_at 0 must begin with 0"),
        ("batch_size: -3\n", r"--batch_size must be a whole number greater than 0, got -3"),
        ("micro_batch_size: 0\n", r"--micro_batch_size must be at least 1, got 0"),
    ],
)  # fmt: skip
def test_mistakes_in_a_file(yaml_file, text, message) -> None:
    with pytest.raises(InputError, match=message):
        parse_arguments(ROOMS, ["--config", str(yaml_file(text))])


@pytest.mark.parametrize("name", ["resume", "seeds", "lora_rank", "freeze_backbone", "early_stopping_patience"])
def test_an_option_of_other_recipes_is_named_as_such(yaml_file, name) -> None:
    rooms, said = (ModelArguments, EmbeddingArguments), f"{name}': it belongs to other recipes"
    with pytest.raises(InputError, match=f"unknown option '--{said}") as raised:
        parse_arguments(rooms, ["--train_file", "a.csv", f"--{name}=3"])
    assert raised.value.exit_code == 2 and "did you mean" not in str(raised.value)
    with pytest.raises(InputError, match=rf"options.yaml:2: unknown option '--{said}"):
        parse_arguments(rooms, ["--config", str(yaml_file(f"train_file: a.csv\n{name}: 3\n"))])
    assert f"--{name}" in (RECIPES / "finetune_embeddings.py").read_text(encoding="utf-8")


def test_words_of_a_file_are_taken_as_they_stand(yaml_file) -> None:
    """`no` is what YAML calls false, and the name of a precision here."""
    text = "mixed_precision: no\nresume: yes\nmax_steps: 1_000\noutput_dir: '2026'\nseed: null\n"
    (training,) = parse_arguments((TrainingArguments,), ["--config", str(yaml_file(text))])
    assert (training.mixed_precision, training.resume, training.max_steps) == ("no", True, 1000)
    assert (training.output_dir, training.seed) == ("2026", TrainingArguments().seed)


def test_an_empty_file_is_no_mistake(yaml_file) -> None:
    assert parse_arguments(ROOMS, ["--config", str(yaml_file("# nothing yet\n"))]) == parse_arguments(ROOMS, [])


def test_yaml_cannot_run_code(yaml_file, tmp_path) -> None:
    canary = tmp_path / "canary"
    text = f"seed: !!python/object/apply:pathlib.Path.touch [!!python/object/apply:pathlib.Path ['{canary}']]\n"
    with pytest.raises(InputError, match="not valid YAML"):
        parse_arguments(ROOMS, ["--config", str(yaml_file(text))])
    assert not canary.exists()


def shown(kinds, word: str, capsys) -> str:
    with pytest.raises(SystemExit) as left:
        parse_arguments(kinds, [word], "What it does.\n\n    and how")
    assert left.value.code == 0
    return capsys.readouterr().out


@pytest.mark.parametrize("kinds", [ROOMS, (ModelArguments, FineTuningArguments)])
def test_help_shows_what_people_need_and_help_all_the_rest(kinds, capsys, monkeypatch) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    fields = [field for kind in kinds for field in dataclasses.fields(kind)]
    few, everything = shown(kinds, "--help", capsys), shown(kinds, "--help_all", capsys)
    assert few == shown(kinds, "-h", capsys) and "    and how" in few and "--config FILE" in few
    for field in fields:
        there = [
            re.search(rf"^  --{names_of(field)[-1]}\b", text, flags=re.MULTILINE) is not None
            for text in (few, everything)
        ]
        assert there == [not field.metadata["advanced"], True], field.name
    assert len(few.splitlines()) <= 110 and max(map(len, few.splitlines())) <= 100
    assert f"--help_all shows {sum(field.metadata['advanced'] for field in fields)} more options" in few
    titles = re.findall(r"^(\S.*):$", everything, flags=re.MULTILINE)
    assert titles[0] == ESSENTIALS and titles[-1] == "help" and 5 <= len(set(titles)) == len(titles) <= 9


def test_help_has_one_spelling_the_kind_of_value_and_the_default(capsys, monkeypatch) -> None:
    monkeypatch.setenv("COLUMNS", "900")
    text = shown((*ROOMS[:3], FineTuningArguments), "--help_all", capsys)
    assert not re.search(r"--\w+-|--no_\w+ +\w|\{| \[", "\n".join(re.findall("^  --.{22}", text, flags=re.MULTILINE)))
    for line in (
        r"--output_dir DIR +Folder .* Default: runs/finetuned\.",
        r"--data PATH\.\.\. +Text to read: .*",
        r"--batch_size X\[,X\] .* Default: 32\.",
        r"--seed N .* Default: 0\.",
        r"--weight_decay X .* Default: 0\.01\.",
        r"--resume +Resume .* Default: off\.",
        r"--max_steps N .* Default: none\.",
        r"--group_by_length .* On unless --no_group_by_length is given\.",
        r"--schedule NAME .*cosine.* Default: linear\.",
        r"--objective NAME +What the model learns\. mlm: masked tokens; .*; denoising: .* Default: mlm\.",
        r"--learning_rate X .* Default: automatic.*",
    ):
        assert re.search(f"^  {line}$", text, flags=re.MULTILINE), line
    options = re.findall(r"^  (--(?!help|config).*(?:\n {20,}.*)*)$", text, flags=re.MULTILINE)
    assert len(options) > 60 and all(re.search(r"[Dd]efault|On unless", option) for option in options)


@pytest.mark.slow  # in tests/test_readme.py a message gets through
def test_accelerate_launch_hands_help_on() -> None:
    words = [sys.executable, "-m", "accelerate.commands.launch", "--cpu", RECIPES / "pretrain.py", "--help"]
    done = subprocess.run(words, capture_output=True, text=True)
    assert done.returncode == 0 and "usage: pretrain.py" in done.stdout and "--objective NAME" in done.stdout


@dataclass
class _Failure(Exception):
    message: str
    exit_code: int

    def __str__(self) -> str:
        return self.message


@pytest.mark.parametrize("exit_code", [2, 3, 4, 5, 6])
def test_errors_with_an_exit_code_are_one_line_and_no_traceback(capsys, exit_code) -> None:
    def main() -> None:
        raise _Failure("what, where, remedy", exit_code)

    with pytest.raises(SystemExit) as left:
        exit_cleanly(main)
    assert left.value.code == exit_code
    assert capsys.readouterr().err == "error: what, where, remedy\n"


def test_our_own_mistakes_keep_their_traceback_and_success_is_zero() -> None:
    with pytest.raises(ZeroDivisionError):
        exit_cleanly(lambda: 1 / 0)
    frozen = gc.get_freeze_count()
    with pytest.raises(SystemExit) as left:
        exit_cleanly(lambda: None)
    assert left.value.code == 0 and gc.get_freeze_count() > frozen, "ends without a second of collecting garbage"

    def interrupted() -> None:
        raise KeyboardInterrupt

    with pytest.raises(SystemExit) as left:
        exit_cleanly(interrupted)
    assert left.value.code == 130


def test_a_recipe_without_torch_can_parse(monkeypatch, capsys) -> None:
    """`--help` of a recipe that trains nothing must not take the seconds that torch takes to load."""
    recipe = Path(__file__).resolve().parents[2] / "recipes" / "prepare_corpus.py"
    monkeypatch.setattr(sys, "argv", [str(recipe), "--help"])
    with pytest.raises(SystemExit):
        runpy.run_path(str(recipe), run_name="__main__")
    assert "--output_dir" in capsys.readouterr().out
