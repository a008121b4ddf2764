"""Passages that find each other: what stands in a row, who is compared with whom, and in how many parts."""

import math

import numpy as np
import pytest
import torch
from examples import examples
from hypothesis import given
from hypothesis import strategies as st
from length_judge import random_lengths
from slow_reference import chunks_of, masked, sentences_of

from lacuna.common.errors import InputError
from lacuna.modeling import LacunaConfig, LacunaForMaskedLM
from lacuna.objectives import IGNORED, PassagePrediction, random_stream
from lacuna.objectives.pairs import truncate_pair
from lacuna.training import TrainingArguments
from lacuna.training.planning.memory import StepNeeds
from lacuna.training.stages import make_stages

PAD, CLS, SEP, GROUP = 0, 2, 3, 16


@examples(40)
@given(
    lengths=st.lists(st.lists(st.integers(1, 20), min_size=1, max_size=8), min_size=3, max_size=12),
    seed=st.integers(0, 2**32),
)
def test_examples_are_those_of_the_reference(numbered, parts, lengths, seed) -> None:
    arguments = parts(numbered(lengths), seed=seed)
    work = PassagePrediction(**arguments)
    row = 0
    for document in work.documents:
        sentences = sentences_of(work.store, tuple(document))
        for begin, end in chunks_of(list(map(len, sentences)), length=28):
            generator = random_stream(seed=seed, stream="pair", index=row)
            chunk = sentences[begin:end]
            text = [token for sentence in chunk for token in sentence]
            bounds = [sum(map(len, chunk[:place])) for place in range(1, len(chunk))]
            cut = int(generator.choice(bounds or [*range(1, max(len(text), 2))]))
            sides = np.array(text[:cut]), np.array(text[cut:])
            first, second = truncate_pair(*sides, room=28, generator=generator)
            ids, labels = masked(
                [CLS, *first.tolist(), SEP, CLS, *second.tolist(), SEP],
                tokens=work.tokens,
                edges=arguments["token_edges"].tolist(),
                how="token",
                probability=0.3,
                generator=generator,
            )
            found, size = work.example(row, row), len(ids)
            assert found["input_ids"].tolist() == ids + [PAD] * (32 - size)
            assert found["labels"].tolist() == labels + [IGNORED] * (32 - size)
            positions = [*range(len(first) + 2), *range(len(second) + 2), *range(32 - size)]
            assert found["position_ids"].tolist() == positions
            row += 1
    assert row == work.num_examples


def test_padding_is_no_token(numbered, parts) -> None:
    work = PassagePrediction(**parts(numbered([[3], [9, 4], [20, 20, 20]] * 4)))
    batch = work.collate([work.example(row, row) for row in range(work.num_examples)])
    shown = int((batch["input_ids"] != PAD).sum())
    assert work.count_tokens(batch) == shown < batch["input_ids"].numel()


@pytest.fixture(scope="module")
def batch_and_model(store_of, parts):
    generator = np.random.default_rng(0)
    lengths = random_lengths(documents=60, sentences=(2, 9), tokens=(2, 12))
    words = [[generator.integers(5, 64, size).tolist() for size in document] for document in lengths]
    work = PassagePrediction(**parts(store_of(words)))
    torch.manual_seed(0)
    config = LacunaConfig.from_family(
        "modernbert", vocab_size=64, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32
    )
    batch = work.with_hints(work.collate([work.example(row, row) for row in range(2 * GROUP)]))
    return work, batch, LacunaForMaskedLM(config)


def test_the_loss_is_that_of_a_loop_over_passages(batch_and_model) -> None:
    work, batch, model = batch_and_model
    counts = {name: torch.tensor(number) for name, number in work.count_targets(batch).items()}
    assert counts["pairs"] == 2 * GROUP
    with torch.no_grad():
        loss, found = work.loss(model.train(), batch, counts)
        vectors = []
        for ids, positions in zip(batch["input_ids"], batch["position_ids"], strict=True):
            starts = (positions == 0).nonzero().flatten().tolist()
            pieces = ids[starts[0] : starts[1]], ids[starts[1] :][: (ids[starts[1] :] != PAD).sum()]
            states = [model.model(piece[None]).last_hidden_state[0].double().mean(0) for piece in pieces]
            vectors.append([state / state.norm() for state in states])
    nats, hits = 0.0, 0
    for row in range(2 * GROUP):
        others = range(row - row % GROUP, row - row % GROUP + GROUP)
        scores = [20 * float(vectors[row][0] @ vectors[other][1]) for other in others]
        nats -= scores[row % GROUP] - math.log(sum(map(math.exp, scores)))
        hits += max(scores) == scores[row % GROUP]
    assert math.isclose(float(found["passage_loss"]), nats / (2 * GROUP), rel_tol=1e-4)
    assert math.isclose(float(found["passage_accuracy"]), hits / (2 * GROUP), rel_tol=1e-6)
    assert math.isclose(float(loss), float(found["mlm_loss"] + found["passage_loss"]), rel_tol=1e-6)


def test_a_step_in_parts_has_the_gradient_of_the_whole(batch_and_model) -> None:
    work, _, model = batch_and_model
    found = []
    for size in (2 * GROUP, GROUP):
        batches = [
            work.with_hints(work.collate([work.example(row, row) for row in range(start, start + size)]))
            for start in range(0, 2 * GROUP, size)
        ]
        counts = [work.count_targets(batch) for batch in batches]
        totals = {name: torch.tensor(sum(count[name] for count in counts)) for name in counts[0]}
        model.zero_grad()
        for batch in batches:
            work.loss(model, batch, totals)[0].backward()
        found.append(torch.cat([weight.grad.flatten() for weight in model.parameters() if weight.grad is not None]))
    torch.testing.assert_close(found[0], found[1], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(("sizes", "processes"), [((24, None), 1), ((32, 8), 1), ((32, None), 4)])
def test_groups_are_not_divided(batch_and_model, tmp_path, sizes, processes) -> None:
    work = batch_and_model[0]
    arguments = TrainingArguments(output_dir=tmp_path, batch_size=sizes[0], micro_batch_size=sizes[1], max_steps=1)
    with pytest.raises(InputError, match=r"groups of 16, and a process reads \d+ at once"):
        make_stages(arguments=arguments, works=[(0.0, work)], num_processes=processes)


def test_a_text_of_fewer_rows_than_a_group_is_refused(numbered, parts, tmp_path) -> None:
    """They would be each other's wrong answers, and one's own."""
    work = PassagePrediction(**parts(numbered([[3, 4], [5, 6], [7]])))
    arguments = TrainingArguments(output_dir=tmp_path, batch_size=16, max_steps=1)
    with pytest.raises(InputError, match=f"groups of 16, and there are {work.num_examples}: bring more text"):
        make_stages(arguments=arguments, works=[(0.0, work)], num_processes=1)


def test_micro_batches_that_a_plan_names_hold_whole_groups(batch_and_model) -> None:
    work, _, model = batch_and_model
    needs = StepNeeds(model, work, TrainingArguments(max_steps=1), 4 * GROUP)
    assert needs.divisors == [16, 32, 64]
