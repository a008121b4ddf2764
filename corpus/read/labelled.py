"""Rows for fine-tuning: of tables, tagged sentences, parallel lines, saved data sets and the Hub; pairs of a text."""

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain, groupby
from pathlib import Path
from typing import Any

import numpy as np

from lacuna.common.errors import BadRecord, InputError, progress_bar
from lacuna.common.private import counted, shown

from ..store.encoding import split_sentences
from .formats import RECORD_KINDS, Record, check_named, iter_records, kind_of
from .sources import choose_split, hub_errors, is_hub_name, is_saved, load_hub, near_names, read_records, saved_files
from .streams import Line, Reading, bad_line, decode, open_stream, read_lines, say_once
from .text import Text

FEW_LABELS = 8  # are no sign that what lines begin with is no label
TAGGED_KINDS = (".conll", ".txt", ".iob", ".bio", ".conllu")
LEAST_SENTENCE, LARGEST_SENTENCE, LEAST_PASSAGE, LARGEST_PASSAGE = 10, 200, 40, 400  # characters
MOST_SENTENCES, STRETCH = 3, 5  # of a passage that ask for it; passages that are held out together
MOST_PAIRS = 1_000_000  # beyond which no further document is read
_WAYS = "a token and its tag a line, with tabs or blanks between them and an empty line after each sentence"


def read_labelled(
    name: Path | str,
    split: str | None = None,
    *,
    tagged: bool = True,
    label_first: bool = False,
    column_names: Sequence[str] = (),
    encoding: str = "utf-8",
) -> list[Record]:
    """All rows of a labelled data set; numbers of labels become their names, where these are kept beside them.

    Args:
        name: a table (.jsonl, .csv, .tsv, .parquet, .json); tagged sentences in columns (.conll, .txt, .iob, .bio;
            .conllu), whose rows have "tokens" and "tags"; a folder saved by `datasets`, or FOLDER:SPLIT; or a dataset
            of the Hub, OWNER/NAME:CONFIG:SPLIT, where configuration and split may be left out.
        split: of a saved folder or a dataset of the Hub; by default the only one, or "train".
        tagged: whether tagged sentences are wanted too; otherwise a file of them is refused.
        label_first: whether a .txt file is one of texts instead, each a line that begins with its label.
        column_names: of a .csv or .tsv whose first line does not hold them.
        encoding: of a file, by the name of a codec of Python.

    Raises InputError or HubError if there is no such thing, or something in it is broken; the message says where.
    """
    path, how = Path(name).expanduser(), Reading(column_names=column_names, encoding=encoding)
    front, *behind = str(name).split(":")
    if behind and not os.path.exists(path) and os.path.isdir(Path(front).expanduser()):
        path, split = Path(front).expanduser(), ":".join(behind)
    check_named(path, how)
    if os.path.exists(path):  # False, too, of a name that is too long for a file
        options = {"tagged": tagged, "label_first": label_first}
        rows = _read_saved(path, split) if path.is_dir() else _read_file(path, how, **options)
        if not rows:
            raise InputError(f"{shown(path)} is empty: it has no row.")
        return rows
    if is_hub_name(front):
        if len(behind) > 2:
            raise InputError(f"{shown(str(name))}: a dataset of the Hub is named OWNER/NAME:CONFIG:SPLIT.")
        config, named = [part or None for part in (*behind, "", "")][:2]
        return list(_read_split(name=front, config=config, split=named or split))
    raise InputError(f"there is no file or folder {shown(path)}.{near_names(path)}")


def read_unlabelled(name: Path | str, **reading: Any) -> Iterator[Record]:
    """Rows without labels, one at a time, of what `read_labelled` reads and with its options; of a .txt its lines.

    Raises InputError or HubError as it does, and for an empty line within a .txt.
    """
    path, how = Path(name).expanduser(), Reading(**reading)
    kind = kind_of(path) if os.path.isfile(path) else None
    if kind == ".txt":
        yield from _read_lines(path, how)
    elif kind in RECORD_KINDS:
        yield from read_records(path, how)
    elif kind is None or kind in TAGGED_KINDS:
        yield from read_labelled(name, **reading)
    else:
        raise InputError(
            f"{shown(path)} has the ending {path.suffix!r}; rows are read from {', '.join(RECORD_KINDS)}, texts, one "
            "a line, from .txt, each also with .gz or .zst: rename or convert it"
        )


def _read_lines(path: Path, how: Reading) -> Iterator[Record]:
    """Lines of a file; an empty one is refused, but for those at the end."""
    check_named(path, how)
    empty = 0
    for line, text in iter_lines(path, how):
        if not text.strip():
            empty = empty or line.number
        elif empty:
            raise InputError(f"{shown(path)}:{empty}: line {empty} is empty: remove it or write its text")
        else:
            yield Record({"text": text}, str(path), line.number, line.offset)


def _read_file(path: Path, how: Reading, *, tagged: bool, label_first: bool) -> list[Record]:
    kind = kind_of(path)
    if label_first and kind == ".txt":
        return _read_label_first(path, how)
    if kind not in TAGGED_KINDS or not tagged:
        more = f"; tagged sentences from {', '.join(TAGGED_KINDS)}" if tagged else ""
        return _with_labels(path, list(read_records(path, how, more=more)))
    return list(_read_universal(path, how) if kind == ".conllu" else _read_columns(path, how))


def _read_saved(folder: Path, split: str | None) -> list[Record]:
    if not is_saved(folder):
        raise InputError(
            f"{shown(folder)} is a folder that `datasets` has not saved (it has no state.json): name one file."
        )
    files = saved_files(folder, split, way="write one behind its name (FOLDER:SPLIT)")
    return [row for file in files for row in _with_labels(file, list(iter_records(file)))]


def _with_labels(file: Path, rows: Sequence[Record | BadRecord]) -> list[Record]:
    """Rows of a file with the names of labels that `datasets` has left in it; without, where that is broken."""
    for row in rows:
        if isinstance(row, BadRecord):
            raise row
    whole = [row for row in rows if isinstance(row, Record)]
    if file.suffix.lower() not in (".parquet", ".arrow"):
        return whole
    import pyarrow.parquet

    read_schema = pyarrow.parquet.read_schema if file.suffix.lower() == ".parquet" else pyarrow.ipc.read_schema
    with file.open("rb") as opened:
        schema = read_schema(opened)
    try:
        names = label_names(json.loads(schema.metadata[b"huggingface"])["info"]["features"])
    except (ValueError, LookupError, TypeError, AttributeError):
        return whole
    return [replace(row, fields=with_names(row.fields, names)) for row in whole]


def iter_lines(path: Path, how: Reading) -> Iterator[tuple[Line, str]]:
    """Lines of a file, and their text without its end; BadRecord where one is not UTF-8, or too long."""
    with open_stream(path, how) as stream:
        for line in read_lines(stream):
            if isinstance(line, BadRecord):
                raise line
            yield line, decode(line, path).rstrip("\r\n")


def _sentences(path: Path, how: Reading) -> Iterator[list[tuple[Line, str]]]:
    """Lines of a file up to each blank one, without those that say nothing of a token."""
    lines = iter_lines(path, how)
    for is_sentence, rows in groupby(lines, lambda row: not row[1].startswith("-DOCSTART-") and bool(row[1].strip())):
        if is_sentence:
            yield [*rows]


def _read_columns(path: Path, how: Reading) -> Iterator[Record]:
    """Sentences of a file with a token a line: the token in the first column, its tag in the last.

    Columns between them become "column_2" and so on; lines that begin with -DOCSTART- are left out.
    """
    width = 0
    for sentence in _sentences(path, how):
        rows: list[list[str]] = []
        for line, text in sentence:
            cells = text.split("\t") if "\t" in text else [cell for cell in text.split(" ") if cell]
            width = width or len(cells)
            if len(cells) != width or width < 2 or not all(cell.strip() for cell in cells):
                what = "a line with nothing but a token" if width < 2 else "an empty column"
                if len(cells) != width:
                    what = f"{counted(len(cells), 'column')} where the first line has {width}"
                raise bad_line(path, line, f"{what}; a {kind_of(path)} file of labelled text has {_WAYS}", head=text)
            rows.append([cell.strip() for cell in cells])
        tokens, *between, tags = (list(column) for column in zip(*rows, strict=True))
        others = {f"column_{number}": column for number, column in enumerate(between, start=2)}
        first = sentence[0][0]
        yield Record({"tokens": tokens, "tags": tags, **others}, str(path), first.number, first.offset)


def _read_universal(path: Path, how: Reading) -> Iterator[Record]:
    """Sentences of Universal Dependencies: words and their universal part of speech; "xpos" is the treebank's own."""
    for sentence in _sentences(path, how):
        rows: list[tuple[Line, list[str]]] = []
        for line, text in sentence:
            cells = text.split("\t")
            if not text.startswith("#") and len(cells) != 10:
                what = f"{counted(len(cells), 'column')}; a .conllu file has 10, with tabs between them"
                raise bad_line(path, line, what, head=text)
            if cells[0].isdecimal():  # 3-4 is a word of two, 5.1 one that is not written
                rows.append((line, cells))
        if rows:
            words, tags, own = ([cells[column] for _, cells in rows] for column in (1, 3, 4))
            first = rows[0][0]
            yield Record({"tokens": words, "tags": tags, "xpos": own}, str(path), first.number, first.offset)


def _read_label_first(path: Path, how: Reading) -> list[Record]:
    """Lines of a label, white space and a text, as TREC has them."""
    rows: list[Record] = []
    form = "in a .txt file of labelled texts each line is a label, white space and a text"
    for line, text in iter_lines(path, how):
        label, *rest = text.split(None, 1) or [""]
        if label and not rest:
            raise bad_line(path, line, f"no text after the label; {form}", head=text)
        rows += [Record({"label": label, "text": each.strip()}, str(path), line.number, line.offset) for each in rest]
    labels = {row.fields["label"]: None for row in rows}
    if len(labels) > max(FEW_LABELS, len(rows) // 2):
        some = ", ".join(repr(label[:20]) for label in [*labels][:3])
        raise InputError(
            f"{shown(path)}: {len(rows):,} lines begin with {len(labels):,} different words ({some}, ...), too many "
            f"to be labels; {form}. Other rows are read from {', '.join(RECORD_KINDS)}."
        )
    say_once(f"{shown(path)}: each line is a label, then a text ({counted(len(labels), 'label')})")
    return rows


def _read_split(*, name: str, config: str | None, split: str | None) -> Iterator[Record]:
    """All rows of a split of a dataset of the Hub, by default of the only one, or "train"."""
    with hub_errors(name, option="", config="write a configuration behind its name, OWNER/NAME:CONFIG"):
        splits = load_hub(name, config, None)
        way = "write one behind its name and configuration, which may be empty (OWNER/NAME:CONFIG:SPLIT)"
        chosen = choose_split(list(splits), split, where=name, way=way)
        features = splits[chosen].features
        labels = label_names(features.to_dict()) if features is not None else {}
        for number, row in enumerate(splits[chosen], start=1):
            yield Record(with_names(row, labels), f"{name} ({chosen})", number)


def label_names(features: Mapping[str, Any]) -> dict[str, list[str]]:
    """The names of the labels of each column that holds labels or lists of them.

    `features`: as `datasets.Features.to_dict` gives them, and as dataset_info.json and parquet files hold them.
    """
    found = {}
    for column, feature in features.items():
        inner = feature[0] if isinstance(feature, list) and feature else feature  # [ClassLabel] is an old way to write
        while isinstance(inner, Mapping) and isinstance(inner.get("feature"), Mapping):
            inner = inner["feature"]
        if isinstance(inner, Mapping) and inner.get("_type") == "ClassLabel" and isinstance(inner.get("names"), list):
            found[column] = [str(name) for name in inner["names"]]
    return found


def with_names(row: Mapping[str, Any], names: Mapping[str, list[str]]) -> dict[str, Any]:
    """The row with names in the place of numbers; None for -1, by which a data set says that there is no label."""
    return {column: _named(value, names[column]) if column in names else value for column, value in row.items()}


def _named(value: Any, names: list[str]) -> Any:
    if isinstance(value, list):
        return [_named(item, names) for item in value]
    if isinstance(value, int) and not isinstance(value, bool):
        return names[value] if 0 <= value < len(names) else None
    return value


def read_parallel(
    source: Path | str, target: Path | str, *, column_names: Sequence[str] = (), encoding: str = "utf-8"
) -> list[Record]:
    """Rows {"source", "target"} of two files with a text a line, where line N of one belongs to line N of the other.

    Raises InputError: a file is missing, empty or broken, one is longer, or a line is empty in one of them alone.
    """
    sides: list[list[tuple[Line, str]]] = []
    how = Reading(column_names=column_names, encoding=encoding)
    for name in (source, target):
        path = Path(name).expanduser()
        check_named(path, how)
        if not path.is_file():
            raise InputError(f"there is no file {shown(path)}.{near_names(path)}")
        sides.append(list(iter_lines(path, how)))
        while sides[-1] and not sides[-1][-1][1].strip():
            sides[-1].pop()
        if not sides[-1]:
            raise InputError(f"{shown(path)} is empty: it has no line.")
    if len(sides[0]) != len(sides[1]):
        raise InputError(
            f"{shown(source)} has {len(sides[0]):,} lines and {shown(target)} has {len(sides[1]):,}: line N of one "
            "must belong to line N of the other. Look for a line that is missing or was broken in two."
        )
    rows = []
    for (line, text), (_, other) in zip(*sides, strict=True):
        if bool(text.strip()) != bool(other.strip()):
            raise InputError(
                f"{shown(target if text.strip() else source)}:{line.number}: line {line.number} is empty, and that of "
                f"the other file is not: fill it in, or remove it from {shown(source)} and {shown(target)}."
            )
        rows.append(Record({"source": text, "target": other}, str(source), line.number, line.offset))
    return rows


def pair_passages(text: Text, *, seed: int, show_progress: bool = True) -> list[Record]:
    """Rows of a sentence and the passage that it was taken out of, at the place of its document and the part of it.

    A sentence stands for what a person would ask, and a model that finds its passage serves search: the inverse cloze
    task (Lee et al., 2019, https://arxiv.org/abs/1906.00300). A passage is sentences in a row, with their white space,
    of up to `LARGEST_PASSAGE` characters; half of them, but no more than `MOST_SENTENCES`, are taken out: no passage
    has in it what asks for it.

    Raises InputError: the text cannot be read, has weights, or no sentence of it stands in a passage.
    """
    if text.weights:
        raise InputError("--data: every passage is paired here, so that weights mean nothing: leave them out")
    rows, generator = list[Record](), np.random.default_rng(seed)
    how: dict[str, Any] = {"doing": "reading", "unit": " documents", "disable": not show_progress}
    for document in progress_bar(text.documents(), **how):
        for number, sentences in enumerate(_passages(document.text, text.language)):
            asking = [i for i, it in enumerate(sentences) if LEAST_SENTENCE <= len(it.strip()) <= LARGEST_SENTENCE]
            out = sorted(generator.permutation(asking)[: min(MOST_SENTENCES, len(sentences) // 2)])
            rest = "".join(each for i, each in enumerate(sentences) if i not in out).strip()
            for one in (sentences[i].strip() for i in out if len(rest) >= LEAST_PASSAGE):
                rows.append(Record({"text": one, "text_pair": rest}, document.place, number // STRETCH + 1))
        if len(rows) >= MOST_PAIRS:
            break
    if not rows:
        raise InputError(
            f"--data {' '.join(map(shown, text.names))}: no document has a sentence of {LEAST_SENTENCE} to "
            f"{LARGEST_SENTENCE} characters with {LEAST_PASSAGE} others around it, so there is nothing to find"
        )
    return rows


def _passages(text: str, language: str) -> Iterator[list[str]]:
    passage, size = list[str](), 0
    sentences = split_sentences(text, language=language)
    lines = ([each] if len(each) <= LARGEST_SENTENCE else each.splitlines(keepends=True) for each in sentences)
    for each in chain.from_iterable(lines):
        if passage and size + len(each) > LARGEST_PASSAGE:
            yield passage
            passage, size = [], 0
        passage.append(each)
        size += len(each)
    yield passage
