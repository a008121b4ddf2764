"""Masked and causal rows in one run: which is which, what is asked, and how the losses add up."""

import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch
from examples import examples
from hypothesis import given
from hypothesis import strategies as st
from slow_reference import concatenated, framed, masked
from torch import nn
from torch.nn import functional
from transformers import LlamaConfig, LlamaForCausalLM

from lacuna.common.errors import InputError
from lacuna.modeling import LacunaConfig, LacunaForCausalLM
from lacuna.objectives import IGNORED, HybridLanguageModelling, random_stream
from lacuna.training.order import row_of

SMALL = {"vocab_size": 64, "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
SMALL |= {"intermediate_size": 32, "initializer_range": 0.5}


@pytest.fixture(scope="module")
def store(store_of):
    generator = np.random.default_rng(5)
    return store_of([[generator.integers(5, 60, size=generator.integers(3, 40)).tolist()] for _ in range(40)])


@pytest.fixture(scope="module")
def model() -> Any:
    torch.manual_seed(0)
    return LacunaForCausalLM(LacunaConfig.from_family("qwen3", **SMALL, hybrid=True)).eval()


@examples(100)
@given(share=st.decimals("0.001", "0.999", places=3), first=st.integers(0, 2**40), length=st.integers(1, 6))
def test_each_64_samples_have_the_share_of_causal_rows(share, first, length) -> None:
    work = object.__new__(HybridLanguageModelling)
    work.share, work.seed = Fraction(str(share)), 5
    causal = sum(work.is_causal(index) for index in range(64 * first, 64 * (first + length)))
    assert abs(causal - 64 * length * work.share) < 1


@pytest.mark.parametrize("weights", [(0.5, 0.5), (0.75, 0.25), (0.9, 0.1), (0.5, 0.25, 0.25)])
@pytest.mark.parametrize("share", ["0.5", "0.25"])
def test_each_weighted_source_has_the_share_of_causal_rows(weights, share) -> None:
    """Sources take turns evenly; kinds that did so too would meet the same source again and again."""
    work = object.__new__(HybridLanguageModelling)
    work.share, work.seed = Fraction(share), 5
    mixture = [(1, weight) for weight in weights]
    kinds: dict[int, list[bool]] = {source: [] for source in range(len(weights))}
    for index in range(2048):
        kinds[row_of(index, seed=5, num_examples=len(weights), mixture=mixture)].append(work.is_causal(index))
    for found in kinds.values():
        error = 4 * (float(work.share) * (1 - float(work.share)) / len(found)) ** 0.5
        assert sum(found) / len(found) == pytest.approx(float(work.share), abs=error)


@examples(40)
@given(
    lengths=st.lists(st.lists(st.integers(1, 20), min_size=1, max_size=8), min_size=1, max_size=8),
    seed=st.integers(0, 2**32),
    how=st.sampled_from(["token", "whole_word", "span"]),
)
def test_examples_are_those_of_the_reference(numbered, parts, lengths, seed, how) -> None:
    arguments = parts(numbered(lengths), seed=seed, masking=how, eval_fraction=0, hybrid_causal_share=0.25)
    work = HybridLanguageModelling(**arguments)
    rows = concatenated(framed(work.store, work.documents), length=32, overlap=1)
    assert work.num_examples == len(rows)
    for number, pieces in enumerate(rows):
        ids = [token for piece in pieces for token in piece]
        first = [place == 0 for piece in pieces for place in range(len(piece))]
        order = random_stream(seed=seed, stream="kinds", index=number // 64).permutation(64)
        causal = order[number % 64] % 4 == 3
        if causal:
            seen = ids
            labels = [IGNORED if begins else token for token, begins in zip(ids, first, strict=True)]
        else:
            seen, labels = masked(
                ids,
                tokens=work.tokens,
                edges=arguments["token_edges"].tolist(),
                how=how,
                probability=0.3,
                generator=random_stream(seed=seed, stream="mask", index=number),
                given=[not begins for begins in first],
            )
        found = work.example(number, number)
        padding = 32 - len(ids)
        assert found["input_ids"].tolist() == seen + [0] * padding
        assert found["labels"].tolist() == labels + [IGNORED] * padding
        assert found["is_causal"] == causal
        positions = [place for piece in pieces for place in range(len(piece))]
        assert found["position_ids"].tolist() == positions + list(range(padding))


def slow_loss(model: Any, example: dict[str, Any]) -> tuple[float, int]:
    """Sum of the cross-entropies of a row, read as its kind is, and number of targets."""
    ids, positions = (torch.as_tensor(example[name])[None] for name in ("input_ids", "position_ids"))
    with torch.no_grad():
        logits = model(ids, position_ids=positions, is_causal=bool(example["is_causal"]), use_cache=False).logits[0]
    total, count = 0.0, 0
    for place, label in enumerate(example["labels"].tolist()):
        if label != IGNORED:
            total -= float(functional.log_softmax(logits[place - 1].double(), dim=-1)[label])
            count += 1
    return total, count


@pytest.mark.parametrize("share", [0.5, 0.1])
def test_the_loss_is_a_mean_over_all_targets_and_its_parts_over_their_own(store, parts, model, share) -> None:
    work = HybridLanguageModelling(**parts(store, hybrid_causal_share=share))
    examples = [work.example(row, row) for row in range(10)]
    batch = work.collate(examples)
    sums = {0: [0.0, 0], 1: [0.0, 0]}
    for example in examples:
        total, count = slow_loss(model, example)
        sums[example["is_causal"]][0] += total
        sums[example["is_causal"]][1] += count
    counts = work.count_targets(batch)
    assert counts == {"tokens": sums[0][1] + sums[1][1], "masked": sums[0][1], "causal": sums[1][1]}
    with torch.no_grad():
        loss, found = work.loss(model, batch, {name: torch.tensor(count) for name, count in counts.items()})
    assert float(loss) == pytest.approx((sums[0][0] + sums[1][0]) / counts["tokens"], rel=1e-5)
    assert found["mlm_loss"].tolist() == pytest.approx(sums[0], rel=1e-5)
    assert found["clm_loss"].tolist() == pytest.approx(sums[1], rel=1e-5)


class Counted(nn.Module):
    """A model that counts how often it runs."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.module, self.calls = model, []

    def forward(self, **inputs: Any) -> Any:
        self.calls.append((inputs["is_causal"], len(inputs["input_ids"])))
        return self.module(**inputs)


@pytest.mark.parametrize("rows, kinds", [([0], [False]), ([1], [True]), ([0, 1, 2], [False, True])])
def test_the_model_runs_once_for_each_kind_present_and_on_several_processes_for_both(
    store, parts, model, monkeypatch, rows, kinds
) -> None:
    """DDP would wait for ever for a process that runs its model less often."""
    work = HybridLanguageModelling(**parts(store))
    monkeypatch.setattr(work, "is_causal", lambda index: index % 2 == 1)
    batch = work.collate([work.example(row, row) for row in rows])
    targets = {"tokens": torch.tensor(50), "masked": torch.tensor(20), "causal": torch.tensor(30)}
    alone = Counted(model)
    loss, found = work.loss(alone, batch, targets)
    assert [kind for kind, _ in alone.calls] == kinds
    loss.backward()
    gradients = [parameter.grad.clone() for parameter in model.parameters()]
    model.zero_grad()
    monkeypatch.setattr("lacuna.objectives.hybrid.several_processes", lambda: True)
    together = Counted(model)
    same_loss, same = work.loss(together, batch, targets)
    assert [kind for kind, _ in together.calls] == [False, True]
    assert same_loss.item() == pytest.approx(loss.item(), rel=1e-6)
    for name, value in found.items():
        assert same[name].tolist() == pytest.approx(value.tolist())
    same_loss.backward()
    for parameter, gradient in zip(model.parameters(), gradients, strict=True):
        torch.testing.assert_close(parameter.grad, gradient)
    model.zero_grad()


def test_every_held_out_row_is_evaluated_in_both_ways(store, parts, model) -> None:
    work = HybridLanguageModelling(**parts(store, eval_fraction=0.3))
    assert work.num_eval_examples == 2 * len(work.eval_rows)
    for row in range(0, work.num_eval_examples, 2):
        hidden, plain = work.eval_example(row), work.eval_example(row + 1)
        assert (hidden["is_causal"], plain["is_causal"]) == (0, 1)
        ids = np.where(hidden["labels"] != IGNORED, hidden["labels"], hidden["input_ids"])
        assert ids.tolist() == plain["input_ids"].tolist()
        assert (hidden["labels"] != IGNORED).sum() < (plain["labels"] != IGNORED).sum()
    capped = HybridLanguageModelling(**parts(store, eval_fraction=0.3, max_eval_examples=5))
    assert capped.num_eval_examples == 4
    baseline = work.baseline()
    assert 0 < baseline["mlm_loss"] < math.log(64) and 0 < baseline["clm_loss"] < math.log(64)


def test_a_decoder_that_only_reads_forwards_is_refused_by_name(store, parts) -> None:
    work = HybridLanguageModelling(**parts(store))
    config = LlamaConfig(**{name: value for name, value in SMALL.items() if name != "initializer_range"})
    with pytest.raises(InputError, match=r"LlamaForCausalLM takes no is_causal.*--objective clm"):
        work.check_model(LlamaForCausalLM(config))
