"""The options of a training run."""

import dataclasses
import math
from dataclasses import dataclass, field
from typing import Any, Literal

from .errors import ArgumentError


def option(default: Any, text: str) -> Any:
    """A dataclass field with its help text."""
    return field(default=default, metadata={"help": text})


@dataclass
class ModelArguments:
    """Which model to start from."""

    model: str | None = option(None, "A folder or Hub id of the model to start from.")
    trust_remote_code: bool = option(
        False, "Run the code that a checkpoint of --model carries. Checkpoints of Lacuna do not need it here."
    )


@dataclass
class NewModelArguments(ModelArguments):
    """Which model to start from, or to make."""

    model: str | None = option(
        None, "A folder or Hub id to start from; without it a new model is made from --family and --size."
    )
    family: str | None = option(
        None, "Architecture of a new model: bert, modernbert or qwen3. Default: what the objective needs."
    )
    size: str = option("tiny", "Size of a new model: tiny, mini, small, base or large.")
    vocab_size: int = option(8192, "Vocabulary of the tokenizer that is trained when no --tokenizer is given.")


@dataclass
class TrainingArguments:
    """How long, how fast and in what portions to train."""

    output_dir: str = option("runs/model", "Folder for the model, checkpoints, metrics and curves.")
    resume: bool = option(False, "Continue from the newest checkpoint in --output_dir.")
    max_steps: int | None = option(None, "Stop after this many optimizer steps.")
    max_minutes: float | None = option(None, "Stop after this many minutes of training, with the schedule complete.")
    max_epochs: float | None = option(None, "Stop after this many passes over the data. Default without a limit: 3.")
    batch_size: int = option(64, "Examples in one optimizer step, over all processes.")
    micro_batch_size: int | None = option(
        None, "Examples that one process sends through the model at once. Default: all of its share."
    )
    eval_batch_size: int = option(64, "Examples in one evaluation batch of one process.")
    optimizer: Literal["adamw", "muon"] = option("adamw", "adamw, or muon for matrices with AdamW for the rest.")
    learning_rate: float = option(1e-3, "Peak learning rate.")
    schedule: Literal["wsd", "linear", "cosine", "constant"] = option(
        "wsd", "Learning rate over time: wsd (warm-up, stable, decay by 1 - sqrt), linear, cosine or constant."
    )
    warmup_steps: float = option(0.05, "Steps of warm-up; below 1 a share of the run.")
    decay_share: float = option(0.4, "Share of the run at its end in which wsd lowers the learning rate to zero.")
    weight_decay: float = option(0.01, "Weight decay of matrices; norms, biases and embeddings have none.")
    adam_beta2: float = option(0.98, "Second-moment decay of AdamW.")
    max_grad_norm: float = option(1.0, "Gradients are scaled down to this norm; 0 leaves them as they are.")
    logging_steps: int = option(10, "Steps between lines of metrics.jsonl.")
    eval_steps: float = option(0.2, "Steps between evaluations; below 1 a share of the run; 0 only at the end.")
    save_steps: float = option(0.5, "Steps between checkpoints; below 1 a share of the run; 0 never.")
    keep_checkpoints: int = option(2, "How many of the newest checkpoints to keep.")
    mixed_precision: Literal["auto", "no", "bf16"] = option(
        "auto", "bf16, no, or auto: bf16 on GPUs and on processors with AMX or AVX512-BF16."
    )
    num_workers: int = option(0, "Processes that prepare batches beside each training process.")
    seed: int = option(0, "Decides sample order, masks, pairs, dropout and new weights.")

    def __post_init__(self) -> None:
        positive = ["batch_size", "micro_batch_size", "eval_batch_size", "max_steps", "max_minutes", "max_epochs"]
        positive += ["learning_rate", "logging_steps", "keep_checkpoints"]
        for name in positive:
            value = getattr(self, name)
            if value is not None and not (value > 0 and math.isfinite(value)):
                raise ArgumentError(f"--{name} must be greater than 0, got {value}")
        for name in [
            "warmup_steps",
            "weight_decay",
            "max_grad_norm",
            "eval_steps",
            "save_steps",
            "num_workers",
            "seed",
        ]:
            value = getattr(self, name)
            if not (value >= 0 and math.isfinite(value)):
                raise ArgumentError(f"--{name} must not be negative, got {value}")
        if not 0 <= self.decay_share <= 1:
            raise ArgumentError(f"--decay_share must lie between 0 and 1, got {self.decay_share}")
        if not 0 <= self.adam_beta2 < 1:
            raise ArgumentError(f"--adam_beta2 must be at least 0 and below 1, got {self.adam_beta2}")
        if self.seed >= 2**32:
            raise ArgumentError(f"--seed must be below {2**32}, got {self.seed}")

    def resolved(self, *, num_examples: int, num_processes: int) -> "TrainingArguments":
        """The same options with every default that depends on the data or the launcher filled in.

        Raises:
            ArgumentError: the batch cannot be divided among the processes and micro-batches.
        """
        if self.batch_size % num_processes:
            raise ArgumentError(
                f"--batch_size {self.batch_size} cannot be shared evenly by {num_processes} processes; "
                f"use a multiple of {num_processes}"
            )
        share = self.batch_size // num_processes
        micro = min(self.micro_batch_size or share, share)
        if share % micro:
            raise ArgumentError(
                f"--micro_batch_size {micro} does not divide the {share} examples of one process "
                f"(--batch_size {self.batch_size} over {num_processes} processes)"
            )
        epochs = self.max_epochs
        if epochs is None and self.max_steps is None and self.max_minutes is None:
            epochs = 3.0
        limits = [] if epochs is None else [math.ceil(epochs * num_examples / self.batch_size)]
        limits += [] if self.max_steps is None else [self.max_steps]
        return dataclasses.replace(
            self, micro_batch_size=micro, max_epochs=epochs, max_steps=min(limits) if limits else None
        )


@dataclass
class FineTuningArguments(TrainingArguments):
    """Training options with the defaults that fine-tuning wants."""

    output_dir: str = option("runs/finetuned", "Folder for the model, predictions, metrics and curves.")
    batch_size: int = option(32, "Examples in one optimizer step, over all processes.")
    learning_rate: float = option(3e-4, "Peak learning rate.")
    schedule: Literal["wsd", "linear", "cosine", "constant"] = option(
        "linear", "Learning rate over time: wsd (warm-up, stable, decay by 1 - sqrt), linear, cosine or constant."
    )
    warmup_steps: float = option(0.06, "Steps of warm-up; below 1 a share of the run.")
    save_steps: float = option(0, "Steps between checkpoints; below 1 a share of the run; 0 never.")
