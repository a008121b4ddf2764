"""What all objectives promise: a clean division of the text, purity, and scores that a slow reference agrees with."""

import hashlib
import math
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional
from transformers import BertConfig, BertForMaskedLM, BertForPreTraining

from lacuna.modeling import (
    LacunaConfig,
    LacunaForCausalLM,
    LacunaForConditionalGeneration,
    LacunaForMaskedLM,
    LacunaForPreTraining,
    LacunaForQuestionAnswering,
)
from lacuna.objectives import IGNORED, OBJECTIVES
from lacuna.training.order import row_of

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
        return OBJECTIVES[name](**parts(store, objective=name, **overrides))

    return make


def fingerprint(*examples: dict[str, Any]) -> str:
    digest = hashlib.sha256()
    for example in examples:
        for name in sorted(example):
            digest.update(name.encode() + np.asarray(example[name], dtype="<i8").tobytes())
    return digest.hexdigest()[:16]


# Purity


@pytest.mark.parametrize("name", OBJECTIVES)
def test_objectives_work_without_a_held_out_part(make, name) -> None:
    work = make(name, eval_fraction=0)
    assert work.num_eval_examples == 0 and work.num_examples > 0
    assert work.baseline() == {}
    # Others draw lengths; `hybrid` has as many rows of each kind in every 64.
    assert work.fixed_length(64) == (name in ("mlm", "mlm_contrastive", "clm", "hybrid", "spans"))
    assert work.fixed_length(32) == (name in ("mlm", "mlm_contrastive", "clm", "spans"))
    assert not make(name, eval_fraction=0, packing="none").fixed_length(64)


@pytest.mark.parametrize("name", OBJECTIVES)
def test_an_example_depends_on_seed_and_index_alone(make, name) -> None:
    work, again = make(name), make(name)
    keys = [(row, index) for row in range(work.num_examples) for index in (row, row + work.num_examples)]
    forward = {key: fingerprint(work.example(*key)) for key in keys}
    shuffled = [keys[place] for place in np.random.default_rng(0).permutation(len(keys))]
    assert {key: fingerprint(again.example(*key)) for key in shuffled} == forward
    if name == "clm":  # nothing in it is random
        return
    # A row that is causal both times does not change.
    keys = [(row, row) for row in range(work.num_examples) if name != "hybrid" or not work.is_causal(row)]
    changed = [forward[row, row] != forward[row, row + work.num_examples] for row, _ in keys]
    assert np.mean(changed) > (0.5 if name == "spans" else 0.95)  # rows of 32 tokens have a span or two
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


GOLDEN: dict[str, tuple[str, dict[str, Any]]] = {
    "mlm": ("4117766b2c610e71", {}),
    "mlm schedule": (
        "870409521b8bc183",
        {"mask_probability": 0.225, "mask_replace_prob": 0.5, "random_replace_prob": 0.3},
    ),
    "mlm whole_word": ("55b463b551fc7ad4", {"masking": "whole_word"}),
    "mlm span": ("38808057fd2f5d77", {"masking": "span"}),
    "mlm none": ("733a0946cd92b13d", {"packing": "none"}),
    "mlm_nsp": ("db29c939b7059e18", {}),
    "mlm_sop": ("1f466c5a17120a96", {}),
    "mlm_sop span": ("b0f60c11bc541019", {"masking": "span"}),
    "mlm_contrastive": ("21d3350383f9730e", {}),
    "mlm_contrastive whole_word": ("beeaf9f68d46af12", {"masking": "whole_word"}),
    "clm": ("f17c7da72f856584", {}),
    "clm none": ("e404ae748dfcf4fc", {"packing": "none"}),
    "hybrid": ("733bc20eaf6b8b49", {}),
    "hybrid whole_word": ("272e5bddda0f0922", {"masking": "whole_word", "hybrid_causal_share": 0.25}),
    "denoising": ("1313d80d34b0da5c", {}),
    "spans": ("b0ad6013711d2613", {}),
    "spans none": ("4f1b94d954c8e1ad", {"packing": "none", "sequence_length": 96}),
}


@pytest.mark.parametrize("case", GOLDEN)
def test_golden_values(make, case) -> None:
    """A run must be repeatable with later versions: what changes these hashes changes everybody's masks and pairs.

    The rows are those that training draws, over three epochs and far on: their order is pinned too.
    """
    expected, options = GOLDEN[case]
    work = make(case.split()[0], **options)
    indices = [*range(8), *range(work.num_examples - 2, work.num_examples + 2), 2 * work.num_examples, 2**40]
    rows = [row_of(index, seed=work.seed, num_examples=work.num_examples) for index in indices]
    examples = [work.example(row, index) for row, index in zip(rows, indices, strict=True)]
    assert fingerprint(*examples, *map(work.eval_example, range(4)), {"rows": work.num_examples}) == expected


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


FAMILIES = {
    "mlm": (LacunaForMaskedLM, "modernbert"),
    "mlm_nsp": (LacunaForPreTraining, "bert"),
    "mlm_sop": (LacunaForPreTraining, "bert"),
    "mlm_contrastive": (LacunaForMaskedLM, "modernbert"),
    "clm": (LacunaForCausalLM, "qwen3"),
    "hybrid": (LacunaForCausalLM, "qwen3"),
    "denoising": (LacunaForConditionalGeneration, "bart"),
    "spans": (LacunaForQuestionAnswering, "modernbert"),
}


def model_for(name: str) -> Any:
    torch.manual_seed(0)
    head, family = FAMILIES[name]
    return head(
        LacunaConfig.from_family(family, **SMALL, hybrid=name == "hybrid", question_aware=name == "spans")
    ).eval()


@torch.no_grad()
def slow_targets(example: dict[str, Any], model: Any, name: str) -> tuple[list[tuple[float, int, int]], Any]:
    """(nats, label, hit) of each target of one example from dense logits, and the output of the model."""
    answers = ("labels", "next_sentence_label", "is_causal")
    inputs = {key: torch.as_tensor(value)[None] for key, value in example.items() if key not in answers}
    if name in ("mlm", "mlm_contrastive", *PAIRS):
        inputs["sparse_prediction"] = False
    if "is_causal" in example:
        inputs["is_causal"] = bool(example["is_causal"])
    output = model(**inputs)
    logits = (output.prediction_logits if name in PAIRS else output.logits)[0].double()
    targets = []
    for place, label in enumerate(example["labels"].tolist()):
        if label != IGNORED:
            given = logits[place - 1 if name in ("clm", "hybrid") else place]
            nats = -float(functional.log_softmax(given, dim=-1)[label])
            targets.append((nats, label, int(given.argmax()) == label))
    return targets, output


@torch.no_grad()
def slow_span_scores(work, model) -> dict[str, float]:
    """One question at a time, of whose own document alone a softmax is taken."""
    nats, hits = [], []
    for row in range(work.num_eval_examples):
        example = work.eval_example(row)
        places = [int(place) for place in example["question_positions"] if place != IGNORED]
        ids, positions = (torch.as_tensor(example[name])[None] for name in ("input_ids", "position_ids"))
        output = model(input_ids=ids, position_ids=positions, question_positions=torch.tensor([places or [0]]))
        starts = [*np.flatnonzero(example["position_ids"] == 0), len(example["input_ids"])]
        for number, place in enumerate(places):
            left = max(start for start in starts if start <= place)
            own = slice(left, min(start for start in starts if start > place))
            right = []
            for name, logits in (("labels", output.start_logits), ("ends", output.end_logits)):
                given, wanted = logits[0, number, own].double(), int(example[name][number]) - left
                nats.append(-float(functional.log_softmax(given, dim=-1)[wanted]))
                right.append(int(given.argmax()) == wanted)
            hits.append(all(right))
    return {"loss": float(np.mean(nats)), "accuracy": float(np.mean(hits))}


def slow_scores(work, model, name: str) -> dict[str, float]:
    """One example at a time, dense logits, one target at a time."""
    if name == "spans":
        return slow_span_scores(work, model)
    targets: dict[int, list[tuple[float, int, int]]] = {0: [], 1: []}
    pairs = []
    for row in range(work.num_eval_examples):
        example = work.eval_example(row)
        found, output = slow_targets(example, model, name)
        targets[example.get("is_causal", 0)] += found
        if name in PAIRS:
            logits, answer = output.seq_relationship_logits[0].double(), example["next_sentence_label"]
            pairs.append((-float(functional.log_softmax(logits, dim=-1)[answer]), int(logits.argmax()) == answer))

    def mean(kind: int) -> tuple[float, float, float]:
        nats, labels, hits = zip(*targets[kind], strict=True)
        bits = sum(nats) / math.log(2) / sum(int(work.byte_lengths[label]) for label in labels)
        return float(np.mean(nats)), float(np.mean(hits)), bits

    loss, accuracy, bits = mean(0)
    if name == "hybrid":
        next_loss, next_accuracy, next_bits = mean(1)
        scores = {"mlm_loss": loss, "mlm_accuracy": accuracy, "clm_loss": next_loss, "clm_accuracy": next_accuracy}
        return {**scores, "bits_per_byte": next_bits, "loss": (loss + next_loss) / 2}
    if name not in PAIRS:
        return {"loss": loss, "accuracy": accuracy, "bits_per_byte": bits}
    pair_loss, pair_accuracy = np.mean(pairs, axis=0)
    scores = {f"{PAIRS[name]}_loss": pair_loss, f"{PAIRS[name]}_accuracy": pair_accuracy}
    return {**scores, "loss": loss + pair_loss, "mlm_loss": loss, "mlm_accuracy": accuracy, "bits_per_byte": bits}


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
        monkeypatch.setattr("lacuna.objectives.base._LOGIT_BYTES", 1)
        single = work.evaluate(model, dict(batch))
    assert len(whole) == len(single) == 5
    for one, other in zip(whole, single, strict=True):
        assert one == pytest.approx(other, rel=1e-5)


@pytest.mark.parametrize("name", OBJECTIVES)
def test_losses_of_parts_add_up_to_the_loss_of_the_whole(make, name) -> None:
    work, model = make(name), model_for(name)
    examples = [work.example(index % work.num_examples, index) for index in range(8 * work.group)]
    whole = work.collate(examples)
    targets = {key: torch.tensor(count) for key, count in work.count_targets(whole).items()}
    with torch.no_grad():
        loss, metrics = work.loss(model, whole, targets)
        cuts = [slice(start * work.group, end * work.group) for start, end in ((0, 3), (3, 4), (4, 8))]
        pieces = [work.loss(model, work.collate(examples[cut]), targets) for cut in cuts]
    assert sum(float(piece) for piece, _ in pieces) == pytest.approx(float(loss), rel=1e-5)
    for key, value in metrics.items():
        parts = sum(part[key] for _, part in pieces)
        assert parts.tolist() == pytest.approx(value.tolist(), rel=1e-5)


@pytest.mark.parametrize("name", OBJECTIVES)
def test_nothing_is_cached_while_training_or_evaluating(make, name) -> None:
    work, model = make(name, eval_fraction=0.3), model_for(name)
    batch = work.collate([work.example(index % work.num_examples, index) for index in range(4 * work.group)])
    targets = {key: torch.tensor(count) for key, count in work.count_targets(batch).items()}
    caches: list[Any] = []
    model.register_forward_hook(lambda model, given, output: caches.append(output.get("past_key_values")))
    work.loss(model, batch, targets)
    work.evaluate(model, work.collate([work.eval_example(row) for row in range(2)]))
    assert len(caches) > 1 and not any(caches)


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
