"""Recurring spans: what is hidden, what is left of it, and the head that finds it."""

from typing import Any

import numpy as np
import pytest
import torch
from examples import examples
from hypothesis import given
from hypothesis import strategies as st
from transformers import SplinterConfig
from transformers.models.splinter.modeling_splinter import QuestionAwareSpanSelectionHead

from lacuna.common.errors import InputError
from lacuna.modeling import LacunaConfig, LacunaForQuestionAnswering
from lacuna.modeling.modeling_lacuna import LacunaSpanHead
from lacuna.objectives import IGNORED, OBJECTIVES
from lacuna.objectives.spans import LONGEST_SPAN, recurring_spans

SMALL: dict[str, Any] = {"vocab_size": 64, "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
SMALL |= {"intermediate_size": 32}
SEP = 3
NONE_COMMON = np.zeros(64, dtype=bool)


@pytest.fixture
def make(store_of, parts):
    """An objective over documents of ten different words, which recur all the time."""
    generator = np.random.default_rng(0)
    store = store_of([[generator.integers(5, 15, size=size).tolist()] for size in (6, 20, 29, 40, 200, 90)] + [[[63]]])

    def make(**options: Any) -> Any:
        return OBJECTIVES["spans"](**parts(store, objective="spans", sequence_length=64, **options))

    return make


def spans_by_hand(words: list[Any], is_common: np.ndarray) -> list[list[tuple[int, int]]]:
    """All pairs of places are compared, the longest spans first."""
    found, taken = [], set[int]()
    for size in range(LONGEST_SPAN, 0, -1):
        seen = set()
        this = []
        for first in range(len(words) - size + 1):
            span = tuple(words[first : first + size])
            if None in span or span in seen or all(len(word) == 1 and is_common[word[0]] for word in span):
                continue
            seen.add(span)
            cluster: list[tuple[int, int]] = []
            for other in range(first, len(words) - size + 1):
                is_free = not taken & set(range(other, other + size)) and (not cluster or other >= cluster[-1][1])
                if tuple(words[other : other + size]) == span and is_free:
                    cluster.append((other, other + size))
            if len(cluster) > 1:
                this.append(cluster)
                taken |= {place for begin, end in cluster for place in range(begin, end)}
        found += this
    return found


@examples(200)
@given(words=st.lists(st.sampled_from([None, (5,), (6,), (7,), (8, 9), (5, 5)]), max_size=30))
def test_recurring_spans_are_those_found_by_hand(words) -> None:
    is_common = NONE_COMMON.copy()
    is_common[5] = True
    assert recurring_spans(words, is_common=is_common) == spans_by_hand(words, is_common)


def test_the_longest_spans_come_first_and_common_words_make_none() -> None:
    words: list[Any] = [(word,) for word in (5, 6, 7, 8, 6, 7, 9, 5, 8, 6)]
    assert recurring_spans(words, is_common=NONE_COMMON) == [[(1, 3), (4, 6)], [(0, 1), (7, 8)], [(3, 4), (8, 9)]]
    common = NONE_COMMON.copy()
    common[[5, 6]] = True  # "6 7" stays: one of its words is not common
    assert recurring_spans(words, is_common=common) == [[(1, 3), (4, 6)], [(3, 4), (8, 9)]]
    assert recurring_spans([(5,), None, (5,), (6, 7)], is_common=NONE_COMMON) == [[(0, 1), (2, 3)]]
    assert recurring_spans([], is_common=NONE_COMMON) == []
    nine: list[Any] = [(word,) for word in range(10, 19)]  # one more than a span has
    assert recurring_spans(nine * 2, is_common=NONE_COMMON) == [[(0, 8), (9, 17)], [(8, 9), (17, 18)]]


def restored(example: dict[str, np.ndarray]) -> tuple[list[int], int]:
    """The ids of a row with its hidden spans, each as what it asks for, and how many there are."""
    ids = example["input_ids"].tolist()
    asked = {
        int(place): ids[first : last + 1]
        for place, first, last in zip(
            *(example[name] for name in ("question_positions", "labels", "ends")), strict=True
        )
        if place != IGNORED
    }
    assert all(ids[place] == SEP and SEP not in span and span for place, span in asked.items())
    return [token for place, one in enumerate(ids) for token in asked.get(place, [one])], len(asked)


@pytest.mark.parametrize("packing", ["concatenate", "none"])
def test_a_hidden_span_asks_for_its_own_words_in_its_own_document(make, packing) -> None:
    work, total = make(packing=packing), 0
    for row in range(work.num_examples):
        example = work.example(row, row)
        ids, count = restored(example)
        own = work.rows[row].ids
        assert ids[: len(own)] == own.tolist() and not any(ids[len(own) :])
        assert count <= work.most == 2
        total += count
        if packing == "concatenate":
            document = (example["position_ids"] == 0).cumsum()
            answered = example["labels"] != IGNORED
            for name in ("labels", "ends"):
                places = example["question_positions"][answered], example[name][answered]
                assert (document[places[0]] == document[places[1]]).all()
    assert total > work.num_examples


def test_another_place_is_left_each_time(make) -> None:
    work = make()
    row = max(range(work.num_examples), key=lambda row: len(work.rows[row].ids))
    assert len({tuple(work.example(row, index)["input_ids"].tolist()) for index in range(20)}) > 10


def test_words_that_are_common_in_the_text_or_signs_are_not_hidden(make, store_of, parts, monkeypatch) -> None:
    monkeypatch.setattr("lacuna.objectives.spans.COMMON", 2)
    text = [5, 6, 5, 20, 6, 21, 5, 6, 21, 6, 5, 7, 8, 7, 5, 6, 22, 22]
    store = store_of([[text]] * 8)
    given = parts(store, objective="spans", sequence_length=64)
    given["token_edges"][:, 0] = 1  # every token is a word
    given["token_edges"][22] = 5  # a sign
    work = OBJECTIVES["spans"](**given)
    hidden = set()
    for index in range(100):
        example = work.example(0, index)
        for first, last in zip(example["labels"], example["ends"], strict=True):
            if first != IGNORED:
                hidden.add(tuple(example["input_ids"][first : last + 1].tolist()))
    assert hidden
    assert not any({*span} <= {5, 6} or 22 in span for span in hidden)
    assert any(21 in span for span in hidden) and any(7 in span for span in hidden)


def test_texts_in_which_no_word_recurs_are_refused(numbered, parts) -> None:
    store = numbered([[20] * 5] * 4)
    with pytest.raises(InputError, match=r"no words recur in .* rows of 32 tokens"):
        OBJECTIVES["spans"](**parts(store, objective="spans"))


def test_texts_in_which_hardly_a_word_recurs_are_refused(make, parts, store_of, monkeypatch) -> None:
    many = [[list(range(5, 25))] for _ in range(99)]
    store = store_of([*many, [[40, 41, 42, 40, 41, 42]]])
    with pytest.raises(InputError, match=r"next to no words recur in \d+ rows of 32 tokens: give longer documents"):
        OBJECTIVES["spans"](**parts(store, objective="spans", eval_fraction=0.0))
    nothing = {"labels": np.full(2, IGNORED)}  # of held-out text, by which nothing could be judged
    monkeypatch.setattr(OBJECTIVES["spans"], "eval_example", lambda work, row: nothing)
    with pytest.raises(InputError, match=r"no words recur in the held-out rows of 64 tokens"):
        make()


def test_the_head_is_that_of_splinter() -> None:
    """Its parts compute the same with the same weights; its activation and norm are BERT's."""
    torch.manual_seed(0)
    config = LacunaConfig.from_family("bert", **SMALL, norm_eps=1e-5, question_aware=True)
    ours, theirs = (
        LacunaSpanHead(config).eval(),
        QuestionAwareSpanSelectionHead(SplinterConfig(**SMALL, question_token_id=1)).eval(),
    )
    pairs = [
        (ours.ask[0], theirs.query_start_transform),
        (ours.ask[1], theirs.query_end_transform),
        (ours.find[0], theirs.start_transform),
        (ours.find[1], theirs.end_transform),
    ]
    with torch.no_grad():
        for mine, other in pairs:
            mine.dense.load_state_dict(other.dense.state_dict())
            mine.norm.load_state_dict(other.LayerNorm.state_dict())

        ours.compare[0].copy_(theirs.start_classifier.weight.T)
        ours.compare[1].copy_(theirs.end_classifier.weight.T)
    states, places = torch.randn(3, 12, 16), torch.tensor([[1, 5], [2, 2], [0, 11]])
    for mine, other in zip(ours(states, places), theirs(states, places), strict=True):
        torch.testing.assert_close(mine, other)


def test_a_question_ends_at_the_first_separator() -> None:
    torch.manual_seed(0)
    model = LacunaForQuestionAnswering(LacunaConfig.from_family("modernbert", **SMALL, question_aware=True)).eval()
    ids = torch.tensor([[2, 7, 8, SEP, 9, 10, 11, SEP], [2, 7, SEP, 8, 9, 10, SEP, 0]])
    with torch.no_grad():
        short = model(ids, start_positions=torch.tensor([4, 3]), end_positions=torch.tensor([5, 4]))
        full = model(ids, question_positions=torch.tensor([[3, 7], [2, 6]]))
    assert short.start_logits.shape == (2, 8) and full.end_logits.shape == (2, 2, 8)
    torch.testing.assert_close(short.start_logits, full.start_logits[:, 0])
    torch.testing.assert_close(short.end_logits, full.end_logits[:, 0])
    assert short.loss > 0
    with pytest.raises(ValueError, match="where do questions end"):
        model(inputs_embeds=torch.zeros(1, 4, 16))


def test_a_question_sees_its_own_document_alone(make) -> None:
    torch.manual_seed(0)
    work = make()
    model = LacunaForQuestionAnswering(LacunaConfig.from_family("modernbert", **SMALL, question_aware=True)).eval()
    for row in range(work.num_examples):
        example = work.example(row, row)
        asked = example["question_positions"][example["labels"] != IGNORED]
        document = (example["position_ids"] == 0).cumsum()
        if len(asked) and document.max() > 1:
            break
    batch = work.collate([example])
    others = torch.from_numpy(~np.isin(document, document[asked]))
    with torch.no_grad():
        nats, found = work._score(model, batch)
        loss, more = work.loss(model, batch, {"tokens": torch.tensor(7)})  # of a step whose other rows have the rest
        batch["input_ids"][0, others] = 20
        again, _ = work._score(model, batch)
    assert others.any() and (nats > 0).tolist() == (batch["labels"] != IGNORED).tolist()
    assert not found[batch["labels"] == IGNORED].any()
    assert (nats == again).all()
    assert loss.item() == pytest.approx(nats.sum().item() / 7) and more["accuracy"] == found.sum() / 7
