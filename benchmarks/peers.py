"""What others would train: native models of transformers, in the loop of its language-modeling examples."""

import math
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from held_out import HeldOut, Kind, Material, find_device, make_collator, mask_rows, score
from parts import Budget
from torch import Tensor
from tqdm import tqdm
from transformers import (
    BertConfig,
    BertForMaskedLM,
    GPT2Config,
    GPT2LMHeadModel,
    ModernBertForMaskedLM,
    set_seed,
)

from lacuna import modeling
from lacuna.training.environment import bf16_is_fast

WIDTH, LAYERS, HEADS = 256, 6, 4
POSITIONS = 512
LOOP = {
    "optimizer": "AdamW, betas 0.9 and 0.999, no weight decay",
    "schedule": "linear to zero, no warm-up",
    "max_grad_norm": 1.0,
    "masking": "15 % drawn anew in each epoch, 80/10/10",
}
"""What the loop below does, for reports and for the hash of a part; its code says the same."""


def build_bert(tokenizer: Any, length: int) -> Any:
    """BertForMaskedLM as it comes: dropout 0.1, a feed-forward part of four widths."""
    return BertForMaskedLM(
        BertConfig(
            vocab_size=len(tokenizer),
            hidden_size=WIDTH,
            num_hidden_layers=LAYERS,
            num_attention_heads=HEADS,
            intermediate_size=4 * WIDTH,
            max_position_embeddings=max(length, POSITIONS),
            pad_token_id=tokenizer.pad_token_id,
        )
    )


def build_modernbert(tokenizer: Any, length: int) -> Any:
    """ModernBertForMaskedLM of the shape of our tiny one, with its own first weights; logits at masked positions."""
    config = modeling.LacunaConfig.from_family(
        "modernbert", "tiny", vocab_size=len(tokenizer), max_position_embeddings=max(length, POSITIONS)
    )
    native = modeling.to_native(modeling.LacunaForMaskedLM(config), family="modernbert").config
    native.sparse_prediction = True
    return ModernBertForMaskedLM(native)


def build_gpt2(tokenizer: Any, length: int) -> Any:
    """GPT2LMHeadModel as it comes: dropout 0.1."""
    return GPT2LMHeadModel(
        GPT2Config(
            vocab_size=len(tokenizer),
            n_embd=WIDTH,
            n_layer=LAYERS,
            n_head=HEADS,
            n_positions=max(length, POSITIONS),
            bos_token_id=tokenizer.bos_token_id,
            eos_token_id=tokenizer.eos_token_id,
        )
    )


@dataclass(frozen=True)
class Peer:
    """A model to be compared with."""

    kind: Kind
    build: Callable[[Any, int], Any]
    bf16: bool
    """Whether it is trained under bf16 autocast, where the processor is fast at it."""

    @property
    def precision(self) -> str:
        """How it is trained on this machine."""
        return "bf16" if self.bf16 and bf16_is_fast() else "float32"


PEERS = {
    "bert": Peer("masked", build_bert, bf16=False),
    "modernbert": Peer("masked", build_modernbert, bf16=True),
    "gpt2": Peer("causal", build_gpt2, bf16=False),
}


def batches(material: Material, *, batch_size: int, seed: int) -> Iterator[dict[str, Tensor]]:
    """Rows in another order in each epoch, masked anew or with themselves as labels; without end."""
    generator = torch.Generator().manual_seed(seed)
    collator = make_collator(material.tokenizer, generator)
    while True:
        for chosen in torch.randperm(len(material.train), generator=generator).split(batch_size):
            rows = material.train[chosen]
            if material.kind == "masked":
                inputs, labels = mask_rows(rows, collator=collator, special=material.special)
            else:
                inputs, labels = rows, rows
            yield {"input_ids": inputs, "labels": labels}


def train_peer(
    *,
    peer: Peer,
    material: Material,
    budget: Budget,
    learning_rate: float,
    batch_size: int,
    seed: int,
    points: int,
    subset: HeldOut,
    description: str,
) -> dict[str, Any]:
    """Train a peer and score it on the held-out rows.

    Args:
        points: times that it is scored on `subset` on the way, evenly spread over the budget.

    Returns:
        `loss`, `bits_per_byte` and `accuracy` on all held-out rows (None where it diverged), `seconds` of training
        without scoring, `first_step_seconds` of them, `steps`, `tokens`, `parameters` and `curve`.
    """
    set_seed(seed)
    model = peer.build(material.tokenizer, material.train.shape[1]).to(find_device()).train()
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=learning_rate, betas=(0.9, 0.999), weight_decay=0.0, fused=True
    )
    data = batches(material, batch_size=batch_size, seed=seed)
    step, tokens, seconds, first, diverged = 0, 0, 0.0, 0.0, False
    curve: list[dict[str, float]] = []
    total = budget.steps or round(60 * (budget.minutes or 0))
    with tqdm(total=total, desc=description, unit="step" if budget.steps else "s", smoothing=0.05) as bar:
        while (done := budget.done(step=step, seconds=seconds)) < 1 and not diverged:
            began = time.perf_counter()
            batch = next(data)
            loss = _step(model, optimizer, batch, rate=learning_rate * (1 - done), bf16=peer.precision == "bf16")
            diverged = not math.isfinite(loss)
            seconds += time.perf_counter() - began
            step, tokens = step + 1, tokens + batch["input_ids"].numel()
            first = first or seconds
            bar.update(min(total, round(total * budget.done(step=step, seconds=seconds))) - bar.n)
            if budget.done(step=step, seconds=seconds) * points >= len(curve) + 1 and not diverged:
                found = score(model, subset)
                curve.append({"step": step, "minutes": seconds / 60, "train_loss": loss, **found})
    scores = score(model, material.held_out) if not diverged else dict.fromkeys(("loss", "bits_per_byte", "accuracy"))
    return {
        **scores,
        "steps": step,
        "tokens": tokens,
        "seconds": seconds,
        "first_step_seconds": first,
        "parameters": sum(weight.numel() for weight in model.parameters()),
        "precision": peer.precision,
        "curve": curve,
    }


def _step(model: Any, optimizer: torch.optim.Optimizer, batch: dict[str, Tensor], *, rate: float, bf16: bool) -> float:
    """One optimizer step as Trainer takes it; the loss."""
    for group in optimizer.param_groups:
        group["lr"] = rate
    device = next(model.parameters()).device
    with torch.autocast(device.type, torch.bfloat16) if bf16 else nullcontext():
        loss = model(**{name: value.to(device) for name, value in batch.items()}).loss
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
    return float(loss.detach())
