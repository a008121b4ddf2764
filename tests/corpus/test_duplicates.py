"""Equal documents: against sets in memory, and in a store."""

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from examples import document_tokens, examples
from hypothesis import given
from hypothesis import strategies as st

from lacuna.corpus import TextArguments, open_text, prepare_store
from lacuna.corpus.store.build import find_equal
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


def test_a_store_without_them(tmp_path: Path) -> None:
    texts = ["one text", "another text", "one text", "One text", "another text ", "another text"]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    tokenizer = train_bpe(documents=texts, vocab_size=270)
    text = open_text(TextArguments(data=[str(tmp_path / "rows.jsonl")]))
    store = prepare_store(
        text=text, tokenizer=tokenizer, tokenizer_fingerprint="t", output_dir=tmp_path / "store", num_workers=0
    )
    assert store.manifest["dropped"] == {"duplicates": 2}
    assert "dropped: duplicates 2" in store.report(decode=tokenizer.decode)
    kept = [tokenizer.decode(document_tokens(store, number)) for number in range(store.num_documents)]
    assert kept == ["one text", "another text", "One text", "another text "]
