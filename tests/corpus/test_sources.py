"""Reading files: what comes out, and what each kind of bad file says."""

import gzip
import json
import os
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest
import zstandard
from opened_text import failure, texts, write

from lacuna.common.errors import InputError
from lacuna.corpus import find_files, open_text, read_records
from lacuna.corpus.arguments import TextArguments

ROWS = [{"text": "first text", "label": "a"}, {"text": 'second, "quoted"', "label": "b"}]


def test_text_files_lose_their_mark_and_carriage_returns(tmp_path: Path) -> None:
    file = write(tmp_path / "a.txt", b"\xef\xbb\xbfone\r\ntwo\rthree\n")
    assert texts(file) == ["one\ntwo\nthree\n"]


def test_folders_and_globs_are_sorted_and_files_come_once(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    write(tmp_path / "b.txt", "b")
    write(tmp_path / "a.txt", "a")
    write(tmp_path / "sub" / "c.jsonl", '{"text": "c"}\n\n{"text": "d\\r\\ne"}\n')
    (tmp_path / ".cache").mkdir()
    write(tmp_path / ".cache" / "a.txt", "hidden")
    write(tmp_path / "dataset_info.json", "{}")
    write(tmp_path / "notes.rst", "not read")
    assert texts(tmp_path) == ["a", "b", "c", "d\ne"]
    assert texts(tmp_path / "*.txt", tmp_path / "a.txt") == ["a", "b"]
    assert texts(tmp_path / "**" / "*.jsonl") == ["c", "d\ne"]
    assert texts(tmp_path / "b.txt", tmp_path) == ["b", "a", "c", "d\ne"]
    assert [path.name for path in find_files(paths=[str(tmp_path)])] == ["a.txt", "b.txt", "c.jsonl"]


def test_every_kind_of_file_gives_the_same_rows(tmp_path: Path) -> None:
    write(tmp_path / "r.jsonl", "".join(json.dumps(row) + "\n" for row in ROWS))
    write(tmp_path / "r.json", json.dumps(ROWS, indent=1))
    write(tmp_path / "d.json", json.dumps({"version": "1", "data": ROWS}))
    write(tmp_path / "r.csv", '\ufefftext,label\r\nfirst text,a\r\n"second, ""quoted""",b\r\n')
    write(tmp_path / "r.tsv", 'text\tlabel\nfirst text\ta\nsecond, "quoted"\tb\n')
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(ROWS), tmp_path / "r.parquet")
    lines = {"r.jsonl": [1, 2], "r.json": [1, 2], "d.json": [1, 2], "r.csv": [2, 3], "r.tsv": [2, 3]}
    for name in [*lines, "r.parquet"]:
        records = list(read_records(tmp_path / name))
        assert [record.fields for record in records] == ROWS, name
        assert [record.line for record in records] == lines.get(name, [1, 2])
        assert {record.path for record in records} == {str(tmp_path / name)}
        assert texts(tmp_path / name) == [row["text"] for row in ROWS]


def test_a_quote_that_opens_a_tsv_cell_is_a_quote(tmp_path: Path) -> None:
    file = write(tmp_path / "a.tsv", 'text\tlabel\n"open\t1\nclosed"\t0\n')
    assert [record.fields["text"] for record in read_records(file)] == ['"open', 'closed"']


def test_csv_cells_may_hold_lines(tmp_path: Path) -> None:
    file = write(tmp_path / "a.csv", 'text,label\n"two\nlines",1\nnext,0\n')
    assert [(record.fields["text"], record.line) for record in read_records(file)] == [("two\nlines", 2), ("next", 4)]


def test_missing_files_name_their_neighbours(tmp_path: Path) -> None:
    write(tmp_path / "train.txt", "x")
    message = failure(tmp_path / "trian.txt")
    assert "no file or folder" in message and "train.txt?" in message
    assert "does not exist either" in failure(tmp_path / "nowhere" / "a.txt")
    assert "no file matches" in failure(tmp_path / "*.jsonl")
    with pytest.raises(InputError, match=r"train\.txt\?"):
        next(read_records(tmp_path / "trian.txt"))


def test_folders_without_text_say_what_they_hold(tmp_path: Path) -> None:
    assert "nothing" in failure(tmp_path)
    write(tmp_path / "a.docx", "x")
    assert "only .docx" in failure(tmp_path)
    assert "'.docx'" in failure(tmp_path / "a.docx")
    with pytest.raises(InputError, match=r"'\.docx'"):
        next(read_records(tmp_path / "a.docx"))


@pytest.mark.parametrize("name", ["a.txt", "a.jsonl", "a.json", "a.csv", "a.tsv", "a.parquet"])
def test_empty_files(tmp_path: Path, name: str) -> None:
    assert f"{name} is empty" in failure(write(tmp_path / name, ""))


@pytest.mark.parametrize(
    ("name", "content"), [("a.txt", " \n\n"), ("a.jsonl", "\n\n"), ("a.csv", "text\n"), ("a.jsonl", '{"text": " "}')]
)
def test_files_that_hold_no_text(tmp_path: Path, name: str, content: str) -> None:
    assert f"{name} is empty" in failure(write(tmp_path / name, content))


def test_corrupt_json_lines(tmp_path: Path) -> None:
    long = '{"text": "' + "x" * 200
    message = failure(write(tmp_path / "a.jsonl", '{"text": "fine"}\n' + long + "\n"))
    assert f"{tmp_path}/a.jsonl:2: not valid JSON" in message
    assert long[:80] in message and long[:90] not in message
    assert "a.jsonl:1: a line must be a JSON object" in failure(write(tmp_path / "a.jsonl", "[1]\n"))
    assert "a.json:3: not valid JSON" in failure(write(tmp_path / "a.json", '[\n{"text": "a"},\n{"text": b}\n]'))
    assert "nested too deeply" in failure(write(tmp_path / "a.jsonl", "[" * 100_000))
    control = failure(write(tmp_path / "a.jsonl", '{"text": "a\tb"}\n'))
    assert "a.jsonl:1: not valid JSON (Invalid control character at character 11)" in control
    for line in ('{"text": "a', '{"text": "a"', '{"text": "a",', '{"text":'):
        message = failure(write(tmp_path / "a.jsonl", f'{{"text": "fine"}}\n{line}\n'))
        assert "a.jsonl:2: not valid JSON (" in message and "JSON over several lines is called .json" in message
    assert "a.json:2: not valid JSON (" in failure(write(tmp_path / "a.json", '[\n{"text": "a"},'))
    assert "list of objects" in failure(write(tmp_path / "a.json", '{"text": "a"}'))
    assert "row 2 is not an object" in failure(write(tmp_path / "a.json", '[{"text": "a"}, 3]'))


def test_invalid_utf8_says_file_line_and_byte(tmp_path: Path) -> None:
    content = "línea uno\nline two ".encode() + b"\xff\xfe bad\nthree\n"
    position = content.index(b"\xff")
    for name in ("a.txt", "a.tsv", "a.csv", "a.json"):
        message = failure(write(tmp_path / name, content))
        assert f"{name}:2: not valid UTF-8 (0xff), at byte {position}: line two" in message, name
        assert "line two" in message and "iconv" in message
    lines = b'{"text": "ok"}\n{"text": "\xe9t\xe9"}\n'
    position = lines.index(b"\xe9")
    assert f"a.jsonl:2: not valid UTF-8 (0xe9), at byte {position}:" in failure(write(tmp_path / "a.jsonl", lines))
    assert "UTF-16" in failure(write(tmp_path / "b.txt", "hello".encode("utf-16")))
    message = failure(write(tmp_path / "d.txt", b"\x7fELF\0\0\x02\xff"))
    assert "which no text has: leave the file out" in message and "latin1" not in message


def test_missing_columns_list_those_there_are(tmp_path: Path) -> None:
    file = write(tmp_path / "a.jsonl", '{"txt": "a", "label": 1}\n')
    message = failure(file)
    assert "a.jsonl:1: there is no column 'text'; there are: 'txt', 'label'" in message
    assert "Did you mean 'txt'?" in message and "--text_column" in message
    assert texts(file, text_column="txt") == ["a"]


@pytest.mark.parametrize("value", ["null", "3", "[1]", "true"])
def test_text_that_is_not_text(tmp_path: Path, value: str) -> None:
    message = failure(write(tmp_path / "a.jsonl", '{"text": "a"}\n{"text": ' + value + "}\n"))
    assert "a.jsonl:2" in message and "must hold text, not" in message


def test_half_a_surrogate_pair_is_not_text(tmp_path: Path) -> None:
    message = failure(write(tmp_path / "a.jsonl", '{"text": "a \\ud83d b"}\n'))
    assert "a.jsonl:1" in message and "\\ud83d" in message and "character 2" in message


def test_rows_of_another_width(tmp_path: Path) -> None:
    assert "a.csv:3: 3 values" in failure(write(tmp_path / "a.csv", "text,label\na,b\na,b,c\n"))
    assert "a.tsv:2: 1 value where" in failure(write(tmp_path / "a.tsv", "text\tlabel\na\n"))


def test_broken_csv_and_parquet(tmp_path: Path) -> None:
    assert "a.csv:2: not valid CSV" in failure(write(tmp_path / "a.csv", 'text,label\n"open,b\n'))
    assert "cannot be read as parquet" in failure(write(tmp_path / "a.parquet", b"PAR1 and no more"))


def test_records_may_be_compressed(tmp_path: Path) -> None:
    content = "".join(json.dumps(row) + "\n" for row in ROWS).encode()
    for name, data in {"a.jsonl.gz": gzip.compress(content), "a.JSONL.ZST": zstandard.compress(content)}.items():
        assert [record.fields for record in read_records(write(tmp_path / name, data))] == ROWS
    with pytest.raises(InputError, match="broken gzip archive"):
        list(read_records(write(tmp_path / "b.jsonl.gz", gzip.compress(content)[:-9])))
    with pytest.raises(InputError, match="has the ending"):
        list(read_records(write(tmp_path / "b.gz", gzip.compress(content))))


def test_links_are_followed_once_and_must_lead_somewhere(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "elsewhere").mkdir()
    write(tmp_path / "data" / "a.txt", "a")
    write(tmp_path / "elsewhere" / "b.txt", "b")
    (tmp_path / "data" / "up").symlink_to("..")
    (tmp_path / "data" / "zz").symlink_to("../elsewhere")
    assert sorted(texts(tmp_path / "data")) == ["a", "b"]
    (tmp_path / "elsewhere" / "gone.rst").symlink_to("nothing")
    assert texts(tmp_path / "elsewhere") == ["b"]
    (tmp_path / "elsewhere" / "gone.txt").symlink_to("nothing")
    gone = tmp_path / "elsewhere" / "gone.txt"
    assert f"{gone} is a link to nothing, which is not there" in failure(gone)
    assert f"{gone} is no longer there" in failure(tmp_path / "elsewhere")


def test_what_is_no_file_is_not_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "a.txt")
    assert "a.txt is a pipe or a device" in failure(tmp_path / "a.txt")
    assert "holds nothing" in failure(tmp_path)
    (tmp_path / "b.txt").mkdir()
    write(tmp_path / "b.txt" / "c.txt", "c")
    assert texts(tmp_path) == texts(tmp_path / "b.txt") == texts(tmp_path / "b*") == ["c"]


def test_odd_names_are_shown_escaped(tmp_path: Path) -> None:
    odd = os.fsdecode(os.fsencode(tmp_path / "new\nline ü") + b"\xff.txt")
    assert texts(write(Path(odd), "x")) == ["x"]
    message = failure(write(Path(odd), b"\xff"))
    assert message.startswith(f"{tmp_path}/new\\nline ü\\udcff.txt:1: not valid UTF-8")
    assert message.encode()  # prints anywhere
    file = Path(odd).with_suffix(".parquet")
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(ROWS), tmp_path / "a.parquet")
    (tmp_path / "a.parquet").rename(file)
    assert texts(file) == [row["text"] for row in ROWS]


@pytest.mark.skipif(os.geteuid() == 0, reason="nothing is forbidden to root")
def test_files_that_may_not_be_read(tmp_path: Path) -> None:
    write(tmp_path / "a.txt", "a").chmod(0)
    assert "a.txt may not be read by you (permission denied)" in failure(tmp_path)
    (tmp_path / "b").mkdir(mode=0)
    assert "b may not be read by you" in failure(tmp_path)


def test_a_system_that_refuses_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = write(tmp_path / "a.txt", "a")

    def refuse(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "scandir", refuse)
    assert f"{tmp_path} may not be read by you" in failure(tmp_path)
    monkeypatch.setattr(Path, "open", refuse)
    assert f"{file} may not be read by you" in failure(file)


def test_folders_saved_by_datasets(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    train = datasets.Dataset.from_dict({"id": list(range(5)), "text": ["a", "b", "c\r\nd", "e", "f"]})
    train.save_to_disk(tmp_path / "one", num_shards=2)
    assert texts(tmp_path / "one") == ["a", "b", "c\nd", "e", "f"]
    parts = {"train": train.select([0]), "test": train.select([1])}
    datasets.DatasetDict(parts).save_to_disk(tmp_path / "several")

    assert texts(tmp_path / "several") == ["a"]
    assert texts(tmp_path / "several", dataset_split="test") == ["b"]
    with pytest.raises(InputError, match=r"several has no split 'dev'; name one with --dataset_split: train, test"):
        texts(tmp_path / "several", dataset_split="dev")
    assert "there is no column 'body'" in failure(tmp_path / "one", text_column="body")
    (tmp_path / "one").rename(os.fsdecode(os.fsencode(tmp_path) + b"/\xff"))
    assert texts(os.fsdecode(os.fsencode(tmp_path) + b"/\xff")) == ["a", "b", "c\nd", "e", "f"]
    Path(os.fsdecode(os.fsencode(tmp_path) + b"/\xff")).rename(tmp_path / "one")
    file = next((tmp_path / "one").glob("*.arrow"))
    file.write_bytes(file.read_bytes()[:-200])
    assert f"{file} cannot be read as a dataset saved by `datasets`" in failure(tmp_path / "one")
    file.unlink()
    assert f"{file} is missing" in failure(tmp_path / "one")
    write(tmp_path / "one" / "state.json", "{")
    assert "what describes it is broken" in failure(tmp_path / "one")


def test_parquet_in_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [{"text": f"row {number}", "n": number} for number in range(100)]
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / "a.parquet", row_group_size=30)
    monkeypatch.setattr("lacuna.corpus.read.formats.BATCH_BYTES", 100)  # a few rows
    assert [(record.fields, record.line) for record in read_records(tmp_path / "a.parquet")] == [
        (row, number) for number, row in enumerate(rows, start=1)
    ]
    text = open_text(TextArguments(data=[str(tmp_path / "a.parquet")]))
    seen = [text.bytes_read for _ in text.texts()]
    assert seen == sorted(seen) and seen[50] > 0 and text.bytes_read == text.total_bytes


def test_parquet_strings_that_are_no_text(tmp_path: Path) -> None:
    broken = pyarrow.Array.from_buffers(pyarrow.string(), 2, pyarrow.array([b"ok", b"\xff"]).buffers())
    pyarrow.parquet.write_table(pyarrow.table({"text": broken}), tmp_path / "a.parquet")
    assert "a.parquet:2: row 2 is not valid UTF-8 (0xff at its byte 0)" in failure(tmp_path / "a.parquet")
    pyarrow.parquet.write_table(pyarrow.table({"text": [b"bytes"]}), tmp_path / "a.parquet")
    assert "a.parquet:1: the column 'text' must hold text, not bytes" in failure(tmp_path / "a.parquet")
    whole = (tmp_path / "a.parquet").read_bytes()
    assert "cannot be read as parquet" in failure(write(tmp_path / "a.parquet", whole[:-9]))


def test_sst2_has_all_its_rows(shared_data: Path) -> None:
    records = list(read_records(shared_data / "sst2" / "dev.tsv"))
    assert len(records) == 872
    assert set(records[0].fields) == {"sentence", "label"}
    assert {record.fields["label"] for record in records} == {"0", "1"}


def test_squad_has_all_its_articles(shared_data: Path) -> None:
    records = list(read_records(shared_data / "squad" / "dev-v1.1.json"))
    assert len(records) == 48
    assert sum(len(paragraph["qas"]) for record in records for paragraph in record.fields["paragraphs"]) == 10_570
