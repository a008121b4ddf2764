"""Checkpoints: a Hugging Face folder, beside it what resuming needs. Written whole or not at all; no pickle.

step-00000100/                   a model folder that `from_pretrained` loads
    training_state/
        optimizer.safetensors    what the optimizer remembers, by parameter name
        average.safetensors      the weights of --average, where there are any
        learned.safetensors      what resuming takes in place of the model's weights: those of our own model where a
                                 native one is saved; with --lora_rank what is learned, before it is merged
        progress.json            where the run stands
        manifest.json            size and SHA-256 of every file
        complete                 SHA-256 of manifest.json: the last file that is written, the first that is removed
"""

import contextlib
import json
import math
import shutil
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import nn

from lacuna.common.errors import CorruptCheckpointError, NumericsError, StorageError
from lacuna.common.files import sha256, storage_errors, sync, write_text
from lacuna.common.foreign import PICKLES
from lacuna.common.loading import add_old_keys, save_tokenizer_files
from lacuna.common.work import Tensors

from ..progress import Progress

STATE, MANIFEST, MARKER = "training_state", "training_state/manifest.json", "training_state/complete"
MARGIN = 1.05  # free space that a checkpoint wants, in sizes of its tensors
PATIENCE = 3  # checkpoints in a row that may fail before a run is ended


@dataclass
class Snapshot:
    """A run at the end of a step, copied in memory, so that training continues while it is written."""

    weights: Tensors
    optimizer: Tensors
    average: Tensors
    progress: Progress
    card: str
    learned: Tensors = field(default_factory=dict)
    """What resuming takes in place of the weights in the folder, where these are merged, or of a native model."""


def _files(folder: Path) -> dict[str, Path]:
    """Every file of a checkpoint by its name in the manifest, manifest and marker left out; links are refused."""
    found = {}
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        if path.is_symlink() or not (path.is_file() or path.is_dir()):
            raise CorruptCheckpointError(f"checkpoint {folder}: {name} is a link or no plain file")
        if path.is_file() and name not in (MANIFEST, MARKER):
            found[name] = path
    return found


def native_form(model: nn.Module, save_as: str) -> tuple[nn.Module | None, str]:
    """The model of transformers that is saved in place of one of ours, without its weights, or None; and a line for
    people that says why there is none, empty where there is no choice."""
    if save_as != "native" or not hasattr(model, "to_native"):
        return None, ""
    try:
        native = model.to_native(weights={name: tensor.to("meta") for name, tensor in model.state_dict().items()})
    except ValueError as error:
        return None, f"the model is saved with its own code: {error}"
    lost = "; it has no place for the sentence head, which stays in checkpoints"
    is_less = type(model).__name__.endswith("PreTraining") and type(native).__name__.endswith("MaskedLM")
    return native, f"the model is saved as a {type(native).__name__} of transformers, without code{lost * is_less}"


def all_finite(weights: Tensors) -> bool:
    return all(bool(torch.isfinite(value).all()) for value in weights.values() if value.is_floating_point())


@dataclass(kw_only=True)
class Saver:
    """Writes the checkpoints of a run, one after the other, while training continues, and the model at its end."""

    output_dir: Path
    model: nn.Module
    tokenizer: Any
    keep: int
    greater_is_better: bool
    native: bool = False  # whether the model of transformers that computes the same is saved

    def __post_init__(self) -> None:
        self.folder = self.output_dir / "checkpoints"
        self.failures = 0  # checkpoints in a row that could not be written
        self.held: set[Path] = set()  # those that stay while they are pushed, whatever their age
        self._newest: Path | None = None
        self._pool = ThreadPoolExecutor(max_workers=1, thread_name_prefix="checkpoint")
        self._writing: tuple[int, Future[Path]] | None = None

    def begin(self, snapshot: Snapshot) -> None:
        """Begin to write a checkpoint; `wait` says what became of it."""
        self._writing = snapshot.progress.step, self._pool.submit(self.write, snapshot)

    @property
    def is_ready(self) -> bool:
        """Whether `wait` would return at once with what became of a checkpoint."""
        return self._writing is not None and self._writing[1].done()

    def wait(self) -> int | None:
        """The step of the checkpoint that was begun, once it is whole; None where none was begun."""
        writing, self._writing = self._writing, None
        if writing is None:
            return None
        try:
            writing[1].result()
        except StorageError:
            self.failures += 1
            raise
        self.failures = 0
        return writing[0]

    def close(self) -> None:
        """Let a checkpoint that was begun become whole, whatever ended the run; remove those that were held."""
        self._pool.shutdown(wait=True)
        if self._newest is not None:
            self._prune(self._newest)

    def write(self, snapshot: Snapshot) -> Path:
        """Write `step-XXXXXXXX` whole or not at all, then remove those that are neither the newest nor the best.

        Raises StorageError: the disk is full or cannot be written; older checkpoints stay as they are.
        """
        final = self.folder / f"step-{snapshot.progress.step:08d}"
        temporary = final.with_name(f".{final.name}.tmp")
        try:
            with storage_errors(f"cannot write checkpoint {final}"):
                for stale in self.folder.glob(".*.tmp"):  # of a process that was killed while it wrote or removed
                    shutil.rmtree(stale, ignore_errors=True)
                try:
                    verify_checkpoint(final)
                except CorruptCheckpointError:
                    self._write_whole(snapshot, temporary, final)
        except CorruptCheckpointError as error:
            raise StorageError(f"what was written is not what the disk gives back: {error}") from error
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
        self._newest = final
        self._prune(final)
        return final

    def _write_whole(self, snapshot: Snapshot, temporary: Path, final: Path) -> None:
        """Write to a temporary folder, list every file with size and SHA-256, rename, mark as whole, verify."""
        self._check_space(snapshot)
        (temporary / STATE).mkdir(parents=True)
        self.save_model(temporary, card=snapshot.card, weights=dict(snapshot.weights))
        for name in ("optimizer", "average", "learned"):
            if (tensors := getattr(snapshot, name)) or name == "optimizer":
                save_file(tensors, temporary / STATE / f"{name}.safetensors")
        progress = json.dumps(asdict(snapshot.progress), indent=2)
        (temporary / STATE / "progress.json").write_text(progress, encoding="utf-8")
        files = {
            name: {"bytes": path.stat().st_size, "sha256": sha256(path)} for name, path in _files(temporary).items()
        }
        (temporary / MANIFEST).write_text(json.dumps(files, indent=2), encoding="utf-8")
        for path in [*temporary.rglob("*"), temporary]:
            sync(path)
        if final.exists():  # a broken one
            _remove(final)
        temporary.rename(final)
        sync(self.folder)
        write_text(final / MARKER, sha256(final / MANIFEST) + "\n")
        sync(final / STATE)
        verify_checkpoint(final)

    def save_model(self, folder: Path, *, card: str, weights: Tensors) -> None:
        """Write a folder that `from_pretrained` loads, of these weights."""
        model: Any = self.model
        if self.native:
            model.to_native(weights=weights).save_pretrained(folder)
            add_old_keys(folder / "config.json")
        else:
            model.save_pretrained(folder, state_dict=weights)
        for path in folder.glob("*.safetensors"):
            path.chmod(0o644)  # safetensors writes files that only their owner can read
        save_tokenizer_files(self.tokenizer, folder)
        (folder / "README.md").write_text(card, encoding="utf-8")

    def save_final(self, *, card: str, weights: Tensors) -> None:
        """Put the files of the trained model into the output folder itself, each of them whole.

        Raises NumericsError: a weight is not finite; StorageError: the folder cannot be written.
        """
        if not all_finite(weights):
            raise NumericsError(
                f"weights are not finite after the last step: no model is written to {self.output_dir}, whose "
                "checkpoints are good. Try a lower --learning_rate or --mixed_precision no"
            )
        temporary = self.output_dir / ".final.tmp"
        try:
            with storage_errors(f"cannot write the model to {self.output_dir}"):
                shutil.rmtree(temporary, ignore_errors=True)
                self.save_model(temporary, card=card, weights=weights)
                for path in sorted(temporary.iterdir()):
                    path.replace(self.output_dir / path.name)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)

    def _check_space(self, snapshot: Snapshot) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        parts = (snapshot.weights, snapshot.optimizer, snapshot.average, snapshot.learned)
        size = sum(tensor.nbytes for part in parts for tensor in part.values())
        needed, free = int(MARGIN * size), shutil.disk_usage(self.folder).free
        if needed > free:
            raise StorageError(
                f"checkpoint of step {snapshot.progress.step}: {needed / 1e6:,.1f} MB are needed in {self.folder} and "
                f"{free / 1e6:,.1f} MB are free"
            )

    def _prune(self, written: Path) -> None:
        # A later one can only be a broken one that resuming passed over; it must not push out those that are whole.
        whole = [path for path in sorted(self.folder.glob("step-*")) if (path / MARKER).is_file()]
        whole = [path for path in whole if path.name <= written.name]
        kept = {*whole[-self.keep :], best_checkpoint(whole, greater_is_better=self.greater_is_better)}
        for path in self.folder.glob("step-*"):
            if path.name <= written.name and path not in kept and path not in self.held:
                _remove(path)


def best_checkpoint(folders: list[Path], *, greater_is_better: bool) -> Path | None:
    """The one with the best metric, the newest of equals; unreadable ones are passed over."""
    metrics = {}
    for folder in folders:
        with contextlib.suppress(CorruptCheckpointError):
            metric = read_progress(folder).metric
            if metric is not None and math.isfinite(metric):
                metrics[folder] = metric if greater_is_better else -metric
    return max(reversed(metrics), key=lambda folder: metrics[folder], default=None)


def read_progress(folder: Path) -> Progress:
    try:
        return Progress(**json.loads((folder / STATE / "progress.json").read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError) as error:
        raise CorruptCheckpointError(f"checkpoint {folder}: {STATE}/progress.json cannot be read: {error}") from error


def load_weights(folder: Path) -> Tensors:
    """The weights of a verified checkpoint; never by the names that an index has."""
    weights: Tensors = {}
    for path in sorted(folder.glob("model*.safetensors")):
        weights |= load_file(path)
    return weights


def load_state(folder: Path, name: str) -> Tensors:
    """The "optimizer", "average" or "learned" tensors of a verified checkpoint; empty where it has none."""
    path = folder / STATE / f"{name}.safetensors"
    return load_file(path) if path.is_file() else {}


def _remove(folder: Path) -> None:
    """Remove the marker and the name first, so that no checkpoint is ever half there under its name."""
    doomed = folder.with_name(f".{folder.name}.removed.tmp")
    try:
        shutil.rmtree(doomed, ignore_errors=True)
        (folder / MARKER).unlink(missing_ok=True)
        folder.rename(doomed)
    except OSError:
        return
    shutil.rmtree(doomed, ignore_errors=True)


def verify_checkpoint(folder: Path) -> None:
    """CorruptCheckpointError, with the first that differs, where a checkpoint has not exactly the files and bytes
    written."""

    def check(holds: object, what: str) -> None:
        if not holds:
            raise CorruptCheckpointError(f"checkpoint {folder}{what}")

    check((folder / MARKER).is_file(), f" was not finished: {MARKER} is missing")
    try:
        manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        listed = {str(name): (int(entry["bytes"]), str(entry["sha256"])) for name, entry in manifest.items()}
        digest = (folder / MARKER).read_text(encoding="utf-8")
        check(digest == sha256(folder / MANIFEST) + "\n", ": manifest.json has changed since it was written")
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise CorruptCheckpointError(f"checkpoint {folder}: manifest.json is missing or broken") from error
    for name in listed:
        path = PurePosixPath(name)
        stays = path.parts and not path.is_absolute() and ".." not in path.parts and "\\" not in name
        check(stays and path.suffix not in PICKLES, f": its manifest names {name!r}, which is never loaded")
    present = _files(folder)
    for name in sorted(set(present) ^ set(listed)):
        check(False, f": file {name} is {'missing' if name in listed else 'unexpected'}")
    for name, (size, digest) in listed.items():
        found = present[name].stat().st_size
        check(found == size, f": {name} has {found} bytes, not {size}")
        check(sha256(present[name]) == digest, f": the content of {name} has changed since it was written")
    # Loaders follow the names in the index of a model in several files wherever they lead.
    for name in (name for name in present if name.endswith(".index.json")):
        try:
            targets = set(json.loads(present[name].read_text(encoding="utf-8"))["weight_map"].values())
        except (ValueError, KeyError, AttributeError, TypeError) as error:
            raise CorruptCheckpointError(f"checkpoint {folder}: {name} cannot be read") from error
        for target in sorted(map(str, targets - present.keys())):
            check(False, f": {name} names {target!r}, which is not part of it")


def newest_checkpoint(output_dir: Path) -> tuple[Path | None, list[str]]:
    """The newest checkpoint that verifies, and why newer ones were not. CorruptCheckpointError: none verifies."""
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
