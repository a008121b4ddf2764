"""The loop. What a step learns is handed in as a `Work`; when things happen is decided here."""

import contextlib
import gc
import json
import math
import shutil
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.utils import broadcast_object_list, gather_object
from torch import Tensor, nn
from torch.utils.data import DataLoader
from tqdm import tqdm

from .arguments import TrainingArguments
from .checkpoints import Progress, newest_checkpoint, restore, save_checkpoint, save_model, write_atomically
from .environment import bf16_is_fast, processes, use_all_cores
from .errors import ArgumentError, NumericsError, StorageError
from .model_card import model_card
from .optimizers import OPTIMIZERS
from .order import MicroBatchSampler, TrainingExamples, dropout_seed
from .run_log import RunLog, describe_run
from .schedules import learning_rate
from .stages import Stage, epochs_per_step, plan_stages, skipped
from .work import Work, to_device


@dataclass
class _Run:
    """The parts of a run, so that its functions need not pass nine of them around."""

    accelerator: Accelerator
    model: nn.Module
    optimizers: list[Any]
    stages: list[Stage]
    tokenizer: Any
    plan: TrainingArguments
    progress: Progress
    log: RunLog
    info: dict[str, Any]

    @property
    def bare(self) -> nn.Module:
        """The model without the wrapper of DDP."""
        return self.accelerator.unwrap_model(self.model)

    @property
    def work(self) -> Work:
        """What the model is judged by: the work of the last stage."""
        return self.stages[-1].work

    @property
    def done(self) -> float:
        """The share of the run that is done: by steps or by the clock, whichever is further."""
        return _done(self.plan, self.progress)

    def card(self, metrics: dict[str, float]) -> str:
        """The model card as things stand."""
        return model_card(
            model=self.bare,
            run_info=self.info,
            step=self.progress.step,
            tokens=self.progress.tokens,
            metrics=metrics,
        )


def train(
    *,
    model: nn.Module,
    work: Work | Sequence[tuple[float, Work]],
    tokenizer: Any,
    arguments: TrainingArguments,
    run_info: dict[str, Any] | None = None,
    identity: dict[str, Any] | None = None,
) -> dict[str, float]:
    """Train a model on a work and write the output folder.

    Args:
        model: a `PreTrainedModel`; it is trained in place.
        work: examples, loss and metrics; or several, each with the share of the run from which on it is learned, the
            first of them 0. The last one evaluates.
        tokenizer: saved beside the model.
        arguments: how long, how fast, in what portions.
        run_info: further facts for run.json and the model card (objective, fingerprints).
        identity: what must be equal when this run is resumed (fingerprints of data and tokenizer).

    Returns:
        The content of results.json, on every process.

    Raises:
        ArgumentError: options that do not fit the data, the processes or the resumed run.
        CorruptCheckpointError: `--resume`, and no checkpoint verifies.
        NumericsError: a gradient that is not finite; nothing of that step was applied.
        StorageError: the output folder cannot be written.
    """
    works = list(work) if isinstance(work, Sequence) else [(0.0, work)]
    run = _open_run(model, works, tokenizer, arguments, run_info or {}, identity or {})
    metrics: dict[str, float] = {}
    evaluated_at = -1
    try:
        for due in _steps(run):
            if due["evaluate"]:
                metrics, evaluated_at = _evaluate_and_log(run), run.progress.step
            if due["save"]:
                _save_resumable(run)
        if evaluated_at != run.progress.step:
            metrics = _evaluate_and_log(run)
    finally:
        run.log.close()
    progress = run.progress
    results = {
        **metrics,
        **{f"baseline_{name}": value for name, value in run.work.baseline().items()},
        "steps": progress.step,
        "train_tokens": progress.tokens,
        "train_seconds": round(progress.seconds, 2),
        "train_tokens_per_second": round(progress.tokens / max(progress.seconds, 1e-9), 1),
    }
    if run.accelerator.is_main_process:
        _save_final(model=run.bare, tokenizer=tokenizer, card=run.card(metrics), output_dir=Path(run.plan.output_dir))
    run.log.finish(results)
    run.accelerator.wait_for_everyone()
    _leave_group(run)
    return results


def _open_run(
    model: nn.Module,
    works: list[tuple[float, Work]],
    tokenizer: Any,
    arguments: TrainingArguments,
    info: dict[str, Any],
    identity: dict[str, Any],
) -> _Run:
    """Join the processes, make the optimizer, and go back to the newest checkpoint when resuming."""
    precision = arguments.mixed_precision
    if precision == "auto":
        precision = "bf16" if bf16_is_fast() else "no"
    use_all_cores()
    # Without `cpu`, accelerate 1.15 makes each process of `torchrun` a run of its own on a machine without a GPU.
    on_cpu = not torch.accelerator.is_available() and processes().count > 1
    accelerator = Accelerator(mixed_precision=precision, cpu=on_cpu)
    stages = plan_stages(arguments=arguments, works=works, num_processes=accelerator.num_processes)
    plan = arguments.resolved(epochs_per_step=epochs_per_step(stages))
    output_dir = Path(plan.output_dir)
    model, *optimizers = accelerator.prepare(model, *OPTIMIZERS[plan.optimizer](model, plan))

    progress = Progress(identity=_identity(plan, identity))
    notices = [
        f"warning: of {plan.max_steps} steps none is in the stage that begins at {stage.at} of the run"
        for stage in (skipped(stages, plan.max_steps) if plan.max_steps and not plan.max_minutes else [])
    ]
    if plan.resume:
        checkpoint, passed_over = newest_checkpoint(output_dir)
        notices += passed_over
        if checkpoint is None and (output_dir / "config.json").exists():
            raise ArgumentError(f"--resume: the run in {output_dir} is finished, with no checkpoint to continue from")
        if checkpoint is None:
            notices.append(f"no checkpoint in {output_dir}: starting from the beginning")
        else:
            bare = accelerator.unwrap_model(model)
            restored = restore(
                checkpoint=checkpoint, model=bare, optimizers=_bare(optimizers), identity=progress.identity
            )
            progress = restored
            notices.append(f"resuming from {checkpoint} at step {progress.step:,}")

    main = accelerator.is_main_process
    log = RunLog(output_dir=output_dir, enabled=main, first_step=progress.step, done=_done(plan, progress))
    if main:
        launched = processes()
        facts = describe_run(
            arguments=plan,
            launched=launched,
            device=accelerator.device,
            precision=precision,
            run_info={
                **info,
                "stages": [
                    {name: getattr(stage, name) for name in ("at", "batch_size", "micro_batch_size")}
                    for stage in stages
                ],
                "identity": progress.identity,
            },
        )
        write_atomically(output_dir / "run.json", json.dumps(facts, indent=2, default=str) + "\n")
    for notice in notices:
        log.say(notice)
    return _Run(accelerator, model, optimizers, stages, tokenizer, plan, progress, log, info)


def _identity(plan: TrainingArguments, identity: dict[str, Any]) -> dict[str, Any]:
    """What must not change between a run and its continuation."""
    # As JSON gives it back, to be compared with what a checkpoint holds.
    sizes = f"{plan.batch_size} at {plan.batch_size_at}" if len(plan.batch_size) > 1 else str(plan.batch_size)
    facts = {"seed": plan.seed, "batch_size": sizes, "optimizer": plan.optimizer, **identity}
    return json.loads(json.dumps(facts))


def _bare(optimizers: list[Any]) -> list[torch.optim.Optimizer]:
    """The optimizers without the wrapper of accelerate."""
    return [optimizer.optimizer for optimizer in optimizers]


def _leave_group(run: _Run) -> None:
    """Part from the other processes; DDP's wrapper goes first.

    Its reducer would be the last to hold the process group and take it down with Python's lock held, for which a
    thread of gloo waits: 3 of 20 runs on two processes never returned (torch 2.13).
    """
    run.model = run.bare
    if run.accelerator.num_processes > 1:
        run.accelerator.free_memory()
        gc.collect()
    run.accelerator.end_training()


def _evaluate_and_log(run: _Run) -> dict[str, float]:
    """Metrics over the held-out examples; empty where there are none."""
    if not run.work.num_eval_examples:
        return {}
    metrics = evaluate(run.accelerator, run.model, run.work, batch_size=run.plan.eval_batch_size)
    run.log.evaluation({"step": run.progress.step, **metrics})
    return metrics


def _save_resumable(run: _Run) -> None:
    """Write a checkpoint. One that fails is a warning: training goes on, and older ones are intact."""
    if not run.accelerator.is_main_process:
        return
    try:
        save_checkpoint(
            output_dir=Path(run.plan.output_dir),
            model=run.bare,
            optimizers=_bare(run.optimizers),
            tokenizer=run.tokenizer,
            card=run.card({}),
            progress=run.progress,
            keep=run.plan.keep_checkpoints,
        )
    except StorageError as error:
        run.log.say(f"warning: {error}; training goes on, older checkpoints are intact")


def _done(plan: TrainingArguments, progress: Progress) -> float:
    by_steps = progress.step / plan.max_steps if plan.max_steps else 0.0
    by_clock = progress.seconds / (60.0 * plan.max_minutes) if plan.max_minutes else 0.0
    return max(by_steps, by_clock)


def _is_due(interval: float, *, step: int, before: float, after: float) -> bool:
    """Whether something that happens every `interval` steps (below 1: share of the run) happens now."""
    if interval == 0:
        return False
    if interval >= 1:
        return step % int(interval) == 0
    return math.floor(after / interval + 1e-9) > math.floor(before / interval + 1e-9)


def _steps(run: _Run) -> Iterator[dict[str, bool]]:
    """Train; after each optimizer step, yield what is due. All processes yield the same."""
    plan, progress = run.plan, run.progress
    stage: Stage | None = None
    window: dict[str, Tensor] = {}
    opened = replace(progress)
    while run.done < 1.0:
        before, started = run.done, time.perf_counter()
        if (reached := _enter_stage(run)) is not stage:
            stage, loader = reached, iter(_loader(run, reached))
        micro_batches = stage.batch_size // (run.accelerator.num_processes * stage.micro_batch_size)
        rate = learning_rate(plan, step=progress.step, progress=before)
        for group in (group for optimizer in run.optimizers for group in optimizer.param_groups):
            group["lr"] = rate
        parts, grad_norm, tokens = _step(run, stage, [next(loader) for _ in range(micro_batches)])
        for name, value in parts.items():
            window[name] = window[name] + value if name in window else value
        progress.step += 1
        progress.samples += stage.batch_size
        progress.tokens += tokens
        progress.seconds = _agree(run, progress.seconds + time.perf_counter() - started)
        run.log.advance(run.done)
        if progress.step % plan.logging_steps == 0 or run.done >= 1.0:
            _log_window(run, window, opened, learning_rate=rate, grad_norm=grad_norm)
            window, opened = {}, replace(progress)
        yield {
            name: _is_due(interval, step=progress.step, before=before, after=run.done)
            for name, interval in (("evaluate", plan.eval_steps), ("save", plan.save_steps))
        }


def _enter_stage(run: _Run) -> Stage:
    """The stage that the run is in. Another work counts its samples from 0; none is left for an earlier one."""
    progress = run.progress
    reached = max(number for number, stage in enumerate(run.stages) if stage.at <= run.done)
    while progress.stage < reached:
        before, after = run.stages[progress.stage : progress.stage + 2]
        if after.work is not before.work:
            progress.epochs += progress.samples / before.work.num_examples
            progress.samples = 0
        progress.stage += 1
    return run.stages[progress.stage]


def _log_window(run: _Run, window: dict[str, Tensor], opened: Progress, **last: float) -> None:
    """One line of metrics.jsonl: means over the steps since the last one, over all processes."""
    steps = run.progress.step - opened.step
    seconds = max(run.progress.seconds - opened.seconds, 1e-9)
    sums = {name: run.accelerator.reduce(value, "sum").tolist() for name, value in window.items()}
    means = {name: value / steps for name, value in sums.items() if not isinstance(value, list)}
    means |= {name: value[0] / value[1] for name, value in sums.items() if isinstance(value, list) and value[1]}
    run.log.record(
        {
            "step": run.progress.step,
            "epoch": round(
                run.progress.epochs + run.progress.samples / run.stages[run.progress.stage].work.num_examples, 4
            ),
            **means,
            **last,
            "tokens_per_second": round((run.progress.tokens - opened.tokens) / seconds, 1),
            "seconds": round(run.progress.seconds, 3),
        }
    )


def _step(run: _Run, stage: Stage, batches: list[dict[str, Tensor]]) -> tuple[dict[str, Tensor], float, int]:
    """One optimizer step over its micro-batches; returns this process's share of the metrics, gradient norm, tokens.

    The loss is the sum over target tokens divided by their number in the whole step, over micro-batches and
    processes. DDP averages gradients over processes, so the loss is multiplied by their number first.
    """
    accelerator, model, step = run.accelerator, run.model, run.progress.step
    model.train()
    num_targets, tokens = _global_counts(run, stage.work, batches)
    parts: dict[str, Tensor] = {}
    for micro_step, batch in enumerate(batches):
        torch.manual_seed(
            dropout_seed(seed=run.plan.seed, step=step, micro_step=micro_step, rank=accelerator.process_index)
        )
        last = micro_step == len(batches) - 1
        with contextlib.nullcontext() if last else accelerator.no_sync(model):
            loss, metrics = stage.work.loss(model, to_device(batch, accelerator.device), num_targets)
            accelerator.backward(loss * accelerator.num_processes)
        for name, value in {"loss": loss.detach(), **metrics}.items():
            parts[name] = parts[name] + value if name in parts else value
    grad_norm = float(accelerator.clip_grad_norm_(model.parameters(), run.plan.max_grad_norm or math.inf))
    if not math.isfinite(grad_norm):
        first = run.progress.samples
        raise NumericsError(
            f"step {step + 1}: the gradient is {grad_norm} (samples {first} to {first + stage.batch_size - 1}); "
            "the step was not applied. Try a lower --learning_rate or --mixed_precision no"
        )
    for optimizer in run.optimizers:
        optimizer.step()
        optimizer.zero_grad()
    return parts, grad_norm, tokens


def _global_counts(run: _Run, work: Work, batches: list[dict[str, Tensor]]) -> tuple[dict[str, Tensor], int]:
    """Targets of each kind, and tokens, in the whole step: over its micro-batches and over processes."""
    counts: dict[str, int] = {}
    tokens = 0
    for batch in batches:
        for name, count in work.count_targets(batch).items():
            counts[name] = counts.get(name, 0) + count
        mask = batch.get("attention_mask")
        tokens += batch["input_ids"].numel() if mask is None else int(mask.sum())
    device = run.accelerator.device
    local = torch.tensor([*counts.values(), tokens], device=device)
    *totals, tokens_everywhere = run.accelerator.reduce(local, "sum")
    # A step without a single target of a kind divides zero by one.
    num_targets = {name: total.clamp(min=1) for name, total in zip(counts, totals, strict=True)}
    return num_targets, int(tokens_everywhere)


def _agree(run: _Run, seconds: float) -> float:
    """The main process's clock, so that all processes stop at the same step. Free unless the clock is the limit."""
    if run.plan.max_minutes is None or run.accelerator.num_processes == 1:
        return seconds
    return float(broadcast_object_list([seconds])[0])


def _progress_at(run: _Run, step: int) -> float:
    """The share done before a step. It follows from the step, unless the clock may end the run."""
    by_steps = step / run.plan.max_steps if run.plan.max_steps else 0.0
    return max(by_steps, run.done) if run.plan.max_minutes else by_steps


def _loader(run: _Run, stage: Stage) -> DataLoader:
    """Micro-batches from the present step on. Not prepared by accelerate: sharding and skipping are the sampler's own.

    The loader draws one number from a generator when it starts; it gets one of its own, so that dropout's is left
    alone.
    """
    plan, accelerator, work = run.plan, run.accelerator, stage.work
    sampler = MicroBatchSampler(
        num_examples=work.num_examples,
        seed=plan.seed,
        start_step=run.progress.step,
        first_sample=run.progress.samples,
        batch_size=stage.batch_size,
        micro_batch_size=stage.micro_batch_size,
        rank=accelerator.process_index,
        num_processes=accelerator.num_processes,
        mixture=work.mixture,
        progress_at=partial(_progress_at, run),
    )
    return DataLoader(
        TrainingExamples(work),
        batch_sampler=sampler,
        collate_fn=work.collate,
        num_workers=plan.num_workers,
        generator=torch.Generator(),
        pin_memory=accelerator.device.type == "cuda",
        persistent_workers=plan.num_workers > 0,
    )


@torch.no_grad()
def evaluate(accelerator: Accelerator, model: nn.Module, work: Work, *, batch_size: int) -> dict[str, float]:
    """Metrics over all held-out examples, each seen once by one process; named `eval_...`."""
    model.eval()
    bare = accelerator.unwrap_model(model)  # DDP would wait for its peers, which may have a batch fewer
    rows = range(accelerator.process_index, work.num_eval_examples, accelerator.num_processes)
    starts = range(0, len(rows), batch_size)
    records: list[dict[str, Any]] = []
    # With `delay` the bar appears only where evaluation takes long enough to ask what is happening.
    hidden = None if accelerator.is_main_process else True
    for start in tqdm(starts, desc="evaluating", leave=False, delay=3, disable=hidden):
        batch = work.collate([work.eval_example(row) for row in rows[start : start + batch_size]])
        records += work.evaluate(bare, to_device(batch, accelerator.device))
    return {f"eval_{name}": value for name, value in work.summarize(gather_object(records)).items()}


def _save_final(*, model: nn.Module, tokenizer: Any, card: str, output_dir: Path) -> None:
    """Put the model's files into the output folder itself, each of them whole."""
    temporary = output_dir / ".final.tmp"
    try:
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir(parents=True)
        save_model(model=model, tokenizer=tokenizer, card=card, folder=temporary)
        for path in sorted(temporary.iterdir()):
            path.replace(output_dir / path.name)
        temporary.rmdir()
    except OSError as error:
        shutil.rmtree(temporary, ignore_errors=True)
        raise StorageError(f"cannot write the model to {output_dir}: {error}") from error
