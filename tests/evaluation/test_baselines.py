"""What stands beside a score, by hand: n-grams, compressed sizes and intervals."""

import lzma
import math

import numpy as np
import pytest
import zstandard

from lacuna.evaluation import LanguageModel, measure_bits_per_byte, measure_text_baselines
from lacuna.evaluation.baselines import ngram_bits, with_intervals


def test_bigrams_by_hand():
    """Train "0 1 0": P1(0) = (2 + 2 / 4) / (3 + 2) = 1/2, P1(1) = (1 + 2 / 4) / 5 = 3/10, others (2 / 4) / 5 = 1/10.

    After the start, 0 was seen once of once: P(0) = (1 + 1 * 1/2) / 2 = 3/4. After 0, 1 once of once: P(1) =
    (1 + 3/10) / 2 = 13/20, P(2) = (0 + 1/10) / 2 = 1/20. After 2 nothing was seen: P(0) = P1(0) = 1/2.
    """
    train = [np.array([0, 1, 0])]
    cases = {(0,): 3 / 4, (0, 1): 3 / 4 * 13 / 20, (0, 2, 0): 3 / 4 * 1 / 20 * 1 / 2}
    for held_out, chance in cases.items():
        bits = ngram_bits(train=train, held_out=[np.array(held_out)], vocab_size=4, order=2)
        assert bits == pytest.approx(-math.log2(chance))
    assert ngram_bits(train=train, held_out=[np.array([1])], vocab_size=4, order=1) == pytest.approx(-math.log2(0.3))


def slow_chance(train: list[list[int]], context: tuple[int, ...], token: int, vocab_size: int) -> float:
    """The definition, word for word: recursion over contexts that grow shorter."""
    shorter = slow_chance(train, context[1:], token, vocab_size) if context else 1 / vocab_size
    after = [row[i + len(context)] for row in train for i in range(len(row) - len(context))
             if tuple(row[i : i + len(context)]) == context and row[i + len(context)] >= 0]  # fmt: skip
    kinds = len(set(after))
    return (after.count(token) + kinds * shorter) / (len(after) + kinds) if after else shorter


def test_5_grams_equal_the_slow_way_and_add_up_to_one():
    generator = np.random.default_rng(0)
    train = [generator.integers(4, size=length) for length in (40, 1, 0, 25)]
    starts = [[-1] * 4 + row.tolist() for row in train]
    history = generator.integers(4, size=9)
    padded = [-1] * 4 + history.tolist()
    slow = [slow_chance(starts, tuple(padded[i : i + 4]), padded[i + 4], 5) for i in range(9)]
    assert ngram_bits(train=train, held_out=[history], vocab_size=5) == pytest.approx(-np.log2(slow).sum())
    before = ngram_bits(train=train, held_out=[history], vocab_size=5)
    chances = [
        2 ** (before - ngram_bits(train=train, held_out=[np.append(history, token)], vocab_size=5))
        for token in range(5)
    ]
    assert sum(chances) == pytest.approx(1)


def test_documents_do_not_run_into_each_other():
    train = [np.array([0, 1, 2, 3])] * 3
    alone = [ngram_bits(train=train, held_out=[np.array(row)], vocab_size=4) for row in ([0, 1], [2, 3])]
    assert ngram_bits(train=train, held_out=[np.array([0, 1]), np.array([2, 3])], vocab_size=4) == sum(alone)


def test_intervals_of_a_mean_are_those_of_theory():
    """The mean of n values has the standard error of their deviation over the root of n."""
    values = np.random.default_rng(1).normal(size=2000)
    found = with_intervals(name="mean", statistic=lambda units: values[units].mean(), groups={"all": 2000})
    error = values.std() / math.sqrt(2000)
    assert set(found) == {"mean", "mean_low", "mean_high"} and found["mean"] == values.mean()
    assert found["mean_low"] == pytest.approx(values.mean() - 1.96 * error, abs=0.15 * error)
    assert found["mean_high"] == pytest.approx(values.mean() + 1.96 * error, abs=0.15 * error)


def test_intervals_draw_within_groups():
    """Within groups of equal values nothing varies; drawn from all of them together, much would."""
    values = np.array([1.0] * 3 + [0.0])
    found = with_intervals(name="x", statistic=lambda units: values[units].mean(), groups={"a": 3, "b": 1})
    assert found == {f"{name}{end}": value for name, value in (("x", 0.5), ("x_a", 1.0), ("x_b", 0.0))
                     for end in ("", "_low", "_high")}  # fmt: skip
    assert with_intervals(name="x", statistic=lambda units: 3.0, groups={"one": 1}) == {"x": 3.0}


def test_compressed_sizes_and_names(tokenizer, make_model):
    documents, train = ["The cats run. " * 30, "A dog sits."], ["The cats run. A dog sits on the mat. " * 20]
    text, before = "".join(documents).encode(), train[0].encode()

    def xz(data: bytes) -> int:
        return len(lzma.compress(data, preset=9))

    zstd = zstandard.ZstdCompressor(level=19).compress
    causal = LanguageModel.of(model=make_model("causal"), tokenizer=tokenizer)
    found = measure_text_baselines(language_model=causal, documents=documents)
    assert found == {
        "baseline_xz_bits_per_byte": 8 * xz(text) / len(text),
        "baseline_zstd_bits_per_byte": pytest.approx(8 * len(zstd(text)) / len(text), abs=0.1),  # of its window's size
    }
    found = measure_text_baselines(language_model=causal, documents=documents, train_documents=train)
    assert found["baseline_xz_after_train_text_bits_per_byte"] == 8 * (xz(before + text) - xz(before)) / len(text)
    bits = ngram_bits(
        train=[causal.encode(train[0], where="")[0]],
        held_out=[causal.encode(text, where="")[0] for text in documents],
        vocab_size=len(tokenizer),
    )
    assert found["baseline_5gram_bits_per_byte"] == bits / len(text) < found["baseline_xz_bits_per_byte"]
    masked = LanguageModel.of(model=make_model("masked"), tokenizer=tokenizer)
    names = measure_text_baselines(language_model=masked, documents=documents, train_documents=train)
    assert names == {name.replace("baseline", "whole_text"): value for name, value in found.items()}


@pytest.mark.parametrize("kind", ["causal", "masked"])
def test_bits_per_byte_have_intervals_over_documents(tokenizer, make_model, kind):
    model = LanguageModel.of(model=make_model(kind), tokenizer=tokenizer)
    name = "bits_per_byte" if kind == "causal" else "masked_bits_per_byte"
    found = measure_bits_per_byte(language_model=model, documents=["The cats sit.", "Who sees the dogs?", "", "She"])
    assert found[f"{name}_low"] < found[name] < found[f"{name}_high"]
    alike = measure_bits_per_byte(language_model=model, documents=["The cats sit."] * 3)
    if kind == "causal":  # what is masked depends on the number of a document
        assert alike[f"{name}_low"] == pytest.approx(alike[name]) == alike[f"{name}_high"]
    assert f"{name}_low" not in measure_bits_per_byte(language_model=model, documents=["The cats sit."])
