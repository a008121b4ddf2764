"""Signals and kills at any point: the run ends as it should, and goes on as if nothing had happened."""

import os
import random
import subprocess
import sys
import time
from typing import Any

import psutil
import pytest
from examples import fast
from processes import REPOSITORY
from toy import SCRIPT, Toy


def check_resumed(toy: Toy, undisturbed: dict[str, Any], **options: Any) -> None:
    done = toy.run(resume=True, **options)
    assert done.returncode == 0, done.stderr
    assert toy.oracle() == undisturbed


@pytest.mark.slow
@pytest.mark.parametrize("step", random.Random(5).sample(range(1, 13), 3))
def test_killed_in_a_step(toy: Toy, undisturbed: dict[str, Any], step: int) -> None:
    assert toy.run(f"kill@{step}").returncode == -9
    check_resumed(toy, undisturbed)


def test_killed_when_all_steps_are_done(toy: Toy, undisturbed: dict[str, Any]) -> None:
    assert toy.run().returncode == 0
    for name in ("config.json", "model.safetensors", "results.json"):
        (toy.output_dir / name).unlink()
    check_resumed(toy, undisturbed)


def test_killed_again_and_again(toy: Toy, undisturbed: dict[str, Any]) -> None:
    for step in (2, 5, 4, 8, 8, 12):
        assert toy.run(f"kill@{step}", resume=True).returncode == -9
    check_resumed(toy, undisturbed)


STOPS = ["term@5", "int@7", "term_in_evaluation@0", "term_in_save@0"]


@pytest.mark.parametrize("fault", fast(STOPS, *STOPS[1:]))  # the first by a signal to one of two, below
def test_asked_to_stop_it_saves_and_says_so(toy: Toy, undisturbed: dict[str, Any], fault: str) -> None:
    done = toy.run(fault)
    assert done.returncode == 143, done.stderr
    assert "resume with --resume" in done.stderr and "Traceback" not in done.stderr
    steps = {"term@5": 5, "int@7": 7, "term_in_evaluation@0": 6, "term_in_save@0": 3}
    last = steps[fault] if fault != "term_in_save@0" else int(toy.checkpoints()[-1][-8:])
    assert toy.checkpoints()[-1] == f"step-{last:08d}" and f"after step {last}" in done.stderr
    check_resumed(toy, undisturbed)


def test_asked_to_stop_with_its_data_workers(toy: Toy, undisturbed: dict[str, Any]) -> None:
    words = [str(word) for word in toy.words("term_all@5", "slow@100", num_workers=1)]
    # By itself: where tests start their runs, nobody notices that a worker has died.
    alone = {"cwd": REPOSITORY, "env": os.environ | {"PYTHONPATH": "tests"}, "capture_output": True, "text": True}
    done = subprocess.run([sys.executable, SCRIPT, *words], **alone)
    assert done.returncode == 143 and "after step 5" in done.stderr, done.stderr
    check_resumed(toy, undisturbed)


def test_asked_to_stop_before_it_began(toy: Toy, undisturbed: dict[str, Any]) -> None:
    assert toy.run("term_at_start@0").returncode == 143
    assert not toy.output_dir.exists() or not list(toy.output_dir.glob("[!.]*"))
    check_resumed(toy, undisturbed)


def test_asked_twice_it_ends_at_once(toy: Toy, undisturbed: dict[str, Any]) -> None:
    assert toy.run("term_twice@5", "saved@0").returncode == 143
    assert toy.checkpoints() == ["step-00000003"]
    check_resumed(toy, undisturbed)


@pytest.mark.parametrize("fault", fast(["hang@5", "hang_in_evaluation@0"]))
def test_a_process_that_stands_still_says_where_and_ends(toy: Toy, undisturbed: dict[str, Any], fault: str) -> None:
    began = time.monotonic()
    done = toy.run(fault, hang_timeout=3)
    assert done.returncode == 1 and time.monotonic() - began < 60
    assert "Timeout (0:00:03)!" in done.stderr and "toy_run.py" in done.stderr
    check_resumed(toy, undisturbed)


@pytest.mark.slow
def test_a_worker_that_is_killed_ends_the_run(toy: Toy) -> None:
    running = toy.start("slow@300", num_workers=1, save_steps=1)
    while not list(toy.output_dir.glob("checkpoints/step-*/*/complete")):
        assert running.alive()
    children = psutil.Process(running.pids[0]).children(recursive=True)
    workers = [child for child in children if "resource_tracker" not in " ".join(child.cmdline())]
    workers[-1].kill()
    done = running.wait()
    assert done.returncode == 1
    again = toy.run(resume=True, save_steps=1)
    assert again.returncode == 0, again.stderr


@pytest.mark.parametrize(
    ("fault", "sharded"),
    [
        ("kill@5:1", False),
        pytest.param("fail@5:1", False, marks=pytest.mark.slow),
        pytest.param("kill@5:1", True, marks=pytest.mark.slow),
    ],
    ids=["kill", "fail", "FSDP2"],
)
def test_one_of_two_processes_ends(
    toy: Toy, ends_with: Any, monkeypatch: pytest.MonkeyPatch, fault: str, sharded: bool
) -> None:
    if sharded:
        monkeypatch.setenv("ACCELERATE_USE_FSDP", "true")
        monkeypatch.setenv("FSDP_VERSION", "2")
    began = time.monotonic()
    done = toy.run(fault, "saved@0", num_processes=2)
    assert time.monotonic() - began < 60 and done.returncode != 0
    assert toy.checkpoints()[-1] == "step-00000003"
    check_resumed(toy, ends_with(f"sharded: {sharded}", num_processes=2), num_processes=2)


def test_killed_on_two_processes_it_goes_on_in_one_on_other_micro_batches(toy: Toy, ends_with: Any) -> None:
    """The same samples and masks at every step; losses, and weights in the end, agree to rounding."""
    assert toy.run("kill@5:1", "saved@0", num_processes=2, dropout=0.0).returncode != 0
    assert toy.run("kill@8", resume=True, dropout=0.0, micro_batch_size=2).returncode == -9
    done = toy.run(resume=True, num_processes=2, dropout=0.0, micro_batch_size=1)
    assert done.returncode == 0, done.stderr
    mine, theirs = toy.oracle(), ends_with(dropout=0.0)
    assert mine["samples"] == theirs["samples"] and list(mine["losses"]) == list(theirs["losses"])
    for step, values in theirs["losses"].items():
        assert mine["losses"][step][0] == pytest.approx(values[0], rel=1e-5), step


def test_one_of_two_processes_stands_still(toy: Toy) -> None:
    began = time.monotonic()
    running = toy.start("stop@5:1", num_processes=2, hang_timeout=4)
    running.processes[0].join(60)
    assert running.processes[0].exitcode == 1 and time.monotonic() - began < 60
    running.kill()
    done = running.wait()
    assert "Timeout" in done.stderr and "training/loop.py" in done.stderr
    assert toy.run(resume=True, num_processes=2).returncode == 0


def test_a_signal_to_one_of_two_stops_both_after_the_same_step(toy: Toy, ends_with: Any) -> None:
    done = toy.run("term@4:1", num_processes=2)  # the evaluation after step 6 would notice in any case
    assert done.returncode == 143, done.stderr
    step = int(toy.checkpoints()[-1][-8:])
    assert step in (4, 5) and done.stderr.count(f"after step {step};") == 2
    check_resumed(toy, ends_with("sharded: False", num_processes=2), num_processes=2)
