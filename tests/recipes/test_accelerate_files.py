"""recipes/accelerate/*.yaml: accelerate reads them, and starts what their comments say."""

import shlex
from argparse import Namespace
from pathlib import Path

import pytest
import yaml
from accelerate.commands.config.config_args import load_config_from_file
from accelerate.commands.launch import _validate_launch_command, launch_command_parser
from accelerate.utils.launch import prepare_multi_gpu_env

from lacuna.training.distributed import fsdp

REPOSITORY = Path(__file__).resolve().parents[2]
FOLDER = REPOSITORY / "recipes" / "accelerate"
FILES = {
    "cpu": ("NO", 1, 1),
    "ddp": ("MULTI_GPU", 1, 2),
    "fsdp2": ("FSDP", 1, 2),
    "multi_node": ("MULTI_GPU", 2, 16),
}


def commands(name: str) -> list[list[str]]:
    """The commands in a file's comment, as a shell would divide them."""
    lines = [line[6:] for line in (FOLDER / f"{name}.yaml").read_text().splitlines() if line.startswith("#     ")]
    return [shlex.split(command) for command in "\n".join(lines).replace("\\\n", "").splitlines()]


def launched(words: list[str]) -> Namespace:
    """What accelerate understands of a command line `accelerate launch WORDS`."""
    args, _, _ = _validate_launch_command(launch_command_parser().parse_args(words))
    return args


def test_there_is_a_file_for_each_way() -> None:
    assert sorted(path.stem for path in FOLDER.iterdir()) == sorted(FILES)


@pytest.mark.parametrize("name", FILES)
def test_accelerate_reads_the_file(name) -> None:
    config = load_config_from_file(str(FOLDER / f"{name}.yaml"))
    kind, machines, processes = FILES[name]
    assert (config.distributed_type.value, config.num_machines, config.num_processes) == (kind, machines, processes)
    assert config.mixed_precision == "no" and config.use_cpu == (name == "cpu")


@pytest.mark.parametrize("name", FILES)
def test_its_commands_start_what_they_say(monkeypatch, name) -> None:
    monkeypatch.chdir(REPOSITORY)
    started = [command for command in commands(name) if command[0] == "accelerate"]
    assert len(started) == 1 and started[0][1] == "launch"
    args = launched(started[0][2:])
    assert args.training_script == "recipes/pretrain.py"
    assert args.config_file == f"recipes/accelerate/{name}.yaml"
    assert args.multi_gpu == (name in ("ddp", "multi_node")) and args.use_fsdp == (name == "fsdp2")
    assert args.num_processes == {"cpu": 1, "ddp": 8, "fsdp2": 8, "multi_node": 16}[name]
    if name == "multi_node":
        assert (args.num_machines, args.machine_rank, args.main_process_ip) == (2, 0, "10.0.0.1")


def test_the_file_for_sharding_asks_for_sharding(monkeypatch) -> None:
    """What accelerate puts into the environment of the processes is what `sharding` reads."""
    for name in ("ddp", "fsdp2"):
        args = launched(["--config_file", str(FOLDER / f"{name}.yaml"), "recipes/pretrain.py"])
        environment = prepare_multi_gpu_env(args)
        for variable in ("ACCELERATE_USE_FSDP", "FSDP_VERSION"):
            monkeypatch.delenv(variable, raising=False)
        for variable in [variable for variable in environment if variable.startswith(("ACCELERATE_USE", "FSDP_"))]:
            monkeypatch.setenv(variable, environment[variable])
        assert fsdp.asked_for() == (name == "fsdp2")


def test_what_torchrun_is_given_by_hand_asks_for_sharding_too(monkeypatch) -> None:
    by_hand = next(command for command in commands("fsdp2") if command[0].startswith("ACCELERATE"))
    for word in by_hand[: by_hand.index("torchrun")]:
        monkeypatch.setenv(*word.split("="))
    assert fsdp.asked_for()


@pytest.mark.parametrize("setting", ["fsdp_offload_params", "fsdp_activation_checkpointing", "fsdp_version"])
def test_a_setting_that_is_not_carried_out_is_refused(monkeypatch, tmp_path, setting) -> None:
    content = yaml.safe_load((FOLDER / "fsdp2.yaml").read_text())
    content["fsdp_config"][setting] = 1 if setting == "fsdp_version" else True
    (tmp_path / "changed.yaml").write_text(yaml.safe_dump(content))
    environment = prepare_multi_gpu_env(launched(["--config_file", str(tmp_path / "changed.yaml"), "x.py"]))
    for variable in [variable for variable in environment if variable.startswith(("ACCELERATE_USE", "FSDP_"))]:
        monkeypatch.setenv(variable, environment[variable])
    with pytest.raises(ValueError, match=setting):
        fsdp.asked_for()
