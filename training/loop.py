"""The training loop: `train` runs optimizer steps on a `Work`, and logs, evaluates and saves when each is due."""

import contextlib
import json
import math
import re
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from accelerate.utils import broadcast_object_list
from torch import Tensor, nn
from torch.utils.data import DataLoader

from lacuna.common.errors import InputError, NumericsError, StoppedError, StorageError
from lacuna.common.files import release, write_text
from lacuna.common.work import Work, training_batch

from .arguments import TrainingArguments
from .distributed import fsdp
from .environment import Watchdog, bounded_memory, serve_on
from .evaluating import check_native, evaluate_and_log, evaluate_kept, probe_and_log
from .optimizers.schedules import learning_rate
from .order import MicroBatchSampler, TrainingExamples, dropout_seed, row_of
from .progress import Window, ended_early, enter_stage, is_due, skipped_steps, stops_early
from .reports.card import adapter_card
from .run import Probe, Run, close_run, open_run
from .stages import Stage
from .step import step, update


def train(
    *,
    model: nn.Module,
    work: Work | Sequence[tuple[float, Work]],
    tokenizer: Any,
    arguments: TrainingArguments,
    run_info: dict[str, Any] | None = None,
    identity: dict[str, Any] | None = None,
    evaluates_first: bool = False,
    probe: Probe | None = None,
    blend: Callable[[nn.Module], bool] | None = None,
    stay_joined: bool = False,
) -> dict[str, float]:
    """Train a model on a work and write the output folder.

    Args:
        model: a `PreTrainedModel`; it is trained in place.
        work: examples, loss and metrics; or several, each with the share of the run at which it begins, the first 0.
            The last one evaluates.
        tokenizer: saved beside the model.
        run_info: more for run.json and the model card (objective, fingerprints).
        identity: what must be equal when this run is resumed (fingerprints of data and tokenizer).
        evaluates_first: evaluate before the first step too, for a model that knows something already.
        probe: what it returns is logged as held-out scores are, and changes nothing of the run.
        blend: takes the weights that training ends with, and says whether it changed them.
        stay_joined: keep the process group, because another run follows.

    Returns the content of results.json, on every process.

    Raises:
        InputError: options that do not fit the data, the processes or the resumed run.
        CorruptCheckpointError: `--resume`, and no checkpoint verifies.
        NumericsError: too many steps in a row whose loss or gradient is not finite; none of them was applied.
        StoppedError: SIGTERM or SIGINT; the run was saved and can be resumed.
        StorageError: the output folder cannot be written.
    """
    works = list(work) if isinstance(work, Sequence) else [(0.0, work)]
    given = {"info": run_info or {}, "identity": identity or {}}
    run = open_run(model=model, works=works, tokenizer=tokenizer, arguments=arguments, **given)
    run.progress.evaluation_due |= evaluates_first and run.progress.step == 0
    run.probe, run.blend = probe, blend
    results: dict[str, float] = {}
    try:
        with run.signals, Watchdog(arguments.hang_timeout) as run.watchdog, _memory_errors(run), bounded_memory():
            _train(run)
            results = _finish(run)
    finally:
        getattr(run.loader, "_shutdown_workers", int)()  # which an error's traceback would keep, and Python wait for
        if run.pushes is not None:
            run.pushes.close(patience=arguments.hang_timeout if results else None)
        run.saver.close()
        run.log.close()
        release()
    close_run(run, stay_joined=stay_joined)
    return results


def _train(run: Run) -> None:
    """All steps, with what is due after each: a line of the log, an evaluation, a checkpoint."""
    arguments, progress, skip = run.arguments, run.progress, skipped_steps(run.arguments.skip_steps)
    stage: Stage | None = None
    run.watchdog.beat()
    run.compile()
    run.watchdog.beat()
    if progress.evaluation_due:
        evaluate_and_log(run)
    window, saved_at = Window(replace(progress)), progress.seconds
    while run.done < 1.0 and not stops_early(arguments, progress):
        run.watchdog.beat()
        before, progress.metric = run.done, None
        if (reached := enter_stage(progress, run.stages, done=before)) is not stage:
            stage, run.loader = reached, None
        if any(progress.step + 1 in steps for steps in skip):
            _leave_out(run, stage, skip)
            run.loader = None
        else:
            run.loader = iter(_loader(run, stage)) if run.loader is None else run.loader
            _train_step(run, stage, run.loader, window)
        run.stopping = run.stopping or (run.accelerator.num_processes == 1 and run.signals.received is not None)
        due = partial(is_due, step=progress.step, before=before, after=run.done)
        run.log.advance(run.done, step=progress.step)
        if window.steps and (progress.step % arguments.logging_steps == 0 or run.done >= 1.0):
            _log(run, window)
            window = Window(replace(progress))
        if run.saver.is_ready:
            run.await_checkpoint()
        probes = run.probe is not None and due(run.probe.steps or arguments.eval_steps)
        if due(arguments.eval_steps) or run.done >= 1.0:
            evaluate_and_log(run, probes=probes or run.done >= 1.0)
        elif probes:
            probe_and_log(run)
        is_last = run.done >= 1.0 or stops_early(arguments, progress)
        save = due(arguments.save_steps) or 0 < 60 * arguments.save_minutes <= progress.seconds - saved_at
        # With a checkpoint of its last step a run can be continued for longer.
        if (save or (is_last and arguments.writes_checkpoints)) and not run.stopping:
            saved_at = progress.seconds
            run.save()
        _stop_if_asked(run)
    if window.steps:  # of a run that stops early between two lines of its log
        _log(run, window)
    if run.evaluated_at != progress.step:
        evaluate_and_log(run)
    if run.blend is not None and run.blend(run.bare):
        run.log.say("the weights are the mean of all runs now (--soup):")
        run.alone = {name.replace("eval_", "alone_", 1): value for name, value in run.metrics.items()}
        evaluate_and_log(run)
    evaluate_kept(run)
    _stop_if_asked(run)


def _train_step(run: Run, stage: Stage, loader: Iterator[Any], window: Window) -> None:
    """One optimizer step, with its rate, its counters and its share of the next line of the log."""
    accelerator, arguments, progress, started = run.accelerator, run.arguments, run.progress, time.perf_counter()
    rate = learning_rate(arguments, step=progress.step, progress=run.done)
    for group in (group for optimizer in run.optimizers for group in optimizer.param_groups):
        group["lr"] = rate * group.get("rate_scale", 1.0)
    batches = [next(loader) for _ in range(stage.batch_size // (accelerator.num_processes * stage.micro_batch_size))]
    parts, tokens = _gradients(run, stage, batches)
    summed = accelerator.reduce(parts["loss"], "sum")
    how = {"max_norm": arguments.max_grad_norm, "loss_scale": run.loss_scale}
    loss, grad_norm = update(run.bare, run.optimizers, loss=summed, **how)
    _watch(run, stage, loss, grad_norm)
    if accelerator.is_main_process:
        run.throughput.see(stage.work, batches[0], rows=stage.batch_size)
    progress.step += 1
    progress.samples += stage.batch_size
    progress.tokens += tokens
    progress.seconds += time.perf_counter() - started
    if accelerator.num_processes > 1 and (arguments.max_minutes or arguments.save_minutes):
        # One clock, so that all processes do the same at the same step.
        progress.seconds = float(broadcast_object_list([progress.seconds])[0])
    if math.isfinite(grad_norm):
        window.add(parts, learning_rate=rate, grad_norm=grad_norm)
        if run.average is not None:
            run.average.update(run.bare)


def _gradients(run: Run, stage: Stage, batches: list[dict[str, Tensor]]) -> tuple[dict[str, Tensor], int]:
    """The gradients of a step; returns this process's share of the metrics, and tokens over all processes."""
    accelerator, model = run.accelerator, run.model

    def over_processes(counts: list[int]) -> Tensor:
        # That a process is asked to stop goes the same way, so that all of them stop after the same step.
        asked = run.signals.received is not None
        sums = accelerator.reduce(torch.tensor([*counts, asked], device=accelerator.device), "sum")
        run.stopping = bool(sums[-1])
        return sums[:-1]

    @contextlib.contextmanager
    def micro_step(number: int) -> Iterator[None]:
        rank = accelerator.process_index
        torch.manual_seed(dropout_seed(seed=run.arguments.seed, step=run.progress.step, micro_step=number, rank=rank))
        with fsdp.no_sync(model) if number < len(batches) - 1 else contextlib.nullcontext():
            yield

    return step(
        stage.work,
        model,
        batches,
        device=accelerator.device,
        # DDP averages gradients over processes.
        backward=lambda loss: accelerator.backward(loss * (accelerator.num_processes * run.loss_scale)),
        micro_step=micro_step,
        over_processes=over_processes if accelerator.num_processes > 1 else None,
    )


def _watch(run: Run, stage: Stage, loss: float, grad_norm: float) -> None:
    """Log steps that were not applied and spikes of the loss; `NumericsError` after too many bad steps in a row."""
    progress, scale, is_applied = run.progress, run.loss_scale, math.isfinite(grad_norm)
    what = "gradient" if math.isfinite(loss) else "loss"
    overflows = not is_applied and what == "gradient" and scale > 1  # of which the scale may be the cause
    if run.accelerator.mixed_precision == "fp16":
        progress.adapt_scale(is_applied=is_applied, overflows=overflows)
    if is_applied:
        progress.bad_steps = 0
        if (mean := progress.note_loss(loss)) is not None:
            samples = _mark_samples(run, "spike", stage, loss=loss)
            run.log.say(f"step {progress.step + 1:,}: loss {loss:.3f} after {mean:.3f} (samples {samples})")
        return
    progress.bad_steps += not overflows
    reason = f"{what} not finite" + f" at loss scale {scale:,.0f}, now {progress.loss_scale:,.0f}" * overflows
    samples = _mark_samples(run, "skipped", stage, reason=reason)
    message = f"step {progress.step + 1:,}: the {reason.replace(' not', ' is not')} (samples {samples})"
    message += "; the step was not applied"
    if not overflows and progress.bad_steps >= run.arguments.max_bad_steps:
        raise NumericsError(
            f"{message}, nor were the {progress.bad_steps - 1} before it. Try a lower --learning_rate or "
            "--mixed_precision no, and --resume"
        )
    run.log.say(f"warning: {message}")


def _leave_out(run: Run, stage: Stage, skip: list[range]) -> None:
    """Pass over the steps of `--skip_steps` that come next, at once; to the end of the stage at most."""
    progress, last = run.progress, max(steps.stop - 1 for steps in skip if run.progress.step + 1 in steps)
    if run.arguments.max_steps:
        ends = min((other.at for other in run.stages if other.at > stage.at), default=1.0)
        last = min(last, math.ceil(ends * run.arguments.max_steps - 1e-9))
    number = max(1, last - progress.step)
    _mark_samples(run, "skipped", stage, steps=number, reason="--skip_steps")
    progress.step += number
    progress.samples += number * stage.batch_size


def _mark_samples(run: Run, event: str, stage: Stage, *, steps: int = 1, **facts: Any) -> str:
    """Keep the numbers of the samples of the next steps in the log, and return them."""
    first, last = run.progress.samples, run.progress.samples + steps * stage.batch_size - 1
    facts |= {} if steps == 1 else {"last_step": run.progress.step + steps}
    run.log.mark(event, run.progress.step + 1, samples=[first, last], stage=run.progress.stage, **facts)
    return f"{first} to {last}"


def _log(run: Run, window: Window) -> None:
    """One line of metrics.jsonl: means over the steps since the last one, over all processes."""
    progress, opened = run.progress, window.opened
    seconds = max(progress.seconds - opened.seconds, 1e-9)
    means = window.means(lambda value: run.accelerator.reduce(value, "sum"))
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


def _loader(run: Run, stage: Stage) -> DataLoader:
    """Micro-batches from the present step on. Not prepared by accelerate: the sampler shards and skips by itself."""
    arguments, accelerator = run.arguments, run.accelerator
    on_gpu = accelerator.device.type == "cuda"
    num_workers = 2 * on_gpu if arguments.num_workers is None else arguments.num_workers
    work, seed = stage.work, arguments.seed
    row = partial(row_of, seed=seed, num_examples=work.num_examples, mixture=work.mixture, grouping=stage.grouping)
    sampler = MicroBatchSampler(
        row=row,
        first_sample=run.progress.samples,
        batch_size=stage.batch_size,
        micro_batch_size=stage.micro_batch_size,
        rank=accelerator.process_index,
        num_processes=accelerator.num_processes,
    )
    return DataLoader(
        TrainingExamples(work),
        batch_sampler=sampler,
        collate_fn=partial(training_batch, work=work, device=accelerator.device),
        num_workers=num_workers,
        generator=torch.Generator(),  # the loader draws a number; dropout's generator is left alone
        pin_memory=on_gpu,
        persistent_workers=num_workers > 0,
        worker_init_fn=serve_on,
    )


@contextlib.contextmanager
def _memory_errors(run: Run) -> Iterator[None]:
    """A step for which memory was refused becomes an `InputError` that says how much, and the way out."""
    try:
        yield
    except RuntimeError as error:  # torch.OutOfMemoryError is one
        refused = re.search(r"allocate (?:memory: you tried to allocate )?([\d.]+) ?(bytes|[KMG]iB)", str(error))
        if not refused:
            raise
        if not run.progress.step and run.accelerator.is_main_process:  # nothing that the next command should find
            for name in ("run.json", "metrics.jsonl"):
                Path(run.arguments.output_dir, name).unlink(missing_ok=True)
        rows, lower = run.stages[run.progress.stage].micro_batch_size, "--micro_batch_size (steps stay the same)"
        if not run.bare.training:
            rows, lower = run.arguments.eval_batch_size, "--eval_batch_size"
        size = float(refused[1]) / {"bytes": 2**30, "KiB": 2**20, "MiB": 2**10, "GiB": 1}[refused[2]]
        raise InputError(
            f"a forward pass of {rows:,} rows needs more memory than there is: {size:,.1f} GiB more were refused. "
            f"Lower {lower}, the length of rows, or --size; recipes/plan_run.py estimates a run"
        ) from error


def _stop_if_asked(run: Run) -> None:
    """Save and raise `StoppedError` if any process was asked to stop."""
    if not run.stopping:
        return
    name = signal.Signals(run.signals.received).name if run.signals.received else "a signal to another process"
    what = "resume with --resume"
    if run.progress.step and run.copied_step != run.progress.step:
        run.save()
    try:
        run.await_checkpoint()
    except StorageError as error:
        run.log.say(f"warning: {error}")
    if run.accelerator.is_main_process and run.progress.step and run.saved_step != run.progress.step:
        what = "it could not be saved: --resume continues from the previous checkpoint"
    run.accelerator.wait_for_everyone()
    raise StoppedError(f"stopped by {name} after step {run.progress.step:,}; {what} ({run.arguments.output_dir})")


def _finish(run: Run) -> dict[str, float]:
    """Write the model and results.json. NumericsError: it says nothing that is a number of held-out examples."""
    progress, arguments, output_dir = run.progress, run.arguments, Path(run.arguments.output_dir)
    if math.isnan(run.metrics.get("eval_loss", 0.0)):
        raise NumericsError(
            f"the held-out loss is nan after the last step: no model is written to {output_dir}; lower --learning_rate"
        )
    guesses = {**run.work.baseline(), **(run.probe.baseline if run.probe else {})}
    baseline = {f"baseline_{name}": value for name, value in guesses.items()}
    if type(run.work).bag_of_words is not Work.bag_of_words and "bag_of_words" not in vars(run.work):
        run.log.say("fitting a bag of words to compare with; on many rows this takes up to a minute")
    baseline |= {f"words_{name}": value for name, value in run.work.bag_of_words.items()}
    baseline |= {f"hybrid_{name}": value for name, value in run.work.with_words().items()}
    run.watchdog.beat()
    stops = {}
    if arguments.average == "best" and progress.best_step >= 0:
        stops["best_step"] = progress.best_step
    if arguments.early_stopping_patience:
        stops["stopped_early"] = ended_early(arguments, progress)
        stops |= {"planned_steps": arguments.max_steps} if arguments.max_steps else {}
    results = {
        **run.metrics,
        **run.alone,
        **baseline,
        "steps": progress.step,
        **stops,
        "train_tokens": progress.tokens,
        "train_seconds": round(progress.seconds, 2),
        "compile_seconds": round(run.compile_seconds, 2),
        "checkpoint_seconds": round(run.waited, 2),
        "train_tokens_per_second": round(progress.tokens / max(progress.seconds, 1e-9), 1),
    }
    with run.averaged():
        weights = fsdp.full_model_state(run.bare)
    if run.accelerator.is_main_process:
        run.await_checkpoint()
        merged = weights if run.adapter is None else run.adapter.merged(weights)
        run.saver.save_final(card=run.card(run.metrics, baseline), weights=merged)
        if run.adapter is not None:
            card = adapter_card(run.bare, run.adapter)
            run.adapter.save(weights, output_dir / "adapter", tokenizer=run.tokenizer, card=card)
        results |= check_native(run)
        if texts := run.work.held_out_texts(run.tokenizer):
            lines = [json.dumps({"text": text}, ensure_ascii=False) + "\n" for text in texts]
            write_text(output_dir / "held_out.jsonl", "".join(lines))
    run.log.finish(results)
    run.accelerator.wait_for_everyone()
    return results
