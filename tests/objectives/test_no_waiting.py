"""No step of any objective, with any head, makes the host wait for a GPU; and the update after it does once."""

import itertools
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch
import transformers
from examples import fast
from torch.utils._python_dispatch import TorchDispatchMode
from waiting import GPU, WAITING, NoWaiting, WaitsError, as_on_a_gpu, run_step

from lacuna import modeling
from lacuna.common.work import Work
from lacuna.modeling import HEADS, LacunaConfig, masks_lacuna
from lacuna.objectives import OBJECTIVES
from lacuna.objectives.distillation import DISTILLED, DistillationArguments
from lacuna.training import TrainingArguments
from lacuna.training.optimizers.optimizers import OPTIMIZERS
from lacuna.training.step import update

SIZES: dict[str, Any] = {"vocab_size": 72, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
SIZES |= {"intermediate_size": 32, "max_position_embeddings": 512, "sliding_window": 8, "decoder_start_token_id": 2}
HEADS_OF = [(shape, name) for shape, heads in HEADS.items() for name in dict.fromkeys(heads.values()) if "For" in name]


@pytest.fixture(scope="module")
def make(store_of: Any, parts: Any) -> Callable[..., Work]:
    generator = np.random.default_rng(5)
    lengths = [generator.integers(1, 15, size=generator.integers(1, 12)) for _ in range(60)]
    store = store_of([[generator.integers(5, 60, size=size).tolist() for size in document] for document in lengths])
    return lambda name, **options: OBJECTIVES[name](**parts(store, objective=name, **options))


def model_for(name: str, **options: Any) -> Any:
    objective = OBJECTIVES[name]
    config = LacunaConfig(
        shape=objective.shape, hybrid=name == "hybrid", question_aware=name == "spans", **{**SIZES, **options}
    )
    return getattr(transformers, objective.head).from_config(config)


KERNELS = [*itertools.product(OBJECTIVES, ["varlen", "flex", "none"])]
ATTENDED = ["mlm", "clm", "hybrid", "denoising"]
"""Objectives whose packed rows are read in ways of their own."""


@pytest.mark.parametrize(
    "case",
    fast(KERNELS, *(case for case in KERNELS if case[0] in ATTENDED or case[1] == "varlen")),
    ids="-".join,
)
def test_no_packed_step_waits(make: Callable[..., Work], case: tuple[str, str]) -> None:
    """Layers of both types, rotary positions; sentence pairs are padded, not packed."""
    name, kernel = case
    kinds = ["full_attention", "full_attention" if name == "hybrid" else "sliding_attention"]
    with as_on_a_gpu(kernel):
        run_step(make(name), model_for(name, layer_types=kinds), micro_batches=2 if kernel == "varlen" else 1)


PADDED = [*itertools.product(OBJECTIVES, ["sdpa", "eager"])]


@pytest.mark.parametrize(
    "case",
    fast(PADDED, *(case for case in PADDED if case[0] in ATTENDED or case[1] == "sdpa")),
    ids="-".join,
)
def test_no_padded_step_waits(make: Callable[..., Work], case: tuple[str, str]) -> None:
    name, implementation = case
    packing = {} if name.startswith("mlm_") else {"packing": "none"}
    options = {"position_type": "learned", "attention_dropout": 0.1, "pooler": OBJECTIVES[name].shape == "encoder"}
    model = model_for(name, tie_word_embeddings=False, **options)
    model.set_attn_implementation(implementation)
    with as_on_a_gpu():
        if options["pooler"] and not name.startswith("mlm_"):
            model.model.pooler = None  # nothing reads it
        run_step(make(name, **packing), model, micro_batches=1)


@pytest.mark.parametrize("name", DISTILLED)
def test_no_student_waits(store_of: Any, parts: Any, name: str) -> None:
    class Expected:
        """What a teacher would say of an example."""

        def __init__(self, work: Any) -> None:
            self.work = work

        def __getitem__(self, number: int) -> dict[str, np.ndarray]:
            count = int((self.work._asked(number)["labels"] != -100).sum())
            return {
                "teacher_ids": np.tile(np.arange(4), (count, 1)),
                "teacher_log_probs": np.full((count, 4), -1.4, dtype=np.float16),
            }

    how = DistillationArguments(teacher="nobody", top_k=4)
    store = store_of([[list(range(5, 60))] for _ in range(40)])
    work = DISTILLED[name](how=how, **parts(store, objective=name))
    work.answers = Expected(work)  # type: ignore[assignment]
    with as_on_a_gpu():
        run_step(work, model_for(name))


@pytest.mark.parametrize("name", [name for name in OBJECTIVES if name != "spans"])  # whose targets are in place
def test_without_hints_it_would(make: Callable[..., Work], name: str) -> None:
    with as_on_a_gpu(), pytest.raises(WaitsError):
        run_step(make(name), model_for(name), has_hints=False)


def labels_for(head: str, ids: torch.Tensor) -> dict[str, torch.Tensor]:
    rows = torch.ones(len(ids), dtype=torch.long)
    if head.endswith("QuestionAnswering"):
        return {"start_positions": rows, "end_positions": 2 * rows}
    if head.endswith("PreTraining"):
        return {"labels": ids, "next_sentence_label": rows}
    return {"labels": rows if head.endswith(("Classification", "Choice")) else ids}


def inputs_for(shape: str, head: str) -> dict[str, Any]:
    """Four rows with padding, and what is to be learnt of them; of two questions with two choices."""
    draw = torch.Generator().manual_seed(0)
    ids = torch.randint(5, 72, (4, 12), generator=draw)
    mask = (torch.arange(12) < torch.tensor([12, 7, 9, 3])[:, None]).long()
    labels = labels_for(head, ids.where(mask.bool(), -100))
    if head.endswith("TokenClassification"):
        labels = {"labels": (ids % 3).where(mask.bool(), -100)}
    inputs = {"input_ids": ids, "attention_mask": mask}
    if head.endswith("MultipleChoice"):
        inputs = {name: value.view(2, 2, 12) for name, value in inputs.items()}
        labels = {"labels": torch.tensor([0, 1])}
    if head.endswith(("MaskedLM", "PreTraining")):  # everything is predicted, and where that is, a work knows
        positions = (labels["labels"] != -100).flatten().nonzero()[:, 0]
        labels["target_positions"] = positions
    return inputs | labels


def head_of(shape: str, head: str, **options: Any) -> Any:
    torch.manual_seed(0)
    options = {"num_labels": 3, "pad_token_id": 0, **options}
    return getattr(modeling, head)(LacunaConfig(shape=shape, **{**SIZES, **options}))


@pytest.mark.parametrize(("shape", "head"), HEADS_OF)
def test_no_head_waits(shape: str, head: str) -> None:
    model = head_of(shape, head, layer_types=["full_attention", "sliding_attention"]).to(GPU)
    inputs = {name: value.to(GPU) for name, value in inputs_for(shape, head).items()}
    with as_on_a_gpu(), NoWaiting():
        model(**inputs).loss.backward()
    assert all(weight.grad is not None and weight.grad.device == GPU for weight in model.parameters())


MASKED = [(*each, implementation) for each in HEADS_OF for implementation in ("sdpa", "eager")]
WRITERS = ("LacunaForMaskedLM", "LacunaForCausalLM", "LacunaForConditionalGeneration")


@pytest.mark.parametrize(
    "case", fast(MASKED, *(case for case in MASKED if case[2] == "sdpa" or case[1] in WRITERS)), ids="-".join
)
def test_masks_that_nobody_looks_at_say_the_same(case: tuple[str, str, str]) -> None:
    """Loss and gradients with the masks that training on a GPU has, and with those of transformers."""
    shape, head, implementation = case
    inputs, found = inputs_for(shape, head), []
    for is_awaited in (False, True):
        model = head_of(shape, head, layer_types=["full_attention", "sliding_attention"], sliding_window=4)
        model.set_attn_implementation(implementation)
        with mock.patch.object(masks_lacuna, "is_awaited", lambda tensor, answer=is_awaited: answer):
            loss = model(**inputs).loss
        loss.backward()
        found.append([loss.detach(), *(weight.grad for weight in model.parameters())])
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other)


def test_with_a_cache_whoever_waits_has_the_masks_of_transformers() -> None:
    """The second half of padded rows is read with a cache of the first, as all of them at once, with gradients."""
    model = head_of("decoder", "LacunaForCausalLM").eval()
    ids, mask = torch.randint(5, 72, (2, 8)), torch.ones(2, 8, dtype=torch.long)
    mask[0, :3] = 0
    with mock.patch.object(masks_lacuna, "is_awaited", lambda tensor: True):
        whole = model(ids, attention_mask=mask, use_cache=False).logits
        first = model(ids[:, :4], attention_mask=mask[:, :4], use_cache=True)
        second = model(ids[:, 4:], attention_mask=mask, past_key_values=first.past_key_values).logits
    torch.testing.assert_close(second, whole[:, 4:])


BOTH = {"_local_scalar_dense": 2}


@pytest.mark.parametrize("loss_scale", [1.0, 1024.0])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_an_update_waits_once(optimizer: str, loss_scale: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """For loss and norm, and it has to: a step that is not finite is not made. Nobody waits for the optimizers."""

    class Asked(TorchDispatchMode):
        def __init__(self) -> None:
            super().__init__()
            self.names: Counter[str] = Counter()

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            self.names[func.overloadpacket.__name__] += func.overloadpacket.__name__ in WAITING
            return func(*args, **(kwargs or {}))

    def step_after(step: Any, asked: Asked) -> None:
        assert +asked.names == BOTH, "an optimizer worked before the host had read what it waits for"
        step()

    model = model_for("clm")
    optimizers = OPTIMIZERS[optimizer].make(
        model, TrainingArguments(optimizer=optimizer, learning_rate=1e-3, max_steps=4)
    )
    ids = torch.randint(5, 72, (4, 12))
    for _ in range(2):
        (loss := model(input_ids=ids, labels=ids).loss).backward()
        with Asked() as asked:
            for made in optimizers:
                monkeypatch.setattr(made, "step", partial(step_after, made.step, asked))
            update(model, optimizers, loss=loss.detach(), max_norm=1.0, loss_scale=loss_scale)
        assert +asked.names == BOTH
        monkeypatch.undo()


@pytest.mark.parametrize(
    "waits",
    [
        lambda x: x.sum().item(),
        lambda x: bool((x > 0).any()),
        lambda x: x[x > 0],
        lambda x: (x > 0).nonzero(),
        lambda x: x.masked_select(x > 0),
        lambda x: x.unique(),
        lambda x: x.cpu(),
        lambda x: x + torch.ones(3),
        lambda x: x.double(),
        lambda x: x.__setitem__(x > 0, x),
    ],
)
def test_what_is_looked_for(waits: Callable[[torch.Tensor], Any]) -> None:
    with NoWaiting(), pytest.raises((WaitsError, NotImplementedError)):  # the latter of torch, for copies to the host
        waits(torch.zeros(3, device=GPU))
