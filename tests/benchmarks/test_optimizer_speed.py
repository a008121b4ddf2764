"""The benchmark of optimizers, with tiny settings: not how fast, only that its figures hang together."""

import json
import statistics
from pathlib import Path

import pytest
from processes import run

from lacuna.training.optimizers.optimizers import OPTIMIZERS


@pytest.mark.slow
def test_it_measures_and_reports(tmp_path: Path) -> None:
    words = ["--families", "qwen3", "--sizes", "tiny", "--rounds", 1, "--tokens", 128, "--output_dir", tmp_path]
    done = run("benchmarks/optimizer_speed.py", *words)
    assert done.returncode == 0, done.stderr
    (path,) = tmp_path.glob("*-optimizer_speed.json")
    report = json.loads(path.read_text())
    facts = report["models"]["qwen3 tiny"]
    ours = {"adamw", "muon", "muon (torch)", "ema", "forward and backward"}
    assert ours <= {*facts["milliseconds"]} <= ours | {*OPTIMIZERS}
    for name, times in facts["milliseconds_by_round"].items():
        assert len(times) == 1 and times[0] > 0
        assert facts["milliseconds"][name] == statistics.median(times)
    assert path.with_suffix(".md").read_text() in done.stdout
