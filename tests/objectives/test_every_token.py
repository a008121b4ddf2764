"""No token is lost silently: over an epoch each is shown or asked for once, or counted as cropped and reported."""

import numpy as np
import pytest

from lacuna.objectives import IGNORED, OBJECTIVES, TokenPrediction

MASK = 4
PACKED = [
    ("mlm", {}),
    ("mlm", {"masking": "span"}),
    ("clm", {}),
    ("hybrid", {"masking": "whole_word"}),
    ("denoising", {}),
]


@pytest.fixture(scope="module")
def store(numbered):
    """Documents of a token, of a sentence, shorter and much longer than a row of 32; no id occurs twice."""
    generator = np.random.default_rng(4)
    sizes = [generator.integers(1, 25, size=generator.integers(1, 20)).tolist() for _ in range(60)]
    return numbered([[1], [2, 1], [90], [29], [30], [31], [32], *sizes])


def text_of(work: TokenPrediction) -> list[int]:
    """The tokens of the training part."""
    offsets = work.store.sentence_offsets
    return [
        int(token) for first, last in work.documents for token in work.store.tokens[offsets[first] : offsets[last]]
    ]


def shown(work: TokenPrediction, row: int) -> list[int]:
    """The text below an example, with what was hidden; without a token that an earlier row has asked for."""
    example = work.example(row, row)
    ids, labels = example["input_ids"], example["labels"]
    if "decoder_input_ids" in example:
        ids = labels
    else:
        ids = np.where(labels != IGNORED, labels, ids)
        if work.name in ("clm", "hybrid"):  # a piece begins with what the one before ended with
            positions = example.get("position_ids", np.arange(len(ids)))
            ids = ids[positions > 0]
    return ids[ids > MASK].tolist()


@pytest.mark.parametrize("packing", ["concatenate", "none"])
@pytest.mark.parametrize("name, options", PACKED)
def test_packed_rows_hold_every_token_once(store, parts, name, options, packing) -> None:
    work = OBJECTIVES[name](**parts(store, objective=name, packing=packing, **options))
    found = [token for row in range(work.num_examples) for token in shown(work, row)]
    assert sorted(found) == sorted(text_of(work))
    assert ", no token cropped; " in work.describe()


@pytest.mark.parametrize("packing", ["concatenate", "none"])
@pytest.mark.parametrize("name, options", PACKED)
def test_the_share_of_padding_is_the_one_reported(store, parts, name, options, packing) -> None:
    work = OBJECTIVES[name](**parts(store, objective=name, packing=packing, **options))
    if name == "denoising":  # the rows before the damage, which leave a place for an end
        used, places = sum(len(work.rows[row].ids) for row in range(work.num_examples)), 31 * work.num_examples
    else:
        examples = [work.example(row, row) for row in range(work.num_examples)]
        used = sum(int((example["input_ids"] != work.tokens.pad).sum()) for example in examples)
        places = 32 * work.num_examples
    assert f"{1 - used / places:.2%}" in work.describe().splitlines()[0]


@pytest.mark.parametrize("name", ["mlm_nsp", "mlm_sop", "mlm_contrastive"])
def test_what_pairs_do_not_show_is_counted(store, parts, name) -> None:
    """Every sentence lies in one chunk; of a chunk that is too long for its row the excess is missing, and no more."""
    work = OBJECTIVES[name](**parts(store, objective=name))
    offsets = store.sentence_offsets
    chunks = [work.rows[row] for row in range(work.num_examples)]
    assert [place for *_, first, last in chunks for place in range(first, last)] == [
        place for first, last in work.documents for place in range(first, last)
    ]
    cropped = 0
    for row, (*_, first, last) in enumerate(chunks):
        text = store.tokens[offsets[first] : offsets[last]].tolist()
        example = work.example(row, row)
        ids = np.where(example["labels"] != IGNORED, example["labels"], example["input_ids"])
        own = [token for token in ids.tolist() if token > MASK and token in set(text)]
        assert len(set(own)) == len(own)
        cropped += max(0, len(text) - work.room)
        if name != "mlm_nsp" or not example["next_sentence_label"]:
            assert len(own) == min(len(text), 28 if name == "mlm_contrastive" else 29)
    total = len(text_of(work))
    said = work.describe()
    assert f"{cropped / total:.2%} of the text is cropped" in said


def test_what_is_cropped_is_another_part_each_time(store, parts) -> None:
    """After some epochs hardly a token was never shown."""
    for name in ("mlm_nsp", "mlm_sop", "mlm_contrastive"):
        work = OBJECTIVES[name](**parts(store, objective=name))
        missing = []
        seen: set[int] = set()
        for epoch in range(10):
            for row in range(work.num_examples):
                example = work.example(row, epoch * work.num_examples + row)
                seen |= set(np.where(example["labels"] != IGNORED, example["labels"], example["input_ids"]).tolist())
            missing.append(1 - len(seen & set(text_of(work))) / len(text_of(work)))
        assert missing[0] > 0.1 and missing[-1] < 0.05
