"""The estimate of the exchange of gradients, by hand; the measurement, tiny."""

import json
import sys
from pathlib import Path

import pytest
from processes import REPOSITORY, run

sys.path.append(str(REPOSITORY / "benchmarks"))
import scaling


def test_a_ring_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scaling, "LATENCY", 0.0)
    case = scaling.Case("a", parameters=1e9, tokens=1000)
    # 4 GB; of 4 GPUs each link carries 2 * 3/4 of it: 6 GB at 0.8 * 10 GB/s.
    assert scaling.exchange_seconds(case, gpus=4, bytes_per_second=10e9) == pytest.approx(0.75)
    assert scaling.exchange_seconds(case, gpus=1, bytes_per_second=10e9) == 0.0


def test_what_the_backward_pass_hides_is_not_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scaling, "LATENCY", 0.0)
    monkeypatch.setattr(scaling, "BUCKET", 4e7)  # a hundredth of the gradients
    case = scaling.Case("a", parameters=1e9, tokens=100_000)
    computing = 6e14 / (0.5 * scaling.PEAK)  # 1.213 s, of which 0.809 s backward
    hidden = scaling.efficiency(case, gpus=4, bytes_per_second=10e9, mfu=0.5)
    assert hidden == pytest.approx(computing / (computing + 0.0075))  # the last bucket of 0.75 s
    lost = scaling.efficiency(case, gpus=4, bytes_per_second=5e9, mfu=0.5)
    assert lost == pytest.approx(computing / (computing + 1.5 - computing * 2 / 3))


def test_more_gpus_and_slower_links_never_help() -> None:
    for case in scaling.CASES:
        found = [
            scaling.efficiency(case, gpus=gpus, bytes_per_second=speed, mfu=0.4)
            for gpus, speed in ((1, 1e9), (8, 450e9), (64, 50e9), (64, 1e9))
        ]
        assert found[0] == 1.0 and found == sorted(found, reverse=True) and found[-1] > 0


@pytest.mark.slow
def test_it_measures_and_reports(tmp_path: Path) -> None:
    done = run("benchmarks/scaling.py", "--rounds", 1, "--steps", 2, "--batch_size", 4, "--output_dir", tmp_path)
    assert done.returncode == 0, done.stderr
    (path,) = tmp_path.glob("*-scaling.json")
    report = json.loads(path.read_text())
    assert {*report["tokens_per_second"]} == {"1", "2"} and len(report["estimated"]) == 12
    assert path.with_suffix(".md").read_text() in done.stdout
