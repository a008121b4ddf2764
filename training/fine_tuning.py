"""Fine-tuning a pretrained model on a task: one run or several seeds, the dry run, and the printed results."""

import itertools
import json
import math
import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import torch
from torch import nn
from torch.utils.benchmark import Timer
from tqdm import tqdm

from lacuna.common.files import hold, write_text
from lacuna.common.hub import push_trained
from lacuna.common.private import shown_command
from lacuna.common.work import TrainingBatches, Work, to_device

from .arguments import FineTuningArguments, TrainingArguments
from .checkpoints.resuming import claim_output_dir, refusal
from .environment import is_main_process, processes, resolved_precision, use_all_cores
from .loop import train
from .optimizers.adapters import prepare
from .optimizers.schedules import with_rate
from .progress import is_due
from .stages import Stage, resolve
from .step import step

SHOWN = 5
"""Examples that `--dry_run` shows."""
_SAMPLED = 64
"""Micro-batches of which one of median length is timed."""


def fine_tune(
    *,
    work: Work,
    make_model: Callable[[int], Any],
    tokenizer: Any,
    arguments: FineTuningArguments,
    run_info: dict[str, Any] | None = None,
    identity: dict[str, Any] | None = None,
    finish: Callable[[dict[str, float], Path], object] | None = None,
    describe: Callable[[int], Sequence[str]] | None = None,
) -> dict[str, float]:
    """Fine-tune a model, with `--seeds` several times, and print the results; with `--dry_run` only what is expected.

    Args:
        make_model: seed -> the model to start from; a head that it lacks is drawn from the seed.
        run_info: more for run.json and the model card: `objective`, `model`, `task` (the options of the data).
        identity: what must be equal when the run is resumed.
        finish: called on the main process with the results and the folder of each run, once its model is there.
        describe: number -> lines about what is learned, with so many examples.

    Returns:
        The content of results.json; with several seeds means, standard deviations (eval_NAME_std), `seeds`,
        `best_seed`, whose model is kept, its metrics (best_seed_NAME). Empty with `--dry_run`. May raise HubError.
    """
    shown = describe or (lambda examples: ())
    if arguments.dry_run:
        if is_main_process():
            expected = [*_expected(work, make_model, arguments), *refusal(arguments)]
            print("\n".join([*shown(SHOWN), *expected]), flush=True)
        return {}
    if is_main_process():
        claim_output_dir(arguments)
        print("\n".join([processes().describe(), *shown(0)]), flush=True)
    counts = {"examples": work.num_examples, "held_out": work.num_eval_examples}
    info: dict[str, Any] = {"command": shown_command(), **counts, **(run_info or {})}
    if "task" in info:  # what was left to the work is recorded as it decided
        left_open = {name: value for name, value in info["task"].items() if value in (None, [], "auto")}
        info["task"] = info["task"] | {name: work.settings().get(name, left_open[name]) for name in left_open}
    seeds = list(range(arguments.seed, arguments.seed + arguments.seeds))
    every: list[dict[str, float]] = []
    for seed in seeds:
        one = arguments if len(seeds) == 1 else _of_seed(arguments, seed)
        results = train(
            model=make_model(seed),
            work=work,
            tokenizer=tokenizer,
            arguments=one,
            run_info=info,
            identity=identity,
            stay_joined=seed != seeds[-1],
        )
        every.append(results)
        if is_main_process() and finish is not None:
            finish(results, Path(one.output_dir))
    results = every[0] if len(every) == 1 else _together(work, every, seeds)
    if is_main_process():
        _gather(work, results, Path(arguments.output_dir), seeds)
        print("\n".join([*outcome(results), f"the model is in {arguments.output_dir}"]), flush=True)
        push_trained(folder=arguments.output_dir, name=arguments.push_to_hub)
    return results


def _of_seed(arguments: FineTuningArguments, seed: int) -> FineTuningArguments:
    """The options of one of several runs, in a folder of its own, which the main process claims."""
    folder = Path(arguments.output_dir)
    one = replace(arguments, seed=seed, seeds=1, output_dir=str(folder / f"seed-{seed}"))
    if is_main_process():
        hold(folder)  # the run before has let go of it
        claim_output_dir(one)
        print(f"seed {seed}, {seed - arguments.seed + 1} of {arguments.seeds}", flush=True)
    return one


def _together(work: Work, every: list[dict[str, float]], seeds: list[int]) -> dict[str, float]:
    """Means over runs, with standard deviations of metrics; the seed of the best run (lower loss decides), and its own
    metrics."""
    results: dict[str, float] = {}
    for name in every[0]:
        values = [float(one[name]) for one in every if name in one]
        results[name] = every[0][name] if len(set(values)) == 1 else fmean(values)
        if name.startswith("eval_"):
            deviation = stdev(values) if len(values) > 1 and all(map(math.isfinite, values)) else math.nan
            results[f"{name}_std"] = 0.0 if len(values) < 2 else deviation
    sign = 1.0 if work.greater_is_better else -1.0

    def rank(one: dict[str, float]) -> list[float]:
        scores = [sign * one.get(f"eval_{work.metric}", math.nan), -one.get("eval_loss", math.nan)]
        return [-math.inf if math.isnan(score) else score for score in scores]

    best = max(every, key=rank)
    results |= {name: best[name] for name in ("best_step", "stopped_early") if name in best}
    own = {f"best_seed_{name[5:]}": value for name, value in best.items() if name.startswith("eval_")}
    return {**results, "seeds": len(every), "best_seed": seeds[every.index(best)], **own}


def _over_seeds(work: Work, results: dict[str, float], seeds: list[int]) -> list[str]:
    """A section of a report about all runs; the rest of the report is about one of them."""
    names = [name.removeprefix("best_seed_") for name in results if name.startswith("best_seed_")]
    which = f"the best by {work.metric}" if names else "the first, since nothing was held out"
    lines = [
        "## Over seeds",
        "",
        f"Trained {len(seeds)} times, with seeds {seeds[0]} to {seeds[-1]}. The model here is that of seed "
        f"{results['best_seed']}, {which}; everything outside this section describes that one.",
        "",
    ]
    lines += ["| held out | mean | standard deviation | the model here |", "|---|---|---|---|"] if names else []
    for name in names:
        values = [results[key] for key in (f"eval_{name}", f"eval_{name}_std", f"best_seed_{name}")]
        lines.append(f"| {name} | {' | '.join(f'{value:.4f}' for value in values)} |")
    return [*lines, ""] if names else lines


def _gather(work: Work, results: dict[str, float], folder: Path, seeds: list[int]) -> None:
    """Of several runs, copy the best, without its checkpoints, into the folder of all, and write the results of all.

    The section about all runs goes before the first section of the card and of the report.
    """
    if len(seeds) == 1:
        return
    section = _over_seeds(work, results, seeds)
    best = folder / f"seed-{results['best_seed']}"
    shutil.copytree(
        best, folder, dirs_exist_ok=True, ignore=shutil.ignore_patterns("results.json", "checkpoints", ".*")
    )
    for path in (folder / "README.md", folder / "report.md"):
        if path.is_file():
            before, heading, after = path.read_text(encoding="utf-8").partition("\n## ")
            write_text(path, "\n".join([before.rstrip(), "", *section]) + heading + after)
    write_text(folder / "results.json", json.dumps(results, indent=2) + "\n")


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
            "   before training ": f"start_{metric}",
            "   without a model ": f"baseline_{metric}",
            "   bag of words ": f"words_{metric}",
        }
        lines.append(line + "".join(f"{what}{results[key]:.4f}" for what, key in beside.items() if key in results))
    if "seeds" in results:
        lines.append(
            f"means and standard deviations over {results['seeds']} seeds; the model that is kept is of seed "
            f"{results['best_seed']}"
        )
    return lines


def _expected(work: Work, make_model: Callable[[int], Any], asked: FineTuningArguments) -> list[str]:
    """Lines about the trainable parameters, the number of steps, and the expected time, from timing a few batches."""
    use_all_cores()
    count = processes().count
    fixed = replace(asked, micro_batch_size=None) if asked.micro_batch_size == 0 else asked
    arguments, (stage,) = resolve(fixed, [(0.0, work)], num_processes=count)
    model = make_model(arguments.seed)
    prepare(model, arguments)
    arguments = with_rate(arguments, model)
    lines = [learning(model, arguments.learning_rate)]
    a_micro_batch, an_eval_batch = _seconds(model, stage, count, arguments)
    a_step = a_micro_batch * (stage.batch_size // (count * stage.micro_batch_size))
    by_clock = 60.0 * arguments.max_minutes / a_step if arguments.max_minutes else math.inf
    steps = int(min(arguments.max_steps or math.inf, max(1.0, by_clock)))
    held_out = work.num_eval_examples
    an_evaluation = an_eval_batch * max(1.0, math.ceil(held_out / count) / arguments.eval_batch_size)
    return lines + expected_time(
        steps=(steps, a_step),
        evaluations=(_num_evaluations(arguments.eval_steps, steps) if held_out else 0, an_evaluation),
        batch_size=stage.batch_size,
        held_out=held_out,
        seeds=asked.seeds,
    )


def learning(model: nn.Module, rate: float | None) -> str:
    """How many weights learn at which rate, a line for people."""
    trained = sum(weight.numel() for weight in model.parameters() if weight.requires_grad)
    every = sum(weight.numel() for weight in model.parameters())
    return f"{trained:,} of {every:,} weights learn, at a rate of {rate:g} at its peak"


def expected_time(
    *,
    steps: tuple[int, float],
    evaluations: tuple[int, float],
    batch_size: int,
    held_out: int,
    seeds: int = 1,
) -> list[str]:
    """How long a run will take, lines for people; `steps` and `evaluations` are how many, and the seconds of each."""
    runs = f", {seeds} times" if seeds > 1 else ""
    parts = [
        (f"{steps[0]:,} steps of {batch_size} examples", *steps, "a step"),
        (f"{evaluations[0]:,} evaluations of {held_out:,} examples", *evaluations, "each"),
    ]
    lines = [
        f"{what}{runs}: about {tqdm.format_interval(number * each * seeds)} at {each:.2f} s {unit}"
        for what, number, each, unit in parts
        if number
    ]
    total = sum(number * each * seeds for _, number, each, _ in parts)
    return [*lines, f"together about {tqdm.format_interval(total)}; nothing was trained or written"]


def _num_evaluations(eval_steps: float, steps: int) -> int:
    """How many there are in a run of so many steps, the one at its end included."""
    return sum(
        step == steps or is_due(eval_steps, step=step, before=(step - 1) / steps, after=step / steps)
        for step in range(1, steps + 1)
    )


def _seconds(model: nn.Module, stage: Stage, count: int, arguments: TrainingArguments) -> tuple[float, float]:
    """Seconds of forward and backward of a micro-batch of median length, and of an evaluation batch."""
    device = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    device = device or torch.device("cpu")
    in_bf16 = resolved_precision(arguments.mixed_precision) == "bf16"
    work, model = stage.work, model.to(device)
    autocast = partial(torch.autocast, device.type, dtype=torch.bfloat16, enabled=in_bf16)
    sampler = stage.sampler(seed=arguments.seed, first_sample=0, num_processes=count)
    sampled = [[work.example(*keys) for keys in batch] for batch in itertools.islice(sampler, _SAMPLED)]
    sampled.sort(key=lambda examples: max(len(example["input_ids"]) for example in examples))
    batch = TrainingBatches(work, device)(sampled[len(sampled) // 2])

    def learn() -> None:
        step(work, model, [batch], device=device, autocast=autocast)
        model.zero_grad(set_to_none=True)

    def judge() -> None:
        rows = range(0, work.num_eval_examples, count)[: arguments.eval_batch_size]
        examples = work.collate([work.eval_example(row) for row in rows])
        with torch.no_grad(), autocast():
            work.evaluate(model.eval(), to_device(examples, device))

    learn()
    timers = [Timer("call()", globals={"call": call}, num_threads=torch.get_num_threads()) for call in (learn, judge)]
    an_evaluation = timers[1].timeit(1).median if work.num_eval_examples else 0.0
    return timers[0].blocked_autorange(min_run_time=1.0).median, an_evaluation
