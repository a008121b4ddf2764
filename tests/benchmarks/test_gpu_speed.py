"""The benchmark for a GPU: that every contender runs on a CPU and the report hangs together; and what it counts."""

import json
import os
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest
import torch

REPOSITORY = Path(__file__).resolve().parents[2]
BENCHMARKS = REPOSITORY / "benchmarks"
GOALS = {"encoder-150m": 400_000, "decoder-124m": 0.5, "encoder-32m": 900_000}


def run(*words: object, cwd: Path, first: Path | None = None) -> subprocess.CompletedProcess[str]:
    """The benchmark in a new process, which looks for modules in `first` before anywhere else."""
    folders = [str(folder) for folder in (first, REPOSITORY) if folder is not None]
    command = [sys.executable, str(BENCHMARKS / "gpu_speed.py"), *map(str, words)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(folders)}
    return subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True)


@pytest.fixture(autouse=True)
def importable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    monkeypatch.setattr(sys, "argv", ["gpu_speed.py"])


def test_every_contender_runs_and_is_reported(tmp_path: Path) -> None:
    # The machines that it is written for have neither of these.
    barred = tmp_path / "barred"
    for name in ("datasets", "evaluate"):
        (barred / name).mkdir(parents=True)
        (barred / name / "__init__.py").write_text("raise ImportError('not on this machine')\n")
    done = run("--smoke", "--output_dir", tmp_path / "out", cwd=tmp_path, first=barred)
    assert done.returncode == 0, done.stderr
    (path,) = (tmp_path / "out").glob("*-gpu_speed.json")
    report = json.loads(path.read_text())
    assert {name: part["goal"][1] for name, part in report["parts"].items()} == GOALS
    for part in report["parts"].values():
        assert next(iter(part["contenders"])) == "lacuna" and len(part["contenders"]) >= 6
        failed = {name: facts["error"] for name, facts in part["contenders"].items() if "error" in facts}
        assert set(failed) <= {"lacuna, one text, cuDNN"}, failed  # no CPU has it
        for name, facts in part["contenders"].items():
            if name not in failed:
                assert len(facts["by_round"]) == 2 and min(facts["by_round"]) > 0 and facts["mfu"] > 0
    assert report["memory"]["found"]["lacuna"]["rows"] == report["memory"]["found"]["bert"]["rows"] == 8
    assert report["machine"]["commit"] and report["machine"]["torch"]
    table = path.with_suffix(".md").read_text()
    assert "goal 400,000 tokens/s, missed" in table and "goal 50% of the peak" in table


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_it_says_so() -> None:
    import gpu_speed

    with pytest.raises(SystemExit, match="--smoke"):
        gpu_speed.main()


def test_rows_are_full_and_documents_are_those_of_the_positions() -> None:
    from gpu_contenders import Contender, Shape, as_given, build_lacuna, make_batch

    shape = Shape("decoder", 2, 16, 2, 96, 64, rows=5)
    batch, lengths = make_batch(shape, rows=5, seed=1)
    assert sum(lengths) == 5 * 64 and len(lengths) > 5
    assert int((batch["position_ids"] == 0).sum()) == len(lengths)
    given = as_given(batch, Contender("lacuna", build_lacuna, "packed"), kind="decoder")
    bounds = given["document_bounds"].tolist()
    assert [end - start for start, end in pairwise(bounds)][: len(lengths)] == lengths
    assert len(given["target_positions"]) == 5 * 64 - len(lengths)
    assert set(as_given(batch, Contender("gpt2", build_lacuna), kind="decoder")) == {"input_ids", "labels"}


def test_operations_by_hand() -> None:
    """Two documents of 3 and 5 tokens; 6 operations a weight, 12 times the width for a pair."""
    from gpu_contenders import Contender, Shape, build_gpt2, build_lacuna, build_plain, operations

    shape = Shape("decoder", 2, 16, 2, 96, 8, rows=1)
    weights = 2 * (3 * 16 * 16 + 16 * 16 + 2 * 4 * 16 * 16) + 96 * 16
    for build, form, pairs in (
        (build_plain, "rows", 36),
        (build_gpt2, "rows", 36),
        (build_lacuna, "rows", 36),
        (build_lacuna, "packed", 6 + 15),
    ):
        counted = operations(build(shape), Contender("lacuna", build, form), shape, lengths=[3, 5])
        expected = 6 * weights * 8 + 2 * 12 * 16 * pairs
        assert counted == pytest.approx(expected, rel=0.05), build


def test_the_plain_model_learns_from_what_is_before() -> None:
    from plain_gpt import PlainGPT, PlainShape

    torch.manual_seed(0)
    model = PlainGPT(PlainShape(vocab_size=40, length=8, layers=1, heads=2, width=16))
    ids = torch.randint(5, 40, (2, 8))
    assert model(ids, ids).item() == pytest.approx(3.69, abs=0.1)  # log 40
    model(ids, ids).backward()
    assert all(parameter.grad is not None for parameter in model.parameters())
    later = ids.clone()
    later[:, -1] = 7
    labels = torch.full_like(ids, -100)
    labels[:, 1:4] = ids[:, 1:4]
    torch.testing.assert_close(model(ids, labels), model(later, labels))
