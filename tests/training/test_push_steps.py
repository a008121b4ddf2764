"""--push_steps: checkpoints go to the Hub while training goes on, and whatever the Hub does changes nothing of it."""

import json
import os
import re
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hub_server import HubServer
from huggingface_hub import ModelCard

from lacuna.common.errors import InputError, StoppedError
from lacuna.common.hub import BackgroundPush
from lacuna.training import train
from lacuna.training.run import Run

NAME = "me/toy"


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[HubServer]:
    with HubServer() as server, server.environment(monkeypatch, tmp_path / "home"):
        yield server


@pytest.fixture
def run(new_model, new_work, plain_tokenizer, options, tmp_path) -> Callable[..., Path]:
    """Train a toy; the folder of the run."""

    def start(name: str, *, work: Any = None, **given: Any) -> Path:
        folder = tmp_path / name
        given = {"save_steps": 2, "eval_steps": 4, "keep_checkpoints": 9, "output_dir": str(folder), **given}
        train(model=new_model(), work=work or new_work(), tokenizer=plain_tokenizer, arguments=options(**given))
        return folder

    return start


@pytest.fixture(autouse=True)
def whole_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A checkpoint is whole, and offered, at the end of its step: steps of a toy take less time than to write it."""
    save = Run.save
    monkeypatch.setattr(Run, "save", lambda self: (save(self), self.await_checkpoint()))


@pytest.fixture
def pushing(run, monkeypatch) -> Callable[..., Path]:
    """The same, pushed every two steps; a step waits until what is due has been pushed, or has failed."""
    offer = BackgroundPush.offer

    def patient(self: BackgroundPush, folder: Path) -> None:
        offer(self, folder)
        while self.held:
            time.sleep(0.001)

    monkeypatch.setattr(BackgroundPush, "offer", patient)
    return lambda name, **given: run(name, **{"push_to_hub": NAME, "push_steps": 2, **given})


def weights(folder: Path, step: int) -> bytes:
    return (folder / "checkpoints" / f"step-{step:08d}" / "model.safetensors").read_bytes()


def essence(folder: Path) -> tuple[bytes, list[dict[str, Any]], set[str]]:
    """What must be equal of two runs: the model, the log without its times, and which checkpoints there are."""
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    untimed = [{name: value for name, value in line.items() if "second" not in name} for line in lines]
    names = {path.name for path in (folder / "checkpoints").iterdir()}
    return (folder / "model.safetensors").read_bytes(), untimed, names


def test_checkpoints_are_commits_with_tags(hub: HubServer, run, pushing, capsys) -> None:
    folder, plain = pushing("pushed"), run("plain")
    model = hub.models[NAME]
    assert [*model.tags] == ["step-2", "step-4", "step-6", "step-8"] and model.private
    assert len({*model.tags.values()}) == 4 and model.branches["main"] == model.tags["step-8"]
    for tag in model.tags:
        files = hub.files(NAME, tag)
        assert {"config.json", "model.safetensors", "README.md", "tokenizer.json"} <= files.keys()
        assert files["model.safetensors"] == weights(plain, int(tag[5:]))
        assert not any("/" in name for name in files)
        card = ModelCard(files["README.md"].decode())
        card.validate()
        assert f'path = "{NAME}"' in card.text and f'from_pretrained(path, revision="{tag}")' in card.text
    assert essence(folder) == essence(plain)
    said = capsys.readouterr().err
    assert (
        len(re.findall(r"^step-\d: pushed \d files to http\S+ \(only its owner sees it\)$", said, re.MULTILINE)) == 4
    )


def test_a_hub_that_fails_in_the_middle_changes_nothing(hub: HubServer, run, pushing, capsys) -> None:
    plain = run("plain")
    hub.fail("refs", status=500)
    hub.fail("PUT /lfs", status=502, times=6)
    hub.fail("commit/main", cut=True)
    capsys.readouterr()
    folder = pushing("pushed")
    assert essence(folder) == essence(plain)
    assert [*hub.models[NAME].tags] == ["step-8"] and not any(each.times for each in hub.failures)
    warnings = [line for line in capsys.readouterr().err.splitlines() if "step-" in line and "warning" in line]
    assert len(warnings) == 3 and all(
        re.match(r"warning: pushing step-\d failed: me/toy: the ", each) for each in warnings
    )


def test_a_checkpoint_stays_while_it_is_pushed_and_no_longer(hub: HubServer, run, new_work, tmp_path) -> None:
    plain, goes_on, work, there = run("plain"), threading.Event(), new_work(), list[bool]()
    hub.fail("repos/create", until=goes_on)

    def poison(index: int) -> float:
        if index == 6 * 8:  # two later ones have been written by now
            there.append((tmp_path / "pushed" / "checkpoints" / "step-00000002").is_dir())
            goes_on.set()
        return 0.0

    work.poison = poison
    folder = run("pushed", work=work, push_to_hub=NAME, push_steps=2, keep_checkpoints=1)
    assert there == [True] and hub.files(NAME, "step-2")["model.safetensors"] == weights(plain, 2)
    left = {path.name for path in (folder / "checkpoints").iterdir()}
    assert "step-00000008" in left and len(left) <= 2 and not left & {"step-00000002", "step-00000006"}


def test_a_resumed_run_pushes_what_was_not_pushed_and_moves_tags(hub: HubServer, run, pushing, new_work) -> None:
    plain = run("plain")
    hub.add(NAME, {"model.safetensors": b"of another run"})
    hub.models[NAME].tags = {"step-6": hub.models[NAME].branches["main"]}
    hub.fail("commit/main", status=503, times=2)
    with pytest.raises(InterruptedError):
        pushing("pushed", work=new_work(stop_at=5 * 8))
    assert [*hub.models[NAME].tags] == ["step-6"]  # steps 2 and 4 have failed
    folder = pushing("pushed", resume=True)
    model = hub.models[NAME]
    assert {*model.tags} == {"step-4", "step-6", "step-8"} and model.branches["main"] == model.tags["step-8"]
    for step in (4, 6, 8):
        assert hub.files(NAME, f"step-{step}")["model.safetensors"] == weights(plain, step)
    assert essence(folder)[0] == essence(plain)[0]


def test_a_run_that_is_stopped_does_not_wait_for_the_hub(hub: HubServer, run, new_work, capsys) -> None:
    goes_on, work, stopped = threading.Event(), new_work(), list[float]()
    hub.fail("repos/create", until=goes_on)

    def poison(index: int) -> float:
        if index == 5 * 8:
            stopped.append(time.monotonic())
            os.kill(os.getpid(), signal.SIGTERM)
        return 0.0

    work.poison = poison
    with pytest.raises(StoppedError, match="after step 6; resume with --resume"):
        run("pushed", work=work, push_to_hub=NAME, push_steps=2)
    assert time.monotonic() - stopped[0] < 6
    assert "warning: a checkpoint was still on its way to the Hub" in capsys.readouterr().err
    goes_on.set()
    while "step-2" not in hub.models[NAME].tags if NAME in hub.models else True:  # as another process would not
        time.sleep(0.001)
    run("pushed", resume=True, push_to_hub=NAME, push_steps=2)
    assert hub.models[NAME].branches["main"] == hub.models[NAME].tags["step-8"]


@pytest.mark.parametrize(
    "given",
    [
        {"push_steps": 2},
        {"push_steps": 3, "push_to_hub": NAME},
        {"push_steps": 2, "push_to_hub": NAME, "save_steps": 0},
        {"push_steps": 2, "push_to_hub": NAME, "save_steps": 0.5},
        {"push_steps": 2, "push_to_hub": NAME, "save_steps": 4},
    ],
)
def test_steps_at_which_there_is_nothing_to_push_are_refused(options, given) -> None:
    with pytest.raises(InputError, match=r"--push_steps \d needs --push_to_hub and a --save_steps that divides it"):
        options(**{"save_steps": 2, **given})


def test_several_seeds_are_not_one_run(tuning_options) -> None:
    with pytest.raises(InputError, match=r"--push_steps pushes the checkpoints of one run, and --seeds 2 are several"):
        tuning_options(push_steps=2, push_to_hub=NAME, save_steps=2, seeds=2)
