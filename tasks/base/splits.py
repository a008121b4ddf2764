"""Which rows are held out where nobody named a file of them, and which labels are hardly among those that are."""

from collections.abc import Hashable, Mapping, Sequence

import numpy as np

from lacuna.tasks.base.rows import some_of

FEW = 5

"""With fewer held-out examples of a label, its own scores say little."""


def split_groups(*, groups: Sequence[Hashable], fraction: float, seed: int) -> tuple[list[int], list[int]]:
    """Hold out whole groups, so that nothing is learnt of what is asked; where there is one group, single rows.

    The order of rows is kept. The split depends on `groups`, `fraction` and `seed` only.

    Args:
        groups: of each row what it shares with the others of its group, such as a context.

    Returns:
        Row numbers of the training part and of the held-out part, of which neither is empty given two rows.
    """
    numbers: Sequence[Hashable] = groups if len(set(groups)) > 1 else range(len(groups))
    kinds = list(dict.fromkeys(numbers))
    count = min(max(1, round(fraction * len(kinds))), len(kinds) - 1)
    chosen = {kinds[place] for place in np.random.default_rng(seed).permutation(len(kinds))[:count].tolist()}
    held_out = [row for row, group in enumerate(numbers) if group in chosen]
    return [row for row, group in enumerate(numbers) if group not in chosen], held_out


def scarce_labels(*, train: Mapping[str, int], held_out: Mapping[str, int], what: str = "rows") -> str | None:
    """A line on the labels that are learnt and that few held-out examples have, or none; None where there are none.

    Args:
        train, held_out: how often each label is there.
        what: was counted.
    """
    learnt = [name for name, count in train.items() if count]
    few = sorted((name for name in learnt if held_out.get(name, 0) < FEW), key=lambda name: held_out.get(name, 0))
    if not few or not any(held_out.values()):
        return None
    parts = [f"{name} {held_out.get(name, 0)} ({train[name]:,} to learn from)" for name in few]
    return (
        f"fewer than {FEW} {what} are held out of {len(few)} of {len(learnt)} labels, whose own scores say little: "
        f"{some_of(parts)}"
    )


def stratified_split(*, labels: Sequence[int], fraction: float, seed: int) -> tuple[list[int], list[int]]:
    """Split rows into a training and a held-out part with the same share of every label.

    Every label with two rows or more is in both parts; a label with one row stays in training. The order of rows is
    kept. The split depends on `labels`, `fraction` and `seed` only; with one label for all rows it is a plain one.

    Returns:
        Row numbers of the training part and of the held-out part.
    """
    generator = np.random.default_rng(seed)
    held_out: set[int] = set()
    for label in sorted(set(labels)):
        members = np.flatnonzero(np.asarray(labels) == label)
        count = min(max(1, round(fraction * len(members))), len(members) - 1)
        held_out.update(generator.permutation(members)[:count].tolist())
    return [number for number in range(len(labels)) if number not in held_out], sorted(held_out)
