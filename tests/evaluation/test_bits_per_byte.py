"""Bits per byte against a reference that asks the model for one token at a time."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from lacuna.common.errors import InputError, NumericsError
from lacuna.evaluation import LanguageModel, measure_bits_per_byte
from lacuna.evaluation.bits_per_byte import MASK_SEED, cut_windows, text_units

DOCUMENTS = ["The cats sit on the mat.", "A dog runs – 日本 🦊 – to the river. " * 3, "", "é"]


@torch.no_grad()
def nats_of(model, context: list[int], target: int) -> float:
    """Loss of one token after a context, alone in its batch."""
    return -float(model(input_ids=torch.tensor([context])).logits[0, -1].double().log_softmax(dim=-1)[target])


def slow_causal_bits(model, streams: list[list[int]], given: set[int], window: int, stride: int) -> float:
    """Each token from the tokens before it in its window; windows end at window, window + stride, ..."""
    total = 0.0
    for stream in streams:
        for place in range(1, len(stream)):
            end = window
            while end <= place:
                end += stride
            begin = max(0, min(end, len(stream)) - window)
            if stream[place] not in given:
                total += nats_of(model, stream[begin:place], stream[place])
    return total / math.log(2)


@pytest.mark.parametrize("window, stride", [(64, 32), (16, 5), (8, 1), (8, 7)])
def test_causal_equals_the_slow_way(tokenizer, make_model, window, stride):
    model = make_model("causal")
    streams = [[2, *tokenizer(text, add_special_tokens=False)["input_ids"]] for text in DOCUMENTS]
    size = sum(len(text.encode("utf-8")) for text in DOCUMENTS)
    language_model = LanguageModel.of(model=model, tokenizer=tokenizer)
    assert language_model.kind == "causal" and language_model.prefix == (2,)
    found = [
        measure_bits_per_byte(
            language_model=replace(language_model, batch_size=batch_size),
            documents=DOCUMENTS,
            window=window,
            stride=stride,
        )
        for batch_size in (None, 1, 3)
    ]
    expected = slow_causal_bits(model, streams, {2}, window, stride) / size
    for results in found:
        assert results["bits_per_byte"] == pytest.approx(expected, rel=1e-5)
        assert results["bytes"] == size and results["documents"] == 4
        assert results["tokens"] == sum(token != 2 for stream in streams for token in stream)


@pytest.mark.parametrize("length", [1, 2, 7, 8, 9, 30])
@pytest.mark.parametrize("window, stride", [(8, 1), (8, 4), (8, 7), (2, 1)])
def test_windows_score_each_token_once_with_enough_before_it(length, window, stride):
    scored = []
    for begin, first, end in cut_windows(length=length, window=window, stride=stride):
        assert end - begin <= window and begin < first < end
        assert first - begin >= min(window - stride, first)
        scored += range(first, end)
    assert scored == list(range(1, length))


def test_masked_equals_the_slow_way(tokenizer, make_model):
    model, window = make_model("masked"), 16
    ids = [token for text in DOCUMENTS for token in tokenizer(text, add_special_tokens=False)["input_ids"]]
    model.cls.predictions.bias.data[max(ids, key=ids.count)] += 10  # so that it is right at times
    nats = size = hits = count = 0
    for number, text in enumerate(DOCUMENTS):
        encoded = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
        ids, units = encoded["input_ids"], text_units(text=text, offsets=np.array(encoded["offset_mapping"]))
        chunks: list[list[tuple[int, int, int]]] = []
        for unit in units:
            if not chunks or unit[1] - chunks[-1][0][0] > window - 2:
                chunks.append([])
            chunks[-1].append(unit)
        for place, chunk in enumerate(chunks):
            order = np.random.default_rng([MASK_SEED, number, place]).permutation(len(chunk))
            chosen = [chunk[unit] for unit in order[: max(1, round(0.15 * len(chunk)))]]
            hidden = {token for first, end, _ in chosen for token in range(first, end)}
            begin, end = chunk[0][0], chunk[-1][1]
            row = [2, *(4 if token in hidden else ids[token] for token in range(begin, end)), 3]
            with torch.no_grad():
                chances = model(input_ids=torch.tensor([row])).logits[0].double().log_softmax(dim=-1)
            size += sum(unit[2] for unit in chosen)
            for token in hidden:
                nats -= float(chances[token - begin + 1, ids[token]])
                hits += int(chances[token - begin + 1].argmax()) == ids[token]
                count += 1
    assert 0 < hits < count
    language_model = LanguageModel.of(model=model, tokenizer=tokenizer)
    assert language_model.kind == "masked" and (language_model.prefix, language_model.suffix) == ((2,), (3,))
    for batch_size in (None, 2):
        results = measure_bits_per_byte(
            language_model=replace(language_model, batch_size=batch_size), documents=DOCUMENTS, window=window
        )
        assert results["masked_bits_per_byte"] == pytest.approx(nats / math.log(2) / size, rel=1e-5)
        assert (results["masked_bytes"], results["masked_tokens"]) == (size, count)
        assert results["masked_accuracy"] == hits / count
        assert "bits_per_byte" not in results


def test_units_add_up_to_the_text(tokenizer):
    for text in [*DOCUMENTS, "  two  spaces \n\n and an end \n ", "\t"]:
        encoded = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
        units = text_units(text=text, offsets=np.array(encoded["offset_mapping"]).reshape(-1, 2))
        assert sum(size for _, _, size in units) == len(text.encode())
        assert [token for first, end, _ in units for token in range(first, end)] == list(
            range(len(encoded["input_ids"]))
        )
        assert all(size > 0 for _, _, size in units)


def test_units_by_hand():
    # "a 日b": the space lies between tokens, the character has three tokens, the last token has no character
    offsets = np.array([(0, 1), (2, 3), (2, 3), (2, 3), (3, 4), (4, 4)])
    assert text_units(text="a 日b", offsets=offsets) == [(0, 1, 1), (1, 4, 4), (4, 6, 1)]


def test_units_of_a_tokenizer_that_drops_spaces():
    # WordPiece of "The  Cats sat.\n": the, cat, ##s, [UNK], "."; the line end belongs to the last
    offsets = np.array([(0, 3), (5, 8), (8, 9), (10, 13), (13, 14)])
    units = [(0, 1, 3), (1, 2, 5), (2, 3, 1), (3, 4, 4), (4, 5, 2)]
    assert text_units(text="The  Cats sat.\n", offsets=offsets) == units


def test_unigram_baseline_by_hand(tokenizer, make_model):
    # two tokens, equally frequent: one bit each
    language_model = LanguageModel.of(model=make_model("causal"), tokenizer=tokenizer)
    results = measure_bits_per_byte(language_model=language_model, documents=["zqzqzqzq"])
    assert results["tokens"] == 8 and results["baseline_unigram_bits_per_byte"] == pytest.approx(1.0)
    assert results["bits_per_token"] == pytest.approx(results["bits_per_byte"])


def test_the_name_of_a_special_token_is_text(tokenizer, make_model):
    language_model = LanguageModel.of(model=make_model("causal"), tokenizer=tokenizer)
    ids, _ = language_model.encode("[MASK]", where="here")
    assert len(ids) > 1 and 4 not in ids


@pytest.mark.parametrize(
    "options, message",
    [
        ({"documents": [""]}, "no text"),
        ({"documents": ["a"], "window": 65}, "--window 65 is more than the 64"),
        ({"documents": ["a"], "window": 8, "stride": 8}, "--stride 8"),
        ({"documents": ["a", "b\ud800"]}, "document 2"),
    ],
)
def test_mistakes(tokenizer, make_model, options, message):
    language_model = LanguageModel.of(model=make_model("causal"), tokenizer=tokenizer)
    with pytest.raises(InputError, match=message):
        measure_bits_per_byte(language_model=language_model, **options)


def test_broken_weights_are_an_error(tokenizer, make_model):
    model = make_model("causal")
    model.transformer.ln_f.weight.data[3] = float("nan")
    language_model = LanguageModel.of(model=model, tokenizer=tokenizer)
    with pytest.raises(NumericsError, match="not finite"):
        measure_bits_per_byte(language_model=language_model, documents=["The cats"])
