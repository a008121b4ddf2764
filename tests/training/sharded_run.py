"""A small loop around `training/distributed/`, for tests: one process or several, whole, DDP or sharded.

    python tests/training/sharded_run.py FOLDER JOB...

A job is JSON: the fields of `Job`. Its losses and gradient norms go to FOLDER/NAME.json, the whole states of model and
optimizers to FOLDER/NAME.safetensors, and with `export` a model folder to FOLDER/NAME.
"""

import json
import math
import os
import sys
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import LlamaConfig, LlamaForCausalLM

from lacuna.modeling import LacunaConfig, LacunaForCausalLM, LacunaForConditionalGeneration, LacunaForPreTraining
from lacuna.training import TrainingArguments
from lacuna.training.distributed import fsdp
from lacuna.training.optimizers.optimizers import OPTIMIZERS
from lacuna.training.step import update

VOCAB, ROWS, LENGTH = 67, 8, 12  # an odd vocabulary: halves of the embedding have different sizes
SIZES = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 48}
NO_DROPOUT = {"hidden_dropout": 0.0, "attention_dropout": 0.0, "embedding_dropout": 0.0, "activation_dropout": 0.0}
CLASSES = {
    "encoder": ("bert", LacunaForPreTraining),
    "decoder": ("qwen3", LacunaForCausalLM),
    "seq2seq": ("bart", LacunaForConditionalGeneration),
    "hybrid": ("qwen3", LacunaForCausalLM),
    "native": ("llama", None),
}


@dataclass
class Job:
    """One run of the loop."""

    name: str
    kind: str = "encoder"
    sharded: bool = False
    micro_batches: int = 1
    optimizer: str = "adamw"
    first: int = 0
    last: int = 4
    load: str = ""
    precision: str = "no"
    poison: int = -1
    """Rank whose loss is inf in the last step."""
    export: bool = False
    keep_whole: bool = False
    """What fsdp_reshard_after_forward: false asks for."""
    max_norm: float = 1.0


def new_model(kind: str) -> Any:
    family, head = CLASSES[kind]
    torch.manual_seed(0)
    if head is None:
        return LlamaForCausalLM(LlamaConfig(**SIZES, vocab_size=VOCAB, pad_token_id=0, tie_word_embeddings=True))
    more = {"vocab_size": VOCAB, "max_position_embeddings": 32, "hybrid": kind == "hybrid"}
    return head(LacunaConfig.from_family(family, **SIZES, **NO_DROPOUT, **more))


def rows_of(step: int, kind: str) -> dict[str, Tensor]:
    """All rows of a step; targets are few in the first rows and many in the last."""
    draw = torch.Generator().manual_seed(step)
    ids = torch.randint(5, VOCAB, (ROWS, LENGTH), generator=draw).clamp(max=20)  # mostly 20
    chosen = torch.rand(ROWS, LENGTH, generator=draw) < torch.linspace(0.1, 0.6, ROWS)[:, None]
    chosen[:, 1] = True
    batch = {"input_ids": ids, "labels": torch.where(chosen, ids, -100)}
    if kind == "encoder":
        batch["token_type_ids"] = (torch.arange(LENGTH) > 5).long().expand(ROWS, LENGTH)
        batch["next_sentence_label"] = torch.randint(0, 2, (ROWS,), generator=draw)
    if kind == "seq2seq":
        batch["labels"] = ids.flip(1).where(chosen, -100)
    return batch


def loss_of(model: nn.Module, kind: str, batch: dict[str, Tensor], targets: int) -> Tensor:
    if kind == "hybrid":  # two forward passes before one backward pass
        return sum(
            model(**batch, is_causal=is_causal, num_items_in_batch=2 * targets, use_cache=False).loss
            for is_causal in (False, True)
        )
    more = {"num_pairs_in_batch": ROWS} if kind == "encoder" else {"use_cache": False}
    return model(**batch, num_items_in_batch=targets, **more).loss


def targets_in(batch: dict[str, Tensor], kind: str) -> int:
    labels = batch["labels"][:, 1:] if kind in ("decoder", "native") else batch["labels"]
    return int((labels != -100).sum())


def train(job: Job, folder: Path) -> None:
    AcceleratorState._reset_state()
    os.environ["FSDP_RESHARD_AFTER_FORWARD"] = str(not job.keep_whole).lower()
    with fsdp.hidden_from_accelerate():
        accelerator = Accelerator(mixed_precision=job.precision, cpu=True)
    rank, count = accelerator.process_index, accelerator.num_processes
    model = new_model(job.kind)
    if job.sharded:
        dtype = torch.bfloat16 if job.precision == "bf16" else None
        fsdp.shard(model, device=accelerator.device, dtype=dtype)
    model = accelerator.prepare_model(model, evaluation_mode=job.sharded)
    bare = accelerator.unwrap_model(model)
    assert fsdp.is_sharded(bare) == job.sharded
    options = TrainingArguments(learning_rate=3e-3, weight_decay=0.1, max_steps=4)
    optimizers: list[Any] = OPTIMIZERS[job.optimizer].make(bare, options)
    if job.load:
        state = load_file(folder / f"{job.load}.safetensors")
        parts = [
            {name.partition("/")[2]: tensor for name, tensor in state.items() if name.startswith(f"{part}/")}
            for part in ("model", "optimizer")
        ]
        fsdp.load_model_state(bare, parts[0])
        fsdp.load_optimizer_state(bare, optimizers, parts[1])
    losses, norms = [], []
    for step in range(job.first, job.last):
        batch = rows_of(step, job.kind)
        targets, share = targets_in(batch, job.kind), ROWS // count // job.micro_batches
        total = torch.zeros(())
        for number in range(job.micro_batches):
            start = (rank * job.micro_batches + number) * share
            part = {name: value[start : start + share] for name, value in batch.items()}
            last = number == job.micro_batches - 1
            with nullcontext() if last else fsdp.no_sync(model):
                loss = loss_of(model, job.kind, part, targets)
                poisoned = job.poison == rank and step == job.last - 1
                accelerator.backward(loss * (math.inf if poisoned else count))
            total += loss.detach()
        summed = accelerator.reduce(total, "sum")
        for kept, number in zip(
            (losses, norms), update(bare, optimizers, loss=summed, max_norm=job.max_norm, loss_scale=1.0), strict=True
        ):
            kept.append(number)
    finish(job, folder, accelerator, bare, optimizers, {"loss": losses, "norm": norms})


@torch.no_grad()
def held_out(accelerator: Accelerator, model: nn.Module, kind: str) -> list[float]:
    """The loss of five batches, of which the first process has three and the second two."""
    model.eval()
    with fsdp.whole(model):
        mine = [
            (number, float(loss_of(model, kind, batch, targets_in(batch, kind))))
            for number in range(accelerator.process_index, 5, accelerator.num_processes)
            for batch in [rows_of(100 + number, kind)]
        ]
    model.train()
    gathered: list[Any] = [mine]
    if accelerator.num_processes > 1:
        gathered = [None] * accelerator.num_processes
        torch.distributed.all_gather_object(gathered, mine)
    return [loss for _, loss in sorted(pair for part in gathered for pair in part)]


def finish(
    job: Job,
    folder: Path,
    accelerator: Accelerator,
    model: Any,
    optimizers: list[Any],
    facts: dict[str, Any],
) -> None:
    facts["held_out"] = held_out(accelerator, model, job.kind)
    weights = fsdp.full_model_state(model)
    moments = fsdp.full_optimizer_state(model, optimizers)
    numbers = facts.pop("norm")
    everyone: list[Any] = [numbers]
    if accelerator.num_processes > 1:
        everyone = [None] * accelerator.num_processes
        torch.distributed.all_gather_object(everyone, numbers)
    local = sum(
        (weight.to_local() if job.sharded else weight).numel() for weight in model.parameters()
    )  # of this process
    facts |= {"norms": everyone, "local": local, "job": asdict(job)}
    if accelerator.is_main_process:
        state = {f"model/{name}": tensor.clone() for name, tensor in weights.items()}
        save_file(
            state | {f"optimizer/{name}": moment for name, moment in moments.items()},
            folder / f"{job.name}.safetensors",
        )
        (folder / f"{job.name}.json").write_text(json.dumps(facts))
        if job.export:
            model.save_pretrained(folder / job.name, state_dict=weights)
    else:
        assert not weights and not moments


if __name__ == "__main__":
    torch.set_num_threads(1)
    for text in sys.argv[2:]:
        train(Job(**json.loads(text)), Path(sys.argv[1]))
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()
