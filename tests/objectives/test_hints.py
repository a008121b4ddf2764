"""What a GPU is told so that nobody waits for it: right, and without effect on what is learned."""

from typing import Any

import numpy as np
import pytest
import torch
import transformers
from examples import examples
from hypothesis import given
from hypothesis import strategies as st
from transformers import (
    BartConfig,
    BartForConditionalGeneration,
    BertConfig,
    BertForMaskedLM,
    BertForPreTraining,
    GPT2Config,
    GPT2LMHeadModel,
)

from lacuna.common.work import training_batch
from lacuna.modeling import LacunaConfig
from lacuna.objectives import IGNORED, OBJECTIVES
from lacuna.objectives.data import HINTS, TOKENS_A_SLOT, document_bounds, for_model, target_positions

VOCAB = 60


@pytest.fixture(scope="module")
def make(store_of, parts):
    generator = np.random.default_rng(5)
    lengths = [generator.integers(1, 15, size=generator.integers(1, 12)) for _ in range(40)]
    store = store_of([[generator.integers(5, VOCAB, size=size).tolist() for size in document] for document in lengths])
    return lambda name, **options: OBJECTIVES[name](**parts(store, objective=name, **options))


def model_for(name: str) -> Any:
    torch.manual_seed(0)
    sizes = {"vocab_size": VOCAB, "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = LacunaConfig(
        shape=OBJECTIVES[name].shape, hybrid=name == "hybrid", question_aware=name == "spans", **sizes
    )
    return getattr(transformers, OBJECTIVES[name].head).from_config(config).train()


def base_of(name: str) -> str:
    """A hint without the kind of rows that it is for."""
    return name.removesuffix("_True").removesuffix("_False")


@pytest.mark.parametrize("packing", ["none", None])
@pytest.mark.parametrize("name", OBJECTIVES)
def test_hints_change_no_loss_and_no_gradient(make, name: str, packing: str | None) -> None:
    work = make(name, **({} if packing is None or name.startswith("mlm_") else {"packing": packing}))
    plain = work.collate([work.example(row, row) for row in range(4)])
    batch = work.with_hints(plain)
    hints = set(HINTS if "position_ids" in plain else HINTS[1:]) | ({"rows"} if name == "hybrid" else set())
    hints -= {"target_positions"} if name == "spans" else set()
    assert {base_of(each) for each in set(batch) - set(plain)} == hints
    counts = {key: torch.tensor(count) for key, count in work.count_targets(plain).items()}
    found = []
    for inputs in (plain, batch):
        model = model_for(name)
        loss, metrics = work.loss(model, inputs, counts)
        loss.backward()
        found.append([loss.detach(), *metrics.values(), *(parameter.grad for parameter in model.parameters())])
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other)


def test_other_models_get_none(make) -> None:
    sizes = {"vocab_size": VOCAB, "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    bert = BertForMaskedLM(BertConfig(**sizes, intermediate_size=16))
    gpt2 = GPT2LMHeadModel(GPT2Config(vocab_size=VOCAB, n_embd=16, n_layer=1, n_head=2))
    both = BertForPreTraining(BertConfig(**sizes, intermediate_size=16))
    sides = {f"{side}_{what}": 1 for side in ("encoder", "decoder") for what in ("layers", "attention_heads")}
    widths = {"d_model": 16, "encoder_ffn_dim": 16, "decoder_ffn_dim": 16, "vocab_size": VOCAB + 10}
    bart = BartForConditionalGeneration(BartConfig(**widths, **sides))
    for name, model in (("mlm", bert), ("clm", gpt2), ("mlm_nsp", both), ("denoising", bart)):
        work = make(name, **({"packing": "none"} if model is bart else {}))
        plain = work.collate([work.example(row, row) for row in range(2)])
        batch = work.with_hints(plain)
        assert not set(HINTS) & set(for_model(model, batch))
        counts = {"tokens": torch.tensor(3), "pairs": torch.tensor(2)}
        model.eval()  # without dropout
        losses = [work.loss(model, inputs, counts)[0].detach() for inputs in (plain, batch)]
        torch.testing.assert_close(*losses)


def test_only_a_gpu_is_told(make) -> None:
    work = make("mlm")
    examples = [work.example(row, row) for row in range(2)]
    for device, hints in (("cpu", set()), ("cuda", HINTS), ("mps", HINTS)):
        batch = training_batch(examples, work=work, device=torch.device(device))
        assert set(batch) == {*work.collate(examples), *hints}


def test_masks_that_hide_nothing_are_left_out(make) -> None:
    work = make("mlm_nsp")
    by_length = sorted(range(work.num_examples), key=lambda row: len(work.example(row, row)["input_ids"]))
    for rows, is_padded in ((by_length[:1], False), (by_length[:: len(by_length) - 1], True)):
        batch = training_batch([work.example(row, row) for row in rows], work=work, device=torch.device("cuda"))
        assert ("attention_mask" in batch) == is_padded


@examples(40)
@given(rows=st.lists(st.lists(st.integers(1, 40), min_size=1, max_size=9), min_size=1, max_size=4))
def test_bounds_are_those_of_the_documents(rows: list[list[int]]) -> None:
    width = max(map(sum, rows))
    lengths = [part for row in rows for part in [*row, width - sum(row)] if part]
    positions = torch.cat([torch.arange(part) for part in lengths]).view(len(rows), width)
    bounds = document_bounds(positions)
    total = len(rows) * width
    assert bounds.dtype == torch.int32
    assert bounds.tolist()[: len(lengths) + 1] == [0, *np.cumsum(lengths).tolist()]
    assert set(bounds.tolist()[len(lengths) :]) == {total}
    slots = len(bounds) - 1
    base = max(1, total // TOKENS_A_SLOT)
    assert slots >= len(lengths) and slots % base == 0 and (slots == base or slots < 2 * len(lengths))


def test_a_row_that_goes_on_with_a_document_begins_one_of_its_own() -> None:
    positions = torch.tensor([[3, 4, 0, 1], [2, 3, 4, 5]])
    assert document_bounds(positions).tolist()[:4] == [0, 2, 4, 8]
    assert positions[0, 0] == 3, "what was given is as it was"


def test_positions_of_targets() -> None:
    labels = torch.tensor([[IGNORED, 7, IGNORED], [8, IGNORED, 9]])
    assert target_positions(labels).tolist() == [1, 3, 5]
