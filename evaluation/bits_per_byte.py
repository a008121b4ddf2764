"""Bits per byte: how many bits the model needs for a byte of text, whatever its tokenizer.

The sum of the losses over a text is divided by the bytes of the text itself, so that models with different
vocabularies can be compared, which perplexity per token does not allow. Lower is better; 8 is knowing nothing.
"""

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from lacuna.common.errors import InputError, progress_bar

from .baselines import with_intervals
from .language_model import LanguageModel, Request, score

DEFAULT_WINDOW = 256
MASK_PROBABILITY = 0.15  # BERT's rate, whatever the model was trained with, so that results can be compared
MASK_SEED = 15  # frozen: the mask depends on it and on the numbers of document and window, and on no option


def measure_bits_per_byte(
    *, language_model: LanguageModel, documents: Sequence[str], window: int | None = None, stride: int | None = None
) -> dict[str, float]:
    """Bits per byte of documents: exact for causal models, at masked positions for masked ones (docs/evaluation.md).

    Causal models: every token is scored once, each document behind a start token; its end is not scored. Windows of a
    longer document overlap, so that all tokens but its first are predicted from at least `window - stride` others.

    Masked models: 15 % of the units of each window are masked, and the nats of what was hidden are divided by its
    bytes. A unit is a token; tokens that share a character are hidden together, and white space belongs to the unit
    after it.

    Raises InputError: there is no text, or the window does not fit the model.
    """
    limit = language_model.max_length
    if window is None:
        window = DEFAULT_WINDOW if limit is None else min(DEFAULT_WINDOW, limit)
    if limit is not None and window > limit:
        raise InputError(f"--window {window} is more than the {limit} tokens that the model takes: lower it")
    if not any(documents):
        raise InputError("there is no text to evaluate: every document is empty. Check --data")
    if language_model.kind == "masked":
        return _masked(language_model, documents, window=window)
    stride = max(1, window // 2) if stride is None else stride
    if not 1 <= stride < window:
        raise InputError(f"--stride {stride} must be at least 1 and less than --window {window}")
    return _causal(language_model, documents, window=window, stride=stride)


def cut_windows(*, length: int, window: int, stride: int) -> Iterator[tuple[int, int, int]]:
    """Windows (begin, first, end) over tokens 0 to `length`: tokens begin:end are read, first:end are scored.

    Token 0 is given; each other token is scored once, from at least `min(window - stride, all)` tokens before it.
    """
    first, end = 1, min(window, length)
    while first < length:
        yield max(0, end - window), first, end
        first, end = end, min(end + stride, length)


def _causal(language_model: LanguageModel, documents: Sequence[str], *, window: int, stride: int) -> dict[str, float]:
    start = np.asarray(language_model.prefix, dtype=np.int64)  # one token, which is given
    streams = [np.concatenate([start, ids]) for ids, _ in _encode(language_model, documents)]

    def requests() -> Iterator[Request]:
        for owner, stream in enumerate(streams):
            for begin, first, end in cut_windows(length=len(stream), window=window, stride=stride):
                places = np.arange(first, end) - 1 - begin
                yield Request(stream[begin:end], places, stream[first:end], owner, end - first)

    if not (tokens := sum(len(stream) - 1 for stream in streams)):
        raise InputError("the tokenizer makes no tokens of this text. Check --data")
    nats, counts, _ = _sums(language_model, requests(), texts=len(streams), total=tokens)
    sizes = np.asarray([len(text.encode()) for text in documents])
    size = int(sizes.sum())
    return {
        **_bits_of("bits_per_byte", nats, sizes),
        "baseline_unigram_bits_per_byte": _unigram_bits(counts) / size,
        "bits_per_token": float(nats.sum()) / math.log(2) / tokens,
        "bytes": size,
        "tokens": tokens,
        "documents": len(documents),
        "unknown_tokens": _unknown(language_model, counts),
        "window": window,
        "stride": stride,
    }


def _masked(language_model: LanguageModel, documents: Sequence[str], *, window: int) -> dict[str, float]:
    prefix, suffix = language_model.prefix, language_model.suffix
    room = window - len(prefix) - len(suffix)
    if room < 1:
        raise InputError(f"--window {window} leaves no room for text beside special tokens: raise it")
    requests: list[Request] = []
    sizes = np.zeros(len(documents), dtype=np.int64)
    for document, (ids, offsets) in enumerate(_encode(language_model, documents)):
        units = text_units(text=documents[document], offsets=offsets)
        for number, (first, last) in enumerate(_group_units(units, room=room)):
            generator = np.random.default_rng([MASK_SEED, document, number])
            chosen = np.sort(generator.permutation(last - first)[: max(1, round(MASK_PROBABILITY * (last - first)))])
            begin = units[first][0]
            places = np.concatenate([np.arange(*units[first + unit][:2]) for unit in chosen])
            hidden = ids[begin : units[last - 1][1]].copy()
            hidden[places - begin] = language_model.tokenizer.mask_token_id
            whole = np.concatenate([prefix, hidden, suffix]).astype(np.int64)
            requests.append(Request(whole, places - begin + len(prefix), ids[places], document, len(whole)))
            sizes[document] += sum(units[first + unit][2] for unit in chosen)
    if not (masked_bytes := int(sizes.sum())):
        raise InputError("the tokenizer makes no tokens of this text. Check --data")
    total = sum(request.weight for request in requests)
    nats, counts, hits = _sums(language_model, iter(requests), texts=len(sizes), total=total)
    tokens = int(counts.sum())
    return {
        **_bits_of("masked_bits_per_byte", nats, sizes),
        "baseline_unigram_masked_bits_per_byte": _unigram_bits(counts) / masked_bytes,
        "masked_accuracy": hits / tokens,
        "baseline_most_frequent_token_accuracy": float(counts.max()) / tokens,
        "masked_bytes": masked_bytes,
        "masked_tokens": tokens,
        "bytes": sum(len(text.encode()) for text in documents),
        "documents": len(documents),
        "unknown_tokens": _unknown(language_model, counts),
        "window": window,
    }


def text_units(*, text: str, offsets: np.ndarray) -> list[tuple[int, int, int]]:
    """Cut the tokens of a text into units (first token, end, bytes) whose bytes add up to those of the text.

    Tokens that share a character, as byte-level tokens of rare ones do, are one unit; so is a token without any
    character and its neighbour. What lies between two units belongs to the second, what follows the last one to it.
    `offsets` are the characters of each token, int64 [number of tokens, 2].
    """
    units: list[tuple[int, int, int]] = []
    first, begin, reached = 0, 0, 0
    for token, end in enumerate(offsets[:, 1].tolist() if len(offsets) else []):
        reached = max(reached, end)
        is_last = token + 1 == len(offsets)
        if is_last:
            reached = len(text)
        if is_last and reached == begin and units:  # it has no character: it goes with the one before
            units[-1] = (units[-1][0], token + 1, units[-1][2])
        elif is_last or (reached > begin and offsets[token + 1, 0] >= reached):
            units.append((first, token + 1, len(text[begin:reached].encode())))
            first, begin = token + 1, reached
    return units


def _group_units(units: list[tuple[int, int, int]], *, room: int) -> Iterator[tuple[int, int]]:
    """Runs of units (first, end) of at most `room` tokens."""
    first = 0
    for number, (begin, end, _) in enumerate(units):
        if end - begin > room:
            raise InputError(f"{end - begin} tokens make one character: --window has no room for them, raise it")
        if end - units[first][0] > room:
            yield first, number
            first = number
    if units:
        yield first, len(units)


def _encode(language_model: LanguageModel, documents: Sequence[str]) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    for number, text in enumerate(progress_bar(documents, doing="tokenizing", unit="document")):
        yield language_model.encode(text, where=f"document {number + 1}")


def _sums(
    language_model: LanguageModel, requests: Iterator[Request], *, texts: int, total: int
) -> tuple[np.ndarray, np.ndarray, int]:
    """Nats of the targets of each text, how often each token is one (int64 [vocabulary]), how many were likeliest."""
    counts = np.zeros(language_model.model.get_input_embeddings().num_embeddings, dtype=np.int64)
    nats = np.zeros(texts, dtype=np.float64)
    hits = 0
    asked: dict[str, Any] = {"language_model": language_model, "requests": requests, "total": total}
    for request, losses, right in score(**asked, description="bits per byte", hits=True):
        nats[request.owner] += losses.sum()
        hits += int(right.sum())
        np.add.at(counts, request.targets, 1)
    return nats, counts, hits


def _bits_of(name: str, nats: np.ndarray, sizes: np.ndarray) -> dict[str, float]:
    """Bits per byte of documents with these nats and bytes."""
    statistic = lambda units: nats[units].sum() / math.log(2) / max(1, sizes[units].sum())  # noqa: E731
    return with_intervals(name=name, statistic=statistic, groups={"documents": len(sizes)})


def _unigram_bits(counts: np.ndarray) -> float:
    """Bits for all tokens from a model that knows exactly how frequent each is here, and nothing else."""
    seen = counts[counts > 0].astype(np.float64)
    return float((seen * np.log2(seen.sum() / seen)).sum())


def _unknown(language_model: LanguageModel, counts: np.ndarray) -> int:
    unknown = language_model.tokenizer.unk_token_id
    # GPT-2 names its end of document as the unknown token as well; it is not made of text either way.
    return 0 if unknown is None else int(counts[unknown])
