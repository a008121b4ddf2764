"""The loop. What a step learns is handed in as a `Work`; when things happen is decided here."""

import contextlib
import json
import math
import shutil
import time
from collections.abc import Iterator
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
from .errors import NumericsError, StorageError
from .model_card import model_card
from .optimizers import OPTIMIZERS
from .order import MicroBatchSampler, TrainingExamples, dropout_seed
from .run_log import RunLog, describe_run
from .schedules import learning_rate
from .work import Work, to_device


def train(
    *,
    model: nn.Module,
    work: Work,
    tokenizer: Any,
    arguments: TrainingArguments,
    run_info: dict[str, Any] | None = None,
    identity: dict[str, Any] | None = None,
) -> dict[str, float]:
    """Train a model on a work and write the output folder.

    Args:
        model: a `PreTrainedModel`; it is trained in place.
        work: examples, loss and metrics.
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
    precision = "no"
    if arguments.mixed_precision == "bf16" or (arguments.mixed_precision == "auto" and bf16_is_fast()):
        precision = "bf16"
    use_all_cores()
    accelerator = Accelerator(mixed_precision=precision)
    plan = arguments.resolved(num_examples=work.num_examples, num_processes=accelerator.num_processes)
    output_dir = Path(plan.output_dir)
    identity = {"seed": plan.seed, "batch_size": plan.batch_size, **(identity or {})}
    run_info = run_info or {}

    model, optimizer = accelerator.prepare(model, OPTIMIZERS[plan.optimizer](model, plan))
    bare = accelerator.unwrap_model(model)
    progress = Progress(identity=identity)
    notices: list[str] = []
    if plan.resume:
        checkpoint, notices = newest_checkpoint(output_dir)
        if checkpoint is None:
            notices.append(f"no checkpoint in {output_dir}: starting from the beginning")
        else:
            progress = restore(checkpoint=checkpoint, model=bare, optimizer=optimizer.optimizer, identity=identity)
            notices.append(f"resuming from {checkpoint} at step {progress.step:,}")

    log = RunLog(
        output_dir=output_dir,
        enabled=accelerator.is_main_process,
        first_step=progress.step,
        done=_done(plan, progress),
    )
    if accelerator.is_main_process:
        description = describe_run(
            arguments=plan, launched=processes(), device=accelerator.device, precision=precision, run_info=run_info
        )
        write_atomically(output_dir / "run.json", json.dumps(description, indent=2, default=str) + "\n")
    for notice in notices:
        log.say(notice)

    def save_resumable() -> None:
        if not accelerator.is_main_process:
            return
        card = model_card(model=bare, run_info=run_info, step=progress.step, tokens=progress.tokens, metrics={})
        try:
            save_checkpoint(
                output_dir=output_dir,
                model=bare,
                optimizer=optimizer.optimizer,
                tokenizer=tokenizer,
                card=card,
                progress=progress,
                keep=plan.keep_checkpoints,
            )
        except StorageError as error:
            log.say(f"warning: {error}; training goes on, older checkpoints are intact")

    try:
        evaluated_at = -1
        metrics: dict[str, float] = {}
        for due in _steps(accelerator, model, optimizer, work, plan, progress, log):
            if due["evaluate"] and work.num_eval_examples:
                metrics = evaluate(accelerator, model, work, batch_size=plan.eval_batch_size)
                log.evaluation({"step": progress.step, **metrics})
                evaluated_at = progress.step
            if due["save"]:
                save_resumable()
        if evaluated_at != progress.step and work.num_eval_examples:
            metrics = evaluate(accelerator, model, work, batch_size=plan.eval_batch_size)
            log.evaluation({"step": progress.step, **metrics})
    finally:
        log.close()

    results = {
        **metrics,
        **{f"baseline_{name}": value for name, value in work.baseline().items()},
        "steps": progress.step,
        "train_tokens": progress.tokens,
        "train_seconds": round(progress.seconds, 2),
        "train_tokens_per_second": round(progress.tokens / max(progress.seconds, 1e-9), 1),
    }
    if accelerator.is_main_process:
        card = model_card(model=bare, run_info=run_info, step=progress.step, tokens=progress.tokens, metrics=metrics)
        _save_final(model=bare, tokenizer=tokenizer, card=card, output_dir=output_dir)
    log.finish(results)
    accelerator.wait_for_everyone()
    accelerator.end_training()
    return results


def _done(plan: TrainingArguments, progress: Progress) -> float:
    """The share of the run that is done: by steps or by the clock, whichever is further."""
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


def _steps(
    accelerator: Accelerator,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    work: Work,
    plan: TrainingArguments,
    progress: Progress,
    log: RunLog,
) -> Iterator[dict[str, bool]]:
    """Train; after each optimizer step, yield what is due. All processes yield the same."""
    loader = iter(_loader(accelerator, work, plan, start_step=progress.step))
    micro_batches_a_step = plan.batch_size // (accelerator.num_processes * (plan.micro_batch_size or plan.batch_size))
    window: dict[str, Tensor] = {}
    window_start = (progress.step, progress.seconds, progress.tokens)
    done = _done(plan, progress)
    while done < 1.0:
        started = time.perf_counter()
        rate = learning_rate(plan, step=progress.step, progress=done)
        for group in optimizer.param_groups:
            group["lr"] = rate
        batches = [next(loader) for _ in range(micro_batches_a_step)]
        parts, grad_norm, tokens = _step(accelerator, model, optimizer, work, plan, progress.step, batches)
        for name, value in parts.items():
            window[name] = window[name] + value if name in window else value

        progress.step += 1
        progress.tokens += tokens
        progress.seconds = _agree(accelerator, plan, progress.seconds + time.perf_counter() - started)
        before, done = done, _done(plan, progress)
        log.advance(done)
        if progress.step % plan.logging_steps == 0 or done >= 1.0:
            steps, seconds, seen = (
                now - then
                for now, then in zip((progress.step, progress.seconds, progress.tokens), window_start, strict=True)
            )
            means = {name: accelerator.reduce(value, "sum").item() / steps for name, value in window.items()}
            log.record(
                {
                    "step": progress.step,
                    "epoch": round(progress.step * plan.batch_size / work.num_examples, 4),
                    **means,
                    "learning_rate": rate,
                    "grad_norm": grad_norm,
                    "tokens_per_second": round(seen / max(seconds, 1e-9), 1),
                    "seconds": round(progress.seconds, 3),
                }
            )
            window, window_start = {}, (progress.step, progress.seconds, progress.tokens)
        due = {
            name: _is_due(interval, step=progress.step, before=before, after=done)
            for name, interval in (("evaluate", plan.eval_steps), ("save", plan.save_steps))
        }
        yield due


def _step(
    accelerator: Accelerator,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    work: Work,
    plan: TrainingArguments,
    step: int,
    batches: list[dict[str, Tensor]],
) -> tuple[dict[str, Tensor], float, int]:
    """One optimizer step over its micro-batches; returns this process's share of the metrics, gradient norm, tokens.

    The loss is the sum over target tokens divided by their number in the whole step, over micro-batches and
    processes. DDP averages gradients over processes, so the loss is multiplied by their number first.
    """
    model.train()
    num_targets, tokens = _global_counts(accelerator, work, batches)
    parts: dict[str, Tensor] = {}
    for micro_step, batch in enumerate(batches):
        torch.manual_seed(
            dropout_seed(seed=plan.seed, step=step, micro_step=micro_step, rank=accelerator.process_index)
        )
        last = micro_step == len(batches) - 1
        with contextlib.nullcontext() if last else accelerator.no_sync(model):
            loss, metrics = work.loss(model, to_device(batch, accelerator.device), num_targets)
            accelerator.backward(loss * accelerator.num_processes)
        for name, value in {"loss": loss.detach(), **metrics}.items():
            parts[name] = parts[name] + value if name in parts else value
    norm = accelerator.clip_grad_norm_(model.parameters(), plan.max_grad_norm or math.inf)
    grad_norm = float(norm)
    if not math.isfinite(grad_norm):
        first = step * plan.batch_size
        raise NumericsError(
            f"step {step + 1}: the gradient is {grad_norm} (samples {first} to {first + plan.batch_size - 1}); "
            "the step was not applied. Try a lower --learning_rate or --mixed_precision no"
        )
    optimizer.step()
    optimizer.zero_grad()
    return parts, grad_norm, tokens


def _global_counts(
    accelerator: Accelerator, work: Work, batches: list[dict[str, Tensor]]
) -> tuple[dict[str, Tensor], int]:
    """Targets of each kind, and tokens, in the whole step: over its micro-batches and over processes."""
    counts: dict[str, int] = {}
    tokens = 0
    for batch in batches:
        for name, count in work.count_targets(batch).items():
            counts[name] = counts.get(name, 0) + count
        mask = batch.get("attention_mask")
        tokens += batch["input_ids"].numel() if mask is None else int(mask.sum())
    local = torch.tensor([*counts.values(), tokens], dtype=torch.float64, device=accelerator.device)
    if accelerator.device.type == "mps":
        local = local.float()
    *totals, tokens_everywhere = accelerator.reduce(local, "sum")
    # A step without a single target of a kind divides zero by one.
    num_targets = {name: total.clamp(min=1).float() for name, total in zip(counts, totals, strict=True)}
    return num_targets, int(tokens_everywhere)


def _agree(accelerator: Accelerator, plan: TrainingArguments, seconds: float) -> float:
    """The main process's clock, so that all processes stop at the same step. Free unless the clock is the limit."""
    if plan.max_minutes is None or accelerator.num_processes == 1:
        return seconds
    return float(broadcast_object_list([seconds])[0])


def _loader(accelerator: Accelerator, work: Work, plan: TrainingArguments, *, start_step: int) -> DataLoader:
    """Micro-batches from `start_step` on. Not prepared by accelerate: sharding and skipping are the sampler's own.

    The loader draws one number from a generator when it starts; it gets one of its own, so that dropout's is left
    alone.
    """
    sampler = MicroBatchSampler(
        num_examples=work.num_examples,
        seed=plan.seed,
        start_step=start_step,
        batch_size=plan.batch_size,
        micro_batch_size=plan.micro_batch_size or plan.batch_size,
        rank=accelerator.process_index,
        num_processes=accelerator.num_processes,
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
