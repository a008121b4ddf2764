"""Checkpoints: a Hugging Face folder, beside it what resuming needs. Written whole or not at all; no pickle."""

import hashlib
import json
import os
import shutil
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, load_model, save_file
from torch import nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_optimizer_state_dict,
    set_optimizer_state_dict,
)

from .arguments import TrainingArguments
from .errors import ArgumentError, CorruptCheckpointError, StorageError

STATE = "training_state"
_FLAT = StateDictOptions(full_state_dict=True, cpu_offload=True, flatten_optimizer_state_dict=True)


@dataclass
class Progress:
    """Where a run stands; with (configuration, data, seed) it determines everything that follows."""

    step: int = 0
    seconds: float = 0.0
    """Seconds spent in training steps, over all sessions of the run."""
    tokens: int = 0
    stage: int = 0
    """Number of the stage the last step belonged to."""
    samples: int = 0
    """Examples seen of the work of that stage; the next step begins with this global sample number."""
    epochs: float = 0.0
    """Passes over the works of earlier stages."""
    identity: dict[str, Any] = field(default_factory=dict)
    """What must not change when the run is resumed: model, data, tokenizer, seed, batch size."""


def claim_output_dir(arguments: TrainingArguments) -> None:
    """Refuse a folder that holds another run or somebody's files, before any work is done.

    Raises:
        ArgumentError: the folder is not empty and `--resume` was not given, or is a file.
        StorageError: the folder cannot be written.
    """
    folder = Path(arguments.output_dir)
    if folder.exists() and not folder.is_dir():
        raise ArgumentError(f"--output_dir {folder} is a file; name a folder")
    if not arguments.resume and any((folder / name).exists() for name in ("run.json", "config.json", "checkpoints")):
        raise ArgumentError(
            f"--output_dir {folder} already holds a run; add --resume to continue it, or name another folder"
        )
    if not arguments.resume and folder.exists() and any(not path.name.startswith(".") for path in folder.iterdir()):
        raise ArgumentError(f"--output_dir {folder} is not empty and would be written over; name another folder")
    parent = next(path for path in [folder, *folder.absolute().parents] if path.exists())
    if not parent.is_dir():
        raise ArgumentError(f"--output_dir {folder}: {parent} is a file; name a folder")
    if not os.access(parent, os.W_OK):
        raise StorageError(f"--output_dir {folder}: no permission to write in {parent}")


def write_atomically(path: Path, text: str) -> None:
    """Write a small text file so that it is there whole or not at all.

    Raises:
        StorageError: the file cannot be written.
    """
    temporary = path.with_name(f".{path.name}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with temporary.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError as error:
        raise StorageError(f"cannot write {path}: {error.strerror}") from error


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _files(folder: Path) -> list[Path]:
    manifest = folder / STATE / "manifest.json"
    return sorted(path for path in folder.rglob("*") if path.is_file() and path != manifest)


def save_optimizer(*, model: nn.Module, optimizers: list[torch.optim.Optimizer], folder: Path) -> None:
    """Write the optimizer's state by parameter name: tensors to optimizer.safetensors, numbers to optimizer.json."""
    flat = get_optimizer_state_dict(model, optimizers, options=_FLAT)
    tensors = {name: value.contiguous() for name, value in flat.items() if isinstance(value, torch.Tensor)}
    numbers = {name: value for name, value in flat.items() if not isinstance(value, torch.Tensor)}
    save_file(tensors, folder / "optimizer.safetensors")
    (folder / "optimizer.json").write_text(json.dumps(numbers), encoding="utf-8")


def load_optimizer(*, model: nn.Module, optimizers: list[torch.optim.Optimizer], folder: Path) -> None:
    """Read back what `save_optimizer` wrote."""
    numbers = json.loads((folder / "optimizer.json").read_text(encoding="utf-8"))
    flat = {name: tuple(value) if isinstance(value, list) else value for name, value in numbers.items()}
    flat.update(load_file(folder / "optimizer.safetensors"))
    # Without `full_state_dict`, which torch 2.13 cannot combine with a flat state here (KeyError 'param_groups.0...').
    set_optimizer_state_dict(model, optimizers, flat, options=StateDictOptions(flatten_optimizer_state_dict=True))


def save_model(*, model: nn.Module, tokenizer: Any, card: str, folder: Path) -> None:
    """Write a folder that `from_pretrained` loads: configuration, weights, modelling code, tokenizer and card."""
    model.save_pretrained(folder)
    for path in folder.glob("*.safetensors"):
        path.chmod(0o644)  # safetensors writes files that only their owner can read
    tokenizer.save_pretrained(folder)
    path = folder / "tokenizer_config.json"
    if path.is_file():
        # transformers 5 writes a class name that 4.57 does not know; this one loads in both.
        content = json.loads(path.read_text(encoding="utf-8"))
        if content.get("tokenizer_class") == "TokenizersBackend":
            content["tokenizer_class"] = "PreTrainedTokenizerFast"
            path.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    (folder / "README.md").write_text(card, encoding="utf-8")


def save_checkpoint(
    *,
    output_dir: Path,
    model: nn.Module,
    optimizers: list[torch.optim.Optimizer],
    tokenizer: Any,
    card: str,
    progress: Progress,
    keep: int,
) -> Path:
    """Write `checkpoints/step-XXXXXXXX` into a temporary folder, list every file with size and SHA-256, rename.

    Older checkpoints beyond the newest `keep` are removed afterwards.

    Raises:
        StorageError: the disk is full or cannot be written; older checkpoints stay as they are.
    """
    final = output_dir / "checkpoints" / f"step-{progress.step:08d}"
    temporary = final.with_name(f".{final.name}.tmp")
    try:
        for stale in final.parent.glob(".step-*.tmp"):  # of a process that was killed while it wrote
            shutil.rmtree(stale, ignore_errors=True)
        (temporary / STATE).mkdir(parents=True)
        save_model(model=model, tokenizer=tokenizer, card=card, folder=temporary)
        save_optimizer(model=model, optimizers=optimizers, folder=temporary / STATE)
        (temporary / STATE / "progress.json").write_text(json.dumps(asdict(progress), indent=2), encoding="utf-8")
        files = {
            str(path.relative_to(temporary)): {"bytes": path.stat().st_size, "sha256": _digest(path)}
            for path in _files(temporary)
        }
        (temporary / STATE / "manifest.json").write_text(json.dumps(files, indent=2), encoding="utf-8")
        for path in [*_files(temporary), temporary / STATE / "manifest.json"]:
            with path.open("rb") as file:
                os.fsync(file.fileno())
        shutil.rmtree(final, ignore_errors=True)
        temporary.rename(final)
    except OSError as error:
        shutil.rmtree(temporary, ignore_errors=True)
        raise StorageError(f"cannot write checkpoint {final}: {error}") from error
    # A later one can only be a broken one that resuming passed over; it must not push out those that are whole.
    written = sorted(path for path in final.parent.glob("step-*") if path.name <= final.name)
    for old in written[:-keep]:
        shutil.rmtree(old, ignore_errors=True)
    return final


def verify_checkpoint(folder: Path) -> None:
    """Check that every file of a checkpoint is there with the bytes that were written.

    Raises:
        CorruptCheckpointError: names the first file that is missing, unexpected or changed.
    """
    try:
        manifest = json.loads((folder / STATE / "manifest.json").read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise CorruptCheckpointError(f"checkpoint {folder}: manifest.json is missing or broken") from error
    present = {str(path.relative_to(folder)) for path in _files(folder)}
    if different := sorted(present ^ set(manifest)):
        word = "missing" if different[0] in manifest else "unexpected"
        raise CorruptCheckpointError(f"checkpoint {folder}: file {different[0]} is {word}")
    for name, expected in manifest.items():
        size = (folder / name).stat().st_size
        if size != expected["bytes"]:
            raise CorruptCheckpointError(f"checkpoint {folder}: {name} has {size} bytes, not {expected['bytes']}")
        if _digest(folder / name) != expected["sha256"]:
            raise CorruptCheckpointError(
                f"checkpoint {folder}: the content of {name} has changed since it was written"
            )


def newest_checkpoint(output_dir: Path) -> tuple[Path | None, list[str]]:
    """The newest checkpoint that verifies, and why newer ones were passed over.

    Raises:
        CorruptCheckpointError: there are checkpoints, and none verifies.
    """
    skipped: list[str] = []
    for folder in sorted((output_dir / "checkpoints").glob("step-*"), reverse=True):
        try:
            verify_checkpoint(folder)
        except CorruptCheckpointError as error:
            skipped.append(str(error))
        else:
            return folder, skipped
    if skipped:
        raise CorruptCheckpointError("no checkpoint can be resumed: " + "; ".join(skipped))
    return None, []


def restore(
    *, checkpoint: Path, model: nn.Module, optimizers: list[torch.optim.Optimizer], identity: dict[str, Any]
) -> Progress:
    """Load weights and optimizer from a verified checkpoint and return where the run stood.

    Args:
        identity: what this run says of itself; it must equal what the checkpoint says.

    Raises:
        ArgumentError: model, data, tokenizer, seed or batch size is another than the checkpoint's.
    """
    progress = Progress(**json.loads((checkpoint / STATE / "progress.json").read_text(encoding="utf-8")))
    for name in sorted(set(identity) | set(progress.identity)):
        ours, theirs = identity.get(name), progress.identity.get(name)
        if ours != theirs:
            raise ArgumentError(
                f"--resume: {name} is {ours!r}, but the run in {checkpoint} was made with {theirs!r}; "
                "resume with the same value or start a new --output_dir"
            )
    load_model(model, str(checkpoint / "model.safetensors"), strict=True)
    load_optimizer(model=model, optimizers=optimizers, folder=checkpoint / STATE)
    return progress
