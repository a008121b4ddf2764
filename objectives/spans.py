"""`spans`: words that recur in a passage are hidden in all places but one, which each hidden place is to find.

Recurring span selection, with which Splinter is trained (Ram et al., 2021, https://arxiv.org/abs/2101.00438).
"""

import math
from collections import defaultdict
from collections.abc import Sequence
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from lacuna.common.errors import InputError

from .base import PackedPrediction, require_argument
from .data import IGNORED, Tensors, for_model, random_stream, spread
from .mlm import find_words
from .packing import PackedRow

LONGEST_SPAN = 8  # words
TOKENS_A_QUESTION = 24  # of a row, at least
COMMON = 200  # most frequent tokens, at most a twentieth of all: they serve as stop words, and make no span alone
LEAST_SPANS = 0.05  # of a row, on average: with fewer most steps learn nothing
_COUNTED_ROWS = 256  # from which the questions of a row are counted
_NO_WORDS = (0, 1, 2, 5)  # classes of `tokenization.token_edges`: nothing, blanks, signs

Span = tuple[int, int]  # the first word, and one past the last


def recurring_spans(words: Sequence[tuple[int, ...] | None], *, is_common: np.ndarray) -> list[list[Span]]:
    """Runs of words that stand in several places of a text, longest first; the places of each, which share no word.

    Words are their tokens, and None where no span may be, as at punctuation; `is_common`: bool [vocab_size], tokens
    that are words alone and make no span by themselves.
    """
    numbers: dict[tuple[int, ...], int] = {}
    text = [-1 if word is None else numbers.setdefault(word, len(numbers)) for word in words]
    counts = np.bincount(np.array(text, dtype=np.int64) + 1, minlength=len(numbers) + 1)[1:]
    rare = [len(word) > 1 or not is_common[word[0]] for word in numbers]
    recurs = [number >= 0 and counts[number] > 1 for number in text]
    free = [number >= 0 for number in text]
    found = []
    runs = np.flatnonzero(np.diff([False, *recurs, False])).reshape(-1, 2).tolist()
    for size in range(LONGEST_SPAN, 0, -1):
        places: dict[tuple[int, ...], list[int]] = defaultdict(list)
        for left, right in runs:
            for first in range(left, right - size + 1):
                places[tuple(text[first : first + size])].append(first)
        for span, firsts in places.items():
            if len(firsts) > 1 and any(rare[number] for number in span):
                end, cluster = -1, []
                for first in firsts:
                    if first >= end and all(free[first : first + size]):
                        cluster.append((first, end := first + size))
                if len(cluster) > 1:
                    found.append(cluster)
                    for first, last in cluster:
                        free[first:last] = [False] * size
    return found


class RecurringSpans(PackedPrediction):
    """Documents packed into rows; each hidden span is one token, whose state asks where its words stand in the row."""

    name = "spans"
    summary = "words that recur in a passage, for question answering, as Splinter"
    legend = ("⟦cat→[SEP]⟧ hidden: it is to find the same words in the same document   ‹cat› where they are left",)
    head, shape, fields = "AutoModelForQuestionAnswering", "encoder", {"question_aware": True}

    def __init__(self, **parts: Any) -> None:
        super().__init__(**parts)
        self.most = max(1, self.sequence_length // TOKENS_A_QUESTION)
        rows = spread(self.num_examples, _COUNTED_ROWS).tolist()
        self._per_row = sum(int((self.example(row, row)["labels"] != IGNORED).sum()) for row in rows) / len(rows)
        poor, held_out = f"{len(rows)} rows" if self._per_row < LEAST_SPANS else "", range(self.num_eval_examples)
        if held_out and not poor and all((self.eval_example(row)["labels"] == IGNORED).all() for row in held_out):
            poor = "the held-out rows"
        if poor:
            raise InputError(
                f"--objective spans: next to no words recur in {poor} of {self.sequence_length} tokens: give "
                "longer documents, more of them or a longer --sequence_length"
            )

    @cached_property
    def _is_common(self) -> np.ndarray:
        counts = self._count_tokens()
        return counts >= np.sort(counts)[-max(1, min(COMMON, len(counts) // 20))]

    def _example(self, row: PackedRow, index: int, *, rate: float, held_out: bool) -> dict[str, Any]:
        """`input_ids` and `position_ids` (or, unpacked, `attention_mask`), int64 [length]; and, int64 [`most`] with
        IGNORED at the end, `question_positions`, `labels` and `ends`: the first and last token of what is asked."""
        generator = random_stream(seed=self.seed, stream="evalspan" if held_out else "spans", index=index)
        ids, goes = row.ids.copy(), np.zeros(len(row.ids), dtype=bool)
        asked: list[tuple[int, int, int]] = []
        for kept, hidden in self._chosen(row, generator):
            for first, last in hidden:
                ids[first], goes[first + 1 : last] = self.tokens.end, True
                asked.append((first, kept[0], kept[1] - 1))
        places = np.append(0, np.cumsum(~goes))  # where a token stands once others are gone
        shorter = PackedRow(ids=ids[~goes], bounds=places[row.bounds])
        example = self._finished(shorter, shorter.ids, shorter.ids)
        answers = np.full((3, self.most), IGNORED)
        answers[:, : len(asked)] = places[np.array(sorted(asked), dtype=np.int64).reshape(-1, 3)].T
        return {**example, **dict(zip(("question_positions", "labels", "ends"), answers, strict=True))}

    def _chosen(self, row: PackedRow, generator: np.random.Generator) -> list[tuple[Span, list[Span]]]:
        """Spans of tokens of a row: one that stays, and those with the same words that are hidden; at most `most`."""
        clusters, lasts = [], self.token_edges[row.ids, 1]
        numbers = find_words(row.ids, edges=self.token_edges, candidates=~self.tokens.is_special[row.ids])
        for left, right in pairwise(row.bounds.tolist()):
            begins = left + np.flatnonzero(np.diff(numbers[left:right], prepend=-2))
            bounds = list(pairwise([*begins.tolist(), right]))
            words = [
                None if numbers[first] < 0 or lasts[last - 1] in _NO_WORDS else tuple(row.ids[first:last])
                for first, last in bounds
            ]
            spans = recurring_spans(words, is_common=self._is_common)
            clusters += [[(bounds[first][0], bounds[last - 1][1]) for first, last in cluster] for cluster in spans]
        chosen, room = [], self.most
        for number in generator.permutation(len(clusters)).tolist():
            cluster = clusters[number]
            stays = int(generator.integers(len(cluster)))
            if len(cluster) - 1 <= room:
                chosen.append((cluster[stays], cluster[:stays] + cluster[stays + 1 :]))
                room -= len(cluster) - 1
        return chosen

    def with_hints(self, batch: Tensors) -> Tensors:
        """Add the bounds of documents."""
        return {name: value for name, value in super().with_hints(batch).items() if name != "target_positions"}

    def check_model(self, model: nn.Module) -> None:
        """Refuse a model that has no head for questions in its rows."""
        reason = "it has no head for recurring spans; begin with an encoder of Lacuna, or of a family that it converts"
        require_argument(model, "question_positions", reason=reason)

    def _score(self, model: nn.Module, batch: Tensors) -> tuple[Tensor, Tensor]:
        """Nats for an end of a span and whether both are found, [batch, `most`]; 0 where nothing is asked."""
        given = {name: value for name, value in batch.items() if name not in ("labels", "ends")}
        output = model(**for_model(model, given))
        if "position_ids" in batch:
            document = (batch["position_ids"] == 0).cumsum(dim=1)
        else:
            document = batch.get("attention_mask", torch.ones_like(batch["input_ids"]))
        others = document.gather(1, batch["question_positions"].clamp(min=0)).unsqueeze(2) != document.unsqueeze(1)
        nats, found = torch.zeros_like(batch["labels"], dtype=torch.float32), batch["labels"] != IGNORED
        for logits, answers in ((output.start_logits, batch["labels"]), (output.end_logits, batch["ends"])):
            logits = logits.float().masked_fill(others, -math.inf).transpose(1, 2)
            nats = nats + functional.cross_entropy(logits, answers, ignore_index=IGNORED, reduction="none") / 2
            found = found & (logits.argmax(dim=1) == answers)
        return nats, found

    def loss(self, model: nn.Module, batch: Tensors, num_targets: Tensors) -> tuple[Tensor, Tensors]:
        """Mean cross-entropy of the first and of the last token, and the share of spans of which both are found."""
        nats, found = self._score(model, batch)
        total = num_targets["tokens"].clamp(min=1)
        return nats.sum() / total, {"accuracy": found.sum() / total}

    def evaluate(self, model: nn.Module, batch: Tensors) -> list[dict[str, Any]]:
        columns = (*self._score(model, batch), batch["labels"] != IGNORED)
        sums = torch.stack([column.cpu().double().sum(dim=1) for column in columns], dim=1)
        return [dict(zip(("nats", "hits", "targets"), values, strict=True)) for values in sums.tolist()]

    def summarize(self, records: list[dict[str, Any]]) -> dict[str, float]:
        """Loss in nats for each end of a span, and the share of spans that are found."""
        nats, targets, hits = (math.fsum(record[name] for record in records) for name in ("nats", "targets", "hits"))
        return {"loss": nats / max(targets, 1), "accuracy": hits / max(targets, 1)}

    def baseline(self) -> dict[str, float]:
        """Metrics of taking any token of the document for the first and for the last one."""
        sizes = []
        for number in range(self.num_eval_examples):
            example = self.eval_example(number)
            asked = example["question_positions"][example["labels"] != IGNORED]
            begins = example.get("position_ids", np.arange(len(example["input_ids"]))) == 0
            sizes += np.bincount(np.cumsum(begins))[np.cumsum(begins)[asked]].tolist()
        return self.summarize([{"nats": math.log(n), "hits": n**-2, "targets": 1} for n in sizes]) if sizes else {}

    def _describe_targets(self) -> str:
        return f"{self._per_row:.1f} spans of a row, at most {self.most}, are hidden; their words stand elsewhere too"
