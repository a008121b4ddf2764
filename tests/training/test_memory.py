"""What a step was said to need, beside what it needs."""

import json
import os
import re
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
import torch
import transformers
from processes import run
from rows_of_tokens import AUTO, FAMILIES, RowsOfTokens
from torch.nn.functional import cross_entropy
from torch.profiler import ProfilerActivity, profile
from torch.utils.checkpoint import checkpoint

from lacuna import modeling
from lacuna.common.errors import InputError
from lacuna.training import TrainingArguments
from lacuna.training.checkpoints.saving import Progress, Snapshot
from lacuna.training.optimizers.optimizers import OPTIMIZERS
from lacuna.training.planning import memory as memory_module
from lacuna.training.planning.memory import Memory, StepNeeds, check_memory
from lacuna.training.planning.plan import parameters_by_part
from lacuna.training.stages import Stage

ROWS, VOCAB = 4, 1024


def small(family: str, **fields: Any) -> Any:
    config = modeling.LacunaConfig.from_family(
        family, "tiny", **{"vocab_size": VOCAB, "hidden_size": 128, "num_hidden_layers": 2, **fields}
    )
    return getattr(transformers, AUTO[config.shape]).from_config(config).train()


class Bag(torch.nn.Module):
    """A model that takes no time: it guesses each token from itself."""

    def __init__(self, hidden_size: int = 64) -> None:
        super().__init__()
        self.table = torch.nn.Embedding(VOCAB, hidden_size)
        self.out = torch.nn.Linear(hidden_size, VOCAB)
        self.config = SimpleNamespace(is_encoder_decoder=False)

    def get_input_embeddings(self) -> torch.nn.Module:
        return self.table

    def forward(self, input_ids: torch.Tensor, labels: torch.Tensor, **_: Any) -> Any:
        return SimpleNamespace(loss=cross_entropy(self.out(self.table(input_ids)).transpose(1, 2), labels))


def work_for(model: Any) -> RowsOfTokens:
    work = RowsOfTokens(share=0.25 if model.config.shape == "encoder" else 1.0)
    work.batch_for(model, rows=1)
    return work


def allocated(model: Any, *, precision: str, passes: int, optimizer: str = "adamw") -> int:
    """Bytes that a step held at once besides weights and optimizer, as torch's allocator saw it."""
    batch = work_for(model).batch_for(model, rows=ROWS)
    optimizers = OPTIMIZERS[optimizer].make(
        model, TrainingArguments(optimizer=optimizer, learning_rate=1e-3, max_steps=9)
    )  # type: ignore[arg-type]

    def step() -> None:
        for _ in range(passes):
            with torch.autocast("cpu", dtype=torch.bfloat16, enabled=precision == "bf16"):
                loss = model(**batch).loss
            loss.backward()
            del loss
        for each in optimizers:
            each.step()
            each.zero_grad()

    step()
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        step()
    events = [event for event in profiler.profiler.kineto_results.events() if event.name() == "[memory]"]
    live = peak = 0
    for event in sorted(events, key=lambda event: event.start_ns()):
        live += event.nbytes()
        peak = max(peak, live)
    return peak


def plan(model: Any, *, passes: int = 1, optimizer: str = "adamw", **options: Any) -> Memory:
    """Of a step of `passes` micro-batches of `ROWS` rows."""
    work = options.pop("work", None) or RowsOfTokens()
    arguments = TrainingArguments(optimizer=optimizer, max_steps=9, **options.pop("arguments", {}))  # type: ignore[arg-type]
    return StepNeeds(model, work, arguments, ROWS * passes, **options).memory(ROWS)


def planned(model: Any, **options: Any) -> int:
    memory = plan(model, work=work_for(model), **options)
    return memory.activations + memory.gradients


@pytest.mark.parametrize(
    ("family", "precision"),
    [
        *((family, "no") for family in ("modernbert", "gpt2", "bart")),
        ("modernbert", "bf16"),
        *(
            pytest.param(family, "no", marks=pytest.mark.slow)
            for family in ("bert", "lacuna", "llama", "qwen3", "vaswani")
        ),
        *(pytest.param(family, "bf16", marks=pytest.mark.slow) for family in ("bert", "qwen3")),
    ],
)
def test_a_step_holds_what_was_planned(family: str, precision: str) -> None:
    model = small(family)
    expected = allocated(model, precision=precision, passes=1)
    assert planned(model, precision=precision) == pytest.approx(expected, rel=0.03)


@pytest.mark.parametrize(
    ("family", "optimizer", "passes"),
    [
        pytest.param("llama", "muon", 1, marks=pytest.mark.slow),
        ("bert", "adamw", 2),
        ("gpt2", "muon", 2),
    ],
)
def test_optimizers_and_micro_batches(family: str, optimizer: str, passes: int) -> None:
    model = small(family)
    expected = allocated(model, precision="bf16", passes=passes, optimizer=optimizer)
    found = planned(model, precision="bf16", passes=passes, optimizer=optimizer)
    # Beside what is always there.
    weights = sum(parameter.nbytes for parameter in model.parameters())
    assert found + 2 * weights == pytest.approx(expected + 2 * weights, rel=0.05)


def test_gradient_checkpointing_needs_less() -> None:
    model = small("llama")
    without = planned(model)
    model._set_gradient_checkpointing(gradient_checkpointing_func=partial(checkpoint, use_reentrant=False))
    found = planned(model)
    assert found < 0.8 * without
    assert found == pytest.approx(allocated(model, precision="no", passes=1), rel=0.06)


def test_a_native_model_and_one_on_meta() -> None:
    sizes = {"hidden_size": 64, "num_hidden_layers": 1, "num_attention_heads": 4, "intermediate_size": 96}
    config = transformers.BertConfig(vocab_size=VOCAB, **sizes)
    model = transformers.BertForMaskedLM(config)
    with torch.device("meta"):
        shapes = transformers.BertForMaskedLM(config)
    assert plan(model) == plan(shapes)
    assert all(parameter.grad is None for parameter in model.parameters())
    assert {parameter.device.type for parameter in model.parameters()} == {"cpu"}


def test_weights_and_optimizer_are_counted_exactly() -> None:
    model = small("llama", num_hidden_layers=1)
    memory = plan(model, optimizer="muon")
    arguments = TrainingArguments(optimizer="muon", learning_rate=1e-3)
    optimizers = OPTIMIZERS["muon"].make(model, arguments)
    model(input_ids=torch.ones(1, 8, dtype=torch.long), labels=torch.ones(1, 8, dtype=torch.long)).loss.backward()
    for optimizer in optimizers:
        optimizer.step()
    values = [value for each in optimizers for state in each.state.values() for value in state.values()]
    assert memory.optimizer == sum(value.nbytes for value in values if isinstance(value, torch.Tensor))
    assert memory.weights >= sum(parameter.nbytes for parameter in model.parameters())
    assert memory.checkpoint == memory.weights + memory.optimizer
    ddp = plan(model, optimizer="muon", num_processes=2)
    assert ddp.total - memory.total == ddp.communication == sum(parameter.nbytes for parameter in model.parameters())


@pytest.mark.parametrize("average", ["none", "ema"])
def test_a_checkpoint_is_written_from_a_copy(average: Any) -> None:
    """As large as what is written; on a GPU it lies in the memory of the host, and without checkpoints nowhere."""
    model = Bag()

    def of(device_type: str, **options: Any) -> Memory:
        return plan(model, device_type=device_type, arguments={"average": average, **options})

    written = Snapshot(
        weights={name: weight for name, weight in model.named_parameters()},
        optimizer={f"{name}.{key}": weight for name, weight in model.named_parameters() for key in ("m", "v")},
        average={name: weight for name, weight in model.named_parameters()} if average == "ema" else {},
        progress=Progress(),
        card="",
    )
    without = of("cpu", save_steps=0)
    assert without.checkpoint_copy == 0
    for options in ({}, {"save_steps": 3}, {"save_steps": 0, "save_minutes": 5}):
        memory = of("cpu", **options)
        parts = (written.weights, written.optimizer, written.average, written.learned)
        size = sum(tensor.nbytes for part in parts for tensor in part.values())
        assert memory.checkpoint_copy == memory.checkpoint == pytest.approx(size, rel=1e-3)
        assert memory.total == without.total + memory.checkpoint_copy
    assert of("cuda").checkpoint_copy == 0 and of("cuda").checkpoint == without.checkpoint


@pytest.mark.parametrize("family", FAMILIES)
def test_every_parameter_has_a_part(family: str) -> None:
    model = small(family)
    parts = parameters_by_part(model)
    assert sum(parts.values()) == model.num_parameters()
    layers = [name for name, _ in model.named_parameters() if ".attention." in name and name.endswith("_proj.weight")]
    attention = sum(model.get_parameter(name).numel() for name in layers)
    assert attention <= parts["attention"]
    assert parts["embeddings"] >= VOCAB * 128 and parts["MLP"] and parts["norms"] < 0.02 * sum(parts.values())


def test_parts_of_native_models() -> None:
    for kind in (transformers.BertForMaskedLM, transformers.GPT2LMHeadModel):
        with torch.device("meta"):
            parts = parameters_by_part(kind(kind.config_class()))
        assert parts["attention"] // 10**6 == 28 and parts["MLP"] // 10**6 == 56, kind


def test_the_largest_divisor_that_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(StepNeeds, "_memory", lambda self, rows: Memory(5 + rows, *[0] * 7))
    for share in (1, 7, 12, 64, 96):
        plan = StepNeeds(torch.nn.Linear(2, 2), RowsOfTokens(), TrainingArguments(), share)
        for memory in range(0, 110, 3):
            fitting = [rows for rows in range(1, share + 1) if share % rows == 0 and 5 + rows <= memory]
            assert plan.largest_micro_batch(memory) == (max(fitting) if fitting else None)


def test_a_model_that_cannot_be_run_on_shapes_has_a_message() -> None:
    class Looks(torch.nn.Module):
        """Decides by numbers."""

        def __init__(self) -> None:
            super().__init__()
            self.table = torch.nn.Embedding(8, 4)
            self.config = type("Config", (), {})()

        def get_input_embeddings(self) -> torch.nn.Module:
            return self.table

        def forward(self, input_ids: torch.Tensor, **_: Any) -> Any:
            states = self.table(input_ids)
            return states if bool(states.sum() > 0) else -states

    with pytest.raises(InputError, match=r"the memory of Looks cannot be estimated .*give --micro_batch_size"):
        plan(Looks())


def test_steps_for_which_no_device_has_the_memory_are_refused_before_they_begin(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model, work = Bag(), RowsOfTokens(length=64)
    stages = [Stage(0.0, work, batch_size=512, micro_batch_size=512)]
    arguments = TrainingArguments()  # without a rate, which the model says
    needed = StepNeeds(model, work, arguments, 512).memory

    def check(has: float) -> None:
        monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(total=has))
        check_memory(model, stages, arguments, device=torch.device("cpu"), num_processes=1)

    check(needed(512).total + 1)
    size = f"{needed(512).total / 1e9:,.0f} GB"
    with pytest.raises(
        InputError, match=rf"^512 rows of 64 tokens at once need about {size} .*--micro_batch_size 128 w"
    ):
        check(needed(128).total)
    with pytest.raises(InputError, match=r"not one row fits"):
        check(0)
    monkeypatch.setattr(memory_module, "_MUCH", 512 * 64 + 1)
    check(0)


@pytest.mark.slow
@pytest.mark.skipif(not os.access("/proc/self/clear_refs", os.W_OK), reason="the peak cannot be reset here")
@pytest.mark.parametrize(
    "words",
    [
        "modernbert tiny 16 128 no adamw 1",
        "modernbert mini 16 128 bf16 muon 2",
        "bert tiny 16 128 bf16 adamw 1",
        "qwen3 tiny 8 128 no adamw 1",
        "llama mini 8 128 bf16 adamw 2",
        "gpt2 mini 4 128 no muon 1",
        "bart tiny 16 128 no adamw 1",
    ],
)
def test_the_memory_of_a_process_grows_as_planned(words: str) -> None:
    done = run(Path("tests/training/measured_step.py"), *words.split())
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert 0.85 < found["planned"] / found["measured"] < 1.2, found  # threads have buffers: fewer cores take less


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "save_steps"),
    [
        ("clm small 4 no --average none", 0),
        ("clm small 4 no --average none", 1),
        ("clm small 4 bf16 --average ema", 0),
        ("clm small 4 bf16 --average ema", 1),
        ("mlm mini 16 bf16 --average none", 1),  # without checkpoints 16 % too little: docs/planning.md, `allocator`
    ],
)
def test_a_run_takes_the_memory_that_was_planned(words: str, save_steps: int, tmp_path: Path) -> None:
    """With Python, its libraries and the text; with a copy for checkpoints beside each step, and without any."""
    objective, size, rows, precision, *others = words.split()
    words_of_both = ["--objective", objective, "--size", size, "--batch_size", rows, "--mixed_precision", precision]
    words_of_both += [*others, "--max_steps", "8", "--save_steps", save_steps, "--eval_steps", "0"]
    words_of_both += ["--eval_fraction", "0"]
    planned = run(Path("recipes/plan_run.py"), *words_of_both, "--device", "cpu")
    assert planned.returncode == 0, planned.stderr[-2000:]
    total = re.search(r"^  total +([\d.,]+) MB", planned.stdout, flags=re.MULTILINE)
    done = run(Path("tests/training/measured_run.py"), *words_of_both, "--output_dir", tmp_path / "run")
    assert done.returncode == 0 and total, done.stderr[-2000:]
    measured = int(done.stdout.splitlines()[-1]) / 1e6
    assert float(total[1].replace(",", "")) == pytest.approx(measured, rel=0.15), (planned.stdout, measured)
