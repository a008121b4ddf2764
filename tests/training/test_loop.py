"""The loop as a whole: what a run writes, and that restarting or dividing it changes nothing."""

import json
import math
import multiprocessing
import shutil
import threading
from dataclasses import replace
from itertools import count, pairwise
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import pytest
import torch
from examples import fast
from safetensors.torch import load_file
from transformers import AutoModelForMaskedLM

from lacuna.common.errors import InputError, NumericsError, StorageError
from lacuna.common.files import OWNER
from lacuna.common.work import Work
from lacuna.tasks.question_answering.task import QuestionAnswering
from lacuna.tasks.sequence_to_sequence.task import SequenceToSequence
from lacuna.training import TrainingArguments, claim_output_dir, goes_on, loop, train
from lacuna.training.checkpoints.saving import Progress, Saver, newest_checkpoint, read_progress
from lacuna.training.order import dropout_seed, row_of
from lacuna.training.planning.memory import FakeStep
from lacuna.training.progress import check_skipped, share_done
from lacuna.training.reports.log import RunLog
from lacuna.training.stages import Stage, resolve, skipped
from lacuna.training.step import step as one_step


@pytest.fixture
def run(new_model, new_work, plain_tokenizer, options):
    """Trains the small model; returns (results, model, work)."""

    def start(*, work=None, model=None, dropout: float = 0.0, hidden_size=16, identity=None, **overrides):
        work = work or new_work()
        model = model or new_model(dropout=dropout, hidden_size=hidden_size)
        results = train(
            model=model, work=work, tokenizer=plain_tokenizer, arguments=options(**overrides), identity=identity
        )
        return results, model, work

    return start


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(folder / "model.safetensors")


def assert_equal_weights(one: Path, other: Path) -> None:
    first, second = weights(one), weights(other)
    assert first.keys() == second.keys()
    for name in first:
        assert torch.equal(first[name], second[name]), name


def losses(lines) -> list[tuple]:
    return [(line["step"], line["loss"], line["learning_rate"], line["grad_norm"]) for line in lines if "loss" in line]


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_stopped_and_resumed_equals_unbroken_to_the_bit(run, new_work, tmp_path, log_of, optimizer) -> None:
    """Dropout on; 24 rows in batches of 8: the break at step 4 is inside the second epoch."""
    # Muon leaves matrices with fewer than 32 rows to AdamW.
    options = {"dropout": 0.1, "hidden_size": 32, "optimizer": optimizer, "save_steps": 4, "eval_steps": 3}
    straight, resumed = tmp_path / "straight", tmp_path / "resumed"
    results, _, work = run(output_dir=str(straight), **options)
    with pytest.raises(InterruptedError):
        run(output_dir=str(resumed), work=new_work(stop_at=5 * 8), **options)  # step 5 is done and not saved
    again, _, rest = run(output_dir=str(resumed), resume=True, **options)
    assert_equal_weights(straight, resumed)
    assert losses(log_of(straight)) == losses(log_of(resumed))
    assert [line["eval_loss"] for line in log_of(straight) if "eval_loss" in line] == [
        line["eval_loss"] for line in log_of(resumed) if "eval_loss" in line
    ]
    assert rest.rows == work.rows[4 * 8 :]
    timed = ("train_seconds", "checkpoint_seconds", "train_tokens_per_second")
    assert {k: v for k, v in results.items() if k not in timed} == {k: v for k, v in again.items() if k not in timed}
    for name in ("optimizer.safetensors",):
        state = "checkpoints/step-00000008/training_state"
        one, other = load_file(straight / state / name), load_file(resumed / state / name)
        assert one.keys() == other.keys() and all(torch.equal(one[key], other[key]) for key in one)


def test_dropout_takes_part_and_is_drawn_from_seed_step_micro_step_and_rank(
    run, new_work, tmp_path, monkeypatch
) -> None:
    """Else the test above would prove less than it says."""
    run(output_dir=str(tmp_path / "with"), dropout=0.1, max_steps=2)
    run(output_dir=str(tmp_path / "without"), dropout=0.0, max_steps=2)
    with pytest.raises(AssertionError):
        assert_equal_weights(tmp_path / "with", tmp_path / "without")

    class Watching(new_work):
        def loss(self, *arguments):
            seeds.append(torch.initial_seed())
            return super().loss(*arguments)

    for rank in (0, 1):
        seeds: list[int] = []
        monkeypatch.setattr("accelerate.Accelerator.process_index", rank)
        run(output_dir=str(tmp_path / str(rank)), work=Watching(), seed=5, max_steps=2, micro_batch_size=4)
        assert seeds == [
            dropout_seed(seed=5, step=step, micro_step=micro, rank=rank) for step in (0, 1) for micro in (0, 1)
        ]


def test_resuming_after_a_half_written_checkpoint_and_a_half_written_log(
    run, new_work, tmp_path, log_of, capsys
) -> None:
    straight, broken = tmp_path / "straight", tmp_path / "broken"
    run(output_dir=str(straight), save_steps=2)
    with pytest.raises(InterruptedError):
        run(output_dir=str(broken), work=new_work(stop_at=7 * 8), save_steps=2)
    newest = broken / "checkpoints" / "step-00000006"
    (newest / "model.safetensors").write_bytes((newest / "model.safetensors").read_bytes()[:-1])
    (broken / "checkpoints" / ".step-00000007.tmp").mkdir()
    with (broken / "metrics.jsonl").open("a") as file:
        file.write('{"step": 8, "lo')
    run(output_dir=str(broken), resume=True, save_steps=2)
    assert "model.safetensors" in capsys.readouterr().err
    assert_equal_weights(straight, broken)
    assert losses(log_of(straight)) == losses(log_of(broken))
    assert not list(broken.rglob("*.tmp"))


@pytest.mark.parametrize("micro_batch_size", fast([4, 2, 1], 2))
def test_micro_batches_change_neither_samples_nor_loss(run, tmp_path, log_of, micro_batch_size) -> None:
    """Rows have different numbers of targets, so a mean of means would show."""
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    _, _, one = run(output_dir=str(whole))
    _, _, other = run(output_dir=str(parts), micro_batch_size=micro_batch_size)
    assert one.rows == other.rows and len(one.rows) == 64
    assert len(one.batches) == 8 and len(other.batches) == 8 * 8 // micro_batch_size
    for first, second in zip(log_of(whole), log_of(parts), strict=True):
        if "loss" in first:
            assert second["loss"] == pytest.approx(first["loss"], rel=1e-5)
            assert second["grad_norm"] == pytest.approx(first["grad_norm"], rel=1e-4)
            assert second["rows"] == first["rows"] == 8
    assert all(
        torch.allclose(value, weights(parts)[name], rtol=1e-3, atol=1e-5) for name, value in weights(whole).items()
    )


def test_products_of_muon_in_bf16_carry_rounding_no_further(run, tmp_path, log_of) -> None:
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    common = {"optimizer": "muon", "learning_rate": 6e-3, "hidden_size": 32, "max_steps": 5}
    run(output_dir=str(whole), **common)
    run(output_dir=str(parts), micro_batch_size=2, **common)
    pairs = [
        (first["loss"], second["loss"])
        for first, second in zip(log_of(whole), log_of(parts), strict=True)
        if "loss" in first
    ]
    assert len(pairs) == 5 and all(second == pytest.approx(first, rel=1e-4) for first, second in pairs)


def test_loss_and_step_equal_a_loop_of_ten_lines(run, new_model, new_work, tmp_path, log_of) -> None:
    run(max_steps=3, schedule="constant", warmup_steps=0, weight_decay=0.0, micro_batch_size=4)
    model, work = new_model(), new_work()
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, betas=(0.9, 0.98), weight_decay=0.0)
    found = [(line["loss"], line["grad_norm"]) for line in log_of(tmp_path / "run") if "loss" in line]
    for step in range(3):
        rows = [(row_of(index, seed=0, num_examples=24), index) for index in range(8 * step, 8 * step + 8)]
        batch = work.collate([work.example(*row) for row in rows])
        loss, _ = work.loss(model, batch, {"tokens": torch.tensor(work.count_targets(batch)["tokens"])})
        optimizer.zero_grad()
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        assert found[step] == pytest.approx((float(loss.detach()), float(norm)), rel=1e-5)
    trained = AutoModelForMaskedLM.from_pretrained(tmp_path / "run").state_dict()
    assert all(
        torch.allclose(value, trained[name], rtol=1e-3, atol=1e-5) for name, value in model.state_dict().items()
    )


@pytest.mark.parametrize("targets", [0, 1, 3])
def test_a_step_is_divided_by_its_targets_and_by_one_where_there_are_none(targets) -> None:
    divided: list[float] = []

    class Counted(Work):
        def count_targets(self, batch):
            return {"words": targets}

        def loss(self, model, batch, num_targets):
            divided.append(float(num_targets["words"]))
            return model(batch["input_ids"].float()).sum(), {}

    one_step(Counted(), torch.nn.Linear(2, 1), [{"input_ids": torch.ones(1, 2)}], device=torch.device("cpu"))
    assert divided == [max(targets, 1)]


def test_workers_change_nothing(run, tmp_path, log_of) -> None:
    run(output_dir=str(tmp_path / "none"), max_steps=4, dropout=0.1)
    run(output_dir=str(tmp_path / "two"), max_steps=4, dropout=0.1, num_workers=2)
    assert losses(log_of(tmp_path / "none")) == losses(log_of(tmp_path / "two"))
    assert_equal_weights(tmp_path / "none", tmp_path / "two")


def test_an_error_ends_the_workers(run, tmp_path, monkeypatch) -> None:
    # They ignore SIGTERM, with which Python would end them at its own end: it would wait for them for ever.
    others, error = set(multiprocessing.active_children()), RuntimeError("CUDA error: unspecified launch failure")
    monkeypatch.setattr(loop, "update", mock.Mock(side_effect=error))
    with pytest.raises(RuntimeError, match="unspecified launch failure") as caught:
        run(output_dir=str(tmp_path / "run"), max_steps=4, num_workers=2)
    assert caught.traceback  # which holds all that the loop held
    for worker in (left := set(multiprocessing.active_children()) - others):
        worker.kill()
    assert not left


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_loss_that_is_not_finite_is_not_applied(run, new_work, new_model, tmp_path, value) -> None:
    """Though its gradient is finite."""
    work, model = new_work(), new_model()
    work.poison = lambda index: value if index == 3 * 8 + 5 else 0.0  # in step 4, second micro-batch
    with pytest.raises(NumericsError, match=r"step 4: .*samples 24 to 31") as raised:
        run(work=work, model=model, micro_batch_size=4, schedule="constant", save_steps=1, max_bad_steps=1)
    assert raised.value.exit_code == 4
    clean = new_model()
    run(model=clean, output_dir=str(tmp_path / "clean"), max_steps=3, schedule="constant", warmup_steps=0.15)
    saved = weights(tmp_path / "run" / "checkpoints" / "step-00000003")
    for name, value in model.state_dict().items():
        assert torch.isfinite(value).all()
        if name in saved:
            assert torch.equal(value, saved[name])
    assert not (tmp_path / "run" / "model.safetensors").exists()
    newest = sorted(path.name for path in (tmp_path / "run" / "checkpoints").iterdir())[-1]
    assert newest == "step-00000003"


def test_weights_that_are_not_finite_are_never_saved(run, new_work, new_model, tmp_path, capsys) -> None:
    model = new_model()

    class Spoiling(new_work):
        def example(self, row, index):
            if index == 2 * 8:  # in step 3
                model.cls.predictions.bias.data[3] = math.inf
            return super().example(row, index)

    with pytest.raises(NumericsError, match="step 4"):
        run(work=Spoiling(), model=model, save_steps=1, max_bad_steps=2)
    names = sorted(path.name for path in (tmp_path / "run" / "checkpoints").iterdir())
    assert names == ["step-00000001", "step-00000002"]
    assert "warning: weights are not finite after step 3: no checkpoint" in capsys.readouterr().err
    model = new_model()
    with pytest.raises(NumericsError, match="after the last step: no model is written"):
        run(work=Spoiling(), model=model, output_dir=str(tmp_path / "short"), max_steps=4, max_bad_steps=9)
    assert not (tmp_path / "short" / "model.safetensors").exists()


def test_weights_that_say_nothing_that_is_a_number_are_no_model(run, new_work, tmp_path) -> None:
    """They may all be finite, of a rate that was far too high."""

    class Diverged(new_work):
        def summarize(self, records):
            return {"loss": math.nan}

    with pytest.raises(NumericsError, match=r"held-out loss is nan .* no model .* lower --learning_rate"):
        run(work=Diverged())
    assert not (tmp_path / "run" / "model.safetensors").exists()


def test_the_clock_ends_a_run_with_its_schedule_complete(run, tmp_path, log_of) -> None:
    results, _, _ = run(max_steps=None, max_minutes=1.5 / 60, schedule="wsd")
    lines = [line for line in log_of(tmp_path / "run") if "loss" in line]
    longest = max(later["seconds"] - line["seconds"] for line, later in pairwise(lines))
    assert results["train_seconds"] == pytest.approx(1.5, abs=2 * longest)
    assert results["steps"] == lines[-1]["step"] > 5
    assert max(line["learning_rate"] for line in lines) == pytest.approx(1e-2)
    assert lines[-1]["learning_rate"] < 0.5 * 1e-2
    assert [line["learning_rate"] for line in lines[-5:]] == sorted(
        (line["learning_rate"] for line in lines[-5:]), reverse=True
    )


def test_minutes_tokens_a_second_and_the_share_of_the_peak(run, new_model, tmp_path, log_of, monkeypatch) -> None:
    """Each step takes 10 ms here, in which the processor could do 40 million operations."""
    clock = count(step=0.01)
    monkeypatch.setattr("lacuna.training.loop.time", SimpleNamespace(perf_counter=lambda: next(clock)))
    monkeypatch.setattr("lacuna.training.planning.flops.WAIT", 0.0)
    monkeypatch.setattr("lacuna.training.planning.flops.peak_flops", lambda device, precision: 4e9)
    _, _, work = run(save_minutes=0.0298 / 60, keep_checkpoints=9)  # a little less than three steps take
    names = sorted(path.name for path in (tmp_path / "run" / "checkpoints").iterdir())
    assert names == ["step-00000003", "step-00000006", "step-00000008"]  # the last step has one in any case
    batch = work.collate([work.example(row_of(index, seed=0, num_examples=24), index) for index in range(8)])
    fake, first = FakeStep(new_model(), precision="no", device_type="cpu"), log_of(tmp_path / "run")[0]
    fake.run(work, batch)
    assert first["tokens_per_second"] == pytest.approx(int(batch["attention_mask"].sum()) / 0.01)
    assert first["mfu"] == pytest.approx(fake.flops / 4e7, abs=1e-4) and 0.1 < first["mfu"] < 1


def test_by_the_clock_a_run_ends_with_the_step_that_ends_nearest_to_it() -> None:
    plan = TrainingArguments(max_minutes=1)
    assert share_done(plan, Progress(step=10, seconds=56.0)) == pytest.approx(56 / 60)  # the next would end at 61.6
    assert share_done(plan, Progress(step=10, seconds=58.0)) == 1.0  # the next would end at 63.8
    assert share_done(plan, Progress()) == 0.0


@pytest.mark.parametrize(
    ("before", "least"),
    [([1.0, 3.0] * 16, 8.0), ([100.0] * 9 + [1.0, 3.0] * 64, 8.0), ([2.0] * 32, 2.012), ([1.0, 3.0] * 15, math.inf)],
)
def test_a_spike_is_six_standard_deviations_above_the_mean(before, least) -> None:
    """Of the last 128 losses, 32 at least; where they are all alike, a thousandth of the mean stands for one."""
    progress = Progress()
    for loss in before:
        progress.note_loss(loss)
    assert replace(progress).note_loss(min(least, 1e9) - 1e-3) is None
    mean = progress.note_loss(least + 1e-3)
    assert mean == (None if least == math.inf else 2.0)
    assert len(progress.losses) == min(len(before) + 1, 128) and progress.losses[-1] == least + 1e-3


def test_the_last_checkpoint_knows_how_good_it_is(run, tmp_path) -> None:
    """A run that evaluates only at its end does so before it saves: or its last weights could not be the best."""
    results, _, _ = run(eval_steps=0, save_steps=0.5)
    newest, _ = newest_checkpoint(tmp_path / "run")
    assert newest is not None
    progress = read_progress(newest)
    assert progress.step == results["steps"] and progress.metric == pytest.approx(results["eval_loss"])


@pytest.mark.curves
def test_what_a_run_writes(run, new_work, tmp_path, log_of) -> None:
    results, model, work = run(
        max_steps=None, max_epochs=2, eval_steps=0.5, save_steps=0.5, eval_batch_size=3, logging_steps=2
    )
    folder = tmp_path / "run"
    lines = log_of(folder)
    assert results["steps"] == 6  # two epochs of 24 rows in batches of 8
    assert [line["step"] for line in lines if "loss" in line] == [2, 4, 6]
    assert [line["step"] for line in lines if "eval_loss" in line] == [3, 6]
    assert lines[0]["epoch"] == pytest.approx(2 * 8 / 24, abs=1e-4)
    assert json.loads((folder / "results.json").read_text()) == results
    assert results["baseline_loss"] == pytest.approx(math.log(40))
    lengths = [len(work.example(row, row)["input_ids"]) for row in range(24)]
    assert results["train_tokens"] == 2 * sum(lengths)  # each row twice, without padding
    description = json.loads((folder / "run.json").read_text())
    assert description["arguments"]["max_steps"] == 6
    assert description["stages"] == [{"at": 0, "batch_size": 8, "micro_batch_size": 8}]
    assert description["environment"]["torch"] == torch.__version__
    assert (folder / "curves.png").read_bytes().startswith(b"\x89PNG")
    assert (folder / "README.md").read_text().startswith("---\nlibrary_name: transformers")
    assert sorted(path.name for path in (folder / "checkpoints").iterdir()) == ["step-00000003", "step-00000006"]
    assert json.loads((folder / "tokenizer_config.json").read_text())["tokenizer_class"] == "PreTrainedTokenizerFast"
    assert not [path for path in folder.rglob("*.tmp")]
    loaded = AutoModelForMaskedLM.from_pretrained(folder)
    assert all(torch.equal(value, loaded.state_dict()[name]) for name, value in model.state_dict().items())
    # A checkpoint is a model folder as well.
    AutoModelForMaskedLM.from_pretrained(folder / "checkpoints" / "step-00000003")


@pytest.mark.parametrize("average", ["none", "ema"])
def test_evaluation_sees_each_row_once_and_equals_a_loop_over_what_is_saved(run, new_work, tmp_path, average) -> None:
    work = new_work(num_eval_examples=7)
    results, _, _ = run(work=work, eval_batch_size=3, max_steps=2, average=average)
    assert sorted(work.evaluated) == list(range(7))
    model = AutoModelForMaskedLM.from_pretrained(tmp_path / "run").eval()
    with torch.no_grad():
        records = [
            record for row in range(7) for record in work.evaluate(model, work.collate([work.eval_example(row)]))
        ]
    assert results["eval_loss"] == pytest.approx(work.summarize(records)["loss"], rel=1e-5)


def test_a_run_that_was_complete_is_judged_when_it_is_resumed(run, new_work, tmp_path) -> None:
    results, _, _ = run(work=new_work(num_eval_examples=7), max_steps=3, save_steps=3)
    (tmp_path / "run" / "results.json").unlink()
    again, _, _ = run(work=new_work(num_eval_examples=7), max_steps=3, save_steps=3, resume=True)
    assert again["eval_loss"] == results["eval_loss"]


def test_the_progress_line_moves_with_every_step(run, monkeypatch) -> None:
    moves: list[tuple[float, int]] = []
    monkeypatch.setattr(RunLog, "advance", lambda log, done, *, step=None: moves.append((done, step)))
    run(max_steps=4, logging_steps=4)
    assert moves[-4:] == [(number / 4, number) for number in (1, 2, 3, 4)]


@pytest.mark.curves
def test_a_work_without_held_out_examples(run, new_work, tmp_path) -> None:
    results, _, _ = run(work=new_work(num_eval_examples=0), max_steps=2, eval_steps=1)
    assert "eval_loss" not in results
    assert (tmp_path / "run" / "curves.png").is_file()


def test_training_goes_on_while_a_checkpoint_is_written(run, new_work, monkeypatch) -> None:
    work, fourth_step, write = new_work(), threading.Event(), Saver.write
    gone_on = []

    def example(row: int, index: int) -> dict:
        if index >= 3 * 8:
            fourth_step.set()
        return type(work).example(work, row, index)

    def slow(saver, snapshot):
        gone_on.append(fourth_step.wait(timeout=5))
        return write(saver, snapshot)

    monkeypatch.setattr(work, "example", example)
    monkeypatch.setattr(Saver, "write", slow)
    run(work=work, max_steps=5, save_steps=2)
    assert gone_on == [True] * 3  # after steps 2, 4, and the last


def test_only_failures_in_a_row_end_a_run(run, monkeypatch) -> None:
    write = Saver.write

    def fails(saver, snapshot):
        if snapshot.progress.step != 3:
            raise StorageError("full")
        return write(saver, snapshot)

    monkeypatch.setattr(Saver, "write", fails)
    assert run(max_steps=5, save_steps=1)[0]["steps"] == 5
    with pytest.raises(StorageError, match="full"):
        run(max_steps=6, save_steps=1, resume=True)


@pytest.mark.parametrize("fails", [False, True])
def test_a_run_closes_its_log_and_lets_go_of_its_folder_however_it_ends(
    run, new_work, options, tmp_path, monkeypatch, fails
) -> None:
    closed, work, owner = [], new_work(), tmp_path / "run" / OWNER
    monkeypatch.setattr(RunLog, "close", lambda log: closed.append(log.output_dir))
    claim_output_dir(options(max_steps=1))
    assert owner.exists()
    if fails:
        work.loss = lambda *given: 1 / 0
        with pytest.raises(ZeroDivisionError):
            run(work=work, max_steps=1)
    else:
        run(max_steps=1)
    assert closed and not owner.exists()


def test_steps_left_out_end_with_the_run(run) -> None:
    assert run(max_steps=4, skip_steps="3-20")[0]["steps"] == 4


@pytest.mark.parametrize("text", ["soon", "5-3", "0", "-2", "3-x"])
def test_what_is_no_range_of_steps_is_refused(text: str) -> None:
    with pytest.raises(InputError, match=f"'{text}' is no step or range of steps"):
        check_skipped(f"1,{text}", done=0, max_steps=9)


def test_the_watchdog_hears_of_every_step(run, monkeypatch: pytest.MonkeyPatch) -> None:
    beats: list[int] = []
    monkeypatch.setattr("lacuna.training.environment.Watchdog.beat", lambda watchdog: beats.append(1))
    counts = []
    for steps in (1, 4):
        beats.clear()
        run(max_steps=steps, eval_steps=0, save_steps=0)
        counts.append(len(beats))
    assert counts[1] - counts[0] == 3


def test_steps_left_out_that_are_made_already_are_said() -> None:
    assert check_skipped("3-7", done=2, max_steps=9) == check_skipped("1", done=0, max_steps=None) == []
    [said] = check_skipped("3-7", done=3, max_steps=9)
    assert "--skip_steps 3-7: 3 steps are made already" in said


def test_not_all_steps_may_be_left_out() -> None:
    with pytest.raises(InputError, match="leaves out all the 4 steps"):
        check_skipped("3-9", done=2, max_steps=6)
    assert check_skipped("4-9", done=2, max_steps=6) == []  # step 3 stays


@pytest.mark.parametrize("compile", ["on", "off"])
def test_what_is_to_be_compiled_is_before_the_first_step(run, monkeypatch, compile) -> None:
    order = []
    monkeypatch.setattr("lacuna.training.run.should_compile", lambda arguments, **_: arguments.compile == "on")
    monkeypatch.setattr("lacuna.training.run.compile_model", lambda model: True)
    monkeypatch.setattr("lacuna.training.run.warm_up", lambda *_, **__: order.append("compiled") or 2.5)
    step = loop._train_step
    monkeypatch.setattr(loop, "_train_step", lambda *given: (order.append("step"), step(*given)))
    results = run(max_steps=2, compile=compile)[0]
    assert order == ["compiled"] * (compile == "on") + ["step"] * 2
    assert results["compile_seconds"] == (2.5 if compile == "on" else 0)


def test_logged_losses_are_means_over_the_window(run, tmp_path, log_of) -> None:
    run(output_dir=str(tmp_path / "each"), logging_steps=1)
    run(output_dir=str(tmp_path / "four"), logging_steps=4)
    each = [line["loss"] for line in log_of(tmp_path / "each") if "loss" in line]
    four = [line["loss"] for line in log_of(tmp_path / "four") if "loss" in line]
    assert four == pytest.approx([sum(each[:4]) / 4, sum(each[4:]) / 4], rel=1e-6)


def test_a_folder_that_holds_a_run_is_refused(run, options, tmp_path) -> None:
    claim_output_dir(options())
    run(max_steps=1)
    with pytest.raises(InputError, match=r"--output_dir .*run already holds a run; add --resume"):
        claim_output_dir(options())
    with pytest.raises(InputError, match="is finished, with no checkpoint to continue from"):
        claim_output_dir(options(resume=True))
    (tmp_path / "run" / "checkpoints").mkdir()
    claim_output_dir(options(resume=True))
    file = tmp_path / "file"
    file.write_text("")
    with pytest.raises(InputError, match="is a file"):
        claim_output_dir(options(output_dir=str(file)))


def test_resuming_with_other_data_seed_or_batch_is_refused(run, tmp_path, capsys) -> None:
    run(max_steps=2, save_steps=1, identity={"corpus": "abc"})
    for change, name in (
        ({"seed": 1}, "seed is 1"),
        ({"batch_size": 4}, "batch_size is '4'"),
        ({"hidden_size": 32}, "model_config is of another model"),
        ({"identity": {"corpus": "xyz"}}, "corpus is 'xyz'.*'abc'"),
        ({"identity": {}}, "corpus is None"),
        ({"seed": 1, "identity": {}}, "corpus is None and was 'abc'; seed is 1 and was 0.*--allow_change corpus seed"),
    ):
        with pytest.raises(InputError, match=f"--resume: .*: {name}"):
            run(**{"max_steps": 4, "resume": True, "identity": {"corpus": "abc"}, **change})
    with pytest.raises(InputError, match="has made 2 steps, and the limit is now 1; raise --max_steps"):
        run(max_steps=1, resume=True, identity={"corpus": "abc"})
    results, _, _ = run(max_steps=4, resume=True, identity={"corpus": "abc"}, learning_rate=0.02)
    assert results["steps"] == 4
    assert "learning_rate was 0.01 and is 0.02 now" in capsys.readouterr().err


def test_resume_without_a_checkpoint_starts_at_the_beginning(run, options, tmp_path, log_of, capsys) -> None:
    folder = str(tmp_path / "run")
    assert not goes_on(options(resume=True, output_dir=folder))  # its first weights are to be made
    run(max_steps=2, save_steps=1, resume=True)
    assert goes_on(options(resume=True, output_dir=folder))
    assert not goes_on(options(resume=False, output_dir=folder))
    shutil.rmtree(tmp_path / "run/checkpoints")
    assert "starting from the beginning" in capsys.readouterr().err
    assert [line["step"] for line in log_of(tmp_path / "run") if "loss" in line] == [1, 2]
    with pytest.raises(InputError, match="is finished, with no checkpoint to continue from"):
        run(max_steps=4, resume=True)


def test_limits_are_resolved_by_hand(options, new_work) -> None:
    def resolved(num_examples: int = 100, num_processes: int = 1, **overrides):
        arguments, work = options(**overrides), new_work(num_examples=num_examples)
        return resolve(arguments, [(0.0, work)], num_processes=num_processes)

    assert resolved(num_examples=1601, max_steps=None)[0].max_steps == 601  # three epochs in batches of 8: 600.4 steps
    assert resolved(num_examples=500, max_steps=None)[0].max_steps == 375  # six epochs make 3,000 examples
    assert resolved(num_examples=60, max_steps=None)[0].max_steps == 225  # thirty epochs, and no more
    for task in (QuestionAnswering, SequenceToSequence):  # which few rows teach little in three passes
        works = [(0.0, work := new_work(num_examples=2000))]
        work.least_examples = task.least_examples
        assert resolve(options(max_steps=None), works, num_processes=1)[0].max_epochs == 12.5
    assert resolved(max_steps=5, max_epochs=1)[0].max_steps == 5
    assert resolved(max_steps=50, max_epochs=1)[0].max_steps == 13
    assert resolved(max_steps=None, max_minutes=1)[0].max_steps is None
    four_epochs = 4 * sum(len(new_work().example(row, row)["input_ids"]) for row in range(100))
    assert resolved(max_steps=None, max_tokens=four_epochs)[0].max_steps == 50
    assert resolved(max_steps=60, max_tokens=four_epochs + 1)[0].max_steps == 51
    assert resolved(max_steps=None, max_epochs=1, max_tokens=four_epochs)[0].max_steps == 13
    assert resolved(num_processes=2)[1][0].micro_batch_size == 4
    assert resolved(micro_batch_size=100)[1][0].micro_batch_size == 8
    # Half the run with 4 rows a step, half with 16: 10 on average.
    halves = {"batch_size": "4,16", "batch_size_at": "0,0.5"}
    assert resolved(max_steps=None, max_epochs=1, **halves)[0].max_steps == 10
    assert [stage.micro_batch_size for stage in resolved(num_processes=2, micro_batch_size=4, **halves)[1]] == [2, 4]
    for overrides, message in (
        ({"num_processes": 3}, "--batch_size 8 .* 3 processes"),
        ({"micro_batch_size": 3}, "--micro_batch_size 3 does not divide the 8"),
    ):
        with pytest.raises(InputError, match=message):
            resolved(**overrides)


def test_stages_take_over_on_time_and_after_a_break(run, new_work, tmp_path, log_of) -> None:
    """Two works and three batch sizes; the break is inside the second work's part."""
    options = {"max_steps": 20, "batch_size": "4,8,2", "batch_size_at": "0,0.5,0.9", "dropout": 0.1}

    def works(stop_at=None):
        return [(0.0, new_work(num_examples=24)), (0.5, new_work(num_examples=30, stop_at=stop_at))]

    straight = works()
    (_, first), (_, second) = straight
    run(work=straight, output_dir=str(tmp_path / "straight"), **options)
    assert [len(work.rows) for work in (first, second)] == [10 * 4, 8 * 8 + 2 * 2]
    expected = new_work(num_examples=30)
    examples = [expected.example(row_of(index, seed=0, num_examples=30), index) for index in range(68)]
    expected.collate(examples)
    assert second.rows == expected.rows, "samples are counted through, whatever the size of a batch"
    epochs = [line["epoch"] for line in log_of(tmp_path / "straight") if "loss" in line]
    assert epochs[9] == pytest.approx(40 / 24, abs=1e-4) and epochs[-1] == pytest.approx(40 / 24 + 68 / 30, abs=1e-4)

    broken = {"output_dir": str(tmp_path / "broken"), "save_steps": 3, **options}
    with pytest.raises(InterruptedError):
        run(work=works(stop_at=5 * 8), **broken)  # step 15 is the last
    rest = works()
    run(work=rest, resume=True, **broken)
    assert not rest[0][1].rows and rest[1][1].rows == second.rows[5 * 8 :]
    assert losses(log_of(tmp_path / "straight")) == losses(log_of(tmp_path / "broken"))
    assert_equal_weights(tmp_path / "straight", tmp_path / "broken")


@pytest.mark.parametrize(
    ("sizes", "starts"), [("4,8", "0"), ("4", "0.5"), ("4,8", "0,1"), ("4,8", "0,0"), ("4,8", "0.1,0.5"), ("4.5", "0")]
)
def test_stages_that_make_no_sense_are_refused(options, sizes, starts) -> None:
    with pytest.raises(InputError, match="--batch_size"):
        options(batch_size=sizes, batch_size_at=starts)


@pytest.mark.parametrize(
    "option, value",
    [("batch_size", 0), ("learning_rate", 0.0), ("learning_rate", math.inf), ("max_steps", -1), ("seed", -1),
     ("weight_decay", math.nan), ("decay_share", 1.5), ("logging_steps", 0), ("num_workers", -1)],
)  # fmt: skip
def test_numbers_that_cannot_be_are_refused_by_name(options, option, value) -> None:
    with pytest.raises(InputError, match=f"--{option} "):
        replace(options(), **{option: value})


def test_stages_without_a_step_are_found(new_work) -> None:
    def stages(*starts: float) -> list[Stage]:
        return [Stage(at=at, work=new_work(), batch_size=1, micro_batch_size=1) for at in starts]

    assert skipped(stages(0, 0.9), 4) == ["warning: of 4 steps none is in the stage that begins at 0.9 of the run"]
    assert skipped(stages(0, 0.9), 10) == []
    assert ["at 0.6 of" in text for text in skipped(stages(0, 0.5, 0.6), 2)] == [True]


@pytest.mark.parametrize(
    "refusal, size",
    [
        ("DefaultCPUAllocator: can't allocate memory: you tried to allocate 64424509440 bytes. Error code 12", "60.0"),
        ("CUDA out of memory. Tried to allocate 2.50 GiB. GPU 0 has a total capacity of 79 GiB", "2.5"),
    ],
)
def test_memory_that_is_refused_is_a_mistake_with_a_way_out(run, tmp_path, monkeypatch, refusal, size) -> None:
    def refuse(run) -> None:
        raise RuntimeError(refusal)

    monkeypatch.setattr(loop, "_train", refuse)
    with pytest.raises(InputError, match=rf"needs more memory than there is: {size} GiB more .*--micro_batch_size"):
        run(max_steps=1)
    assert not (tmp_path / "run" / "run.json").exists() and not (tmp_path / "run" / "metrics.jsonl").exists()
    monkeypatch.setattr(loop, "_train", lambda run: (_ for _ in ()).throw(RuntimeError("another mistake")))
    with pytest.raises(RuntimeError, match="another mistake"):
        run(max_steps=1)


def test_a_checkpoint_is_noted_at_the_first_step_after_it_is_whole(run, log_of, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(Saver, "is_ready", property(lambda saver: saver._writing is not None))
    run(max_steps=5, save_steps=2, eval_steps=0, logging_steps=1)
    steps = [(line["step"], line.get("event", "loss")) for line in log_of(tmp_path / "run") if line["step"]]
    assert [line for line in steps if line[1] in ("loss", "checkpoint")][:4] == [
        (1, "loss"), (2, "loss"), (3, "loss"), (2, "checkpoint"),
    ]  # fmt: skip
