"""Trains some steps in a process of its own and prints how much its memory grew, beside what was planned (bytes)."""

import gc
import json
import sys
from pathlib import Path

import torch
import transformers

from lacuna import modeling
from lacuna.training import TrainingArguments, use_all_cores
from lacuna.training.memory import MicroBatch, plan
from lacuna.training.optimizers import OPTIMIZERS

AUTO = {
    "encoder": "AutoModelForMaskedLM",
    "decoder": "AutoModelForCausalLM",
    "encoder-decoder": "AutoModelForSeq2SeqLM",
}
family, size, rows, length, precision, optimizer, passes = sys.argv[1:]
micro_batch = MicroBatch(rows=int(rows), length=int(length))


def resident(name: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith(name)).split()[1]) * 1024


def train(config: modeling.LacunaConfig, shape: MicroBatch, arguments: TrainingArguments) -> None:
    model = getattr(transformers, AUTO[config.shape]).from_config(config).train()
    optimizers = OPTIMIZERS[optimizer](model, arguments)
    for _ in range(3):
        for _ in range(int(passes)):
            ids = torch.randint(5, 90, (shape.rows, shape.length))
            mask = torch.ones_like(ids)
            mask[:, -2:] = 0
            with torch.autocast("cpu", dtype=torch.bfloat16, enabled=precision == "bf16"):
                loss = model(input_ids=ids, attention_mask=mask, labels=ids).loss
            loss.backward()
            del loss
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for each in optimizers:
            each.step()
            each.zero_grad()


use_all_cores()
arguments = TrainingArguments(
    optimizer=optimizer,  # type: ignore[arg-type]
    batch_size=micro_batch.rows * int(passes),  # type: ignore[arg-type]
    save_steps=0,
)
# A small model first: libraries take memory of their own when they first compute.
train(modeling.LacunaConfig.from_family(family, "tiny", hidden_size=64, vocab_size=96), MicroBatch(2, 16), arguments)
config = modeling.LacunaConfig.from_family(family, size, vocab_size=8192)
with torch.device("meta"):
    model = getattr(transformers, AUTO[config.shape]).from_config(config)
planned = plan(model, micro_batch=micro_batch, arguments=arguments, precision=precision)
del model
gc.collect()
before = resident("VmRSS")
Path("/proc/self/clear_refs").write_text("5")  # the peak is counted from here
train(config, micro_batch, arguments)
print(json.dumps({"planned": planned.total, "measured": resident("VmHWM") - before}))
