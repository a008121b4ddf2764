"""Checkpoints: bit for bit the same when read back, and never half of one."""

import errno
import json
import math
import os
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load_file

from lacuna.common.errors import CorruptCheckpointError, InputError, StorageError
from lacuna.common.files import write_text
from lacuna.modeling import LacunaConfig, LacunaForMaskedLM, LacunaForPreTraining
from lacuna.training.checkpoints.resuming import _differences, check_identity
from lacuna.training.checkpoints.saving import (
    MARKER,
    STATE,
    Progress,
    Saver,
    Snapshot,
    all_finite,
    best_checkpoint,
    load_weights,
    native_form,
    newest_checkpoint,
    read_progress,
    verify_checkpoint,
)
from lacuna.training.distributed.fsdp import (
    full_model_state,
    full_optimizer_state,
    load_model_state,
    load_optimizer_state,
)
from lacuna.training.optimizers.optimizers import OPTIMIZERS

IDENTITY = {"seed": 0, "corpus": "abc"}


def train_steps(model, optimizers, steps: int, *, start: int = 0) -> None:
    for step in range(start, start + steps):
        ids = torch.randint(5, 40, (4, 12), generator=torch.Generator().manual_seed(step))
        model(input_ids=ids, labels=ids).loss.backward()
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()


@pytest.fixture
def trained(new_model, options):
    """Makes a model, and its optimizers, after some steps."""

    def make(*, steps: int = 3, optimizer: str = "adamw", seed: int = 0):
        model = new_model(hidden_size=32, intermediate_size=64, seed=seed).eval()
        optimizers = OPTIMIZERS[optimizer].make(model, options(optimizer=optimizer, weight_decay=0.1))
        train_steps(model, optimizers, steps)
        return model, optimizers

    return make


@pytest.fixture
def saver_of(tmp_path, plain_tokenizer):
    return partial(Saver, output_dir=tmp_path, tokenizer=plain_tokenizer, greater_is_better=False)


@pytest.fixture
def save(saver_of):
    def save(model, optimizers, *, step: int, keep: int = 2, metric: float | None = None, saver=None):
        progress = Progress(step=step, seconds=1.5, tokens=10 * step, metric=metric, identity=IDENTITY)
        return (saver or saver_of(model=model, keep=keep)).write(
            Snapshot(
                weights=full_model_state(model),
                optimizer=full_optimizer_state(model, optimizers),
                average={},
                progress=progress,
                card="# card\n",
            )
        )

    return save


def restore(*, checkpoint, model, optimizers) -> Progress:
    load_model_state(model, load_weights(checkpoint))
    load_optimizer_state(model, optimizers, load_file(checkpoint / "training_state" / "optimizer.safetensors"))
    return read_progress(checkpoint)


def states(model, optimizers) -> list[dict]:
    """What each optimizer knows of each weight, by the name of the weight."""
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    return [{names[id(weight)]: state for weight, state in optimizer.state.items()} for optimizer in optimizers]


@pytest.mark.parametrize("optimizer", list(OPTIMIZERS))
def test_what_is_read_back_is_what_was_written_bit_for_bit(trained, save, optimizer) -> None:
    model, optimizers = trained(optimizer=optimizer)
    folder = save(model, optimizers, step=3)
    other, others = trained(steps=1, optimizer=optimizer, seed=9)
    progress = restore(checkpoint=folder, model=other, optimizers=others)
    assert progress == Progress(step=3, seconds=1.5, tokens=30, identity=IDENTITY)
    for step in (3, 4):
        for name, value in model.state_dict().items():
            assert torch.equal(value, other.state_dict()[name]), name
        for mine, theirs in zip(states(model, optimizers), states(other, others), strict=True):
            assert mine.keys() == theirs.keys() and mine
            for name, state in mine.items():
                assert state.keys() == theirs[name].keys()
                assert all(torch.equal(value, theirs[name][key]) for key, value in state.items()), name
        for mine, theirs in zip(optimizers, others, strict=True):
            settings = [
                [{k: v for k, v in g.items() if k != "params"} for g in o.param_groups] for o in (mine, theirs)
            ]
            assert settings[0] == settings[1]
        train_steps(model, optimizers, 1, start=step)
        train_steps(other, others, 1, start=step)


def test_a_checkpoint_is_a_model_folder_without_pickle(trained, save) -> None:
    folder = save(*trained(), step=7)
    assert folder.name == "step-00000007"
    verify_checkpoint(folder)
    names = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
    assert {"config.json", "model.safetensors", "tokenizer.json", "README.md"} <= names
    assert {f"training_state/{name}" for name in ("manifest.json", "optimizer.safetensors", "progress.json")} <= names
    assert not {f"training_state/{name}.safetensors" for name in ("average", "learned")} & names, "it has neither"
    assert all(os.path.splitext(name)[1] in (".json", ".safetensors", ".md", "") for name in names)
    about = json.loads((folder / "tokenizer_config.json").read_text())
    assert about["tokenizer_class"] == "PreTrainedTokenizerFast"  # as transformers 4.57 knows it
    assert not {"backend", "extra_special_tokens"} & about.keys()
    assert not list(folder.parent.glob(".*"))
    assert (folder / "model.safetensors").stat().st_mode & 0o777 == 0o644


def test_every_kind_of_damage_to_every_file_is_seen(trained, save, tmp_path) -> None:
    model, optimizers = trained(steps=1)
    older, newer = save(model, optimizers, step=1), save(model, optimizers, step=2)
    files = [path for path in newer.rglob("*") if path.is_file()]
    assert len(files) >= 8
    for path in files:
        content = path.read_bytes()
        middle = len(content) // 2
        for damaged in (
            None,
            b"",
            content[:middle],
            content[:-1],
            content + b"\0",
            content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :],
            content[:middle] + bytes(len(content) - middle),
        ):
            if damaged is None:
                path.unlink()
            else:
                path.write_bytes(damaged)
            found, skipped = newest_checkpoint(tmp_path)
            assert found == older and len(skipped) == 1, (path.name, damaged and len(damaged))
            assert str(newer) in skipped[0]
            if path.name not in ("manifest.json", "complete"):
                assert path.name in skipped[0]
            if path.name == "complete" and damaged is None:
                assert f"was not finished: {MARKER} is missing" in skipped[0]
            path.write_bytes(content)
    (newer / "extra.bin").write_bytes(b"")
    found, skipped = newest_checkpoint(tmp_path)
    assert found == older and "extra.bin is unexpected" in skipped[0]
    (newer / "extra.bin").unlink()
    assert newest_checkpoint(tmp_path) == (newer, [])


def test_without_a_whole_checkpoint_every_broken_one_is_named(tmp_path) -> None:
    for step in (1, 2):
        (tmp_path / "checkpoints" / f"step-{step:08d}").mkdir(parents=True)
    with pytest.raises(CorruptCheckpointError, match=r"no checkpoint can be resumed: .*00000002.*00000001") as raised:
        newest_checkpoint(tmp_path)
    assert raised.value.exit_code == 3


def test_no_checkpoint_is_no_error(tmp_path) -> None:
    assert newest_checkpoint(tmp_path) == (None, [])
    (tmp_path / "checkpoints" / ".step-00000005.tmp").mkdir(parents=True)
    assert newest_checkpoint(tmp_path) == (None, [])


@pytest.mark.parametrize(
    "identity, message",
    [
        ({"seed": 1, "corpus": "abc"}, r"--resume: .*step-00000001: seed is 1 and was 0"),
        ({"seed": 0, "corpus": "xyz"}, r": corpus is 'xyz'.*'abc'"),
        ({"seed": 0}, r": corpus is None"),
        ({**IDENTITY, "objective": "mlm"}, r": objective is 'mlm'"),
    ],
)
def test_another_run_is_not_resumed(identity, message) -> None:
    with pytest.raises(InputError, match=message):
        check_identity(ours=identity, theirs=IDENTITY, allowed=[], checkpoint="runs/a/checkpoints/step-00000001")
    with pytest.raises(InputError, match=r"--allow_change sead is unknown; known are .*seed"):
        check_identity(ours=identity, theirs=IDENTITY, allowed=["sead", "seed"], checkpoint="")


def test_the_newest_are_kept(trained, save, tmp_path) -> None:
    model, optimizers = trained(steps=1)
    for step in (1, 2, 10, 3000):
        save(model, optimizers, step=step, keep=2)
    assert sorted(path.name for path in (tmp_path / "checkpoints").iterdir()) == ["step-00000010", "step-00003000"]


def test_one_that_is_held_stays_until_the_end(trained, save, saver_of, tmp_path) -> None:
    """While it is pushed it must not vanish, and after the run nobody would remove it."""
    model, optimizers = trained(steps=1)
    saver = saver_of(model=model, keep=1)
    saver.held = {saver.folder / "step-00000001"}
    for step in (1, 2, 3):
        save(model, optimizers, step=step, saver=saver)
    there = [*(tmp_path / "checkpoints").glob("step-*")]
    assert sorted(path.name for path in there) == ["step-00000001", "step-00000003"]
    saver.held.clear()
    saver.close()
    assert [path.name for path in (tmp_path / "checkpoints").iterdir()] == ["step-00000003"]


def test_the_best_is_one_that_was_evaluated_to_a_number(tmp_path) -> None:
    folders = []
    for number, metric in enumerate([0.5, math.nan, 0.4, math.inf, None, 0.9]):
        folders.append(tmp_path / f"step-{number}")
        (folders[-1] / STATE).mkdir(parents=True)
        (folders[-1] / STATE / "progress.json").write_text(json.dumps({"metric": metric}))
    assert best_checkpoint(folders, greater_is_better=False) == folders[2]
    assert best_checkpoint(folders, greater_is_better=True) == folders[5]
    (folders[2] / STATE / "progress.json").write_text("rubbish")
    assert best_checkpoint(folders, greater_is_better=False) == folders[0]
    assert best_checkpoint(folders[1:2], greater_is_better=False) is None


def test_a_broken_later_one_does_not_push_out_whole_ones(trained, save, tmp_path) -> None:
    """Step 9 is broken, the run went on from step 3: with room for one, what is written now is the one to keep."""
    model, optimizers = trained(steps=1)
    save(model, optimizers, step=3, keep=1)
    broken = save(model, optimizers, step=9, keep=3)
    (broken / "model.safetensors").write_bytes(b"")
    written = save(model, optimizers, step=5, keep=1)
    assert newest_checkpoint(tmp_path)[0] == written
    save(model, optimizers, step=9, keep=1)
    assert newest_checkpoint(tmp_path) == (broken, [])
    assert [path.name for path in (tmp_path / "checkpoints").iterdir()] == ["step-00000009"]


@pytest.mark.parametrize("where", ["Saver.save_model", "save_file", "sha256"])
def test_a_full_disk_leaves_older_checkpoints_and_nothing_else(trained, save, tmp_path, monkeypatch, where) -> None:
    model, optimizers = trained(steps=1)
    older = save(model, optimizers, step=1)

    def full(*args, **kwargs):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(f"lacuna.training.checkpoints.saving.{where}", full)
    with pytest.raises(StorageError, match=r"step-00000002.*No space left") as raised:
        save(model, optimizers, step=2)
    assert raised.value.exit_code == 5
    monkeypatch.undo()
    assert newest_checkpoint(tmp_path) == (older, [])
    assert [path.name for path in (tmp_path / "checkpoints").iterdir()] == [older.name]


def test_a_checkpoint_is_read_back_once_it_is_written(trained, save, tmp_path, monkeypatch) -> None:
    """A disk that keeps another byte than it was given is told from a good one while older checkpoints are there."""
    model, optimizers = trained(steps=1)
    older = save(model, optimizers, step=1)

    def lose_a_bit(path: Path) -> None:
        if path.name == "model.safetensors":
            content = path.read_bytes()
            path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))

    with monkeypatch.context() as patched:
        patched.setattr("lacuna.training.checkpoints.saving.sync", lose_a_bit)
        with pytest.raises(
            StorageError, match=r"not what the disk gives back: .*the content of model\.safetensors has"
        ):
            save(model, optimizers, step=2, keep=1)
    assert newest_checkpoint(tmp_path)[0] == older
    newer = save(model, optimizers, step=2, keep=1)
    assert newest_checkpoint(tmp_path) == (newer, [])


def test_a_power_cut_finds_all_on_disk_before_the_folder_and_before_the_marker(trained, save, monkeypatch) -> None:
    """What is not flushed before a rename may be empty after a power cut; so may the entries of a folder."""
    flushed: list[int] = []  # inodes, which a rename keeps; -1 is the rename of the folder
    flush, rename = os.fsync, Path.rename

    def fsync(number: int) -> None:
        flushed.append(os.fstat(number).st_ino)
        flush(number)

    def renamed(path: Path, target: Path) -> Path:
        flushed.append(-1)
        return rename(path, target)

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(Path, "rename", renamed)
    folder = save(*trained(), step=1)
    before, after = flushed[: flushed.index(-1)], flushed[flushed.index(-1) + 1 :]
    marker = folder / MARKER
    assert {path.stat().st_ino for path in [folder, *folder.rglob("*")] if path != marker} <= {*before}
    assert after == [path.stat().st_ino for path in (folder.parent, marker, marker.parent)]


def test_one_number_that_is_not_finite_among_many_weights_is_seen() -> None:
    good = {"a": torch.zeros(3), "b": torch.ones(2, 2), "count": torch.tensor(1)}
    assert all_finite(good)
    for bad in (math.nan, math.inf, -math.inf):
        assert not all_finite(good | {"b": torch.tensor([[0.0, bad], [0.0, 0.0]])})


def test_a_disk_with_too_little_room_is_not_written_to(trained, save, monkeypatch) -> None:
    model, optimizers = trained(steps=1)
    tensors = [*full_model_state(model).values(), *full_optimizer_state(model, optimizers).values()]
    needed = 1.05 * sum(tensor.nbytes for tensor in tensors)
    monkeypatch.setattr("shutil.disk_usage", lambda folder: SimpleNamespace(free=needed - 2))
    with pytest.raises(StorageError, match="MB are needed"):
        save(model, optimizers, step=1)
    monkeypatch.setattr("shutil.disk_usage", lambda folder: SimpleNamespace(free=int(needed)))
    save(model, optimizers, step=1)


@pytest.mark.parametrize(("kind", "is_less"), [(LacunaForMaskedLM, False), (LacunaForPreTraining, True)])
def test_only_a_sentence_head_is_lost_on_the_way_home(kind, is_less) -> None:
    native, said = native_form(kind(LacunaConfig.from_family("modernbert", "tiny", vocab_size=32)), "native")
    assert type(native).__name__ == "ModernBertForMaskedLM"
    assert ("it has no place for the sentence head" in said) is is_less


def test_what_a_killed_writer_left_is_cleared_away(trained, save, tmp_path) -> None:
    stale = tmp_path / "checkpoints" / ".step-00000002.tmp"
    stale.mkdir(parents=True)
    (stale / "model.safetensors").write_bytes(b"half")
    save(*trained(steps=1), step=5)
    assert [path.name for path in (tmp_path / "checkpoints").iterdir()] == ["step-00000005"]


def test_small_files_are_whole_or_not_there(tmp_path, monkeypatch) -> None:
    path = tmp_path / "deep" / "results.json"
    write_text(path, "old\n")
    with monkeypatch.context() as patched:
        patched.setattr("os.fsync", lambda descriptor: (_ for _ in ()).throw(OSError(errno.ENOSPC, "full")))
        with pytest.raises(StorageError, match=r"results\.json: full"):
            write_text(path, "new\n")
    assert path.read_text() == "old\n"
    write_text(path, "newer\n")
    assert path.read_text() == "newer\n"


def test_tied_weights_are_written_once_and_tied_again(trained, save) -> None:
    model, optimizers = trained(steps=1)
    folder = save(model, optimizers, step=1)
    assert "cls.predictions.decoder.weight" not in load_file(folder / "model.safetensors")
    other, others = trained(steps=1, seed=9)
    restore(checkpoint=folder, model=other, optimizers=others)
    assert other.cls.predictions.decoder.weight is other.bert.embeddings.word_embeddings.weight


def test_what_differs_between_runs_is_told_by_its_part() -> None:
    ours, theirs = {"a": 1, "b": {"c": 2}}, {"a": 1, "b": {"c": 3}}
    assert _differences("model", ours, theirs) == ["model.b.c is 2 and was 3"]
    assert _differences("model.b", ours["b"], None) == ["model.b is {'c': 2} and was None"]
    assert _differences("model.b", None, theirs["b"]) == ["model.b is None and was {'c': 3}"]


def test_the_folder_of_a_run_that_is_new_is_made(trained, save, saver_of, tmp_path) -> None:
    model, optimizers = trained(steps=1)
    save(model, optimizers, step=1, saver=saver_of(model=model, keep=1, output_dir=tmp_path / "new" / "run"))
    assert newest_checkpoint(tmp_path / "new" / "run")[0].name == "step-00000001"
