"""All of --data as one: what comes out, in which order, what decides it, and what a bad record does."""

import csv
import gzip
import io
import json
import os
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest
import zstandard
from examples import examples
from hypothesis import given
from hypothesis import strategies as st
from opened_text import failure, opened, texts, write

from lacuna.common.errors import InputError
from lacuna.common.files import sha256
from lacuna.corpus import builtin_documents
from lacuna.corpus.read import text as text_module

# -- what comes out


def test_boundaries_of_text_files(tmp_path: Path) -> None:
    file = write(tmp_path / "a.txt", "\ufeffone\r\ntwo\r\n\r\n \t\nthree\rfour \n")
    for boundary, expected in {
        "file": [("one\ntwo\n\n \t\nthree\nfour \n", 1)],
        "line": [("one", 1), ("two", 2), ("three", 5), ("four ", 6)],
        "blank_line": [("one\ntwo", 1), ("three\nfour ", 5)],
    }.items():
        documents = list(opened(file, document_boundary=boundary).documents())
        assert [(document.text, document.place) for document in documents] == [
            (text, f"{file}:{line}") for text, line in expected
        ]


def as_csv(rows: list[str], delimiter: str = ",") -> bytes:
    file = io.StringIO(newline="")
    csv.writer(file, delimiter=delimiter).writerows([["id", "text"], *enumerate(rows)])
    return file.getvalue().encode()


def as_parquet(rows: list[str]) -> bytes:
    file = io.BytesIO()
    table = pyarrow.table({"id": range(len(rows)), "text": pyarrow.array(rows, pyarrow.string())})
    pyarrow.parquet.write_table(table, file, row_group_size=3)
    return file.getvalue()


WRITERS: dict[str, Callable[[list[str]], bytes]] = {
    "a.jsonl": lambda rows: "".join(json.dumps({"text": row}) + "\n" for row in rows).encode(),
    "b.jsonl": lambda rows: "\n\n".join(json.dumps({"text": row}, ensure_ascii=False) for row in rows).encode(),
    "a.csv": as_csv,
    "a.parquet": as_parquet,
}
PACKERS = {"": bytes, ".gz": gzip.compress, ".zst": zstandard.compress}
# Any text but line ends that are not "\n", NUL, a byte order mark in front, and nothing to see at all.
TEXTS = st.lists(
    st.text(st.characters(codec="utf-8", exclude_characters="\r\0")).filter(
        lambda text: text and not text.isspace() and text[0] != "\ufeff"
    ),
    min_size=1,
    max_size=8,
)


@examples(40)
@given(rows=TEXTS, packer=st.sampled_from(sorted(PACKERS)))
def test_any_texts_come_back_from_every_kind_of_file(
    tmp_path_factory: pytest.TempPathFactory, rows: list[str], packer: str
) -> None:
    folder = tmp_path_factory.getbasetemp()
    for name, writer in WRITERS.items():
        assert texts(write(folder / f"{name}{packer}", PACKERS[packer](writer(rows)))) == rows, name
    plain = [" ".join(row.split()) for row in rows]  # no line end of any kind
    plain = [row for row in plain if row]
    if plain:
        file = write(folder / f"a.txt{packer}", PACKERS[packer]("\n".join(plain).encode()))
        assert texts(file, document_boundary="line") == plain
        file = write(folder / f"a.txt{packer}", PACKERS[packer]("\n\n".join(plain).encode()))
        assert texts(file, document_boundary="blank_line") == plain
        assert texts(file) == ["\n\n".join(plain)]


def test_the_built_in_corpus_is_a_source_like_any_other() -> None:
    text = opened()
    assert text.names == ["built-in corpus"] and text.weights is None and text.total_bytes is None
    documents = list(text.documents())
    assert [document.text for document in documents] == list(builtin_documents())
    assert {document.source for document in documents} == {0}
    assert text.fingerprint == opened().fingerprint != opened(on_bad_record="skip").fingerprint


# -- sources and weights


def test_sources_and_their_weights(tmp_path: Path) -> None:
    first = write(tmp_path / "a.txt", "a")
    (tmp_path / "b").mkdir()
    for name in "xy":
        write(tmp_path / "b" / f"{name}.txt", name)
    text = opened(f"{first}:3", f"{tmp_path}/b/:1")
    assert text.names == [str(first), f"{tmp_path}/b/"] and text.weights == [0.75, 0.25]
    assert [(document.text, document.source) for document in text.documents()] == [("a", 0), ("x", 1), ("y", 1)]
    assert text.fingerprint == opened(first, tmp_path / "b").fingerprint
    assert text.fingerprint != opened(tmp_path / "b", first).fingerprint
    assert text.fingerprint != opened(tmp_path).fingerprint  # one source, not two
    assert opened(first, tmp_path / "b").weights is None
    assert opened(f"{first}:1e-9", f"{tmp_path}/b/*.txt:1e-9").weights == [0.5, 0.5]


def test_a_name_may_hold_colons(tmp_path: Path) -> None:
    odd = write(tmp_path / "a:0.5", "x").rename(tmp_path / "a b:0.5.txt")
    assert opened(odd).names == [str(odd)] and opened(f"{odd}:2").weights == [1.0]
    write(tmp_path / "c.txt", "c")
    (tmp_path / "c.txt:7").mkdir()
    write(tmp_path / "c.txt:7" / "d.txt", "d")
    assert texts(tmp_path / "c.txt:7") == ["d"] and texts(f"{tmp_path / 'c.txt:7'}:1") == ["d"]
    assert r"no file or folder C:\texts\a.txt" in failure(r"C:\texts\a.txt")
    assert r"no file or folder C:\texts\a.txt." in failure(r"C:\texts\a.txt:0.5")


@pytest.mark.parametrize("weight", ["0", "-1", "nan", "inf", "1e999", "much", ""])
def test_a_weight_is_a_number_above_zero(tmp_path: Path, weight: str) -> None:
    file = write(tmp_path / "a.txt", "a")
    message = failure(f"{file}:{weight}")
    assert f"--data {file}:{weight}: the weight" in message


def test_all_sources_have_weights_or_none(tmp_path: Path) -> None:
    first, second = write(tmp_path / "a.txt", "a"), write(tmp_path / "b.txt", "b")
    assert f"{second} has no weight" in failure(f"{first}:1", second)
    assert "belongs to an earlier source" in failure(f"{tmp_path}:1", f"{second}:1")


def test_a_text_can_be_copied_and_read_again(tmp_path: Path) -> None:
    write(tmp_path / "a.txt", "a\nb\n")
    text = opened(tmp_path, document_boundary="line")
    assert text.bytes_read == 0
    assert list(text.texts()) == list(text.texts()) == list(deepcopy(text).texts()) == ["a", "b"]
    assert text.bytes_read == text.total_bytes == 4


# -- fingerprints and files that change


def test_names_do_not_count_but_order_content_and_options_do(tmp_path: Path) -> None:
    first, second = write(tmp_path / "a.txt", "one"), write(tmp_path / "b.jsonl", '{"text": "two"}')
    fingerprint = opened(first, second).fingerprint
    assert len(fingerprint) == 64
    renamed = write(tmp_path / "z.txt", "one")
    os.utime(renamed, (1, 1))
    assert opened(renamed, second).fingerprint == fingerprint
    others = [
        opened(second, first),
        opened(first),
        opened(write(tmp_path / "y.txt", "One"), second),
        opened(first, second, document_boundary="line"),
        opened(first, second, text_column="other"),
        opened(first, second, unwrap=True),
        opened(first, second, on_bad_record="skip"),
    ]
    assert len({fingerprint, *(text.fingerprint for text in others)}) == 1 + len(others)
    assert opened(first, document_boundary="line").fingerprint == opened(renamed, document_boundary="line").fingerprint
    assert opened(first, text_column="x").fingerprint == opened(first).fingerprint  # a .txt file has no column
    assert opened(first, language="de").fingerprint == opened(first).fingerprint  # it decides no document


@pytest.mark.parametrize("language", ["", "english", "e n", "d3"])
def test_a_language_is_an_iso_code(language: str) -> None:
    assert "--language must be an ISO code" in failure(language=language)


def test_a_file_that_changes_is_an_error(tmp_path: Path) -> None:
    file = write(tmp_path / "a.jsonl", '{"text": "one"}\n' * 100)
    text = opened(file)
    documents = text.documents()
    next(documents)
    with file.open("a") as more:
        more.write('{"text": "two"}\n')
    with pytest.raises(InputError, match=r"a\.jsonl changed while it was read: it had 1,600 bytes and has 1,616 now"):
        list(documents)
    with pytest.raises(InputError, match="changed while"):
        next(text.documents())
    with pytest.raises(InputError, match="changed while"):
        assert text.fingerprint
    text = opened(file)
    os.utime(file, ns=(1, 1))
    with pytest.raises(InputError, match="changed while it was read\\. Start again"):
        list(text.documents())
    text = opened(file)
    file.unlink()
    with pytest.raises(InputError, match=r"a\.jsonl is no longer there"):
        list(text.documents())


def test_large_files_that_did_not_change_are_hashed_once(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(text_module, "LARGE_BYTES", 100)
    monkeypatch.setattr(text_module, "SETTLED_SECONDS", -1)
    file, read = write(tmp_path / "a.txt", "x" * 100), []
    monkeypatch.setattr(text_module, "sha256", lambda path: read.append(path) or sha256(path))
    first = text_module.hash_files([file, write(tmp_path / "b.txt", "small")])
    assert text_module.hash_files([file, file]) == [first[0]] * 2 and len(read) == 2
    write(file, "y" * 100)
    assert text_module.hash_files([file]) != first[:1] and len(read) == 3
    assert len(list((cache / "hashes").iterdir())) == 2
    (cache / "hashes").rename(tmp_path / "hashes")
    (cache / "hashes").write_text("in the way")
    assert text_module.hash_files([file]) == [sha256(file)]
    monkeypatch.setattr(text_module, "SETTLED_SECONDS", 1000)  # written just now: it could change unseen
    assert text_module.hash_files([file, file]) and len(read) == 6


# -- bad records

GOOD = '{"text": "good"}\n'
BAD = {
    "truncated": '{"text": "goo',
    "null": '{"text": null}',
    "number": '{"text": 3}',
    "missing": '{"txt": "good"}',
    "list": "[1, 2]",
    "surrogate": '{"text": "\\ud800"}',
    "nul": '{"text": "a\\u0000b"}',
    "bytes": b'{"text": "\xff"}',
    "digits": '{"text": ' + "9" * 5000 + "}",
    "deep": "[" * 100_000,
}


@pytest.mark.parametrize("kind", BAD)
def test_a_bad_record_stops_or_is_counted(tmp_path: Path, kind: str) -> None:
    bad = BAD[kind] if isinstance(BAD[kind], bytes) else str(BAD[kind]).encode()
    file = write(tmp_path / "a.jsonl", GOOD.encode() * 2 + bad + b"\n" + GOOD.encode())
    offset = 2 * len(GOOD)
    message = failure(file)
    assert message.startswith(f"{file}:3: ")
    assert f"at byte {offset}" in message or f"at byte {offset + bad.index(0xFF)}" in message
    assert len(max(message.split("\n"), key=len)) < len(str(file)) + 250
    text = opened(file, on_bad_record="skip")
    assert list(text.texts()) == ["good"] * 3
    assert text.dropped == {"bad record": 1} and text.bad_records == [message.split("\n")[0]]


def test_more_than_one_bad_record_in_a_thousand_is_too_many(tmp_path: Path) -> None:
    file = write(tmp_path / "a.jsonl", GOOD * 3000 + "bad\n" * 3 + GOOD * 10)
    text = opened(file, on_bad_record="skip")
    assert len(list(text.texts())) == 3010 and text.dropped == {"bad record": 3}
    write(file, GOOD * 3000 + "bad\n" * 4 + GOOD * 10)
    message = failure(file, on_bad_record="skip")
    assert "4 of 3,014 records are bad" in message and f"{file}:3001: not valid JSON" in message
    write(file, "bad\n" * 50 + GOOD * 10_000)
    documents = opened(file, on_bad_record="skip").documents()
    with pytest.raises(InputError, match="50 of 1,000 records"):  # early, not after the whole
        list(documents)
    write(file, GOOD + "bad\n" * 2)
    assert "2 of 3 records" in failure(file, on_bad_record="skip")
    write(file, GOOD * 21_000 + "bad\n" * 21)
    text = opened(file, on_bad_record="skip")
    list(text.texts())
    assert text.dropped == {"bad record": 21} and len(text.bad_records) == 20
    list(text.texts())
    assert text.dropped == {"bad record": 21} and len(text.bad_records) == 20  # of one iteration


def test_empty_texts_are_counted_and_empty_files_are_bad(tmp_path: Path) -> None:
    file = write(tmp_path / "a.jsonl", GOOD + '{"text": ""}\n{"text": " \\n"}\n\n' + GOOD)
    text = opened(file)
    assert list(text.texts()) == ["good", "good"] and text.dropped == {"empty": 2}
    empty = write(tmp_path / "b.txt", "\n")
    assert f"{empty} is empty: it holds no text" in failure(tmp_path)
    text = opened(tmp_path, on_bad_record="skip")
    assert list(text.texts()) == ["good", "good"]
    assert text.dropped == {"empty": 3, "bad record": 1}
    assert "there is no text in it" in failure(empty, on_bad_record="skip")


def test_files_of_zeros(tmp_path: Path) -> None:
    for name in ("a.txt", "a.jsonl", "a.csv", "a.tsv", "a.json", "a.parquet", "a.txt.gz", "a.txt.zst"):
        message = failure(write(tmp_path / name, b"\0" * 10_000))
        assert str(tmp_path / name) in message and len(message) < len(str(tmp_path)) + 300
    assert r"a.txt:1: NUL characters" in failure(tmp_path / "a.txt")
    assert r"at byte 4: ab\x00c" in failure(write(tmp_path / "b.txt", "x\nab\0c"))


def test_a_document_above_the_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lacuna.corpus.read.streams.MAX_DOCUMENT_BYTES", 1 << 20)
    size = (1 << 20) + 2
    file = write(tmp_path / "a.txt", "ab\n" + "c" * (size - 3))
    message = failure(file)
    assert message.startswith(
        f"{file}:1: a document of more than 1 MiB, which is the most that it may have, at byte 0: ab\\nc"
    )
    assert "--document_boundary line or blank_line" in message
    packed = write(tmp_path / "a.txt.gz", gzip.compress(file.read_bytes()))
    assert "a document of more than" in failure(packed) and "uncompressed byte 0" in failure(packed)
    assert len(texts(file, document_boundary="line")) == 2
    assert "a document of more than" in failure(file, document_boundary="blank_line")
    many = write(tmp_path / "b.txt", ("word\n" * 300_000) + "\nshort\n")
    assert "b.txt:1: a document of more than" in failure(many, document_boundary="blank_line")
    assert texts(many, document_boundary="blank_line", on_bad_record="skip") == ["short"]
    assert texts(write(tmp_path / "c.txt", "x" * (1 << 20))) == ["x" * (1 << 20)]
    row = pyarrow.table({"text": ["fine", "é" * (size // 2)]})
    pyarrow.parquet.write_table(row, tmp_path / "a.parquet")
    assert "a.parquet:2: a document of more than 1 MiB" in failure(tmp_path / "a.parquet")
    quoted = write(tmp_path / "a.csv", 'text\nfine\n"' + "never closed\n" * 100_000)
    message = failure(quoted)
    assert f"{quoted}:3: a row of more than 1 MiB; a quotation mark may never be closed, at byte 10" in message
    assert failure(quoted, on_bad_record="skip") == message  # what follows cannot be told from what is quoted


def test_records_between_quotes_that_are_broken_stop_the_file(tmp_path: Path) -> None:
    lines = b"text,label\na,1\nb\nc,1\n"
    text = opened(write(tmp_path / "a.csv", lines), on_bad_record="skip")
    assert list(text.texts()) == ["a", "c"]
    assert text.bad_records[0].startswith(f"{tmp_path}/a.csv:3: 1 value where the first line names 2 columns")
    message = failure(write(tmp_path / "b.csv", b'text,label\na,1\n"b\n\xff",1\nc,1\n'), on_bad_record="skip")
    assert "b.csv:4: not valid UTF-8" in message


def test_the_bar_of_hashing_shows_nothing_off_a_terminal(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert opened(write(tmp_path / "a.txt", "x" * 100_000)).fingerprint
    assert capfd.readouterr() == ("", "")
    assert text_module.VERSION == 1  # raise it when other documents come out of the same files
