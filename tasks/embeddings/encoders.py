"""Loading, training and saving encoders with sentence-transformers, and its predictor."""

import math
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor
from transformers import PrinterCallback, TrainerCallback

from lacuna.common.errors import InputError
from lacuna.common.foreign import without_panic
from lacuna.common.loading import look_through, opening
from lacuna.tasks.base.metrics import optional_module
from lacuna.tasks.base.models import resolve_max_length
from lacuna.tasks.base.report import all_or_none
from lacuna.tasks.embeddings.task import LOSSES, SCORED, Embeddings
from lacuna.tasks.predict.predictor import Predictor


def _library(module: str = "") -> Any:
    name = f"sentence_transformers.sentence_transformer.{module}" if module else "sentence_transformers"
    return optional_module(name, extra="embeddings")


def load_encoder(
    *,
    model: str,
    max_length: int | None = None,
    trust_remote_code: bool = False,
    revision: str | None = None,
    seed: int = 0,
) -> Any:
    """A `SentenceTransformer` of a checkpoint, in float32, that cuts texts to `max_length` tokens.

    A folder that sentence-transformers has made keeps its modules; any other encoder is pooled by the mean over the
    tokens, a decoder by the last token. For errors see `opening` and `resolve_max_length`.
    """
    library = _library()
    look_through(model, revision=revision, tokenizer=True, weights=True)
    transformers.set_seed(seed)
    weights = {"dtype": torch.float32, "use_safetensors": True}
    how: dict[str, Any] = {"trust_remote_code": trust_remote_code, "model_kwargs": weights}
    with opening(model, f"--model {model} cannot be loaded by sentence-transformers"):
        encoder = without_panic(library.SentenceTransformer, model, revision=revision, **how)
    if max_length and hasattr(encoder[0], "auto_model"):
        takes = {"config": encoder[0].auto_model.config, "tokenizer": encoder.tokenizer}
        resolve_max_length(asked=max_length, default=max_length, **takes)
    encoder.max_seq_length = max_length or encoder.max_seq_length
    encoder.tokenizer.padding_side = "right"  # see `pad_for_reading`
    return encoder


class KeepBest(TrainerCallback):
    """Logs a training to a `RunLog`, ends it after `max_minutes`, and returns to the weights of its best evaluation,
    which are kept in memory."""

    def __init__(self, task: Any, log: Any, *, max_minutes: float | None = None) -> None:
        self.task, self.log, self.max_seconds, self.seconds = task, log, 60 * (max_minutes or math.inf), 0.0
        self.best, self.best_step, self.weights = -math.inf, 0, dict[str, Tensor]()

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **parts: Any) -> None:
        """Record the loss of the last steps; what else the trainer says comes by other ways."""
        if "loss" in (logs or {}):
            self.log.record({"step": state.global_step, **logs})

    def on_step_begin(self, args: Any, state: Any, control: Any, **parts: Any) -> None:
        self.began = time.monotonic()

    def on_step_end(self, args: Any, state: Any, control: Any, **parts: Any) -> None:
        """Show how far training is; where the time of a process is over, end it for all, with an evaluation."""
        self.seconds += time.monotonic() - self.began
        done = self.seconds / self.max_seconds
        if self.max_seconds < math.inf and torch.distributed.is_initialized():
            of_all = torch.tensor(done, device=args.device)
            torch.distributed.all_reduce(of_all, torch.distributed.ReduceOp.MAX)
            done = of_all.item()
        self.log.advance(max(state.global_step / state.max_steps, done), step=state.global_step)
        if done >= 1:
            control.should_training_stop = control.should_evaluate = True

    def on_evaluate(self, args: Any, state: Any, control: Any, model: Any = None, **parts: Any) -> None:
        """Log the scores; keep the weights where they are the best, of equal ones the last."""
        if not state.is_world_process_zero:
            return
        step, value = state.global_step, self.task.scores()[self.task.metric]
        self.log.evaluation({"step": step, **_named("eval", self.task.scores())})
        if value > self.best or (value == self.best and step == state.max_steps):
            self.best, self.best_step = value, step
            self.weights = {name: weight.detach().clone() for name, weight in model.state_dict().items()}

    def on_train_end(self, args: Any, state: Any, control: Any, model: Any = None, **parts: Any) -> None:
        """Return to the best weights, and evaluate them."""
        if self.weights and self.best_step != state.global_step:
            self.log.say(f"the weights of step {self.best_step:,} are kept: {self.task.metric} {self.best:.4f}")
            model.load_state_dict(self.weights)
            self.task.evaluate_encoder(model)


def train_encoder(
    task: Embeddings,
    encoder: Any,
    *,
    log: Any,
    batch_size: int,
    max_steps: int | None = None,
    max_epochs: float = 3.0,
    max_minutes: float | None = None,
    eval_steps: float = 0.2,
    num_processes: int = 1,
    **options: Any,
) -> dict[str, float]:
    """Train an encoder in place, with the trainer of sentence-transformers and its `options`; the best weights stay.

    `batch_size` are rows in one step, over all processes; InputError where they do not share it evenly. With
    `eval_steps` 0 it evaluates only at the end. Returns what results.json says: scores before (`start_`), after
    (`eval_`), without a model (`baseline_`) and of both together (`hybrid_`), steps and seconds.
    """
    if batch_size % num_processes:
        raise InputError(f"--batch_size {batch_size} cannot be divided among {num_processes} processes evenly")
    library, on_cpu = _library(), not torch.accelerator.is_available()
    steps = max_steps or math.ceil(max_epochs * math.ceil(len(task.train_items) / batch_size))
    every = int(eval_steps) if eval_steps >= 1 else max(1, round(eval_steps * steps))
    how = {"warmup_steps": 0.06, "seed": 0, **options, "max_steps": steps, "use_cpu": on_cpu}
    how |= {"per_device_train_batch_size": batch_size // num_processes}
    how |= {"ddp_backend": "gloo" if on_cpu and num_processes > 1 else None}
    # A text that comes twice in a batch would be a wrong text for itself.
    how |= {"batch_sampler": "batch_sampler" if task.kind == SCORED else "no_duplicates"}
    how |= {"eval_strategy": "steps", "eval_steps": every if eval_steps else steps, "save_strategy": "no"}
    how |= {"report_to": [], "logging_steps": 10, "disable_tqdm": True}
    shared = {"gather_across_devices": num_processes > 1}  # texts of all processes are wrong ones for each
    # Their card, which takes a while and shows bars of its own, is not written.
    without_card = {"add_model_card_callback": lambda self, defaults: None}
    with tempfile.TemporaryDirectory() as folder:
        trainer = type("Trainer", (library.SentenceTransformerTrainer,), without_card)(
            model=encoder,
            args=library.SentenceTransformerTrainingArguments(output_dir=folder, **how),
            train_dataset=task.dataset(),
            evaluator=[lambda model, *place: dict(task.evaluate_encoder(model))],
            loss=getattr(_library("losses"), LOSSES[task.kind])(encoder, **({} if task.kind == SCORED else shared)),
        )
        trainer.remove_callback(PrinterCallback)
        trainer.add_callback(KeepBest(task, log, max_minutes=max_minutes))
        start = task.evaluate_encoder(encoder) if trainer.is_world_process_zero() else {}
        log.evaluation({"step": 0, **_named("eval", start)})
        began = time.perf_counter()
        trainer.train()
        seconds = time.perf_counter() - began
    log.say("judging words, and the model with words; of many held-out rows this takes minutes")
    parts = {"eval": task.scores(), "start": start, "baseline": task.baseline(), "hybrid": task.hybrid(encoder)}
    scores = {name: score for part, found in parts.items() for name, score in _named(part, found).items()}
    return {**scores, "steps": trainer.state.global_step, "train_seconds": round(seconds, 2)}


def _named(part: str, scores: Mapping[str, float]) -> dict[str, float]:
    return {f"{part}_{name}": value for name, value in scores.items()}


def save_encoder(encoder: Any, folder: Path, *, card: str) -> None:
    """Write an encoder and its README.md; StorageError where they cannot be written."""
    config: Any = getattr(getattr(encoder[0], "auto_model", None), "config", None)
    if hasattr(config, "classifier_pooling") and any(getattr(part, "pooling_mode", "") == "mean" for part in encoder):
        config.classifier_pooling = "mean"  # a classifier that begins from here reads what has been learned
    with all_or_none(folder, what="model") as hidden:
        encoder.save_pretrained(str(hidden), create_model_card=False)
        (hidden / "README.md").write_text(card, encoding="utf-8")


class EmbeddingPredictor(Predictor):
    """The vector of a text."""

    def prepare(self) -> None:
        named = ("model", "max_length", "trust_remote_code", "revision")
        self._encoder = load_encoder(**{name: getattr(self.arguments, name) for name in named})

    def forward(self, given: Sequence[Any]) -> Iterator[dict[str, Any]]:
        for vector in self._encoder.encode(list(given), batch_size=len(given), show_progress_bar=False).tolist():
            yield {"prediction": [round(value, 6) for value in vector]}
