"""Bytes and lines of files: compressed or not, whole or broken, short or longer than memory may be."""

import gzip
import subprocess
import sys
from pathlib import Path

import pytest
import zstandard
from examples import examples, fast
from hypothesis import given
from hypothesis import strategies as st

from lacuna.common.errors import BadRecord, InputError
from lacuna.corpus.read import streams
from lacuna.corpus.read.streams import CHUNK_BYTES, Line, Reading, open_stream, read_lines

PACKERS = {"": bytes, ".gz": gzip.compress, ".zst": zstandard.compress}
ROOM = Path(__file__).resolve().parents[2]


def read_all(path: Path) -> bytes:
    data = b""
    with open_stream(path) as stream:
        while chunk := stream.read(CHUNK_BYTES):
            data += chunk
    return data


@pytest.mark.parametrize("ending", PACKERS)
def test_bytes_come_back_and_progress_counts_those_on_disk(tmp_path: Path, ending: str) -> None:
    path = tmp_path / f"a.txt{ending}"
    content = b"0123456789\n" * 100_000
    path.write_bytes(PACKERS[ending](content))
    how = Reading()
    with open_stream(path, how) as stream:
        parts = iter(lambda: stream.read(CHUNK_BYTES), b"")
        assert b"".join(parts) == content
    assert how.current == path.stat().st_size


@pytest.mark.parametrize("ending", [".gz", ".zst"])
def test_members_and_frames_follow_each_other(tmp_path: Path, ending: str) -> None:
    path = tmp_path / f"a.txt{ending}"
    path.write_bytes(PACKERS[ending](b"one\n") + PACKERS[ending](b"") + PACKERS[ending](b"two\n"))
    assert read_all(path) == b"one\ntwo\n"


@pytest.mark.parametrize("ending", [".gz", ".zst"])
@pytest.mark.parametrize("kept", [1, 6, 0.5, 0.99, -1])
def test_a_truncated_archive_is_not_a_short_text(tmp_path: Path, ending: str, kept: float) -> None:
    path = tmp_path / f"a.txt{ending}"
    packed = PACKERS[ending](bytes(range(256)) * 40 + b"end")
    packed = packed[: int(kept * len(packed)) if 0 < kept < 1 else int(kept)]
    for before in (b"", PACKERS[ending](b"a whole one")):
        path.write_bytes(before + packed)
        with pytest.raises(InputError, match=rf"a\.txt\{ending} is a broken .* near byte {len(before + packed)}"):
            read_all(path)


def test_a_damaged_archive_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "a.txt.gz"
    packed = bytearray(gzip.compress(b"some text " * 100))
    packed[-6] ^= 1  # of the checksum
    path.write_bytes(bytes(packed))
    with pytest.raises(InputError, match="incorrect data check"):
        read_all(path)
    path.write_bytes(b"not compressed at all")
    with pytest.raises(InputError, match="broken gzip archive"):
        read_all(path)


def expected_lines(data: bytes, limit: int) -> list[tuple[int, int, int]]:
    """Number, offset and length, with -1 as the length of a line that is too long."""
    found, offset = [], 0
    for number, line in enumerate(data.splitlines(keepends=True), start=1):
        found.append((number, offset, len(line) if len(line) <= limit else -1))
        offset += len(line)
    return found


@examples(300)
@given(data=st.lists(st.sampled_from([b"\n", b"\r", b"\r\n", b"a", b"bcdef", b"x" * 20])).map(b"".join))
def test_lines_are_those_of_the_whole_whatever_the_chunks(
    tmp_path_factory: pytest.TempPathFactory, data: bytes
) -> None:
    path = tmp_path_factory.getbasetemp() / "lines.txt"
    path.write_bytes(data)
    for chunk in (1, 2, 3, 7, 1000):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(streams, "CHUNK_BYTES", chunk)
            patch.setattr(streams, "MAX_DOCUMENT_BYTES", 12)
            with open_stream(path) as stream:
                lines = list(read_lines(stream))
            kept = [(line.number, line.offset, len(line.data)) for line in lines if isinstance(line, Line)]
            wanted = expected_lines(data, 12)
            assert kept == [line for line in wanted if line[2] >= 0]
            bad = [str(line) for line in lines if isinstance(line, BadRecord)]
            for message, (number, offset, _) in zip(bad, [x for x in wanted if x[2] < 0], strict=True):
                assert f"lines.txt:{number}: " in message and f"at byte {offset}: " in message


# What reading takes beyond the interpreter and its libraries, which are there before the line is read.
MEASURE = """
import resource, sys
from lacuna.common.errors import InputError
from lacuna.corpus import TextArguments, open_text
peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
import pyarrow
before = peak()
try:
    list(open_text(TextArguments(data=[sys.argv[1]], document_boundary="line")).documents())
except InputError as error:
    print(error)
text = open_text(TextArguments(data=[sys.argv[1]], document_boundary="line", on_bad_record="skip"))
print([document.text for document in text.documents()], text.dropped)
print(round(peak() - before))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="ru_maxrss is in KiB on Linux")
@pytest.mark.parametrize("name", fast(["a.txt", "a.jsonl.zst"], "a.jsonl.zst"))
def test_a_line_of_100_megabytes_is_an_error_that_takes_no_memory(tmp_path: Path, name: str) -> None:
    first, last = (b"first", b"last") if name == "a.txt" else (b'{"text": "first"}', b'{"text": "last"}')
    path = tmp_path / name
    with path.open("wb") as file:
        pack = zstandard.ZstdCompressor().stream_writer(file) if name.endswith(".zst") else file
        pack.write(first + b"\n")
        for _ in range(100):
            pack.write(b"x" * 1_000_000)
        pack.write(b"\n" + last)
        if pack is not file:
            pack.close()
    run = subprocess.run(
        [sys.executable, "-c", MEASURE, str(path)], cwd=ROOM, capture_output=True, text=True, check=True
    )
    *message, documents, megabytes = run.stdout.splitlines()
    place = f"{path}:2: a line of more than 32 MiB, which is the most that it may have, at"
    assert message[0].startswith(place) and message[0].endswith(f" {len(first) + 1}: {'x' * 80}")
    assert documents == "['first', 'last'] {'bad record': 1}"
    assert int(megabytes) < 80
