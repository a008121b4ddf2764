"""Files of labelled descriptions, made from the two indices of a mirror."""

import json
import lzma
import sys
from pathlib import Path

import packages
import pytest

DESCRIPTIONS = """Package: chess
Description-md5: 0
Description-en: a board game
 It is about a king, a queen and
 several others.
 .
  * bishops

Package: chess-data
Description-md5: 0
Description-en: pictures of a board game, which are longer
 This description is longer than that of the package that has the name of its source, and not taken.

Package: libwav1
Description-md5: 0
Description-en: sound files
 Short.

Package: libwav-tools
Description-md5: 0
Description-en: tools for sound files
 Longer.

Package: twin
Description-md5: 0
Description-en: tools for sound files
 Longer.
"""
INDEX = """Package: chess-data
Source: chess (1.0)
Section: games

Package: chess
Version: 2
Section: games

Package: libwav1
Source: wav
Section: libs

Package: libwav-tools
Source: wav
Section: sound

Package: twin
Section: sound

Package: not-described
Section: sound
"""
CHESS = "A board game.\nIt is about a king, a queen and several others.\n* bishops"


@pytest.fixture
def mirror(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(packages, "SHORTEST", 10)
    for name, text in ((packages.DESCRIPTIONS, DESCRIPTIONS), (packages.PACKAGES, INDEX)):
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).write_bytes(lzma.compress(text.encode()))
    return f"{tmp_path.as_uri()}/"


def test_one_description_of_each_source(mirror: str) -> None:
    assert packages.read_packages(mirror) == [
        {"text": CHESS, "label": "games", "source": "chess"},
        {"text": "Tools for sound files.\nLonger.", "label": "sound", "source": "twin"},
    ], "the package of its name, or the longest; of equal texts one"


def test_what_is_held_out_is_not_in_the_text(mirror: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("HELD_OUT", 1), ("COUNTS", (1,)), ("DRAWS", 2)):
        monkeypatch.setattr(packages, name, value)
    monkeypatch.setattr(sys, "argv", ["packages.py", "--mirror", mirror, "--work_dir", str(tmp_path / "work")])
    packages.main()
    files = {
        path.stem: [json.loads(line) for line in path.read_text().splitlines()]
        for path in (tmp_path / "work").iterdir()
    }
    assert files.keys() == {"text", "held_out", "labels-1", "labels-1-0", "labels-1-1"}
    (text,), (held_out,), (label,) = files["text"], files["held_out"], files["labels-1"]
    assert {text["text"], held_out["text"]} == {CHESS, "Tools for sound files.\nLonger."}
    assert label["text"] == text["text"] and label["label"] in {"games", "sound"}


def test_a_mirror_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="--mirror: cannot read "):
        packages.read_packages(f"{tmp_path.as_uri()}/")
