"""What every task does to inputs and outputs: tokenize texts, pad batches, make records of outputs, find words."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import regex
import torch
from torch import Tensor

IGNORED = -100  # the label of a token that does not count
_TOKENIZE_AT_ONCE = 1000  # to save memory
MODEL_INPUTS = ("input_ids", "attention_mask", "token_type_ids", "position_ids")


def tokenizer_inputs(encoding: Mapping[str, Any], number: int) -> dict[str, np.ndarray]:
    """What a tokenizer made of text `number`, kept small: int32 [length] for ids, int8 for segments."""
    kinds = {"input_ids": np.int32, "token_type_ids": np.int8}
    return {name: np.asarray(encoding[name][number], dtype=kind) for name, kind in kinds.items() if name in encoding}


def tokenize(
    *, tokenizer: Any, texts: Sequence[str], pairs: Sequence[str] | None = None, max_length: int
) -> tuple[list[dict[str, np.ndarray]], int]:
    """The inputs of texts, or pairs of texts, cut to `max_length`, the longer text first; and how many were cut."""
    inputs, cut = list[dict[str, np.ndarray]](), 0
    for _, encoding in encodings(tokenizer, texts, pairs, truncation=True, max_length=max_length):
        inputs += [tokenizer_inputs(encoding, number) for number in range(len(encoding.encodings))]
        cut += sum(bool(each.overflowing) for each in encoding.encodings)
    return inputs, cut


def encodings(
    tokenizer: Any, texts: Sequence[str], pairs: Sequence[str] | None = None, *, kind: str = "text", **options: Any
) -> Iterator[tuple[int, Any]]:
    """What a tokenizer makes of texts, which are its argument `kind`, a few at once, with the number of the first."""
    for start in range(0, len(texts), _TOKENIZE_AT_ONCE):
        part = slice(start, start + _TOKENIZE_AT_ONCE)
        second = None if pairs is None else list(pairs[part])
        yield start, tokenizer(**{kind: list(texts[part])}, text_pair=second, return_attention_mask=False, **options)


def pad_inputs(*, examples: Sequence[Mapping[str, Any]], tokenizer: Any, side: str | None = None) -> dict[str, Tensor]:
    """`input_ids`, `attention_mask` and `token_type_ids` (where examples have them) of a batch, int64 [batch, length].

    They are padded to the longest example, rounded up, on that `side` or the tokenizer's.
    """
    lengths = [len(example["input_ids"]) for example in examples]
    mask = mask_of(lengths, most=tokenizer.model_max_length, side=side or tokenizer.padding_side)
    fill = {"input_ids": tokenizer.pad_token_id, "token_type_ids": getattr(tokenizer, "pad_token_type_id", 0)}
    names = [name for name in fill if name in examples[0]]
    padded = {name: pad_like([example[name] for example in examples], mask=mask, fill=fill[name]) for name in names}
    return {**padded, "attention_mask": mask.long()}


def mask_of(lengths: Sequence[int], *, most: int, side: str = "right") -> Tensor:
    """Where tokens stand in rows that are padded to the longest, rounded up to `most`: bool [rows, length]."""
    longest = max(lengths)
    # Each new length costs a processor a compilation of its kernels. On a Xeon with AMX, bf16, six batches of 32 x
    # 40..256 tokens: 4,350 tokens a second at first sight of a length, 5,800 later.
    step = 4 if longest <= 32 else 8 if longest <= 128 else 16
    places = torch.arange(max(longest, min(-(-longest // step) * step, most)))
    sizes = torch.tensor(lengths)[:, None]
    return places >= len(places) - sizes if side == "left" else places < sizes


def stacked(examples: Sequence[Mapping[str, Any]], *names: str) -> dict[str, Tensor]:
    """A number of each example under each of the names that the examples have: int64 [batch]."""
    return {name: torch.tensor([example[name] for example in examples]) for name in names if name in examples[0]}


def pad_like(values: Sequence[np.ndarray], *, mask: Tensor, fill: int) -> Tensor:
    """A number for each token that a mask [batch, length] has, int64: of int [tokens] of each; `fill` where padded."""
    padded = torch.full(mask.shape, fill)
    padded[mask.bool()] = torch.from_numpy(np.concatenate(values).astype(np.int64))
    return padded


def model_inputs(batch: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The part of a batch that a model's forward takes; labels stay out, since the task computes the loss."""
    return {name: batch[name] for name in MODEL_INPUTS if name in batch}


def records(**columns: Tensor | Sequence[Any]) -> list[dict[str, Any]]:
    """One dictionary for each place of columns of the same length."""
    lists = [column.tolist() if isinstance(column, Tensor) else column for column in columns.values()]
    return [dict(zip(columns, values, strict=True)) for values in zip(*lists, strict=True)]


# To \w of `re` a vowel sign of Hindi or a point of Hebrew is no part of a word, and neither is the diaeresis of a "u"
# that stands in the text as two characters: it takes such words apart.
_LETTERS = r"\p{L}\p{N}_"  # what is \w to `re`
_MARKS = r"\p{M}\u200c\u200d"  # on and between letters: vowel signs, viramas, accents, the two joiners
_BLANKS = r"\s\x1c-\x1f"  # what is \s to `re`, and what `str.split` parts a text at
_WORD = rf"[{_LETTERS}][{_LETTERS}{_MARKS}]*+"
WORDS = regex.compile(_WORD)  # words alone; "_" is a letter, as for `re`
TOKENS = regex.compile(rf"{_WORD}://[^{_BLANKS}]+|[@#]?{_WORD}(?:[-'’]{_WORD})*|[^{_LETTERS}{_BLANKS}][{_MARKS}]*")
"""Words and signs of a text, as collections of tagged sentences part them; addresses, @names and #topics whole."""
