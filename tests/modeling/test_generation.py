"""Generation over random configurations: every cache, padding and search writes the text that no cache writes."""

from typing import Any

import pytest
import torch
from examples import examples
from hypothesis import given
from hypothesis import strategies as st
from random_models import (
    VOCAB,
    assert_agree,
    configurations,
    make_model,
    random_ids,
    segments_for,
)
from torch import Tensor
from transformers import DynamicCache, EncoderDecoderCache, StaticCache

from lacuna.modeling import LacunaConfig
from lacuna.modeling.configuration_lacuna import HEADS

IMPLEMENTATIONS = st.sampled_from(["sdpa", "eager"])
SEEDS = st.integers(0, 2**20)
WRITERS = ("decoder", "encoder-decoder")
NEW = 9  # More tokens than the widest window of `configurations`, 5.
# Logits as well as tokens: where two of them are nearly level, rounding decides which token is next.
GREEDY: dict[str, Any] = {
    "max_new_tokens": NEW,
    "min_new_tokens": NEW,
    "do_sample": False,
    "output_logits": True,
    "return_dict_in_generate": True,
    "pad_token_id": 0,
}


def generate(model: Any, prompt: Tensor, **arguments: Any) -> Any:
    """Greedy generation; of an encoder-decoder `prompt` is what the encoder reads."""
    if model.config.is_encoder_decoder and model.config.type_vocab_size:
        arguments["token_type_ids"] = segments_for(prompt, model.config)
    return model.generate(prompt, **{**GREEDY, **arguments})


def assert_same_text(actual: Any, expected: Any, *, row: int = 0, expected_row: int = 0) -> None:
    """The same logits step by step, and the same tokens, as long as one token is clearly ahead of the others."""
    steps = len(expected.logits)
    assert len(actual.logits) == steps
    for step in range(steps):
        mine, theirs = actual.logits[step][row], expected.logits[step][expected_row]
        assert_agree(mine, theirs, tolerance=1e-4)
        best, second = theirs.topk(2).values.tolist()
        if best - second < 1e-3:
            return
        place = step - steps
        assert actual.sequences[row, place] == expected.sequences[expected_row, place], f"step {step}"


# ---------------------------------------------------------------------------------------------------- caches by hand


@examples(30)
@given(
    config=configurations(WRITERS),
    implementation=IMPLEMENTATIONS,
    seed=SEEDS,
    pieces=st.lists(st.integers(1, 7), min_size=2, max_size=5),
    kind=st.sampled_from(["default", "dynamic", "configured", "static"]),
    pads=st.integers(0, 3),
)
def test_text_read_in_pieces_equals_text_read_at_once(
    config: LacunaConfig, implementation: str, seed: int, pieces: list[int], kind: str, pads: int
) -> None:
    """A cache is filled with any number of tokens at a time, with and without padding on the left."""
    model = make_model(config, seed=seed, implementation=implementation)
    length = sum(pieces)
    ids, source = random_ids(2, length, seed=seed), random_ids(2, 5, seed=seed + 1)
    side = "decoder_" if config.is_encoder_decoder else ""
    read = {"input_ids": source} if config.is_encoder_decoder else {}
    half = config.get_text_config(decoder=True)
    caches = {
        "default": lambda: None,
        "dynamic": lambda: DynamicCache(),
        "configured": lambda: DynamicCache(config=half),
        "static": lambda: StaticCache(config=half, max_cache_len=length + pads),
    }
    cache = caches[kind]()
    if cache is not None and config.is_encoder_decoder:
        cache = EncoderDecoderCache(cache, DynamicCache())
    padded = torch.cat((torch.zeros(2, pads, dtype=torch.long), ids), dim=1)
    mask = torch.cat((torch.zeros(2, pads), torch.ones(2, length)), dim=1).long()
    positions = (mask.cumsum(-1) - 1).clamp(min=0)
    with torch.no_grad():
        expected = model(**read, **{f"{side}input_ids": ids}, use_cache=False)
        assert expected.past_key_values is None
        logits, end = [], 0
        for piece in [pieces[0] + pads, *pieces[1:]]:
            start, end = end, end + piece
            arguments = {f"{side}input_ids": padded[:, start:end]}
            if pads:
                arguments |= {
                    f"{side}attention_mask": mask[:, :end],
                    f"{side}position_ids": positions[:, start:end],
                }
            outputs = model(**read, **arguments, past_key_values=cache, use_cache=True)
            cache = outputs.past_key_values
            logits.append(outputs.logits)
    assert_agree(torch.cat(logits, dim=1)[:, pads:], expected.logits)


# ---------------------------------------------------------------------------------------------------------- generation


@examples(12)
@given(config=configurations(WRITERS, pad_token_id=0), implementation=IMPLEMENTATIONS, seed=SEEDS)
def test_every_cache_writes_what_no_cache_writes(config: LacunaConfig, implementation: str, seed: int) -> None:
    model = make_model(config, seed=seed, implementation=implementation)
    prompt = random_ids(2, 7, seed=seed)
    plain = generate(model, prompt, use_cache=False)
    assert plain.past_key_values is None
    for arguments in ({}, {"cache_implementation": "static"}, {"num_beams": 1}, {"prefill_chunk_size": 3}):
        if "prefill_chunk_size" in arguments and config.is_encoder_decoder:
            continue  # The library reads prompts in pieces in decoders only.
        for row in range(2):
            assert_same_text(generate(model, prompt, **arguments), plain, row=row, expected_row=row)


@examples(12)
@given(
    config=configurations(WRITERS, pad_token_id=0),
    seed=SEEDS,
    lengths=st.lists(st.integers(1, 7), min_size=2, max_size=3),
    cache=st.sampled_from([None, "static", "dynamic", "none"]),
)
def test_rows_of_a_padded_batch_are_written_as_if_alone(
    config: LacunaConfig, seed: int, lengths: list[int], cache: str | None
) -> None:
    model = make_model(config, seed=seed)
    width = max(lengths) + 1
    prompt, mask = (torch.zeros(len(lengths), width, dtype=torch.long) for _ in range(2))
    for row, length in enumerate(lengths):
        # What an encoder reads is padded on the right, what a decoder continues on the left.
        place = slice(0, length) if config.is_encoder_decoder else slice(width - length, width)
        prompt[row, place], mask[row, place] = random_ids(length, seed=seed + row), 1
    arguments = {"use_cache": False} if cache == "none" else {"cache_implementation": cache}
    together = generate(model, prompt, attention_mask=mask, **arguments)
    for row, length in enumerate(lengths):
        assert_same_text(together, generate(model, random_ids(1, length, seed=seed + row)), row=row)


@examples(12)
@given(config=configurations(WRITERS, pad_token_id=0), seed=SEEDS)
def test_beams_do_not_depend_on_the_cache_and_find_no_worse_text(config: LacunaConfig, seed: int) -> None:
    model = make_model(config, seed=seed)
    prompt = random_ids(2, 6, seed=seed)
    arguments = {"num_beams": 3, "output_scores": True, "length_penalty": 0.0, "max_new_tokens": 5}
    arguments["min_new_tokens"] = 5
    cached, plain = (generate(model, prompt, use_cache=used, **arguments) for used in (True, False))
    assert_agree(cached.sequences_scores, plain.sequences_scores, tolerance=1e-4)
    written = plain.sequences[:, -5:]
    assert written.shape == (2, 5)
    # The score is the log probability that the model itself gives to the text.
    with torch.no_grad():
        if config.is_encoder_decoder:
            segments = segments_for(prompt, config)
            logits = model(prompt, token_type_ids=segments, decoder_input_ids=plain.sequences[:, :-1]).logits
        else:
            logits = model(plain.sequences[:, :-1]).logits
    # `min_new_tokens` takes the end token out of what may be chosen, after the probabilities were computed.
    chosen = logits[:, -5:].log_softmax(-1).gather(-1, written[..., None])[..., 0].sum(-1)
    assert_agree(plain.sequences_scores, chosen, tolerance=1e-4)


@examples(12)
@given(
    config=configurations(("decoder",), pad_token_id=0, allowed_layer_types=["full_attention"]),
    seed=SEEDS,
)
def test_guessed_tokens_are_checked_against_a_cache_that_can_be_cut(config: LacunaConfig, seed: int) -> None:
    """Prompt look-up reads several guessed tokens at once and cuts the cache back to those that were right."""
    model = make_model(config, seed=seed)
    prompt = random_ids(1, 4, seed=seed).repeat(1, 3)
    expected = generate(model, prompt)
    actual = generate(model, prompt, prompt_lookup_num_tokens=3)
    gaps = torch.stack(expected.logits)[:, 0].topk(2).values
    if bool((gaps[:, 0] - gaps[:, 1] > 1e-3).all()):
        assert actual.sequences.tolist() == expected.sequences.tolist()


@examples(10)
@given(config=configurations(WRITERS, pad_token_id=0), seed=SEEDS)
def test_embeddings_in_place_of_a_prompt(config: LacunaConfig, seed: int) -> None:
    model = make_model(config, seed=seed)
    prompt = random_ids(2, 6, seed=seed)
    embeddings = model.get_input_embeddings()(prompt)
    expected = generate(model, prompt)
    segments = {"token_type_ids": segments_for(prompt, config)} if config.is_encoder_decoder else {}
    actual = model.generate(inputs_embeds=embeddings, **segments, **GREEDY)
    for row in range(2):
        assert_same_text(actual, expected, row=row, expected_row=row)


# ------------------------------------------------------------------------------------------------------ who may not


@pytest.mark.parametrize("shape", HEADS)
def test_two_heads_generate_and_the_others_do_not(shape: str) -> None:
    config = LacunaConfig(
        shape=shape, vocab_size=VOCAB, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8
    )
    for head in HEADS[shape].values():
        model = make_model(config, head)
        if head in ("LacunaForCausalLM", "LacunaForConditionalGeneration"):
            assert model.can_generate()
            continue
        assert not model.can_generate()
        assert not hasattr(model, "generate")
