"""The names of transformers: each line of docs/from_transformers.md, typed."""

import re
from dataclasses import fields
from pathlib import Path

import pytest

from lacuna.common.aliases import translate
from lacuna.common.command_line import _options_of, parse_arguments
from lacuna.common.errors import InputError
from lacuna.corpus import CorpusArguments
from lacuna.objectives import ObjectiveArguments
from lacuna.tasks.classification.reader import ClassificationArguments
from lacuna.training import FineTuningArguments, ModelArguments, NewModelArguments, TrainingArguments

PAGE = Path(__file__).resolve().parents[2] / "docs" / "from_transformers.md"
LINES = [
    [cell.strip() for cell in line.strip("|").split("|")]
    for line in PAGE.read_text(encoding="utf-8").splitlines()
    if line.startswith("| `--")
]
KINDS = {
    "pretraining": (CorpusArguments, ObjectiveArguments, NewModelArguments, TrainingArguments),
    "fine-tuning": (ModelArguments, ClassificationArguments, FineTuningArguments),
}
KNOWN = {stage: {each.name for kind in kinds for each in fields(kind)} for stage, kinds in KINDS.items()}


@pytest.mark.parametrize("stage", KINDS)
@pytest.mark.parametrize("there, here", LINES, ids=[line[0].strip("`")[:60] for line in LINES])
def test_a_line_of_the_page(there: str, here: str, stage: str, monkeypatch: pytest.MonkeyPatch) -> None:
    only = re.search(r"\((pretraining|fine-tuning)\)$", here)
    if only and only[1] != stage:
        return
    typed = _options_of(there.strip("`").split())
    if here.startswith("refused"):
        with pytest.raises(InputError, match=re.escape(typed[0][0])):
            translate(typed, KNOWN[stage])
        return
    words, said = translate(typed, KNOWN[stage])
    if here.startswith("nothing"):
        assert words == [] and ("says so" not in here or said)
        return
    found = re.findall(r"`(--[^`]*)`", here)
    assert (
        words
        == (
            found[-1] if "in pretraining" in here and stage == "pretraining" else [*found, there.strip("`")][0]
        ).split()
    )
    if "on two" in here:
        monkeypatch.setenv("WORLD_SIZE", "2")
        assert translate(typed, KNOWN[stage])[0][0] == found[1]


def test_they_are_understood_in_files_too_and_said_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "options.yaml").write_text("num_train_epochs: 5\nbf16: true\nweight_decay: 0.3\n")
    words = ["--config", str(tmp_path / "options.yaml"), "--num_train_epochs", "2", "--do_train"]
    _, arguments = parse_arguments((ModelArguments, TrainingArguments), words)
    assert (arguments.max_epochs, arguments.mixed_precision, arguments.weight_decay) == (2, "bf16", 0.3)
    said = capsys.readouterr().err.splitlines()
    assert "--num_train_epochs 2 is --max_epochs 2 here" in said
    assert "--do_train changes nothing: training is what this recipe does" in said


def test_two_that_belong_together_in_a_file_and_names_with_dashes(tmp_path: Path) -> None:
    (tmp_path / "options.yaml").write_text("gradient_accumulation_steps: 2\nper-device-train-batch-size: 4\n")
    _, arguments = parse_arguments((ModelArguments, TrainingArguments), ["--config", str(tmp_path / "options.yaml")])
    assert (arguments.batch_size, arguments.micro_batch_size) == ([8], 4)
    _, arguments = parse_arguments((ModelArguments, TrainingArguments), ["--num-train-epochs", "3"])
    assert arguments.max_epochs == 3
    (tmp_path / "options.yaml").write_text("lr: 1e-3\nlearning_rate: 1e-4\n")
    with pytest.raises(InputError, match=r"options.yaml:2: --learning_rate is given twice"):
        parse_arguments((ModelArguments, TrainingArguments), ["--config", str(tmp_path / "options.yaml")])


@pytest.mark.parametrize(
    "words, message",
    [
        (["--gradient_accumulation_steps", "4"], "give --per_device_train_batch_size with it, or here --batch_size"),
        (["--per_device_train_batch_size", "many"], "must be whole numbers"),
        (
            ["--num_train_epochs", "2", "--max_epochs", "3"],
            "--max_epochs is given twice.*; --num_train_epochs 2 is --max_epochs 2 here",
        ),
    ],
)
def test_what_cannot_be_said_so(words: list[str], message: str) -> None:
    with pytest.raises(InputError, match=message):
        parse_arguments((ModelArguments, TrainingArguments), words)


def test_no_name_is_suggested_that_is_not_near() -> None:
    for name in ("device_count", "xyzzy", "num_proc"):
        with pytest.raises(InputError, match=rf"unknown option '--{name}' \(--help lists"):
            parse_arguments((ModelArguments, TrainingArguments), [f"--{name}", "1"])


def test_a_slip_in_a_name_of_transformers_gets_that_name() -> None:
    for slip, near in (
        ("per_device_trian_batch_size", "per_device_train_batch_size"),
        ("do_trian", "do_train"),
        ("num_train_epoch", "num_train_epochs"),
        ("max_epoch", "max_epochs"),
    ):
        with pytest.raises(InputError, match=rf"unknown option '--{slip}' \(did you mean '--{near}'\?\)"):
            parse_arguments((ModelArguments, TrainingArguments), [f"--{slip}", "1"])
