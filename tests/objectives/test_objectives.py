"""What all objectives promise: a clean division of the text, purity, and scores that a slow reference agrees with."""

import hashlib
import math
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional
from transformers import BertConfig, BertForMaskedLM, BertForPreTraining

from modeling import LacunaConfig, LacunaForCausalLM, LacunaForMaskedLM, LacunaForPreTraining
from objectives import (
    IGNORED,
    OBJECTIVES,
    ObjectiveArguments,
    ObjectiveError,
    SpecialTokens,
    random_stream,
)
from objectives.data import split_sources, spread

VOCAB = 60
PAIRS = {"mlm_nsp": "nsp", "mlm_sop": "sop"}


@pytest.fixture(scope="module")
def store(store_of):
    generator = np.random.default_rng(11)
    lengths = [generator.integers(1, 15, size=generator.integers(1, 12)) for _ in range(50)]
    return store_of([[generator.integers(5, VOCAB, size=size).tolist() for size in document] for document in lengths])


@pytest.fixture(scope="module")
def make(store, parts):
    def make(name: str, **overrides: Any):
        return OBJECTIVES[name](**parts(store, **overrides))

    return make


def fingerprint(*examples: dict[str, Any]) -> str:
    digest = hashlib.sha256()
    for example in examples:
        for name in sorted(example):
            digest.update(name.encode() + np.asarray(example[name], dtype="<i8").tobytes())
    return digest.hexdigest()[:16]


# The division of the text


@settings(max_examples=100, deadline=None)
@given(
    lengths=st.lists(st.lists(st.integers(1, 9), min_size=1, max_size=4), min_size=2, max_size=30),
    eval_fraction=st.floats(0.001, 0.9),
    seed=st.integers(0, 2**32),
)
def test_parts_are_disjoint_and_cover_all_documents(numbered, lengths, eval_fraction, seed) -> None:
    store = numbered(lengths)
    ((train, held_out),) = split_sources(store=store, eval_fraction=eval_fraction, seed=seed)
    assert len(train) and len(held_out)
    everything = [tuple(span) for span in (*train.tolist(), *held_out.tolist())]
    bounds = store.document_offsets.tolist()
    assert sorted(everything) == list(pairwise(bounds))
    assert train.tolist() == sorted(train.tolist()) and held_out.tolist() == sorted(held_out.tolist())
    # Enough is held out, and without one of its documents it would be too little.
    sizes = sorted(int(store.sentence_offsets[b] - store.sentence_offsets[a]) for a, b in held_out)
    if len(train) > 1:
        assert sum(sizes) >= eval_fraction * len(store.tokens) - 1e-6
        assert sum(sizes) - sizes[-1] <= eval_fraction * len(store.tokens) + 1e-6


def test_a_single_document_is_cut_between_sentences(numbered) -> None:
    store = numbered([[3] * 20])
    ((train, held_out),) = split_sources(store=store, eval_fraction=0.1, seed=0)
    assert train.tolist() == [[0, 18]] and held_out.tolist() == [[18, 20]]
    with pytest.raises(ObjectiveError, match="single sentence"):
        split_sources(store=numbered([[3]]), eval_fraction=0.1, seed=0)


@pytest.mark.parametrize("lengths", [[[3]], [[3, 4], [5]]])
def test_nothing_is_held_out_when_nothing_is_asked_for(numbered, lengths) -> None:
    ((train, held_out),) = split_sources(store=numbered(lengths), eval_fraction=0, seed=0)
    assert len(train) == len(lengths) and len(held_out) == 0


@pytest.mark.parametrize("name", OBJECTIVES)
def test_objectives_work_without_a_held_out_part(make, name) -> None:
    work = make(name, eval_fraction=0)
    assert work.num_eval_examples == 0 and work.num_examples > 0
    assert work.baseline() == {}


def test_evaluated_rows_are_spread_evenly() -> None:
    assert spread(5, 10).tolist() == [0, 1, 2, 3, 4]
    assert spread(100, 3).tolist() == [0, 49, 99]
    assert spread(0, 3).tolist() == []
    assert len(spread(10**7, 512)) == 512


@pytest.mark.parametrize(
    "option, value",
    [("sequence_length", 2), ("mask_probability", 0.0), ("mask_probability", 1.5), ("eval_fraction", 1.0),
     ("eval_fraction", -0.1), ("max_eval_examples", -1)],
)  # fmt: skip
def test_options_that_cannot_be_are_refused_by_name(option, value) -> None:
    with pytest.raises(ObjectiveError, match=f"--{option}.*{value}"):
        ObjectiveArguments(**{option: value})


# Purity


@pytest.mark.parametrize("name", OBJECTIVES)
def test_an_example_depends_on_seed_and_index_alone(make, name) -> None:
    work, again = make(name), make(name)
    keys = [(row, index) for row in range(work.num_examples) for index in (row, row + work.num_examples)]
    forward = {key: fingerprint(work.example(*key)) for key in keys}
    shuffled = [keys[place] for place in np.random.default_rng(0).permutation(len(keys))]
    assert {key: fingerprint(again.example(*key)) for key in shuffled} == forward
    if name == "clm":  # nothing in it is random
        return
    changed = [forward[row, row] != forward[row, row + work.num_examples] for row in range(work.num_examples)]
    assert np.mean(changed) > 0.95
    other = make(name, seed=1)
    assert other.documents.tolist() != work.documents.tolist()


@pytest.mark.parametrize("name", OBJECTIVES)
def test_held_out_examples_are_frozen(make, name) -> None:
    work = make(name)
    before = [fingerprint(work.eval_example(row)) for row in range(work.num_eval_examples)]
    for index in range(20):
        work.example(index % work.num_examples, index)
    after = [fingerprint(make(name).eval_example(row)) for row in reversed(range(work.num_eval_examples))]
    assert before == after[::-1]
    # The rate of masking in training does not reach the held-out part.
    assert before == [fingerprint(make(name, mask_probability=0.7).eval_example(row)) for row in range(len(before))]


@pytest.mark.parametrize("name", OBJECTIVES)
def test_an_example_does_not_write_into_the_store(make, name, store) -> None:
    before = store.tokens.copy()
    work = make(name)
    for row in range(work.num_examples):
        for value in work.example(row, row).values():
            if np.ndim(value):
                value[:] = 0
    assert (store.tokens == before).all()


GOLDEN = {
    "mlm": "6f1b205330cd819e",
    "mlm_nsp": "019fea09d55f4c2e",
    "mlm_sop": "edbaede822a3fe60",
    "clm": "86b89f7740102b0a",
}


@pytest.mark.parametrize("name", OBJECTIVES)
def test_golden_values(make, name) -> None:
    """A run must be repeatable with later versions: what changes these hashes changes everybody's masks and pairs."""
    work = make(name)
    examples = [work.example(row % work.num_examples, index) for row, index in ((0, 0), (3, 17), (5, 2**40))]
    assert fingerprint(*examples, work.eval_example(0)) == GOLDEN[name]


def test_streams_of_random_numbers_never_meet() -> None:
    keys = [(seed, stream, index) for seed in (0, 1) for stream in ("mask", "pair") for index in (0, 1, 2**40)]
    draws = {tuple(random_stream(seed=s, stream=n, index=i).integers(2**63, size=2)) for s, n, i in keys}
    assert len(draws) == len(keys)


# Special tokens


class _Tokenizer:
    all_special_ids = [0, 7]
    bos_token_id = None
    eos_token_id = 7

    def __len__(self) -> int:
        return 9

    def get_vocab(self) -> dict[str, int]:
        return {"a": 1, "<extra_id_0>": 7, "<extra_id_1>": 5}


def test_special_tokens_of_a_tokenizer_without_cls_and_pad() -> None:
    tokens = SpecialTokens.of(_Tokenizer())
    assert (tokens.start, tokens.end, tokens.pad, tokens.mask, tokens.vocab_size) == (7, 7, 7, None, 9)
    assert tokens.sentinels.tolist() == [7, 5]
    assert tokens.ordinary.tolist() == [1, 2, 3, 4, 6, 8]
    with pytest.raises(ObjectiveError, match="--objective clm"):
        tokens.required_mask()


# Scores


def test_baseline_by_hand(store_of, parts) -> None:
    """Held out: the last of five sentences. Counts of the training part, each plus one: 5 -> 4, 6 -> 2, others 1."""
    store = store_of([[[5, 6], [5], [5], [9], [6, 5, 5]]])
    work = OBJECTIVES["clm"](**parts(store, eval_fraction=0.2, sequence_length=16))
    # Vocabulary 0 ... 9. Counts: 5: 3 + 1, 6: 1 + 1, 9: 1 + 1, [SEP] 3: one document + 1, six others 1 each.
    share = {5: 4 / 16, 6: 2 / 16, 3: 2 / 16}
    nats = -sum(math.log(share[token]) for token in (6, 5, 5, 3))
    size = sum(int(work.byte_lengths[token]) for token in (6, 5, 5, 3))
    expected = {"loss": nats / 4, "accuracy": 2 / 4, "bits_per_byte": nats / math.log(2) / size}
    assert work.baseline() == pytest.approx(expected)


@pytest.mark.parametrize("name", ["mlm", "mlm_nsp"])
def test_baseline_counts_the_training_part(make, name, store) -> None:
    work = make(name)
    counts = {token: 1 for token in range(work.tokens.vocab_size)}
    for first, last in work.documents:
        for token in store.tokens[store.sentence_offsets[first] : store.sentence_offsets[last]]:
            counts[int(token)] += 1
    total, best = sum(counts.values()), max(counts, key=lambda token: counts[token])
    labels = [work.eval_example(row)["labels"] for row in range(work.num_eval_examples)]
    targets = [int(token) for row in labels for token in row if token != IGNORED]
    loss = -np.mean([math.log(counts[token] / total) for token in targets])
    accuracy = np.mean([token == best for token in targets])
    found = work.baseline()
    if name == "mlm_nsp":
        assert found["nsp_accuracy"] == 0.5 and found["nsp_loss"] == pytest.approx(math.log(2))
        assert found["loss"] == pytest.approx(loss + math.log(2))
        assert found["mlm_accuracy"] == pytest.approx(accuracy)
    else:
        assert found["loss"] == pytest.approx(loss) and found["accuracy"] == pytest.approx(accuracy)


SMALL = {"vocab_size": VOCAB + 4, "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
SMALL |= {"intermediate_size": 32, "initializer_range": 0.5}


def model_for(name: str) -> Any:
    torch.manual_seed(0)
    head = {"mlm": LacunaForMaskedLM, "clm": LacunaForCausalLM}.get(name, LacunaForPreTraining)
    family = {"mlm": "modernbert", "clm": "qwen3"}.get(name, "bert")
    return head(LacunaConfig.from_family(family, **SMALL)).eval()


@torch.no_grad()
def slow_scores(work, model, name: str) -> dict[str, float]:
    """One example at a time, dense logits, one target at a time."""
    nats, sizes, hits, pair_nats, pair_hits = [], [], [], [], []
    for row in range(work.num_eval_examples):
        example = work.eval_example(row)
        inputs = {
            key: torch.as_tensor(value)[None]
            for key, value in example.items()
            if key not in ("labels", "next_sentence_label")
        }
        output = model(**inputs, sparse_prediction=False) if name != "clm" else model(**inputs)
        logits = (output.prediction_logits if name in PAIRS else output.logits)[0].double()
        for place, label in enumerate(example["labels"]):
            if label == IGNORED:
                continue
            given = logits[place - 1 if name == "clm" else place]
            nats.append(-float(functional.log_softmax(given, dim=-1)[label]))
            hits.append(int(given.argmax()) == label)
            sizes.append(int(work.byte_lengths[label]))
        if name in PAIRS:
            pair = output.seq_relationship_logits[0].double()
            pair_nats.append(-float(functional.log_softmax(pair, dim=-1)[example["next_sentence_label"]]))
            pair_hits.append(int(pair.argmax()) == example["next_sentence_label"])
    bits = sum(nats) / math.log(2) / sum(sizes)
    if name not in PAIRS:
        return {"loss": np.mean(nats), "accuracy": np.mean(hits), "bits_per_byte": bits}
    return {
        "loss": np.mean(nats) + np.mean(pair_nats),
        "mlm_loss": np.mean(nats),
        "mlm_accuracy": np.mean(hits),
        "bits_per_byte": bits,
        f"{PAIRS[name]}_loss": np.mean(pair_nats),
        f"{PAIRS[name]}_accuracy": np.mean(pair_hits),
    }


@pytest.mark.parametrize("name", OBJECTIVES)
def test_evaluation_equals_a_slow_reference(make, name) -> None:
    work, model = make(name, eval_fraction=0.3), model_for(name)
    expected = slow_scores(work, model, name)
    for batch_size in (1, 5, 64):
        records = []
        with torch.no_grad():
            for start in range(0, work.num_eval_examples, batch_size):
                rows = range(start, min(start + batch_size, work.num_eval_examples))
                records += work.evaluate(model, work.collate([work.eval_example(row) for row in rows]))
        assert len(records) == work.num_eval_examples
        assert work.summarize(records) == pytest.approx(expected, rel=1e-5)
        assert work.summarize(records[::-1]) == work.summarize(records)
    assert set(work.baseline()) == set(expected)


def test_clm_evaluates_a_few_rows_at_a_time_when_logits_are_large(make, monkeypatch) -> None:
    work, model = make("clm", eval_fraction=0.3), model_for("clm")
    batch = work.collate([work.eval_example(row) for row in range(5)])
    with torch.no_grad():
        whole = work.evaluate(model, dict(batch))
        monkeypatch.setattr("objectives.clm._LOGIT_BYTES", 1)
        single = work.evaluate(model, dict(batch))
    assert len(whole) == len(single) == 5
    for one, other in zip(whole, single, strict=True):
        assert one == pytest.approx(other, rel=1e-5)


@pytest.mark.parametrize("name", OBJECTIVES)
def test_losses_of_parts_add_up_to_the_loss_of_the_whole(make, name) -> None:
    work, model = make(name), model_for(name)
    examples = [work.example(row, row) for row in range(8)]
    whole = work.collate(examples)
    targets = {key: torch.tensor(count) for key, count in work.count_targets(whole).items()}
    with torch.no_grad():
        loss, metrics = work.loss(model, whole, targets)
        cuts = [slice(0, 3), slice(3, 4), slice(4, 8)]
        pieces = [work.loss(model, work.collate(examples[cut]), targets) for cut in cuts]
    assert sum(float(piece) for piece, _ in pieces) == pytest.approx(float(loss), rel=1e-5)
    for key, value in metrics.items():
        assert sum(float(part[key]) for _, part in pieces) == pytest.approx(float(value), rel=1e-5)


@pytest.mark.parametrize("name, head", [("mlm", BertForMaskedLM), ("mlm_nsp", BertForPreTraining)])
def test_native_models_are_trained_and_judged_alike(make, name, head) -> None:
    """They give logits everywhere, and a mean over their batch whatever the step holds."""
    torch.manual_seed(0)
    config = BertConfig(**SMALL, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    work, model = make(name, eval_fraction=0.3), head(config).eval()
    examples = [work.eval_example(row) for row in range(6)]
    batch = work.collate(examples)
    targets = {key: torch.tensor(count) for key, count in work.count_targets(batch).items()}
    with torch.no_grad():
        scores = work.summarize(work.evaluate(model, dict(batch)))
        expected = model(**batch).loss
        whole, _ = work.loss(model, batch, targets)
        pieces = [work.loss(model, work.collate(examples[cut]), targets)[0] for cut in (slice(0, 2), slice(2, 6))]
    assert scores["loss"] == pytest.approx(float(whole), rel=1e-5)
    assert float(whole) == pytest.approx(float(expected), rel=1e-5)
    assert float(sum(pieces)) == pytest.approx(float(whole), rel=1e-5)
