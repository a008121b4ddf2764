"""The share of a training step that its matrix products would take if there were nothing else.

The products of one step are written down as they are called, with shapes, strides and dtypes; each is then computed
alone, over and over, into a result that is there already: that is the rate of the library (oneDNN for bf16 on a CPU,
MKL for float32). What a step takes beyond the sum of these times is everything else: norms, activations, softmax,
look-ups, the optimizer, Python, and memory that is touched in between.
"""

import math
import statistics
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
from contenders import Trainee
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

LOOP_SECONDS = 0.02
Operand = tuple[tuple[int, ...], tuple[int, ...], torch.dtype]
Product = tuple[str, tuple[Operand, ...]]
FUNCTIONS: dict[str, Callable[..., Tensor]] = {
    name: getattr(torch, name) for name in ("mm", "addmm", "bmm", "baddbmm")
}


class Recorder(TorchDispatchMode):
    """Counts the matrix products that are called under it."""

    def __init__(self) -> None:
        super().__init__()
        self.found: Counter[Product] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        if name in FUNCTIONS:
            operands = (value for value in args if isinstance(value, Tensor))
            self.found[name, tuple((tuple(x.shape), x.stride(), x.dtype) for x in operands)] += 1
        return func(*args, **(kwargs or {}))


def operations(product: Product) -> int:
    """Floating-point operations: two for each multiplication with its addition."""
    (left, *_), (right, *_) = product[1][-2:]
    return 2 * math.prod(left) * right[-1]


def profiled(trainee: Trainee) -> int:
    """Operations in the products of one step as it is measured, compiled if it is, by torch's profiler."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], with_flops=True) as profile:
        trainee.step(trainee.batches[0])
    return sum(int(event.flops) for event in profile.key_averages() if event.key.removeprefix("aten::") in FUNCTIONS)


class Loop:
    """One product with operands of its own, to be computed again and again."""

    def __init__(self, product: Product, trainee: Trainee) -> None:
        self._function, self._wait, self._times = FUNCTIONS[product[0]], trainee.wait, 1
        self._operands = [
            torch.empty_strided(shape, stride, dtype=dtype, device=trainee.device).normal_()
            for shape, stride, dtype in product[1]
        ]
        self._result = self._function(*self._operands)
        self._times = max(3, math.ceil(LOOP_SECONDS / self.seconds()))

    def seconds(self) -> float:
        """Of one computation, in a loop of some."""
        start = time.perf_counter()
        for _ in range(self._times):
            self._function(*self._operands, out=self._result)
        self._wait()
        return (time.perf_counter() - start) / self._times


def measure_share(trainee: Trainee, *, rounds: int, steps: int) -> dict[str, Any]:
    """Steps on the first batch and its products alone, in turn.

    Returns:
        For each product its count, operations and median time; and of all of them together, by round and as medians:
        seconds alone, seconds of a step and their quotient.
    """
    trainee.batches = trainee.batches[:1]
    # A compiler calls the same products, which `profiled` shows.
    with torch.compiler.set_stance("force_eager"), Recorder() as recorder:
        trainee.step(trainee.batches[0])
    found, counted_by_profiler = recorder.found, profiled(trainee)
    trainee.run(steps)
    with torch.no_grad():
        loops = {product: Loop(product, trainee) for product in found}
    of_steps, of_products = [], []
    by_product: dict[Product, list[float]] = {product: [] for product in found}
    for _ in range(rounds):
        of_steps.append(trainee.run(steps)["seconds"] / steps)
        with torch.no_grad():
            for product, loop in loops.items():
                by_product[product].append(loop.seconds())
        of_products.append(math.fsum(found[product] * taken[-1] for product, taken in by_product.items()))
    shares = [alone / whole for alone, whole in zip(of_products, of_steps, strict=True)]
    rows = [
        {
            "product": product[0],
            "shapes": [list(shape) for shape, _, _ in product[1]],
            "strides": [list(stride) for _, stride, _ in product[1]],
            "dtype": str(product[1][-1][2]).removeprefix("torch."),
            "count": count,
            "operations": count * operations(product),
            "seconds": count * statistics.median(by_product[product]),
        }
        for product, count in found.items()
    ]
    return {
        "operations": sum(row["operations"] for row in rows),
        "operations_profiled": counted_by_profiler,
        "products": sum(found.values()),
        "seconds_alone": statistics.median(of_products),
        "seconds_step": statistics.median(of_steps),
        "share": statistics.median(shares),
        "shares": shares,
        "by_product": sorted(rows, key=lambda row: -row["seconds"]),
    }
