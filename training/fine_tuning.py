"""Fine-tuning a pretrained model on a task: one run or several seeds, the dry run, and the printed results."""

import json
import math
import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from torch import nn

from lacuna.common.errors import called
from lacuna.common.files import hold, write_text
from lacuna.common.hub import push_trained
from lacuna.common.private import shown_command
from lacuna.common.work import BESIDE, Work

from .arguments import FineTuningArguments
from .checkpoints.resuming import claim_output_dir, refusal
from .environment import is_main_process, running_on
from .loop import train
from .optimizers.adapters import num_weights, prepare
from .optimizers.averages import Soup
from .optimizers.schedules import with_rate
from .reports.page import ending
from .stages import Stage, epochs_per_step, resolve

SHOWN = 5  # examples that `--dry_run` shows
MOST_BLENDED = 20e6  # weights of a model that is trained three times without being asked


def fine_tune(
    *,
    work: Work,
    make_model: Callable[[int], Any],
    tokenizer: Any,
    arguments: FineTuningArguments,
    run_info: dict[str, Any] | None = None,
    identity: dict[str, Any] | None = None,
    finish: Callable[[dict[str, float], Path], object] | None = None,
    describe: Callable[[int], Sequence[str]] = lambda examples: (),
) -> dict[str, float]:
    """Fine-tune a model, with `--seeds` several times, and print the results; with `--dry_run` only what would learn.

    Args:
        make_model: seed -> the model to start from; a head that it lacks is drawn from the seed.
        run_info, identity: see `train`; the former has `objective`, `model` and `task` (the options of the data).
        finish: called on the main process with the results and the folder of each run, once its model is there.
        describe: number -> lines about what is learned, with so many examples.

    Returns results.json (docs/fine_tuning.md says what is in it), empty with `--dry_run`. May raise HubError.
    """
    if arguments.dry_run:
        if is_main_process():
            model = make_model(arguments.seed)
            prepare(model, arguments)
            resolved, stages = resolve(arguments, [(0.0, work)], num_processes=1)
            learns = learning(model, with_rate(resolved, model).learning_rate, resolved.max_steps, stages)
            print("\n".join([*describe(SHOWN), learns, *refusal(arguments, resumes=True)]), flush=True)
        return {}
    if is_main_process():
        claim_output_dir(arguments)
        print("\n".join([running_on(), *describe(0)]), flush=True)
    models = [make_model(arguments.seed)]
    if arguments.seeds is None:
        arguments = replace(arguments, **_runs_for(models[0], work, arguments))
    seeds, every = list(range(arguments.seed, arguments.seed + (arguments.seeds or 1))), list[dict[str, float]]()
    soup = Soup(len(seeds)) if arguments.soup else None
    again = f"several runs are not resumed: delete {arguments.output_dir} and start again, or take --seeds 1"
    for seed in seeds:
        one = arguments if len(seeds) == 1 else _of_seed(arguments, seed)
        with called({"resume with --resume": again} if len(seeds) > 1 else {}):
            results = train(
                model=models.pop() if models else make_model(arguments.seed if soup else seed),
                work=work,
                tokenizer=tokenizer,
                arguments=one,
                run_info=_facts(work, run_info or {}),
                identity=identity,
                blend=soup.blend if soup else None,
                stay_joined=seed != seeds[-1],
            )
        every.append(results)
        if is_main_process() and finish is not None:
            finish(results, Path(one.output_dir))
    results = every[0] if len(every) == 1 else _of_soup(every) if soup else _together(work, every, seeds)
    if is_main_process():
        _gather(results, Path(arguments.output_dir), seeds)
        print("\n".join([*outcome(results), *fell_short(results, work), ending(arguments.output_dir)]), flush=True)
        push_trained(folder=arguments.output_dir, name=arguments.push_to_hub)
    return results


def _facts(work: Work, run_info: dict[str, Any]) -> dict[str, Any]:
    """What run.json says of the run; options that were left to the work as it decided."""
    counts = {"examples": work.num_examples, "held_out": work.num_eval_examples}
    info = {"command": shown_command(), **counts, **run_info}
    if task := info.get("task"):
        decided = work.settings()
        info["task"] = {name: decided.get(name, it) if it in (None, [], "auto") else it for name, it in task.items()}
    return info


def _of_seed(arguments: FineTuningArguments, seed: int) -> FineTuningArguments:
    """The options of one of several runs, which has a folder of its own, but for the last of `--soup`."""
    folder, runs = Path(arguments.output_dir), arguments.seeds or 1
    pours = arguments.soup and seed == arguments.seed + runs - 1
    apart: dict[str, Any] = {} if pours else {"soup": False, "seeds": 1, "output_dir": str(folder / f"seed-{seed}")}
    one = replace(arguments, seed=seed, **apart)
    if is_main_process():
        hold(folder)  # the run before has let go of it
        if not pours:
            claim_output_dir(one)
        print(f"seed {seed}, {seed - arguments.seed + 1} of {runs}", flush=True)
    return one


def _runs_for(model: nn.Module, work: Work, arguments: FineTuningArguments) -> dict[str, Any]:
    """How many runs there are where nobody says so: three of few rows, where their mean pays and takes little time."""
    limits = ("max_steps", "max_epochs", "max_minutes", "max_tokens", "save_steps", "save_minutes", "resume")
    asked = any(getattr(arguments, name) for name in (*limits, "early_stopping_patience", "lora_rank"))
    few = work.num_examples <= work.blended_rows and num_weights(model) <= MOST_BLENDED
    if not few or asked or arguments.average != "best":
        return {"seeds": 1}
    if is_main_process():
        print("few rows: three runs that begin alike, and the mean of their weights (--seeds 1 for one)", flush=True)
    return {"seeds": 3, "soup": True}


def _of_soup(every: list[dict[str, float]]) -> dict[str, float]:
    """The results of the last run, which are those of the mean, and over all runs `alone_...` and `alone_..._std`."""
    results = dict(every[-1])
    for name in [name for name in results if name.startswith("alone_")]:
        values = [*(one[name.replace("alone_", "eval_", 1)] for one in every[:-1]), results[name]]
        results |= {name: fmean(values), f"{name}_std": _deviation(values)}
    return results


def _deviation(values: list[float]) -> float:
    """The standard deviation, 0 of one value."""
    return (stdev(values) if all(map(math.isfinite, values)) else math.nan) if len(values) > 1 else 0.0


def _together(work: Work, every: list[dict[str, float]], seeds: list[int]) -> dict[str, float]:
    """Means over runs, standard deviations of metrics, and the best seed (of equal ones by loss) with its own."""
    results: dict[str, float] = {}
    for name in every[0]:
        values = [float(one[name]) for one in every if name in one]
        results[name] = every[0][name] if len(set(values)) == 1 else fmean(values)
        if name.startswith("eval_"):
            results[f"{name}_std"] = _deviation(values)
    sign = 1.0 if work.greater_is_better else -1.0

    def rank(one: dict[str, float]) -> list[float]:
        scores = [sign * one.get(f"eval_{work.metric}", math.nan), -one.get("eval_loss", math.nan)]
        return [-math.inf if math.isnan(score) else score for score in scores]

    best = max(every, key=rank)
    results |= {name: best[name] for name in ("best_step", "stopped_early") if name in best}
    own = {f"best_seed_{name[5:]}": value for name, value in best.items() if name.startswith("eval_")}
    return {**results, "seeds": len(every), "best_seed": seeds[every.index(best)], **own}


def _gather(results: dict[str, float], folder: Path, seeds: list[int]) -> None:
    """Of several runs, copy the best, without its checkpoints, into the folder of all, and write the results of all.

    That it is the best of several is said before the first section of the card and of the report.
    """
    if len(seeds) > 1:
        write_text(folder / "results.json", json.dumps(results, indent=2) + "\n")
    if "best_seed" not in results:
        return
    said = (
        f"Trained {len(seeds)} times, with seeds {seeds[0]} to {seeds[-1]}. All here is about seed "
        f"{results['best_seed']}, the best; means and standard deviations are in results.json."
    )
    best = folder / f"seed-{results['best_seed']}"
    without = shutil.ignore_patterns("results.json", "checkpoints", ".*")
    shutil.copytree(best, folder, dirs_exist_ok=True, ignore=without)
    for path in (folder / "README.md", folder / "report.md"):
        if path.is_file():
            before, heading, after = path.read_text(encoding="utf-8").partition("\n## ")
            write_text(path, f"{before.rstrip()}\n\n{said}\n{heading}{after}")


def outcome(results: dict[str, float]) -> list[str]:
    """Lines for people: each metric, with its deviation, and beside it those before training and without a model."""
    lines = []
    for name, value in results.items():
        metric = name.removeprefix("eval_")
        if metric == name or name.endswith("_std"):
            continue
        line = f"{metric:<24}{value:>10.4f}"
        beside = {
            " ± ": f"{name}_std",
            "   kept ": f"best_seed_{metric}",
            "   one run alone ": f"alone_{metric}",
            **{f"   {what} ": f"{part}_{metric}" for part, what in BESIDE.items()},
        }
        lines.append(line + "".join(f"{what}{results[key]:.4f}" for what, key in beside.items() if key in results))
    if "best_seed" in results:
        kept = f"the model that is kept is of seed {results['best_seed']}"
        lines.append(f"means and standard deviations over {results['seeds']} seeds; {kept}")
    return lines


def fell_short(results: dict[str, float], work: Work) -> list[str]:
    """A warning for a model that by the metric of its work is no better than what needs no model, or no line."""
    metric = work.metric
    value = results.get(f"eval_{metric}", math.nan)
    for simple, part in (("the bag of words", "words"), ("a guess without a model", "baseline")):
        other = results.get(f"{part}_{metric}", math.nan)
        if value <= other if work.greater_is_better else value >= other:
            words = part == "words" or f"words_{metric}" not in results  # of search the baseline is by words
            if words and (hybrid := results.get(f"hybrid_{metric}")):
                both = "both are better together" if hybrid > other else "the model adds nothing to them"
                return [f"warning: by {metric}, words without a model are as good or better: {both}"]
            few, alone = work.blended_rows > 0, f"alone_{metric}" not in results
            soup = ", take the mean of three runs (--seeds 3 --soup)" if few and alone else ""
            advice = f"Give the model more rows or passes (--max_epochs){soup}, pretrain it on text of this kind"
            questions = ", then --objective spans" if metric == "f1" else ""  # taggers, too, are judged by it, and few
            closer = "; classifiers of topics: --objective mlm_contrastive" if few else questions
            how = f"{advice} (pretrain.py --for{closer}), or use {simple}"
            return [f"warning: by {metric}, {simple} is as good or better. {how}"]
    return []


def learning(model: nn.Module, rate: float | None, steps: int | None = None, stages: Sequence[Stage] = ()) -> str:
    """How many weights learn at which rate and for how long, where that is known, a line for people."""
    trained = sum(weight.numel() for weight in model.parameters() if weight.requires_grad)
    every = sum(weight.numel() for weight in model.parameters())
    long = f", in {steps:,} steps, {steps * epochs_per_step(stages):.3g} passes" if steps else ""
    return f"{trained:,} of {every:,} weights learn, at a rate of {rate:g} at its peak{long}"
