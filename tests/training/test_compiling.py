"""What is compiled, when, and that nothing else changes by it."""

import json
import shutil
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch._inductor.config
from examples import fast

from lacuna import training
from lacuna.common.errors import InputError
from lacuna.common.work import Work
from lacuna.modeling import LacunaConfig, LacunaForMaskedLM
from lacuna.training.compiling import LONG_ENOUGH, compile_model, should_compile, warm_up
from lacuna.training.stages import Stage


class Rows(Work):
    """A work of rows of one length."""

    num_examples, num_eval_examples, metric, greater_is_better = 12, 0, "loss", False
    mixture: list[Any] = []

    def fixed_length(self, rows: int) -> bool:
        return True

    def example(self, row: int, index: int) -> dict[str, Any]:
        ids = torch.randint(5, 64, (8,), generator=torch.Generator().manual_seed(row))
        return {"input_ids": ids, "labels": ids.masked_fill(torch.arange(8) % 3 > 0, -100)}

    def collate(self, examples: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
        return {name: torch.stack([example[name] for example in examples]) for name in examples[0]}

    def count_targets(self, batch: dict[str, torch.Tensor]) -> dict[str, int]:
        return {"tokens": int((batch["labels"] != -100).sum())}

    def loss(self, model: Any, batch: dict[str, torch.Tensor], num_targets: dict[str, torch.Tensor]) -> Any:
        return model(**batch, skip_logits=True, num_items_in_batch=num_targets["tokens"]).loss, {}

    eval_example, evaluate, summarize, baseline = example, loss, loss, dict


def small_model(family: str = "lacuna") -> LacunaForMaskedLM:
    torch.manual_seed(0)
    layers: dict[str, Any] = {"num_hidden_layers": 2}
    if family == "modernbert":  # of two kinds
        layers = {"num_hidden_layers": 4, "sliding_window": 4}
    config = LacunaConfig.from_family(
        family, vocab_size=64, hidden_size=16, num_attention_heads=2, num_key_value_heads=2, head_dim=8,
        intermediate_size=24, **layers,
    )  # fmt: skip
    return LacunaForMaskedLM(config)


@pytest.fixture(autouse=True)
def unchecked_instructions() -> Iterator[None]:
    """The compiler would first try, for seconds, whether the processor has the vector instructions that it names."""
    with torch._inductor.config.patch({"cpp.vec_isa_ok": True}):
        yield


def stages_of(work: Work) -> list[Stage]:
    return [Stage(at=0.0, work=work, batch_size=4, micro_batch_size=2)]


def decision(**changes: Any) -> bool:
    options = {"device": torch.device("cpu"), "is_divided": False, "model": small_model(), "stages": stages_of(Rows())}
    options |= {name: changes.pop(name) for name in [*options] if name in changes}
    return should_compile(training.TrainingArguments(**changes), **options)


@pytest.fixture
def a_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: f"/usr/bin/{name}")


@pytest.mark.usefixtures("a_compiler")
def test_short_runs_are_not_compiled_and_long_ones_are() -> None:
    operations_a_step = 6 * sum(weight.numel() for weight in small_model().parameters()) * 4 * 8
    enough = int(LONG_ENOUGH // operations_a_step) + 1
    assert decision(max_steps=enough) and not decision(max_steps=enough // 2)
    assert decision(max_minutes=10) and not decision(max_minutes=0.5)
    assert not decision(max_minutes=0.5, max_steps=enough) and not decision(max_minutes=10, max_steps=10)


@pytest.mark.usefixtures("a_compiler")
def test_auto_leaves_alone_what_would_be_compiled_again_and_again() -> None:
    class Others(Rows):
        def fixed_length(self, rows: int) -> bool:
            return False

    assert not decision(max_minutes=60, stages=stages_of(Others()))
    assert not decision(max_minutes=60, is_divided=True)
    assert decision(compile="on", max_steps=1, stages=stages_of(Others()))
    assert not decision(compile="off", max_minutes=60)


def test_without_a_compiler_auto_goes_on_and_on_says_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: None)
    assert not decision(max_minutes=60)
    with pytest.raises(InputError, match="no compiler for cpu here"):
        decision(compile="on")


@pytest.mark.parametrize("family", fast(["lacuna", "modernbert"], "lacuna"))
@pytest.mark.parametrize("dtype", fast([None, torch.bfloat16], None))
@pytest.mark.skipif(shutil.which("g++") is None, reason="needs a C++ compiler")
def test_a_compiled_model_computes_the_same_and_warming_up_changes_nothing(family: str, dtype: Any) -> None:
    plain, compiled = small_model(family), small_model(family)
    names = [*compiled.state_dict()]
    assert compile_model(compiled) == plain.config.num_hidden_layers
    torch.manual_seed(3)
    before = torch.get_rng_state()
    work, half = Rows(), partial(torch.autocast, "cpu", torch.bfloat16, enabled=dtype is not None)
    backward = torch.Tensor.backward
    with half():  # as the model that accelerate has prepared does by itself
        assert warm_up(compiled, stages_of(work), device=torch.device("cpu"), backward=backward) > 0
    assert torch.equal(torch.get_rng_state(), before)
    assert all(weight.grad is None for weight in compiled.parameters()) and [*compiled.state_dict()] == names
    for mine, theirs in zip(compiled.parameters(), plain.parameters(), strict=True):
        assert torch.equal(mine, theirs)

    batch = work.collate([work.example(row, row) for row in (3, 4)])
    batch["labels"][0, 0] = -100  # fewer targets than in the warm-up, for which nothing is compiled again
    found, tolerance = [], 0.03 if dtype else 1e-5
    for model in (plain, compiled):
        model.zero_grad()
        with half(), torch._dynamo.config.patch(error_on_recompile=True):
            loss, _ = work.loss(model, batch, {"tokens": torch.tensor(6)})
        loss.backward()
        found.append((loss.item(), torch.cat([weight.grad.flatten() for weight in model.parameters()])))
    assert found[1][0] == pytest.approx(found[0][0], rel=tolerance)
    assert (found[1][1] - found[0][1]).norm() <= tolerance * found[0][1].norm()


@pytest.mark.skipif(shutil.which("g++") is None, reason="needs a C++ compiler")
def test_a_compiled_run_stopped_and_resumed_ends_where_one_ends_that_was_not(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    arguments = training.TrainingArguments(
        output_dir=str(folder),
        max_steps=6,
        batch_size=4,
        micro_batch_size=2,
        compile="on",
        save_steps=3,
        eval_steps=0,
        mixed_precision="no",
    )

    def train(run: training.TrainingArguments) -> list[torch.Tensor]:
        model = small_model()
        training.train(model=model, work=Rows(), tokenizer=Tokenizer(), arguments=run)
        return [weight.detach().clone() for weight in model.parameters()]

    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    whole = train(arguments)
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] > 0, "nothing was compiled"
    shutil.rmtree(folder / "checkpoints" / "step-00000006")
    resumed = train(replace(arguments, resume=True))
    assert all(torch.equal(mine, theirs) for mine, theirs in zip(resumed, whole, strict=True))
    assert json.loads((folder / "run.json").read_text())["arguments"]["compile"] == "on"


class Tokenizer:
    """Something to save beside the model."""

    def save_pretrained(self, folder: Any) -> None:
        Path(folder, "tokenizer.json").write_text("{}")
