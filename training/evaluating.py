"""Evaluation on the held-out examples: during training, at its end, and of the best weights."""

from pathlib import Path
from typing import Any

import torch
import transformers
from accelerate.utils import gather_object

from lacuna.common.errors import CorruptCheckpointError, progress_bar
from lacuna.common.work import to_device

from .distributed import fsdp
from .optimizers.averages import Best
from .progress import ended_early
from .run import Run


def evaluate_and_log(run: Run, *, probes: bool = True) -> None:
    """Evaluate, if there are held-out examples, and put the metrics into the log and `run.metrics`."""
    run.metrics, run.evaluated_at = {}, run.progress.step
    if not run.work.num_eval_examples:
        return
    metrics = _evaluate(run, of_average=run.average is not None and run.average.is_evaluated, probes=probes)
    run.progress.evaluation_due = metrics is None
    if metrics is None:
        return
    metric, greater = metrics.get(f"eval_{run.work.metric}"), run.work.greater_is_better
    is_better = run.progress.judge(metric, loss=metrics.get("eval_loss"), greater_is_better=greater)
    if is_better and isinstance(run.average, Best):
        run.average.keep(run.bare)
    run.log.evaluation({"step": run.progress.step, **metrics})
    run.metrics = metrics


def probe_and_log(run: Run) -> None:
    """Ask the probe alone, at a step without an evaluation."""
    of_average = run.average is not None and run.average.is_evaluated
    if scores := _evaluate(run, of_average=of_average, held_out=False):
        run.log.evaluation({"step": run.progress.step, **scores})


def evaluate_kept(run: Run) -> None:
    """Report early stopping. With `--average best`, evaluate the weights that are kept, if they are not the last."""
    progress, metric = run.progress, run.work.metric
    if ended_early(run.arguments, progress):
        of_all = f" of {run.arguments.max_steps:,}" if run.arguments.max_steps else ""
        without = f"better {metric} than that of step {progress.best_step:,}"
        without = without if progress.best_step >= 0 else f"{metric} that is a number"
        run.log.say(
            f"stopped early after step {progress.step:,}{of_all}: {progress.without_better} evaluations in a row "
            f"without a {without}"
        )
    if isinstance(run.average, Best) and progress.best_step not in (-1, progress.step):
        run.log.say(f"the weights of step {progress.best_step:,} are kept: {metric} {progress.best_metric:.4f}")
        run.metrics = _evaluate(run, of_average=True) or {}
    elif metric == "loss" and (last := run.metrics.get("eval_loss", 0.0)) > 1.01 * (progress.best_metric or last):
        advice = "A lower --learning_rate" if run.epochs < 1 else "Fewer of them (--max_epochs)"
        run.log.say(
            f"warning: the held-out loss has risen from {progress.best_metric:.4f} at step {progress.best_step:,} "
            f"to {last:.4f} after {run.epochs:.1f} passes. {advice} may help; --average best keeps the best weights"
        )


@torch.no_grad()
def check_native(run: Run) -> dict[str, float]:
    """Load the native model that was saved: the largest difference of its logits from ours, on a held-out example.

    Raises CorruptCheckpointError: it computes something else.
    """
    if run.native is None or not run.work.num_eval_examples or fsdp.is_sharded(run.bare):
        return {}
    saved = getattr(transformers, type(run.native).__name__).from_pretrained(run.arguments.output_dir)
    device = run.accelerator.device
    bare = run.accelerator.unwrap_model(run.model, keep_fp32_wrapper=False)  # without autocast
    batch = to_device(run.work.collate([run.work.eval_example(0)]), device)
    names = ("input_ids", "attention_mask", "token_type_ids")
    given: dict[str, Any] = {name: batch[name] for name in names if name in batch}
    if saved.config.is_encoder_decoder:
        given["decoder_input_ids"] = batch["input_ids"]
    if type(saved).__name__.endswith("ForMultipleChoice"):  # the rows are the choices of one question
        given = {name: value[None] for name, value in given.items()}
    with run.averaged(), torch.compiler.set_stance("force_eager"):
        ours, theirs = (model(**given)[0].float() for model in (bare.eval(), saved.to(device).eval()))
    difference = float((ours - theirs).abs().max())
    if not difference <= 0.01 * max(1.0, float(ours.abs().max())):
        raise CorruptCheckpointError(
            f"the {type(saved).__name__} in {run.arguments.output_dir} differs from the trained model by up to "
            f"{difference:.3g} in its logits; continue with --save_as lacuna --resume, and report it"
        )
    return {"native_difference": difference}


@torch.no_grad()
def _evaluate(run: Run, *, of_average: bool, held_out: bool = True, probes: bool = True) -> dict[str, float] | None:
    """Metrics of the present weights or of the average over all held-out examples, each seen once by one process, and
    what `probes` add; named `eval_...`. None where the run is to stop first."""

    def go_on() -> bool:
        run.watchdog.beat()
        return run.signals.received is None

    accelerator, bare, work, size = run.accelerator, run.bare, run.work, run.arguments.eval_batch_size
    rows = range(accelerator.process_index, work.num_eval_examples * held_out, accelerator.num_processes)
    records: list[dict[str, Any]] = []
    metrics: dict[str, float] | None = None
    hidden = not accelerator.is_main_process
    run.model.eval()
    # Batches of evaluation have shapes of their own, each of which would be compiled. DDP would wait for its peers,
    # which may have a batch fewer: the bare model is asked.
    with run.averaged(of_average), fsdp.whole(bare), torch.compiler.set_stance("force_eager"):
        for start in progress_bar(range(0, len(rows), size), doing="evaluating", unit="batch", disable=hidden):
            if not go_on():
                break
            batch = work.collate([work.eval_example(row) for row in rows[start : start + size]])
            records += work.evaluate(bare, to_device(batch, accelerator.device))
        if all(gather_object([go_on()])) or not held_out:  # what a probe says would be missing when the run goes on
            metrics = work.summarize(gather_object(records)) if held_out else {}
            if run.probe is not None and probes:
                folder = Path(run.arguments.output_dir) if accelerator.is_main_process else None
                metrics = {**metrics, **run.probe(bare, run.progress.step, folder)}
            metrics = {f"eval_{name}": value for name, value in metrics.items()}
    run.stopping = run.stopping or metrics is None
    return metrics
