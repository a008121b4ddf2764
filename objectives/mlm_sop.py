"""`mlm_sop`: masked language modelling and sentence order prediction, as ALBERT was trained.

Lan et al., 2020, section 3.1 (https://arxiv.org/abs/1909.11942).
"""

import numpy as np

from .mlm_nsp import PairPrediction
from .packing import Chunk

IN_ORDER, SWAPPED = 0, 1
"""Labels of the pair, in ALBERT's order."""


class MaskedLanguageModellingWithOrder(PairPrediction):
    """`[CLS] A [SEP] B [SEP]`: two segments that follow one another, half the time in order, half the time swapped.

    A chunk of consecutive sentences that fills the row loses what does not fit, at its beginning or at its end, and is
    divided at a random sentence, or inside one if there is no other way. ALBERT cuts the longer of the two segments
    instead, which is more often the second, since the last sentence of a chunk is the one that does not fit. A judge
    that saw only lengths was then right for 56 % of the pairs of three texts, and for 49 to 54 % of those made here.
    """

    name = "mlm_sop"
    summary = "masked tokens and sentence order, as ALBERT"
    pair_name = "sop"
    answers = ("InOrder", "Swapped")

    def _pair(
        self, chunk: Chunk, *, held_out: bool, generator: np.random.Generator
    ) -> tuple[np.ndarray, np.ndarray, int]:
        text, offsets = self._text(chunk)
        dropped = max(0, len(text) - self.room)
        front = dropped if generator.random() < 0.5 else 0
        text = text[front : front + self.room]
        cuts = offsets[(offsets > front) & (offsets < front + len(text))] - front
        is_swapped = generator.random() < 0.5
        cut = int(generator.choice(cuts)) if len(cuts) else int(generator.integers(1, max(len(text), 2)))
        if is_swapped and len(text) > 1:  # a single token is in order whatever is done to it
            return text[cut:], text[:cut], SWAPPED
        return text[:cut], text[cut:], IN_ORDER
