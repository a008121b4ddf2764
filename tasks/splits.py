"""Which rows are held out where nobody named a file of them."""

from collections.abc import Hashable, Sequence

import numpy as np


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
