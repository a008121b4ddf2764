"""Numbers that are not finite, losses that stand out, and runs that are taken up with something else than before."""

import os
import shutil
from pathlib import Path
from typing import Any

import processes
import pytest
from examples import fast
from toy import SCRIPT, Toy


def events(toy: Toy, name: str) -> list[dict[str, Any]]:
    return [line for line in toy.log() if line.get("event") == name]


@pytest.mark.parametrize(
    "fault", fast(["nan_loss", "inf_loss", "nan_gradient", "inf_gradient"], "nan_loss", "inf_gradient")
)
def test_a_step_that_is_not_finite_is_applied_nowhere(toy: Toy, ends_with: Any, fault: str) -> None:
    done = toy.run(f"{fault}@5")
    assert done.returncode == 0, done.stderr
    what = "loss" if "loss" in fault else "gradient"
    assert f"step 5: the {what} is not finite (samples 32 to 39); the step was not applied" in done.stderr
    (skipped,) = events(toy, "skipped")
    assert skipped["step"] == 5 and skipped["samples"] == [32, 39]
    # The same as leaving the step out by hand.
    mine, theirs = toy.oracle(), ends_with(skip_steps="5")
    assert mine["model"] == theirs["model"] and mine["losses"] == theirs["losses"]


def test_the_log_is_json_whatever_is_not_a_number(toy: Toy) -> None:
    assert toy.run("nan_loss@6", "nan_gradient@12", logging_steps=3).returncode == 0
    text = (toy.output_dir / "metrics.jsonl").read_text()
    assert "NaN" not in text and "Infinity" not in text
    assert [line["step"] for line in toy.log() if "grad_norm" in line] == [3, 6, 9, 12]
    for name in ("nan", "inf"):
        assert not [line for line in toy.log() if name in str(line.get("grad_norm"))]


def test_steps_that_are_left_out(toy: Toy, new_toy: Any) -> None:
    """At once, however many they are, with one mark; what is due after them is done."""
    done = toy.run(skip_steps="3-7,12", logging_steps=5)
    assert done.returncode == 0, done.stderr
    marks = [(mark["step"], mark.get("last_step", mark["step"]), mark["samples"]) for mark in events(toy, "skipped")]
    assert marks == [(3, 7, [16, 55]), (12, 12, [88, 95])]
    assert toy.checkpoints()[-1] == "step-00000012"
    assert [line["step"] for line in toy.log() if "loss" in line] == [10, 12]
    everything = new_toy("everything").run(skip_steps="1-12")
    assert everything.returncode == 2 and "leaves out all the 12 steps that are to be made" in everything.stderr
    by_the_clock = new_toy("clock").run(skip_steps="2-9999999999", max_steps=10**12, max_minutes=0.02)
    assert by_the_clock.returncode == 0, by_the_clock.stderr
    again = toy.run(resume=True, max_steps=14, skip_steps="3-7,13")
    assert again.returncode == 0 and "12 steps are made already, and stay as they were" in again.stderr


def test_a_run_is_not_taken_back_behind_its_end(toy: Toy) -> None:
    assert toy.run(save_steps=5).returncode == 0
    assert toy.checkpoints()[-1] == "step-00000012"  # the last step has one, whatever --save_steps says
    before = (toy.output_dir / "model.safetensors").read_bytes()
    done = toy.run(resume=True, save_steps=5, max_steps=10)
    assert done.returncode == 2 and "has made 12 steps, and the limit is now 10" in done.stderr
    assert (toy.output_dir / "model.safetensors").read_bytes() == before
    longer = toy.run(resume=True, save_steps=5, max_steps=15)
    assert longer.returncode == 0 and "at step 12" in longer.stderr


def test_a_tracker_that_the_command_line_names_gets_the_losses(toy: Toy) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    done = toy.run(report_to="tensorboard")
    assert done.returncode == 0 and "warning" not in done.stderr, done.stderr
    events = EventAccumulator(str(toy.output_dir / "tensorboard")).Reload()
    logged = {event.step: event.value for event in events.Scalars("train/loss")}
    assert logged == pytest.approx({line["step"]: line["loss"] for line in toy.log() if "loss" in line})


def test_files_of_somebody_else_are_not_written_over(toy: Toy) -> None:
    toy.output_dir.mkdir(parents=True)
    (toy.output_dir / "README.md").write_text("precious")
    done = toy.run(resume=True)
    assert done.returncode == 2 and "holds no run but README.md, which might be written over" in done.stderr
    assert [path.name for path in toy.output_dir.iterdir()] == ["README.md"]
    (toy.output_dir / "README.md").unlink()
    assert toy.run(resume=True).returncode == 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"allow_change": "seed"}, "add --resume"),
        ({"save_steps": 1.5}, "--save_steps counts steps, or is a share of the run below 1, got 1.5"),
        ({"batch_size": 2_000_000}, "a single step would see each of the 48 examples 41,666 times"),
        (
            {"report_to": "tensorbored"},
            "invalid choice: 'tensorbored' (choose from 'tensorboard', 'wandb', 'trackio')",
        ),
        ({"skip_steps": "5-3"}, "'5-3' is no step or range of steps"),
    ],
)
def test_options_that_make_no_sense(toy: Toy, options: dict[str, Any], message: str) -> None:
    done = toy.run(**options)
    assert done.returncode == 2 and message in done.stderr and "Traceback" not in done.stderr
    assert not toy.output_dir.exists()


@pytest.mark.parametrize("fault", fast(["nan_loss@5:1", "inf_gradient@5:1"], "nan_loss@5:1"))
def test_on_one_of_two_processes_too(toy: Toy, new_toy: Any, fault: str) -> None:
    done = toy.run(fault, num_processes=2)
    assert done.returncode == 0, done.stderr
    other = new_toy("other")
    assert other.run("slow_end@1", skip_steps="5", num_processes=2).returncode == 0
    assert toy.oracle()["model"] == other.oracle()["model"]


@pytest.mark.parametrize("way", fast(["DDP", "FSDP2"], "FSDP2"))
def test_all_processes_lower_the_scale_of_fp16(toy: Toy, way: str) -> None:
    """A gradient overflows in one of them; a resumed run goes on with the scale that all have."""
    env = {**os.environ, **({"ACCELERATE_USE_FSDP": "true", "FSDP_VERSION": "2"} if way == "FSDP2" else {})}
    options = {"mixed_precision": "fp16", "save_steps": 3}
    words = toy.words("inf_gradient@5:1", max_steps=9, **options)
    done = processes.run(SCRIPT, *words, num_processes=2, env=env, timeout=120)
    assert done.returncode == 0, done.stderr
    (skipped,) = events(toy, "skipped")
    assert skipped["step"] == 5 and skipped["reason"] == "gradient not finite at loss scale 65,536, now 32,768"
    again = processes.run(SCRIPT, *toy.words(resume=True, **options), num_processes=2, env=env, timeout=120)
    assert again.returncode == 0 and "at step 9" in again.stderr, again.stderr
    counters = toy.oracle()["counters"]
    assert (counters["loss_scale"], counters["steps_at_scale"], counters["step"]) == (2.0**15, 7, 12)


def test_too_many_in_a_row_end_the_run_and_what_is_saved_is_good(toy: Toy) -> None:
    done = toy.run("nan_loss@7", "nan_loss@8", "nan_loss@9", max_bad_steps=3, save_steps=1)
    assert done.returncode == 4 and "error: step 9: the loss is not finite" in done.stderr
    assert "Traceback" not in done.stderr and not (toy.output_dir / "model.safetensors").exists()
    assert toy.run(resume=True, skip_steps="7-9").returncode == 0
    assert len(events(toy, "resume")) == 1


def test_a_spike_is_logged_with_its_samples(toy: Toy) -> None:
    done = toy.run("spike@40", max_steps=44, rows=96, save_steps=0)
    assert done.returncode == 0, done.stderr
    (spike,) = events(toy, "spike")
    assert spike["step"] == 40 and spike["samples"] == [312, 319] and spike["loss"] > 1000
    assert "step 40: loss" in done.stderr and "(samples 312 to 319)" in done.stderr


@pytest.fixture(scope="module")
def killed_once(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run that ended in step 5, after the checkpoint of step 3."""
    toy = Toy(tmp_path_factory.mktemp("killed"))
    assert toy.run("kill@5", "saved@0").returncode == -9
    return toy.folder


@pytest.fixture
def killed(killed_once: Path, tmp_path: Path) -> Toy:
    """A copy of it."""
    return Toy(shutil.copytree(killed_once, tmp_path / "toy"))


@pytest.mark.parametrize(
    ("name", "value", "shown"),
    [
        ("seed", 1, "seed is 1"),
        ("batch_size", 4, "batch_size is '4'"),
        ("optimizer", "muon", "optimizer is 'muon'"),
        ("rows", 40, "data is '40 rows'"),
    ],
)
def test_another_run_is_not_taken_up(killed: Toy, name: str, value: Any, shown: str) -> None:
    toy = killed
    done = toy.run(resume=True, **{name: value})
    assert done.returncode == 2 and "error: --resume: this is another run than that in" in done.stderr
    assert f": {shown} and was " in done.stderr
    known = "data" if name == "rows" else name
    assert f"--allow_change {known}" in done.stderr
    allowed = toy.run(resume=True, allow_change=known, **{name: value})
    assert allowed.returncode == 0 and f"{known} was " in allowed.stderr
    assert ("the saved optimizer is not loaded" in allowed.stderr) == (name == "optimizer")


@pytest.mark.parametrize(
    "change", fast([("learning_rate", 0.02), ("max_steps", 15), ("weight_decay", 0.2)], ("max_steps", 15))
)
def test_a_schedule_may_change_and_that_is_recorded(killed: Toy, change: tuple[str, Any]) -> None:
    name, value = change
    done = killed.run(resume=True, **{name: value})
    assert done.returncode == 0 and f"  {name} was " in done.stderr
    (resumed,) = events(killed, "resume")
    assert [change["option"] for change in resumed["changes"]] == [name]


def test_what_only_concerns_people_changes_without_a_word(killed: Toy, undisturbed: dict[str, Any]) -> None:
    done = killed.run(resume=True, eval_batch_size=3, keep_checkpoints=5, hang_timeout=0)
    assert done.returncode == 0 and " was " not in done.stderr
    assert killed.oracle()["model"] == undisturbed["model"]


def test_two_runs_in_one_folder(toy: Toy) -> None:
    first = toy.start("slow@100")
    while not (toy.output_dir / "metrics.jsonl").exists():
        assert first.alive()
    second = toy.run(resume=True)
    assert second.returncode == 2 and f"process {first.pids[0]} on " in second.stderr
    assert "is training there now" in second.stderr
    first.kill()
    third = toy.run(resume=True)
    assert third.returncode == 0 and f"the lock of process {first.pids[0]} on " in third.stderr
    assert "taking over the lock" in third.stderr
    assert not (toy.output_dir / ".owner.json").exists()
    assert toy.run().returncode == 2  # it holds a run


@pytest.mark.parametrize(("inject", "minutes"), [("clock@3:1", 0.02), ("compiled@2:1", 0.05)])
def test_two_processes_have_one_clock(toy: Toy, inject: str, minutes: float) -> None:
    """Or one of them would end before the other, and learn at other rates until then."""
    done = toy.run(inject, num_processes=2, max_steps=10**6, max_minutes=minutes, hang_timeout=30, save_steps=0)
    assert done.returncode == 0, done.stderr
    first, second = done.stdout.splitlines()[-2:]
    assert first == second and float(first.split()[-2]) == pytest.approx(60 * minutes, abs=0.5)


FSDP2 = {"ACCELERATE_USE_FSDP": "true", "FSDP_VERSION": "2"}
DIVIDED = [pytest.param(FSDP2, id="FSDP2")]


@pytest.mark.parametrize("divided", [pytest.param({}, id="DDP"), *DIVIDED])
def test_one_process_two_processes_and_any_micro_batch_have_one_curve(
    toy: Toy, new_toy: Any, monkeypatch: pytest.MonkeyPatch, divided: dict[str, str]
) -> None:
    """With SGD and without clipping, so that gradients of another scale are other steps."""
    common = {"batch_size": 32, "rows": 96, "max_steps": 6, "dropout": 0.0, "learning_rate": 0.1, "max_grad_norm": 0}
    found = []
    for num_processes in (2,) if divided else (1, 2):
        other = new_toy(str(num_processes))
        for name, value in divided.items():
            monkeypatch.setenv(name, value)
        done = other.run("sgd@0", **common, micro_batch_size=8, num_processes=num_processes)
        assert done.returncode == 0, done.stderr
        found.append(other.oracle())
    monkeypatch.undo()
    assert toy.run("sgd@0", **common).returncode == 0
    expected = toy.oracle()
    for oracle in found:
        assert oracle["samples"] == expected["samples"]
        for step, (loss, _, norm, _) in expected["losses"].items():
            assert oracle["losses"][step][0] == pytest.approx(loss, rel=1e-5)
            assert oracle["losses"][step][2] == pytest.approx(norm, rel=1e-4)


def test_sharding_that_cannot_be_is_an_error(toy: Toy, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ACCELERATE_USE_FSDP", "true")
    monkeypatch.setenv("FSDP_VERSION", "2")
    done = toy.run()
    assert done.returncode == 2 and "sharding was requested, but there is only one process" in done.stderr
    monkeypatch.setenv("FSDP_VERSION", "1")
    done = toy.run(num_processes=2)
    assert done.returncode == 2 and "FSDP_VERSION is 1" in done.stderr


@pytest.mark.parametrize("divided", DIVIDED)
def test_a_stopped_sharded_run_goes_on_in_one_process(
    toy: Toy, new_toy: Any, monkeypatch: pytest.MonkeyPatch, divided: dict[str, str]
) -> None:
    with monkeypatch.context() as patch:
        for name, value in divided.items():
            patch.setenv(name, value)
        assert toy.run("term@5", num_processes=2, dropout=0.0).returncode == 143
    done = toy.run(resume=True, dropout=0.0)
    assert done.returncode == 0, done.stderr
    straight = new_toy("straight")
    assert straight.run(dropout=0.0).returncode == 0
    mine, theirs = toy.oracle(), straight.oracle()
    assert mine["samples"] == theirs["samples"]
    for step, values in theirs["losses"].items():
        assert mine["losses"][step][0] == pytest.approx(values[0], rel=1e-5), step
