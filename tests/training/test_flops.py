"""Operations counted from modules, beside those that torch counts while a model runs."""

import time
from functools import partial
from typing import Any

import pytest
import torch
import transformers
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import FlopCounterMode

from lacuna import modeling
from lacuna.common.errors import InputError
from lacuna.training.devices import GPUS, find_gpu, require_gpu
from lacuna.training.flops import attentions, flops_per_token, peak_flops

FAMILIES = ["bert", "modernbert", "lacuna", "gpt2", "llama", "qwen3", "bart", "vaswani"]
AUTO = {
    "encoder": "AutoModelForMaskedLM",
    "decoder": "AutoModelForCausalLM",
    "encoder-decoder": "AutoModelForSeq2SeqLM",
}
FLASH = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu


def products(count: int) -> Any:
    """Operations of a fused kernel that computes so many products; torch's counter leaves the one for CPUs out."""

    def formula(*shapes: Any, out_val: Any = None, **_: Any) -> int:
        query, key = shapes[count // 5 : count // 5 + 2]  # the backward pass has the gradient before them
        batch, heads, length, size = query
        return 2 * count * batch * heads * length * key[2] * size

    return formula


def counted(model: Any, **batch: Any) -> int:
    mapping = {
        FLASH: products(2),
        torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward: products(5),
    }
    with FlopCounterMode(display=False, custom_mapping=mapping) as counter:
        output = model(**batch)
        (output.loss if output.loss is not None else output.logits.sum()).backward()
    return int(counter.get_total_flops())


def batch_for(model: Any, *, rows: int, length: int, decoded: int) -> dict[str, torch.Tensor]:
    """A padded batch in which 16 positions of each row have a label, or all of a decoder's."""
    ids = torch.randint(5, 90, (rows, length))
    mask = torch.ones_like(ids)
    mask[0, -3:] = 0
    batch = {"input_ids": ids, "attention_mask": mask, "labels": ids}
    if model.config.is_encoder_decoder:
        batch |= {"labels": ids[:, :decoded].contiguous(), "decoder_attention_mask": mask[:, -decoded:]}
    elif not getattr(model.config, "is_causal", True) or "MaskedLM" in type(model).__name__:
        batch["labels"] = torch.where(torch.arange(length) < 16, ids, -100)
    return batch


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("size", [{"hidden_size": 64, "num_attention_heads": 4}, {"hidden_size": 96, "head_dim": 32}])
@pytest.mark.parametrize("family", FAMILIES)
def test_our_families_compute_what_is_counted(family: str, size: dict[str, int], attention: str) -> None:
    config = modeling.LacunaConfig.from_family(
        family, "tiny", vocab_size=96, num_key_value_heads=None, sliding_window=8, **size
    )
    model = getattr(transformers, AUTO[config.shape]).from_config(config, attn_implementation=attention)
    share = 16 / 40 if config.shape == "encoder" else 1.0
    ours = flops_per_token(model, length=40, target_length=24, predicted_share=share)
    assert 3 * 40 * ours == pytest.approx(counted(model, **batch_for(model, rows=3, length=40, decoded=24)), rel=1e-4)


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


@pytest.mark.parametrize("name", NATIVE)
def test_native_models_compute_what_is_counted(name: str) -> None:
    kind, sizes = NATIVE[name]
    ids = {"bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1}
    model = kind(kind.config_class(vocab_size=96, max_position_embeddings=64, **sizes, **ids))
    batch = batch_for(model, rows=2, length=40, decoded=24)
    ours = flops_per_token(model, length=40, target_length=24, predicted_share=0.4)
    assert 2 * 40 * ours == pytest.approx(counted(model, **batch), rel=1e-3)


def test_the_sentence_head_counts_once_a_row() -> None:
    config = modeling.LacunaConfig.from_family("bert", "tiny", vocab_size=96, hidden_size=64)
    model = transformers.AutoModelForPreTraining.from_config(config)
    batch = {**batch_for(model, rows=2, length=40, decoded=0), "next_sentence_label": torch.tensor([0, 1])}
    batch["labels"] = torch.where(torch.arange(40) < 16, batch["input_ids"], -100)
    ours = flops_per_token(model, length=40, predicted_share=16 / 40)
    assert 2 * 40 * ours == pytest.approx(counted(model, **batch), rel=1e-4)


def test_gradient_checkpointing_computes_the_layers_once_more() -> None:
    config = modeling.LacunaConfig.from_family("llama", "tiny", vocab_size=96, hidden_size=64)
    model = transformers.AutoModelForCausalLM.from_config(config)
    without = flops_per_token(model, length=40)
    model._set_gradient_checkpointing(gradient_checkpointing_func=partial(checkpoint, use_reentrant=False))
    model.train()
    ours = flops_per_token(model, length=40)
    assert ours > 1.2 * without
    batch = batch_for(model, rows=2, length=40, decoded=0)
    # torch stops as soon as it has what it needs, here one product of a layer before its end
    assert 0.94 * 2 * 40 * ours < counted(model, **batch) <= 2 * 40 * ours


def test_weights_that_are_not_trained_have_no_gradient() -> None:
    config = modeling.LacunaConfig.from_family("llama", "tiny", vocab_size=96, hidden_size=64)
    model = transformers.AutoModelForCausalLM.from_config(config)
    for layer in model.model.decoder.layers:
        layer.mlp.requires_grad_(False)
    batch = batch_for(model, rows=2, length=40, decoded=0)
    assert 2 * 40 * flops_per_token(model, length=40) == pytest.approx(counted(model, **batch), rel=1e-4)


@pytest.mark.parametrize("name", ["gpt2", "modernbert"])
def test_pairs_that_kernels_leave_out(name: str) -> None:
    """Without a mask a causal kernel computes half; one that knows about windows computes what is in them."""
    config = modeling.LacunaConfig.from_family(name, "tiny", vocab_size=96, sliding_window=4)
    with torch.device("meta"):
        model = getattr(transformers, AUTO[config.shape]).from_config(config)
    layers = attentions(model)
    assert len(layers) == config.num_hidden_layers
    first, second = list(layers.values())[:2]
    assert first.pairs(queries=16, keys=16, masked=True, device_type="cuda") == 256
    if name == "gpt2":
        assert first.pairs(queries=16, keys=16, masked=False, device_type="cuda") == 16 * 17 / 2
        assert first.pairs(queries=16, keys=16, masked=False, device_type="cpu") == 256  # has dropout
        assert flops_per_token(model, length=16, masked=False, device_type="cuda") < flops_per_token(model, length=16)
    else:
        visible = sum(abs(i - j) <= 4 for i in range(16) for j in range(16))
        model.config._attn_implementation = "flex_attention"
        second = list(attentions(model).values())[1]
        assert second.window == 5
        assert second.pairs(queries=16, keys=16, masked=True, device_type="cpu") == visible


def test_gpus_are_found_by_what_torch_calls_them() -> None:
    names = {
        "NVIDIA A100-SXM4-80GB": "A100",
        "NVIDIA A100-PCIE-40GB": "A100 PCIE 40GB",
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
    with pytest.raises(InputError, match=r"--device H900 is not known; known are cpu and .*H100"):
        require_gpu("H900")


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
