"""Lacuna models against the native models of transformers that they claim to equal, with random weights."""

import copy
import dataclasses
import functools
import inspect
import random
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from examples import fast
from torch import Tensor
from transformers import (
    BartConfig,
    BertConfig,
    GPT2Config,
    LlamaConfig,
    ModernBertConfig,
    PreTrainedConfig,
    PreTrainedModel,
    Qwen3Config,
)

from lacuna import modeling
from lacuna.modeling import (
    FAMILIES,
    HEADS,
    ConversionError,
    LacunaConfig,
    LacunaForMaskedLM,
    LacunaForPreTraining,
    from_native,
    to_native,
)
from lacuna.modeling.conversion import CONVERSIONS, SHARED, WRITTEN

VOCABULARY, ROWS, LENGTH, DECODED = 97, 3, 23, 19
PAD, BOS, EOS = 0, 1, 2
TOKENS = {"vocab_size": VOCABULARY, "pad_token_id": PAD, "bos_token_id": BOS, "eos_token_id": EOS}
SMALL = {**TOKENS, "num_hidden_layers": 3, "initializer_range": 0.2}  # wide weights show what small ones hide
BERT = {**SMALL, "hidden_size": 36, "num_attention_heads": 3, "intermediate_size": 52}
MODERN = {**SMALL, "hidden_size": 40, "num_attention_heads": 2, "intermediate_size": 28}
MODERN |= {"cls_token_id": BOS, "sep_token_id": EOS}
GPT2 = {**TOKENS, "n_layer": 3, "n_embd": 36, "n_head": 3, "n_positions": 67, "initializer_range": 0.2}
LLAMA = {**SMALL, "hidden_size": 36, "num_attention_heads": 6, "intermediate_size": 44}
QWEN = {**LLAMA, "head_dim": 10}
BART = {**TOKENS, "d_model": 36, "encoder_layers": 2, "decoder_layers": 2, "max_position_embeddings": 71}
BART |= {"encoder_attention_heads": 3, "decoder_attention_heads": 3, "encoder_ffn_dim": 52, "decoder_ffn_dim": 52}
BART |= {"init_std": 0.2}
YARN = {"rope_type": "yarn", "rope_theta": 5000.0, "factor": 4.0, "original_max_position_embeddings": 32}
LLAMA3 = {"rope_type": "llama3", "rope_theta": 5000.0, "factor": 8.0, "original_max_position_embeddings": 16}
LLAMA3 |= {"low_freq_factor": 1.0, "high_freq_factor": 4.0}
CONFIGURATIONS: dict[str, PreTrainedConfig] = {
    "bert": BertConfig(**BERT),
    "bert-untied": BertConfig(**BERT, hidden_act="relu", tie_word_embeddings=False, max_position_embeddings=61),
    "bert-segments": BertConfig(**BERT, hidden_act="silu", type_vocab_size=3, layer_norm_eps=1e-3),
    "modernbert": ModernBertConfig(**MODERN, local_attention=8),
    "modernbert-all-global": ModernBertConfig(**MODERN, layer_types=["full_attention"] * 3, classifier_pooling="mean"),
    "modernbert-all-local": ModernBertConfig(**MODERN, layer_types=["sliding_attention"] * 3, local_attention=6),
    "modernbert-biases": ModernBertConfig(
        **MODERN,
        local_attention=10,
        layer_types=["sliding_attention", "full_attention", "sliding_attention"],
        attention_bias=True,
        mlp_bias=True,
        norm_bias=True,
        classifier_bias=True,
        decoder_bias=False,
        tie_word_embeddings=False,
        hidden_activation="silu",
        classifier_activation="relu",
    ),
    "gpt2": GPT2Config(**GPT2),
    "gpt2-untied": GPT2Config(**GPT2, n_inner=44, activation_function="relu", tie_word_embeddings=False),
    "gpt2-no-padding": GPT2Config(**(GPT2 | {"pad_token_id": None})),
    "gpt2-unscaled": GPT2Config(**(GPT2 | {"initializer_range": 0.1}), scale_attn_weights=False),
    "llama": LlamaConfig(**LLAMA, num_key_value_heads=2),
    "llama-tied": LlamaConfig(**LLAMA, num_key_value_heads=6, hidden_act="gelu", tie_word_embeddings=True),
    "llama-biases": LlamaConfig(
        **LLAMA, num_key_value_heads=1, head_dim=10, attention_bias=True, mlp_bias=True, rope_parameters=LLAMA3
    ),
    "qwen3": Qwen3Config(**QWEN, num_key_value_heads=2, tie_word_embeddings=True),
    "qwen3-one-key-head": Qwen3Config(**QWEN, num_key_value_heads=1, attention_bias=True),
    "qwen3-sliding": Qwen3Config(
        **QWEN, num_key_value_heads=6, use_sliding_window=True, sliding_window=5, max_window_layers=1
    ),
    "qwen3-yarn": Qwen3Config(**QWEN, num_key_value_heads=3, max_position_embeddings=128, rope_parameters=YARN),
    "bart": BartConfig(**BART),
    "bart-uneven": BartConfig(**(BART | {"encoder_layers": 1}), scale_embedding=True, activation_function="relu"),
    "bart-untied": BartConfig(**(BART | {"decoder_layers": 1}), tie_word_embeddings=False),
}
LANGUAGE_MODELS = {
    "bert": "BertForMaskedLM",
    "modernbert": "ModernBertForMaskedLM",
    "gpt2": "GPT2LMHeadModel",
    "llama": "LlamaForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
    "bart": "BartForConditionalGeneration",
}
CASES = [(name, LANGUAGE_MODELS[config.model_type]) for name, config in CONFIGURATIONS.items()]
CASES += [
    (family, head.native)
    for family, conversion in CONVERSIONS.items()
    for head in conversion.heads.values()
    if head.native not in LANGUAGE_MODELS.values()
]
CASES += [
    ("bert-untied", "BertForPreTraining"),
    ("bart-untied", "BartModel"),
    ("bart-untied", "BartForQuestionAnswering"),
]
CASES += [("gpt2-no-padding", "GPT2ForQuestionAnswering")]
CASES += [("modernbert-all-global", f"ModernBertFor{task}") for task in ("SequenceClassification", "MultipleChoice")]


def build_native(config: str | PreTrainedConfig, class_name: str) -> PreTrainedModel:
    torch.manual_seed(7)
    config = CONFIGURATIONS[config] if isinstance(config, str) else config
    native = getattr(transformers, class_name)(copy.deepcopy(config)).eval()
    with torch.no_grad():  # biases and norms start at 0 and 1, where a swapped pair would not be noticed
        for tensor in native.parameters():
            if tensor.dim() == 1:
                tensor.add_(torch.randn_like(tensor) * 0.2)
        if hasattr(native, "final_logits_bias"):
            native.final_logits_bias.normal_(std=0.2)
    return native


def make_mask(length: int) -> Tensor:
    """Padded on the right, rows of three lengths."""
    lengths = torch.tensor([length, length - 6, 4])
    return (torch.arange(length) < lengths[:, None]).long()


def make_inputs(native: PreTrainedModel) -> dict[str, Tensor]:
    name, generator = type(native).__name__, torch.Generator().manual_seed(3)
    mask = make_mask(LENGTH)
    ids = torch.randint(5, VOCABULARY, (ROWS, LENGTH), generator=generator) * mask  # PAD is 0
    ids[torch.arange(ROWS), mask.sum(1) - 1] = EOS  # BART classifies at this token
    inputs = {"input_ids": ids, "attention_mask": mask}
    if native.config.model_type == "bert":
        inputs["token_type_ids"] = torch.arange(LENGTH).expand(ROWS, -1) % native.config.type_vocab_size
    if name in ("BartModel", "BartForQuestionAnswering"):
        mask = make_mask(DECODED)
        ids = torch.randint(5, VOCABULARY, (ROWS, DECODED), generator=generator)
        inputs |= {"decoder_input_ids": ids * mask, "decoder_attention_mask": mask}
    if "MultipleChoice" in name:
        inputs = {key: torch.stack([value, value.roll(1, 0)], dim=1) for key, value in inputs.items()}
    return inputs


def make_labels(native: PreTrainedModel, inputs: dict[str, Tensor]) -> dict[str, Tensor]:
    name = type(native).__name__
    tokens = inputs["input_ids"].masked_fill(inputs["attention_mask"] == 0, -100)
    classes = torch.tensor([0, 1, 1])
    if name == "BartForConditionalGeneration":
        return {"labels": tokens[:, :DECODED].contiguous()}
    if "LM" in name:
        return {"labels": tokens}
    if "PreTraining" in name:
        return {"labels": tokens, "next_sentence_label": classes}
    if "Token" in name:
        return {"labels": torch.where(tokens == -100, tokens, tokens % 2)}
    if "Question" in name:
        return {"start_positions": torch.tensor([1, 4, 2]), "end_positions": torch.tensor([3, 9, 2])}
    return {"labels": classes} if "For" in name else {}


def flat(outputs: Any) -> dict[str, Tensor]:
    """Every tensor of an output by name and place, without the loss and the cache."""
    tensors: dict[str, Tensor] = {}
    for key, value in outputs.items():
        if "loss" not in key and key != "past_key_values":
            parts = value if isinstance(value, tuple) else (value,)
            tensors |= {f"{key}.{place}": part for place, part in enumerate(parts)}
    return tensors


def real(tensor: Tensor) -> Tensor:
    """The entries of a [B, T, ...] tensor that belong to real tokens; any other tensor as it is."""
    if tensor.shape[:2] in ((ROWS, LENGTH), (ROWS, DECODED)):
        return tensor[make_mask(tensor.shape[1]).bool()]
    return tensor


def assert_equal_outputs(mine: Any, theirs: Any, *, names: set[str] = frozenset()) -> None:  # type: ignore[assignment]
    mine, theirs = flat(mine), flat(theirs)
    assert theirs and set(theirs) == set(mine)
    assert names <= {key.split(".")[0] for key in theirs}
    for key, tensor in theirs.items():
        torch.testing.assert_close(real(mine[key]), real(tensor), atol=1e-5, rtol=1e-5, msg=lambda m, k=key: k + m)


def loss_of(outputs: Any) -> Tensor:
    """The loss; of a model without labels, any number that all of the last hidden states decide."""
    if outputs.get("loss") is not None:
        return outputs.loss
    states = real(outputs.last_hidden_state)
    weights = torch.randn(states.shape, generator=torch.Generator().manual_seed(5))
    return (states * weights).mean()


def dead_tensors(native: PreTrainedModel) -> set[str]:
    """Tensors of an untied native model that nothing reads."""
    names = (
        () if native.config.tie_word_embeddings else ("cls.predictions.bias", "shared.weight", "model.shared.weight")
    )
    return set(names) & set(native.state_dict())


def assert_returns_as_it_came(native: PreTrainedModel, back: PreTrainedModel) -> None:
    """Bit for bit, in memory as a model of its own; what an entry of the table calls lost is all that differs."""
    assert type(back) is type(native)
    theirs, mine = native.state_dict(), back.state_dict()
    assert list(theirs) == list(mine)
    assert [key for key in theirs if not torch.equal(theirs[key], mine[key])] == []
    assert all(tensor.is_contiguous() for tensor in mine.values())

    before, after = native.config.to_dict(), back.config.to_dict()
    changed = {key for key in {*before, *after} if before.get(key, "none") != after.get(key, "none")}
    assert changed <= set(CONVERSIONS[native.config.model_type].lost) | {"_name_or_path"}
    if native.can_generate():
        assert back.generation_config.to_dict() == native.generation_config.to_dict()


LIKE_QWEN3 = [case for case in CASES if case[0] == "llama" and case[1] != "LlamaForCausalLM"]
"""Heads that the table describes once for both."""


@pytest.mark.parametrize("case", fast(CASES, *(case for case in CASES if case not in LIKE_QWEN3)), ids="-".join)
def test_equals_native_and_returns_as_it_came(case: tuple[str, str]) -> None:
    name, class_name = case
    native = build_native(name, class_name)
    model = from_native(native)
    assert_returns_as_it_came(native, to_native(model))
    inputs = make_inputs(native)
    inputs |= make_labels(native, inputs)

    expected = native(**inputs, output_hidden_states=True)
    outputs = model(**inputs, output_hidden_states=True)

    stacks = ("encoder_", "decoder_") if native.config.is_encoder_decoder else ("",)
    assert_equal_outputs(outputs, expected, names={f"{stack}hidden_states" for stack in stacks})
    torch.testing.assert_close(loss_of(outputs), loss_of(expected), atol=1e-5, rtol=1e-5)

    loss_of(expected).backward()
    loss_of(outputs).backward()
    with torch.no_grad():  # gradients take the place of weights and go the way that weights go
        for parameter in model.parameters():
            parameter.copy_(torch.zeros_like(parameter) if parameter.grad is None else parameter.grad)
    gradients = to_native(model, native.config.model_type).state_dict()
    compared = dict(native.named_parameters(remove_duplicate=False))
    assert len(compared) > 15
    for key in set(compared) - dead_tensors(native):
        gradient = compared[key].grad
        theirs = torch.zeros_like(compared[key]) if gradient is None else gradient
        torch.testing.assert_close(gradients[key], theirs, atol=1e-4, rtol=1e-4, msg=lambda m, k=key: k + m)


def random_config(family: str, seed: int) -> PreTrainedConfig:
    draw = random.Random(f"{family} {seed}")
    heads, groups, layers = draw.choice([2, 3, 4]), draw.choice([1, 2, 3]), draw.choice([1, 2, 4])
    width = heads * draw.choice([4, 6, 10]) * (groups if family in ("llama", "qwen3") else 1)
    act, inner, tied = draw.choice(["gelu", "relu", "silu"]), draw.randrange(5, 60), draw.random() < 0.5
    flip = lambda: draw.random() < 0.5  # noqa: E731
    pattern = [draw.choice(["full_attention", "sliding_attention"]) for _ in range(layers)]
    common = {**TOKENS, "tie_word_embeddings": tied}
    sizes = {"hidden_size": width, "num_hidden_layers": layers, "intermediate_size": inner, "initializer_range": 0.2}
    if family == "bert":
        return BertConfig(**common, **sizes, num_attention_heads=heads, hidden_act=act)
    if family == "modernbert":
        biases = {f"{name}_bias": flip() for name in ("norm", "attention", "mlp", "decoder", "classifier")}
        window = {"layer_types": pattern, "local_attention": draw.choice([2, 6, 12])}
        tokens = {"cls_token_id": BOS, "sep_token_id": EOS, "hidden_activation": act}
        return ModernBertConfig(**common, **sizes, **biases, **window, **tokens, num_attention_heads=heads)
    if family == "gpt2":
        gpt2 = {"n_embd": width, "n_layer": layers, "n_head": heads, "n_inner": draw.choice([None, inner])}
        return GPT2Config(**common, **gpt2, activation_function=act, initializer_range=0.2)
    if family == "bart":
        stacks = {"encoder_layers": layers, "decoder_layers": draw.choice([1, 2, 3]), "scale_embedding": flip()}
        stacks |= {f"{stack}_attention_heads": heads for stack in ("encoder", "decoder")}
        stacks |= {f"{stack}_ffn_dim": inner for stack in ("encoder", "decoder")}
        return BartConfig(**common, **stacks, d_model=width, activation_function=act, init_std=0.2)
    grouped = {"num_attention_heads": heads * groups, "num_key_value_heads": heads, "attention_bias": flip()}
    grouped |= {"hidden_act": act, "head_dim": draw.choice([4, 6, 14])}
    if family == "llama":
        return LlamaConfig(**common, **sizes, **grouped, mlp_bias=flip())
    window = {"use_sliding_window": True, "sliding_window": draw.randrange(1, 9), "layer_types": pattern}
    return Qwen3Config(**common, **sizes, **grouped, **window)


@pytest.mark.parametrize("seed", fast(range(5), 0, 1))
@pytest.mark.parametrize("family", CONVERSIONS)
def test_random_shapes_equal_native(family: str, seed: int) -> None:
    native = build_native(random_config(family, seed), LANGUAGE_MODELS[family])
    model = from_native(native)
    inputs = make_inputs(native)
    with torch.no_grad():
        assert_equal_outputs(model(**inputs), native(**inputs), names={"logits"})
    assert_returns_as_it_came(native, to_native(model))


WRITERS = [name for name in CONFIGURATIONS if name.startswith(("gpt2", "llama", "qwen3", "bart"))]


@pytest.mark.parametrize("name", fast(WRITERS, "gpt2", "llama", "qwen3", "bart"))
def test_greedy_generation_equals_native(name: str) -> None:
    native = build_native(name, LANGUAGE_MODELS[CONFIGURATIONS[name].model_type])
    if native.config.is_encoder_decoder:  # a random one says one word for ever unless positions speak up
        with torch.no_grad():
            native.model.decoder.embed_positions.weight.mul_(6)
            for layer in native.model.decoder.layers:
                layer.encoder_attn_layer_norm.weight.mul_(3)
    model = from_native(native)
    mask = make_mask(11)
    mask = mask if native.config.is_encoder_decoder else mask.flip(1)  # decoders are padded on the left
    prompts = torch.randint(5, VOCABULARY, mask.shape, generator=torch.Generator().manual_seed(5)) * mask
    arguments = {"attention_mask": mask, "max_new_tokens": 32, "min_new_tokens": 32, "do_sample": False}
    theirs = native.generate(prompts, **arguments)
    assert theirs.shape[1] == 32 + (1 if native.config.is_encoder_decoder else 11)
    assert len(theirs.unique()) > 5
    assert torch.equal(model.generate(prompts, **arguments), theirs)
    assert torch.equal(to_native(model).generate(prompts, **arguments), theirs)


@pytest.mark.parametrize("name", [*CONVERSIONS, "gpt2-unscaled", "qwen3-sliding", "bart-uneven"])
def test_attention_weights_equal_native(name: str) -> None:
    """By "eager"; "sdpa", which is what both begin with, has none, and equals above."""
    native = build_native(name, LANGUAGE_MODELS[CONFIGURATIONS[name].model_type])
    model = from_native(native)
    assert native.config._attn_implementation == "sdpa"
    native.set_attn_implementation("eager")
    assert model.config._attn_implementation == "sdpa"
    model.set_attn_implementation("eager")
    inputs = make_inputs(native)
    expected, outputs = (flat(each(**inputs, output_attentions=True)) for each in (native, model))
    names = [key for key in expected if "attentions" in key]
    config = native.config
    if config.is_encoder_decoder:
        assert len(names) == config.encoder_layers + 2 * config.decoder_layers
    else:
        assert len(names) == 3
    for key in names:
        for row, count in enumerate(make_mask(LENGTH).sum(1)):  # what padding looks at is anybody's choice
            seen = (row, slice(None), slice(count), slice(count))
            torch.testing.assert_close(outputs[key][seen], expected[key][seen], atol=1e-5, rtol=1e-5)


# ------------------------------------------------------------------------------------------------ files, dtypes, modes


@pytest.mark.parametrize("family", fast(CONVERSIONS, "bert", "modernbert", "qwen3", "bart"))
def test_a_folder_of_a_native_model_becomes_a_folder_of_ours(family: str, tmp_path: Path) -> None:
    build_native(family, LANGUAGE_MODELS[family]).save_pretrained(tmp_path / "native")
    native = getattr(transformers, LANGUAGE_MODELS[family]).from_pretrained(tmp_path / "native")
    model = from_native(native)
    model.save_pretrained(tmp_path / "ours")
    loaded = type(model).from_pretrained(tmp_path / "ours").eval()
    to_native(loaded).save_pretrained(tmp_path / "back")
    back = type(native).from_pretrained(tmp_path / "back")
    inputs = make_inputs(native)
    with torch.no_grad():
        expected = native(**inputs).logits
        assert torch.equal(loaded(**inputs).logits, model(**inputs).logits)
        assert torch.equal(back(**inputs).logits, expected)


@pytest.mark.parametrize("name", ["bert-untied", "bart-untied"])
def test_a_saved_model_gives_dead_tensors_the_live_numbers(name: str, tmp_path: Path) -> None:
    native = build_native(name, LANGUAGE_MODELS[CONFIGURATIONS[name].model_type])
    model = from_native(native)
    model.save_pretrained(tmp_path)
    theirs, mine = native.state_dict(), to_native(type(model).from_pretrained(tmp_path)).state_dict()
    changed = {key for key in theirs if not torch.equal(theirs[key], mine[key])}
    assert changed == dead_tensors(native) and len(changed) == 1
    alive = {"bert-untied": "cls.predictions.decoder.bias", "bart-untied": "model.encoder.embed_tokens.weight"}[name]
    assert torch.equal(mine[changed.pop()], theirs[alive])


@pytest.mark.parametrize("family", CONVERSIONS)
def test_dtypes_and_modes_stay(family: str) -> None:
    native = build_native(family, LANGUAGE_MODELS[family])
    for name, parameter in native.named_parameters():
        if "norm" not in name.lower() and "ln_" not in name:  # norms stay in float32, as some trainers want it
            parameter.data = parameter.data.to(torch.bfloat16)
    native.train()
    model = from_native(native)
    back = to_native(model)
    assert model.training and back.training
    assert {parameter.dtype for parameter in model.parameters()} == {torch.bfloat16, torch.float32}
    theirs, mine = native.state_dict(), back.state_dict()
    assert all(theirs[key].dtype == mine[key].dtype and torch.equal(theirs[key], mine[key]) for key in theirs)
    frequencies = [tensor for name, tensor in back.named_buffers() if "inv_freq" in name]
    assert all(tensor.dtype == torch.float32 for tensor in frequencies)
    assert bool(frequencies) == (family in ("modernbert", "llama", "qwen3"))


def test_how_bart_ends_a_text_follows_the_generation_configuration() -> None:
    native = build_native(BartConfig(**BART, forced_eos_token_id=5), "BartForConditionalGeneration")
    model = from_native(native)
    assert to_native(model).config.forced_eos_token_id == model.generation_config.forced_eos_token_id == 5
    model = language_model(LacunaConfig.from_family("bart", vocab_size=64, hidden_size=32, num_hidden_layers=1))
    native = to_native(model)
    assert native.config.forced_eos_token_id is None and native.generation_config.forced_eos_token_id is None


@pytest.mark.parametrize("name", ["bert", "gpt2", "bart"])
def test_tying_stays_and_copies_are_independent(name: str) -> None:
    native = build_native(name, LANGUAGE_MODELS[name])
    model = from_native(native)
    assert model.lm_head.weight is model.get_input_embeddings().weight
    back = to_native(model)
    assert back.get_output_embeddings().weight is back.get_input_embeddings().weight
    before = native.get_input_embeddings().weight.clone()
    with torch.no_grad():
        model.get_input_embeddings().weight.zero_()
    assert torch.equal(native.get_input_embeddings().weight, before)
    assert torch.equal(back.get_input_embeddings().weight, before)


# ---------------------------------------------------------------------------------------------------------- the table


@pytest.mark.parametrize("family", CONVERSIONS)
def test_every_field_of_ours_is_in_every_entry(family: str) -> None:
    names = {field.name for field in dataclasses.fields(LacunaConfig)}
    assert set(CONVERSIONS[family].fields) == names - {*SHARED, *WRITTEN}
    assert {*SHARED, *WRITTEN} == {field.name for field in dataclasses.fields(PreTrainedConfig)}


@pytest.mark.parametrize("family", CONVERSIONS)
def test_what_may_be_lost_exists(family: str) -> None:
    native_class = type(CONFIGURATIONS[family])
    names = {field.name for field in dataclasses.fields(native_class)}
    assert {*CONVERSIONS[family].lost, *CONVERSIONS[family].generation} <= names


def test_a_field_that_the_table_forgets_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    model = LacunaForMaskedLM(LacunaConfig.from_family("bert", vocab_size=64, num_hidden_layers=1, qk_norm=True))
    monkeypatch.delitem(CONVERSIONS["bert"].fields, "qk_norm")
    with pytest.raises(ConversionError, match="bert cannot express qk_norm=True"):
        to_native(model, "bert")


@functools.cache
def names_of_transformers() -> list[str]:
    return dir(transformers)


def native_classes(prefix: str) -> Iterator[str]:
    for name in names_of_transformers():
        if re.fullmatch(rf"{prefix}(For[A-Z]\w+|Model|LMHeadModel|DoubleHeadsModel)", name):
            value = getattr(transformers, name)
            if inspect.isclass(value) and issubclass(value, PreTrainedModel):
                yield name


@pytest.mark.parametrize(
    ("family", "prefix", "theirs_alone", "ours_alone"),
    [
        ("bert", "Bert", {"BertLMHeadModel", "BertForNextSentencePrediction"}, set()),
        ("modernbert", "ModernBert", set(), {"PreTraining"}),
        ("gpt2", "GPT2", {"GPT2DoubleHeadsModel"}, {"MultipleChoice"}),
        ("llama", "Llama", set(), {"MultipleChoice"}),
        ("qwen3", "Qwen3", set(), {"MultipleChoice"}),
        ("bart", "Bart", {"BartForCausalLM"}, set()),
    ],
)
def test_every_head_that_both_sides_have(family: str, prefix: str, theirs_alone: set, ours_alone: set) -> None:
    heads = CONVERSIONS[family].heads
    assert {head.native for head in heads.values()} == set(native_classes(prefix)) - theirs_alone
    shape = CONVERSIONS[family].fields["shape"].from_native(None)
    assert set(heads) == set(HEADS[shape].values()) - {f"LacunaFor{name}" for name in ours_alone}


def language_model(config: LacunaConfig) -> PreTrainedModel:
    classes = {"encoder": "MaskedLM", "decoder": "CausalLM", "encoder-decoder": "ConditionalGeneration"}
    return getattr(modeling, f"LacunaFor{classes[config.shape]}")(config).eval()


@pytest.mark.parametrize("family", CONVERSIONS)
def test_presets_leave_as_their_family(family: str) -> None:
    model = language_model(LacunaConfig.from_family(family, vocab_size=64, num_hidden_layers=3))
    native = to_native(model)
    assert native.config.model_type == family
    ids = torch.randint(5, 64, (2, 140))  # longer than the window of modernbert
    with torch.no_grad():
        torch.testing.assert_close(native(ids).logits, model(ids).logits, atol=1e-5, rtol=1e-5)
    again = from_native(native).config
    kept = [name for name, field in CONVERSIONS[family].fields.items() if field.unread is None]
    assert {name: getattr(again, name) for name in kept} == {name: getattr(model.config, name) for name in kept}
    assert again.initialization == FAMILIES[family]["parts"]["initialization"]


OTHER_VALUES = {
    "initialization": "xavier_uniform",
    "embedding_dropout": 0.3,
    "hidden_dropout": 0.3,
    "activation_dropout": 0.3,
    "classifier_dropout": 0.3,
    "sliding_window": 5,
    "prediction_bias": True,
    "prediction_act": "relu",
    "use_cache": False,
    "cls_token_id": 7,
    "sep_token_id": 8,
    "decoder_start_token_id": 9,
}


@pytest.mark.parametrize("family", CONVERSIONS)
def test_fields_that_no_output_depends_on_are_no_obstacle(family: str) -> None:
    names = [name for name, field in CONVERSIONS[family].fields.items() if field.unread is not None]
    other_values = OTHER_VALUES | {"freeze_padding": not LacunaConfig.from_family(family).freeze_padding}
    others = {name: other_values[name] for name in names}
    assert len(others) > 3
    model = language_model(LacunaConfig.from_family(family, vocab_size=64, num_hidden_layers=2, **others))
    assert all(getattr(model.config, name) == value for name, value in others.items())
    ids = torch.randint(5, 64, (2, 12))
    decoder_ids = {"decoder_input_ids": ids[:, :5]} if model.config.is_encoder_decoder else {}
    with torch.no_grad():
        expected = model(ids, **decoder_ids).logits
        torch.testing.assert_close(to_native(model)(ids, **decoder_ids).logits, expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("family", ["modernbert", "qwen3"])
def test_a_window_that_no_layer_uses_is_no_obstacle(family: str) -> None:
    full = ["full_attention"] * 2
    for window in (None, 5):
        fields = {"num_hidden_layers": 2, "layer_types": full, "sliding_window": window}
        model = language_model(LacunaConfig.from_family(family, vocab_size=64, **fields))
        assert to_native(model).config.layer_types == full


# ------------------------------------------------------------------------------------------------------------ refusals

PATTERN = ["sliding_attention", "full_attention"]
REFUSED = [
    ("bert", {"qk_norm": True}, "qk_norm=True"),
    ("bert", {"type_vocab_size": 0}, "type_vocab_size=0"),
    ("bert", {"attention_score": "dot_product"}, "attention_score='dot_product'"),
    ("bert", {"position_type": "sinusoidal"}, "position_type='sinusoidal'"),
    ("bert", {"num_key_value_heads": 2}, "num_key_value_heads=2"),
    ("bert", {"prediction_act": "relu"}, "prediction_act='relu'"),
    ("bert", {"layer_types": PATTERN, "sliding_window": 4}, "layer_types="),
    ("modernbert", {"question_aware": True}, "question_aware=True"),
    ("modernbert", {"type_vocab_size": 2}, "type_vocab_size=2"),
    ("modernbert", {"classifier_pooling": "last"}, "classifier_pooling='last'"),
    ("modernbert", {"classifier_transform": "none"}, "classifier_transform='none'"),
    ("modernbert", {"head_dim": 10}, "head_dim=10"),
    ("gpt2", {"lm_head_bias": True}, "lm_head_bias=True"),
    ("gpt2", {"norm_bias": False}, "norm_bias=False"),
    ("gpt2", {"position_offset": 2}, "position_offset=2"),
    ("llama", {"attention_score": "dot_product"}, "attention_score='dot_product'"),
    ("llama", {"qk_norm": True}, "qk_norm=True"),
    ("llama", {"scale_embedding": True}, "scale_embedding=True"),
    ("llama", {"num_attention_heads": 5, "num_key_value_heads": 5, "head_dim": 8}, r"[\s\S]*attention heads \(5\)"),
    ("qwen3", {"mlp_bias": True}, "mlp_bias=True"),
    ("qwen3", {"norm_placement": "post"}, "norm_placement='post'"),
    ("bart", {"norm_eps": 1e-6}, "norm_eps=1e-06"),
    ("bart", {"position_offset": 0}, "position_offset=0"),
    ("bart", {"type_vocab_size": 2}, "type_vocab_size=2"),
    ("bart", {"classifier_transform": "none"}, "classifier_transform='none'"),
]


@pytest.mark.parametrize(("family", "overrides", "named"), REFUSED)
def test_what_a_family_lacks_is_refused_by_name(family: str, overrides: dict, named: str) -> None:
    with torch.device("meta"):
        model = language_model(LacunaConfig.from_family(family, vocab_size=64, num_hidden_layers=2, **overrides))
    with pytest.raises(ConversionError, match=f"{family} cannot express .*{named}") as caught:
        to_native(model, family)
    assert caught.value.exit_code == 2


def test_no_family_is_found_for_what_none_has() -> None:
    """The error tells of the family that differs in the fewest fields."""
    for config, nearest in (
        (LacunaConfig.from_family("vaswani", vocab_size=64), "bart cannot express norm_eps=1e-06"),
        (LacunaConfig.from_family("lacuna", vocab_size=64), "modernbert cannot express qk_norm=True, only False"),
        (
            LacunaConfig.from_family("llama", vocab_size=64, num_hidden_layers=1, scale_embedding=True),
            "llama cannot express scale_embedding=True, only False",
        ),
    ):
        with pytest.raises(ConversionError, match=f"no native family can express this configuration; {nearest}"):
            to_native(language_model(config))
    with pytest.raises(ConversionError, match="did you mean 'llama'"):
        to_native(language_model(LacunaConfig.from_family("llama", vocab_size=64, num_hidden_layers=1)), "lama")


def test_rotary_angles_of_two_kinds_are_refused_where_there_is_one() -> None:
    angles = {
        kind: {"rope_type": "default", "rope_theta": 10.0**power} for power, kind in enumerate(sorted(PATTERN), 3)
    }
    config = LacunaConfig.from_family(
        "qwen3", vocab_size=64, num_hidden_layers=2, layer_types=PATTERN, sliding_window=4, rope_parameters=angles
    )
    with pytest.raises(ConversionError, match="qwen3 cannot express rope_parameters="):
        to_native(language_model(config))


@pytest.mark.parametrize(
    ("class_name", "config", "named"),
    [
        ("BertModel", BertConfig(**BERT, is_decoder=True), "is_decoder=True"),
        ("BertModel", BertConfig(**(BERT | {"pad_token_id": -1})), "pad_token_id=-1"),
        ("ModernBertModel", ModernBertConfig(**MODERN, sparse_prediction=True), "sparse_prediction=True"),
        ("GPT2Model", GPT2Config(**GPT2, add_cross_attention=True), "add_cross_attention=True"),
        ("GPT2Model", GPT2Config(**GPT2, reorder_and_upcast_attn=True), "reorder_and_upcast_attn=True"),
        (
            "GPT2Model",
            GPT2Config(**GPT2, scale_attn_by_inverse_layer_idx=True),
            "scale_attn_by_inverse_layer_idx=True",
        ),
        ("BartModel", BartConfig(**(BART | {"decoder_ffn_dim": 40})), "decoder_ffn_dim=40"),
        ("BartModel", BartConfig(**(BART | {"decoder_attention_heads": 2})), "decoder_attention_heads=2"),
        ("BartModel", BartConfig(**BART, encoder_layerdrop=0.1), "encoder_layerdrop=0.1"),
        ("BartModel", BartConfig(**BART, decoder_layerdrop=0.1), "decoder_layerdrop=0.1"),
    ],
)
def test_what_we_lack_is_refused_by_name(class_name: str, config: PreTrainedConfig, named: str) -> None:
    with pytest.raises(ConversionError, match=f"a Lacuna model cannot express .*{named}"):
        from_native(getattr(transformers, class_name)(copy.deepcopy(config)))


def test_layers_that_differ_are_refused() -> None:
    native = build_native("llama", "LlamaModel")
    native.config.per_layer_config = {1: {"intermediate_size": 20}}
    with pytest.raises(ConversionError, match="a Lacuna model cannot express per_layer_config of llama"):
        from_native(native)


def test_heads_and_models_without_a_counterpart_are_refused() -> None:
    model = LacunaForPreTraining(LacunaConfig.from_family("modernbert", vocab_size=64, num_hidden_layers=1))
    with pytest.raises(ConversionError, match="modernbert has no head like LacunaForPreTraining"):
        to_native(model)
    for name, class_name in (
        ("bert", "BertLMHeadModel"),
        ("gpt2", "GPT2DoubleHeadsModel"),
        ("bart", "BartForCausalLM"),
    ):
        with pytest.raises(ConversionError, match=f"{class_name} has no counterpart"):
            from_native(build_native(name, class_name))
    with pytest.raises(ConversionError, match="model_type='gpt_neo'"):
        from_native(
            transformers.GPTNeoModel(
                transformers.GPTNeoConfig(
                    vocab_size=9, hidden_size=8, num_layers=1, num_heads=2, attention_types=[[["global"], 1]]
                )
            )
        )


def test_labels_that_a_native_head_cannot_have_are_refused() -> None:
    config = LacunaConfig.from_family("bert", vocab_size=64, num_hidden_layers=1, num_labels=3)
    with pytest.raises(ConversionError, match="BertForQuestionAnswering cannot express num_labels=3, only 2"):
        to_native(modeling.LacunaForQuestionAnswering(config))
    with pytest.raises(ConversionError, match=r"qa_outputs\.\w+ has the shape \(3"):
        from_native(build_native(BertConfig(**BERT, num_labels=3), "BertForQuestionAnswering"))


def test_weights_that_should_be_tied_and_differ_are_refused() -> None:
    native = build_native("gpt2", "GPT2LMHeadModel")
    native.lm_head.weight = torch.nn.Parameter(native.lm_head.weight + 1)
    with pytest.raises(ConversionError, match="tie_word_embeddings=True"):
        from_native(native)


def test_tensors_that_no_row_names_are_refused() -> None:
    native = build_native("bert", "BertModel")
    native.register_parameter("extra", torch.nn.Parameter(torch.zeros(2)))
    with pytest.raises(ConversionError, match="tensors without a counterpart: extra"):
        from_native(native)
