"""The benchmark of training, with tiny models; its figures are not looked at, only that they hang together."""

import importlib
import itertools
import json
import statistics
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from processes import REPOSITORY, run

SIZES = {"hidden_size": 32, "layers": 2, "heads": 2, "vocab_size": 512, "positions": 64}
NAMES = ["lacuna", "bert", "modernbert"]


@pytest.fixture
def shop(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Imports a file of the benchmarks as its neighbours do."""
    monkeypatch.syspath_prepend(str(REPOSITORY / "benchmarks"))
    threads = torch.get_num_threads()
    yield importlib.import_module
    torch.set_num_threads(threads)


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "text.txt"
    path.write_text("".join(f"The {n} hens of house {n % 7} have laid {n * n} eggs.\n" for n in range(400)))
    return path


@pytest.fixture
def batches(tmp_path: Path) -> Path:
    ids = np.random.default_rng(0).integers(5, 512, (2, 3, 16))
    labels = np.where(ids % 5 == 0, ids, -100)
    np.savez(tmp_path / "batches.npz", input_ids=ids, masked_ids=np.where(labels >= 0, 4, ids), labels=labels)
    return tmp_path / "batches.npz"


def reported(folder: Path, *words: object) -> tuple[dict[str, Any], str]:
    """The benchmark's report, as read from its file, and its page."""
    done = run("benchmarks/side_by_side.py", "--quick", "--threads", 1, "--output_dir", folder, *words, cwd=folder)
    assert done.returncode == 0, done.stderr
    (path,) = folder.glob("*-side_by_side-quick.json")
    page = path.with_suffix(".md").read_text()
    assert page in done.stdout
    return json.loads(path.read_text()), page


def assert_consistent(measured: dict[str, Any], *, names: list[str], rounds: int) -> None:
    """Turns alternate, one after the other, and all figures follow from them."""
    turns, contenders = measured["turns"], measured["contenders"]
    assert [turn["contender"] for turn in turns] == names * (rounds + 1)
    assert [turn["round"] for turn in turns] == [number for number in range(rounds + 1) for _ in names]
    for before, after in itertools.pairwise(turns):
        assert before["began"] < before["ended"] <= after["began"]
    for name, facts in contenders.items():
        mine = [turn["tokens"] / turn["seconds"] for turn in turns if turn["contender"] == name and turn["round"]]
        assert facts["tokens_per_second_by_round"] == mine
        assert facts["tokens_per_second"] == statistics.median(mine) > 0
    for pair in measured["pairs"]:
        ours, theirs = (contenders[pair[who]]["tokens_per_second_by_round"] for who in ("ours", "theirs"))
        ratios = [mine / other for mine, other in zip(ours, theirs, strict=True)]
        assert [pair["ratio_min"], pair["ratio_max"]] == [min(ratios), max(ratios)]
        assert pair["ratio"] == statistics.median(ratios)


def test_it_measures_and_reports(tmp_path: Path, text: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LACUNA_CACHE", str(tmp_path / "cache"))
    report, page = reported(tmp_path, "--cpu", "--data", text, "--rounds", 3, "--contenders", *NAMES)
    assert report["settings"]["rounds"] == 3 and report["data"]["text"] == "text.txt"
    measured = report["speed"]["cpu"]
    assert_consistent(measured, names=NAMES, rounds=3)
    contenders = measured["contenders"]
    assert [facts["model"] for facts in contenders.values()] == [
        "LacunaForMaskedLM",
        "BertForMaskedLM",
        "ModernBertForMaskedLM",
    ]
    assert contenders["bert"]["precision"] == "float32" and contenders["bert"]["attention"] == "sdpa"
    assert contenders["lacuna"]["first_loss"] == pytest.approx(contenders["modernbert"]["first_loss"], rel=1e-4)
    assert contenders["lacuna"]["parameters"] == contenders["modernbert"]["parameters"]
    assert all(facts["compile"] == "no" and facts["threads"] == 1 for facts in contenders.values())
    for goal, pair in zip(report["goals"], measured["pairs"], strict=True):
        assert goal["measured"] == pair["ratio"] and goal["goal"] == pair["goal"]
        assert goal["reached"] == (pair["ratio"] >= pair["goal"])
    assert "share" not in report and "memory" not in report
    assert f"{contenders['bert']['ratio']:.2f} x" in page


@pytest.mark.slow
def test_all_parts(tmp_path: Path, text: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LACUNA_CACHE", str(tmp_path / "cache"))
    report, page = reported(tmp_path, "--cpu", "--isa", "AVX2", "--share", "--memory", "--data", text)
    for title, measured in report["speed"].items():
        assert_consistent(measured, names=list(measured["contenders"]), rounds=2)
        assert title == "cpu" or {facts["precision"] for facts in measured["contenders"].values()} == {"float32"}
    assert list(report["speed"]) == ["cpu", "AVX2"] and len(report["speed"]["cpu"]["contenders"]) == 9
    assert len(report["goals"]) == 6 and page.count("\n## ") == 4


def test_every_contender_learns(shop: Any, batches: Path) -> None:
    contenders = shop("contenders")
    losses: dict[str, list[float]] = {}
    for name, contender in contenders.CONTENDERS.items():
        trainee = contenders.Trainee(name=name, sizes=contenders.Sizes(**SIZES), is_compiled=False, threads=1)
        trainee.use(contenders.load_batches(str(batches), is_decoder=contender.is_decoder))
        losses.setdefault(contender.weights, []).append(trainee.first_loss())
        result = trainee.run(3)
        assert result["tokens"] == 3 * 3 * 16 and len(result["step_seconds"]) == 3
        assert sum(result["step_seconds"]) <= result["seconds"] and np.isfinite(result["loss"])
    for values in losses.values():
        assert values == pytest.approx([values[0]] * len(values), rel=1e-4)


def test_a_contender_with_other_weights_is_refused(shop: Any) -> None:
    facts = {"lacuna": {"first_loss": 6.0}, "modernbert": {"first_loss": 6.1}, "bert": {"first_loss": 7.0}}
    with pytest.raises(RuntimeError, match="losses must be equal"):
        shop("side_by_side").check_same_work(facts)
    with pytest.raises(RuntimeError):
        shop("side_by_side").check_same_work({"bert": {"first_loss": float("nan")}})


def test_products_are_found_and_timed(shop: Any, batches: Path) -> None:
    contenders, products = shop("contenders"), shop("products")
    trainee = contenders.Trainee(name="bert", sizes=contenders.Sizes(**SIZES), is_compiled=False, threads=1)
    trainee.use(contenders.load_batches(str(batches), is_decoder=False))
    share = products.measure_share(trainee, rounds=2, steps=1)
    # Linear layers once forward and twice backward: 6 for each weight and token.
    linear = [module for module in trainee.model.modules() if isinstance(module, torch.nn.Linear)]
    expected = 6 * 3 * 16 * sum(module.weight.numel() for module in linear)
    of_linear = sum(row["operations"] for row in share["by_product"] if row["product"] in ("mm", "addmm"))
    assert of_linear == expected
    assert share["operations"] == share["operations_profiled"] == sum(row["operations"] for row in share["by_product"])
    rounds = zip(share["seconds_alone_by_round"], share["seconds_step_by_round"], strict=True)
    assert share["share"] == statistics.median(alone / whole for alone, whole in rounds)


def test_memory_is_a_line(shop: Any) -> None:
    comparison = shop("comparison")
    fitted = comparison.fit_memory([{"rows": rows, "bytes": 100 + 7 * rows} for rows in (4, 8, 16)], budget=1000)
    assert fitted["most_rows"] == 128  # (1000 - 100) / 7
    assert fitted["bytes_of_a_row"] == pytest.approx(7) and fitted["bytes_fixed"] == pytest.approx(100)


PEAKS = """
import sys
sys.path[:0] = {path!r}
import contenders
for rows in (8, 64):
    trainee = contenders.Trainee(name="bert", sizes=contenders.Sizes(**{sizes!r}), is_compiled=False, threads=1)
    print(trainee.peak_memory(rows=rows, length=64, vocab_size=512)["bytes"])
"""


def test_more_rows_take_more_memory() -> None:
    """In a process that keeps no memory of others."""
    code = PEAKS.format(path=[str(REPOSITORY / "benchmarks"), str(REPOSITORY)], sizes=SIZES)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    few, many = map(int, done.stdout.split())
    logits = 56 * 64 * 512 * 4  # of the rows that were added, in float32
    assert many - few > logits


def test_a_worker_that_fails_says_why(shop: Any, tmp_path: Path) -> None:
    worker = shop("turns").Worker(name="x", script="contenders.py", folder=tmp_path, environment={})
    with pytest.raises(RuntimeError, match=r"x ended with exit code 1.*(?s:.*)build comes first"):
        worker.ask("run", steps=1)
    worker.close()


def test_mistakes_are_one_message(tmp_path: Path) -> None:
    for words, message in ((("--data", "/nowhere"), "/nowhere"), (("--heads", 7), "--heads 7")):
        done = run("benchmarks/side_by_side.py", "--quick", "--output_dir", tmp_path, *words, cwd=tmp_path)
        assert done.returncode == 2 and message in done.stderr and "Traceback" not in done.stderr
