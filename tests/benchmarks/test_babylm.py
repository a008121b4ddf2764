"""The benchmark of the BabyLM challenge: which words are read, and what is made of checkpoints and scores."""

import json
import math
import sys
from pathlib import Path

import babylm
import pytest
from babylm import promise, take_words


def test_whole_lines_are_taken_until_there_are_words_enough(tmp_path: Path) -> None:
    files = []
    for name, text in (("a", "one two\nthree\n"), ("b", "four five\nsix seven\n"), ("c", "eight\n")):
        files.append(str(tmp_path / f"{name}.txt"))
        Path(files[-1]).write_text(text)
    for most, count, texts in (
        (5, 5, ["one two\nthree\n", "four five\n"]),
        (6, 5, ["one two\nthree\n", "four five\n"]),
    ):
        into = tmp_path / f"most-{most}"
        assert take_words(files, most=most, into=into) == count
        assert [path.read_text() for path in sorted(into.iterdir())] == texts
    assert take_words(files, most=100, into=tmp_path / "all") == 8


def test_what_is_promised_is_on_the_line_through_all_points_but_the_first() -> None:
    words = [10.0, 100.0, 1000.0, 10000.0]
    assert promise(words, [0.9, 0.5, 0.6, 0.7], at=1e6) == pytest.approx(0.9)
    assert promise(words[:2], [0.5, 0.6], at=1e6) is None


def test_the_run_goes_on_and_checkpoints_are_judged_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A tie is half a point, or a whole one as official; words are passes over the part that is trained on."""
    texts, calls = tmp_path / "texts", []
    texts.mkdir()
    (texts / "a.txt").write_text("a few words\n" * 100)

    def run_recipe(name: str, options: dict[str, object]) -> dict[str, object]:
        calls.append((name, options.get("resume")))
        if name == "evaluate_language_model":
            return {"accuracy": 0.6, "ties": 4, "pairs": 40}
        run = Path(str(options["output_dir"]))
        for step in (5, 10):
            (run / f"checkpoints/step-{step:08}").mkdir(parents=True, exist_ok=True)
        if calls.count((name, None)) and not options.get("resume"):
            raise KeyboardInterrupt
        (run / "metrics.jsonl").write_text("".join(json.dumps({"step": at, "epoch": at}) + "\n" for at in (5, 10)))
        (run / "results.json").write_text(json.dumps({"steps": 10}))
        return {}

    monkeypatch.setattr(babylm, "run_recipe", run_recipe)
    words = ["babylm.py", "--texts", texts, "--work_dir", tmp_path / "work", "--output_dir", tmp_path]
    monkeypatch.setattr(sys, "argv", [*map(str, words), "--suites", str(tmp_path / "blimp")])
    with pytest.raises(KeyboardInterrupt):
        babylm.main()
    babylm.main()
    assert calls[:2] == [("pretrain", None), ("pretrain", True)] and len(calls) == 4
    babylm.main()
    assert len(calls) == 4
    [report] = tmp_path.glob("*-babylm.json")
    found = json.loads(report.read_text())
    assert found["checkpoints"] == [
        {"words": round(300 * 0.95 * step), "step": step, "blimp": 0.6, "blimp as official": pytest.approx(0.65)}
        for step in (5, 10)
    ]
    assert found["run"]["words"] == 300 and math.isclose(found["record"], 0.7402)


@pytest.mark.parametrize("words", [["--max_words", "10000001"], ["--epochs", "11"]])
def test_what_the_rules_forbid_is_refused(monkeypatch: pytest.MonkeyPatch, words: list[str]) -> None:
    monkeypatch.setattr(sys, "argv", ["babylm.py", *words])
    with pytest.raises(SystemExit, match="the rules allow 10,000,000 words and 10 passes"):
        babylm.main()
