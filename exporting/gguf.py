"""GGUF, the file that llama.cpp runs: a Qwen3 decoder or a ModernBERT encoder, with its tokenizer."""

import copy
import json
from pathlib import Path
from typing import Any

import torch
import transformers

from lacuna.common.errors import InputError

GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
"""How `--pattern gpt2` cuts text into words, which llama.cpp calls gpt-2; it has none of our other patterns."""
_TYPES = {None: "F32", "f16": "F16", "q8_0": "Q8_0", "q4_k": "F16"}  # the last is made of it
_SPACE = {
    "type": "Sequence",
    "normalizers": [{"type": "Strip", "strip_left": True, "strip_right": False}, {"type": "Prepend", "prepend": " "}],
}
"""How fine-tuned models begin every text; llama.cpp does not, so texts must begin with it themselves."""
_NORMAL, _CONTROL, _UNUSED = 1, 3, 5  # what llama.cpp calls the kinds of tokens


def write_gguf(*, model: Any, tokenizer: Any, folder: Path, quantize: str | None, **_: Any) -> Any:
    """Write model.gguf, and read it again, which restores float32 weights from it.

    Of a ModernBERT its encoder is written, for embeddings: llama.cpp has no place for the heads of transformers.
    `quantize`, None, "f16", "q8_0" or "q4_k" (llama.cpp's Q4_K_M), is how matrices are kept; vectors are float32.
    Raises InputError: a model or a tokenizer that llama.cpp would read differently, or a package is missing.
    """
    try:
        import gguf
    except ImportError as error:
        raise InputError("--format gguf needs the package gguf: pip install -e '.[gguf]'") from error
    is_encoder = type(model).__name__.startswith("ModernBert")
    if type(model).__name__ != "Qwen3ForCausalLM" and not is_encoder:
        raise InputError(
            "--format gguf takes decoders of family qwen3 and encoders of family modernbert, saved natively, and this "
            f"is a {type(model).__name__}; for other native models there is convert_hf_to_gguf.py of llama.cpp"
        )
    arch = gguf.MODEL_ARCH.MODERN_BERT if is_encoder else gguf.MODEL_ARCH.QWEN3
    writer = gguf.GGUFWriter(folder / "model.gguf", gguf.MODEL_ARCH_NAMES[arch])
    kind = gguf.GGMLQuantizationType[_TYPES[quantize]]
    writer.add_name(folder.name)
    writer.add_file_type({"F32": 0, "F16": 1, "Q8_0": 7}[kind.name])
    writer.add_context_length(model.config.max_position_embeddings)
    writer.add_embedding_length(model.config.hidden_size)
    writer.add_block_count(model.config.num_hidden_layers)
    writer.add_feed_forward_length(model.config.intermediate_size)
    writer.add_head_count(model.config.num_attention_heads)
    (_describe_encoder if is_encoder else _describe_decoder)(writer, model.config)
    _describe_tokenizer(writer, tokenizer, vocab_size=model.config.vocab_size)
    known = gguf.get_tensor_name_map(arch, model.config.num_hidden_layers)
    names = {}
    for name, tensor in (model.base_model if is_encoder else model).state_dict().items():
        if name != "lm_head.weight" or not model.config.tie_word_embeddings:
            names[name] = str(known.get_name(name, try_suffixes=(".weight", ".bias")))
            _add_tensor(writer, names[name], tensor, kind if tensor.ndim > 1 else gguf.GGMLQuantizationType.F32)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    if quantize == "q4_k":
        _to_four_bits(folder / "model.gguf")
    if not is_encoder:  # transformers reads all of a Qwen3 from it but the size of heads
        how: dict[str, Any] = {"head_dim": model.config.head_dim, "dtype": torch.float32}
        return transformers.AutoModelForCausalLM.from_pretrained(folder, gguf_file="model.gguf", **how)
    tensors = {each.name: each for each in gguf.GGUFReader(folder / "model.gguf").tensors}
    found = {name: tensors[its] for name, its in names.items()}
    read = {name: gguf.quants.dequantize(each.data, each.tensor_type) for name, each in found.items()}
    again = copy.deepcopy(model)
    again.base_model.load_state_dict({name: torch.from_numpy(values) for name, values in read.items()})
    return again


def _to_four_bits(path: Path) -> None:
    """Let llama.cpp write a file again; matrices whose rows are no multiples of 256 get five bits or more."""
    try:
        import llama_cpp
    except ImportError as error:
        raise InputError("--quantize q4_k is made by llama.cpp: pip install -e '.[llama]'") from error
    how, whole = llama_cpp.llama_model_quantize_default_params(), path.with_suffix(".f16")
    how.ftype = llama_cpp.LLAMA_FTYPE_MOSTLY_Q4_K_M
    path.rename(whole)
    if llama_cpp.llama_model_quantize(bytes(whole), bytes(path), how):
        raise InputError(f"--quantize q4_k: llama.cpp {llama_cpp.__version__} cannot write this model in four bits")
    whole.unlink()


def _add_tensor(writer: Any, name: str, tensor: torch.Tensor, kind: Any) -> None:
    from gguf import quants

    values = tensor.detach().float().cpu().numpy()
    if kind.name == "Q8_0" and values.shape[-1] % 32:
        raise InputError(f"--quantize q8_0 keeps 32 numbers together, and {name} has rows of {values.shape[-1]}")
    writer.add_tensor(name, quants.quantize(values, kind), raw_dtype=kind)


def _describe_decoder(writer: Any, config: Any) -> None:
    odd = {"attention_bias": config.attention_bias, "use_sliding_window": config.use_sliding_window}
    odd["is_causal"] = not getattr(config, "is_causal", True)
    odd["rope_parameters"] = config.rope_parameters.get("rope_type", "default") != "default"
    if fields := [name for name, is_odd in odd.items() if is_odd]:
        raise InputError(f"--format gguf: llama.cpp has no place for {fields[0]} of this Qwen3")
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_key_length(config.head_dim)
    writer.add_value_length(config.head_dim)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])


def _describe_encoder(writer: Any, config: Any) -> None:
    from gguf import PoolingType

    biases = [name for name in ("attention_bias", "mlp_bias", "norm_bias") if getattr(config, name)]
    if biases or config.hidden_activation != "gelu":
        raise InputError(
            f"--format gguf: llama.cpp has no place for {biases[0] if biases else config.hidden_activation} of this "
            "ModernBERT"
        )
    writer.add_causal_attention(False)
    writer.add_layer_norm_eps(config.norm_eps)
    writer.add_pooling_type(PoolingType.MEAN)  # as recipes/finetune_embeddings.py trains
    writer.add_rope_freq_base(config.rope_parameters["full_attention"]["rope_theta"])
    writer.add_rope_freq_base_swa(config.rope_parameters["sliding_attention"]["rope_theta"])
    writer.add_sliding_window(config.local_attention)
    writer.add_sliding_window_pattern([kind == "sliding_attention" for kind in config.layer_types])


def _describe_tokenizer(writer: Any, tokenizer: Any, *, vocab_size: int) -> None:
    words = _words(tokenizer)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_vocab_size(vocab_size)
    writer.add_token_list([*words["tokens"], *(f"[PAD{i}]" for i in range(len(words["tokens"]), vocab_size))])
    writer.add_token_types([*words["types"], *[_UNUSED] * (vocab_size - len(words["tokens"]))])
    writer.add_token_merges(words["merges"])
    begin, *_, end = tokenizer("a")["input_ids"]
    instead = {"bos": tokenizer.cls_token_id, "eos": tokenizer.sep_token_id}
    for name in ("bos", "eos", "mask", "unk", "pad"):  # a "sep" llama-cpp-python would put behind every prompt
        number = getattr(tokenizer, f"{name}_token_id")
        number = instead.get(name) if number is None else number
        if number is not None:
            getattr(writer, f"add_{name}_token_id")(number)
    writer.add_add_bos_token(begin in (tokenizer.bos_token_id, tokenizer.cls_token_id))
    writer.add_add_eos_token(end in (tokenizer.eos_token_id, tokenizer.sep_token_id))


def _words(tokenizer: Any) -> dict[str, list[Any]]:
    """Tokens by their ids, what each is, and merges; InputError where llama.cpp would cut text in other places."""
    state = json.loads(tokenizer.backend_tokenizer.to_str())
    if state["normalizer"] not in (None, _SPACE):
        raise InputError(
            "--format gguf: the tokenizer normalizes text first, which llama.cpp does not; train one with "
            "--normalizer none"
        )
    cutter = state["pre_tokenizer"] or {"pretokenizers": []}
    parts = cutter.get("pretokenizers", [cutter])
    splits = [part["pattern"].get("Regex") for part in parts if part["type"] == "Split"]
    if splits != [GPT2] or state["model"]["type"] != "BPE":
        raise InputError(
            "--format gguf: llama.cpp does not know how this tokenizer cuts text into words; train the model with one "
            "that it knows: python recipes/train_tokenizer.py --pattern gpt2"
        )
    special = {each["id"] for each in state["added_tokens"]}
    by_id = {number: token for token, number in tokenizer.get_vocab().items()}
    tokens = [by_id.get(number, f"[PAD{number}]") for number in range(max(by_id) + 1)]
    types = [_CONTROL if number in special else _NORMAL for number in range(len(tokens))]
    merges = [merge if isinstance(merge, str) else " ".join(merge) for merge in state["model"]["merges"]]
    return {"tokens": tokens, "types": types, "merges": merges}
