"""The options of a training run."""

import argparse
import dataclasses
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from lacuna.common.errors import InputError
from lacuna.common.options import Arguments, Numbers, check_range, option

from .averaging import AVERAGES
from .optimizers import OPTIMIZERS
from .schedules import SCHEDULES

TRACKERS = ("tensorboard", "wandb", "trackio")
"""What --report_to takes; each is an extra of the package by the same name."""


class MicroBatchSize(int):
    """A number of examples; 0 stands for "auto", as many as fit."""

    def __new__(cls, value: Any) -> "MicroBatchSize":
        """Parse text.

        Raises:
            argparse.ArgumentTypeError: neither a number above 0 nor "auto".
        """
        if value == "auto":
            return super().__new__(cls, 0)
        try:
            number = int(value)
        except (TypeError, ValueError):
            number = -1
        if number < 0 or value == "0":
            raise argparse.ArgumentTypeError(f"expected a number of examples or auto, got {value!r}")
        return super().__new__(cls, number)


class Tracker(str):
    """The name of one of `TRACKERS`."""

    def __new__(cls, value: Any) -> "Tracker":
        """Parse text.

        Raises:
            argparse.ArgumentTypeError: there is no tracker of this name.
        """
        if value not in TRACKERS:
            raise argparse.ArgumentTypeError(f"expected {', '.join(TRACKERS)}, got {value!r}")
        return super().__new__(cls, value)


if TYPE_CHECKING:  # after construction it is there
    DerivedRate = float
    OptimizerName = str
    ScheduleName = str
    AverageName = str
else:
    DerivedRate = float | None
    OptimizerName, ScheduleName = Literal[tuple(OPTIMIZERS)], Literal[tuple(SCHEDULES)]
    AverageName = Literal[("none", *AVERAGES)]

_OPTIMIZERS = "; ".join(", ".join(filter(None, [name, each.note])) for name, each in OPTIMIZERS.items())
_RATES = ", ".join(f"{each.learning_rate:g} for {name}" for name, each in OPTIMIZERS.items())


@dataclass
class ModelArguments(Arguments):
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
    init_from_native: bool = option(
        False, "Bring the weights of --model, a model of transformers, into Lacuna's own, and go on with that."
    )
    family: str | None = option(
        None,
        "Architecture of a new model: bert, modernbert (encoders), gpt2, llama, qwen3 (decoders), bart or vaswani "
        "(encoder-decoders). Default: lacuna (modernbert with norms on queries and keys), qwen3 or bart, as the "
        "objective needs.",
    )
    size: str = option("tiny", "Size of a new model: tiny, mini, small, base or large.")
    vocab_size: int = option(8192, "Vocabulary of the tokenizer that is trained when no --tokenizer is given.")


@dataclass
class TrainingArguments(Arguments):
    """How long, how fast and in what portions to train."""

    output_dir: str = option("runs/model", "Folder for the model, checkpoints, metrics and curves.")
    resume: bool = option(False, "Continue from the newest checkpoint in --output_dir.")
    max_steps: int | None = option(None, "Stop after this many optimizer steps.")
    max_minutes: float | None = option(
        None, "Stop after this many minutes of training steps, with the schedule complete; evaluations come on top."
    )
    max_tokens: int | None = option(None, "Stop after this many tokens, padding not counted.")
    max_epochs: float | None = option(None, "Stop after this many passes over the data. Default without a limit: 3.")
    batch_size: Numbers = option(
        Numbers(64), "Examples in one optimizer step, over all processes; several, as 64,128, for stages of the run."
    )
    batch_size_at: Numbers = option(
        Numbers(0), "From which share of the run each --batch_size holds, as 0,0.5 for two of them."
    )
    micro_batch_size: MicroBatchSize | None = option(
        None, "Examples that one process sends through the model at once, or auto: as many as fit. Default: its share."
    )
    eval_batch_size: int = option(64, "Examples in one evaluation batch of one process.")
    optimizer: OptimizerName = option("muon", f"{_OPTIMIZERS}.")
    learning_rate: DerivedRate = option(None, f"Peak learning rate. Default: {_RATES}.")
    schedule: ScheduleName = option(
        "wsd", "Learning rate over time: wsd (warm-up, stable, decay by 1 - sqrt), linear, cosine or constant."
    )
    warmup_steps: float = option(0.05, "Steps of warm-up; below 1 a share of the run.")
    decay_share: float = option(0.4, "Share of the run at its end in which wsd lowers the learning rate to zero.")
    layerwise_decay: float = option(
        1.0, "Each layer learns at this share of the rate of the layer above it, the embeddings slowest; 1 is off."
    )
    weight_decay: float = option(0.01, "Weight decay of matrices; norms, biases and embeddings have none.")
    adam_beta2: float = option(0.98, "Second-moment decay of AdamW.")
    max_grad_norm: float = option(1.0, "Gradients are scaled down to this norm; 0 leaves them as they are.")
    logging_steps: int = option(10, "Steps between lines of metrics.jsonl.")
    eval_steps: float = option(0.2, "Steps between evaluations; below 1 a share of the run; 0 only at the end.")
    save_steps: float = option(
        0.2, "Steps between checkpoints; below 1 a share of the run; 0 never. The last step has one too."
    )
    save_minutes: float = option(0, "Minutes between checkpoints, besides those of --save_steps; 0 never.")
    keep_checkpoints: int = option(
        2, "How many of the newest checkpoints to keep; of those with an evaluation at their step the best stays too."
    )
    early_stopping_patience: int = option(
        0, "Stop after this many evaluations in a row without a better metric; 0 goes on to the end."
    )
    average: AverageName = option(
        "none",
        "Which weights are saved as the model: the last, a moving average (ema), the mean over the end of the run "
        "(tail), or those of the best evaluation.",
    )
    ema_decay: float = option(0.999, "Decay of --average ema in one step.")
    tail_share: float = option(0.2, "Share of the run at its end over which --average tail takes its mean.")
    freeze_backbone: bool = option(False, "Train the head alone, with its pooler if it has one.")
    lora_rank: int = option(
        0, "Train low-rank additions of this rank to the linear layers of the backbone, and the head; 0 trains all."
    )
    lora_alpha: float | None = option(
        None, "Additions of --lora_rank are multiplied by this over the rank. Default: twice the rank."
    )
    group_by_length: bool = option(
        False, "Put examples of like length into one step, where their lengths are known: less padding."
    )
    skip_steps: str = option("", "Steps to leave out on a rerun, with their samples, as 120-125,300.")
    max_bad_steps: int = option(5, "Stop after this many steps in a row whose loss or gradient is not finite.")
    allow_change: list[str] = option([], "Names of what may differ from the run that --resume continues.")
    hang_timeout: float = option(
        1800, "Seconds without a step after which a process shows where it stands and ends; 0 never."
    )
    deterministic: bool = option(False, "Only computations that give the same bits each time; slower on GPUs.")
    report_to: list[Tracker] = option([], "Trackers beside metrics.jsonl: tensorboard, wandb, trackio.")
    mixed_precision: Literal["auto", "no", "bf16"] = option(
        "auto", "bf16, no, or auto: bf16 on GPUs and on processors with AMX or AVX512-BF16."
    )
    compile: Literal["auto", "on", "off"] = option(
        "auto",
        "Compile the blocks of the model: on, off, or auto: on GPUs, and on a CPU where the run is long enough.",
    )
    num_workers: int | None = option(
        None, "Processes that prepare batches beside each training process. Default: 2 beside a GPU, 0 on a CPU."
    )
    seed: int = option(0, "Decides sample order, masks, pairs, dropout and new weights.")

    def __post_init__(self) -> None:
        self.batch_size, self.batch_size_at = Numbers(self.batch_size), Numbers(self.batch_size_at)
        _check_stages("batch_size", self.batch_size, self.batch_size_at)
        if self.learning_rate is None:
            self.learning_rate = OPTIMIZERS[self.optimizer].learning_rate
        if isinstance(self.micro_batch_size, int) and not isinstance(self.micro_batch_size, MicroBatchSize):
            if self.micro_batch_size <= 0:
                raise InputError(f"--micro_batch_size must be greater than 0, got {self.micro_batch_size}")
            self.micro_batch_size = MicroBatchSize(self.micro_batch_size)
        check_range(self, "eval_batch_size", "max_steps", "max_minutes", "max_tokens", "max_epochs", above=0)
        check_range(self, "max_bad_steps", "learning_rate", "logging_steps", "keep_checkpoints", above=0)
        check_range(self, "warmup_steps", "weight_decay", "max_grad_norm", "eval_steps", "save_steps", at_least=0)
        check_range(self, "save_minutes", "hang_timeout", "num_workers", "early_stopping_patience", at_least=0)
        check_range(self, "lora_rank", "seed", at_least=0)
        check_range(self, "seed", below=2**32)
        check_range(self, "decay_share", at_least=0, at_most=1)
        check_range(self, "tail_share", "layerwise_decay", above=0, at_most=1)
        check_range(self, "ema_decay", "adam_beta2", at_least=0, below=1)
        check_range(self, "lora_alpha", above=0)
        for name in ("eval_steps", "save_steps"):
            value = getattr(self, name)
            if value > 1 and value != int(value):
                raise InputError(f"--{name} counts steps, or is a share of the run below 1, got {value}")
        if self.allow_change and not self.resume:
            raise InputError("--allow_change says what may differ from the run that is continued: add --resume")
        if self.early_stopping_patience and not self.eval_steps:
            raise InputError("--early_stopping_patience counts evaluations, and --eval_steps 0 makes only one")
        self._check_parts()

    def _check_parts(self) -> None:
        """Of the options that say which weights learn."""
        if self.lora_alpha is not None and not self.lora_rank:
            raise InputError(f"--lora_alpha {self.lora_alpha} scales what --lora_rank adds: give a --lora_rank")
        if self.lora_rank and self.freeze_backbone:
            raise InputError("--lora_rank trains additions to the backbone and --freeze_backbone none: choose one")

    @property
    def writes_checkpoints(self) -> bool:
        """Whether there are any on the way; a run that is told to stop writes one all the same."""
        return bool(self.save_steps or self.save_minutes)

    def resolved(self, *, epochs_per_step: float, tokens_per_step: float) -> "TrainingArguments":
        """The same options with every default that depends on the data filled in.

        Args:
            epochs_per_step: passes over the data in one optimizer step.
            tokens_per_step: tokens in one, a mean.
        """
        epochs = self.max_epochs
        if epochs is None and self.max_steps is None and self.max_minutes is None and self.max_tokens is None:
            epochs = 3.0
        # Rounded first: one part in 10^9 too many, from rounding in between, would be a whole step.
        limits = [] if epochs is None else [math.ceil(round(epochs / epochs_per_step, 6))]
        limits += [] if self.max_tokens is None else [math.ceil(round(self.max_tokens / tokens_per_step, 6))]
        limits += [] if self.max_steps is None else [self.max_steps]
        return dataclasses.replace(self, max_epochs=epochs, max_steps=min(limits) if limits else None)


def _check_stages(name: str, values: Numbers, starts: Numbers) -> None:
    for value in values:
        if not (value > 0 and math.isfinite(value)):
            raise InputError(f"--{name} must be greater than 0, got {value}")
        if not isinstance(value, int):
            raise InputError(f"--{name} counts examples, got {value}")
    if len(starts) != len(values) or starts[0] != 0 or list(starts) != sorted(set(starts)) or starts[-1] >= 1:
        raise InputError(
            f"--{name}_at {starts} must begin with 0, rise, stay below 1 and name a share of the run for each of "
            f"--{name} {values}, as in --{name} 64,128 --{name}_at 0,0.5"
        )


@dataclass
class FineTuningArguments(TrainingArguments):
    """Training options with the defaults that fine-tuning wants."""

    output_dir: str = option("runs/finetuned", "Folder for the model, predictions, metrics and curves.")
    batch_size: Numbers = option(Numbers(32), "Examples in one optimizer step, over all processes.")
    optimizer: OptimizerName = option("adamw", f"{_OPTIMIZERS}.")
    learning_rate: DerivedRate = option(
        None, "Peak learning rate. Default: in proportion to the weights; 0.003 or less with --lora_rank."
    )
    schedule: ScheduleName = option(
        "linear", "Learning rate over time: wsd (warm-up, stable, decay by 1 - sqrt), linear, cosine or constant."
    )
    warmup_steps: float = option(0.06, "Steps of warm-up; below 1 a share of the run.")
    save_steps: float = option(0, "Steps between checkpoints; below 1 a share of the run; 0 never.")
    average: AverageName = option(
        "best",
        "Which weights are saved as the model: those of the best evaluation (best), the last (none), a moving average "
        "(ema), or the mean over the end of the run (tail).",
    )
    group_by_length: bool = option(
        True, "Put examples of like length into one step, where their lengths are known: less padding."
    )
    seeds: int = option(
        1, "Train this many times, with --seed and the numbers after it; results.json has means and deviations."
    )
    dry_run: bool = option(
        False, "Show what would be learned and how long that would take; nothing is trained or written."
    )

    def __post_init__(self) -> None:
        asked = self.learning_rate
        super().__post_init__()
        self.learning_rate = asked  # or None, until the model is there (rates.py)
        if self.seeds < 1:
            raise InputError(f"--seeds must be at least 1, got {self.seeds}")
        if self.seeds > 1 and self.resume:
            raise InputError(
                f"--resume goes on with one run, and --seeds {self.seeds} are several: start them anew in another "
                "--output_dir"
            )
        if self.seed + self.seeds > 2**32:
            raise InputError(f"--seed and the {self.seeds - 1} numbers after it must be below {2**32}")
