"""Damaged text: BART's infilling against a slow reference, statistics, and rows that hold several."""

import math
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from examples import examples
from hypothesis import given
from hypothesis import strategies as st
from slow_reference import concatenated, cut, filled_in, framed
from transformers import BartConfig, BartForConditionalGeneration

from lacuna.common.errors import InputError
from lacuna.modeling import LacunaConfig, LacunaForConditionalGeneration
from lacuna.objectives import IGNORED, Denoising, random_stream
from lacuna.objectives.denoising import fill_in

START, END, MASK = 2, 3, 4


# One text


@examples(200)
@given(length=st.integers(1, 80), probability=st.floats(0.01, 1), seed=st.integers(0, 2**32))
def test_infilling_is_that_of_the_reference(length, probability, seed) -> None:
    text = list(range(10, 10 + length))
    found, spans = fill_in(
        np.array(text), mask=MASK, probability=probability, generator=random_stream(seed=seed, stream="t", index=0)
    )
    expected = filled_in(
        text, mask=MASK, probability=probability, generator=random_stream(seed=seed, stream="t", index=0)
    )
    assert found.tolist() == expected
    assert len(found) <= length and abs(spans.sum() - max(1, probability * length)) < 1
    assert (found == MASK).sum() == len(spans)
    kept = [token for token in found.tolist() if token != MASK]
    assert kept == sorted(kept) and len(kept) == length - spans.sum()


def test_infilled_spans_are_poisson() -> None:
    """2,500 texts of 100 tokens; the first span of each draw is never cut short."""
    first, gone = [], []
    for index in range(2_500):
        generator = random_stream(seed=1, stream="test", index=index)
        again = random_stream(seed=1, stream="test", index=index)
        damaged, spans = fill_in(np.arange(100), mask=-1, probability=0.3, generator=generator)
        again.random()  # rounds the number of tokens
        first.append(int(again.poisson(3)))
        gone.append(100 - int((damaged >= 0).sum()))
        assert first[-1] in spans or first[-1] > 30
    assert set(gone) == {30}
    for length in range(9):
        share = math.exp(-3) * 3**length / math.factorial(length)
        assert abs(np.mean(np.array(first) == length) - share) < 4 * math.sqrt(share * (1 - share) / len(first))


def test_spans_of_an_infilled_text_are_as_the_paper_draws_them() -> None:
    """Over whole texts: 30 % in spans of mean 3, of which one in twenty inserts a mask and takes nothing."""
    lengths = np.concatenate(
        [
            fill_in(
                np.arange(400), mask=-1, probability=0.3, generator=random_stream(seed=2, stream="test", index=index)
            )[1]
            for index in range(2000)
        ]
    )
    # The last span of a text is cut to what is left, which shortens the mean by less than 2 %.
    assert 2.9 < lengths.mean() < 3.0
    assert abs(np.mean(lengths == 0) - math.exp(-3)) < 0.004


# Rows


def texts_of(row: list[list[int]]) -> list[tuple[bool, list[int]]]:
    """Of each piece that holds text: whether it begins a document, and the text."""
    texts = [(piece[0] == START, [token for token in piece if token > MASK]) for piece in row]
    return [(begins, text) for begins, text in texts if text]


@pytest.mark.parametrize("packing", ["concatenate", "none"])
@examples(25)
@given(
    lengths=st.lists(st.lists(st.integers(1, 20), min_size=1, max_size=6), min_size=1, max_size=8),
    seed=st.integers(0, 2**32),
)
def test_examples_are_those_of_the_reference(numbered, parts, packing, lengths, seed) -> None:
    work = Denoising(**parts(numbered(lengths), seed=seed, eval_fraction=0, packing=packing))
    documents = framed(work.store, work.documents)
    if packing == "none":
        rows = [[piece] for document in documents for piece in cut(document, length=31)]
    else:
        rows = concatenated(documents, length=31)
    assert work.num_examples == len(rows)
    for number, row in enumerate(rows):
        generator = random_stream(seed=seed, stream="noise", index=number)
        reads, writes = [], []
        for begins, text in texts_of(row):
            read = filled_in(text, mask=MASK, probability=0.3, generator=generator)
            reads.append([START] * begins + read + [END])
            writes.append([*text, END])
        if not reads:
            reads, writes = [[END]], [[IGNORED]]
        found = work.example(number, number)
        assert found["input_ids"].tolist() == [token for read in reads for token in read]
        assert found["labels"].tolist() == [token for written in writes for token in written]
        given_tokens = [token for written in writes for token in [START, *written[:-1]]]
        assert found["decoder_input_ids"].tolist() == given_tokens
        for side, pieces in (("", reads), ("decoder_", writes)):
            size = sum(map(len, pieces))
            assert size <= 32 and found[f"{side}attention_mask"].tolist() == [1] * size
            if packing == "none":
                assert f"{side}position_ids" not in found and len(pieces) == 1
            else:
                positions = [place for piece in pieces for place in range(len(piece))]
                assert found[f"{side}position_ids"].tolist() == positions


@pytest.mark.parametrize("packing", ["concatenate", "none"])
def test_infilling_asks_for_every_token_of_every_document_once_an_epoch(numbered, parts, packing) -> None:
    work = Denoising(**parts(numbered([[3, 9, 1], [5], [1], [20, 30, 11], [4, 4], [1, 1]]), packing=packing))
    asked = [token for row in range(work.num_examples) for token in work.example(row, row)["labels"].tolist()]
    text = [token for document in framed(work.store, work.documents) for token in document if token > MASK]
    assert sorted(token for token in asked if token > MASK) == sorted(text)


SMALL = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}


def small_model(family: str, vocab_size: int, implementation: str) -> Any:
    torch.manual_seed(0)
    config = LacunaConfig.from_family(family, vocab_size=vocab_size, initializer_range=0.5, **SMALL)
    config._attn_implementation = implementation
    return LacunaForConditionalGeneration(config).eval()


@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
@pytest.mark.parametrize("family", ["bart", "vaswani"])
def test_a_packed_row_learns_what_its_documents_learn_alone(store_of, parts, family, implementation) -> None:
    """Loss and gradient, of real models: the n-th document of the decoder sees the n-th of the encoder only."""
    generator = np.random.default_rng(3)
    documents = [[generator.integers(5, 60, size=size).tolist()] for size in (3, 9, 1, 14, 2, 25, 40, 6)]
    work = Denoising(**parts(store_of(documents), eval_fraction=0))
    model = small_model(family, work.tokens.vocab_size, implementation)
    batch = work.collate([work.example(row, row) for row in range(work.num_examples)])
    assert batch["input_ids"].shape[1] <= 32 and batch["labels"].shape[1] <= 32
    count = work.count_targets(batch)["tokens"]
    loss, _ = work.loss(model, batch, {"tokens": torch.tensor(count)})
    loss.backward()
    gradients = {name: parameter.grad.clone() for name, parameter in model.named_parameters()}
    model.zero_grad()
    total = torch.zeros(())
    for row in range(work.num_examples):
        example = work.example(row, row)
        sides = []
        for ids, positions in (("input_ids", "position_ids"), ("labels", "decoder_position_ids")):
            starts = [*np.flatnonzero(example[positions] == 0).tolist(), len(example[ids])]
            sides.append([slice(*pair) for pair in pairwise(starts)])
        for here, there in zip(*sides, strict=True):
            alone = model(
                input_ids=torch.tensor(example["input_ids"][here])[None],
                decoder_input_ids=torch.tensor(example["decoder_input_ids"][there])[None],
                labels=torch.tensor(example["labels"][there])[None],
                num_items_in_batch=count,
            )
            total = total + alone.loss
    assert loss.item() == pytest.approx(total.item(), rel=1e-5)
    total.backward()
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(parameter.grad, gradients[name], atol=1e-5, rtol=1e-4, msg=name)


def test_scores_of_a_batch_are_those_of_its_rows(store_of, parts) -> None:
    generator = np.random.default_rng(3)
    documents = [[generator.integers(5, 60, size=size).tolist()] for size in (3, 9, 1, 14, 2, 25, 40, 6, 30, 30)]
    work = Denoising(**parts(store_of(documents), eval_fraction=0.4))
    model = small_model("bart", work.tokens.vocab_size, "sdpa")
    examples = [work.eval_example(row) for row in range(work.num_eval_examples)]
    with torch.no_grad():
        together = work.evaluate(model, work.collate(examples))
        apart = [work.evaluate(model, work.collate([example]))[0] for example in examples]
    assert len(together) > 2
    for one, other in zip(together, apart, strict=True):
        assert one == pytest.approx(other, rel=1e-5)
    baseline = work.baseline()
    assert 0 < baseline["loss"] < 1.1 * math.log(work.tokens.vocab_size)  # every token is as frequent here


def test_models_of_the_library_read_unpacked_rows_only(store_of, parts) -> None:
    config = BartConfig(
        vocab_size=70, d_model=16, encoder_layers=1, decoder_layers=1, encoder_attention_heads=2,
        decoder_attention_heads=2, encoder_ffn_dim=32, decoder_ffn_dim=32, dropout=0.0,
    )  # fmt: skip
    model = BartForConditionalGeneration(config).eval()
    store = store_of([[list(range(5, 30))], [list(range(30, 60))]])
    work = Denoising(**parts(store, packing="none"))
    examples = [work.example(row, row) for row in range(work.num_examples)]
    batch = work.collate(examples)
    targets = {"tokens": torch.tensor(work.count_targets(batch)["tokens"])}
    with torch.no_grad():
        loss, _ = work.loss(model, batch, targets)
        pieces = [work.loss(model, work.collate([example]), targets)[0] for example in examples]
        mean = model(**batch).loss
    assert float(loss) == pytest.approx(float(mean), rel=1e-5) == pytest.approx(float(sum(pieces)), rel=1e-5)
    packed = Denoising(**parts(store))
    with pytest.raises(InputError, match=r"BartForConditionalGeneration takes no.*--packing none"):
        packed.check_model(model)
