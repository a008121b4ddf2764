"""The token store against encoding each document by itself; and what becomes of half-built and damaged ones."""

import errno
import hashlib
import json
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from corpus import (
    CorpusError,
    TokenStore,
    build_store,
    corpus_fingerprint,
    open_store,
    read_documents,
    split_sentences,
)
from corpus import store as store_module
from tokenization import tokenizer_fingerprint, train_bpe

DOCUMENTS = [
    "The cat sat. The dog ran!\n\nA new paragraph.",
    "One sentence only",
    "",
    "Special names in text are text: [MASK] [SEP]. Yes.",
    "Ünïcödé 你好。世界！ 👩‍👧",
    "   ",
    "The last one. Really.\n",
]
FULL = [document for document in DOCUMENTS if document.strip()]


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerFast:
    return train_bpe(documents=["The cat sat. The dog ran! A new one. " * 20], vocab_size=280)


def build(tokenizer: Any, folder: Path, documents: Any = DOCUMENTS, fingerprint: str = "f1") -> TokenStore:
    return build_store(
        documents=documents,
        tokenizer=tokenizer,
        output_dir=folder,
        fingerprint=fingerprint,
        tokenizer_fingerprint="t1",
    )


def contents(folder: Path) -> dict[str, str]:
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(folder.iterdir())}


def never() -> Iterator[str]:
    raise AssertionError("a store that is there must not be built again")
    yield


def check_against_documents(store: TokenStore, tokenizer: PreTrainedTokenizerFast, documents: list[str]) -> None:
    """Every document and sentence, encoded one by one with the tokenizer's own call."""
    sentence = 0
    assert store.num_documents == len(documents)
    for index, document in enumerate(documents):
        expected = tokenizer(document, add_special_tokens=False, split_special_tokens=True)["input_ids"]
        assert store.document_tokens(index).tolist() == expected
        assert store.document_lengths[index] == len(expected)
        for text in split_sentences(document):
            assert tokenizer.decode(store.sentence_tokens(sentence)) == text
            sentence += 1
        assert store.document_offsets[index + 1] == sentence
    assert store.num_sentences == sentence
    assert store.num_tokens == store.sentence_offsets[-1] == store.document_lengths.sum()
    assert store.num_bytes == sum(len(document.encode()) for document in documents)


@pytest.mark.parametrize("batch_characters", [1, 40, 1 << 18])
def test_tokens_and_edges(
    tokenizer: PreTrainedTokenizerFast, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, batch_characters: int
) -> None:
    monkeypatch.setattr(store_module, "BATCH_CHARACTERS", batch_characters)
    store = build(tokenizer, tmp_path / "store", documents=iter(DOCUMENTS))
    check_against_documents(store, tokenizer, FULL)
    assert store.tokens.dtype == np.uint16
    assert store.sentence_offsets.dtype == store.document_offsets.dtype == np.int64
    assert store.document_lengths.dtype == np.int64
    assert not (np.asarray(store.tokens) < 5).any()
    assert store.vocab_size == len(tokenizer)
    assert (store.fingerprint, store.tokenizer_fingerprint, store.path) == ("f1", "t1", tmp_path / "store")
    assert "5 documents" in store.summary() and f"{store.num_tokens:,} tokens" in store.summary()
    assert os.listdir(tmp_path) == ["store"]


def test_the_bytes_do_not_depend_on_batches(
    tokenizer: PreTrainedTokenizerFast, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    build(tokenizer, tmp_path / "a")
    monkeypatch.setattr(store_module, "BATCH_CHARACTERS", 7)
    build(tokenizer, tmp_path / "b")
    assert contents(tmp_path / "a") == contents(tmp_path / "b")


def test_files_are_plain_and_described_by_the_manifest(tokenizer: PreTrainedTokenizerFast, tmp_path: Path) -> None:
    store = build(tokenizer, tmp_path)  # into an empty folder that is there
    manifest = json.loads((tmp_path / "manifest.json").read_text())
    assert manifest["format_version"] == 1
    assert np.fromfile(tmp_path / "tokens.bin", dtype=manifest["dtype"]).tolist() == store.tokens.tolist()
    for name, described in manifest["files"].items():
        assert (tmp_path / name).stat().st_size == described["bytes"]
        assert contents(tmp_path)[name] == described["sha256"]
    assert manifest["num_sentences"] + 1 == len(np.load(tmp_path / "sentence_offsets.npy", allow_pickle=False))
    assert (manifest["num_documents"], manifest["num_tokens"]) == (store.num_documents, store.num_tokens)
    assert set(contents(tmp_path)) == {"manifest.json", *manifest["files"]}


def test_a_large_vocabulary_needs_wider_integers(tmp_path: Path) -> None:
    vocabulary = {"[UNK]": 0, **{f"w{number}": number for number in range(1, 70_000)}}
    backend = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    wide = PreTrainedTokenizerFast(tokenizer_object=backend, unk_token="[UNK]")
    store = build(wide, tmp_path / "store", documents=["w69999 w1", "\x00"])
    assert store.tokens.dtype == np.uint32
    assert store.tokens.tolist()[:2] == [69999, 1]


def test_workers_that_do_not_fork_get_the_path(tokenizer: PreTrainedTokenizerFast, tmp_path: Path) -> None:
    store = build(tokenizer, tmp_path / "store")
    function, arguments = store.__reduce__()
    assert arguments == (tmp_path / "store",)
    assert function(*arguments).num_tokens == store.num_tokens


def test_the_same_store_is_reused_and_another_one_replaced(tokenizer: PreTrainedTokenizerFast, tmp_path: Path) -> None:
    folder = tmp_path / "store"
    first = build(tokenizer, folder)
    again = build(tokenizer, folder, documents=never())
    assert again.num_tokens == first.num_tokens
    other = build(tokenizer, folder, documents=["Something else."], fingerprint="f2")
    assert other.num_documents == 1 and open_store(folder).fingerprint == "f2"
    (folder / "tokens.bin").write_bytes(b"")
    assert build(tokenizer, folder, documents=["Something else."], fingerprint="f2").num_tokens == other.num_tokens
    assert os.listdir(tmp_path) == ["store"]


def test_a_failed_build_leaves_nothing(tokenizer: PreTrainedTokenizerFast, tmp_path: Path) -> None:
    def documents() -> Iterator[str]:
        yield "Some text. " * 100
        raise CorpusError("file.jsonl:7: broken")

    with pytest.raises(CorpusError, match=r"file\.jsonl:7"):
        build(tokenizer, tmp_path / "store", documents=documents())
    with pytest.raises(CorpusError, match="no text"):
        build(tokenizer, tmp_path / "store", documents=["", " "])
    assert not os.listdir(tmp_path)


def test_a_full_disk_is_exit_code_5(
    tokenizer: PreTrainedTokenizerFast, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(store_module.os, "fsync", full)
    with pytest.raises(CorpusError, match="disk is full") as caught:
        build(tokenizer, tmp_path / "store")
    assert caught.value.exit_code == 5
    assert not os.listdir(tmp_path)


def test_what_a_killed_builder_left_is_removed_and_never_opened(
    tokenizer: PreTrainedTokenizerFast, tmp_path: Path
) -> None:
    left = tmp_path / ".store.building-abc"
    left.mkdir()
    (left / "tokens.bin").write_bytes(b"\0\0")
    (tmp_path / ".store.lock").touch()
    with pytest.raises(CorpusError, match="no such folder"):
        open_store(tmp_path / "store")
    build(tokenizer, tmp_path / "store")
    assert os.listdir(tmp_path) == ["store"]


def test_a_folder_that_is_no_store_is_not_touched(tokenizer: PreTrainedTokenizerFast, tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("years of work")
    with pytest.raises(CorpusError, match="not a token store"):
        build(tokenizer, tmp_path)
    assert (tmp_path / "thesis.txt").read_text() == "years of work"
    with pytest.raises(CorpusError, match=r"manifest\.json"):
        open_store(tmp_path)


def test_damage_is_named(tokenizer: PreTrainedTokenizerFast, tmp_path: Path) -> None:
    folder = tmp_path / "store"
    build(tokenizer, folder)
    data = (folder / "tokens.bin").read_bytes()
    (folder / "tokens.bin").write_bytes(data[:-2])
    with pytest.raises(CorpusError, match=rf"tokens\.bin has {len(data) - 2} bytes, its manifest says {len(data)}"):
        open_store(folder)
    (folder / "tokens.bin").write_bytes(bytes([data[0] ^ 1]) + data[1:])
    open_store(folder)
    with pytest.raises(CorpusError, match=r"tokens\.bin has changed"):
        open_store(folder, verify=True)
    (folder / "sentence_offsets.npy").unlink()
    with pytest.raises(CorpusError, match=r"sentence_offsets\.npy is missing"):
        open_store(folder)
    (folder / "manifest.json").write_text('{"format_version": 99}')
    with pytest.raises(CorpusError, match="format 99"):
        open_store(folder)
    (folder / "manifest.json").write_text("{")
    with pytest.raises(CorpusError, match="cannot be read"):
        open_store(folder)


def test_two_builders_do_not_collide(tokenizer: PreTrainedTokenizerFast, tmp_path: Path) -> None:
    documents = [f"Document {number}. It has text." for number in range(200)]
    with ThreadPoolExecutor(4) as pool:
        stores = list(pool.map(lambda _: build(tokenizer, tmp_path / "store", documents=documents), range(4)))
    for store in stores:
        check_against_documents(store, tokenizer, documents)
    assert os.listdir(tmp_path) == ["store"]


def test_the_fingerprint_follows_content_and_nothing_else(tmp_path: Path) -> None:
    def fingerprint(*paths: Path, column: str = "text", of_tokenizer: str = "t") -> str:
        return corpus_fingerprint(
            paths=[str(path) for path in paths], text_column=column, tokenizer_fingerprint=of_tokenizer
        )

    a, b, rows = tmp_path / "a.txt", tmp_path / "b.txt", tmp_path / "r.jsonl"
    a.write_text("one")
    b.write_text("two")
    rows.write_text('{"text": "x"}')
    first = fingerprint(a, b)
    os.utime(a, (0, 0))
    renamed = a.rename(tmp_path / "0.txt")
    assert fingerprint(renamed, b) == first == fingerprint(renamed, b, column="other")
    others = [fingerprint(b, renamed), fingerprint(b), fingerprint(renamed, b, of_tokenizer="u")]
    others += [fingerprint(rows), fingerprint(rows, column="other"), fingerprint()]
    b.write_text("tvo")
    others.append(fingerprint(renamed, b))
    assert len({first, *others}) == len(others) + 1


def test_a_novel_comes_back_byte_for_byte(shared_data: Path, tmp_path: Path) -> None:
    file = tmp_path / "part.txt"
    file.write_bytes((shared_data / "novels" / "Woolf_Lighthouse_1927.txt").read_bytes()[:200_000])
    documents = list(read_documents(paths=[str(file)]))
    tokenizer = train_bpe(documents=documents, vocab_size=2000)
    store = build_store(
        documents=documents,
        tokenizer=tokenizer,
        output_dir=tmp_path / "store",
        fingerprint="f",
        tokenizer_fingerprint=tokenizer_fingerprint(tokenizer),
    )
    check_against_documents(store, tokenizer, documents)
    assert tokenizer.decode(store.tokens) == file.read_text(encoding="utf-8-sig").replace("\r\n", "\n")
    assert store.num_bytes / store.num_tokens > 3
