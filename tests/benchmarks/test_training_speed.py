"""The benchmark of training speed, with tiny settings; its figures are not looked at, only that they hang together."""

import json
import statistics
from pathlib import Path

from processes import run


def test_it_measures_and_reports(tmp_path: Path) -> None:
    options = {"rounds": 3, "steps": 1, "warmup": 1, "batch_size": 2, "length": 16, "vocab_size": 320, "threads": 1}
    words = [word for name, value in options.items() for word in (f"--{name}", value)]
    done = run("benchmarks/training_speed.py", "--output_dir", tmp_path, *words, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    (path,) = tmp_path.glob("*-training_speed.json")
    report = json.loads(path.read_text())
    assert {name: report["settings"][name] for name in options} == options
    assert {name: facts["model"] for name, facts in report["contenders"].items()} == {
        "lacuna": "LacunaForMaskedLM",
        "bert": "BertForMaskedLM",
        "modernbert": "ModernBertForMaskedLM",
    }
    assert report["contenders"]["bert"]["precision"] == "float32"
    assert report["contenders"]["lacuna"]["parameters"] == report["contenders"]["modernbert"]["parameters"]
    speeds, summary = report["tokens_per_second_by_round"], report["summary"]
    assert all(len(values) == 3 and min(values) > 0 for values in speeds.values())
    ratios = [ours / theirs for ours, theirs in zip(speeds["lacuna"], speeds["bert"], strict=True)]
    assert summary["tokens_per_second_bert"] == statistics.median(speeds["bert"])
    assert [summary[f"ratio_to_bert{end}"] for end in ("_min", "", "_max")] == sorted(ratios)
    assert report["machine"]["commit"] and report["machine"]["torch"]
    table = path.with_suffix(".md").read_text()
    assert table in done.stdout and f"{summary['ratio_to_bert']:.2f} x" in table
