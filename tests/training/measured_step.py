"""Trains some steps in a process of its own and prints how much its memory grew, beside what was planned (bytes)."""

import gc
import json
import sys
from pathlib import Path

import torch
import transformers
from rows_of_tokens import AUTO, RowsOfTokens

from lacuna import modeling
from lacuna.training import TrainingArguments, use_all_cores
from lacuna.training.optimizers.optimizers import OPTIMIZERS
from lacuna.training.planning.memory import StepNeeds

family, size, rows, length, precision, optimizer, passes = sys.argv[1:]


def resident(name: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith(name)).split()[1]) * 1024


def train(config: modeling.LacunaConfig, *, rows: int, length: int) -> None:
    model = getattr(transformers, AUTO[config.shape]).from_config(config).train()
    optimizers = OPTIMIZERS[optimizer].make(model, arguments)
    for _ in range(3):
        for _ in range(int(passes)):
            batch = RowsOfTokens(length).batch_for(model, rows=rows)
            with torch.autocast("cpu", dtype=torch.bfloat16, enabled=precision == "bf16"):
                loss = model(**batch).loss
            loss.backward()
            del loss
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for each in optimizers:
            each.step()
            each.zero_grad()


use_all_cores()
arguments = TrainingArguments(
    learning_rate=1e-3,
    optimizer=optimizer,  # type: ignore[arg-type]
    save_steps=0,
)
# A small model first: libraries take memory of their own when they first compute.
train(modeling.LacunaConfig.from_family(family, "tiny", hidden_size=64, vocab_size=96), rows=2, length=16)
config = modeling.LacunaConfig.from_family(family, size, vocab_size=8192)
with torch.device("meta"):
    model = getattr(transformers, AUTO[config.shape]).from_config(config)
work = RowsOfTokens(int(length))
work.batch_for(model, rows=1)
planned = StepNeeds(model, work, arguments, int(rows) * int(passes), precision).memory(int(rows))
del model
gc.collect()
before = resident("VmRSS")
Path("/proc/self/clear_refs").write_text("5")  # the peak is counted from here
train(config, rows=int(rows), length=int(length))
print(json.dumps({"planned": planned.total, "measured": resident("VmHWM") - before}))
