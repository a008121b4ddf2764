"""The loop. What a step learns is handed in as a `Work`; when things happen is decided here."""

import contextlib
import math
import signal
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from accelerate.utils import broadcast_object_list
from torch import Tensor, nn
from torch.utils.data import DataLoader

from lacuna.common.errors import StoppedError, StorageError
from lacuna.common.files import release
from lacuna.common.work import TrainingBatches, Work, to_device

from . import sharding
from .arguments import TrainingArguments
from .averaging import Best
from .checkpoints import PATIENCE, save_final
from .evaluating import evaluate
from .identity import skipped_steps
from .model_card import adapter_card
from .order import MicroBatchSampler, TrainingExamples, dropout_seed
from .progress import Window, ended_early, enter_stage, is_due, stops_early
from .run import Run, close_run, open_run
from .schedules import learning_rate
from .signals import Watchdog
from .stages import Stage
from .watching import leave_out, poisoned, watch

_SILENT_SECONDS = 5.0
"""Of the evaluation in the end, before a line says that it goes on."""


def train(
    *,
    model: nn.Module,
    work: Work | Sequence[tuple[float, Work]],
    tokenizer: Any,
    arguments: TrainingArguments,
    run_info: dict[str, Any] | None = None,
    identity: dict[str, Any] | None = None,
    stay_joined: bool = False,
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
        stay_joined: do not part from the other processes in the end: another run of theirs follows.

    Returns:
        The content of results.json, on every process.

    Raises:
        InputError: options that do not fit the data, the processes or the resumed run.
        CorruptCheckpointError: `--resume`, and no checkpoint verifies.
        NumericsError: too many steps in a row whose loss or gradient is not finite; none of them was applied.
        StoppedError: SIGTERM or SIGINT; the run was saved and can be resumed.
        StorageError: the output folder cannot be written.
    """
    works = list(work) if isinstance(work, Sequence) else [(0.0, work)]
    run = open_run(
        model=model,
        works=works,
        tokenizer=tokenizer,
        arguments=arguments,
        info=run_info or {},
        identity=identity or {},
    )
    try:
        with run.signals, Watchdog(arguments.hang_timeout) as run.watchdog:
            metrics = _train(run)
            results = _finish(run, metrics)
    finally:
        run.saver.close()
        run.log.close()
        release()
    close_run(run, stay_joined=stay_joined)
    return results


def _train(run: Run) -> dict[str, float]:
    """All steps with what is due after them; the last metrics."""
    metrics, evaluated_at = dict[str, float](), -1
    run.compile()
    if run.progress.evaluation_due:
        metrics, evaluated_at = _evaluate_and_log(run), run.progress.step
        _stop_if_asked(run)
    for due in _steps(run):
        run.progress.metric = None
        if run.saver.is_ready:
            _await_checkpoint(run)
        if due["evaluate"]:
            metrics, evaluated_at = _evaluate_and_log(run), run.progress.step
        ends_early = stops_early(run.plan, run.progress) and run.plan.writes_checkpoints
        if (due["save"] or ends_early) and not run.stopping:
            began = time.perf_counter()
            _save_resumable(run)
            run.waited += time.perf_counter() - began
        _stop_if_asked(run)
    if evaluated_at != run.progress.step:
        metrics = _evaluate_and_log(run)
        _stop_if_asked(run)
    return _evaluate_kept(run, metrics)


def _evaluate_kept(run: Run, metrics: dict[str, float]) -> dict[str, float]:
    """The last metrics; with `--average best` those of the weights that are kept, measured once more where they are
    not the last, so that what the work remembers of the held-out examples is of them."""
    progress, metric = run.progress, run.work.metric
    if ended_early(run.plan, progress):
        of_all = f" of {run.plan.max_steps:,}" if run.plan.max_steps else ""
        without = f"better {metric} than that of step {progress.best_step:,}"
        without = without if progress.best_step >= 0 else f"{metric} that is a number"
        run.log.say(
            f"stopped early after step {progress.step:,}{of_all}: {progress.without_better} evaluations in a row "
            f"without a {without}"
        )
    if not isinstance(run.average, Best) or not run.average or progress.best_step == progress.step:
        return metrics
    run.log.say(f"the weights of step {progress.best_step:,} are kept: {metric} {progress.best_metric:.4f}")
    kept = _evaluate(run, of_average=True)
    if kept is None:
        run.stopping = True
    _stop_if_asked(run)
    return kept or {}


def _finish(run: Run, metrics: dict[str, float]) -> dict[str, float]:
    """Write the model and results.json."""
    progress, plan = run.progress, run.plan
    baseline = {f"baseline_{name}": value for name, value in run.work.baseline().items()}
    results = {
        **metrics,
        **baseline,
        "steps": progress.step,
        **({"best_step": progress.best_step} if plan.average == "best" and progress.best_step >= 0 else {}),
        **({"stopped_early": ended_early(plan, progress)} if plan.early_stopping_patience else {}),
        **({"planned_steps": plan.max_steps} if plan.early_stopping_patience and plan.max_steps else {}),
        "train_tokens": progress.tokens,
        "train_seconds": round(progress.seconds, 2),
        "compile_seconds": round(run.compile_seconds, 2),
        "checkpoint_seconds": round(run.waited, 2),
        "train_tokens_per_second": round(progress.tokens / max(progress.seconds, 1e-9), 1),
    }
    with run.average.applied(run.bare) if run.average is not None else contextlib.nullcontext():
        weights = sharding.full_model_state(run.bare)
    if run.accelerator.is_main_process:
        _await_checkpoint(run)
        save_final(
            model=run.bare,
            tokenizer=run.tokenizer,
            card=run.card(metrics, baseline),
            output_dir=Path(plan.output_dir),
            weights=weights if run.adapter is None else run.adapter.merged(weights),
        )
        if run.adapter is not None:
            run.adapter.save(weights, Path(plan.output_dir, "adapter"), card=adapter_card(run.bare, run.adapter))
    run.log.finish(results)
    run.accelerator.wait_for_everyone()
    return results


def _stop_if_asked(run: Run) -> None:
    """End the run, saved, if any process was told to end.

    Raises:
        StoppedError: it was.
    """
    if not run.stopping:
        return
    name = signal.Signals(run.signals.received).name if run.signals.received else "a signal to another process"
    what = "--resume goes on from there"
    if run.progress.step and run.copied_step != run.progress.step:
        _save_resumable(run)
    try:
        _await_checkpoint(run)
    except StorageError as error:
        run.log.say(f"warning: {error}")
    if run.accelerator.is_main_process and run.progress.step and run.saved_step != run.progress.step:
        what = "it could not be saved: --resume goes on from the checkpoint before"
    run.accelerator.wait_for_everyone()
    raise StoppedError(f"stopped by {name} after step {run.progress.step:,}; {what} ({run.plan.output_dir})")


def _evaluate_and_log(run: Run) -> dict[str, float]:
    """Metrics over the held-out examples; empty where there are none, or where the run is to stop first."""
    if not run.work.num_eval_examples:
        return {}
    metrics = _evaluate(run, of_average=run.average is not None and run.average.is_evaluated)
    run.progress.evaluation_due = metrics is None
    if metrics is None:
        run.stopping = True
        return {}
    metric, loss, greater = (
        metrics.get(f"eval_{run.work.metric}"),
        metrics.get("eval_loss"),
        run.work.greater_is_better,
    )
    if run.progress.judge(metric, loss=loss, greater_is_better=greater) and isinstance(run.average, Best):
        run.average.keep(run.bare)
    run.log.evaluation({"step": run.progress.step, **metrics})
    return metrics


def _evaluate(run: Run, *, of_average: bool) -> dict[str, float] | None:
    """Metrics of the present weights or of the average; None where the run is to stop first."""
    average = run.average.applied(run.bare) if run.average is not None and of_average else contextlib.nullcontext()
    # Of the last one no line would tell for a while that the run is not over; a terminal has a bar.
    say_at = time.monotonic() + _SILENT_SECONDS if run.done >= 1.0 and not run.log.on_terminal else math.inf
    with average, sharding.whole(run.bare):
        go_on = partial(_go_on, run, [say_at])
        return evaluate(run.accelerator, run.model, run.work, batch_size=run.plan.eval_batch_size, go_on=go_on)


def _go_on(run: Run, say_at: list[float]) -> bool:
    """Whether no signal has come. At the time `say_at` it is said once that the run evaluates."""
    run.watchdog.beat()
    if time.monotonic() >= say_at[0]:
        say_at[0] = math.inf
        run.log.say("evaluating the weights in the end")
    return run.signals.received is None


def _save_resumable(run: Run) -> None:
    """Begin to write a checkpoint, once the one before is whole, so that there is never a second copy in memory. One
    that fails is a warning: training goes on, and older ones are intact.

    Raises:
        StorageError: it is the third in a row that fails.
    """
    _await_checkpoint(run)
    snapshot, run.copied_step = run.snapshot(), run.progress.step
    if not run.accelerator.is_main_process:
        return
    if not snapshot.is_finite():
        run.log.say(f"warning: weights are not finite after step {run.progress.step:,}: no checkpoint is written")
        return
    run.saver.begin(snapshot)
    run.watchdog.beat()


def _await_checkpoint(run: Run) -> None:
    """Note that the checkpoint that was begun is whole, or say that it could not be written."""
    try:
        written = run.saver.wait()
    except StorageError as error:
        if run.saver.failures >= PATIENCE:
            raise
        run.log.say(f"warning: {error}; training goes on, older checkpoints are intact")
        return
    if written is not None:
        run.saved_step = written
        run.log.mark("checkpoint", written)


def _steps(run: Run) -> Iterator[dict[str, bool]]:
    """Train; after each optimizer step, yield what is due. All processes yield the same."""
    plan, progress = run.plan, run.progress
    skip = skipped_steps(plan.skip_steps)
    stage: Stage | None = None
    loader: Iterator[Any] | None = None
    window, saved_at = Window(replace(progress)), progress.seconds
    while run.done < 1.0 and not stops_early(plan, progress):
        run.watchdog.beat()
        before = run.done
        if (reached := enter_stage(progress, run.stages, done=run.done)) is not stage:
            stage, loader = reached, None
        if any(progress.step + 1 in steps for steps in skip):
            leave_out(run, stage, skip)
            loader = None
        else:
            if loader is None:
                loader = iter(_loader(run, stage))
            _train_step(run, stage, loader, window)
        run.stopping = run.stopping or (run.accelerator.num_processes == 1 and run.signals.received is not None)
        run.log.advance(run.done, step=progress.step)
        if window.steps and (progress.step % plan.logging_steps == 0 or run.done >= 1.0):
            _log_window(run, window)
            window = Window(replace(progress))
        due = {
            name: is_due(interval, step=progress.step, before=before, after=run.done)
            for name, interval in (("evaluate", plan.eval_steps), ("save", plan.save_steps))
        }
        if plan.save_minutes and progress.seconds - saved_at >= 60 * plan.save_minutes:
            due["save"] = True
        if run.done >= 1.0:
            due["evaluate"] = True
            due["save"] = bool(plan.save_steps or plan.save_minutes)  # with it a run can be continued for longer
        saved_at = progress.seconds if due["save"] else saved_at
        yield due
    if window.steps:  # of a run that stops early between two lines of its log
        _log_window(run, window)


def _train_step(run: Run, stage: Stage, loader: Iterator[Any], window: Window) -> None:
    """One optimizer step, with its rate, its counters and its share of the next line of the log."""
    progress, started = run.progress, time.perf_counter()
    micro_batches = stage.batch_size // (run.accelerator.num_processes * stage.micro_batch_size)
    rate = learning_rate(run.plan, step=progress.step, progress=run.done)
    for group in (group for optimizer in run.optimizers for group in optimizer.param_groups):
        group["lr"] = rate * group.get("rate_scale", 1.0)
    batches = [next(loader) for _ in range(micro_batches)]
    parts, grad_norm, tokens = _step(run, stage, batches)
    if run.accelerator.is_main_process:
        run.throughput.see(stage.work, batches[0], rows=stage.batch_size)
    applied = math.isfinite(grad_norm)
    if applied:
        window.add(parts, learning_rate=rate, grad_norm=grad_norm)
    progress.step += 1
    progress.samples += stage.batch_size
    progress.tokens += tokens
    progress.seconds = _agree(run, progress.seconds + time.perf_counter() - started)
    if applied and run.average is not None:
        run.average.update(run.bare, done=run.done)


def _log_window(run: Run, window: Window) -> None:
    """One line of metrics.jsonl: means over the steps since the last one, over all processes."""
    progress, opened = run.progress, window.opened
    seconds = max(progress.seconds - opened.seconds, 1e-9)
    sums = {name: run.accelerator.reduce(value, "sum").tolist() for name, value in window.sums.items()}
    means = {name: value / window.steps for name, value in sums.items() if not isinstance(value, list)}
    means |= {name: value[0] / value[1] for name, value in sums.items() if isinstance(value, list) and value[1]}
    mfu = run.throughput.share(seconds=seconds, trained=progress.seconds) if run.accelerator.is_main_process else None
    run.log.record(
        {
            "step": progress.step,
            "epoch": round(run.epochs, 4),
            **means,
            **window.last,
            "tokens_per_second": round((progress.tokens - opened.tokens) / seconds, 1),
            **({} if mfu is None else {"mfu": round(mfu, 4)}),
            "seconds": round(progress.seconds, 3),
        }
    )


def _step(run: Run, stage: Stage, batches: list[dict[str, Tensor]]) -> tuple[dict[str, Tensor], float, int]:
    """One optimizer step over its micro-batches; returns this process's share of the metrics, gradient norm, tokens.

    The loss is the sum over target tokens divided by their number in the whole step, over micro-batches and
    processes. DDP averages gradients over processes, so the loss is multiplied by their number first. Where the loss
    of any process or the gradient is not finite, no process applies the step.
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
        with contextlib.nullcontext() if last else sharding.no_sync(model):
            loss, metrics = stage.work.loss(model, to_device(batch, accelerator.device), num_targets)
            sharding.backward(accelerator, model, poisoned(loss) * accelerator.num_processes)
        for name, value in {"loss": loss.detach(), **metrics}.items():
            parts[name] = parts[name] + value if name in parts else value
    grad_norm = sharding.update(run.bare, run.optimizers, max_norm=run.plan.max_grad_norm)
    watch(run, stage, float(accelerator.reduce(parts["loss"], "sum")), grad_norm)
    return parts, grad_norm, tokens


def _global_counts(run: Run, work: Work, batches: list[dict[str, Tensor]]) -> tuple[dict[str, Tensor], int]:
    """Targets of each kind, and tokens, in the whole step: over its micro-batches and over processes.

    That a process is asked to stop goes the same way, so that all of them stop after the same step.
    """
    counts: dict[str, int] = {}
    tokens = 0
    for batch in batches:
        for name, count in work.count_targets(batch).items():
            counts[name] = counts.get(name, 0) + count
        mask = batch.get("attention_mask")
        tokens += batch["input_ids"].numel() if mask is None else int(mask.sum())
    local = torch.tensor([*counts.values(), tokens, run.signals.received is not None], device=run.accelerator.device)
    *totals, tokens_everywhere, asked = run.accelerator.reduce(local, "sum")
    run.stopping = bool(asked)
    # A step without a single target of a kind divides zero by one.
    num_targets = {name: total.clamp(min=1) for name, total in zip(counts, totals, strict=True)}
    return num_targets, int(tokens_everywhere)


def _agree(run: Run, seconds: float) -> float:
    """The main process's clock, so that all processes do the same at the same step. Free unless the clock decides."""
    if run.accelerator.num_processes == 1 or not (run.plan.max_minutes or run.plan.save_minutes):
        return seconds
    return float(broadcast_object_list([seconds])[0])


def _progress_at(run: Run, step: int) -> float:
    """The share done before a step. It follows from the step, unless the clock may end the run."""
    return max(step / (run.plan.max_steps or math.inf), run.done if run.plan.max_minutes else 0.0)


def _loader(run: Run, stage: Stage) -> DataLoader:
    """Micro-batches from the present step on. Not prepared by accelerate: sharding and skipping are the sampler's own.

    The loader draws a number when it starts: from a generator of its own, so that dropout's is left alone.
    """
    plan, accelerator, work = run.plan, run.accelerator, stage.work
    on_gpu = accelerator.device.type == "cuda"
    num_workers = 2 * on_gpu if plan.num_workers is None else plan.num_workers
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
        grouping=stage.grouping,
        progress_at=partial(_progress_at, run),
    )
    return DataLoader(
        TrainingExamples(work),
        batch_sampler=sampler,
        collate_fn=TrainingBatches(work, accelerator.device),
        num_workers=num_workers,
        generator=torch.Generator(),
        pin_memory=on_gpu,
        persistent_workers=num_workers > 0,
    )
