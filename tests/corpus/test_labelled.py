"""Labelled rows of every kind of file, of saved folders and of the Hub; what is broken is named with its line."""

import gzip
import json
import math
import tempfile
from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest
import test_hub
from opened_text import write

from lacuna.common.errors import HubError, InputError, StorageError
from lacuna.corpus import TextArguments, open_text, pair_passages, read_labelled, read_parallel
from lacuna.corpus.read.formats import iter_records
from lacuna.corpus.read.labelled import label_names, with_names
from lacuna.corpus.read.streams import Reading

endpoint = test_hub.endpoint


# Tables


def test_tables_are_read_as_they_are_elsewhere(tmp_path: Path) -> None:
    files = {
        "a.jsonl": '{"text": "x", "label": ["p", "q"]}\n\n{"text": "y", "label": []}\n',
        "a.csv": 'text,label\nx,"p|q"\ny,\n',
        "a.tsv": "text\tlabel\nx\tp|q\ny\t\n",
        "a.json": '{"version": "2.0", "data": [{"text": "x"}, {"text": "y"}]}',
    }
    for name, content in files.items():
        rows = read_labelled(write(tmp_path / name, content))
        assert [row.fields["text"] for row in rows] == ["x", "y"]
        assert rows[0].path == str(tmp_path / name)
    assert [row.line for row in read_labelled(tmp_path / "a.jsonl")] == [1, 3]
    (tmp_path / "b.jsonl.gz").write_bytes(gzip.compress((tmp_path / "a.jsonl").read_bytes()))
    assert read_labelled(str(tmp_path / "b.jsonl.gz"))[0].fields["label"] == ["p", "q"]


def test_parquet_keeps_names_of_labels(tmp_path: Path) -> None:
    table = pyarrow.table({"text": ["x", "y", "z"], "label": [1, 0, -1], "tags": [[0, 1], [], [1]], "n": [7, 8, 9]})
    label = {"names": ["no", "yes"], "_type": "ClassLabel"}
    tags = {"feature": {"names": ["O", "B"], "_type": "ClassLabel"}, "_type": "List"}
    about = {"info": {"features": {"label": label, "tags": tags, "n": {"dtype": "int64", "_type": "Value"}}}}
    path = tmp_path / "a.parquet"
    pyarrow.parquet.write_table(table.replace_schema_metadata({"huggingface": json.dumps(about)}), path)
    assert [row.fields for row in read_labelled(path)] == [
        {"text": "x", "label": "yes", "tags": ["O", "B"], "n": 7},
        {"text": "y", "label": "no", "tags": [], "n": 8},
        {"text": "z", "label": None, "tags": ["B"], "n": 9},
    ]
    pyarrow.parquet.write_table(table, path)
    assert read_labelled(path)[0].fields["label"] == 1
    pyarrow.parquet.write_table(table.replace_schema_metadata({"huggingface": "{broken"}), path)
    assert read_labelled(path)[0].fields["label"] == 1


def test_names_of_labels_in_all_ways_they_are_written() -> None:
    label = {"names": ["a", "b"], "_type": "ClassLabel"}
    features = {
        "one": label,
        "list": {"feature": label, "_type": "List"},
        "old": [label],
        "deep": {"feature": {"feature": label, "_type": "List"}, "_type": "List"},
        "text": {"dtype": "string", "_type": "Value"},
        "odd": None,
    }
    names = label_names(features)
    assert sorted(names) == ["deep", "list", "old", "one"]
    row = {"one": 1, "list": [0, 5], "deep": [[1]], "text": "x", "other": 1, "old": "a"}
    assert with_names(row, names) == {
        "one": "b", "list": ["a", None], "deep": [["b"]], "text": "x", "other": 1, "old": "a"
    }  # fmt: skip


def test_folders_saved_by_datasets(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    features = datasets.Features({"text": datasets.Value("string"), "label": datasets.ClassLabel(names=["no", "yes"])})
    parts = {
        name: datasets.Dataset.from_dict({"text": [name], "label": [n]}, features=features)
        for n, name in enumerate(("train", "test"))
    }
    datasets.DatasetDict(parts).save_to_disk(str(tmp_path / "both"))
    parts["test"].save_to_disk(str(tmp_path / "one"))
    assert [row.fields for row in read_labelled(tmp_path / "both")] == [{"text": "train", "label": "no"}]
    assert [row.fields for row in read_labelled(tmp_path / "both", "test")] == [{"text": "test", "label": "yes"}]
    assert [row.fields for row in read_labelled(f"{tmp_path}/both:test")] == [{"text": "test", "label": "yes"}]
    assert [row.fields for row in read_labelled(str(tmp_path / "one"))] == [{"text": "test", "label": "yes"}]
    with pytest.raises(InputError, match=r"has no split 'dev'; write one behind its name \(FOLDER:SPLIT\): train, te"):
        read_labelled(f"{tmp_path}/both:dev")
    with pytest.raises(InputError, match="is a folder that `datasets` has not saved"):
        read_labelled(tmp_path)


# Columns of CoNLL

TAGGED = """-DOCSTART- -X- -X- O

U.N. NNP B-NP B-ORG
official NN I-NP O

Ekeus NNP B-NP B-PER
. . O O
"""


def test_columns_of_conll(tmp_path: Path) -> None:
    rows = read_labelled(write(tmp_path / "a.txt", TAGGED))
    assert [row.fields for row in rows] == [
        {
            "tokens": ["U.N.", "official"],
            "tags": ["B-ORG", "O"],
            "column_2": ["NNP", "NN"],
            "column_3": ["B-NP", "I-NP"],
        },
        {"tokens": ["Ekeus", "."], "tags": ["B-PER", "O"], "column_2": ["NNP", "."], "column_3": ["B-NP", "O"]},
    ]
    assert [row.line for row in rows] == [3, 6]
    for name, content in {
        "tabs.conll": "a b\tO\n#\tO\n\t\nc\tB-x\r\n\n\n",  # a token with a blank, a sign, a line of nothing but a tab
        "end.iob": "\ufeffa\tO\n#\tO\n\nc\tB-x",  # a byte order mark, no last line end
    }.items():
        rows = read_labelled(write(tmp_path / name, content))
        assert [row.fields["tags"] for row in rows] == [["O", "O"], ["B-x"]], name
        assert rows[0].fields["tokens"][1] == "#"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("a O\nb\n", "a.conll:2: 1 column where the first line has 2; .*empty line after each sentence"),
        ("a O\n\nb x O\n", "a.conll:3: 3 columns where the first line has 2"),
        ("a\tO\n\tO\n", "a.conll:2: an empty column"),
        ("a\nb\n", "a.conll:1: a line with nothing but a token"),
        ("\n\n", "a.conll is empty: it has no row"),
        ("", "a.conll is empty"),
    ],
)
def test_broken_columns_are_named(tmp_path: Path, content: str, message: str) -> None:
    path = write(tmp_path / "a.conll", content)
    with pytest.raises(InputError, match=message) as caught:
        read_labelled(path)
    assert caught.value.exit_code == 2


def test_bytes_that_are_no_text(tmp_path: Path) -> None:
    (tmp_path / "a.conll").write_bytes(b"a\tO\n\xe9\tO\n")
    with pytest.raises(InputError, match=r"a.conll:2: not valid UTF-8 \(0xe9\)"):
        read_labelled(tmp_path / "a.conll")


def test_universal_dependencies(tmp_path: Path) -> None:
    lines = [
        "# text = vámonos al mar",
        "1-2\tvámonos\t_\t_\t_\t_\t_\t_\t_\t_",
        "1\tvamos\tir\tVERB\tV\t_\t0\troot\t_\t_",
        "2\tnos\tnosotros\tPRON\tP\t_\t1\tobj\t_\t_",
        "2.1\t_\t_\tX\t_\t_\t_\t_\t_\t_",
        "",
        "1\tmar\tmar\tNOUN\tN\t_\t0\troot\t_\t_",
    ]
    rows = read_labelled(write(tmp_path / "a.conllu", "\n".join(lines)))
    assert [row.fields for row in rows] == [
        {"tokens": ["vamos", "nos"], "tags": ["VERB", "PRON"], "xpos": ["V", "P"]},
        {"tokens": ["mar"], "tags": ["NOUN"], "xpos": ["N"]},
    ]
    with pytest.raises(InputError, match=r"a.conllu:1: 2 columns; a .conllu file has 10"):
        read_labelled(write(tmp_path / "a.conllu", "a\tO\n"))


def test_real_tagged_sentences(shared_data: Path) -> None:
    counts = {"wnut17train": 3394, "emerging.dev": 1009, "emerging.test": 1287}
    for name, count in counts.items():
        rows = read_labelled(shared_data / "wnut17" / f"{name}.conll")
        assert len(rows) == count
        assert all(len(row.fields["tokens"]) == len(row.fields["tags"]) > 0 for row in rows)
        assert {tag[:2] for row in rows for tag in row.fields["tags"]} == {"O", "B-", "I-"}


# Parallel lines


def test_parallel_lines(tmp_path: Path) -> None:
    source, target = write(tmp_path / "a.en", "one\n\ntwo\n"), write(tmp_path / "a.de", "eins\r\n\r\nzwei\n\n\n")
    rows = read_parallel(source, str(target))
    assert [(row.fields["source"], row.fields["target"], row.line) for row in rows] == [
        ("one", "eins", 1), ("", "", 2), ("two", "zwei", 3)
    ]  # fmt: skip
    write(target, "eins\nzwei\n")
    with pytest.raises(InputError, match=r"a.en has 3 lines and .*a.de has 2: line N of one must belong"):
        read_parallel(source, target)
    with pytest.raises(InputError, match=r"a.de:3: line 3 is empty, and that of the other file is not: fill it in"):
        read_parallel(write(source, "a\n\nc\nd\n"), write(target, "eins\n\n \nvier\n"))
    with pytest.raises(InputError, match=r"a.de is empty"):
        read_parallel(source, write(target, "\n"))
    with pytest.raises(InputError, match=r"no file .*a.fr. Did you mean"):
        read_parallel(source, tmp_path / "a.fr")


def test_real_parallel_lines(shared_data: Path) -> None:
    rows = read_parallel(shared_data / "multi30k" / "val.en", shared_data / "multi30k" / "val.de")
    assert len(rows) == 1014 and all(row.fields["source"] and row.fields["target"] for row in rows)


# Names that are nothing


@pytest.mark.parametrize("name", ["pairs.txt", "pairs.txt.gz", "a.conll"])
def test_tagged_sentences_are_no_table(tmp_path: Path, name: str) -> None:
    path = write(tmp_path / name, "one text\tanother\t0.5\n")
    message = r"has the ending '.(txt|conll)'; rows are read from .jsonl, .*call it .tsv"
    with pytest.raises(InputError, match=message) as caught:
        read_labelled(path, tagged=False)
    assert caught.value.exit_code == 2
    assert len(read_labelled(write(tmp_path / "pairs.tsv", "a\tb\nx\ty\n"), tagged=False)) == 1


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.csv", "text,label,label\nx,a,b\n", "two columns have the name 'label'.*\nRename or remove one"),
        ("a.tsv", "text\tlabel\ttext\nx\ta\ty\n", "two columns have the name 'text'.*\nRename or remove one"),
        ("a.csv", "text,la\0bel\nx,a\n", "NUL characters where the names of columns should be"),
    ],
)
def test_first_lines_that_name_no_columns(tmp_path: Path, name: str, content: str, message: str) -> None:
    path = tmp_path / name
    path.write_bytes(gzip.compress(content.encode()) if name.endswith(".gz") else content.encode())
    with pytest.raises(InputError, match=f"{name}:1: .*{message}") as caught:
        read_labelled(path)
    assert caught.value.exit_code == 2


def test_first_lines_that_are_as_they_should_be(tmp_path: Path) -> None:
    """Columns without a name are what spreadsheets leave; a name may be long; one that nobody reads may come twice."""
    assert len(read_labelled(write(tmp_path / "a.csv", "text,label,,\nx,a,,\n"))) == 1
    long = "What did you like, apart from all the other things that we asked you before?"
    assert len(read_labelled(write(tmp_path / "a.tsv", f"{long}\nx\n"))) == 1
    twice = write(tmp_path / "b.csv", "text,label,label\nx,a,b\n")
    assert [row.fields["text"] for row in iter_records(twice, Reading(column="text"))] == ["x"]


def test_endings_that_are_not_read_are_not_offered(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"rows are read from [^:]*\.parquet, each also with .gz or .zst\. If"):
        read_labelled(write(tmp_path / "a.xlsx", "x"), tagged=False)
    with pytest.raises(InputError, match=r"rows are read from .*each also with .gz.*\.conll"):
        read_labelled(write(tmp_path / "a.xlsx", "x"))


def test_what_is_not_there(tmp_path: Path) -> None:
    write(tmp_path / "train.jsonl", "{}")
    with pytest.raises(InputError, match=r"there is no file or folder .*trian.jsonl. Did you mean .*train.jsonl"):
        read_labelled(tmp_path / "trian.jsonl")
    with pytest.raises(InputError, match=r"has the ending '.docx'; rows are read from .jsonl, .json, .csv"):
        read_labelled(write(tmp_path / "a.docx", "x"))
    with pytest.raises(InputError, match="OWNER/NAME:CONFIG:SPLIT"):
        read_labelled("me/good:a:b:c")
    with pytest.raises(
        HubError, match=r"^me/good: there is no such file or folder, and the dataset me/good of the Hub"
    ):
        read_labelled("me/good:a")  # the tests run offline


# The Hub

CARD = """---
configs:
- config_name: first
  data_files:
  - {split: train, path: data/train-*}
  - {split: test, path: data/test-*}
- config_name: second
  data_files:
  - {split: validation, path: data/test-*}
dataset_info:
- config_name: first
  features:
  - {name: text, dtype: string}
  - name: n
    dtype:
      class_label:
        names: {'0': zero, '1': one, '2': two, '3': three, '4': four}
---
"""
SCRIPT = """
from lacuna.common.errors import LacunaError
from lacuna.corpus import read_labelled

def rows(name, split=None):
    try:
        return [[row.fields, row.path, row.line] for row in read_labelled(name, split)]
    except LacunaError as error:
        return [error.exit_code, str(error)]

names = ["me/good:first", "me/good:first:test", "me/good:second", "me/good:third", "me/good:first:dev",
         "me/missing:x", "me/gated"]
print(json.dumps({"split": rows("me/good:first", "test"), **{name: rows(name) for name in names}}))
"""


@pytest.fixture
def card() -> Iterator[None]:
    test_hub.FILES["README.md"] = CARD.encode()
    yield
    del test_hub.FILES["README.md"]


def test_datasets_of_the_hub(tmp_path: Path, endpoint: str, card: None) -> None:
    found = test_hub.read_from(endpoint, SCRIPT, tmp_path)
    numbers = ["zero", "one", "two", "three", "four"]
    assert found["me/good:first"] == [
        [{"text": f"train {n}", "n": numbers[n]}, "me/good (train)", n + 1] for n in range(5)
    ]
    assert found["me/good:first:test"] == [[{"text": "test 0", "n": "zero"}, "me/good (test)", 1]] == found["split"]
    assert [row[0]["text"] for row in found["me/good:second"]] == ["test 0"]  # the only split
    for name, code, message in (
        ("me/good:third", 2, "me/good: write a configuration behind its name, OWNER/NAME:CONFIG"),
        ("me/good:first:dev", 2, "me/good has no split 'dev'; write one behind its name"),
        ("me/missing:x", 6, "of the Hub cannot be read"),
        ("me/gated", 6, "hf auth login"),
    ):
        assert found[name][0] == code and message in found[name][1], found[name]


def test_a_full_temporary_disk_is_an_error_of_storage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pyarrow.parquet.write_table(pyarrow.table({"text": ["a"], "label": ["b"]}), tmp_path / "a.parquet")
    (tmp_path / "a.parquet.gz").write_bytes(gzip.compress((tmp_path / "a.parquet").read_bytes()))
    assert len(read_labelled(str(tmp_path / "a.parquet.gz"))) == 1
    monkeypatch.setattr(tempfile, "TemporaryFile", partial(open, "/dev/full", "wb", buffering=0))
    with pytest.raises(StorageError, match=r"a\.parquet\.gz cannot be unpacked in .* set TMPDIR"):
        read_labelled(str(tmp_path / "a.parquet.gz"))


# Pairs of a text


def test_sentences_are_taken_out_of_the_passages_around_them(tmp_path: Path) -> None:
    long = "\n\n".join(f"Sentence {number} of a long document, which is about rivers." for number in range(900))
    verse = "\n".join(f"a line of verse number {number} that ends without a mark" for number in range(200))
    two = "A sentence that is long enough to ask. And so on."
    apart = "x" * 700 + ". And so on, for a while, and on and on."
    documents = [long, verse, two, "Too short.\n\nAs is this.", apart, " "]
    file = write(tmp_path / "a.jsonl", "".join(json.dumps({"text": text}) + "\n" for text in documents))
    text = open_text(TextArguments(data=[str(file)]))
    rows = pair_passages(text, seed=1)
    pairs = [[tuple(row.fields.values()) for row in rows if row.path == f"{file}:{number}"] for number in range(1, 7)]
    lines = [one for one, _ in pairs[1] if one in verse.splitlines()]
    assert len(lines) > 0.9 * len(pairs[1]) > 50, "lines, but where a cut after so many characters made two of one"
    assert [pairs[2], pairs[3], pairs[5]] == [[], [], []], "what stays has fewer than 40 characters"
    assert pairs[4] == [], "what would ask stands in a passage of its own"
    passages: dict[str, list[str]] = {}
    for one, rest in pairs[0]:
        passages.setdefault(rest, []).append(one)
    seen = []
    for rest, asked in passages.items():
        numbers = sorted(int(each.split()[1]) for each in [*asked, *rest.split("\n\n")])
        assert len({*asked}) == len(asked) == min(3, len(numbers) // 2) and asked == sorted(asked, key=long.index)
        assert numbers == [*range(numbers[0], numbers[-1] + 1)] and len(rest) <= 400
        seen += numbers
    assert sorted(seen) == [*range(900)], "passages do not overlap, and nothing that asks stands in one"
    parts = [row.line for row in rows if row.path == f"{file}:1"]
    assert Counter(parts)[1] == 3 * 5 and parts == sorted(parts) and parts[-1] == math.ceil(len(passages) / 5)
    assert rows == pair_passages(text, seed=1) != pair_passages(text, seed=2)


def test_a_text_without_pairs_is_refused(tmp_path: Path) -> None:
    file = write(tmp_path / "a.txt", "A single sentence is all of its passage, and nothing stands around it.")
    with pytest.raises(InputError, match=r"a\.txt: no document has a sentence of 10 to 200 characters with 40 others"):
        pair_passages(open_text(TextArguments(data=[str(file)])), seed=0)
    with pytest.raises(InputError, match=r"weights mean nothing: leave them out"):
        pair_passages(open_text(TextArguments(data=[f"{file}:0.5"])), seed=0)
