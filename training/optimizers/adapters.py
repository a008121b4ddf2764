"""Training part of the weights: the head alone (--freeze_backbone), or LoRA adapters.

LoRA (Hu et al., 2021, https://arxiv.org/abs/2106.09685): a linear layer W x becomes W x + (alpha / rank) B A x, and
only A [rank, inputs] and B [outputs, rank] learn, beside the head. `peft` puts the layers in, and renames weights to
`X.base_layer.weight`, `X.lora_A.default.weight` and `HEAD.modules_to_save.default.weight`. A saved model is merged and
has its own names again; a saved adapter has those of `peft`.
"""

import hashlib
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from lacuna.common.errors import InputError
from lacuna.common.files import storage_errors
from lacuna.common.loading import save_tokenizer_files

from ..arguments import TrainingArguments
from .optimizers import backbone_of, head_weights, is_pooler, output_layer

_A, _B, _BASE = ".lora_A.default.weight", ".lora_B.default.weight", ".base_layer."
_HEAD, _REPLACED = ".modules_to_save.default", ".original_module."

TASK_TYPES = {
    "ForSequenceClassification": "SEQ_CLS",
    "ForTokenClassification": "TOKEN_CLS",
    "ForQuestionAnswering": "QUESTION_ANS",
    "ForConditionalGeneration": "SEQ_2_SEQ_LM",
    "ForCausalLM": "CAUSAL_LM",
    "LMHeadModel": "CAUSAL_LM",
}
"""What `peft` calls a head, by how the class of the model ends; it has no name for the others."""


@dataclass(frozen=True)
class Adapter:
    """Low-rank additions that are in a model, by their `peft.LoraConfig`, and how to take them out of its state."""

    config: Any
    scale: float  # what B A is multiplied by
    transposed: frozenset[str]  # names of the layers that keep their weights as [inputs, outputs] (those of GPT-2)

    def merged(self, state: dict[str, Tensor]) -> dict[str, Tensor]:
        """The state of a model without additions that computes the same, from that of the model with them."""
        found: dict[str, Tensor] = {}
        for name, value in state.items():
            if name.endswith((_A, _B)) or _REPLACED in name:
                continue
            layer, base, rest = name.partition(_BASE)
            if base and rest == "weight":
                added = state[f"{layer}{_B}"].float() @ state[f"{layer}{_A}"].float() * self.scale
                value = (value.float() + (added.T if layer in self.transposed else added)).to(value.dtype)
            found[f"{layer}.{rest}" if base else name.replace(_HEAD, "")] = value
        return found

    def learned(self, state: dict[str, Tensor]) -> dict[str, Tensor]:
        """The part of a state that training moves."""
        return {name: value for name, value in state.items() if name.endswith((_A, _B)) or f"{_HEAD}." in name}

    def save(self, state: dict[str, Tensor], folder: Path, *, tokenizer: Any, card: str) -> None:
        """Write what `PeftModel.from_pretrained(model, folder)` loads into the model that training began with, and the
        tokenizer that it was trained with."""
        learned = {
            f"base_model.model.{name.replace(_HEAD, '').replace('.default.weight', '.weight')}": value.contiguous()
            for name, value in self.learned(state).items()
        }
        with storage_errors(f"cannot write the adapter to {folder}"):
            folder.mkdir(parents=True, exist_ok=True)
            save_file(learned, folder / "adapter_model.safetensors", metadata={"format": "pt"})
            (folder / "adapter_model.safetensors").chmod(0o644)
            self.config.save_pretrained(str(folder))
            save_tokenizer_files(tokenizer, folder)
            (folder / "README.md").write_text(card, encoding="utf-8")


def prepare(model: nn.Module, arguments: TrainingArguments) -> Adapter | None:
    """Choose the trainable weights, in place, by `--freeze_backbone` or `--lora_rank`; all, where neither is given."""
    if arguments.freeze_backbone:
        freeze_backbone(model)
    if not arguments.lora_rank:
        return None
    alpha = 2.0 * arguments.lora_rank if arguments.lora_alpha is None else arguments.lora_alpha
    return add_lora(model, rank=arguments.lora_rank, alpha=alpha, seed=arguments.seed)


def freeze_backbone(model: nn.Module) -> None:
    """Let only the head learn: what is outside the backbone and not tied to it, and the pooler."""
    head = head_weights(model)
    if backbone_of(model)[1] is None or not head:
        what = "backbone" if head else "head that is not tied to its embeddings"
        raise InputError(f"--freeze_backbone: {type(model).__name__} has no {what}; drop the option")
    for name, weight in model.named_parameters():
        weight.requires_grad_(name in head)


def add_lora(model: nn.Module, *, rank: int, alpha: float, seed: int) -> Adapter:
    """Put LoRA into all linear layers of the backbone, in place; only it and the head (with the pooler) learn.

    Output layers over the vocabulary stay as they are, tied or not. A has `rank` rows, drawn from `seed`, and B begins
    with zeros; B A x is multiplied by alpha / rank. Raises InputError: there are no linear layers in the backbone, or
    `peft` is not installed.
    """
    try:
        import peft
    except ImportError as error:
        raise InputError('--lora_rank needs the package peft: pip install -e ".[peft]"') from error
    if not (layers := dict(_linear_layers(model))):
        raise InputError(f"--lora_rank {rank}: there is no linear layer in the backbone of {type(model).__name__}")
    transposed = {name for name, layer in layers.items() if not isinstance(layer, nn.Linear)}
    config = peft.LoraConfig(
        r=rank,
        lora_alpha=alpha if alpha % 1 else int(alpha),
        target_modules=sorted(layers),
        modules_to_save=list(_heads(model)) or None,
        fan_in_fan_out=bool(transposed),
        task_type=next((kind for end, kind in TASK_TYPES.items() if type(model).__name__.endswith(end)), None),
    )
    with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="`is_gradient_checkpointing` is deprecated")  # peft 0.21 asks for it
        torch.manual_seed(seed)
        peft.inject_adapter_in_model(config, model)
    name = str(getattr(model, "name_or_path", "") or "")
    # A Hub id as it is, and a folder by its absolute path: an adapter is worth nothing without its model.
    config.base_model_name_or_path = str(Path(name).resolve()) if name and Path(name).exists() else name
    config.inference_mode = True  # as adapters are saved
    return Adapter(config=config, scale=alpha / rank, transposed=frozenset(transposed))


def _linear_layers(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Linear layers of the backbone without its pooler, or of a whole model without a backbone (T5), by name."""
    prefix, backbone = backbone_of(model)
    output = output_layer(model)
    for name, module in (backbone if backbone is not None else model).named_modules():
        # GPT-2 has layers of its own, which are linear too.
        is_linear = isinstance(module, nn.Linear) or type(module).__name__ == "Conv1D"
        if is_linear and module is not output and not is_pooler(name):
            yield prefix + name, module


def _heads(model: nn.Module) -> Iterator[str]:
    """Names of the outermost modules whose weights all are of the head; output layers over the vocabulary are none."""
    if backbone_of(model)[1] is None:
        return
    output = output_layer(model)
    head = {id(weight) for weight in head_weights(model).values()}
    found: list[str] = []
    for name, module in model.named_modules():
        weights = [id(weight) for weight in module.parameters()]
        is_output = any(part is output for part in module.modules())
        if not weights or is_output or not head.issuperset(weights) or name.startswith(tuple(found)):
            continue
        found.append(f"{name}.")
        yield name


def fingerprint_of_frozen(model: nn.Module) -> str:
    """A hash of all weights that do not learn: with LoRA a checkpoint can be continued only on the same ones."""
    digest = hashlib.sha256()
    for name, weight in model.named_parameters():
        if not weight.requires_grad:
            digest.update(name.encode())
            digest.update(weight.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy())
    return digest.hexdigest()[:16]


def num_weights(model: nn.Module) -> int:
    """Weights of a model, without additions that are merged when it is saved, and what they replace."""
    return sum(
        weight.numel()
        for name, weight in model.named_parameters()
        if not name.endswith((_A, _B)) and _REPLACED not in name
    )
