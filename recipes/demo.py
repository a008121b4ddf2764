"""From raw text to fine-tuned models: the recipes one after another on the built-in text, then their results at work.

    python recipes/demo.py                  # six or seven minutes on two cores; writes runs/demo

Every stage is a command that you can type yourself; it is printed before it runs. The demo ends with a table and
fails when a model is not clearly better than a guess that needs no model.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import sysconfig
import time
from pathlib import Path

RECIPES = Path(__file__).resolve().parent
LAUNCH = ["-m", "accelerate.commands.launch", "--config_file", "recipes/accelerate/cpu.yaml"]

# The clock is a limit for slow machines; where bf16 is fast the steps are done before.
PRETRAIN = (
    "launch recipes/pretrain.py --tokenizer {out}/tokenizer --corpus {out}/corpus --batch_size 16 --save_steps 0 "
    "--eval_steps 0.5 "
)
STAGES = {
    "tokenizer": "recipes/train_tokenizer.py --vocab_size 4096 --output_dir {out}/tokenizer",
    "corpus": "recipes/prepare_corpus.py --tokenizer {out}/tokenizer --output_dir {out}/corpus",
    "encoder": PRETRAIN + "--objective mlm_contrastive --max_steps 500 --max_minutes 2 --output_dir {out}/encoder",
    "decoder": PRETRAIN + "--objective clm --max_steps 200 --max_minutes 0.8 --output_dir {out}/decoder",
    "classifier": "launch recipes/finetune_classification.py --model {out}/encoder --eval_fraction 0.87 "
    "--eval_steps 0 --output_dir {out}/classifier",  # some 500 labels to learn from: few, as people have them
    "questions": "launch recipes/finetune_question_answering.py --model {out}/encoder --max_epochs 8 --max_minutes 1 "
    "--eval_steps 0 --output_dir {out}/questions",
}

# What a model can do, its metric, and the margin that counts as clear: a factor over the baseline, or under it where
# less is better.
MODELS = {
    "encoder": ("fills masks", "accuracy", 1.5),
    "questions": ("answers questions", "exact_match", 1.5),
    "classifier": ("classifies docstrings", "accuracy", 2.0),
    "decoder": ("continues prompts", "bits_per_byte", 0.9),
}

PAGES = {
    "look inside": "recipes/inspect_model.py --model {out}/encoder",
    "report": "recipes/report_run.py --run {out}/encoder {out}/decoder {out}/classifier {out}/questions",
}


def run(title: str, arguments: list[str]) -> float:
    """Run a command of Python's, show what was typed, and return its seconds; the demo ends if it fails."""
    shown = " ".join(arguments).replace(" ".join(LAUNCH[:2]), "accelerate launch")
    print(f"\n-- {title}: {'' if shown.startswith('accelerate') else 'python '}{shown}", flush=True)
    started = time.perf_counter()
    cores = {"OMP_NUM_THREADS": str(os.cpu_count() or 1), **os.environ}  # or accelerate asks for it to be set
    if code := subprocess.run([sys.executable, *arguments], env=cores, check=False).returncode:
        sys.exit(f"demo: stage '{title}' failed with exit code {code}")
    return time.perf_counter() - started


def try_results(out: Path) -> float:
    """Let the models work in fresh processes that cannot import this repository."""
    started = time.perf_counter()
    elsewhere = out / "elsewhere"
    elsewhere.mkdir()
    script = shutil.copy(RECIPES / "try_models.py", elsewhere)
    # -S leaves out the links to this repository in site-packages; the libraries are then found through their folder.
    libraries = sysconfig.get_path("purelib")
    alone = (
        f"import sys, runpy, importlib.util; sys.path.append({libraries!r}); "
        "assert importlib.util.find_spec('lacuna') is None, 'Lacuna is importable here'; "
        f"sys.argv[0] = {str(script)!r}; runpy.run_path({str(script)!r}, run_name='__main__')"
    )
    for stage, (title, _, _) in MODELS.items():
        print(f"\n-- try: {stage} {title}, in a process that knows only transformers", flush=True)
        command = [sys.executable, "-I", "-S", "-c", alone, "--model", str(out / stage)]
        if code := subprocess.run(command, cwd=elsewhere, check=False).returncode:
            sys.exit(f"demo: trying the {stage} failed with exit code {code}")
    return time.perf_counter() - started


def report(out: Path, seconds: dict[str, float]) -> bool:
    """Print the table of stages and write it to demo.json; return whether every metric clearly beats its baseline."""
    tokenizer = json.loads((out / "tokenizer" / "tokenizer_report.json").read_text(encoding="utf-8"))
    results = {stage: json.loads((out / stage / "results.json").read_text(encoding="utf-8")) for stage in MODELS}
    rows: list[tuple] = [("tokenizer", None, "bytes_per_token", tokenizer["bytes_per_token"], 1.0, None, True)]
    for stage in filter(MODELS.get, STAGES):  # in the order in which they were made
        _, metric, factor = MODELS[stage]
        value, baseline = results[stage][f"eval_{metric}"], results[stage][f"baseline_{metric}"]
        good = value >= factor * baseline if factor > 1 else value <= factor * baseline
        words = results[stage].get(f"words_{metric}")
        rows.append((stage, results[stage]["train_tokens_per_second"], metric, value, baseline, words, good))
    names = ("stage", "tokens_per_second", "metric", "value", "baseline", "bag of words")
    table = {"seconds": seconds, "rows": [dict(zip(names, row, strict=False)) for row in rows]}
    (out / "demo.json").write_text(json.dumps(table, indent=2) + "\n", encoding="utf-8")
    heads = f"{'metric':<16}{'value':>8}{'baseline':>10}{'bag of words':>14}"
    print(f"\n{'stage':<12}{'time':>7}{'tokens/s':>10}  {heads}\n{'-' * 78}")
    for stage, took in seconds.items():
        line = f"{stage:<12}{took:>6.0f}s"
        for _, speed, metric, value, baseline, words, good in (row for row in rows if row[0] == stage):
            line += f"{f'{speed:,.0f}' if speed else '':>10}  {metric:<16}{value:>8.3f}{baseline:>10.3f}"
            line += f"{'' if words is None else f'{words:.3f}':>14}{'' if good else '   too close'}"
        print(line.rstrip())
    print(f"{'-' * 78}\n{'all':<12}{sum(seconds.values()):>6.0f}s")
    print(
        "baselines: one byte a token; token frequencies (of the encoder and the decoder; of bits_per_byte less is\n"
        "better); the most frequent class; the better of two fixed guesses. Bag of words: TF-IDF with logistic\n"
        "regression; the sentence that has most words in common with the question."
    )
    return all(row[-1] for row in rows)


def main() -> None:
    """Run the stages, try the results, print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output_dir", default="runs/demo", help="Folder for all results; replaced if it exists.")
    os.chdir(RECIPES.parent)  # the stages are typed from the repository's folder
    out = Path(parser.parse_args().output_dir)
    if out.is_file() or (out.is_dir() and any(out.iterdir()) and not (out / "demo.txt").exists()):
        parser.error(f"--output_dir {out} is something else than the folder of a demo; name another one")
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    (out / "demo.txt").write_text("Made by recipes/demo.py, which replaces this folder when it runs again.\n")
    seconds: dict[str, float] = {}
    for title, command in STAGES.items():
        words = [word.format(out=out) for word in command.split()]
        seconds[title] = run(title, LAUNCH + words[1:] if words[0] == "launch" else words)
    seconds["try"] = try_results(out.resolve())
    good = report(out, seconds)
    for title, command in PAGES.items():
        run(title, [word.format(out=out) for word in command.split()])
    if not good:
        sys.exit("demo: a model is not clearly better than its baseline")


if __name__ == "__main__":
    main()
