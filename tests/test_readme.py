"""The README's commands, as typed: on a text made here, with a few steps each."""

import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import processes
import pytest
from hub_server import HubServer

REPOSITORY = Path(__file__).resolve().parent.parent
README = (REPOSITORY / "README.md").read_text(encoding="utf-8")
COMMANDS = [
    line.split("#")[0].strip()
    for language, block in re.findall(r"^```(\w*)\n(.*?)^```$", README, flags=re.MULTILINE | re.DOTALL)
    for line in block.splitlines()
    if not language and re.match(r"(accelerate launch|torchrun|python) ", line) and "recipes/" in line
]
LAUNCHERS = {"accelerate": "accelerate.commands.launch", "torchrun": "torch.distributed.run"}


@pytest.fixture(scope="module")
def workplace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the files that the README speaks of, and the repository's recipes."""
    folder = tmp_path_factory.mktemp("readme")
    (folder / "recipes").symlink_to(REPOSITORY / "recipes")
    (folder / "my_texts").mkdir()
    for number in range(6):
        text = " ".join(f"Sentence {i} of text {number} speaks of river {number * i % 7}." for i in range(60))
        (folder / "my_texts" / f"{number}.txt").write_text(text)
    rows = [f"{'good' if i % 2 else 'bad'} river {i},{'yes' if i % 2 else 'no'}" for i in range(60)]
    (folder / "train.csv").write_text("text,label\n" + "\n".join(rows) + "\n")
    (folder / "held_out").mkdir()
    (folder / "held_out" / "a.txt").write_text("Sentence 1 of text 9 speaks of river 3. Sentence 2 of text 9 is here.")
    (folder / "new.csv").write_text("text\ngood river\nbad river\n")
    paragraphs = []
    for i in range(20):
        context = f"The river of place {i} is called Alpha{i}."
        answer = {"text": f"Alpha{i}", "answer_start": context.index("Alpha")}
        question = {"id": str(i), "question": f"What is the river of place {i} called?", "answers": [answer]}
        paragraphs.append({"context": context, "qas": [question]})
    (folder / "train.json").write_text(json.dumps({"version": "1.1", "data": [{"paragraphs": paragraphs}]}))
    return folder


@pytest.fixture(scope="module")
def hub() -> Iterator[HubServer]:
    """What one command pushes, another can take from there."""
    with HubServer() as server:
        yield server


def test_the_readme_has_commands() -> None:
    assert len(COMMANDS) >= 6


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command[:70])
def test_a_command_of_the_readme_runs(
    command: str, workplace: Path, hub: HubServer, run_recipe: Callable[..., tuple[int, str]], monkeypatch: Any
) -> None:
    """In this process, or in as many as its launcher would begin; `test_a_launcher_begins_it` has the launchers."""
    launcher, *words = shlex.split(command)
    words = words[1:] if launcher == "accelerate" else words
    trains = any(name in command for name in ("pretrain.py", "finetune"))
    options = ["--max_steps", "2"] if trains and "--max_steps" not in words else []
    if any(name in command for name in ("pretrain.py", "plan_run.py")):
        options += ["--num_hidden_layers", "1"]
        options += ["--optimizer", "adamw"] if len(shlex.split(command)) > 3 else []  # Muon takes most of a run
    if "--max_steps" in words:
        words[words.index("--max_steps") + 1] = "2"
    if "pretrain.py" in command:
        options += ["--max_eval_examples", "16"]
        options += ["--batch_size", "8"] if "--batch_size" not in words else []
    if "inspect_model.py" in command:
        options += ["--text", "A river."]  # the default texts make large pictures
    if trains and "--output_dir" not in command:  # its default is the folder of another command here
        options += ["--output_dir", "runs/without_arguments"]
    environment = {**os.environ, "LACUNA_CACHE": str(workplace / "cache")}
    num_processes = 1
    if words[0] == "--nproc_per_node":
        num_processes, words = int(words[1]), words[2:]
    if num_processes == 1:
        monkeypatch.chdir(workplace)
        monkeypatch.setenv("LACUNA_CACHE", str(workplace / "cache"))
        with hub.environment(monkeypatch, workplace / "hub_home") if "me/my-" in command else nullcontext():
            code, said = run_recipe(Path(words[0]).stem, *words[1:], *options)
        assert code == 0, said[-2000:]
        assert all("model.safetensors" in hub.files(word) for word in words if word.startswith("me/my-"))
    else:
        run = processes.run(*words, *options, cwd=workplace, env=environment, num_processes=num_processes)
        assert run.returncode == 0, run.stderr[-2000:]
    if "--output_dir" in words:
        written = Path(workplace, words[words.index("--output_dir") + 1])
        assert any((written / name).is_file() for name in ("config.json", "tokenizer.json", "manifest.json"))


@pytest.mark.slow
@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_a_launcher_begins_it(launcher: str, workplace: Path) -> None:
    """A mistake under accelerate, below, and help in test_command_line.py are among the fast tests."""
    command = next(command for command in COMMANDS if command.split()[0] == launcher)
    words = shlex.split(command)[2 if launcher == "accelerate" else 1 :]
    words += ["--max_steps", "2", "--batch_size", "8", "--output_dir", f"runs/{launcher}"]
    start = [sys.executable, "-m", LAUNCHERS[launcher], *processes.last_of_each(words)]
    environment = {**os.environ, "LACUNA_CACHE": str(workplace / "cache")}
    run = subprocess.run(start, cwd=workplace, env=environment, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr[-2000:]


@pytest.mark.parametrize(
    "path", sorted((REPOSITORY / "recipes" / "configs").glob("*.yaml")), ids=lambda path: path.name
)
def test_a_configuration_file_is_valid(path: Path) -> None:
    from lacuna.common.command_line import parse_arguments
    from lacuna.corpus import CorpusArguments
    from lacuna.objectives import ObjectiveArguments
    from lacuna.training import NewModelArguments, TrainingArguments

    kinds = (NewModelArguments, CorpusArguments, ObjectiveArguments, TrainingArguments)
    *_, goal, arguments = parse_arguments(kinds, ["--config", str(path)])
    assert arguments.output_dir == f"runs/{path.stem}"
    assert goal.objective == ("clm" if "decoder" in path.stem else "mlm")


@pytest.mark.slow
def test_a_mistake_under_a_launcher_still_shows_the_message(workplace: Path) -> None:
    command = [sys.executable, "-m", LAUNCHERS["accelerate"], "recipes/pretrain.py", "--max_stps", "3"]
    run = subprocess.run(command, cwd=workplace, capture_output=True, text=True)
    assert run.returncode != 0
    assert "error: unknown option '--max_stps' (did you mean '--max_steps'?)" in run.stderr
