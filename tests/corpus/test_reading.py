"""How files are read: names for columns, encodings, what separates the columns of a .csv, labels before texts."""

import gzip
import json
from pathlib import Path

import pytest
from opened_text import failure, opened, write

from lacuna.common.errors import InputError
from lacuna.corpus import TextArguments, read_labelled, read_parallel
from lacuna.corpus.read.streams import CHUNK_BYTES

COLA = "gj04\t1\t\tOur friends won't buy this analysis.\ngj04\t0\t*\tThe more books I ask.\n"


# Names for columns


def test_a_table_without_a_header(tmp_path: Path) -> None:
    names = ["source", "label", "mark", "sentence"]
    rows = read_labelled(write(tmp_path / "cola.tsv", COLA), tagged=False, column_names=names)
    assert [(row.line, list(row.fields.values())) for row in rows] == [
        (1, ["gj04", "1", "", "Our friends won't buy this analysis."]),
        (2, ["gj04", "0", "*", "The more books I ask."]),
    ]
    assert list(rows[0].fields) == names
    (row,) = read_labelled(write(tmp_path / "a.csv", 'x,"a, b"\n'), column_names=["label", "text"])
    assert row.fields == {"label": "x", "text": "a, b"}
    for column_names in (
        ["id,label,mark,sentence"],
        ["id", "label", "mark", "sentence"],
        ["id, label", "mark,sentence"],
    ):
        text = opened(tmp_path / "cola.tsv", column_names=column_names, text_column="sentence")
        assert list(text.texts()) == ["Our friends won't buy this analysis.", "The more books I ask."]


def test_names_that_do_not_fit(tmp_path: Path) -> None:
    cola = write(tmp_path / "cola.tsv", COLA)
    with pytest.raises(InputError, match=r"cola.tsv:1: 4 values where --column_names names 2 columns \(a, b\)"):
        read_labelled(cola, column_names=["a", "b"])
    rows = write(tmp_path / "a.jsonl", '{"text": "x"}\n')
    for path in (rows, write(tmp_path / "a.conll", "a\tO\n"), write(tmp_path / "a.txt", "x a\n")):
        with pytest.raises(
            InputError, match=r"--column_names is for .csv and .tsv files, and .* is none: leave it out"
        ):
            read_labelled(path, column_names=["a"], label_first=True)
    with pytest.raises(InputError, match="--column_names is for"):
        read_parallel(rows, rows, column_names=["a"])
    for names in (["a,,b"], ["a,a"], ["a", ""]):
        with pytest.raises(InputError, match=r"^--column_names .*each column needs a name of its own"):
            TextArguments(column_names=names).reading()


def test_a_missing_column_asks_for_names_where_the_first_line_may_hold_none(tmp_path: Path) -> None:
    hint = "If the first line holds no names, name the columns with --column_names."
    assert hint in failure(write(tmp_path / "cola.tsv", COLA))
    assert hint not in failure(tmp_path / "cola.tsv", column_names=["a,b,c,d"])  # it was given
    assert hint not in failure(write(tmp_path / "a.jsonl", '{"a": 1}\n'))


# Encodings

BODY = "Café. Un été à Malmö.\r\nÆrø!\n"
KINDS = {
    "a.txt": BODY,
    "a.csv": f'text,label\n"{BODY}",é\n',
    "a.tsv": "text\tlabel\nCafé\té\n",
    "a.jsonl": json.dumps({"text": BODY, "label": "é"}, ensure_ascii=False) + "\n",
    "a.json": json.dumps([{"text": BODY, "label": "é"}], ensure_ascii=False),
}


@pytest.mark.parametrize("encoding", ["latin-1", "cp1252", "utf-16", "utf-16-le", "utf-8-sig", "utf-32"])
@pytest.mark.parametrize("name", KINDS)
def test_other_encodings_give_the_same_text(tmp_path: Path, name: str, encoding: str) -> None:
    plain = write(tmp_path / name, KINDS[name])
    (tmp_path / "other").mkdir()
    other = write(tmp_path / "other" / name, KINDS[name].encode(encoding))
    packed = write(tmp_path / "other" / f"{name}.gz", gzip.compress(KINDS[name].encode(encoding)))
    expected = list(opened(plain).texts())
    assert "Caf\u00e9" in expected[0]
    assert list(opened(other, encoding=encoding).texts()) == expected
    assert list(opened(packed, encoding=encoding).texts()) == expected
    if name != "a.txt":
        rows = [row.fields for row in read_labelled(plain)]
        assert [row.fields for row in read_labelled(packed, encoding=encoding)] == rows


def test_characters_at_the_edges_of_what_is_read_at_once(tmp_path: Path) -> None:
    text = "x" * (CHUNK_BYTES // 2 - 2) + "é𝄞" * CHUNK_BYTES
    assert list(opened(write(tmp_path / "a.txt", text.encode("utf-16-le")), encoding="utf-16-le").texts()) == [text]
    assert list(opened(write(tmp_path / "b.txt", text.encode("utf-8-sig")), encoding="UTF8").texts()) == [text]


def test_lines_of_other_encodings(tmp_path: Path) -> None:
    pair = [write(tmp_path / name, "é\n".encode("latin-1")) for name in ("a.en", "a.de")]
    assert read_parallel(*pair, encoding="latin-1")[0].fields == {"source": "é", "target": "é"}
    (row,) = read_labelled(write(tmp_path / "a.conll", "é\tO\n".encode("latin-1")), encoding="latin-1")
    assert row.fields["tokens"] == ["é"]


def test_the_wrong_encoding_is_told(tmp_path: Path) -> None:
    message = failure(write(tmp_path / "a.txt", "one\ncafé\n".encode("latin-1")))
    assert "a.txt:2: not valid UTF-8 (0xe9), at byte 7" in message
    assert "Say --encoding latin1, or convert it: iconv -f latin1 -t UTF-8 a.txt" in message
    assert "Say --encoding utf-16, or" in failure(write(tmp_path / "b.txt", "hello".encode("utf-16")))
    message = failure(write(tmp_path / "c.txt", b"x" * CHUNK_BYTES + b"ab\x81c"), encoding="cp1252")
    assert message.endswith(
        f"c.txt is not valid cp1252 (0x81), at byte {CHUNK_BYTES + 2}: name another encoding with --encoding."
    )
    assert "d.txt is not valid utf-16-le (0x78), at byte 2:" in failure(
        write(tmp_path / "d.txt", b"x\0x"), encoding="utf-16-le"
    )
    assert "d.txt is not valid utf-16: name another" in failure(
        write(tmp_path / "d.txt", b"x\0x\0"), encoding="utf-16"
    )


@pytest.mark.parametrize("name", ["", "latin-9000", "hex", "rot13", "undefined", "nul\0", "é", "../../x"])
def test_names_that_are_no_encoding(tmp_path: Path, name: str) -> None:
    assert "is no encoding of text that Python knows" in failure(write(tmp_path / "a.txt", "x"), encoding=name)
    with pytest.raises(InputError, match="--encoding"):
        read_labelled(write(tmp_path / "a.tsv", "a\nb\n"), encoding=name)


# What is read is in the fingerprint


def test_fingerprints_know_what_decides_the_text(tmp_path: Path) -> None:
    text, table = write(tmp_path / "a.txt", "one\n"), write(tmp_path / "a.csv", "text,n\nx,1\n")
    plain = [opened(path).fingerprint for path in (text, table)]
    # As they were before there were such options, so that stores and runs of then are found.
    assert [each[:16] for each in plain] == ["becd455ed10b224b", "d4d5502cda65889a"]
    options = (
        {},
        {"encoding": "latin-1"},
        {"encoding": "cp1252"},
        {"column_names": ["text,n"]},
        {"column_names": ["n"]},
    )
    assert len({opened(table, **each).fingerprint for each in options}) == len(options)
    spellings = (["text,n"], ["text", "n"], ["text, n"])
    assert len({opened(table, column_names=names).fingerprint for names in spellings}) == 1


# What separates columns


@pytest.mark.parametrize("sign", [";", "\t", "|"])
def test_columns_of_a_csv_may_be_separated_by_another_sign(
    tmp_path: Path, sign: str, capsys: pytest.CaptureFixture[str]
) -> None:
    # A name that no other test of this process has: the line is said once for each.
    path = write(
        tmp_path / f"parted_by_{ord(sign)}.csv", f'text{sign}label\n"one{sign} two, three"{sign}a\nfour, five{sign}b\n'
    )
    for _ in range(2):
        rows = read_labelled(path)
        assert [row.fields["text"] for row in rows] == [f"one{sign} two, three", "four, five"]
    assert list(opened(path).texts()) == [f"one{sign} two, three", "four, five"]
    assert capsys.readouterr().err == f"{path.name}: columns are separated by {sign!r}\n"  # once


def test_commas_are_what_they_were(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert read_labelled(write(tmp_path / "a.csv", "text,a;b;c\nx;y,1\n"))[0].fields == {"text": "x;y", "a;b;c": "1"}
    assert read_labelled(write(tmp_path / "b.csv", "text\nx;y\n"))[0].fields == {"text": "x;y"}
    assert read_labelled(write(tmp_path / "c.tsv", "text;a\tb\nx\ty\n"))[0].fields == {"text;a": "x", "b": "y"}
    assert read_labelled(write(tmp_path / "d.csv", "x;y\nz;1\n"), column_names=["a", "b"])[0].fields["b"] == "y"
    assert capsys.readouterr().err == "d.csv: columns are separated by ';'\n"


def test_only_the_first_process_says_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("RANK", "1")
    assert len(read_labelled(write(tmp_path / "a.csv", "text;label\nx;a\n"))) == 1
    assert capsys.readouterr().err == ""


# Labels before texts

TREC = "DESC:manner How did serfdom develop ?\nENTY:cremat  What films featured Popeye ?\n\nDESC:manner\tHow ?\n"


def test_labels_before_texts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(tmp_path / "train.txt", TREC)
    for _ in range(2):
        rows = read_labelled(path, tagged=False, label_first=True)
    assert [(row.fields["label"], row.fields["text"], row.line) for row in rows] == [
        ("DESC:manner", "How did serfdom develop ?", 1),
        ("ENTY:cremat", "What films featured Popeye ?", 2),
        ("DESC:manner", "How ?", 4),
    ]
    assert capsys.readouterr().err == f"{path}: each line is a label, then a text (2 labels)\n"
    write(tmp_path / "b.txt", "NUM:x caf\xf0\n".encode("latin-1"))
    assert read_labelled(tmp_path / "b.txt", label_first=True, encoding="latin-1")[0].fields["text"] == "cafð"
    table = write(tmp_path / "a.csv", "text,label\nx,a\n")
    assert read_labelled(table, tagged=False, label_first=True)[0].fields["label"] == "a"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("a one\nb\n", r"a.txt:2: no text after the label; in a .txt file of labelled texts each line is a label"),
        ("a one\nb \t\n", r"a.txt:2: no text after the label"),
        (
            "".join(f"Word{number} begins this line of a text.\n" for number in range(12)),
            r"a.txt: 12 lines begin with 12 different words \('Word0', .*too many to be labels; .*read from .jsonl",
        ),
        ("\n\n", r"a.txt is empty: it has no row"),
    ],
)
def test_what_does_not_look_like_labels_before_texts(tmp_path: Path, content: str, message: str) -> None:
    with pytest.raises(InputError, match=message) as caught:
        read_labelled(write(tmp_path / "a.txt", content), tagged=False, label_first=True)
    assert caught.value.exit_code == 2
