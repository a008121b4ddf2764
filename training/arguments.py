"""The options of a training run."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import torch

from lacuna.common.errors import InputError
from lacuna.common.options import (
    ESSENTIALS,
    NORMALIZER,
    REVISION,
    TRUST_CODE,
    VOCABULARY,
    Arguments,
    Normalizer,
    Numbers,
    check_range,
    essential,
    option,
)

from .optimizers.averages import AVERAGES
from .optimizers.optimizers import OPTIMIZERS
from .optimizers.schedules import LONG, SCHEDULES

TRACKERS = ("tensorboard", "wandb", "trackio")
"""What --report_to takes; each is an extra of the package by the same name."""


if TYPE_CHECKING:  # once the model is there, it is too (`with_rate`)
    DerivedRate = float
else:
    DerivedRate = float | None

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}  # of autocast, by --mixed_precision
_USUAL_RATE = OPTIMIZERS["adamw"].learning_rate
_RATES = "".join(
    f"{each.learning_rate:g} ({name}), " for name, each in OPTIMIZERS.items() if each.learning_rate != _USUAL_RATE
)

SHAPE = ("num_hidden_layers", "hidden_size", "num_attention_heads", "intermediate_size")
_model = partial(option, group="model")
_length = partial(option, group="length of the run")
_optimizer = partial(option, group="optimizer")
_saving = partial(option, group="evaluation and saving")
_hardware = partial(option, group="hardware and reproducibility")


@dataclass
class ModelArguments(Arguments):
    """Which model to start from."""

    model: str | None = essential(None, "Pretrained model to start from: a folder or Hub id.", metavar="MODEL")
    trust_remote_code: bool = _model(**TRUST_CODE, advanced=True)
    revision: str | None = _model(**REVISION, advanced=True)


@dataclass
class NewModelArguments(ModelArguments):
    """Which model to start from, or to make."""

    model: str | None = _model(None, "Continue pretraining this model: a folder or Hub id.", metavar="MODEL")
    family: str | None = _model(
        None,
        "Architecture of a new model: modernbert, bert, lacuna (modernbert with query and key norms), qwen3, llama, "
        "gpt2, bart or vaswani. Default: modernbert, qwen3 or bart, depending on --objective.",
        metavar="NAME",
    )
    size: str = essential(
        "micro",
        "New model's size; of the default encoder without embeddings: micro (2 M parameters), tiny (4 M), mini "
        "(12 M), small (32 M), base (110 M) or large (343 M). Default: micro, for some minutes on a CPU.",
        choices=("micro", "tiny", "mini", "small", "base", "large"),
    )
    vocab_size: int | None = _model(
        None, "Vocabulary size of a newly trained tokenizer. Default: 8192, for mlm_contrastive 16384."
    )
    normalizer: Normalizer | None = _model(None, f"{NORMALIZER} Default: none, for mlm_contrastive lowercase.")
    num_hidden_layers: int | None = _model(None, "Layers of a new model. Default: those of --size.", advanced=True)
    hidden_size: int | None = _model(None, "Width of a new model. Default: that of --size.", advanced=True)
    num_attention_heads: int | None = _model(
        None, "Attention heads of a layer. Default: those of --size.", advanced=True
    )
    intermediate_size: int | None = _model(None, "MLP width of a new model. Default: that of --size.", advanced=True)

    def __post_init__(self) -> None:
        check_range(self, *SHAPE, at_least=1)
        if self.model and (asked := [name for name in SHAPE if getattr(self, name) is not None]):
            raise InputError(f"--{asked[0]} is for a new model, and --model {self.model} has its own: leave it out")

    @property
    def shape(self) -> dict[str, int]:
        """What was asked for in place of the layers and widths of --size."""
        return {name: value for name in SHAPE if (value := getattr(self, name)) is not None}

    def vocabulary(self, of_objective: Mapping[str, Any]) -> dict[str, Any]:
        """What a newly trained tokenizer is to be like: as asked for, else as the objective wants it."""
        asked = {name: getattr(self, name) for name in VOCABULARY}
        return {**VOCABULARY, **of_objective, **{name: value for name, value in asked.items() if value is not None}}

    def identity(self, vocabulary: Mapping[str, Any]) -> dict[str, Any]:
        """What was asked of a new model, which a run that is resumed must not change; known before text is read."""
        of_tokenizer = {name: value for name, value in vocabulary.items() if value != "none"}
        return {"new_model": {"family": self.family, "size": self.size, **of_tokenizer, **self.shape}}


@dataclass
class TrainingArguments(Arguments):
    """How long, how fast and in what portions to train."""

    fine_tunes: ClassVar[bool] = False  # how a learning rate is found where none is asked for
    max_minutes: float | None = essential(
        None, "Stop after this many minutes of compiling and training; evaluation is extra. Default: no limit."
    )
    output_dir: str = essential("runs/model", "Folder for model, checkpoints, metrics and curves.")
    resume: bool = _length(False, "Resume from the newest checkpoint in --output_dir.")
    max_steps: int | None = _length(None, "Stop after this many optimizer steps.")
    max_tokens: int | None = _length(None, "Stop after this many tokens, padding not counted.", advanced=True)
    max_epochs: float | None = _length(
        None,
        "Stop after this many epochs. Default without another limit: 3; of few rows as many as make 3,000 examples, "
        "or 25,000 for question answering and seq2seq, but at most 30.",
    )
    batch_size: Numbers = _optimizer(
        Numbers(64),
        "Examples per optimizer step, over all processes; 64,128 with --batch_size_at 0,0.5 grows halfway.",
    )
    batch_size_at: Numbers = _optimizer(
        Numbers(0), "Fraction of the run at which each --batch_size starts, as in 0,0.5.", advanced=True
    )
    micro_batch_size: int | None = _hardware(
        None,
        "Examples per forward pass of one process; fewer than its share of --batch_size means gradient accumulation. "
        "Default: its share. recipes/plan_run.py says how many fit in memory.",
    )
    eval_batch_size: int = _saving(64, "Examples per evaluation batch of one process.", advanced=True)
    optimizer: str = _optimizer("muon", "What updates the weights.", choices=OPTIMIZERS)
    learning_rate: DerivedRate = _optimizer(
        None, f"Peak learning rate. Default: {_RATES}else {_USUAL_RATE:g}, less for large models.", metavar="X"
    )
    schedule: str = _optimizer(
        "rsqrt",
        f"Learning-rate schedule: wsd (warmup, stable, decay), rsqrt (wsd that falls with the root of the steps after "
        f"{LONG} of them), linear, cosine or constant.",
        choices=tuple(SCHEDULES),
    )
    warmup_steps: float = _optimizer(0.05, "Warmup steps; below 1, a fraction of the run.")
    decay_share: float = _optimizer(
        0.4, "Fraction of the run at its end in which wsd and rsqrt decay the learning rate to zero.", advanced=True
    )
    layerwise_decay: float = _optimizer(
        1.0, "Learning rate of each layer relative to the layer above it; 1 turns it off.", advanced=True
    )
    embedding_rate: float = _optimizer(0.3, "Learning rate of embeddings relative to other weights.", advanced=True)
    weight_decay: float = _optimizer(0.1, "Weight decay, except of norms, biases and embeddings.")
    adam_beta2: float = _optimizer(0.98, "Second-moment decay of AdamW.", advanced=True)
    max_grad_norm: float = _optimizer(1.0, "Clip gradients to this norm; 0 turns clipping off.", advanced=True)
    logging_steps: int = _saving(10, "Steps between lines of metrics.jsonl.")
    eval_steps: float = _saving(0.2, "Steps between evaluations; below 1, a fraction of the run; 0: only at the end.")
    save_steps: float = _saving(
        0.2, "Steps between checkpoints; below 1, a fraction of the run; 0 turns them off. The last step gets one too."
    )
    save_minutes: float = _saving(0, "Also write a checkpoint every so many minutes; 0 turns this off.", advanced=True)
    keep_checkpoints: int = _saving(2, "Newest checkpoints to keep, besides the best one.", advanced=True)
    save_as: Literal["native", "lacuna"] = _saving(
        "native",
        "native: as a model of transformers where one computes the same, with no code beside it; lacuna: always with "
        "Lacuna's code.",
        advanced=True,
    )
    push_to_hub: str | None = _saving(
        None, "Private repository on the Hugging Face Hub to push the model to at the end.", metavar="OWNER/NAME"
    )
    push_steps: int = _saving(0, "Push the checkpoint of every so many steps too, with a tag step-N.", advanced=True)
    early_stopping_patience: int = _length(0, "Stop after so many evaluations in a row without improvement; 0: never.")
    average: str = _optimizer(
        "none",
        "Weights to save: none (the last), ema (moving average) or best (best evaluation).",
        choices=("none", *AVERAGES),
    )
    ema_decay: float = _optimizer(0.999, "Decay per step of --average ema.", advanced=True)
    freeze_backbone: bool = _model(False, "Train only the head, and the pooler if there is one.", advanced=True)
    lora_rank: int = _model(0, "Train LoRA adapters of this rank and the head, not all weights; 0 turns LoRA off.")
    lora_alpha: float | None = _model(None, "LoRA alpha. Default: twice --lora_rank.", advanced=True)
    group_by_length: bool = _hardware(False, "Batch examples of like length together, to save padding.", advanced=True)
    skip_steps: str = _length(
        "", "Steps to skip on a rerun, with their samples, as in 120-125,300.", metavar="STEPS", advanced=True
    )
    max_bad_steps: int = _length(
        5, "Stop after this many steps in a row with a loss or gradient that is not finite.", advanced=True
    )
    allow_change: list[str] = _length(
        [], "Options that may differ from those of the run that --resume continues.", metavar="NAME", advanced=True
    )
    hang_timeout: float = _hardware(
        1800, "Seconds without a step until a process prints its stack and exits; 0 waits forever.", advanced=True
    )
    deterministic: bool = _hardware(False, "Use only deterministic kernels, which are slower on GPUs.", advanced=True)
    report_to: list[str] = _saving([], "Experiment trackers to log to.", choices=TRACKERS)
    mixed_precision: Literal["auto", "no", "bf16", "fp16"] = _hardware(
        "auto", "bf16, fp16, no, or auto: bf16 on GPUs and on CPUs with AMX or AVX512-BF16, fp16 on older GPUs."
    )
    compile: Literal["auto", "on", "off"] = _hardware(
        "auto", "Compile the model: on, off, or auto: on GPUs, and on a CPU if the run is long enough."
    )
    num_workers: int | None = _hardware(
        None,
        "Subprocesses that prepare batches, for each training process. Default: 2 on a GPU, 0 on a CPU.",
        advanced=True,
    )
    threads: int | None = _hardware(None, "CPU threads of a process. Default: its share of the cores.", advanced=True)
    seed: int = _hardware(0, "Seed of sample order, masks, dropout and new weights.")

    def __post_init__(self) -> None:
        self.batch_size, self.batch_size_at = Numbers(self.batch_size), Numbers(self.batch_size_at)
        for size in self.batch_size:
            if not (isinstance(size, int) and size > 0):
                raise InputError(f"--batch_size must be a whole number greater than 0, got {size}")
        self.check_stages("batch_size", example="--batch_size 64,128 --batch_size_at 0,0.5")
        check_range(self, "eval_batch_size", "max_steps", "max_minutes", "max_tokens", "max_epochs", above=0)
        check_range(self, "max_bad_steps", "learning_rate", "logging_steps", "keep_checkpoints", above=0)
        check_range(self, "warmup_steps", "weight_decay", "max_grad_norm", at_least=0)
        self.check_steps("eval_steps", "save_steps")
        check_range(self, "save_minutes", "hang_timeout", "num_workers", "early_stopping_patience", at_least=0)
        check_range(self, "micro_batch_size", at_least=1)
        check_range(self, "threads", at_least=1, at_most=os.cpu_count() or 1)
        check_range(self, "lora_rank", "push_steps", at_least=0)
        check_range(self, "seed", at_least=0, below=2**32)
        check_range(self, "decay_share", at_least=0, at_most=1)
        check_range(self, "layerwise_decay", above=0, at_most=1)
        check_range(self, "ema_decay", "adam_beta2", at_least=0, below=1)
        check_range(self, "embedding_rate", "lora_alpha", above=0)
        if self.push_steps and not (self.push_to_hub and self.save_steps >= 1 > self.push_steps % self.save_steps):
            raise InputError(f"--push_steps {self.push_steps} needs --push_to_hub and a --save_steps that divides it")
        if self.allow_change and not self.resume:
            raise InputError("--allow_change says what may differ from the run that is continued: add --resume")
        if self.early_stopping_patience and not self.eval_steps:
            raise InputError("--early_stopping_patience counts evaluations, and --eval_steps 0 makes only one")
        if self.lora_alpha is not None and not self.lora_rank:
            raise InputError(f"--lora_alpha {self.lora_alpha} scales what --lora_rank adds: give a --lora_rank")
        if self.lora_rank and self.freeze_backbone:
            raise InputError("--lora_rank trains additions to the backbone and --freeze_backbone none: choose one")

    @property
    def writes_checkpoints(self) -> bool:
        """Whether the run writes any on the way; a run that is stopped writes one anyway."""
        return bool(self.save_steps or self.save_minutes)


def _but(name: str, default: Any, **changed: Any) -> Any:
    """An option of `TrainingArguments` with another default."""
    return field(default=default, metadata={**TrainingArguments.__dataclass_fields__[name].metadata, **changed})


@dataclass
class FineTuningArguments(TrainingArguments):
    """Training options with the defaults that fine-tuning wants."""

    fine_tunes: ClassVar[bool] = True
    max_minutes: float | None = _but("max_minutes", None, group="length of the run")
    max_epochs: float | None = _but("max_epochs", None, group=ESSENTIALS)
    output_dir: str = essential("runs/finetuned", "Folder for model, predictions, metrics and curves.")
    batch_size: Numbers = _optimizer(Numbers(32), "Examples per optimizer step, over all processes.")
    optimizer: str = _but("optimizer", "adamw")
    learning_rate: DerivedRate = essential(
        None,
        "Peak learning rate. Default: automatic, by RMS of the weights and steps; at most 0.003 with --lora_rank.",
        metavar="X",
    )
    schedule: str = _but("schedule", "linear")
    warmup_steps: float = _but("warmup_steps", 0.06)
    embedding_rate: float = _but("embedding_rate", 1.0)
    weight_decay: float = _but("weight_decay", 0.01)
    save_steps: float = _saving(
        0, "Steps between checkpoints, which --resume needs; below 1, a fraction of the run; 0 writes none."
    )
    resume: bool = _length(
        False, "Resume from the newest checkpoint in --output_dir, of a run with --save_steps or --save_minutes."
    )
    seed: int = _hardware(0, "Seed of the held-out part, sample order, dropout and new weights.")
    average: str = _but("average", "best")
    group_by_length: bool = _but("group_by_length", True)
    seeds: int | None = _length(
        None,
        "Train so often, with --seed, --seed + 1, ...; results.json has the means. Default: 1, and 3 with --soup for "
        "a classifier or tagger of up to 5,000 rows and 20 M weights whose run has no limit and no checkpoints.",
    )
    soup: bool = _length(
        False,
        "Begin the runs of --seeds (3 by default) alike and save the mean of their last weights: better where rows "
        "are few.",
    )
    dry_run: bool = _length(False, "Show the data and how much of the model would learn, then exit without training.")

    def __post_init__(self) -> None:
        super().__post_init__()
        check_range(self, "seeds", at_least=1)
        self.seeds = 3 if self.soup and self.seeds is None else self.seeds
        seeds = self.seeds or 1  # None: `fine_tune` decides, by the rows
        if self.soup and seeds < 2:
            raise InputError("--soup is the mean of several runs: say how many with --seeds, such as --seeds 5")
        self.average = "none" if self.soup else self.average
        if seeds > 1 and self.resume:
            raise InputError(
                f"--resume continues one run, and --seeds {seeds} are several: start them in another --output_dir"
            )
        if seeds > 1 and self.push_steps:
            raise InputError(f"--push_steps pushes the checkpoints of one run, and --seeds {seeds} are several")
        if self.seed + seeds > 2**32:
            raise InputError(f"--seed and the {seeds - 1} numbers after it must be below {2**32}")
