"""Weights and configurations to and from native transformers models, for the families that a Lacuna model can equal.

    native = to_native(model)              # a BertForMaskedLM, GPT2LMHeadModel, BartForConditionalGeneration, ...
    model = from_native(native)            # the Lacuna model with the same weights

The families are in native_families.py. What a side cannot express is found by going there and back: a field that
returns changed is refused by its name, so that one which the table forgets is refused too and never lost. Both files
stay at home: nothing that travels in checkpoints imports them.

Both sides compute the same, with these exceptions:

- BERT pools the token at position 0, and so does ModernBERT for `"cls"`; we pool the first token that is not masked.
  GPT-2, Llama and Qwen3 pool the last token that is not `pad_token_id`, BART the last `eos_token_id` of its decoder;
  we pool the last token that is not masked. All agree on rows padded on the right, for BART on such as end in its eos.
- GPT-2 adds the embeddings of `token_type_ids` to those of the tokens; we ignore them.
- BART's `final_logits_bias` is a constant, and our `lm_head.bias` is learned.
- While training, ModernBERT also drops from the output of attention, and BART from the input of its classifier.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
from collections.abc import Iterator
from typing import Any

import torch
import transformers
from huggingface_hub.errors import StrictDataclassError
from torch import Tensor
from transformers import PreTrainedConfig, PreTrainedModel

from . import modeling_lacuna
from .checks_lacuna import name_nearest
from .configuration_lacuna import ConfigurationError, LacunaConfig
from .modeling_lacuna import LacunaPreTrainedModel
from .native_families import CONVERSIONS, Conversion, ConversionError, Head, WeightPair

# What every configuration of transformers has: the first are copied, the others follow from class, family or weights.
SHARED = ("id2label", "label2id", "problem_type", "output_hidden_states", "return_dict", "chunk_size_feed_forward")
WRITTEN = ("transformers_version", "architectures", "dtype", "is_encoder_decoder")

# Where `from_native` keeps the tensors of dead pairs, so that `to_native` can restore them to the bit. A Lacuna model
# that was saved and loaded has lost them; our own tensors then take their place.
_UNREAD = "unread_native_tensors"


def to_native(
    model: LacunaPreTrainedModel, family: str | None = None, *, weights: dict[str, Tensor] | None = None
) -> PreTrainedModel:
    """Return the native model with the weights of `model`, on its device and in its dtypes.

    Args:
        model: a Lacuna model with a head that the family has.
        family: a key of `CONVERSIONS`; None: the one that can express the configuration.
        weights: taken in place of those of `model`, and not copied: what is returned is for `save_pretrained`, and
            cannot run. The sentence head of a LacunaForPreTraining is left out where the family has none.

    Raises ConversionError: when no family, or not this one, can express the model; the field that stands in the way
    and its value are named. Fields that only start or train a model do not stand in the way.
    """
    family = _find_family(model.config) if family is None else family
    if family not in CONVERSIONS:
        raise ConversionError(f"family={family!r} is not known{name_nearest(value=family, known=CONVERSIONS)}")
    conversion = CONVERSIONS[family]
    fields = _native_fields(model.config, family)
    head = conversion.heads.get(type(model).__name__)
    if head is None and weights is not None and type(model) is modeling_lacuna.LacunaForPreTraining:
        head = conversion.heads["LacunaForMaskedLM"]
        weights = {name: tensor for name, tensor in weights.items() if not name.startswith("sentence_head.")}
    if head is None:
        raise ConversionError(f"{family} has no head like {type(model).__name__}: {', '.join(conversion.heads)}")
    labels = model.config.num_labels
    if head.num_labels not in (None, labels):
        raise ConversionError(f"{head.native} cannot express num_labels={labels}, only {head.num_labels}")
    generation = getattr(model, "generation_config", None)
    fields |= {name: getattr(generation, name, None) for name in conversion.generation}
    native_class = getattr(transformers, head.native)
    # On "meta" nothing is drawn, so that a checkpoint can be written while training draws its dropout.
    with torch.device("meta") if weights is not None else contextlib.nullcontext():
        native = native_class(native_class.config_class(**fields))

    ours, theirs, wanted = model.state_dict() if weights is None else weights, {}, native.state_dict()
    kept = {} if model.config.tie_word_embeddings else getattr(model, _UNREAD, {})
    pairs = list(_pairs(conversion, head, model, native))
    for pair, our_keys, native_key in pairs:
        if native_key in wanted and all(key in ours for key in our_keys):
            theirs[native_key] = _shaped_like(_join([ours[key] for key in our_keys], pair), wanted[native_key])
            if pair.dead and native_key in kept and kept[native_key].shape == wanted[native_key].shape:
                theirs[native_key] = kept[native_key]
    unused = set(ours) - {key for _, keys, _ in pairs for key in keys}
    return _fill(native, theirs, unused=unused, like=model, copied=weights is None)


def from_native(native: PreTrainedModel) -> LacunaPreTrainedModel:
    """Return the Lacuna model with the weights of a native model of one of the families, on its device, in its dtypes.

    Raises ConversionError: when the model type or the head is not known, or a field has a value that we cannot
    express.
    """
    family = native.config.model_type
    if family not in CONVERSIONS:
        raise ConversionError(f"model_type={family!r} cannot be converted; these can: {', '.join(CONVERSIONS)}")
    conversion = CONVERSIONS[family]
    found = [(ours, head) for ours, head in conversion.heads.items() if head.native == type(native).__name__]
    if not found:
        known = ", ".join(head.native for head in conversion.heads.values())
        raise ConversionError(f"{type(native).__name__} has no counterpart here; these have: {known}")
    our_class, head = found[0]
    config = LacunaConfig(**(_our_fields(native.config, family) | head.fields))
    model = getattr(modeling_lacuna, our_class)(config)

    theirs, wanted = native.state_dict(), model.state_dict()
    ours: dict[str, Tensor] = {}
    kept: dict[str, Tensor] = {}
    pairs = list(_pairs(conversion, head, model, native))
    for pair, our_keys, native_key in pairs:
        if native_key not in theirs:
            continue
        if pair.dead:
            kept[native_key] = theirs[native_key].clone()
        elif all(key in wanted for key in our_keys):
            parts = _split(theirs[native_key], pair, [wanted[key] for key in our_keys])
            ours |= dict(zip(our_keys, parts, strict=True))
    if kept and not config.tie_word_embeddings:
        setattr(model, _UNREAD, kept)
    return _fill(model, ours, unused=set(theirs) - {native_key for _, _, native_key in pairs}, like=native)


def as_ours(model: PreTrainedModel) -> PreTrainedModel:
    """The Lacuna model with the weights of a native one; the model itself where there is none or it is ours."""
    with contextlib.suppress(ConversionError):
        model = from_native(model)
    return model


def _find_family(config: LacunaConfig) -> str:
    refusals = []
    for family in CONVERSIONS:
        try:
            _native_fields(config, family)
        except ConversionError as error:
            refusals.append(error)
        else:
            return family
    nearest = min(refusals, key=lambda error: error.differences)
    raise ConversionError(f"no native family can express this configuration; {nearest}")


# ------------------------------------------------------------------------------------------------------ configurations


def _native_fields(config: LacunaConfig, family: str) -> dict[str, Any]:
    """The native configuration that says what ours says; refuses what returns changed from there."""
    conversion = CONVERSIONS[family]
    fields = {name: getattr(config, name) for name in SHARED}
    for field in conversion.fields.values():
        fields |= field.to_native(config)
    native_class = getattr(transformers, conversion.heads["LacunaModel"].native).config_class
    try:
        there = native_class(**fields)
        back = LacunaConfig(**_read(there, conversion))
    except (ValueError, TypeError, StrictDataclassError) as error:
        raise ConversionError(f"{family} cannot express the configuration: {error}") from error
    differences = []
    for name in _names(LacunaConfig):
        entry = conversion.fields.get(name)
        if name in WRITTEN or (entry and entry.unread):
            continue
        before, after = (
            entry.meaning(each) if entry and entry.meaning else getattr(each, name) for each in (config, back)
        )
        if before != after:
            differences.append(f"{family} cannot express {name}={before!r}, only {after!r}")
    if differences:
        refusal = ConversionError(differences[0])
        refusal.differences = len(differences)
        raise refusal
    return fields


def _our_fields(native: PreTrainedConfig, family: str) -> dict[str, Any]:
    """Our configuration that says what a native one says; refuses what returns changed from here."""
    conversion = CONVERSIONS[family]
    if native.is_heterogeneous:
        raise ConversionError(f"a Lacuna model cannot express per_layer_config of {family}: all its layers are alike")
    fields = _read(native, conversion)
    try:
        config = LacunaConfig(**fields)
    except ConfigurationError as error:
        raise ConversionError(f"a Lacuna model cannot express this {family}: {error}") from error
    back_fields = {name: getattr(config, name) for name in SHARED}
    for field in conversion.fields.values():
        back_fields |= field.to_native(config)
    back = type(native)(**back_fields)
    for name in _names(type(native)):
        before, after = getattr(native, name), getattr(back, name)
        if before != after and name not in conversion.lost and name not in WRITTEN:
            raise ConversionError(
                f"a Lacuna model cannot express {name}={before!r} of {family}, only {after!r} with the rest"
            )
    return fields


def _read(native: PreTrainedConfig, conversion: Conversion) -> dict[str, Any]:
    """Arguments for `LacunaConfig` from a native configuration."""
    fields = {name: getattr(native, name) for name in SHARED}
    return fields | {name: field.from_native(native) for name, field in conversion.fields.items()}


def _names(config_class: type[PreTrainedConfig]) -> list[str]:
    return [field.name for field in dataclasses.fields(config_class)]


# ------------------------------------------------------------------------------------------------------------- tensors


def _pairs(
    conversion: Conversion, head: Head, model: LacunaPreTrainedModel, native: PreTrainedModel
) -> Iterator[tuple[WeightPair, tuple[str, ...], str]]:
    """Names of tensors on both sides, for every layer; also of such as these models do not have."""
    ours_at, theirs_at = (
        f"{each.base_model_prefix}." if hasattr(each, each.base_model_prefix) else "" for each in (model, native)
    )
    weights = [(pair, ours_at, theirs_at) for pair in conversion.weights] + [(pair, "", "") for pair in head.weights]
    layers = max(len(model.config.layer_types_of(stack)) for stack in model.config.stacks)
    for pair, our_prefix, native_prefix in weights:
        is_tensor = pair.ours[0].endswith((".weight", ".bias"))
        for layer in range(layers if "{i}" in pair.theirs else 1):
            for kind in ("",) if is_tensor else (".weight", ".bias"):
                our_keys = tuple(f"{our_prefix}{name}{kind}".replace("{i}", str(layer)) for name in pair.ours)
                yield pair, our_keys, f"{native_prefix}{pair.theirs}{kind}".replace("{i}", str(layer))


def _join(parts: list[Tensor], pair: WeightPair) -> Tensor:
    joined = torch.cat(parts) if parts[1:] else parts[0]
    return joined.T if pair.transposed and joined.dim() == 2 else joined


def _split(tensor: Tensor, pair: WeightPair, wanted: list[Tensor]) -> list[Tensor]:
    tensor = tensor.T if pair.transposed and tensor.dim() == 2 else tensor
    if len(wanted) == 1:
        return [_shaped_like(tensor, wanted[0])]
    return list(tensor.split([part.shape[0] for part in wanted]))


def _shaped_like(tensor: Tensor, wanted: Tensor) -> Tensor:
    """`tensor` with the dimensions of size 1 of `wanted`; any other difference is left to be refused."""
    alike = [size for size in tensor.shape if size != 1] == [size for size in wanted.shape if size != 1]
    return tensor.reshape(wanted.shape) if alike else tensor


def _fill(
    model: Any, state: dict[str, Tensor], *, unused: set[str], like: PreTrainedModel, copied: bool = True
) -> Any:
    """Fill `model` with exactly the tensors of `state`; copies are put on the device and in the mode of `like`."""
    wanted = model.state_dict()
    names = f"{type(like).__name__} to {type(model).__name__}"
    missing = set(wanted) - set(state)
    if missing or unused:
        raise ConversionError(f"tensors without a counterpart: {', '.join(sorted(missing | unused))} ({names})")
    for name, tensor in state.items():
        if tensor.shape != wanted[name].shape:
            raise ConversionError(
                f"{name} has the shape {tuple(tensor.shape)}, and the configuration makes it "
                f"{tuple(wanted[name].shape)} ({names})"
            )
    for target, source in model.all_tied_weights_keys.items():
        if not state[target].is_meta and not torch.equal(state[target], state[source]):
            raise ConversionError(
                f"tie_word_embeddings={model.config.tie_word_embeddings} says that {target} is {source}, and they "
                f"differ ({names})"
            )
    if copied:
        state = {name: tensor.clone(memory_format=torch.contiguous_format) for name, tensor in state.items()}
    model.load_state_dict(state, strict=True, assign=True)  # assigned, so that each tensor keeps its dtype
    model.tie_weights(recompute_mapping=False)
    if None not in [getattr(each, "generation_config", None) for each in (model, like)]:
        model.generation_config = copy.deepcopy(like.generation_config)
    return model.to(like.device).train(like.training) if copied else model
