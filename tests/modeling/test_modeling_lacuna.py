"""How models behave: packing, padding, causality, caches, losses, saving. Native equality is in test_conversion.py."""

import copy
import itertools
from typing import Any

import pytest
import torch
import transformers
from examples import fast
from torch import Tensor
from transformers import DynamicCache

from lacuna import modeling
from lacuna.modeling import (
    HEADS,
    LacunaConfig,
    LacunaForCausalLM,
    LacunaForMaskedLM,
    LacunaForPreTraining,
    LacunaForQuestionAnswering,
    LacunaForSequenceClassification,
    LacunaModel,
)

VOCAB = 67
KINDS: dict[str, dict[str, Any]] = {
    "bert": {"family": "bert"},
    "modernbert": {"family": "modernbert", "sliding_window": 3},
    "qwen3": {"family": "qwen3"},
    "gpt2": {"family": "gpt2"},
    "llama": {"family": "llama", "num_key_value_heads": 2},
    "bart": {"family": "bart"},
    "vaswani": {"family": "vaswani"},
    "qwen3-sliding": {
        "family": "qwen3",
        "layer_types": ["full_attention", "sliding_attention", "full_attention"],
        "sliding_window": 4,
    },
    "encoder-without-positions": {
        "family": "modernbert", "position_type": "none", "layer_types": ["full_attention"] * 3,
    },
    "learned-decoder": {
        "family": "bert", "shape": "decoder", "pooler": False, "max_position_embeddings": 64, "norm_placement": "pre",
    },
}  # fmt: skip
ENCODERS = ["bert", "modernbert", "encoder-without-positions"]
DECODERS = ["qwen3", "qwen3-sliding", "learned-decoder", "gpt2", "llama"]
PAIRED = ["bart", "vaswani"]  # encoder-decoders
IMPLEMENTATIONS = ["sdpa", "eager"]


def make_config(kind: str, **overrides: Any) -> LacunaConfig:
    small = {"vocab_size": VOCAB, "hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4, "head_dim": 8}
    return LacunaConfig.from_family(**{**small, "initializer_range": 0.2, **KINDS[kind], **overrides})


def make_model(kind: str, head: str | None = None, *, seed: int = 0, **overrides: Any) -> Any:
    torch.manual_seed(seed)
    config = make_config(kind, **overrides)
    writers = {"encoder": "LacunaForMaskedLM", "decoder": "LacunaForCausalLM"}
    head = head or writers.get(config.shape, "LacunaForConditionalGeneration")
    return getattr(modeling, head)(config).eval()


def random_ids(*shape: int, seed: int = 1) -> Tensor:
    return torch.randint(5, VOCAB, shape, generator=torch.Generator().manual_seed(seed))


def largest_gradient_difference(first: torch.nn.Module, second: torch.nn.Module) -> float:
    pairs = zip(first.parameters(), second.parameters(), strict=True)
    return max(float((a.grad - b.grad).abs().max()) for a, b in pairs if a.grad is not None or b.grad is not None)


def sum_of_squares(logits: Tensor) -> Tensor:
    return (logits.float() ** 2).sum() / 100


# ----------------------------------------------------------------------------------------------- packing and padding

LENGTHS = [[5, 1, 9, 3], [11, 7], [18]]  # documents of each row; the third row of the batch is not packed


def make_packed_batch() -> tuple[Tensor, Tensor, Tensor]:
    width = 20
    ids, positions, mask = (torch.zeros(3, width, dtype=torch.long) for _ in range(3))
    for row, lengths in enumerate(LENGTHS):
        filled = sum(lengths)
        ids[row, :filled] = random_ids(filled, seed=row)
        positions[row, :filled] = torch.cat([torch.arange(length) for length in lengths])
        mask[row, :filled] = 1
    return ids, positions, mask


PACKINGS = [*itertools.product([*ENCODERS, *DECODERS], IMPLEMENTATIONS, ["no mask", "all ones", "padding"])]
QUICK = [case for case in PACKINGS if case[1:] in (("sdpa", "no mask"), ("eager", "padding"))]
QUICK += [(kind, "sdpa", mask) for kind in ("modernbert", "qwen3-sliding") for mask in ("all ones", "padding")]


@pytest.mark.parametrize("case", fast(PACKINGS, *QUICK), ids="-".join)
def test_packed_rows_equal_separate_documents(case: tuple[str, str, str]) -> None:
    kind, implementation, masked = case
    model = make_model(kind)
    model.set_attn_implementation(implementation)
    apart = copy.deepcopy(model)
    ids, positions, mask = make_packed_batch()
    if masked != "padding":  # fill the padding with one more document
        for row, lengths in enumerate(LENGTHS):
            rest = ids.shape[1] - sum(lengths)
            ids[row, -rest:] = random_ids(rest, seed=9)
            positions[row, -rest:] = torch.arange(rest)
    arguments = (
        {} if masked == "no mask" else {"attention_mask": torch.ones_like(mask) if masked == "all ones" else mask}
    )
    assert model.config.use_cache  # the configuration of a decoder asks for a cache, which must not hide the packing
    packed = model(ids, position_ids=positions, **arguments).logits
    loss = sum_of_squares(packed[mask.bool()])
    loss.backward()

    expected_loss = torch.zeros(())
    for row, lengths in enumerate(LENGTHS):
        start = 0
        for length in lengths:
            document = slice(start, start + length)
            expected = apart(ids[row : row + 1, document]).logits
            torch.testing.assert_close(packed[row : row + 1, document], expected, atol=1e-5, rtol=1e-5)
            expected_loss = expected_loss + sum_of_squares(expected)
            start += length
    expected_loss.backward()
    assert largest_gradient_difference(model, apart) < 1e-4


@pytest.mark.parametrize("kind", DECODERS)
def test_packing_survives_an_empty_cache_that_the_caller_made(kind: str) -> None:
    model = make_model(kind)
    ids, positions, _ = make_packed_batch()
    plain = model(ids, position_ids=positions, use_cache=False).logits
    cached = model(ids, position_ids=positions, past_key_values=DynamicCache(config=model.config), use_cache=True)
    torch.testing.assert_close(cached.logits, plain, atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize("kind", [*ENCODERS, *DECODERS])
@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_padding_changes_nothing(kind: str, implementation: str, dtype: torch.dtype) -> None:
    model = make_model(kind).to(dtype)
    model.set_attn_implementation(implementation)
    ids = random_ids(1, 7)
    alone = model(ids).logits
    padded = torch.cat((ids, torch.zeros(1, 30, dtype=torch.long)), dim=1)
    other = random_ids(1, 37, seed=2)
    mask = torch.ones(2, 37, dtype=torch.long)
    mask[0, 7:] = 0
    logits = model(torch.cat((padded, other)), attention_mask=mask).logits
    assert torch.isfinite(logits).all()  # also where a row of a sliding layer sees nothing but padding
    tolerance = 1e-5 if dtype == torch.float32 else 0.15 * float(alone.detach().abs().max())
    torch.testing.assert_close(logits[:1, :7], alone, atol=tolerance, rtol=1e-5)
    torch.testing.assert_close(logits[1:], model(other).logits, atol=tolerance, rtol=1e-5)


@pytest.mark.parametrize("kind", DECODERS)
def test_left_padding_changes_nothing(kind: str) -> None:
    model = make_model(kind)
    ids = random_ids(1, 7)
    padded = torch.cat((torch.zeros(1, 5, dtype=torch.long), ids), dim=1)
    mask = torch.tensor([[0] * 5 + [1] * 7])
    positions = (mask.cumsum(-1) - 1).clamp(min=0)
    logits = model(padded, attention_mask=mask, position_ids=positions).logits
    torch.testing.assert_close(logits[:, 5:], model(ids).logits, atol=1e-5, rtol=1e-5)


# ------------------------------------------------------------------------------------------- who sees whom, and caches


@pytest.mark.parametrize("kind", DECODERS)
@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_a_decoder_does_not_see_the_future(kind: str, implementation: str) -> None:
    model = make_model(kind)
    model.set_attn_implementation(implementation)
    ids = random_ids(2, 15)
    changed = ids.clone()
    changed[:, 9:] = random_ids(2, 6, seed=4)
    before, after = model(ids).logits, model(changed).logits
    assert torch.equal(before[:, :9], after[:, :9])
    assert not torch.equal(before[:, 9:], after[:, 9:])


def test_an_encoder_sees_both_sides_and_a_window_has_an_edge() -> None:
    config = make_config("modernbert", layer_types=["sliding_attention"], num_hidden_layers=1)
    torch.manual_seed(0)
    model = LacunaModel(config).eval()
    ids = random_ids(1, 15)
    changed = ids.clone()
    changed[0, 7] = (ids[0, 7] - 4) % 60 + 5
    moved = (model(ids).last_hidden_state - model(changed).last_hidden_state).abs().amax(-1)[0] > 1e-6
    assert moved.nonzero().flatten().tolist() == [4, 5, 6, 7, 8, 9, 10]  # three on each side


def test_without_positions_an_encoder_is_permutation_equivariant() -> None:
    model = make_model("encoder-without-positions")
    ids = random_ids(2, 13)
    order = torch.randperm(13, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(model(ids[:, order]).logits, model(ids).logits[:, order], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("kind", DECODERS)
def test_cached_steps_equal_one_pass(kind: str) -> None:
    model = make_model(kind)
    ids = random_ids(2, 14)
    expected = model(ids).logits
    first = model(ids[:, :6], use_cache=True)
    pieces, cache = [first.logits], first.past_key_values
    for step in range(6, 14):
        outputs = model(ids[:, step : step + 1], past_key_values=cache, use_cache=True)
        pieces.append(outputs.logits)
    torch.testing.assert_close(torch.cat(pieces, dim=1), expected, atol=1e-5, rtol=1e-5)
    assert model(ids, use_cache=False).past_key_values is None


@pytest.mark.parametrize("kind", fast(DECODERS, "qwen3-sliding", "learned-decoder"))
def test_generation(kind: str) -> None:
    model = make_model(kind)
    prompt = random_ids(2, 6)
    arguments = {"max_new_tokens": 10, "min_new_tokens": 10, "do_sample": False}
    expected = model.generate(prompt, use_cache=False, **arguments)
    assert torch.equal(model.generate(prompt, **arguments), expected)
    assert torch.equal(model.generate(prompt, cache_implementation="static", **arguments), expected)
    padded = torch.cat((torch.zeros(2, 3, dtype=torch.long), prompt), dim=1)
    mask = (padded != 0).long()
    assert torch.equal(model.generate(padded, attention_mask=mask, **arguments)[:, 3:], expected)
    beams = model.generate(prompt, max_new_tokens=4, num_beams=3, do_sample=False)
    assert beams.shape[0] == 2


def test_logits_to_keep() -> None:
    model = make_model("qwen3")
    ids = random_ids(2, 9)
    everything = model(ids).logits
    assert torch.equal(model(ids, logits_to_keep=3).logits, everything[:, -3:])
    assert torch.equal(model(ids, logits_to_keep=torch.tensor([2, 5])).logits, everything[:, [2, 5]])


@pytest.mark.parametrize("kind", [*ENCODERS, *DECODERS])
def test_embeddings_in_place_of_ids(kind: str) -> None:
    model = make_model(kind)
    ids = random_ids(2, 9)
    assert torch.equal(model(inputs_embeds=model.get_input_embeddings()(ids)).logits, model(ids).logits)
    with pytest.raises(ValueError, match="exactly one"):
        model()


def test_token_type_ids_matter_with_segments_only() -> None:
    ids, segments = random_ids(2, 9), torch.tensor([[0] * 4 + [1] * 5] * 2)
    with_segments, without = make_model("bert"), make_model("modernbert")
    assert not torch.equal(with_segments(ids, token_type_ids=segments).logits, with_segments(ids).logits)
    assert torch.equal(without(ids, token_type_ids=segments).logits, without(ids).logits)


# ------------------------------------------------------------------------------------------------------------- losses


def masked_labels(ids: Tensor, seed: int = 5) -> Tensor:
    chosen = torch.rand(ids.shape, generator=torch.Generator().manual_seed(seed)) < 0.3
    return ids.masked_fill(~chosen, -100)


@pytest.mark.parametrize("family", ["modernbert", "bert"])  # norms before and after the blocks
@pytest.mark.parametrize("head", ["LacunaForMaskedLM", "LacunaForPreTraining"])
def test_sparse_prediction_equals_dense(head: str, family: str) -> None:
    dense = make_model(family, head)
    sparse = copy.deepcopy(dense)
    ids = random_ids(4, 16)
    labels = masked_labels(ids)
    expected = dense(ids, labels=labels, sparse_prediction=False)
    outputs = sparse(ids, labels=labels, sparse_prediction=True)
    key = "logits" if head == "LacunaForMaskedLM" else "prediction_logits"
    assert expected[key].shape == (4, 16, VOCAB)
    assert outputs[key].shape == ((labels != -100).sum(), VOCAB)
    torch.testing.assert_close(outputs[key], expected[key][labels != -100], atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(outputs.loss, expected.loss)
    expected.loss.backward()
    outputs.loss.backward()
    assert largest_gradient_difference(sparse, dense) < 1e-6


@torch.no_grad()
def test_behind_the_last_attention_other_tokens_are_left_out() -> None:
    """Unless their states are asked for; the positions may be given without labels."""
    model, ids = make_model("modernbert"), random_ids(4, 16)
    labels, seen = masked_labels(ids), []
    places = (labels != -100).flatten().nonzero()[:, 0]
    model.model.encoder.layers[-1].mlp.register_forward_hook(
        lambda module, given, found: seen.append(found.shape[:-1])
    )
    logits = model(ids).logits
    found = model(ids, target_positions=places).logits
    torch.testing.assert_close(found, logits.flatten(0, 1)[places], atol=1e-5, rtol=1e-5)
    outputs = model(ids, labels=labels, sparse_prediction=True, output_hidden_states=True)
    assert outputs.logits.shape == found.shape
    assert all(states.shape[:2] == ids.shape for states in outputs.hidden_states)
    assert seen == [ids.shape, places.shape, ids.shape]
    pairs = make_model("modernbert", "LacunaForPreTraining")  # which reads all states, for the sentence relation
    found, expected = pairs(ids, target_positions=places), pairs(ids)
    torch.testing.assert_close(found.prediction_logits, expected.prediction_logits.flatten(0, 1)[places])
    assert torch.equal(found.seq_relationship_logits, expected.seq_relationship_logits)


def test_sparse_prediction_is_for_training() -> None:
    model = make_model("modernbert")
    ids = random_ids(2, 8)
    labels = masked_labels(ids)
    assert model(ids, labels=labels).logits.shape == (2, 8, VOCAB)
    assert model.train()(ids, labels=labels).logits.dim() == 2
    assert model(ids).logits.shape == (2, 8, VOCAB)


def test_no_target_gives_no_loss_and_no_gradient() -> None:
    model = make_model("modernbert").train()
    ids = random_ids(2, 8)
    loss = model(ids, labels=torch.full_like(ids, -100)).loss
    loss.backward()
    assert loss == 0
    assert all(parameter.grad is None or not parameter.grad.any() for parameter in model.parameters())


def tasks() -> dict[str, tuple[str, str, dict[str, Any], dict[str, Tensor]]]:
    ids = random_ids(6, 12)
    generator = torch.Generator().manual_seed(8)
    lm = {"labels": masked_labels(ids)}
    spans = {"start_positions": torch.tensor([1, 2, 40, 4, 5, 6]), "end_positions": torch.tensor([3, 3, 40, 9, 5, 7])}
    classes = {"labels": torch.tensor([0, 1, 2, 2, 1, 0])}
    several = {"labels": torch.randint(0, 2, (6, 3), generator=generator).float()}
    numbers = {"labels": torch.randn(6, generator=generator)}
    vectors = {"labels": torch.randn(6, 3, generator=generator)}
    regression = {"num_labels": 3, "problem_type": "regression"}
    classifier = "LacunaForSequenceClassification"
    return {
        "masked": ("modernbert", "LacunaForMaskedLM", {}, lm),
        "causal": ("qwen3", "LacunaForCausalLM", {}, {"labels": ids}),
        "span": ("bert", "LacunaForQuestionAnswering", {}, spans),
        "span-decoder": ("qwen3", "LacunaForQuestionAnswering", {}, spans),
        "single": ("bert", classifier, {"num_labels": 3}, classes),
        "single-mean": ("modernbert", classifier, {"num_labels": 3, "classifier_pooling": "mean"}, classes),
        "single-decoder": ("qwen3", classifier, {"num_labels": 3}, classes),
        "multi": ("modernbert", classifier, {"num_labels": 3}, several),
        "regression": ("modernbert", classifier, {"num_labels": 1}, numbers),
        "regression-vector": ("qwen3", classifier, regression, vectors),
    }


def count_items(name: str, targets: dict[str, Tensor]) -> int:
    if name.startswith("span"):
        return int((targets["start_positions"] < 12).sum())
    labels = targets["labels"][:, 1:] if name == "causal" else targets["labels"]
    return int((labels != -100).sum())


@pytest.mark.parametrize("name", tasks())
def test_num_items_makes_accumulation_exact(name: str) -> None:
    kind, head, overrides, targets = tasks()[name]
    whole = make_model(kind, head, **overrides)
    parts = copy.deepcopy(whole)
    ids = random_ids(6, 12)
    expected = whole(ids, **targets).loss
    expected.backward()

    items = torch.tensor(count_items(name, targets))
    total = torch.zeros(())
    for rows in (slice(0, 1), slice(1, 4), slice(4, 6)):
        part = {key: value[rows] for key, value in targets.items()}
        loss = parts(ids[rows], **part, num_items_in_batch=items).loss
        loss.backward()
        total = total + loss.detach()
    torch.testing.assert_close(total, expected.detach(), atol=1e-6, rtol=1e-5)
    assert largest_gradient_difference(parts, whole) < 1e-5


@pytest.mark.parametrize("given", ["both", "items only"])
def test_pretraining_accumulates_exactly(given: str) -> None:
    whole = make_model("bert", "LacunaForPreTraining")
    parts = copy.deepcopy(whole)
    ids = random_ids(4, 12)
    labels, relation = ids.clone(), torch.tensor([0, 1, 1, 0])
    labels[:, 6:] = -100  # as many targets in each row, so that the shares of rows and of targets agree
    expected = whole(ids, labels=labels, next_sentence_label=relation)
    torch.testing.assert_close(expected.loss, expected.mlm_loss + expected.nsp_loss)
    expected.loss.backward()
    counts: dict[str, Any] = {"num_items_in_batch": torch.tensor(24)}
    counts |= {"num_pairs_in_batch": torch.tensor(4)} if given == "both" else {}
    losses = [
        parts(ids[rows], labels=labels[rows], next_sentence_label=relation[rows], **counts).loss
        for rows in (slice(0, 1), slice(1, 4))
    ]
    sum(losses).backward()
    torch.testing.assert_close(sum(losses), expected.loss)
    assert largest_gradient_difference(parts, whole) < 1e-5


def test_problem_type_follows_the_labels() -> None:
    ids = random_ids(2, 6)
    for labels, num_labels, expected in (
        (torch.tensor([0, 2]), 3, "single_label_classification"),
        (torch.tensor([[0.0, 1.0, 1.0]] * 2), 3, "multi_label_classification"),
        (torch.tensor([0.5, -1.0]), 1, "regression"),
    ):
        model = make_model("modernbert", "LacunaForSequenceClassification", num_labels=num_labels)
        model(ids, labels=labels).loss.backward()
        assert model.config.problem_type == expected


def test_pooling_reads_real_tokens_on_either_side_of_padding() -> None:
    ids = random_ids(1, 6)
    zeros = torch.zeros(1, 3, dtype=torch.long)
    for kind, pooling in (("qwen3", "last"), ("qwen3", "mean"), ("modernbert", "first"), ("modernbert", "mean")):
        model = make_model(kind, "LacunaForSequenceClassification", classifier_pooling=pooling)
        alone = model(ids).logits
        for padded in (torch.cat((ids, zeros), dim=1), torch.cat((zeros, ids), dim=1)):
            mask = (padded != 0).long()
            positions = (mask.cumsum(-1) - 1).clamp(min=0)
            logits = model(padded, attention_mask=mask, position_ids=positions).logits
            torch.testing.assert_close(logits, alone, atol=1e-5, rtol=1e-5)


# ------------------------------------------------------------------------------------ saving, initialisation, training


SAVED = [*itertools.product(["bert", "modernbert", "qwen3-sliding", *PAIRED], ["float32", "bfloat16"])]


@pytest.mark.parametrize("case", fast(SAVED, SAVED[0], SAVED[5], SAVED[8]), ids="-".join)
def test_saved_and_loaded_is_bitwise_equal(case: tuple[str, str], tmp_path) -> None:
    kind, dtype = case[0], getattr(torch, case[1])
    ids = random_ids(2, 11)
    for auto_name, head in HEADS[make_config(kind).shape].items():
        model = make_model(kind, head).to(dtype)
        model.save_pretrained(tmp_path / auto_name)
        loaded, info = type(model).from_pretrained(tmp_path / auto_name, output_loading_info=True)
        assert not any(info[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys"))
        assert loaded.dtype == dtype
        before, after = model.state_dict(), loaded.state_dict()
        assert all(torch.equal(before[key], after[key]) for key in before)
        # What is loaded lies in the file's pages; on some processors where memory begins decides the last bit.
        loaded.load_state_dict({name: weight.clone() for name, weight in after.items()}, assign=True)
        loaded.tie_weights()
        given = ids.unsqueeze(0) if "Choice" in head else ids
        with torch.no_grad():
            for mine, theirs in zip(model(given).to_tuple(), loaded.eval()(given).to_tuple(), strict=True):
                assert not isinstance(mine, Tensor) or torch.equal(mine, theirs)


@pytest.mark.parametrize("kind", ["bert", "modernbert", "qwen3", *PAIRED])
def test_tied_weights_are_one_tensor_and_untied_are_two(kind: str) -> None:
    for tied in (True, False):
        model = make_model(kind, tie_word_embeddings=tied)
        same = model.lm_head.weight.data_ptr() == model.get_input_embeddings().weight.data_ptr()
        assert same is tied
        model.resize_token_embeddings(VOCAB + 5)
        assert model(random_ids(1, 4)).logits.shape[-1] == VOCAB + 5 == model.config.vocab_size


@pytest.mark.parametrize("kind", ["bert", "modernbert", "qwen3", "gpt2", "llama", *PAIRED])
def test_gradients_reach_every_parameter(kind: str) -> None:
    ids = random_ids(3, 10)
    targets: dict[str, dict[str, Tensor]] = {
        "LacunaForPreTraining": {"labels": ids, "next_sentence_label": torch.tensor([0, 1, 0])},
        "LacunaForMaskedLM": {"labels": ids},
        "LacunaForCausalLM": {"labels": ids},
        "LacunaForSequenceClassification": {"labels": torch.tensor([0, 1, 0])},
        "LacunaForQuestionAnswering": {"start_positions": ids[:, 0] % 10, "end_positions": ids[:, 1] % 10},
        "LacunaForConditionalGeneration": {"labels": ids},
        "LacunaForTokenClassification": {"labels": ids % 2},
        "LacunaForMultipleChoice": {"labels": torch.tensor([2])},
    }
    for head in HEADS[make_config(kind).shape].values():
        if head in targets:
            model = make_model(kind, head).train()
            given = ids.unsqueeze(0) if "Choice" in head else ids
            model(given, **targets[head]).loss.backward()
            assert [name for name, parameter in model.named_parameters() if parameter.grad is None] == []


@pytest.mark.parametrize("kind", ["bert", "modernbert", "qwen3", *PAIRED])
def test_gradient_checkpointing_changes_nothing(kind: str) -> None:
    plain = make_model(kind, embedding_dropout=0.0, hidden_dropout=0.0, attention_dropout=0.0).train()
    saving = copy.deepcopy(plain)
    saving.gradient_checkpointing_enable()  # its newer name is not in transformers 5.17
    ids = random_ids(2, 10)
    for model in (plain, saving):
        model(ids, labels=ids).loss.backward()
    assert largest_gradient_difference(plain, saving) == 0.0


def test_weights_start_as_the_configuration_says() -> None:
    torch.manual_seed(0)
    model = LacunaForPreTraining(LacunaConfig.from_family("bert", initializer_range=0.05))
    assert abs(float(model.model.encoder.layers[0].mlp.up_proj.weight.detach().std()) - 0.05) < 1e-3
    assert not model.model.encoder.embeddings.embed_tokens.weight[0].any()  # padding
    assert (model.model.encoder.embeddings.norm.weight == 1).all()
    assert not model.lm_head.bias.any()


@pytest.mark.parametrize("family", ["bert", "modernbert", "qwen3", *PAIRED])
def test_meta_device_and_rotary_buffers(family: str) -> None:
    config = make_config(family)
    with torch.device("meta"):
        model = LacunaModel(config)
    model.to_empty(device="cpu")
    model.init_weights()
    expected = dict(LacunaModel(config).named_buffers())
    assert all(torch.equal(buffer, expected[name]) for name, buffer in model.named_buffers())


@pytest.mark.parametrize("head", [LacunaForMaskedLM, LacunaForCausalLM])
def test_autocast_trains(head: type) -> None:
    kind = "qwen3" if head is LacunaForCausalLM else "modernbert"
    model = make_model(kind, initializer_range=0.02).train()
    ids = random_ids(4, 12)
    exact = model(ids, labels=ids).loss
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = model(ids, labels=ids).loss
    assert loss.dtype == torch.float32
    assert abs(float((loss - exact).detach())) < 0.02
    loss.backward()


def test_heads_are_offered_by_the_auto_classes() -> None:
    kinds = {"encoder": "modernbert", "decoder": "qwen3", "encoder-decoder": "bart"}
    for shape, heads in HEADS.items():
        config = make_config(kinds[shape])
        for auto_name, head in heads.items():
            assert type(getattr(transformers, auto_name).from_config(config)).__name__ == head
    assert issubclass(LacunaForQuestionAnswering, modeling.LacunaPreTrainedModel)
    assert issubclass(LacunaForSequenceClassification, modeling.LacunaPreTrainedModel)
