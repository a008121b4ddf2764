"""A short run of the real loop with a fault in it, as a program.

    python toy_run.py [options of training] [--inject FAULT ...]

A fault is NAME@STEP or NAME@STEP:RANK, with steps counted from 1; `when` it comes is in the step's forward pass:
kill, stop (SIGSTOP), term (SIGTERM), term_all (to data workers too), int (SIGINT), term_twice, nan_loss, inf_loss,
nan_gradient, inf_gradient, spike, remove_output, spoil (rubbish in the oldest checkpoint), hang, fail (an error of the
data).
And, with any number in place of the step: term_in_evaluation, hang_in_evaluation, term_in_save, term_at_start, saved
(the others wait for the first checkpoint to be whole). slow@MILLISECONDS makes every step slower, file_limit@BYTES is
all that a file may have; clock@TIMES makes the clock of training go faster, compiled@SECONDS is how long compiling is
said to have taken; slow_end@SECONDS is how long the first
process takes longer to write the final model; with sgd@0 AdamW, whose steps are as large whatever the scale of
gradients, is SGD. No process ends before the model is written.

For each row that is learned a line of OUTPUT_DIR/../seen-RANK.txt says its sample number and a hash of ids and labels.
"""

import hashlib
import math
import os
import resource
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import torch
from torch._subclasses.fake_tensor import FakeTensor
from toys import PlainTokenizer, ToyWork, make_model

import lacuna.training.loop
import lacuna.training.run
from lacuna.common.command_line import exit_cleanly, parse_arguments
from lacuna.training import TrainingArguments, train
from lacuna.training.checkpoints.saving import Saver
from lacuna.training.optimizers.optimizers import OPTIMIZERS, Optimizer


@dataclass
class Faults:
    """What goes wrong."""

    inject: list[str] = field(default_factory=list, metadata={"help": "Faults, as NAME@STEP or NAME@STEP:RANK."})
    rows: int = field(default=48, metadata={"help": "Training examples."})
    dropout: float = field(default=0.1, metadata={"help": "Of the model."})

    def at(self, step: int) -> set[str]:
        """Names of those of this process at a step."""
        rank = os.environ.get("RANK", "0")
        found = set()
        for fault in self.inject:
            name, _, place = fault.partition("@")
            number, _, wanted = place.partition(":")
            if int(number) == step and (wanted or rank) == rank:
                found.add(name)
        return found

    def value(self, name: str) -> int | None:
        """The number of a fault of this process that has one in place of a step."""
        rank = os.environ.get("RANK", "0")
        for fault in self.inject:
            number, _, wanted = fault.removeprefix(f"{name}@").partition(":")
            if fault.startswith(f"{name}@") and (wanted or rank) == rank:
                return int(number)
        return None

    def any(self, name: str) -> bool:
        """Whether a fault is among them, wherever."""
        return any(fault.startswith(f"{name}@") for fault in self.inject)


class FaultyWork(ToyWork):
    """The toy work with faults at the steps asked for."""

    def __init__(self, faults: Faults, arguments: TrainingArguments) -> None:
        super().__init__(num_examples=faults.rows)
        self.faults, self.batch_size = faults, int(arguments.batch_size[0])
        self.output_dir = Path(arguments.output_dir)
        self.seen = self.output_dir.parent / f"seen-{os.environ.get('RANK', '0')}.txt"

    def loss(self, model: Any, batch: Any, num_targets: Any) -> Any:
        loss, metrics = super().loss(model, batch, num_targets)
        if isinstance(loss, FakeTensor):  # the memory plan
            return loss, metrics
        indices = batch["index"].tolist()
        step = indices[0] // self.batch_size + 1
        rows = zip(indices, batch["input_ids"], batch["labels"], strict=True)
        lines = [
            f"{index} {hashlib.sha256(ids[ids > 0].numpy().tobytes() + labels.numpy().tobytes()).hexdigest()[:16]}\n"
            for index, ids, labels in ((i, x, y[x > 0]) for i, x, y in rows)
        ]
        with self.seen.open("a") as file:
            file.writelines(lines)
        faults = self.faults.at(step)
        self._happen(faults)
        for name, value in (("nan_loss", math.nan), ("inf_loss", math.inf)):  # their gradients are finite
            loss = loss + value if name in faults else loss
        loss = loss * 1e4 if "spike" in faults else loss
        for name, value in (("nan_gradient", math.nan), ("inf_gradient", math.inf)):
            if name in faults:
                loss.register_hook(lambda gradient, value=value: gradient * value)
        return loss, metrics

    def _happen(self, faults: set[str]) -> None:
        mine = os.getpid()
        while faults and self.faults.any("saved") and not list(self.output_dir.glob("checkpoints/step-*/*/complete")):
            time.sleep(0.01)
        if "fail" in faults:
            raise RuntimeError("a fault of the data")
        if "hang" in faults:
            time.sleep(1000)
        if "spoil" in faults:
            oldest = min(self.output_dir.glob("checkpoints/step-*"))
            (oldest / "training_state" / "progress.json").write_text("rubbish")
        if "remove_output" in faults:
            while self.output_dir.exists():  # a checkpoint that is being written puts its files there meanwhile
                shutil.rmtree(self.output_dir, ignore_errors=True)
        if "term_all" in faults:
            workers = [str(worker.pid) for worker in psutil.Process().children()]
            subprocess.run(["kill", *workers, str(mine)], check=True)  # of a parent, a worker would expect it
        for name, number in (("kill", 9), ("stop", signal.SIGSTOP), ("term", 15), ("int", 2), ("term_twice", 15)):
            if name in faults:
                os.kill(mine, number)
        if "term_twice" in faults:
            time.sleep(1.2)
            os.kill(mine, signal.SIGTERM)
        time.sleep((self.faults.value("slow") or 0) / 1000)

    def evaluate(self, model: Any, batch: Any) -> Any:
        if self.faults.any("hang_in_evaluation"):
            time.sleep(1000)
        if self.faults.any("term_in_evaluation"):
            os.kill(os.getpid(), signal.SIGTERM)
        return super().evaluate(model, batch)


class SignalledSaver(Saver):
    """Asks its own process to stop while it writes for the first time."""

    signalled = False

    def _write_whole(self, snapshot: Any, temporary: Path, final: Path) -> None:
        if not self.signalled:
            self.signalled = True
            os.kill(os.getpid(), signal.SIGTERM)
        super()._write_whole(snapshot, temporary, final)


def main() -> None:
    faults, arguments = parse_arguments((Faults, TrainingArguments))
    lacuna.training.run.use_all_cores = lambda threads: torch.set_num_threads(1)  # type: ignore[assignment]
    if (limit := faults.value("file_limit")) is not None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
    if faults.any("sgd"):
        OPTIMIZERS["adamw"] = Optimizer(
            lambda model, arguments: [torch.optim.SGD(model.parameters(), arguments.learning_rate, momentum=0.9)]
        )
    if (times := faults.value("clock")) is not None:
        lacuna.training.loop.time = SimpleNamespace(perf_counter=lambda: times * time.perf_counter())  # type: ignore[assignment]
    if faults.any("compiled"):
        run, took = lacuna.training.run, float(faults.value("compiled") or 0)
        run.should_compile, run.compile_model = lambda *_, **__: True, lambda model: 1  # type: ignore[assignment]
        run.warm_up = lambda *_, **__: took  # type: ignore[assignment]
    if (seconds := faults.value("slow_end")) is not None:
        save_final = Saver.save_final
        Saver.save_final = lambda *given, **more: (time.sleep(seconds), save_final(*given, **more))  # type: ignore
    if faults.any("term_in_save"):
        lacuna.training.run.Saver = SignalledSaver  # type: ignore[misc]
    if lacuna.training.is_main_process():
        lacuna.training.claim_output_dir(arguments)
    if faults.any("term_at_start"):
        os.kill(os.getpid(), signal.SIGTERM)
    results = train(
        model=make_model(dropout=faults.dropout, hidden_size=32),
        work=FaultyWork(faults, arguments),
        tokenizer=PlainTokenizer(),
        arguments=arguments,
        identity={"data": f"{faults.rows} rows"},
    )
    if not (Path(arguments.output_dir) / "results.json").is_file():
        raise SystemExit("the run is over, and its results are not there")
    print(f"{results['steps']} steps in {results['train_seconds']} s")


if __name__ == "__main__":
    sys.path[:0] = [str(Path(__file__).resolve().parents[1])]
    exit_cleanly(main)
