"""What recipes of tasks call: once, several times, or only to see what would happen."""

import json
import os
import re
import signal
import sys
from dataclasses import replace
from pathlib import Path
from statistics import mean, stdev
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from processes import run as run_script
from safetensors.torch import load_file
from toys import make_model
from tuned_run import Judged, tune

from lacuna.common.errors import InputError, StoppedError
from lacuna.common.files import release
from lacuna.training import claim_output_dir, fine_tuning
from lacuna.training.arguments import FineTuningArguments
from lacuna.training.fine_tuning import _together, fell_short, outcome
from lacuna.training.optimizers.adapters import num_weights
from lacuna.training.reports.page import ending

TIMED = ("train_seconds", "checkpoint_seconds", "train_tokens_per_second", "compile_seconds")


@pytest.fixture(autouse=True)
def one_core(monkeypatch) -> None:
    monkeypatch.setattr("lacuna.training.run.use_all_cores", lambda threads: torch.set_num_threads(1))


def results_of(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "results.json").read_text())


def test_one_run(tuning_options, tmp_path, capsys) -> None:
    """What was found is said first, what was reached last; what is written is of the weights that are kept."""
    results = tune(tuning_options(learning_rate=0.3, schedule="constant"))
    folder = tmp_path / "run"
    assert results == results_of(folder) and "seeds" not in results
    assert results["words_score"] == 0.25
    said = capsys.readouterr().out.splitlines()
    assert said[:2] == ["running on 1 process", "24 rows"]
    score = f"{results['eval_score']:.4f}"
    assert [line.split() for line in said[-4:-3]] == [
        ["score", score, "without", "a", "model", "0.1250", "bag", "of", "words", "0.2500"]
    ]
    assert said[-2:] == [f"the model is in {folder}", f"a page on it: python recipes/report_run.py --run {folder}"]
    written = json.loads((folder / "records.json").read_text())
    assert results["best_step"] < 8, "the last weights are not the best, or this would prove less"
    assert written["score"] == results["eval_score"]
    assert Judged().summarize(written["records"])["score"] == pytest.approx(results["eval_score"], rel=1e-6)
    card = (folder / "README.md").read_text()
    data = card[card.index("## Data") : card.index("## Made by")]
    assert "somebody" not in card and "| train_file | `train.csv` |" in data
    assert "| kind | `toys` |" in data and "auto" not in data and "eval_file" not in data
    assert "| learning rate | 0.3 at its peak, schedule constant |" in card and "| epochs | 2.67 |" in card
    assert "standard deviations" not in card + (folder / "report.md").read_text()


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, float], Path]:
    """Three seeds by the program on one process."""
    folder = tmp_path_factory.mktemp("seeds") / "run"
    _run(folder, "--seed", "5", "--seeds", "3")
    return results_of(folder), folder


def _run(folder: Path, *words: str, num_processes: int = 1) -> Any:
    common = ("--max_steps", "5", "--eval_steps", "2", "--batch_size", "8", "--mixed_precision", "no")
    rates = ("--learning_rate", "0.02", "--save_steps", "0", "--compile", "off")
    environment = {"PATH": "/usr/bin", "PYTHONPATH": ":".join(sys.path)}
    done = run_script(
        "tests/training/tuned_run.py",
        *(*common, *rates, *words, "--output_dir", folder),
        num_processes=num_processes,
        env=environment,
    )
    assert done.returncode == 0, done.stderr
    return done


def test_several_seeds_have_means_and_deviations(three) -> None:
    results, folder = three
    each = {seed: results_of(folder / f"seed-{seed}") for seed in (5, 6, 7)}
    assert results["seeds"] == 3
    for name in ("eval_score", "eval_loss"):
        values = [one[name] for one in each.values()]
        assert len(set(values)) == 3
        assert results[name] == pytest.approx(mean(values)) and results[f"{name}_std"] == pytest.approx(stdev(values))
    assert results["baseline_score"] == 0.125 and results["steps"] == 5
    assert results["best_seed"] == max(each, key=lambda seed: each[seed]["eval_score"])
    best = each[results["best_seed"]]
    assert results["best_seed_score"] == best["eval_score"] > results["eval_score"]
    assert results["best_seed_loss"] == best["eval_loss"] and results["best_step"] == best["best_step"]


def test_of_seeds_with_the_same_score_the_lower_loss_is_the_best() -> None:
    every = [
        {"eval_score": score, "eval_loss": loss} for score, loss in [(0.4, 0.1), (0.5, 2.0), (0.5, 1.0), (0.5, 3.0)]
    ]
    assert _together(Judged(), every, [3, 4, 5, 6])["best_seed"] == 5
    nothing = float("nan")
    assert _together(Judged(), [{"eval_score": nothing, "eval_loss": nothing}, every[1]], [3, 4])["best_seed"] == 4
    assert _together(Judged(), [{"steps": 8}, {"steps": 8}], [3, 4])["best_seed"] == 3


def test_the_folder_of_several_seeds_holds_the_best_model(three) -> None:
    results, folder = three
    best = folder / f"seed-{results['best_seed']}"
    one, other = load_file(folder / "model.safetensors"), load_file(best / "model.safetensors")
    assert one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)
    for name in ("run.json", "metrics.jsonl", "config.json", "records.json", "tokenizer.json"):
        assert (folder / name).read_bytes() == (best / name).read_bytes()
    said = f"Trained 3 times, with seeds 5 to 7. All here is about seed {results['best_seed']}, the best; means and "
    said += "standard deviations are in results.json.\n\n"
    for name in ("README.md", "report.md"):
        text = (folder / name).read_text()
        assert text.index("# ") < text.index(said) < text.index("## ")
        assert text.replace(said, "") == (best / name).read_text()
    assert f"| seed | {results['best_seed']} |" in (folder / "README.md").read_text()
    for seed in (5, 6, 7):
        assert json.loads((folder / f"seed-{seed}" / "run.json").read_text())["arguments"]["seed"] == seed
    left = {path.name for path in folder.rglob("*") if path.name.startswith(".")}
    assert left <= {".lock"}, left


def test_a_soup_is_the_mean_of_runs_that_begin_alike(tuning_options, tmp_path, capsys) -> None:
    began: list[int] = []

    def make(seed: int) -> Any:
        began.append(seed)
        return make_model(seed=seed, hidden_size=32)

    def options(name: str, **more: Any) -> Any:
        return tuning_options(output_dir=str(tmp_path / name), seed=5, learning_rate=0.3, **more)

    results = tune(options("soup", seeds=3, soup=True), make_model=make)
    assert began == [5, 5, 5] and results["eval_score"] == results_of(tmp_path / "soup")["eval_score"]
    said = "".join(capsys.readouterr())
    tune(replace(options("last", average="none"), seed=7), make_model=lambda seed: make_model(seed=5, hidden_size=32))
    folders = [tmp_path / "soup" / "seed-5", tmp_path / "soup" / "seed-6", tmp_path / "last"]
    each = [load_file(folder / "model.safetensors") for folder in folders]
    soup = load_file(tmp_path / "soup" / "model.safetensors")
    for name, weight in soup.items():
        torch.testing.assert_close(weight, (each[0][name] + each[1][name] + each[2][name]) / 3)
        assert each[0][name].is_floating_point() and (not weight.any() or not torch.equal(weight, each[2][name]))
    assert results["eval_loss"] != results_of(tmp_path / "last")["eval_loss"], "the mean is judged, not the last run"
    every = [results_of(folder)["eval_score"] for folder in folders]
    alone = mean(every)
    assert results["alone_score_std"] == pytest.approx(stdev(every)) and "alone_loss" in results
    assert results["alone_score"] == results_of(tmp_path / "soup")["alone_score"] == pytest.approx(alone)
    line = f"score{results['eval_score']:>29.4f}   one run alone {alone:.4f}   without a model 0.1250   bag of words"
    assert said.count("the weights are the mean of all runs now (--soup):") == 1
    assert line in said and not (tmp_path / "soup" / "seed-7").exists() and "standard deviations" not in said
    card = (tmp_path / "soup" / "README.md").read_text()
    assert "| weights | the mean of 3 runs |" in card and "| seed | 7 |" in card
    written = json.loads((tmp_path / "soup" / "records.json").read_text())
    assert written["score"] == results["eval_score"], "the report is of the soup, not of the last run"
    with pytest.raises(InputError, match="--soup is the mean of several runs: say how many with --seeds"):
        options("one", seeds=1, soup=True)
    assert options("alone", soup=True).seeds == 3


@pytest.mark.parametrize(
    ("changed", "runs"),
    [({}, 3), ({"max_epochs": 1}, 1), ({"max_steps": 2}, 1), ({"save_steps": 1}, 1), ({"average": "none"}, 1),
     ({"lora_rank": 2}, 1), ("larger", 1), ("more rows", 1), ("another task", 1)],
)  # fmt: skip
def test_few_rows_are_learned_three_times_unless_something_is_asked_for(monkeypatch, capsys, changed, runs) -> None:
    model, work = make_model(hidden_size=32), Judged(num_examples=3001 if changed == "more rows" else 3000)
    monkeypatch.setattr(Judged, "blended_rows", 0 if changed == "another task" else 3000)
    monkeypatch.setattr(fine_tuning, "MOST_BLENDED", num_weights(model) - (changed == "larger"))
    limits: dict[str, Any] = {} if isinstance(changed, str) else changed
    decided = fine_tuning._runs_for(model, work, FineTuningArguments(**limits))
    assert decided == ({"seeds": 3, "soup": True} if runs == 3 else {"seeds": 1})
    assert (runs == 3) == ("the mean of their weights" in capsys.readouterr().out)


def test_a_classifier_of_few_rows_is_a_soup(tuning_options, tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.setattr(Judged, "blended_rows", 48)
    monkeypatch.setattr(Judged, "least_examples", 48)
    results = tune(replace(tuning_options(output_dir=str(tmp_path / "run")), max_steps=None, seed=0))
    runs = [
        json.loads((tmp_path / "run" / name / "run.json").read_text())["arguments"]
        for name in ("", "seed-0", "seed-1")
    ]
    assert [(each["seed"], each["max_steps"], each["average"]) for each in runs] == [
        (2, 9, "none"),
        (0, 9, "none"),
        (1, 9, "none"),
    ]
    assert "alone_score" in results
    assert capsys.readouterr().err.count("fitting a bag of words") == 1, "the same rows give the same"


def test_several_runs_that_are_stopped_say_what_to_do(tuning_options, tmp_path) -> None:
    class Stopped(Judged):
        def eval_example(self, row: int) -> Any:
            os.kill(os.getpid(), signal.SIGTERM)
            return super().eval_example(row)

    several = tuning_options(output_dir=str(tmp_path / "run"), seeds=2)
    with pytest.raises(
        StoppedError, match=rf"several runs are not resumed: delete {tmp_path / 'run'} and start again"
    ):
        tune(several, work=Stopped(num_examples=24))


def test_two_processes_reach_what_one_reaches(three, tmp_path) -> None:
    """Several runs one after the other in the same processes; the last evaluation is not the best of each."""
    alone, _ = three
    folder = tmp_path / "run"
    done = _run(folder, "--seed", "5", "--seeds", "3", num_processes=2)
    results = results_of(folder)
    assert results.keys() == alone.keys()
    scores = [results_of(folder / f"seed-{seed}")["eval_score"] for seed in (5, 6, 7)]
    assert results["eval_score"] == pytest.approx(mean(scores)) and results["best_seed_score"] == max(scores)
    assert (folder / "README.md").read_text().count("Trained 3 times") == 1
    for name, value in alone.items():
        if name not in TIMED:
            assert results[name] == pytest.approx(value, rel=1e-3, abs=1e-4), name
    assert done.stdout.count("seed 6, 2 of 3") == 1 and done.stdout.count("the model is in") == 1


def test_seeds_and_resume_do_not_go_together(tuning_options) -> None:
    with pytest.raises(InputError, match="--resume continues one run, and --seeds 2 are several"):
        tuning_options(seeds=2, resume=True)
    with pytest.raises(InputError, match="--seeds must be at least 1"):
        tuning_options(seeds=0)


def test_one_run_is_resumed(tuning_options, tmp_path) -> None:
    whole = tune(tuning_options(output_dir=str(tmp_path / "whole")))
    tune(tuning_options(max_steps=4, save_steps=4, schedule="constant"))
    again = tune(tuning_options(save_steps=4, resume=True))
    assert again["steps"] == whole["steps"] == 8
    assert (tmp_path / "run" / "records.json").is_file()


def test_a_stopped_run_keeps_its_best_weights(tuning_options, tmp_path) -> None:
    """They are of before it stopped, and so are the records of the held-out rows."""
    options = {"learning_rate": 0.3, "schedule": "constant", "eval_steps": 1, "save_steps": 1}
    whole = tune(tuning_options(output_dir=str(tmp_path / "whole"), **options))
    with pytest.raises(InterruptedError):
        tune(tuning_options(**options), work=Judged(num_examples=24, stop_at=6 * 8))
    again = tune(tuning_options(resume=True, **options))
    assert again["best_step"] == whole["best_step"] <= 6
    one, other = (load_file(tmp_path / name / "model.safetensors") for name in ("whole", "run"))
    assert one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)
    assert (tmp_path / "whole" / "records.json").read_bytes() == (tmp_path / "run" / "records.json").read_bytes()


def test_a_dry_run_shows_what_would_happen_and_writes_nothing(tuning_options, tmp_path, capsys) -> None:
    arguments = tuning_options(dry_run=True, max_steps=None, max_epochs=2, seeds=3, lora_rank=4, micro_batch_size=4)
    claim_output_dir(arguments)
    assert tune(arguments) == {}
    release()
    said = capsys.readouterr().out.splitlines()
    assert said[:6] == ["24 rows", *(f"example {row}" for row in range(5))]
    learned, _, of_all = (word.replace(",", "") for word in said[6].split()[:3])
    assert 0 < int(learned) < int(of_all) / 2 and said[6].endswith("at its peak, in 6 steps, 2 passes")
    assert list(tmp_path.iterdir()) == [] and len(said) == 7


def test_a_dry_run_says_that_the_run_would_be_refused(tuning_options, tmp_path, capsys) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "run.json").write_text("{}")
    tune(tuning_options(dry_run=True))
    note = capsys.readouterr().out.splitlines()[-1]
    assert note.startswith(f"note: without --dry_run this would be refused: --output_dir {tmp_path / 'run'} already ")
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["run.json"]


def test_a_folder_that_is_taken_is_refused_before_anything(tuning_options, tmp_path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "mine.txt").write_text("")

    def never(seed: int) -> Any:
        raise AssertionError("a model was made")

    with pytest.raises(InputError, match="is not empty"):
        tune(tuning_options(), make_model=never)


def test_what_is_said_in_the_end() -> None:
    results = {"eval_f1": 0.5, "eval_f1_std": 0.01, "baseline_f1": 0.25, "eval_loss": 1.0, "steps": 3, "seeds": 2}
    assert outcome({**results, "best_seed": 1, "best_seed_f1": 0.52}) == [
        "f1                          0.5000 ± 0.0100   kept 0.5200   without a model 0.2500",
        "loss                        1.0000",
        "means and standard deviations over 2 seeds; the model that is kept is of seed 1",
    ]
    assert outcome({"eval_mrr": 0.5, "start_mrr": 0.125, "baseline_mrr": 0.25}) == [
        "mrr                         0.5000   before training 0.1250   without a model 0.2500"
    ]


def test_the_end_says_what_may_follow() -> None:
    def commands(objective: str) -> list[str]:
        return re.findall(r"recipes/(\w+)\.py --model runs/a", ending("runs/a", of=objective))

    assert commands("mlm") == ["try_models", "finetune_classification", "evaluate_language_model"]
    assert commands("denoising") == ["try_models", "finetune_seq2seq"]
    assert commands("spans") == ["finetune_question_answering"], "whose head knows no questions yet"


def test_a_model_that_falls_short_is_told_so() -> None:
    work = SimpleNamespace(metric="f1", greater_is_better=True, blended_rows=5_000)

    def said(value: float | None, *, greater: bool = True) -> str:
        results = {"baseline_f1": 0.2, "words_f1": 0.5} | ({} if value is None else {"eval_f1": value})
        return "".join(fell_short(results, SimpleNamespace(metric="f1", greater_is_better=greater, blended_rows=0)))

    assert "by f1, the bag of words is as good" in said(0.2) and "the bag of words is as good" in said(0.5)
    alone = fell_short({"baseline_f1": 0.2, "eval_f1": 0.2}, work)
    assert alone[0].startswith("warning: by f1, a guess without a model is as good")
    assert "--soup" in alone[0] and "mlm_contrastive" in alone[0]
    (soup,) = fell_short({"words_f1": 0.5, "eval_f1": 0.4, "alone_f1": 0.3}, work)
    assert "--soup" not in soup and "mlm_contrastive" in soup
    assert "--soup" not in said(0.2) and "(pretrain.py --for, then --objective spans)" in said(0.2), "of questions"
    written = SimpleNamespace(metric="chrf", greater_is_better=True, blended_rows=0)
    (line,) = fell_short({"baseline_chrf": 0.2, "eval_chrf": 0.1}, written)
    assert line.endswith("pretrain it on text of this kind (pretrain.py --for), or use a guess without a model")
    assert said(0.51) == said(None) == said(0.1, greater=False) == ""
    assert "a guess without a model" in said(0.3, greater=False)
    assert fell_short({"eval_f1": 0.1}, SimpleNamespace(metric="f1", greater_is_better=True)) == []
    guess = {"baseline_f1": 0.5, "eval_f1": 0.5, "words_f1": 0.4, "hybrid_f1": 0.45}
    (line,) = fell_short(guess, SimpleNamespace(metric="f1", greater_is_better=True, blended_rows=9))
    assert "a guess without a model is as good or better. Give the model more rows" in line
    search = {"baseline_mrr": 0.5, "eval_mrr": 0.4}
    for hybrid, advice in ((0.6, "both are better together"), (0.5, "the model adds nothing to them")):
        (line,) = fell_short(search | {"hybrid_mrr": hybrid}, SimpleNamespace(metric="mrr", greater_is_better=True))
        assert line == f"warning: by mrr, words without a model are as good or better: {advice}"
