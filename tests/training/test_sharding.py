"""Several processes, whole or sharded, learn what one learns; what they save is whole and goes on anywhere."""

import json
import math
import os
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import processes
import pytest
import torch
from examples import fast
from safetensors.torch import load_file
from torch import Tensor

from lacuna.common.errors import InputError
from lacuna.modeling import LacunaForPreTraining
from lacuna.training.distributed import fsdp
from lacuna.training.optimizers.optimizers import OPTIMIZERS

WAYS = ("DDP", "sharded")
SCRIPT = "tests/training/sharded_run.py"
MICRO_BATCHES = {"encoder": (1, 2), "decoder": (1,), "seq2seq": (2,), "hybrid": (2,)}
"""Micro-batches of a step, for each kind of model."""
KINDS = fast(MICRO_BATCHES, "encoder", "decoder")
MOVED = ("decoder", "seq2seq", "hybrid")
"""Kinds that move from one process to two and back; the encoder's state moves among two processes."""
TOGETHER = ("encoder", "decoder", "native")
"""Kinds whose jobs the same processes run."""
OTHERS = [name for name in OPTIMIZERS if name != "adamw"]


def run(folder: Path, jobs: list[dict[str, Any]], *, num_processes: int, **env: str) -> None:
    """Run jobs one after the other in the same processes."""
    words = [json.dumps(job) for job in jobs]
    done = processes.run(SCRIPT, folder, *words, num_processes=num_processes, env={**os.environ, **env})
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]


def facts(folder: Path, name: str) -> dict[str, Any]:
    return json.loads((folder / f"{name}.json").read_text())


def state(folder: Path, name: str) -> dict[str, Tensor]:
    return load_file(folder / f"{name}.safetensors")


def assert_equal(one: dict[str, Tensor], other: dict[str, Tensor]) -> None:
    """The same tensors, to the bit."""
    assert sorted(one) == sorted(other)
    assert [
        name for name in one if one[name].dtype != other[name].dtype or not torch.equal(one[name], other[name])
    ] == []


def jobs_of_two(kind: str) -> list[dict[str, Any]]:
    """What two processes do with a kind of model."""
    whole = {"kind": kind, "sharded": True}
    if kind == "native":
        return [{**whole, "name": "native sharded", "micro_batches": 2}]
    jobs: list[dict[str, Any]] = [
        {"name": f"{kind} {way} {micro}", "kind": kind, "micro_batches": micro, "sharded": way == "sharded"}
        for micro in MICRO_BATCHES[kind]
        for way in WAYS
    ]
    if kind in MOVED:  # what one process saved after two steps is taken over as it is, and continued for a step
        half = {**whole, "load": f"{kind} half", "first": 2}
        jobs += [{**half, "name": f"{kind} taken by two", "last": 2}, {**half, "name": f"{kind} third", "last": 3}]
    if kind in ("seq2seq", "hybrid"):
        return [*jobs, {**whole, "name": f"{kind} kept whole", "micro_batches": 2, "keep_whole": True}]
    # Of these two kinds one has LayerNorm and the other RMSNorm.
    jobs += [{**whole, "name": f"{kind} bf16 sharded", "precision": "bf16"}]
    jobs += [{"kind": kind, "name": f"{kind} bf16 DDP", "precision": "bf16"}]
    if kind == "decoder":
        return jobs + [{**whole, "name": f"{name} sharded", "optimizer": name} for name in OTHERS]
    return [
        *jobs,
        {**whole, "name": "sharded half", "last": 2},
        {**whole, "name": "sharded rest", "first": 2, "load": "sharded half", "export": True},
        {**whole, "name": "poisoned sharded", "last": 2, "poison": 1},
        {"kind": kind, "name": "poisoned DDP", "last": 2, "poison": 1},
    ]


def jobs_before(kind: str) -> list[dict[str, Any]]:
    """What one process does first."""
    if kind == "native":
        return [{"name": "native alone", "kind": kind, "micro_batches": 2}]
    jobs: list[dict[str, Any]] = [{"name": f"{kind} alone", "kind": kind}]
    jobs += [{"name": f"{kind} half", "kind": kind, "last": 2}] if kind in MOVED else []
    others = OTHERS if kind == "decoder" else []
    return [*jobs, *({"name": f"{name} alone", "kind": kind, "optimizer": name} for name in others)]


def jobs_after(kind: str) -> list[dict[str, Any]]:
    """What one process does with what two have saved."""
    if kind not in MOVED:
        return []
    taken = {"kind": kind, "load": f"{kind} third", "first": 3}
    jobs = [{**taken, "name": f"{kind} taken by one", "last": 3}, {**taken, "name": f"{kind} end"}]
    taken = {"kind": kind, "first": 4, "last": 4}
    others = OTHERS if kind == "decoder" else []
    return jobs + [{**taken, "name": f"{name} end", "optimizer": name, "load": f"{name} sharded"} for name in others]


@pytest.fixture(scope="module")
def runs_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """A folder with the results of one process, of two, and of one again, for a kind of model."""

    @cache
    def train(*kinds: str) -> Path:
        folder = tmp_path_factory.mktemp(kinds[0])
        for jobs, num_processes in ((jobs_before, 1), (jobs_of_two, 2), (jobs_after, 1)):
            run(folder, [job for kind in kinds for job in jobs(kind)], num_processes=num_processes)
        return folder

    return lambda kind: train(*(TOGETHER if kind in TOGETHER else (kind,)))


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kind", KINDS)
def test_two_processes_learn_what_one_learns(runs_of, kind, way) -> None:
    for micro in MICRO_BATCHES[kind]:
        one, two = facts(runs_of(kind), f"{kind} alone"), facts(runs_of(kind), f"{kind} {way} {micro}")
        assert one["loss"][-1] < one["loss"][0]
        for name in ("loss", "held_out"):
            assert two[name] == pytest.approx(one[name], rel=1e-5)
        assert two["norms"][0] == pytest.approx(one["norms"][0], rel=1e-5)
        assert two["norms"][0] == two["norms"][1]
        share = two["local"] / one["local"]
        assert share == 1 if way == "DDP" else 0.5 <= share < 0.51  # the first process has the larger halves


@pytest.mark.parametrize("kind", fast(MOVED, "decoder"))
def test_a_run_moves_from_one_process_to_two_and_back(runs_of, kind) -> None:
    runs = runs_of(kind)
    assert_equal(state(runs, f"{kind} half"), state(runs, f"{kind} taken by two"))
    assert_equal(state(runs, f"{kind} third"), state(runs, f"{kind} taken by one"))
    moved = [loss for name in ("half", "third", "end") for loss in facts(runs, f"{kind} {name}")["loss"]]
    assert moved == pytest.approx(facts(runs, f"{kind} alone")["loss"], rel=1e-5)
    alone, end = state(runs, f"{kind} alone"), state(runs, f"{kind} end")
    for name, tensor in alone.items():
        torch.testing.assert_close(end[name], tensor, rtol=1e-3, atol=1e-5)


def test_a_sharded_run_that_was_stopped_ends_in_the_same_bits(runs_of) -> None:
    runs = runs_of("encoder")
    whole = facts(runs, "encoder sharded 1")
    assert facts(runs, "sharded half")["loss"] + facts(runs, "sharded rest")["loss"] == whole["loss"]
    assert_equal(state(runs, "encoder sharded 1"), state(runs, "sharded rest"))


def test_a_sharded_model_is_saved_as_any_other(runs_of) -> None:
    runs = runs_of("encoder")
    folder = runs / "sharded rest"
    config = json.loads((folder / "config.json").read_text())
    assert config["architectures"] == ["LacunaForPreTraining"]
    assert config["auto_map"]["AutoModelForPreTraining"] == "modeling_lacuna.LacunaForPreTraining"
    assert (folder / "modeling_lacuna.py").is_file()
    model = LacunaForPreTraining.from_pretrained(folder)
    assert model.lm_head.weight is model.get_input_embeddings().weight
    saved = {name.removeprefix("model/"): tensor for name, tensor in state(runs, "sharded rest").items()}
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, saved[name])
    assert len(load_file(folder / "model.safetensors")) == len(model.state_dict()) - 1  # the tied weight once


@pytest.mark.parametrize("way", WAYS)
def test_a_loss_that_is_not_finite_on_one_process_is_seen_by_all(runs_of, way) -> None:
    norms = facts(runs_of("encoder"), f"poisoned {way}")["norms"]
    assert norms[0][0] == norms[1][0] and math.isfinite(norms[0][0])
    assert not math.isfinite(norms[0][1]) and not math.isfinite(norms[1][1])


@pytest.mark.parametrize("name", OTHERS)
def test_every_optimizer_does_on_shards_what_it_does_on_whole_weights(runs_of, name) -> None:
    runs = runs_of("decoder")
    alone, two = facts(runs, f"{name} alone"), facts(runs, f"{name} sharded")
    # Muon's products in bf16 of stacks of other sizes are rounded otherwise on some processors.
    assert two["loss"] == pytest.approx(alone["loss"], rel=1e-4 if name == "muon" else 1e-5)
    assert_equal(state(runs, f"{name} sharded"), state(runs, f"{name} end"))


ASKED = {"ACCELERATE_USE_FSDP": "true", "FSDP_VERSION": "2"}
REFUSED = {
    "version 1": ({"FSDP_VERSION": "1"}, "FSDP_VERSION is 1: set fsdp_version: 2"),
    "no version": ({"FSDP_VERSION": None}, "FSDP_VERSION is 1"),
    "offloading": ({"FSDP_OFFLOAD_PARAMS": "true"}, "fsdp_offload_params is not supported"),
    "activation checkpointing": (
        {"FSDP_ACTIVATION_CHECKPOINTING": "true"},
        "fsdp_activation_checkpointing is not supported",
    ),
    "Megatron": ({"ACCELERATE_USE_MEGATRON_LM": "true"}, "Megatron-LM is not supported"),
    "DeepSpeed": ({"ACCELERATE_USE_FSDP": None, "ACCELERATE_USE_DEEPSPEED": "true"}, "DeepSpeed is not supported"),
    "parallelism": ({"ACCELERATE_USE_PARALLELISM_CONFIG": "true"}, "parallelism_config is not supported"),
}


def test_sharding_is_asked_for_by_the_launcher(monkeypatch) -> None:
    monkeypatch.delenv("ACCELERATE_USE_FSDP", raising=False)
    assert not fsdp.asked_for()
    for name, value in ASKED.items():
        monkeypatch.setenv(name, value)
    assert fsdp.asked_for()
    with fsdp.hidden_from_accelerate():
        assert not fsdp.asked_for()
    assert fsdp.asked_for()


@pytest.mark.parametrize("reason", REFUSED)
def test_what_is_not_done_here_is_refused(monkeypatch, reason) -> None:
    values, message = REFUSED[reason]
    for name, value in {**ASKED, **values}.items():
        monkeypatch.delenv(name, raising=False) if value is None else monkeypatch.setenv(name, value)
    with pytest.raises(InputError, match=message):
        fsdp.asked_for()


def test_one_process_does_not_pass_for_a_sharded_run() -> None:
    model = torch.nn.Linear(2, 2)
    with pytest.raises(InputError, match="sharding was requested, but there is only one process"):
        fsdp.shard(model, device=torch.device("cpu"))
    assert not fsdp.is_sharded(model)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["seq2seq", "hybrid"])
def test_weights_and_gradients_that_stay_whole_within_a_step(runs_of, kind) -> None:
    one, two = facts(runs_of(kind), f"{kind} alone"), facts(runs_of(kind), f"{kind} kept whole")
    for name in ("loss", "held_out"):
        assert two[name] == pytest.approx(one[name], rel=1e-5)


def test_a_native_model_is_sharded_too(runs_of) -> None:
    one, two = (facts(runs_of("native"), f"native {name}") for name in ("alone", "sharded"))
    assert two["loss"] == pytest.approx(one["loss"], rel=1e-5)
    assert two["local"] / one["local"] < 0.51


@pytest.mark.parametrize("kind", ["encoder", "decoder"])
def test_bf16_on_shards_is_near_to_bf16_under_ddp(runs_of, kind) -> None:
    runs = runs_of(kind)
    one, ddp, shards = (facts(runs, f"{kind} {name}")["loss"] for name in ("alone", "bf16 DDP", "bf16 sharded"))
    assert ddp != one and shards == pytest.approx(ddp, rel=2e-3)
    assert {tensor.dtype for tensor in state(runs, f"{kind} bf16 sharded").values()} == {torch.float32}
