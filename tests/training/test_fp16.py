"""fp16 and its loss scale, on a CPU: what a GPU computes in it, and how the scale is chosen, moves and is taken up."""

import dataclasses
import json
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from examples import fast
from safetensors.torch import load_file
from torch import Tensor
from toys import PlainTokenizer, ToyWork, make_model

from lacuna.common.errors import NumericsError
from lacuna.modeling import LacunaConfig, LacunaForCausalLM, LacunaForMaskedLM
from lacuna.training import TrainingArguments, progress, train
from lacuna.training import run as run_module
from lacuna.training.checkpoints import saving
from lacuna.training.environment import resolved_precision
from lacuna.training.planning.flops import peak_flops
from lacuna.training.progress import Progress

HIGH = 2.0**26
"""A scale with which the gradients of the toy overflow some times."""


@pytest.fixture
def run(options: Callable[..., TrainingArguments], monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Trains the small model in fp16, with a first `scale`; returns its results."""

    def start(*, scale: float | None = None, work: ToyWork | None = None, **overrides: Any) -> dict[str, float]:
        if scale is not None:
            monkeypatch.setattr(run_module, "Progress", partial(Progress, loss_scale=scale))
        given = {"mixed_precision": "fp16", "max_steps": 12, **overrides}
        model = make_model(dropout=0.1)
        return train(model=model, work=work or ToyWork(), tokenizer=PlainTokenizer(), arguments=options(**given))

    return start


def state(folder: Path, step: int) -> dict[str, Any]:
    path = folder / f"checkpoints/step-{step:08d}/training_state/progress.json"
    return dict(json.loads(path.read_text(encoding="utf-8")))


def skipped(lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [line for line in lines if line.get("event") == "skipped"]


def assert_equal_weights(one: Path, other: Path) -> None:
    first, second = (load_file(folder / "model.safetensors") for folder in (one, other))
    assert first.keys() == second.keys()
    assert [name for name in first if not torch.equal(first[name], second[name])] == []


def test_products_are_in_fp16_and_weights_gradients_and_losses_are_not(run, monkeypatch, tmp_path, log_of) -> None:
    seen: set[tuple[bool, torch.dtype]] = set()
    scales = []
    linear = torch.nn.functional.linear

    def noted(x: Tensor, *rest: Any) -> Tensor:
        output = linear(x, *rest)
        seen.add((torch.is_grad_enabled(), output.dtype))
        return output

    class Watched(ToyWork):
        def loss(self, model: Any, batch: Any, num_targets: Any) -> Any:
            loss, metrics = super().loss(model, batch, num_targets)
            if loss.requires_grad and type(loss) is Tensor:
                loss.register_hook(lambda gradient: scales.append(float(gradient)))
            return loss, metrics

    monkeypatch.setattr(torch.nn.functional, "linear", noted)
    run(work=Watched(), max_steps=4, eval_steps=2, save_steps=4, output_dir=str(tmp_path / "fp16"))
    assert (True, torch.float16) in seen and (False, torch.float16) in seen  # training, and evaluation
    assert scales == [2.0**16] * 4
    state_of = tmp_path / "fp16/checkpoints/step-00000004/training_state/optimizer.safetensors"
    every = [*load_file(tmp_path / "fp16/model.safetensors").values(), *load_file(state_of).values()]
    assert {tensor.dtype for tensor in every} == {torch.float32}
    run(max_steps=4, mixed_precision="no", output_dir=str(tmp_path / "float32"))
    found, wanted = ([line for line in log_of(tmp_path / name) if "loss" in line] for name in ("fp16", "float32"))
    for name in ("loss", "grad_norm"):
        assert [line[name] for line in found] == pytest.approx([line[name] for line in wanted], rel=0.02)
    assert [line["loss"] for line in found] != [line["loss"] for line in wanted]


def test_accelerate_scales_nothing_besides(monkeypatch: pytest.MonkeyPatch) -> None:
    given: dict[str, Any] = {}
    accelerator = run_module.Accelerator

    def noted(**options: Any) -> Any:
        given.update(options)
        return accelerator(**options)

    monkeypatch.setattr(run_module, "Accelerator", noted)
    joined = run_module._join(TrainingArguments(mixed_precision="fp16"))
    assert joined.mixed_precision == "fp16" and joined.native_amp
    (handler,) = given["kwargs_handlers"]
    scaler = torch.amp.GradScaler("cpu", **handler.to_kwargs())  # as accelerate makes one on a GPU
    assert not scaler.is_enabled() and float(scaler.scale(torch.tensor(3.0))) == 3.0
    assert joined.scaler is None or not joined.scaler.is_enabled()


def test_an_overflow_halves_the_scale_and_is_as_if_the_step_were_left_out(run, tmp_path, log_of, capsys) -> None:
    run(scale=HIGH, save_steps=12, output_dir=str(tmp_path / "high"))
    events = skipped(log_of(tmp_path / "high"))
    count = len(events)
    assert 1 <= count < 10 and [event["step"] for event in events] == [*range(1, count + 1)]
    scales = [HIGH / 2**number for number in range(count + 1)]
    assert [event["reason"] for event in events] == [
        f"gradient not finite at loss scale {before:,.0f}, now {after:,.0f}" for before, after in pairwise(scales)
    ]
    assert f"the gradient is not finite at loss scale {HIGH:,.0f}, now {HIGH / 2:,.0f} (samples 0 to 7)" in (
        capsys.readouterr().err
    )
    found = state(tmp_path / "high", 12)
    assert (found["loss_scale"], found["steps_at_scale"], found["bad_steps"]) == (scales[-1], 12 - count, 0)
    run(scale=scales[-1], skip_steps=f"1-{count}", output_dir=str(tmp_path / "left_out"))
    assert_equal_weights(tmp_path / "high", tmp_path / "left_out")
    assert [line["step"] for line in log_of(tmp_path / "high") if "grad_norm" in line] == [*range(count + 1, 13)]


@pytest.mark.parametrize("stops_after", fast([2, 5, 9], 5))
def test_stopped_and_resumed_equals_unbroken_to_the_bit(run, tmp_path, log_of, monkeypatch, stops_after: int) -> None:
    """The scale falls at first and is doubled every three steps, so that it moves on both sides of each break."""
    monkeypatch.setattr(progress, "PATIENCE_TO_DOUBLE", 3)
    common = {"scale": HIGH, "save_steps": 1, "keep_checkpoints": 20}
    run(**common, output_dir=str(tmp_path / "straight"))
    broken = {**common, "output_dir": str(tmp_path / "broken")}
    with pytest.raises(InterruptedError):
        run(work=ToyWork(stop_at=8 * stops_after), **broken)
    run(resume=True, **{**broken, "scale": 1.0})  # what a new run would begin with
    assert_equal_weights(tmp_path / "straight", tmp_path / "broken")
    one, other = (
        [{k: v for k, v in state(tmp_path / name, step).items() if k != "seconds"} for step in range(1, 13)]
        for name in ("straight", "broken")
    )
    assert one == other
    scales = [each["loss_scale"] for each in one]
    assert scales[0] < HIGH and any(after > before for before, after in pairwise(scales))
    assert [event["reason"] for event in skipped(log_of(tmp_path / "straight"))] == [
        event["reason"] for event in skipped(log_of(tmp_path / "broken"))
    ]


class Poisoned(ToyWork):
    """Whose gradient, or loss, is never finite."""

    def __init__(self, what: str) -> None:
        super().__init__()
        self.what = what

    def loss(self, model: Any, batch: Any, num_targets: Any) -> Any:
        loss, metrics = super().loss(model, batch, num_targets)
        if self.what == "loss":
            return loss * float("nan"), metrics
        if loss.requires_grad:
            loss.register_hook(lambda gradient: gradient * float("inf"))
        return loss, metrics


def test_only_a_scale_that_can_fall_no_further_ends_a_run(run, tmp_path, log_of) -> None:
    with pytest.raises(NumericsError, match=r"step 5: the gradient is not finite .* nor were the 1 before it"):
        run(scale=8.0, work=Poisoned("gradient"), max_bad_steps=2, max_steps=8)
    reasons = [event["reason"] for event in skipped(log_of(tmp_path / "run"))]
    assert reasons == [
        *(f"gradient not finite at loss scale {scale}, now {scale // 2}" for scale in (8, 4, 2)),
        *["gradient not finite"] * 2,
    ]


def test_a_loss_that_is_not_finite_is_no_matter_of_the_scale(run, tmp_path, log_of) -> None:
    with pytest.raises(NumericsError, match="step 2: the loss is not finite"):
        run(work=Poisoned("loss"), max_bad_steps=2)
    assert [event["reason"] for event in skipped(log_of(tmp_path / "run"))] == ["loss not finite"] * 2


def test_the_scale_moves_as_it_should() -> None:
    found = Progress()
    assert (found.loss_scale, progress.PATIENCE_TO_DOUBLE) == (2.0**16, 2000)
    moves = []
    for number in range(1, 4102):
        before = found.loss_scale
        overflows = number in (100, 101)
        found.adapt_scale(is_applied=number not in (100, 101, 4000), overflows=overflows)
        if found.loss_scale != before:
            moves.append((number, found.loss_scale / 2.0**16))
    # 2,000 in a row after the two overflows; a loss that is not finite begins the count anew, and moves nothing.
    assert moves == [(100, 0.5), (101, 0.25), (2101, 0.5)] and found.steps_at_scale == 101


def test_other_precisions_have_no_scale(run, tmp_path) -> None:
    run(mixed_precision="no", max_steps=2, save_steps=2)
    assert (state(tmp_path / "run", 2)["loss_scale"], state(tmp_path / "run", 2)["steps_at_scale"]) == (2.0**16, 0)


def test_a_checkpoint_from_before_there_was_a_scale(run, tmp_path, monkeypatch) -> None:
    new = ("loss_scale", "steps_at_scale")
    with monkeypatch.context() as patch:
        patch.setattr(saving, "asdict", lambda it: {k: v for k, v in dataclasses.asdict(it).items() if k not in new})
        run(mixed_precision="no", max_steps=4, save_steps=2)
    assert "loss_scale" not in state(tmp_path / "run", 4)
    run(mixed_precision="fp16", max_steps=6, save_steps=2, resume=True)
    found = state(tmp_path / "run", 6)
    assert found["loss_scale"] == 2.0**16 and found["steps_at_scale"] == 2


@pytest.mark.parametrize(
    ("capability", "has_bf16", "expected"),
    [((9, 0), True, "bf16"), ((7, 5), False, "fp16"), ((7, 0), False, "fp16"), ((6, 1), False, "no")],
    ids=["H100", "T4", "V100", "GTX 1080"],
)
def test_what_auto_means_on_a_gpu(monkeypatch, capability: tuple[int, int], has_bf16: bool, expected: str) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation=True: has_bf16)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda *_: capability)
    assert resolved_precision("auto") == expected
    assert [resolved_precision(asked) for asked in ("no", "bf16", "fp16")] == ["no", "bf16", "fp16"]


def test_what_auto_means_on_a_mac(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    assert resolved_precision("auto") == "no"


def test_peaks_of_gpus() -> None:
    assert (peak_flops("T4", "fp16"), peak_flops("V100", "fp16")) == (65e12, 125e12)
    assert peak_flops("H100", "fp16") == peak_flops("H100", "bf16") != peak_flops("H100", "no")


@pytest.mark.parametrize("head", [LacunaForMaskedLM, LacunaForCausalLM])
def test_small_gradients_of_the_output_layer_survive(head: Any) -> None:
    """A hundred million targets in the step: unscaled, every gradient of an activation would be 0 in fp16."""
    shape = "encoder" if head is LacunaForMaskedLM else "decoder"
    torch.manual_seed(0)
    model = head(LacunaConfig(shape=shape, vocab_size=64, hidden_size=32, num_hidden_layers=2, num_attention_heads=2))
    ids = torch.randint(5, 64, (4, 16))
    gradients = []
    for dtype, scale in ((None, 1.0), (torch.float16, 2.0**30)):
        model.zero_grad()
        with torch.autocast("cpu", dtype, enabled=dtype is not None):
            loss = model(input_ids=ids, labels=ids, skip_logits=True, num_items_in_batch=10**8).loss
        (loss * scale).backward()
        gradients.append({name: weight.grad / scale for name, weight in model.named_parameters()})
    for name, wanted in gradients[0].items():
        assert float((gradients[1][name] - wanted).norm() / wanted.norm().clamp(min=1e-20)) < 0.02, name
