"""How many bytes a step holds at its fullest moment, found by running it without computing anything.

The step runs on fake tensors (shapes and dtypes without numbers), so that a model of any size takes a second and no
memory, and each tensor that is made and freed on the way is counted: what autograd keeps, what backward makes, copies
of weights under autocast. The result follows the code of the model, whatever its family, rather than a formula.

Not seen is what a kernel takes for itself while it runs, and what an allocator keeps beside what is in use.
"""

import contextlib
import copy
import weakref
from collections import Counter
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class LiveTensors(TorchDispatchMode):
    """Counts the bytes of all tensors made while it is entered and not yet freed, by kind.

    Args:
        known: tensors that were there before and are not counted.
    """

    def __init__(self, known: list[Tensor]) -> None:
        super().__init__()
        self.kind = "activations"
        """What tensors made from now on are."""
        self.live: Counter[str] = Counter()
        self.at_peak: Counter[str] = Counter()
        """Bytes by kind, at the moment when most were live."""
        self._kinds: dict[int, str] = {id(tensor.untyped_storage()): "known" for tensor in known}
        self._kept = [tensor.untyped_storage() for tensor in known]

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(result):
            if isinstance(leaf, Tensor):
                self._notice(leaf.untyped_storage())
        return result

    def call_it(self, tensor: Tensor, kind: str) -> None:
        """Count a tensor, made before, as another kind."""
        key = id(tensor.untyped_storage())
        if self._kinds.get(key, "known") != "known":
            size = tensor.untyped_storage().nbytes()
            self.live[self._kinds[key]] -= size
            self.live[kind] += size
            self._kinds[key] = kind

    def _notice(self, storage: Any) -> None:
        # torch keeps the Python object of a storage as long as the storage lives, so that its id is one.
        if id(storage) in self._kinds:
            return
        self._kinds[id(storage)] = self.kind
        self.live[self.kind] += storage.nbytes()
        weakref.finalize(storage, self._forget, id(storage), storage.nbytes()).atexit = False
        if self.live.total() > self.at_peak.total():
            self.at_peak = self.live.copy()

    def _forget(self, key: int, size: int) -> None:
        self.live[self._kinds.pop(key)] -= size


class _FusedAttention(torch.autograd.Function):
    """Makes and keeps what a fused kernel does: output and one number for each row of scores, never the scores."""

    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> Tensor:
        batch, heads, length, _ = query.shape
        output = query.new_empty(batch, length, heads, value.shape[-1]).transpose(1, 2)
        ctx.save_for_backward(
            query, key, value, mask, output, query.new_empty(batch, length, heads, dtype=torch.float32)
        )
        return output

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        return *(torch.empty_like(tensor) for tensor in ctx.saved_tensors[:3]), None


_ATTENTION = functional.scaled_dot_product_attention


def _attention_of(device_type: str) -> Any:
    """What stands for torch's attention, which would not choose the same kernel for fake tensors as for real ones."""

    def attend(
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        **options: Any,
    ) -> Tensor:
        if device_type == "cpu" and dropout_p > 0:  # its fused kernel knows no dropout
            return _ATTENTION(query, key, value, attn_mask, dropout_p, is_causal, **options)
        if torch.is_autocast_enabled("cpu"):
            query, key, value = (tensor.to(torch.get_autocast_dtype("cpu")) for tensor in (query, key, value))
        if attn_mask is not None and attn_mask.dtype == torch.bool:
            attn_mask = attn_mask.to(query.dtype)
        return _FusedAttention.apply(query, key, value, attn_mask)

    return attend


@contextlib.contextmanager
def counting(model: nn.Module, *, device_type: str) -> Iterator[tuple[Any, LiveTensors]]:
    """A copy of a model whose tensors are fake, ready for training, and the count of what is made within the context.

    Args:
        model: on any device, meta included; it is left as it is.
        device_type: whose attention kernels are meant, "cpu" or "cuda". The copy says that it is on a CPU.
    """
    with FakeTensorMode(allow_non_fake_inputs=True):
        memo: dict[int, Any] = {}
        for tensor in [*model.parameters(), *model.buffers()]:
            fake = torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu")
            if isinstance(tensor, nn.Parameter):
                fake = nn.Parameter(fake, requires_grad=tensor.requires_grad)
            memo.setdefault(id(tensor), fake)
        twin = copy.deepcopy(model, memo).train()
        functional.scaled_dot_product_attention = _attention_of(device_type)
        try:
            with LiveTensors([*twin.parameters(), *twin.buffers()]) as tensors:
                yield twin, tensors
        finally:
            functional.scaled_dot_product_attention = _ATTENTION
