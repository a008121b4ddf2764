"""What a model in training knows of the held-out examples."""

from collections.abc import Callable
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.utils import gather_object
from torch import nn
from tqdm import tqdm

from lacuna.common.work import Work, to_device


@torch.no_grad()
def evaluate(
    accelerator: Accelerator,
    model: nn.Module,
    work: Work,
    *,
    batch_size: int,
    go_on: Callable[[], bool] = lambda: True,
) -> dict[str, float] | None:
    """Metrics over all held-out examples, each seen once by one process; named `eval_...`.

    Args:
        go_on: asked before each batch; where it says no on any process, nothing is measured.

    Returns:
        The metrics; None where some process was told not to go on.
    """
    model.eval()
    # Batches of evaluation have shapes of their own, each of which would be compiled.
    with torch.compiler.set_stance("force_eager"):
        return _evaluate(accelerator, model, work, batch_size=batch_size, go_on=go_on)


def _evaluate(
    accelerator: Accelerator, model: nn.Module, work: Work, *, batch_size: int, go_on: Callable[[], bool]
) -> dict[str, float] | None:
    bare = accelerator.unwrap_model(model)  # DDP would wait for its peers, which may have a batch fewer
    rows = range(accelerator.process_index, work.num_eval_examples, accelerator.num_processes)
    starts = range(0, len(rows), batch_size)
    records: list[dict[str, Any]] = []
    # With `delay` the bar appears only where evaluation takes long enough to ask what is happening.
    hidden = None if accelerator.is_main_process else True
    whole = True
    for start in tqdm(starts, desc="evaluating", leave=False, delay=3, disable=hidden):
        if not (whole := go_on()):
            break
        batch = work.collate([work.eval_example(row) for row in rows[start : start + batch_size]])
        records += work.evaluate(bare, to_device(batch, accelerator.device))
    if not all(gather_object([whole and go_on()])):
        return None
    return {f"eval_{name}": value for name, value in work.summarize(gather_object(records)).items()}
