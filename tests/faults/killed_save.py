"""Writes a checkpoint of step 9 and kills itself at a file operation of it.

    python killed_save.py OUTPUT_DIR NUMBER

File operations are what Python's audit hooks see under OUTPUT_DIR (files opened for writing, folders made, things
renamed and removed), and each fsync. Without one of that number the save ends well.
"""

import os
import signal
import sys
from pathlib import Path
from typing import Any

import torch
from toys import PlainTokenizer, make_model

from lacuna.training import TrainingArguments
from lacuna.training.checkpoints.saving import Progress, Saver, Snapshot
from lacuna.training.distributed.fsdp import full_model_state, full_optimizer_state
from lacuna.training.optimizers.optimizers import OPTIMIZERS

CHANGES = {"os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.chmod", "os.truncate"}


def main() -> None:
    output_dir, last = Path(sys.argv[1]), int(sys.argv[2])
    torch.set_num_threads(1)
    model = make_model(hidden_size=32)
    optimizers = OPTIMIZERS["adamw"].make(model, TrainingArguments(learning_rate=1e-3))
    ids = torch.arange(5, 17).reshape(1, 12)
    model(input_ids=ids, labels=ids).loss.backward()
    optimizers[0].step()
    snapshot = Snapshot(
        weights=full_model_state(model),
        optimizer=full_optimizer_state(model, optimizers),
        average={},
        progress=Progress(step=9),
        card="# A card\n",
    )
    count = 0

    def operation() -> None:
        nonlocal count
        if count == last:
            os.kill(os.getpid(), signal.SIGKILL)
        count += 1

    def watch(event: str, arguments: tuple[Any, ...]) -> None:
        writes = event == "open" and (arguments[2] or 0) & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)
        if (event in CHANGES or writes) and str(output_dir) in str(arguments[0]):
            operation()

    sync = os.fsync

    def synced(number: int) -> None:
        operation()
        sync(number)

    os.fsync = synced
    sys.addaudithook(watch)
    Saver(output_dir=output_dir, model=model, tokenizer=PlainTokenizer(), keep=1, greater_is_better=False).write(
        snapshot
    )
    print(count)


if __name__ == "__main__":
    main()
