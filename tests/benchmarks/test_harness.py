"""Options, results that are kept by their settings, memory, and budgets."""

import json
import os
import threading
import time
from argparse import Namespace
from pathlib import Path

import harness
import pytest
from harness import Kept, Report, at_once, make_parser
from time_to_loss import Budget, finite


def test_a_part_is_made_once_for_its_settings(tmp_path: Path) -> None:
    made: list[int] = []

    def work() -> dict[str, int]:
        made.append(1)
        return {"loss": len(made)}

    kept = Kept(tmp_path)
    first = kept.get("a", {"x": 1, "y": 2}, work)
    assert kept.get("a", {"y": 2, "x": 1}, work) == first
    assert len(made) == 1
    assert kept.get("a", {"x": 2, "y": 2}, work)["result"] == {"loss": 2}
    parts = kept.find({"y": 2})
    assert sorted(part["result"]["loss"] for part in parts) == [1, 2]
    assert [part["result"]["loss"] for part in kept.find({"x": 1})] == [1]
    assert all(part["commit"] and isinstance(part["quiet"], bool) for part in parts)
    assert json.loads(next((tmp_path / "parts").glob("a-*.json")).read_text()) in parts


def test_budgets() -> None:
    assert [Budget(steps=4).done(step=step, seconds=9.0) for step in (0, 1, 4)] == [0, 0.25, 1]
    clock = Budget(minutes=1)
    assert clock.done(step=0, seconds=0.0) == 0 and clock.done(step=3, seconds=30.0) == 0.5
    assert clock.done(step=10, seconds=57.0) == pytest.approx(0.95)  # another step of 5.7 s ends nearer to 60
    assert clock.done(step=10, seconds=57.5) == 1.0
    assert (Budget(steps=10).scaled(0.25), Budget(minutes=20).scaled(0.25)) == (Budget(steps=2), Budget(minutes=5))
    assert (str(Budget(steps=10)), str(Budget(minutes=1.33))) == ("10steps", "1.33min")
    assert finite(None) == finite(float("nan")) == float("inf")


def test_a_default_gives_the_type_of_an_option(capsys: pytest.CaptureFixture[str]) -> None:
    options = [("flag", False), ("count", 3), ("seed", 0), ("seeds", [0]), ("names", ("a", "b")), ("most", int)]
    parser = make_parser("", *((name, default, "help") for name, default in options))
    words = ["--flag", "--seed", "0", "--seeds", "1,2", "--names", "b", "--most", "4"]
    found = vars(parser.parse_args(words))
    assert found.pop("output_dir").endswith("benchmarks/results")
    assert found == {"flag": True, "count": 3, "seed": 0, "seeds": [1, 2], "names": ["b"], "most": 4}
    for wrong in (["--count", "0"], ["--seeds", "a"], ["--names", "c"]):
        with pytest.raises(SystemExit):
            parser.parse_args([*words, *wrong])


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="this system does not tell threads their cores")
def test_tasks_at_once_have_the_cores_among_them_and_come_back_in_order() -> None:
    before, meet = os.sched_getaffinity(0), threading.Barrier(min(2, len(os.sched_getaffinity(0))))

    def work(number: int, wait: bool) -> tuple[int, set[int]]:
        if wait:
            meet.wait(timeout=60)  # breaks where they do not run at once
        return number, os.sched_getaffinity(0)

    found = [*at_once(work, [(3, True), (1, True)][: meet.parties])]
    assert [number for number, _ in found] == [3, 1][: meet.parties]
    assert set.union(*(cores for _, cores in found)) == before and sum(len(cores) for _, cores in found) == len(before)
    assert [*at_once(work, [(7, False)])] == [(7, before)], "one task has all of them"
    assert os.sched_getaffinity(0) == before and [*at_once(work, [])] == []


def test_a_task_that_fails_ends_those_that_wait() -> None:
    done: list[int] = []

    def work(number: int) -> None:
        if number == 0:
            raise ValueError("no")
        time.sleep(0.05)
        done.append(number)

    with pytest.raises(ValueError, match="no"):
        list(at_once(work, [(number,) for number in range(100)]))
    assert len(done) < 20


def test_a_report_does_not_say_where_the_data_lies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(harness, "DATA", tmp_path / "data")
    monkeypatch.setattr("sys.argv", ["benchmarks/a.py", "--data", str(tmp_path / "data" / "sst2")])
    body = Report(Namespace(output_dir=str(tmp_path), data=str(tmp_path / "data" / "sst2"))).body
    assert body["settings"] == {"data": "data/sst2"} and body["command"] == "python benchmarks/a.py --data data/sst2"
