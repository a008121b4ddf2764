"""`import lacuna`: what the recipes do, from Python."""

import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import datasets
import pandas
import pytest
import torch
from processes import no_curves
from safetensors.torch import load_file

import lacuna
from lacuna.common.errors import InputError, StoppedError

TEXTS = [{"text": f"The river number {i} is {'deep' if i % 2 else 'wide'} and old. " * 6} for i in range(60)]
ROWS = [{"text": f"{'good' if i % 2 else 'bad'} river {i}", "label": "yes" if i % 2 else "no"} for i in range(60)]
SHORT: dict[str, Any] = {"vocab_size": 300, "max_steps": 3, "batch_size": 4, "max_eval_examples": 8}
SHORT |= {"num_hidden_layers": 1, "optimizer": "adamw", "mixed_precision": "no", "threads": 1, "compile": "off"}


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("python")


@pytest.fixture(autouse=True)
def here(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(home)
    monkeypatch.setenv("LACUNA_CACHE", str(home / "cache"))
    monkeypatch.setattr("lacuna.training.reports.log.draw_curves", no_curves)


@pytest.fixture(scope="module")
def run(home: Path) -> lacuna.Result:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LACUNA_CACHE", str(home / "cache"))
        return lacuna.pretrain(data=TEXTS, output_dir=home / "model", **SHORT)


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(folder / "model.safetensors")


def test_from_text_in_memory_to_predictions(run: lacuna.Result, home: Path) -> None:
    assert run.results["steps"] == 3 and [line["step"] for line in run.metrics if "loss" in line] == [3]
    assert "eval_loss" in repr(run) and Path(run.curves).is_file() and run.curves._repr_png_()[1:4] == b"PNG"
    frame = pandas.DataFrame(ROWS)
    options: dict[str, Any] = {"max_steps": 3, "mixed_precision": "no", "threads": 1}
    tuned = lacuna.finetune("classification", model=run, train_file=frame, output_dir=home / "tuned", **options)
    answers = tuned.predict(["good river", "bad river"])
    assert [row["text"] for row in answers] == ["good river", "bad river"]
    assert all(row["prediction"] in ("yes", "no") for row in answers)
    assert (
        tuned.predict(ROWS[:1], output=home / "answers.csv")[0]["label"] == "no" and (home / "answers.csv").is_file()
    )
    # The names of labels of a `datasets.Dataset` are kept.
    numbers = datasets.Dataset.from_list(ROWS).cast_column("label", datasets.ClassLabel(names=["no", "yes"]))
    again = lacuna.finetune("classification", model=run, train_file=numbers, output_dir=home / "again", **options)
    assert again.predict(ROWS[:1])[0]["prediction"] in ("yes", "no")
    assert again.results["eval_accuracy"] == tuned.results["eval_accuracy"]


def test_it_is_the_same_run_as_that_of_the_command_line(run: lacuna.Result, home: Path, run_recipe) -> None:
    path = home / "texts.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in TEXTS))
    words = [word for name, value in SHORT.items() for word in (f"--{name}", str(value))]
    code, said = run_recipe("pretrain", "--data", str(path), *words, "--output_dir", str(home / "typed"))
    assert code == 0, said
    ours, theirs = weights(run.path), weights(home / "typed")
    assert all(torch.equal(ours[name], theirs[name]) for name in ours | theirs)
    command = json.loads((run.path / "run.json").read_text())["command"]
    assert command.startswith("lacuna pretrain --data=") and "--max_steps=3" in command


def test_mistakes_are_exceptions_with_the_same_words(home: Path) -> None:
    with pytest.raises(InputError, match=r"unknown option '--bach_size' \(did you mean '--batch_size'"):
        lacuna.pretrain(data=TEXTS, bach_size=4)
    with pytest.raises(InputError, match="there is no task 'clasification'; the tasks are classification, "):
        lacuna.finetune("clasification", model="x")
    with pytest.raises(InputError, match="unknown option '--daata'"):
        lacuna.pretrain(data=None, daata=None)
    with pytest.raises(InputError, match="finetune what"):
        lacuna.help("finetune")
    with pytest.raises(InputError, match="there is no command 'pretain'"):
        lacuna.help("pretain")
    with pytest.raises(InputError, match=r"--output_dir .*model already holds a run"):
        lacuna.pretrain(data=TEXTS, output_dir=home / "model", **SHORT)


def test_a_run_that_is_interrupted_saves_and_goes_on(run: lacuna.Result, home: Path) -> None:
    """As the stop button of a notebook does it."""
    folder, options = home / "stopped", {**SHORT, "max_steps": 3000, "eval_steps": 0, "save_steps": 0}

    def stop() -> None:
        log = folder / "metrics.jsonl"
        while not (log.is_file() and '"loss"' in log.read_text()):  # only in its loop a run can be stopped whole
            threading.Event().wait(0.05)
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=stop)
    thread.start()
    with pytest.raises(StoppedError, match="stopped by SIGINT after step"):
        lacuna.pretrain(data=TEXTS, output_dir=folder, **options)
    thread.join()
    step = max(int(path.name[5:]) for path in (folder / "checkpoints").iterdir())
    more = lacuna.pretrain(data=TEXTS, output_dir=folder, resume=True, **{**options, "max_steps": step + 2})
    assert more.results["steps"] == step + 2


def test_the_same_rows_have_one_file_and_others_another(home: Path) -> None:
    kept = [lacuna._kept(rows) for rows in (ROWS, ROWS[:9], pandas.DataFrame(ROWS), list(ROWS))]
    assert kept[0] == kept[2] == kept[3] != kept[1]
    frame = pandas.DataFrame({"label": [1 / 3, float("nan")], "count": [1, 2]})  # with all digits
    assert lacuna._kept(frame) == lacuna._kept([{"label": 1 / 3, "count": 1}, {"label": None, "count": 2}])
    saved = [lacuna._kept(datasets.Dataset.from_list(rows)) for rows in (ROWS, list(ROWS), ROWS[:9])]
    assert saved[0] == saved[1] != saved[2]


@pytest.mark.parametrize(
    "given",
    [
        [row["text"] for row in TEXTS],
        (row for row in TEXTS),
        {"text": [row["text"] for row in TEXTS]},
        pandas.DataFrame(TEXTS)["text"],
        pandas.DataFrame(TEXTS)["text"].to_numpy(),
        datasets.Dataset.from_list(TEXTS)["text"],
    ],
    ids=["list", "generator", "columns", "column", "array", "column of a dataset"],
)
def test_texts_in_memory_in_all_their_forms(given: Any) -> None:
    assert lacuna._kept(lacuna._rows_of("data", given)) == lacuna._kept(TEXTS)


@pytest.mark.parametrize(
    "given, message",
    [([], "data is empty"), (datasets.DatasetDict(), "data is a DatasetDict: give one split of it")],
)
def test_what_is_no_text_is_refused_by_name(given: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        lacuna.pretrain(data=given)
    for paths in (["my_texts/", "b.txt"], ["my docs/*.txt"], ["my docs/a.md:0.7", "my docs/b.jsonl.gz:0.3"]):
        assert lacuna._rows_of("data", paths) == paths
    for texts in (["How are you?", "I am fine."], ["See example.com [now]", "at 10:30"]):
        assert lacuna._rows_of("data", texts) == [{"text": text} for text in texts]


@pytest.mark.parametrize(
    "name, given, message",
    [
        ("input", ["a", None], "input, row 2 is None: give texts or dicts"),
        ("train_file", [{"text": "a"}, 7], "train_file, row 2 is 7"),
        ("input", ["a", {"text": "b"}], "^input, row 2 is a dict, which row 1 is not: give rows of one kind$"),
        ("train_file", [*ROWS, "x y"], "^train_file, row 61 is no dict, which row 1 is: give rows of one kind$"),
        ("data", [{"text": b"a"}], "^data, row 1 cannot be written as JSON: bytes are no text: decode b'a' first$"),
        ("input", [{("a", "b"): "x"}], "^input, row 1 cannot be written as JSON: keys must be str, .* not tuple"),
        ("eval_file", pandas.DataFrame([[1, 2]], columns=["a", "a"]), "^eval_file: two columns have the name 'a'"),
        ("data", {"text": ["a", "b"], "label": [1]}, "data is a dict, and its columns are not lists of one length"),
        ("data", {"text": "a", "label": 1}, "data is a dict, and its columns"),
        ("data", {"text": "good", "label": "fine"}, "data is a dict, and its columns"),
        ("input", "a good film", r"input is a text: give a list of them, as in \['a good film'\]"),
    ],
)
def test_rows_that_are_none_are_refused_by_number(name: str, given: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        list(lacuna._words(name, given, {}))


def test_rows_in_memory_are_called_by_their_name(run: lacuna.Result) -> None:
    for text, what in (("", "is empty"), ("a \ud83d", r"holds '\\ud83d', which is half a character")):
        rows = [*ROWS[:9], {"text": text, "label": "no"}]
        with pytest.raises(InputError, match=rf"^train_file:10: column 'text' {what}"):
            lacuna.finetune("classification", model=run, train_file=rows, output_dir="nowhere")


@pytest.mark.parametrize(
    "texts", [["-1", "--x", "plain"], ["--a text", "another text"], ["- one"], "-- a text", "--x"]
)
def test_texts_that_begin_with_dashes_or_hold_blanks_arrive_as_they_are(texts: Any) -> None:
    from lacuna.common.command_line import parse_arguments
    from lacuna.tasks.classification.reader import ClassificationArguments

    words = [*lacuna._words("label_names", texts, {}), *lacuna._words("text_column", "--column", {})]
    (found,) = parse_arguments((ClassificationArguments,), words)
    assert found.label_names == ([texts] if isinstance(texts, str) else texts) and found.text_column == "--column"


def test_texts_to_look_at_are_no_rows_and_a_mistake_names_the_help(run: lacuna.Result, home: Path) -> None:
    lacuna.inspect(model=run, text=["the river is old", "the river is deep"], output_dir=home / "page")
    page = (home / "page" / "inspection.html").read_text(encoding="utf-8")
    assert "the river is old" in page and ".jsonl" not in page
    with pytest.raises(InputError, match=r"\(lacuna.help\('pretrain'\) lists the options\)"):
        lacuna.pretrain(data=TEXTS, bach_size=4)


def test_help_and_the_command(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", sys.argv)  # which the command sets for good
    lacuna.help("finetune_classification")
    assert "--label_column" in capsys.readouterr().out
    with pytest.raises(SystemExit, match="0"):
        lacuna.main([])
    shown = capsys.readouterr().out
    assert all(f"\n  {name} " in shown for name in lacuna.COMMANDS)
    with pytest.raises(SystemExit) as ended:
        lacuna.main(["predict", "--modle", "x"])
    assert ended.value.code == 2 and "did you mean '--model'" in capsys.readouterr().err


OWN = "raise ImportError('this is the user\\'s own module')\n"
SCRIPT = """
import lacuna
if __name__ == "__main__":
    run = lacuna.pretrain(data="texts.jsonl", output_dir="own", num_workers=1, {options})
    for name in lacuna.COMMANDS:
        lacuna.help(name)
    print(run.results["steps"])
"""


def test_modules_of_a_user_with_our_names_do_not_matter(tmp_path: Path) -> None:
    for name in ("tasks.py", "training.py", "common.py", "corpus.py", "evaluation.py", "recipes.py"):
        (tmp_path / name).write_text(OWN)
    (tmp_path / "modeling").mkdir()
    (tmp_path / "modeling" / "__init__.py").write_text(OWN)
    (tmp_path / "texts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in TEXTS))
    options = ", ".join(f"{name}={value!r}" for name, value in SHORT.items())
    (tmp_path / "script.py").write_text(SCRIPT.format(options=options))
    environment = {**os.environ, "LACUNA_CACHE": str(tmp_path / "cache"), "OMP_NUM_THREADS": "1"}
    environment.pop("PYTHONPATH", None)
    ended = subprocess.run(
        [sys.executable, "script.py"], cwd=tmp_path, env=environment, capture_output=True, text=True
    )
    assert ended.returncode == 0 and ended.stdout.splitlines()[-1] == "3", ended.stderr[-2000:]
