"""A save that dies between any two file operations, disks that fill up, and checkpoints that somebody has touched."""

import hashlib
import json
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import processes
import pytest
from examples import fast
from toy import Toy, count

from lacuna.common.errors import CorruptCheckpointError
from lacuna.training.checkpoints.saving import newest_checkpoint, verify_checkpoint


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The checkpoints of steps 3 and 6."""
    toy = Toy(tmp_path_factory.mktemp("saved"))
    assert toy.run(max_steps=6).returncode == 0
    assert toy.checkpoints() == ["step-00000003", "step-00000006"]
    return toy.output_dir / "checkpoints"


@pytest.fixture(scope="module")
def num_operations(saved: Path, tmp_path_factory: pytest.TempPathFactory) -> int:
    """How many there are in a save that ends well."""
    output = tmp_path_factory.mktemp("whole")
    shutil.copytree(saved, output / "checkpoints")
    done = processes.run("tests/faults/killed_save.py", output, 10_000)
    assert done.returncode == 0, done.stderr
    return int(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("part", fast(range(4), 0))
def test_killed_between_any_two_file_operations_of_a_save(
    saved: Path, num_operations: int, tmp_path: Path, part: int
) -> None:
    """Step 9 is written beside steps 3 and 6, of which the best may stay; a quarter of the operations in each test."""
    assert num_operations > 30
    for number in range(part, num_operations, 4):
        output = tmp_path / str(number)
        shutil.copytree(saved, output / "checkpoints")
        done = processes.run("tests/faults/killed_save.py", output, number)
        count()
        assert done.returncode == -9, done.stderr
        found, passed_over = newest_checkpoint(output)
        assert found is not None and found.name in ("step-00000006", "step-00000009")
        for message in passed_over:
            assert "was not finished" in message or "step-00000003" in message
        verify_checkpoint(found)
        if number % 3:
            continue
        again = processes.run("tests/faults/killed_save.py", output, 10_000)
        assert again.returncode == 0, again.stderr
        names = sorted(path.name for path in (output / "checkpoints").iterdir())
        assert names == ["step-00000006", "step-00000009"], number  # step 6 is the best: it was evaluated


def test_a_run_goes_on_from_the_one_before_a_half_one(toy: Toy, undisturbed: dict[str, Any]) -> None:
    assert toy.run("kill@8", "slow@100").returncode == -9
    newest = toy.output_dir / "checkpoints" / "step-00000006"
    (newest / "training_state" / "complete").unlink()
    count()
    done = toy.run(resume=True)
    assert done.returncode == 0 and "step-00000006 was not finished" in done.stderr
    assert "resuming from" in done.stderr and "step-00000003 at step 3" in done.stderr
    assert toy.oracle() == undisturbed


DAMAGES: dict[str, Callable[[bytes], bytes | None]] = {
    "missing": lambda content: None,
    "empty": lambda content: b"",
    "truncated": lambda content: content[: len(content) // 2],
    "a byte short": lambda content: content[:-1],
    "a bit flipped": lambda content: content[:-2] + bytes([content[-2] ^ 4]) + content[-1:],
    "its tail zeroed": lambda content: content[: len(content) // 2] + bytes(len(content) - len(content) // 2),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_every_file_of_a_checkpoint(saved: Path, tmp_path: Path, damage: str) -> None:
    shutil.copytree(saved, tmp_path / "checkpoints")
    folder = tmp_path / "checkpoints" / "step-00000006"
    files = [path for path in folder.rglob("*") if path.is_file()]
    assert len(files) >= 8
    for path in files:
        content = path.read_bytes()
        damaged = DAMAGES[damage](content)
        path.unlink() if damaged is None else path.write_bytes(damaged)
        count()
        found, passed_over = newest_checkpoint(tmp_path)
        assert found is not None and found.name == "step-00000003" and len(passed_over) == 1, path.name
        path.write_bytes(content)
    assert newest_checkpoint(tmp_path) == (folder, [])


def test_a_file_too_many(saved: Path, tmp_path: Path) -> None:
    shutil.copytree(saved, tmp_path / "checkpoints")
    for folder in ("", "training_state"):
        extra = tmp_path / "checkpoints" / "step-00000006" / folder / "more.safetensors"
        extra.write_bytes(b"")
        count()
        found, (message,) = newest_checkpoint(tmp_path)
        assert found is not None and found.name == "step-00000003" and "more.safetensors" in message
        extra.unlink()


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def sealed(folder: Path) -> None:
    """Write manifest and mark anew, as somebody would who wants a checkpoint to be taken."""
    state = folder / "training_state"
    files = {
        path.relative_to(folder).as_posix(): {"bytes": path.stat().st_size, "sha256": digest(path)}
        for path in folder.rglob("*")
        if path.is_file() and path.name not in ("manifest.json", "complete")
    }
    (state / "manifest.json").write_text(json.dumps(files))
    (state / "complete").write_text(digest(state / "manifest.json") + "\n")


def add_pickle(folder: Path) -> None:
    (folder / "training_state" / "rng_state.pth").write_bytes(b"cos\nsystem\n(S'touch canary'\ntR.")


def add_index(folder: Path) -> None:
    index = {"metadata": {}, "weight_map": {"a": "../../step-00000003/model.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


def add_broken_index(folder: Path) -> None:
    (folder / "model.safetensors.index.json").write_text('{"metadata": {}')


def add_link(folder: Path) -> None:
    (folder / "extra.json").symlink_to("/etc/hostname")


@pytest.mark.parametrize(
    ("attack", "message"),
    [
        (add_pickle, "rng_state.pth"),
        (add_index, "names '../../step-00000003"),
        (add_broken_index, "model.safetensors.index.json cannot be read"),
        (add_link, "extra.json is a link"),
    ],
)
def test_what_is_not_ours_is_refused_though_its_hashes_are_right(
    saved: Path, tmp_path: Path, attack: Callable[[Path], None], message: str
) -> None:
    shutil.copytree(saved, tmp_path / "checkpoints")
    folder = tmp_path / "checkpoints" / "step-00000006"
    attack(folder)
    sealed(folder)
    count()
    with pytest.raises(CorruptCheckpointError, match=message):
        verify_checkpoint(folder)


def test_names_in_a_manifest_do_not_lead_out(saved: Path, tmp_path: Path) -> None:
    shutil.copytree(saved, tmp_path / "checkpoints")
    folder = tmp_path / "checkpoints" / "step-00000006"
    state = folder / "training_state"
    files = json.loads((state / "manifest.json").read_text())
    files["../step-00000003/model.safetensors"] = files["model.safetensors"]
    (state / "manifest.json").write_text(json.dumps(files))
    count()
    with pytest.raises(CorruptCheckpointError, match="has changed"):
        verify_checkpoint(folder)
    (state / "complete").write_text(digest(state / "manifest.json") + "\n")
    with pytest.raises(CorruptCheckpointError, match=r"names '\.\./step-00000003/model.safetensors', which is never"):
        verify_checkpoint(folder)


def test_a_run_with_no_whole_checkpoint_is_exit_code_3(toy: Toy) -> None:
    assert toy.run("kill@8", "slow@100").returncode == -9
    for path in toy.output_dir.glob("checkpoints/*/config.json"):
        path.write_text("{}")
        count()
    done = toy.run(resume=True)
    assert done.returncode == 3 and "no checkpoint can be resumed" in done.stderr and "Traceback" not in done.stderr


def in_namespace(toy: Toy, before: str, *words: object) -> subprocess.CompletedProcess[str]:
    """Run in a user namespace of its own, where a shell may mount what it likes first; the end lists the folder."""
    count()
    return processes.run("tests/faults/in_namespace.py", before, toy.folder, *words)


needs_namespaces = pytest.mark.skipif(
    shutil.which("unshare") is None or subprocess.run(["unshare", "-rm", "true"], capture_output=True).returncode != 0,
    reason="no user namespaces here",
)


@needs_namespaces
def test_a_disk_that_is_full_keeps_the_older_checkpoint_and_the_run(toy: Toy, saved: Path) -> None:
    """Room for the first checkpoint and half of the next: two that fail are a warning each, a third ends the run."""
    toy.folder.mkdir(parents=True)
    files = [path.stat().st_size for path in (saved / "step-00000006").rglob("*") if path.is_file()]
    room = sum(-(-size // 4096) * 4096 for size in files)
    mount = f"mount -t tmpfs -o size={int(1.6 * room) + 100_000} tmpfs {toy.folder}"
    done = in_namespace(toy, mount, *toy.words(save_steps=2))
    assert done.returncode == 5, done.stderr
    assert "MB are needed in" in done.stderr or "No space left" in done.stderr
    assert "training continues, older checkpoints are intact" in done.stderr and "Traceback" not in done.stderr
    assert "step-00000002/training_state/complete" in done.stderr


@needs_namespaces
def test_an_output_folder_that_may_only_be_read_is_said_before_the_first_step(toy: Toy) -> None:
    assert toy.run("kill@5", "saved@0").returncode == -9
    seen = (toy.folder / "seen-0.txt").read_text()
    mount = f"mount --bind {toy.output_dir} {toy.output_dir} && mount -o remount,ro,bind {toy.output_dir}"
    done = in_namespace(toy, mount, *toy.words(resume=True))
    assert done.returncode == 5, done.stderr
    assert (
        f"error: --output_dir {toy.output_dir}: no permission to write" in done.stderr
        and "Traceback" not in done.stderr
    )
    assert (toy.folder / "seen-0.txt").read_text() == seen


@needs_namespaces
def test_checkpoints_that_may_only_be_read_end_the_run_at_the_third(toy: Toy) -> None:
    """As a disk does whose file system has found an error and goes on for reading only."""
    assert toy.run("kill@5", "saved@0").returncode == -9
    there = toy.output_dir / "checkpoints"
    done = in_namespace(
        toy, f"mount --bind {there} {there} && mount -o remount,ro,bind {there}", *toy.words(resume=True, save_steps=2)
    )
    assert done.returncode == 5, done.stderr
    assert "Read-only file system" in done.stderr and "Traceback" not in done.stderr
    assert done.stderr.count("training continues, older checkpoints are intact") == 2
    assert toy.checkpoints() == ["step-00000003"]


@pytest.mark.parametrize("limit", [20_000, 130_000])
def test_a_file_that_may_not_grow_further_is_a_failed_save(toy: Toy, saved: Path, limit: int) -> None:
    """As of a quota, of which the free space says nothing; libraries in Rust raise errors of their own for it."""
    folder = saved / "step-00000006"
    sizes = [(folder / name).stat().st_size for name in ("model.safetensors", "training_state/optimizer.safetensors")]
    assert 20_000 < sizes[0] < 130_000 < sizes[1]
    done = toy.run(f"file_limit@{limit}", save_steps=2)
    assert done.returncode == 5, done.stderr
    assert (
        "Traceback" not in done.stderr and done.stderr.count("training continues, older checkpoints are intact") == 2
    )
    assert not list(toy.output_dir.rglob("*.tmp"))
    final = Toy(toy.folder / "final")
    done = final.run(f"file_limit@{limit}", save_steps=0)
    if limit < sizes[0]:
        assert done.returncode == 5 and "error: cannot write the model to" in done.stderr
        assert not list(final.output_dir.rglob("*.tmp")) and "Traceback" not in done.stderr
    else:
        assert done.returncode == 0, done.stderr


def test_an_older_checkpoint_that_is_spoilt_does_not_end_the_run(toy: Toy, undisturbed: dict[str, Any]) -> None:
    done = toy.run("spoil@5", "saved@0")
    assert done.returncode == 0, done.stderr
    assert toy.oracle() == undisturbed


def test_a_checkpoint_that_is_there_and_whole_is_not_written_again(saved: Path, tmp_path: Path) -> None:
    """As it would be of a run that is stopped in an evaluation after the step that it was saved at."""
    output = tmp_path / "run"
    shutil.copytree(saved, output / "checkpoints")
    assert processes.run("tests/faults/killed_save.py", output, 10_000).returncode == 0
    again = processes.run("tests/faults/killed_save.py", output, 10_000)
    assert again.returncode == 0 and int(again.stdout.splitlines()[-1]) == 0
    # One that is not whole is: killed anywhere, the one before stays.
    broken = output / "checkpoints" / "step-00000009" / "model.safetensors"
    broken.write_bytes(broken.read_bytes()[:-1])
    for number in range(0, 60, 6):
        done = processes.run("tests/faults/killed_save.py", output, number)
        count()
        assert done.returncode in (-9, 0)
        found, _ = newest_checkpoint(output)
        assert found is not None and found.name in ("step-00000006", "step-00000009")


def test_an_output_folder_that_goes_away_is_a_storage_error(toy: Toy) -> None:
    done = toy.run("remove_output@2", save_steps=1)
    assert done.returncode in (0, 5), done.stderr
    assert "Traceback" not in done.stderr
    if done.returncode == 0:  # it could be made anew, and holds what came after
        assert toy.checkpoints()[-1] == "step-00000012"
