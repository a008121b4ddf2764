"""What DeepSpeed divides among processes learns what one process learns, and is saved whole."""

import json
import math
import os
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import processes
import pytest
import torch
from safetensors.torch import load_file

from lacuna.common.errors import InputError
from lacuna.training.distributed import fsdp, zero

SCRIPT = "tests/training/sharded_run.py"
KINDS = ("encoder", "decoder", "seq2seq", "hybrid")
needs_deepspeed = pytest.mark.skipif(find_spec("deepspeed") is None, reason='pip install -e ".[deepspeed]"')


def run(folder: Path, jobs: list[dict[str, Any]], *, num_processes: int) -> None:
    words = [json.dumps(job) for job in jobs]
    done = processes.run(SCRIPT, folder, *words, num_processes=num_processes, env=dict(os.environ), timeout=600)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]


def facts(folder: Path, name: str) -> dict[str, Any]:
    return json.loads((folder / f"{name}.json").read_text())


def assert_equal(folder: Path, one: str, other: str) -> None:
    """The same tensors, to the bit."""
    ours, theirs = load_file(folder / f"{one}.safetensors"), load_file(folder / f"{other}.safetensors")
    assert sorted(ours) == sorted(theirs)
    assert [name for name in ours if not torch.equal(ours[name], theirs[name])] == []


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the results of one process, of two with DeepSpeed, and of one again."""
    folder = tmp_path_factory.mktemp("runs")
    first = [{"name": f"{kind} alone", "kind": kind} for kind in KINDS]
    first += [{"name": "half", "last": 2}, {"name": "free", "max_norm": 0.0}, {"name": "once", "last": 1}]
    run(folder, first, num_processes=1)
    jobs: list[dict[str, Any]] = []
    for stage in (1, 2):
        jobs += [
            {"name": f"{kind} {stage} {micro}", "kind": kind, "zero_stage": stage, "micro_batches": micro}
            for kind in KINDS
            for micro in (1, 2)
        ]
        of_stage = {"zero_stage": stage, "micro_batches": 2}
        jobs += [
            {**of_stage, "name": f"half {stage}", "last": 2},
            {**of_stage, "name": f"rest {stage}", "first": 2, "load": f"half {stage}", "export": True},
            {**of_stage, "name": f"taken {stage}", "first": 2, "last": 2, "load": "half"},
            {**of_stage, "name": f"moved {stage}", "first": 2, "load": "half"},
            {**of_stage, "name": f"once {stage}", "last": 1},
            {**of_stage, "name": f"poisoned {stage}", "last": 2, "poison": 1},
            {**of_stage, "name": f"free {stage}", "max_norm": 0.0},
            {**of_stage, "name": f"bf16 {stage}", "precision": "bf16"},
        ]
    run(folder, [*jobs, {"name": "bf16", "precision": "bf16"}], num_processes=2)
    run(folder, [{"name": "back", "first": 2, "load": "half 2"}], num_processes=1)
    return folder


@needs_deepspeed
@pytest.mark.parametrize("micro", [1, 2])
@pytest.mark.parametrize("stage", [1, 2])
@pytest.mark.parametrize("kind", KINDS)
def test_two_processes_learn_what_one_learns(runs, kind, stage, micro) -> None:
    one, two = facts(runs, f"{kind} alone"), facts(runs, f"{kind} {stage} {micro}")
    for name in ("loss", "held_out"):
        assert two[name] == pytest.approx(one[name], rel=1e-5)
    assert two["norms"][0] == pytest.approx(one["norms"][0], rel=1e-5)
    assert two["norms"][0] == two["norms"][1]
    assert 0.5 <= two["moments"] / one["moments"] < 0.51  # flat parts are filled up to a multiple of a few numbers


@needs_deepspeed
@pytest.mark.parametrize("stage", [1, 2])
def test_a_run_that_was_stopped_ends_in_the_same_bits(runs, stage) -> None:
    curve = facts(runs, f"half {stage}")["loss"] + facts(runs, f"rest {stage}")["loss"]
    assert curve == facts(runs, f"encoder {stage} 2")["loss"]
    assert_equal(runs, f"encoder {stage} 2", f"rest {stage}")
    assert json.loads((runs / f"rest {stage}" / "config.json").read_text())["architectures"] == [
        "LacunaForPreTraining"
    ]


@needs_deepspeed
@pytest.mark.parametrize("stage", [1, 2])
def test_a_run_moves_from_one_process_to_two_and_back(runs, stage) -> None:
    assert_equal(runs, "half", f"taken {stage}")
    alone = facts(runs, "encoder alone")["loss"]
    assert facts(runs, f"moved {stage}")["loss"] == pytest.approx(alone[2:], rel=1e-5)
    assert facts(runs, "back")["loss"] == pytest.approx(alone[2:], rel=1e-5)


@needs_deepspeed
@pytest.mark.parametrize("stage", [1, 2])
def test_a_step_that_is_not_finite_on_one_process_is_made_by_none(runs, stage) -> None:
    norms = facts(runs, f"poisoned {stage}")["norms"]
    assert norms[0][0] == norms[1][0] and math.isfinite(norms[0][0])
    assert not math.isfinite(norms[0][1]) and not math.isfinite(norms[1][1])
    assert_equal(runs, f"once {stage}", f"poisoned {stage}")  # weights, moments and their count


@needs_deepspeed
@pytest.mark.parametrize("stage", [1, 2])
def test_no_clipping_and_bf16(runs, stage) -> None:
    assert facts(runs, f"free {stage}")["loss"] == pytest.approx(facts(runs, "free")["loss"], rel=1e-5)
    assert facts(runs, f"bf16 {stage}")["loss"] == pytest.approx(facts(runs, "bf16")["loss"], rel=2e-3)
    assert facts(runs, f"bf16 {stage}")["loss"] != facts(runs, "encoder alone")["loss"]
    saved = load_file(runs / f"bf16 {stage}.safetensors")
    assert {tensor.dtype for tensor in saved.values()} == {torch.float32}


def test_deepspeed_is_asked_for_by_the_launcher(monkeypatch) -> None:
    monkeypatch.delenv("ACCELERATE_USE_DEEPSPEED", raising=False)
    assert not zero.asked_for()
    monkeypatch.setenv("ACCELERATE_USE_DEEPSPEED", "true")
    assert zero.asked_for() and not fsdp.asked_for()
    with fsdp.hidden_from_accelerate():
        assert not zero.asked_for()
    assert zero.asked_for()


REFUSED = {
    "ZeRO-3": ({"ACCELERATE_DEEPSPEED_ZERO_STAGE": "3"}, "adamw", "zero_stage is 3: set it to 1 or 2"),
    "offloading": (
        {"ACCELERATE_DEEPSPEED_OFFLOAD_OPTIMIZER_DEVICE": "cpu"},
        "adamw",
        "offload_optimizer_device is cpu",
    ),
    "clipping": ({"ACCELERATE_GRADIENT_CLIPPING": "0.5"}, "adamw", "gradient_clipping is 0.5 .* --max_grad_norm 1.0"),
    "muon": ({}, "muon", "--optimizer muon does not work with DeepSpeed"),
}


@needs_deepspeed
@pytest.mark.parametrize("reason", REFUSED)
def test_what_is_not_done_here_is_refused(monkeypatch, reason) -> None:
    values, optimizer, message = REFUSED[reason]
    monkeypatch.setattr("torch.distributed.is_initialized", lambda: True)
    monkeypatch.setattr("torch.distributed.get_world_size", lambda: 2)
    for name, value in {"ACCELERATE_USE_DEEPSPEED": "true", **values}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(InputError, match=message):
        zero.check(optimizer=optimizer, max_grad_norm=1.0)


@needs_deepspeed
def test_a_setting_of_deepspeeds_own_file_is_taken_or_refused(monkeypatch, tmp_path) -> None:
    monkeypatch.setattr("torch.distributed.is_initialized", lambda: True)
    monkeypatch.setattr("torch.distributed.get_world_size", lambda: 2)
    path = tmp_path / "deepspeed.json"
    monkeypatch.setenv("ACCELERATE_USE_DEEPSPEED", "true")
    monkeypatch.setenv("ACCELERATE_DEEPSPEED_CONFIG_FILE", str(path))
    sizes = {"train_micro_batch_size_per_gpu": "auto", "gradient_clipping": "auto"}
    taken = {"stage": 2, "overlap_comm": False, "reduce_bucket_size": "auto"}
    path.write_text(json.dumps({**sizes, "zero_optimization": taken}))
    config = zero.check(optimizer="adamw", max_grad_norm=0.7)
    assert config["zero_optimization"] == {"stage": 2, "overlap_comm": False} and config["gradient_clipping"] == 0.7
    path.write_text(json.dumps({**sizes, "zero_optimization": taken, "fp16": {"enabled": True}}))
    with pytest.raises(InputError, match="fp16 is not supported with DeepSpeed"):
        zero.check(optimizer="adamw", max_grad_norm=0.7)


def test_what_is_not_installed_is_named(monkeypatch) -> None:
    monkeypatch.setattr("torch.distributed.is_initialized", lambda: True)
    monkeypatch.setattr("torch.distributed.get_world_size", lambda: 2)
    monkeypatch.setattr(zero, "is_deepspeed_available", lambda: False)
    with pytest.raises(InputError, match=r'not installed: pip install -e "\.\[deepspeed\]"'):
        zero.check(optimizer="adamw", max_grad_norm=1.0)


def test_one_process_does_not_pass_for_a_divided_run() -> None:
    with pytest.raises(InputError, match="DeepSpeed was requested, but there is only one process"):
        zero.check(optimizer="adamw", max_grad_norm=1.0)
