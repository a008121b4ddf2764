"""Operations of a step on fake tensors, beside those that torch counts while a model runs; and what devices can do."""

import time
from functools import partial
from typing import Any

import pytest
import torch
import transformers
from examples import fast
from rows_of_tokens import AUTO, FAMILIES, RowsOfTokens
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import FlopCounterMode

from lacuna import modeling
from lacuna.training.planning.flops import GPUS, Throughput, find_gpu, peak_flops
from lacuna.training.planning.memory import FakeStep

FLASH = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu


def products(count: int) -> Any:
    """Operations of a fused kernel that computes so many products; torch's counter leaves the one for CPUs out."""

    def formula(*shapes: Any, out_val: Any = None, **_: Any) -> int:
        query, key = shapes[count // 5 : count // 5 + 2]  # the backward pass has the gradient before them
        batch, heads, length, size = query
        return 2 * count * batch * heads * length * key[2] * size

    return formula


def counted(model: Any, batch: dict[str, torch.Tensor]) -> int:
    """Operations of a real step."""
    mapping = {
        FLASH: products(2),
        torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward: products(5),
    }
    with FlopCounterMode(display=False, custom_mapping=mapping) as counter:
        RowsOfTokens().loss(model.train(), batch, {})[0].backward()
    return int(counter.get_total_flops())


def planned(model: Any, batch: dict[str, torch.Tensor], **options: Any) -> float:
    step = FakeStep(model, **{"precision": "no", "device_type": "cpu", **options})
    step.run(RowsOfTokens(), batch)
    return step.flops


@pytest.mark.parametrize("attention", ["sdpa", pytest.param("eager", marks=pytest.mark.slow)])
@pytest.mark.parametrize("family", fast(FAMILIES, "modernbert", "llama", "bart"))
def test_our_families_compute_what_is_counted(family: str, attention: str) -> None:
    config = modeling.LacunaConfig.from_family(
        family, "tiny", vocab_size=96, num_key_value_heads=None, sliding_window=8, hidden_size=96, head_dim=32
    )
    model = getattr(transformers, AUTO[config.shape]).from_config(config, attn_implementation=attention)
    batch = RowsOfTokens(length=40, target_length=24, share=0.4).batch_for(model, rows=3)
    assert planned(model, batch) == counted(model, batch)


SMALL = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 96}
NATIVE: dict[str, tuple[Any, dict[str, Any]]] = {
    "bert": (transformers.BertForMaskedLM, SMALL),
    "modernbert": (transformers.ModernBertForMaskedLM, {**SMALL, "pad_token_id": 0, "reference_compile": False}),
    "gpt2": (transformers.GPT2LMHeadModel, {"n_embd": 64, "n_layer": 2, "n_head": 4}),
    "llama": (transformers.LlamaForCausalLM, {**SMALL, "num_key_value_heads": 2}),
    "qwen3": (transformers.Qwen3ForCausalLM, {**SMALL, "num_key_value_heads": 2, "head_dim": 32}),
    "bart": (
        transformers.BartForConditionalGeneration,
        {"d_model": 64, "encoder_layers": 2, "decoder_layers": 1, "encoder_ffn_dim": 96, "decoder_ffn_dim": 80},
    ),
    "t5": (transformers.T5ForConditionalGeneration, {"d_model": 64, "d_ff": 96, "num_layers": 2, "num_heads": 4}),
}


@pytest.mark.parametrize("name", fast(NATIVE, "modernbert", "gpt2", "t5"))
def test_native_models_compute_what_is_counted(name: str) -> None:
    kind, sizes = NATIVE[name]
    ids = {"bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1}
    model = kind(kind.config_class(vocab_size=96, max_position_embeddings=64, **sizes, **ids))
    batch = RowsOfTokens(length=40, target_length=24, share=0.4).batch_for(model, rows=2)
    assert planned(model, batch) == counted(model, batch)


def llama() -> Any:
    config = modeling.LacunaConfig.from_family("llama", "tiny", vocab_size=96, hidden_size=64, num_hidden_layers=2)
    return transformers.AutoModelForCausalLM.from_config(config)


def test_what_is_counted_by_hand() -> None:
    """Six operations for each weight and token; seven products of heads and pairs where the scores are made again."""
    model = llama()
    weights = sum(module.weight.numel() for module in model.modules() if isinstance(module, torch.nn.Linear))
    found = planned(model, RowsOfTokens(length=40).batch_for(model, rows=3))
    assert found == 3 * (6 * weights * 40 + 2 * 7 * 2 * 64 * 40 * 40)


def test_gradient_checkpointing_computes_the_layers_once_more() -> None:
    model = llama()
    batch = RowsOfTokens(length=40).batch_for(model, rows=2)
    without = planned(model, batch)
    model._set_gradient_checkpointing(gradient_checkpointing_func=partial(checkpoint, use_reentrant=False))
    assert planned(model, batch) == counted(model, batch) > 1.2 * without


def test_weights_that_are_not_trained_have_no_gradient() -> None:
    model = llama()
    batch = RowsOfTokens(length=40).batch_for(model, rows=2)
    before = planned(model, batch)
    for layer in model.model.decoder.layers:
        layer.mlp.requires_grad_(False)
    assert planned(model, batch) == counted(model, batch) < before


def test_a_gpu_has_a_kernel_for_dropout() -> None:
    config = modeling.LacunaConfig.from_family("bert", "tiny", vocab_size=96, hidden_size=64, num_hidden_layers=1)
    model = transformers.AutoModelForMaskedLM.from_config(config)
    assert config.attention_dropout > 0
    batch = RowsOfTokens(length=40).batch_for(model, rows=2)
    scores = 2 * 2 * 40 * 40 * 64 * config.num_hidden_layers  # one product of the seven
    assert planned(model, batch, device_type="cuda") == planned(model, batch) + scores


def test_the_share_of_the_peak(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is counted of a row, times rows, over time and peak; None where the model looks at numbers."""
    model, work = llama(), RowsOfTokens(length=40)
    batch = work.batch_for(model, rows=2)
    accelerator: Any = type(
        "Accelerator", (), {"device": torch.device("cpu"), "mixed_precision": "no", "num_processes": 2}
    )
    monkeypatch.setattr("lacuna.training.planning.flops.peak_flops", lambda device, precision: 1e9)
    throughput = Throughput(model, accelerator)
    for _ in range(3):
        throughput.see(work, batch, rows=8)
    expected = 3 * 4 * planned(model, batch) / (2 * 1e9 * 7.0)
    state = torch.get_rng_state()
    assert throughput.share(seconds=7.0, trained=99.0) == pytest.approx(expected)
    assert torch.equal(torch.get_rng_state(), state)
    throughput.see(work, batch, rows=8)
    assert throughput.share(seconds=7.0, trained=1.0) is None, "a CPU is measured later"
    throughput.see(work, batch, rows=8)
    assert throughput.share(seconds=7.0, trained=99.0) == pytest.approx(expected / 3)
    monkeypatch.setattr(model.config, "use_cache", False)
    work.loss = lambda model, batch, counts: 1 / bool(model.get_input_embeddings().weight.sum() > 0)  # type: ignore[method-assign]
    throughput = Throughput(model, accelerator)
    throughput.see(work, batch, rows=8)
    assert throughput.share(seconds=7.0, trained=99.0) is None


def test_gpus_are_found_by_what_torch_calls_them() -> None:
    names = {
        "NVIDIA A100-SXM4-80GB": "A100",
        "NVIDIA A100-PCIE-40GB": "A100 40GB",
        "NVIDIA H100 80GB HBM3": "H100",
        "NVIDIA H100 PCIe": "H100 PCIE",
        "NVIDIA H200": "H200",
        "Tesla T4": "T4",
        "NVIDIA GeForce RTX 4090": "RTX 4090",
        "4090": "RTX 4090",
        "rtx4090": None,
        "NVIDIA GeForce RTX 3090 Ti": None,
        "NVIDIA GeForce RTX 4090 Laptop GPU": None,
        "NVIDIA A10G": None,
        "NVIDIA H100 80GB HBM3 MIG 1g.10gb": None,
    }
    assert {name: getattr(find_gpu(name), "name", None) for name in names} == names
    assert all(find_gpu(gpu.name) is gpu for gpu in GPUS)


def test_peaks() -> None:
    assert peak_flops("H100", "bf16") == 989.4e12
    assert peak_flops("H100", "no") == 67e12
    assert peak_flops("T4", "bf16") is None
    assert peak_flops("H900", "bf16") is None


def test_a_processor_is_measured_once_and_quickly() -> None:
    started = time.process_time()
    first = peak_flops(torch.device("cpu"), "no")
    took = (time.process_time() - started) / torch.get_num_threads()
    assert first is not None and 1e9 < first < 1e14
    assert took < 1.0
    assert peak_flops("cpu", "no") == first
