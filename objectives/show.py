"""Training examples as a person reads them: what is hidden, what belongs together, and who sees whom."""

import re
import shutil
from functools import partial
from io import StringIO
from itertools import groupby, pairwise
from typing import Any

import numpy as np
from rich.cells import cell_len
from rich.console import Console
from rich.text import Text
from transformers.convert_slow_tokenizer import bytes_to_unicode

from lacuna.common.private import counted

from .base import PackedPrediction, TokenPrediction
from .data import IGNORED
from .pairs import PairPrediction
from .spans import RecurringSpans

WIDTH = 118  # columns of the text that is printed, where the terminal is not narrower

_NARROWEST = 40
_BYTES = {letter: byte for byte, letter in bytes_to_unicode().items()}

EDGES = "├─── another {}: neither sees the other"
RESTS = "… the document continues in another row   ↵ line break"


def show_examples(objective: TokenPrediction, tokenizer: Any, count: int, *, width: int | None = None) -> str:
    """At most `count` training examples as text: rows spread evenly, corrupted like the samples 0, 1, 2 ... of a run.

    `width`: columns, of which a Chinese character takes two; by default those of the terminal, 118 at most.
    """
    page = _Page(objective, tokenizer, width or min(WIDTH, shutil.get_terminal_size((WIDTH, 24)).columns))
    count = min(count, objective.num_examples)
    rows = [(2 * number + 1) * objective.num_examples // (2 * count) for number in range(count)]
    examples = [page.example(number, row) for number, row in enumerate(rows)]
    facts = [*objective.describe().splitlines(), "", *page.legend()]
    lines = [part for line in facts for part in wrap(line, width=page.width, first="", later="")]
    return "\n".join([objective.name, *lines, *examples])


class _Page:
    """Writes examples of one objective."""

    def __init__(self, objective: TokenPrediction, tokenizer: Any, width: int) -> None:
        self.objective, self.tokenizer, self.width = objective, tokenizer, max(width, _NARROWEST)
        self.tokens, self._wrapped = objective.tokens, partial(wrap, width=self.width)

    def legend(self) -> list[str]:
        """What the signs mean, of those that this objective uses."""
        lines = list(self.objective.legend)
        if isinstance(self.objective, PackedPrediction):
            piece, is_packed = self.objective.piece, self.objective.arguments.packing != "none"
            lines += [EDGES.format(piece)] * is_packed + [RESTS] * (piece == "document")
        return lines

    def example(self, number: int, row: int) -> str:
        """One example under a line that says what it is."""
        example = self.objective.example(row, number)
        facts = [f"example {number + 1}", f"row {row:,}"]
        if "decoder_input_ids" in example:
            more, lines = self._denoising(example)
        elif isinstance(self.objective, PairPrediction):
            more, lines = self._pair(example)
        else:
            assert isinstance(self.objective, PackedPrediction)
            more, lines = self._packed(example)
        head = " · ".join([*facts, *more])
        return "\n".join(["", self._head(head), *lines])

    def _head(self, text: str) -> str:
        first, *others = self._wrapped(text, first="── ", later="   ")
        left = self.width - cell_len(first) - 1
        return "\n".join([f"{first} {'─' * left}" if left > 0 else first, *others])

    def _pair(self, example: dict[str, Any]) -> tuple[list[str], list[str]]:
        assert isinstance(self.objective, PairPrediction)
        second = example["token_type_ids"].astype(bool)
        lines = []
        for name, part in (("A", ~second), ("B", second)):
            text = self._marked(example["input_ids"][part], example["labels"][part])
            lines += self._wrapped(text, first=f"{name}  ", later="   ")
        sizes = f"{len(second)} tokens: A {int((~second).sum()) - 2}, B {int(second.sum()) - 1}"
        answer = self.objective.answers[example["next_sentence_label"]]
        return [answer, sizes, self._count(example["labels"], example["input_ids"])], lines

    def _packed(self, example: dict[str, Any]) -> tuple[list[str], list[str]]:
        ids, asks = example["input_ids"], isinstance(self.objective, RecurringSpans)
        labels = np.full_like(ids, IGNORED) if asks else example["labels"]
        size = int(np.flatnonzero(ids != self.tokens.pad)[-1]) + 1
        starts = np.flatnonzero(example["position_ids"][:size] == 0).tolist() if "position_ids" in example else [0]
        is_next = bool(example.get("is_causal", self.objective.shape == "decoder"))
        lines = []
        for place, (left, right) in enumerate(pairwise([*starts, size])):
            lines += ["├" + "─" * 39] * bool(place)
            here = slice(left, right)
            if asks:
                text = self._asking(example, here)
            else:
                text = self._given(ids[here]) if is_next else self._marked(ids[here], labels[here])
            original = np.where(labels[here] == IGNORED, ids[here], labels[here])
            begins = "" if original[0] == self.tokens.start else "…"
            ends = "" if original[-1] == self.tokens.end else "…"
            lines += self._wrapped(begins + text + ends, first="│ ", later="│ ")
        facts = [f"{size} tokens of {counted(len(starts), self.objective.piece)}"]
        if len(ids) > size:
            facts[0] += f", {len(ids) - size} of padding"
        if "is_causal" in example:
            facts.insert(0, "causal" if is_next else "masked")
        count = int((example["labels"] != IGNORED).sum())
        return [*facts, counted(count, "hidden span") if asks else self._count(labels, ids[:size])], lines

    def _denoising(self, example: dict[str, Any]) -> tuple[list[str], list[str]]:
        sides = []
        for ids, positions in (("input_ids", "position_ids"), ("labels", "decoder_position_ids")):
            starts = np.flatnonzero(example[positions] == 0).tolist() if positions in example else [0]
            bounds = [*starts, len(example[ids])]
            sides.append([example[ids][left:right] for left, right in pairwise(bounds)])
        lines = []
        for place, (source, target) in enumerate(zip(*sides, strict=True)):
            lines += ["├" + "─" * 39] * bool(place)
            begins = "" if source[0] == self.tokens.start else "…"
            lines += self._wrapped(begins + self._text(source), first="│ reads   ", later="│         ")
            lines += self._wrapped(self._text(target[target != IGNORED]), first="│ writes  ", later="│         ")
        sizes = f"{len(example['input_ids'])} tokens to read, {len(example['labels'])} to write"
        return [sizes, counted(len(sides[0]), "document")], lines

    def _asking(self, example: dict[str, Any], here: slice) -> str:
        """Text with hidden spans as what they ask for, and what answers them."""
        ids = example["input_ids"]
        marks: dict[int, tuple[str, int]] = {}
        for place, first, last in zip(example["question_positions"], example["labels"], example["ends"], strict=True):
            words = self._text(ids[first : last + 1])
            if place != IGNORED:
                marks |= {place: (f"⟦{words}→[SEP]⟧", place + 1), first: (f"‹{words}›", last + 1)}
        text, left = "", here.start
        for first in sorted(place for place in marks if here.start <= place < here.stop):
            text += self._text(ids[left:first]) + marks[first][0]
            left = marks[first][1]
        return text + self._text(ids[left : here.stop])

    def _count(self, labels: np.ndarray, ids: np.ndarray) -> str:
        """How many targets there are; the share is of the text, without special tokens."""
        is_target = labels != IGNORED
        text = int((~self.tokens.is_special[np.where(is_target, labels, 0)] & is_target).sum())
        rest = int((~self.tokens.is_special[ids] & ~is_target[: len(ids)]).sum())
        return f"{int(is_target.sum())} targets ({text / max(text + rest, 1):.1%} of the text)"

    def _marked(self, ids: np.ndarray, labels: np.ndarray) -> str:
        """Text with what is to be found in double brackets; neighbours that met the same fate share them."""
        parts = []
        kinds = [labels == IGNORED, ids == self.tokens.mask, ids == labels]
        fates = np.select(kinds, ["", "→", "="], "≠").tolist()
        for fate, places in groupby(range(len(ids)), key=lambda place: fates[place]):
            here = np.fromiter(places, dtype=np.int64)
            shown = self._text(ids[here])
            if not fate:
                parts.append(shown)
                continue
            shown = shown.replace("\n", "")
            original = self._text(labels[here]).replace("\n", "")
            space = " " if original.startswith(" ") and original.strip() else ""
            original = original.removeprefix(space)
            if fate == "→":
                shown = self._text(ids[here[:1]]) + (f"×{len(here)}" if len(here) > 1 else "")
            elif fate == "=":
                shown = ""
            parts.append(f"{space}⟦{original}{fate}{shown.removeprefix(space)}⟧")
        return "".join(parts)

    def _given(self, ids: np.ndarray) -> str:
        first = self._text(ids[:1])
        given = first.removesuffix("\n")
        return f"‹{given}›{first[len(given) :]}{self._text(ids[1:])}"

    def _text(self, ids: np.ndarray) -> str:
        """Decoded, half a character as its bytes; lines end where they do in the text, with a sign for it."""
        text = self.tokenizer.decode(ids.tolist(), skip_special_tokens=False, clean_up_tokenization_spaces=False)
        pieces = "".join(self.tokenizer.convert_ids_to_tokens(ids.tolist())) if "\ufffd" in text else ""
        if pieces and {*pieces} <= _BYTES.keys():  # of a byte-level tokenizer
            text = bytes(_BYTES[letter] for letter in pieces).decode("utf-8", errors="backslashreplace")
        return re.sub("(\n+)", lambda ends: "↵" * len(ends[1]) + "\n", text.replace("\r", "")).replace("\t", "⇥")


def wrap(text: str, *, width: int, first: str, later: str) -> list[str]:
    """Lines of at most `width` columns, broken at spaces where there are some and at line breaks.

    `first`, `later`: what the first line and all others begin with.
    """
    room = width - max(len(first), len(later))
    console = Console(file=StringIO(), width=room)
    paragraphs = (Text(paragraph) for paragraph in text.removesuffix("\n").split("\n"))
    lines = [str(line).rstrip() for each in paragraphs for line in (each.wrap(console, room) or [Text()])]
    return [(later if number else first) + line for number, line in enumerate(lines)]
