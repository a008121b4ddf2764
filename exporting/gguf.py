"""GGUF, the file that llama.cpp runs: a Qwen3 decoder with its tokenizer."""

import json
from pathlib import Path
from typing import Any

import torch
import transformers

from lacuna.common.errors import InputError

GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
"""How `--pattern gpt2` cuts text into words, which llama.cpp calls gpt-2; it has none of our other patterns."""
_TYPES = {None: "F32", "f16": "F16", "q8_0": "Q8_0"}
_NORMAL, _CONTROL, _UNUSED = 1, 3, 5  # what llama.cpp calls the kinds of tokens


def write_gguf(*, model: Any, tokenizer: Any, folder: Path, quantize: str | None, **_: Any) -> Any:
    """Write model.gguf, and read it again with transformers, which restores float32 weights from it.

    Args:
        model: a Qwen3ForCausalLM.
        tokenizer: of `--pattern gpt2` without a normalizer.
        quantize: None, "f16" or "q8_0": how matrices are kept; vectors are always float32.

    Raises:
        InputError: a model or a tokenizer that llama.cpp would read differently, or `gguf` is missing.
    """
    try:
        import gguf
    except ImportError as error:
        raise InputError("--format gguf needs the package gguf: pip install -e '.[gguf]'") from error
    config = model.config
    if type(model).__name__ != "Qwen3ForCausalLM":
        raise InputError(
            f"--format gguf takes decoders of family qwen3, and this is a {type(model).__name__}; for other native "
            "models there is convert_hf_to_gguf.py of llama.cpp"
        )
    writer = gguf.GGUFWriter(folder / "model.gguf", "qwen3")
    kind = gguf.GGMLQuantizationType[_TYPES[quantize]]
    writer.add_name(folder.name)
    writer.add_file_type({"F32": 0, "F16": 1, "Q8_0": 7}[kind.name])
    _describe_model(writer, config)
    _describe_tokenizer(writer, tokenizer, vocab_size=config.vocab_size)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.QWEN3, config.num_hidden_layers)
    for name, tensor in model.state_dict().items():
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        values = tensor.detach().float().cpu().numpy()
        its_kind = kind if values.ndim > 1 else gguf.GGMLQuantizationType.F32
        if its_kind.name == "Q8_0" and values.shape[-1] % 32:
            raise InputError(f"--quantize q8_0 keeps 32 numbers together, and {name} has rows of {values.shape[-1]}")
        writer.add_tensor(
            str(names.get_name(name, try_suffixes=(".weight", ".bias"))),
            gguf.quants.quantize(values, its_kind),
            raw_dtype=its_kind,
        )
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    # transformers reads all of a Qwen3 from it but the size of heads.
    return transformers.AutoModelForCausalLM.from_pretrained(
        folder, gguf_file="model.gguf", head_dim=config.head_dim, dtype=torch.float32
    )


def _describe_model(writer: Any, config: Any) -> None:
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_key_length(config.head_dim)
    writer.add_value_length(config.head_dim)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])


def _describe_tokenizer(writer: Any, tokenizer: Any, *, vocab_size: int) -> None:
    words = _words(tokenizer)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_vocab_size(vocab_size)
    writer.add_token_list([*words["tokens"], *(f"[PAD{i}]" for i in range(len(words["tokens"]), vocab_size))])
    writer.add_token_types([*words["types"], *[_UNUSED] * (vocab_size - len(words["tokens"]))])
    writer.add_token_merges(words["merges"])
    for add, number in (
        (writer.add_bos_token_id, tokenizer.bos_token_id),
        (writer.add_eos_token_id, tokenizer.eos_token_id),
        (writer.add_unk_token_id, tokenizer.unk_token_id),
        (writer.add_pad_token_id, tokenizer.pad_token_id),
    ):
        if number is not None:
            add(number)
    writer.add_add_bos_token(tokenizer("a")["input_ids"][0] == tokenizer.bos_token_id)
    writer.add_add_eos_token(False)


def _words(tokenizer: Any) -> dict[str, list[Any]]:
    """Tokens by their ids, what each is, and merges; InputError where llama.cpp would cut text in other places."""
    state = json.loads(tokenizer.backend_tokenizer.to_str())
    if state["normalizer"] is not None:
        raise InputError(
            "--format gguf: the tokenizer normalizes text first, which llama.cpp does not; train one with "
            "--normalizer none"
        )
    splits = [part["pattern"].get("Regex") for part in _parts(state["pre_tokenizer"]) if part["type"] == "Split"]
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


def _parts(pre_tokenizer: dict[str, Any]) -> list[dict[str, Any]]:
    return pre_tokenizer.get("pretokenizers", [pre_tokenizer]) if pre_tokenizer else []
