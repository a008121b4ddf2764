"""The benchmark of training, with tiny models; its figures are not looked at, only that they hang together."""

import contextlib
import importlib
import itertools
import json
import os
import statistics
import subprocess
import sys
from argparse import Namespace
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from processes import REPOSITORY, run
from torch.nn import functional
from torch.overrides import TorchFunctionMode

SIZES = {"hidden_size": 32, "layers": 2, "heads": 2, "vocab_size": 512, "positions": 64}
NAMES = ["lacuna", "bert", "modernbert"]


@pytest.fixture
def shop(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Imports a file of the benchmarks as its neighbours do."""
    monkeypatch.syspath_prepend(str(REPOSITORY / "benchmarks"))
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield importlib.import_module
    torch.set_num_threads(threads)


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "text.txt"
    path.write_text("".join(f"The {n} hens of house {n % 7} have laid {n * n} eggs.\n" for n in range(400)))
    return path


@pytest.fixture
def batches() -> list[dict[str, torch.Tensor]]:
    ids = torch.from_numpy(np.random.default_rng(0).integers(5, 512, (2, 3, 16)))
    labels = ids.masked_fill(ids % 5 != 0, -100)
    inputs = torch.where(labels >= 0, 4, ids)
    return [{"input_ids": x, "labels": y} for x, y in zip(inputs, labels, strict=True)]


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
    contenders = measured["contenders"]
    assert list(contenders) == names
    turns = [facts["warm_up"] for facts in contenders.values()]
    turns += [
        turn for number in zip(*(facts["turns"] for facts in contenders.values()), strict=True) for turn in number
    ]
    assert len(turns) == len(names) * (rounds + 1)
    for before, after in itertools.pairwise(turns):
        assert before["began"] < before["ended"] <= after["began"]
    speeds = {}
    for name, facts in contenders.items():
        speeds[name] = [turn["tokens"] / turn["seconds"] for turn in facts["turns"]]
        assert facts["tokens_per_second"] == pytest.approx(statistics.median(speeds[name])) and min(speeds[name]) > 0
    for pair in measured["pairs"]:
        ratios = [mine / other for mine, other in zip(speeds[pair["ours"]], speeds[pair["theirs"]], strict=True)]
        assert pair["lacuna_faster_by, range"] == pytest.approx(ratios)
        assert pair["lacuna_faster_by"] == pytest.approx(statistics.median(ratios))
        peaks = [max(turn["peak_memory"] for turn in contenders[pair[who]]["turns"]) for who in ("theirs", "ours")]
        assert pair["their memory / ours"] == pytest.approx(peaks[0] / peaks[1])
        ours, theirs = contenders[pair["ours"]], contenders[pair["theirs"]]
        assert ours["products_alone"] > ours["tokens_per_second"], "no model is faster than its products"
        assert pair["products alone"] == pytest.approx(ours["products_alone"] / theirs["tokens_per_second"])


@pytest.mark.slow
def test_it_measures_and_reports(tmp_path: Path, text: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LACUNA_CACHE", str(tmp_path / "cache"))
    report, page = reported(tmp_path, "--parts", "cpu", "--data", text, "--rounds", 3, "--contenders", *NAMES)
    assert report["settings"]["rounds"] == 3 and report["data"]["text"] == "text.txt"
    measured = report["speed"]["cpu"]
    assert_consistent(measured, names=NAMES, rounds=3)
    contenders = measured["contenders"]
    assert [facts["model"] for facts in contenders.values()] == [
        "LacunaForMaskedLM",
        "BertForMaskedLM",
        "ModernBertForMaskedLM",
    ]
    assert contenders["bert"]["precision"] == "float32"
    assert contenders["lacuna"]["first_loss"] == pytest.approx(contenders["modernbert"]["first_loss"], rel=1e-4)
    assert contenders["lacuna"]["parameters"] == contenders["modernbert"]["parameters"]
    assert all(facts["compile"] == "no" and facts["threads"] == 1 for facts in contenders.values())
    for pair in measured["pairs"]:
        assert pair["reached"] == ("yes" if pair["lacuna_faster_by"] >= pair["goal"] else "no")
    assert "| lacuna | bert | " in page


@pytest.mark.slow
def test_all_parts(tmp_path: Path, text: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LACUNA_CACHE", str(tmp_path / "cache"))
    report, page = reported(tmp_path, "--data", text)
    for title, measured in report["speed"].items():
        assert_consistent(measured, names=list(measured["contenders"]), rounds=2)
        assert title == "cpu" or {facts["precision"] for facts in measured["contenders"].values()} == {"float32"}
    assert list(report["speed"]) == ["cpu", "AVX2"] and len(report["speed"]["cpu"]["contenders"]) == 10
    goals = [pair for part in report["speed"].values() for pair in part["pairs"] if pair["goal"]]
    assert len(goals) == 4 and page.count("\n## ") == 2


def test_every_contender_learns(shop: Any, batches: list[dict[str, torch.Tensor]]) -> None:
    contenders = shop("contenders")
    losses: dict[str, list[float]] = {}
    for contender in contenders.SIDE_BY_SIDE.values():
        trainee = contenders.Trainee(contender, contenders.Shape(**SIZES), compiles=False)
        trainee.use(batches)
        losses.setdefault(contender.weights, []).append(before := trainee.first_loss())
        weights = [weight.detach().clone() for weight in trainee.model.parameters()]
        result = trainee.run(3)
        assert result["tokens"] == 3 * 3 * 16 and result["steps"] == 3 and np.isfinite(result["loss"])
        assert not any(map(torch.equal, weights, trainee.model.parameters()))
        assert trainee.first_loss() < before - 1e-3
    for values in losses.values():
        assert values == pytest.approx([values[0]] * len(values), rel=1e-4)


class Dropped(TorchFunctionMode):
    """Notes how much is dropped, of which kind of layer, wherever torch drops anything."""

    def __init__(self) -> None:
        super().__init__()
        self.found: set[tuple[str, float]] = set()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is functional.scaled_dot_product_attention:
            self.found.add(("attention", args[4] if len(args) > 4 else kwargs.get("dropout_p", 0.0)))
        elif func in (functional.dropout, torch.dropout):
            states, share = args[0], args[1] if len(args) > 1 else kwargs.get("p", 0.5)
            self.found.add(("attention" if states.dim() == 4 else "states", share))
        return func(*args, **kwargs)


def drops(contenders: Any, contender: Any, batch: dict[str, torch.Tensor], dropout: float) -> set[tuple[str, float]]:
    """What a contender really drops in a step, apart from nothing."""
    shape = contenders.Shape(**SIZES, inner=48)
    trainee = contenders.Trainee(contender, shape, dropout=dropout, compiles=False)
    trainee.use([batch])
    with Dropped() as dropped:
        trainee.backward(trainee.batches[0])
    return {(kind, share) for kind, share in dropped.found if share}


def test_contenders_of_a_table_drop_as_much(shop: Any, batches: list[dict[str, torch.Tensor]]) -> None:
    contenders = shop("contenders")
    tables = {"side by side": contenders.SIDE_BY_SIDE, **contenders.GPU}
    for title, table in tables.items():
        for name, contender in table.items():
            contender = replace(contender, rows="whole", bf16=False)
            assert drops(contenders, contender, batches[0], 0.0) == set(), (title, name)
            # Qwen3 of transformers has no dropout but that of attention.
            wanted = {("attention", 0.25)} | ({("states", 0.25)} if "qwen3" not in name else set())
            assert drops(contenders, contender, batches[0], 0.25) == wanted, (title, name)


def test_contenders_of_a_table_train_in_bf16_or_its_name_says_otherwise(
    shop: Any, batches: list[dict[str, torch.Tensor]], monkeypatch: pytest.MonkeyPatch
) -> None:
    contenders = shop("contenders")
    monkeypatch.setattr(contenders, "bf16_is_fast", lambda: True)
    tables, seen = {"side by side": contenders.SIDE_BY_SIDE, **contenders.GPU}, []
    for title, name, contender in ((title, *entry) for title, table in tables.items() for entry in table.items()):
        trainee = contenders.Trainee(replace(contender, rows="whole"), contenders.Shape(**SIZES), compiles=False)
        trainee.model.register_forward_pre_hook(lambda *_: seen.append(torch.is_autocast_enabled("cpu")))
        trainee.use(batches[:1])
        trainee.backward(trainee.batches[0])
        is_bf16 = (title, name) not in (("side by side", "bert"), ("side by side", "gpt2"))
        assert (seen.pop(), trainee.describe()["precision"]) == (is_bf16, "bf16" if is_bf16 else "float32"), name


def test_contenders_are_given_the_same(shop: Any, text: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Dropout, shape, and rows of one tokenizer, of which those of encoders are masked."""
    monkeypatch.setenv("LACUNA_CACHE", str(tmp_path))
    side_by_side, contenders = shop("side_by_side"), shop("contenders")
    monkeypatch.setattr(contenders, "keep_memory", lambda: None)
    made, _ = side_by_side.make_batches(str(text), side_by_side.QUICK)
    given = {}

    @contextlib.contextmanager
    def apart(**environment: str) -> Iterator[Any]:
        def call(function: Any, *words: Any, **options: Any) -> dict[str, Any]:
            if function is side_by_side.run_here:
                return dict.fromkeys(("seconds", "steps", "tokens_per_second", "peak_memory"), 1.0)
            facts = function(*words, **options)
            given[words[0]] = options, contenders._HERE[0].batches
            return {**facts, "first_loss": 1.0}

        yield call

    monkeypatch.setattr(side_by_side, "apart", apart)
    options = Namespace(dropout=0.25, quick=True, threads=1, steps=1, rounds=1)
    side_by_side.measure("cpu", list(contenders.SIDE_BY_SIDE), {}, side_by_side.QUICK, made, options)
    assert list(given) == list(contenders.SIDE_BY_SIDE)
    for of_model, batches in given.values():
        assert of_model == {"shape": side_by_side.QUICK, "dropout": 0.25, "compiles": False}
        for batch, plain in zip(batches, made[True], strict=True):
            rows = torch.where(batch["labels"] >= 0, batch["labels"], batch["input_ids"])
            assert torch.equal(rows, plain["input_ids"])


def test_a_contender_with_other_weights_is_refused(shop: Any) -> None:
    facts = {"lacuna": {"first_loss": 6.0}, "modernbert": {"first_loss": 6.1}, "bert": {"first_loss": 7.0}}
    with pytest.raises(RuntimeError, match="losses must be equal"):
        shop("side_by_side").check_same_work(facts)
    with pytest.raises(RuntimeError):
        shop("side_by_side").check_same_work({"bert": {"first_loss": float("nan")}})


PEAKS = """
import sys
sys.path[:0] = {path!r}
import torch
import contenders
trainee = contenders.Trainee(contenders.SIDE_BY_SIDE["bert"], contenders.Shape(**{sizes!r}), compiles=False)
for rows in (8, 64):
    ids = torch.randint(5, 512, (rows, 64))
    trainee.use([{{"input_ids": ids, "labels": ids}}])
    print(trainee.run(2)["peak_memory"])
"""


@pytest.mark.slow
def test_more_rows_take_more_memory() -> None:
    """In a process that keeps no memory of others."""
    code = PEAKS.format(path=[str(REPOSITORY / "benchmarks"), str(REPOSITORY)], sizes=SIZES)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    few, many = map(int, done.stdout.split())
    logits = 56 * 64 * 512 * 4  # of the rows that were added, in float32
    assert many - few > logits


@pytest.mark.slow
def test_a_process_that_fails_says_why(shop: Any) -> None:
    harness, contenders = shop("harness"), shop("contenders")
    with harness.apart(A="b") as call:
        assert call(os.getenv, "A") == "b" != os.environ.get("A") and call(os.getpid) != os.getpid()
        with pytest.raises(IndexError):
            call(contenders.run_here, steps=1)
        with pytest.raises(RuntimeError, match="terminated"):
            call(os._exit, 1)


def test_mistakes_are_one_message(tmp_path: Path) -> None:
    for words, message in ((("--data", "/nowhere"), "/nowhere"), (("--rounds", 0), "--rounds")):
        done = run("benchmarks/side_by_side.py", "--quick", "--output_dir", tmp_path, *words, cwd=tmp_path)
        assert done.returncode == 2 and message in done.stderr and "Traceback" not in done.stderr
