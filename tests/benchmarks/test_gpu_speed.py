"""The benchmark for a GPU: that every contender runs on a CPU and the report hangs together; and what it counts."""

import json
import os
import subprocess
import sys
from dataclasses import replace
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


@pytest.mark.slow
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
        assert next(iter(part["contenders"])) == "lacuna" and len(part["contenders"]) >= 3
        for facts in part["contenders"].values():
            assert "error" not in facts, facts
            assert len(facts["by_round"]) == 2 and min(facts["by_round"]) > 0 and facts["mfu"] > 0
    assert report["machine"]["commit"] and report["machine"]["torch"]
    table = path.with_suffix(".md").read_text()
    assert "goal tokens_per_second 400000, missed" in table and "goal mfu 0.5" in table


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_it_says_so() -> None:
    import gpu_speed

    with pytest.raises(SystemExit, match="--smoke"):
        gpu_speed.main()


def test_rows_are_full_and_documents_are_those_of_the_positions() -> None:
    from contenders import GPU, Shape
    from gpu_speed import make_batch

    shape, decoders = Shape(16, 2, 2, 96, 64), GPU["decoder-124m"]
    batch, lengths = make_batch(shape, decoders["lacuna"], rows=5, seed=1)
    assert sum(lengths) == 5 * 64 and len(lengths) > 5
    assert int((batch["position_ids"] == 0).sum()) == len(lengths)
    bounds = batch["document_bounds"].tolist()
    assert [end - start for start, end in pairwise(bounds)][: len(lengths)] == lengths
    assert len(batch["target_positions"]) == 5 * 64 - len(lengths)
    theirs, _ = make_batch(shape, decoders["gpt2"], rows=5, seed=1)
    assert set(theirs) == {"input_ids", "labels"} and torch.equal(theirs["input_ids"], batch["input_ids"])


@pytest.mark.parametrize("name", ["encoder-150m", "decoder-124m"])
def test_contenders_of_a_table_train_on_the_same_rows(name: str) -> None:
    from contenders import GPU
    from gpu_speed import PARTS, TINY, make_ready

    part = PARTS[name]
    part = replace(part, rows=2, shape=replace(part.shape, **TINY, inner=24 if part.shape.inner else 0))
    ready = {title: make_ready(contender, part, may_compile=False)[0] for title, contender in GPU[name].items()}
    for trainee in ready.values():
        for batch, first in zip(trainee.batches, ready["lacuna"].batches, strict=True):
            assert torch.equal(batch["input_ids"], first["input_ids"])
    assert [title for title, trainee in ready.items() if "position_ids" in trainee.batches[0]] == ["lacuna"]
    rates = {module.p for trainee in ready.values() for module in trainee.model.modules() if hasattr(module, "p")}
    configs = [vars(trainee.model.config).items() for trainee in ready.values()]
    rates |= {rate for fields in configs for name, rate in fields if "drop" in name and isinstance(rate, float)}
    assert rates == {0.0}, "all drop nothing"
    assert all(trainee.bf16 == ready["lacuna"].bf16 for trainee in ready.values())
    assert all(contender.compiles for contender in GPU[name].values())


def test_operations_by_hand() -> None:
    """Two documents of 3 and 5 tokens; 6 operations a weight, 12 times the width for a pair."""
    from contenders import GPU, Shape, operations

    shape, decoders = Shape(16, 2, 2, 96, 8), GPU["decoder-124m"]
    weights = 2 * (3 * 16 * 16 + 16 * 16 + 2 * 4 * 16 * 16) + 96 * 16
    for name, pairs in (("gpt2", 36), ("lacuna, one text", 36), ("lacuna", 6 + 15)):
        model = decoders[name].build(shape, 0.0)
        counted = operations(model, decoders[name], shape, lengths=[3, 5], masked=0.3)
        assert counted == 6 * weights * 8 + 2 * 12 * 16 * pairs, name


@pytest.mark.parametrize("name", ["bert", "modernbert", "lacuna"])
def test_operations_are_those_of_torch(name: str) -> None:
    """As `torch.utils.flop_counter` counts them where all pairs of a row are seen and 30 % of tokens are targets."""
    from contenders import GPU, IGNORED, Shape, operations
    from torch.utils.flop_counter import FlopCounterMode

    contender, shape = GPU["encoder-150m"][name], Shape(16, 4, 2, 96, 20, inner=24)
    model = contender.build(shape, 0.0)
    model.set_attn_implementation("eager")
    ids = torch.randint(5, 96, (2, 20))
    labels = torch.where(torch.arange(20) % 10 < 3, ids, IGNORED)
    options = {"skip_logits": True} if contender.is_ours else {}
    with FlopCounterMode(display=False) as counter:
        model(input_ids=ids, labels=labels, **options).loss.backward()
    counted = operations(model, contender, shape, lengths=[20, 20], masked=0.3)
    assert counted == pytest.approx(counter.get_total_flops())


def test_pairs_inside_a_window() -> None:
    from contenders import _pairs

    assert (_pairs(5, 9, False), _pairs(5, 9, True)) == (25, 15)
    assert (_pairs(5, 1, False), _pairs(5, 1, True)) == (13, 9)  # three diagonals, two
