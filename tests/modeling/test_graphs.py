"""What `torch.compile` and `torch.export` make of a model, and weights that start or arrive after it was built."""

import copy
import itertools
import math
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from examples import fast
from random_models import (
    LANGUAGE_HEADS,
    VOCAB,
    assert_agree,
    assert_same_gradients,
    gradients,
    heads_of,
    make_model,
    random_ids,
    segments_for,
)
from torch import Tensor
from torch._dynamo.testing import CompileCounterWithBackend
from torch.export import Dim

from lacuna import modeling
from lacuna.modeling import LacunaConfig
from lacuna.modeling.configuration_lacuna import SHAPES

ROWS, LENGTH, WRITTEN = 3, 10, 8  # WRITTEN: what the decoder of an encoder-decoder reads.
needs_compiler = pytest.mark.skipif(shutil.which("g++") is None, reason="inductor on a CPU needs a compiler")


@pytest.fixture(autouse=True)
def fresh_compiler() -> Iterator[None]:
    torch.compiler.reset()
    yield
    torch.compiler.reset()


def small(shape: str, **fields: Any) -> LacunaConfig:
    """Every part that a graph could break at: windows, grouped heads, norms of both, segments."""
    general = {
        "shape": shape, "vocab_size": VOCAB, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4,
        "num_key_value_heads": 2, "intermediate_size": 24, "max_position_embeddings": 64, "qk_norm": True,
        "layer_types": ["full_attention", "sliding_attention"], "sliding_window": 3, "type_vocab_size": 2,
    }  # fmt: skip
    paired = {"decoder_layer_types": ["sliding_attention", "full_attention"]} if shape == "encoder-decoder" else {}
    return LacunaConfig(**{**general, **paired, **fields})


def restarting(rows: int, length: int, *, first: int) -> Tensor:
    """Positions of rows that hold two documents each, the first of them `first` tokens long."""
    return torch.cat((torch.arange(first), torch.arange(length - first))).expand(rows, -1)


def batch_for(
    config: LacunaConfig, *, rows: int = ROWS, length: int = LENGTH, written: int = WRITTEN, seed: int = 0
) -> dict[str, Tensor]:
    """Inputs and labels; padding on the right."""
    ids = random_ids(rows, length, seed=seed)
    mask = torch.ones_like(ids)
    mask[0, length - 3 :] = 0
    batch = {"input_ids": ids, "attention_mask": mask, "token_type_ids": segments_for(ids, config)}
    if config.is_encoder_decoder:
        batch["decoder_input_ids"] = random_ids(rows, written, seed=seed + 1)
    labels = random_ids(rows, written if config.is_encoder_decoder else length, seed=seed + 2)
    return batch | {"labels": labels.masked_fill(labels % 3 == 0, -100)}


def packed_batch_for(config: LacunaConfig, **sizes: int) -> dict[str, Tensor]:
    batch = batch_for(config, **sizes)
    del batch["attention_mask"]
    batch["position_ids"] = restarting(*batch["input_ids"].shape, first=4)
    if config.is_encoder_decoder:
        batch["decoder_position_ids"] = restarting(*batch["decoder_input_ids"].shape, first=3)
    return batch


BATCHES = {"padded": batch_for, "packed": packed_batch_for}
SLOW = pytest.mark.slow
# Together these take more time than a fast test should; what is not here is nearly the same graph.
QUICK = [("encoder", "packed", False), ("decoder", "packed", True)]  # the encoder's is in another test, by "eager"
FEW = ["encoder", *(pytest.param(shape, marks=SLOW) for shape in ("decoder", "encoder-decoder"))]
STEPS = [
    pytest.param(*step, marks=[] if step == QUICK[1] else [SLOW])
    for step in itertools.product(SHAPES, BATCHES, (False, True))
    if step[0] != "encoder" or not step[2]
]


def assert_same_step(compiled: Any, copied: Any, model: Any, batch: dict[str, Tensor], **arguments: Any) -> None:
    """Loss, logits and gradients of `compiled`, whose parameters are those of `copied`, equal those of `model`."""
    # A graph computes every position; so must what it is compared with.
    dense = {"sparse_prediction": False} if model.config.shape == "encoder" else {}
    expected, actual = model(**batch, **dense, **arguments), compiled(**batch, **arguments)
    assert_agree(actual.loss, expected.loss)
    assert (actual.logits is None) == (expected.logits is None) == bool(arguments.get("skip_logits"))
    if expected.logits is not None:
        assert_agree(actual.logits, expected.logits)
    for owner, outputs in ((model, expected), (copied, actual)):
        owner.zero_grad()
        outputs.loss.backward()
    assert_same_gradients(copied, model)
    assert any(gradient.any() for gradient in gradients(copied).values())


# ------------------------------------------------------------------------------------------------------------ compile


@pytest.mark.parametrize(("shape", "kind", "skip"), STEPS)
def test_a_training_step_is_one_graph(shape: str, kind: str, skip: bool) -> None:
    """Forward and backward, without dropout, which draws other numbers in a graph."""
    config = small(shape)
    model = make_model(config).train()
    copied = copy.deepcopy(model)
    compiled = torch.compile(copied, fullgraph=True, backend="aot_eager")
    arguments = {"skip_logits": True} if skip else {}
    assert_same_step(compiled, copied, model, BATCHES[kind](config), **arguments)


@pytest.mark.parametrize("shape", FEW)
def test_batches_of_other_sizes_use_the_same_graph(shape: str) -> None:
    config = small(shape)
    model = make_model(config).train()
    copied = copy.deepcopy(model)
    counter = CompileCounterWithBackend("eager")
    compiled = torch.compile(copied, fullgraph=True, dynamic=True, backend=counter)
    for rows, length, written in ((ROWS, LENGTH, WRITTEN), (2, 13, 9), (5, 6, 7)):
        batch = batch_for(config, rows=rows, length=length, written=written, seed=rows)
        assert_same_step(compiled, copied, model, batch)
    assert counter.frame_count == 1


@pytest.mark.parametrize("shape", FEW)
def test_rows_packed_otherwise_use_the_same_graph(shape: str) -> None:
    """How many documents a row holds is data: one graph is right for any number."""
    config = small(shape)
    model = make_model(config).train()
    copied = copy.deepcopy(model)
    counter = CompileCounterWithBackend("eager")
    compiled = torch.compile(copied, fullgraph=True, backend=counter)
    for first in (4, 2, 0):
        batch = packed_batch_for(config)
        batch["position_ids"] = restarting(ROWS, LENGTH, first=first)
        if config.is_encoder_decoder:
            batch["decoder_position_ids"] = restarting(ROWS, WRITTEN, first=first)
        assert_same_step(compiled, copied, model, batch)
    assert counter.frame_count == 1


@pytest.mark.slow
@pytest.mark.parametrize("shape", SHAPES)
def test_heads_of_tasks_are_one_graph(shape: str) -> None:
    config = small(shape, num_labels=3)
    batch = batch_for(config)
    batch = {name: batch[name] for name in ("input_ids", "attention_mask", "token_type_ids")}
    for head in heads_of(config):
        if head in LANGUAGE_HEADS.values():
            continue
        model = make_model(config, head)
        given = batch
        if head == "LacunaForMultipleChoice":
            given = {name: tensor[:, None].expand(-1, 2, -1) for name, tensor in batch.items()}
        compiled = torch.compile(model, fullgraph=True, backend="eager")
        with torch.no_grad():
            expected, actual = model(**given), compiled(**given)
        assert_agree(actual[0], expected[0])


@needs_compiler
@pytest.mark.slow
@pytest.mark.parametrize(("shape", "kind", "skip"), QUICK)
def test_a_training_step_compiles_to_the_same_numbers(shape: str, kind: str, skip: bool) -> None:
    config = small(shape)
    model = make_model(config).train()
    copied = copy.deepcopy(model)
    compiled = torch.compile(copied, fullgraph=True)
    arguments = {"skip_logits": True} if skip else {}
    assert_same_step(compiled, copied, model, BATCHES[kind](config), **arguments)


@pytest.mark.slow
@pytest.mark.parametrize("shape", SHAPES)
def test_gradient_checkpointing_compiles(shape: str) -> None:
    # With a cache the library warns that there will be none, and a warning is no part of a graph.
    config = small(shape, use_cache=False)
    model = make_model(config).train()
    copied = copy.deepcopy(model)
    copied.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    compiled = torch.compile(copied, fullgraph=True, backend="aot_eager")
    for make in BATCHES.values():
        assert_same_step(compiled, copied, model, make(config))


# ------------------------------------------------------------------------------------------------------------- export


@pytest.mark.parametrize("kind", ["padded", pytest.param("packed", marks=SLOW)])
@pytest.mark.parametrize("shape", FEW)
def test_an_exported_model_takes_batches_of_any_size(shape: str, kind: str) -> None:
    config = small(shape, use_cache=False)
    model = make_model(config)

    def inputs(**sizes: int) -> dict[str, Tensor]:
        return {name: tensor for name, tensor in BATCHES[kind](config, **sizes).items() if name != "labels"}

    rows, length, written = Dim("rows", min=2, max=32), Dim("length", min=5, max=64), Dim("written", min=5, max=64)
    example = inputs()
    sizes = {name: {0: rows, 1: written if name.startswith("decoder") else length} for name in example}
    exported = torch.export.export(model, (), example, dynamic_shapes=sizes, strict=False).module()
    for other in ({}, {"rows": 2, "length": 17, "written": 6}, {"rows": 7, "length": 6, "written": 12}):
        batch = inputs(**other)
        with torch.no_grad():
            assert_agree(exported(**batch).logits, model(**batch).logits)


# --------------------------------------------------------------------------------------------------------------- meta


@pytest.mark.parametrize("shape", SHAPES)
def test_weights_can_start_after_the_model_was_built_on_meta(shape: str) -> None:
    for position_type in ("rotary", "learned"):
        config = small(shape, position_type=position_type)
        for head in heads_of(config) if position_type == "rotary" else [LANGUAGE_HEADS[shape]]:
            torch.manual_seed(0)
            expected = getattr(modeling, head)(config)
            with torch.device("meta"):
                model = getattr(modeling, head)(config)
            assert all(tensor.is_meta for tensor in model.parameters())
            model.to_empty(device="cpu")
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter.fill_(float("nan"))  # What was in memory before must not matter.
            torch.manual_seed(0)
            model.init_weights()
            for name, parameter in model.named_parameters():
                actual, other = parameter.detach(), expected.get_parameter(name).detach()
                if actual.dim() == 1:
                    assert torch.equal(actual, other), name
                else:  # Drawn anew, from the same distribution.
                    error = math.sqrt(1 / actual.numel())  # of a quotient of two standard deviations
                    assert abs(float(actual.std() / other.std()) - 1) < 6 * error, name
                assert torch.isfinite(actual).all(), name
            for name, buffer in model.named_buffers():
                assert torch.equal(buffer, expected.get_buffer(name)), name
            tied = getattr(model, "lm_head", None)
            if tied is not None:
                assert tied.weight is model.get_input_embeddings().weight


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("device_map", fast(["cpu", "auto"], "auto"))
def test_loading_onto_a_device_equals_the_model(shape: str, device_map: Any, tmp_path: Path) -> None:
    for head in heads_of(small(shape)):
        model = make_model(small(shape), head)
        model.save_pretrained(tmp_path / head)
        arguments = {"device_map": device_map, "max_memory": {"cpu": "1GB"}}  # "auto" would take a GPU if there is one
        loaded = type(model).from_pretrained(tmp_path / head, **arguments).eval()
        before, after = model.state_dict(), loaded.state_dict()
        assert before.keys() == after.keys()
        assert all(torch.equal(before[name], after[name]) for name in before)
        for name, buffer in loaded.named_buffers():
            assert torch.equal(buffer, model.get_buffer(name)), name
        if head == LANGUAGE_HEADS[shape]:
            batch = batch_for(model.config)
            assert torch.equal(loaded(**batch).logits, model(**batch).logits)


# ----------------------------------------------------------------------------------------------------- flex attention


@needs_compiler
@pytest.mark.slow  # torch compiles the kernel for each mask
@pytest.mark.parametrize("kind", BATCHES)
@pytest.mark.parametrize("shape", SHAPES)
def test_flex_attention_agrees(shape: str, kind: str) -> None:
    model = make_model(small(shape))
    batch = BATCHES[kind](model.config)
    real = torch.ones_like(batch["labels"], dtype=torch.bool)
    if kind == "padded" and not model.config.is_encoder_decoder:
        real = batch["attention_mask"].bool()
    with torch.no_grad():
        expected = model(**batch).logits
        model.set_attn_implementation("flex_attention")
        assert_agree(model(**batch).logits[real], expected[real])
