"""Reading files: what comes out, and what each kind of bad file says."""

import json
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest

from corpus import CorpusError, find_files, read_documents, read_records

ROWS = [{"text": "first text", "label": "a"}, {"text": 'second, "quoted"', "label": "b"}]


def documents(*paths: Path | str, **options: str) -> list[str]:
    return list(read_documents(paths=[str(path) for path in paths], **options))


def failure(*paths: Path | str, **options: str) -> str:
    with pytest.raises(CorpusError) as caught:
        documents(*paths, **options)
    assert caught.value.exit_code == 2
    return str(caught.value)


def write(path: Path, content: str | bytes) -> Path:
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def test_text_files_lose_their_mark_and_carriage_returns(tmp_path: Path) -> None:
    file = write(tmp_path / "a.txt", b"\xef\xbb\xbfone\r\ntwo\rthree\n")
    assert documents(file) == ["one\ntwo\nthree\n"]


def test_folders_and_globs_are_sorted_and_files_come_once(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    write(tmp_path / "b.txt", "b")
    write(tmp_path / "a.txt", "a")
    write(tmp_path / "sub" / "c.jsonl", '{"text": "c"}\n\n{"text": "d\\r\\ne"}\n')
    (tmp_path / ".cache").mkdir()
    write(tmp_path / ".cache" / "a.txt", "hidden")
    write(tmp_path / "dataset_info.json", "{}")
    write(tmp_path / "notes.md", "not read")
    assert documents(tmp_path) == ["a", "b", "c", "d\ne"]
    assert documents(tmp_path / "*.txt", tmp_path / "a.txt") == ["a", "b"]
    assert documents(tmp_path / "**" / "*.jsonl") == ["c", "d\ne"]
    assert documents(tmp_path / "b.txt", tmp_path) == ["b", "a", "c", "d\ne"]
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
        assert documents(tmp_path / name) == [row["text"] for row in ROWS]


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
    with pytest.raises(CorpusError, match=r"train\.txt\?"):
        next(read_records(tmp_path / "trian.txt"))


def test_folders_without_text_say_what_they_hold(tmp_path: Path) -> None:
    assert "nothing" in failure(tmp_path)
    write(tmp_path / "a.docx", "x")
    assert "only .docx" in failure(tmp_path)
    assert "'.docx'" in failure(tmp_path / "a.docx")
    with pytest.raises(CorpusError, match=r"'\.docx'"):
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


def test_missing_columns_list_those_there_are(tmp_path: Path) -> None:
    file = write(tmp_path / "a.jsonl", '{"txt": "a", "label": 1}\n')
    message = failure(file)
    assert "a.jsonl:1: there is no column 'text'; there are: 'txt', 'label'" in message
    assert "Did you mean 'txt'?" in message and "--text_column" in message
    assert documents(file, text_column="txt") == ["a"]


@pytest.mark.parametrize("value", ["null", "3", "[1]", "true"])
def test_text_that_is_not_text(tmp_path: Path, value: str) -> None:
    message = failure(write(tmp_path / "a.jsonl", '{"text": "a"}\n{"text": ' + value + "}\n"))
    assert "a.jsonl:2" in message and "must hold text, not" in message


def test_half_a_surrogate_pair_is_not_text(tmp_path: Path) -> None:
    message = failure(write(tmp_path / "a.jsonl", '{"text": "a \\ud83d b"}\n'))
    assert "a.jsonl:1" in message and "\\ud83d" in message and "character 2" in message


def test_rows_of_another_width(tmp_path: Path) -> None:
    assert "a.csv:3: 3 values" in failure(write(tmp_path / "a.csv", "text,label\na,b\na,b,c\n"))
    assert "a.tsv:2: 1 values" in failure(write(tmp_path / "a.tsv", "text\tlabel\na\n"))


def test_broken_csv_and_parquet(tmp_path: Path) -> None:
    assert "a.csv:2: not valid CSV" in failure(write(tmp_path / "a.csv", 'text,label\n"open,b\n'))
    assert "cannot be read as parquet" in failure(write(tmp_path / "a.parquet", b"PAR1 and no more"))


def test_sst2_has_all_its_rows(shared_data: Path) -> None:
    records = list(read_records(shared_data / "sst2" / "dev.tsv"))
    assert len(records) == 872
    assert set(records[0].fields) == {"sentence", "label"}
    assert {record.fields["label"] for record in records} == {"0", "1"}


def test_squad_has_all_its_articles(shared_data: Path) -> None:
    records = list(read_records(shared_data / "squad" / "dev-v1.1.json"))
    assert len(records) == 48
    assert sum(len(paragraph["qas"]) for record in records for paragraph in record.fields["paragraphs"]) == 10_570
