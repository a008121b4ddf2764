"""What stands beside a score: an n-gram model and compressors for text, and confidence intervals by bootstrap."""

import lzma
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import zstandard

from lacuna.common.errors import progress_bar

from .language_model import LanguageModel

LOOK_BACK, AT_ONCE = 1 << 26, 1 << 18  # bytes: xz -9 has no larger window; between two moves of the bar
RESAMPLES, SEED, OUTSIDE = 1000, 95, 0.05  # frozen, so that results can be compared

Statistic = Callable[[np.ndarray], float]  # of units with these numbers


def with_intervals(*, name: str, statistic: Statistic, groups: Mapping[str, int]) -> dict[str, float]:
    """A score, the mean over groups, and the ends of its 95 % interval (percentiles of a bootstrap, Efron 1979).

    `groups`: units of each, which are numbered through and drawn within theirs. There is `name`, `name_low` and
    `name_high`, the same for each `name_GROUP` of several, and no interval of a single unit."""
    parts = np.split(np.arange(sum(groups.values())), np.cumsum([*groups.values()])[:-1])
    generator = np.random.default_rng(SEED)
    drawn = [[statistic(generator.choice(part, len(part))) for part in parts] for _ in range(RESAMPLES)]
    scores = np.asarray([[statistic(part) for part in parts], *drawn])
    columns = {name: scores.mean(axis=1)}
    if len(groups) > 1:
        columns |= {f"{name}_{group}": column for group, column in zip(groups, scores.T, strict=True)}
    results = {}
    for each, (score, *others) in columns.items():
        low, high = np.nanquantile(others, [OUTSIDE / 2, 1 - OUTSIDE / 2])
        results[each] = float(score)
        results |= {f"{each}_low": float(low), f"{each}_high": float(high)} if sum(groups.values()) > 1 else {}
    return results


def ngram_bits(
    *, train: Sequence[np.ndarray], held_out: Sequence[np.ndarray], vocab_size: int, order: int = 5
) -> float:
    """Bits of the tokens of held-out documents by an n-gram model of training documents; ids are int64 [length].

    Interpolated as in Witten and Bell 1991, method C (https://doi.org/10.1109/18.87000): a context seen n times, with
    t different tokens after it, leaves the next shorter one t / (n + t); behind the shortest, all ids are alike.
    """
    start = vocab_size  # stands before a document as often as a context is long, and is not predicted
    rows = [np.concatenate([np.full(order - 1, start), ids]).astype(np.int64) for ids in (*train, *held_out)]
    tokens = np.concatenate(rows)
    is_text, is_train = tokens != start, np.arange(len(tokens)) < sum(map(len, rows[: len(train)]))
    learned = is_text & is_train
    context = np.zeros(len(tokens), dtype=np.int64)  # a number for each sequence of the tokens before
    chance = np.full(len(tokens), 1 / vocab_size)
    for _ in range(order):
        grams, gram = np.unique(context * (vocab_size + 1) + tokens, return_inverse=True)
        counts = np.bincount(gram[learned], minlength=len(grams))
        kinds = np.bincount((grams // (vocab_size + 1))[counts > 0], minlength=context.max() + 1)[context]
        seen = np.bincount(context[learned], minlength=context.max() + 1)[context]
        chance = np.where(seen > 0, (counts[gram] + kinds * chance) / np.maximum(seen + kinds, 1), chance)
        context = np.concatenate([[0], gram[:-1]])
    return float(-np.log2(chance[is_text & ~is_train]).sum())


def compressed(text: bytes, by: str) -> float:
    """Bits of a text by `xz -9` or `zstd -19`, with a progress bar after three seconds."""
    zstd = zstandard.ZstdCompressionParameters.from_level(19, window_log=LOOK_BACK.bit_length() - 1)
    of_zstd = zstandard.ZstdCompressor(compression_params=zstd).compressobj(size=len(text))
    stream, size = lzma.LZMACompressor(preset=9) if by == "xz" else of_zstd, 0
    with progress_bar(total=len(text), doing=by, unit="B") as bar:
        for start in range(0, len(text), AT_ONCE):
            size += len(stream.compress(text[start : start + AT_ONCE]))
            bar.update(min(AT_ONCE, len(text) - start))
    return 8.0 * (size + len(stream.flush()))


def measure_text_baselines(
    *, language_model: LanguageModel, documents: Sequence[str], train_documents: Sequence[str] = ()
) -> dict[str, float]:
    """Bits per byte of documents by `xz -9` and `zstd -19`, which see them in a row, and by what knows training text.

    That is `5gram`, over the model's tokens, and `xz_after_train_text` and `zstd_after_train_text`: the bytes that the
    documents add to the last 64 MiB of that text. Names begin with `baseline_`, or `whole_text_` for a masked model,
    whose bits are of another kind.
    """
    text, before = ("".join(some).encode() for some in (documents, train_documents))
    before = before[-LOOK_BACK:]
    bits = {name: compressed(text, name) for name in ("xz", "zstd")}
    if before:
        for name in ("xz", "zstd"):
            bits[f"{name}_after_train_text"] = compressed(before + text, name) - compressed(before, name)
        train, held_out = (
            [language_model.encode(each, where=f"document {number}")[0] for number, each in enumerate(some, start=1)]
            for some in (train_documents, documents)
        )
        bits["5gram"] = ngram_bits(train=train, held_out=held_out, vocab_size=len(language_model.tokenizer))
    kind = "baseline" if language_model.kind == "causal" else "whole_text"
    return {f"{kind}_{name}_bits_per_byte": each / len(text) for name, each in bits.items()}
