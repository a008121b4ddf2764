"""Equal and nearly equal documents: against sets in memory, against exact Jaccard similarities, in many buckets."""

import importlib.util
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from examples import document_tokens, examples
from hypothesis import given
from hypothesis import strategies as st

from lacuna.common.errors import InputError
from lacuna.corpus import TextArguments, open_text, prepare_store
from lacuna.corpus.store import shards
from lacuna.corpus.store.pieces import make_shingles, make_signature
from lacuna.corpus.store.shards import find_equal, find_near
from lacuna.tokenization import train_bpe


def in_parts(rows: np.ndarray, size: int) -> Iterator[np.ndarray]:
    for start in range(0, len(rows), size):
        yield rows[start : start + size]


@examples(60)
@given(numbers=st.lists(st.integers(0, 12), max_size=40), size=st.integers(1, 9))
def test_the_first_of_equal_documents_stays(numbers: list[int], size: int) -> None:
    table = np.random.default_rng(0).bytes(16 * 13)
    hashes = np.frombuffer(b"".join(table[16 * number : 16 * number + 16] for number in numbers), dtype="V16")
    expected = [number in numbers[:place] for place, number in enumerate(numbers)]
    assert find_equal(in_parts(hashes, size)).tolist() == expected


def test_hashes_that_agree_in_half_are_not_equal() -> None:
    hashes = np.array([[1, 2], [1, 3], [4, 2], [1, 2]], dtype="<u8").view("V16").ravel()
    assert find_equal([hashes]).tolist() == [False, False, False, True]


WORDS = [f"word{number}" for number in range(3000)]


def variants(random: np.random.Generator) -> list[str]:
    """Texts of 300 words, each followed by ones with more and more words changed."""
    texts = []
    for _ in range(40):
        words = random.choice(WORDS, size=300).tolist()
        texts.append(" ".join(words))
        for changes in (1, 3, 6, 12, 60):
            changed = list(words)
            for place in random.choice(300, size=changes, replace=False):
                changed[place] = "other"
            texts.append(" ".join(changed))
    return texts


def jaccard(one: str, other: str) -> float:
    a, b = (set(zip(*(text.split()[start:] for start in range(5)), strict=False)) for text in (one, other))
    return len(a & b) / len(a | b)


@pytest.mark.parametrize("threshold", [0.5, 0.8, 0.95])
def test_what_is_found_resembles_an_earlier_text_and_hardly_any_is_missed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, threshold: float
) -> None:
    texts = variants(np.random.default_rng(7))
    signatures = np.stack([make_signature(text) for text in texts])
    nothing = np.zeros(len(texts), dtype=bool)
    mask = find_near(signatures=in_parts(signatures, 7), skipped=nothing, threshold=threshold, folder=tmp_path)
    assert not list(tmp_path.iterdir())
    clear = 0
    for place in range(len(texts)):
        group = 6 * (place // 6)
        highest = max((jaccard(texts[other], texts[place]) for other in range(group, place)), default=0.0)
        if abs(highest - threshold) > 0.12:  # three standard errors of the estimate
            assert mask[place] == (highest > threshold), (place, highest)
            clear += 1
    assert clear > 100
    monkeypatch.setattr(shards, "AT_ONCE", 3)
    again = find_near(signatures=in_parts(signatures, 50), skipped=nothing, threshold=threshold, folder=tmp_path)
    assert np.array_equal(again, mask)


def test_documents_that_are_dropped_anyway_are_not_compared(tmp_path: Path) -> None:
    signatures = np.stack([make_signature(text) for text in ("a b c d e f", "a b c d e f", "other words")])
    skipped = np.array([True, False, False])
    assert not find_near(signatures=[signatures], skipped=skipped, threshold=0.8, folder=tmp_path).any()


def test_signatures_estimate_the_similarity_and_never_change() -> None:
    one, other = (
        "the cat sat on the mat and the dog ran after it " * 3,
        "the cat sat on the mat and the cow ran after it " * 3,
    )
    estimate = (make_signature(one) == make_signature(other)).mean()
    assert abs(estimate - jaccard(one, other)) < 0.12
    assert (
        make_signature("The cat, sat ON the mat!")[:3].tolist()
        == make_signature("the cat sat on the mat")[:3].tolist()
    )
    assert make_signature("the cat sat on the mat")[:3].tolist() == [322003956, 754308201, 721092940]


def test_texts_with_few_spaces_are_compared_by_characters() -> None:
    text = "你好世界今天天气很好我们去公园散步吧然后回家吃饭"
    assert len(make_shingles(text)) == len(text) - 4
    assert len(set(make_shingles(text)) & set(make_shingles(text + "再见"))) == len(text) - 4
    assert len(make_shingles("one two three four five six")) == 2


@pytest.mark.parametrize("text", ["!", "a", "a b", "...", "\u3000", "\x1c"])
def test_the_shortest_texts_have_a_shingle(text: str) -> None:
    assert len(make_shingles(text)) == 1 and make_signature(text).dtype == np.uint32


def test_a_store_without_them(tmp_path: Path) -> None:
    random = np.random.default_rng(1)
    texts = variants(random)[:12]
    texts = [texts[0], texts[0], *texts[1:], texts[3]]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    tokenizer = train_bpe(documents=texts, vocab_size=280)
    options: dict[str, Any] = {"tokenizer": tokenizer, "tokenizer_fingerprint": "t", "output_dir": tmp_path / "store"}
    text = open_text(TextArguments(data=[str(tmp_path / "rows.jsonl")]))
    store = prepare_store(text=text, near_duplicates=0.6, num_workers=0, **options)
    assert store.manifest["dropped"] == {"duplicates": 2, "near-duplicates": 8}
    assert "dropped: duplicates 2, near-duplicates 8" in store.report(decode=tokenizer.decode)
    kept = [tokenizer.decode(document_tokens(store, number)) for number in range(store.num_documents)]
    assert kept == [texts[0], texts[6], texts[7], texts[12]]
    plain = prepare_store(text=text, **options)
    assert plain.num_documents == 12 and plain.fingerprint != store.fingerprint


def test_the_library_is_asked_for_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    options: dict[str, Any] = {"tokenizer": None, "tokenizer_fingerprint": "t", "output_dir": tmp_path / "store"}
    with pytest.raises(InputError, match=r'not installed\. Install it: pip install -e "\.\[dedup\]"') as caught:
        prepare_store(text=open_text(TextArguments()), near_duplicates=0.8, **options)
    assert caught.value.exit_code == 2
