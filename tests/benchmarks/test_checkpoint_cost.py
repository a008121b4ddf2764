"""The benchmark of checkpoints, with tiny settings: not what they cost, only that its figures hang together."""

import json
from pathlib import Path

import pytest
from processes import run


@pytest.mark.slow
def test_it_measures_and_reports(tmp_path: Path) -> None:
    words = ["--size", "tiny", "--steps", 4, "--save_steps", 2, "--batch_size", 8, "--rounds", 1]
    done = run("benchmarks/checkpoint_cost.py", *words, "--output_dir", tmp_path)
    assert done.returncode == 0, done.stderr
    (path,) = tmp_path.glob("*-checkpoint_cost.json")
    report = json.loads(path.read_text())
    (plain,), (saved,) = report["without"], report["with_saves"]
    assert plain["checkpoint_bytes"] == 0 == plain["checkpoint_seconds"]
    assert saved["checkpoint_bytes"] > 12 * 4_000_000  # weights and two moments of each, in four bytes
    assert report["summary"]["waited_for_each"] == saved["checkpoint_seconds"] / 2
    assert path.with_suffix(".md").read_text() in done.stdout
