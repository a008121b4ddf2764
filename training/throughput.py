"""How much of what the device could do a run does."""

from typing import Any

import torch
from torch import Tensor, nn

from .flops import flops_per_token, peak_flops

WAIT = 5.0
"""Seconds of training before a CPU's peak is measured, which takes a third of one."""


class Throughput:
    """Model FLOPs utilization (Chowdhery et al., 2022, https://arxiv.org/abs/2204.02311).

    Operations that the rows of a step need by the model's shape, padding included, over what all devices could do in
    its time.
    """

    def __init__(self, *, device: torch.device, precision: str, num_processes: int) -> None:
        self.device, self.precision, self.num_processes = device, precision, num_processes
        self.flops = 0.0
        """Of the steps seen since `share` was asked last, over all processes."""
        self._per_token: dict[tuple[int, int | None, float], float] = {}

    def see(self, model: nn.Module, batch: dict[str, Tensor], *, rows: int) -> None:
        """One more step of `rows` rows, of which `batch` is some.

        Args:
            model: the bare one.
            rows: over all processes.
        """
        length = batch["input_ids"].shape[1]
        decoded = batch["decoder_input_ids"].shape[1] if "decoder_input_ids" in batch else None
        labels: Any = batch.get("labels")
        share = 1.0
        if labels is not None and labels.ndim == 2 and labels.numel():
            share = round(float((labels != -100).float().mean()), 2)
        key = (length, decoded, share)
        if key not in self._per_token:
            self._per_token[key] = flops_per_token(
                model, length=length, target_length=decoded, predicted_share=share, device_type=self.device.type
            )
        self.flops += self._per_token[key] * length * rows

    def share(self, *, seconds: float, trained: float) -> float | None:
        """Share of the peak in the steps since the last call; None where the peak is not known, or not yet.

        Args:
            seconds: that they took.
            trained: seconds of training in all.
        """
        flops, self.flops = self.flops, 0.0
        if self.device.type == "cpu" and trained < WAIT:
            return None
        peak = peak_flops(self.device, self.precision)
        return None if not peak or seconds <= 0 else flops / (seconds * peak * self.num_processes)
