"""Packed rows without a mask [B, 1, T, T]: the ways of a GPU, on a CPU.

All that is ours runs as it is, and torch's `varlen_attn` too. Two things a CPU does not have, and plain arithmetic
stands for them: the operation of FlashAttention below `varlen_attn`, and the backward pass of FlexAttention, whose
forward pass has tests of its own. The last tests run both themselves, where there is a GPU.
"""

import contextlib
import copy
import itertools
from collections.abc import Iterator
from itertools import pairwise
from typing import Any
from unittest import mock

import pytest
import torch
from examples import examples, fast
from hypothesis import given
from hypothesis import strategies as st
from random_models import assert_agree, assert_same_gradients, configurations, make_model, weigh
from random_models import random_ids as random_tokens
from torch import Tensor, nn
from torch._inductor.exc import InductorError
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensorMode,
)
from torch.nn.attention.flex_attention import BlockMask
from torch.utils._python_dispatch import TorchDispatchMode

from lacuna.modeling import LacunaConfig, LacunaForCausalLM, LacunaForMaskedLM, kernels_lacuna, masks_lacuna
from lacuna.modeling.kernels_lacuna import packed_kernel
from lacuna.modeling.losses_lacuna import shifted
from lacuna.modeling.masks_lacuna import build_attention_masks, document_blocks
from lacuna.objectives.data import document_bounds, target_positions

SEEDS = st.integers(0, 2**20)
LENGTHS = st.lists(st.lists(st.integers(1, 9), min_size=1, max_size=4), min_size=1, max_size=3)
needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


def weights_of(
    query: Tensor, key: Tensor, *, scale: float, sides: tuple[int, int], dropout: float, seed: int
) -> tuple[Tensor, Tensor]:
    """Of one stretch [L, H, D]: softmax(Q K^T) in its window [H, L, L], and by what dropout multiplies it."""
    behind = torch.arange(len(query))[:, None] - torch.arange(len(query))
    left, right = (limit if limit >= 0 else len(query) for limit in sides)
    scores = torch.einsum("qhd,khd->hqk", query, key) * scale
    weights = scores.masked_fill((behind > left) | (-behind > right), float("-inf")).softmax(-1)
    draw = torch.Generator().manual_seed(seed)
    return weights, (torch.rand(weights.shape, generator=draw) >= dropout) / (1 - dropout)


def flash_forward(query: Tensor, key: Tensor, value: Tensor, bounds: Tensor, *given: Any, **options: Any) -> Any:
    """`aten::_flash_attention_forward`, one stretch after another."""
    seen, longest, longest_seen, dropout, is_causal, _ = given
    sides = (options["window_size_left"], options["window_size_right"])
    assert query.shape == key.shape == value.shape and query.dim() == 3 and torch.equal(bounds, seen)
    assert bounds.dtype == torch.int32 and int(bounds[0]) == 0 and int(bounds[-1]) == len(query)
    assert bounds.diff().min() >= 0 and bounds.diff().max() <= longest == longest_seen
    assert is_causal == (sides == (-1, 0))
    seed, outputs = torch.randint(2**40, (2,)), []
    for begin, end in pairwise(bounds.tolist()):
        parts = query[begin:end], key[begin:end]
        weights, kept = weights_of(
            *parts, scale=options["scale"], sides=sides, dropout=dropout, seed=int(seed[0]) + begin
        )
        outputs.append(torch.einsum("hqk,khd->qhd", weights * kept, value[begin:end]))
    return torch.cat(outputs), query.new_zeros(query.shape[1::-1]), seed, seed, query.new_zeros(0)


def flash_backward(gradient: Tensor, query: Tensor, key: Tensor, value: Tensor, *given: Any, **options: Any) -> Any:
    """`aten::_flash_attention_backward`."""
    _, _, bounds, _, _, _, dropout, _, seed, _ = given
    scale, sides = options["scale"], (options["window_size_left"], options["window_size_right"])
    found = []
    for begin, end in pairwise(bounds.tolist()):
        states, back = (query[begin:end], key[begin:end]), gradient[begin:end]
        weights, kept = weights_of(*states, scale=scale, sides=sides, dropout=dropout, seed=int(seed[0]) + begin)
        of_weights = torch.einsum("qhd,khd->hqk", back, value[begin:end]) * kept
        of_scores = weights * (of_weights - (of_weights * weights).sum(-1, keepdim=True)) * scale
        of_query = torch.einsum("hqk,khd->qhd", of_scores, states[1])
        of_key = torch.einsum("hqk,qhd->khd", of_scores, states[0])
        found.append((of_query, of_key, torch.einsum("hqk,qhd->khd", weights * kept, back)))
    return tuple(torch.cat(parts) for parts in zip(*found, strict=True))


@pytest.fixture(autouse=True, scope="module")
def flash_attention_of_a_cpu() -> Iterator[None]:
    """torch calls the two above where it would call those of CUDA."""
    library = torch.library.Library("aten", "IMPL")
    library.impl("_flash_attention_forward", flash_forward, "CPU")
    library.impl("_flash_attention_backward", flash_backward, "CPU")
    yield
    library._destroy()


def allowed_by(blocks: BlockMask) -> Tensor:
    """What a kernel computes that goes by the blocks: bool [B, 1, T, S]; and blocks called full must be."""
    (length, seen), size = blocks.seq_lengths, blocks.BLOCK_SIZE[0]
    rows = torch.arange(blocks.kv_num_blocks.shape[0])[:, None, None]
    rule = blocks.mask_mod(rows, None, torch.arange(length)[None, :, None], torch.arange(seen)[None, None, :])

    def spread(counts: Tensor, indices: Tensor) -> Tensor:
        listed = torch.arange(indices.shape[-1]) < counts[..., None]
        dense = torch.zeros(indices.shape, dtype=torch.bool)
        dense.scatter_(-1, indices.long(), listed)
        return dense[:, 0].repeat_interleave(size, 1).repeat_interleave(size, 2)[:, :length, :seen]

    full = spread(blocks.full_kv_num_blocks, blocks.full_kv_indices)
    parts = spread(blocks.kv_num_blocks, blocks.kv_indices)
    assert bool(rule[full].all()), "a block that is computed whole holds scores that are not allowed"
    assert not bool((parts & full).any()), "a block is computed twice, whole and in parts"
    return ((parts & rule) | full)[:, None]


def plain_flex(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, blocks: BlockMask, *, scaling: float
) -> Tensor:
    """FlexAttention, whose own version for a CPU has no backward pass."""
    groups = query.shape[1] // key.shape[1]
    key, value = (states.repeat_interleave(groups, 1) for states in (key, value))
    scores = (query @ key.mT * scaling).masked_fill(~allowed_by(blocks), float("-inf"))
    return (scores.softmax(-1) @ value).transpose(1, 2)


@contextlib.contextmanager
def as_on_a_gpu(*, block: int = 4, **kernels: Any) -> Iterator[list[str]]:
    """Packed rows go the ways of a GPU; yields the names of the kernels that run."""
    used: list[str] = []

    def noted(name: str, kernel: Any) -> Any:
        def run(*arguments: Any, **options: Any) -> Tensor:
            used.append(name)
            return kernel(*arguments, **options)

        return run

    kernels = {"varlen": kernels_lacuna.flash_varlen, "flex": plain_flex, **kernels}
    changes = {"PACKED_DEVICES": {"cpu"}, "VARLEN_DTYPES": {torch.float32}, "SHORT": 0}
    changes["PACKED_KERNELS"] = {name: noted(name, kernel) for name, kernel in kernels.items()}
    with mock.patch.object(masks_lacuna, "_BLOCK", block), mock.patch.multiple(kernels_lacuna, **changes):
        yield used


def packed(lengths: list[list[int]], *, padded: bool, left: bool = False) -> tuple[Tensor, Tensor]:
    """Positions that restart, and a mask with 0 for padding (a document of its own): [B, T]."""
    width = max(map(sum, lengths)) + (3 if padded else 0)
    positions, mask = torch.zeros(len(lengths), width, dtype=torch.long), torch.zeros(len(lengths), width)
    for row, parts in enumerate(lengths):
        numbers = torch.cat([torch.arange(part) for part in parts])
        rest = torch.arange(width - len(numbers))
        positions[row] = torch.cat((rest, numbers) if left else (numbers, rest))
        mask[row, len(rest) if left else 0 : width if left else len(numbers)] = 1
    return positions, mask.long()


def run(model: Any, ids: Tensor, **inputs: Any) -> Tensor:
    if model.config.is_encoder_decoder:
        both = ("position_ids", "attention_mask")
        inputs |= {f"decoder_{name}": inputs[name] for name in both if name in inputs} | {"decoder_input_ids": ids}
    options = {"use_cache": False} if model.config.shape != "encoder" else {}
    return model(ids, **inputs, **options).logits


@examples(60)
@given(
    config=configurations(head_dim=8),
    kernel=st.sampled_from(["varlen", "flex"]),
    seed=SEEDS,
    lengths=LENGTHS,
    padded=st.booleans(),
    left=st.booleans(),
    spare=st.integers(0, 5),
)
def test_both_ways_equal_the_mask(
    config: LacunaConfig,
    kernel: str,
    seed: int,
    lengths: list[list[int]],
    padded: bool,
    left: bool,
    spare: int,
) -> None:
    """Outputs and gradients, over random documents, windows, heads that are shared, and padding."""
    kernel = "flex" if config.is_encoder_decoder else kernel
    lengths = [[2, 3], *lengths]
    positions, mask = packed(lengths, padded=padded, left=left)
    ids = random_tokens(*positions.shape, seed=seed)
    inputs = {"position_ids": positions, **({"attention_mask": mask} if padded else {})}
    model = make_model(config, seed=seed)
    other = copy.deepcopy(model)
    is_real = mask.bool()
    expected = run(model, ids, **inputs)[is_real]
    with as_on_a_gpu() as used:
        if kernel == "varlen":
            bounds = document_bounds(positions)
            inputs["document_bounds"] = torch.cat((bounds, bounds[-1:].expand(spare)))
        actual = run(other, ids, **inputs)[is_real]
    assert set(used) == {kernel}
    assert_agree(actual, expected)
    weigh(expected).backward()
    weigh(actual).backward()
    assert_same_gradients(other, model)


@pytest.mark.parametrize("kernel", ["varlen", "flex"])
@pytest.mark.parametrize("is_causal", [True, False])
def test_a_hybrid_decoder_reads_both_ways(kernel: str, is_causal: bool) -> None:
    config = LacunaConfig(
        shape="decoder",
        hybrid=True,
        vocab_size=41,
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
    )
    model = make_model(config)
    positions, _ = packed([[7, 9], [16]], padded=False)
    ids = random_tokens(2, 16, seed=0)
    bounds = {"document_bounds": document_bounds(positions)} if kernel == "varlen" else {}
    with torch.no_grad():
        expected = model(ids, position_ids=positions, is_causal=is_causal, use_cache=False).logits
        with as_on_a_gpu() as used:
            actual = model(ids, position_ids=positions, is_causal=is_causal, use_cache=False, **bounds).logits
    assert set(used) == {kernel}
    assert_agree(actual, expected)


@examples(60)
@given(
    lengths=st.lists(st.lists(st.integers(1, 40), min_size=1, max_size=6), min_size=1, max_size=3),
    hole=st.integers(0, 9),
    is_causal=st.booleans(),
    reach=st.sampled_from([None, 1, 7, 8, 30]),
    block=st.sampled_from([1, 4, 8, 128]),
)
def test_blocks_allow_what_a_mask_would(
    lengths: list[list[int]], hole: int, is_causal: bool, reach: int | None, block: int
) -> None:
    width = max(map(sum, lengths)) + 2
    documents = torch.full((len(lengths), width), -1)
    for row, parts in enumerate(lengths):
        documents[row, : sum(parts)] = torch.arange(len(parts)).repeat_interleave(torch.tensor(parts))
    documents[:, hole : hole + 1] = -1  # padding between two tokens of a document
    apart = torch.arange(width)[:, None] - torch.arange(width)
    expected = documents[:, :, None] == documents[:, None, :]
    expected &= (apart >= 0) if is_causal else True
    expected &= True if reach is None else apart.abs() <= reach
    with as_on_a_gpu(block=block):
        blocks = document_blocks(documents, is_causal=is_causal, reach=reach)
        assert torch.equal(allowed_by(blocks)[:, 0], expected)
        across = document_blocks(documents, documents[:, 1:])  # of a decoder to its encoder: nothing is the future
        assert torch.equal(allowed_by(across)[:, 0], documents[:, :, None] == documents[:, None, 1:])
    computed = int(blocks.kv_num_blocks.sum() + blocks.full_kv_num_blocks.sum())
    needed = torch.nn.functional.max_pool2d(expected.float()[:, None], block, ceil_mode=True)
    assert computed >= int(needed.sum())
    if hole >= max(map(sum, lengths)):  # without holes nothing is computed in vain
        assert computed == int(needed.sum())


UNBUILT = pytest.mark.xfail(
    raises=InductorError, reason="torch 2.13 writes C++ for these blocks that names an unknown cur_qSplitSize0"
)


@pytest.mark.parametrize("compiled", [False, pytest.param(True, marks=[pytest.mark.slow, UNBUILT])])  # g++
def test_flex_attention_itself_takes_the_blocks(compiled: bool) -> None:
    """Forward only, which is all that torch has on a CPU; three blocks of the size that is used on a GPU."""
    config = LacunaConfig(
        shape="encoder", vocab_size=41, hidden_size=32, num_hidden_layers=2, num_attention_heads=2, sliding_window=50
    )
    config.layer_types = ["full_attention", "sliding_attention"]
    model = make_model(config)
    positions, mask = packed([[100, 150, 40], [290]], padded=True)
    ids = random_tokens(*positions.shape, seed=1)
    with torch.no_grad():
        expected = model(ids, position_ids=positions, attention_mask=mask).logits
        # As it is written it goes by the rule in the blocks alone; compiled, by their lists of blocks as well.
        wrapped = "transformers.integrations.flex_attention.WrappedFlexAttention"
        written = mock.patch(wrapped, lambda training: lambda: torch.nn.attention.flex_attention.flex_attention)
        with (
            as_on_a_gpu(block=128, flex=kernels_lacuna.flex_blocks) as used,
            contextlib.nullcontext() if compiled else written,
        ):
            actual = model(ids, position_ids=positions, attention_mask=mask).logits
    assert used == ["flex", "flex"]
    assert_agree(actual[mask.bool()], expected[mask.bool()])


@pytest.mark.parametrize(("shape", "reach"), [("encoder", 3), ("decoder", 12)])
def test_blocks_of_transformers_keep_documents_apart(shape: str, reach: int) -> None:
    """As `attn_implementation="flex_attention"` has them, without compiling what makes them."""
    config = LacunaConfig(shape=shape, vocab_size=41, hidden_size=32, num_hidden_layers=2, num_attention_heads=2)
    if shape == "encoder":
        config.sliding_window, config.layer_types = reach, ["full_attention", "sliding_attention"]
    config._attn_implementation = "flex_attention"
    documents = torch.tensor([[0] * 5 + [1] * 7])
    with torch.compiler.set_stance("force_eager"):
        masks, _ = masks_lacuna._build_packed_masks(
            config, shape, torch.zeros(1, 12, 32), documents, shape == "decoder"
        )
    for layer, blocks in masks.items():
        for query, key in itertools.product(range(12), repeat=2):
            expected = documents[0, query] == documents[0, key] and (shape == "encoder" or key <= query)
            expected = expected and (layer == "full_attention" or abs(query - key) <= reach)
            row, column = torch.tensor(query), torch.tensor(key)
            assert bool(blocks.mask_mod(torch.tensor(0), torch.tensor(0), row, column)) == bool(expected), layer
    assert len(masks) == (2 if shape == "encoder" else 1)


class Largest(TorchDispatchMode):
    """The number of elements of the largest tensor that any operation returned."""

    elements = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for tensor in torch.utils._pytree.tree_leaves(result):
            if isinstance(tensor, Tensor):
                self.elements = max(self.elements, tensor.numel())
        return result


@pytest.mark.parametrize("is_bounded", [True, False])
def test_nothing_of_the_size_of_a_mask_is_made(is_bounded: bool) -> None:
    config = LacunaConfig(shape="encoder", vocab_size=41, hidden_size=16, num_hidden_layers=1, num_attention_heads=2)
    model = make_model(config)
    positions, _ = packed([[500, 524], [1024]], padded=False)
    bounds = document_bounds(positions) if is_bounded else None
    arguments = {
        "config": model.config,
        "stack": "encoder",
        "hidden_states": torch.zeros(2, 1024, 16),
        "attention_mask": None,
        "position_ids": positions,
        "past_key_values": None,
        "is_causal": False,
    }
    with as_on_a_gpu(block=128), Largest() as seen:
        build_attention_masks(**arguments, document_bounds=bounds)
    assert seen.elements <= positions.numel()
    with Largest() as seen:
        build_attention_masks(**arguments)
    assert seen.elements >= 2 * 1024 * 1024


STEPS = [("encoder", "varlen"), ("decoder", "flex"), ("encoder", "flex"), ("decoder", "varlen")]


@pytest.mark.parametrize("case", fast(STEPS, *STEPS[:2]), ids="-".join)
def test_a_step_asks_for_no_number(case: tuple[str, str]) -> None:
    """With tensors that have a shape and no content: whoever looked at a number would end in an error."""
    shape, kernel = case
    batch = hinted(work_of([[100, 300, 112], [512]], shape=shape), shape=shape)
    if kernel == "flex":
        del batch["document_bounds"]

    def shapes_alone(
        module: nn.Module, query: Tensor, key: Tensor, value: Tensor, *rest: Any, **options: Any
    ) -> Tensor:
        groups = query.shape[1] // key.shape[1]
        return (query + (key + value).repeat_interleave(groups, 1)).transpose(1, 2)

    with FakeTensorMode(allow_non_fake_inputs=True) as fake:
        model = small(shape)
        inputs = {name: fake.from_tensor(value) for name, value in batch.items()}
        with as_on_a_gpu(block=128, flex=shapes_alone) as used:
            kernels_lacuna.VARLEN_DTYPES.add(torch.bfloat16)
            with torch.autocast("cpu", torch.bfloat16):
                loss = model(**inputs, skip_logits=True).loss
            loss.backward()
        assert used == [kernel, kernel]
        assert all(parameter.grad is not None for parameter in model.parameters())
        with pytest.raises((DataDependentOutputException, DynamicOutputShapeException)):
            model(**inputs, skip_logits=True)  # the ways of a CPU do look


def test_who_gets_which_kernel() -> None:
    config = LacunaConfig(shape="encoder", vocab_size=41, hidden_size=16, num_hidden_layers=1, num_attention_heads=2)
    config._attn_implementation = "sdpa"
    states = torch.zeros(2, 300, 16)
    assert packed_kernel(states, config=config, is_bounded=True) is None  # a CPU has its own ways
    with as_on_a_gpu():
        assert packed_kernel(states, config=config, is_bounded=True) == "varlen"
        assert packed_kernel(states, config=config, is_bounded=False) == "flex"
        assert packed_kernel(states.double(), config=config, is_bounded=True) == "flex"
        config.attention_dropout = 0.1  # which FlexAttention does not have
        assert packed_kernel(states, config=config, is_bounded=True) == "varlen"
        assert packed_kernel(states, config=config, is_bounded=False) is None
        config._attn_implementation = "eager"
        assert packed_kernel(states, config=config, is_bounded=True) is None


@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("window", [None, 9])
def test_attention_weights_are_dropped_at_their_rate_inside_their_window(window: int | None, is_causal: bool) -> None:
    """Equal weights of what is seen; with values that are unit vectors, the output is the weights themselves."""
    module = mock.Mock(sliding_window=window, num_key_value_groups=1)
    module.config.sliding_window = window
    states, value = torch.zeros(40, 1, 64, 64), torch.eye(64).expand(40, 1, 64, 64)
    bounds = torch.arange(0, 40 * 64 + 1, 32, dtype=torch.int32)
    torch.manual_seed(0)
    given = (module, states, states, value, bounds, 0.125)
    plain, dropped = (
        kernels_lacuna.packed_attention_forward(*given, dropout=rate, is_causal=is_causal)[0][:, :, 0]
        for rate in (0.0, 0.25)
    )
    apart = torch.arange(64)[:, None] - torch.arange(64)
    visible = (torch.arange(64)[:, None] // 32) == (torch.arange(64) // 32)
    visible &= (apart >= 0) if is_causal else True
    visible &= True if window is None else apart.abs() <= window - int(is_causal)
    assert_agree(plain, (visible / visible.sum(-1, keepdim=True)).expand_as(plain))
    kept = dropped > 0
    assert abs(float(kept[:, visible].float().mean()) - 0.75) < 0.0125  # four standard errors
    assert_agree(dropped[kept], plain[kept] / 0.75)


@pytest.mark.parametrize(
    "bounds", [torch.tensor([0, 4]), torch.tensor([[0, 4]], dtype=torch.int32), torch.tensor([0], dtype=torch.int32)]
)
def test_bounds_that_no_kernel_could_read_are_refused(bounds: Tensor) -> None:
    config = LacunaConfig(shape="encoder", vocab_size=41, hidden_size=16, num_hidden_layers=1, num_attention_heads=2)
    model = make_model(config)
    with pytest.raises(ValueError, match="document_bounds has the shape"):
        model(random_tokens(1, 4, seed=0), position_ids=torch.arange(4)[None], document_bounds=bounds)
    with pytest.raises(ValueError, match="without position_ids"):
        model(random_tokens(1, 4, seed=0), document_bounds=torch.tensor([0, 4], dtype=torch.int32))


# ------------------------------------------------------------------------------------------------------------ on a GPU


def small(shape: str) -> Any:
    """A model with both types of layers and a window of 20 tokens."""
    config = LacunaConfig(
        shape=shape,
        vocab_size=512,
        hidden_size=128,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        layer_types=["full_attention", "sliding_attention"],
        sliding_window=20,
        max_position_embeddings=2048,
    )
    torch.manual_seed(0)
    return (LacunaForMaskedLM if shape == "encoder" else LacunaForCausalLM)(config).train()


def work_of(lengths: list[list[int]], *, shape: str) -> dict[str, Tensor]:
    positions, _ = packed(lengths, padded=False)
    ids = torch.randint(5, 512, positions.shape, generator=torch.Generator().manual_seed(0))
    labels = ids.masked_fill((ids % 5 > 0) if shape == "encoder" else positions == 0, -100)
    return {"input_ids": ids, "labels": labels, "position_ids": positions}


def hinted(batch: dict[str, Tensor], *, shape: str) -> dict[str, Tensor]:
    targets = batch["labels"] if shape == "encoder" else shifted(batch["labels"])
    bounds = document_bounds(batch["position_ids"])
    return {**batch, "document_bounds": bounds, "target_positions": target_positions(targets)}


def loss_of(model: Any, batch: dict[str, Tensor], *, dtype: torch.dtype) -> Tensor:
    batch = {name: value.cuda(non_blocking=True) for name, value in batch.items()}
    with torch.autocast("cuda", dtype, enabled=dtype != torch.float32):
        return model(**batch, skip_logits=True).loss


@needs_cuda
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("shape", ["encoder", "decoder"])
def test_packed_equals_padded_on_a_gpu(shape: str, dtype: torch.dtype) -> None:
    """Loss and gradients, with bounds (varlen_attn in bf16) and without (FlexAttention)."""
    lengths = [[100, 300, 112], [512], [1, 255, 256]]
    batch = work_of(lengths, shape=shape)
    flat = {name: value.flatten() for name, value in batch.items()}
    pieces = {name: value.split([part for row in lengths for part in row]) for name, value in flat.items()}
    fill = {"input_ids": 0, "labels": -100, "position_ids": 0}
    padded = {
        name: nn.utils.rnn.pad_sequence(list(parts), batch_first=True, padding_value=fill[name])
        for name, parts in pieces.items()
    }
    padded["attention_mask"] = nn.utils.rnn.pad_sequence(
        [torch.ones(len(part), dtype=torch.long) for part in pieces["labels"]], batch_first=True
    )
    del padded["position_ids"]
    model = small(shape).cuda()
    expected = loss_of(model, padded, dtype=dtype)
    expected.backward()
    tolerance = 1e-4 if dtype == torch.float32 else 2e-2
    for inputs in (batch, hinted(batch, shape=shape)):
        other = small(shape).cuda()
        loss = loss_of(other, inputs, dtype=dtype)
        loss.backward()
        assert_agree(loss, expected, tolerance=tolerance)
        for (name, parameter), (_, wanted) in zip(other.named_parameters(), model.named_parameters(), strict=True):
            assert parameter.grad is not None and wanted.grad is not None
            difference = float((parameter.grad - wanted.grad).norm() / wanted.grad.norm().clamp(min=1e-6))
            assert difference < tolerance, name


@needs_cuda
@pytest.mark.parametrize("is_bounded", [True, False])
def test_no_mask_is_allocated_on_a_gpu(is_bounded: bool) -> None:
    """A mask of 8 rows of 2048 tokens would be 32 MiB as bool, and 64 as numbers to add; torch's workspaces less."""
    batch = work_of([[2048 - 3 * row, 3 * row] if row else [2048] for row in range(8)], shape="encoder")
    batch = hinted(batch, shape="encoder") if is_bounded else batch
    model = small("encoder").cuda()
    loss_of(model, batch, dtype=torch.bfloat16).backward()  # compiles, and makes room for products
    batch = {name: value.cuda() for name, value in batch.items()}
    with as_recorded() as largest:
        loss_of(model, batch, dtype=torch.bfloat16).backward()
    assert max(largest) < 8 * 2048 * 2048


@contextlib.contextmanager
def as_recorded() -> Iterator[list[int]]:
    """Bytes of every block that the allocator hands out."""
    sizes: list[int] = []
    torch.cuda.memory._record_memory_history(max_entries=100_000)
    try:
        yield sizes
        events = torch.cuda.memory._snapshot()["device_traces"][0]
        sizes += [event["size"] for event in events if event["action"] == "alloc"]
    finally:
        torch.cuda.memory._record_memory_history(enabled=None)


@needs_cuda
@pytest.mark.parametrize("shape", ["encoder", "decoder"])
def test_a_step_waits_for_nothing_on_a_gpu(shape: str) -> None:
    batch = hinted(work_of([[100, 300, 112], [512]], shape=shape), shape=shape)
    batch = {name: value.pin_memory() for name, value in batch.items()}
    model = small(shape).cuda()
    loss_of(model, batch, dtype=torch.bfloat16).backward()  # each shape is looked at once, see `check_range`
    torch.cuda.set_sync_debug_mode("error")
    try:
        loss_of(model, batch, dtype=torch.bfloat16).backward()
    finally:
        torch.cuda.set_sync_debug_mode("default")


@needs_cuda
def test_dropout_of_attention_weights_on_a_gpu() -> None:
    """Drawn anew in each pass, and right on average, which is what tells it from a wrong kernel."""
    module = mock.Mock(sliding_window=None, num_key_value_groups=1)
    query, key = (torch.randn(1, 2, 256, 64, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    value = torch.randn_like(query).requires_grad_()
    bounds = torch.tensor([0, 100, 256], dtype=torch.int32, device="cuda")

    def attend(dropout: float) -> Tensor:
        return kernels_lacuna.packed_attention_forward(module, query, key, value, bounds, 0.125, dropout=dropout)[0]

    plain, several = attend(0.0), torch.stack([attend(0.5) for _ in range(400)])
    assert not torch.equal(several[0], several[1])
    assert float((several.float().mean(0) - plain.float()).abs().mean()) < 0.05
    several.float().sum().backward()
    assert value.grad is not None and bool(value.grad.isfinite().all())
