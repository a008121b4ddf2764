"""The token store, read: files, documents against their encoding, every kind of damage."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import processes
import psutil
import pytest
from examples import document_tokens, sentence_tokens
from transformers import PreTrainedTokenizerFast

from lacuna.common.errors import InputError
from lacuna.corpus import TextArguments, TokenStore, open_store, open_text, prepare_store
from lacuna.tokenization import train_bpe

REPOSITORY = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerFast:
    return train_bpe(documents=["The cat sat. The dog ran! A new one. " * 20], vocab_size=280)


Build = Callable[..., TokenStore]


@pytest.fixture
def build(tokenizer: PreTrainedTokenizerFast, tmp_path: Path) -> Build:
    """Builds a store at tmp_path / "store" of lines, each a document."""

    def build(*lines: str) -> TokenStore:
        file = tmp_path / "lines.txt"
        file.write_text("\n".join(lines))
        return prepare_store(
            text=open_text(TextArguments(data=[str(file)], document_boundary="line")),
            tokenizer=tokenizer,
            tokenizer_fingerprint="t1",
            output_dir=tmp_path / "store",
            num_workers=0,
        )

    return build


LINES = [f"Document {number}. It has text. The cat sat.{' It ran.' * (number % 7)}" for number in range(60)]


def test_what_is_no_store_is_refused_and_never_offered_as_its_place(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=rf"is not a token store: .* --output_dir {tmp_path}/new$"):
        open_store(tmp_path / "new")
    with pytest.raises(InputError, match=r"is not a token store: .* --output_dir runs/corpus$"):
        open_store(tmp_path)


def test_a_store_reads_like_its_files(build: Build, tmp_path: Path) -> None:
    store = build(*LINES)
    tokens = np.fromfile(tmp_path / "store" / "00000" / "tokens.bin", dtype=np.uint16)
    assert np.array_equal(store.tokens, tokens) and store.num_tokens == len(store.tokens) == len(tokens)
    sentences, documents = np.asarray(store.sentence_offsets), np.asarray(store.document_offsets)
    assert sentences.dtype == documents.dtype == np.int64
    assert (sentences[0], sentences[-1], len(sentences)) == (0, store.num_tokens, store.num_sentences + 1)
    assert (documents[0], documents[-1], len(documents)) == (0, store.num_sentences, store.num_documents + 1)
    assert (np.diff(sentences) > 0).all() and (np.diff(documents) > 0).all()
    joined = np.concatenate([document_tokens(store, number) for number in range(store.num_documents)])
    assert np.array_equal(joined, tokens)
    joined = np.concatenate([sentence_tokens(store, number) for number in range(store.num_sentences)])
    assert np.array_equal(joined, tokens)
    assert not document_tokens(store, 0).flags.writeable


def test_workers_that_do_not_fork_get_the_path(build: Build, tmp_path: Path) -> None:
    store = build(*LINES)
    function, arguments = store.__reduce__()
    assert arguments == (tmp_path / "store", store.fingerprint, None, None)
    assert function(*arguments[:2], [1.0], None).source_weights == [1.0]  # those it had, not those on the disk
    assert function(*arguments).num_tokens == store.num_tokens
    build("Something else.")
    with pytest.raises(InputError, match="replaced by another store"):
        function(*arguments)


def test_several_readers_share_the_pages_of_a_store(build: Build, tmp_path: Path) -> None:
    """A process that reads all tokens takes hardly any memory of its own for them."""
    store = build(*("The cat sat. " * 400 + str(number) for number in range(600)))
    size = store.num_tokens * 2
    assert size > 1 << 20
    script = f"""
import psutil, numpy as np
from lacuna.corpus import open_store
store = open_store({str(tmp_path / "store")!r})
before = psutil.Process().memory_full_info().uss
total = sum(int(store.tokens[start : start + 65536].max()) for start in range(0, len(store.tokens), 65536))
print(psutil.Process().memory_full_info().uss - before)
"""
    (tmp_path / "reader.py").write_text(script)
    assert store.tokens[:].max() > 0  # Linux counts a page that only one process has mapped as that one's own
    done = processes.run(tmp_path / "reader.py")
    assert done.returncode == 0, done.stderr
    if psutil.LINUX:
        assert int(done.stdout) < size / 2


# What stands in a store


def test_the_manifest_describes_every_file(build: Build, tmp_path: Path) -> None:
    store = build(*LINES)
    manifest = json.loads((tmp_path / "store" / "manifest.json").read_text())
    assert manifest == store.manifest and manifest["format_version"] == 2
    described = {f"{shard['name']}/{name}" for shard in manifest["shards"] for name in shard["files"]}
    present = {str(path.relative_to(tmp_path / "store")) for path in (tmp_path / "store").rglob("*") if path.is_file()}
    assert present == described | {"manifest.json"}
    for name in ("num_documents", "num_sentences", "num_tokens", "num_bytes"):
        assert manifest[name] == sum(shard[name] for shard in manifest["shards"])
        assert manifest[name] == sum(source[name] for source in manifest["sources"]) == getattr(store, name)
    assert manifest["num_bytes"] == sum(len(line.encode()) for line in LINES)


def test_the_report_names_sources_and_what_was_dropped(tokenizer: PreTrainedTokenizerFast, tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": "The cat sat."}\n{"text": ""}\n{"text": "The dog ran!"}\n')
    (tmp_path / "b.txt").write_text("A new one.\n\nThe cat\nsat.")
    (tmp_path / "c.txt").write_text("A new one.\n\nThe cat\nsat.")
    arguments = TextArguments(data=[f"{tmp_path}/{name}" for name in ("a.jsonl:1", "b.txt:3", "c.txt:0.0001")])
    with pytest.raises(InputError, match=r"no document of .*c\.txt is left"):
        prepare_store(
            text=open_text(arguments), tokenizer=tokenizer, tokenizer_fingerprint="t", output_dir=tmp_path / "store"
        )
    arguments = TextArguments(data=arguments.data[:2])
    store = prepare_store(
        text=open_text(arguments), tokenizer=tokenizer, tokenizer_fingerprint="t", output_dir=tmp_path / "store"
    )
    assert store.source_offsets.tolist() == [0, 2, 3] and store.source_weights == [0.25, 0.75]
    assert [Path(name).name for name in store.source_names] == ["a.jsonl", "b.txt"]
    assert store.summary().startswith("3 documents, ")
    report = store.report(decode=tokenizer.decode)
    assert "a.jsonl: weight 0.25, 2 documents, " in report and "dropped: empty 1" in report
    assert report.splitlines()[-3:] == ["  0: The cat sat.", "  1: The dog ran!", "  2: A new one. ⏎ ⏎ The cat ⏎ sat."]
    assert len(store.report(decode=tokenizer.decode, num_examples=1, seed=3).splitlines()) == 6
    # Other weights are another manifest, not another store.
    before = (tmp_path / "store" / "00000").stat().st_ino
    again = prepare_store(
        text=open_text(TextArguments(data=[name.rsplit(":")[0] for name in arguments.data])),
        tokenizer=tokenizer,
        tokenizer_fingerprint="t",
        output_dir=tmp_path / "store",
    )
    assert again.source_weights is None and again.fingerprint == store.fingerprint
    assert (tmp_path / "store" / "00000").stat().st_ino == before


# Damage


def every_file(store: Path) -> list[Path]:
    return sorted(path for path in store.rglob("*") if path.is_file() and path.name != "manifest.json")


def test_each_damaged_file_is_named(build: Build, tmp_path: Path) -> None:
    build(*LINES)
    store = tmp_path / "store"
    assert len(every_file(store)) == 3
    for file in every_file(store):
        data = file.read_bytes()
        file.unlink()
        with pytest.raises(InputError, match=rf"{file.parent.name}/{file.name} is missing, its manifest says"):
            open_store(store)
        file.write_bytes(data[:-1])
        with pytest.raises(InputError, match=rf"{file.name} has {len(data) - 1} bytes, its manifest says {len(data)}"):
            open_store(store)
        file.write_bytes(data[:-9] + bytes([data[-9] ^ 4]) + data[-8:])
        with pytest.raises(InputError, match=rf"{file.parent.name}/{file.name} has changed"):
            open_store(store, verify=True)
        file.write_bytes(data)
    open_store(store, verify=True)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('{"format_version": 1, "files": {}}', "format 1, of an older version .* Build it again"),
        ('{"format_version": 99}', "format 99, of a newer version"),
        ('{"format_version": 2}', "cannot be read"),
        ('{"format_version": 2, "shards": [{"name": "00000"}, {"name": "00001"}]}', "has other parts than 00000"),
        ("[]", "cannot be read"),
        ("{", "cannot be read"),
    ],
)
def test_a_manifest_of_something_else_is_refused(build: Build, tmp_path: Path, content: str, message: str) -> None:
    build(*LINES)
    (tmp_path / "store" / "manifest.json").write_text(content)
    with pytest.raises(InputError, match=message) as caught:
        open_store(tmp_path / "store")
    assert caught.value.exit_code == 2
    assert build(*LINES).num_documents == 60  # and built again


def test_what_is_no_store_says_so(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such folder"):
        open_store(tmp_path / "store")
    (tmp_path / "thesis.txt").write_text("years of work")
    with pytest.raises(InputError, match=r"there is no manifest\.json in it"):
        open_store(tmp_path)


def test_an_open_store_keeps_its_tokens_while_another_takes_its_place(build: Build, tmp_path: Path) -> None:
    old = build(*LINES)
    expected = old.tokens[:].tolist()
    new = build("Something else.")
    assert new.num_documents == 1 and open_store(tmp_path / "store").num_documents == 1
    assert old.tokens[:].tolist() == expected and old.num_documents == 60
    shutil.rmtree(tmp_path / "store")
    assert old.tokens[:].tolist() == expected
