"""A plan of a run, as people ask for it; and the page that shows how."""

import re
import shlex
from collections.abc import Callable
from pathlib import Path

import pytest
from processes import run

REPOSITORY = Path(__file__).resolve().parents[2]
PAGE = (REPOSITORY / "docs" / "planning.md").read_text(encoding="utf-8")
COMMANDS = re.findall(r"^\$ (python recipes/plan_run\.py.*)$", PAGE, flags=re.MULTILINE)


@pytest.fixture(scope="module")
def workplace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a text, the recipes and a cache of its own."""
    folder = tmp_path_factory.mktemp("plan")
    (folder / "recipes").symlink_to(REPOSITORY / "recipes")
    (folder / "my_texts").mkdir()
    for number in range(6):
        text = " ".join(f"Sentence {i} of text {number} speaks of river {number * i % 7}." for i in range(60))
        (folder / "my_texts" / f"{number}.txt").write_text(text)
    return folder


@pytest.fixture
def plan(workplace: Path, typed, monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[int, str, str]]:
    """Runs the recipe there."""
    monkeypatch.chdir(workplace)
    monkeypatch.setenv("LACUNA_CACHE", str(workplace / "cache"))
    return lambda *words: typed("plan_run", *words)


def number_after(name: str, text: str) -> float:
    found = re.search(rf"^  {name} +([\d.,e+]+)", text, flags=re.MULTILINE)
    assert found, (name, text)
    return float(found[1].replace(",", ""))


def test_a_plan_trains_nothing(workplace: Path, plan) -> None:
    words = ["--data", "my_texts", "--vocab_size", "300", "--batch_size", "8", "--max_steps", "20"]
    # Of this family checkpoints hold a native model and our weights.
    words += ["--optimizer", "adamw", "--num_hidden_layers", "1", "--family", "modernbert"]
    code, said, errors = plan(*words, "--device", "H100", "--mfu", "0.1")
    assert code == 0, errors[-2000:]
    assert {path.name for path in workplace.iterdir()} == {"recipes", "my_texts", "cache"}
    step, whole = number_after("operations of a step", said), number_after("operations of the run", said)
    assert number_after("steps", said) == 20 and whole == pytest.approx(20 * step, rel=1e-3)
    assert "if training reaches 10% of the peak" in said and "989.40 TFLOP/s of H100 in bf16" in said
    assert number_after("largest micro-batch", said) == 8 and "fits into 80.0 GB of H100" in said
    assert number_after("a checkpoint", said) == pytest.approx(4 * number_after("the final model", said), rel=0.02)


def test_checkpoints_are_counted_where_there_are_any(plan) -> None:
    words = ["--data", "my_texts", "--vocab_size", "300", "--batch_size", "8", "--max_steps", "20"]
    # Of this one they hold no native copy of the weights.
    words += ["--optimizer", "adamw", "--num_hidden_layers", "1", "--family", "lacuna"]
    with_gpu, with_cpu, never = (
        plan(*words, *more)[1]
        for more in (["--device", "T4"], ["--device", "cpu"], ["--device", "T4", "--save_steps", "0"])
    )
    size = number_after("a checkpoint", never)
    assert "written only if the run is stopped" in never and "newest" not in never
    assert "checkpoint copy" not in never
    for said, where in ((with_gpu, "in the host's memory"), (with_cpu, "written while training continues")):
        assert number_after("checkpoint copy", said) == size and where in said
        assert number_after("checkpoints", said) == pytest.approx(4 * size, rel=0.01)
        assert "4 at most: the newest 2, the best, one being written" in said
    assert re.search(r"^  gradients .* at the fullest moment, with all else", with_cpu, flags=re.MULTILINE)


def test_what_does_not_fit_is_said_and_so_is_what_does(plan) -> None:
    words = ["--data", "my_texts", "--vocab_size", "300", "--objective", "clm", "--device", "T4", "--max_steps", "5"]
    words += ["--optimizer", "adamw", "--num_hidden_layers", "1"]
    words += ["--memory_gb", "0.8", "--num_devices", "2", "--batch_size", "64,128", "--batch_size_at", "0,0.5"]
    code, said, errors = plan(*words)
    assert code == 0, errors[-2000:]
    assert "does NOT fit into 0.8 GB of T4" in said and "at once, in fp16" in said
    assert re.search(r"largest micro-batch from 0.5 of the run +\d+  of the 64 that a process has", said)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--device", "H900"], "--device H900 is not known"),
        (["--mfu", "1.5"], "--mfu must be above 0 and at most 1"),
        (["--memory_gb", "0"], "--memory_gb must be greater than 0"),
        (["--num_devices", "3", "--device", "A100"], "--batch_size 64 cannot be shared evenly by 3 processes"),
        (["--famly", "bert"], "did you mean '--family'"),
    ],
)
def test_mistakes_have_one_message(plan, words: list[str], message: str) -> None:
    code, _, said = plan("--data", "my_texts", "--vocab_size", "300", *words)
    assert code == 2 and message in said and "Traceback" not in said
    assert len(said.strip().splitlines()) == 1


def test_help_says_what_it_does() -> None:
    done = run("recipes/plan_run.py", "--help")
    assert done.returncode == 0
    for word in ("--mfu", "--memory_gb", "--num_devices", "--device", "--objective", "without training"):
        assert word in done.stdout


def test_the_page_has_commands() -> None:
    assert len(COMMANDS) >= 3


@pytest.mark.slow
@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_of_the_page_runs(command: str, plan) -> None:
    words = shlex.split(command)[2:]
    if command == COMMANDS[0]:
        words += ["--data", "my_texts"]  # for speed: the page means the built-in text, which large batches need
    code, said, errors = plan(*words)
    assert code == 0, errors[-2000:]
    assert "operations of the run" in said
