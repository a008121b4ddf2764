"""What holds for every model that can be configured, checked on random configurations of all shapes and all heads."""

import copy
import math
import tempfile
from typing import Any

import pytest
import torch
from examples import examples
from hypothesis import given
from hypothesis import strategies as st
from random_models import (
    LANGUAGE_HEADS,
    VOCAB,
    assert_agree,
    assert_same_gradients,
    configurations,
    heads_of,
    make_model,
    random_ids,
    segments_for,
    weigh,
)
from torch import Tensor

from lacuna import modeling
from lacuna.modeling import LacunaConfig, losses_lacuna

SEEDS = st.integers(0, 2**20)
ROWS, WIDTH = 4, 8


def inputs_for(config: LacunaConfig, head: str, *, seed: int = 1, rows: int = ROWS) -> dict[str, Tensor]:
    """A batch with padding on the right; with several choices for the head that compares them."""
    shape = (rows, 3, WIDTH) if head == "LacunaForMultipleChoice" else (rows, WIDTH)
    ids = random_ids(*shape, seed=seed)
    mask = torch.ones_like(ids)
    mask[0, ..., WIDTH - 3 :] = 0
    return {"input_ids": ids, "attention_mask": mask, "token_type_ids": segments_for(ids, config)}


def labels_for(config: LacunaConfig, head: str, *, seed: int = 5, rows: int = ROWS) -> dict[str, Tensor]:
    """What the head is to predict; `{}` for the bare model."""
    generator = torch.Generator().manual_seed(seed)

    def draw(limit: int, *shape: int) -> Tensor:
        return torch.randint(0, limit, shape, generator=generator)

    # A different number of targets in each row, so that a mean over rows would show.
    some = torch.rand(rows, WIDTH, generator=generator) < torch.linspace(0.2, 0.9, rows)[:, None]
    tokens = draw(VOCAB, rows, WIDTH).masked_fill(~some, -100)
    tokens[:, -1] = 7
    return {
        "LacunaModel": {},
        "LacunaForMaskedLM": {"labels": tokens},
        "LacunaForCausalLM": {"labels": tokens},
        "LacunaForConditionalGeneration": {"labels": tokens},
        "LacunaForPreTraining": {"labels": tokens, "next_sentence_label": draw(2, rows)},
        "LacunaForSequenceClassification": {"labels": draw(config.num_labels, rows)},
        "LacunaForTokenClassification": {"labels": draw(config.num_labels, rows, WIDTH).masked_fill(~some, -100)},
        "LacunaForQuestionAnswering": {
            "start_positions": draw(WIDTH, rows),
            "end_positions": torch.cat((draw(WIDTH, rows - 1), torch.tensor([99]))),  # 99: beyond the text, ignored
        },
        "LacunaForMultipleChoice": {"labels": draw(3, rows)},
    }[head]


def loss_of(model: Any, inputs: dict[str, Tensor], labels: dict[str, Tensor], **arguments: Any) -> Tensor:
    """The loss of a head, and of the bare model a number that depends on everything that it returns."""
    outputs = model(**inputs, **labels, **arguments)
    if labels:
        return outputs.loss
    pooled = getattr(outputs, "pooler_output", None)
    return weigh(outputs.last_hidden_state) + (0 if pooled is None else weigh(pooled))


def tensors(outputs: Any) -> list[Tensor]:
    """All tensors of an output, those in tuples too."""
    if isinstance(outputs, Tensor):
        return [outputs]
    items = outputs.to_tuple() if hasattr(outputs, "to_tuple") else outputs
    return [tensor for item in items if isinstance(item, (Tensor, tuple)) for tensor in tensors(item)]


# ------------------------------------------------------------------------------------------------------------- saving


@examples(8)
@given(config=configurations(), seed=SEEDS, dtype=st.sampled_from([torch.float32, torch.bfloat16]))
def test_saved_and_loaded_is_equal_bit_for_bit(config: LacunaConfig, seed: int, dtype: torch.dtype) -> None:
    for head in heads_of(config):
        model = make_model(config, head, seed=seed).to(dtype)
        with tempfile.TemporaryDirectory() as folder:
            model.save_pretrained(folder)
            loaded, info = type(model).from_pretrained(folder, output_loading_info=True)
        assert not any(info[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys"))
        assert loaded.dtype == dtype
        before, after = model.state_dict(), loaded.state_dict()
        assert before.keys() == after.keys()
        assert all(torch.equal(before[name], after[name]) for name in before)
        assert shared_tables(loaded) == shared_tables(model)
        mine, theirs = ({**kept.config.to_dict(), "dtype": None, "_name_or_path": ""} for kept in (model, loaded))
        assert mine == theirs
        inputs = inputs_for(config, head)
        with torch.no_grad():
            before_saving, after_loading = tensors(model(**inputs)), tensors(loaded.eval()(**inputs))
        assert len(before_saving) == len(after_loading) > 0
        assert all(torch.equal(one, other) for one, other in zip(before_saving, after_loading, strict=True))


def shared_tables(model: Any) -> int:
    """In how many places the table of token embeddings stands."""
    address = model.get_input_embeddings().weight.data_ptr()
    return sum(tensor.data_ptr() == address for tensor in model.state_dict(keep_vars=True).values())


# ---------------------------------------------------------------------------------------------------------- gradients

# Their gradient is zero, or nothing but rounding: what they add is the same for all that softmax compares.
WITHOUT_EFFECT = {
    "k_proj.bias": "adds the same to the scores of all keys, unless positions, norms or the score see the key",
    "qa_outputs.bias": "adds the same to the scores of all tokens",
    "LacunaForMultipleChoice.classifier.bias": "adds the same to the scores of all choices",
    "LacunaForMultipleChoice.score.bias": "its name in a decoder",
}


@examples(25)
@given(config=configurations(), seed=SEEDS)
def test_gradients_reach_every_parameter(config: LacunaConfig, seed: int) -> None:
    """A parameter without a gradient stops distributed training; one whose gradient is zero is not used."""
    for head in heads_of(config):
        model = make_model(config, head, seed=seed).train()
        loss_of(model, inputs_for(config, head), labels_for(config, head)).backward()
        for name, parameter in model.named_parameters():
            assert parameter.grad is not None, f"{head}: {name} has no gradient"
            assert torch.isfinite(parameter.grad).all(), f"{head}: {name}"
            if not f"{head}.{name}".endswith(tuple(WITHOUT_EFFECT)):
                assert parameter.grad.any(), f"{head}: the gradient of {name} is zero"


@examples(20)
@given(config=configurations(), seed=SEEDS)
def test_eager_and_sdpa_agree(config: LacunaConfig, seed: int) -> None:
    head = LANGUAGE_HEADS[config.shape]
    eager = make_model(config, seed=seed, implementation="eager")
    sdpa = copy.deepcopy(eager)
    sdpa.set_attn_implementation("sdpa")
    inputs = inputs_for(config, head)
    real = inputs["attention_mask"].bool()
    expected, actual = eager(**inputs).logits[real], sdpa(**inputs).logits[real]
    assert_agree(actual, expected)
    weigh(expected).backward()
    weigh(actual).backward()
    assert_same_gradients(sdpa, eager)


@examples(20)
@given(
    config=configurations(("decoder", "encoder-decoder")),
    seed=SEEDS,
    chunk=st.integers(1, 40),
    items=st.sampled_from([None, 50]),
    targets=st.sampled_from(["some", "none"]),
)
def test_a_loss_without_logits_equals_the_loss_with_them(
    config: LacunaConfig, seed: int, chunk: int, items: int | None, targets: str
) -> None:
    head = LANGUAGE_HEADS[config.shape]
    dense = make_model(config, seed=seed).train()
    sparing = copy.deepcopy(dense)
    inputs, labels = inputs_for(config, head), labels_for(config, head)
    if targets == "none":
        labels = {"labels": torch.full_like(labels["labels"], -100)}
    expected = dense(**inputs, **labels, num_items_in_batch=items)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(losses_lacuna, "_CHUNK_LOGITS", chunk * VOCAB)  # as many tokens at a time
        actual = sparing(**inputs, **labels, num_items_in_batch=items, skip_logits=True)
        assert actual.logits is None
        assert expected.logits.shape == (ROWS, WIDTH, VOCAB)
        assert_agree(actual.loss, expected.loss)
        expected.loss.backward()
        actual.loss.backward()
    assert_same_gradients(sparing, dense)
    if targets == "none":
        assert actual.loss == 0


def count_items(head: str, labels: dict[str, Tensor]) -> dict[str, Tensor]:
    """How many targets a batch has, as `Trainer` counts them."""
    if head == "LacunaForQuestionAnswering":  # One number for both ends; rows without an answer are left out of both.
        return {"num_items_in_batch": (labels["start_positions"] < WIDTH).sum()}
    targets = labels["labels"][:, 1:] if head == "LacunaForCausalLM" else labels["labels"]
    counts = {"num_items_in_batch": (targets != -100).sum()}
    if head == "LacunaForPreTraining":
        counts["num_pairs_in_batch"] = torch.tensor(len(targets))
    return counts


@examples(15)
@given(config=configurations(), seed=SEEDS, skip=st.booleans(), cuts=st.sampled_from([(1,), (3,), (1, 2), (2, 3)]))
def test_parts_of_a_batch_add_up_to_the_whole(
    config: LacunaConfig, seed: int, skip: bool, cuts: tuple[int, ...]
) -> None:
    for head in heads_of(config):
        labels = labels_for(config, head)
        if not labels:
            continue
        if head == "LacunaForQuestionAnswering":
            labels = {name: positions.clamp(max=WIDTH - 1) for name, positions in labels.items()}
            labels["start_positions"][1] = labels["end_positions"][1] = WIDTH + 3
        whole = make_model(config, head, seed=seed)
        parts = copy.deepcopy(whole)
        inputs = inputs_for(config, head)
        arguments = {"skip_logits": True} if skip and hasattr(whole, "lm_head") and config.shape != "encoder" else {}
        expected = whole(**inputs, **labels).loss
        expected.backward()
        items, total = count_items(head, labels), torch.zeros(())
        for start, end in zip((0, *cuts), (*cuts, ROWS), strict=True):
            part = {name: value[start:end] for name, value in (inputs | labels).items()}
            loss = parts(**part, **items, **arguments).loss
            loss.backward()
            total = total + loss.detach()
        assert_agree(total, expected)
        assert_same_gradients(parts, whole)


@examples(15)
@given(config=configurations(), seed=SEEDS)
def test_gradient_checkpointing_changes_nothing(config: LacunaConfig, seed: int) -> None:
    """With dropout too: what is computed again draws the same."""
    for name in ("embedding_dropout", "hidden_dropout", "attention_dropout", "activation_dropout"):
        setattr(config, name, 0.2)
    for head in heads_of(config):
        plain = make_model(config, head, seed=seed).train()
        saving = copy.deepcopy(plain)
        saving.gradient_checkpointing_enable()  # its newer name is not in transformers 5.17
        for model in (plain, saving):
            torch.manual_seed(0)
            loss_of(model, inputs_for(config, head), labels_for(config, head)).backward()
        assert_same_gradients(saving, plain, tolerance=0.0)


# ---------------------------------------------------------------------------------------------------------- vocabulary


@examples(20)
@given(
    config=configurations(),
    seed=SEEDS,
    size=st.sampled_from([VOCAB - 9, VOCAB + 6]),
    multiple=st.sampled_from([None, 8]),
)
def test_resized_vocabularies_keep_the_old_rows(
    config: LacunaConfig, seed: int, size: int, multiple: int | None
) -> None:
    for head in ("LacunaModel", LANGUAGE_HEADS[config.shape]):
        model = make_model(copy.deepcopy(config), head, seed=seed)
        inputs = inputs_for(config, head)
        inputs["input_ids"] = inputs["input_ids"].clamp(max=VOCAB - 10)
        with torch.no_grad():
            before, tables = tensors(model(**inputs))[0], shared_tables(model)
        model.resize_token_embeddings(size, pad_to_multiple_of=multiple)
        new = size if multiple is None else math.ceil(size / multiple) * multiple
        kept = min(new, VOCAB)
        assert model.config.vocab_size == new
        assert shared_tables(model) == tables
        outputs = tensors(model(**inputs))[0]
        if head != "LacunaModel":
            assert outputs.shape[-1] == new
            before, outputs = before[..., :kept], outputs[..., :kept]
        assert_agree(outputs, before)
        labels = {name: value.clamp(max=new - 1) for name, value in labels_for(config, head).items()}
        inputs["input_ids"] = inputs["input_ids"].clone()
        inputs["input_ids"][0, 0] = new - 1
        loss_of(model.train(), inputs, labels).backward()
        assert all(parameter.grad is not None for parameter in model.parameters())
        with tempfile.TemporaryDirectory() as folder:
            model.save_pretrained(folder)
            loaded = type(model).from_pretrained(folder).eval()
        assert torch.equal(tensors(loaded(**inputs))[0], tensors(model.eval()(**inputs))[0])


# ---------------------------------------------------------------------------------------- hidden states and attentions


@examples(25)
@given(config=configurations(), seed=SEEDS)
def test_hidden_states_and_attentions_on_request(config: LacunaConfig, seed: int) -> None:
    model = make_model(config, "LacunaModel", seed=seed, implementation="eager")
    inputs = inputs_for(config, "LacunaModel")
    written = random_ids(ROWS, 5, seed=2)
    if config.is_encoder_decoder:
        inputs["decoder_input_ids"] = written
    with torch.no_grad():
        plain = model(**inputs)
        outputs = model(**inputs, output_hidden_states=True, output_attentions=True)
    assert_agree(outputs.last_hidden_state, plain.last_hidden_state, tolerance=0.0)
    assert not [name for name in plain if "attentions" in name or "hidden_states" in name]

    mask = inputs["attention_mask"].bool()
    prefix = (
        {"encoder": "", "decoder": ""}
        if not config.is_encoder_decoder
        else {"encoder": "encoder_", "decoder": "decoder_"}
    )
    lengths = {"encoder": WIDTH, "decoder": 5 if config.is_encoder_decoder else WIDTH}
    for stack in config.stacks:
        layers, length = len(config.layer_types_of(stack)), lengths[stack]
        states, weights = outputs[f"{prefix[stack]}hidden_states"], outputs[f"{prefix[stack]}attentions"]
        assert [tuple(state.shape) for state in states] == [(ROWS, length, config.hidden_size)] * (layers + 1)
        shape = (ROWS, config.num_attention_heads, length, length)
        assert [tuple(weight.shape) for weight in weights] == [shape] * layers
        last = outputs["encoder_last_hidden_state" if prefix[stack] == "encoder_" else "last_hidden_state"]
        assert torch.equal(states[-1], last)
        seen = mask if length == WIDTH else torch.ones(ROWS, length, dtype=torch.bool)
        for weight, layer_type in zip(weights, config.layer_types_of(stack), strict=True):
            real = weight.transpose(1, 2)[seen]  # Of padding it does not matter what it sees.
            assert_agree(real.sum(-1), torch.ones(real.shape[:-1]))
            allowed = who_sees_whom(config, stack, layer_type, length)[None] & seen[:, None, :]
            assert not weight.transpose(1, 2)[seen].masked_select(~allowed[seen][:, None, :]).any()
    if config.is_encoder_decoder:
        shape = (ROWS, config.num_attention_heads, 5, WIDTH)
        assert [tuple(weight.shape) for weight in outputs.cross_attentions] == [shape] * config.num_decoder_layers
        for weight in outputs.cross_attentions:
            assert_agree(weight.sum(-1), torch.ones(weight.shape[:-1]))
            assert not weight.masked_select(~mask[:, None, None, :]).any()


def who_sees_whom(config: LacunaConfig, stack: str, layer_type: str, length: int) -> Tensor:
    """True where a token (row) sees another (column), written out: bool [T, T]."""
    rows = []
    for token in range(length):
        row = []
        for other in range(length):
            if layer_type == "full_attention":
                near = True
            elif stack == "encoder":
                near = abs(token - other) <= config.sliding_window
            else:
                near = token - other < config.sliding_window
            row.append(near and (stack == "encoder" or other <= token))
        rows.append(row)
    return torch.tensor(rows)


def test_every_head_has_labels_here() -> None:
    """A new head must say what it predicts, or the properties above would pass it by."""
    for config in (LacunaConfig(shape=shape) for shape in LANGUAGE_HEADS):
        for head in heads_of(config):
            assert hasattr(modeling, head)
            assert labels_for(config, head) or head == "LacunaModel"
