"""The weights of the best evaluation are the ones that a run ends with, and it may end when there is no better one."""

import json
import math
import os
import signal
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from examples import fast
from processes import run as run_script
from safetensors.torch import load_file
from torch import Tensor, nn
from toys import ToyWork

from lacuna.common.errors import InputError, StoppedError
from lacuna.training import train
from lacuna.training.optimizers.averages import Best
from lacuna.training.progress import Progress, stops_early


class Scripted(ToyWork):
    """A work whose metric follows a script: a new model has the next score, one that was seen before its own."""

    metric, greater_is_better = "score", True

    def __init__(self, scores: list[float], **options: Any) -> None:
        super().__init__(**options)
        self.script = iter(scores)
        self.known: dict[float, float] = {}
        self.records: list[dict[str, Any]] = []

    def summarize(self, records: list[dict[str, Any]]) -> dict[str, float]:
        self.records = records
        loss = super().summarize(records)["loss"]
        if loss not in self.known:
            self.known[loss] = next(self.script)
        return {"loss": loss, "score": self.known[loss]}


@pytest.fixture
def run(new_model, plain_tokenizer, tuning_options):
    def start(work: Any, *, model: Any = None, **overrides: Any):
        arguments = tuning_options(**{"eval_steps": 1, "schedule": "constant", **overrides})
        model = model or new_model(dropout=0.1, hidden_size=32)
        return train(model=model, work=work, tokenizer=plain_tokenizer, arguments=arguments)

    return start


def weights(folder: Path) -> dict[str, Tensor]:
    return load_file(folder / "model.safetensors")


def assert_equal(one: dict[str, Tensor], other: dict[str, Tensor]) -> None:
    assert one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


SCORES = [0.1, 0.5, 0.3, 0.7, 0.7, 0.2, math.nan, 0.6]


@pytest.mark.parametrize("sign", [1, -1])
def test_the_kept_weights_are_those_of_the_best_evaluation(run, tmp_path, log_of, sign) -> None:
    """Step 5, of two equals the one with the lower loss; every step has a checkpoint, without the average in it."""
    work = Scripted([sign * score for score in SCORES])
    work.greater_is_better = sign > 0
    results = run(work, save_steps=1, keep_checkpoints=9)
    folder = tmp_path / "run"
    assert (results["best_step"], results["eval_score"], results["steps"]) == (5, sign * 0.7, 8)
    assert_equal(weights(folder), weights(folder / "checkpoints" / "step-00000005"))
    lines = [line for line in log_of(folder) if "eval_loss" in line]
    assert [line["step"] for line in lines] == [*range(1, 9)], "the weights that are kept are not logged as a step's"
    assert results["eval_loss"] == lines[4]["eval_loss"] != lines[-1]["eval_loss"]
    assert json.loads((folder / "results.json").read_text()) == results
    assert work.summarize(work.records)["loss"] == results["eval_loss"], "what is remembered is of the kept weights"
    assert "0.7000" in (folder / "README.md").read_text()


def test_of_the_last_evaluation_nothing_is_measured_twice(run, tmp_path) -> None:
    work = Scripted([*range(8)])
    results = run(work, save_steps=4)
    assert results["best_step"] == 8 and len(work.evaluated) == 8 * work.num_eval_examples
    assert_equal(weights(tmp_path / "run"), weights(tmp_path / "run" / "checkpoints" / "step-00000008"))


def test_a_stop_while_the_kept_weights_are_judged_leaves_the_rest_to_the_next_session(run, tmp_path) -> None:
    class Stopped(Scripted):
        def eval_example(self, row: int) -> dict[str, Any]:
            if len(self.evaluated) == 8 * self.num_eval_examples:  # after the evaluations of all steps
                os.kill(os.getpid(), signal.SIGTERM)
            return super().eval_example(row)

    with pytest.raises(StoppedError, match="after step 8"):
        run(Stopped(SCORES), save_steps=8)
    assert not (tmp_path / "run" / "model.safetensors").exists()
    results = run(Scripted([0.6, 0.7]), save_steps=8, resume=True)  # the last evaluation is made again
    assert results["best_step"] == 5 and (tmp_path / "run" / "model.safetensors").exists()


@pytest.mark.parametrize("scores", [[math.nan] * 8, []])
def test_without_a_number_the_last_weights_are_kept(run, tmp_path, scores) -> None:
    work = Scripted(scores, num_eval_examples=7 if scores else 0)
    results = run(work, save_steps=8)
    assert "best_step" not in results
    assert_equal(weights(tmp_path / "run"), weights(tmp_path / "run" / "checkpoints" / "step-00000008"))


@pytest.mark.parametrize("broken_at", fast([2, 4, 7], 2, 7))
def test_a_stopped_run_keeps_the_same_weights(run, tmp_path, broken_at) -> None:
    """Before the best evaluation, at it, and after it."""
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    options: dict[str, Any] = {"save_steps": 1, "early_stopping_patience": 3}
    first = run(Scripted(SCORES), output_dir=str(whole), **options)
    assert first["steps"] == 8 and first["stopped_early"] is False, "it was over with that step anyway"
    with pytest.raises(InterruptedError):
        run(Scripted(SCORES, stop_at=broken_at * 8), output_dir=str(broken), **options)
    second = run(Scripted(SCORES[broken_at:] + SCORES[3:4]), output_dir=str(broken), resume=True, **options)
    assert_equal(weights(whole), weights(broken))
    assert second["best_step"] == first["best_step"] == 5


def test_a_run_stops_after_evaluations_without_a_better_one(run, tmp_path, log_of, capsys) -> None:
    work = Scripted([0.1, 0.5, 0.5, 0.4, 0.3, 0.9])
    results = run(work, early_stopping_patience=2, save_steps=3, logging_steps=3)
    assert results["steps"] == 5 and results["stopped_early"] is True and results["best_step"] == 3
    assert results["planned_steps"] == 8
    lines = log_of(tmp_path / "run")
    assert [line["step"] for line in lines if "loss" in line] == [3, 5], "the last line of the log is not lost"
    assert len(work.rows) == 5 * 8
    told = "stopped early after step 5 of 8: 2 evaluations in a row without a better score than that of step 3\n"
    assert told in capsys.readouterr().err
    card = (tmp_path / "run" / "README.md").read_text()
    planned = "before the 8 steps that were planned: 2 evaluations in a row without a better one"
    assert f"| ended early | {planned} |" in card
    assert (tmp_path / "run" / "checkpoints" / "step-00000005").is_dir(), "it can be continued"


class Rising(Scripted):
    """Its held-out loss rises from one new model to the next."""

    def summarize(self, records: list[dict[str, Any]]) -> dict[str, float]:
        found = super().summarize(records)
        return {**found, "loss": float(list(self.known).index(found["loss"]))}


class Overfitting(Rising):
    """It is judged by that loss, which begins at 1."""

    metric, greater_is_better = "loss", False

    def summarize(self, records: list[dict[str, Any]]) -> dict[str, float]:
        return {"loss": 1 + super().summarize(records)["loss"] * self.by}


@pytest.mark.parametrize(
    ("by", "average", "warns"), [(0.5, "none", True), (0.001, "none", False), (0.5, "best", False)]
)
def test_a_loss_that_has_risen_is_told(run, capsys, by, average, warns) -> None:
    work = Overfitting([0.5] * 8)
    work.by = by
    run(work, average=average)
    told = (
        "the held-out loss has risen from 1.0000 at step 1 to 4.5000 after 2.7 passes. Fewer of them (--max_epochs) "
    )
    assert (told in capsys.readouterr().err) is warns


def test_a_loss_that_has_risen_within_a_pass_is_that_of_a_high_rate(run, capsys) -> None:
    work = Overfitting([0.5] * 8, num_examples=100)
    work.by = 0.5
    run(work, average="none")
    assert "after 0.6 passes. A lower --learning_rate may help; --average best" in capsys.readouterr().err


def test_equals_with_a_higher_loss_are_not_better(run, capsys) -> None:
    """All evaluations say the same, and the first weights stay: what is said of them is true."""
    results = run(Rising([0.5] * 8), early_stopping_patience=2)
    assert (results["steps"], results["best_step"]) == (3, 1)
    assert "step 3 of 8: 2 evaluations in a row without a better score than that of step 1" in capsys.readouterr().err


def test_without_a_number_none_is_called_the_best(run, capsys) -> None:
    run(Scripted([math.nan] * 8), early_stopping_patience=2)
    assert "after step 2 of 8: 2 evaluations in a row without a score that is a number" in capsys.readouterr().err


def test_a_run_that_stopped_early_goes_on_with_more_patience(run, tmp_path) -> None:
    options: dict[str, Any] = {"save_steps": 1, "keep_checkpoints": 9}
    run(Scripted([0.5, 0.1, 0.1]), early_stopping_patience=2, **options)
    again = run(Scripted([0.1, 0.5]), early_stopping_patience=2, resume=True, **options)
    assert again["steps"] == 3 and again["stopped_early"] is True and again["best_step"] == 1
    more = run(Scripted([0.2, 0.3, 0.6, 0.2, 0.2]), early_stopping_patience=5, resume=True, **options)
    assert more["steps"] == 8 and more["stopped_early"] is False and more["best_step"] == 6
    assert_equal(weights(tmp_path / "run"), weights(tmp_path / "run" / "checkpoints" / "step-00000006"))


def test_with_another_average_the_best_is_looked_for_anew(run, tmp_path) -> None:
    """The weights of the best evaluation before are not in a checkpoint that was written without them."""
    options: dict[str, Any] = {"save_steps": 1, "keep_checkpoints": 9}
    with pytest.raises(InterruptedError):
        run(Scripted([0.9, 0.1], stop_at=2 * 8), average="none", **options)
    scores = Scripted([0.1, 0.2, 0.7, 0.3, 0.2, 0.1])
    results = run(scores, average="best", allow_change=["average"], resume=True, **options)
    assert (results["best_step"], results["eval_score"], results["steps"]) == (5, 0.7, 8)
    assert_equal(weights(tmp_path / "run"), weights(tmp_path / "run" / "checkpoints" / "step-00000005"))


def test_patience_does_without_the_best_weights(run, tmp_path) -> None:
    results = run(Scripted([0.5, 0.1, 0.1]), early_stopping_patience=2, average="none", save_steps=1)
    assert results["steps"] == 3 and "best_step" not in results and results["eval_score"] == 0.1
    assert_equal(weights(tmp_path / "run"), weights(tmp_path / "run" / "checkpoints" / "step-00000003"))


def test_the_average_is_of_the_weights_after_every_step(run, new_work, tmp_path) -> None:
    run(new_work(), average="ema", ema_decay=0.5, save_steps=1, keep_checkpoints=9)
    steps = [weights(tmp_path / "run" / "checkpoints" / f"step-{step:08d}") for step in range(1, 9)]
    shares = [0.5 ** (8 - step) for step in range(1, 9)]
    for name, value in weights(tmp_path / "run").items():
        expected = sum(share * each[name] for share, each in zip(shares, steps, strict=True)) / sum(shares)
        torch.testing.assert_close(value, expected, rtol=1e-5, atol=1e-6)


def test_other_averages_are_what_is_evaluated_and_the_best_is_not(run, new_model, new_work) -> None:
    """The loss on held-out rows is of the weights that were kept or averaged, computed here once more."""
    for average in ("best", "ema", "none"):
        work, model = new_work(), new_model()
        results = run(work, model=model, average=average, learning_rate=0.3, output_dir=f"{average}")
        kept = new_model()
        kept.load_state_dict(weights(Path(average)), strict=False)
        with torch.no_grad():
            records = work.evaluate(kept.eval(), work.collate([work.eval_example(row) for row in range(7)]))
        assert results["eval_loss"] == pytest.approx(work.summarize(records)["loss"], rel=1e-5)


@pytest.fixture(autouse=True)
def own_folder(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_judging_by_hand() -> None:
    progress = Progress()
    for step, (metric, is_better, waited) in enumerate(
        [(None, False, 1), (math.nan, False, 2), (0.3, True, 0), (0.3, False, 1), (0.2, False, 2), (0.31, True, 0)]
    ):
        progress.step = step
        assert progress.judge(metric, greater_is_better=True) is is_better
        assert progress.without_better == waited
        assert progress.judge(1.0, greater_is_better=True) is False, "a step counts once"
        assert progress.without_better == waited and progress.best_metric != 1.0
    assert (progress.best_step, progress.best_metric, progress.metric) == (5, 0.31, 1.0)
    progress.step = 6
    assert progress.judge(0.1, greater_is_better=False)


def test_equals_are_told_apart_by_their_loss() -> None:
    progress = Progress()
    losses = [math.nan, 2.0, 2.5, 2.0, 1.5, None, 1.6]
    for step, (loss, is_better) in enumerate(zip(losses, [True, True, False, False, True, False, False], strict=True)):
        progress.step = step
        assert progress.judge(0.5, loss=loss, greater_is_better=True) is is_better, step
    assert (progress.best_step, progress.best_loss, progress.without_better) == (4, 1.5, 2)


def test_patience_by_hand(tuning_options) -> None:
    progress = Progress(without_better=3)
    assert [stops_early(tuning_options(early_stopping_patience=number), progress) for number in (0, 2, 3, 4)] == [
        False, True, True, False,
    ]  # fmt: skip
    assert stops_early(tuning_options(early_stopping_patience=1), Progress(without_better=1))
    with pytest.raises(InputError, match="--early_stopping_patience must not be negative"):
        tuning_options(early_stopping_patience=-1)
    with pytest.raises(InputError, match="--eval_steps 0"):
        tuning_options(early_stopping_patience=1, eval_steps=0)


def test_patience_needs_something_to_judge_by(run) -> None:
    with pytest.raises(InputError, match="--early_stopping_patience needs examples that are held out"):
        run(Scripted([], num_eval_examples=0), early_stopping_patience=1)


def test_keeping_takes_a_copy_and_steps_leave_it_alone() -> None:
    model = nn.Linear(2, 2).bfloat16()
    best = Best(model)
    best.update(model)
    assert best.state()["num_updates"] == 0
    for value in (1.0, 2.0):
        nn.init.constant_(model.weight, value)
        best.keep(model)
    nn.init.constant_(model.weight, 3.0)
    best.update(model)
    assert best.state()["weight"].tolist() == [[2.0, 2.0]] * 2
    with best.applied(model):
        assert model.weight.tolist() == [[2.0, 2.0]] * 2
    assert model.weight.tolist() == [[3.0, 3.0]] * 2


@pytest.mark.parametrize("shards", [pytest.param(False, marks=pytest.mark.slow), True])
def test_two_processes_stop_after_the_same_step_and_keep_the_same_weights(tmp_path, shards) -> None:
    """A rate far too high, by which the loss soon rises. Held-out rows: 7, which two do not divide."""
    words = [
        *("--average", "best", "--early_stopping_patience", "3", "--eval_steps", "2", "--max_steps", "40"),
        *("--batch_size", "8", "--learning_rate", "0.05", "--schedule", "constant", "--optimizer", "adamw"),
        *("--mixed_precision", "no", "--save_steps", "0", "--dropout", "0", "--compile", "off"),
        *("--weight_decay", "0.01", "--embedding_rate", "1"),
    ]
    sharded = {"ACCELERATE_USE_FSDP": "true", "FSDP_VERSION": "2"} if shards else {}
    found = []
    for count in (1, 2):
        (tmp_path / str(count)).mkdir()
        folder = tmp_path / str(count) / "run"
        environment = {"PATH": "/usr/bin", "PYTHONPATH": ":".join(sys.path), **(sharded if count == 2 else {})}
        done = run_script(
            "tests/faults/toy_run.py", *words, "--output_dir", folder, num_processes=count, env=environment
        )
        assert done.returncode == 0, done.stderr
        found.append((json.loads((folder / "results.json").read_text()), weights(folder)))
    (one, kept_by_one), (two, kept_by_two) = found
    assert one["stopped_early"] is True and one["steps"] < 40 and one["best_step"] == one["steps"] - 6
    for name in ("steps", "best_step", "stopped_early"):
        assert two[name] == one[name]
    assert two["eval_loss"] == pytest.approx(one["eval_loss"], rel=1e-4)
    for name, value in kept_by_one.items():
        torch.testing.assert_close(kept_by_two[name], value, rtol=1e-2, atol=1e-3)


def test_what_is_kept_is_counted() -> None:
    best = Best(nn.Linear(2, 2))
    for count in (1, 2):
        best.keep(nn.Linear(2, 2))
        assert best.state()["num_updates"] == count
