"""The demo's table in its file and in its report."""

import importlib.util
import json
import sys
from pathlib import Path
from typing import Any

import demo
import pytest

REPOSITORY = Path(__file__).resolve().parents[2]


@pytest.fixture
def recipe() -> Any:
    spec = importlib.util.spec_from_file_location("recipe_of_demo", REPOSITORY / "recipes" / "demo.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_report_has_the_table_of_the_demo(
    recipe: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "runs" / "demo"
    scores = {"eval_bits_per_byte": 2.0, "baseline_bits_per_byte": 3.0, "train_tokens_per_second": 1234.5}
    scores |= {"eval_accuracy": 0.75, "baseline_accuracy": 0.25}
    scores |= {"eval_exact_match": 0.75, "baseline_exact_match": 0.25, "words_exact_match": 0.5}
    for stage in (*recipe.MODELS, "tokenizer"):
        (out / stage).mkdir(parents=True)
        (out / stage / "results.json").write_text(json.dumps(scores))
    (out / "tokenizer" / "tokenizer_report.json").write_text('{"bytes_per_token": 3.5}')
    seconds = {**dict.fromkeys(recipe.STAGES, 10.4), "try": 5.2}
    assert recipe.report(out, seconds)
    said = capsys.readouterr().out.splitlines()
    assert "encoder         10s     1,234  accuracy           0.750     0.250" in said
    assert "questions       10s     1,234  exact_match        0.750     0.250         0.500" in said
    monkeypatch.setattr(demo, "REPOSITORY", tmp_path)
    monkeypatch.setattr("harness.describe_machine", lambda: {"busy_cores_before": 0, "commit": "1234567-dirty"})
    monkeypatch.setattr(sys, "argv", ["demo.py", "--report_only", "--output_dir", str(tmp_path)])
    demo.main()
    (report,) = tmp_path.glob("*-demo.md")
    rows = report.read_text(encoding="utf-8").splitlines()
    assert rows[-1] == "Made at a commit with uncommitted changes."
    for row in (
        *("tokenizer | 10 |  | bytes_per_token | 3.5 | 1 | ", "corpus | 10 |  |  |  |  | ", "all | 68 |  |  |  |  | "),
        *(
            "encoder | 10 | 1,234 | accuracy | 0.75 | 0.25 | ",
            "questions | 10 | 1,234 | exact_match | 0.75 | 0.25 | 0.5",
        ),
    ):
        assert f"| {row} |" in rows
    (out / "encoder" / "results.json").write_text(json.dumps({**scores, "eval_accuracy": 0.3}))
    assert not recipe.report(out, seconds)
