"""Model FLOPs utilization: the share of the device's peak that a run reaches."""

import math
from collections import Counter
from typing import Any

from accelerate import Accelerator
from torch import Tensor, nn, random

from lacuna.common.errors import InputError
from lacuna.common.work import Work

from ..planning.flops import peak_flops
from ..planning.memory import FakeStep, fake_copy

WAIT = 5.0
"""Seconds of training before a CPU's peak is measured, which takes a third of one."""


class Throughput:
    """Model FLOPs utilization, MFU (Chowdhery et al., 2022, https://arxiv.org/abs/2204.02311).

    The operations of the rows of a step, padding included, over what all devices could do in its time. They are
    counted per token, once for rows of similar length, when a line of the log first asks for them.
    """

    def __init__(self, model: nn.Module, accelerator: Accelerator) -> None:
        """The model is as it is before it is sharded, wrapped or compiled."""
        self.model, self.accelerator = fake_copy(model), accelerator
        self._tokens: Counter[Any] = Counter()
        """By work and length, since `share` was asked last; over all processes."""
        self._batches: dict[Any, tuple[Work, dict[str, Tensor]]] = {}
        self._per_token: dict[Any, float] = {}

    def see(self, work: Work, batch: dict[str, Tensor], *, rows: int) -> None:
        """One more step of `rows` rows over all processes; `batch` has some of them."""
        ids = batch["input_ids"]
        like = (id(work), ids.shape[-1].bit_length())
        self._tokens[like] += ids.numel() * rows // len(ids)
        self._batches.setdefault(like, (work, batch))

    def share(self, *, seconds: float, trained: float) -> float | None:
        """MFU of the steps since the last call, which took `seconds` of the `trained` seconds of the run.

        None where the peak is unknown, or not measured yet.
        """
        tokens, self._tokens = self._tokens, Counter()
        device, precision = self.accelerator.device, str(self.accelerator.mixed_precision)
        peak = None if device.type == "cpu" and trained < WAIT else peak_flops(device, precision)
        if not peak or seconds <= 0:
            return None
        for like in tokens.keys() - self._per_token.keys():
            work, batch = self._batches[like]
            fake = FakeStep(self.model, precision=precision, device_type=device.type)
            try:
                with random.fork_rng(devices=[]):
                    fake.run(work, batch)
                self._per_token[like] = fake.flops / batch["input_ids"].numel()
            except InputError:
                self._per_token[like] = math.nan
        flops = sum(self._per_token[like] * count for like, count in tokens.items())
        return None if math.isnan(flops) else flops / (seconds * peak * self.accelerator.num_processes)
