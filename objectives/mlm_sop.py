"""`mlm_sop`: masked language modelling and sentence order prediction, as ALBERT was trained.

Lan et al., 2020, section 3.1 (https://arxiv.org/abs/1909.11942).
"""

import numpy as np

from .pairs import PairPrediction

IN_ORDER, SWAPPED = 0, 1
"""Labels of the pair, in ALBERT's order."""


class MaskedLanguageModellingWithOrder(PairPrediction):
    """`[CLS] A [SEP] B [SEP]`: two segments that follow one another, half the time in order, half the time swapped.

    An example starts from a chunk of consecutive sentences that fills the row; what is too much is cut away, before
    the first sentence or behind the last, and the rest is divided at a random sentence. ALBERT cuts the longer of the
    two segments instead, which is more often the second: the last sentence of a chunk is the one that does not fit. A
    judge that saw nothing but lengths was then right for 56 % of the pairs of three texts, and for 49 to 54 % of those
    made here. Where no sentence ends inside, the text is divided inside the sentence.
    """

    name = "mlm_sop"
    summary = "masked tokens and sentence order, as ALBERT"
    pair_name = "sop"
    answers = ("InOrder", "Swapped")

    def _pair(
        self, chunk: tuple[int, int, int, int], *, held_out: bool, generator: np.random.Generator
    ) -> tuple[np.ndarray, np.ndarray, int]:
        _, _, first, last = chunk
        text, offsets = self._text(first, last)
        dropped = max(0, len(text) - self.room)
        front = dropped if generator.random() < 0.5 else 0
        text = text[front : front + self.room]
        cuts = offsets[(offsets > front) & (offsets < front + len(text))] - front
        is_swapped = generator.random() < 0.5
        cut = int(generator.choice(cuts)) if len(cuts) else int(generator.integers(1, max(len(text), 2)))
        if is_swapped and len(text) > 1:  # a single token is in order whatever is done to it
            return text[cut:], text[:cut], SWAPPED
        return text[:cut], text[cut:], IN_ORDER
