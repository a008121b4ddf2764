"""The z-loss of PaLM (Chowdhery et al., 2022, section 5, https://arxiv.org/abs/2204.02311): it keeps logits small.

Cross-entropy does not change when a number is added to all logits of a position; without anything to hold them they
drift to where bfloat16 has few digits. The z-loss is the square of log Z, Z the sum of the exponentials of the logits.
"""

from torch import Tensor

from .data import IGNORED


def summed_z_loss(logits: Tensor, labels: Tensor) -> Tensor:
    """Sum of log(Z)^2 over the targets of a batch, in float32.

    Args:
        logits: [num_targets, vocab_size], at the targets only; or [batch, length, vocab_size].
        labels: [batch, length], IGNORED where there is no target.
    """
    if logits.ndim == 3:
        logits = logits[labels != IGNORED]
    return logits.float().logsumexp(dim=-1).square().sum()
