"""What bad input gets from the recipe: one message that says where, exit code 2 (5 for the disk), and no store."""

import gzip
import json
import resource
import runpy
import subprocess
import sys
from pathlib import Path

import pytest
import zstandard
from examples import fast

from lacuna.common.errors import InputError
from lacuna.corpus import open_store
from lacuna.tokenization import save_tokenizer, train_bpe

ROOT = Path(__file__).resolve().parents[2]
RECIPE = ROOT / "recipes" / "prepare_corpus.py"
GOOD = b'{"text": "The cat sat. The dog ran."}\n'
PADDING = b"x" * 200


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tokenizer")
    save_tokenizer(
        tokenizer=train_bpe(documents=["The cat sat. The dog ran. " * 20], vocab_size=270), output_dir=folder
    )
    return folder


class Recipe:
    """The recipe, run in this process."""

    def __init__(self, folder: Path, tokenizer: Path, patch: pytest.MonkeyPatch, captured: pytest.CaptureFixture[str]):
        self.folder, self.tokenizer, self.patch, self.captured = folder, tokenizer, patch, captured

    def run(self, *arguments: str) -> tuple[int, str, str]:
        """Exit code, standard output, standard error."""
        options = ["--tokenizer", str(self.tokenizer), "--output_dir", "store"]
        options += [] if "--num_workers" in arguments else ["--num_workers", "0"]
        self.patch.setattr(sys, "argv", [str(RECIPE), *options, *arguments])
        self.patch.chdir(self.folder)
        with pytest.raises(SystemExit) as ended:
            runpy.run_path(str(RECIPE), run_name="__main__")
        output, error = self.captured.readouterr()
        return int(ended.value.code or 0), output, error

    def refuses(self, *arguments: str) -> str:
        """The message of an error of the user's, after which nothing is there."""
        before = sorted(path.name for path in self.folder.iterdir())
        code, output, error = self.run(*arguments)
        assert code == 2 and not output and error.startswith("error: ") and "Traceback" not in error
        assert sorted(path.name for path in self.folder.iterdir()) == before  # no store, no half of one
        return error.removeprefix("error: ")


@pytest.fixture
def recipe(
    tmp_path: Path, tokenizer: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Recipe:
    monkeypatch.setenv("LACUNA_CACHE", str(tmp_path.parent / "cache"))
    return Recipe(tmp_path, tokenizer, monkeypatch, capsys)


BAD_RECORDS = {  # record, what is said of it, the byte of the record that is named, what is shown of it
    "corrupt": (b'{"text": "one", broken' + PADDING, "not valid JSON", 0, '{"text": "one", broken' + "x" * 58),
    "truncated": (b'{"text": "The cat', "not valid JSON", 0, '{"text": "The cat'),
    "utf8": (b'{"text": "caf\xe9' + PADDING, "not valid UTF-8 (0xe9)", 13, r'{"text": "caf\xe9' + "x" * 63),
    "null": (b'{"text": null, "id": 1}', "the column 'text' must hold text, not null", 0, '{"text": null, "id": 1}'),
    "number": (b'{"text": 12, "id": 1}', "the column 'text' must hold text, not a number", 0, '{"text": 12, "id": 1}'),
    "missing": (b'{"txt": "one"}', "there is no column 'text'", 0, '{"txt": "one"}'),
}


@pytest.mark.parametrize("kind", BAD_RECORDS)
def test_bad_records(recipe: Recipe, kind: str) -> None:
    record, what, byte, shown = BAD_RECORDS[kind]
    (recipe.folder / "rows.jsonl").write_bytes(GOOD + record + b"\n" + GOOD)
    message = recipe.refuses("--data", "rows.jsonl")
    assert message.startswith(f"rows.jsonl:2: {what}")
    assert f"at byte {len(GOOD) + byte}" in message and shown in message
    code, output, _ = recipe.run("--data", "rows.jsonl", "--on_bad_record", "skip")
    assert code == 0 and "dropped: bad record 1, duplicates 1" in output
    assert f"  rows.jsonl:2: {what}" in output  # and it is named
    assert open_store(recipe.folder / "store", verify=True).num_documents == 1


def test_more_than_one_bad_record_in_a_thousand(recipe: Recipe) -> None:
    (recipe.folder / "rows.jsonl").write_bytes(GOOD * 900 + b"bad\n" * 2)
    message = recipe.refuses("--data", "rows.jsonl", "--on_bad_record", "skip")
    assert message.startswith("2 of 902 records are bad") and "rows.jsonl:901: not valid JSON" in message


@pytest.mark.parametrize(("name", "pack"), [("a.jsonl.gz", gzip.compress), ("a.jsonl.zst", zstandard.compress)])
def test_truncated_archives(recipe: Recipe, name: str, pack: object) -> None:
    assert callable(pack)
    packed = pack(b"".join(json.dumps({"text": f"Text {number}."}).encode() + b"\n" for number in range(5000)))
    (recipe.folder / name).write_bytes(packed[:-20])
    for how in ("stop", "skip"):
        message = recipe.refuses("--data", name, "--on_bad_record", how)
        assert message.startswith(f"{name} is a broken ") and f"near byte {len(packed) - 20:,}" in message


def test_empty_files_and_sources_of_weight_zero(recipe: Recipe) -> None:
    (recipe.folder / "empty.txt").touch()
    (recipe.folder / "a.txt").write_text("The cat sat.")
    assert recipe.refuses("--data", "a.txt", "empty.txt").startswith("empty.txt is empty: it holds no text")
    assert recipe.refuses("--data", "a.txt:1", "empty.txt:0").startswith("--data empty.txt:0: the weight")
    assert "no file or folder b.txt" in recipe.refuses("--data", "b.txt")


def test_a_line_of_100_megabytes(recipe: Recipe) -> None:
    """It is named, and is never in memory whole."""
    with (recipe.folder / "rows.jsonl").open("wb") as file:
        file.write(GOOD + b'{"text": "')
        for _ in range(100):
            file.write(b"x" * 1_000_000)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    message = recipe.refuses("--data", "rows.jsonl")
    assert message.startswith(
        "rows.jsonl:2: a line of more than 32 MiB, which is the most that it may have, at byte 38: "
    )
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 80 << 10 or sys.platform != "linux"


def test_a_file_that_changes(recipe: Recipe) -> None:
    """After a build it makes another store; while it is read it is an error."""
    file = recipe.folder / "rows.jsonl"
    file.write_bytes(GOOD)
    assert recipe.run("--data", "rows.jsonl")[0] == 0
    file.write_bytes(GOOD + b'{"text": "Another one."}\n')
    code, output, _ = recipe.run("--data", "rows.jsonl")
    assert code == 0 and output.startswith("store: 2 documents")
    fingerprint = open_store(recipe.folder / "store").fingerprint
    file.write_bytes(GOOD * 3)
    from lacuna.corpus.store import build

    cut_pieces = build._cut_pieces

    def changing(documents: object) -> object:
        for piece in cut_pieces(documents):  # type: ignore[arg-type]
            file.write_bytes(GOOD * 4)
            yield piece

    recipe.patch.setattr(build, "PIECE_BYTES", 1)
    recipe.patch.setattr(build, "_cut_pieces", changing)
    message = recipe.refuses("--data", "rows.jsonl")
    assert message.startswith("rows.jsonl changed while it was read: it had 114 bytes and has 152 now")
    assert open_store(recipe.folder / "store", verify=True).fingerprint == fingerprint  # the earlier one


@pytest.mark.parametrize("num_workers", fast(["0", "2"], "0"))
def test_a_disk_that_takes_no_more(recipe: Recipe, num_workers: str) -> None:
    """The system refuses to write on, as a full disk does; tests/corpus/test_build.py has a real one."""
    text = " ".join(f"{number}" for number in range(50_000))
    (recipe.folder / "a.txt").write_text(text)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, limits[1]))
    try:
        code, _, error = recipe.run("--data", "a.txt", "--num_workers", num_workers)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert code == 5 and error.startswith("error: cannot write .store.building-") and "Make room" in error, error
    with pytest.raises(InputError):
        open_store(recipe.folder / "store")


@pytest.mark.slow
def test_two_builders_at_once(recipe: Recipe) -> None:
    rows = [json.dumps({"text": f"Row {number}. It is one of many."}) for number in range(30_000)]
    (recipe.folder / "rows.jsonl").write_text("\n".join(rows))
    command = [sys.executable, str(RECIPE), "--data", "rows.jsonl", "--tokenizer", str(recipe.tokenizer)]
    both = [
        subprocess.Popen(
            [*command, "--output_dir", "store"], cwd=recipe.folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        for _ in range(2)
    ]
    outputs = [process.communicate() for process in both]
    assert [process.returncode for process in both] == [0, 0], outputs
    assert all(output.startswith(b"store: 30,000 documents") for output, _ in outputs)
    assert open_store(recipe.folder / "store", verify=True).num_documents == 30_000
    assert sorted(path.name for path in recipe.folder.iterdir()) == ["rows.jsonl", "store"]
