"""Which example comes when: a pure function of (seed, global sample number). Nothing needs saving to resume it."""

from collections.abc import Iterator
from functools import lru_cache

import numpy as np
from torch.utils.data import Dataset, Sampler

from .work import Work

# The second half of the Philox key separates this stream of random numbers from those of masks and pairs.
_ORDER_STREAM = 0x6F72646572


@lru_cache(maxsize=2)
def _permutation(seed: int, epoch: int, num_examples: int) -> np.ndarray:
    generator = np.random.Generator(np.random.Philox(key=[seed, _ORDER_STREAM], counter=[0, 0, 0, epoch]))
    return generator.permutation(num_examples)


def row_of(index: int, *, seed: int, num_examples: int) -> int:
    """The row shown at global sample number `index`: each epoch is a new permutation of all rows."""
    epoch, position = divmod(index, num_examples)
    return int(_permutation(seed, epoch, num_examples)[position])


class MicroBatchSampler(Sampler[list[tuple[int, int]]]):
    """Yields the (row, index) pairs of one micro-batch after another, without end, for one process.

    Step s consists of the global samples [s * batch_size, (s + 1) * batch_size). Rank r takes a contiguous slice of
    it, and micro-batches are slices of that: which samples make up a step depends neither on the number of processes
    nor on the size of a micro-batch.
    """

    def __init__(
        self,
        *,
        num_examples: int,
        seed: int,
        start_step: int,
        batch_size: int,
        micro_batch_size: int,
        rank: int,
        num_processes: int,
    ) -> None:
        self.num_examples = num_examples
        self.seed = seed
        self.start_step = start_step
        self.batch_size = batch_size
        self.micro_batch_size = micro_batch_size
        self.rank = rank
        self.share = batch_size // num_processes

    def __iter__(self) -> Iterator[list[tuple[int, int]]]:
        step = self.start_step
        while True:
            first = step * self.batch_size + self.rank * self.share
            for start in range(first, first + self.share, self.micro_batch_size):
                indices = range(start, start + self.micro_batch_size)
                yield [(row_of(index, seed=self.seed, num_examples=self.num_examples), index) for index in indices]
            step += 1


class TrainingExamples(Dataset[dict]):
    """The view of a `Work` that a data loader wants: `(row, index)` to example."""

    def __init__(self, work: Work) -> None:
        self.work = work

    def __getitem__(self, key: tuple[int, int]) -> dict:
        row, index = key
        return self.work.example(row, index)


def dropout_seed(*, seed: int, step: int, micro_step: int, rank: int) -> int:
    """The seed of torch's generator for one forward pass; derived, so that no generator state is ever saved."""
    return int(np.random.SeedSequence([seed, step, micro_step, rank]).generate_state(1, np.uint64)[0] >> 1)
