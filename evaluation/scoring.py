"""The one thing every suite asks of a model: how likely are these tokens at these positions of these rows?"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from inspect import signature
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional
from tqdm import tqdm

from lacuna.common.errors import NumericsError

if TYPE_CHECKING:
    from .language_model import LanguageModel

TOKENS_AT_ONCE = 8192
LOGIT_BYTES = 2**28  # logits held at once: 256 MiB, which is 8192 positions of a vocabulary of 8192
ROWS_SORTED_AT_ONCE = 4096  # rows of similar length make one batch; this many are looked at to find them


@dataclass(frozen=True, slots=True)
class Row:
    """One row to score."""

    ids: np.ndarray  # what the model reads, int64 [length]
    positions: np.ndarray  # where its predictions are read, int64 [num_targets]
    targets: np.ndarray  # ids whose likelihood is asked there, int64 [num_targets]
    owner: int  # number of the text or window that the row is from
    weight: int = 1  # how far this row moves the progress bar


@dataclass(frozen=True, slots=True)
class Scored:
    """A row with its losses in nats, float64 [num_targets], and whether each target was the likeliest token."""

    row: Row
    nats: np.ndarray
    hits: np.ndarray


def dense_logits(model: Any, **inputs: Any) -> Tensor:
    """Logits of all positions, [rows, length, vocabulary]; without a cache where the model could keep one."""
    if "use_cache" in signature(model.forward).parameters:
        inputs["use_cache"] = False
    output = model(**inputs)
    return output.prediction_logits if "prediction_logits" in output else output.logits


def logits_at(model: Any, inputs: dict[str, Tensor], *, rows: Tensor, positions: Tensor, selects: bool) -> Tensor:
    """Logits at chosen positions, [number chosen, vocabulary].

    A hook before the last projection drops the other positions: pseudo-log-likelihood reads one position of a row,
    and with a vocabulary of 8,192 the projection of a tiny model costs as much as its blocks.

    Args:
        rows, positions: int64 [number chosen].
        selects: False computes all logits first, which works for every model.
    """
    shape = inputs["input_ids"].shape

    def choose(module: Any, arguments: tuple[Any, ...]) -> Any:
        hidden = arguments[0]
        return (hidden[rows, positions], *arguments[1:]) if hidden.shape[:-1] == shape else None

    head = model.get_output_embeddings() if selects else None
    handle = None if head is None else head.register_forward_pre_hook(choose)
    try:
        logits = dense_logits(model, **inputs)
    finally:
        if handle is not None:
            handle.remove()
    return logits[rows, positions] if logits.dim() == 3 else logits


@torch.no_grad()
def score_rows(
    *, language_model: "LanguageModel", rows: Iterable[Row], total: int, batch_size: int | None, description: str
) -> Iterator[Scored]:
    """Score rows, in another order than they came.

    Args:
        rows: read lazily.
        total: sum of the rows' weights, for the progress bar, which appears after three seconds.
        batch_size: rows at once; None: about `TOKENS_AT_ONCE` tokens.

    Raises:
        NumericsError: a target's likelihood is not a finite number.
    """
    vocab_size = language_model.model.get_input_embeddings().num_embeddings
    with tqdm(total=total, desc=description, unit="token", unit_scale=True, delay=3, leave=False) as bar:
        for batch in _batches(iter(rows), batch_size=batch_size, vocab_size=vocab_size):
            yield from _score_batch(language_model, batch)
            bar.update(sum(row.weight for row in batch))


def _batches(rows: Iterator[Row], *, batch_size: int | None, vocab_size: int) -> Iterator[list[Row]]:
    """Batches of rows of similar length, the longest first."""
    while pool := sorted(islice(rows, ROWS_SORTED_AT_ONCE), key=lambda row: -len(row.ids)):
        start = 0
        while start < len(pool):
            batch = pool[start : start + (batch_size or max(1, TOKENS_AT_ONCE // len(pool[start].ids)))]
            if batch_size is None:
                sizes = 4 * vocab_size * np.cumsum([len(row.targets) for row in batch])
                batch = batch[: max(1, int(np.searchsorted(sizes, LOGIT_BYTES, side="right")))]
            yield batch
            start += len(batch)


def _score_batch(language_model: "LanguageModel", batch: list[Row]) -> list[Scored]:
    device, pad = language_model.device, language_model.tokenizer.pad_token_id
    length = max(len(row.ids) for row in batch)
    ids = np.full((len(batch), length), 0 if pad is None else pad, dtype=np.int64)
    mask = np.zeros_like(ids)
    for number, row in enumerate(batch):  # padding on the right: a causal model never sees it
        ids[number, : len(row.ids)] = row.ids
        mask[number, : len(row.ids)] = 1
    counts = [len(row.targets) for row in batch]
    targets = torch.from_numpy(np.concatenate([row.targets for row in batch])).to(device)
    logits = logits_at(
        language_model.model,
        {"input_ids": torch.from_numpy(ids).to(device), "attention_mask": torch.from_numpy(mask).to(device)},
        rows=torch.from_numpy(np.repeat(np.arange(len(batch)), counts)).to(device),
        positions=torch.from_numpy(np.concatenate([row.positions for row in batch])).to(device),
        selects=language_model.selects,
    )
    nats = functional.cross_entropy(logits.float(), targets, reduction="none").double().cpu().numpy()
    hits = (logits.argmax(dim=-1) == targets).cpu().numpy()
    if not np.isfinite(nats).all():
        raise NumericsError(
            "the model gives likelihoods that are not finite numbers: its weights are damaged, or it learned nothing. "
            "Look at the loss in metrics.jsonl beside it"
        )
    ends = np.cumsum(counts)
    return [
        Scored(row, nats[end - count : end], hits[end - count : end])
        for row, end, count in zip(batch, ends, counts, strict=True)
    ]
