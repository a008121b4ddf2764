"""Bad input gets a `ValueError` that names the argument and both values: what was given and what is needed."""

from pathlib import Path
from typing import Any

import pytest
import torch
from random_models import LANGUAGE_HEADS, assert_agree, make_model, random_ids
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import DynamicCache, EncoderDecoderCache, StaticCache

from lacuna import modeling
from lacuna.modeling import HEADS, ConfigurationError, LacunaConfig, checks_lacuna, layers_lacuna, losses_lacuna
from lacuna.modeling.modeling_lacuna import LacunaPreTrainedModel

VOCAB, LONGEST, CLASSES = 41, 12, 3
ROWS, LENGTH, CHOICES = 2, 6, 3
EVERY = [(shape, head) for shape, heads in HEADS.items() for head in heads.values()]
WITH_LABELS = [(shape, head) for shape, head in EVERY if head not in ("LacunaModel", "LacunaForQuestionAnswering")]
LANGUAGE = list(LANGUAGE_HEADS.items())
Looks = list[tuple[str, tuple[int, ...]]]  # argument and shape
PAIR = ("encoder-decoder", "LacunaForConditionalGeneration")


def small(shape: str, **fields: Any) -> LacunaConfig:
    general = {
        "shape": shape, "vocab_size": VOCAB, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2,
        "intermediate_size": 24, "max_position_embeddings": LONGEST, "position_type": "learned", "type_vocab_size": 2,
        "num_labels": CLASSES, "problem_type": "single_label_classification",
    }  # fmt: skip
    return LacunaConfig(**{**general, **fields})


def inputs_for(head: str) -> dict[str, Tensor]:
    shape = (ROWS, CHOICES, LENGTH) if head == "LacunaForMultipleChoice" else (ROWS, LENGTH)
    return {"input_ids": random_ids(*shape, seed=0)}


def limit_of(head: str) -> tuple[str, int]:
    """Which field limits the labels of a head, and how many of them there are."""
    return {
        "LacunaForSequenceClassification": ("num_labels", CLASSES),
        "LacunaForTokenClassification": ("num_labels", CLASSES),
        "LacunaForMultipleChoice": ("number of choices", CHOICES),
    }.get(head, ("vocab_size", VOCAB))


def labels_for(head: str) -> Tensor:
    per_row = ("LacunaForSequenceClassification", "LacunaForMultipleChoice")
    shape = (ROWS,) if head in per_row else (ROWS, LENGTH)
    return torch.randint(0, limit_of(head)[1], shape, generator=torch.Generator().manual_seed(1))


def refuse(model: Any, *texts: str, **arguments: Any) -> None:
    """Assert that a call is refused with all of `texts` in the message, while training and not."""
    for mode in (True, False):
        model.train(mode)
        with pytest.raises(ValueError) as caught:
            model(**arguments)
        for text in texts:
            assert text in str(caught.value), f"{text!r} is not in {str(caught.value)!r}"


def changed(tensor: Tensor, value: int, *, place: int = -1) -> Tensor:
    tensor = tensor.clone()
    tensor.view(-1)[place] = value
    return tensor


every_head = pytest.mark.parametrize(("shape", "head"), EVERY)


# ------------------------------------------------------------------------------------------------- numbers and lengths


@every_head
def test_ids_outside_the_vocabulary(shape: str, head: str) -> None:
    model, inputs = make_model(small(shape), head), inputs_for(head)
    for value in (VOCAB, -1, 2**40):
        ids = changed(inputs["input_ids"], value)
        refuse(model, f"input_ids contains {value}", f"vocab_size={VOCAB}", f"0 to {VOCAB - 1}", input_ids=ids)
    segments = changed(inputs["input_ids"] * 0, 2)
    refuse(model, "token_type_ids contains 2", "type_vocab_size=2", **inputs, token_type_ids=segments)


@every_head
def test_rows_longer_than_the_positions(shape: str, head: str) -> None:
    model, ids = make_model(small(shape), head), inputs_for(head)["input_ids"]
    long = torch.cat((ids, ids, ids[..., :1]), dim=-1)
    refuse(model, "13 tokens", "max_position_embeddings=12", input_ids=long)
    positions = torch.arange(LENGTH).expand(ids.shape)
    for value in (LONGEST, -1):
        texts = (f"position_ids contains {value}", "max_position_embeddings=12", "0 to 11")
        refuse(model, *texts, input_ids=ids, position_ids=changed(positions, value))


@pytest.mark.parametrize(("shape", "head"), LANGUAGE)
@pytest.mark.parametrize("position_type", ["rotary", "sinusoidal", "none"])
def test_positions_without_an_end(shape: str, head: str, position_type: str) -> None:
    long = random_ids(ROWS, LONGEST + 1, seed=0)
    assert torch.isfinite(make_model(small(shape, position_type=position_type), head)(long)[0]).all()


def test_positions_end_with_a_cache_too() -> None:
    ids = random_ids(ROWS, 10, seed=0)
    model = make_model(small("decoder"))
    cache = model(ids, use_cache=True).past_key_values
    refuse(model, "13 tokens", "max_position_embeddings=12", input_ids=ids[:, :3], past_key_values=cache)
    paired = make_model(small("encoder-decoder"))
    cache = paired(ids, decoder_input_ids=ids, use_cache=True).past_key_values
    arguments = {"input_ids": ids, "decoder_input_ids": ids[:, :3], "past_key_values": cache}
    refuse(paired, "13 tokens", "max_position_embeddings=12", **arguments)


def test_what_the_decoder_of_a_pair_reads() -> None:
    model, ids = make_model(small("encoder-decoder")), random_ids(ROWS, LENGTH, seed=0)
    outside = changed(ids, VOCAB)
    refuse(model, "decoder_input_ids contains 41", "vocab_size=41", input_ids=ids, decoder_input_ids=outside)
    long = random_ids(ROWS, LONGEST + 1, seed=0)
    refuse(model, "13 tokens", "max_position_embeddings=12", input_ids=ids, decoder_input_ids=long)
    positions = torch.tensor([[0, 1, 2, 3, 4, 12]])
    texts = ("decoder_position_ids contains 12", "max_position_embeddings=12")
    refuse(model, *texts, input_ids=ids, decoder_position_ids=positions)
    for name in ("decoder_position_ids", "decoder_attention_mask"):
        refuse(model, name, "(2, 5)", "(2, 6)", input_ids=ids, **{name: torch.ones(ROWS, 5, dtype=torch.long)})
    refuse(model, "decoder_input_ids", "(3, 6)", "2 rows", input_ids=ids, decoder_input_ids=ids[[0, 1, 1]])
    three = torch.ones(3, LENGTH, 16)
    refuse(model, "decoder_inputs_embeds", "(3, 6, 16)", "2 rows", input_ids=ids, decoder_inputs_embeds=three)
    narrow = three[:2, :, 1:]
    refuse(model, "decoder_inputs_embeds", "15)", "hidden_size=16", input_ids=ids, decoder_inputs_embeds=narrow)
    refuse(model, "decoder_input_ids", "torch.float32", input_ids=ids, decoder_input_ids=ids.float())
    refuse(model, "decoder_input_ids", "(2, 0)", input_ids=ids, decoder_input_ids=ids[:, :0])


# -------------------------------------------------------------------------------------------------------------- labels


@pytest.mark.parametrize(("shape", "head"), WITH_LABELS)
def test_labels_of_the_wrong_shape(shape: str, head: str) -> None:
    model, inputs, labels = make_model(small(shape), head), inputs_for(head), labels_for(head)
    if shape == "encoder-decoder" and head == PAIR[1]:
        inputs["decoder_input_ids"] = inputs["input_ids"]
    for wrong in (labels[:1], labels[..., :-1], labels[0], labels[..., None, None], torch.cat((labels, labels))):
        if wrong.shape == labels.shape:
            continue
        refuse(model, "labels", str(tuple(wrong.shape)), str(tuple(labels.shape)), **inputs, labels=wrong)


def test_labels_that_a_decoder_would_read_are_rows_of_the_batch() -> None:
    model, ids = make_model(small("encoder-decoder")), random_ids(ROWS, LENGTH, seed=0)
    for wrong in (ids[0], ids[..., None]):
        refuse(model, "labels", str(tuple(wrong.shape)), input_ids=ids, labels=wrong)
    refuse(model, "(1, 6)", "2 rows", input_ids=ids, labels=ids[:1])


@pytest.mark.parametrize(("shape", "head"), WITH_LABELS)
def test_labels_outside_the_classes(shape: str, head: str) -> None:
    model, inputs, labels = make_model(small(shape), head), inputs_for(head), labels_for(head)
    if head == PAIR[1]:
        inputs["decoder_input_ids"] = inputs["input_ids"]
    field, limit = limit_of(head)
    for value in (limit, -1):
        wrong = changed(labels, value)
        texts = (f"labels contains {value}", f"{field}={limit}")
        refuse(model, *texts, **inputs, labels=wrong)
        if hasattr(model, "lm_head") and shape != "encoder":
            refuse(model, *texts, **inputs, labels=wrong, skip_logits=True)
    assert torch.isfinite(model(**inputs, labels=changed(labels, -100, place=0)).loss)


@pytest.mark.parametrize(("shape", "head"), WITH_LABELS)
def test_class_labels_are_integers_of_any_width(shape: str, head: str) -> None:
    model, inputs, labels = make_model(small(shape), head), inputs_for(head), labels_for(head)
    expected = model(**inputs, labels=labels).loss
    for dtype in (torch.int32, torch.int16):
        assert torch.equal(model(**inputs, labels=labels.to(dtype)).loss, expected)
    for dtype in (torch.float32, torch.bfloat16, torch.bool):
        refuse(model, "labels", str(dtype), "torch.int64", **inputs, labels=labels.to(dtype))


def test_the_kind_of_problem_is_found_for_every_width_of_integers() -> None:
    for dtype in (torch.int64, torch.int32):
        model = make_model(small("encoder", problem_type=None), "LacunaForSequenceClassification")
        labels = labels_for("LacunaForSequenceClassification").to(dtype)
        assert torch.isfinite(model(**inputs_for(""), labels=labels).loss)
        assert model.config.problem_type == "single_label_classification"


def test_both_labels_of_pretraining() -> None:
    model, inputs = make_model(small("encoder"), "LacunaForPreTraining"), inputs_for("")
    refuse(model, "next_sentence_label contains 2", "=2", **inputs, next_sentence_label=torch.tensor([0, 2]))
    refuse(model, "next_sentence_label", "(3,)", "(2,)", **inputs, next_sentence_label=torch.tensor([0, 1, 1]))
    refuse(model, "next_sentence_label", "torch.float32", **inputs, next_sentence_label=torch.tensor([0.0, 1.0]))


@pytest.mark.parametrize("shape", HEADS)
def test_answers_outside_the_row_do_not_count(shape: str) -> None:
    model, inputs = make_model(small(shape), "LacunaForQuestionAnswering"), inputs_for("")
    row = {"input_ids": inputs["input_ids"][:1]}
    inside, end = torch.tensor([2]), torch.tensor([4])
    expected = model(**row, start_positions=inside, end_positions=end).loss
    for outside in (-1, -100, LENGTH, LENGTH + 90):
        there = {
            "start_positions": torch.cat((inside, torch.tensor([outside]))),
            "end_positions": torch.cat((end, torch.tensor([outside]))),
        }
        assert_agree(model(**inputs, **there).loss, expected)
        neither = model(**inputs, start_positions=torch.full((2,), outside), end_positions=torch.full((2,), outside))
        assert neither.loss == 0
    both = {"start_positions": torch.tensor([1, 2]), "end_positions": torch.tensor([2, 3])}
    for name, other in (("start_positions", "end_positions"), ("end_positions", "start_positions")):
        refuse(model, "start_positions", "end_positions", **inputs, **{name: both[name]})
        wrong = {name: torch.tensor([1, 2, 3]), other: both[other]}
        refuse(model, name, "(3,)", "(2,)", **inputs, **wrong)
        refuse(model, name, "torch.float32", **inputs, **{name: both[name].float(), other: both[other]})
    narrow = {name: positions.int() for name, positions in both.items()}
    assert torch.equal(model(**inputs, **narrow).loss, model(**inputs, **both).loss)


# ------------------------------------------------------------------------------------------------ shapes of the input


@every_head
def test_inputs_of_the_wrong_shape_or_dtype(shape: str, head: str) -> None:
    model, ids = make_model(small(shape), head), inputs_for(head)["input_ids"]
    refuse(model, "input_ids", "torch.float32", "torch.int64", input_ids=ids.float())
    for wrong in (ids[0], ids[..., None]):
        refuse(model, str(tuple(wrong.shape)), "tokens", input_ids=wrong)
    refuse(model, "input_ids", "0)", input_ids=ids[..., :0])
    embeddings = model.get_input_embeddings()(ids).detach()
    narrow, wide = embeddings[..., :15], torch.cat((embeddings, embeddings), dim=-1)
    if shape != "encoder-decoder" or head == "LacunaModel":  # An encoder-decoder needs ids or labels to write.
        refuse(model, "inputs_embeds", "15)", "hidden_size=16", inputs_embeds=narrow)
        refuse(model, "inputs_embeds", "32)", "hidden_size=16", inputs_embeds=wide)
    refuse(model, "input_ids", "inputs_embeds", input_ids=ids, inputs_embeds=embeddings)
    if head != "LacunaForMultipleChoice":
        refuse(model, "input_ids", "inputs_embeds")


@every_head
def test_what_goes_with_the_ids_has_their_shape(shape: str, head: str) -> None:
    model, inputs = make_model(small(shape), head), inputs_for(head)
    rows = ROWS * (CHOICES if head == "LacunaForMultipleChoice" else 1)  # One row for each choice.
    right = torch.ones_like(inputs["input_ids"])
    for name in ("token_type_ids", "position_ids", "attention_mask"):
        for wrong in (right[..., :-1], torch.cat((right, right[:1]))):
            given = tuple(wrong.flatten(0, -2).shape)
            refuse(model, name, str(given), f"({rows}, {LENGTH})", **inputs, **{name: wrong})
        if head != "LacunaForMultipleChoice":
            refuse(model, name, str(tuple(right[0].shape)), **inputs, **{name: right[0]})
            refuse(model, name, "(2, 1, 6)", **inputs, **{name: right[:, None]})


@pytest.mark.parametrize(("shape", "head"), LANGUAGE)
def test_masks_with_four_dimensions(shape: str, head: str) -> None:
    model, inputs = make_model(small(shape), head), inputs_for(head)
    name = "attention_mask" if shape != "encoder-decoder" else "decoder_attention_mask"
    for sizes in ((3, 1, 6, 6), (2, 1, 5, 6), (2, 1, 6, 5), (2, 1, 6, 7)):
        refuse(model, name, str(sizes), "6", **inputs, **{name: torch.ones(sizes, dtype=torch.bool)})
    for sizes in ((2, 1, 6, 6), (1, 1, 6, 6), (2, 2, 6, 6), (2, 1, 1, 6)):
        mask = torch.ones(sizes, dtype=torch.bool)
        assert torch.isfinite(model(**inputs, **{name: mask}).logits).all()


def test_masks_with_a_cache_cover_what_was_read_before() -> None:
    model, ids = make_model(small("decoder")), random_ids(ROWS, LENGTH, seed=0)

    def one_more(cache: Any, length: int) -> dict[str, Any]:
        mask = torch.ones(ROWS, length, dtype=torch.long)
        return {"input_ids": ids[:, :1], "past_key_values": cache, "attention_mask": mask}

    for length in (1, 6, 8):
        cache = model(ids, use_cache=True).past_key_values
        refuse(model, "attention_mask", f"(2, {length})", "6 in the cache", "(2, 7)", **one_more(cache, length))
    cache = model(ids, use_cache=True).past_key_values
    assert torch.isfinite(model(**one_more(cache, 7)).logits).all()


def test_masks_between_the_two_texts() -> None:
    model, ids = make_model(small("encoder-decoder")), random_ids(ROWS, LENGTH, seed=0)
    written = random_ids(ROWS, 4, seed=1)
    read = {"encoder_outputs": model.model.encoder(ids), "decoder_input_ids": written}
    positions = torch.arange(LENGTH).expand(ROWS, -1)
    for extra in ({}, {"position_ids": positions}):
        for sizes in ((2, 5), (3, 6), (6,)):
            mask = torch.ones(sizes, dtype=torch.long)
            refuse(model, "attention_mask", str(sizes), "(2, 6)", attention_mask=mask, **read, **extra)
    both = {"input_ids": ids, "decoder_input_ids": written}
    square = torch.ones(2, 1, 6, 6, dtype=torch.bool)
    refuse(model, "attention_mask", "(2, 1, 6, 6)", "(2, 1, 1, 6)", attention_mask=square, **both)
    mask = torch.tensor([[1] * 6, [1] * 4 + [0] * 2])
    expected = model(ids, attention_mask=mask, decoder_input_ids=written).logits
    four = model(ids, attention_mask=mask[:, None, None].bool(), decoder_input_ids=written).logits
    assert_agree(four, expected)


@pytest.mark.parametrize("shape", ["decoder", "encoder-decoder"])
def test_packed_rows_and_a_cache_of_fixed_length(shape: str) -> None:
    config = small(shape, position_type="rotary")
    model, ids = make_model(config), random_ids(ROWS, LENGTH, seed=0)
    cache: Any = StaticCache(config=config.get_text_config(decoder=True), max_cache_len=10)
    packed = torch.tensor([[0, 1, 2, 0, 1, 2]]).expand(ROWS, -1)
    arguments = {"input_ids": ids, "position_ids": packed}
    if shape == "encoder-decoder":
        cache = EncoderDecoderCache(cache, DynamicCache())
        arguments |= {"decoder_input_ids": ids, "decoder_position_ids": packed}
    refuse(model, "position_ids", "past_key_values has a fixed length", past_key_values=cache, **arguments)


# -------------------------------------------------------------------------------------- what a shape or a field allows


@pytest.mark.parametrize("shape", HEADS)
def test_heads_of_other_shapes(shape: str) -> None:
    every = {head for heads in HEADS.values() for head in heads.values()}
    for head in every - set(HEADS[shape].values()):
        with pytest.raises(ConfigurationError) as caught:
            getattr(modeling, head)(small(shape))
        assert isinstance(caught.value, ValueError)
        for text in (head, f"shape='{shape}'", *HEADS[shape].values()):
            assert text in str(caught.value)


def test_a_window_of_one_token_is_for_encoders() -> None:
    one = {"layer_types": ["sliding_attention"] * 2, "sliding_window": 1}
    LacunaConfig(shape="encoder", num_hidden_layers=2, **one)
    LacunaConfig(shape="encoder-decoder", num_hidden_layers=2, **one)
    paired = {"decoder_layer_types": one["layer_types"], "sliding_window": 1, "num_hidden_layers": 2}
    for fields in ({"shape": "decoder", "num_hidden_layers": 2, **one}, {"shape": "encoder-decoder", **paired}):
        with pytest.raises(ConfigurationError, match="sliding_window is 1: at least 2"):
            LacunaConfig(**fields)


# --------------------------------------------------------------------------------------------------------- checkpoints


@pytest.fixture
def checkpoint(tmp_path: Path) -> tuple[Path, dict[str, Tensor]]:
    """A saved decoder and its tensors."""
    make_model(small("decoder")).save_pretrained(tmp_path)
    return tmp_path, load_file(tmp_path / "model.safetensors")


def write(folder: Path, tensors: dict[str, Tensor]) -> None:
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


def test_damaged_and_foreign_tensors_are_the_librarys_business(checkpoint: tuple[Path, dict[str, Tensor]]) -> None:
    """`load_model` of the recipes refuses what `from_pretrained` only reports; see tests/common/test_loading.py."""
    folder, tensors = checkpoint
    kind, name = modeling.LacunaForCausalLM, "model.decoder.layers.1.mlp.up_proj.weight"
    write(folder, {key: tensor for key, tensor in tensors.items() if key != name})
    _, info = kind.from_pretrained(folder, output_loading_info=True)
    assert set(info["missing_keys"]) == {name}
    write(folder, {**tensors, "v_head.weight": torch.ones(2)})  # as trl writes it
    model, info = kind.from_pretrained(folder, output_loading_info=True)
    assert set(info["unexpected_keys"]) == {"v_head.weight"} and not info["missing_keys"]
    assert torch.equal(model.state_dict()[name], tensors[name])
    write(folder, {**tensors, name: tensors[name][:-1].clone()})
    with pytest.raises(RuntimeError, match="ignore_mismatched_sizes"):
        kind.from_pretrained(folder)


def test_what_may_be_missing_or_differ(checkpoint: tuple[Path, dict[str, Tensor]]) -> None:
    folder, tensors = checkpoint
    name = "model.decoder.layers.1.mlp.up_proj.weight"
    kind, plain = modeling.LacunaForCausalLM, small("decoder")
    # A head that the checkpoint does not have starts anew, and the caller hears of it.
    other = modeling.LacunaForSequenceClassification
    model, info = other.from_pretrained(folder, output_loading_info=True)
    assert {key.split(".")[0] for key in info["missing_keys"]} == {"transform", "classifier"}
    assert torch.equal(model.model.state_dict()["decoder.layers.1.mlp.up_proj.weight"], tensors[name])
    write(folder, {key: tensor for key, tensor in tensors.items() if key != "lm_head.bias"})
    model, info = kind.from_pretrained(folder, output_loading_info=True)
    assert set(info["missing_keys"]) == {"lm_head.bias"} and not model.lm_head.bias.any()
    # Tensors of another shape, where that was asked for.
    write(folder, {**tensors, name: tensors[name][:-1].clone()})
    model, info = kind.from_pretrained(folder, ignore_mismatched_sizes=True, output_loading_info=True)
    assert [key for key, *_ in info["mismatched_keys"]] == [name]
    assert torch.isfinite(model(random_ids(1, 4, seed=0)).logits).all()
    # Tensors given by hand.
    some = {key: tensor for key, tensor in tensors.items() if key != name}
    model = kind.from_pretrained(None, config=plain, state_dict=some)
    assert torch.equal(model.model.decoder.layers[0].mlp.up_proj.weight, tensors[name.replace("1", "0", 1)])


def test_sharded_tables_have_whole_shares(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for vocab_size, tied in ((VOCAB, True), (VOCAB, False), (64, True)):
        config = small("decoder", vocab_size=vocab_size, tie_word_embeddings=tied)
        model = modeling.LacunaForCausalLM(config)
        folder = tmp_path / f"{vocab_size}-{tied}"
        model.save_pretrained(folder)
        for size, is_refused in ((None, False), (2, tied and vocab_size % 64 != 0)):
            monkeypatch.setattr(LacunaPreTrainedModel, "fsdp_size", size, raising=False)
            if not is_refused:
                modeling.LacunaForCausalLM.from_pretrained(folder)
                continue
            with pytest.raises(ConfigurationError, match="vocab_size=41 is not a multiple of 64"):
                modeling.LacunaForCausalLM.from_pretrained(folder)


# -------------------------------------------------------------------------------------------------------- the GPU rule


class OnGpu(Tensor):
    """A tensor that says it is on a GPU; its numbers are on the CPU."""

    @property
    def device(self) -> torch.device:
        return torch.device("cuda", 0)


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> Looks:
    """Argument and shape of every look at numbers; all checks of ranges believe that they run on a GPU."""
    seen: Looks = []
    check, refuse_numbers = checks_lacuna.check_range, checks_lacuna.refuse_outside

    def look(numbers: Tensor, **arguments: Any) -> None:
        seen.append((arguments["name"], tuple(numbers.shape)))
        refuse_numbers(numbers, **arguments)

    def on_gpu(numbers: Tensor, **arguments: Any) -> None:
        check(numbers.as_subclass(OnGpu), **arguments)

    monkeypatch.setattr(checks_lacuna, "_CHECKED", set())
    monkeypatch.setattr(checks_lacuna, "refuse_outside", look)
    for module in (layers_lacuna, losses_lacuna, modeling.modeling_lacuna):
        monkeypatch.setattr(module, "check_range", on_gpu, raising=False)
    return seen


@pytest.mark.parametrize(("shape", "head"), LANGUAGE)
def test_numbers_on_a_gpu_are_looked_at_once_for_each_shape(shape: str, head: str, looks: Looks) -> None:
    """Also where the loss is made of the targets alone, whose number is another one in every step."""
    model = make_model(small(shape), head).train()
    names = {"input_ids", "token_type_ids", "position_ids", "labels"}
    names |= {"decoder_input_ids", "decoder_position_ids"} if shape == PAIR[0] else set()
    sparing = {} if shape == "encoder" else {"skip_logits": True}  # An encoder spares logits by itself.

    def step(length: int, *, seed: int) -> None:
        ids = random_ids(ROWS, length, seed=seed)
        paired = {"decoder_input_ids": ids} if shape == PAIR[0] else {}
        labels = changed(ids, -100, place=1) if seed % 2 else ids
        model(ids, token_type_ids=ids % 2, labels=labels, **paired, **sparing).loss.backward()

    step(LENGTH, seed=0)
    first = list(looks)
    assert {name for name, _ in first} == names
    assert len(set(first)) == len(first)
    for seed in range(3):
        step(LENGTH, seed=seed)
    assert looks == first  # No look, and no waiting, in later steps.
    step(LENGTH + 1, seed=0)
    assert len(looks) == 2 * len(first)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.compiler, "is_compiling", lambda: True)
        step(LENGTH + 2, seed=0)
    assert len(looks) == 2 * len(first)


def test_a_bad_batch_is_refused_again_when_it_comes_again(looks: Looks) -> None:
    model = make_model(small("encoder"))
    ids = random_ids(ROWS, LENGTH, seed=0)
    for number, wrong in enumerate((changed(ids, VOCAB), changed(ids, VOCAB), changed(ids, -7)), start=1):
        with pytest.raises(ValueError, match=f"input_ids contains {int(wrong[-1, -1])}, and vocab_size=41"):
            model(wrong)
        assert len(looks) == number
    assert torch.isfinite(model(ids).logits).all()
