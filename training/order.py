"""Sample order: which training example comes when, a pure function of (seed, global sample number)."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from torch.utils.data import Dataset, Sampler

from lacuna.common.work import Work

_ORDER_STREAM, _STEP_STREAM = 0x6F72646572, 0x7374657073
"""Second halves of the Philox key, which keep the order of rows, and of grouped steps, apart from masks and pairs."""

_PERIOD = 1 << 16
"""Weights of sources are rounded to parts of so many samples, in which each source has its share exactly."""


Mixture = Sequence[tuple[int, float]]
"""Rows and weight of each source; rows of a source follow those of the one before."""


@lru_cache(maxsize=32)
def _permutation(seed: int, epoch: int, num_examples: int, source: int) -> np.ndarray:
    generator = np.random.Generator(np.random.Philox(key=[seed, _ORDER_STREAM], counter=[0, 0, source, epoch]))
    order = generator.permutation(num_examples)
    return order.astype(np.uint32) if num_examples <= 1 << 32 else order


class Grouping:
    """Orders in which the examples of a step are of similar length (`--group_by_length`).

    The permutation of an epoch is dealt into parts of about `PART` steps, at least `FEWEST` of them; the rows of a
    part are sorted by length, cut into steps, and the steps shuffled. Rows at both ends of an epoch, whose steps
    belong to two epochs, are only sorted. All of it follows from (seed, epoch).
    """

    PART, FEWEST = 50, 4

    def __init__(self, lengths: Sequence[int], *, batch_size: int) -> None:
        self.lengths, self.batch_size = np.asarray(lengths), batch_size
        self._orders: dict[tuple[int, int], np.ndarray] = {}

    def order(self, *, seed: int, epoch: int) -> np.ndarray:
        """The rows of an epoch [rows], in the order in which they come."""
        if (seed, epoch) not in self._orders:
            # Of two at a time: a step may belong to both.
            newest = list(self._orders.items())[-1:]
            self._orders = dict([*newest, ((seed, epoch), self._made(seed, epoch))])
        return self._orders[seed, epoch]

    def _made(self, seed: int, epoch: int) -> np.ndarray:
        rows, size = _permutation(seed, epoch, len(self.lengths), 0), self.batch_size
        first = min(-epoch * len(rows) % size, len(rows))  # samples of the last step of the epoch before
        steps = (len(rows) - first) // size
        middle = rows[first : first + steps * size].reshape(steps, size)
        parts = np.array_split(middle, min(max(self.FEWEST, -(-steps // self.PART)), max(steps, 1)))
        generator = np.random.Generator(np.random.Philox(key=[seed, _STEP_STREAM], counter=[0, 0, 0, epoch]))
        sorted_parts = [self._sorted(part.reshape(-1)).reshape(part.shape) for part in parts]
        shuffled = [part[generator.permutation(len(part))].reshape(-1) for part in sorted_parts]
        return np.concatenate([self._sorted(rows[:first]), *shuffled, self._sorted(rows[first + steps * size :])])

    def _sorted(self, rows: np.ndarray) -> np.ndarray:
        return rows[np.argsort(self.lengths[rows], kind="stable")]


def row_of(
    index: int, *, seed: int, num_examples: int, mixture: Mixture = (), grouping: Grouping | None = None
) -> int:
    """The row shown at global sample number `index`.

    Without a mixture each epoch is a new permutation of all rows. With one, the sources alternate as evenly as their
    weights allow, and each has epochs of its own.
    """
    if not mixture:
        epoch, position = divmod(index, num_examples)
        if grouping is not None:
            return int(grouping.order(seed=seed, epoch=epoch)[position])
        return int(_permutation(seed, epoch, num_examples, 0)[position])
    sources, ordinals, counts = _alternation(tuple(weight for _, weight in mixture))
    period, place = divmod(index, _PERIOD)
    source = int(sources[place])
    epoch, position = divmod(period * int(counts[source]) + int(ordinals[place]), mixture[source][0])
    first = sum(rows for rows, _ in mixture[:source])
    return first + int(_permutation(seed, epoch, mixture[source][0], source + 1)[position])


@lru_cache(maxsize=4)
def _alternation(weights: tuple[float, ...]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """For each sample of a period its source and its number within the source; and the samples of each source.

    The k-th of n samples of a source stands at (k + 1/2) / n of the period.
    """
    exact = np.array(weights) / sum(weights) * _PERIOD
    counts = np.maximum(np.floor(exact).astype(np.int64), 1)
    counts[np.argsort(np.floor(exact) - exact, kind="stable")[: max(0, _PERIOD - counts.sum())]] += 1
    counts[counts.argmax()] += _PERIOD - counts.sum()  # taken for sources that would have had no sample at all
    sources = np.repeat(np.arange(len(weights)), counts)
    ordinals = np.concatenate([np.arange(count) for count in counts])
    times = (ordinals + 0.5) / counts[sources]
    order = np.argsort(times, kind="stable")
    return sources[order].astype(np.uint32), ordinals[order].astype(np.uint32), counts


@dataclass(kw_only=True)
class MicroBatchSampler(Sampler[list[tuple[int, int]]]):
    """Yields (row, index) of the samples of one micro-batch after another, without end, for one process.

    A step is the next `batch_size` global samples. Rank r takes a contiguous slice of it, and micro-batches are slices
    of that: which samples make up a step depends neither on the number of processes nor on the micro-batch size.
    """

    row: Callable[[int], int]  # `row_of` of this run
    first_sample: int  # global number of the first sample of the first step
    batch_size: int
    micro_batch_size: int
    rank: int
    num_processes: int

    def __iter__(self) -> Iterator[list[tuple[int, int]]]:
        share = self.batch_size // self.num_processes
        first = self.first_sample + self.rank * share
        while True:
            for start in range(first, first + share, self.micro_batch_size):
                yield [(self.row(index), index) for index in range(start, start + self.micro_batch_size)]
            first += self.batch_size


class TrainingExamples(Dataset[dict]):
    """The view of a `Work` that a data loader wants: `(row, index)` to example."""

    def __init__(self, work: Work) -> None:
        self.work = work

    def __getitem__(self, key: tuple[int, int]) -> dict:
        return self.work.example(*key)


def dropout_seed(*, seed: int, step: int, micro_step: int, rank: int) -> int:
    """The seed of torch's generator for one forward pass; derived, so that no generator state is ever saved."""
    return int(np.random.SeedSequence([seed, step, micro_step, rank]).generate_state(1, np.uint64)[0] >> 1)
