"""Pairs of BERT: where A and B stand, how they are cut, and that nothing but the text tells them apart."""

import copy
import math
import re
from pydoc_data.topics import topics

import numpy as np
import pytest
from sklearn.ensemble import HistGradientBoostingClassifier

from objectives import IGNORED, MaskedLanguageModellingWithPairs, ObjectiveError, random_stream
from objectives.chunks import Chunks
from objectives.mlm_nsp import IS_NEXT, IS_RANDOM, truncate_pair

CLS, SEP = 2, 3


def random_lengths(*, documents: int, sentences: tuple[int, int], tokens: tuple[int, int], seed: int = 0):
    generator = np.random.default_rng(seed)
    return [generator.integers(*tokens, size=generator.integers(*sentences)).tolist() for _ in range(documents)]


def taken_apart(example) -> tuple[list[int], list[int], int]:
    """A and B with what masking hid put back, and the label; the frame is checked on the way."""
    ids = np.where(example["labels"] != IGNORED, example["labels"], example["input_ids"]).tolist()
    assert ids[0] == CLS and ids[-1] == SEP and ids.count(SEP) == 2
    middle = ids.index(SEP)
    assert example["token_type_ids"].tolist() == [0] * (middle + 1) + [1] * (len(ids) - middle - 1)
    assert example["attention_mask"].tolist() == [1] * len(ids)
    return ids[1:middle], ids[middle + 1 : -1], example["next_sentence_label"]


@pytest.fixture(scope="module")
def work(numbered, parts) -> MaskedLanguageModellingWithPairs:
    store = numbered(random_lengths(documents=60, sentences=(1, 15), tokens=(1, 20)))
    return MaskedLanguageModellingWithPairs(**parts(store, sequence_length=48))


def test_positive_pairs_follow_and_negative_ones_come_from_elsewhere(work) -> None:
    offsets = work.store.sentence_offsets[work.store.document_offsets]
    labels = []
    for index in range(6000):
        first, second, label = taken_apart(work.example(index % work.num_examples, index))
        labels.append(label)
        assert len(first) + len(second) <= 45
        # An id is 5 + the place where it stands, so that a text is whole where its ids are consecutive.
        for text in (first, second):
            assert text == list(range(text[0], text[0] + len(text))) if text else True
        if not first or not second:
            continue
        owner, other = (int(np.searchsorted(offsets, text[0] - 5, side="right")) for text in (first, second))
        if label == IS_NEXT:
            assert owner == other and second[0] > first[-1]
            if len(first) + len(second) < 45:  # nothing was cut away
                assert second[0] == first[-1] + 1
        else:
            assert label == IS_RANDOM and owner != other
    assert abs(np.mean(labels) - 0.5) < 4 * 0.5 / math.sqrt(len(labels))


def test_held_out_pairs_stay_in_the_held_out_part(work) -> None:
    spans = work.store.sentence_offsets[work.held_out]
    for row in range(work.num_eval_examples):
        first, second, _ = taken_apart(work.eval_example(row))
        for token in (*first, *second):
            assert any(begin <= token - 5 < end for begin, end in spans)


def test_a_single_held_out_document_borrows_partners_from_the_training_part(numbered, parts) -> None:
    store = numbered([[3] * 5] * 12)
    work = MaskedLanguageModellingWithPairs(**parts(store, eval_fraction=0.01))
    assert len(work.held_out) == 1
    begin, end = (int(place) for place in store.sentence_offsets[work.held_out[0]])
    for row in range(work.num_eval_examples):
        first, second, label = taken_apart(work.eval_example(row))
        assert all(begin <= token - 5 < end for token in first)
        assert all((begin <= token - 5 < end) == (label == IS_NEXT) for token in second)


def truncated_as_bert_does(first: list[int], second: list[int], room: int, generator) -> tuple[list[int], list[int]]:
    """`truncate_seq_pair` as the paper's authors describe it: one token at a time, from the longer of the two."""
    first, second = list(first), list(second)
    while len(first) + len(second) > room:
        longer = first if len(first) > len(second) else second
        longer.pop(0 if generator.random() < 0.5 else -1)
    return first, second


def test_truncation_is_berts_token_for_token(work) -> None:
    sizes = np.random.default_rng(3)
    for index in range(500):
        first, second = (np.arange(start, start + sizes.integers(0, 90)) for start in (100, 500))
        generator = random_stream(seed=1, stream="test", index=index)
        expected = truncated_as_bert_does(first, second, work.room, copy.deepcopy(generator))
        found = truncate_pair(first, second, room=work.room, generator=generator)
        assert tuple(part.tolist() for part in found) == expected


def test_chunks_are_those_of_a_loop(numbered) -> None:
    lengths = random_lengths(documents=40, sentences=(1, 12), tokens=(1, 30), seed=5)
    store = numbered(lengths)
    documents = np.stack([store.document_offsets[:-1], store.document_offsets[1:]], axis=1)
    expected = []
    for document, (first, last) in enumerate(documents.tolist()):
        begin, size = first, 0
        for sentence in range(first, last):
            size += lengths[document][sentence - first]
            if size >= 45 or sentence == last - 1:
                expected.append([document, begin, sentence + 1])
                begin, size = sentence + 1, 0
    chunks = Chunks(store=store, documents=documents, length=45)
    assert [list(chunks[number]) for number in range(len(chunks))] == expected


def manual_lengths():
    """Python's manual, which comes with it, with a word for a token."""
    for text in topics.values():
        sentences = [len(sentence.split()) for sentence in re.split(r"(?<=[.!?:])\s+", text)]
        yield [length for length in sentences if length]


STORES = {
    "long documents": lambda: random_lengths(documents=200, sentences=(5, 60), tokens=(3, 40)),
    "short documents": lambda: random_lengths(documents=3000, sentences=(1, 6), tokens=(1, 40)),
    "single sentences": lambda: random_lengths(documents=4000, sentences=(1, 2), tokens=(3, 60)),
    "single words and phrases": lambda: random_lengths(documents=4000, sentences=(1, 2), tokens=(1, 8)),
    "sentences longer than a row": lambda: random_lengths(documents=300, sentences=(1, 40), tokens=(1, 200)),
    "Python's manual": lambda: list(manual_lengths()),
}


@pytest.mark.parametrize("kind", STORES)
def test_lengths_do_not_tell_the_label(store_of, parts, kind) -> None:
    """A first version was solved to 88 % from lengths alone; pairs of single sentences, later, to 60 %."""
    store = store_of([[[5 + length % 7] * length for length in document] for document in STORES[kind]()])
    work = MaskedLanguageModellingWithPairs(**parts(store, sequence_length=64))
    rows = np.random.default_rng(0).permutation(np.arange(8000) % work.num_examples)
    examples = [work.example(int(row), index) for index, row in enumerate(rows)]
    second = np.array([example["token_type_ids"].sum() for example in examples])
    total = np.array([len(example["input_ids"]) for example in examples])
    labels = np.array([example["next_sentence_label"] for example in examples])
    features = np.stack([total - second, second, total], axis=1)
    judge = HistGradientBoostingClassifier(max_iter=40, max_depth=4, random_state=0)
    accuracy = judge.fit(features[:4000], labels[:4000]).score(features[4000:], labels[4000:])
    assert 0.44 < accuracy < 0.56


def test_single_sentence_documents_are_cut_inside_the_sentence(numbered, parts) -> None:
    store = numbered([[1 + number % 9] for number in range(60)])
    work = MaskedLanguageModellingWithPairs(**parts(store))
    ends = set((store.sentence_offsets[1:] + 4).tolist())
    for index in range(600):
        row = index % work.num_examples
        first, second, _ = taken_apart(work.example(row, index))
        assert first
        if second:
            assert second[-1] in ends and second[0] - 1 not in ends


def test_one_document_cannot_make_pairs(numbered, parts) -> None:
    with pytest.raises(ObjectiveError, match="--objective mlm"):
        MaskedLanguageModellingWithPairs(**parts(numbered([[3] * 40])))


def test_collate_pads_to_the_longest(work) -> None:
    examples = [work.example(row, row) for row in range(8)]
    batch = work.collate(examples)
    longest = max(len(example["input_ids"]) for example in examples)
    assert batch["input_ids"].shape == (8, longest)
    for row, example in enumerate(examples):
        length = len(example["input_ids"])
        for name, padding in (("input_ids", 0), ("token_type_ids", 0), ("attention_mask", 0), ("labels", IGNORED)):
            assert batch[name][row, :length].tolist() == example[name].tolist()
            assert (batch[name][row, length:] == padding).all()
    assert batch["next_sentence_label"].tolist() == [example["next_sentence_label"] for example in examples]
    targets = sum(int((example["labels"] != IGNORED).sum()) for example in examples)
    assert work.count_targets(batch) == {"tokens": targets, "pairs": 8}
