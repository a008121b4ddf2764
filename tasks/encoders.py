"""Encoders of sentence-transformers: loaded from a checkpoint, watched in training, and saved with a card."""

import math
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from statistics import median
from typing import Any, Protocol

import torch
import transformers
from torch import Tensor
from transformers import TrainerCallback

from lacuna.common.errors import InputError, StorageError
from lacuna.tasks.local_metric import optional_module

_LONG = 10.0
"""Seconds after which nothing is measured again."""


def load_encoder(*, model: str, max_length: int, trust_remote_code: bool = False, seed: int = 0) -> Any:
    """A `SentenceTransformer` of a checkpoint, in float32.

    A folder that sentence-transformers has made keeps its modules; of any other model the mean over the tokens is
    taken, of a decoder the last token.

    Args:
        max_length: tokens that texts are cut to.

    Raises:
        InputError: sentence-transformers is not installed, or the model cannot be loaded.
    """
    library = optional_module("sentence_transformers", extra="embeddings")
    transformers.set_seed(seed)
    try:
        encoder = library.SentenceTransformer(
            model, trust_remote_code=trust_remote_code, model_kwargs={"dtype": torch.float32}
        )
    except (OSError, ValueError, KeyError) as error:
        line = next(iter(str(error).strip().splitlines()), type(error).__name__)
        raise InputError(f"--model {model} cannot be loaded by sentence-transformers: {line}") from error
    encoder.max_seq_length = max_length
    encoder.tokenizer.padding_side = "right"  # see tasks.models.pad_for_reading
    return encoder


class Log(Protocol):
    """Shows a run and keeps its records; on processes other than the main one it does nothing."""

    def say(self, text: str) -> None:
        """Print a line."""

    def advance(self, done: float, *, step: int | None = None) -> None:
        """Move to a share of the run."""

    def record(self, values: dict[str, Any]) -> None:
        """Keep `step` and numbers by name."""

    def evaluation(self, values: dict[str, Any]) -> None:
        """Keep and print `step` and scores, named `eval_...`."""


def _interval(every: float, steps: int) -> int:
    """Steps between evaluations; below 1, `every` is a share of the run."""
    return int(every) if every >= 1 else max(1, round(every * steps))


def num_evaluations(every: float, steps: int) -> int:
    """How many there are in a run of so many steps: before it, on the way and at its end."""
    return 2 + ((steps - 1) // _interval(every, steps) if every else 0)


def seconds_of(call: Callable[[], object]) -> float:
    """What a call takes, in the middle of three after a first one; of one where it is long."""
    found: list[float] = []
    call()
    while len(found) < 3 and sum(found) < _LONG:
        began = time.perf_counter()
        call()
        found.append(time.perf_counter() - began)
    return median(found)


class KeepBest(TrainerCallback):
    """Says how far a training is, evaluates on the way, and keeps the weights of the best evaluation, in memory.

    What `evaluate` says of the weights before training is for comparison: these are never kept.

    Args:
        task: an `Embeddings`, which evaluates and says which score judges.
        encoder: whose weights are kept.
        every: steps between evaluations; below 1 a share of the run; 0 only at the end.
        enabled: whether this process evaluates.
        log: is told of steps, losses and evaluations.
    """

    def __init__(self, task: Any, encoder: Any, *, every: float, enabled: bool, log: Log) -> None:
        self.task, self.encoder, self.every, self.enabled, self.log = task, encoder, every, enabled, log
        self.best, self.best_step, self.weights = -math.inf, 0, dict[str, Tensor]()

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **parts: Any) -> None:
        """Hand on what the trainer says of its last steps; what it says in the end is left out."""
        if "loss" in (logs or {}):
            self.log.record({"step": state.global_step, **logs})

    def on_step_end(self, args: Any, state: Any, control: Any, **parts: Any) -> None:
        """Evaluate when it is time; the last step is `finish`'s."""
        self.log.advance(state.global_step / state.max_steps, step=state.global_step)
        is_due = self.every and state.global_step % _interval(self.every, state.max_steps) == 0
        if self.enabled and is_due and state.global_step < state.max_steps:
            self._judge(state.global_step)

    def evaluate(self, step: int) -> dict[str, float]:
        """Scores of the encoder as it is, which are logged."""
        scores = self.task.evaluate_encoder(self.encoder)
        self.log.evaluation({"step": step, **{f"eval_{name}": value for name, value in scores.items()}})
        return scores

    def _judge(self, step: int) -> dict[str, float]:
        scores = self.evaluate(step)
        if scores[self.task.metric] > self.best:
            self.best, self.best_step = scores[self.task.metric], step
            self.weights = {name: value.detach().clone() for name, value in self.encoder.state_dict().items()}
        return scores

    def finish(self, step: int) -> dict[str, float]:
        """Evaluate the last weights, go back to the best ones, and return the scores of these."""
        last = self._judge(step)
        if last[self.task.metric] >= self.best:
            return last
        self.log.say(f"the weights of step {self.best_step:,} are kept: {self.task.metric} {self.best:.4f}")
        self.encoder.load_state_dict(self.weights)
        return self.task.evaluate_encoder(self.encoder)


_CARD = """\
---
library_name: sentence-transformers
pipeline_tag: sentence-similarity
tags:
- sentence-transformers
- lacuna
---

# {title}

Vectors of texts, of {size} numbers each, trained with Lacuna by way of sentence-transformers.

```python
from sentence_transformers import SentenceTransformer

encoder = SentenceTransformer("PATH"{trust})
vectors = encoder.encode(["a text", "another text"])
print(encoder.similarity(vectors, vectors))
```

| held out | this model | before training | without a model |
|---|---|---|---|
{rows}

{facts}
"""


def save_encoder(
    encoder: Any,
    *,
    results: Mapping[str, float],
    facts: Mapping[str, Any],
    output_dir: Path | str,
) -> None:
    """Write the encoder and its model card, whole or not at all.

    Args:
        results: what `Embeddings.train` returned, for the card.
        facts: what else the card says, by name: data, command, versions.

    Raises:
        StorageError: the folder cannot be written.
    """
    folder = Path(output_dir)
    hidden = folder / f".model.{os.getpid()}"
    names = [name.removeprefix("eval_") for name in results if name.startswith("eval_")]
    rows = [
        " | ".join(
            [
                f"| {name}",
                *(f"{results.get(f'{part}_{name}', math.nan):.4f}" for part in ("eval", "start", "baseline")),
            ]
        )
        + " |"
        for name in names
    ]
    config = getattr(encoder, "config", None)
    card = _CARD.format(
        title=folder.name,
        size=len(encoder.encode("a", show_progress_bar=False)),
        trust=", trust_remote_code=True" if getattr(config, "auto_map", None) else "",
        rows="\n".join(rows),
        facts="\n".join(f"- {name}: {value}" for name, value in facts.items()),
    )
    try:
        encoder.save_pretrained(str(hidden), create_model_card=False)
        (hidden / "README.md").write_text(card, encoding="utf-8")
        for path in sorted(hidden.iterdir()):
            os.replace(path, folder / path.name)
        hidden.rmdir()
    except OSError as error:
        raise StorageError(f"--output_dir {folder}: cannot be written: {error.strerror or error}") from error
